//! The options that a search or a method chooses itself: how many devices take which part of a step.

use std::num::NonZeroU32;

use clap::Args;
use shardloom::plan::{
    AttentionKind, Averaging, AveragingTime, Axis, AxisSet, Compression, Mesh, Negotiation,
    Partners, Push, Ranges, Recompute, SendOrder, Servers, Share, Staleness, Summation,
};

use super::first_given;
use crate::command::{attention, recompute};
use crate::failure::Failure;
use crate::number::{decimal, whole, zero_stage};

/// What a search or a method chooses itself, where it is asked instead.
#[derive(Debug, Default, Args)]
pub(super) struct Split {
    /// Devices, or groups of them, that a pipeline goes through. Stages are cut so that the
    /// busiest device has as little arithmetic as can be; other cuts are for a plan file to say
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub(super) pp: Option<usize>,

    /// Data-parallel replicas [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    pub(super) dp: Option<u32>,

    /// Context-parallel ranks, which split the sequence and bring the keys and values of all positions
    /// together for attention [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    pub(super) cp: Option<u32>,

    /// Ranks that every operator is split over [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    pub(super) tp: Option<u32>,

    /// Split what tensor parallelism leaves whole along the sequence
    #[arg(long, visible_alias = "sp")]
    pub(super) sequence_parallel: bool,

    /// ZeRO stage, 0 to 3: what replicas share is nothing, optimizer state, also gradients, also
    /// weights [default: 0]
    #[arg(long, value_name = "STAGE", value_parser = zero_stage)]
    pub(super) zero: Option<u8>,

    /// How many neighbouring data-parallel replicas share what --zero says, with their context-parallel
    /// ranks; others hold the same shares [default: all]
    #[arg(long, value_name = "N", requires = "zero", value_parser = whole::<u32>)]
    pub(super) shard_within: Option<u32>,

    /// With --zero 3, how many neighbouring data-parallel replicas share a second copy of the weights, from which
    /// backward passes gather, while all share the first (ZeRO++'s hpZ) [default: no second copy]
    #[arg(long, value_name = "N", requires = "zero", conflicts_with = "shard_within", value_parser = whole::<u32>)]
    pub(super) second_copy_within: Option<u32>,

    /// Parameter servers, on further devices: replicas are workers that get the weights from them and send
    /// them their gradients, all in fp32 and without clipping
    #[arg(long, value_name = "N", group = "some_servers", value_parser = whole::<u32>)]
    pub(super) servers: Option<u32>,

    /// Steps that a worker may be ahead of the slowest, or unbounded: with 0 servers update once a step with
    /// the gradients of all workers, otherwise with those of each as they come; training waits for all
    /// after every --drain-every steps [default: 0]
    #[arg(long, value_name = "STEPS", requires = "servers")]
    pub(super) staleness: Option<Staleness>,

    /// What workers send the servers: gradients, with which servers update; or deltas, which is by how much the
    /// worker's own update has changed the weights, and what servers add to them [default: gradients]
    #[arg(long, value_name = "WHAT", requires = "servers")]
    pub(super) push: Option<Push>,

    /// How many other servers have a replica of each range of the parameters, with which the loss of a server is
    /// survived; with --staleness 0 [default: 0]
    #[arg(long, value_name = "N", requires = "servers", value_parser = whole::<u32>)]
    pub(super) server_replicas: Option<u32>,

    /// How replicas compress the gradients that they exchange: none, fp16, bf16, fp16-feedback or bf16-feedback
    /// (which keep what rounding leaves out), one-bit, top-k:N (the largest of each N) or power-sgd:RANK
    /// [default: none]
    #[arg(long, value_name = "HOW")]
    pub(super) compression: Option<Compression>,

    /// Keep and exchange gradients of tables that only embeddings read as the rows that were read and their values
    #[arg(long)]
    pub(super) sparse: bool,

    /// Give data-parallel replicas weights of their own, which they update with their own gradients, without
    /// clipping, and which are averaged in each N-th step
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    pub(super) average_every: Option<u32>,

    /// The share of the mean in averaged weights, above 0 and at most 1 [default: 1]
    #[arg(long, value_name = "SHARE", requires = "average_every", value_parser = decimal)]
    pub(super) average_rate: Option<f64>,

    /// Average before the update of a step instead of after it, with gradients at the weights from before
    #[arg(long, requires = "average_every")]
    pub(super) average_before_update: bool,

    /// Average until so many steps are done: then all replicas take the weights and the optimizer state of the
    /// first, and reduce gradients [default: average to the end]
    #[arg(long, value_name = "STEPS", requires = "average_every", value_parser = whole::<u32>)]
    pub(super) average_until: Option<u32>,

    /// Give data-parallel replicas weights of their own, which take in half of those of one other in each step,
    /// before the update, without either waiting
    #[arg(long, conflicts_with = "average_every")]
    pub(super) average_pairs: bool,

    /// Servers that sum gradients, on further devices: replicas are workers that send them their gradients, get
    /// the sums back and update
    #[arg(long, value_name = "N", group = "some_servers", value_parser = whole::<u32>)]
    pub(super) summation_servers: Option<u32>,

    /// Put a server on each worker's device, too, besides those of --servers or --summation-servers, which may be 0
    /// then
    #[arg(long, requires = "some_servers")]
    pub(super) colocated_servers: bool,

    /// How gradients are dealt to servers that sum: hashed (pieces of buckets, by consistent hashing) or equal
    /// (a range of every bucket to each) [default: hashed]
    #[arg(long, value_name = "HOW", requires = "summation_servers")]
    pub(super) summation_ranges: Option<Ranges>,

    /// How much of the gradients servers sum, above 0 and up to 1, or balanced, so that all links are equally
    /// busy; workers sum the rest among themselves, or colocated servers do [default: 1]
    #[arg(long, value_name = "SHARE", requires = "summation_servers")]
    pub(super) summation_share: Option<Share>,

    /// In which order workers send pieces to servers that sum: backward (as they become whole) or next-use (of those
    /// that are whole first what the next forward pass uses first; without a gradient norm that pass waits for each
    /// update only where it uses it) [default: backward]
    #[arg(long, value_name = "ORDER", requires = "summation_servers")]
    pub(super) summation_order: Option<SendOrder>,

    /// With --summation-order next-use, how many pieces and sums of a process may be under way to others at a time
    /// [default: 4]
    #[arg(long, value_name = "N", requires = "summation_order", value_parser = whole::<NonZeroU32>)]
    pub(super) summation_credits: Option<NonZeroU32>,

    /// Have data-parallel replicas agree while running in which order they reduce their gradients, parameter by
    /// parameter, with communication threads
    #[arg(long)]
    pub(super) negotiate: bool,

    /// The least seconds from one agreement to the next [default: 0.001]
    #[arg(long, value_name = "SECONDS", requires = "negotiate", value_parser = decimal)]
    pub(super) cycle_seconds: Option<f64>,

    /// Up to how many bytes of gradients are reduced as one where their order is agreed on; 0 reduces each by
    /// itself [default: 134217728]
    #[arg(long, value_name = "N", requires = "negotiate", value_parser = whole::<usize>)]
    pub(super) fusion_bytes: Option<usize>,

    /// Micro-batches of a step [default: 1, of a pipeline the most up to four per device that divide, or
    /// what the schedule's system says]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub(super) microbatches: Option<usize>,

    /// Activations that are computed twice instead of kept: none, selective, full (all but the inputs of
    /// blocks) or stage (all but the inputs of stages) [default: none, or what the schedule's system says]
    #[arg(long, value_name = "POLICY", value_parser = recompute)]
    pub(super) recompute: Option<Recompute>,

    /// Keep all activations of each pipeline's last micro-batch in a step
    #[arg(long)]
    pub(super) recompute_except_last: bool,

    /// How attention is computed: unfused (its probabilities are kept for the backward pass) or fused (they are
    /// computed again, part by part) [default: as the cluster's software does, of this program unfused]
    #[arg(long, value_name = "HOW", value_parser = attention)]
    pub(super) attention: Option<AttentionKind>,

    /// Keep what was gathered within groups for the backward pass, instead of gathering it again
    #[arg(long)]
    pub(super) keep_gathered: bool,
}

impl Split {
    /// The first of these options that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        // In full, so that no option can be forgotten.
        let Split {
            pp,
            dp,
            cp,
            tp,
            sequence_parallel,
            zero,
            shard_within,
            second_copy_within,
            servers,
            staleness,
            push,
            server_replicas,
            compression,
            sparse,
            average_every,
            average_rate,
            average_before_update,
            average_until,
            average_pairs,
            summation_servers,
            colocated_servers,
            summation_ranges,
            summation_share,
            summation_order,
            summation_credits,
            negotiate,
            cycle_seconds,
            fusion_bytes,
            microbatches,
            recompute,
            recompute_except_last,
            attention,
            keep_gathered,
        } = self;
        first_given([
            ("--pp", pp.is_some()),
            ("--dp", dp.is_some()),
            ("--cp", cp.is_some()),
            ("--tp", tp.is_some()),
            ("--sequence-parallel", *sequence_parallel),
            ("--zero", zero.is_some()),
            ("--shard-within", shard_within.is_some()),
            ("--second-copy-within", second_copy_within.is_some()),
            ("--servers", servers.is_some()),
            ("--staleness", staleness.is_some()),
            ("--push", push.is_some()),
            ("--server-replicas", server_replicas.is_some()),
            ("--compression", compression.is_some()),
            ("--sparse", *sparse),
            ("--average-every", average_every.is_some()),
            ("--average-rate", average_rate.is_some()),
            ("--average-before-update", *average_before_update),
            ("--average-until", average_until.is_some()),
            ("--average-pairs", *average_pairs),
            ("--summation-servers", summation_servers.is_some()),
            ("--colocated-servers", *colocated_servers),
            ("--summation-ranges", summation_ranges.is_some()),
            ("--summation-share", summation_share.is_some()),
            ("--summation-order", summation_order.is_some()),
            ("--summation-credits", summation_credits.is_some()),
            ("--negotiate", *negotiate),
            ("--cycle-seconds", cycle_seconds.is_some()),
            ("--fusion-bytes", fusion_bytes.is_some()),
            ("--microbatches", microbatches.is_some()),
            ("--recompute", recompute.is_some()),
            ("--recompute-except-last", *recompute_except_last),
            ("--attention", attention.is_some()),
            ("--keep-gathered", *keep_gathered),
        ])
    }

    /// The mesh of a stage.
    pub(super) fn mesh(&self) -> Result<Mesh, Failure> {
        let Split { dp, cp, tp, zero, shard_within, second_copy_within, .. } = *self;
        let mesh = Mesh::of(dp.unwrap_or(1), cp.unwrap_or(1), tp.unwrap_or(1));
        let (option, within) = match (shard_within, second_copy_within) {
            (Some(within), _) => ("--shard-within", within),
            (None, Some(within)) => ("--second-copy-within", within),
            (None, None) => return Ok(mesh),
        };
        let refuse =
            |rule: String| Err(Failure::usage(option, format!("{option} {within}: {rule}")));
        let is_second = second_copy_within.is_some();
        match mesh.sharing_within(within) {
            _ if is_second && zero != Some(3) => refuse("only --zero 3 shares weights".into()),
            _ if zero.unwrap_or(0) == 0 => {
                refuse("with --zero 0 nothing is shared; 1 to 3 share".into())
            }
            None => refuse(format!("it must divide --dp {}", mesh.dp())),
            Some(_) if is_second && (within == 1 || within == mesh.dp()) => refuse(format!(
                "more than 1, and less than --dp {}, which share the first copy",
                mesh.dp()
            )),
            Some(_) if u64::from(within) * u64::from(cp.unwrap_or(1)) == 1 => {
                refuse("a replica by itself has nobody to share with".into())
            }
            Some(mesh) => Ok(mesh),
        }
    }

    /// Along which axes replicas share a second copy of the weights.
    pub(super) fn second_copy_over(&self) -> Option<AxisSet> {
        self.second_copy_within.and_then(|_| AxisSet::of(&[Axis::DP]))
    }

    /// The servers that hold the weights.
    pub(super) fn servers(&self) -> Option<Servers> {
        self.servers.map(|count| {
            let staleness = self.staleness.unwrap_or(Staleness::SYNCHRONOUS);
            let (push, replicas) =
                (self.push.unwrap_or_default(), self.server_replicas.unwrap_or(0));
            let colocated = self.colocated_servers;
            Servers { push, replicas, colocated, ..Servers::of(count, staleness) }
        })
    }

    /// How replicas average weights of their own.
    pub(super) fn averaging(&self) -> Option<Averaging> {
        let every = self.average_every.map(|every| Averaging {
            every,
            rate: self.average_rate.unwrap_or(1.0),
            when: match self.average_before_update {
                true => AveragingTime::BeforeUpdate,
                false => AveragingTime::AfterUpdate,
            },
            partners: Partners::All,
            over: None,
            until: self.average_until,
        });
        every.or(self.average_pairs.then_some(Averaging::PAIRS))
    }

    /// The servers that sum gradients.
    pub(super) fn summation(&self) -> Option<Summation> {
        self.summation_servers.map(|servers| Summation {
            colocated: self.colocated_servers,
            ranges: self.summation_ranges.unwrap_or_default(),
            share: self.summation_share.unwrap_or_default(),
            order: self.summation_order.unwrap_or_default(),
            credits: self.summation_credits,
            servers,
        })
    }

    /// How replicas agree on the order of reductions.
    pub(super) fn negotiation(&self) -> Option<Negotiation> {
        let usual = Negotiation::default();
        self.negotiate.then(|| Negotiation {
            cycle_seconds: self.cycle_seconds.unwrap_or(usual.cycle_seconds),
            fusion_bytes: self.fusion_bytes.unwrap_or(usual.fusion_bytes),
        })
    }
}
