//! The trainer's losses under every rule for weight versions, against the reference's.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_kernels::optimizer::{Adafactor, AdamW, Lamb, Optimizer, Sgd};
use shardloom_plan::{
    DeviceList, Mesh, Pipeline, Plan, Recompute, ScheduleKind, Stage, StageReplicas, Sync, Uniform,
    Updates, Weights, pipelines_in_turn,
};
use shardloom_train::RunClock;

use super::formulas::{Corrections, Prediction, Rule};
use super::reference::{Reference, Run};
use crate::support::trained::{Trained, movement};
use crate::support::{Samples, graph, serial, trainer, trainer_with_clock};

/// Steps of a run.
const STEPS: u32 = 12;

/// Steps of one whose steps have more than three micro-batches: fewer of these fill a pipeline and pass through all
/// versions of weights.
const OF_MANY: u32 = 6;

/// Largest allowed relative difference between two losses, and between two norms of what moved a parameter.
pub const TOLERANCE: f64 = 1e-5;

const NONE: Corrections = Corrections {
    anneal_steps: None,
    discrepancy: None,
    synchronous_steps: 0,
    spike: None,
    prediction: None,
};

const ALONG_VELOCITY: Corrections = Corrections { prediction: Some(Prediction::Velocity), ..NONE };

const ALONG_UPDATE: Corrections = Corrections { prediction: Some(Prediction::Weights), ..NONE };

/// A way of training.
#[derive(Clone, Debug)]
pub struct Case {
    pub rule: Rule,
    pub stages: usize,
    /// Of each stage, those that take micro-batches in turn.
    pub replicas: Vec<u64>,
    pub updates: Updates,
    /// Of every replica.
    pub mesh: Mesh,
    pub zero: u8,
    pub recompute: Recompute,
    pub microbatches: usize,
    pub optimizer: Optimizer,
    /// The batch that learning rate and momentum are for, if not for what each update has.
    pub reference_batch: Option<usize>,
    /// Steps between one filling of the pipeline and the next.
    pub rows: Vec<u32>,
}

impl Case {
    /// With momentum, each stage on one device, in one row.
    pub fn new(rule: Rule, stages: usize, microbatches: usize) -> Case {
        Case {
            rule,
            stages,
            replicas: vec![1; stages],
            updates: Updates::Step,
            mesh: Mesh::SINGLE,
            zero: 0,
            recompute: Recompute::None,
            microbatches,
            optimizer: sgd(),
            reference_batch: None,
            rows: vec![if microbatches > 3 { OF_MANY } else { STEPS }],
        }
    }

    fn learning_rate(&self) -> f64 {
        match self.optimizer {
            Optimizer::Sgd(_) => 0.025,
            _ => 2e-3,
        }
    }

    fn global_batch(&self) -> usize {
        2 * self.microbatches
    }

    fn plan(&self, graph: &Graph) -> Plan {
        let uniform = Uniform {
            pp: self.stages,
            mesh: self.mesh,
            sequence_parallel: self.mesh.tp() > 1,
            global_batch: self.global_batch(),
            microbatches: self.microbatches,
            schedule: match self.rule {
                Rule::Newest(_) => ScheduleKind::PipeMare,
                _ => ScheduleKind::PipeDream,
            },
            recompute: self.recompute,
            sync: Sync { zero: self.zero, bucket_bytes: 40_000, ..Sync::default() },
            optimizer: planned(self.optimizer, self.reference_batch),
            clip_norm: None,
            ..serial()
        };
        let mut plan = uniform.plan(graph, "model", "local");
        plan.weights = match self.rule {
            Rule::Flush => Weights::Flush,
            Rule::Stash => Weights::Stash,
            Rule::VerticalSync => Weights::VerticalSync,
            Rule::DoubleBuffer => Weights::DoubleBuffer,
            Rule::Newest(corrections) => Weights::Newest {
                corrections: shardloom_plan::Corrections {
                    anneal_steps: corrections.anneal_steps,
                    discrepancy: corrections.discrepancy,
                    synchronous_steps: corrections.synchronous_steps,
                    spike: corrections.spike,
                    prediction: corrections.prediction.map(|prediction| match prediction {
                        Prediction::Velocity => shardloom_plan::Prediction::Velocity,
                        Prediction::Weights => shardloom_plan::Prediction::Weights,
                    }),
                },
            },
        };
        plan.updates = self.updates;
        // The first stages are the longer ones, so that the first of all has more than the embedding:
        // weights that its backward pass reads.
        let (least, longer) =
            (graph.blocks().len() / self.stages, graph.blocks().len() % self.stages);
        let first = |stage: usize| stage * least + stage.min(longer);
        for (index, stage) in plan.pipeline[0].stage.iter_mut().enumerate() {
            stage.blocks = (first(index), first(index + 1));
        }
        plan.pipeline = self.pipelines(&plan);
        plan
    }

    /// The pipelines whose stages' replicas take micro-batches in turn.
    fn pipelines(&self, plan: &Plan) -> Vec<Pipeline> {
        let size = self.mesh.size() as u32;
        let mut devices = 0u32..;
        let mut replica = || DeviceList(devices.by_ref().take(size as usize).collect());
        let stage = |(stage, &count): (&Stage, &u64)| StageReplicas {
            blocks: stage.blocks,
            mesh: self.mesh,
            replicas: (0..count).map(|_| replica()).collect(),
        };
        let stages: Vec<StageReplicas> =
            plan.pipeline[0].stage.iter().zip(&self.replicas).map(stage).collect();
        pipelines_in_turn(&stages).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What the trainer comes to, and the reference's run from the same weights.
    pub fn train(&self, graph: &Graph, clock: RunClock) -> [Trained; 2] {
        let plan = self.plan(graph);
        let rate = self.learning_rate();
        let mut trainer = trainer_with_clock(graph, &plan, samples(), rate, clock);
        let initial = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
        let trained = Trained::in_rows(&mut trainer, &self.rows);
        [trained, self.reference(graph, &plan, &initial)]
    }

    /// What the reference comes to.
    fn reference(
        &self,
        graph: &Graph,
        plan: &Plan,
        initial: &BTreeMap<String, Vec<f32>>,
    ) -> Trained {
        let samples = samples();
        let sample = |input: &str, position: u64| {
            let rows = if input == "tokens" { &samples.inputs } else { &samples.targets };
            rows[position as usize % rows.len()].clone()
        };
        let run = Run {
            graph,
            stages: blocks(plan),
            replicas: self.replicas.clone(),
            in_rounds: self.updates == Updates::Round,
            sample: &sample,
            seed: 7,
            global_batch: self.global_batch(),
            microbatches: self.microbatches,
            recompute: self.recompute == Recompute::Full,
            learning_rate: self.learning_rate(),
            optimizer: self.optimizer,
            reference_batch: self.reference_batch.map(|it| it as u64),
            rule: self.rule,
        };
        let mut reference = Reference::new(run, initial);
        let rows = self.rows.iter();
        let losses = rows.flat_map(|&row| reference.train(row.into())).collect();
        Trained { losses, moved: movement(initial, reference.weights()) }
    }

    pub fn check(&self, graph: &Graph, clock: RunClock) {
        let [trained, reference] = self.train(graph, clock);
        let of = format!("{} in {self:?}", graph.name());
        trained.assert_losses(&reference, TOLERANCE, &of);
        // All but SGD make steps out of rounding errors where a gradient is zero but for these.
        if let Optimizer::Sgd(_) = self.optimizer {
            trained.assert_moved(&reference, TOLERANCE, &of);
        }
    }
}

fn samples() -> Samples {
    Samples::patterned(64, 16, 64)
}

/// The blocks of a plan's stages.
fn blocks(plan: &Plan) -> Vec<Range<usize>> {
    plan.pipeline[0].stage.iter().map(|stage| stage.blocks.0..stage.blocks.1).collect()
}

fn planned(optimizer: Optimizer, reference_batch: Option<usize>) -> shardloom_plan::Optimizer {
    match optimizer {
        Optimizer::Sgd(sgd) => shardloom_plan::Optimizer::Sgd {
            momentum: sgd.momentum.into(),
            weight_decay: sgd.weight_decay.into(),
            reference_batch,
        },
        Optimizer::AdamW(adamw) => shardloom_plan::Optimizer::Adamw {
            beta1: adamw.beta1.into(),
            beta2: adamw.beta2.into(),
            epsilon: adamw.epsilon.into(),
            weight_decay: adamw.weight_decay.into(),
        },
        Optimizer::Lamb(lamb) => shardloom_plan::Optimizer::Lamb {
            beta1: lamb.beta1.into(),
            beta2: lamb.beta2.into(),
            epsilon: lamb.epsilon.into(),
            weight_decay: lamb.weight_decay.into(),
        },
        Optimizer::Adafactor(adafactor) => shardloom_plan::Optimizer::Adafactor {
            decay_exponent: adafactor.decay_exponent.into(),
            clip: adafactor.clip.into(),
            least_parameter_rms: adafactor.least_parameter_rms.into(),
            weight_decay: adafactor.weight_decay.into(),
        },
    }
}

pub fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd::new(0.9, 0.01))
}

pub fn adamw() -> Optimizer {
    Optimizer::AdamW(AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 })
}

/// Those that need sums over whole parameters before they update.
pub fn with_statistics() -> [Optimizer; 2] {
    let lamb = Lamb { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 };
    let (decay_exponent, clip, least_parameter_rms, weight_decay) = (0.8, 1.0, 1e-3, 0.1);
    let adafactor = Adafactor { decay_exponent, clip, least_parameter_rms, weight_decay };
    [Optimizer::Lamb(lamb), Optimizer::Adafactor(adafactor)]
}

/// Three blocks between embedding and head, so that of four stages the first has one too.
pub fn models() -> [Graph; 2] {
    let sizes = "layers=3,hidden=32,heads=4,seq=16,vocab=64";
    [graph(&format!("gpt:{sizes},dropout=0.1")), graph(&format!("llama:{sizes},kv_heads=2,ffn=64"))]
}

/// Every rule without corrections, with the micro-batches of its paper, fewer and more.
fn rules(stages: usize) -> Vec<(Rule, usize)> {
    vec![
        (Rule::Stash, 1),
        (Rule::Stash, 3),
        (Rule::VerticalSync, 1),
        (Rule::VerticalSync, 3),
        (Rule::DoubleBuffer, stages - 1),
        (Rule::DoubleBuffer, stages),
        (Rule::DoubleBuffer, stages + 1),
        (Rule::DoubleBuffer, 3 * stages),
        (Rule::Newest(NONE), 1),
        (Rule::Newest(NONE), 3),
    ]
}

/// What makes up for delays under any optimizer.
fn corrections() -> Vec<Corrections> {
    vec![
        Corrections { anneal_steps: Some(8), ..NONE },
        Corrections { discrepancy: Some(0.135), ..NONE },
        Corrections { synchronous_steps: 4, ..NONE },
        Corrections { anneal_steps: Some(5), discrepancy: Some(0.3), synchronous_steps: 3, ..NONE },
        ALONG_UPDATE,
    ]
}

/// What needs a velocity.
fn corrections_of_momentum() -> Vec<Corrections> {
    vec![
        Corrections { spike: Some(1.0), ..NONE },
        Corrections { spike: Some(2.0), ..NONE },
        ALONG_VELOCITY,
        Corrections { spike: Some(1.0), ..ALONG_UPDATE },
        Corrections {
            anneal_steps: Some(6),
            discrepancy: Some(0.2),
            synchronous_steps: 2,
            spike: Some(1.0),
            prediction: Some(Prediction::Velocity),
        },
    ]
}

/// Each model in pipelines of as many stages, by its number among [`models`].
const PAIRED: [(usize, usize); 2] = [(0, 3), (1, 4)];

const EACH: [(usize, usize); 4] = [(0, 3), (0, 4), (1, 3), (1, 4)];

fn check_all(
    of: &[(usize, usize)],
    mesh: Mesh,
    rules: impl Fn(usize) -> Vec<(Rule, usize)>,
    optimizer: Optimizer,
) {
    let models = models();
    for &(model, stages) in of {
        for (rule, microbatches) in rules(stages) {
            let case = Case { mesh, optimizer, ..Case::new(rule, stages, microbatches) };
            case.check(&models[model], RunClock::Wall);
        }
    }
}

/// Each with one micro-batch in a step and with several.
fn corrected(corrections: &[Corrections]) -> Vec<(Rule, usize)> {
    let each = corrections.iter().flat_map(|&it| [(Rule::Newest(it), 1), (Rule::Newest(it), 3)]);
    each.collect()
}

fn meshes() -> [Mesh; 2] {
    [Mesh::of(2, 1, 1), Mesh::of(1, 1, 2)]
}

#[test]
fn every_rule_trains_by_its_formula_with_momentum() {
    check_all(&EACH, Mesh::SINGLE, rules, sgd());
}

#[test]
fn every_rule_trains_by_its_formula_with_adamw() {
    check_all(&PAIRED, Mesh::SINGLE, rules, adamw());
}

/// Gains and biases do not decay, in these sums either.
#[test]
fn every_rule_trains_by_its_formula_with_sums_over_whole_parameters() {
    for optimizer in with_statistics() {
        check_all(&PAIRED, Mesh::SINGLE, rules, optimizer);
    }
}

#[test]
fn every_correction_trains_by_its_formula_with_momentum() {
    check_all(&EACH, Mesh::SINGLE, |_| corrected(&corrections()), sgd());
    check_all(&EACH, Mesh::SINGLE, |_| corrected(&corrections_of_momentum()), sgd());
}

/// Of the steps here some have fewer samples than the reference, some more.
#[test]
fn momentum_and_learning_rate_of_another_batch_train_by_the_formula() {
    let all = rules(3).into_iter().chain(corrected(&corrections_of_momentum()));
    for (rule, microbatches) in all {
        for graph in models() {
            let plain = Case::new(rule, 3, microbatches);
            Case { reference_batch: Some(16), ..plain }.check(&graph, RunClock::Wall);
        }
    }
}

#[test]
fn every_correction_trains_by_its_formula_with_adamw() {
    check_all(&PAIRED, Mesh::SINGLE, |_| corrected(&corrections()), adamw());
}

#[test]
fn every_rule_trains_by_its_formula_on_meshes_of_devices() {
    for mesh in meshes() {
        check_all(&PAIRED, mesh, rules, sgd());
    }
}

#[test]
fn every_correction_trains_by_its_formula_on_meshes_of_devices() {
    for mesh in meshes() {
        check_all(&PAIRED, mesh, |_| corrected(&corrections()[3..]), adamw());
        check_all(&PAIRED, mesh, |_| corrected(&corrections_of_momentum()), sgd());
    }
}

/// Where weights are moved along their velocity they are not in shards: plans that say so are refused.
#[test]
fn every_rule_that_moves_no_weights_trains_by_its_formula_in_shards() {
    let mesh = Mesh::of(2, 1, 1);
    let all = [corrections(), corrections_of_momentum()].concat();
    let in_place = |it: &Corrections| it.discrepancy.is_none() && it.prediction.is_none();
    let in_place: Vec<Corrections> = all.into_iter().filter(in_place).collect();
    assert_eq!(in_place.len(), 4, "{in_place:?}");
    let [gpt, llama] = &models();
    for (graph, zero) in [(gpt, 1), (llama, 2), (gpt, 3), (llama, 3)] {
        for (rule, microbatches) in rules(3).into_iter().chain(corrected(&in_place)) {
            let case = Case { mesh, zero, ..Case::new(rule, 3, microbatches) };
            case.check(graph, RunClock::Wall);
        }
    }
}

/// What is computed again takes the weights of the backward pass: where those are not the forward pass's,
/// it comes out otherwise.
#[test]
fn every_rule_trains_by_its_formula_with_recomputation() {
    let corrected = corrected(&[corrections(), corrections_of_momentum()].concat());
    let [gpt, llama] = &models();
    for (graph, recompute) in
        [(gpt, Recompute::Selective), (gpt, Recompute::Full), (llama, Recompute::Full)]
    {
        for (rule, microbatches) in rules(3).into_iter().chain(corrected.clone()) {
            let case = Case { recompute, ..Case::new(rule, 3, microbatches) };
            case.check(graph, RunClock::Wall);
        }
    }
}

#[test]
fn a_pipeline_that_is_drained_and_filled_again_begins_with_the_newest_weights() {
    let graph = &models()[0];
    for (optimizer, all) in [(sgd(), corrections_of_momentum()), (adamw(), corrections())] {
        let corrected = all.into_iter().map(|it| (Rule::Newest(it), 3));
        for (rule, microbatches) in rules(4).into_iter().chain(corrected) {
            let rows = vec![5, 1, 4];
            let case = Case { optimizer, rows, ..Case::new(rule, 4, microbatches) };
            case.check(graph, RunClock::Wall);
        }
    }
}

#[test]
fn deeper_pipelines_under_the_virtual_clock_train_by_the_formulas() {
    let graph = graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    // Eight stages under every rule without corrections are trained with skips.
    for (stages, rules) in [(4, rules(4)), (8, corrected(&corrections_of_momentum()))] {
        for (rule, microbatches) in rules {
            let case = Case::new(rule, stages, microbatches);
            let cluster = Cluster::parse("a100-40g:8").expect("a preset");
            case.check(&graph, RunClock::Virtual(cluster));
        }
    }
}

/// What a skip brings was made with the weights of another stage's forward pass than what comes beside it.
#[test]
fn long_skips_train_by_the_formula_of_every_rule() {
    let sizes = "layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1";
    let graph = graph(&format!("u-transformer:{sizes}"));
    for stages in [2, 4, 8] {
        // Eight stages with corrections are trained under the virtual clock.
        let corrections = if stages < 8 { corrections_of_momentum() } else { vec![] };
        for (rule, microbatches) in rules(stages).into_iter().chain(corrected(&corrections)) {
            let recompute = if stages == 4 { Recompute::Full } else { Recompute::None };
            let case = Case { recompute, ..Case::new(rule, stages, microbatches) };
            case.check(&graph, RunClock::Wall);
        }
    }
}

#[test]
fn tied_weights_are_read_in_the_version_of_each_home() {
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true");
    for stages in [3, 4] {
        for (rule, microbatches) in rules(stages) {
            Case::new(rule, stages, microbatches).check(&graph, RunClock::Wall);
        }
    }
}

/// Both holders update them alike, or they would not be tied for long.
#[test]
fn tied_weights_are_corrected_for_the_latest_of_their_gradients() {
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true");
    for (optimizer, all) in [(sgd(), corrections_of_momentum()), (adamw(), corrections())] {
        for (rule, microbatches) in corrected(&all) {
            let case = Case { optimizer, ..Case::new(rule, 4, microbatches) };
            case.check(&graph, RunClock::Wall);
        }
    }
}

/// The losses of the reference on the first model.
fn reference_losses(case: &Case) -> Vec<f64> {
    let [graph, _] = models();
    let plan = case.plan(&graph);
    let initial = trainer(&graph, &plan, samples(), case.learning_rate()).weights();
    let initial = initial.unwrap_or_else(|error| panic!("{error}"));
    case.reference(&graph, &plan, &initial).losses
}

/// The largest relative difference.
pub fn apart(losses: &[f64], others: &[f64]) -> f64 {
    losses.iter().zip(others).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
}

/// Without this the comparison could not tell a rule from another.
#[test]
fn rules_and_corrections_differ_by_far_more_than_the_tolerance() {
    let mut rules: Vec<Rule> =
        vec![Rule::Stash, Rule::VerticalSync, Rule::DoubleBuffer, Rule::Newest(NONE)];
    let long = |rule| Case { rows: vec![STEPS], ..Case::new(rule, 4, 4) };
    let corrections = corrections().into_iter().chain(corrections_of_momentum());
    rules.extend(corrections.filter(|it| *it != ALONG_VELOCITY).map(Rule::Newest));
    let runs: Vec<(Rule, Vec<f64>)> =
        rules.into_iter().map(|rule| (rule, reference_losses(&long(rule)))).collect();
    for (index, (rule, losses)) in runs.iter().enumerate() {
        for (other, others) in &runs[..index] {
            let apart = apart(losses, others);
            assert!(apart > 10.0 * TOLERANCE, "{rule:?} and {other:?} are {apart:e} apart");
        }
    }
}

#[test]
fn what_is_computed_again_with_newer_weights_makes_a_difference() {
    let reference =
        |recompute| reference_losses(&Case { recompute, ..Case::new(Rule::Newest(NONE), 4, 1) });
    let apart = apart(&reference(Recompute::Full), &reference(Recompute::None));
    assert!(apart > 10.0 * TOLERANCE, "{apart:e} apart");
}

#[test]
fn both_predictions_are_one_while_updates_are_the_velocity_times_a_constant() {
    let losses = |rule| reference_losses(&Case::new(Rule::Newest(rule), 4, 4));
    let (along_velocity, along_update) = (losses(ALONG_VELOCITY), losses(ALONG_UPDATE));
    let apart = apart(&along_velocity, &along_update);
    assert!(apart < TOLERANCE, "{apart:e} apart");
}
