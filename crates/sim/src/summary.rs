//! A simulation in a few numbers.

use std::collections::BTreeMap;

use serde::Serialize;
use shardloom_cluster::{Cluster, DeviceId};
use shardloom_program::quantity::{bytes, percent};
use shardloom_program::timeline::{Picos, Track};
use shardloom_program::{PersistentBytes, Program, Rank};

use crate::held::copies_bytes;
use crate::{SimError, Simulation};

/// What a step costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How long a step takes once steps follow each other.
    pub step_seconds: f64,
    /// Share of all devices' time in which they do not compute: the sum of the next two.
    pub bubble_fraction: f64,
    /// Share of it in which they neither compute nor communicate, as they wait for what others have not done yet.
    pub dependency_idle_fraction: f64,
    /// Share of it in which they communicate and do not compute.
    pub exposed_communication_fraction: f64,
    /// Per rank, or per class that its first rank stands for.
    pub ranks: Vec<RankSummary>,
}

/// What a rank does in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSummary {
    /// The rank; of a folded class the first.
    pub rank: u32,
    /// How many identical ranks it stands for.
    #[serde(skip_serializing_if = "is_one")]
    pub multiplicity: u64,
    /// Whether it is on the device of another, as a server may be on a worker's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_colocated: bool,
    /// Time in which it computes.
    pub busy_seconds: f64,
    /// Time in which it receives or takes part in collectives, plus time in which it sends, whether it
    /// computes meanwhile or not.
    pub communication_seconds: f64,
    /// Time in which it does neither.
    pub idle_seconds: f64,
    /// How often it does neither for a microsecond or longer, each time without anything between.
    pub waits: f64,
    /// The most memory that it holds at once.
    pub peak_bytes: u64,
    /// What it sends.
    pub sent_bytes: u64,
    /// What all ranks that it stands for send together.
    pub sent_bytes_by_all: u64,
}

impl RankSummary {
    /// How many devices it stands for: none where it is on another's.
    pub fn devices(&self) -> f64 {
        if self.is_colocated { 0.0 } else { self.multiplicity as f64 }
    }
}

fn is_one(multiplicity: &u64) -> bool {
    *multiplicity == 1
}

/// Whether something fits in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// With room to spare.
    Fits,
    /// With less than a twentieth of the memory to spare, which fragmentation can use up.
    Close,
    /// It does not.
    Exceeds,
}

/// What a rank needs and what its device has. Messages under way are not counted, which belong to neither
/// end; how many there can be [`MessagePlan`](shardloom_program::buffers::MessagePlan) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFit {
    /// The rank; of a folded class the first.
    pub rank: u32,
    /// Of a folded class the rank whose device has the least memory, of several that which holds most; else the rank.
    pub fullest_rank: u32,
    /// The most memory that it holds at once; of a folded class the most that any of its ranks does.
    pub peak_bytes: u64,
    /// The memory of its device; of a folded class the least.
    pub memory_bytes: u64,
    /// Of the peak what is there all the time, and those gradients of parameters that are there by then.
    pub persistent: PersistentBytes,
    /// Of the peak activations and their gradients.
    pub activation_bytes: u64,
}

impl MemoryFit {
    /// Whose device is fullest, as a share of its memory.
    pub fn fullest(ranks: &[MemoryFit]) -> Option<&MemoryFit> {
        let share = |it: &&MemoryFit| it.peak_bytes as f64 / it.memory_bytes as f64;
        ranks.iter().max_by(|a, b| share(a).total_cmp(&share(b)))
    }

    /// Of the peak what is left: weights and gradients that are there only while they are used, parts on their
    /// way through collectives, and what operators and losses use while they run.
    pub fn buffer_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.persistent.total() + self.activation_bytes)
    }

    /// How much of the memory the peak leaves; below 0 where it does not fit.
    pub fn margin_bytes(&self) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.memory_bytes).saturating_sub(signed(self.peak_bytes))
    }

    /// Whether it fits, in words, with the margin: `fits, 12.3 GiB (15.4%) to spare`.
    pub fn verdict(&self) -> String {
        let margin = self.margin_bytes().unsigned_abs();
        let share = percent(margin as f64 / self.memory_bytes.max(1) as f64);
        let margin = bytes(margin);
        match self.fit() {
            Fit::Fits => format!("fits, {margin} ({share}) to spare"),
            Fit::Close => format!("close, {margin} ({share}) to spare"),
            Fit::Exceeds => format!("does not fit, {margin} ({share}) too much"),
        }
    }

    /// Whether it fits.
    pub fn fit(&self) -> Fit {
        let close = self.memory_bytes - self.memory_bytes / 20;
        match self.peak_bytes {
            peak if peak > self.memory_bytes => Fit::Exceeds,
            peak if peak > close => Fit::Close,
            _ => Fit::Fits,
        }
    }
}

impl Simulation {
    /// The numbers of a step once steps follow each other ([`Simulation::step_time`]); bytes sent on average over
    /// all steps.
    pub fn summary(&self) -> Summary {
        let steps = self.steps().max(1);
        let step_seconds = self.step_time().seconds();
        let rank = |(index, track): (usize, &Track)| {
            let last = || self.last_period(index);
            let of_step = |of_period: Picos| of_period.seconds() / self.steps_of_period() as f64;
            RankSummary {
                rank: track.rank,
                multiplicity: track.multiplicity,
                is_colocated: track.is_colocated,
                busy_seconds: of_step(track.busy_in(last())),
                communication_seconds: of_step(track.communicating_in(last())),
                idle_seconds: (step_seconds - of_step(track.covered_in(last(), |_| true))).max(0.0),
                waits: track.waits_in(last(), |_| true) as f64 / self.steps_of_period() as f64,
                peak_bytes: track.peak_bytes,
                sent_bytes: track.sent_bytes / steps as u64,
                sent_bytes_by_all: track.sent_bytes_by_all() / steps as u64,
            }
        };
        let ranks: Vec<RankSummary> = self.timeline.tracks.iter().enumerate().map(rank).collect();
        let weigh = |what: fn(&RankSummary) -> f64| -> f64 {
            ranks.iter().map(|rank| rank.devices() * what(rank)).sum()
        };
        let available = weigh(|_| 1.0) * step_seconds;
        let share = |seconds: f64| if available > 0.0 { seconds / available } else { 0.0 };
        let bubble_fraction = share(available - weigh(|rank| rank.busy_seconds));
        let dependency_idle_fraction = share(weigh(|rank| rank.idle_seconds));
        Summary {
            step_seconds,
            bubble_fraction,
            dependency_idle_fraction,
            exposed_communication_fraction: bubble_fraction - dependency_idle_fraction,
            ranks,
        }
    }

    /// What each rank of `program` needs, but for messages under way, and what its device has, of which others that
    /// are on it, as a worker and a server, need some: the most of each.
    ///
    /// # Errors
    /// If the cluster lacks a device of the program.
    pub fn memory_fits(
        &self,
        program: &Program,
        cluster: &Cluster,
    ) -> Result<Vec<MemoryFit>, SimError> {
        let of_devices = self.peaks_by_device(program);
        let fit = |track: &Track| {
            let (class, first) = program.locate(Rank(track.rank));
            let class = program.class(class);
            let of_position = |position: usize| -> Result<u64, SimError> {
                let device = class.devices[position];
                let of_others = of_devices[&device].saturating_sub(track.peak_bytes);
                let memory = cluster.memory_bytes(cluster.kind_of(device)?);
                Ok(memory.saturating_sub(of_others))
            };
            let position = if track.multiplicity > 1 { class.fullest_position() } else { first };
            let (mut memory_bytes, mut fullest) = (of_position(position)?, position);
            for position in first..first + track.multiplicity as usize {
                let memory = of_position(position)?;
                if memory < memory_bytes {
                    (memory_bytes, fullest) = (memory, position);
                }
            }
            let mut persistent = class.persistent_bytes(position);
            persistent.gradients += copies_bytes(cluster.stack(), program, class);
            persistent.gradients -= track.peak_absent_gradient_bytes.unwrap_or(0);
            Ok(MemoryFit {
                rank: track.rank,
                fullest_rank: class.first_rank.0 + fullest as u32,
                peak_bytes: track.peak_bytes,
                memory_bytes,
                persistent,
                activation_bytes: track.peak_activation_bytes.unwrap_or(0),
            })
        };
        self.timeline.tracks.iter().map(fit).collect()
    }

    /// By device, the most that each rank on it needs, added up.
    fn peaks_by_device(&self, program: &Program) -> BTreeMap<DeviceId, u64> {
        let mut peaks = BTreeMap::new();
        for track in &self.timeline.tracks {
            let (class, first) = program.locate(Rank(track.rank));
            let positions = first..first + track.multiplicity as usize;
            for &device in &program.class(class).devices[positions] {
                *peaks.entry(device).or_default() += track.peak_bytes;
            }
        }
        peaks
    }
}
