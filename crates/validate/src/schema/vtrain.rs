//! vTrain's measurements (Bang et al. 2024, MICRO): GPT in Megatron-DeepSpeed on nodes of eight A100 with
//! 800 Gb/s to each, in fp16 with everything computed twice.

use serde::Deserialize;
use shardloom_plan::Recompute;

use super::Table;
use super::megatron_2021::Job;
use crate::ValidateError;
use crate::case::{Case, MicroBatch};
use crate::row::{Measured, Row};

pub(super) const MULTI_NODE: [&str; 12] = [
    "params_b",
    "gpus",
    "global_batch",
    "micro_batch",
    "hidden",
    "heads",
    "layers",
    "seq",
    "tp",
    "dp",
    "pp",
    "iteration_ms",
];

pub(super) const SINGLE_NODE: [&str; 11] = [
    "gpus",
    "global_batch",
    "micro_batch",
    "hidden",
    "heads",
    "layers",
    "seq",
    "tp",
    "dp",
    "pp",
    "iteration_ms",
];

#[derive(Deserialize)]
struct Cells {
    params_b: Option<f64>,
    gpus: u32,
    global_batch: usize,
    micro_batch: usize,
    hidden: usize,
    heads: usize,
    layers: usize,
    seq: usize,
    tp: u32,
    dp: u32,
    pp: u32,
    iteration_ms: f64,
}

pub(super) fn rows(table: &Table) -> Result<Vec<Row>, ValidateError> {
    let mut rows = vec![];
    for read in table.rows::<Cells>() {
        let (line, it) = read?;
        line.require_positive([
            ("iteration_ms", it.iteration_ms),
            ("params_b", it.params_b.unwrap_or(1.0)),
            ("gpus", it.gpus.into()),
            ("tp", it.tp.into()),
            ("dp", it.dp.into()),
            ("pp", it.pp.into()),
        ])?;
        let model = match it.params_b {
            Some(billions) => format!("gpt-{billions}b"),
            None => format!("gpt-{}x{}", it.layers, it.hidden),
        };
        rows.push(Row {
            line: line.number,
            source: "vTrain".into(),
            hardware: "A100-80G".into(),
            model,
            measured: Measured::step(it.iteration_ms / 1e3),
            case: Ok(it.case()),
        });
    }
    Ok(rows)
}

impl Cells {
    fn case(&self) -> Case {
        Job {
            gpus: self.gpus,
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            tp: self.tp,
            pp: self.pp,
            global_batch: self.global_batch,
            uplink_bytes_per_second: Some(100e9),
            vocab: 50_257,
            seq: self.seq,
            chunks: 1,
            dp: self.dp,
            sequence_parallel: false,
            recompute: Recompute::Full,
            micro_batch: MicroBatch::Given(self.micro_batch),
        }
        .case()
    }
}
