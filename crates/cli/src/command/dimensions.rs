//! The options that say how a model is split, whatever its schedule.

use clap::Args;
use shardloom::cluster::{Cluster, PlanDefaults};
use shardloom::collectives::Algorithm;
use shardloom::methods::Rules;
use shardloom::plan::{
    AttentionKind, Averaging, AveragingTime, Communication, Compression, LossScale, Mesh,
    Negotiation, Number, Optimizer, Partners, Plan, Precision, Ranges, Recompute, ScheduleKind,
    Servers, Share, Staleness, Summation, Sync, Uniform, Updates, Weights, usual_attention,
};
use shardloom::search::Request;
use shardloom::{Model, parse_optimizer, uniform_plan_in_chunks};

use super::freeze::frozen;
use super::in_options::{Named, in_options};
use super::order::Order;
use super::{algorithm, attention, number, recompute};
use crate::failure::Failure;
use crate::number::{decimal, whole};

/// How a model is split, what a step has, and how replicas stay equal.
#[derive(Debug, Args)]
pub struct Dimensions {
    #[command(flatten)]
    split: Split,

    /// Samples of a step [default: 8]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    global_batch: Option<usize>,

    /// How collectives are carried out: ring, direct, halving-doubling, binary-tree, double-binary-tree or
    /// star, or with the size of inner groups hierarchical:8, binary-tree-star:8 and others (docs/plan.md)
    /// [default: direct where ranks are cores of one machine, else ring; of a plan that is chosen the
    /// fastest]
    #[arg(long, value_name = "ALGORITHM", value_parser = algorithm)]
    algorithm: Option<Algorithm>,

    /// What weights in use, activations and their gradients are computed in: fp32, bf16 or fp16. In 16 bits
    /// gradients are summed in fp32, of which the optimizer has weights too, and in fp16 the loss is scaled
    /// [default: the 16-bit format that all devices have, of processors fp32]
    #[arg(long, value_name = "FORMAT", value_parser = number)]
    precision: Option<Number>,

    /// Keep weights in bf16 only, without fp32 ones for the optimizer, and round their updates up or down by
    /// chance, so that small ones are not lost on average
    #[arg(long, requires = "precision")]
    stochastic_rounding: bool,

    /// Leave parameters as they are: `trunk`, which is all but the head, or those of names like these, where * is
    /// any characters and ? is one, as in --freeze 'embedding.*' --freeze 'block.0.*'
    #[arg(long, value_name = "trunk|NAMES")]
    freeze: Vec<String>,

    /// adamw, sgd, lamb or adafactor, with settings as in sgd:momentum=0.9,weight_decay=0.01;
    /// sgd's reference_batch=128 scales momentum and learning rate from batches of 128 samples to those
    /// that updates have [default: adamw]
    #[arg(long, value_name = "OPTIMIZER")]
    optimizer: Option<String>,

    /// Global norm to which gradients are clipped [default: 1; without flush, with
    /// --servers and where replicas are averaged none]
    #[arg(long, value_name = "NORM", conflicts_with = "no_clip", value_parser = decimal)]
    clip_norm: Option<f64>,

    /// Do not clip gradients
    #[arg(long)]
    no_clip: bool,

    /// Let stages update before the norm of all gradients is known, and check that in the next step,
    /// which begins anew if gradients had to be clipped
    #[arg(long)]
    post_validation: bool,

    /// Give each rank a thread for collectives, so that it computes meanwhile
    #[arg(long)]
    communication_thread: bool,
}

/// What a search or a method chooses itself, where it is asked instead.
#[derive(Debug, Default, Args)]
struct Split {
    /// Devices, or groups of them, that a pipeline goes through. Stages are cut so that the
    /// busiest device has as little arithmetic as can be; other cuts are for a plan file to say
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pp: Option<usize>,

    /// Data-parallel replicas [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    dp: Option<u32>,

    /// Context-parallel ranks, which split the sequence and bring the keys and values of all positions
    /// together for attention [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    cp: Option<u32>,

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

    /// How many neighbouring data-parallel replicas share what --zero says, with their context-parallel
    /// ranks; others hold the same shares [default: all]
    #[arg(long, value_name = "N", requires = "zero", value_parser = whole::<u32>)]
    shard_within: Option<u32>,

    /// Parameter servers, on further devices: replicas are workers that get the weights from them and send
    /// them their gradients, all in fp32 and without clipping
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    servers: Option<u32>,

    /// Steps that a worker may be ahead of the slowest, or unbounded: with 0 servers update once a step with
    /// the gradients of all workers, otherwise with those of each as they come; training waits for all
    /// after every --drain-every steps [default: 0]
    #[arg(long, value_name = "STEPS", requires = "servers")]
    staleness: Option<Staleness>,

    /// How many other servers have a replica of each range of the parameters, with which the loss of a server is
    /// survived; with --staleness 0 [default: 0]
    #[arg(long, value_name = "N", requires = "servers", value_parser = whole::<u32>)]
    server_replicas: Option<u32>,

    /// How replicas compress the gradients that they exchange: none, fp16, bf16, fp16-feedback or bf16-feedback
    /// (which keep what rounding leaves out), one-bit, top-k:N (the largest of each N) or power-sgd:RANK
    /// [default: none]
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,

    /// Keep and exchange gradients of tables that only embeddings read as the rows that were read and their values
    #[arg(long)]
    sparse: bool,

    /// Give data-parallel replicas weights of their own, which they update with their own gradients, without
    /// clipping, and which are averaged in each N-th step
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    average_every: Option<u32>,

    /// The share of the mean in averaged weights, above 0 and at most 1 [default: 1]
    #[arg(long, value_name = "SHARE", requires = "average_every", value_parser = decimal)]
    average_rate: Option<f64>,

    /// Average before the update of a step instead of after it, with gradients at the weights from before
    #[arg(long, requires = "average_every")]
    average_before_update: bool,

    /// Average until so many steps are done: then all replicas take the weights and the optimizer state of the
    /// first, and reduce gradients [default: average to the end]
    #[arg(long, value_name = "STEPS", requires = "average_every", value_parser = whole::<u32>)]
    average_until: Option<u32>,

    /// Give data-parallel replicas weights of their own, which take in half of those of one other in each step,
    /// before the update, without either waiting
    #[arg(long, conflicts_with = "average_every")]
    average_pairs: bool,

    /// Servers that sum gradients, on further devices: replicas are workers that send them their gradients, get
    /// the sums back and update
    #[arg(long, value_name = "N", conflicts_with = "servers", value_parser = whole::<u32>)]
    summation_servers: Option<u32>,

    /// How gradients are dealt to servers that sum: hashed (pieces of buckets, by consistent hashing) or equal
    /// (a range of every bucket to each) [default: hashed]
    #[arg(long, value_name = "HOW", requires = "summation_servers")]
    summation_ranges: Option<Ranges>,

    /// How much of the gradients servers sum, above 0 and up to 1, or balanced, so that all links are equally
    /// busy; workers sum the rest among themselves [default: 1]
    #[arg(long, value_name = "SHARE", requires = "summation_servers")]
    summation_share: Option<Share>,

    /// Have data-parallel replicas agree while running in which order they reduce their gradients, parameter by
    /// parameter, with communication threads
    #[arg(long)]
    negotiate: bool,

    /// The least seconds from one agreement to the next [default: 0.001]
    #[arg(long, value_name = "SECONDS", requires = "negotiate", value_parser = decimal)]
    cycle_seconds: Option<f64>,

    /// Up to how many bytes of gradients are reduced as one where their order is agreed on; 0 reduces each by
    /// itself [default: 134217728]
    #[arg(long, value_name = "N", requires = "negotiate", value_parser = whole::<usize>)]
    fusion_bytes: Option<usize>,

    /// Micro-batches of a step [default: 1, of a pipeline the most up to four per device that divide, or
    /// what the schedule's system says]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    microbatches: Option<usize>,

    /// Activations that are computed twice instead of kept: none, selective, full (all but the inputs of
    /// blocks) or stage (all but the inputs of stages) [default: none, or what the schedule's system says]
    #[arg(long, value_name = "POLICY", value_parser = recompute)]
    recompute: Option<Recompute>,

    /// Keep all activations of each pipeline's last micro-batch in a step
    #[arg(long)]
    recompute_except_last: bool,

    /// How attention is computed: unfused (its probabilities are kept for the backward pass) or fused (they are
    /// computed again, part by part) [default: as the cluster's software does, of this program unfused]
    #[arg(long, value_name = "HOW", value_parser = attention)]
    attention: Option<AttentionKind>,

    /// Keep what was gathered within groups for the backward pass, instead of gathering it again
    #[arg(long)]
    keep_gathered: bool,
}

impl Split {
    fn given(&self) -> Option<&'static str> {
        // In full, so that no option can be forgotten.
        let Split {
            pp,
            dp,
            cp,
            tp,
            sequence_parallel,
            zero,
            shard_within,
            servers,
            staleness,
            server_replicas,
            compression,
            sparse,
            average_every,
            average_rate,
            average_before_update,
            average_until,
            average_pairs,
            summation_servers,
            summation_ranges,
            summation_share,
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
            ("--servers", servers.is_some()),
            ("--staleness", staleness.is_some()),
            ("--server-replicas", server_replicas.is_some()),
            ("--compression", compression.is_some()),
            ("--sparse", *sparse),
            ("--average-every", average_every.is_some()),
            ("--average-rate", average_rate.is_some()),
            ("--average-before-update", *average_before_update),
            ("--average-until", average_until.is_some()),
            ("--average-pairs", *average_pairs),
            ("--summation-servers", summation_servers.is_some()),
            ("--summation-ranges", summation_ranges.is_some()),
            ("--summation-share", summation_share.is_some()),
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
}

fn first_given<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    options.into_iter().find(|&(_, given)| given).map(|(name, _)| name)
}

/// Samples of a step, where nothing else is said.
const GLOBAL_BATCH: usize = 8;

/// What a plan is for: the cluster's name, its format and its collectives.
#[derive(Clone, Debug)]
pub struct Place {
    /// As the plan writes it.
    pub cluster: String,
    /// Number formats.
    pub precision: Precision,
    /// Collectives, where no option says another.
    pub algorithm: Algorithm,
    /// Bytes of gradients that are reduced together, where the software has no default of its own.
    pub bucket_bytes: usize,
    /// What plans for the software usually have.
    pub plan_defaults: PlanDefaults,
    /// Whether there are fused kernels for attention.
    pub fuses_attention: bool,
}

impl Place {
    /// Ranks that are threads of this machine.
    pub fn here(dimensions: &Dimensions) -> Place {
        // Too many ranks are refused with the plan, whatever its cluster is called.
        let ranks = dimensions.ranks().unwrap_or(0);
        Place {
            cluster: format!("local:{ranks}"),
            precision: Precision::FP32,
            algorithm: Algorithm::Direct,
            bucket_bytes: Sync::default().bucket_bytes,
            plan_defaults: PlanDefaults::default(),
            fuses_attention: false,
        }
    }

    /// What plans for this cluster usually have.
    pub fn on(cluster: &Cluster, usual: &Request) -> Place {
        Place {
            cluster: usual.cluster.clone(),
            precision: usual.precision,
            algorithm: usual.algorithm,
            bucket_bytes: usual.bucket_bytes,
            plan_defaults: usual.plan_defaults,
            fuses_attention: cluster.fuses_attention(),
        }
    }
}

impl Dimensions {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let Dimensions {
            split,
            global_batch,
            algorithm,
            precision,
            stochastic_rounding,
            freeze,
            optimizer,
            clip_norm,
            no_clip,
            post_validation,
            communication_thread,
        } = self;
        let others = first_given([
            ("--global-batch", global_batch.is_some()),
            ("--algorithm", algorithm.is_some()),
            ("--precision", precision.is_some()),
            ("--stochastic-rounding", *stochastic_rounding),
            ("--freeze", !freeze.is_empty()),
            ("--optimizer", optimizer.is_some()),
            ("--clip-norm", clip_norm.is_some()),
            ("--no-clip", *no_clip),
            ("--post-validation", *post_validation),
            ("--communication-thread", *communication_thread),
        ]);
        split.given().or(others)
    }

    /// Whether the split is left to a search.
    pub fn leaves_split(&self) -> bool {
        self.split.given().is_none()
    }

    /// Refuses options that say what `chooser`, an option as well, chooses itself: these or `order`.
    pub fn leave_choice_to(
        &self,
        chooser: &'static str,
        order: Option<&'static str>,
    ) -> Result<(), Failure> {
        let Some(option) = order.or(self.split.given()) else { return Ok(()) };
        let message = format!("{option} cannot be given with {chooser}, which chooses that itself");
        Err(Failure::usage(option, message))
    }

    /// Devices that a pipeline goes through.
    pub fn pp(&self) -> usize {
        self.split.pp.unwrap_or(1)
    }

    /// The formats where computation is in `compute`.
    fn formats(&self, compute: Number) -> Precision {
        match self.stochastic_rounding {
            true => Precision { compute, ..Precision::STOCHASTIC },
            false => Precision::usual(compute),
        }
    }

    /// Samples of a step.
    pub fn global_batch(&self) -> usize {
        self.global_batch.unwrap_or(GLOBAL_BATCH)
    }

    /// What a search or a method is asked for `model`, which is `usual` but for what these options say.
    ///
    /// # Errors
    /// If the optimizer is none, or no parameter has such a name as is to be frozen.
    pub fn request(&self, usual: Request, model: &Model) -> Result<Request, Failure> {
        Ok(Request {
            global_batch: self.global_batch(),
            algorithm: self.algorithm.unwrap_or(usual.algorithm),
            fastest_algorithm: usual.fastest_algorithm && self.algorithm.is_none(),
            precision: self.precision.map_or(usual.precision, |compute| self.formats(compute)),
            formats_by_machines: usual.formats_by_machines && self.precision.is_none(),
            optimizer: self.optimizer()?,
            frozen: frozen(&self.freeze, model)?,
            clip_norm: self.clip_norm(),
            post_validation: self.post_validation,
            ..usual
        })
    }

    /// The optimizer.
    fn optimizer(&self) -> Result<Optimizer, Failure> {
        Ok(self.optimizer.as_deref().map_or(Ok(Optimizer::default()), parse_optimizer)?)
    }

    /// Who carries out collectives, which neither a search nor a method chooses.
    pub fn communication(&self) -> Communication {
        match self.communication_thread {
            true => Communication::Thread,
            false => Communication::InLine,
        }
    }

    /// Refuses a thread for collectives where `chooser`, an option as well, judges plans without it.
    pub fn refuse_unjudged(&self, chooser: &str) -> Result<(), Failure> {
        let option = "--communication-thread";
        match self.communication() {
            Communication::InLine => Ok(()),
            Communication::Thread => {
                let message =
                    format!("{option} cannot be given with {chooser}, which judges without it");
                Err(Failure::usage(option, message))
            }
        }
    }

    /// Global norm to which gradients are clipped.
    fn clip_norm(&self) -> Option<f64> {
        (!self.no_clip).then(|| self.clip_norm.unwrap_or(1.0))
    }

    /// Ranks in all, unless no cluster has so many.
    pub fn ranks(&self) -> Option<usize> {
        let Split { dp, cp, tp, .. } = self.split;
        let mut widths = [dp, cp, tp].into_iter().map(|width| width.unwrap_or(1) as usize);
        let workers = widths.try_fold(self.pp(), |all: usize, each| all.checked_mul(each))?;
        let Split { servers, summation_servers, .. } = self.split;
        let ranks = workers.checked_add(servers.or(summation_servers).unwrap_or(0) as usize);
        ranks.filter(|&ranks| ranks <= Cluster::MAX_DEVICES as usize)
    }

    /// Micro-batches of a step, as given. Otherwise, of a pipeline, with which the most of `orders` exist
    /// for `model`, and among those the most up to four per device that replicas can share; one, if all of
    /// `orders` update after every micro-batch.
    pub fn microbatches(&self, model: &Model, orders: &[Order]) -> usize {
        if let Some(microbatches) = self.split.microbatches {
            return microbatches;
        }
        // What is wrong with the optimizer or the versions is refused with the plan.
        let optimizer = self.optimizer().unwrap_or_default();
        let single = |order: &Order| {
            order.rules(&optimizer).is_ok_and(|rules| rules.updates == Updates::Round)
        };
        if !orders.is_empty() && orders.iter().all(single) {
            return 1;
        }
        let pp = self.pp();
        // More devices or stages than blocks are refused with the plan.
        let blocks = model.graph().blocks().len();
        let few = |order: &&Order| pp <= blocks && order.chunks() <= blocks;
        let existing = |microbatches: usize| {
            orders.iter().filter(few).filter(|order| order.exists(pp, microbatches)).count()
        };
        let candidates = candidates(self.global_batch(), pp, self.split.dp.unwrap_or(1));
        candidates.max_by_key(|&microbatches| (existing(microbatches), microbatches)).unwrap_or(1)
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
            "clip_norm" => Named::of("--clip-norm", value),
            "sync.zero" => Named::of("--zero", value),
            "sync.servers.replicas" => Named::of("--server-replicas", value),
            "sync.algorithm" => Named::of("--algorithm", value),
            "sync.compression" => Named::of("--compression", value),
            "attention" => Named::of("--attention", value),
            _ => return None,
        })
    }

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
        if let Some(servers) = numbers.sync.servers {
            numbers.sync.bucket_bytes = servers.bucket_bytes(model.graph());
        }
        if let Some(summation) = numbers.sync.summation {
            let usual = numbers.sync.bucket_bytes;
            numbers.sync.bucket_bytes = summation.bucket_bytes(model.graph(), usual);
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
        let valid = plan.validate(model.graph(), plan.device_count());
        valid.map_err(|error| named(error.into()))?;
        Ok(plan)
    }

    /// The mesh of a stage.
    fn mesh(&self) -> Result<Mesh, Failure> {
        let Split { dp, cp, tp, zero, shard_within, .. } = self.split;
        let mesh = Mesh::of(dp.unwrap_or(1), cp.unwrap_or(1), tp.unwrap_or(1));
        let Some(within) = shard_within else { return Ok(mesh) };
        let option = "--shard-within";
        let refuse =
            |rule: String| Err(Failure::usage(option, format!("{option} {within}: {rule}")));
        if zero.unwrap_or(0) == 0 {
            return refuse("with --zero 0 nothing is shared; 1 to 3 share".into());
        }
        match mesh.sharing_within(within) {
            Some(mesh) if u64::from(within) * u64::from(cp.unwrap_or(1)) > 1 => Ok(mesh),
            Some(_) => refuse("a replica by itself has nobody to share with".into()),
            None => refuse(format!("it must divide --dp {}", mesh.dp())),
        }
    }

    /// The plan in numbers.
    fn numbers(
        &self,
        schedule: ScheduleKind,
        recompute: Option<Recompute>,
        microbatches: usize,
        place: &Place,
    ) -> Result<Uniform, Failure> {
        let servers = self.split.servers.map(|count| {
            let staleness = self.split.staleness.unwrap_or(Staleness::SYNCHRONOUS);
            let replicas = self.split.server_replicas.unwrap_or(0);
            Servers { replicas, ..Servers::of(count, staleness) }
        });
        let every = self.split.average_every.map(|every| Averaging {
            every,
            rate: self.split.average_rate.unwrap_or(1.0),
            when: match self.split.average_before_update {
                true => AveragingTime::BeforeUpdate,
                false => AveragingTime::AfterUpdate,
            },
            partners: Partners::All,
            over: None,
            until: self.split.average_until,
        });
        let averaging = every.or(self.split.average_pairs.then_some(Averaging::PAIRS));
        let summation = self.split.summation_servers.map(|servers| Summation {
            ranges: self.split.summation_ranges.unwrap_or_default(),
            share: self.split.summation_share.unwrap_or_default(),
            servers,
        });
        let usual = Negotiation::default();
        let negotiation = self.split.negotiate.then(|| Negotiation {
            cycle_seconds: self.split.cycle_seconds.unwrap_or(usual.cycle_seconds),
            fusion_bytes: self.split.fusion_bytes.unwrap_or(usual.fusion_bytes),
        });
        let zero = self.split.zero.unwrap_or(0);
        let mesh = self.mesh()?;
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
                zero,
                servers,
                compression: self.split.compression.unwrap_or_default(),
                averaging,
                summation,
                negotiation,
                sparse: self.split.sparse,
                bucket_bytes: place.plan_defaults.bucket_bytes(
                    place.bucket_bytes,
                    zero,
                    mesh.tp() as usize,
                ),
                splits_blocks: place.plan_defaults.splits_blocks(zero),
                all_reduces: place.plan_defaults.all_reduces(zero),
                shard_over: None,
            },
            precision: match (self.precision, servers) {
                (Some(compute), _) => self.formats(compute),
                (None, None) => place.precision,
                (None, Some(_)) => Precision::FP32,
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
}

/// Numbers of micro-batches that replicas can share: of a pipeline up to four per device, otherwise one.
fn candidates(global_batch: usize, pp: usize, dp: u32) -> impl Iterator<Item = usize> {
    let most = if pp <= 1 { 1 } else { pp.saturating_mul(4).min(global_batch) };
    (1..=most).filter(move |&microbatches| {
        global_batch.is_multiple_of(microbatches)
            && (global_batch / microbatches).is_multiple_of(dp.max(1) as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::schedule_kind::Named;

    fn dimensions(global_batch: usize, pp: usize, dp: u32) -> Dimensions {
        Dimensions {
            split: Split { pp: Some(pp), dp: Some(dp), ..Split::default() },
            global_batch: Some(global_batch),
            algorithm: None,
            precision: None,
            stochastic_rounding: false,
            freeze: vec![],
            optimizer: None,
            clip_norm: None,
            no_clip: false,
            post_validation: false,
            communication_thread: false,
        }
    }

    fn chosen(kinds: &[ScheduleKind], (global_batch, pp, dp): (usize, usize, u32)) -> usize {
        let model = Model::load("gpt:layers=10,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let orders: Vec<Order> = kinds
            .iter()
            .map(|&kind| Order { named: Named::own(kind), chunks: None, versions: None })
            .collect();
        dimensions(global_batch, pp, dp).microbatches(&model, &orders)
    }

    #[test]
    fn a_pipeline_gets_as_many_microbatches_as_divide() {
        let chosen = |numbers| chosen(&[ScheduleKind::OneForwardOneBackward], numbers);
        assert_eq!(chosen((8, 1, 2)), 1);
        assert_eq!(chosen((8, 2, 1)), 8);
        assert_eq!(chosen((8, 2, 2)), 4);
        assert_eq!(chosen((64, 2, 2)), 8);
        assert_eq!(chosen((7, 2, 2)), 1);
        assert_eq!(chosen((0, 2, 0)), 1);
    }

    #[test]
    fn one_schedule_that_updates_after_every_microbatch_leaves_others_theirs() {
        let (one, each) = (ScheduleKind::OneForwardOneBackward, ScheduleKind::PipeDream);
        let numbers = (24, 2, 1);
        assert_eq!(chosen(&[each], numbers), 1);
        assert_eq!(chosen(&[each, one], numbers), chosen(&[one], numbers));
        assert_eq!(chosen(&[one, each], numbers), 8);
    }

    #[test]
    fn schedules_get_microbatches_with_which_they_exist() {
        let one = ScheduleKind::OneForwardOneBackward;
        assert_eq!(chosen(&[one], (24, 5, 1)), 12);
        // Interleaved wants as many as there are devices: of 1 and 3 that is none of five.
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (3, 5, 1)), 3);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (24, 5, 1)), 12);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (18, 4, 1)), 9);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (20, 3, 1)), 10);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (42, 4, 1)), 14);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (30, 3, 1)), 10);
        assert_eq!(chosen(&[one, ScheduleKind::Interleaved], (30, 3, 1)), 10);
        assert_eq!(chosen(&[ScheduleKind::Chimera], (9, 2, 1)), 3);
        assert_eq!(chosen(&[ScheduleKind::Chimera], (30, 4, 1)), 15);
        assert_eq!(chosen(&[ScheduleKind::ChimeraDoubling], (30, 4, 1)), 15);
        assert_eq!(chosen(&[ScheduleKind::ChimeraDoubling], (60, 4, 1)), 12);
    }
}
