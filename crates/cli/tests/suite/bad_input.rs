//! Input that cannot be used: exit status 2, one message, never a panic.

use crate::invocation::{Place, TINY};
use serde_json::Value;

pub const PLAN: &str = r#"
format = 1
model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256"
cluster = "h100-80g:2"
global_batch = 4
microbatches = 2
schedule = "1f1b"
recompute = "none"
layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
sync = { algorithm = "ring", zero = 0, bucket_bytes = 25000000 }
precision = { compute = "fp32", gradients = "fp32", master = false }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
[[pipeline]]
stage = [
    { blocks = [0, 2], mesh = {}, devices = "0" },
    { blocks = [2, 4], mesh = {}, devices = "1" },
]
"#;

/// Runs `train` with each of these models and options, and expects this kind of error with this hint.
#[track_caller]
fn train_refuses(place: &Place, cases: &[(&str, &str, &str)]) {
    for (arguments, kind, hint) in cases {
        place.run(&format!("train {arguments} --json")).refuses(kind, hint);
    }
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_writes_no_text() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 1 --checkpoint run")).succeeds();
    place.run("vocabulary --data text.txt --size 300 -o words.json").succeeds();
    let outcome = place.run("generate run --prompt a --tokenizer words.json --json");
    outcome.check(outcome.status == Some(2), "it generates");
    outcome.check(outcome.stderr.contains("tokens of the tokenizer words.json"), "it says not why");
}

#[test]
fn a_tokenizer_that_a_model_was_not_trained_with_is_said_to_be_another() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 1 --checkpoint run")).succeeds();
    place.run("vocabulary --data text.txt --size 20 -o words.json").succeeds();
    for (tokenizer, is_other) in
        [("", false), ("--tokenizer bytes", false), ("--tokenizer words.json", true)]
    {
        let outcome =
            place.run(&format!("generate run --prompt a --tokens 2 {tokenizer}")).succeeds();
        let is_said = outcome.stderr.contains("was trained with the tokenizer bytes");
        outcome.check(is_said == is_other, "not as it is");
    }
}

#[test]
fn models() {
    let place = Place::new();
    place.write("broken.json", "{\"model_type\": ");
    place.write("list.json", "[1, 2]");
    place.write("bert.json", "{\"model_type\": \"bert\"}");
    place.write(
        "zero.json",
        "{\"model_type\": \"gpt2\", \"n_layer\": 0, \"n_embd\": 8, \"n_head\": 2}",
    );
    place.write("broken.toml", "[model]\nname = \"m\"\n[gpt]\nlayers = many\n");
    place.write("unknown.toml", "[model]\nname = \"m\"\n[gpt]\nlayers = 2\nwidth = 3\n");
    place.write("empty.toml", "[model]\nname = \"m\"\n");
    place.write("binary.json", [0xff, 0xfe, 0x00]);
    let rest = "--data text.txt --steps 2";
    for (model, kind, hint) in [
        ("nothing-like-it", "model", "presets gpt-2"),
        ("gtp:layers=2", "model", "did you mean"),
        ("gpt:layers=2", "model", "hidden"),
        ("gpt:layers=two,hidden=8,heads=2,seq=8", "model", "whole number"),
        ("gpt:layers=0,hidden=8,heads=2,seq=8", "model", "layers = 0"),
        ("gpt:layers=2,hidden=8,heads=3,seq=8", "model", "heads = 3"),
        ("gpt:layers=2,hidden=8,heads=2,seq=0", "model", "seq = 0"),
        ("gpt:layers=2,hidden=8,heads=2,seq=8,vocab=10", "data", "vocab=256"),
        ("gpt:layers=2,hidden=8,heads=2,seq=99999999999999999999999", "model", "whole number"),
        ("gpt:layers=10000,hidden=1099511627776,heads=1,seq=8", "model", "2^40"),
        ("gpt:layers=9999,hidden=4194304,heads=1,seq=8", "model", "at most"),
        ("llama-3-405b", "memory", "training needs"),
        ("missing.json", "file", "missing.json"),
        ("missing.toml", "file", "missing.toml"),
        ("net.onnx", "model", "config.json"),
        ("broken.json", "model", "broken.json"),
        ("list.json", "model", "object"),
        ("bert.json", "model", "bert"),
        ("zero.json", "model", "n_layer"),
        ("binary.json", "file", "binary.json"),
        ("broken.toml", "model", "broken.toml:4: it is no TOML"),
        ("unknown.toml", "model", "width"),
        ("empty.toml", "model", "networks"),
    ] {
        place.run(&format!("train {model} {rest} --json")).refuses(kind, hint);
    }
}

#[test]
fn numbers_of_hundreds_of_digits_are_not_repeated() {
    let place = Place::new();
    let number = "9".repeat(301);
    for json in ["", " --json"] {
        let line = format!("plan gpt-2 --cluster h100-80g:2 --global-batch {number}{json}");
        let refused = place.run(&line);
        refused.check(refused.status == Some(2), "exit status is not 2");
        refused.check(refused.stderr.contains("it is too large"), "it does not say why");
        refused.check(!refused.stderr.contains(&number[..100]), "all digits are there");
    }
}

#[test]
fn parallelism() {
    let place = Place::new();
    for (options, kind, hint) in [
        ("--pp 0", "plan", "--pp 0: at least 1"),
        ("--dp 0", "plan", "--dp 0: at least 1"),
        ("--cp 0", "plan", "--cp 0: at least 1"),
        ("--tp 0", "plan", "--tp 0: at least 1"),
        ("--pp 5", "plan", "4 blocks"),
        (
            "--dp 3",
            "plan",
            "--dp 3: it must divide a micro-batch of 4 samples (global batch 4 in 1 micro-batch); with \
             --global-batch 6 it does",
        ),
        ("--cp 3", "plan", "seq = "),
        ("--tp 3", "plan", "--tp 3: it must divide heads = 2"),
        ("--dp 4 --zero 1 --shard-within 3", "usage", "it must divide --dp 4"),
        ("--dp 4 --zero 0 --shard-within 2", "usage", "nothing is shared"),
        ("--dp 4 --zero 1 --shard-within 1", "usage", "nobody to share with"),
        ("--dp 4 --shard-within 2", "usage", "--zero"),
        ("--tp 2 --dp 100000 --pp 100", "plan", "at most 1000000"),
        ("--pp 18446744073709551615 --dp 4294967295", "plan", "at most 1000000"),
        ("--pp 99999999999999999999", "usage", "--pp <N>': it is too large"),
        ("--dp -1", "usage", "'-1' for '--dp <N>': a whole number"),
        ("--seed 1.5", "usage", "a whole number"),
        ("--clip-norm -1", "plan", "--clip-norm -1"),
        ("--ranks 0", "usage", "at least 1"),
        ("--zero 4", "usage", "0, 1, 2 or 3"),
        ("--zero 1 --algorithm binary-tree", "plan", "ZeRO"),
        ("--algorithm telepathy", "usage", "ring"),
        ("--schedule 2f2b", "usage", "afab, 1f1b"),
        ("--pp 2 --chunks 2", "plan", "--chunks 2: this schedule has one stage"),
        ("--pp 2 --schedule interleaved --chunks 3", "plan", "6 stages; gpt has 4 blocks"),
        ("--pp 2 --schedule interleaved --chunks 18446744073709551615", "plan", "4 blocks"),
        ("--pp 2 --schedule interleaved --chunks 0", "plan", "--chunks 0"),
        ("--pp 2 --schedule interleaved --chunks 1", "plan", "--chunks 1: interleaved wants"),
        (
            "--pp 2 --schedule interleaved --microbatches 1",
            "plan",
            "as many micro-batches as the 2 devices",
        ),
        ("--pp 3 --schedule chimera", "plan", "--pp 3: pipelines in both directions need an even"),
        ("--pp 2 --versions stash", "plan", "1f1b has a flush"),
        ("--pp 2 --schedule pipedream --versions new", "usage", "double-buffer"),
        (
            "--pp 4 --schedule pipedream --versions double-buffer --microbatches 2",
            "plan",
            "two versions",
        ),
        ("--pp 2 --schedule table", "plan", "a line of actions for each device"),
        ("--schedule chimaera", "usage", "did you mean chimera?"),
        ("--ranks 2 --chunks 2", "usage", "--chunks cannot be given with --ranks"),
        ("--ranks 2 --versions stash", "usage", "--versions cannot be given with --ranks"),
        ("--ranks 2 --schedule gpipe", "usage", "--schedule cannot be given with --ranks"),
        ("--ranks 2 --recompute-except-last", "usage", "--recompute-except-last cannot"),
        ("--recompute some", "usage", "none, selective, full"),
        ("--microbatches 0", "plan", "--microbatches 0: at least 1"),
        ("--microbatches 3", "plan", "divide"),
        ("--microbatches 18446744073709551615", "plan", "micro-batches"),
        ("--ranks 2 --pp 2", "usage", "--ranks"),
        ("--optimizer adam", "optimizer", "adamw"),
        ("--optimizer adamw:momentum=0.9", "optimizer", "beta1"),
        ("--optimizer adamw:beta1=2", "plan", "beta1 = 2"),
        ("--clip-norm 0", "plan", "--clip-norm 0"),
        ("--clip-norm 1 --no-clip", "usage", "--no-clip"),
        (
            "--learning-rate -1",
            "usage",
            "'-1' for '--learning-rate <RATE>': it is finite and at least 0",
        ),
        ("--learning-rate nan", "usage", "it is finite"),
        ("--learning-rate fast", "usage", "'fast' for '--learning-rate <RATE>': a number"),
        ("--lr-schedule cosine --warmup 10", "learning-rate", "warmup-steps is 10"),
        ("--lr-schedule inverse-square-root", "learning-rate", "at least 1"),
        ("--lr-floor 0.1", "usage", "--lr-schedule"),
        ("--validate-every 2 --validation-fraction 0", "usage", "--validate-every needs data"),
        ("--validation-microbatches 2 --validation-fraction 0", "usage", "0.05"),
        ("--validation-fraction 0.002", "usage", "keeps 2 samples, but a micro-batch has 4"),
        ("--validation-fraction 1", "usage", "below 1"),
        ("--validation-fraction -1", "usage", "-1"),
        ("--clock virtual --cluster nowhere:1", "cluster", "unknown machine"),
        ("--clock virtual --cluster h100-80g:0", "cluster", "at least 1"),
        ("--clock virtual --cluster h100-80g:99", "cluster", "8 devices"),
        ("--clock virtual --cluster h100-80g", "cluster", "NAME:DEVICES"),
        ("--clock virtual --cluster missing.toml", "cluster", "missing.toml"),
        ("--clock virtual --dp 4 --cluster h100-80g:2", "plan", "2 devices"),
        ("--cluster h100-80g:1", "usage", "--clock virtual"),
        ("--weights missing.safetensors", "file", "missing.safetensors"),
        ("--weights text.txt", "weights", "text.txt"),
        ("--keep 2", "usage", "--checkpoint"),
        ("--resume", "usage", "--checkpoint"),
        ("--html missing/report.html", "file", "no folder missing"),
        ("--html text.txt", "file", "--force"),
        ("--html same --trace ./same", "file", "two files"),
        ("--checkpoint text.txt", "file", "text.txt"),
        ("--checkpoint /dev/null/run", "file", "/dev/null/run"),
    ] {
        train_refuses(&place, &[(&format!("{TINY} --steps 4 {options}"), kind, hint)]);
    }
    train_refuses(&place, &[(&format!("{TINY} --steps 0"), "usage", "at least 1")]);
    let absurd = "gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 2 --global-batch";
    train_refuses(
        &place,
        &[
            (&format!("{absurd} 0"), "plan", "--global-batch 0: at least 1"),
            (&format!("{absurd} 1000000000000000000"), "plan", "mistyped"),
            (&format!("{absurd} 1000000000000"), "memory", "available"),
            (&format!("{absurd} 8192 --dp 8192"), "plan", "at most 1024"),
        ],
    );
}

#[test]
fn data() {
    let place = Place::new();
    place.write("short.txt", "abc");
    place.write("empty.txt", "");
    place.write("words.csv", "1,2,0\n1,x,1\n");
    place.write("wide.csv", "1,2,3,0\n1,2,3,1\n");
    place.write("many.csv", "1,2,9\n");
    place.write("tokenizer.json", "{}");
    let words = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel",
        "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}}"#;
    place.write("words.json", words);
    std::fs::create_dir(place.path("folder")).expect("a folder");
    let gpt = "gpt:layers=2,hidden=16,heads=2 --seq 8 --steps 2";
    let mlp = "mlp:inputs=2,hidden=4,layers=1,classes=2 --steps 2";
    train_refuses(
        &place,
        &[
            (gpt, "usage", "--data"),
            (&format!("{gpt} --data missing"), "file", "missing"),
            (&format!("{gpt} --data short.txt"), "data", "3 tokens"),
            (&format!("{gpt} --data empty.txt"), "data", "no text"),
            (&format!("{gpt} --data folder"), "data", "no text"),
            (&format!("{gpt} --data text.txt --tokenizer missing.json"), "file", "missing.json"),
            (
                &format!("{gpt} --data text.txt --tokenizer tokenizer.json"),
                "data",
                "tokenizer.json",
            ),
            (&format!("{gpt} --data text.txt --validation-fraction 0.9999"), "data", "validation"),
            (&format!("{mlp} --data missing.csv"), "data", "missing.csv"),
            (&format!("{mlp} --data words.csv"), "data", "\"x\""),
            (&format!("{mlp} --data wide.csv"), "data", "inputs=3"),
            (&format!("{mlp} --data many.csv"), "data", "classes=10"),
            (&format!("{mlp} --data wide.csv --data many.csv"), "data", "one table"),
            (&format!("{mlp} --data many.csv --seq 8"), "model", "no sequence"),
            (&format!("{mlp} --data many.csv --tokenizer words.json"), "usage", "no text"),
        ],
    );
}

#[test]
fn plans() {
    let place = Place::new();
    place.write("good.toml", PLAN);
    place.run("simulate good.toml --json").succeeds();
    place.run("train good.toml --data text.txt --steps 2 --json").succeeds();
    for (before, after, kind, hint) in [
        ("format = 1", "", "plan", "bad.toml:1: this is a plan without the key `format`"),
        ("format = 1", "format = 7", "plan", "reads 1"),
        (
            "global_batch = 4",
            "global_batch = \"four\"",
            "plan",
            "bad.toml:5: global_batch: a whole number",
        ),
        ("global_batch = 4", "global_batch = 0", "plan", "global_batch"),
        ("global_batch = 4", "global_batch = 5", "plan", "divide"),
        ("global_batch = 4", "global_batch = 99999999999999999999", "plan", "bad.toml"),
        ("microbatches = 2", "microbatches = 2\nspeed = 3", "plan", "speed"),
        ("\"1f1b\"", "\"2f2b\"", "plan", "2f2b"),
        ("heads:tp", "legs:tp", "plan", "legs"),
        (
            "heads:tp",
            "heads:up",
            "plan",
            "layout = heads:up: the plan's mesh axes are replica, dp, ep, cp, tp",
        ),
        ("[2, 4]", "[2, 5]", "plan", "blocks"),
        ("[2, 4]", "[3, 4]", "plan", "begins at 2"),
        ("devices = \"1\"", "devices = \"0\"", "plan", "0 1, and they are on 0 0"),
        ("devices = \"1\"", "devices = \"4000000000\"", "plan", "devices"),
        ("devices = \"1\"", "devices = \"0..9999999999\"", "plan", "bad.toml"),
        ("devices = \"1\"", "devices = \"1, 2\"", "plan", "devices"),
        ("h100-80g:2", "h100-80g:1", "plan", "1 devices"),
        ("h100-80g:2", "h200-80g:2", "cluster", "did you mean"),
        ("vocab=256", "vocab=-1", "model", "whole number"),
        ("zero = 0", "zero = 300", "plan", "bad.toml"),
        ("\"ring\"", "\"hierarchical:0\"", "plan", "per inner group, at least 1"),
    ] {
        let text = PLAN.replacen(before, after, 1);
        assert_ne!(text, PLAN, "{before} is not in the plan");
        place.write("bad.toml", text);
        place.run("simulate bad.toml --json").refuses(kind, hint);
    }
    place.run("simulate missing.toml --json").refuses("file", "missing.toml");
    place
        .run("explain text.txt --json")
        .refuses("plan", "text.txt:1: this is no plan, which begins with");
    for (before, after, hint) in [
        ("microbatches = 2", "microbatches = 4000000", "2500000 micro-batches"),
        ("global_batch = 4", "global_batch = 5", "bad.toml"),
        ("[2, 4]", "[2, 5]", "bad.toml"),
    ] {
        place.write("bad.toml", PLAN.replacen(before, after, 1));
        place.run("explain good.toml --against bad.toml --json").refuses("plan", hint);
    }
    place.run("simulate gpt-2 --json").refuses("usage", "--cluster");
    let model =
        "simulate gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256 --cluster h100-80g:2 --json";
    place
        .run(&format!("{model} --pp 2 --schedule interleaved --chunks 3"))
        .refuses("plan", "6 stages");
    place.run(&format!("{model} --pp 4")).refuses("plan", "2 devices");
    place.run("simulate good.toml --cluster h100-80g:2 --json").refuses("usage", "--cluster");
    place.run("simulate good.toml --schedule afab --json").refuses("usage", "--schedule");
    place.run("simulate good.toml --html text.txt --json").refuses("file", "--force");
    let train = "train good.toml --data text.txt --steps 2 --json";
    place.run(&format!("{train} --pp 2")).refuses("usage", "--pp");
    place.run(&format!("{train} --seq 8")).refuses("usage", "--seq");
}

#[test]
fn planning() {
    let place = Place::new();
    place.write("cluster.toml", "[[group]]\nmachine = \"h100-80g\"\nnodes = 0\n");
    let model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
    for (arguments, kind, hint) in [
        (format!("{model} --cluster h100-80g:2"), "usage", "--global-batch"),
        (format!("{model} --global-batch 4"), "usage", "--cluster"),
        (format!("{model} --cluster h100-80g:2 --global-batch 0"), "search", "--global-batch 0: "),
        (
            format!("{model} --cluster h100-80g:4 --global-batch 7 --method chimera"),
            "method",
            "chimera has no plan here: --global-batch 7: ",
        ),
        (
            format!("{model} --cluster h100-80g:2 --global-batch 4294967295"),
            "search",
            "16777216 samples",
        ),
        (format!("{model} --cluster h100-80g:2x --global-batch 4"), "cluster", "NODESxDEVICES"),
        (format!("{model} --cluster h100-80g:9999999x8 --global-batch 4"), "cluster", "limit"),
        (format!("{model} --cluster h100-80g:2x9 --global-batch 4"), "cluster", "8 devices"),
        (format!("{model} --cluster cluster.toml --global-batch 4"), "cluster", "nodes"),
        (format!("{model} --cluster h100-80g:2 --global-batch 4 --tokens -1"), "usage", "--tokens"),
        (format!("{model} --cluster h100-80g:2 --global-batch 4 -o text.txt"), "file", "--force"),
        (
            "llama-3-405b --cluster v100-16g:1 --global-batch 4".into(),
            "search",
            "llama-3-405b fits on v100-16g:1 in no plan",
        ),
    ] {
        place.run(&format!("plan {arguments} --json")).refuses(kind, hint);
    }
    let compare =
        format!("compare {model} --cluster h100-80g:4 --global-batch 7 --methods chimera");
    place.run(&format!("{compare} --json")).refuses("method", "here: --global-batch 7: ");
}

#[test]
fn what_a_schedule_brings_is_named_where_an_option_does_not_go_with_it() {
    let model = "gpt:layers=4,hidden=16,heads=2,seq=8,vocab=256";
    let shape = "--cluster h100-80g:4 --pp 2 --dp 2 --global-batch 8 --schedule pipemare --zero 2";
    let hint = "--zero 2 with --schedule pipemare: weights.discrepancy moves weights";
    Place::new().run(&format!("simulate {model} {shape} --no-clip --json")).refuses("plan", hint);
}

#[test]
fn profiles_and_checkpoints() {
    let place = Place::new();
    place.write("profile.toml", "speed = 3");
    place.run(&format!("train {TINY} --steps 1 --json")).refuses("profile", "profile.toml");
    let message = place.run(&format!("train {TINY} --steps 1")).stderr;
    assert!(!message.contains("\n;"), "the end of the sentence stands alone: {message}");
    // What is wrong with the data is said before this machine is measured, or its profile read.
    let planned = format!("train {TINY} --steps 1 --ranks 2 --data missing --json");
    place.run(&planned).refuses("file", "missing");
    place.run("generate missing --prompt a --json").refuses("file", "missing");
    place.run("generate text.txt --prompt a --json").refuses("file", "text.txt");
    std::fs::create_dir(place.path("folder")).expect("a folder");
    place.run("generate folder --prompt a --json").refuses("checkpoint", "no usable checkpoint");
    place.run("generate folder --prompt a --temperature -1 --json").refuses("usage", "temperature");
    place.run("generate folder --prompt a --top-k 0 --json").refuses("usage", "top-k");
    place.run("profile --ranks 100000 --json").refuses("usage", "cores");
    // Nothing else is overwritten by a profile, and nothing is measured before that is known.
    for text in ["my own text", "[model]\nname = \"mine\"", "[[group]]\nnodes = 1"] {
        place.write("other.toml", text);
        let refused = place.run("profile --profile other.toml --json");
        refused.refuses("profile", "other.toml is no profile, and would be overwritten");
        assert_eq!(std::fs::read_to_string(place.path("other.toml")).expect("kept"), text);
    }
    place.run("profile -o c.toml --profile p.toml --json").refuses("usage", "--profile");
    place.run("export folder --weights text.txt --json").refuses("file", "--force");
    place.run("export folder --weights w/w --json").refuses("file", "no folder w");
    place.run("export folder --weights w --json").refuses("checkpoint", "no usable checkpoint");
    place.run("export missing --weights w --json").refuses("file", "missing");
    place.run("export text.txt --weights w --json").refuses("file", "text.txt");
}

#[test]
fn unknown_commands_and_options_say_what_there_is() {
    let place = Place::new();
    place.run("trian --json").refuses("usage", "train");
    place.run("train --stpes 3 --json").refuses("usage", "--steps");
    // How the command is used has nothing to do with the option that was meant, and nothing near is nothing meant.
    let misspelt = place.run("simulate gpt-2 --zeros 1");
    let said = &misspelt.stderr;
    misspelt.check(said.contains("a similar argument exists: '--zero'"), "no tip");
    misspelt.check(said.contains("simulate [OPTIONS] <PLAN|MODEL>"), "another usage");
    let unknown = place.run("simulate gpt-2 --fp8-param-gather");
    unknown.check(!unknown.stderr.contains("similar"), "a tip that cannot be meant");
    place
        .run("plan gpt-2 --method fail --cluster h100-80g:1 --global-batch 1 --json")
        .refuses("method", "there are ");
    place.run("plan --json").refuses("usage", "provided: --cluster <CLUSTER> --global-batch <N>");
}

#[test]
fn an_argument_that_is_refused_is_said_to_be_the_place() {
    let place = Place::new();
    for (arguments, expected) in [
        (format!("train {TINY} --seed 1.5"), "--seed <SEED>"),
        (format!("train {TINY} --schedule 2f2b"), "--schedule <KIND>"),
        (format!("train {TINY} --stpes 3"), "--stpes"),
        ("train".to_owned(), "--data <PATH>, --steps <N>, <PLAN|MODEL>"),
    ] {
        let outcome = place.run(&format!("{arguments} --json"));
        let error: Value = serde_json::from_str(&outcome.stderr).unwrap_or_default();
        outcome.check(error["error"]["where"] == expected, &format!("the place is not {expected}"));
    }
}

#[test]
fn people_get_one_message_too() {
    let outcome = Place::new().run("simulate missing.toml");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stdout.is_empty(), "something was printed");
    let message = "error: cannot read missing.toml: No such file or directory\n";
    outcome.check(outcome.stderr == message, "another message");
}

pub const GPT: &str = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=257";

#[test]
fn what_is_wrong_with_options_is_said_by_their_names() {
    let place = Place::new();
    for (arguments, said) in [
        (
            "--tp 2 --cluster h100-80g:2",
            "--tp 2: it must divide vocab = 257; the next size that it divides is 258, and 384, a multiple of \
             128, is a usual one: padded_vocab=384 in the words of the model, or --pad-vocabulary 128, which changes \
             no loss",
        ),
        (
            "--dp 4 --algorithm hierarchical:3 --cluster h100-80g:4",
            "--algorithm hierarchical:3: its inner groups divide no group of ranks",
        ),
        ("--servers 0 --cluster h100-80g:2", "--servers 0: at least 1"),
        (
            "--pp 18446744073709551615 --cluster h100-80g:2",
            "--pp 18446744073709551615: pp x dp x cp x tp is at most",
        ),
        (
            "--pp 3 --schedule chimera --cluster h100-80g:3",
            "--pp 3: pipelines in both directions need an even",
        ),
        (
            "--pp 3 --schedule interleaved --cluster h100-80g:3",
            "--pp 3 with interleaved, which has 2 stages on a device: with pp = 3 these are 6 stages",
        ),
        ("--pp 4 --cluster h100-80g:2", "--cluster h100-80g:2 has 2 devices, but the plan needs 4"),
    ] {
        let outcome = place.run(&format!("simulate {GPT} {arguments} --json"));
        outcome.refuses("plan", said);
        outcome.check(outcome.stderr.contains("\"where\":\"--"), "no option is named");
    }
    place.write("text.txt", "a b c ".repeat(100));
    place.write("text.bin", [0xff, 0xfe, 0x00]);
    let train = format!("train {GPT} --data text.txt --global-batch 4 --steps 2");
    let simulate = format!("simulate {GPT} --cluster h100-80g:2");
    for (command, kind, said) in [
        (
            "schedule zb-v --stages 4 --microbatches 8 --chunks 3",
            "plan",
            "--chunks 3: zb-v wants 2 stages on each device",
        ),
        (
            "schedule dualpipe --stages 4 --microbatches 6",
            "plan",
            "--microbatches 6: dualpipe wants at least 8 micro-batches on 4 devices",
        ),
        (
            &format!("{simulate} --dp 2 --servers 1 --freeze embed*"),
            "plan",
            "--freeze embed*: with servers, which hold all parameters alike, there are no groups",
        ),
        (&format!("{train} --freeze *"), "plan", "--freeze *: all parameters are frozen"),
        (&format!("{train} --seq 0"), "usage", "'--seq <TOKENS>': at least 1 is needed"),
        (&format!("{train} --new-head 0"), "usage", "'--new-head <N>': at least 1 is needed"),
        (&format!("{train} --optimizer adam"), "optimizer", "did you mean \"adamw\"? there are"),
        (&format!("{train} --compression topk:3"), "usage", "a similar value exists: 'top-k:N'"),
        (&format!("{simulate} --recompute ful"), "usage", "a similar value exists: 'full'"),
        (
            &format!("plan {GPT} --cluster h100-80g:2 --global-batch 4 --recompute all"),
            "usage",
            "'--recompute <POLICY>': there are none, selective, full, block;",
        ),
        (
            &format!("plan {GPT} --cluster h100-80g:2 --global-batch 4 --recompute stage"),
            "search",
            "recomputation by stage has no estimate",
        ),
        (&format!("{simulate} --algorithm rng"), "usage", "a similar value exists: 'ring'"),
        (
            &format!("plan {GPT} --cluster h100-80g:2 --global-batch 4 --optimizer adamw:beta1=2"),
            "simulation",
            "--optimizer beta1 = 2: at least 0 and below 1",
        ),
        ("explain text.bin", "file", "text.bin: it is no text in UTF-8"),
        (&format!("simulate {GPT} --cluster local:0"), "cluster", "local:0"),
        (
            &format!("{train} --checkpoint text.txt"),
            "file",
            "text.txt is a file; checkpoints go in a folder",
        ),
        (
            "generate text.txt --prompt a --temperature -1",
            "usage",
            "'--temperature <T>': it is finite and at least 0",
        ),
    ] {
        place.run(&format!("{command} --json")).refuses(kind, said);
    }
}

#[test]
fn names_may_be_written_in_letters_of_either_case() {
    let place = Place::new();
    let model = GPT.replace("gpt:", "GPT:");
    let plan = format!(
        "plan {model} --cluster H100-80G:2 --global-batch 4 --method GPipe -o plan.toml --json"
    );
    place.run(&plan).succeeds();
    place.run("simulate GPT-2 --cluster H100-80G:1 --stack Megatron --json").succeeds();
    place.run("export plan.toml --to Torchtitan -o there --json").refuses("exchange", "torchtitan");
}
