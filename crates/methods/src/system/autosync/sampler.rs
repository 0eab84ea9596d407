//! The sampler of strategies, as released (petuum/autodist, `strategy/auto`).

use shardloom_plan::{Compression, Number};

use super::problem::{Problem, Shape};
use super::random::Random;
use super::strategy::{Strategy, Synchroniser, Variable};

/// Most shards of a variable.
const MOST_SHARDS: usize = 40;

/// Most groups of variables that are all-reduced together.
pub(super) const MOST_GROUPS: usize = 20;

/// Bytes in which what a server has too much counts, where servers are drawn.
const LOAD_BYTES: f64 = 1e6;

/// What workers may make of their gradients: nothing, or 16 bits with or without keeping what that leaves out.
pub(super) const COMPRESSIONS: [Compression; 3] = [
    Compression::None,
    Compression::Rounded { to: Number::Fp16, feedback: false },
    Compression::Rounded { to: Number::Fp16, feedback: true },
];

/// Draws strategies.
pub(super) struct Sampler<'a> {
    problem: &'a Problem,
    /// Whether all-reduces without servers beside them may be compressed.
    compresses: bool,
    /// The bytes up to which a variable is not cut, and those from which on it always is.
    bounds: (f64, f64),
}

impl<'a> Sampler<'a> {
    /// Of strategies for a problem.
    pub fn new(problem: &'a Problem, compresses: bool) -> Sampler<'a> {
        let mean = problem.bytes() / problem.variables.len().max(1) as f64;
        Sampler { problem, compresses, bounds: (mean / 2.0, 8.0 * mean) }
    }

    /// What for.
    pub fn problem(&self) -> &Problem {
        self.problem
    }

    /// A strategy: for each variable whether it is cut and into how many shards, whether servers sum it or the
    /// workers; then servers for all shards, largest first, and groups for what workers sum, in order.
    pub fn sample(&self, random: &mut Random) -> Strategy {
        let shape = random.below(self.problem.shapes.len());
        let of = &self.problem.shapes[shape];
        let servers = of.server_bandwidths.len();
        let mut shards: Vec<Option<usize>> = vec![];
        for variable in &self.problem.variables {
            let count = self.shards(variable, random);
            // Published are tables on servers only.
            let is_table = of.looked_up.contains_key(&variable.name);
            let by_servers = servers > 0 && (is_table || random.below(2) == 0);
            shards.push(by_servers.then_some(count));
        }
        let mut synchronisers = self.groups(&shards, of, random);
        self.place(&shards, of, random, &mut synchronisers);
        Strategy { shape, synchronisers }.without_idle_servers()
    }

    /// Into how many shards a variable would be cut.
    fn shards(&self, variable: &Variable, random: &mut Random) -> usize {
        let (least, always) = self.bounds;
        let bytes = (variable.elements() * self.problem.gradient_bytes) as f64;
        let most = variable.rows.min(MOST_SHARDS);
        let is_cut = random.unit() < (bytes - least) / (always - least);
        if is_cut && most >= 2 { 2 + random.below(most - 1) } else { 1 }
    }

    /// Groups of what workers sum: in order, the next is begun when one has its part of all. What servers sum gets
    /// an empty list.
    fn groups(
        &self,
        shards: &[Option<usize>],
        shape: &Shape,
        random: &mut Random,
    ) -> Vec<Synchroniser> {
        let of = self.problem.variables.iter().zip(shards);
        let summed: Vec<usize> =
            of.filter(|(_, shards)| shards.is_none()).map(|(it, _)| it.elements()).collect();
        let groups = 1 + random.below(summed.len().clamp(1, MOST_GROUPS));
        let part = summed.iter().sum::<usize>() as f64 / groups as f64;
        // Workers that have servers exchange gradients as they are.
        let compresses = self.compresses && shape.workers > 1 && shape.server_bandwidths.is_empty();
        let mut draw = || match compresses {
            true => COMPRESSIONS[random.below(COMPRESSIONS.len())],
            false => Compression::None,
        };
        let (mut group, mut load, mut compression) = (0, 0.0, draw());
        let mut synchronisers = vec![];
        for (variable, shards) in self.problem.variables.iter().zip(shards) {
            if shards.is_some() {
                synchronisers.push(Synchroniser::Servers(vec![]));
                continue;
            }
            if load >= part && (group as usize) + 1 < groups {
                (group, load, compression) = (group + 1, 0.0, draw());
            }
            load += variable.elements() as f64;
            synchronisers.push(Synchroniser::AllReduce { group, compression });
        }
        synchronisers
    }

    /// Draws a server for each shard, larger shards first, by what servers may have in proportion to their
    /// bandwidths less what they have.
    fn place(
        &self,
        shards: &[Option<usize>],
        shape: &Shape,
        random: &mut Random,
        synchronisers: &mut [Synchroniser],
    ) {
        let mut pieces: Vec<(f64, usize, usize)> = vec![];
        for (index, (variable, count)) in self.problem.variables.iter().zip(shards).enumerate() {
            let Some(count) = *count else { continue };
            let bytes = (variable.elements() * self.problem.gradient_bytes) as f64;
            let bytes = bytes * shape.share(variable);
            pieces.extend((0..count).map(|piece| (bytes / count as f64, index, piece)));
            synchronisers[index] = Synchroniser::Servers(vec![0; count]);
        }
        pieces.sort_by(|one, other| other.0.total_cmp(&one.0));
        let total: f64 = pieces.iter().map(|piece| piece.0).sum();
        let bandwidth: f64 = shape.server_bandwidths.iter().sum();
        let mut loads = vec![0.0; shape.server_bandwidths.len()];
        for (bytes, index, piece) in pieces {
            let room = |(server, own): (usize, &f64)| total * own / bandwidth - loads[server];
            let room: Vec<f64> = shape.server_bandwidths.iter().enumerate().map(room).collect();
            let most = room.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> =
                room.iter().map(|room| ((room - most) / LOAD_BYTES).exp()).collect();
            let server = random.among(&weights);
            loads[server] += bytes;
            if let Synchroniser::Servers(servers) = &mut synchronisers[index] {
                servers[piece] = server as u32;
            }
        }
    }
}
