//! Updates that are tested afterwards train as those that wait for the norm of all gradients.

use std::collections::BTreeMap;

use crate::support::{Samples, graph, serial, settings, trainer, trainer_with, trainer_with_clock};
use shardloom_checkpoint::{Checkpoint, Meta};
use shardloom_cluster::Cluster;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Optimizer, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::Rank;
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{OnNonFinite, RunClock, Settings, Step, Trainer};

const STEPS: u32 = 10;

fn gpt() -> Graph {
    graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1")
}

fn plan(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "a100-40g:8")
}

fn later(plan: &Plan) -> Plan {
    Plan { post_validation: true, ..plan.clone() }
}

fn piped(pp: usize, schedule: ScheduleKind) -> Uniform {
    Uniform { pp, microbatches: 8, schedule, ..serial() }
}

/// A trainer whose learning rate is another in each step.
fn warming(graph: &Graph, plan: &Plan, clock: RunClock) -> Trainer {
    let warmup = Curve::Warmup { peak: 6e-3, warmup_steps: u64::from(STEPS) };
    let settings = Settings { clock, ..settings(warmup) };
    trainer_with(graph, plan, Samples::patterned(64, 16, 64), settings)
}

/// What rows of these lengths come to, and the weights after them.
fn trained(trainer: &mut Trainer, rows: &[u32]) -> (Vec<Step>, Vec<f32>) {
    let row = |&steps: &u32| trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    let steps = rows.iter().flat_map(row).collect();
    (steps, weights(trainer))
}

fn weights(trainer: &mut Trainer) -> Vec<f32> {
    trainer.weights().expect("weights").into_values().flatten().collect()
}

/// A bound that some steps' norms exceed and others do not.
fn bound(graph: &Graph, plan: &Plan) -> f64 {
    let unclipped = Plan { clip_norm: Some(1e9), ..plan.clone() };
    let mut trainer = warming(graph, &unclipped, RunClock::Wall);
    let (steps, _) = trained(&mut trainer, &[STEPS]);
    let mut norms: Vec<f64> = steps.iter().filter_map(|step| step.gradient_norm).collect();
    norms.sort_by(f64::total_cmp);
    0.5 * (norms[4] + norms[5])
}

fn assert_close(found: &[f32], expected: &[f32], text: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= 1e-6 * expected.abs().max(1.0), "{found} for {expected}: {text}");
    }
}

/// Trains with waiting and with validating, under both clocks and in rows of one step and of many. An
/// update that is made again has its own step's learning rate.
fn assert_trains_alike(graph: &Graph, plan: &Plan) -> usize {
    let (expected, weights) = trained(&mut warming(graph, plan, RunClock::Wall), &[STEPS]);
    let most = plan.clip_norm.expect("it clips");
    let clipped = expected.iter().filter(|step| step.gradient_norm > Some(most)).count();
    let later = later(plan);
    let text = later.to_toml();
    let virtually = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
    let runs = [
        (RunClock::Wall, vec![STEPS]),
        (RunClock::Wall, vec![1; STEPS as usize]),
        (virtually, vec![3, STEPS - 3]),
    ];
    for (clock, rows) in runs {
        let mut trainer = warming(graph, &later, clock);
        let (steps, found) = trained(&mut trainer, &rows);
        assert_eq!(steps.len(), expected.len());
        for (step, expected) in steps.iter().zip(&expected) {
            assert!((step.loss - expected.loss).abs() < 1e-6 * expected.loss, "{step:?}: {text}");
            let [norm, wanted] = [step, expected].map(|it| it.gradient_norm.expect("it clips"));
            assert!((norm - wanted).abs() < 1e-6 * wanted, "{norm} for {wanted}: {text}");
        }
        assert_close(&found, &weights, &text);
    }
    clipped
}

#[test]
fn every_schedule_with_flush_trains_as_if_it_waited_clipped_or_not() {
    let graph = graph("gpt:layers=14,hidden=16,heads=2,seq=16,vocab=64,dropout=0.1");
    let kinds = ScheduleKind::ALL.into_iter().filter(|it| *it != ScheduleKind::Table);
    for schedule in kinds.filter(|it| it.flushes()) {
        let mut plan = plan(&graph, &piped(4, schedule));
        plan.clip_norm = Some(bound(&graph, &plan));
        let clipped = assert_trains_alike(&graph, &plan);
        assert!((1..STEPS as usize).contains(&clipped), "{clipped} of {STEPS} steps clip");
    }
}

#[test]
fn every_optimizer_and_zero_stage_goes_back_exactly() {
    let graph = gpt();
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.1,
    };
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1, reference_batch: None };
    for optimizer in [sgd, Optimizer::default(), lamb, adafactor] {
        for (pp, dp, tp, zero) in
            [(4, 1, 1, 0), (2, 2, 1, 0), (2, 2, 1, 1), (2, 2, 1, 2), (2, 2, 1, 3), (2, 2, 2, 1)]
        {
            let uniform = Uniform {
                mesh: Mesh::of(dp, 1, tp),
                microbatches: 4,
                sync: Sync { zero, bucket_bytes: 40_000, ..Sync::default() },
                optimizer,
                ..piped(pp, ScheduleKind::ZeroBubbleH2)
            };
            let mut plan = plan(&graph, &uniform);
            plan.clip_norm = Some(bound(&graph, &plan));
            let clipped = assert_trains_alike(&graph, &plan);
            assert!((1..STEPS as usize).contains(&clipped), "{clipped} of {STEPS} steps clip");
        }
    }
}

#[test]
fn tied_weights_and_recomputation_go_back_too() {
    let graph = graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true");
    for recompute in Recompute::ALL {
        let uniform = Uniform { recompute, ..piped(4, ScheduleKind::ZeroBubbleV) };
        let mut plan = plan(&graph, &uniform);
        plan.clip_norm = Some(bound(&graph, &plan));
        assert!(assert_trains_alike(&graph, &plan) > 0);
    }
}

/// The simulator follows the instructions that were executed, rollbacks included.
#[test]
fn executed_and_simulated_timelines_are_equal_where_steps_begin_anew() {
    let graph = gpt();
    for schedule in [ScheduleKind::ZeroBubbleH2, ScheduleKind::Interleaved, ScheduleKind::Chimera] {
        let mut plan = later(&plan(&graph, &piped(4, schedule)));
        plan.clip_norm = Some(bound(&graph, &plan));
        let cluster = Cluster::parse("a100-40g:8").expect("a preset");
        let clock = RunClock::Virtual(cluster.clone());
        let samples = Samples::patterned(64, 16, 64);
        let mut trainer = trainer_with_clock(&graph, &plan, samples, 3e-3, clock);
        let (_, executed) = trainer.train_steps_recorded(STEPS).expect("steps");
        let mut recorded = Recorded::new(trainer.recording().expect("the virtual clock records"));
        let options = Options { steps: STEPS, folded: false };
        let simulated = run(trainer.program(), &cluster, options, &mut recorded).expect("it runs");
        assert_eq!(simulated.timeline, executed, "{schedule:?}");
        let sent: Vec<u64> = executed.tracks.iter().map(|track| track.sent_bytes).collect();
        assert_eq!(sent, trainer.sent_bytes_per_rank());
    }
}

/// Samples of real numbers, of which one is none.
struct Broken {
    inputs: Vec<Vec<f32>>,
    targets: Vec<Vec<u32>>,
    broken: u64,
}

impl Broken {
    fn new(width: usize, classes: u32, broken: u64) -> Broken {
        let samples = 256;
        let input = |sample: usize| {
            (0..width).map(|at| ((sample * 7 + at * 3) % 11) as f32 / 11.0).collect()
        };
        let inputs = (0..samples).map(input).collect();
        let targets = (0..samples as u32).map(|sample| vec![sample % classes]).collect();
        Broken { inputs, targets, broken }
    }
}

impl Source for Broken {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        const NONE: &[f32] = &[f32::NAN; 16];
        let at = position as usize % self.inputs.len();
        Ok(Some(match input {
            "features" if position == self.broken => Field::Reals(NONE),
            "features" => Field::Reals(&self.inputs[at]),
            _ => Field::Indices(&self.targets[at]),
        }))
    }

    fn validation_len(&self) -> u64 {
        0
    }
}

fn on_broken(graph: &Graph, plan: &Plan, on_non_finite: OnNonFinite) -> Trainer {
    let settings = Settings { on_non_finite, ..settings(Curve::Constant { peak: 1e-2 }) };
    // The fourth step of eight samples.
    trainer_with(graph, plan, Broken::new(16, 8, 27), settings)
}

/// A sample that is no number spoils the gradients of some stages and not of all: those behind its first
/// product, while the last stage's are wrong too, as its inputs are.
#[test]
fn a_step_that_is_skipped_leaves_no_trace() {
    let graph = graph("mlp:inputs=16,hidden=24,layers=6,classes=8");
    for (schedule, clip_norm) in [
        (ScheduleKind::ZeroBubbleH2, None),
        (ScheduleKind::ZeroBubbleH2, Some(0.5)),
        (ScheduleKind::Interleaved, None),
        (ScheduleKind::Afab, Some(0.5)),
    ] {
        let uniform = Uniform {
            clip_norm,
            ..piped(if schedule == ScheduleKind::Interleaved { 2 } else { 4 }, schedule)
        };
        let waits = Plan { skip_non_finite: true, ..plan(&graph, &uniform) };
        let skipped = |plan: &Plan, rows: &[u32]| {
            let (steps, weights) = trained(&mut on_broken(&graph, plan, OnNonFinite::Skip), rows);
            let skipped: Vec<bool> = steps.iter().map(|step| step.skipped).collect();
            (skipped, weights)
        };
        let (expected, weights) = skipped(&waits, &[STEPS]);
        let only_fourth: Vec<bool> = (0..STEPS).map(|step| step == 3).collect();
        assert_eq!(expected, only_fourth);
        for rows in [vec![STEPS], vec![4, STEPS - 4], vec![1; STEPS as usize]] {
            let (found, after) = skipped(&later(&waits), &rows);
            assert_eq!(found, only_fourth, "{schedule:?}");
            assert!(after.iter().all(|weight| weight.is_finite()));
            assert_close(&after, &weights, schedule.name());
        }
    }
}

/// Nor in what an optimizer keeps, that adds something up before it updates, too.
#[test]
fn a_step_that_is_skipped_leaves_all_as_it_was_that_is_saved() {
    let graph = graph("mlp:inputs=16,hidden=24,layers=3,classes=8");
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.99, 1e-8, 0.1);
    let optimizers = [
        Optimizer::sgd(0.9),
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay },
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay,
        },
    ];
    for optimizer in optimizers {
        let plan = plan(&graph, &Uniform { optimizer, clip_norm: None, ..serial() });
        let plan = Plan { skip_non_finite: true, ..plan };
        let mut trainer = on_broken(&graph, &plan, OnNonFinite::Skip);
        let saved = |trainer: &mut Trainer| -> BTreeMap<String, Vec<u32>> {
            let folder = tempfile::tempdir().expect("a folder");
            let path = trainer.save(folder.path(), Meta::default(), None).expect("a checkpoint");
            let checkpoint = Checkpoint::open(&path).expect("it is sound");
            let bits = |name: &str| {
                let values = checkpoint.read_whole(name).expect("it is there");
                (name.to_owned(), values.into_iter().map(f32::to_bits).collect())
            };
            checkpoint.names().map(bits).collect()
        };
        trainer.train_steps(3).expect("steps");
        let before = saved(&mut trainer);
        assert!(before.len() > trainer.weights().expect("weights").len(), "state is saved");
        assert!(trainer.step().expect("a step").skipped);
        assert_eq!(saved(&mut trainer), before, "{}", optimizer.name());
        assert!(!trainer.step().expect("a step").skipped);
        assert_ne!(saved(&mut trainer), before, "{}", optimizer.name());
    }
}

/// The steps behind it in its row are run, and update nothing.
#[test]
fn a_gradient_that_is_not_finite_ends_the_run_with_the_weights_from_before() {
    let graph = graph("mlp:inputs=16,hidden=24,layers=6,classes=8");
    let waits = Plan {
        skip_non_finite: true,
        ..plan(&graph, &Uniform { clip_norm: None, ..piped(4, ScheduleKind::ZeroBubbleH2) })
    };
    let (_, expected) = trained(&mut on_broken(&graph, &waits, OnNonFinite::Stop), &[3]);
    for plan in [later(&waits), waits] {
        for rows in [vec![STEPS], vec![2, STEPS]] {
            let mut trainer = on_broken(&graph, &plan, OnNonFinite::Stop);
            let mut train = |&steps: &u32| trainer.train_steps(steps).err();
            let error = rows.iter().find_map(&mut train).expect("a sample is no number");
            assert!(error.to_string().contains("step 3"), "{error}");
            assert_eq!(trainer.next_step(), 3);
            assert_eq!(weights(&mut trainer), expected, "rows of {rows:?}: {}", plan.to_toml());
        }
    }
}

/// The copies are held from an update to its validation, while the next step's first passes run.
#[test]
fn the_copies_are_counted_to_the_byte() {
    // So few tokens that parameters take more than activations.
    let graph = graph("gpt:layers=4,hidden=64,heads=4,seq=4,vocab=64");
    for (pp, dp, zero, optimizer) in [
        (4, 1, 0, Optimizer::default()),
        (2, 2, 1, Optimizer::default()),
        (2, 2, 2, Optimizer::sgd(0.9)),
    ] {
        let uniform = Uniform {
            mesh: Mesh::of(dp, 1, 1),
            microbatches: 4,
            sync: Sync { zero, bucket_bytes: 40_000, ..Sync::default() },
            // Nothing is clipped, so that no update is left out.
            clip_norm: Some(1e9),
            optimizer,
            ..piped(pp, ScheduleKind::ZeroBubbleH2)
        };
        let waits = plan(&graph, &uniform);
        let peaks = |plan: &Plan| -> Vec<u64> {
            let samples = Samples::patterned(64, 4, 64);
            let mut trainer = trainer(&graph, plan, samples, 1e-3);
            trainer.train_steps(3).expect("steps");
            let program = trainer.program();
            for (&counted, rank) in trainer.peak_bytes_per_rank().iter().zip(0..) {
                let (class, position) = program.locate(Rank(rank));
                let class = program.class(class);
                assert_eq!(class.memory_use(program, position).peak_bytes, counted, "rank {rank}");
            }
            trainer.peak_bytes_per_rank().to_vec()
        };
        let (waiting, validating) = (peaks(&waits), peaks(&later(&waits)));
        // All but the last stage hold copies.
        assert!(validating.iter().zip(&waiting).all(|(later, waits)| later >= waits));
        // With sharded gradients the most is held where a whole bucket's are, when there are no copies.
        assert!(validating[0] > waiting[0] || zero > 1, "{validating:?} against {waiting:?}");
        assert_eq!(validating.last(), waiting.last());
    }
}
