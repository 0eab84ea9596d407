//! Stages whose replicas take micro-batches in turn, as pipelines.

use shardloom_plan::{Arrangement, DeviceList, Mesh, Plan, StageReplicas, pipelines_in_turn};

/// Stages of two blocks whose replicas have so many devices each, numbered stage by stage.
fn stages(replicas: &[usize], mesh: Mesh) -> Vec<StageReplicas> {
    let size = mesh.size() as u32;
    let mut devices = 0u32..;
    let mut list = || DeviceList(devices.by_ref().take(size as usize).collect());
    let stage = |(index, &count): (usize, &usize)| StageReplicas {
        blocks: (2 * index, 2 * index + 2),
        mesh,
        replicas: (0..count).map(|_| list()).collect(),
    };
    replicas.iter().enumerate().map(stage).collect()
}

/// The devices of each pipeline's stages.
fn devices(replicas: &[usize], mesh: Mesh) -> Vec<Vec<String>> {
    let pipelines = pipelines_in_turn(&stages(replicas, mesh)).expect("few turns");
    let list = |stage: &shardloom_plan::Stage| String::from(stage.devices.clone());
    pipelines.iter().map(|pipeline| pipeline.stage.iter().map(list).collect()).collect()
}

#[test]
fn pipeline_p_has_a_stage_s_replica_p_mod_r() {
    assert_eq!(devices(&[1, 1], Mesh::SINGLE), [["0", "1"]]);
    assert_eq!(devices(&[2, 1], Mesh::SINGLE), [["0", "2"], ["1", "2"]]);
    assert_eq!(devices(&[1, 2], Mesh::SINGLE), [["0", "1"], ["0", "2"]]);
    let six = [["0", "2"], ["1", "3"], ["0", "4"], ["1", "2"], ["0", "3"], ["1", "4"]];
    assert_eq!(devices(&[2, 3], Mesh::SINGLE), six);
    let split = Mesh::of(1, 1, 2);
    assert_eq!(devices(&[2, 1], split), [["0..2", "4..6"], ["2..4", "4..6"]]);
}

#[test]
fn places_are_the_devices_numbered_stage_by_stage() {
    for replicas in [&[2, 1][..], &[1, 4], &[2, 3, 4], &[3]] {
        let places = Arrangement::taking_turns(replicas).expect("few turns");
        let text = |stages: &Vec<usize>| stages.iter().map(usize::to_string).collect::<Vec<_>>();
        let places: Vec<Vec<String>> = places.iter().map(text).collect();
        assert_eq!(devices(replicas, Mesh::SINGLE), places);
    }
}

#[test]
fn stages_without_replicas_and_endless_rounds_are_refused() {
    let refusal = |replicas: &[usize]| {
        Arrangement::taking_turns(replicas).expect_err("it should be refused").to_string()
    };
    let least = "at least one stage, and at least one replica of each";
    assert_eq!(refusal(&[]), format!("replicas = : {least}"));
    assert_eq!(refusal(&[2, 0]), format!("replicas = 2,0: {least}"));
    // As many turns as there may be, and one more.
    for (replicas, turns) in [(&[1024][..], 1024), (&[512, 2], 512), (&[256, 1024, 3][..2], 1024)] {
        assert_eq!(Arrangement::taking_turns(replicas).map(|it| it.len()), Ok(turns));
    }
    for replicas in [&[1025][..], &[1024, 3], &[1024, 2048]] {
        assert!(refusal(replicas).contains("at most 1024"), "{replicas:?}");
    }
    assert!(refusal(&[29, 31, 37]).contains("at most 1024"));
    assert!(refusal(&[usize::MAX, 2]).contains("at most 1024"));
}

/// What the documentation of methods shows.
#[test]
fn a_plan_says_it_with_pipelines_that_share_devices() {
    let text = r#"
        format = 1
        model = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96"
        cluster = "h100-80g:3"
        global_batch = 8
        microbatches = 2
        schedule = "pipedream"
        weights = { rule = "stash" }
        recompute = "none"
        layout = "batch:dp"
        sync = { algorithm = "ring", zero = 0, bucket_bytes = 25000000 }
        precision = { compute = "fp32", gradients = "fp32", master = false }
        optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }

        [[pipeline]]
        stage = [
            { blocks = [0, 2], mesh = {}, devices = "0" },
            { blocks = [2, 4], mesh = {}, devices = "2" },
        ]
        [[pipeline]]
        stage = [
            { blocks = [0, 2], mesh = {}, devices = "1" },
            { blocks = [2, 4], mesh = {}, devices = "2" },
        ]
    "#;
    let plan = Plan::from_toml(text, "a test").unwrap_or_else(|error| panic!("{error}"));
    let built = pipelines_in_turn(&stages(&[2, 1], Mesh::SINGLE));
    assert_eq!(Ok(plan.pipeline), built);
}
