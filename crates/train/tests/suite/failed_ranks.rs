//! A rank that fails ends the run with its reason, and leaves nobody waiting.

use std::collections::BTreeMap;

use crate::support::{Samples, gpt, serial, trainer};
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_train::{Error, Trainer};

/// Two pipeline stages, the second of which has failed while the first is well.
fn half_failed() -> (Trainer, Error) {
    let graph = gpt();
    let uniform = shardloom_plan::Uniform { pp: 2, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(8, 16, 64), 1e-3);
    let mut weights: BTreeMap<String, Vec<f32>> = trainer.weights().expect("weights");
    let last_norm = weights.keys().find(|name| name.contains("norm_f") || name.contains("final"));
    let last_norm = last_norm.unwrap_or_else(|| panic!("{:?}", weights.keys())).clone();
    weights.remove(&last_norm);
    let error = trainer.set_weights(weights).expect_err("a weight is missing");
    (trainer, error)
}

#[test]
fn the_rank_and_its_reason_are_named() {
    let (_, error) = half_failed();
    let text = error.to_string();
    assert!(text.starts_with("rank 1: no tensor `"), "{text}");
}

/// Samples without inputs for one rank: targets only.
struct Targets(Samples);

impl Source for Targets {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let field = self.0.field(part, position, input, room)?;
        Ok(field.filter(|_| input.contains("target")))
    }

    fn validation_len(&self) -> u64 {
        0
    }
}

#[test]
fn of_several_ranks_that_fail_the_first_is_named() {
    let graph = gpt();
    for _ in 0..20 {
        let uniform = shardloom_plan::Uniform { pp: 3, microbatches: 4, ..serial() };
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, Targets(Samples::patterned(8, 16, 64)), 1e-3);
        let text = trainer.step().expect_err("the first stage has no inputs").to_string();
        assert!(text.starts_with("rank 0: "), "{text}");
    }
}

#[test]
fn what_is_asked_afterwards_is_refused_and_waits_for_nobody() {
    let (mut trainer, _) = half_failed();
    for _ in 0..2 {
        let error = trainer.weights().expect_err("a rank has failed").to_string();
        assert!(error.starts_with("rank 1: it failed before"), "{error}");
    }
    trainer.step().expect_err("a rank has failed");
}
