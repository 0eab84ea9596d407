//! Recomputation changes what is held and what is computed, and nothing else.

use crate::support::{Samples, graph, losses, serial, trainer};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::timeline::Activity;
use shardloom_program::{Rank, lower};
use shardloom_sim::{Options, simulate};
use shardloom_train::Trainer;

const STEPS: usize = 5;

fn gpt() -> Graph {
    graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true")
}

fn samples() -> Samples {
    Samples::patterned(64, 16, 64)
}

fn plan(graph: &Graph, uniform: &Uniform, recompute_last: bool) -> Plan {
    Plan { recompute_last, ..uniform.plan(graph, "model", "a100-40g:8") }
}

/// Losses and the digest of the weights after some steps.
fn run(graph: &Graph, plan: &Plan) -> (Vec<f64>, String) {
    let mut trainer = trainer(graph, plan, samples(), 3e-3);
    let losses = losses(&mut trainer, STEPS);
    (losses, trainer.weights_digest().expect("weights"))
}

/// Pipelines of one and two directions, with backward passes whole and in halves, and meshes.
fn pipelines() -> Vec<Uniform> {
    use ScheduleKind::{Afab, Chimera, OneForwardOneBackward, ZeroBubbleH1, ZeroBubbleV};
    let mut all = vec![];
    for (schedule, pp) in
        [(Afab, 4), (OneForwardOneBackward, 4), (ZeroBubbleH1, 4), (ZeroBubbleV, 2), (Chimera, 4)]
    {
        all.push(Uniform { pp, microbatches: 4, schedule, ..serial() });
    }
    for (dp, tp, zero) in [(2, 1, 1), (2, 1, 3), (1, 2, 0)] {
        all.push(Uniform {
            pp: 2,
            mesh: Mesh::of(dp, 1, tp),
            sequence_parallel: tp > 1,
            microbatches: 4,
            schedule: Afab,
            sync: Sync { zero, bucket_bytes: 40_000, ..Sync::default() },
            ..serial()
        });
    }
    all
}

#[test]
fn every_policy_trains_like_the_serial_run_and_bitwise_like_none() {
    let graph = gpt();
    let (reference, _) = run(&graph, &plan(&graph, &serial(), true));
    for uniform in pipelines() {
        let (_, kept) = run(&graph, &plan(&graph, &uniform, true));
        for &recompute in &Recompute::ALL[1..] {
            for recompute_last in [true, false] {
                let uniform = Uniform { recompute, ..uniform.clone() };
                let plan = plan(&graph, &uniform, recompute_last);
                let (losses, digest) = run(&graph, &plan);
                let text = plan.to_toml();
                for (loss, expected) in losses.iter().zip(&reference) {
                    assert!((loss - expected).abs() < 1e-4 * expected, "{loss}: {text}");
                }
                assert_eq!(digest, kept, "{text}");
            }
        }
    }
}

/// The most that each rank's allocator has counted, which is what the program says.
fn peaks(graph: &Graph, plan: &Plan) -> Vec<u64> {
    let seq = graph.dims().iter().find(|dim| dim.name == "seq").map_or(0, |dim| dim.size);
    let mut trainer: Trainer = trainer(graph, plan, Samples::patterned(64, seq, 64), 1e-3);
    losses(&mut trainer, 2);
    let program = trainer.program();
    for (&counted, rank) in trainer.peak_bytes_per_rank().iter().zip(0..) {
        let (class, position) = program.locate(Rank(rank));
        let planned = program.class(class).memory_use(program, position).peak_bytes;
        assert_eq!(counted, planned, "rank {rank} of {}", plan.to_toml());
    }
    trainer.peak_bytes_per_rank().to_vec()
}

const SEQ: u64 = 64;
const HIDDEN: u64 = 64;

/// So many tokens that activations take more than parameters, and more than kernels' scratch.
fn long() -> Graph {
    graph(&format!("gpt:layers=8,hidden={HIDDEN},heads=4,seq={SEQ},vocab=64,dropout=0.1"))
}

#[test]
fn gpipes_memory_is_counted_to_the_byte_and_grows_by_the_inputs_of_stages() {
    let graph = long();
    let held = |microbatches: usize, recompute, recompute_last| {
        let uniform = Uniform {
            pp: 2,
            global_batch: 4 * microbatches,
            microbatches,
            schedule: ScheduleKind::Afab,
            recompute,
            ..serial()
        };
        peaks(&graph, &plan(&graph, &uniform, recompute_last))
    };
    let input = 4 * 4 * SEQ * HIDDEN;
    let (few, many) = (held(4, Recompute::Stage, true), held(8, Recompute::Stage, true));
    // The second stage keeps its input; the first loads its again, so that nothing is kept.
    assert_eq!(many[1] - few[1], 4 * input);
    assert!(many[0] - few[0] < input);
    let everything = held(8, Recompute::None, true);
    assert!(many[1] < everything[1] / 2, "{many:?} against {everything:?}");
    // The last micro-batch is the first to go backward, and takes what others then take.
    let spared = held(8, Recompute::Stage, false);
    assert!(spared[1] < everything[1] / 2, "{spared:?} against {everything:?}");
}

/// The backward pass of a micro-batch that is computed again takes longer by a forward pass.
#[test]
fn the_spared_micro_batch_goes_backward_in_less_time() {
    let graph = long();
    let uniform = Uniform {
        pp: 2,
        global_batch: 8,
        microbatches: 4,
        schedule: ScheduleKind::Afab,
        recompute: Recompute::Stage,
        ..serial()
    };
    let plan = plan(&graph, &uniform, false);
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    let program = lower(&graph, &plan, 2).expect("the plan fits");
    let options = Options { steps: 1, folded: false };
    let simulated = simulate(&graph, &cluster, &program, options).expect("it runs");
    let taken = |activity: Activity, microbatch: u32| -> f64 {
        let intervals = simulated.timeline.tracks[1].intervals.iter();
        let those =
            intervals.filter(|it| it.activity == activity && it.microbatch == Some(microbatch));
        those.map(|it| it.end.since(it.start).seconds()).sum()
    };
    for other in 0..3 {
        let saved = taken(Activity::Backward, other) - taken(Activity::Backward, 3);
        let forward = taken(Activity::Forward, other);
        // Without the loss, which need not be computed again.
        assert!((0.7 * forward..=forward).contains(&saved), "{saved} s of {forward} s");
    }
}
