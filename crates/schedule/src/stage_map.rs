//! Which stages live on which device, and which micro-batches they get.

use std::collections::BTreeSet;

use shardloom_plan::{Arrangement, ScheduleKind};

use super::notation::Notation;
use super::{Action, Instance, Pass};
use crate::ScheduleError;

/// A pipeline: the device of each of its stages, first to last. A device here is whatever runs one
/// order: one device, or the mesh of devices that a stage is split over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(pub Vec<usize>);

impl Chain {
    /// The number of its stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Whether it sets out towards lower device numbers.
    pub fn is_reverse(&self) -> bool {
        matches!(self.0[..], [first, second, ..] if first > second)
    }
}

/// Of how many pipelines an error says where their stages are.
const PIPELINES_SHOWN: usize = 8;

/// Where the stages of all pipelines live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageMap {
    devices: usize,
    chains: Vec<Chain>,
    microbatches: u32,
    /// By pipeline, the micro-batches of a step that it gets, ascending.
    dealt: Vec<Vec<u32>>,
    /// For each stage how many devices take turns at it, where that is what pipelines are for.
    replicas: Option<Vec<usize>>,
}

impl StageMap {
    /// Pipelines whose stages live on the given devices. Micro-batches are dealt to them in turn: with
    /// two pipelines the first gets 0, 2, 4, the second 1, 3, 5. The first may get one more than the last.
    ///
    /// # Errors
    /// If there is nothing to run, or devices take micro-batches in turn and these do not come round evenly.
    pub fn new(places: Vec<Vec<usize>>, microbatches: usize) -> Result<StageMap, ScheduleError> {
        let pipelines = places.len().max(1);
        let (each, left) = (microbatches / pipelines, microbatches % pipelines);
        let share = |index| each + usize::from(index < left);
        let shares: Vec<usize> = (0..places.len()).map(share).collect();
        StageMap::with_shares(places, &shares)
    }

    /// Likewise with so many micro-batches of a step for each pipeline: each gets its own spread evenly over
    /// the step.
    ///
    /// # Errors
    /// As [`StageMap::new`]; and if pipelines that share devices in turn get unequal shares.
    pub fn with_shares(
        places: Vec<Vec<usize>>,
        shares: &[usize],
    ) -> Result<StageMap, ScheduleError> {
        let refuse = |message: String| Err(ScheduleError::Rule(message));
        let microbatches = shares.iter().fold(0, |sum: usize, &share| sum.saturating_add(share));
        let devices = places.iter().flatten().max().map_or(0, |&last| last + 1);
        let pipelines = places.len();
        let longest = places.iter().map(Vec::len).max().unwrap_or(0);
        let fits = |number: usize| u16::try_from(number).is_ok();
        if devices == 0 || microbatches == 0 || places.iter().any(Vec::is_empty) {
            return refuse("a pipeline needs a stage and a micro-batch".into());
        }
        if !fits(pipelines) || !fits(longest) || u32::try_from(microbatches).is_err() {
            return refuse(format!("{longest} stages with {microbatches} micro-batches: too many"));
        }
        if shares.contains(&0) {
            let message = format!(
                "each of {pipelines} pipelines needs a micro-batch, and there are {microbatches}"
            );
            return refuse(message);
        }
        let replicas = replicas(&places);
        let in_turn = Arrangement::taking_turns(&replicas).is_ok_and(|wanted| wanted == places);
        // Pipelines on devices of their own need not keep step.
        let apart = replicas.iter().all(|&it| it == pipelines);
        let replicas = in_turn.then_some(replicas);
        let chains = places.into_iter().map(Chain).collect();
        let (dealt, microbatches) = (deal(shares), microbatches as u32);
        let map = StageMap { devices, chains, microbatches, dealt, replicas };
        if in_turn && !apart {
            map.require_even_shares()?;
        }
        Ok(map)
    }

    /// Makes sure that all pipelines get as many micro-batches.
    pub(super) fn require_even_shares(&self) -> Result<(), ScheduleError> {
        let pipelines = self.chains.len();
        if self.dealt.windows(2).all(|pair| pair[0].len() == pair[1].len()) {
            return Ok(());
        }
        let microbatches = self.microbatches;
        let rule =
            format!("{microbatches} micro-batches cannot be dealt evenly to {pipelines} pipelines");
        Err(ScheduleError::microbatches(microbatches as usize, rule))
    }

    /// The usual places of `arrangement` on `devices` devices with `chunks` stages each.
    ///
    /// # Errors
    /// As [`StageMap::new`], or if the arrangement does not exist for these numbers.
    pub fn arranged(
        arrangement: Arrangement,
        devices: usize,
        chunks: usize,
        microbatches: usize,
    ) -> Result<StageMap, ScheduleError> {
        StageMap::new(arrangement.places(devices, chunks)?, microbatches)
    }

    /// Whether the stages live where `kind` has them.
    pub(super) fn check(
        &self,
        kind: ScheduleKind,
        arrangement: Arrangement,
    ) -> Result<(), ScheduleError> {
        let given: Vec<Vec<usize>> = self.chains.iter().map(|chain| chain.0.clone()).collect();
        let wanted = match arrangement {
            // Or, where replicas cannot take turns at all, without any.
            Arrangement::TakingTurns => Arrangement::taking_turns(&replicas(&given))
                .or_else(|_| Arrangement::Chain.places(given[0].len(), 1))?,
            _ => arrangement.places(self.devices, self.instances_on(0).count())?,
        };
        if given == wanted {
            return Ok(());
        }
        let text = |chains: &[Vec<usize>]| {
            let stages = |chain: &Vec<usize>| {
                chain.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
            };
            let more = if chains.len() > PIPELINES_SHOWN { "; …" } else { "" };
            let shown = chains.iter().take(PIPELINES_SHOWN).map(stages).collect::<Vec<_>>();
            shown.join("; ") + more
        };
        Err(ScheduleError::Rule(format!(
            "{} wants its stages on devices {}, and they are on {}",
            kind.name(),
            text(&wanted),
            text(&given)
        )))
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// The pipelines.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Micro-batches of a step, over all pipelines.
    pub fn microbatches(&self) -> u32 {
        self.microbatches
    }

    /// The pipeline an instance belongs to.
    pub fn chain(&self, instance: Instance) -> &Chain {
        &self.chains[instance.pipeline as usize]
    }

    /// Where an instance lives.
    pub fn device(&self, instance: Instance) -> usize {
        self.chain(instance).0[instance.stage as usize]
    }

    /// The stage that an instance gets activations from.
    pub fn before(&self, instance: Instance) -> Option<Instance> {
        instance.stage.checked_sub(1).map(|stage| Instance { stage, ..instance })
    }

    /// The stage that an instance hands activations to.
    pub fn after(&self, instance: Instance) -> Option<Instance> {
        let stage = instance.stage + 1;
        let exists = (stage as usize) < self.chain(instance).stages();
        exists.then_some(Instance { stage, ..instance })
    }

    /// All instances, pipeline by pipeline.
    pub fn instances(&self) -> impl Iterator<Item = Instance> {
        self.chains.iter().zip(0u16..).flat_map(|(chain, pipeline)| {
            (0..chain.stages() as u16).map(move |stage| Instance { pipeline, stage })
        })
    }

    /// The instances on `device`: those of the first pipeline by stage, then of the next.
    pub fn instances_on(&self, device: usize) -> impl Iterator<Item = Instance> {
        self.instances().filter(move |&it| self.device(it) == device)
    }

    /// How many devices take turns at each stage: micro-batch `k` goes to device `k mod r` of them. One
    /// everywhere on a plain chain; none where devices hold several stages.
    pub fn replicas(&self) -> Option<&[usize]> {
        self.replicas.as_deref()
    }

    /// Which of the devices that take turns at its stage an instance lives on, if there are several.
    pub fn replica(&self, instance: Instance) -> Option<u32> {
        let count = *self.replicas.as_ref()?.get(usize::from(instance.stage))? as u32;
        (count > 1).then(|| u32::from(instance.pipeline) % count)
    }

    /// The chunks of a device: the different stages it holds of pipelines that run the same way, in order,
    /// each with its instances. Several are of pipelines that come to this device in turn.
    pub fn chunks(&self, device: usize, reverse: bool) -> Vec<Vec<Instance>> {
        let same = |it: &Instance| self.chain(*it).is_reverse() == reverse;
        let mut chunks: Vec<Vec<Instance>> = vec![];
        for instance in self.instances_on(device).filter(same) {
            let known = chunks.iter_mut().find(|chunk| {
                let other = chunk[0];
                self.replicas.is_some() && other.stage == instance.stage
            });
            match known {
                Some(chunk) => chunk.push(instance),
                None => chunks.push(vec![instance]),
            }
        }
        chunks
    }

    /// The instances on `device` with the micro-batches that they get in one step, in order of these.
    pub(super) fn work_on(&self, device: usize) -> Vec<(Instance, u32)> {
        let of = |instance: Instance| {
            self.microbatches_of(instance).iter().map(move |&it| (instance, it))
        };
        let mut work: Vec<(Instance, u32)> = self.instances_on(device).flat_map(of).collect();
        work.sort_by_key(|&(_, microbatch)| microbatch);
        work
    }

    /// The micro-batches of an instance in one step.
    pub fn microbatches_of(&self, instance: Instance) -> &[u32] {
        &self.dealt[usize::from(instance.pipeline)]
    }

    /// Whether micro-batch `microbatch`, of this or a later step, goes through `instance`.
    pub fn feeds(&self, instance: Instance, microbatch: u32) -> bool {
        let dealt = self.microbatches_of(instance);
        dealt.binary_search(&(microbatch % self.microbatches)).is_ok()
    }

    /// Whether micro-batch `microbatch`, of this or a later step, is the last of its step in the pipeline of
    /// `instance`.
    pub fn is_last(&self, instance: Instance, microbatch: u32) -> bool {
        self.microbatches_of(instance).last() == Some(&(microbatch % self.microbatches))
    }

    /// What share of a whole device's work on a micro-batch an instance does, if every pipeline has
    /// equal stages and each device as many stages of each pipeline. Where devices take turns, stages are
    /// such that all devices have as much to do: a stage with `r` of them takes `r` times as long.
    pub fn share(&self, instance: Instance) -> f64 {
        match &self.replicas {
            Some(replicas) => replicas[instance.stage as usize] as f64,
            None => self.devices as f64 / self.chain(instance).stages() as f64,
        }
    }

    /// A pass as people write it on `device`: kind, micro-batch, `@chunk` where the device holds several
    /// that run the same way, `<` for the reverse direction.
    pub fn pass_text(&self, device: usize, pass: Pass) -> String {
        self.notation(device).pass(pass)
    }

    /// An action as people write it: `F3`, or `F3+B1<` where two overlap.
    pub fn text(&self, device: usize, action: Action) -> String {
        self.notation(device).text(action)
    }

    /// Reads what [`StageMap::text`] writes.
    ///
    /// # Errors
    /// If it is no action, or not one of this device.
    pub fn parse(&self, device: usize, text: &str) -> Result<Action, ScheduleError> {
        self.notation(device).parse(text)
    }

    /// How passes of `device` are written, to write or read many.
    pub fn notation(&self, device: usize) -> Notation<'_> {
        Notation::new(self, device)
    }
}

/// By pipeline its micro-batches of a step, of which the j-th of n comes at (j + 1/2) / n of the step; at the
/// same moment those of first pipelines come first.
fn deal(shares: &[usize]) -> Vec<Vec<u32>> {
    let times = |(pipeline, &share): (usize, &usize)| {
        // Halves of a share keep moments whole; products of two shares fit.
        (0..share).map(move |index| (2 * index as u128 + 1, share as u128, pipeline))
    };
    let mut moments: Vec<(u128, u128, usize)> = shares.iter().enumerate().flat_map(times).collect();
    moments.sort_by(|first, second| {
        (first.0 * second.1).cmp(&(second.0 * first.1)).then(first.2.cmp(&second.2))
    });
    let mut dealt = vec![vec![]; shares.len()];
    for (microbatch, (_, _, pipeline)) in (0u32..).zip(moments) {
        dealt[pipeline].push(microbatch);
    }
    dealt
}

/// For each stage how many devices it is on.
fn replicas(places: &[Vec<usize>]) -> Vec<usize> {
    let longest = places.iter().map(Vec::len).max().unwrap_or(0);
    let devices = |stage: usize| -> BTreeSet<usize> {
        places.iter().filter_map(|chain| chain.get(stage)).copied().collect()
    };
    (0..longest).map(|stage| devices(stage).len()).collect()
}
