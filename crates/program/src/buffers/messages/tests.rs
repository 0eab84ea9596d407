//! The plan of messages against executions in other orders.

use proptest::prelude::*;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    DeviceList, Mesh, Optimizer, Pipeline, Plan, Precision, Recompute, ScheduleKind, Stage, Sync,
    Uniform,
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
        mesh: Mesh::SINGLE,
        sequence_parallel: false,
        global_batch: 2 * microbatches,
        microbatches,
        schedule,
        recompute: Recompute::None,
        sync: Sync::default(),
        precision: Precision::FP32,
        optimizer: Optimizer::default(),
        clip_norm: None,
    };
    uniform.plan(&graph(), "model", "local")
}

fn lowered(plan: &Plan) -> Program {
    lower(&graph(), plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// The most under way on each channel when ranks go on in the order in which `choose` picks one of those
/// that can, of a program whose ranks only send and receive.
fn executed(
    program: &Program,
    steps: u32,
    mut choose: impl FnMut(&[usize]) -> usize,
) -> BTreeMap<(RouteId, usize), u32> {
    let rows: Vec<Vec<Event>> =
        program.classes.iter().map(|class| events(program, class, steps, false)).collect();
    let mut next = vec![0; rows.len()];
    let mut letters: BTreeMap<(RouteId, u32), ()> = BTreeMap::new();
    let mut most: BTreeMap<(RouteId, usize), u32> = BTreeMap::new();
    loop {
        let can = |&rank: &usize| match rows[rank].get(next[rank]) {
            Some(&Event::Send(..)) => true,
            Some(&Event::Receive(route, microbatch)) => letters.contains_key(&(route, microbatch)),
            _ => false,
        };
        let able: Vec<usize> = (0..rows.len()).filter(can).collect();
        if able.is_empty() {
            assert!(letters.is_empty());
            return most;
        }
        let rank = choose(&able);
        match rows[rank][next[rank]] {
            Event::Send(route, microbatch) => {
                letters.insert((route, microbatch), ());
                let under_way = letters.keys().filter(|it| it.0 == route).count() as u32;
                let most = most.entry((route, 0)).or_default();
                *most = under_way.max(*most);
            }
            Event::Receive(route, microbatch) => {
                letters.remove(&(route, microbatch));
            }
            Event::Meet(_) => unreachable!("collectives are left out"),
        }
        next[rank] += 1;
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
                if matches!(route.cargo, crate::Cargo::Value(_)) {
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
    let mut plan = plan(ScheduleKind::OneForwardOneBackward, 2, 4);
    let stage = |blocks, tp, devices: &[u32]| Stage {
        blocks,
        mesh: Mesh { dp: 1, cp: 1, tp },
        devices: DeviceList(devices.to_vec()),
    };
    let stages = vec![stage((0, 4), 1, &[0]), stage((4, 8), 2, &[1, 2])];
    plan.pipeline = vec![Pipeline { stage: stages }];
    let program = lowered(&plan);
    let most = MessagePlan::new(&program).most;
    // A gradient comes back from one of the two ranks that a message goes to.
    assert!(most.iter().flatten().all(|most| most.is_some_and(|most| most <= 4)), "{most:?}");
    let events = Events::new(&program, false);
    let alone = webs(&program, false).iter().flat_map(|web| events.most_under_way(web)).collect();
    let alone: Vec<Option<u32>> = alone;
    assert!(alone.iter().any(Option::is_none), "{alone:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_execution_has_more_under_way_than_there_are_buffers(
        kind in 0usize..6,
        pp in 2usize..4,
        microbatches in 1usize..5,
        steps in 1u32..4,
        choices in prop::collection::vec(any::<u16>(), 64),
    ) {
        let schedule = [
            ScheduleKind::Afab,
            ScheduleKind::OneForwardOneBackward,
            ScheduleKind::ZeroBubbleH1,
            ScheduleKind::ZeroBubbleH2,
            ScheduleKind::PipeDream,
            ScheduleKind::PipeMare,
        ][kind];
        let program = lowered(&plan(schedule, pp, microbatches));
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
