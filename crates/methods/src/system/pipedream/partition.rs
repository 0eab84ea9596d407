//! PipeDream's partition: stages with replicas on a hierarchy of links (Narayanan et al. 2019, "PipeDream:
//! Generalized Pipeline Parallelism for DNN Training", SOSP, section 3.1).

use std::ops::Range;

use crate::MethodError;
use crate::layer_profile::LayerProfile;
use crate::partition::{check_layers, running_sums};

/// A level of the machines' hierarchy: some components of the level below, or devices, behind equal links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Components of the level below that one component of this level consists of.
    pub components: usize,
    /// Of the links between them, in one direction.
    pub bytes_per_second: f64,
}

/// What a stage and the links around it are taken to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StageTime {
    /// As the paper has it: `m` replicas exchange weights of `W` bytes beside computing,
    /// `max(T, 2 (m-1) W / B) / m` per minibatch; outputs of `a` bytes take `2 a / B`. The replicas'
    /// exchange is charged per replica and not shared by the ring, one `1 / m` more than by its own count
    /// of `(m-1)/m W` bytes sent.
    Published,
    /// As in the code that was released (`optimizer_graph_hierarchical.py`): the exchange comes after
    /// computing and goes both ways twice, `(T + 4 (m-1) W / (B m)) / m`.
    ///
    /// The code divides the exchange of a stage that is all of its level's chain, and only of such a
    /// stage, further by the components of the level below; that is left out.
    Released {
        /// By which factor activations are compressed: `2 a / (B m c)` on both sides of a stage. Without
        /// it links take no time.
        compression: Option<f64>,
        /// What each device can hold of weights and activations of minibatches that are under way when
        /// one of a stage's replicas takes the next: as many as the stages behind it have components
        /// for each of its own, rounded up. The last stage then stashes nothing, so that one stage of all
        /// workers is never refused.
        memory_bytes: Option<f64>,
    },
}

/// A stage on the workers that replicate it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedStage {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its workers, numbered through the hierarchy: each component's workers lie next to each other.
    pub workers: Vec<usize>,
}

impl ReplicatedStage {
    /// The number of workers.
    pub fn replicas(&self) -> usize {
        self.workers.len()
    }
}

/// Stages on all workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// First to last.
    pub stages: Vec<ReplicatedStage>,
    /// Per minibatch in the steady state: what the slowest stage or link takes.
    pub bottleneck_seconds: f64,
}

impl Partition {
    /// The first layer of each stage, then the number of layers.
    pub fn cuts(&self) -> Vec<usize> {
        let ends = self.stages.iter().map(|stage| stage.layers.end);
        std::iter::once(0).chain(ends).collect()
    }

    /// NOAM, the number of minibatches that each replica of the first stage admits to keep the pipeline
    /// full: workers per such replica, rounded up (section 3.2).
    pub fn admitted_minibatches(&self) -> usize {
        let workers: usize = self.stages.iter().map(ReplicatedStage::replicas).sum();
        workers.div_ceil(self.stages[0].replicas())
    }
}

/// Cuts `layers` into replicated stages on all workers of `levels`, innermost first, such that the slowest
/// stage or link takes the least time.
///
/// Level by level, `A(i..j, m)`, the best time of layers `i..j` on `m` components, is one stage of all of
/// them or the best way to put a last stage behind a pipeline of the rest:
/// `min over s, m' of max(A(i..s, m - m'), link(s), T(s..j, m'))`. A component computes as fast as the best
/// pipeline of the level below on all of its own components. Where two choices are equally fast, one stage
/// goes before several, then the earliest last cut. O(layers³ components²) per level.
///
/// # Errors
/// If there are no layers, or a level without components or with a bandwidth that is not above 0.
///
/// ```
/// # use shardloom_methods::partition::{LayerProfile, Level, StageTime, pipedream};
/// // A layer of much work and few weights, and one of little work and many weights.
/// let convolution = LayerProfile { backward_seconds: 3.0, ..LayerProfile::default() };
/// let dense = LayerProfile {
///     backward_seconds: 1.0,
///     parameter_bytes: 8e9,
///     gradient_bytes: 8e9,
///     ..LayerProfile::default()
/// };
/// let level = Level { components: 4, bytes_per_second: 1e9 };
/// let found = pipedream(&[convolution, dense], &[level], StageTime::Published)?;
/// let replicas: Vec<usize> = found.stages.iter().map(|stage| stage.replicas()).collect();
/// assert_eq!(replicas, [3, 1]);
/// assert_eq!((found.bottleneck_seconds, found.admitted_minibatches()), (1.0, 2));
/// # Ok::<(), shardloom_methods::MethodError>(())
/// ```
pub fn pipedream(
    layers: &[LayerProfile],
    levels: &[Level],
    time: StageTime,
) -> Result<Partition, MethodError> {
    check(layers, levels)?;
    let chain = Chain::of(layers);
    let mut tables: Vec<Table> = vec![];
    for (index, &level) in levels.iter().enumerate() {
        // Only the outermost level is asked for nothing but the whole chain.
        let starts = if index + 1 == levels.len() { 1 } else { layers.len() };
        let table = Table::fill(&chain, level, time, starts, tables.last());
        tables.push(table);
    }
    let bottleneck_seconds = tables[tables.len() - 1].whole_seconds(0, layers.len());
    Ok(Partition { stages: stages(&tables, 0..layers.len(), 0), bottleneck_seconds })
}

fn check(layers: &[LayerProfile], levels: &[Level]) -> Result<(), MethodError> {
    let wrong = |key, value: String, rule: &str| {
        Err(MethodError::Planner { key, value, rule: rule.into() })
    };
    let seconds: Vec<f64> = layers.iter().map(LayerProfile::seconds).collect();
    check_layers(&seconds, 1)?;
    if levels.is_empty() {
        return wrong("levels", "[]".into(), "at least one, of the devices that there are");
    }
    for level in levels {
        if level.components == 0 {
            return wrong("components", "0".into(), "at least one in each level");
        }
        if level.bytes_per_second.is_nan() || level.bytes_per_second <= 0.0 {
            let value = level.bytes_per_second.to_string();
            return wrong("bytes_per_second", value, "a link carries more than nothing");
        }
    }
    Ok(())
}

/// The layers as running sums.
struct Chain {
    seconds: Vec<f64>,
    gradient_bytes: Vec<f64>,
    held_bytes: Vec<f64>,
    output_bytes: Vec<f64>,
}

impl Chain {
    fn of(layers: &[LayerProfile]) -> Chain {
        let held = |layer: &LayerProfile| layer.kept_bytes + layer.parameter_bytes;
        Chain {
            seconds: running_sums(layers.iter().map(LayerProfile::seconds)),
            gradient_bytes: running_sums(layers.iter().map(|layer| layer.gradient_bytes)),
            held_bytes: running_sums(layers.iter().map(held)),
            output_bytes: layers.iter().map(|layer| layer.output_bytes).collect(),
        }
    }

    fn layers(&self) -> usize {
        self.output_bytes.len()
    }
}

/// One stage in question.
struct Trial {
    layers: Range<usize>,
    /// On one component.
    seconds: f64,
    replicas: usize,
    /// Components for the stages behind it.
    behind: usize,
}

impl StageTime {
    /// Per minibatch; infinite if it does not fit.
    fn stage_seconds(self, chain: &Chain, level: Level, trial: &Trial) -> f64 {
        let Range { start, end } = trial.layers;
        let others = (trial.replicas - 1) as f64;
        let replicas = trial.replicas as f64;
        let exchanged = chain.gradient_bytes[end] - chain.gradient_bytes[start];
        match self {
            StageTime::Published => {
                trial.seconds.max(2.0 * others * exchanged / level.bytes_per_second) / replicas
            }
            StageTime::Released { memory_bytes, .. } => {
                let held = chain.held_bytes[end] - chain.held_bytes[start];
                let stashed = trial.behind.div_ceil(trial.replicas) as f64 * held;
                if memory_bytes.is_some_and(|limit| stashed > limit) {
                    return f64::INFINITY;
                }
                let exchange = 4.0 * others * exchanged / (level.bytes_per_second * replicas);
                (trial.seconds + exchange) / replicas
            }
        }
    }

    /// Of the links before and, where the released code counts it, behind a last stage.
    fn link_seconds(self, chain: &Chain, level: Level, trial: &Trial) -> f64 {
        let Range { start, end } = trial.layers;
        let both_ways = |layer: usize| 2.0 * chain.output_bytes[layer] / level.bytes_per_second;
        match self {
            StageTime::Published => both_ways(start - 1),
            StageTime::Released { compression: Some(factor), .. } => {
                let output = if end < chain.layers() { both_ways(end - 1) } else { 0.0 };
                both_ways(start - 1).max(output) / (trial.replicas as f64 * factor)
            }
            StageTime::Released { compression: None, .. } => 0.0,
        }
    }
}

/// The best way to run some layers on some components.
#[derive(Clone, Copy)]
struct Best {
    seconds: f64,
    /// First layer of the last stage.
    last_start: usize,
    /// Components of the last stage.
    last_replicas: usize,
}

/// The best ways of one level.
struct Table {
    layers: usize,
    components: usize,
    /// By components, first layer and end.
    best: Vec<Best>,
    starts: usize,
}

impl Table {
    fn fill(
        chain: &Chain,
        level: Level,
        time: StageTime,
        starts: usize,
        inner: Option<&Table>,
    ) -> Table {
        let layers = chain.layers();
        let components = level.components;
        let mut table = Table { layers, components, best: vec![], starts };
        let none = Best { seconds: f64::INFINITY, last_start: 0, last_replicas: 0 };
        table.best = vec![none; components * starts * (layers + 1)];
        let trial = |layers: Range<usize>, replicas, used| {
            let seconds = match inner {
                Some(table) => table.whole_seconds(layers.start, layers.end),
                None => chain.seconds[layers.end] - chain.seconds[layers.start],
            };
            Trial { layers, seconds, replicas, behind: components - used }
        };
        for used in 1..=components {
            for start in 0..starts {
                for end in start + 1..=layers {
                    let whole = trial(start..end, used, used);
                    let seconds = time.stage_seconds(chain, level, &whole);
                    let mut best = Best { seconds, last_start: start, last_replicas: used };
                    for last_start in start + 1..end {
                        for replicas in 1..used {
                            let before = table.get(used - replicas, start, last_start).seconds;
                            // Times only grow from here, and most partitions lose here.
                            if before >= best.seconds {
                                continue;
                            }
                            let last = trial(last_start..end, replicas, used);
                            let seconds = before
                                .max(time.link_seconds(chain, level, &last))
                                .max(time.stage_seconds(chain, level, &last));
                            if seconds < best.seconds {
                                best = Best { seconds, last_start, last_replicas: replicas };
                            }
                        }
                    }
                    let index = table.index(used, start, end);
                    table.best[index] = best;
                }
            }
        }
        table
    }

    fn index(&self, components: usize, start: usize, end: usize) -> usize {
        ((components - 1) * self.starts + start) * (self.layers + 1) + end
    }

    fn get(&self, components: usize, start: usize, end: usize) -> Best {
        self.best[self.index(components, start, end)]
    }

    /// The least time of layers on all components.
    fn whole_seconds(&self, start: usize, end: usize) -> f64 {
        self.get(self.components, start, end).seconds
    }
}

/// The stages of `layers` on one whole component of the outermost of `tables`, whose workers are numbered
/// from `first_worker`.
fn stages(tables: &[Table], layers: Range<usize>, first_worker: usize) -> Vec<ReplicatedStage> {
    let Some((table, inner)) = tables.split_last() else {
        return vec![ReplicatedStage { layers, workers: vec![first_worker] }];
    };
    let mut runs = vec![];
    let (mut end, mut components) = (layers.end, table.components);
    while end > layers.start {
        let best = table.get(components, layers.start, end);
        runs.push((best.last_start..end, best.last_replicas));
        end = best.last_start;
        components -= best.last_replicas;
    }
    let size: usize = inner.iter().map(|table| table.components).product();
    let mut found: Vec<ReplicatedStage> = vec![];
    let mut first_worker = first_worker;
    for (run, replicas) in runs.into_iter().rev() {
        let mut copies = stages(inner, run.clone(), first_worker);
        for replica in 1..replicas {
            let replica = stages(inner, run.clone(), first_worker + replica * size);
            for (stage, copy) in copies.iter_mut().zip(replica) {
                stage.workers.extend(copy.workers);
            }
        }
        found.extend(copies);
        first_worker += replicas * size;
    }
    found
}
