//! The options that make a plan.

use std::num::NonZeroU32;

use clap::Args;
use shardloom::cluster::Cluster;
use shardloom::plan::{Mesh, Optimizer, Plan, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom::search::Request;
use shardloom::{LocalProfile, Model, find_plan, parse_optimizer, uniform_plan, usual_request};

use crate::command::plan_line::plan_line;
use crate::command::{algorithm, load_cluster, recompute, schedule_kind};
use crate::failure::Failure;
use crate::number::{decimal, whole};
use crate::terminal::Terminal;

/// How a model that comes without a plan is trained.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan (of a MODEL; a plan file says all this itself)")]
pub struct Shape {
    /// Find the fastest plan for this many ranks on this machine, which is measured if it never was
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU32>, conflicts_with_all = [
        "pp", "dp", "tp", "sequence_parallel", "zero", "schedule", "microbatches", "recompute",
        "algorithm",
    ])]
    ranks: Option<NonZeroU32>,

    /// Pipeline stages, cut so that the most arithmetic of one is the least possible; other cuts are
    /// for a plan file to say [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pp: Option<usize>,

    /// Data-parallel replicas [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    dp: Option<u32>,

    /// Ranks that every operator is split over [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    tp: Option<u32>,

    /// Split what tensor parallelism leaves whole along the sequence
    #[arg(long)]
    sequence_parallel: bool,

    /// ZeRO stage, 0 to 3: what replicas share is nothing, optimizer state, also gradients, also
    /// weights [default: 0]
    #[arg(long, value_name = "STAGE", value_parser = whole::<u8>)]
    zero: Option<u8>,

    /// Order of passes: 1f1b or afab [default: 1f1b]
    #[arg(long, value_name = "KIND", value_parser = schedule_kind)]
    schedule: Option<ScheduleKind>,

    /// Samples of a step [default: 8]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    global_batch: Option<usize>,

    /// Micro-batches of a step [default: 1, of a pipeline the most up to four per stage that divide]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    microbatches: Option<usize>,

    /// Activations that are computed twice instead of kept: none, selective or full [default: none]
    #[arg(long, value_name = "POLICY", value_parser = recompute)]
    recompute: Option<Recompute>,

    /// How collectives are carried out: direct, ring or halving-doubling [default: direct]
    #[arg(long, value_name = "ALGORITHM", value_parser = algorithm)]
    algorithm: Option<shardloom::collectives::Algorithm>,

    /// adamw, sgd, lamb or adafactor, with settings as in sgd:momentum=0.9 [default: adamw]
    #[arg(long, value_name = "OPTIMIZER")]
    optimizer: Option<String>,

    /// Global norm to which gradients are clipped [default: 1]
    #[arg(long, value_name = "NORM", conflicts_with = "no_clip", value_parser = decimal)]
    clip_norm: Option<f64>,

    /// Do not clip gradients
    #[arg(long)]
    no_clip: bool,
}

/// Samples of a step, where nothing else is said.
const GLOBAL_BATCH: usize = 8;

impl Shape {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            ("--ranks", self.ranks.is_some()),
            ("--pp", self.pp.is_some()),
            ("--dp", self.dp.is_some()),
            ("--tp", self.tp.is_some()),
            ("--sequence-parallel", self.sequence_parallel),
            ("--zero", self.zero.is_some()),
            ("--schedule", self.schedule.is_some()),
            ("--global-batch", self.global_batch.is_some()),
            ("--microbatches", self.microbatches.is_some()),
            ("--recompute", self.recompute.is_some()),
            ("--algorithm", self.algorithm.is_some()),
            ("--optimizer", self.optimizer.is_some()),
            ("--clip-norm", self.clip_norm.is_some()),
            ("--no-clip", self.no_clip),
        ];
        options.into_iter().find(|&(_, given)| given).map(|(name, _)| name)
    }

    /// The plan for `model`.
    pub fn plan(
        &self,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Plan, Failure> {
        match self.ranks {
            Some(ranks) => self.found(ranks.get(), model, local, terminal),
            None => self.given_plan(model),
        }
    }

    fn found(
        &self,
        ranks: u32,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Plan, Failure> {
        let cores = load_cluster("local", local, terminal)?.device_count();
        if ranks > cores {
            let message = format!("--ranks {ranks}: this machine has 1 to {cores} to plan for");
            return Err(Failure::usage("--ranks", message));
        }
        let text = format!("local:{ranks}");
        let cluster = load_cluster(&text, local, terminal)?;
        let global_batch = self.global_batch.unwrap_or(GLOBAL_BATCH);
        let request = Request {
            precision: Precision::FP32,
            optimizer: self.optimizer()?,
            clip_norm: self.clip_norm(),
            ..usual_request(model, &cluster, &text, global_batch)
        };
        let plan = find_plan(model, &cluster, &request)?.outcome.plan;
        terminal.note(format_args!("plan: {}", plan_line(&plan)));
        Ok(plan)
    }

    fn given_plan(&self, model: &Model) -> Result<Plan, Failure> {
        let (pp, dp, tp) = (self.pp.unwrap_or(1), self.dp.unwrap_or(1), self.tp.unwrap_or(1));
        let global_batch = self.global_batch.unwrap_or(GLOBAL_BATCH);
        let sync = Sync {
            algorithm: self.algorithm.unwrap_or(shardloom::collectives::Algorithm::Direct),
            zero: self.zero.unwrap_or(0),
            ..Sync::default()
        };
        let numbers = Uniform {
            pp,
            mesh: Mesh { dp, cp: 1, tp },
            sequence_parallel: self.sequence_parallel,
            global_batch,
            microbatches: self.microbatches.unwrap_or_else(|| microbatches(global_batch, pp, dp)),
            schedule: self.schedule.unwrap_or(ScheduleKind::OneForwardOneBackward),
            recompute: self.recompute.unwrap_or(Recompute::None),
            sync,
            precision: Precision::FP32,
            optimizer: self.optimizer()?,
            clip_norm: self.clip_norm(),
        };
        let ranks = [pp, dp as usize, tp as usize].iter().try_fold(1, |all: usize, &each| {
            all.checked_mul(each).filter(|&all| all <= Cluster::MAX_DEVICES as usize)
        });
        // Too many ranks are refused with the plan, whatever its cluster is called.
        let cluster = format!("local:{}", ranks.unwrap_or(0));
        Ok(uniform_plan(model, &numbers, &cluster)?)
    }

    fn optimizer(&self) -> Result<Optimizer, Failure> {
        Ok(self.optimizer.as_deref().map_or(Ok(Optimizer::default()), parse_optimizer)?)
    }

    fn clip_norm(&self) -> Option<f64> {
        (!self.no_clip).then(|| self.clip_norm.unwrap_or(1.0))
    }
}

/// Of a pipeline the most micro-batches, up to four per stage, that replicas can share; otherwise one.
fn microbatches(global_batch: usize, pp: usize, dp: u32) -> usize {
    if pp <= 1 {
        return 1;
    }
    let shares = |&microbatches: &usize| {
        global_batch.is_multiple_of(microbatches)
            && (global_batch / microbatches).is_multiple_of(dp.max(1) as usize)
    };
    (1..=pp.saturating_mul(4).min(global_batch)).rev().find(shares).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::microbatches;

    #[test]
    fn a_pipeline_gets_as_many_microbatches_as_divide() {
        assert_eq!(microbatches(8, 1, 2), 1);
        assert_eq!(microbatches(8, 2, 1), 8);
        assert_eq!(microbatches(8, 2, 2), 4);
        assert_eq!(microbatches(64, 2, 2), 8);
        assert_eq!(microbatches(7, 2, 2), 1);
        assert_eq!(microbatches(0, 2, 0), 1);
    }
}
