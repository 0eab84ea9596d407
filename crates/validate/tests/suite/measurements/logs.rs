//! Logs of training runs, in every form that is known.

use std::fs;
use std::path::{Path, PathBuf};

use shardloom_validate::{
    Argument, Batch, LogFormat, LoggedPeak, LoggedStep, Rate, StepSize, TrainingLog, read_log,
};
use tempfile::TempDir;

const MIB: f64 = 1024.0 * 1024.0;

/// A log whose steps and arguments are in the lines that are said.
fn log(name: &str) -> TrainingLog {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name);
    let log = read_log(&path).expect("it is a log");
    let text = fs::read_to_string(&path).expect("it is a file");
    let lines: Vec<&str> = text.lines().collect();
    let says = |line: usize, number: u64| lines[line - 1].contains(&number.to_string());
    assert!(log.steps.iter().all(|it| says(it.line, it.step)), "{:?}", log.steps);
    assert!(log.arguments.iter().all(|it| says(it.line, it.value)), "{:?}", log.arguments);
    log
}

fn arguments(log: &TrainingLog) -> Vec<(Argument, u64)> {
    log.arguments.iter().map(|it| (it.argument, it.value)).collect()
}

/// A file with this text, which is there as long as the folder is.
fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("log.txt");
    fs::write(&path, text).expect("written");
    (folder, path)
}

fn table(text: &str) -> Result<TrainingLog, String> {
    let (_folder, path) = written(text);
    read_log(&path).map_err(|error| error.to_string())
}

fn steps(log: &TrainingLog) -> Vec<(u64, Rate)> {
    log.steps.iter().map(|it| (it.step, it.rate)).collect()
}

#[test]
fn megatron_says_milliseconds_batches_arguments_and_the_memory_of_ranks() {
    let log = log("megatron.log");
    assert_eq!(log.format, LogFormat::Megatron);
    let seconds = [(1, 19.1388), (2, 2.9361), (3, 2.9781), (4, 2.951)];
    for (it, (step, seconds)) in log.steps.iter().zip(seconds) {
        let Rate::StepSeconds(found) = it.rate else { panic!("{it:?}") };
        assert!((found - seconds).abs() < 1e-9 && it.step == step, "{it:?}");
        assert_eq!(it.batch, Some(Batch::Samples(128)));
    }
    assert_eq!(log.steps.len(), 4);
    // The fullest rank is the second of its line.
    assert_eq!(log.peak, Some(LoggedPeak { bytes: 16850.70 * MIB, reserved: false }));
    let right = [
        (Argument::GlobalBatch, 128),
        (Argument::MicroBatch, 4),
        (Argument::PipelineParallel, 2),
        (Argument::SequenceLength, 2048),
        (Argument::TensorParallel, 2),
        (Argument::Devices, 16),
    ];
    assert_eq!(arguments(&log), right);
}

#[test]
fn torchtitan_says_tokens_of_a_device_in_colours_and_its_validation_is_no_step() {
    let log = log("torchtitan.log");
    assert_eq!(log.format, LogFormat::Torchtitan);
    let right = [(1, 812.0), (10, 5812.0), (20, 5790.0)];
    assert_eq!(steps(&log), right.map(|(step, rate)| (step, Rate::TokensOfDevice(rate))));
    assert_eq!(log.peak, Some(LoggedPeak { bytes: 47.11 * 1024.0 * MIB, reserved: true }));
}

#[test]
fn deepspeed_says_samples_a_second_of_the_present_step() {
    let found = log("deepspeed.log");
    assert_eq!(found.format, LogFormat::DeepSpeed);
    assert_eq!(steps(&found), [(10, Rate::Samples(25.6)), (20, Rate::Samples(26.0))]);
    assert_eq!(found.peak, Some(LoggedPeak { bytes: 38.51 * 1024.0 * MIB, reserved: false }));
    let right = [(Argument::GlobalBatch, 256), (Argument::MicroBatch, 4), (Argument::Devices, 64)];
    assert_eq!(arguments(&found), right);
    let found = log("deepspeed_pipeline.log");
    let right = [
        (10, Rate::StepSeconds(0.512)),
        (20, Rate::StepSeconds(0.502)),
        (30, Rate::Samples(512.0)),
    ];
    assert_eq!(steps(&found), right);
}

#[test]
fn nanotron_says_numbers_of_three_digits_and_batches_in_tokens() {
    let log = log("nanotron.log");
    assert_eq!(log.format, LogFormat::Nanotron);
    let right = [(1, 9.12), (2, 5.1), (3, 0.998)];
    for ((step, rate), (right_step, seconds)) in steps(&log).into_iter().zip(right) {
        let Rate::StepSeconds(found) = rate else { panic!("{rate:?}") };
        assert!(step == right_step && (found - seconds).abs() < 1e-9, "{step} {found}");
    }
    assert_eq!(log.peak, Some(LoggedPeak { bytes: 43012.0 * MIB, reserved: false }));
    let size = |samples| StepSize { samples, tokens_per_sample: 4096, devices: 8 };
    // 256 samples are 1,048,576 tokens, which is written as 1.05M; 260 and 252 are not.
    let batch = log.steps[0].batch.expect("it says its batch");
    assert_eq!([252, 256, 260].map(|samples| batch.is_of(size(samples))), [false, true, false]);
}

#[test]
fn where_two_frameworks_print_the_line_of_the_step_counts() {
    let text = "\
[INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step=199, RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.3, MemAllocated=6.01GB, MaxMemAllocated=19.52GB
 iteration      199/  317892 | consumed samples:       152832 | elapsed time per iteration (ms): 14287.5 | global batch size:   768 |
";
    let log = table(text).expect("it is a log");
    assert_eq!(log.format, LogFormat::Megatron);
    assert_eq!(log.steps.len(), 1);
}

#[test]
fn tables_say_times_in_the_unit_of_their_header() {
    let found = table("step, step_ms, loss\n7, 1500, 2.0\n8, 1400.5, 1.9\n").expect("a table");
    assert_eq!(found.format, LogFormat::Csv);
    assert_eq!(steps(&found), [(7, Rate::StepSeconds(1.5)), (8, Rate::StepSeconds(1.4005))]);
    let found = table("Tokens per second\n\"5,000\"\n4000\n").expect("a table");
    assert_eq!(steps(&found), [(1, Rate::Tokens(5000.0)), (2, Rate::Tokens(4000.0))]);
    let text = "samples_per_second,global_batch,peak_memory_gib\n8,16,3\n9,16,4\n";
    let found = table(text).expect("a table");
    let batch = Some(Batch::Samples(16));
    assert_eq!(found.steps[1], LoggedStep { step: 2, rate: Rate::Samples(9.0), batch, line: 3 });
    let peak = LoggedPeak { bytes: 4.0 * 1024.0 * MIB, reserved: false };
    assert_eq!(found.peak, Some(peak));
}

#[test]
fn what_is_no_log_is_refused_with_what_would_be_one() {
    let refused = |text: &str, what: &str| {
        let message = table(text).expect_err("it is refused");
        assert!(message.contains(what), "{message:?} does not say {what:?}");
    };
    refused("", "no line tells of a step");
    refused("epoch 1 done\n", "Megatron-LM by \"elapsed time per iteration (ms):\"");
    refused("step,loss\n1,2.0\n", "none of the columns step, loss is a time of steps");
    refused("step,loss\n1,2.0\n", "step_seconds");
    refused(
        "step,step_s\n1,2.0\n2,fast\n",
        "log.txt:3: column step_s: a number above 0 is needed, not \"fast\"",
    );
    refused("step,time\n1,2.0\n2,4.0\n3,6.1\n4,8.0\n", "grows from row to row");
    refused(
        "step,step_s\n1,0\n",
        "log.txt:2: column step_s: a number above 0 is needed, not \"0\"",
    );
    refused("step,step_s\n1,2\n2,nan\n", "log.txt:3: column step_s: a number above 0 is needed");
    refused("step,step_s\n1\n", "log.txt:2: there are 1 cells, and 2 columns");
}

#[test]
fn rates_become_times_by_the_size_of_a_step() {
    let size = StepSize { samples: 16, tokens_per_sample: 1000, devices: 4 };
    for (rate, seconds) in [
        (Rate::StepSeconds(3.0), 3.0),
        (Rate::Tokens(8000.0), 2.0),
        (Rate::TokensOfDevice(2000.0), 2.0),
        (Rate::Samples(32.0), 0.5),
    ] {
        assert_eq!(rate.step_seconds(size), seconds, "{rate:?}");
    }
}

#[test]
fn every_name_of_a_column_has_its_unit() {
    for (name, right) in [
        ("step_seconds", Rate::StepSeconds(8.0)),
        ("Step S", Rate::StepSeconds(8.0)),
        ("step-time", Rate::StepSeconds(8.0)),
        ("step_time_s", Rate::StepSeconds(8.0)),
        ("seconds", Rate::StepSeconds(8.0)),
        ("iteration_seconds", Rate::StepSeconds(8.0)),
        ("iteration time", Rate::StepSeconds(8.0)),
        ("time", Rate::StepSeconds(8.0)),
        ("step_ms", Rate::StepSeconds(8e-3)),
        ("step_time_ms", Rate::StepSeconds(8e-3)),
        ("iteration_ms", Rate::StepSeconds(8e-3)),
        ("iteration_time_ms", Rate::StepSeconds(8e-3)),
        ("time_ms", Rate::StepSeconds(8e-3)),
        ("tokens_per_second", Rate::Tokens(8.0)),
        ("tokens_per_sec", Rate::Tokens(8.0)),
        ("tokens_per_second_per_device", Rate::TokensOfDevice(8.0)),
        ("tokens_per_sec_per_gpu", Rate::TokensOfDevice(8.0)),
        ("tok/s/gpu", Rate::TokensOfDevice(8.0)),
        ("tps", Rate::TokensOfDevice(8.0)),
        ("samples_per_second", Rate::Samples(8.0)),
        ("samples_per_sec", Rate::Samples(8.0)),
    ] {
        let found = table(&format!("loss,{name},step\n1,8,3\n")).expect(name);
        assert_eq!(steps(&found), [(3, right)], "{name}");
    }
    for (name, bytes) in
        [("peak_bytes", 2.0), ("peak_memory_gib", 2.0 * 1024.0 * MIB), ("memory GiB", 2048.0 * MIB)]
    {
        let found = table(&format!("step_s,{name}\n8,1\n8,2\n8,1.5\n")).expect(name);
        assert_eq!(found.peak, Some(LoggedPeak { bytes, reserved: false }), "{name}");
    }
    // A column in seconds goes before one in tokens, whichever stands first.
    let both = table("tps,step_s\n100,8\n").expect("a table");
    assert_eq!(steps(&both), [(1, Rate::StepSeconds(8.0))]);
    for name in ["step", "iteration", "Global Step", "steps"] {
        let found = table(&format!("# a comment\n{name},step_s\n17,8\n")).expect(name);
        assert_eq!(found.steps[0].step, 17, "{name}");
    }
    for name in ["global_batch", "global-batch-size"] {
        let found = table(&format!("{name},step_s\n17,8\n")).expect(name);
        assert_eq!(found.steps[0].batch, Some(Batch::Samples(17)), "{name}");
    }
}

#[test]
fn times_of_a_clock_are_told_from_steps_that_get_slower() {
    let is_clock = |times: &[f64]| {
        let rows: String = times.iter().map(|it| format!("{it},1\n")).collect();
        let found = table(&format!("time,loss\n{rows}"));
        found.is_err_and(|message| message.contains("grows from row to row"))
    };
    assert!(is_clock(&[1.0, 2.0, 3.0, 4.0]));
    assert!(!is_clock(&[1.0, 2.0, 3.5]), "three rows say too little");
    assert!(!is_clock(&[1.0, 1.5, 2.0, 3.0]), "three times as long is a slow step");
    assert!(!is_clock(&[1.0, 2.0, 2.0, 4.0]), "a clock does not stand still");
    assert!(!is_clock(&[2.0, 3.0, 4.0, 6.0]) && is_clock(&[2.0, 3.0, 4.0, 6.5]));
}

/// As of a step whose clock was set back: whatever the form, it is as if its line were not there.
#[test]
fn steps_whose_time_or_rate_is_not_above_0_are_no_steps() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
    for (name, number) in [
        ("megatron.log", " (ms): 2936.1"),
        ("torchtitan.log", "tps: 5,812"),
        ("deepspeed.log", "CurrSamplesPerSec=25.6"),
        ("deepspeed_pipeline.log", "(s): 0.502"),
        ("nanotron.log", "elapsed_time_per_iteration_ms: 5.1K"),
    ] {
        let text = fs::read_to_string(folder.join(name)).expect("it is a file");
        // Without colours.
        let plain = text.replace("\u{1b}[34m", "").replace("\u{1b}[36m", "");
        assert!(plain.contains(number), "{name} has no {number:?}");
        let end = number.find([':', '=']).expect("a sign") + 1;
        let without: Vec<&str> = plain.lines().filter(|line| !line.contains(number)).collect();
        let expected = steps(&table(&without.join("\n")).expect(name));
        assert_eq!(expected.len() + 1, steps(&table(&plain).expect(name)).len(), "{name}");
        for zero in ["0", "0.0", "-5"] {
            let changed = plain.replace(number, &format!("{}{zero}", &number[..end]));
            let found = table(&changed).unwrap_or_else(|error| panic!("{name}, {zero}: {error}"));
            assert_eq!(steps(&found), expected, "{name}: {zero}");
        }
    }
    // Where there is no other step there is none.
    let alone = " iteration 1/ 5 | elapsed time per iteration (ms): 0.0 | global batch size: 8 |";
    assert!(table(alone).expect_err("no step").contains("no line tells of a step"));
}

/// The step is the number behind the last slash, as dates and paths have some as well.
#[test]
fn older_lines_of_deepspeed_say_their_step_behind_an_epoch() {
    for before in ["", "[INFO] [timer.py:198:stop] ", "2022/08/29 [/usr/lib/ds/timer.py:198:stop] "]
    {
        let lines = [(0, 10, 512.0), (1, 20, 500.5)]
            .map(|(epoch, step, rate)| format!("{before}{epoch}/{step}, SamplesPerSec={rate}"));
        let found = table(&lines.join("\n")).expect(before);
        assert_eq!(found.format, LogFormat::DeepSpeed);
        assert_eq!(steps(&found), [(10, Rate::Samples(512.0)), (20, Rate::Samples(500.5))]);
    }
}
