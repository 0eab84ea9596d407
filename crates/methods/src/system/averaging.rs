//! Replicas with weights of their own that are averaged: local SGD (Stich 2019, "Local SGD Converges Fast and
//! Communicates Little", ICLR, arXiv 1805.09767; McMahan et al. 2017, AISTATS, arXiv 1602.05629) and synchronous
//! model averaging (Mai et al. 2020, "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI,
//! `SynchronousAveragingOptimizer`; Koliousis et al. 2019, "CROSSBOW", VLDB, arXiv 1901.02244), and pair averaging
//! (KungFu's `PairAveragingOptimizer`, after AD-PSGD, Lian et al. 2018); and adaptive SGD, which averages up to a step
//! and reduces gradients from there on (KungFu's `AdaptiveSGDOptimizer`).

use shardloom_plan::{Averaging, Number, Precision, Sync, Uniform};
use shardloom_search::judge;

use super::replicas;
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// Local SGD.
pub(crate) const LOCAL_SGD: Method = Method {
    name: "local-sgd",
    family: Family::DataParallel,
    paper: "Stich 2019, Local SGD Converges Fast and Communicates Little, ICLR, arXiv 1805.09767",
    about: "Replicas train on their own, each on its share of the batch, and every few steps their weights \
            become the mean.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let mut choice = replicated(task, Averaging::local_sgd(LOCAL_STEPS))?;
        choice.notes.push(format!(
            "replicas are averaged every {LOCAL_STEPS} steps, which the paper leaves to who trains: `every` of \
             `sync.averaging`; the optimizer's state stays each replica's own"
        ));
        Ok(choice)
    },
};

/// Synchronous model averaging.
pub(crate) const SYNCHRONOUS: Method = Method {
    name: "synchronous-averaging",
    family: Family::DataParallel,
    paper: "Mai et al. 2020, KungFu: Making Training in Distributed Machine Learning Adaptive, OSDI",
    about: "In every step the weights of each replica go a tenth of the way to the mean of all, and then along \
            the gradient of its share of the batch.",
    rules: |_| Rules::FLUSH,
    chooser: |task| replicated(task, Averaging::SYNCHRONOUS),
};

/// Pair averaging.
pub(crate) const PAIRS: Method = Method {
    name: "pair-averaging",
    family: Family::DataParallel,
    paper: "Mai et al. 2020, KungFu: Making Training in Distributed Machine Learning Adaptive, OSDI; after Lian et \
            al. 2018, Asynchronous Decentralized Parallel SGD, ICML, arXiv 1710.06952",
    about: "In every step each replica takes in half of the weights that one other, drawn at random, has published \
            last, and goes along the gradient of its share of the batch; nobody waits for anybody.",
    rules: |_| Rules::FLUSH,
    chooser: |task| replicated(task, Averaging::PAIRS),
};

/// Synchronous model averaging first, then data parallelism.
pub(crate) const ADAPTIVE: Method = Method {
    name: "adaptive-sgd",
    family: Family::DataParallel,
    paper: "Mai et al. 2020, KungFu: Making Training in Distributed Machine Learning Adaptive, OSDI",
    about: "Up to a step replicas go a tenth of the way to the mean of all and along their own gradients; then all \
            take the weights of the first, and are kept equal by reduced gradients.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let batch = task.request.global_batch;
        if replicas::most(task) == 1 {
            let rule = "one replica has no averages that could end: a batch that some of the devices divide";
            return Err(task.impossible("global_batch", batch, rule));
        }
        let until = Some(AVERAGED_STEPS);
        let mut choice = replicated(task, Averaging { until, ..Averaging::SYNCHRONOUS })?;
        let after = choice.plan.in_step(AVERAGED_STEPS.into());
        let after = judge(task.graph, task.cluster, &after)?;
        if !after.fits(task.request.memory_share) {
            let rule = "the steps without averages do not fit in memory";
            return Err(task.impossible("global_batch", batch, rule));
        }
        choice.notes.push(format!(
            "replicas are averaged until {AVERAGED_STEPS} steps are done, which who trains says: `until` of \
             `sync.averaging`; from there on a step takes {:.3} ms",
            1e3 * after.step_seconds
        ));
        Ok(choice)
    },
};

/// Steps that are averaged, where nobody says it.
const AVERAGED_STEPS: u32 = 1000;

/// Steps from one average to the next, where nobody says it.
const LOCAL_STEPS: u32 = 8;

/// Replicas of the whole model that are averaged.
fn replicated(task: &mut Task<'_>, averaging: Averaging) -> Result<Choice, MethodError> {
    if task.request.post_validation {
        let rule = "no update waits for the norm of all gradients, which replicas do not find";
        return Err(task.impossible("post_validation", true, rule));
    }
    // In fp16 the loss would have to be scaled, and overflows be found by the norm of all gradients.
    let in_fp16 = task.request.precision.compute == Number::Fp16;
    let mut choice = replicas::with_largest_microbatches(task, |common| Uniform {
        sync: Sync { averaging: Some(averaging), ..common.sync },
        clip_norm: None,
        precision: if in_fp16 { Precision::FP32 } else { common.precision },
        ..common
    })?;
    if in_fp16 {
        choice.notes.push(
            "everything is in fp32 and not in fp16, in which the loss is scaled until gradients overflow: that is \
             seen by the norm of all gradients, which replicas do not find"
                .into(),
        );
    }
    if let Some(norm) = task.request.clip_norm {
        choice.notes.push(format!(
            "gradients are not clipped to {norm}: each replica has gradients of its own, and no norm of all is \
             found"
        ));
    }
    Ok(choice)
}
