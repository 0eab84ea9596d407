//! Checkpoints under other plans.

use std::collections::BTreeMap;

use shardloom_checkpoint::Checkpoint;
use shardloom_train::Trainer;

use super::interruption::{saved, train};
use super::words::{Combination, combinations};

/// All tensors, to the bit.
fn tensors(checkpoint: &Checkpoint) -> BTreeMap<&str, Vec<u32>> {
    let bits = |name| {
        let values = checkpoint.read_whole(name).unwrap_or_else(|error| panic!("{error}"));
        values.into_iter().map(f32::to_bits).collect()
    };
    checkpoint.names().map(|name| (name, bits(name))).collect()
}

/// What a rank has left out is its own, and of no use under another mesh or compression.
fn is_of_rank(name: &str) -> bool {
    name.starts_with("rank-state.")
}

fn is_correction(name: &str) -> bool {
    name.starts_with("correction.")
}

/// Has a run of `other` read what `one` wrote and write it again, which is the same to the bit. Returns how many
/// tensors of corrections both have.
pub fn read_and_written_again(
    checkpoint: &Checkpoint,
    one: &Combination<'_>,
    reader: &mut Trainer,
    other: &Combination<'_>,
) -> usize {
    // Another rule for the scale of the loss begins anew, or has none.
    let other_scale = one.plan.loss_scale != other.plan.loss_scale;
    let extra = |of: &Checkpoint| {
        let mut extra = of.meta().extra.clone();
        extra.retain(|key, _| !(other_scale && key.starts_with("loss-scale")));
        extra
    };
    let (step, noted) = (checkpoint.step(), extra(checkpoint));
    let written = tensors(checkpoint);
    let same = Checkpoint::open(checkpoint.path()).unwrap_or_else(|error| panic!("{error}"));
    reader.resume(same).unwrap_or_else(|error| panic!("{error} in {other}"));
    let (_copy, again) = saved(reader, other);
    let read = tensors(&again);
    assert_eq!((again.step(), extra(&again)), (step, noted), "from {one} to {other}");
    for (name, values) in &written {
        match read.get(name) {
            Some(_) if is_of_rank(name) => {}
            Some(read) => assert_eq!(read, values, "{name} from {one} to {other}"),
            // Another plan may have no use for a correction, and for nothing else.
            None => {
                let may_be_lost = is_correction(name) || is_of_rank(name);
                assert!(may_be_lost, "{name} is lost from {one} to {other}");
            }
        }
    }
    let added = read
        .keys()
        .find(|name| !written.contains_key(*name) && !is_correction(name) && !is_of_rank(name));
    assert_eq!(added, None, "from {one} to {other}");
    written.keys().filter(|name| is_correction(name) && read.contains_key(*name)).count()
}

/// Few runs of every two words have as many of these and the same state, so that here are more.
#[test]
fn weights_of_replicas_of_their_own_are_read_by_other_plans_with_as_many() {
    let apart: Vec<_> = combinations().iter().filter(|it| it.own_replicas() > 1).collect();
    let mut read = 0;
    for pair in apart.windows(2) {
        let [former, reader] = pair else { unreachable!("two") };
        let writer = former.with_state_of(reader);
        let Some(writer) = writer.filter(|it| it.own_replicas() == reader.own_replicas()) else {
            continue;
        };
        let mut written = writer.start();
        train(&mut written, 2, &writer);
        let (_folder, checkpoint) = saved(&mut written, &writer);
        read_and_written_again(&checkpoint, &writer, &mut reader.start(), reader);
        read += 1;
    }
    assert!(read > 5, "{read} show nothing");
}
