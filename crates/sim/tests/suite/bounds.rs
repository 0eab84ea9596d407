//! What no simulation may beat, exceed or forget.

use crate::scenario::{exchanged, gpt, h100, lowered, uniform};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_graph::Graph;
use shardloom_plan::{Arrangement, Recompute, ScheduleKind, Uniform};
use shardloom_program::timeline::{Lane, Picos};
use shardloom_program::{Action, Body, BodyKind, ClassId, Content, Program, RouteId, View, lower};
use shardloom_sim::{CostModel, Modelled, Options, Recorded, Recorder, run, simulate};

fn plans() -> impl Strategy<Value = Uniform> {
    let shape = (0u32..3, 0u32..3, 0u32..3).prop_map(|(p, d, t)| (1usize << p, 1 << d, 1 << t));
    let flags = (any::<bool>(), any::<bool>());
    let recompute = prop::sample::select(&Recompute::ALL[..]);
    let schedule = prop::sample::select(&ScheduleKind::PLAIN[..]);
    (shape, 1usize..4, 0u8..4, recompute, schedule, flags).prop_map(
        |((pp, dp, tp), rounds, zero, recompute, schedule, (sequence_parallel, clips))| {
            let mut plan = uniform(pp, dp, tp, rounds * pp);
            plan.sync.zero = zero;
            plan.recompute = recompute;
            plan.schedule = schedule;
            plan.sequence_parallel = sequence_parallel;
            plan.clip_norm = clips.then_some(1.0);
            plan
        },
    )
}

fn config(seed: u64) -> ProptestConfig {
    ProptestConfig {
        cases: 32,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Seconds of the computation of `body` that must be over before the last of what it sends is ready.
fn seconds_to_send(costs: &CostModel<'_>, class: ClassId, body: &Body) -> f64 {
    let sent = |operand: &View| {
        body.instructions
            .iter()
            .any(|it| matches!(it.action, Action::Send { .. }) && it.reads.contains(operand))
    };
    let sends = body.instructions.iter().any(|it| matches!(it.action, Action::Send { .. }));
    let last = match sends {
        true => {
            body.instructions.iter().rposition(|it| it.writes.iter().any(|write| sent(&write.to)))
        }
        false => Some(body.instructions.len() - 1),
    };
    let needed = &body.instructions[..=last.expect("what is sent has been written")];
    needed.iter().map(|it| costs.local_seconds(class, 0, it).expect("it has a cost")).sum()
}

/// One micro-batch all the way down the first pipeline and back; on devices with stages of several
/// pipelines that run the same way, through the quickest of those.
fn critical_path(graph: &Graph, cluster: &Cluster, program: &Program) -> f64 {
    let costs = CostModel::new(graph, cluster, program);
    let message = |route: RouteId| {
        let route = program.route(route);
        let [from, to] = [route.from, route.to].map(|class| program.class(class));
        let message = &route.messages[0];
        let bytes = route.message_bytes(message);
        let (from, to) = (from.devices[message.from], to.devices[message.to]);
        costs.message_seconds(from, to, bytes, 1).expect("it has a cost")
    };
    let seconds = |id: ClassId, body: &Body| {
        let sends = body.instructions.iter().filter_map(|it| match it.action {
            Action::Send { route } => Some(message(route)),
            _ => None,
        });
        seconds_to_send(&costs, id, body) + sends.fold(0.0, f64::max)
    };
    let pass = |id: ClassId, chunk: Option<usize>, kinds: &[BodyKind]| {
        let chunks = |body: &&Body| chunk.is_none_or(|chunk| body.part.chunk == Some(chunk as u32));
        let bodies = program.class(id).bodies.iter().filter(|it| kinds.contains(&it.kind));
        let those = bodies.filter(|body| !body.part.reverse).filter(chunks);
        those.map(|body| seconds(id, body)).fold(f64::INFINITY, f64::min)
    };
    let mut total = 0.0;
    for (id, class) in program.classes() {
        let chunks = class.stages.iter().filter(|held| held.instance.pipeline == 0).count();
        for chunk in (0..chunks).map(|chunk| (chunks > 1).then_some(chunk)) {
            total += pass(id, chunk, &[BodyKind::Forward]);
            total += pass(id, chunk, &[BodyKind::Backward, BodyKind::BackwardInput]);
        }
    }
    total
}

/// Plans with any schedule that is built, and the stages on each device.
fn orders() -> impl Strategy<Value = (Uniform, usize)> {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    let kind = prop::sample::select(kinds.collect::<Vec<_>>());
    (plans(), kind, 0usize..2).prop_map(|(plan, schedule, more)| {
        let clip_norm = plan.clip_norm.filter(|_| schedule.flushes());
        let microbatches = 2 * plan.microbatches;
        let global_batch = 2 * plan.global_batch;
        let plan = Uniform { schedule, clip_norm, microbatches, global_batch, ..plan };
        let least = schedule.arrangement().map_or(1, Arrangement::least_chunks);
        (plan, least * (1 + more))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..config(3) })]

    #[test]
    fn no_step_of_any_schedule_beats_the_critical_path_or_the_busiest_rank(
        (uniform, chunks) in orders(),
    ) {
        let graph = gpt(14, false);
        let cluster = h100(uniform.pp * uniform.mesh.size());
        let plan = uniform.plan_in_chunks(&graph, "gpt", "cluster", chunks);
        let ranks = uniform.pp * uniform.mesh.size();
        let program = plan.map_err(|_| ()).and_then(|it| lower(&graph, &it, ranks).map_err(|_| ()));
        // Not every schedule exists for every number of devices and stages.
        prop_assume!(program.is_ok());
        let program = program.unwrap();
        for steps in [1 + 2 * program.ahead, 2 + 2 * program.ahead] {
            let found = simulate(&graph, &cluster, &program, Options { steps, folded: true }).unwrap();
            let path = critical_path(&graph, &cluster, &program);
            let makespan = found.timeline.makespan().seconds();
            prop_assert!(path > 0.0 && makespan >= path - 1e-8, "{makespan} against {path}");
            for rank in &found.summary().ranks {
                prop_assert!(makespan >= f64::from(steps) * rank.busy_seconds - 1e-11);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn no_step_beats_the_critical_path_or_the_busiest_rank(plan in plans()) {
        let graph = gpt(4, false);
        let (program, cluster) = (lowered(&graph, &plan), h100(plan.pp * plan.mesh.size()));
        for steps in [1, 2] {
            let options = Options { steps, folded: true };
            let found = simulate(&graph, &cluster, &program, options).unwrap();
            let path = critical_path(&graph, &cluster, &program);
            let makespan = found.timeline.makespan().seconds();
            // Half a picosecond may be lost with each of some thousand durations.
            prop_assert!(makespan >= path - 1e-8, "{makespan} against {path}");
            for rank in &found.summary().ranks {
                prop_assert!(found.step_time().seconds() >= rank.busy_seconds - 1e-11);
            }
        }
    }

    #[test]
    fn busy_time_is_the_cost_of_the_stream(plan in plans()) {
        let graph = gpt(4, false);
        let (program, cluster) = (lowered(&graph, &plan), h100(plan.pp * plan.mesh.size()));
        let costs = CostModel::new(&graph, &cluster, &program);
        let options = Options { steps: 1, folded: true };
        let found = simulate(&graph, &cluster, &program, options).unwrap();
        for ((id, class), track) in program.classes().zip(&found.timeline.tracks) {
            let mut cost = Picos::ZERO;
            for entry in class.entries() {
                for instruction in &class.body_of(entry).instructions {
                    cost += Picos::from_seconds(costs.local_seconds(id, 0, instruction).unwrap());
                }
            }
            prop_assert_eq!(track.busy(), cost);
        }
    }

    #[test]
    fn a_recording_replays_to_the_same_timeline(plan in plans(), folded: bool) {
        let graph = gpt(4, false);
        let (program, cluster) = (lowered(&graph, &plan), h100(plan.pp * plan.mesh.size()));
        let options = Options { steps: 2, folded };
        let modelled = Modelled::new(&graph, &cluster, &program).unwrap();
        let mut recorder = Recorder::new(modelled);
        let first = run(&program, &cluster, options, &mut recorder).unwrap();
        let (_, recording) = recorder.finish();
        let text = serde_json::to_string(&recording).unwrap();
        let read = serde_json::from_str(&text).unwrap();
        let again = run(&program, &cluster, options, &mut Recorded::new(&read)).unwrap();
        prop_assert_eq!(first, again);
    }

    #[test]
    fn memory_is_what_the_program_says(plan in plans()) {
        let graph = gpt(4, false);
        let (program, cluster) = (lowered(&graph, &plan), h100(plan.pp * plan.mesh.size()));
        let options = Options { steps: 2, folded: false };
        let found = simulate(&graph, &cluster, &program, options).unwrap();
        let ranks = program.classes().flat_map(|(id, class)| {
            (0..class.mesh.size()).map(move |position| (id, class, position))
        });
        for ((id, class, position), track) in ranks.zip(&found.timeline.tracks) {
            let needs = class.memory_use(&program, position);
            prop_assert_eq!(track.peak_bytes, needs.peak_bytes);
            let most = track.memory.iter().map(|&(_, bytes)| bytes).max();
            prop_assert_eq!(most, Some(needs.peak_bytes));
            let held = needs.persistent.total();
            prop_assert_eq!(track.memory.first(), Some(&(Picos::ZERO, held)));
            prop_assert_eq!(track.memory.last().map(|&(_, bytes)| bytes), Some(held));
            prop_assert!(track.memory.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            // Each instruction changes it, not each pass as a whole.
            let passes = track.intervals.iter().filter(|it| it.lane == Lane::Compute).count();
            prop_assert!(track.memory.len() > passes, "{} in {passes} passes", track.memory.len());
            prop_assert_eq!(track.sent_bytes, 2 * program.sent_bytes(id, position));
        }
    }

    #[test]
    fn more_bandwidth_never_makes_a_run_slower(
        plan in plans(),
        faster in prop::array::uniform4(1.0f64..8.0),
    ) {
        let graph = gpt(4, false);
        let (program, cluster) = (lowered(&graph, &plan), h100(plan.pp * plan.mesh.size()));
        let mut groups: Vec<NodeGroup> = cluster.groups().to_vec();
        for group in &mut groups {
            let profile = &mut group.profile;
            profile.node.intra.bytes_per_second *= faster[0];
            profile.node.inter.bytes_per_second *= faster[1];
            profile.node.uplink_bytes_per_second *= faster[2];
            profile.device.memory_bytes_per_second *= faster[3];
        }
        let better = Cluster::new(groups).unwrap();
        let ends = |cluster: &Cluster| {
            let options = Options { steps: 2, folded: true };
            simulate(&graph, cluster, &program, options).unwrap().step_ends
        };
        for (slow, fast) in ends(&cluster).iter().zip(&ends(&better)) {
            prop_assert!(fast.iter().zip(slow).all(|(fast, slow)| fast <= slow));
        }
    }
}

#[test]
fn zero_3_adds_at_most_the_two_largest_gathered_buckets() {
    let graph = gpt(6, false);
    let mut plan = uniform(1, 4, 1, 2);
    // Blocks of their own, as ZeRO-3 has them, so that only the gathering differs.
    plan.sync.bucket_bytes = 1;
    let dynamic = |zero| {
        let mut plan = plan.clone();
        plan.sync.zero = zero;
        let program = lowered(&graph, &plan);
        let options = Options { steps: 1, folded: true };
        let found = simulate(&graph, &h100(4), &program, options).unwrap();
        let held = program.classes[0].memory_use(&program, 0).persistent.total();
        (found.timeline.tracks[0].peak_bytes - held, program)
    };
    let ((kept, _), (gathered, program)) = (dynamic(2), dynamic(3));
    let bytes = |elements: usize| (elements * program.precision.compute.bytes()) as u64;
    let mut buckets: Vec<u64> =
        program.classes[0].buckets.iter().map(|bucket| bytes(bucket.elements)).collect();
    buckets.sort_unstable();
    let extra = gathered - kept;
    let two: u64 = buckets.iter().rev().take(2).sum();
    assert!((buckets[0]..=two).contains(&extra), "{extra} of {buckets:?}");
}

#[test]
fn a_gather_starts_once_what_stands_before_it_is_computed() {
    let graph = gpt(4, false);
    let mut plan = uniform(1, 4, 1, 1);
    plan.sync.zero = 3;
    let program = lowered(&graph, &plan);
    let options = Options { steps: 1, folded: true };
    let found = simulate(&graph, &h100(4), &program, options).unwrap();
    let class = &program.classes[0];
    let forward = &class.bodies[0];
    assert_eq!(forward.kind, BodyKind::Forward);
    let costs = h100(4);
    let costs = CostModel::new(&graph, &costs, &program);
    // Computation that stands before each gather of the forward pass is a bound on its start.
    let mut before = Picos::ZERO;
    let mut bounds = vec![];
    for instruction in &forward.instructions {
        if exchanged(class, instruction) == Some(Content::Weight) {
            bounds.push(before);
        }
        let seconds = costs.local_seconds(ClassId(0), 0, instruction).unwrap();
        before += Picos::from_seconds(seconds);
    }
    let intervals = found.timeline.tracks[0].intervals.iter();
    let gathers = intervals
        .filter(|it| it.lane == Lane::CommunicationIn && it.label.starts_with("all-gather"));
    let starts: Vec<Picos> = gathers.map(|it| it.start).take(bounds.len()).collect();
    assert!(bounds.len() > 4 && starts.iter().zip(&bounds).all(|(start, bound)| start >= bound));
}
