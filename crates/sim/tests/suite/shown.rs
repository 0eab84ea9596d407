//! What the messages of a timeline say of themselves: the micro-batch, and the chunk of the model that they are of.

use crate::scenario::fixed::Fixed;
use crate::scenario::{gpt, h100, uniform};
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind, Uniform};
use shardloom_program::timeline::{Activity, Lane};
use shardloom_program::{Action, Carried, Class, Program, Route, RouteId, lower};
use shardloom_sim::{Options, run};

/// Which stages a route goes from and to: a value goes to the next stage, its gradient back.
fn stages(graph: &Graph, plan: &Plan, route: &Route) -> [usize; 2] {
    let (Carried::Value(value) | Carried::Gradient(value)) = route.carried else {
        panic!("{:?} goes between stages", route.carried)
    };
    let producer = graph.value(value).producer.expect("an operator makes it");
    let block = graph.op(producer).block.index();
    let made = plan.pipeline[0].stage.iter().position(|it| block < it.blocks.1);
    let made = made.expect("a stage has its block");
    match route.carried {
        Carried::Value(_) => [made, made + 1],
        _ => [made + 1, made],
    }
}

/// Which of the stages of a device whose pipelines run the same way it is, if there are several.
fn chunk(class: &Class, stage: usize) -> Option<u32> {
    let held = class.stages.iter().find(|it| usize::from(it.instance.stage) == stage);
    let reverse = held.expect("the class holds it").reverse;
    let alike = class.stages.iter().filter(|it| it.reverse == reverse);
    let alike: Vec<usize> = alike.map(|it| usize::from(it.instance.stage)).collect();
    let place = alike.iter().position(|&it| it == stage);
    place.filter(|_| alike.len() > 1).map(|place| place as u32)
}

/// The micro-batches of a step with which a class runs an instruction.
fn microbatches(class: &Class, is: impl Fn(&Action) -> bool) -> Vec<u32> {
    let runs = class.entries().filter(|entry| {
        let body = class.body_of(entry);
        body.instructions.iter().any(|it| is(&it.action))
    });
    runs.filter_map(|entry| entry.microbatch).collect()
}

/// What each rank sends and receives in so many steps: which way, of which micro-batch and chunk.
type Shown = Vec<(u32, RouteId, bool, Option<u32>, Option<u32>)>;

fn expected(graph: &Graph, plan: &Plan, program: &Program, steps: u32) -> Shown {
    let mut all = vec![];
    for (id, route) in (0..).map(RouteId).zip(&program.routes) {
        let [from, to] = stages(graph, plan, route);
        for (class, stage, sends) in [(route.from, from, true), (route.to, to, false)] {
            let class = program.class(class);
            let is = |action: &Action| match *action {
                Action::Send { route } => sends && route == id,
                Action::Receive { route } => !sends && route == id,
                _ => false,
            };
            for step in 0..steps {
                for microbatch in microbatches(class, is) {
                    let microbatch = step * program.microbatches as u32 + microbatch;
                    let chunk = chunk(class, stage);
                    all.push((class.first_rank.0, id, sends, Some(microbatch), chunk));
                }
            }
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn a_message_is_shown_at_both_ends_with_its_micro_batch_and_the_chunk_that_it_leaves_or_comes_to() {
    let graph = gpt(10, false);
    for (schedule, pp, chunks, several) in [
        (ScheduleKind::OneForwardOneBackward, 3, 1, false),
        (ScheduleKind::Interleaved, 2, 3, true),
        (ScheduleKind::Interleaved, 4, 2, true),
        (ScheduleKind::ZeroBubbleV, 3, 2, true),
        (ScheduleKind::Hanayo, 2, 4, true),
        (ScheduleKind::DualPipeV, 3, 2, true),
        (ScheduleKind::Chimera, 4, 2, false),
        (ScheduleKind::DualPipe, 2, 2, false),
    ] {
        let uniform = Uniform { schedule, clip_norm: None, ..uniform(pp, 1, 1, 2 * pp) };
        let plan = uniform.plan_in_chunks(&graph, "gpt", "cluster", chunks).expect("a plan");
        let program = lower(&graph, &plan, pp).expect("a program");
        let mut driver = Fixed { message: 1, ..Fixed::passes(&program, 2, 3) };
        let options = Options { steps: 2, folded: false };
        let found = run(&program, &h100(pp), options, &mut driver).expect("it runs");
        let tracks = &found.timeline.tracks;
        let shown = tracks.iter().flat_map(|track| {
            track.messages.iter().map(|it| {
                let sends = it.interval.activity == Activity::Send;
                (track.rank, it.route, sends, it.interval.microbatch, it.interval.chunk)
            })
        });
        let mut shown: Shown = shown.collect();
        shown.sort_unstable();
        assert!(shown.len() >= 8 * pp && shown.iter().all(|it| it.4.is_some() == several));
        assert_eq!(shown, expected(&graph, &plan, &program, 2), "{schedule:?}, {pp} x {chunks}");
        // The lanes show the same messages, as each takes some time.
        for track in tracks {
            let lanes = track.intervals.iter().filter(|it| it.lane == Lane::CommunicationOut);
            let sent = track.messages.iter().filter(|it| it.interval.activity == Activity::Send);
            assert!(lanes.eq(sent.map(|it| &it.interval)), "{schedule:?}, {}", track.place);
        }
    }
}
