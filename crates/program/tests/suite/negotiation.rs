//! Reductions whose order replicas agree on while running.

use std::collections::BTreeSet;

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Negotiation, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, BodyId, ClassId, Content, Cursor, Format, Issued, Next, Outstanding, Point, Program,
    Queue, Rank, Run, lower,
};

fn gpt() -> Graph {
    let spec = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32,tied=true";
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn uniform(pp: usize, mesh: Mesh, schedule: ScheduleKind) -> Uniform {
    let negotiation = Some(Negotiation { cycle_seconds: 1e-3, fusion_bytes: 3000 });
    let sync = Sync { negotiation, algorithm: Algorithm::Ring, ..Sync::default() };
    Uniform {
        pp,
        mesh,
        schedule,
        sync,
        global_batch: 16,
        microbatches: 4,
        clip_norm: Some(1.0),
        ..Uniform::default()
    }
}

fn program(uniform: &Uniform) -> Program {
    let graph = gpt();
    let plan = uniform.plan(&graph, "model", "a100-40g:2x8");
    lower(&graph, &plan, 16).unwrap_or_else(|error| panic!("{error}"))
}

fn programs() -> Vec<Program> {
    use ScheduleKind::{Afab, Interleaved, OneForwardOneBackward, ZeroBubbleH1};
    [
        uniform(1, Mesh::of(2, 1, 1), Afab),
        uniform(1, Mesh::of(4, 1, 2), Afab),
        uniform(1, Mesh::of(2, 2, 1), Afab),
        uniform(2, Mesh::of(2, 1, 2), OneForwardOneBackward),
        uniform(2, Mesh::of(2, 1, 1), Interleaved),
        uniform(2, Mesh::of(2, 1, 1), ZeroBubbleH1),
    ]
    .iter()
    .map(program)
    .collect()
}

#[test]
fn every_parameter_is_a_request_with_room_for_what_is_reduced_as_one() {
    for program in programs() {
        verify(&program).unwrap_or_else(|found| panic!("{found:?}"));
        for (_, class) in program.classes() {
            let requests = class.instructions().filter(|(_, _, it)| it.is_negotiated());
            let of: Vec<BodyId> = requests.clone().map(|(body, ..)| body).collect();
            assert!(!of.is_empty());
            let read: BTreeSet<_> = requests.map(|(_, _, it)| it.reads[0].tensor).collect();
            assert_eq!(read.len(), class.params.len(), "each has a bucket of its own");
            let room = class.lasting().filter(|(_, it)| it.content == Content::Negotiation);
            let (told, fused): (Vec<_>, Vec<_>) =
                room.partition(|(_, tensor)| tensor.format == Format::U32);
            let told: u64 = told.into_iter().map(|(id, _)| class.tensor_bytes(id, 0)).sum();
            assert_eq!(told, 4 * of.len() as u64);
            // What is split along context parallelism has fewer replicas: few requests of their own.
            let fused = fused.into_iter().map(|(id, _)| class.tensor_bytes(id, 0));
            assert_eq!(fused.max(), Some(3000));
        }
    }
}

/// What a queue in order would imply: that who waits for a later request of it has waited for the earlier ones.
#[test]
fn an_update_that_waits_for_another_request_than_its_own_is_found() {
    let plain = uniform(1, Mesh::of(2, 1, 1), ScheduleKind::Afab);
    let whole = program(&Uniform { clip_norm: None, ..plain });
    let class = &whole.classes[0];
    let numbers = 0..class.communicators.len() as u16;
    let requests = numbers.map(|it| class.requests(it)).find(|it| !it.is_empty());
    let requests = requests.expect("there are requests");
    let point = |(body, index): (BodyId, usize)| Point::Latest(body, index as u32);
    let (last, earlier) = requests.split_last().expect("there are some");
    let mut tried = 0;
    for (body, index, update) in class.instructions() {
        let own = earlier.iter().map(|&it| point(it)).find(|it| update.after.contains(it));
        let Some(own) = own.filter(|_| update.action == Action::Optimizer) else { continue };
        tried += 1;
        let mut broken = whole.clone();
        let after = &mut broken.classes[0].bodies[body.0 as usize].instructions[index].after;
        after.retain(|it| *it != own);
        after.push(point(*last));
        let found = verify(&broken).expect_err("it may come too early");
        assert!(found.iter().any(|it| matches!(it, Violation::Race { .. })), "{found:?}");
    }
    assert_eq!(tried, earlier.len(), "each update waits for its own request");
}

#[test]
fn requests_that_are_none_are_found() {
    let whole = program(&uniform(1, Mesh::of(2, 1, 1), ScheduleKind::Afab));
    let class = &whole.classes[0];
    let (body, index, request) =
        class.instructions().find(|(_, _, it)| it.is_negotiated()).expect("a request");
    let Queue::Negotiated(number) = request.queue else { unreachable!("it is one") };
    let change = |change: &dyn Fn(&mut Program)| {
        let mut broken = whole.clone();
        change(&mut broken);
        verify(&broken).expect_err("it is broken")
    };
    let instruction = |program: &mut Program,
                       change: &dyn Fn(&mut shardloom_program::Instruction)| {
        change(&mut program.classes[0].bodies[body.0 as usize].instructions[index]);
    };
    let all = [
        change(&|it| it.negotiation = None),
        change(&|it| instruction(it, &|it| it.writes.truncate(1))),
        change(&|it| instruction(it, &|it| it.queue = Queue::Communicator(number))),
        change(&|it| instruction(it, &|it| it.writes.swap(1, 2))),
    ];
    for found in all {
        let is_operands = |it: &Violation| matches!(it, Violation::Operands { .. });
        assert!(found.iter().any(is_operands), "{found:?}");
    }
}

/// A rank of the explorer.
struct Explored<'p> {
    class: ClassId,
    position: usize,
    cursor: Cursor<'p>,
    at: Option<(Run, usize)>,
    outstanding: Outstanding,
    /// What it has requested and was not answered.
    open: Vec<Issued>,
    /// What was answered.
    ended: Vec<Issued>,
    done: bool,
}

/// Runs ranks in an order that is drawn, with answers at times and in orders that are drawn; whether all come
/// through.
fn explore(program: &Program, seed: u64) -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |end: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % end
    };
    let mut ranks: Vec<Explored<'_>> = (0..program.ranks() as u32)
        .map(|rank| {
            let (class, position) = program.locate(Rank(rank));
            let own = program.class(class);
            let cursor = program.cursor(own, 2);
            let outstanding = Outstanding::new(program, own);
            let (at, done) = (None, false);
            Explored { class, position, cursor, at, outstanding, open: vec![], ended: vec![], done }
        })
        .collect();
    let mut sent = std::collections::BTreeMap::<_, usize>::new();
    loop {
        // Either an answer, if there can be one, or a rank goes on as far as it likes.
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        (1..order.len()).rev().for_each(|last| order.swap(last, below(last + 1)));
        let mut moved = false;
        for rank in order {
            for _ in 0..=below(6) {
                if !advance(program, &mut ranks, rank, &mut sent) {
                    break;
                }
                moved = true;
            }
            if below(3) == 0 {
                moved |= answer(program, &mut ranks, rank, &mut below);
            }
        }
        if !moved {
            let any = (0..ranks.len()).any(|rank| answer(program, &mut ranks, rank, &mut below));
            if !any {
                return ranks.iter().all(|rank| rank.done);
            }
        }
    }
}

/// Answers one of a rank's requests, drawn of those that all members have made.
fn answer(
    program: &Program,
    ranks: &mut [Explored<'_>],
    rank: usize,
    below: &mut impl FnMut(usize) -> usize,
) -> bool {
    let own = &ranks[rank];
    let class = program.class(own.class);
    let members = |issued: &Issued| {
        let Action::Collective { group, .. } =
            &class.body(issued.body).instructions[issued.index as usize].action
        else {
            unreachable!("a request is a collective")
        };
        program.members(own.class, own.position, group)
    };
    let ready: Vec<Issued> = own
        .open
        .iter()
        .copied()
        .filter(|it| members(it).iter().all(|member| ranks[member.0 as usize].open.contains(it)))
        .collect();
    if ready.is_empty() {
        return false;
    }
    let chosen = ready[below(ready.len())];
    for member in members(&chosen) {
        let member = &mut ranks[member.0 as usize];
        member.open.retain(|it| *it != chosen);
        member.ended.push(chosen);
    }
    true
}

/// Has a rank go on by an instruction, if it does not wait.
fn advance(
    program: &Program,
    ranks: &mut [Explored<'_>],
    rank: usize,
    sent: &mut std::collections::BTreeMap<(u32, usize, Option<u32>), usize>,
) -> bool {
    let Some((run, index)) = current(program, &mut ranks[rank]) else { return false };
    let own = &ranks[rank];
    let (id, position) = (own.class, own.position);
    let class = program.class(id);
    let body = run.entry.body;
    let instruction = &class.body(body).instructions[index];
    let issued = Issued { body, index: index as u32, microbatch: run.microbatch };
    // What is waited for has ended: requests were answered, other collectives are waited for by all.
    let ending = own.outstanding.ending_before(class, issued);
    let own = &mut ranks[rank];
    for _ in 0..ending {
        let mut rest = own.outstanding.clone();
        let first = rest.end_first().expect("there are as many");
        if own.open.contains(&first) {
            return false;
        }
        own.outstanding.end_first();
    }
    match &instruction.action {
        Action::Collective { .. } if instruction.is_negotiated() => {
            own.outstanding.start(class, issued);
            own.open.push(issued);
        }
        Action::Collective { group, .. } => {
            // All members are to stand at it; they leave together.
            let members = program.members(id, position, group);
            for member in &members {
                let Some((other_run, other)) = current(program, &mut ranks[member.0 as usize])
                else {
                    return false;
                };
                let theirs = &ranks[member.0 as usize];
                let other =
                    &program.class(theirs.class).body(other_run.entry.body).instructions[other];
                let Action::Collective { group, .. } = &other.action else { return false };
                let same = program.members(theirs.class, theirs.position, group) == members;
                let waits = {
                    let class = program.class(theirs.class);
                    let (run, index) = theirs.at.expect("it stands somewhere");
                    let issued = Issued {
                        body: run.entry.body,
                        index: index as u32,
                        microbatch: run.microbatch,
                    };
                    let ending = theirs.outstanding.ending_before(class, issued);
                    let mut rest = theirs.outstanding.clone();
                    (0..ending)
                        .any(|_| rest.end_first().is_some_and(|it| theirs.open.contains(&it)))
                };
                if !same || other.is_negotiated() || waits {
                    return false;
                }
            }
            for member in members.iter().filter(|it| it.0 as usize != rank) {
                step(&mut ranks[member.0 as usize]);
            }
        }
        Action::Send { route } => {
            let route_of = program.route(*route);
            for message in route_of.sent_by(position) {
                let key = (route.0, message.to, route_of.microbatch(run.microbatch));
                *sent.entry(key).or_default() += 1;
            }
        }
        Action::Receive { route } => {
            let route_of = program.route(*route);
            let wanted = route_of.received_by(position).count();
            let key = (route.0, position, route_of.microbatch(run.microbatch));
            let there = sent.entry(key).or_default();
            if *there < wanted {
                return false;
            }
            *there -= wanted;
        }
        _ => {}
    }
    step(&mut ranks[rank]);
    true
}

fn step(rank: &mut Explored<'_>) {
    if let Some((_, index)) = &mut rank.at {
        *index += 1;
    }
}

/// Where a rank stands.
fn current(program: &Program, rank: &mut Explored<'_>) -> Option<(Run, usize)> {
    let class = program.class(rank.class);
    loop {
        if let Some((run, index)) = rank.at
            && index < class.body(run.entry.body).instructions.len()
        {
            return Some((run, index));
        }
        rank.at = match rank.cursor.advance() {
            None => {
                rank.done = true;
                return None;
            }
            Some(Next::Run(run)) => Some((run, 0)),
            Some(Next::Guard(..) | Next::Choice) => {
                unreachable!("there are none in these programs")
            }
        };
    }
}

#[test]
fn ranks_come_through_whatever_is_answered_first_and_when() {
    for (number, program) in programs().iter().enumerate() {
        for seed in 0..40 {
            assert!(explore(program, seed), "program {number}, seed {seed}");
        }
    }
}
