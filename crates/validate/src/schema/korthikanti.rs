//! Korthikanti et al. 2023 (MLSys, arXiv 2205.05198), table 5: two measurements of a row, one with everything
//! computed twice, one with sequence parallelism and selective recomputation.

use serde::Deserialize;
use shardloom_plan::Recompute;

use super::Table;
use super::megatron_2021::{Job, replicas};
use crate::ValidateError;
use crate::case::{Case, MicroBatch};
use crate::refusal::Refusal;
use crate::row::{Measured, Row};

pub(super) const COLUMNS: [&str; 15] = [
    "params_b",
    "heads",
    "hidden",
    "layers",
    "seq",
    "vocab",
    "tp",
    "pp",
    "interleave",
    "gpus",
    "global_batch",
    "micro_batch",
    "full_recompute_s",
    "sp_selective_s",
    "mfu_percent",
];

#[derive(Deserialize)]
struct Cells {
    params_b: f64,
    heads: usize,
    hidden: usize,
    layers: usize,
    seq: usize,
    vocab: usize,
    tp: u32,
    pp: u32,
    interleave: u32,
    gpus: u32,
    global_batch: usize,
    micro_batch: usize,
    full_recompute_s: f64,
    sp_selective_s: f64,
    mfu_percent: f64,
}

pub(super) fn rows(table: &Table) -> Result<Vec<Row>, ValidateError> {
    let mut rows = vec![];
    for read in table.rows::<Cells>() {
        let (line, it) = read?;
        line.require_positive([
            ("full_recompute_s", it.full_recompute_s),
            ("sp_selective_s", it.sp_selective_s),
            ("params_b", it.params_b),
            ("mfu_percent", it.mfu_percent),
            ("gpus", it.gpus.into()),
            ("tp", it.tp.into()),
            ("pp", it.pp.into()),
            ("interleave", it.interleave.into()),
        ])?;
        let billions = it.params_b;
        for (what, seconds, sequence_parallel, recompute) in [
            ("full recomputation", it.full_recompute_s, false, Recompute::Full),
            ("sequence parallel, selective", it.sp_selective_s, true, Recompute::Selective),
        ] {
            rows.push(Row {
                line: line.number,
                source: "Korthikanti et al. 2023".into(),
                hardware: "A100-80G".into(),
                model: format!("gpt-{billions}b ({what})"),
                measured: Measured::step(seconds),
                case: it.case(sequence_parallel, recompute),
            });
        }
    }
    Ok(rows)
}

impl Cells {
    fn case(&self, sequence_parallel: bool, recompute: Recompute) -> Result<Case, Refusal> {
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
            vocab: self.vocab,
            seq: self.seq,
            chunks: self.interleave,
            dp,
            sequence_parallel,
            recompute,
            micro_batch: MicroBatch::Given(self.micro_batch),
        }
        .case())
    }
}
