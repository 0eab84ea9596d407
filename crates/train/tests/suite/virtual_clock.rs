//! Under the virtual clock the same kernels run, in the order of the modelled machine.

use crate::support::{Samples, gpt, graph, serial, trainer, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{
    Axis, AxisSet, Corrections, LayoutRule, Mesh, Optimizer, Plan, Prediction, Recompute,
    ScheduleKind, Sync, Uniform, Weights,
};
use shardloom_program::timeline::Clock;
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::RunClock;

/// Every schedule on four and on eight devices, on meshes of devices, with more stages and pipelines than
/// it has at least, and under every rule for weights; for sixteen blocks or more.
fn of_every_schedule(graph: &Graph) -> Vec<Plan> {
    let uniform = |schedule: ScheduleKind, pp: usize| Uniform {
        pp,
        global_batch: 16,
        microbatches: 16,
        schedule,
        ..serial()
    };
    let plan = |uniform: Uniform| uniform.plan(graph, "model", "a100-40g:8");
    let mut plans = vec![];
    for schedule in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        plans.extend([4, 8].map(|pp| plan(uniform(schedule, pp))));
        plans.push(plan(Uniform {
            mesh: Mesh::of(2, 1, 2),
            sequence_parallel: true,
            microbatches: 8,
            recompute: Recompute::Selective,
            sync: Sync { zero: (plans.len() % 4) as u8, ..Sync::default() },
            ..uniform(schedule, 2)
        }));
    }
    for (schedule, pp) in [
        (ScheduleKind::Interleaved, 4),
        (ScheduleKind::Hanayo, 4),
        (ScheduleKind::Chimera, 4),
        (ScheduleKind::Chimera, 8),
        (ScheduleKind::ChimeraDoubling, 4),
    ] {
        let plan = uniform(schedule, pp).plan_in_chunks(graph, "model", "a100-40g:8", 4);
        plans.push(plan.unwrap_or_else(|error| panic!("{error}")));
    }
    for weights in [
        Weights::VerticalSync,
        Weights::DoubleBuffer,
        Weights::Newest { corrections: EVERYTHING },
        Weights::Newest {
            corrections: Corrections { prediction: Some(Prediction::Weights), ..EVERYTHING },
        },
    ] {
        let schedule = match weights {
            Weights::Newest { .. } => ScheduleKind::PipeMare,
            _ => ScheduleKind::PipeDream,
        };
        let optimizer = Optimizer::sgd(0.9);
        let plan = plan(Uniform { optimizer, microbatches: 4, ..uniform(schedule, 4) });
        plans.push(Plan { weights, ..plan });
    }
    plans
}

/// All that makes up for delayed gradients.
const EVERYTHING: Corrections = Corrections {
    anneal_steps: Some(4),
    discrepancy: Some(0.135),
    synchronous_steps: 2,
    spike: Some(1.0),
    prediction: Some(Prediction::Velocity),
};

fn plan(graph: &Graph, pp: usize, dp: u32, tp: u32, zero: u8, schedule: ScheduleKind) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        sequence_parallel: tp > 1,
        global_batch: 16,
        microbatches: 8,
        schedule,
        recompute: Recompute::Selective,
        sync: Sync { zero, ..Sync::default() },
        ..serial()
    };
    uniform.plan(graph, "model", "a100-40g:8")
}

fn plans(graph: &Graph) -> Vec<Plan> {
    use ScheduleKind::{Afab, OneForwardOneBackward as Flush};
    vec![
        plan(graph, 4, 1, 1, 0, Flush),
        plan(graph, 8, 1, 1, 0, Flush),
        plan(graph, 8, 1, 1, 0, Afab),
        plan(graph, 2, 2, 2, 1, Flush),
        plan(graph, 1, 2, 4, 3, Afab),
        plan(graph, 4, 2, 1, 2, Flush),
        with_second_copy(plan(graph, 2, 4, 1, 3, Flush)),
    ]
}

/// The same with replicas two by two, of which each share a second copy of the weights.
fn with_second_copy(plan: Plan) -> Plan {
    let mut plan = Plan { microbatches: 4, ..plan };
    for stage in plan.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
        stage.mesh = stage.mesh.sharing_within(2).expect("it divides");
    }
    let batch = LayoutRule { dim: "batch".into(), axis: Axis::REPLICA };
    plan.layout.0.insert(0, batch);
    plan.sync.second_copy_over = AxisSet::of(&[Axis::DP]);
    plan
}

fn cluster() -> Cluster {
    Cluster::parse("a100-40g:8").expect("a preset")
}

/// Trains some steps in a row, twice, after those that a plan without flush has synchronous, each a row of
/// its own. Simulates them with the durations they had, and trains them in real time.
fn assert_simulated_and_trained_alike(graph: &Graph, plan: &Plan, steps: u32) {
    let samples = || Samples::patterned(64, 16, 64);
    let clock = RunClock::Virtual(cluster());
    let mut in_virtual_time = trainer_with_clock(graph, plan, samples(), 1e-3, clock);
    let mut in_real_time = trainer(graph, plan, samples(), 1e-3);
    let text = plan.to_toml();
    let synchronous = vec![1; plan.weights.corrections().synchronous_steps as usize];
    for steps in synchronous.into_iter().chain([steps; 2]) {
        let (trained, executed) = in_virtual_time.train_steps_recorded(steps).expect("steps");
        assert_eq!(executed.clock, Clock::Virtual);
        let recording = in_virtual_time.recording().expect("the virtual clock records");
        let mut recorded = Recorded::new(recording);
        let options = Options { steps, folded: false };
        let simulated = run(in_virtual_time.program(), &cluster(), options, &mut recorded)
            .expect("the recording is of this program");
        assert!(executed.makespan() > Default::default());
        assert_eq!(simulated.timeline, executed, "{text}");
        let really = in_real_time.train_steps(steps).expect("steps");
        assert!(
            trained.iter().map(|step| step.loss).eq(really.iter().map(|step| step.loss)),
            "{trained:?} instead of {really:?}\n{text}"
        );
    }
    let (virtually, really) = (in_virtual_time.weights_digest(), in_real_time.weights_digest());
    assert_eq!(virtually.expect("weights"), really.expect("weights"), "{text}");
    assert_eq!(in_virtual_time.sent_bytes_per_rank(), in_real_time.sent_bytes_per_rank());
    assert_eq!(
        in_virtual_time.validate(2).expect("an evaluation"),
        in_real_time.validate(2).expect("an evaluation"),
        "{text}"
    );
}

#[test]
fn meshes_are_simulated_with_the_recorded_durations_as_executed_and_train_alike_under_both_clocks()
{
    let graph = graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true");
    for plan in plans(&graph) {
        assert_simulated_and_trained_alike(&graph, &plan, 1);
    }
}

/// Checks every second plan, beginning with that of number `from`.
fn check_every_second(from: usize) {
    let graph = graph("gpt:layers=14,hidden=16,heads=2,seq=16,vocab=64,dropout=0.1");
    for plan in of_every_schedule(&graph).iter().skip(from).step_by(2) {
        assert_simulated_and_trained_alike(&graph, plan, 2);
    }
}

#[test]
fn every_schedule_is_simulated_as_executed_and_trains_alike_under_both_clocks_even() {
    check_every_second(0);
}

#[test]
fn every_schedule_is_simulated_as_executed_and_trains_alike_under_both_clocks_odd() {
    check_every_second(1);
}

#[test]
fn each_step_of_a_row_has_an_equal_share_of_its_time() {
    let graph = gpt();
    let plan = serial().plan(&graph, "model", "a100-40g:8");
    let (samples, clock) = (Samples::patterned(64, 16, 64), RunClock::Virtual(cluster()));
    let mut run = trainer_with_clock(&graph, &plan, samples, 1e-3, clock);
    let (steps, timeline) = run.train_steps_recorded(4).expect("four steps");
    let share = timeline.makespan().seconds() / 4.0;
    assert!(share > 0.0);
    assert_eq!(steps.iter().map(|step| step.seconds).collect::<Vec<_>>(), [share; 4]);
}
