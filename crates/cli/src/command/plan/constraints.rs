//! What a plan must have, by option.

use clap::Args;
use shardloom::collectives::Algorithm;
use shardloom::plan::{AttentionKind, Recompute, ScheduleKind};
use shardloom::search::{Only, Request};

use crate::command::{algorithm, attention, searched_recompute};
use crate::failure::Failure;
use crate::number::{at_least_one, zero_stage};

/// What the search is restricted to; it chooses what is not given.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Constraints")]
pub struct Constraints {
    /// Tensor-parallel width
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "method")]
    tp: Option<u32>,

    /// Groups of devices that a pipeline goes through
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "method")]
    pp: Option<u32>,

    /// Data-parallel width
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "method")]
    dp: Option<u32>,

    /// Context-parallel width
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "method")]
    cp: Option<u32>,

    /// ZeRO stage, 0 to 3
    #[arg(long, value_name = "STAGE", conflicts_with = "method",
          value_parser = zero_stage)]
    zero: Option<u8>,

    /// How collectives are carried out, such as ring or hierarchical:8 [default: the fastest, unless the
    /// software chooses it itself]
    #[arg(long, value_name = "ALGORITHM", value_parser = algorithm)]
    algorithm: Option<Algorithm>,

    /// Samples of a micro-batch on one replica
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "method")]
    micro_batch: Option<u32>,

    /// Which activations are computed twice: none, selective, full or block
    #[arg(long, value_name = "POLICY", value_parser = searched_recompute, conflicts_with = "method")]
    recompute: Option<Recompute>,

    /// How attention is computed: unfused or fused, which keeps no probabilities [default: as the software does]
    #[arg(long, value_name = "HOW", value_parser = attention)]
    attention: Option<AttentionKind>,

    /// Order of passes, such as 1f1b, interleaved or zb-v
    #[arg(long, value_name = "SCHEDULE", value_parser = searched, conflicts_with = "method")]
    schedule: Option<ScheduleKind>,
}

fn searched(name: &str) -> Result<ScheduleKind, String> {
    let found = ScheduleKind::SEARCHED.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = ScheduleKind::SEARCHED.iter().map(|kind| kind.name()).collect();
        format!("searched are {}; --method has others", names.join(", "))
    })
}

impl Constraints {
    /// Restricts `request` to what was given.
    ///
    /// # Errors
    /// If one option leaves another without effect.
    pub fn restrict(&self, request: &mut Request) -> Result<(), Failure> {
        let Constraints {
            tp,
            pp,
            dp,
            cp,
            zero,
            algorithm,
            micro_batch,
            recompute,
            attention,
            schedule,
        } = *self;
        // One stage alternates, as `1f1b` does.
        let of_several = schedule.filter(|&it| it != ScheduleKind::OneForwardOneBackward);
        if let (Some(1), Some(schedule)) = (pp, of_several) {
            let message = format!(
                "--schedule {}: it orders the passes of several stages, and --pp 1 leaves one; leave one of these options \
                 out, or give --pp a larger number",
                schedule.name()
            );
            return Err(Failure::usage("--schedule", message));
        }
        request.only = Only { pp, dp, cp, tp, zero, microbatch: micro_batch, recompute };
        request.attention = attention;
        if let Some(algorithm) = algorithm {
            (request.algorithm, request.fastest_algorithm) = (algorithm, false);
        }
        if let Some(schedule) = schedule {
            request.schedules = vec![schedule];
        }
        Ok(())
    }

    /// The options that were given, as they could be written.
    pub fn given(&self) -> Vec<String> {
        let Constraints {
            tp,
            pp,
            dp,
            cp,
            zero,
            algorithm,
            micro_batch,
            recompute,
            attention,
            schedule,
        } = self;
        let said = |option: &str, value: Option<String>| value.map(|it| format!("{option} {it}"));
        let number = |value: &Option<u32>| value.map(|it| it.to_string());
        [
            said("--tp", number(tp)),
            said("--pp", number(pp)),
            said("--dp", number(dp)),
            said("--cp", number(cp)),
            said("--zero", zero.map(|it| it.to_string())),
            said("--algorithm", algorithm.map(|it| it.to_string())),
            said("--micro-batch", number(micro_batch)),
            said("--recompute", recompute.map(|it| it.name().to_owned())),
            said("--attention", attention.map(|it| it.name().to_owned())),
            said("--schedule", schedule.as_ref().map(|it| it.name().to_owned())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
