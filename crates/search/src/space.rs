//! The plans that a search chooses from.

use std::sync::Arc;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Arrangement, Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Undivided};

use crate::only::{Only, allows};
use crate::{Request, Runner, SearchError};

/// All uniform plans whose sizes divide: tensor-parallel groups that divide what they split; numbers of
/// pipeline stages that divide how many such groups there are; context parallelism where sequences are
/// of 16,384 positions or more, or where there is room for more replicas than samples; as many replicas as there is
/// room for, or the most below that the batch can be dealt to, which leaves devices out; sequence
/// parallelism; ZeRO stages, shared by all replicas or by those of a node; micro-batches; recomputation;
/// schedule, with as many stages on each device as it can have; cut.
///
/// Plans that mean the same are in it once: ZeRO and data parallelism of width one, sequence and tensor
/// parallelism of width one, schedules and cuts of a single stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Devices of the smallest node.
    node: u32,
    shapes: Vec<Shape>,
    schedules: Vec<ScheduleKind>,
    /// Blocks of the model.
    blocks: u32,
    global_batch: u32,
    shards: bool,
    /// Positions of a sequence, if the model has any.
    seq: Option<u32>,
    /// What the cluster's software stack can compute again.
    recompute: Vec<Recompute>,
    only: Only,
    /// Who is to run the plan, and what it is wanted for, if not everybody does.
    runner: Option<(Arc<dyn Runner>, Request)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    pp: u32,
    dp: u32,
    cp: u32,
    tp: u32,
}

/// Positions from which on a sequence is split by context parallelism for the sake of its length: what
/// attention takes of a block is then as much as all else, and so is what is kept of it.
const LONG_SEQUENCE: u32 = 16_384;

/// The fewest positions that a context-parallel rank has: with fewer than 4,096, bringing the keys and values of all
/// others takes longer than their products. Where so many replicas were asked for and no more, that costs less than
/// devices that stand idle.
pub(crate) fn least_positions(only: &Only) -> u32 {
    match only.dp {
        None => 4_096,
        Some(_) => 256,
    }
}

impl Space {
    /// The plans for `graph` on `cluster` with tensor-parallel groups that stay within a node.
    ///
    /// # Errors
    /// If the request asks for what cannot be.
    pub fn new(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Space, SearchError> {
        let node = node_devices(cluster);
        Space::with_tp(graph, cluster, request, |tp| tp <= node)
    }

    /// The plans with tensor-parallel groups that do not fit in a node.
    pub(crate) fn across_nodes(
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<Space, SearchError> {
        let node = node_devices(cluster);
        Space::with_tp(graph, cluster, request, |tp| tp > node)
    }

    fn with_tp(
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
        allowed: impl Fn(u32) -> bool,
    ) -> Result<Space, SearchError> {
        request.validate()?;
        let devices = cluster.device_count();
        let global_batch = request.global_batch as u32;
        let blocks = graph.blocks().len() as u32;
        let seq = graph.dim_named("seq").map(|dim| graph.dim(dim).size as u32);
        let mut shapes = vec![];
        let only = &request.only;
        let widths = (1..=devices).filter(|&tp| allows(only.tp, tp) && allowed(tp));
        for tp in widths.filter(|&tp| divides(graph, 1, tp)) {
            let depths = divisors(devices / tp).filter(|&pp| allows(only.pp, pp));
            for pp in depths.filter(|&pp| pp <= blocks) {
                let room = devices / tp / pp;
                let contexts = match only.cp {
                    Some(cp) => divisors(room).filter(|&it| it == cp).collect(),
                    // So many replicas there are, and no more.
                    None => {
                        contexts(seq, room, only.dp.unwrap_or(global_batch), least_positions(only))
                    }
                };
                for cp in contexts.into_iter().filter(|&cp| divides(graph, cp, tp)) {
                    let runs = |dp: u32| {
                        let devices = pp * dp * cp * tp;
                        request.runner.as_ref().is_none_or(|it| it.runs_on(cluster, devices))
                    };
                    let dealt = divisors(global_batch).filter(|&dp| dp <= room / cp && runs(dp));
                    let dp = dealt.filter(|&dp| allows(only.dp, dp)).last();
                    shapes.extend(dp.map(|dp| Shape { pp, dp, cp, tp }));
                }
            }
        }
        let schedules = request.schedules.clone();
        let mut recompute = match only.recompute {
            Some(recompute) => vec![recompute.under(cluster.stack())],
            None => Recompute::by_block_under(cluster.stack(), graph.attention()),
        };
        if request.runner.is_some() {
            // All others run whole blocks again.
            for it in recompute.iter_mut().filter(|it| **it == Recompute::Full) {
                *it = Recompute::Block;
            }
        }
        Ok(Space {
            node: node_devices(cluster),
            shapes,
            schedules,
            blocks,
            recompute,
            global_batch,
            shards: request.shards(),
            seq,
            only: only.clone(),
            runner: request.runner.clone().map(|runner| (runner, request.clone())),
        })
    }

    /// How many candidates there are.
    pub fn count(&self) -> usize {
        if self.runner.is_some() {
            return self.candidates().count();
        }
        let of_shape = |shape: &Shape| {
            let microbatches = self.microbatches_of(shape).count();
            let orders = self.orders_of(shape).len() * self.cuts_of(shape).len();
            let zeros = self.zeros_of(shape).len();
            let sequences = self.sequences_of(shape).len();
            microbatches * orders * zeros * sequences * self.recompute.len()
        };
        self.shapes.iter().map(of_shape).sum()
    }

    /// All candidates, in a fixed order: those with the same split of a sample, micro-batch and
    /// recomputation next to each other.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.shapes.iter().flat_map(move |shape| self.of_shape(shape))
    }

    fn of_shape(&self, shape: &Shape) -> impl Iterator<Item = Candidate> {
        let Shape { pp, dp, cp, tp } = *shape;
        let share = self.global_batch / dp;
        let (zeros, cuts) = (self.zeros_of(shape), self.cuts_of(shape));
        let (orders, sequences) = (self.orders_of(shape), self.sequences_of(shape));
        let mut candidates = vec![];
        for &sequence_parallel in sequences {
            for microbatch in self.microbatches_of(shape) {
                for &recompute in &self.recompute {
                    for &(schedule, chunks) in &orders {
                        let of = zeros.iter().map(|&(zero, sharing)| Candidate {
                            pp,
                            dp,
                            cp,
                            tp,
                            sequence_parallel,
                            zero,
                            sharing,
                            microbatch,
                            microbatches: share / microbatch,
                            recompute,
                            schedule,
                            chunks,
                            cut: cuts[0],
                        });
                        let taken: Vec<Candidate> = of.filter(|it| self.takes(it)).collect();
                        for &cut in cuts {
                            candidates.extend(taken.iter().map(|it| Candidate { cut, ..*it }));
                        }
                    }
                }
            }
        }
        candidates.into_iter()
    }

    /// Samples of micro-batches.
    fn microbatches_of(&self, shape: &Shape) -> impl Iterator<Item = u32> + use<> {
        let asked = self.only.microbatch;
        divisors(self.global_batch / shape.dp).filter(move |&it| allows(asked, it))
    }

    /// The smallest micro-batch that there may be.
    pub(crate) fn least_microbatch(&self) -> u32 {
        self.only.microbatch.unwrap_or(1)
    }

    /// ZeRO stages, each with how many replicas share: all, or those within a node where there are others.
    fn zeros_of(&self, shape: &Shape) -> Vec<(u8, u32)> {
        let Shape { dp, cp, tp, .. } = *shape;
        let mut zeros = vec![(0, dp)];
        if self.shards && dp * cp > 1 {
            zeros.extend([1, 2, 3].map(|zero| (zero, dp)));
            let within = self.node / (cp * tp);
            if within > 0 && within < dp && within * cp > 1 && dp.is_multiple_of(within) {
                zeros.extend([1, 2, 3].map(|zero| (zero, within)));
            }
        }
        zeros.retain(|&(zero, _)| allows(self.only.zero, zero));
        zeros
    }

    fn sequences_of(&self, shape: &Shape) -> &'static [bool] {
        let splits = self.seq.is_some_and(|seq| seq.is_multiple_of(shape.cp * shape.tp));
        if shape.tp > 1 && splits { &[false, true] } else { &[false] }
    }

    /// Whether whoever is to run the plan runs a candidate, wherever it is cut.
    pub(crate) fn takes(&self, candidate: &Candidate) -> bool {
        self.runner.as_ref().is_none_or(|(runner, request)| {
            runner.runs_numbers(&request.numbers(candidate), candidate.chunks as usize)
        })
    }

    fn cuts_of(&self, shape: &Shape) -> &'static [Cut] {
        if shape.pp > 1 && self.runner.as_ref().is_some_and(|(it, _)| it.own_cuts().is_some()) {
            return &[Cut::Own];
        }
        if shape.pp > 1 { &[Cut::Even, Cut::Balanced] } else { &[Cut::Even] }
    }

    /// Whether it has plans of this schedule.
    pub(crate) fn has(&self, schedule: ScheduleKind) -> bool {
        self.schedules.contains(&schedule)
    }

    /// Schedules, each with how many stages there are on a mesh. With a single stage the one that holds the
    /// least is as fast as any.
    fn orders_of(&self, shape: &Shape) -> Vec<(ScheduleKind, u32)> {
        if shape.pp == 1 {
            let plain = |it: &&ScheduleKind| **it == ScheduleKind::OneForwardOneBackward;
            let least = self.schedules.iter().find(plain).or(self.schedules.first());
            return least.map(|&it| (self.alone(it), 1)).into_iter().collect();
        }
        let of = |&schedule: &ScheduleKind| {
            let chunks = self.chunks_of(schedule, shape.pp);
            chunks.into_iter().map(move |chunks| (schedule, chunks))
        };
        self.schedules.iter().flat_map(of).collect()
    }

    /// What a schedule is with a single stage: without a pipeline all are alike.
    fn alone(&self, schedule: ScheduleKind) -> ScheduleKind {
        match schedule.arrangement().unwrap_or(Arrangement::Chain).least_chunks() {
            1 => schedule,
            _ => ScheduleKind::OneForwardOneBackward,
        }
    }

    /// How many stages a mesh can have.
    fn chunks_of(&self, schedule: ScheduleKind, pp: u32) -> Vec<u32> {
        let arrangement = schedule.arrangement().unwrap_or(Arrangement::Chain);
        let tried: Vec<u32> = match (arrangement, schedule) {
            (Arrangement::Chain | Arrangement::TakingTurns, _) => vec![1],
            (Arrangement::Looped, _) => {
                (2..=MOST_CHUNKS).filter(|&it| self.deals(pp * it)).collect()
            }
            (_, ScheduleKind::Hanayo) => vec![2, 4],
            _ => vec![2],
        };
        let exists = |&chunks: &u32| match arrangement {
            Arrangement::Bidirectional => pp.is_multiple_of(chunks),
            _ => pp * chunks <= self.blocks,
        };
        let is_tried = |&chunks: &u32| chunks == 1 || pp * chunks <= MOST_STAGES;
        tried.into_iter().filter(exists).filter(is_tried).collect()
    }

    /// Whether it has no plans of more than [`MOST_STAGES`] stages though there are blocks for them.
    pub(crate) fn leaves_out_stages(&self) -> bool {
        let may_have_more = |shape: &Shape| shape.pp > 1 && shape.pp * MOST_CHUNKS > MOST_STAGES;
        self.blocks > MOST_STAGES && self.shapes.iter().any(may_have_more)
    }

    /// Whether so many stages can have as many blocks each, the first and the last block counted or not:
    /// embeddings and heads are not like the others.
    fn deals(&self, stages: u32) -> bool {
        let even = |ends: u32| (self.blocks.saturating_sub(ends)).is_multiple_of(stages);
        stages <= self.blocks && (0..=2).any(even)
    }
}

/// The most stages on a mesh that are tried.
const MOST_CHUNKS: u32 = 16;

/// The most stages on all meshes of a pipeline that are tried where they have several.
pub(crate) const MOST_STAGES: u32 = 1024;

/// The widths of context parallelism that are tried where there is `room` for so many ranks with the same
/// parameters, `most_replicas` at most, and ranks have `least_positions` at least.
fn contexts(seq: Option<u32>, room: u32, most_replicas: u32, least_positions: u32) -> Vec<u32> {
    let seq = seq.unwrap_or(1);
    let matters = seq >= LONG_SEQUENCE || most_replicas < room;
    let wide = |cp: &u32| matters && seq.is_multiple_of(*cp) && seq / cp >= least_positions;
    divisors(room).filter(|cp| *cp == 1 || wide(cp)).collect()
}

/// Whether context and tensor parallelism of these widths divide what they split.
fn divides(graph: &Graph, cp: u32, tp: u32) -> bool {
    undivided(graph, cp, tp).is_none()
}

/// What stands against context and tensor parallelism of these widths.
pub(crate) fn undivided(graph: &Graph, cp: u32, tp: u32) -> Option<Undivided> {
    Candidate {
        pp: 1,
        dp: 1,
        cp,
        tp,
        sequence_parallel: false,
        zero: 0,
        sharing: 1,
        microbatch: 1,
        microbatches: 1,
        recompute: Recompute::None,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        cut: Cut::Even,
    }
    .undivided(graph)
}

/// Devices of the smallest node.
pub(crate) fn node_devices(cluster: &Cluster) -> u32 {
    cluster.groups().iter().map(|group| group.devices_per_node).min().unwrap_or(1)
}

/// The numbers that divide `number`, ascending.
pub fn divisors(number: u32) -> impl Iterator<Item = u32> {
    // Squares may be no `u32`.
    let square = |it: &u32| u64::from(*it) * u64::from(*it);
    let small = (1..).take_while(|it| square(it) <= u64::from(number));
    let small: Vec<u32> = small.filter(|it| number.is_multiple_of(*it)).collect();
    let paired = small.iter().rev().filter(|it| square(it) != u64::from(number));
    let large: Vec<u32> = paired.map(|it| number / it).collect();
    small.into_iter().chain(large)
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;

    use super::*;

    /// With 64 devices or fewer on a pipeline 16 stages on each are no more.
    #[test]
    fn stages_are_left_out_of_models_of_more_than_1024_blocks_on_more_than_64_devices() {
        for (layers, devices, expected) in
            [(1022, 128, false), (1023, 128, true), (1023, 64, false), (1023, 65, true)]
        {
            let text = format!("mlp:inputs=2,hidden=2,layers={layers},classes=2");
            let graph = ModelSpec::parse(&text).and_then(|spec| spec.graph()).expect("a model");
            let ends = graph.blocks().len() - layers;
            let cluster = Cluster::parse(&format!("h100-80g:{devices}x1")).expect("a preset");
            let request = Request::new(&text, "c", 8);
            let mut space = Space::new(&graph, &cluster, &request).expect("a space");
            // As many blocks as a model with an embedding and a head of their own.
            space.blocks += 2 - ends as u32;
            assert_eq!(space.leaves_out_stages(), expected, "{layers} on {devices}");
        }
    }

    #[test]
    fn divisors_are_all_numbers_that_divide() {
        // Squares, primes and numbers whose large divisors have squares of more than 32 bits.
        for number in (1..=1000u32).chain([65_536, 65_537, 131_074, 720_720, 1 << 24]) {
            let all: Vec<u32> = (1..=number).filter(|&it| number.is_multiple_of(it)).collect();
            assert_eq!(divisors(number).collect::<Vec<_>>(), all, "{number}");
        }
        // 3 x 5 x 17 x 257 x 65,537.
        let largest: Vec<u32> = divisors(u32::MAX).collect();
        assert_eq!((largest.len(), largest[1], largest[30]), (32, 3, u32::MAX / 3));
    }
}
