//! The plan of messages against executions in other orders.

use proptest::prelude::*;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Communication, DeviceList, Mesh, Pipeline, Plan, ScheduleKind, Stage, StageReplicas, Uniform,
    pipelines_in_turn,
};

use super::*;
use crate::lower;

fn graph() -> Graph {
    let spec = "gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32";
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn plan(schedule: ScheduleKind, pp: usize, microbatches: usize) -> Plan {
    let uniform = Uniform {
        pp,
        global_batch: 2 * microbatches,
        microbatches,
        schedule,
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

fn lowered(plan: &Plan) -> Program {
    lower(&graph(), plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two stages on one and on two devices.
fn unlike_meshes(schedule: ScheduleKind, microbatches: usize) -> Plan {
    let mut plan = plan(schedule, 2, microbatches);
    let stage = |blocks, tp, devices: &[u32]| Stage {
        blocks,
        mesh: Mesh::of(1, 1, tp),
        devices: DeviceList(devices.to_vec()),
        recompute: None,
        layout: None,
    };
    let stages = vec![stage((0, 4), 1, &[0]), stage((4, 8), 2, &[1, 2])];
    plan.pipeline = vec![Pipeline::of(stages)];
    plan
}

/// PipeDream in two stages whose replicas take micro-batches in turn.
fn in_turn(replicas: [u32; 2], rounds: usize) -> Plan {
    let mut devices = 0u32..;
    let mut stage = |blocks, count: u32| StageReplicas {
        blocks,
        mesh: Mesh::SINGLE,
        replicas: devices.by_ref().take(count as usize).map(|it| DeviceList(vec![it])).collect(),
    };
    let stages = [stage((0, 4), replicas[0]), stage((4, 8), replicas[1])];
    let pipeline = pipelines_in_turn(&stages).unwrap_or_else(|error| panic!("{error}"));
    let plan = plan(ScheduleKind::PipeDream, 2, rounds * pipeline.len());
    Plan { pipeline, ..plan }
}

/// A rank with its events.
struct Follower {
    class: ClassId,
    position: usize,
    events: Vec<Event>,
    next: usize,
}

/// The most under way on each channel when ranks go on in the order in which `choose` picks one of those
/// that can, of a program whose ranks only send, receive and meet within their replica.
fn executed(
    program: &Program,
    steps: u32,
    mut choose: impl FnMut(&[usize]) -> usize,
) -> BTreeMap<(RouteId, usize), u32> {
    let follower = |rank: u32| {
        let (class, position) = program.locate(Rank(rank));
        let events = events(program, program.class(class), steps, true);
        Follower { class, position, events, next: 0 }
    };
    let mut ranks: Vec<Follower> = (0..program.ranks() as u32).map(follower).collect();
    let mut transfers: BTreeSet<(RouteId, usize, u32)> = BTreeSet::new();
    let mut most: BTreeMap<(RouteId, usize), u32> = BTreeMap::new();
    let ends = |route, rank: usize, end: fn((Rank, Rank)) -> Rank| {
        let transfers = program
            .transfers(route)
            .filter(move |&(_, from, to)| end((from, to)).0 as usize == rank);
        transfers.map(|(message, _, _)| message)
    };
    let group = |it: &Follower, axes: &[Axis]| -> Vec<usize> {
        let members = program.members(it.class, it.position, &Group::Mesh(axes.to_vec()));
        members.into_iter().map(|rank| rank.0 as usize).collect()
    };
    loop {
        let can = |&rank: &usize| match ranks[rank].events.get(ranks[rank].next) {
            Some(Event::Send(..)) => true,
            Some(&Event::Receive(route, microbatch)) => {
                ends(route, rank, |it| it.1).all(|it| transfers.contains(&(route, it, microbatch)))
            }
            Some(Event::Arrive(_)) => true,
            Some(Event::Leave(axes, arrival)) => {
                let members = group(&ranks[rank], axes);
                members.iter().all(|&other| ranks[other].next > *arrival as usize)
            }
            None => false,
        };
        let able: Vec<usize> = (0..ranks.len()).filter(can).collect();
        if able.is_empty() {
            assert!(transfers.is_empty());
            assert!(ranks.iter().all(|it| it.next == it.events.len()));
            return most;
        }
        let rank = choose(&able);
        match ranks[rank].events[ranks[rank].next].clone() {
            Event::Send(route, microbatch) => {
                for message in ends(route, rank, |it| it.0) {
                    transfers.insert((route, message, microbatch));
                    let under_way = transfers.iter().filter(|it| (it.0, it.1) == (route, message));
                    let under_way = under_way.count() as u32;
                    let most = most.entry((route, message)).or_default();
                    *most = under_way.max(*most);
                }
                ranks[rank].next += 1;
            }
            Event::Receive(route, microbatch) => {
                let received = ends(route, rank, |it| it.1);
                received.for_each(|it| _ = transfers.remove(&(route, it, microbatch)));
                ranks[rank].next += 1;
            }
            Event::Arrive(_) | Event::Leave(..) => ranks[rank].next += 1,
        }
    }
}

#[test]
fn gpipe_and_1f1b_need_what_their_orders_let_pile_up() {
    for (stages, microbatches) in [(2, 6), (4, 6), (4, 3)] {
        for (schedule, ahead) in
            [(ScheduleKind::Afab, microbatches), (ScheduleKind::OneForwardOneBackward, stages)]
        {
            let program = lowered(&plan(schedule, stages, microbatches));
            let planned = MessagePlan::new(&program);
            for (id, route) in (0u32..).map(RouteId).zip(&program.routes) {
                let sender = route.from.0 as usize;
                let most = planned.most_under_way(id, 0).expect("gradients come back");
                if matches!(route.carried, crate::Carried::Value(_)) {
                    // A stage has as many in flight before it waits for a gradient.
                    let in_flight = if schedule == ScheduleKind::Afab {
                        ahead
                    } else {
                        (ahead - sender).min(microbatches)
                    };
                    assert_eq!(most as usize, in_flight, "{schedule:?} {stages} from {sender}");
                }
            }
        }
    }
}

#[test]
fn some_execution_has_as_many_under_way_as_there_are_buffers() {
    for schedule in [
        ScheduleKind::Afab,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::PipeDream,
    ] {
        let program = lowered(&plan(schedule, 3, 5));
        let planned = MessagePlan::new(&program);
        for (id, route) in (0u32..).map(RouteId).zip(&program.routes) {
            // The receiver of this route goes on only when nobody else can.
            let (receiver, steps) = (route.to.0 as usize, program.ahead + 2);
            let found = executed(&program, steps, |able| {
                able.iter().copied().find(|&rank| rank != receiver).unwrap_or(receiver)
            });
            assert_eq!(planned.most_under_way(id, 0), found.get(&(id, 0)).copied(), "{schedule:?}");
        }
    }
}

#[test]
fn collectives_hold_senders_back_between_stages_of_unlike_meshes() {
    let program = lowered(&unlike_meshes(ScheduleKind::OneForwardOneBackward, 4));
    let most = MessagePlan::new(&program).most;
    // A gradient comes back from one of the two ranks that a message goes to.
    assert!(most.iter().flatten().all(|most| most.is_some_and(|most| most <= 4)), "{most:?}");
    let events = Events::new(&program, false);
    let alone = webs(&program, false).iter().flat_map(|web| events.most_under_way(web)).collect();
    let alone: Vec<Option<u32>> = alone;
    assert!(alone.iter().any(Option::is_none), "{alone:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_execution_has_more_under_way_than_there_are_buffers(
        kind in 0usize..11,
        pp in 2usize..4,
        microbatches in 1usize..5,
        steps in 1u32..4,
        has_thread: bool,
        choices in prop::collection::vec(any::<u16>(), 64),
    ) {
        let mut plan = match kind {
            0 => plan(ScheduleKind::Afab, pp, microbatches),
            1 => plan(ScheduleKind::OneForwardOneBackward, pp, microbatches),
            2 => plan(ScheduleKind::ZeroBubbleH1, pp, microbatches),
            3 => plan(ScheduleKind::ZeroBubbleH2, pp, microbatches),
            4 => plan(ScheduleKind::PipeDream, pp, microbatches),
            5 => plan(ScheduleKind::PipeMare, pp, microbatches),
            6 => unlike_meshes(ScheduleKind::OneForwardOneBackward, microbatches),
            7 => unlike_meshes(ScheduleKind::PipeDream, microbatches),
            8 => in_turn([pp as u32, 1], microbatches),
            9 => in_turn([1, pp as u32], microbatches),
            _ => in_turn([2, 3], microbatches),
        };
        if has_thread {
            plan.communication = Communication::Thread;
        }
        let program = lowered(&plan);
        let planned = MessagePlan::new(&program);
        let mut at = 0;
        let found = executed(&program, steps, |able| {
            at += 1;
            // Runs of one rank, so that some get far ahead.
            able[choices[at / 5 % choices.len()] as usize % able.len()]
        });
        for ((route, message), found) in found {
            let most = planned.most_under_way(route, message).expect("gradients come back");
            prop_assert!(found <= most, "{found} of {most} on {route:?}");
        }
    }
}
