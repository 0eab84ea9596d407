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

/// The parameter that a tensor is of: `replica.0/optimizer.1/block.0.weight`.
fn parameter(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// What weights are that are held in the format of computation.
fn rounded(values: &[u32], in_bf16: bool) -> Vec<u32> {
    let round = |&it: &u32| match in_bf16 {
        true => half::bf16::from_f32(f32::from_bits(it)).to_f32().to_bits(),
        false => it,
    };
    values.iter().map(round).collect()
}

/// Has a run of `other` read what `one` wrote and write it again, which is the same to the bit. Returns how many
/// tensors of corrections both have. What the reader freezes it has in the format of computation.
pub fn read_and_written_again(
    checkpoint: &Checkpoint,
    one: &Combination<'_>,
    reader: &mut Trainer,
    other: &Combination<'_>,
) -> usize {
    let [frozen, freezes] = [one, other].map(Combination::frozen);
    // Another rule for the scale of the loss begins anew, or has none.
    let other_scale = one.plan.loss_scale != other.plan.loss_scale;
    let extra = |of: &Checkpoint| {
        let mut extra = of.meta().extra.clone();
        extra.retain(|key, _| !(other_scale && key.starts_with("loss-scale")));
        // Of what either freezes no updates are counted.
        let either = |name: &str| frozen.contains(name) || freezes.contains(name);
        extra.retain(|key, _| !key.strip_prefix("updates/").is_some_and(either));
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
            Some(read) => {
                let in_bf16 = freezes.contains(name) && other.format() > 0;
                assert_eq!(*read, rounded(values, in_bf16), "{name} from {one} to {other}");
            }
            // What was frozen each of several replicas has of its own.
            None if frozen.contains(name) => {
                let own = read.get(format!("replica.0/{name}").as_str());
                assert_eq!(own, Some(values), "{name} from {one} to {other}");
            }
            // Another plan may have no use for a correction or for an optimizer's state of what it freezes, and for
            // nothing else.
            None => {
                let is_frozen = name.contains("optimizer.") && freezes.contains(parameter(name));
                let may_be_lost = is_correction(name) || is_of_rank(name) || is_frozen;
                assert!(may_be_lost, "{name} is lost from {one} to {other}");
            }
        }
    }
    let is_unfrozen = |name: &str| frozen.contains(parameter(name));
    let is_added = |name: &&&str| {
        !written.contains_key(**name)
            && !is_correction(name)
            && !is_of_rank(name)
            && !is_unfrozen(name)
    };
    let added = read.keys().find(is_added);
    assert_eq!(added, None, "from {one} to {other}");
    written.keys().filter(|name| is_correction(name) && read.contains_key(*name)).count()
}

/// Few runs of every two words have as many of these and the same state, so that here are more.
#[test]
fn weights_of_replicas_of_their_own_are_read_by_other_plans_with_as_many() {
    let apart: Vec<_> = combinations().iter().filter(|it| it.own_replicas() > 1).collect();
    let mut read = 0;
    for (index, reader) in apart.iter().enumerate() {
        let fits = |it: &Combination<'_>| {
            it.own_replicas() == reader.own_replicas() && reader.can_read_own_of(it)
        };
        let near = apart[..index].iter().rev().take(3);
        let writer = near.filter_map(|it| it.with_state_of(reader)).find(fits);
        let Some(writer) = writer else { continue };
        let mut written = writer.start();
        train(&mut written, 2, &writer);
        let (_folder, checkpoint) = saved(&mut written, &writer);
        read_and_written_again(&checkpoint, &writer, &mut reader.start(), reader);
        read += 1;
    }
    assert!(read > 5, "{read} show nothing");
}
