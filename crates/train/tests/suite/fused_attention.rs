//! Fused attention trains as unfused does, in 32 bits to the bit, and keeps no probabilities.

use crate::support::{Samples, gpt, graph, llama, losses, mesh, serial, trainer};
use shardloom_graph::{AttentionKind, Graph};
use shardloom_plan::{Plan, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::{ProgramError, Rank, lower};
use shardloom_train::Trainer;

const STEPS: usize = 4;

fn trained(graph: &Graph, uniform: &Uniform) -> (Trainer, Vec<f64>) {
    let plan = uniform.plan(graph, "model", "local");
    let seq = graph.dim_named("seq").map_or(0, |dim| graph.dim(dim).size);
    let mut trainer = trainer(graph, &plan, Samples::patterned(64, seq, 64), 3e-3);
    let losses = losses(&mut trainer, STEPS);
    (trainer, losses)
}

/// One device, and splits of samples, positions and heads, of weights and of layers.
pub(crate) fn splits() -> Vec<Uniform> {
    let split = |(dp, cp, tp), sequence_parallel, zero| Uniform {
        mesh: mesh(dp, cp, tp),
        sequence_parallel,
        sync: Sync { zero, ..Sync::default() },
        microbatches: 2,
        ..serial()
    };
    let mut all = vec![
        serial(),
        split((2, 1, 1), false, 3),
        split((1, 2, 1), false, 0),
        split((1, 1, 2), false, 0),
        split((1, 2, 2), true, 1),
    ];
    for recompute in [Recompute::Full, Recompute::Stage] {
        let schedule = ScheduleKind::ZeroBubbleH1;
        all.push(Uniform { pp: 2, schedule, recompute, ..split((1, 1, 1), false, 0) });
    }
    all
}

#[test]
fn losses_and_weights_are_those_of_unfused_attention_to_the_bit() {
    for graph in [gpt(), llama()] {
        let fused = graph.with_fused_attention();
        for uniform in splits() {
            let (mut expected, expected_losses) = trained(&graph, &uniform);
            let (mut found, found_losses) = trained(&fused, &uniform);
            assert_eq!(found_losses, expected_losses, "{} with {uniform:?}", graph.name());
            let digest = |trainer: &mut Trainer| trainer.weights_digest().expect("weights");
            assert_eq!(digest(&mut found), digest(&mut expected), "{uniform:?}");
            let evaluated = |trainer: &mut Trainer| trainer.evaluate(8).expect("a loss");
            assert_eq!(evaluated(&mut found), evaluated(&mut expected), "{uniform:?}");
        }
    }
}

/// Probabilities are not stored in 16 bits, and rounded to them only where they are multiplied so.
#[test]
fn in_16_bits_losses_are_those_of_unfused_attention_but_for_rounding() {
    let graph = gpt();
    let mixed = Uniform { precision: Precision::MIXED, ..serial() };
    let (_, expected) = trained(&graph, &mixed);
    let (_, found) = trained(&graph.with_fused_attention(), &mixed);
    let (_, exact) = trained(&graph, &serial());
    let error = |losses: &[f64]| -> f64 {
        losses.iter().zip(&exact).map(|(loss, exact)| (loss - exact).abs()).sum()
    };
    assert_ne!(found, expected);
    assert!(found.iter().zip(&expected).all(|(it, other)| (it - other).abs() < other / 1024.0));
    assert!(error(&found) < 2.0 * error(&expected), "{found:?}, {expected:?} and {exact:?}");
}

/// What each rank's allocator has counted at most, which is what the program says.
fn peaks(graph: &Graph, uniform: &Uniform) -> Vec<u64> {
    let (trainer, _) = trained(graph, uniform);
    let program = trainer.program();
    let peaks = trainer.peak_bytes_per_rank();
    for (&counted, rank) in peaks.iter().zip(0..) {
        let (class, position) = program.locate(Rank(rank));
        let planned = program.class(class).memory_use(program, position).peak_bytes;
        assert_eq!(counted, planned, "rank {rank} with {uniform:?}");
    }
    peaks.to_vec()
}

#[test]
fn memory_is_counted_to_the_byte_and_has_no_probabilities() {
    for graph in [gpt(), llama()] {
        let mixed = Uniform { precision: Precision::MIXED, ..serial() };
        for uniform in splits().into_iter().chain([mixed]) {
            peaks(&graph.with_fused_attention(), &uniform);
        }
    }
    // Of 2 layers with 4 heads and 8 samples, the probabilities and their mask.
    let seq = 128;
    let text = format!("gpt:layers=2,hidden=16,heads=4,seq={seq},vocab=64,dropout=0.1");
    let graph = graph(&text);
    let kept = 2 * 8 * 4 * (seq * seq) as u64 * (4 + 1);
    let unfused = peaks(&graph, &serial())[0];
    let fused = peaks(&graph.with_fused_attention(), &serial())[0];
    // Their gradients in one layer go too.
    let gradients = kept / 10 * 4;
    assert!(unfused - fused >= kept, "{unfused} less {fused} is not {kept}");
    assert!(unfused - fused <= kept + gradients, "{unfused} less {fused} is over {kept}");
}

#[test]
fn a_graph_that_computes_attention_otherwise_than_its_plan_says_is_refused() {
    let graph = gpt();
    let plan = serial().plan(&graph, "model", "local");
    let fused = Plan { attention: AttentionKind::Fused, ..plan.clone() };
    for (graph, plan) in [(&graph, &fused), (&graph.with_fused_attention(), &plan)] {
        let error = lower(graph, plan, 1).expect_err("they differ");
        assert!(matches!(error, ProgramError::Schedule(_)), "{error}");
        assert!(error.to_string().contains("attention"), "{error}");
        lower(&plan.graph_of(&gpt()), plan, 1).expect("the graph is the plan's");
    }
    let mlp = crate::support::graph("mlp:inputs=8,hidden=12,layers=4,classes=4");
    let plan = Plan { attention: AttentionKind::Fused, ..serial().plan(&mlp, "model", "local") };
    let error = lower(&mlp, &plan, 1).expect_err("it has no attention");
    assert!(error.to_string().contains("no attention to fuse"), "{error}");
}
