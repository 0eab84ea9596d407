//! Cells of every schema: which numbers have to be above 0, and which cells have to say something.

use shardloom_plan::Recompute;
use shardloom_validate::{Case, MicroBatch, Refusal, predict};

use super::files::{changed, line_of, read_text, row};

/// The file that has rows of a schema, the line of one, and its numbers that are above 0.
const POSITIVE: [(&str, usize, &[&str]); 6] = [
    ("a100_singlenode.csv", 2, &["gpus", "tp", "dp", "pp", "iteration_ms"]),
    ("a100_multinode.csv", 2, &["params_b", "gpus", "tp", "dp", "pp", "iteration_ms"]),
    (
        "korthikanti22_table5.csv",
        2,
        &[
            "params_b",
            "tp",
            "pp",
            "interleave",
            "gpus",
            "full_recompute_s",
            "sp_selective_s",
            "mfu_percent",
        ],
    ),
    (
        "megatron_sc21_weak_scaling.csv",
        2,
        &["params_b", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "tflops_per_gpu"],
    ),
    ("internevo.csv", 2, &["gpus", "tp", "pp", "vp", "cp", "dp", "step_s", "peak_mem_gib"]),
    ("pytorch_gpu_operators.csv", 2, &["batch", "m", "n", "k", "bytes", "seconds"]),
];

/// A row of a file with another value in a column.
fn with(file: &str, line: usize, column: &str, value: &str) -> String {
    let (header, row) = line_of(file, line);
    let mut cells: Vec<&str> = row.split(',').collect();
    let index = header.split(',').position(|it| it == column).expect(column);
    cells[index] = value;
    format!("{header}\n{}\n", cells.join(","))
}

#[test]
fn numbers_that_are_not_above_0_are_refused_by_their_column() {
    for (file, line, columns) in POSITIVE {
        for column in columns {
            for value in ["0", "-1", "nan", "inf", "-inf", "many"] {
                let error = read_text(&with(file, line, column, value));
                let error = error.map(|_| ()).expect_err(&format!("{file}: {column} of {value}"));
                let place = format!("2: column {column}: ");
                assert!(error.to_string().contains(&place), "{column} of {value}: {error}");
            }
        }
    }
}

#[test]
fn cells_without_text_are_refused_by_their_column() {
    for (file, columns) in [
        ("internevo.csv", &["source", "hw", "model"][..]),
        ("pytorch_gpu_operators.csv", &["device", "operator", "pass", "format"]),
    ] {
        for column in columns {
            for value in ["", " ", "\t "] {
                let error = read_text(&with(file, 2, column, value));
                let error = error.map(|_| ()).expect_err(&format!("{file}: no {column}"));
                let place = format!("2: column {column}: the cell is empty");
                assert!(error.to_string().ends_with(&place), "{column} of {value:?}: {error}");
            }
            // Of another operator it is not known what it reads and writes.
            if *column != "operator" {
                let found = read_text(&with(file, 2, column, "something"));
                found.unwrap_or_else(|error| panic!("{file}, {column}: {error}"));
            }
        }
    }
}

/// A product may have sizes up to 2^30.
#[test]
fn sizes_of_operators_go_from_1_to_2_to_the_30() {
    let row = |column: &str, size: u64| {
        let mut cells = vec!["H200".to_owned(), "contract".into(), "input".into(), "bf16".into()];
        for name in ["batch", "m", "n", "k"] {
            cells.push(if name == column { size.to_string() } else { "8".into() });
        }
        let (header, _) = line_of("pytorch_gpu_operators.csv", 2);
        read_text(&format!("{header}\n{},cublas,,1e-5\n", cells.join(",")))
    };
    for column in ["batch", "m", "n", "k"] {
        for (size, is_taken) in [(0, false), (1, true), (1 << 30, true), ((1 << 30) + 1, false)] {
            let found = row(column, size).map(|it| it.operators.len());
            assert_eq!(found.ok(), is_taken.then_some(1), "{column} of {size}");
        }
    }
}

/// Queries and keys are the same tokens.
#[test]
fn causal_attention_has_as_many_keys_as_queries() {
    let (header, _) = line_of("pytorch_gpu_operators.csv", 2);
    for (queries, keys) in [(512, 512), (512, 256), (256, 512), (1, 2), (2, 1)] {
        let row =
            format!("H200,fused-attention+causal,input,bf16,16,{queries},{keys},64,cudnn,,1e-5");
        let found = read_text(&format!("{header}\n{row}\n"));
        assert_eq!(found.is_ok(), queries == keys, "{queries} queries of {keys} keys");
    }
}

#[test]
fn a_model_of_which_some_size_is_0_is_not_predicted() {
    for column in ["layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gbs", "mbs"] {
        let Ok(found) = read_text(&changed(&[(column, "0")])) else { continue };
        let outcomes = predict(&found.rows, None, &|| {});
        assert!(outcomes.iter().all(|it| it.prediction.is_err()), "{column} of 0");
    }
}

/// Files are known by half of the columns of a schema, and then every other column has its name.
#[test]
fn half_of_its_columns_tell_a_schema() {
    for (file, line, _) in POSITIVE {
        let (header, _) = line_of(file, line);
        let columns: Vec<&str> = header.split(',').collect();
        let said = |count: usize| {
            let error = read_text(&format!("{}\n", columns[columns.len() - count..].join(",")));
            error.map(|_| ()).expect_err(file).to_string()
        };
        let half = columns.len().div_ceil(2);
        assert!(said(half).contains(" is missing"), "{file}: {}", said(half));
        let less = said((columns.len() - 1) / 2);
        assert!(less.contains("known schema") || less.contains(" is missing"), "{file}: {less}");
    }
    // Of the eleven columns of vTrain's single node.
    let five = "gpus,global_batch,micro_batch,hidden,iteration_ms";
    let unknown = read_text(&format!("{five}\n")).map(|_| ()).expect_err("five").to_string();
    assert!(unknown.contains("are those of no known schema"), "{unknown}");
}

/// Passes forward and backward, of each micro-batch on each stage.
#[test]
fn a_step_has_ten_million_passes_and_no_more() {
    for (pp, chunks) in [(1, 1), (2, 1), (4, 1), (4, 2)] {
        let changes = [("pp", pp.to_string()), ("vp", chunks.to_string())];
        let devices = (8 * pp).to_string();
        let changes = [
            (changes[0].0, &changes[0].1[..]),
            (changes[1].0, &changes[1].1[..]),
            ("gpus", &devices[..]),
            ("recompute", "full"),
        ];
        let case = row(&changes).case.expect("it can be predicted");
        let spec = case.spec().expect("a model");
        let graph = spec.graph().expect("a graph");
        let cluster = case.cluster(None).expect("a cluster");
        let most = 10_000_000 / (2 * pp * chunks);
        for (microbatches, is_taken) in [(most, true), (most + 1, false)] {
            let global_batch = microbatches * 8;
            let case = Case { global_batch, micro_batch: MicroBatch::Given(1), ..case.clone() };
            let found = case.plan(&spec, &graph, &cluster, 1, Recompute::Full);
            match found {
                Ok(plan) => assert!(is_taken && plan.microbatches == microbatches),
                Err(Refusal::Numbers(why)) => {
                    assert!(!is_taken && why.ends_with("are too many"), "{microbatches}: {why}");
                }
                Err(other) => panic!("{microbatches}: {other}"),
            }
        }
    }
}
