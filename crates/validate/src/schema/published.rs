//! The schema in which facts of several public repositories are written: 34 columns, empty where a source
//! does not say.

use serde::Deserialize;
use shardloom_plan::{Number, Recompute};

use super::{Line, Table};
use crate::ValidateError;
use crate::case::{Case, MicroBatch, Split};
use crate::convention::Convention;
use crate::hardware::{Hardware, preset_of};
use crate::refusal::Refusal;
use crate::row::{Measured, Row, Uses};
use crate::shape::Shape;

pub(super) const COLUMNS: [&str; 34] = [
    "source",
    "ref",
    "hw",
    "gpus",
    "model",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "experts",
    "topk",
    "seq",
    "gbs",
    "mbs",
    "tp",
    "pp",
    "vp",
    "cp",
    "ep",
    "dp",
    "sharding",
    "precision",
    "recompute",
    "schedule_or_note",
    "step_s",
    "step_kind",
    "tok_s_gpu",
    "tflops_gpu",
    "peak_mem_gib",
    "complete",
    "leave_out",
    "leave_out_why",
];

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[derive(Deserialize)]
struct Cells {
    source: String,
    hw: String,
    gpus: Option<u32>,
    model: String,
    layers: Option<usize>,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    ffn: Option<usize>,
    vocab: Option<usize>,
    experts: u32,
    seq: Option<usize>,
    gbs: Option<usize>,
    mbs: Option<usize>,
    tp: u32,
    pp: u32,
    vp: u32,
    cp: u32,
    dp: Option<u32>,
    sharding: String,
    precision: String,
    recompute: String,
    step_s: Option<f64>,
    step_kind: String,
    peak_mem_gib: Option<f64>,
    complete: u8,
    leave_out: String,
    leave_out_why: String,
}

pub(super) fn rows(table: &Table) -> Result<Vec<Row>, ValidateError> {
    let mut rows = vec![];
    for read in table.rows::<Cells>() {
        let (line, it) = read?;
        line.require_text([("source", &it.source), ("hw", &it.hw), ("model", &it.model)])?;
        line.require_positive([
            ("step_s", it.step_s.unwrap_or(1.0)),
            ("peak_mem_gib", it.peak_mem_gib.unwrap_or(1.0)),
            ("gpus", it.gpus.unwrap_or(1).into()),
            ("dp", it.dp.unwrap_or(1).into()),
            ("tp", it.tp.into()),
            ("pp", it.pp.into()),
            ("vp", it.vp.into()),
            ("cp", it.cp.into()),
        ])?;
        let convention = Convention::of(&it.source, &it.model);
        let measured = it.measured(line, &convention)?;
        rows.push(Row {
            line: line.number,
            source: it.source.clone(),
            hardware: it.hw.clone(),
            model: it.model.clone(),
            measured,
            case: match measured.is_of_use() {
                true => it.case(&convention),
                false if it.leave_out.is_empty() => Err(Refusal::NothingMeasured),
                false => Err(Refusal::LeftOut(it.leave_out_why.clone())),
            },
        });
    }
    Ok(rows)
}

impl Cells {
    fn measured(&self, line: Line<'_>, convention: &Convention) -> Result<Measured, ValidateError> {
        let mut uses = Uses { error: convention.timed, regret: convention.timed, memory: true };
        // What is in brackets says what else would do.
        let words = self.leave_out.split('(').next().unwrap_or("");
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "error" => uses.error = false,
                "regret" => uses.regret = false,
                "memory" => uses.memory = false,
                other => {
                    let what = format!("{other:?} is none of error, regret and memory");
                    return Err(line.cell("leave_out", what));
                }
            }
        }
        Ok(Measured {
            step_seconds: self.step_s,
            peak_bytes: self.peak_mem_gib.map(|gib| gib * GIB),
            crashed: self.step_kind == "crashed_or_oom",
            uses,
        })
    }

    fn case(&self, convention: &Convention) -> Result<Case, Refusal> {
        if self.experts > 0 {
            return Err(Refusal::Experts(self.experts));
        }
        let preset = preset_of(&self.hw)?;
        let (compute, fp8_products) = formats(&self.precision)?;
        if self.complete == 0 {
            return Err(Refusal::Incomplete);
        }
        let recompute = recompute(&self.recompute)?;
        let dp = given(self.dp, "dp")?;
        let (zero, sharing) = zero(&self.sharding, dp)?;
        let mut shape = Shape {
            kind: convention.kind,
            layers: given(self.layers, "layers")?,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            ffn: given(self.ffn, "ffn")?,
            vocab: given(self.vocab, "vocab")?,
            seq: given(self.seq, "seq")?,
            tied: false,
            padded: convention.padded,
        };
        shape.tied = shape.parameters() < convention.tied_below;
        Ok(Case {
            hardware: Hardware {
                preset,
                gpus: given(self.gpus, "gpus")?,
                uplink_bytes_per_second: convention.uplink_bytes_per_second,
                network_latency_seconds: convention.network_latency_seconds,
                network_reachable: convention.network_reachable,
            },
            stack: convention.stack,
            shape,
            split: Split {
                tp: self.tp,
                pp: self.pp,
                chunks: self.vp,
                dp,
                cp: self.cp,
                sequence_parallel: convention.sequence_parallel,
                zero,
                sharing,
                recompute,
                cut: convention.cut,
            },
            global_batch: given(self.gbs, "gbs")?,
            micro_batch: MicroBatch::Given(given(self.mbs, "mbs")?),
            compute,
            fp8_products,
            memory_of: convention.memory_of,
        })
    }
}

fn given<T>(value: Option<T>, column: &'static str) -> Result<T, Refusal> {
    value.ok_or(Refusal::NotGiven(column))
}

/// The format that a precision computes in, and whether products of weights are in 8 bits. Rows in fp8 keep
/// bf16; how tensors are scaled (one factor each, or one for every 32 elements) makes no difference here.
fn formats(precision: &str) -> Result<(Number, bool), Refusal> {
    let written = precision.to_ascii_lowercase();
    let format = written.split([',', ' ']).next().unwrap_or("").trim();
    match format.strip_prefix("amp_").unwrap_or(format) {
        "bf16" => Ok((Number::Bf16, false)),
        "fp16" => Ok((Number::Fp16, false)),
        "fp8" | "fp8-cs" | "fp8-mx" | "mxfp8" => Ok((Number::Bf16, true)),
        _ => Err(Refusal::Precision(precision.to_owned())),
    }
}

/// What a policy computes twice, if it says so.
fn recompute(policy: &str) -> Result<Option<Recompute>, Refusal> {
    match policy {
        "none" => Ok(Some(Recompute::None)),
        "selective" => Ok(Some(Recompute::Selective)),
        "full" => Ok(Some(Recompute::Full)),
        "" | "see recipe" => Ok(None),
        _ => Err(Refusal::Recompute(policy.to_owned())),
    }
}

/// The ZeRO stage that a word for sharding means, and how many of `dp` replicas share.
fn zero(sharding: &str, dp: u32) -> Result<(u8, u32), Refusal> {
    let refused = || Refusal::Sharding(sharding.to_owned());
    let among = |number: &str| {
        let number = number.parse().ok().filter(|&it: &u32| it > 0 && dp.is_multiple_of(it));
        number.ok_or_else(refused)
    };
    match sharding.split_once(':') {
        None => match sharding {
            "ddp" | "zero0" => Ok((0, dp)),
            "zero1" => Ok((1, dp)),
            "zero2" => Ok((2, dp)),
            "zero3" => Ok((3, dp)),
            _ => Err(refused()),
        },
        Some(("zero1", "all")) => Ok((1, dp)),
        Some(("zero1", some)) => Ok((1, among(some)?)),
        Some(("fsdp", "FULL_SHARD")) => Ok((3, dp)),
        Some(("fsdp", "SHARD_GRAD_OP")) => Ok((2, dp)),
        Some(("fsdp", some)) => Ok((3, among(some)?)),
        Some(_) => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_sharding_are_zero_stages() {
        for (word, dp, stage, sharing) in [
            ("ddp", 4, 0, 4),
            ("zero0", 4, 0, 4),
            ("zero1", 4, 1, 4),
            ("zero1:all", 4, 1, 4),
            ("zero1:8", 8, 1, 8),
            ("zero1:8", 32, 1, 8),
            ("fsdp:FULL_SHARD", 4, 3, 4),
            ("fsdp:SHARD_GRAD_OP", 4, 2, 4),
            ("fsdp:64", 64, 3, 64),
            ("fsdp:128", 1024, 3, 128),
        ] {
            assert_eq!(zero(word, dp), Ok((stage, sharing)), "{word}");
        }
        for word in
            ["zero1:32", "zero1:5", "fsdp:0", "fsdp:64 (0)", "", "fsdp;ici_fsdp_parallelism=-1"]
        {
            assert_eq!(zero(word, 16), Err(Refusal::Sharding(word.into())));
        }
    }

    #[test]
    fn words_for_precision_are_formats() {
        for (word, format) in [
            ("bf16", (Number::Bf16, false)),
            ("amp_bf16", (Number::Bf16, false)),
            ("BF16", (Number::Bf16, false)),
            ("bf16, fp32 grad accumulation", (Number::Bf16, false)),
            ("fp16", (Number::Fp16, false)),
            ("fp8", (Number::Bf16, true)),
            ("amp_fp8", (Number::Bf16, true)),
            ("MXFP8", (Number::Bf16, true)),
            ("FP8-CS (FP8-MX)", (Number::Bf16, true)),
        ] {
            assert_eq!(formats(word), Ok(format), "{word}");
        }
        for word in ["nvfp4", "not stated", ""] {
            assert_eq!(formats(word), Err(Refusal::Precision(word.into())));
        }
    }
}
