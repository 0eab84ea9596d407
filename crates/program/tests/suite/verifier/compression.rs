//! Programs that compress gradients are sound, and rejected where one instruction of it is left out, done twice or
//! between others.

use shardloom_plan::{Axis, Mesh, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{
    Action, Body, Content, Group, Instruction, Program, Tensor, TensorId, lower,
};

use super::programs::gpt;

const ALL: [&str; 5] = ["fp16", "bf16-feedback", "one-bit", "top-k:10", "power-sgd:1"];

fn program(how: &str) -> Program {
    let graph = gpt(false);
    let compression = how.parse().expect("a compression");
    let sync = Sync { compression, bucket_bytes: 2_000, ..Sync::default() };
    let mesh = Mesh::of(2, 1, 2);
    let plan = Uniform { mesh, global_batch: 8, microbatches: 2, sync, ..Uniform::default() };
    lower(&graph, &plan.plan(&graph, "model", "local"), 4).expect("a program")
}

/// Where the instructions of the first class are that have to do with compression, by body and number.
fn places(program: &Program) -> Vec<(usize, usize)> {
    let class = &program.classes[0];
    let is_of_it = |it: &Instruction| match &it.action {
        Action::Compress { .. } | Action::Decompress { .. } => true,
        Action::Collective { .. } => {
            let content = class.tensor(it.reads[0].tensor).content;
            matches!(content, Content::Compressed | Content::OfRank(_))
        }
        _ => false,
    };
    let of_body = |(body, spec): (usize, &Body)| {
        let all = spec.instructions.iter().enumerate();
        all.filter(|(_, it)| is_of_it(it)).map(|(index, _)| (body, index)).collect::<Vec<_>>()
    };
    class.bodies.iter().enumerate().flat_map(of_body).collect()
}

fn changed(
    program: &Program,
    (body, index): (usize, usize),
    change: impl FnOnce(&mut Vec<Instruction>, usize),
) -> Program {
    let mut program = program.clone();
    change(&mut program.classes[0].bodies[body].instructions, index);
    program.assign_queues();
    program
}

#[test]
fn compressed_gradients_are_sound() {
    for how in ALL {
        assert!(verify(&program(how)).is_ok(), "{how}");
    }
}

/// One of each so many elements, and one of those that are left: of the smallest bucket one is sent, too, or its
/// gradients would never be summed.
#[test]
fn the_largest_of_each_so_many_are_sent_and_of_what_is_left_one() {
    for of in [1, 7, 10, 100_000] {
        let program = program(&format!("top-k:{of}"));
        let class = &program.classes[0];
        for (id, bucket) in class.buckets() {
            let compressed = class
                .tensors()
                .filter(|(_, it)| it.bucket == Some(id) && it.content == Content::Compressed);
            let sizes: Vec<usize> = compressed.map(|(it, _)| class.elements(it, 0)).collect();
            let [own, all] = sizes[..] else { panic!("{sizes:?} of {}", bucket.elements) };
            // Each with its place.
            let sent = own / 2;
            assert_eq!((own % 2, all), (0, 2 * own), "of two replicas");
            let (enough, fewer) = (sent * of, sent.saturating_sub(1) * of);
            assert!(
                sent > 0 && fewer < bucket.elements && bucket.elements <= enough,
                "{sent} of {} elements, one of {of}",
                bucket.elements
            );
        }
    }
}

#[test]
fn what_is_left_out_or_done_twice_is_found() {
    for how in ALL {
        let program = program(how);
        let places = places(&program);
        let least = if how == "one-bit" || how == "power-sgd:1" { 5 } else { 3 };
        assert!(places.len() >= least, "{how} has {} instructions", places.len());
        for place in places {
            let without = changed(&program, place, |all, at| {
                all.remove(at);
            });
            let text =
                || format!("{how}: {:?}", program.classes[0].bodies[place.0].instructions[place.1]);
            assert!(verify(&without).is_err(), "without {}", text());
            let twice = changed(&program, place, |all, at| all.insert(at, all[at].clone()));
            assert!(verify(&twice).is_err(), "twice {}", text());
        }
    }
}

#[test]
fn an_exchange_between_others_than_replicas_is_found() {
    for how in ALL {
        let program = program(how);
        for place in places(&program) {
            let mut is_collective = false;
            let other = changed(&program, place, |all, at| {
                if let Action::Collective { group, .. } = &mut all[at].action {
                    is_collective = true;
                    *group = Group::Mesh(vec![Axis::TP]);
                }
            });
            assert_eq!(verify(&other).is_err(), is_collective, "{how} at {place:?}");
        }
    }
}

#[test]
fn a_residual_of_another_size_or_bucket_is_found() {
    for how in &ALL[1..] {
        let program = program(how);
        let (body, index) = places(&program)[0];
        let of_bucket = |it: &Instruction| it.reads.get(1).map(|it| it.tensor);
        let own =
            of_bucket(&program.classes[0].bodies[body].instructions[index]).expect("a residual");
        let mut tensors = program.classes[0].tensors();
        let is_other =
            |(id, it): &(TensorId, &Tensor)| it.content == Content::OfRank(0) && *id != own;
        let (other, _) = tensors.find(is_other).expect("another bucket's residual");
        let wrong = changed(&program, (body, index), |all, at| all[at].reads[1].tensor = other);
        assert!(verify(&wrong).is_err(), "{how}");
    }
}
