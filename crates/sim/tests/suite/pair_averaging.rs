//! Replicas that fetch from each other in simulated time: nobody waits for anybody, and a fetch runs beside passes.

use std::collections::{BTreeMap, BTreeSet};

use crate::scenario::{gpt, h100, uniform};
use shardloom_cluster::{Cluster, Stack};
use shardloom_plan::{Averaging, Mesh, Plan, Sync, Uniform};
use shardloom_program::timeline::{Activity, Clock, Picos};
use shardloom_program::{Action, BodyKind, ClassId, Program, Rank, lower};
use shardloom_sim::{
    Call, Driver, Options, Recorded, Recorder, SimError, Simulation, run, simulate,
};

const REPLICAS: u32 = 4;
const STEPS: u32 = 12;
const PUBLISH: u64 = 7;
const UPDATE: u64 = 5;

fn program() -> Program {
    let graph = gpt(2, false);
    let plan = plan();
    lower(&graph, &plan, plan.device_count()).expect("a program")
}

fn plan() -> Plan {
    let graph = gpt(2, false);
    let common = uniform(1, 1, 1, 1);
    let uniform = Uniform {
        mesh: Mesh::of(REPLICAS, 1, 1),
        global_batch: REPLICAS as usize,
        clip_norm: None,
        sync: Sync { averaging: Some(Averaging::PAIRS), ..common.sync },
        ..common
    };
    uniform.plan(&graph, "gpt", "cluster")
}

/// Replicas whose passes take so long, by rank, and fetches alike. What they publish and fetch is noted.
struct Timed<'p> {
    program: &'p Program,
    passes: Vec<u64>,
    fetch: u64,
    /// By rank: from when on each publication is there.
    published: BTreeMap<Rank, Vec<Picos>>,
    /// Who fetched from whom in which step, when, and which publication was the last.
    fetched: Vec<(Rank, Rank, i64, Picos, usize)>,
}

impl<'p> Timed<'p> {
    fn new(program: &'p Program, passes: &[u64], fetch: u64) -> Timed<'p> {
        let (published, fetched) = (BTreeMap::new(), vec![]);
        Timed { program, passes: passes.to_vec(), fetch, published, fetched }
    }
}

impl Driver for Timed<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn steps_before(&self) -> u64 {
        30
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let body = self.program.class(call.actor.class).body_of(&call.run.entry);
        let computes = |action: &Action| matches!(action, Action::Kernel { .. });
        let first = body.instructions.iter().position(|it| computes(&it.action));
        let last = body.instructions.iter().rposition(|it| it.action == Action::Optimizer);
        Ok(Picos(match body.kind {
            BodyKind::Forward if first == Some(call.index) => {
                self.passes[call.actor.rank.0 as usize]
            }
            BodyKind::Epilogue if last == Some(call.index) => UPDATE,
            _ => 0,
        }))
    }

    fn publish(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let there = call.start + Picos(PUBLISH);
        self.published.entry(call.actor.rank).or_default().push(there);
        Ok(Picos(PUBLISH))
    }

    fn fetch(&mut self, call: &Call<'_>, from: Rank) -> Result<Picos, SimError> {
        let last = self.published[&from].len() - 1;
        self.fetched.push((call.actor.rank, from, call.run.step, call.start, last));
        Ok(Picos(self.fetch))
    }

    fn send(&mut self, _: &Call<'_>, _: &mut Vec<Picos>) -> Result<(), SimError> {
        unreachable!("no messages go between replicas")
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        unreachable!("no messages go between replicas")
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        unreachable!("replicas do nothing together")
    }
}

fn timed<'p>(program: &'p Program, passes: &[u64], fetch: u64) -> (Simulation, Timed<'p>) {
    let mut driver = Timed::new(program, passes, fetch);
    let options = Options { steps: STEPS, folded: false };
    let found = run(program, &h100(REPLICAS as usize), options, &mut driver).expect("it runs");
    (found, driver)
}

#[test]
fn a_step_takes_as_long_as_its_passes_or_its_fetch_whichever_is_longer() {
    let program = program();
    for fetch in [10, 90, 100, 250] {
        let (found, _) = timed(&program, &[100; REPLICAS as usize], fetch);
        let step = PUBLISH + 100.max(fetch) + UPDATE;
        for ends in &found.step_ends {
            let expected: Vec<Picos> = (1..=u64::from(STEPS)).map(|it| Picos(it * step)).collect();
            assert_eq!(*ends, expected, "fetches of {fetch}");
        }
    }
}

#[test]
fn a_slow_replica_holds_nobody_up() {
    let program = program();
    let (even, _) = timed(&program, &[100; REPLICAS as usize], 20);
    let (odd, driver) = timed(&program, &[5000, 100, 100, 100], 20);
    for rank in 1..REPLICAS as usize {
        assert_eq!(odd.step_ends[rank], even.step_ends[rank]);
    }
    let step = PUBLISH + 5000 + UPDATE;
    assert_eq!(odd.step_ends[0][STEPS as usize - 1], Picos(u64::from(STEPS) * step));
    // The others are through before it is in its second step, and it finds what they published last.
    let by_it =
        driver.fetched.iter().filter(|(rank, _, step, ..)| (*rank, *step > 0) == (Rank(0), true));
    assert!(by_it.clone().count() == STEPS as usize - 1);
    assert!(by_it.clone().all(|(.., last)| *last == STEPS as usize - 1), "{:?}", driver.fetched);
    let of_it = driver.fetched.iter().filter(|(_, from, ..)| *from == Rank(0));
    assert!(of_it.clone().count() > 2);
    assert!(of_it.clone().all(|(.., last)| *last == 0), "{:?}", driver.fetched);
}

#[test]
fn a_fetch_finds_what_was_published_last_by_whom_the_step_of_the_run_says() {
    let program = program();
    let (_, driver) = timed(&program, &[83, 100, 131, 259], 20);
    assert_eq!(driver.fetched.len(), (REPLICAS * STEPS) as usize);
    for &(rank, from, step, start, last) in &driver.fetched {
        assert_ne!(rank, from);
        let class = &program.classes[0];
        let group =
            class.bodies.iter().flat_map(|body| &body.instructions).find_map(|it| {
                match &it.action {
                    Action::Fetch { group } => Some(group),
                    _ => None,
                }
            });
        let group = group.expect("it fetches");
        let partner = program.partner(ClassId(0), rank.0 as usize, group, 30 + step as u64);
        assert_eq!(partner, from);
        let published = &driver.published[&from];
        // What is about to be published is waited for.
        assert!(published[last] <= start, "{step} of {rank:?}");
        if let Some(&next) = published.get(last + 1) {
            assert!(start <= Picos(next.0 - PUBLISH), "{step} of {rank:?}");
        }
    }
}

#[test]
fn a_recording_is_repeated_to_the_same_time() {
    let program = program();
    let driver = Timed::new(&program, &[83, 100, 131, 259], 200);
    let mut driver = Recorder::new(driver);
    let (options, cluster) = (Options { steps: STEPS, folded: false }, h100(REPLICAS as usize));
    let found = run(&program, &cluster, options, &mut driver).expect("it runs");
    let (_, recording) = driver.finish();
    let text = serde_json::to_string(&recording).expect("data");
    let recording = serde_json::from_str(&text).expect("the same data");
    let again = run(&program, &cluster, options, &mut Recorded::new(&recording)).expect("it runs");
    assert_eq!(again.timeline, found.timeline);
    assert_eq!(again.step_ends, found.step_ends);
}

#[test]
fn the_cost_model_has_a_fetch_run_beside_passes_and_counts_its_bytes() {
    let program = program();
    let graph = gpt(2, false);
    let cluster = h100(REPLICAS as usize);
    let bytes = program.sent_bytes(ClassId(0), 0);
    let mut seconds = vec![];
    for folded in [true, false] {
        let options = Options { steps: 3, folded };
        let found = simulate(&graph, &cluster, &program, options).expect("it runs");
        let summary = found.summary();
        seconds.push(summary.step_seconds);
        assert!(summary.ranks.iter().all(|rank| rank.sent_bytes == bytes));
        let class = &program.classes[0];
        let peak = class.memory_use(&program, 0).peak_bytes;
        assert!(summary.ranks.iter().all(|rank| rank.peak_bytes == peak));
        for track in &found.timeline.tracks {
            let fetches = track.intervals.iter().filter(|it| it.activity == Activity::Receive);
            let fetches: Vec<_> = fetches.collect();
            assert_eq!(fetches.len(), 3);
            assert!(fetches.iter().all(|it| it.label == "fetch published weights"));
            // All of the weights over one link.
            let link = cluster.link(class.devices[1], class.devices[0]).expect("devices");
            let took = link.expect("two devices").transfer_seconds(bytes as f64, 1);
            for fetch in fetches {
                let found = fetch.end.since(fetch.start).seconds();
                assert!((found - took).abs() < 1e-9 + 1e-6 * took, "{found} for {took}");
            }
        }
    }
    // All are placed alike.
    assert_eq!(seconds[0], seconds[1]);
}

#[test]
fn fetches_from_other_nodes_share_the_way_into_their_own() {
    let graph = gpt(2, false);
    let took = |cluster: &str| {
        let cluster = shardloom_cluster::Cluster::parse(cluster).expect("a preset");
        let found = simulate(&graph, &cluster, &program(), Options { steps: 8, folded: false });
        let found = found.expect("it runs");
        let all = found.timeline.tracks.iter().flat_map(|track| &track.intervals);
        let all = all.filter(|it| it.activity == Activity::Receive);
        all.map(|it| it.end.since(it.start)).collect::<Vec<Picos>>()
    };
    let [mut together, mut apart] = ["rtx-3090:2x2", "rtx-3090:4x1"].map(took);
    together.sort_unstable();
    apart.sort_unstable();
    // Alone on its node each has the whole way; two on a node have half of it, or stay within.
    assert_eq!(apart[0], apart[apart.len() - 1]);
    let (least, most) = (together[0], together[together.len() - 1]);
    assert!(least < apart[0], "{least:?} for {:?}", apart[0]);
    let ratio = most.seconds() / apart[0].seconds();
    assert!((1.5..=2.0).contains(&ratio), "{ratio}");
    // Folded, the slowest of all pairs counts.
    let cluster = shardloom_cluster::Cluster::parse("rtx-3090:2x2").expect("a preset");
    let folded = simulate(&graph, &cluster, &program(), Options { steps: 2, folded: true });
    let folded = folded.expect("it runs");
    let fetch = folded.timeline.tracks[0].intervals.iter();
    let fetch = fetch.filter(|it| it.activity == Activity::Receive);
    assert!(fetch.map(|it| it.end.since(it.start)).all(|it| it == most));
}

/// Three on one node, and one by itself on another.
#[test]
fn a_fetch_shares_the_way_in_with_those_on_the_node_of_who_fetches_and_not_on_that_of_whom_from() {
    let (graph, program) = (gpt(2, false), program());
    let bytes = program.sent_bytes(ClassId(0), 0) as f64;
    let devices = &program.classes[0].devices;
    for (text, alone) in [("rtx-3090:1x3+rtx-3090:1x1", 3), ("rtx-3090:1x1+rtx-3090:1x3", 0)] {
        let cluster = Cluster::parse(text).expect("presets");
        let options = Options { steps: 24, folded: false };
        let found = simulate(&graph, &cluster, &program, options).expect("it runs");
        let takes = |to: usize, from: usize, sharing: u32| {
            let path = cluster.link(devices[from], devices[to]).expect("devices");
            Picos::from_seconds(path.expect("two devices").transfer_seconds(bytes, sharing))
        };
        for (rank, track) in found.timeline.tracks.iter().enumerate() {
            let fetches = track.intervals.iter().filter(|it| it.activity == Activity::Receive);
            let took: BTreeSet<Picos> = fetches.map(|it| it.end.since(it.start)).collect();
            let other = (0..4).find(|it| *it != rank && *it != alone).expect("three");
            let expected: BTreeSet<Picos> = match rank == alone {
                true => [takes(alone, other, 1)].into(),
                false => [takes(rank, other, 1), takes(rank, alone, 3)].into(),
            };
            assert_eq!(took, expected, "rank {rank} on {text}");
        }
    }
}

/// Its device does each thing sooner than it launches the next.
#[test]
fn a_host_that_waits_for_messages_launches_nothing_while_it_fetches() {
    let (graph, program) = (gpt(2, false), program());
    let simulated = |waits: bool| {
        let mut stack = Stack::default();
        stack.host.kernel_seconds = 1e-3;
        stack.host.waits_for_messages = waits;
        let cluster = Cluster::parse("rtx-3090:4x1").expect("a preset").under(stack);
        let options = Options { steps: 6, folded: false };
        simulate(&graph, &cluster, &program, options).expect("it runs")
    };
    let [without, with] = [false, true].map(simulated);
    let fetches = with.timeline.tracks[0].intervals.iter();
    let mut fetches = fetches.filter(|it| it.activity == Activity::Receive);
    let fetch = fetches.next().map(|it| it.end.since(it.start)).expect("it fetches");
    let longer = with.step_time().since(without.step_time());
    // And while it waits for what its device does before, which takes less than a launch.
    let most = fetch + Picos::from_seconds(1e-3);
    assert!((fetch..most).contains(&longer), "{longer:?} for {fetch:?}");
}
