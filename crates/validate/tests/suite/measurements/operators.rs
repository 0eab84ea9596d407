//! Times of single operators beside the model of their device.

use super::files::{read_text, shipped};
use shardloom_cluster::{FusedAttention, Profile, Stack};
use shardloom_validate::{
    Errors, FileReport, Measurements, OperatorFigures, OperatorRow, ValidateError, predict, read,
};

const HEADER: &str = "device,operator,pass,format,batch,m,n,k,library,bytes,seconds";

/// What a file with these lines below the header is read as.
fn read_lines(lines: &str) -> Result<Measurements, ValidateError> {
    read_text(&format!("{HEADER}\n{lines}\n"))
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
}

fn predicted(row: &OperatorRow, stack: Option<&Stack>) -> f64 {
    row.compare(stack).expect("it is known").predicted
}

#[test]
fn products_attention_and_what_memory_decides_are_what_the_device_says() {
    let read = read_lines(
        "H200,contract,input,bf16,2,512,256,128,cublas,,1e-5\n\
         H200,fused-attention+causal,input,bf16,64,2048,2048,128,cudnn,,1e-3\n\
         H200,layer-norm,forward,bf16,1,4096,1024,1,eager,16777216,2e-5",
    );
    let rows = read.expect("operators").operators;
    let device = Profile::preset("h200").expect("a preset").device;
    let bf16 = shardloom_cluster::Precision::Bf16;
    let product = device.matmul_seconds(bf16, 2, 512, 256, 128).expect("a product");
    close(predicted(&rows[0], None), product);
    // 64 heads of 2,048 queries that see 1,024 keys on average, five products backward.
    let mut stack = Stack::default();
    stack.fused_attention.insert("h200".into(), FusedAttention::flat(0.5));
    let peak = device.peak_flops(bf16).expect("a rate");
    let flops = 64.0 * 2048.0 * 1024.0 * 5.0 * 2.0 * 128.0;
    close(predicted(&rows[1], Some(&stack)), device.launch_seconds + flops / (0.5 * peak));
    let reached = device.memory_bytes_per_second * device.memory_reachable;
    close(predicted(&rows[2], None), device.launch_seconds + 16_777_216.0 / reached);
    stack.memory_time = 3.0;
    let seconds = device.launch_seconds + 3.0 * 16_777_216.0 / reached;
    close(predicted(&rows[2], Some(&stack)), seconds);
    // A kernel of the stack's may take several passes over memory.
    let text = stack.to_toml().expect("it can be written");
    let text = text + "\n[operators.\"layer-norm.forward\"]\ntraffic = 1.5\n";
    let stack = Stack::from_toml(&text).expect("a stack");
    let seconds = device.launch_seconds + 1.5 * 3.0 * 16_777_216.0 / reached;
    close(predicted(&rows[2], Some(&stack)), seconds);
}

/// Measured 4 to 7 times as long as with 50,304.
#[test]
fn a_vocabulary_that_no_vector_divides_makes_each_product_of_the_head_slower() {
    let shapes = [("forward", "8192,V,768"), ("input", "8192,768,V"), ("weight", "V,768,8192")];
    for (pass, shape) in shapes {
        let seconds = |vocabulary| {
            let shape = shape.replace('V', vocabulary);
            let line = format!("H100-80G,contract,{pass},bf16,1,{shape},cublas,,1e-3");
            predicted(&read_lines(&line).expect("an operator").operators[0], None)
        };
        let times = seconds("50257") / seconds("50304");
        assert!((4.0..7.0).contains(&times), "{pass}: {times}");
    }
    // Tokens are in no row.
    let tokens = |tokens| {
        let line = format!("H100-80G,contract,weight,bf16,1,768,768,{tokens},cublas,,1e-3");
        predicted(&read_lines(&line).expect("an operator").operators[0], None)
    };
    assert!(tokens("8191") <= tokens("8192"));
}

#[test]
fn cells_that_say_no_operator_are_refused_with_line_and_column() {
    for (line, what) in [
        ("H200,contract,input,bf16,0,512,256,128,cublas,,1e-5", "column batch"),
        ("H200,contract,input,bf16,1,512,256,4294967296,cublas,,1e-5", "column k"),
        ("H200,contract,input,bf16,1,512,256,128,cublas,,0", "column seconds"),
        ("H200,gelu,forward,bf16,1,512,256,1,eager,,1e-5", "column bytes"),
        ("H200,fused-attention+causal,input,bf16,1,512,256,64,cudnn,,1e-5", "column n"),
        (",gelu,forward,bf16,1,512,256,1,eager,4096,1e-5", "column device"),
    ] {
        // Also behind what is no row.
        for (before, place) in [("", ":2: "), ("\n# of a comment\n\n", ":5: ")] {
            let error = read_lines(&format!("{before}{line}")).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(place), "{line}: {error}");
        }
    }
}

#[test]
fn operators_without_a_prediction_are_counted_with_the_reason() {
    let measurements = read_lines(
        "H200,contract,forward,int4,1,512,256,128,cublas,,1e-5\n\
         Abacus,contract,forward,bf16,1,512,256,128,hand,,1e-5\n\
         H200,contract,forward,bf16,1,512,256,128,cublas,,1e-5",
    );
    let measurements = measurements.expect("operators");
    let report = FileReport::of(&measurements, &[], false).with_operators(&measurements, None);
    assert_eq!(report.operators.iter().map(|it| it.errors.rows).sum::<usize>(), 1);
    let reasons: Vec<(&str, usize)> =
        report.refusals.iter().map(|it| (it.reason, it.rows)).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.iter().any(|(reason, _)| reason.contains("preset")), "{reasons:?}");
}

/// The mean error of all rows of an operator with this beginning, format and library.
fn error(figures: &[OperatorFigures], operator: &str, format: &str, library: &str) -> f64 {
    let wanted = |it: &&OperatorFigures| {
        it.kind.operator == operator && it.kind.format == format && it.kind.library == library
    };
    let found: Vec<&OperatorFigures> = figures.iter().filter(wanted).collect();
    let rows: usize = found.iter().map(|it| it.errors.rows).sum();
    assert!(rows > 20, "{operator}: {rows}");
    let sum: f64 = found.iter().map(|it| it.errors.mean_absolute * it.errors.rows as f64).sum();
    sum / rows as f64
}

#[test]
fn an_h100_and_an_h200_are_as_they_were_measured() {
    let measured = read(&shipped("pytorch_gpu_operators.csv")).expect("it is part of the project");
    assert_eq!((measured.operators.len(), measured.rows.len()), (1184, 0));
    let figures = OperatorFigures::of(&measured.operators, None);
    assert!(error(&figures, "contract", "bf16", "cublas") < 0.08);
    assert!(error(&figures, "contract", "fp8", "cublas") < 0.1);
    assert!(error(&figures, "fused-attention+causal", "bf16", "cudnn") < 0.17);
    // FlashAttention-2, which is not what the device has.
    assert!(error(&figures, "fused-attention+causal", "bf16", "flash") > 0.4);
}

/// The stacks were fitted to an H100's steps.
#[test]
fn steps_of_pytorch_on_an_h200_are_predicted_by_what_an_h100_was_measured_to_do() {
    let mut measured = read(&shipped("pytorch_gpu_steps.csv")).expect("it is part of the project");
    measured.rows.retain(|row| row.hardware == "H200");
    assert_eq!(measured.rows.len(), 38);
    let outcomes = predict(&measured.rows, None, &|| {});
    let report = FileReport::of(&measured, &outcomes, false);
    for (part, (rows, most)) in report.parts.iter().zip([(13, 0.08), (25, 0.06)]) {
        let Some(Errors { rows: found, mean_absolute, .. }) = part.figures.step else {
            panic!("{} has no times", part.source);
        };
        assert_eq!(found, rows, "{}", part.source);
        assert!(mean_absolute < most, "{}: {mean_absolute}", part.source);
    }
}
