//! The cursor over a class's control against plain loops over steps, entries and arms.

use proptest::prelude::*;
use shardloom_graph::ModelSpec;
use shardloom_plan::{Staleness, Uniform};
use shardloom_program::{
    BodyId, Class, ClassId, Client, Control, Entry, Group, Guard, Handler, Next, Program, Run,
    Serve, TensorId, View, When, lower,
};

/// A program to put controls into.
fn program() -> Program {
    let spec = ModelSpec::parse("mlp:inputs=2,hidden=2,layers=2,classes=2");
    let graph = spec.and_then(|spec| spec.graph()).expect("a model");
    let uniform = Uniform { global_batch: 3, microbatches: 3, ..Uniform::default() };
    lower(&graph, &uniform.plan(&graph, "mlp", "local"), 1).expect("it fits")
}

fn entry() -> impl Strategy<Value = Entry> {
    let microbatch = prop::option::of(0u32..3);
    // What belongs to no micro-batch may be late, and passes may run ahead.
    (0u32..4, microbatch, 0i32..3).prop_map(|(body, microbatch, by)| {
        let shift = if microbatch.is_some() { by } else { -(by % 2) };
        Entry { shift, ..Entry::new(BodyId(body), microbatch) }
    })
}

fn guard() -> impl Strategy<Value = Guard> {
    let arm = || prop::collection::vec(entry(), 0..4);
    (-1i32..=0, arm(), arm()).prop_map(|(shift, then, otherwise)| Guard {
        on: View::whole(TensorId(0)),
        agreed: Group::World,
        shift,
        then,
        otherwise,
    })
}

fn control() -> impl Strategy<Value = Vec<Control>> {
    let part = prop_oneof![
        3 => entry().prop_map(Control::Run),
        1 => guard().prop_map(Control::Guard),
    ];
    prop::collection::vec(part, 0..8)
}

/// What a rank comes to: an entry, or a guard in a step.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Run(Run),
    Guard(Guard, i64),
}

/// Whether the flag of the n-th guard that is asked for holds.
fn outcome(outcomes: &[bool], number: usize) -> bool {
    outcomes[number % outcomes.len()]
}

fn followed(program: &Program, class: &Class, steps: u32, outcomes: &[bool]) -> Vec<Seen> {
    let mut cursor = program.cursor(class, steps);
    let mut seen = vec![];
    let mut asked = 0;
    while let Some(next) = cursor.advance() {
        seen.push(match next {
            Next::Run(run) => Seen::Run(run),
            Next::Choice => unreachable!("nobody serves here"),
            Next::Guard(guard, step) => {
                cursor.take(outcome(outcomes, asked));
                asked += 1;
                Seen::Guard(guard.clone(), step)
            }
        });
    }
    seen
}

/// All steps far before and after the row, of which what belongs to none of the row's is left out.
fn expected(control: &[Control], steps: u32, outcomes: &[bool]) -> Vec<Seen> {
    let steps = i64::from(steps);
    let is_within = |step: i64, shift: i32| (0..steps).contains(&(step + i64::from(shift)));
    let mut seen = vec![];
    let mut asked = 0;
    for step in -10..steps + 10 {
        let mut number = 0;
        let run = |entry: &Entry, number, arm| {
            let of = step + i64::from(entry.shift);
            let microbatch = entry.microbatch.map(|it| of * 3 + i64::from(it));
            let microbatch = microbatch.map(|it| it as u32);
            let run = Run { entry: *entry, number, arm, step, microbatch };
            is_within(step, entry.shift).then_some(Seen::Run(run))
        };
        for part in control {
            match part {
                Control::Run(entry) => {
                    seen.extend(run(entry, number, None));
                    number += 1;
                }
                Control::Guard(guard) => {
                    if is_within(step, guard.shift) {
                        seen.push(Seen::Guard(guard.clone(), step));
                        let holds = outcome(outcomes, asked);
                        asked += 1;
                        let arm = if holds { &guard.then } else { &guard.otherwise };
                        let first = number + if holds { 0 } else { guard.then.len() };
                        for (at, entry) in arm.iter().enumerate() {
                            seen.extend(run(entry, first + at, Some(holds)));
                        }
                    }
                    number += guard.then.len() + guard.otherwise.len();
                }
                Control::Serve(_) | Control::AsReceived(_) => unreachable!("nobody serves here"),
            }
        }
    }
    seen
}

/// A server of up to three clients, each with up to three handlers, one of which ends its step.
fn serve() -> impl Strategy<Value = Serve> {
    let when = prop_oneof![
        Just(When::Sent),
        Just(When::InTurn),
        (0u32..3).prop_map(|by| When::Within(Staleness::Within(by))),
        Just(When::Within(Staleness::Unbounded)),
    ];
    let handlers = prop::collection::vec((0u32..3, when), 1..4);
    let client = (handlers, any::<prop::sample::Index>()).prop_map(|(handlers, ends)| {
        let ends = ends.index(handlers.len());
        let handler = |(at, (body, when))| Handler {
            when,
            run: Entry::new(BodyId(body), None),
            publishes: at == ends,
        };
        let handlers = handlers.into_iter().enumerate().map(handler).collect();
        Client { class: ClassId(0), handlers }
    });
    prop::collection::vec(client, 1..4).prop_map(|clients| Serve { clients })
}

/// Whom a server has answered in a row of steps, from which all else is counted anew each time.
struct Answered<'a> {
    serve: &'a Serve,
    steps: usize,
    answers: Vec<usize>,
}

impl Answered<'_> {
    fn handlers(&self, client: usize) -> &[Handler] {
        &self.serve.clients[client].handlers
    }

    /// How many handlers have been run for a client.
    fn done(&self, client: usize) -> usize {
        self.answers.iter().filter(|&&it| it == client).count()
    }

    /// How many steps of a client have been ended.
    fn ended(&self, client: usize) -> usize {
        let run = self.handlers(client).iter().cycle().take(self.done(client));
        run.filter(|handler| handler.publishes).count()
    }

    /// The handler that is next for a client, by its step and its number in it.
    fn next(&self, client: usize) -> Option<(usize, usize)> {
        let count = self.handlers(client).len();
        let mut all = (0..self.steps).flat_map(|step| (0..count).map(move |at| (step, at)));
        all.nth(self.done(client))
    }

    fn is_over(&self) -> bool {
        (0..self.serve.clients.len()).all(|client| self.next(client).is_none())
    }

    fn open(&self) -> Vec<usize> {
        let clients = 0..self.serve.clients.len();
        let may = |&client: &usize| {
            let Some((_, at)) = self.next(client) else { return false };
            let own = self.ended(client);
            match self.handlers(client)[at].when {
                When::Sent => true,
                When::InTurn => (0..client).all(|other| self.ended(other) > own),
                // Nothing is left under way at the end.
                When::Within(_) if own == self.steps => {
                    clients.clone().all(|other| self.ended(other) == own)
                }
                When::Within(Staleness::Unbounded) => true,
                When::Within(Staleness::Within(by)) => {
                    !clients.clone().any(|other| self.ended(other) + (by as usize) < own)
                }
            }
        };
        clients.clone().filter(may).collect()
    }

    /// The open client that is furthest behind, the first of several.
    fn behind(&self) -> usize {
        let open = self.open();
        let mut behind = open[0];
        for &client in &open {
            if self.next(client) < self.next(behind) {
                behind = client;
            }
        }
        behind
    }

    /// What is run for a client: one entry comes before those of the first client.
    fn run(&self, client: usize) -> Run {
        let (step, at) = self.next(client).expect("something is left to do for it");
        let before: usize = (0..client).map(|other| self.handlers(other).len()).sum();
        let entry = self.handlers(client)[at].run;
        Run { entry, number: 1 + before + at, arm: None, step: step as i64, microbatch: None }
    }
}

proptest! {
    #[test]
    fn a_cursor_comes_to_what_plain_loops_come_to(
        control in control(),
        steps in 1u32..5,
        outcomes in prop::collection::vec(any::<bool>(), 1..6),
    ) {
        let mut program = program();
        program.classes[0].control = control.clone();
        let class = &program.classes[0];
        let found = followed(&program, class, steps, &outcomes);
        prop_assert_eq!(&found, &expected(&control, steps, &outcomes));
        for seen in &found {
            if let Seen::Run(run) = seen {
                prop_assert_eq!(class.entries().nth(run.number), Some(&run.entry));
            }
        }
    }

    #[test]
    fn a_server_may_answer_whom_the_words_of_its_handlers_let_it_answer_and_counts_their_steps(
        serve in serve(),
        steps in 1u32..4,
        choices in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let mut program = program();
        let before = Control::Run(Entry::new(BodyId(1), None));
        program.classes[0].control = vec![before, Control::Serve(serve.clone())];
        let mut cursor = program.cursor(&program.classes[0], steps);
        let first = cursor.advance();
        prop_assert!(matches!(first, Some(Next::Run(_))), "{:?}", first);
        let mut answered = Answered { serve: &serve, steps: steps as usize, answers: vec![] };
        for choice in choices {
            if !answered.is_over() {
                prop_assert_eq!(cursor.advance(), Some(Next::Choice));
            }
            let open: Vec<usize> = cursor.open().map(|(client, _)| client).collect();
            prop_assert_eq!(&open, &answered.open());
            if open.is_empty() {
                break;
            }
            let least = (0..serve.clients.len()).map(|it| answered.ended(it)).min();
            prop_assert_eq!(cursor.served_steps(), least.map(|it| it as i64));
            let in_turn = cursor.clone().choose_in_turn();
            prop_assert_eq!(in_turn, answered.run(answered.behind()));
            let client = open[choice.index(open.len())];
            prop_assert_eq!(cursor.choose(client), answered.run(client));
            answered.answers.push(client);
        }
        if answered.is_over() {
            prop_assert_eq!(cursor.advance(), None);
        }
    }

    #[test]
    fn rows_of_one_outcome_and_of_both_arms_are_those_of_a_cursor_that_is_asked(
        control in control(),
        steps in 1u32..4,
    ) {
        let mut program = program();
        program.classes[0].control = control;
        let class = &program.classes[0];
        let runs = |seen: Vec<Seen>| -> Vec<Run> {
            let run = |seen| match seen {
                Seen::Run(run) => Some(run),
                Seen::Guard(..) => None,
            };
            seen.into_iter().filter_map(run).collect()
        };
        let one_arm = [true, false].map(|holds| runs(followed(&program, class, steps, &[holds])));
        for (holds, expected) in [true, false].into_iter().zip(&one_arm) {
            let found: Vec<Run> = program.cursor(class, steps).runs(holds).collect();
            prop_assert_eq!(&found, expected);
        }
        // Both arms: what either row has, in the order of steps and entries.
        let mut either = one_arm.concat();
        either.sort_by_key(|run| (run.step, run.number));
        either.dedup();
        let both: Vec<Run> = program.cursor(class, steps).runs_of_both_arms().collect();
        prop_assert_eq!(both, either);
    }
}
