//! Going on under another plan without files is the same as saving, and resuming under it.

use crate::support::processes::led;
use crate::support::{Samples, gpt, mesh, serial, settings, trainer};
use shardloom_checkpoint::{Checkpoint, Meta, Store, read_safetensors};
use shardloom_graph::Graph;
use shardloom_plan::{
    Corrections, Optimizer, Plan, Prediction, Recompute, ScheduleKind, Sync, Uniform, Weights,
};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, Trainer};

const RATE: f64 = 3e-3;

fn run(graph: &Graph, plan: &Plan) -> Trainer {
    trainer(graph, plan, Samples::patterned(64, 16, 64), RATE)
}

fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    let trained = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    trained.iter().map(|step| step.loss).collect()
}

/// What differs between plans that share an optimizer.
fn plans(graph: &Graph, optimizer: Optimizer) -> Vec<(&'static str, Plan)> {
    let base = Uniform { optimizer, clip_norm: None, ..serial() };
    let planned = |uniform: Uniform| uniform.plan(graph, "model", "local");
    let zero = |zero| Sync { zero, bucket_bytes: 4_000, ..Sync::default() };
    let late = Uniform { pp: 2, schedule: ScheduleKind::PipeMare, microbatches: 2, ..base };
    let corrections = |prediction| {
        let corrections =
            Corrections { prediction, discrepancy: Some(0.135), ..Corrections::default() };
        Weights::Newest { corrections }
    };
    vec![
        ("serial", planned(base.clone())),
        ("zero 3", planned(Uniform { mesh: mesh(2, 1, 1), sync: zero(3), ..base })),
        (
            "zero 1, tp, 2 stages",
            planned(Uniform { pp: 2, mesh: mesh(2, 1, 2), sync: zero(1), ..base }),
        ),
        (
            "halves, full recomputation",
            planned(Uniform {
                pp: 2,
                schedule: ScheduleKind::ZeroBubbleH1,
                recompute: Recompute::Full,
                ..base
            }),
        ),
        (
            "two versions",
            Plan {
                weights: Weights::DoubleBuffer,
                ..planned(Uniform { schedule: ScheduleKind::PipeDream, ..late })
            },
        ),
        (
            "predicted",
            Plan { weights: corrections(Some(Prediction::Weights)), ..planned(late.clone()) },
        ),
        ("corrected", Plan { weights: corrections(None), ..planned(late.clone()) }),
    ]
}

const ADAFACTOR: Optimizer = Optimizer::Adafactor {
    decay_exponent: 0.8,
    clip: 1.0,
    least_parameter_rms: 1e-3,
    weight_decay: 0.0,
};

#[test]
fn a_checkpoint_has_every_number_once_however_many_ranks_hold_it() {
    let graph = gpt();
    for optimizer in [Optimizer::default(), ADAFACTOR] {
        for (what, plan) in plans(&graph, optimizer) {
            let mut trainer = run(&graph, &plan);
            train(&mut trainer, 1);
            let folder = tempfile::tempdir().expect("a folder");
            let saved = trainer.save(folder.path(), Meta::default(), None).expect("saved");
            let checkpoint = Checkpoint::open(&saved).expect("sound");
            let shape = |name| checkpoint.global_shape(name).expect("it is there");
            let numbers: usize =
                checkpoint.names().map(|name| shape(name).iter().product::<usize>()).sum();
            let files = std::fs::read_dir(&saved).expect("a folder");
            let paths = files.map(|file| file.expect("a file").path());
            let shards =
                paths.filter(|path| path.extension().is_some_and(|it| it == "safetensors"));
            let tensors = shards.flat_map(|path| read_safetensors(&path).expect("a shard"));
            let written: usize = tensors.map(|(_, tensor)| tensor.values.len()).sum();
            assert_eq!(written, numbers, "{what}, {}", optimizer.name());
        }
    }
}

#[test]
fn going_on_under_another_plan_is_bitwise_saving_resharding_and_resuming() {
    let graph = gpt();
    for optimizer in [Optimizer::default(), Optimizer::sgd(0.9), ADAFACTOR] {
        let plans = plans(&graph, optimizer);
        for (index, (from, first)) in plans.iter().enumerate() {
            // Every plan comes before and after another, at some distance.
            let (to, second) = &plans[(index + 3) % plans.len()];
            let mut through_files = run(&graph, first);
            let mut replanned = run(&graph, first);
            assert_eq!(train(&mut through_files, 3), train(&mut replanned, 3));
            let folder = tempfile::tempdir().expect("a folder");
            through_files.save(folder.path(), Meta::default(), None).expect("saved");
            let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
            let mut resumed = run(&graph, second);
            resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
            replanned.replan(second, second.device_count()).expect("replanned");
            assert_eq!(replanned.next_step(), 3);
            let what = format!("{} from {from} to {to}", optimizer.name());
            assert_eq!(train(&mut replanned, 3), train(&mut resumed, 3), "{what}");
            let digests = [&mut replanned, &mut resumed].map(|it| it.weights_digest().expect("it"));
            assert_eq!(digests[0], digests[1], "{what}");
        }
    }
}

#[test]
fn a_plan_that_does_not_fit_leaves_the_run_as_it_was() {
    let graph = gpt();
    let plan = serial().plan(&graph, "model", "local");
    let (mut trainer, mut whole) = (run(&graph, &plan), run(&graph, &plan));
    train(&mut trainer, 2);
    let mut impossible = plan.clone();
    impossible.pipeline[0].stage[0].blocks.1 += 1;
    let error = trainer.replan(&impossible, 1).expect_err("there are fewer blocks");
    assert!(error.to_string().contains("blocks"), "{error}");
    train(&mut trainer, 2);
    train(&mut whole, 4);
    assert_eq!(trainer.weights_digest().expect("it"), whole.weights_digest().expect("it"));
}

/// Processes have other numbers of ranks under it, or none.
#[test]
fn several_processes_go_on_under_another_plan_to_what_one_comes_to() {
    let graph = gpt();
    let plans = plans(&graph, Optimizer::default());
    let rate = settings(Curve::Constant { peak: RATE });
    let data = || Samples::patterned(64, 16, 64);
    for (from, to) in [(1, 2), (2, 0), (0, 1), (3, 1)] {
        let ((first, before), (second, after)) = (&plans[from], &plans[to]);
        let what = format!("{first}, then {second}");
        let [old, new] = [before, after].map(|plan| plan.device_count());
        let go_on = |run: &mut Trainer| {
            let mut losses = train(run, 2);
            run.replan(after, new).expect("the plan fits");
            losses.extend(train(run, 2));
            (losses, run.sent_bytes_per_rank().to_vec(), run.weights_digest().expect("a digest"))
        };
        let expected = go_on(&mut run(&graph, before));
        let blueprint =
            || Blueprint::new(graph.clone(), before, old, rate.clone()).expect("a plan");
        led(&blueprint, &data, |blueprint| {
            let mut run = Trainer::start(blueprint, Box::new(data())).expect("it starts");
            assert_eq!(go_on(&mut run), expected, "{what}");
        });
    }
}
