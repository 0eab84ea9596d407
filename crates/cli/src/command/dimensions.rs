//! The options that say how a model is split, whatever its schedule.

mod microbatches;
mod place;
mod split;
mod uniform;

use clap::Args;
use shardloom::cluster::Cluster;
use shardloom::collectives::Algorithm;
use shardloom::plan::{Communication, Number, Optimizer, Precision};
use shardloom::search::Request;
use shardloom::{Model, parse_optimizer};

use super::freeze::frozen;
use super::{algorithm, number};
use crate::failure::Failure;
use crate::number::{decimal, whole};
pub use place::Place;
use split::Split;

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

    /// Keep attention within documents, where samples are packed of several: a position sees none of another
    /// document. Documents end with the tokenizer's end of text
    #[arg(long)]
    mask_documents: bool,

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

/// Samples of a step, where nothing else is said.
const GLOBAL_BATCH: usize = 8;

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
            mask_documents,
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
            ("--mask-documents", *mask_documents),
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

    /// Devices that a pipeline goes through.
    pub fn pp(&self) -> usize {
        self.split.pp.unwrap_or(1)
    }

    /// Samples of a step.
    pub fn global_batch(&self) -> usize {
        self.global_batch.unwrap_or(GLOBAL_BATCH)
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

    /// Who carries out collectives, which neither a search nor a method chooses.
    pub fn communication(&self) -> Communication {
        match self.communication_thread {
            true => Communication::Thread,
            false => Communication::InLine,
        }
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
            mask_documents: self.mask_documents,
            clip_norm: self.clip_norm(),
            post_validation: self.post_validation,
            ..usual
        })
    }

    /// The optimizer.
    fn optimizer(&self) -> Result<Optimizer, Failure> {
        Ok(self.optimizer.as_deref().map_or(Ok(Optimizer::default()), parse_optimizer)?)
    }

    /// The formats where computation is in `compute`.
    fn formats(&self, compute: Number) -> Precision {
        match self.stochastic_rounding {
            true => Precision { compute, ..Precision::STOCHASTIC },
            false => Precision::usual(compute),
        }
    }

    /// Global norm to which gradients are clipped.
    fn clip_norm(&self) -> Option<f64> {
        (!self.no_clip).then(|| self.clip_norm.unwrap_or(1.0))
    }
}

fn first_given<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    options.into_iter().find(|&(_, given)| given).map(|(name, _)| name)
}
