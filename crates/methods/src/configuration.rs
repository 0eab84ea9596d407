//! The configurations that a pipeline method chooses from where its paper leaves them open.
//!
//! | what | which |
//! |---|---|
//! | stages | all depths that divide the devices, at least two, at most a block each, or only as many as there can be; replicas on the rest, as many as divide the batch |
//! | tensor parallelism | only in methods that were published with it: widths that divide what they split and stay within a node, with sequence parallelism where that divides |
//! | micro-batches | the least numbers that are possible and at least one, two, four and eight times the depth |
//! | stages on a device | those that the method lists |
//! | recomputation | the least of those that the method lists with which the plan fits |
//!
//! If there are more than 24, or their micro-batches times the model's blocks are more than 50,000 in all
//! (each configuration counted once, with however much recomputation it is tried), they are simulated in
//! the order of the [estimate](shardloom_sim::estimate) of plain 1F1B of the same shape, fastest first, until
//! one of these numbers is reached, and further ones only until one fits. (An asynchronous or interleaved
//! schedule is faster than that estimate, so that with many configurations the very best may be missed.)

#[cfg(test)]
mod tests;

use shardloom_plan::{Arrangement, Axis, Mesh, Recompute, ScheduleKind, Weights};
use shardloom_search::{Request, Space};
use shardloom_sim::estimate::{Candidate, Cut as EstimatedCut, Estimator};

use crate::choice::Task;
use crate::cut::Cut;
use crate::depth::require_depth;
use crate::{Choice, MethodError};

/// One way to fill in what a method leaves open.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// Meshes of devices that a pipeline goes through.
    pub pp: usize,
    pub mesh: Mesh,
    pub sequence_parallel: bool,
    /// Of a step, over all pipelines.
    pub microbatches: usize,
    /// Samples of a micro-batch on one replica.
    pub samples: usize,
    /// Stages on each device.
    pub chunks: usize,
    pub schedule: ScheduleKind,
    pub weights: Weights,
    pub zero: u8,
    pub cut: Cut,
    /// From least to most.
    pub recompute: Vec<Recompute>,
    /// Whether the last micro-batch is computed twice, too.
    pub recompute_last: bool,
    /// Whether the schedule is made for the times of passes.
    pub timed: bool,
    /// Whether updates do not wait for the norm of all gradients.
    pub post_validation: bool,
}

impl Configuration {
    /// As the estimate and the search know it: as plain 1F1B.
    pub fn candidate(&self, recompute: Recompute) -> Candidate {
        Candidate {
            pp: self.pp as u32,
            dp: self.mesh.dp(),
            cp: self.mesh.width(Axis::CP) as u32,
            tp: self.mesh.tp(),
            sequence_parallel: self.sequence_parallel,
            zero: self.zero,
            sharing: self.mesh.dp(),
            microbatch: self.samples as u32,
            microbatches: self.microbatches as u32,
            recompute: match recompute {
                Recompute::Stage => Recompute::Full,
                by_block => by_block,
            },
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            cut: EstimatedCut::Balanced,
        }
    }
}

/// How many micro-batches a schedule can do with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub at_least: usize,
    pub multiple_of: usize,
    /// Whether a step is a single micro-batch.
    pub single: bool,
}

impl Counts {
    /// Any number.
    pub const ANY: Counts = Counts { at_least: 1, multiple_of: 1, single: false };
    /// Just one.
    pub const SINGLE: Counts = Counts { at_least: 1, multiple_of: 1, single: true };

    fn allows(self, microbatches: usize) -> bool {
        microbatches >= self.at_least && microbatches.is_multiple_of(self.multiple_of)
    }

    /// The least number that a schedule can do with.
    fn least(self) -> usize {
        self.at_least.next_multiple_of(self.multiple_of)
    }

    /// The numbers that are tried where a replica has `share` samples.
    fn tried(self, share: usize, depth: usize) -> Vec<usize> {
        if self.single {
            return vec![1];
        }
        let possible: Vec<usize> =
            (1..=share).filter(|&it| share.is_multiple_of(it) && self.allows(it)).collect();
        let mut tried: Vec<usize> = [1, 2, 4, 8]
            .iter()
            .filter_map(|times| possible.iter().find(|&&it| it >= times * depth))
            .copied()
            .collect();
        if tried.is_empty() {
            tried.extend(possible.last());
        }
        tried.dedup();
        tried
    }
}

/// What of a configuration is about devices.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    pp: u32,
    dp: u32,
    tp: u32,
    sequence_parallel: bool,
}

/// As many stages as there are devices and blocks for, with as many replicas as the rest of the devices
/// and the batch allow; none if there is no second stage.
fn deepest(task: &Task<'_>) -> Option<Shape> {
    let devices = task.cluster.device_count();
    let pp = devices.min(task.graph.blocks().len() as u32);
    let divides = |dp: &u32| task.request.global_batch.is_multiple_of(*dp as usize);
    let dp = (1..=devices / pp.max(1)).rev().find(divides)?;
    (pp > 1).then_some(Shape { pp, dp, tp: 1, sequence_parallel: false })
}

/// What a pipeline method says, and what it leaves open.
pub(crate) struct Pipelines {
    pub schedule: ScheduleKind,
    pub weights: Weights,
    /// Numbers of stages on each device.
    pub chunks: &'static [usize],
    /// Whether it was published together with tensor parallelism.
    pub tensor: bool,
    /// ZeRO stage between replicas.
    pub zero: u8,
    /// From least to most.
    pub recompute: &'static [Recompute],
    /// Whether the last micro-batch is computed twice, too.
    pub recompute_last: bool,
    pub cut: Cut,
    /// Micro-batches for a depth.
    pub counts: fn(usize) -> Counts,
    /// Whether depths must be even.
    pub even: bool,
    /// Whether pipelines have as many stages as there can be, and devices that are then left do nothing.
    pub deepest: bool,
    /// Whether the schedule is made for the times of passes.
    pub timed: bool,
    /// Whether updates do not wait for the norm of all gradients.
    pub post_validation: bool,
}

impl Pipelines {
    /// A plain pipeline whose slowest stage takes the least time, with whatever recomputation it takes.
    pub const fn of(schedule: ScheduleKind) -> Pipelines {
        Pipelines {
            schedule,
            weights: Weights::Flush,
            chunks: &[1],
            tensor: false,
            zero: 0,
            recompute: &Recompute::BY_BLOCK,
            recompute_last: true,
            cut: Cut::LeastSlowest,
            counts: |_| Counts::ANY,
            even: false,
            deepest: false,
            timed: false,
            post_validation: false,
        }
    }

    /// The fastest plan that fits.
    pub fn choose(&self, task: &mut Task<'_>) -> Result<Choice, MethodError> {
        let shapes = self.shapes(task)?;
        let configurations = self.configurations(task, &shapes);
        if configurations.is_empty() {
            return Err(self.refusal(task, &shapes));
        }
        let space = configurations.len();
        let ranked = ranked(task, configurations)?;
        let impossible = space - ranked.len();
        Ok(Choice { space, impossible, ..task.fastest(&ranked)? })
    }

    /// Depths, replicas and widths of tensor parallelism.
    fn shapes(&self, task: &Task<'_>) -> Result<Vec<Shape>, MethodError> {
        if self.deepest {
            return Ok(deepest(task).into_iter().collect());
        }
        let schedules = vec![ScheduleKind::OneForwardOneBackward];
        let request = Request { schedules, ..task.request.clone() };
        let space = Space::new(task.graph, task.cluster, &request)?;
        let mut shapes: Vec<Shape> = vec![];
        // None of these methods was published with context parallelism.
        let candidates = space.candidates().filter(|candidate| candidate.cp == 1);
        for Candidate { pp, dp, tp, sequence_parallel, .. } in candidates {
            let shape = Shape { pp, dp, tp, sequence_parallel };
            let same = |known: &Shape| Shape { sequence_parallel, ..*known } == shape;
            let wanted = pp > 1 && (tp == 1 || self.tensor) && (!self.even || pp.is_multiple_of(2));
            match shapes.last_mut() {
                // Shapes come one after the other, first without sequence parallelism.
                Some(known) if wanted && same(known) => *known = shape,
                _ if wanted => shapes.push(shape),
                _ => {}
            }
        }
        Ok(shapes)
    }

    fn configurations(&self, task: &Task<'_>, shapes: &[Shape]) -> Vec<Configuration> {
        let mut configurations = vec![];
        for shape in shapes {
            let depth = shape.pp as usize;
            let share = task.request.global_batch / shape.dp as usize;
            let counts = (self.counts)(depth);
            for microbatches in counts.tried(share, depth) {
                for &chunks in self.chunks.iter().filter(|&&it| self.has_blocks(task, depth, it)) {
                    configurations.push(Configuration {
                        pp: depth,
                        mesh: Mesh::of(shape.dp, 1, shape.tp),
                        sequence_parallel: shape.sequence_parallel,
                        microbatches,
                        samples: share / microbatches,
                        chunks,
                        schedule: self.schedule,
                        weights: self.weights,
                        zero: if shape.dp > 1 && task.request.shards() { self.zero } else { 0 },
                        cut: self.cut,
                        recompute: self
                            .recompute
                            .iter()
                            .map(|it| it.under(task.cluster.stack()))
                            .collect(),
                        recompute_last: self.recompute_last,
                        timed: self.timed,
                        post_validation: self.post_validation,
                    });
                }
            }
        }
        configurations
    }

    fn has_blocks(&self, task: &Task<'_>, depth: usize, chunks: usize) -> bool {
        self.stages(depth, chunks) <= task.graph.blocks().len()
    }

    /// Stages of a pipeline that comes to `depth` devices with `chunks` stages on each.
    fn stages(&self, depth: usize, chunks: usize) -> usize {
        match self.schedule.arrangement() {
            // Those on a device are of different pipelines.
            Some(Arrangement::Bidirectional) => depth,
            _ => depth * chunks,
        }
    }

    /// Which number leaves no configuration.
    fn refusal(&self, task: &Task<'_>, shapes: &[Shape]) -> MethodError {
        let devices = task.cluster.device_count() as usize;
        let chunks = self.chunks.iter().copied().min().unwrap_or(1);
        let allowed = |depth: usize| {
            (self.deepest || devices.is_multiple_of(depth))
                && (!self.even || depth.is_multiple_of(2))
        };
        if let Err(refusal) = require_depth(task, allowed, |depth| self.stages(depth, chunks)) {
            return refusal;
        }
        let room = |shape: &Shape| devices / (shape.tp * shape.pp) as usize;
        // With this batch all replicas that there is room for have just enough samples.
        let enough = |shape: &&Shape| room(shape) * (self.counts)(shape.pp as usize).least();
        let with_blocks = shapes.iter().filter(|it| self.has_blocks(task, it.pp as usize, chunks));
        let shape = with_blocks.min_by_key(enough).expect("some depth has blocks for its stages");
        let Shape { pp, dp, .. } = *shape;
        let counts = (self.counts)(pp as usize);
        let multiples = match counts.multiple_of {
            1 => String::new(),
            multiple => format!(", in multiples of {multiple}"),
        };
        let replicas = match room(shape) {
            1 => String::new(),
            room if room == dp as usize => format!(" in each of {dp} replicas"),
            room => {
                format!(" in every replica, and of {room} replicas at most {dp} divide the batch")
            }
        };
        let rule = format!(
            "with {pp} stages {} wants at least {} micro-batches{multiples}{replicas}; a multiple of {} \
             samples would do",
            self.schedule.name(),
            counts.least(),
            enough(&shape)
        );
        task.impossible("global_batch", task.request.global_batch, rule)
    }
}

/// Fastest first by estimate if not all are simulated; what would not fit as 1F1B comes last.
fn ranked(
    task: &Task<'_>,
    configurations: Vec<Configuration>,
) -> Result<Vec<Configuration>, MethodError> {
    if !task.is_too_much(&configurations) {
        return Ok(configurations);
    }
    let mut estimator = Estimator::new(task.graph, task.cluster, task.request.settings())?;
    let limit_bytes = task.request.memory_share * estimator.memory_bytes() as f64;
    let mut keyed: Vec<((bool, f64), Configuration)> = vec![];
    for configuration in configurations {
        let mut key = None;
        for &recompute in &configuration.recompute {
            let candidate = configuration.candidate(recompute);
            let Some(found) = estimator.estimate(&candidate)? else { continue };
            let exceeds = found.peak_bytes > limit_bytes;
            key = Some((exceeds, if exceeds { found.peak_bytes } else { found.step_seconds }));
            if !exceeds {
                break;
            }
        }
        // Without an estimate its layout cannot be lowered.
        keyed.extend(key.map(|key| (key, configuration)));
    }
    keyed.sort_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    Ok(keyed.into_iter().map(|(_, configuration)| configuration).collect())
}
