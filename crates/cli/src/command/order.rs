//! The options that choose the order of passes.

use std::fmt;
use std::num::NonZeroUsize;

use clap::Args;
use shardloom::methods::Rules;
use shardloom::plan::{
    Arrangement, Corrections, Optimizer, PassTimes, ScheduleKind, Updates, Weights,
};
use shardloom::schedule::{Schedule, StageMap};

use super::schedule_kind::{Named, schedule_kind};
use crate::failure::Failure;
use crate::number::whole;

/// A schedule, and the stages that it has on each device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// The schedule, and the system whose name it was asked for by.
    pub named: Named,
    /// Stages on each device; as few as the schedule wants if absent.
    pub chunks: Option<usize>,
    /// Which version of the weights passes run with; the system's or the schedule's own if absent.
    pub versions: Option<Weights>,
}

impl Order {
    /// The order of passes.
    pub fn kind(self) -> ScheduleKind {
        self.named.kind
    }

    /// What a step with `optimizer` is besides the order of passes.
    ///
    /// # Errors
    /// If it has the name of a system whose weights have other versions than were asked for.
    pub fn rules(self, optimizer: &Optimizer) -> Result<Rules, Failure> {
        let Named { name, kind, .. } = self.named;
        let system = self.named.system().map(|system| system.rules(optimizer));
        let (weights, recompute) = (kind.usual_weights(), None);
        let rules = system.unwrap_or(Rules { weights, updates: Updates::Step, recompute });
        let Some(weights) = self.versions else { return Ok(rules) };
        // With a flush there is only one version, which the plan says.
        if self.named.is_order() || kind.flushes() {
            let rounds = matches!(weights, Weights::Stash | Weights::VerticalSync);
            let updates = if rounds { rules.updates } else { Updates::Step };
            return Ok(Rules { weights, updates, ..rules });
        }
        if weights.name() == rules.weights.name() {
            return Ok(rules);
        }
        let message = format!(
            "--versions {} cannot be given with --schedule {name}, which is a name for {}; --schedule {} \
             takes it",
            weights.name(),
            rules.weights.name(),
            kind.name()
        );
        Err(Failure::usage("--versions", message))
    }

    fn arrangement(self) -> Arrangement {
        self.kind().arrangement().unwrap_or(Arrangement::Chain)
    }

    /// Stages on each device.
    pub fn chunks(self) -> usize {
        self.chunks.unwrap_or_else(|| self.arrangement().least_chunks())
    }

    /// Whether there is such a schedule of so many micro-batches.
    pub fn exists(self, pp: usize, microbatches: usize) -> bool {
        let map = StageMap::arranged(self.arrangement(), pp, self.chunks(), microbatches);
        // Weight gradients fill gaps of one pipeline of one stage on each device, however many micro-batches there are.
        if self.kind().halves() && self.kind().arrangement() == Some(Arrangement::Chain) {
            return map.is_ok();
        }
        let build = |map| Schedule::build(self.kind(), map, &PassTimes::default());
        map.and_then(build).is_ok()
    }
}

/// The order of passes.
#[derive(Debug, Args)]
pub struct OrderOptions {
    /// Order of passes; `shardloom schedule --help` lists all. The name of a published system also brings
    /// what else defines its steps: which weights passes run with (pipedream, pipedream-2bw), corrections
    /// of late gradients (pipemare, pipelined-backpropagation), updates after every micro-batch, which is
    /// then the only one of a step unless --microbatches says more (pipedream,
    /// pipelined-backpropagation), recomputation (gpipe) [default: 1f1b]
    #[arg(long, value_name = "KIND", value_parser = schedule_kind)]
    schedule: Option<Named>,

    /// Stages on each device [default: as few as the schedule wants]
    #[arg(long, value_name = "V", value_parser = whole::<usize>)]
    chunks: Option<usize>,

    /// Which version of the weights passes run with, where the schedule has no flush: stash,
    /// vertical-sync, double-buffer or newest; with pipemare, `newest` leaves out its corrections
    /// [default: the system's]
    #[arg(long, value_name = "RULE", value_parser = versions)]
    versions: Option<Weights>,
}

impl OrderOptions {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let OrderOptions { schedule, chunks, versions } = self;
        let chunks = chunks.map(|_| "--chunks");
        let versions = versions.map(|_| "--versions");
        schedule.map(|_| "--schedule").or(chunks).or(versions)
    }

    /// The order.
    pub fn order(&self) -> Order {
        let usual = Named::own(ScheduleKind::OneForwardOneBackward);
        let named = self.schedule.unwrap_or(usual);
        Order { named, chunks: self.chunks, versions: self.versions }
    }
}

/// The rules for weight versions.
pub fn version_rules() -> [Weights; 4] {
    let newest = Weights::Newest { corrections: Corrections::default() };
    [Weights::Stash, Weights::VerticalSync, Weights::DoubleBuffer, newest]
}

/// Parses a rule for weight versions.
fn versions(text: &str) -> Result<Weights, String> {
    let rules = version_rules();
    rules.into_iter().find(|rule| rule.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
        let names = rules.map(Weights::name).join(", ");
        format!("there are {names}; what corrects late gradients is for a plan file to say")
    })
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chunks {
            None => write!(f, "{}", self.named.name),
            Some(chunks) => write!(f, "{}:{chunks}", self.named.name),
        }
    }
}

/// Parses a schedule, and after a colon the stages on each device.
///
/// # Errors
/// What would be right.
pub fn order(text: &str) -> Result<Order, String> {
    let (name, chunks) = match text.split_once(':') {
        None => (text, None),
        Some((name, chunks)) => {
            let chunks = whole::<NonZeroUsize>(chunks)
                .map_err(|rule| format!("{chunks:?} stages on each device: {rule}"))?;
            (name, Some(chunks.get()))
        }
    };
    Ok(Order { named: schedule_kind(name)?, chunks, versions: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where that is known without making it.
    #[test]
    fn an_order_exists_if_it_can_be_made() {
        let mut missing = 0;
        for kind in ScheduleKind::ALL.into_iter().filter(|&kind| kind != ScheduleKind::Table) {
            for (pp, chunks, microbatches) in
                (1..6).flat_map(|pp| (0..4).flat_map(move |v| (0..9).map(move |m| (pp, v, m))))
            {
                let chunks = (chunks > 0).then_some(chunks);
                let order = Order { named: Named::own(kind), chunks, versions: None };
                let map = StageMap::arranged(order.arrangement(), pp, order.chunks(), microbatches);
                let made = map.and_then(|map| Schedule::build(kind, map, &PassTimes::default()));
                missing += usize::from(made.is_err());
                let case = format!("{order} on {pp} devices with {microbatches}");
                assert_eq!(order.exists(pp, microbatches), made.is_ok(), "{case}");
            }
        }
        assert!(missing > 0);
    }

    /// A name that an order is listed under stays its name, whatever it is another name of.
    #[test]
    fn an_order_is_called_as_it_was_asked_for() {
        let own = ScheduleKind::ALL.map(ScheduleKind::name);
        let others = ["gpipe", "dapple", "vpp", "wave", "2bw", "pb", "1f1b-async", "pipedream-2bw"];
        for name in own.into_iter().chain(others) {
            for chunks in ["", ":1", ":2", ":12"] {
                let asked = format!("{name}{chunks}");
                let found = order(&asked).map(|it| it.to_string());
                assert_eq!(found, Ok(asked.clone()));
                let loud = order(&asked.to_uppercase()).map(|it| it.to_string());
                assert_eq!(loud, Ok(asked));
            }
        }
    }
}
