//! Runs that are stopped go on as if they had not been.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::invocation::{Outcome, Place, TINY};

/// Trains until `steps` steps are done, sends `signal`, and gives what came of it.
fn stopped(place: &Place, arguments: &str, steps: usize, signal: &str) -> Outcome {
    let mut command = place.command(arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut stdout = String::new();
    for _ in 0..steps {
        reader.read_line(&mut stdout).expect("a line");
    }
    let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).status();
    assert!(sent.expect("kill starts").success(), "the program is gone: {stdout}");
    reader.read_to_string(&mut stdout).expect("UTF-8");
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    let status = child.wait().expect("the program ends");
    // A killed program may leave half a line.
    stdout.truncate(stdout.rfind('\n').map_or(0, |end| end + 1));
    place.outcome(arguments, status.code(), stdout, stderr)
}

/// The uninterrupted run of this many steps.
fn whole(place: &Place, steps: u64) -> Outcome {
    place.run(&format!("train {TINY} --steps {steps} --json")).succeeds()
}

#[test]
fn after_ctrl_c_a_run_goes_on_exactly_where_it_stopped() {
    let place = Place::new();
    let arguments = format!("train {TINY} --steps 1000000 --checkpoint run --json");
    let first = stopped(&place, &arguments, 3, "-INT");
    first.check(first.status == Some(130), "exit status is not 130");
    first.check(first.stderr.contains("--resume"), "it does not say how to go on");
    first.check(first.summary()["interrupted"] == true, "the summary does not say so");
    let mut losses = first.losses();
    let done = losses.len() as u64;

    let steps = done + 3;
    let rest = format!("train {TINY} --steps {steps} --checkpoint run --resume --json");
    let second = place.run(&rest).succeeds();
    losses.extend(second.losses());
    let whole = whole(&place, steps);
    whole.check(whole.losses() == losses, &format!("other losses: {losses:?}"));
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    whole.check(digest(&whole) == digest(&second), "other weights");
}

#[test]
fn after_a_kill_a_run_goes_on_from_its_last_checkpoint() {
    let place = Place::new();
    let options = "--checkpoint run --checkpoint-every 2 --keep 2";
    let arguments = format!("train {TINY} --steps 1000000 {options} --json");
    let first = stopped(&place, &arguments, 7, "-KILL");
    first.check(first.status.is_none(), "it was not killed");
    let done = first.losses().len() as u64;

    let steps = done + 4;
    let second = place.run(&format!("train {TINY} --steps {steps} {options} --resume --json"));
    let second = second.succeeds();
    let losses = second.losses();
    let from = losses.first().map_or(0, |&(step, _)| step);
    // Every step but those since the last checkpoint is kept, and nothing from before it is done again.
    second.check(from >= 6 && from.is_multiple_of(2), &format!("it went on from step {from}"));
    let whole = whole(&place, steps);
    whole.check(whole.losses()[from as usize..] == losses, &format!("other losses: {losses:?}"));
}

#[test]
fn a_truncated_checkpoint_is_refused_by_name_and_the_one_before_used() {
    let place = Place::new();
    let options = "--checkpoint run --checkpoint-every 2";
    place.run(&format!("train {TINY} --steps 6 {options}")).succeeds();
    let shard = place.path("run/step-00000006/shard-00000.safetensors");
    let bytes = fs::read(&shard).expect("a shard");
    fs::write(&shard, &bytes[..bytes.len() / 2]).expect("truncated");

    let resumed =
        place.run(&format!("train {TINY} --steps 8 {options} --resume --json")).succeeds();
    let refused = resumed.stderr.contains("step-00000006 refused");
    resumed.check(refused, "the truncated checkpoint is not named");
    resumed.check(resumed.stderr.contains("step-00000004, after step 4"), "not the one before");
    let whole = whole(&place, 8);
    whole.check(whole.losses()[4..] == resumed.losses(), "other losses");
    // The damaged checkpoint was replaced on the way, so nothing is refused any more.
    let again = place.run(&format!("train {TINY} --steps 9 {options} --resume --json")).succeeds();
    again.check(!again.stderr.contains("refused"), "still refused");
}

#[test]
fn a_run_goes_on_under_another_plan_but_not_with_another_model() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 4 --checkpoint run")).succeeds();
    let resume = "--steps 6 --checkpoint run --resume --json";

    let other = TINY.replace("hidden=16", "hidden=32");
    place.run(&format!("train {other} {resume}")).refuses("checkpoint", "hidden=32");
    place.run(&format!("train {TINY} --seed 1 {resume}")).refuses("checkpoint", "seed");
    let sgd = format!("train {TINY} --optimizer sgd {resume}");
    place.run(&sgd).refuses("checkpoint", "sgd");
    let batch = TINY.replace("--global-batch 4", "--global-batch 8");
    place.run(&format!("train {batch} {resume}")).refuses("checkpoint", "global batch");
    place.write("other.txt", "something else entirely, said once and again");
    let data = TINY.replace("text.txt", "other.txt");
    place.run(&format!("train {data} {resume}")).refuses("checkpoint", "digest");

    let split = place.run(&format!("train {TINY} --pp 2 --dp 2 {resume}")).succeeds();
    split.check(split.stderr.contains("differs"), "the change of plan is not mentioned");
    for ((_, whole), (_, loss)) in whole(&place, 6).losses()[4..].iter().zip(split.losses()) {
        let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
        let apart = (number(&loss) / number(whole) - 1.0).abs();
        split.check(apart < 1e-4, &format!("{loss} instead of {whole}"));
    }
}

#[test]
fn checkpoints_of_another_run_are_not_mixed_up() {
    let place = Place::new();
    let train = |steps: u32, options: &str| {
        place.run(&format!("train {TINY} --steps {steps} --checkpoint run {options} --json"))
    };
    train(4, "--checkpoint-every 1").succeeds();
    train(2, "").refuses("usage", "--resume");
    let fewer = train(3, "--resume");
    let says_why = fewer.stderr.contains("has done 4 steps already");
    fewer.check(fewer.status == Some(2) && says_why, "it went back");
    train(2, "--force").succeeds();
    let steps: Vec<_> = fs::read_dir(place.path("run"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name != ".lock")
        .collect();
    assert_eq!(steps, ["step-00000002"], "those of the first run are gone");
}

#[test]
fn weights_of_one_run_start_another() {
    let place = Place::new();
    let train = format!("train {TINY} --steps 4 --tp 2 --zero 1 --dp 2 --checkpoint run --json");
    let first = place.run(&train).succeeds();
    let exported = place.run("export run --weights weights.safetensors --json").succeeds().object();
    first.check(exported["step"] == 4, "another step");
    first.check(exported["checkpoint"] == "run/step-00000004", "another checkpoint");

    let options = "--steps 1 --learning-rate 0 --weights weights.safetensors --json";
    let second = place.run(&format!("train {TINY} --pp 2 {options}")).succeeds();
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    second.check(digest(&first) == digest(&second), "other weights");
    let other = TINY.replace("hidden=16", "hidden=32");
    place.run(&format!("train {other} {options}")).refuses("model", "shape");
}

#[test]
fn a_resumed_run_says_that_it_does_not_read_other_weights() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 1 --checkpoint run")).succeeds();
    let options = "--steps 2 --checkpoint run --resume --weights other.safetensors --json";
    let outcome = place.run(&format!("train {TINY} {options}")).succeeds();
    outcome.check(outcome.stderr.contains("other.safetensors is not read"), "it is silent");
}

#[test]
fn resuming_without_a_checkpoint_starts_with_the_first_step() {
    let place = Place::new();
    let train = format!("train {TINY} --steps 3 --checkpoint run --resume --json");
    let outcome = place.run(&train).succeeds();
    outcome.check(outcome.losses().len() == 3, "not all steps");
    outcome.check(outcome.stderr.contains("no checkpoint in run"), "it does not say so");
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_or_is_skipped() {
    let place = Place::new();
    let options = "--optimizer sgd --no-clip --learning-rate 1e38 --steps 8";
    let stopped = place.run(&format!("train {TINY} {options} --checkpoint run --json"));
    stopped.check(stopped.status == Some(1), "exit status is not 1");
    stopped.check(stopped.stderr.contains("\"kind\":\"training\""), "another kind of error");
    stopped.check(stopped.stderr.contains("learning rate"), "no advice");

    let skipped = place.run(&format!("train {TINY} {options} --on-nan skip --json")).succeeds();
    let steps = skipped.objects();
    skipped.check(steps[..8].iter().any(|step| step["skipped"] == true), "no update was skipped");

    let spoilt = format!("train {TINY} {options} --on-nan continue --checkpoint spoilt");
    place.run(&spoilt).succeeds();
    place.run("generate spoilt --prompt a --json").refuses("model", "earlier checkpoint");
}

/// People see each step that is left out, however few lines a run has.
#[test]
fn steps_that_a_scale_of_the_loss_leaves_out_are_said_each_with_the_scale() {
    let place = Place::new();
    let model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
    let plan = format!("plan {model} --cluster h100-80g:1 --global-batch 4 -o plan.toml");
    place.run(&plan).succeeds();
    let plan = std::fs::read_to_string(place.path("plan.toml")).expect("a plan");
    let plan = plan
        .replace("compute = \"bf16\"", "compute = \"fp16\"")
        .replace("[sync]", "[loss_scale]\nrule = \"dynamic\"\ninitial = 67108864\n\n[sync]");
    place.write("plan.toml", plan);
    let train = "train plan.toml --data text.txt --steps 60";
    let steps = place.run(&format!("{train} --json")).succeeds().objects();
    let of_steps = steps.iter().filter(|it| it["loss_scale"].is_f64());
    assert_eq!(of_steps.count(), 60);
    let scale = |step: &&serde_json::Value| step["loss_scale"].as_f64().expect("a scale");
    let skipped: Vec<f64> =
        steps.iter().filter(|it| it["skipped"] == true).map(|it| scale(&it)).collect();
    let halved: Vec<f64> =
        (0..skipped.len()).map(|it| 67_108_864.0 / 2f64.powi(it as i32)).collect();
    assert!(skipped.len() > 3 && skipped == halved, "{skipped:?}");
    let said = place.run(train).succeeds();
    for scale in skipped {
        let words = format!("update skipped: not finite with the loss scaled by {scale}\n");
        assert_eq!(said.stdout.matches(&words).count(), 1, "{}", said.stdout);
    }
}

#[test]
fn what_is_computed_in_can_be_said_of_a_model() {
    let place = Place::new();
    let train = |options: &str| {
        let command = format!("train {TINY} --steps 2 --checkpoint run{options} --force --json");
        let outcome = place.run(&command).succeeds();
        let scaled = outcome.objects().iter().any(|it| it["loss_scale"].is_f64());
        let loss = |(_, loss): (u64, String)| loss.parse::<f64>().expect("a number");
        (outcome.losses().into_iter().map(loss).collect::<Vec<_>>(), scaled)
    };
    // A split of its own, and one that a search finds.
    for split in [" --dp 2", ""] {
        let (wide, wide_is_scaled) = train(split);
        assert_eq!(train(&format!("{split} --precision fp32")), (wide.clone(), false));
        let (narrow, narrow_is_scaled) = train(&format!("{split} --precision bf16"));
        let (half, half_is_scaled) = train(&format!("{split} --precision fp16"));
        assert_eq!([wide_is_scaled, narrow_is_scaled, half_is_scaled], [false, false, true]);
        // Of weights the first step is the same, whatever becomes of them.
        let chance = format!("{split} --precision bf16 --stochastic-rounding");
        let (rounded, rounded_is_scaled) = train(&chance);
        assert_eq!((rounded[0], rounded_is_scaled), (narrow[0], false));
        assert_eq!(train(&chance).0, rounded);
        assert_ne!(rounded, narrow);
        for other in [&narrow, &half, &rounded] {
            let difference = (other[1] / wide[1] - 1.0).abs();
            assert!(0.0 < difference && difference < 0.02, "{other:?} and {wide:?}");
        }
        assert_ne!(narrow, half);
    }
    let refused = |options: &str, kind, hint| {
        place.run(&format!("train {TINY} --steps 1 --json {options}")).refuses(kind, hint);
    };
    refused("--precision fp8", "usage", "there are fp32, bf16, fp16");
    refused("--dp 2 --servers 1 --precision bf16", "plan", "precision");
    refused("--stochastic-rounding", "usage", "--precision");
    refused("--precision fp32 --stochastic-rounding", "plan", "--stochastic-rounding: ");
}

/// V100s compute in fp16: what is found for them can be trained with.
#[test]
fn plans_that_are_found_in_fp16_scale_the_loss() {
    let place = Place::new();
    let model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
    for how in ["", " --method megatron-lm"] {
        let plan =
            format!("plan {model} --cluster v100-32g:2 --global-batch 4{how} -o plan.toml --force");
        place.run(&plan).succeeds();
        let plan = shardloom::read_plan(&place.path("plan.toml")).expect("a plan");
        assert_eq!(plan.loss_scale, Some(shardloom::plan::LossScale::dynamic()));
        place.run("train plan.toml --data text.txt --steps 1").succeeds();
    }
}

#[test]
fn a_run_that_is_done_has_nothing_left_to_go_on_with_and_says_what_it_came_to() {
    let place = Place::new();
    let run = || place.run(&format!("train {TINY} --steps 3 --checkpoint run --resume --json"));
    let first = run().succeeds();
    let again = run().succeeds();
    again.check(again.stderr.contains("all steps are done"), "it does not say so");
    again.check(again.losses().is_empty(), "it trained");
    let digest = |outcome: &crate::invocation::Outcome| outcome.summary()["weights_digest"].clone();
    again.check(digest(&again) == digest(&first), "other weights");
}

/// A pipeline without flush trains otherwise where it is drained: that it is at multiples of each number of steps,
/// whatever the others are and wherever a run goes on from.
#[test]
fn a_pipeline_without_flush_is_drained_at_the_same_steps_wherever_it_goes_on_from() {
    let place = Place::new();
    let numbers = "--pp 2 --microbatches 2 --schedule pipedream --drain-every 5 --validate-every 4";
    let options = format!("{TINY} {numbers} --checkpoint run --checkpoint-every 3 --keep 9");
    let train = |steps: u64, more: &str| {
        place.run(&format!("train {options} --steps {steps} {more} --json")).succeeds()
    };
    let whole = train(13, "");
    let validated: Vec<u64> = whole
        .objects()
        .iter()
        .filter(|it| it.get("validation_loss").is_some_and(|it| it.is_number()))
        .filter_map(|it| it.get("step")?.as_u64())
        .collect();
    // Steps are counted from 0.
    whole.check(validated == [3, 7, 11, 12], &format!("validated after {validated:?}"));
    let saved = |step: u64| place.path(&format!("run/step-{step:08}"));
    for from in [9, 6, 3] {
        for step in from + 1..=13 {
            let of_multiple = step % 3 == 0 || step == 13;
            whole.check(saved(step).is_dir() == of_multiple, &format!("checkpoints at {step}"));
            if of_multiple {
                fs::remove_dir_all(saved(step)).expect("removed");
            }
        }
        let rest = train(13, "--resume");
        rest.check(rest.losses() == whole.losses()[from as usize..], &format!("after {from}"));
        rest.check(
            rest.summary()["weights_digest"] == whole.summary()["weights_digest"],
            &format!("other weights from {from} on"),
        );
    }
}
