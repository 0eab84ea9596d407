//! Where a step ends before the next begins, a row of steps comes to what as many rows of one step come to, bit for
//! bit: losses, norms and weights, with dropout that is drawn anew in every step.

use crate::support::{Samples, gpt, graph, mesh, serial, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_plan::{
    Optimizer, Precision, Recompute, ScheduleKind, Servers, Staleness, Summation, Sync, Uniform,
};
use shardloom_train::{RunClock, Trainer};

const STEPS: u32 = 5;

fn uniforms() -> Vec<Uniform> {
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let one = || Uniform { optimizer: adamw, microbatches: 2, ..serial() };
    let sync = |zero| Sync { zero, bucket_bytes: 8000, ..Sync::default() };
    let servers = Some(Servers::of(2, Staleness::SYNCHRONOUS));
    let summation = Some(Summation::of(1));
    let apart = || Uniform { mesh: mesh(2, 1, 1), clip_norm: None, ..one() };
    vec![
        serial(),
        one(),
        Uniform { recompute: Recompute::Full, microbatches: 4, ..one() },
        Uniform { mesh: mesh(2, 1, 1), sync: sync(3), ..one() },
        Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, ..one() },
        Uniform { mesh: mesh(1, 2, 1), precision: Precision::STOCHASTIC, ..one() },
        Uniform { pp: 2, microbatches: 4, sync: sync(0), ..one() },
        Uniform { pp: 2, microbatches: 4, schedule: ScheduleKind::Chimera, ..one() },
        Uniform { pp: 2, microbatches: 4, schedule: ScheduleKind::ZeroBubbleV, ..one() },
        Uniform { sync: Sync { servers, ..sync(0) }, ..apart() },
        Uniform { sync: Sync { summation, ..sync(0) }, ..apart() },
    ]
}

/// What a row comes to: losses and norms.
fn row(run: &mut Trainer, steps: u32) -> Vec<(f64, Option<f64>)> {
    let row = run.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    row.into_iter().map(|step| (step.loss, step.gradient_norm)).collect()
}

#[test]
fn a_row_of_steps_comes_to_what_rows_of_single_steps_come_to() {
    for (number, uniform) in uniforms().into_iter().enumerate() {
        let with_dropout = gpt();
        let plan = uniform.plan(&with_dropout, "model", "a100-40g:2x8");
        let start = || {
            let clock = match number % 3 {
                0 => RunClock::Virtual(Cluster::parse("a100-40g:2x8").expect("a preset")),
                _ => RunClock::Wall,
            };
            // Not as many samples as whole batches, so that the same never come together again.
            trainer_with_clock(&with_dropout, &plan, Samples::patterned(29, 16, 64), 1e-2, clock)
        };
        let mut whole = start();
        let found = row(&mut whole, STEPS);
        for rows in [&[1; STEPS as usize][..], &[2, 3], &[4, 1]] {
            let mut parts = start();
            let expected: Vec<_> = rows.iter().flat_map(|&steps| row(&mut parts, steps)).collect();
            assert_eq!(found, expected, "{rows:?} under\n{}", plan.to_toml());
            let digests = [&mut whole, &mut parts].map(|run| run.weights_digest());
            let [one, other] = digests.map(|digest| digest.expect("a digest"));
            assert_eq!(one, other, "{rows:?} under\n{}", plan.to_toml());
        }
    }
}

/// With weights that are not moved and the same samples, steps differ by what is dropped only.
#[test]
fn other_elements_are_dropped_in_every_step_of_a_row() {
    for text in ["layers=2,dropout=0.1", "layers=2,dropout=0"] {
        let graph = graph(&format!("gpt:hidden=32,heads=4,seq=16,vocab=64,{text}"));
        for uniform in [serial(), Uniform { pp: 2, microbatches: 4, ..serial() }] {
            let plan = uniform.plan(&graph, "model", "local");
            let samples = Samples::patterned(8, 16, 64);
            let mut run = trainer_with_clock(&graph, &plan, samples, 0.0, RunClock::Wall);
            let losses: Vec<f64> = row(&mut run, STEPS).into_iter().map(|it| it.0).collect();
            for (at, loss) in losses.iter().enumerate() {
                let is_known = losses[..at].contains(loss);
                assert_eq!(is_known, at > 0 && text.ends_with("=0"), "{losses:?} with {text}");
            }
        }
    }
}
