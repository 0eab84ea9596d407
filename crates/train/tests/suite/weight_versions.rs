//! How many versions and copies of its weights each rank holds, counted in the allocator.

use crate::support::{Samples, graph, mesh, serial, stage_parameters, trainer};
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, Corrections, Mesh, Optimizer, Plan, Prediction, ScheduleKind, Sync, Uniform,
    Weights,
};
use shardloom_program::Class;

/// Big weights, small activations, so that versions show; eight blocks.
fn wide() -> Graph {
    graph("gpt:layers=6,hidden=64,heads=2,seq=4,vocab=32")
}

const NONE: Corrections = Corrections {
    anneal_steps: None,
    discrepancy: None,
    synchronous_steps: 0,
    spike: None,
    prediction: None,
};

const DISCREPANCY: Corrections = Corrections { discrepancy: Some(0.135), ..NONE };

const FROM_LAST_UPDATE: Corrections = Corrections { prediction: Some(Prediction::Weights), ..NONE };

/// A pipeline whose weights are held somehow.
#[derive(Clone, Copy, Debug)]
struct Holding {
    schedule: ScheduleKind,
    weights: Weights,
    devices: usize,
    /// Stages on each device.
    chunks: usize,
    mesh: Mesh,
    zero: u8,
    microbatches: usize,
}

impl Holding {
    /// One device to each place of the schedule's least arrangement.
    fn new(schedule: ScheduleKind, weights: Weights, devices: usize, many: usize) -> Holding {
        let chunks = schedule.arrangement().map_or(1, Arrangement::least_chunks);
        let mesh = Mesh::SINGLE;
        Holding { schedule, weights, devices, chunks, mesh, zero: 0, microbatches: many }
    }

    fn plan(self, graph: &Graph) -> Plan {
        let uniform = Uniform {
            pp: self.devices,
            mesh: self.mesh,
            global_batch: self.mesh.dp() as usize * self.microbatches,
            microbatches: self.microbatches,
            schedule: self.schedule,
            sync: Sync { zero: self.zero, ..Sync::default() },
            // Without state: only weights and gradients outlive micro-batches.
            optimizer: Optimizer::sgd(0.0),
            clip_norm: None,
            ..serial()
        };
        let mut plan = uniform
            .plan_in_chunks(graph, "model", "local", self.chunks)
            .unwrap_or_else(|error| panic!("{error}"));
        plan.weights = self.weights;
        plan
    }

    /// Trains, and gives for the first rank of each mesh the bytes of the parameters of its stages, and
    /// the bytes of weights that its allocator counts after the last step.
    fn held(self) -> Vec<(u64, u64)> {
        let graph = wide();
        let plan = self.plan(&graph);
        let mut trainer = trainer(&graph, &plan, Samples::patterned(32, 4, 32), 1e-2);
        // Enough steps for all versions to be there while the pipeline is full.
        let steps = 2 * trainer.program().ahead + 1;
        let trained = trainer.train_steps_recorded(steps);
        let (_, timeline) = trained.unwrap_or_else(|error| panic!("{error}"));
        let program = trainer.program();
        let of_class = |class: &Class| {
            let rank = class.first_rank.0 as usize;
            let memory = class.memory_use(program, 0);
            let counted = trainer.peak_bytes_per_rank()[rank];
            let near = memory.peak_bytes..memory.peak_bytes + memory.peak_bytes / 50;
            assert!(near.contains(&counted), "{self:?}: {counted} of {memory:?}");

            let stages = plan.pipeline.iter().flat_map(|pipeline| &pipeline.stage);
            let own = stages.filter(|stage| stage.devices.0.contains(&(rank as u32)));
            let parameters: u64 = own.map(|stage| 4 * stage_parameters(&graph, stage) as u64).sum();
            let share = |sharded: bool| if sharded { u64::from(self.mesh.dp()) } else { 1 };
            let gradients = parameters / share(self.zero >= 2);
            let (_, live) = *timeline.tracks[rank].memory.last().expect("weights are held");
            (parameters / share(self.zero == 3), live - gradients)
        };
        program.classes.iter().map(of_class).collect()
    }

    /// For each device how many versions it holds of what it holds.
    fn versions(self) -> Vec<u64> {
        let versions = |(one, held)| {
            assert_eq!(held % one, 0, "{self:?}: {held} of {one}");
            held / one
        };
        self.held().into_iter().map(versions).collect()
    }

    /// How many times all devices together hold the model.
    fn copies(self) -> f64 {
        let held: u64 = self.held().into_iter().map(|(_, held)| held).sum();
        held as f64 / (4 * wide().parameter_count()) as f64
    }
}

/// Every rule without flush with the micro-batches of its paper, and how many versions of `stages`.
fn rules(stages: usize) -> Vec<(Holding, Vec<u64>)> {
    let of =
        |schedule, weights, microbatches| Holding::new(schedule, weights, stages, microbatches);
    let pipedream = |weights, microbatches| of(ScheduleKind::PipeDream, weights, microbatches);
    let all = |versions: u64| vec![versions; stages];
    let delayed = |versions: u64| {
        let mut each = all(versions);
        each[stages - 1] = 1;
        each
    };
    let newest = |corrections, microbatches| {
        of(ScheduleKind::PipeMare, Weights::Newest { corrections }, microbatches)
    };
    vec![
        // A version for each stage from one's own on.
        (pipedream(Weights::Stash, 1), (1..=stages as u64).rev().collect()),
        // Every stage holds as many as the first.
        (pipedream(Weights::VerticalSync, 1), all(stages as u64)),
        // Two from one micro-batch less than there are stages.
        (pipedream(Weights::DoubleBuffer, stages - 1), all(2)),
        (pipedream(Weights::DoubleBuffer, stages), all(2)),
        (pipedream(Weights::DoubleBuffer, 2 * stages), all(2)),
        (newest(NONE, 1), all(1)),
        (newest(NONE, 4), all(1)),
        // A mean velocity, and the weights before the last update, where gradients are late.
        (newest(DISCREPANCY, 4), delayed(2)),
        (newest(FROM_LAST_UPDATE, 1), delayed(2)),
        (
            newest(Corrections { prediction: Some(Prediction::Weights), ..DISCREPANCY }, 1),
            delayed(3),
        ),
    ]
}

#[test]
fn every_rule_holds_the_versions_of_its_paper() {
    for stages in [2, 4, 8] {
        for (holding, expected) in rules(stages) {
            assert_eq!(holding.versions(), expected, "{holding:?}");
        }
    }
}

#[test]
fn replicas_hold_as_many_versions_and_shards_of_weights_as_many_of_a_share() {
    for (holding, expected) in rules(4) {
        for zero in 0..if holding.weights.corrections() == NONE { 4 } else { 1 } {
            let holding = Holding { mesh: mesh(2, 1, 1), zero, ..holding };
            assert_eq!(holding.versions(), expected, "{holding:?}");
        }
    }
}

#[test]
fn a_schedule_with_a_flush_holds_one_version_and_a_copy_for_each_pipeline() {
    let flushing = ScheduleKind::ALL.into_iter().filter(|kind| kind.flushes());
    for schedule in flushing.filter(|kind| *kind != ScheduleKind::Table) {
        let of = |devices| Holding::new(schedule, Weights::Flush, devices, 8);
        let sizes: &[(usize, usize)] = match schedule {
            ScheduleKind::Chimera => &[(2, 2), (4, 2), (4, 4)],
            ScheduleKind::Interleaved | ScheduleKind::Hanayo => &[(2, 2), (4, 2), (2, 4)],
            _ => &[(2, of(2).chunks), (4, of(4).chunks)],
        };
        for &(devices, chunks) in sizes {
            let holding = Holding { chunks, ..of(devices) };
            assert_eq!(holding.versions(), vec![1; devices], "{holding:?}");
            // 2q pipelines of Chimera, two of DualPipe, one of all others.
            let pipelines = match schedule {
                ScheduleKind::Chimera => chunks as f64,
                ScheduleKind::ChimeraDoubling | ScheduleKind::DualPipe => 2.0,
                _ => 1.0,
            };
            assert_eq!(holding.copies(), pipelines, "{holding:?}");
        }
    }
}

#[test]
fn double_buffering_wants_micro_batches_for_all_later_stages() {
    let graph = wide();
    for (stages, microbatches) in [(4, 1), (4, 2), (8, 6)] {
        let schedule = ScheduleKind::PipeDream;
        let holding = Holding::new(schedule, Weights::DoubleBuffer, stages, microbatches);
        let lowered = shardloom_program::lower(&graph, &holding.plan(&graph), stages);
        let message = lowered.expect_err("three would be needed").to_string();
        assert!(message.contains("two versions of weights do not suffice"), "{message}");
    }
}

#[test]
fn a_row_of_more_microbatches_than_can_be_numbered_is_refused() {
    let graph = wide();
    let uniform = Uniform { pp: 2, global_batch: 8, microbatches: 8, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(8, 4, 32), 1e-2);
    let error = trainer.train_steps(1 << 29).expect_err("2^32 micro-batches");
    assert!(error.to_string().contains("536870912 steps of 8 micro-batches"), "{error}");
    assert_eq!(trainer.train_steps(1).expect("a step").len(), 1);
}
