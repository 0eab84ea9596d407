//! PipeMare's stability threshold (Yang et al., MLSys 2021, arXiv 1910.05124) in real runs: a linear model
//! whose weights live in the first of several stages goes to its minimum just below the threshold of that
//! stage's delay, and away from it just above.

use std::f64::consts::PI;

use shardloom_data::Table;
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{Optimizer, ScheduleKind, Uniform};

use crate::support::{serial, trainer};

const FEATURE: f32 = 0.5;

/// Two logits from one feature; stages between only double them.
fn linear(stages: usize) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("linear");
    let (inputs, classes) = (net.dim("inputs", 1)?, net.dim("classes", 2)?);
    net.block("weights");
    let features = net.features("features", &[inputs])?;
    let targets = net.targets("targets", &[])?;
    let w = net.parameter("w", &[inputs, classes], 1, Init::Normal { std: 0.1 })?;
    let mut x = net.contract("logits", features, w, None)?;
    for stage in 1..stages - 1 {
        net.block(&format!("between {stage}"));
        x = net.add(&format!("twice {stage}"), x, x)?;
    }
    net.block("loss");
    let loss = net.cross_entropy("loss", x, targets)?;
    net.finish(loss)
}

/// By how much the loss is above its minimum at most, over the last of many steps, at the learning rate
/// `times` the threshold for the first stage's delay.
fn above_minimum(stages: usize, times: f64) -> f64 {
    let graph = linear(stages).expect("a valid model");
    // Of two rows alike in all but their class, all in every batch, the mean loss is log(2 cosh(z / 2))
    // for logits z apart; along its gradient its curvature is half the square of logits by weights.
    let slope = f64::from(FEATURE) * 2f64.powi(stages as i32 - 2);
    let (curvature, delay) = (slope * slope / 2.0, 2.0 * (stages as f64 - 1.0));
    let threshold = 2.0 / curvature * (PI / (4.0 * delay + 2.0)).sin();
    let uniform = Uniform {
        pp: stages,
        global_batch: 2,
        microbatches: 1,
        schedule: ScheduleKind::PipeMare,
        optimizer: Optimizer::sgd(0.0),
        clip_norm: None,
        ..serial()
    };
    let plan = uniform.plan(&graph, "model", "local");
    let table = Table::from_rows(vec![FEATURE; 2], vec![0, 1], 0.0, 1).expect("rows");
    let mut trainer = trainer(&graph, &plan, table, times * threshold);
    trainer.set_weights([("w".into(), vec![0.01, -0.01])].into()).expect("all weights");
    let trained = trainer.train_steps(1000).unwrap_or_else(|error| panic!("{error}"));
    // Over more steps than an oscillation has.
    let last = trained[900..].iter().map(|step| step.loss - 2f64.ln());
    last.fold(0.0, f64::max)
}

#[test]
fn a_linear_model_is_stable_below_pipemares_threshold_only() {
    // At first the logits are so far apart that the loss is about 1e-5 to 2e-4 above.
    for stages in [2, 3, 4] {
        let [below, above] = [0.97, 1.03].map(|times| above_minimum(stages, times));
        assert!(below < 1e-6, "below the threshold, {stages} stages: {below}");
        assert!(above > 1e-3, "above the threshold, {stages} stages: {above}");
    }
}
