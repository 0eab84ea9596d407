//! Narayanan et al. 2021 (SC, arXiv 2104.04473), table 1: throughput of GPT of growing size on growing
//! numbers of A100, in fp16 with everything computed twice. The table gives neither the micro-batch nor the
//! stages on a device: the largest micro-batch up to 8 that fits is taken, and one stage.

use serde::Deserialize;
use shardloom_plan::Recompute;

use super::Table;
use super::megatron_2021::{Job, replicas};
use crate::ValidateError;
use crate::case::{Case, MicroBatch};
use crate::refusal::Refusal;
use crate::row::{Measured, Row};

pub(super) const COLUMNS: [&str; 9] =
    ["params_b", "heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "tflops_per_gpu"];

/// Section 5 of the paper.
const SEQ: usize = 2048;
const VOCAB: usize = 51_200;

#[derive(Deserialize)]
struct Cells {
    params_b: f64,
    heads: usize,
    hidden: usize,
    layers: usize,
    tp: u32,
    pp: u32,
    gpus: u32,
    global_batch: usize,
    tflops_per_gpu: f64,
}

pub(super) fn rows(table: &Table) -> Result<Vec<Row>, ValidateError> {
    let mut rows = vec![];
    for read in table.rows::<Cells>() {
        let (line, it) = read?;
        line.require_positive([
            ("params_b", it.params_b),
            ("tflops_per_gpu", it.tflops_per_gpu),
            ("global_batch", it.global_batch as f64),
            ("layers", it.layers as f64),
            ("hidden", it.hidden as f64),
            ("gpus", it.gpus.into()),
            ("tp", it.tp.into()),
            ("pp", it.pp.into()),
        ])?;
        rows.push(Row {
            line: line.number,
            source: "Narayanan et al. 2021".into(),
            hardware: "A100-80G".into(),
            model: format!("gpt-{}b", it.params_b),
            measured: Measured::step(it.step_seconds()),
            case: it.case(),
        });
    }
    Ok(rows)
}

impl Cells {
    /// Arithmetic of a step (equation 3 of the paper, which counts what is computed again) over the rate.
    fn step_seconds(&self) -> f64 {
        let [batch, layers, hidden] =
            [self.global_batch, self.layers, self.hidden].map(|it| it as f64);
        let (seq, vocab) = (SEQ as f64, VOCAB as f64);
        let terms = 1.0 + seq / (6.0 * hidden) + vocab / (16.0 * layers * hidden);
        let flops = 96.0 * batch * seq * layers * hidden * hidden * terms;
        flops / (self.tflops_per_gpu * 1e12 * f64::from(self.gpus))
    }

    fn case(&self) -> Result<Case, Refusal> {
        let dp = replicas(self.gpus, self.tp, self.pp)?;
        Ok(Job {
            gpus: self.gpus,
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            tp: self.tp,
            pp: self.pp,
            global_batch: self.global_batch,
            uplink_bytes_per_second: None,
            vocab: VOCAB,
            seq: SEQ,
            chunks: 1,
            dp,
            sequence_parallel: false,
            recompute: Recompute::Full,
            micro_batch: MicroBatch::LargestFitting(8),
        }
        .case())
    }
}
