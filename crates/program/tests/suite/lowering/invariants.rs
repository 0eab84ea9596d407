//! What must hold of every program.

use shardloom_graph::op::Activation;
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{Action, Allocation, BodyKind, Content, Mode, Program, Window};
use std::collections::BTreeSet;

use super::model::{body, gpt, graph, llama, mesh, program, single};

/// Checks what must hold of every program, by following each class from an empty pipeline to an empty
/// one: tensors are written before they are read and freed after, exactly once; every operator goes
/// forward once per micro-batch, and every parameter's gradient is written; and messages tile what they
/// bring.
pub fn check_invariants(program: &Program) {
    assert_eq!(verify(program), Ok(()));
    let steps = 1 + program.ahead;
    let (mut forwards, mut ops) = (BTreeSet::new(), BTreeSet::new());
    for class in &program.classes {
        let mut live: BTreeSet<Allocation> = BTreeSet::new();
        let mut written = BTreeSet::new();
        for run in program.cursor(class, steps).runs(true) {
            let microbatch = run.microbatch;
            for instruction in &class.body_of(&run.entry).instructions {
                if let Action::Kernel { op, pass: Pass::Forward, again: false, .. } =
                    instruction.action
                {
                    assert!(forwards.insert((op, microbatch)), "{op:?} goes forward twice");
                    ops.insert(op);
                }
                let kernel = matches!(instruction.action, Action::Kernel { .. });
                let passing = |tensor| class.allocation(tensor, microbatch);
                let name = |it| class.allocation_text(it);
                for read in &instruction.reads {
                    if let Some(it) = passing(read.tensor) {
                        assert!(live.contains(&it), "{} is read unwritten", name(it));
                    }
                    let content = class.tensor(read.tensor).content;
                    assert!(!kernel || content != Content::Gradient, "no pass reads a gradient");
                }
                for write in &instruction.writes {
                    let tensor = class.tensor(write.to.tensor);
                    if kernel {
                        assert!(!instruction.reads.contains(&write.to), "{instruction:?}");
                        assert_ne!(tensor.content, Content::Weight, "no pass writes weights");
                    }
                    if let Some(it) = passing(write.to.tensor) {
                        let fresh = live.insert(it) || instruction.is_in_place();
                        match write.mode {
                            Mode::Set => assert!(fresh, "{} is overwritten", name(it)),
                            Mode::Add => assert!(!fresh, "{} is unwritten", name(it)),
                            Mode::AddUnlessFirst => {}
                        }
                    }
                    if let Window::Param(param) = write.to.window {
                        assert_eq!(write.mode, Mode::AddUnlessFirst);
                        written.insert(param);
                    }
                }
                for &tensor in &instruction.frees {
                    let it = passing(tensor).expect("only what passes is freed");
                    assert!(live.remove(&it), "{} is freed twice", name(it));
                }
            }
        }
        assert_eq!(live, BTreeSet::new(), "steps leave nothing behind");
        assert_eq!(written.len(), class.params.len(), "every parameter has a gradient");
        let mut evaluated = BTreeSet::new();
        let bodies = class.evaluation.iter().map(|&body| class.body(body));
        for instruction in bodies.flat_map(|body| &body.instructions) {
            evaluated.extend(instruction.writes.iter().map(|write| write.to.tensor));
            for tensor in &instruction.frees {
                assert!(evaluated.remove(tensor));
            }
        }
        assert_eq!(evaluated, BTreeSet::new(), "an evaluation leaves nothing behind");
    }
    assert_eq!(forwards.len(), ops.len() * program.microbatches * steps as usize);
    for route in &program.routes {
        let receivers = program.class(route.to).mesh.size();
        for receiver in 0..receivers {
            let parts: Vec<_> = route.received_by(receiver).map(|it| &it.target).collect();
            let elements: usize = parts.iter().map(|part| part.elements()).sum();
            let whole: usize = (0..parts[0].start.len())
                .map(|axis| parts.iter().map(|part| part.range(axis).end).max().unwrap_or(0))
                .product();
            assert_eq!(elements, whole, "the parts cover the whole");
            for (index, part) in parts.iter().enumerate() {
                let others = &parts[..index];
                assert!(others.iter().all(|other| part.intersection(other).is_none()));
            }
        }
    }
}

#[test]
fn every_program_reads_what_is_written_frees_what_it_writes_and_reduces_every_gradient() {
    for graph in [gpt(true), gpt(false), llama()] {
        for pp in [1, 2, 3] {
            for mesh in [mesh(1, 1, 1), mesh(2, 1, 1), mesh(1, 1, 4), mesh(2, 2, 2)] {
                for zero in 0..4 {
                    for recompute in Recompute::ALL {
                        let uniform = Uniform {
                            pp,
                            mesh,
                            sequence_parallel: mesh.tp() > 1 && zero % 2 == 0,
                            global_batch: 8,
                            microbatches: 4,
                            recompute,
                            schedule: ScheduleKind::PLAIN[pp % 2],
                            sync: Sync { zero, ..Sync::default() },
                            ..single()
                        };
                        check_invariants(&program(&graph, &uniform));
                    }
                }
            }
        }
    }
}

#[test]
fn the_program_of_every_schedule_reads_what_is_written_and_frees_what_it_writes() {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    let kinds: Vec<ScheduleKind> = kinds.collect();
    let skips = graph("u-transformer:layers=4,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    for graph in [gpt(true), gpt(false), llama(), skips] {
        for &schedule in &kinds {
            for mesh in [mesh(1, 1, 1), mesh(2, 1, 1), mesh(2, 2, 2)] {
                for zero in 0..if mesh.dp() > 1 { 4 } else { 1 } {
                    for recompute in Recompute::ALL {
                        let uniform = Uniform {
                            pp: 2,
                            mesh,
                            sequence_parallel: mesh.tp() > 1 && zero % 2 == 0,
                            global_batch: 8,
                            microbatches: 4,
                            recompute,
                            schedule,
                            sync: Sync { zero, ..Sync::default() },
                            ..single()
                        };
                        check_invariants(&program(&graph, &uniform));
                    }
                }
            }
        }
    }
}

/// A value twice in one sum, and twice in two sums one after the other, in one block or in two.
fn added_twice(apart: bool) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("twice");
    let (model, vocab) = (net.dim("model", 8)?, net.dim("vocab", 16)?);
    let normal = Init::Normal { std: 0.1 };
    net.block("first");
    let x = net.features("features", &[model])?;
    let targets = net.targets("targets", &[])?;
    let w = net.parameter("first", &[model, vocab], 1, normal)?;
    let x = net.contract("contracted", x, w, None)?;
    if apart {
        net.block("second");
    }
    let twice = net.add("twice", x, x)?;
    let thrice = net.add("thrice", twice, x)?;
    let loss = net.cross_entropy("loss", thrice, targets)?;
    net.finish(loss)
}

/// A value whose gradient comes from a sum, of which both terms have it, and from two operators before that.
fn passed_on_and_added_to() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("passed on");
    let (model, vocab) = (net.dim("model", 8)?, net.dim("vocab", 16)?);
    let normal = Init::Normal { std: 0.1 };
    net.block("only");
    let x = net.features("features", &[model])?;
    let targets = net.targets("targets", &[])?;
    let w = net.parameter("first", &[model, vocab], 1, normal)?;
    let x = net.contract("contracted", x, w, None)?;
    let [one, other] =
        [net.pointwise("one", x, Activation::Relu)?, net.pointwise("other", x, Activation::Relu)?];
    let both = net.add("both", one, other)?;
    let all = net.add("all", both, x)?;
    let loss = net.cross_entropy("loss", all, targets)?;
    net.finish(loss)
}

/// What others have too is not added to in place; a copy of it is.
#[test]
fn a_gradient_that_others_have_too_is_copied_once_however_much_is_added() {
    let graph = passed_on_and_added_to().expect("a valid model");
    let program = program(&graph, &single());
    check_invariants(&program);
    let backward = body(&program.classes[0], BodyKind::Backward);
    let copies = backward.iter().filter(|it| it.action == Action::Copy).count();
    assert_eq!(copies, 1);
}

#[test]
fn what_a_value_passes_on_twice_is_added_up_apart() {
    for apart in [false, true] {
        let graph = added_twice(apart).expect("a valid model");
        for recompute in Recompute::ALL {
            let uniform = Uniform { pp: 1 + usize::from(apart), recompute, ..single() };
            check_invariants(&program(&graph, &uniform));
        }
    }
}
