//! Replicas that are averaged up to a step, and from there on kept equal by reduced gradients: against serial runs,
//! against data parallelism from the first replica's state, and interrupted on either side of that step.

use crate::averaging::{
    ADAMW, BATCH, CURVE, Gradients, Replica, STEPS, Tensors, assert_near, averaged, digest, plan,
    replayed, saved, trainer,
};
use crate::support::processes::led;
use crate::support::{Samples, losses, mesh, settings, small_gpt, trainer_with};
use shardloom_checkpoint::Checkpoint;
use shardloom_cluster::Cluster;
use shardloom_plan::{Averaging, Axis, AxisSet, Optimizer, Plan, Sync, Uniform};
use shardloom_train::{Blueprint, RunClock, Settings, Trainer};

/// The first step without averages.
const END: usize = 3;

const ADAPTIVE: Averaging = Averaging { until: Some(END as u32), ..Averaging::SYNCHRONOUS };

fn adaptive(replicas: u32, optimizer: Optimizer) -> Uniform {
    Uniform { mesh: mesh(replicas, 1, 1), ..averaged(ADAPTIVE, optimizer) }
}

/// The same plan without averages.
fn parallel(plan: &Plan) -> Plan {
    Plan { sync: Sync { averaging: None, ..plan.sync }, ..plan.clone() }
}

fn again(checkpoint: &Checkpoint) -> Checkpoint {
    Checkpoint::open(checkpoint.path()).expect("a checkpoint")
}

#[test]
fn it_comes_to_what_serial_runs_that_are_averaged_and_then_share_gradients_come_to() {
    let graph = small_gpt();
    let seldom = Averaging { every: 2, rate: 0.25, ..ADAPTIVE };
    for optimizer in [Optimizer::sgd(0.0), Optimizer::sgd(0.5), ADAMW] {
        for averaging in [ADAPTIVE, seldom] {
            for replicas in [2, 3, 4, 8] {
                let of = format!("{replicas} of {averaging:?} with {optimizer:?}");
                let uniform = averaged(averaging, optimizer);
                let uniform = Uniform { mesh: mesh(replicas, 1, 1), ..uniform };
                let mut run = trainer(&graph, &plan(&graph, &uniform));
                let replayed =
                    |steps| replayed(&graph, replicas as usize, steps, averaging, optimizer);
                let mut found_losses = losses(&mut run, END);
                let found = run.weights_of_replicas().expect("weights");
                assert_near(&found, &replayed(END).1, 0.0, &format!("averaged {of}"));
                found_losses.extend(losses(&mut run, STEPS - END));
                let found = run.weights_of_replicas().expect("weights");
                let (expected_losses, expected) = replayed(STEPS);
                // Of what is shared by three, the oracle's gradients are three times those of the run, rounded.
                let most = if replicas == 3 { 1e-6 } else { 0.0 };
                assert_near(&found, &expected, most, &of);
                for (loss, expected) in found_losses.iter().zip(expected_losses) {
                    assert!((loss - expected).abs() < 1e-5 * expected, "{loss}, {expected}: {of}");
                }
            }
        }
    }
}

/// From that step on it is one process on all samples of a step, from the state of the first replica.
#[test]
fn after_the_last_average_it_is_one_serial_run_on_the_union_of_the_batches() {
    let graph = small_gpt();
    for optimizer in [Optimizer::sgd(0.9), ADAMW] {
        let mut run = trainer(&graph, &plan(&graph, &adaptive(4, optimizer)));
        losses(&mut run, END);
        let own = run.weights_of_replicas().expect("weights");
        assert_ne!(own[0], own[1], "they differ until then");
        let (_folder, checkpoint) = saved(&mut run);
        let moment = |index: usize| -> Tensors {
            let read = |name: &String| {
                let saved = format!("replica.0/optimizer.{index}/{name}");
                let none = vec![0.0; own[0][name].len()];
                (name.clone(), checkpoint.read_whole(&saved).unwrap_or(none))
            };
            own[0].keys().map(read).collect()
        };
        let mut serial = Replica { weights: own[0].clone(), moments: [moment(0), moment(1)] };
        let mut gradients = Gradients::new(&graph, BATCH);
        losses(&mut gradients.0, END);
        for step in END..STEPS {
            let (expected, gradient) = gradients.next(&serial.weights);
            serial.update(&graph, optimizer, &gradient, step);
            let loss = losses(&mut run, 1)[0];
            assert!((loss - expected).abs() < 1e-5 * expected, "{loss}, {expected}: step {step}");
        }
        let found = run.weights_of_replicas().expect("weights");
        assert_near(&found, &[serial.weights], 2e-5, &format!("{optimizer:?}"));
    }
}

/// Replicas of several ranks, and several ranks of which each replica has some samples.
fn split(optimizer: Optimizer) -> [Uniform; 4] {
    let within = mesh(4, 1, 1).sharing_within(2).expect("two by two");
    let over = AxisSet::of(&[Axis::REPLICA]);
    let plain = adaptive(2, optimizer);
    [
        Uniform { mesh: mesh(2, 1, 2), sequence_parallel: true, ..plain.clone() },
        Uniform { mesh: mesh(2, 2, 1), ..plain.clone() },
        Uniform { pp: 2, microbatches: 2, mesh: mesh(2, 1, 1), ..plain },
        Uniform { mesh: within, ..averaged(Averaging { over, ..ADAPTIVE }, optimizer) },
    ]
}

#[test]
fn a_run_that_is_interrupted_on_either_side_of_the_end_ends_as_one_that_is_not() {
    let graph = small_gpt();
    for optimizer in [Optimizer::sgd(0.9), ADAMW] {
        for uniform in split(optimizer).into_iter().chain([adaptive(2, optimizer)]) {
            let plan = plan(&graph, &uniform);
            let mut whole = trainer(&graph, &plan);
            let mut found = vec![];
            let mut interrupted = vec![];
            for step in 0..STEPS {
                if [END - 1, END, END + 1, END + 2].contains(&step) {
                    interrupted.push((step, saved(&mut whole)));
                }
                found.extend(losses(&mut whole, 1));
            }
            let expected = digest(&mut whole);
            let mut former = trainer(&graph, &plan);
            for (step, (_folder, checkpoint)) in &interrupted {
                let of = format!("after {step} steps of {uniform:?}");
                // The end of averages belongs to the step that is the first without.
                let has_own = checkpoint.names().any(|name| name.starts_with("replica.1/"));
                assert_eq!(has_own, *step <= END, "{of}");
                let mut resumed = trainer(&graph, &plan);
                resumed.resume(again(checkpoint)).expect("resumed");
                assert_eq!(losses(&mut resumed, STEPS - step), found[*step..], "{of}");
                assert_eq!(digest(&mut resumed), expected, "{of}");
                // In a row, and by a run that had come to the other side.
                former.resume(again(checkpoint)).expect("resumed");
                let row = former.train_steps((STEPS - step) as u32).expect("steps");
                let row: Vec<f64> = row.iter().map(|step| step.loss).collect();
                assert_eq!(row, found[*step..], "{of}");
                assert_eq!(digest(&mut former), expected, "{of}");
                // Without files.
                let mut replanned = trainer(&graph, &plan);
                losses(&mut replanned, *step);
                replanned.replan(&plan, plan.device_count()).expect("the same plan");
                assert_eq!(losses(&mut replanned, STEPS - step), found[*step..], "{of}");
                assert_eq!(digest(&mut replanned), expected, "{of}");
            }
            // Data parallelism goes on from what was saved since, to the same.
            let mut goes_on = trainer(&graph, &parallel(&plan));
            let (step, (_, checkpoint)) = &interrupted[2];
            goes_on.resume(again(checkpoint)).expect("one state for all");
            assert_eq!(losses(&mut goes_on, STEPS - step), found[*step..]);
            assert_eq!(digest(&mut goes_on), expected);
            // What each replica had for itself before, it does not take.
            let refused = goes_on.resume(again(&interrupted[1].1.1)).expect_err("several states");
            assert!(refused.to_string().contains("of 2 replicas of their own"), "{refused}");
        }
    }
}

#[test]
fn under_the_virtual_clock_it_comes_to_the_same_and_takes_the_steps_of_either_part() {
    let graph = small_gpt();
    let cluster = Cluster::parse("h100-80g:4").expect("a preset");
    let adaptive = plan(&graph, &adaptive(4, Optimizer::sgd(0.5)));
    let mut wall = trainer(&graph, &adaptive);
    let expected = losses(&mut wall, STEPS);
    let settings = Settings { clock: RunClock::Virtual(cluster), ..settings(CURVE) };
    let virtually =
        |plan: &Plan| trainer_with(&graph, plan, Samples::patterned(64, 8, 32), settings.clone());
    let mut run = virtually(&adaptive);
    // The part that is averaged, what follows, and the bytes that each sends.
    let rows = [END, STEPS - END].map(|steps| {
        let steps = run.train_steps(steps as u32).expect("steps");
        let of_steps: Vec<f64> = steps.iter().map(|step| step.loss).collect();
        (of_steps, run.sent_bytes_per_rank().to_vec())
    });
    assert_eq!([&rows[0].0[..], &rows[1].0[..]].concat(), expected);
    assert_eq!(digest(&mut run), digest(&mut wall));
    let sent = |plan: &Plan, steps: usize| {
        let mut run = virtually(plan);
        run.train_steps(steps as u32).expect("steps");
        run.sent_bytes_per_rank().to_vec()
    };
    let always = Averaging { until: None, ..ADAPTIVE };
    let sync = Sync { averaging: Some(always), ..adaptive.sync };
    assert_eq!(rows[0].1, sent(&Plan { sync, ..adaptive.clone() }, END));
    // Bytes are counted anew from the end of averages.
    assert_eq!(rows[1].1, sent(&parallel(&adaptive), STEPS - END));
}

#[test]
fn averages_in_pairs_end_likewise() {
    let graph = small_gpt();
    let sgd = Optimizer::sgd(0.0);
    let pairs = Averaging { until: Some(END as u32), ..Averaging::PAIRS };
    let uniform = Uniform { mesh: mesh(3, 1, 1), ..averaged(pairs, sgd) };
    let pairs = plan(&graph, &uniform);
    let mut run = trainer(&graph, &pairs);
    run.train_steps(END as u32).expect("steps");
    let first = run.weights_of_replicas().expect("weights").swap_remove(0);
    let found = losses(&mut run, STEPS - END);
    let mut goes_on = trainer(&graph, &parallel(&pairs));
    losses(&mut goes_on, END);
    goes_on.set_weights(first).expect("weights");
    assert_eq!(losses(&mut goes_on, STEPS - END), found);
    assert_eq!(digest(&mut goes_on), digest(&mut run));
}

#[test]
fn in_several_processes_it_comes_to_the_same_and_resumes_on_either_side_of_the_end() {
    let graph = small_gpt();
    for optimizer in [Optimizer::sgd(0.9), ADAMW] {
        for uniform in split(optimizer).into_iter().chain([adaptive(3, optimizer)]) {
            let plan = plan(&graph, &uniform);
            let devices = plan.device_count();
            let blueprint =
                || Blueprint::new(graph.clone(), &plan, devices, settings(CURVE)).expect("a plan");
            let data = || Samples::patterned(64, 8, 32);
            let mut threads = trainer(&graph, &plan);
            let mut checkpoints = vec![];
            let expected: Vec<f64> = (0..STEPS)
                .flat_map(|step| {
                    if [END, END + 1].contains(&step) {
                        checkpoints.push((step, saved(&mut threads)));
                    }
                    losses(&mut threads, 1)
                })
                .collect();
            let (sent, last) = (threads.sent_bytes_per_rank().to_vec(), digest(&mut threads));
            led(&blueprint, &data, |blueprint| {
                let mut run = Trainer::start(blueprint, Box::new(data())).expect("it starts");
                let steps = run.train_steps(STEPS as u32).expect("steps");
                let found: Vec<f64> = steps.iter().map(|step| step.loss).collect();
                assert_eq!(found, expected, "{uniform:?}");
                assert_eq!(digest(&mut run), last, "{uniform:?}");
                assert_eq!(run.sent_bytes_per_rank(), sent, "{uniform:?}");
                // What one process saved before the end, and after it, by ranks that are on the other side.
                for (step, (_folder, checkpoint)) in &checkpoints {
                    run.resume(again(checkpoint)).expect("resumed");
                    assert_eq!(losses(&mut run, STEPS - step), expected[*step..], "{uniform:?}");
                    assert_eq!(digest(&mut run), last, "after {step} steps of {uniform:?}");
                }
            });
        }
    }
}
