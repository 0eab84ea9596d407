//! Where the stages of pipelines live on a row of devices.

use shardloom_plan::Arrangement;

/// The devices of each pipeline's stages, or why there are none.
fn places(arrangement: Arrangement, devices: usize, chunks: usize) -> Result<Vec<String>, String> {
    let text =
        |stages: &Vec<usize>| stages.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let places = arrangement.places(devices, chunks).map_err(|error| error.to_string())?;
    Ok(places.iter().map(text).collect())
}

#[test]
fn pipelines_of_one_direction_go_round_from_devices_equally_far_apart() {
    let found =
        |devices, chunks| places(Arrangement::Bidirectional, devices, chunks).expect("fits");
    assert_eq!(found(2, 2), ["0 1", "1 0"]);
    assert_eq!(found(4, 2), ["0 1 2 3", "3 2 1 0"]);
    assert_eq!(found(4, 4), ["0 1 2 3", "2 3 0 1", "3 2 1 0", "1 0 3 2"]);
    let six =
        ["0 1 2 3 4 5", "2 3 4 5 0 1", "4 5 0 1 2 3", "5 4 3 2 1 0", "1 0 5 4 3 2", "3 2 1 0 5 4"];
    assert_eq!(found(6, 6), six);
}

#[test]
fn one_pipeline_goes_through_the_devices_once_or_in_circles_or_to_and_fro() {
    let found = |arrangement, chunks| places(arrangement, 3, chunks).expect("it fits");
    assert_eq!(found(Arrangement::Chain, 1), ["0 1 2"]);
    assert_eq!(found(Arrangement::Looped, 3), ["0 1 2 0 1 2 0 1 2"]);
    assert_eq!(found(Arrangement::Wave, 3), ["0 1 2 2 1 0 0 1 2"]);
}

#[test]
fn pipelines_in_both_directions_come_in_pairs_that_divide_half_of_the_devices() {
    let in_pairs = "pipelines in both directions come in pairs";
    for (devices, chunks, rule) in [
        (4, 1, ": an even number is needed"),
        (4, 3, ": an even number is needed"),
        (2, 4, ", as many as divide half of the devices, 1"),
        (6, 4, ", as many as divide half of the devices, 3"),
    ] {
        let refused = places(Arrangement::Bidirectional, devices, chunks);
        assert_eq!(refused, Err(format!("chunks = {chunks}: {in_pairs}{rule}")), "{devices}");
    }
    let refused = places(Arrangement::Bidirectional, 3, 2);
    let rule = "pipelines in both directions need an even number of devices, such as 4";
    assert_eq!(refused, Err(format!("pp = 3: {rule}")));
    let refused = places(Arrangement::Chain, 4, 2);
    assert_eq!(refused, Err("chunks = 2: this schedule has one stage on each device".to_owned()));
    let refused = places(Arrangement::Looped, 4, 1);
    let rule = "interleaved wants at least two stages on each device; with one it is 1f1b";
    assert_eq!(refused, Err(format!("chunks = 1: {rule}")));
    for (devices, chunks) in [(0, 1), (1, 0)] {
        let refused = places(Arrangement::Wave, devices, chunks);
        let rule = "a pipeline needs a device, and each device a stage";
        assert_eq!(refused, Err(format!("chunks = {chunks}: {rule}")));
    }
}
