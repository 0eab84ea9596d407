//! What a simulation refuses, and how it says so.

use crate::scenario::{gpt, h100, lowered, uniform};
use shardloom_cluster::{ClusterError, Stack};
use shardloom_plan::{Plan, ScheduleKind, Uniform};
use shardloom_program::{Action, BodyKind, Class, PersistentBytes, lower};
use shardloom_sim::{
    Fit, MOST_INSTRUCTIONS, MemoryFit, Modelled, Options, Recorded, Recorder, SimError,
    instruction_count, require_few_in, run, simulate,
};

const ONE: Options = Options { steps: 1, folded: true };

#[test]
fn no_steps_are_refused() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 2));
    let options = Options { steps: 0, folded: true };
    let found = simulate(&graph, &h100(2), &program, options);
    assert!(matches!(found, Err(SimError::NoSteps)));
}

#[test]
fn more_instructions_than_can_be_simulated_are_refused_with_what_has_fewer() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 2, 1, 2));
    let count = |steps, folded| instruction_count(&program, Options { steps, folded });
    let of_entries = |class: &Class| -> usize {
        class.entries().map(|entry| class.body_of(entry).instructions.len()).sum()
    };
    let step: usize = program.classes.iter().map(of_entries).sum();
    assert!(step > 0);
    assert_eq!(count(1, true), step as u64);
    assert_eq!(count(3, true), 3 * step as u64);
    assert_eq!(count(3, false), 6 * step as u64, "two ranks of each class");
    // So many that none of them can have been simulated.
    for (folded, apart) in [(true, false), (false, true)] {
        let options = Options { steps: u32::MAX, folded };
        let found = simulate(&graph, &h100(4), &program, options).expect_err("too many");
        let text = found.to_string();
        let begins =
            format!("{} steps have {} instructions or more, ", u32::MAX, count(u32::MAX, folded));
        assert!(text.starts_with(&begins), "{text}");
        assert!(text.contains("at most 30000000 are simulated"), "{text}");
        assert_eq!(
            text.contains("a folded simulation, one rank for all that do the same"),
            apart,
            "{text}"
        );
        assert!(text.contains("fewer micro-batches"), "{text}");
    }
}

#[test]
fn plans_of_too_many_micro_batches_are_refused_before_they_are_lowered() {
    let graph = gpt(2, false);
    let ops = graph.ops().len();
    let mut plan = uniform(2, 1, 1, 2).plan(&graph, "gpt", "cluster");
    let most = 30_000_000 / ops;
    for (microbatches, steps, few) in
        [(most, 1, true), (most + 1, 1, false), (most / 2, 2, true), (most / 2 + 1, 2, false)]
    {
        plan.microbatches = microbatches;
        let found = require_few_in(&graph, &plan, Options { steps, folded: true });
        assert_eq!(found.is_ok(), few, "{microbatches} in {steps} steps");
        if let Err(error) = found {
            let count = (microbatches * ops) as u64 * u64::from(steps);
            assert!(
                error.to_string().contains(&format!(" {count} instructions or more")),
                "{error}"
            );
        }
    }
    // Each micro-batch is in one pipeline.
    plan.microbatches = most + 1;
    plan.pipeline.push(plan.pipeline[0].clone());
    assert!(require_few_in(&graph, &plan, ONE).is_ok());
    // What lowering makes of few is more than was counted.
    plan.pipeline.pop();
    plan.microbatches = 2;
    assert!(instruction_count(&lower(&graph, &plan, 2).expect("it fits"), ONE) >= 2 * ops as u64);
}

#[test]
fn a_device_that_the_cluster_lacks_is_named() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 2, 1, 2));
    let found = simulate(&graph, &h100(3), &program, ONE).expect_err("it has 3 devices");
    let lacks = matches!(found, SimError::Cluster(ClusterError::UnknownDevice { .. }));
    assert!(lacks && found.to_string().contains("device 3"), "{found}");
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let graph = gpt(2, false);
    let mut program = lowered(&graph, &uniform(2, 1, 1, 2));
    // The first stage wants gradients before it has sent anything.
    program.classes[0].control.rotate_left(2);
    let found = simulate(&graph, &h100(2), &program, ONE).expect_err("nobody sends");
    let text = found.to_string();
    assert!(text.starts_with("deadlock: rank 0 waits at receive "), "{text}");
    assert!(text.contains(", rank 1 waits at receive "), "{text}");
}

#[test]
fn a_rank_that_waits_for_what_is_left_to_do_after_the_last_step_is_named() {
    let graph = gpt(2, false);
    let plan = uniform(2, 1, 1, 2).plan(&graph, "gpt", "cluster");
    let mut program = lower(&graph, &Plan { post_validation: true, ..plan }, 2).expect("it fits");
    // The last stage keeps the norm of all gradients to itself.
    let last = &mut program.classes[1];
    let ends = last.bodies.iter_mut().find(|body| body.kind == BodyKind::Epilogue);
    let ends = &mut ends.expect("a step ends").instructions;
    let before = ends.len();
    ends.retain(|instruction| !matches!(instruction.action, Action::Send { .. }));
    assert_eq!(ends.len() + 1, before);
    let found = simulate(&graph, &h100(2), &program, ONE).expect_err("nobody sends");
    assert_eq!(found.to_string(), "deadlock: rank 0 waits at receive gradient norm in test");
}

#[test]
fn a_recording_of_fewer_steps_ends_too_early() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 2));
    let cluster = h100(2);
    let modelled = Modelled::new(&graph, &cluster, &program).expect("the devices are there");
    let mut recorder = Recorder::new(modelled);
    run(&program, &cluster, ONE, &mut recorder).expect("it runs");
    let (_, recording) = recorder.finish();
    let two = Options { steps: 2, folded: true };
    let found = run(&program, &cluster, two, &mut Recorded::new(&recording));
    assert!(matches!(found, Err(SimError::RecordingEnds { rank: 0, .. })), "{found:?}");
}

#[test]
fn memory_is_close_within_a_twentieth_of_all() {
    let with = |peak_bytes| {
        let persistent = PersistentBytes { weights: 100, ..PersistentBytes::default() };
        MemoryFit {
            rank: 0,
            fullest_rank: 0,
            peak_bytes,
            memory_bytes: 1000,
            persistent,
            activation_bytes: 200,
        }
    };
    let fit = |peak_bytes| with(peak_bytes).fit();
    assert_eq!([fit(950), fit(951)], [Fit::Fits, Fit::Close]);
    assert_eq!([fit(1000), fit(1001)], [Fit::Close, Fit::Exceeds]);
    assert_eq!([with(950), with(1001)].map(|it| it.margin_bytes()), [50, -1]);
    assert_eq!(with(950).buffer_bytes(), 650);
}

#[test]
fn the_fullest_rank_has_the_largest_share_of_its_own_memory() {
    let with = |rank, peak_bytes, memory_bytes| {
        let persistent = PersistentBytes::default();
        MemoryFit {
            rank,
            fullest_rank: rank,
            peak_bytes,
            memory_bytes,
            persistent,
            activation_bytes: 0,
        }
    };
    let ranks = [with(0, 60, 80), with(1, 14, 16), with(2, 10, 40)];
    assert_eq!(MemoryFit::fullest(&ranks).map(|it| it.rank), Some(1));
    assert_eq!(MemoryFit::fullest(&[]), None);
}

#[test]
fn each_class_is_held_against_its_device() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 2, 1, 2));
    let cluster = h100(4);
    let found = simulate(&graph, &cluster, &program, ONE).expect("it runs");
    let fits = found.memory_fits(&program, &cluster).expect("the devices are there");
    assert_eq!(fits.iter().map(|fit| fit.rank).collect::<Vec<_>>(), [0, 2]);
    for (fit, track) in fits.iter().zip(&found.timeline.tracks) {
        // Replicas keep everything, and little is there besides while a block runs.
        assert!(fit.persistent.weights > 0 && fit.persistent.gradients > 0);
        assert!(fit.persistent.state > 0 && fit.activation_bytes > 0);
        assert!(fit.buffer_bytes() < fit.activation_bytes / 10, "{fit:?}");
        assert_eq!((fit.peak_bytes, fit.memory_bytes), (track.peak_bytes, 85_520_809_984));
        assert_eq!(fit.fit(), Fit::Fits);
    }
}

#[test]
fn a_class_is_held_against_its_smallest_device() {
    let graph = gpt(2, false);
    let plan = shardloom_plan::Uniform {
        precision: shardloom_plan::Precision::FP32,
        ..uniform(1, 4, 1, 2)
    };
    let program = lowered(&graph, &plan);
    // Wherever in the class the smallest is.
    for (fullest, nodes) in
        [(0, ["v100-16g:1x2", "h100-80g:1x2"]), (2, ["h100-80g:1x2", "v100-16g:1x2"])]
    {
        let cluster = shardloom_cluster::Cluster::parse(&nodes.join("+")).expect("presets");
        let found = simulate(&graph, &cluster, &program, ONE).expect("it runs");
        let fits = found.memory_fits(&program, &cluster).expect("the devices are there");
        let memories = cluster.groups().iter().map(|it| it.profile.device.memory_bytes);
        let smallest = memories.min().expect("two groups");
        assert_eq!(fits.iter().map(|it| it.memory_bytes).collect::<Vec<_>>(), [smallest]);
        // And it is that device's rank which is said to be full.
        assert_eq!((fits[0].rank, fits[0].fullest_rank), (0, fullest));
    }
}

#[test]
fn the_summary_has_the_contract_s_keys() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 2, 1, 2));
    let of = |folded| {
        let options = Options { steps: 2, folded };
        let found = simulate(&graph, &h100(4), &program, options).expect("it runs");
        serde_json::to_value(found.summary()).expect("it is plain data")
    };
    let (folded, unfolded) = (of(true), of(false));
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let expected = [
        "bubble_fraction",
        "dependency_idle_fraction",
        "exposed_communication_fraction",
        "ranks",
        "step_seconds",
    ];
    assert_eq!(keys(&folded), expected);
    let share = |key: &str| folded[key].as_f64().expect("a number");
    let parts = share("dependency_idle_fraction") + share("exposed_communication_fraction");
    assert!((share("bubble_fraction") - parts).abs() < 1e-12);
    let rank = [
        "busy_seconds",
        "communication_seconds",
        "idle_seconds",
        "peak_bytes",
        "rank",
        "sent_bytes",
        "sent_bytes_by_all",
        "waits",
    ];
    assert_eq!(keys(&unfolded["ranks"][0]), rank);
    assert_eq!(unfolded["ranks"].as_array().map(Vec::len), Some(4));
    assert_eq!(folded["ranks"][1]["multiplicity"], 2);
    assert_eq!(
        folded["ranks"][1]["sent_bytes"],
        program.sent_bytes(shardloom_program::ClassId(1), 0)
    );
    assert_eq!(folded["step_seconds"], unfolded["step_seconds"]);
}

#[test]
fn steps_that_take_longer_than_can_be_counted_are_refused() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 2, 1, 2));
    let slow = Stack { memory_time: 1e15, ..Stack::default() };
    let error = simulate(&graph, &h100(2).under(slow), &program, ONE).expect_err("too long");
    assert!(error.to_string().contains("213 days"), "{error}");
}

/// What is counted before all micro-batches are lowered is what they have then: of `c + m` times as many as one has,
/// all but `c`.
#[test]
fn instructions_are_counted_in_a_plan_with_few_micro_batches() {
    let graph = gpt(2, false);
    for schedule in [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Afab,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
    ] {
        let of = |microbatches| {
            let uniform = Uniform { schedule, ..uniform(2, 2, 1, microbatches) };
            let plan = uniform.plan(&graph, "gpt", "cluster");
            let few = microbatches < 1000;
            (few.then(|| lower(&graph, &plan, 4).expect("the plan fits")), plan)
        };
        let step = |microbatches| instruction_count(&of(microbatches).0.expect("few"), ONE);
        let of_one = (step(80) - step(40)) / 40;
        // Fewer operators than may be simulated, and more instructions.
        let microbatches = MOST_INSTRUCTIONS as usize / graph.ops().len() / 4 * 4;
        let refused = require_few_in(&graph, &of(microbatches).1, ONE).expect_err("too many");
        let SimError::TooMany { instructions, .. } = refused else { panic!("{refused}") };
        let counted = instructions / microbatches as u64;
        assert!(counted <= of_one && counted + 2 >= of_one, "{schedule:?}: {counted}, {of_one}");
        assert!(counted > graph.ops().len() as u64, "{schedule:?}: the operators refuse it");
    }
}
