//! Requests in modelled time: cycles, answers and what is reduced as one, by definition.

use std::collections::BTreeSet;

use crate::noted::Noted;
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Negotiation, Plan, Sync, Uniform};
use shardloom_program::timeline::{Activity, Clock, Interval, Picos};
use shardloom_program::{ClassId, Program, lower};
use shardloom_sim::{Call, CostModel, Driver, Modelled, Options, SimError, run, simulate};

fn gpt() -> Graph {
    let spec = "gpt:layers=3,hidden=64,heads=4,seq=32,vocab=64,tied=true";
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn plan(graph: &Graph, dp: u32, negotiation: Option<Negotiation>) -> Plan {
    let sync = Sync { negotiation, algorithm: Algorithm::Ring, ..Sync::default() };
    let mesh = Mesh::of(dp, 1, 1);
    let clip_norm = None;
    let uniform = Uniform { mesh, sync, global_batch: 16, clip_norm, ..Uniform::default() };
    uniform.plan(graph, "model", "a100-40g:2x8")
}

fn cluster(text: &str) -> Cluster {
    Cluster::parse(text).expect("a preset")
}

const LATENCY: u64 = 70;

/// Times that look as if they had been drawn, other ones on every rank, and what was asked.
#[derive(Default)]
struct Drawn {
    state: u64,
    /// Of each request, by rank, where it stands and when it was made.
    made: Vec<Vec<((u32, usize), u64)>>,
    /// The lists: when each of their requests was made by all, and what they are.
    lists: Vec<Vec<(u32, usize)>>,
    cycles: u64,
    /// What a list takes besides what its requests do.
    each: u64,
}

impl Driver for Drawn {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        // By what is computed, and not by the order in which it is asked.
        let mixed = (u64::from(call.actor.rank.0) + 1) * 7919
            + (call.run.entry.body.0 as u64 + 1) * 104_729
            + call.index as u64 * 1_299_709
            + self.state;
        Ok(Picos(1 + mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 900))
    }

    fn send(&mut self, _: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        durations.push(Picos(5));
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos(100))
    }

    fn request(&mut self, call: &Call<'_>) -> Result<(), SimError> {
        let rank = call.actor.rank.0 as usize;
        self.made.resize_with(self.made.len().max(rank + 1), Vec::new);
        self.made[rank].push(((call.run.entry.body.0, call.index), call.start.0));
        Ok(())
    }

    fn negotiate(&mut self, _: &[Call<'_>], cycles: u64) -> Result<Picos, SimError> {
        self.cycles += cycles;
        Ok(Picos(LATENCY))
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, SimError> {
        let place = |it: &Vec<Call<'_>>| (it[0].run.entry.body.0, it[0].index);
        self.lists.push(requests.iter().map(place).collect());
        Ok(Picos(self.each + 100 * requests.len() as u64))
    }
}

/// What should have been carried out, and in how many cycles: cycle after cycle, each looking at who has made what.
fn expected(
    program: &Program,
    made: &[Vec<((u32, usize), u64)>],
    each: u64,
) -> (Vec<Vec<(u32, usize)>>, u64) {
    let negotiation = program.negotiation.expect("it negotiates");
    let cycle = Picos::from_seconds(negotiation.cycle_seconds).0;
    let class = &program.classes[0];
    let bytes = |(body, index): (u32, usize)| {
        let instruction = &class.bodies[body as usize].instructions[index];
        let exchange = program.exchange(class, 0, instruction).expect("a collective");
        exchange.elements * exchange.element_bytes
    };
    let mut open: Vec<Vec<((u32, usize), u64)>> = made.to_vec();
    let (mut lists, mut cycles, mut next) = (vec![], 0, 0);
    while !open[0].is_empty() {
        let first = |rank: &Vec<((u32, usize), u64)>| rank.iter().map(|it| it.1).min();
        let begin = open.iter().filter_map(first).max().expect("all have some").max(next);
        cycles += 1;
        let has = |rank: &Vec<((u32, usize), u64)>, place| {
            rank.iter().any(|&(known, made)| known == place && made <= begin)
        };
        let ready: Vec<(u32, usize)> = open[0].iter().map(|it| it.0).collect();
        let ready = ready.into_iter().filter(|&place| open.iter().all(|rank| has(rank, place)));
        let mut now: Vec<Vec<(u32, usize)>> = vec![];
        for place in ready {
            let held = |list: &Vec<(u32, usize)>| list.iter().map(|&it| bytes(it)).sum::<usize>();
            match now.last_mut() {
                Some(list) if held(list) + bytes(place) <= negotiation.fusion_bytes => {
                    list.push(place);
                }
                _ => now.push(vec![place]),
            }
        }
        let took: u64 = now.iter().map(|list| each + 100 * list.len() as u64).sum();
        next = match now.is_empty() {
            true => begin + cycle.max(LATENCY),
            false => (begin + cycle).max(begin + LATENCY + took),
        };
        for rank in &mut open {
            rank.retain(|(place, _)| !now.iter().flatten().any(|it| it == place));
        }
        lists.extend(now);
    }
    (lists, cycles)
}

#[test]
fn cycles_answer_what_all_have_made_by_then_and_lists_are_what_fits() {
    let graph = gpt();
    let cluster = cluster("a100-40g:2x8");
    let mut most = 0;
    // With the last what comes while a list is carried out waits for its end.
    for (dp, cycle_seconds, fusion_bytes, each) in [
        (2, 0.0, 0, 40),
        (2, 1e-9, 40_000, 40),
        (4, 3e-10, 40_000, 40),
        (4, 2e-9, 1 << 27, 40),
        (8, 5e-9, 70_000, 40),
        (4, 3e-10, 1 << 27, 20_000),
    ] {
        let negotiation = Some(Negotiation { cycle_seconds, fusion_bytes });
        let program = lower(&graph, &plan(&graph, dp, negotiation), 16).expect("a program");
        for seed in 0..5 {
            let options = Options { steps: 1, folded: false };
            let once = |seed| {
                let mut driver = Drawn { state: seed, each, ..Drawn::default() };
                let simulation = run(&program, &cluster, options, &mut driver).expect("it ends");
                (driver, simulation.timeline)
            };
            let (driver, timeline) = once(seed);
            let (lists, cycles) = expected(&program, &driver.made, each);
            assert_eq!(driver.lists, lists, "{dp} replicas, cycles of {cycle_seconds} s");
            assert_eq!(driver.cycles, cycles);
            // Once a cycle, members tell each other about all of their requests.
            let class = ClassId(0);
            for track in &timeline.tracks {
                let position = track.rank as usize;
                let reduced = program.sent_bytes(class, position);
                let told = cycles * program.told_bytes(class, position, 0);
                assert!(told > 0);
                assert_eq!(track.sent_bytes, reduced + told, "rank {position}");
            }
            let told = (0..dp as usize).map(|position| program.told_bytes(class, position, 0));
            assert_eq!(program.class_told_bytes(class, 0), told.sum::<u64>());
            assert_eq!(timeline, once(seed).1, "it comes to the same again");
            most = most.max(lists.iter().map(Vec::len).max().expect("lists"));
        }
    }
    assert!(most > 3, "some are reduced as one");
}

/// Which part of the time of a list each of its requests is shown for: as much of it as it has of the elements, one
/// after the other, on every rank alike.
#[test]
fn requests_that_go_as_one_are_shown_one_after_the_other_by_their_elements() {
    let graph = gpt();
    let cluster = cluster("a100-40g:2x8");
    let negotiation = Some(Negotiation { cycle_seconds: 5e-9, fusion_bytes: 1 << 27 });
    let program = lower(&graph, &plan(&graph, 4, negotiation), 16).expect("a program");
    let class = &program.classes[0];
    let elements = |(body, index): (u32, usize)| {
        let instruction = &class.bodies[body as usize].instructions[index];
        program.exchange(class, 0, instruction).expect("a collective").elements as u64
    };
    let mut driver = Drawn { each: 5_000, ..Drawn::default() };
    let options = Options { steps: 1, folded: false };
    let found = run(&program, &cluster, options, &mut driver).expect("it ends");
    assert!(driver.lists.iter().any(|list| list.len() > 3), "some are reduced as one");
    for track in &found.timeline.tracks {
        let shown = track.intervals.iter().filter(|it| it.activity == Activity::Collective);
        let mut shown: Vec<&Interval> = shown.collect();
        shown.sort_by_key(|it| (it.start, it.end));
        let mut shown = shown.into_iter();
        for list in &driver.lists {
            let took = driver.each + 100 * list.len() as u64;
            let all: u64 = list.iter().map(|&it| elements(it)).sum();
            let mut before = 0;
            let mut begin = None;
            for &request in list {
                let interval = shown.next().expect("each request is shown");
                let begin = *begin.get_or_insert(interval.start);
                let at = |elements: u64| begin + Picos(took * elements / all);
                let own = before + elements(request);
                assert_eq!((interval.start, interval.end), (at(before), at(own)), "{list:?}");
                before = own;
            }
        }
        assert_eq!(shown.next(), None, "{}", track.place);
    }
}

fn step_seconds(negotiation: Option<Negotiation>, dp: u32, place: &str) -> f64 {
    let graph = gpt();
    let cluster = cluster(place);
    let program = lower(&graph, &plan(&graph, dp, negotiation), 16).expect("a program");
    let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it ends");
    simulation.step_time().seconds()
}

/// The first replica hears all others and answers them, so that it sends otherwise than they do.
#[test]
fn replicas_of_which_one_is_simulated_send_what_all_of_them_do() {
    let graph = gpt();
    let cluster = cluster("a100-40g:2x8");
    let negotiation = Some(Negotiation { cycle_seconds: 1e-5, fusion_bytes: 40_000 });
    for dp in [2, 4, 8] {
        let program = lower(&graph, &plan(&graph, dp, negotiation), 16).expect("a program");
        let [folded, unfolded] = [true, false].map(|folded| {
            let options = Options { steps: 2, folded };
            simulate(&graph, &cluster, &program, options).expect("it ends").timeline.tracks
        });
        let sent: Vec<u64> = unfolded.iter().map(|track| track.sent_bytes).collect();
        assert!(dp == 2 || sent[0] != sent[1], "{sent:?}");
        assert_eq!(folded[0].sent_bytes_by_all(), sent.iter().sum::<u64>(), "{dp} replicas");
    }
}

/// All tell the first member which requests they have made, and it answers all.
#[test]
fn a_cycle_takes_what_a_reduction_to_the_first_member_and_a_broadcast_from_it_take() {
    let graph = gpt();
    let cluster = cluster("a100-40g:2x8");
    let negotiation = Some(Negotiation { cycle_seconds: 1e-5, fusion_bytes: 40_000 });
    for dp in [2, 4, 16] {
        let program = lower(&graph, &plan(&graph, dp, negotiation), 16).expect("a program");
        let class = &program.classes[0];
        let costs = CostModel::new(&graph, &cluster, &program);
        let told = program.told(class, 0).map(|it| {
            let seconds = costs.collective_seconds(&it, &class.devices, 1).expect("a cost");
            assert!(seconds > 0.0);
            seconds
        });
        for folded in [true, false] {
            let modelled = Modelled::new(&graph, &cluster, &program).expect("costs");
            let mut driver = Noted::new(modelled);
            let options = Options { steps: 1, folded };
            run(&program, &cluster, options, &mut driver).expect("it ends");
            assert!(!driver.cycles.is_empty());
            for took in driver.cycles {
                let off = took.seconds() - told[0] - told[1];
                assert!(off.abs() < 1e-11, "{took:?} for {told:?} of {dp} replicas");
            }
        }
    }
}

#[test]
fn long_cycles_and_small_buffers_make_a_step_longer() {
    let of = |cycle_seconds, fusion_bytes| {
        step_seconds(Some(Negotiation { cycle_seconds, fusion_bytes }), 16, "a100-40g:2x8")
    };
    let usual = of(1e-5, 1 << 27);
    assert!(usual < of(1e-5, 0), "one by one");
    // The first gradient is answered by itself; all others after a second at the earliest.
    let long = of(1.0, 1 << 27);
    assert!(long > 1.0 && long < 1.0 + usual, "{long} beside {usual}");
}

#[test]
fn folded_and_unfolded_replicas_take_the_same_time() {
    let graph = gpt();
    let cluster = cluster("a100-40g:2x8");
    for fusion_bytes in [0, 40_000] {
        let negotiation = Some(Negotiation { cycle_seconds: 1e-5, fusion_bytes });
        let program = lower(&graph, &plan(&graph, 16, negotiation), 16).expect("a program");
        let times = [true, false].map(|folded| {
            let options = Options { folded, ..Options::default() };
            simulate(&graph, &cluster, &program, options).expect("it ends").step_time()
        });
        assert_eq!(times[0], times[1]);
    }
}

/// Of three replicas of two ranks: those of one rank are on one node, and those of the other on two.
#[test]
fn groups_of_which_one_is_simulated_tell_each_other_as_slowly_as_the_slowest_of_them() {
    let graph = gpt();
    let negotiation = Some(Negotiation { cycle_seconds: 1e-5, fusion_bytes: 40_000 });
    let sync = Sync { negotiation, algorithm: Algorithm::Ring, ..Sync::default() };
    let mesh = Mesh::of(3, 1, 2);
    let clip_norm = None;
    let uniform = Uniform { mesh, sync, global_batch: 12, clip_norm, ..Uniform::default() };
    let plan = uniform.plan(&graph, "model", "cluster");
    let program = lower(&graph, &plan, 6).expect("a program");
    for place in ["a100-40g:1x1+a100-40g:1x5", "a100-40g:1x5+a100-40g:1x1"] {
        let cluster = cluster(place);
        let told = |folded: bool| -> BTreeSet<Picos> {
            let modelled = Modelled::new(&graph, &cluster, &program).expect("costs");
            let mut driver = Noted::new(modelled);
            run(&program, &cluster, Options { steps: 1, folded }, &mut driver).expect("it ends");
            driver.cycles.into_iter().collect()
        };
        let of_each = told(false);
        assert_eq!(of_each.len(), 2, "{of_each:?}");
        assert_eq!(told(true), of_each.last().copied().into_iter().collect(), "{place}");
    }
}
