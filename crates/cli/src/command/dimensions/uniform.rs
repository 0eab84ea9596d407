//! The plan that these options say, in numbers that hold for all of its stages.

use shardloom::methods::Rules;
use shardloom::plan::{
    LossScale, Number, Plan, Precision, Recompute, ScheduleKind, Sync, Uniform, Updates, Weights,
    usual_attention,
};
use shardloom::{Model, uniform_plan_in_chunks};

use super::split::Split;
use super::{Dimensions, Place};
use crate::command::freeze::frozen;
use crate::command::in_options::{Named, in_options};
use crate::command::order::Order;
use crate::failure::Failure;

impl Dimensions {
    /// The plan with this schedule.
    ///
    /// # Errors
    /// As [`uniform_plan_in_chunks`], in the words of these options.
    pub fn plan(
        &self,
        model: &Model,
        order: Order,
        microbatches: usize,
        place: &Place,
    ) -> Result<Plan, Failure> {
        let named = |error: shardloom::Error| {
            in_options(error, |key, value| self.option_of(order, microbatches, key, value))
        };
        let Rules { weights, updates, recompute } = order.rules(&self.optimizer()?)?;
        let mut numbers = self.numbers(order.kind(), recompute, microbatches, place)?;
        let workers = numbers.mesh.dp() as usize;
        if let Some(servers) = numbers.sync.servers {
            numbers.sync.bucket_bytes = servers.bucket_bytes(model.graph(), workers);
        }
        if let Some(summation) = numbers.sync.summation {
            let usual = numbers.sync.bucket_bytes;
            numbers.sync.bucket_bytes = summation.bucket_bytes(model.graph(), workers, usual);
        }
        let frozen = frozen(&self.freeze, model)?;
        let mut plan =
            uniform_plan_in_chunks(model, &numbers, &place.cluster, order.chunks(), frozen)
                .map_err(named)?;
        plan.post_validation = self.post_validation;
        if plan.sync.negotiation.is_none() {
            plan.communication = self.communication();
        }
        plan.recompute_last = !self.split.recompute_except_last;
        let usual = || usual_attention(model.graph(), place.fuses_attention);
        plan.attention = self.split.attention.unwrap_or_else(usual);
        plan.mask_documents = self.mask_documents;
        plan.keeps_gathered = self.split.keep_gathered || place.plan_defaults.keeps_gathered;
        plan.weights = weights;
        if microbatches > 1 {
            if updates == Updates::Round && matches!(weights, Weights::Newest { .. }) {
                let message = format!(
                    "--microbatches {microbatches} cannot be given with --schedule {}, of which every \
                     micro-batch is a step; --global-batch says how many samples it has",
                    order.named.name
                );
                return Err(Failure::usage("--microbatches", message));
            }
            plan.updates = updates;
        }
        plan.loss_scale = LossScale::usual(&plan);
        let valid = plan.validate(&plan.graph_of(model.graph()), plan.device_count());
        valid.map_err(|error| named(error.into()))?;
        Ok(plan)
    }

    /// The plan in numbers.
    fn numbers(
        &self,
        schedule: ScheduleKind,
        recompute: Option<Recompute>,
        microbatches: usize,
        place: &Place,
    ) -> Result<Uniform, Failure> {
        let (servers, averaging) = (self.split.servers(), self.split.averaging());
        if self.split.sequence_parallel && self.split.tp.is_none() {
            let message = "--sequence-parallel splits what --tp leaves whole, and there is no --tp";
            return Err(Failure::usage("--sequence-parallel", message));
        }
        let zero = self.split.zero.unwrap_or(0);
        let mesh = self.split.mesh()?;
        Ok(Uniform {
            pp: self.pp(),
            mesh,
            sequence_parallel: self.split.sequence_parallel,
            global_batch: self.global_batch(),
            microbatches,
            schedule,
            recompute: self.split.recompute.or(recompute).unwrap_or(Recompute::None),
            sync: Sync {
                algorithm: self.algorithm.unwrap_or(place.algorithm),
                servers,
                compression: self.split.compression.unwrap_or_default(),
                averaging,
                summation: self.split.summation(),
                negotiation: self.split.negotiation(),
                sparse: self.split.sparse,
                second_copy_over: self.split.second_copy_over(),
                ..Sync::usual(place.plan_defaults, zero, mesh.tp(), place.bucket_bytes)
            },
            precision: match (self.precision, servers, averaging) {
                (Some(compute), ..) => self.formats(compute),
                (None, Some(_), _) => Precision::FP32,
                // Replicas find no norm of all gradients, by which a scale of the loss is chosen.
                (None, None, Some(_)) if place.precision.compute == Number::Fp16 => Precision::FP32,
                (None, None, _) => place.precision,
            },
            optimizer: self.optimizer()?,
            // The norm of all gradients would have every device wait for the slowest, which is what a
            // schedule without flush is there to avoid, and servers with staleness are; replicas with weights
            // of their own have no norm together.
            clip_norm: match schedule.flushes() && servers.is_none() && averaging.is_none() {
                true => self.clip_norm(),
                false => self.clip_norm,
            },
        })
    }

    /// The option that says what a key of a plan with this schedule says.
    fn option_of(
        &self,
        order: Order,
        microbatches: usize,
        key: &str,
        value: &str,
    ) -> Option<Named> {
        let Split { dp, cp, tp, .. } = self.split;
        let width = |option, width: Option<u32>| Named::of(option, width.unwrap_or(1));
        Some(match key {
            "pp" => Named::of("--pp", value),
            "dp" | "mesh.dp" | "mesh.replica" => {
                let batch = self.global_batch();
                let parts = microbatches.saturating_mul(dp.unwrap_or(1) as usize);
                match batch.checked_next_multiple_of(parts.max(1)) {
                    Some(next) if key != "dp" && next != batch => {
                        width("--dp", dp).with_hint(format!("; with --global-batch {next} it does"))
                    }
                    _ => width("--dp", dp),
                }
            }
            "cp" | "mesh.cp" => width("--cp", cp),
            "tp" | "mesh.tp" => width("--tp", tp),
            "chunks" if order.chunks.is_some() => Named::of("--chunks", value),
            "chunks" => {
                let name = order.named.name;
                let value =
                    format!("{} with {name}, which has {value} stages on a device", self.pp());
                Named::of("--pp", value)
            }
            "global_batch" => Named::of("--global-batch", value),
            "microbatches" => Named::of("--microbatches", value),
            // Whoever refuses any says no value.
            "clip_norm" => {
                let norm = self.clip_norm().map_or(value.to_owned(), |norm| norm.to_string());
                Named::of("--clip-norm", norm)
            }
            "sync.zero" if !order.kind().flushes() => {
                Named::of("--zero", format!("{value} with --schedule {}", order.named.name))
            }
            "sync.zero" => Named::of("--zero", value),
            "sync.servers" => Named::of("--servers", self.split.servers.unwrap_or_default()),
            "sync.servers.count" => Named::of("--servers", value),
            // The widest makes them too many.
            "devices" => {
                let widths = [("--dp", dp), ("--cp", cp), ("--tp", tp)];
                let widths = widths.map(|(option, width)| (width.unwrap_or(1) as usize, option));
                let widest = widths.into_iter().chain([(self.pp(), "--pp")]).max();
                widest.map(|(width, option)| Named::of(option, width))?
            }
            "sync.servers.replicas" => Named::of("--server-replicas", value),
            "sync.summation.servers" => Named::of("--summation-servers", value),
            "sync.servers.colocated" | "sync.summation.colocated" => {
                Named::flag("--colocated-servers")
            }
            "sync.summation.share" => Named::of("--summation-share", value),
            "sync.summation.credits" => Named::of("--summation-credits", value),
            "sync.sparse" => Named::flag("--sparse"),
            "sync.averaging" if self.split.average_pairs => Named::flag("--average-pairs"),
            "sync.averaging" => {
                Named::of("--average-every", self.split.average_every.unwrap_or_default())
            }
            "sync.averaging.until" => Named::of("--average-until", value),
            "sync.averaging.rate" => Named::of("--average-rate", value),
            "sync.averaging.every" => Named::of("--average-every", value),
            "sync.negotiation.cycle_seconds" => Named::of("--cycle-seconds", value),
            "sync.negotiation.fusion_bytes" => Named::of("--fusion-bytes", value),
            "sync.algorithm" => Named::of("--algorithm", value),
            "sync.compression" => Named::of("--compression", value),
            "weights.rule" if order.versions.is_some() => Named::of("--versions", value)
                .with_hint("; leave --versions out, or take a schedule without flush"),
            "precision.rounding" if self.stochastic_rounding => {
                Named::flag("--stochastic-rounding")
                    .with_hint("; --precision bf16 has both with it")
            }
            "recompute" => Named::of("--recompute", value),
            "attention" => Named::of("--attention", value),
            "mask_documents" => Named::flag("--mask-documents"),
            "post_validation" => Named::flag("--post-validation"),
            key if key.starts_with("parameters[") => Named::of("--freeze", self.freeze.join(",")),
            _ => {
                let setting = key.strip_prefix("optimizer.")?;
                Named::of("--optimizer", format!("{setting} = {value}"))
            }
        })
    }
}
