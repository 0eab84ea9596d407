//! A rank that takes longer than others that do as much is named.

use std::thread::sleep;
use std::time::Duration;

use crate::support::{Samples, gpt, mesh, serial, trainer};
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_plan::Uniform;

/// Samples of which those of the second of two replicas are slow to read, from a step on.
struct Slow {
    samples: Samples,
    from_step: u64,
}

const BATCH: u64 = 8;
const MICROBATCH: u64 = BATCH / 2;

impl Source for Slow {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let of_microbatch = position % MICROBATCH;
        if position / BATCH >= self.from_step && of_microbatch >= MICROBATCH / 2 {
            sleep(Duration::from_millis(20));
        }
        self.samples.field(part, position, input, room)
    }

    fn validation_len(&self) -> u64 {
        0
    }
}

#[test]
fn a_replica_that_slows_down_is_named_and_those_that_wait_for_it_are_not() {
    let graph = gpt();
    // Ranks 0 and 1 are the replicas of the first stage, 2 and 3 those of the second.
    let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 2, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let slow = Slow { samples: Samples::patterned(64, 16, 64), from_step: 12 };
    let mut trainer = trainer(&graph, &plan, slow, 1e-3);
    for step in 0..24 {
        trainer.step().unwrap_or_else(|error| panic!("{error} in step {step}"));
    }
    let named: Vec<u32> = trainer.stragglers().iter().map(|slow| slow.rank).collect();
    // Both stages read: inputs the first, targets the second.
    assert_eq!(named, [1, 3]);
    for slow in trainer.stragglers() {
        assert!(slow.times > 2.0 && (3..=14).contains(&slow.since_step), "{slow:?}");
    }
}
