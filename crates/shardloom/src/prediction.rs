//! Simulated steps.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_plan::Plan;
use shardloom_program::Program;
use shardloom_program::timeline::Timeline;
use shardloom_sim::{
    MemoryFit, Options, RowCounts, StepShares, Summary, instruction_count, matmul_precision,
    require_few_in,
};

use crate::arithmetic::sample_flops;
use crate::local_profile::disturbed_percent;
use crate::planning::peak_flops;
use crate::{Error, Launched, LocalProfile, Model, Result, Unpredicted, lower};

/// What a step of a plan is predicted to be.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The program that was simulated.
    pub program: Program,
    /// One step, begun with all ranks idle.
    pub timeline: Timeline,
    /// The numbers of a step once steps follow each other.
    pub summary: Summary,
    /// What each rank needs and has.
    pub memory: Vec<MemoryFit>,
    /// What ranks do with a step's time, once steps follow each other.
    pub shares: StepShares,
    /// FLOPs of a step that the model needs, recomputation not counted.
    pub model_flops: f64,
    /// FLOP/s that the plan's devices can do at most; none where a device's peak is not known.
    pub peak_flops: Option<f64>,
    /// Whether ranks that do the same were simulated once.
    pub folded: bool,
    /// Of the processors' time what other programs took while the machines were measured, in percent, if that is
    /// enough to matter.
    pub disturbed_percent: u32,
}

impl Prediction {
    /// Model FLOP/s of steps that take `step_seconds` as a share of what the plan's devices can do at most
    /// (Chowdhery et al. 2022, appendix B); none where a device's peak is not known.
    pub fn model_flops_utilisation(&self, step_seconds: f64) -> Option<f64> {
        let used = |peak: f64| self.model_flops / (step_seconds * peak);
        self.peak_flops.map(used).filter(|used| used.is_finite())
    }

    /// The most memory that each rank holds at once, by rank.
    pub fn peak_bytes_per_rank(&self) -> Vec<u64> {
        let ranks = self.summary.ranks.iter();
        ranks.flat_map(|rank| (0..rank.multiplicity).map(|_| rank.peak_bytes)).collect()
    }
}

/// The most instructions that are simulated rank by rank where nobody asked for that: a few seconds' worth.
const MOST_UNASKED: u64 = 3_000_000;

/// Simulates `plan` on `cluster`. With `folded`, ranks that do the same are simulated once, unless they are on
/// unlike devices and few enough to be simulated one by one in a few seconds.
///
/// ```
/// use shardloom::plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
/// use shardloom::{LocalProfile, Model, load_cluster, simulate, uniform_plan};
///
/// let model = Model::load("gpt-2")?;
/// let numbers = Uniform {
///     pp: 2,
///     mesh: Mesh::of(4, 1, 1),
///     sequence_parallel: false,
///     global_batch: 64,
///     microbatches: 4,
///     schedule: ScheduleKind::OneForwardOneBackward,
///     recompute: Recompute::None,
///     sync: Sync::default(),
///     precision: Precision::MIXED,
///     optimizer: Optimizer::default(),
///     clip_norm: None,
/// };
/// let plan = uniform_plan(&model, &numbers, "h100-80g:8")?;
/// let cluster = load_cluster(&plan.cluster, &LocalProfile::at("none".as_ref()), &mut |_, _| {})?;
/// let prediction = simulate(&model, &plan, &cluster, true)?;
/// assert!(prediction.summary.step_seconds > 0.0);
/// assert_eq!(prediction.peak_bytes_per_rank().len(), 8);
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If the plan does not fit the model or the cluster, or a device does not compute in its precision.
pub fn simulate(model: &Model, plan: &Plan, cluster: &Cluster, folded: bool) -> Result<Prediction> {
    simulate_rows(model, plan, cluster, folded, &RowCounts::Even)
}

/// The same where so many rows go to experts as `rows` says. Ranks that have different numbers of rows are
/// simulated one by one in any case.
///
/// # Errors
/// Also if `rows` are not those of the model's experts.
pub fn simulate_rows(
    model: &Model,
    plan: &Plan,
    cluster: &Cluster,
    folded: bool,
    rows: &RowCounts,
) -> Result<Prediction> {
    let graph = plan.graph_of(model.graph());
    require_few_in(&graph, plan, Options { folded, ..Options::default() })?;
    let program = lower(model, plan, cluster.device_count() as usize)?;
    let one_by_one = Options { folded: false, ..Options::default() };
    let folded = folded
        && (are_devices_alike(&program, cluster)?
            || instruction_count(&program, one_by_one) > MOST_UNASKED);
    let run = |steps| {
        let options = Options { steps, folded };
        shardloom_sim::simulate_rows(&graph, cluster, &program, options, rows.clone())
    };
    let steady = run(Options::default().steps)?;
    let summary = steady.summary();
    let memory = steady.memory_fits(&program, cluster)?;
    let timeline = run(1)?.timeline;
    let frozen: Vec<_> = plan.parameters.iter().filter(|it| it.frozen).cloned().collect();
    let sample_flops: f64 = sample_flops(model.graph(), &frozen)?.iter().sum();
    Ok(Prediction {
        program,
        timeline,
        summary,
        memory,
        shares: steady.shares(),
        model_flops: sample_flops * plan.global_batch as f64,
        peak_flops: peak_flops(plan, cluster),
        folded: steady.folded,
        disturbed_percent: cluster
            .profiles()
            .iter()
            .map(|it| disturbed_percent(it))
            .max()
            .unwrap_or(0),
    })
}

/// Whether the ranks of each class are all on devices of one kind.
fn are_devices_alike(program: &Program, cluster: &Cluster) -> Result<bool> {
    for class in &program.classes {
        let first = cluster.kind_of(class.devices[0])?;
        for &device in &class.devices[1..] {
            if cluster.kind_of(device)? != first {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Simulates `plan` with its ranks on the cores of this machine, as [`crate::Session`] runs them, or says why it is not
/// predicted.
///
/// # Errors
/// As [`simulate`], and if the profile cannot be read.
pub fn predict_here(
    model: &Model,
    plan: &Plan,
    local: &LocalProfile,
) -> Result<std::result::Result<Prediction, Unpredicted>> {
    let profile = match local.load() {
        Ok(Some(profile)) => profile,
        Ok(None) | Err(Error::OtherMachine { .. }) => return Ok(Err(Unpredicted::Here)),
        Err(error) => return Err(error),
    };
    let (ranks, there) = (plan.least_devices(), profile.node.devices as usize);
    if ranks > there {
        return Ok(Err(Unpredicted::Ranks { ranks, there, of: "core" }));
    }
    let compute = plan.precision.compute;
    if profile.device.peak_flops(matmul_precision(compute)).is_err() {
        return Ok(Err(Unpredicted::Format(compute)));
    }
    let devices_per_node = ranks as u32;
    let cluster = Cluster::new(vec![NodeGroup { profile, nodes: 1, devices_per_node }])?;
    simulate(model, plan, &cluster, false).map(Ok)
}

/// Simulates `plan` with its ranks in these processes, at most one in each, or says why it is not predicted.
///
/// # Errors
/// As [`simulate`], and if what was measured cannot be read.
pub fn predict_in_processes(
    model: &Model,
    plan: &Plan,
    local: &LocalProfile,
    launched: &Launched,
) -> Result<std::result::Result<Prediction, Unpredicted>> {
    let Some(cluster) = launched.measured_before(local)? else {
        return Ok(Err(Unpredicted::InProcesses));
    };
    let (ranks, there) = (plan.least_devices(), launched.processes().process().of as usize);
    if ranks > there {
        return Ok(Err(Unpredicted::Ranks { ranks, there, of: "process" }));
    }
    let compute = plan.precision.compute;
    let precision = matmul_precision(compute);
    if cluster.profiles().iter().any(|it| it.device.peak_flops(precision).is_err()) {
        return Ok(Err(Unpredicted::Format(compute)));
    }
    simulate(model, plan, &cluster, false).map(Ok)
}
