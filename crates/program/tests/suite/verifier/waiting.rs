//! Ranks come through exactly where counting messages one by one lets them through.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_collectives::Algorithm;
use shardloom_graph::Reduction;
use shardloom_program::verify::{Row, Violation, run_blocking};
use shardloom_program::{
    Action, Body, BodyId, BodyKind, Carried, ClassId, Collective, Content, Control, Copies, Entry,
    Format, Group, Instruction, Keep, Message, Part, Placement, Program, Route, RouteId, Shape,
    Tensor, TensorId, View,
};

use super::programs::pipeline;

/// What one of two ranks does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Send(usize),
    Receive(usize),
    /// A collective of both.
    Meet,
}

/// The ranks at the ends of each route.
const ROUTES: [(usize, usize); 3] = [(0, 1), (1, 0), (1, 0)];

/// A row has two steps where nothing runs ahead.
const STEPS: usize = 2;

/// What both ranks do in a step: messages and meetings, each of which both take part in, in any order, and now and
/// then one event less.
fn events() -> impl Strategy<Value = [Vec<Event>; 2]> {
    let messages = prop::collection::vec(0..ROUTES.len(), 0..5);
    (messages, 0usize..2).prop_flat_map(|(messages, meetings)| {
        let of_rank = |rank: usize| {
            let event = |&route: &usize| match ROUTES[route].0 == rank {
                true => Event::Send(route),
                false => Event::Receive(route),
            };
            let meet = std::iter::repeat_n(Event::Meet, meetings);
            let all: Vec<Event> = messages.iter().map(event).chain(meet).collect();
            let loses = prop::bool::weighted(0.1);
            (Just(all).prop_shuffle(), loses).prop_map(|(mut all, loses)| {
                if loses {
                    all.pop();
                }
                all
            })
        };
        [of_rank(0), of_rank(1)]
    })
}

/// Two ranks that do this, each thing in an entry of its own.
fn program(events: &[Vec<Event>; 2]) -> Program {
    static PIPELINE: LazyLock<Program> = LazyLock::new(pipeline);
    let mut program = PIPELINE.clone();
    let number = || Placement { start: vec![], extent: vec![] };
    program.routes = ROUTES
        .iter()
        .map(|&(from, to)| Route {
            carried: Carried::Norm,
            from: ClassId(from as u32),
            to: ClassId(to as u32),
            format: Format::F64,
            messages: [Message { from: 0, to: 0, source: number(), target: number() }].into(),
            priority: None,
        })
        .collect();
    for (class, events) in program.classes.iter_mut().zip(events) {
        let view = View::whole(TensorId(class.tensors.len() as u32));
        class.tensors.push(Tensor {
            name: "a number".into(),
            shape: Shape::Local(vec![]),
            format: Format::F64,
            keep: Keep::Resident,
            copies: Copies::One,
            content: Content::Norm,
            bucket: None,
        });
        let instruction = |event: &Event| match *event {
            Event::Send(route) => {
                Instruction::new(Action::Send { route: RouteId(route as u32) }, [view], [])
            }
            Event::Receive(route) => {
                Instruction::new(Action::Receive { route: RouteId(route as u32) }, [], [view])
            }
            Event::Meet => {
                let kind = Collective::AllReduce(Reduction::Sum);
                let (group, algorithm) = (Group::World, Algorithm::Direct);
                Instruction::new(Action::Collective { kind, group, algorithm }, [view], [view])
            }
        };
        let body = |event: &Event| {
            let (kind, part) = (BodyKind::Epilogue, Part::default());
            Body { kind, part, instructions: vec![instruction(event)] }
        };
        class.bodies = events.iter().map(body).collect();
        let entry = |body: usize| Control::Run(Entry::new(BodyId(body as u32), None));
        class.control = (0..events.len()).map(entry).collect();
        class.evaluation.clear();
    }
    program
}

/// What becomes of the ranks where each goes on as soon as it may.
#[derive(Debug, PartialEq)]
enum Outcome {
    Through,
    /// Something is not sent as often as it is received.
    Unequal,
    Waiting,
}

fn outcome(events: &[Vec<Event>; 2]) -> Outcome {
    let times = |rank: usize, event: Event| events[rank].iter().filter(|&&it| it == event).count();
    let is_unequal = |(route, &(from, to)): (usize, &(usize, usize))| {
        times(from, Event::Send(route)) != times(to, Event::Receive(route))
    };
    if ROUTES.iter().enumerate().any(is_unequal) {
        return Outcome::Unequal;
    }
    let all = events.each_ref().map(|it| it.repeat(STEPS));
    let (mut next, mut there) = ([0, 0], [0; ROUTES.len()]);
    loop {
        let before = next;
        for rank in 0..2 {
            match all[rank].get(next[rank]) {
                Some(&Event::Send(route)) => there[route] += 1,
                Some(&Event::Receive(route)) if there[route] > 0 => there[route] -= 1,
                _ => continue,
            }
            next[rank] += 1;
        }
        if [0, 1].into_iter().all(|rank| all[rank].get(next[rank]) == Some(&Event::Meet)) {
            next = next.map(|it| it + 1);
        }
        if next == before {
            let is_through = (0..2).all(|rank| next[rank] == all[rank].len());
            return if is_through { Outcome::Through } else { Outcome::Waiting };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(8),
        ..ProptestConfig::default()
    })]

    #[test]
    fn ranks_come_through_where_every_message_that_they_wait_for_has_been_sent(events in events()) {
        let found = match run_blocking(&program(&events), Row::Usual) {
            Ok(()) => Outcome::Through,
            Err(Violation::Messages { .. }) => Outcome::Unequal,
            Err(Violation::Deadlock { .. }) => Outcome::Waiting,
            Err(other) => panic!("{other}"),
        };
        prop_assert_eq!(found, outcome(&events));
    }
}
