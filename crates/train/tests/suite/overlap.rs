//! Overlapped passes train like the serial run, in the memory and the time that the program says.

use crate::support::{Samples, graph, losses, serial, trainer, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_data::Table;
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::Rank;
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::{RunClock, Trainer};

const SEQ: usize = 64;
const VOCAB: usize = 128;
const STEPS: usize = 3;
/// The most that a kernel of these models takes for itself: a tile of attention.
const SCRATCH_BYTES: u64 = (SEQ * SEQ * 4) as u64;

/// A GPT whose head is tied to the embedding, and a Llama.
fn graphs() -> [Graph; 2] {
    let sizes = format!("layers=6,hidden=64,heads=4,seq={SEQ},vocab={VOCAB}");
    [
        graph(&format!("gpt:{sizes},dropout=0.1,tied=true")),
        graph(&format!("llama:{sizes},kv_heads=2,ffn=128")),
    ]
}

fn samples() -> Samples {
    Samples::patterned(64, SEQ, VOCAB as u32)
}

fn plans(graph: &Graph) -> Vec<Plan> {
    let mut plans = vec![];
    for schedule in [ScheduleKind::DualPipe, ScheduleKind::DualPipeV] {
        for (dp, zero, sequence_parallel, recompute) in [
            (1, 0, false, Recompute::None),
            (1, 0, true, Recompute::Selective),
            (2, 1, true, Recompute::Full),
            (2, 2, false, Recompute::None),
            (2, 3, true, Recompute::None),
        ] {
            let uniform = Uniform {
                pp: 2,
                mesh: Mesh::of(dp, 1, 2),
                sequence_parallel,
                microbatches: if schedule == ScheduleKind::DualPipe { 4 } else { 8 / dp as usize },
                schedule,
                recompute,
                sync: Sync { zero, bucket_bytes: 40_000, ..Sync::default() },
                ..serial()
            };
            plans.push(uniform.plan(graph, "model", "a100-40g:8"));
        }
    }
    plans
}

/// Whether some passes of the plan are in pieces.
fn overlaps(trainer: &Trainer) -> bool {
    let program = trainer.program();
    let each = 2 * program.microbatches;
    program.classes.iter().any(|class| class.control.len() > 3 * each)
}

/// The most bytes of each rank: counted, and as the program says.
fn peaks(trainer: &Trainer) -> Vec<(u64, u64)> {
    let program = trainer.program();
    let counted = trainer.peak_bytes_per_rank();
    let planned = (0..counted.len() as u32).map(|rank| {
        let (class, position) = program.locate(Rank(rank));
        program.class(class).memory_use(program, position).peak_bytes
    });
    counted.iter().copied().zip(planned).collect()
}

#[test]
fn overlapped_passes_train_like_the_serial_run_in_the_programs_memory_and_a_tile() {
    for graph in graphs() {
        let plan = serial().plan(&graph, "model", "local");
        let reference = losses(&mut trainer(&graph, &plan, samples(), 3e-3), STEPS);
        assert!(reference[STEPS - 1] < reference[0], "the model learns: {reference:?}");
        for plan in plans(&graph) {
            let mut trainer = trainer(&graph, &plan, samples(), 3e-3);
            let text = plan.to_toml();
            // Only tied weights that are gathered keep passes apart.
            let tied = graph.name().starts_with("gpt");
            assert!(overlaps(&trainer) || (tied && plan.sync.zero == 3), "{text}");
            for (loss, expected) in losses(&mut trainer, STEPS).iter().zip(&reference) {
                assert!((loss - expected).abs() < 1e-4 * expected, "{loss}: {expected}\n{text}");
            }
            for (counted, planned) in peaks(&trainer) {
                let near = planned..=planned + SCRATCH_BYTES;
                assert!(near.contains(&counted), "{counted} of {planned}\n{text}");
            }
        }
    }
}

#[test]
fn overlapped_passes_take_the_time_that_the_simulator_says_and_train_alike_under_both_clocks() {
    let [graph, _] = graphs();
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    for plan in plans(&graph) {
        let clock = RunClock::Virtual(cluster.clone());
        let mut in_virtual_time = trainer_with_clock(&graph, &plan, samples(), 3e-3, clock);
        let (steps, executed) = in_virtual_time.train_steps_recorded(2).expect("steps");
        let recording = in_virtual_time.recording().expect("the virtual clock records");
        let options = Options { steps: 2, folded: false };
        let mut recorded = Recorded::new(recording);
        let simulated = run(in_virtual_time.program(), &cluster, options, &mut recorded)
            .expect("the recording is of this program");
        assert_eq!(simulated.timeline, executed, "{}", plan.to_toml());

        let mut in_real_time = trainer(&graph, &plan, samples(), 3e-3);
        let real = in_real_time.train_steps(2).expect("steps");
        let losses = |steps: &[shardloom_train::Step]| -> Vec<f64> {
            steps.iter().map(|step| step.loss).collect()
        };
        assert_eq!(losses(&steps), losses(&real));
    }
}

#[test]
fn where_kernels_take_nothing_the_peak_is_the_programs_to_the_byte() {
    const WIDTH: usize = 64;
    const ROWS: usize = 64;
    let graph = graph(&format!("mlp:inputs={WIDTH},hidden={WIDTH},layers=12,classes=8"));
    for schedule in [ScheduleKind::DualPipe, ScheduleKind::DualPipeV] {
        for (dp, zero) in [(1, 0), (2, 1), (2, 2), (2, 3)] {
            let uniform = Uniform {
                pp: 2,
                mesh: Mesh::of(dp, 1, 2),
                global_batch: ROWS,
                microbatches: 8,
                schedule,
                sync: Sync { zero, bucket_bytes: 20_000, ..Sync::default() },
                ..serial()
            };
            let plan = uniform.plan(&graph, "model", "local");
            let table = Table::from_rows(
                (0..ROWS * WIDTH).map(|at| (at % 7) as f32).collect(),
                (0..ROWS as u32).map(|row| row % 8).collect(),
                0.0,
                1,
            );
            let mut trainer = trainer(&graph, &plan, table.expect("rows"), 1e-3);
            losses(&mut trainer, 2);
            assert!(overlaps(&trainer));
            for (counted, planned) in peaks(&trainer) {
                assert_eq!(counted, planned, "{}", plan.to_toml());
            }
        }
    }
}
