//! Checkpoints under other plans.

use std::collections::BTreeMap;

use shardloom_checkpoint::Checkpoint;

use crate::interruption::saved;
use crate::words::{Combination, combinations};

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

/// Has `other` read what `one` wrote and write it again. Returns how many tensors of corrections both have.
fn check(one: &Combination<'_>, other: &Combination<'_>) -> usize {
    let mut writer = one.start();
    writer.train_steps(2).unwrap_or_else(|error| panic!("{error} in {one}"));
    let (_folder, checkpoint) = saved(&mut writer, one);
    let (step, extra) = (checkpoint.step(), checkpoint.meta().extra.clone());
    let written = tensors(&checkpoint);
    let mut reader = other.start();
    let same = Checkpoint::open(checkpoint.path()).unwrap_or_else(|error| panic!("{error}"));
    reader.resume(same).unwrap_or_else(|error| panic!("{error} in {other}"));
    let (_copy, again) = saved(&mut reader, other);
    let read = tensors(&again);
    assert_eq!((again.step(), &again.meta().extra), (step, &extra), "from {one} to {other}");
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

#[test]
fn a_checkpoint_that_another_plan_reads_and_writes_is_the_same() {
    let mut last: BTreeMap<(&str, String, usize), &Combination<'_>> = BTreeMap::new();
    let (mut corrections, mut apart) = (0, 0);
    for combination in combinations() {
        let optimizer = format!("{:?}", combination.plan.optimizer);
        let replicas = combination.own_replicas();
        let former = last.insert((combination.graph.name(), optimizer, replicas), combination);
        if let Some(former) = former {
            corrections += check(former, combination);
            apart += usize::from(replicas > 1);
        }
    }
    assert!(apart > 2, "{apart} with weights of replicas of their own show nothing");
    assert!(corrections > 100, "{corrections} tensors of corrections show nothing");
}
