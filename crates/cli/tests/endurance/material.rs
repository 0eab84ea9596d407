//! Sound inputs of every kind that the program reads, and the commands that read them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::invocation::{Place, TINY};

/// A kind of input.
pub struct Kind {
    pub name: &'static str,
    /// Sound ones, which lie in the place.
    pub files: Vec<String>,
    /// Further texts of the kind, of which pieces may come.
    pub others: Vec<String>,
    /// What reads them, with `FILE` for the input.
    pub commands: Vec<String>,
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Copies a file, or a folder with files, of the sources.
fn copy(place: &Place, from: &str, to: &str) {
    let from = source(from);
    if from.is_dir() {
        fs::create_dir_all(place.path(to)).expect("made");
        for entry in fs::read_dir(&from).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            fs::copy(&path, place.path(to).join(name)).expect("copied");
        }
    } else {
        fs::copy(from, place.path(to)).expect("copied");
    }
}

/// The inputs of a target of the fuzzer that are text.
fn corpus(target: &str) -> Vec<String> {
    let entries = fs::read_dir(source("fuzz/corpus").join(target)).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

const SMALL: &str = "llama:layers=4,hidden=32,heads=4,kv_heads=2,ffn=64,vocab=256,seq=16";
const FLOWERS: &str =
    "mlp:inputs=4,hidden=8,layers=2,classes=3 --data flowers.csv --global-batch 4 --steps 1";
const CLICKS: &str = "dlrm:dense=4,rows=200-60-5,embed=16,bottom=64-32,top=64-32 --data clicks.csv \
                      --global-batch 4 --steps 1";
const GPT: &str = "gpt:layers=2,hidden=16,heads=2,vocab=64 --seq 8 --global-batch 4";
const SHORT: &str = "gpt:layers=1,hidden=16,heads=2 --seq 8 --global-batch 4 --steps 1";

/// Writes all of them into the place.
pub fn make(place: &Place) -> Vec<Kind> {
    let run = |arguments: &str| drop(place.run(arguments).succeeds());
    for (from, to) in [
        ("examples/data/clicks.csv", "clicks.csv"),
        ("examples/data/flowers.csv", "flowers.csv"),
        ("examples/models/own-network.toml", "own-network.toml"),
        ("examples/models/routed-experts.toml", "routed-experts.toml"),
        ("crates/cluster/presets/l40s.toml", "l40s.profile.toml"),
        ("crates/cluster/stacks/megatron.toml", "megatron.stack.toml"),
        ("crates/cluster/stacks/shardloom.toml", "shardloom.stack.toml"),
        ("crates/validate/tests/logs", "logs"),
        ("crates/validate/data/korthikanti22_table5.csv", "measurements.csv"),
        ("crates/validate/data/sailor_gh200_mixed.csv", "mixed.csv"),
        ("fuzz/corpus/trials/two-devices", "trials.json"),
    ] {
        copy(place, from, to);
    }
    let families = ["gpt2", "llama", "gemma2", "gemma3_text", "phi", "phi3", "qwen3", "mistral"];
    for family in families {
        copy(place, &format!("crates/shardloom/tests/huggingface/{family}"), family);
    }
    place.write(
        "documents.jsonl",
        "{\"text\": \"One of them.\"}\n{\"id\": 2, \"text\": \"Two\\n\"}\n".repeat(20),
    );
    place.write(
        "tokens.ds",
        (0..400_u16).flat_map(|it| (it % 50).to_le_bytes()).collect::<Vec<u8>>(),
    );
    let tokenizers: Vec<String> =
        (0..).map(|at| format!("{at}.tokenizer.json")).take(corpus("tokenizer").len()).collect();
    for (name, text) in tokenizers.iter().zip(corpus("tokenizer")) {
        place.write(name, text);
    }
    for (name, options) in [
        ("megatron.plan.toml", "--cluster h100-80g:2x4 --method megatron-lm"),
        ("servers.plan.toml", "--cluster h100-80g:4 --method parameter-server"),
        ("found.plan.toml", "--cluster a100-80g:4"),
        ("asynchronous.plan.toml", "--cluster h100-80g:4 --method pipedream-2bw"),
        ("pipeline.plan.toml", "--cluster h100-80g:4 --pp 4 --schedule zb-h1"),
        ("sharded.plan.toml", "--cluster h100-80g:2x4 --pp 1 --tp 1 --zero 3"),
    ] {
        run(&format!("plan {SMALL} {options} --global-batch 16 -o {name}"));
    }
    for (project, plan) in [
        ("megatron", "megatron"),
        ("deepspeed", "megatron"),
        ("torchtitan", "sharded"),
        ("nanotron", "megatron"),
        ("accelerate", "sharded"),
    ] {
        run(&format!("export {plan}.plan.toml --to {project} -o exported/{project}"));
    }
    run(&format!("train {TINY} --steps 2 --checkpoint run"));
    run(&format!("train {FLOWERS} --checkpoint classes"));
    run("export run --weights weights.safetensors");
    run("export run --huggingface hugging --shard-gigabytes 0.00001");
    run("vocabulary --data text.txt --size 50 -o words.tokenizer.json");

    let words = |all: &[&str]| all.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    let below = |folder: &str, end: &str| -> Vec<String> {
        let mut names = vec![];
        below(&place.path(folder), folder, end, &mut names);
        names.sort();
        assert!(!names.is_empty(), "{folder} has no file that ends in {end}");
        names
    };
    let each = |of: &[&str], command: &str| -> Vec<String> {
        of.iter().map(|word| command.replace("EACH", word)).collect()
    };
    let projects = ["megatron", "deepspeed", "torchtitan", "nanotron", "accelerate"];
    let kind = |name, files, others, commands| Kind { name, files, others, commands };
    vec![
        kind(
            "plan",
            below("", ".plan.toml"),
            corpus("plan"),
            [
                words(&[
                    "simulate FILE",
                    "simulate FILE --buffers --unfolded --html out/page.html --trace out/trace.json",
                    "program FILE",
                    "explain FILE",
                    "explain found.plan.toml --against FILE",
                    "train FILE --data text.txt --tokenizer bytes --steps 1",
                    "train FILE --data text.txt --tokenizer bytes --steps 1 --clock virtual",
                    "validate --log logs/megatron.log --plan FILE",
                ]),
                each(&projects, "export FILE --to EACH -o out/exported"),
            ]
            .concat(),
        ),
        kind(
            "model",
            words(&["own-network.toml", "routed-experts.toml"]),
            corpus("model_toml"),
            words(&[
                "plan FILE --cluster h100-80g:4 --global-batch 8",
                "simulate FILE --cluster h100-80g:4 --dp 2 --pp 2 --global-batch 8",
                "compare FILE --cluster h100-80g:2 --pp 2",
                "train FILE --data text.txt --tokenizer bytes --steps 1 --global-batch 4",
            ]),
        ),
        kind(
            "Hugging Face configuration",
            families.iter().map(|family| format!("{family}/config.json")).collect(),
            corpus("huggingface_config"),
            words(&[
                "plan FILE --cluster h100-80g:4 --global-batch 8",
                "simulate FILE --cluster h100-80g:4 --dp 2 --tp 2 --global-batch 8",
                "train FILE --data text.txt --tokenizer bytes --steps 1 --seq 8 --global-batch 4",
                "train FILE --weights llama --data text.txt --tokenizer bytes --steps 1 --seq 8 \
                 --global-batch 4",
            ]),
        ),
        kind(
            "cluster",
            vec!["l40s.profile.toml".to_owned()],
            corpus("cluster_toml"),
            vec![
                format!("plan {GPT} --cluster FILE"),
                format!("simulate {GPT} --cluster FILE --dp 2"),
                "simulate found.plan.toml --profile FILE".to_owned(),
                format!("plan {GPT} --cluster local --profile FILE"),
                format!("train {SHORT} --data text.txt --profile FILE"),
            ],
        ),
        kind(
            "stack",
            words(&["megatron.stack.toml", "shardloom.stack.toml"]),
            corpus("stack_toml"),
            vec![
                format!("plan {GPT} --cluster h100-80g:2 --stack FILE"),
                "simulate megatron.plan.toml --stack FILE".to_owned(),
                "validate measurements.csv --stack FILE".to_owned(),
            ],
        ),
        kind(
            "configuration of another project",
            below("exported", ""),
            projects.iter().flat_map(|project| corpus(project)).collect(),
            [
                each(&projects, "import FILE --from EACH --cluster h100-80g:2x4"),
                each(
                    &projects,
                    "import FILE --from EACH --cluster h100-80g:2x4 --model gpt-2 --global-batch 64",
                ),
                words(&["import FILE --cluster h100-80g:2x4 -o out/plan.toml"]),
            ]
            .concat(),
        ),
        kind(
            "measurements",
            words(&["measurements.csv", "mixed.csv"]),
            corpus("measurements"),
            words(&[
                "validate FILE",
                "validate FILE --rows --html out/page.html",
                "validate FILE --residuals --stack megatron",
            ]),
        ),
        kind(
            "log",
            below("logs", ".log"),
            corpus("log"),
            words(&["validate --log FILE --plan megatron.plan.toml"]),
        ),
        kind(
            "table",
            words(&["flowers.csv", "clicks.csv"]),
            corpus("tables"),
            vec![
                format!("train {}", FLOWERS.replace("flowers.csv", "FILE")),
                format!("train {}", CLICKS.replace("clicks.csv", "FILE")),
                "predict classes --data FILE -o out/classes.csv --confusion out/matrix.csv".to_owned(),
            ],
        ),
        kind(
            "text",
            words(&["documents.jsonl", "text.txt"]),
            corpus("documents"),
            vec![
                format!("train {SHORT} --data FILE"),
                format!("train {SHORT} --data FILE --validation-fraction 0.5 --cache out/cache"),
                format!("train {SHORT} --data FILE --tokenizer 0.tokenizer.json"),
                "vocabulary --data FILE --size 100 -o out/tokenizer.json".to_owned(),
            ],
        ),
        kind(
            "tokens",
            words(&["tokens.ds"]),
            vec![],
            vec![format!("train {SHORT} --data FILE --tokenizer words.tokenizer.json")],
        ),
        kind(
            "tokenizer",
            [tokenizers, words(&["words.tokenizer.json"])].concat(),
            corpus("tokenizer"),
            vec![
                format!("train {SHORT} --data text.txt --tokenizer FILE"),
                format!("train {SHORT} --data documents.jsonl --tokenizer FILE --cache out/cache"),
                "generate run --prompt 12 --tokens 3 --tokenizer FILE".to_owned(),
            ],
        ),
        kind(
            "weights",
            ["weights.safetensors".to_owned()]
                .into_iter()
                .chain(below("hugging", ""))
                .chain(below("llama", ""))
                .collect(),
            corpus("weight_index"),
            vec![
                format!("train {TINY} --steps 1 --weights weights.safetensors"),
                format!("train {TINY} --steps 1 --weights hugging"),
                "train hugging --data text.txt --tokenizer bytes --steps 1 --global-batch 4".to_owned(),
                "train llama --data text.txt --tokenizer bytes --steps 1 --seq 8 --global-batch 4"
                    .to_owned(),
            ],
        ),
        kind(
            "trials",
            words(&["trials.json"]),
            corpus("trials"),
            words(&[
                "plan gpt:layers=2,hidden=32,heads=2,seq=8,vocab=64 --cluster h100-80g:2 --global-batch 4 \
                 --method autosync --trials 3 --trials-file FILE",
            ]),
        ),
        kind(
            "checkpoint",
            [below("run", ""), below("classes", "")].concat(),
            corpus("checkpoint"),
            vec![
                "generate run --prompt 12 --tokens 3".to_owned(),
                "predict classes --data flowers.csv".to_owned(),
                format!("train {TINY} --steps 3 --checkpoint run --resume"),
                "export run --weights out/w.safetensors".to_owned(),
                "export run --huggingface out/hugging".to_owned(),
                format!("train {TINY} --steps 1 --weights run"),
            ],
        ),
    ]
}

/// Command lines whose options and values are changed.
pub fn command_lines() -> Vec<String> {
    vec![
        format!("plan {GPT} --cluster h100-80g:2x4 --optimizer adamw:beta1=0.9"),
        format!("plan {GPT} --cluster h100-80g:2 --cluster a100-80g:2 --tokens 1000000"),
        format!("simulate {GPT} --cluster h100-80g:8 --pp 2 --dp 2 --tp 2 --schedule 1f1b --microbatches 2"),
        format!("program {GPT} --cluster h100-80g:4 --pp 4 --schedule zb-v --microbatches 4 --rank 1"),
        format!("compare {GPT} --cluster h100-80g:4 --pp 4 --microbatches 4 --schedules 1f1b,hanayo"),
        format!("compare {GPT} --cluster h100-80g:4 --methods auto,gpipe"),
        format!("train {SHORT} --data text.txt --dp 2 --learning-rate 0.1 --seed 3"),
        format!("train {SHORT} --data text.txt --servers 1 --dp 2 --staleness 1 --clock virtual --cluster h100-80g:3"),
        "train found.plan.toml --data text.txt --tokenizer bytes --steps 1".to_owned(),
        "explain megatron.plan.toml --against found.plan.toml --uplink 800Gbps".to_owned(),
        "schedule 1f1b --stages 4 --microbatches 8 --forward 1 --backward 2".to_owned(),
        "schedule zb-h1 --stages 4 --microbatches 8 --in-flight 5 --kept 0.5 --message 0.1".to_owned(),
        "generate run --prompt 12 --tokens 5 --temperature 0.5 --top-k 3 --seed 1".to_owned(),
        "predict classes --data flowers.csv -o out/classes.csv".to_owned(),
        "export megatron.plan.toml --to megatron -o out/exported".to_owned(),
        "export run --huggingface out/hugging --dtype bf16 --shard-gigabytes 1".to_owned(),
        "import exported/deepspeed/ds_config.json --model gpt-2 --cluster h100-80g:8 --global-batch 8".to_owned(),
        "import --cluster h100-80g:4 -- --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
         --vocab-size 128 --micro-batch-size 2 --tensor-model-parallel-size 2"
            .to_owned(),
        "validate measurements.csv --only 22 --rows --stack megatron".to_owned(),
        "validate --log logs/megatron.log --plan megatron.plan.toml --warm-up 2".to_owned(),
        "vocabulary --data text.txt --size 50 -o out/tokenizer.json".to_owned(),
        "methods gpipe".to_owned(),
        "completions bash".to_owned(),
        "manual -o out/man".to_owned(),
    ]
}

/// The names of all files below a folder of the place, hidden ones left out.
pub fn all_below(place: &Place, folder: &str) -> Vec<String> {
    let mut names = vec![];
    below(&place.path(folder), folder, "", &mut names);
    names
}

/// Adds the names of all files below a folder that end so, hidden ones left out.
fn below(path: &Path, name: &str, end: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(path).expect("a folder") {
        let path = entry.expect("an entry").path();
        let own = path.file_name().expect("a name").display().to_string();
        if own.starts_with('.') {
            continue;
        }
        let name = if name.is_empty() { own } else { format!("{name}/{own}") };
        if path.is_dir() {
            below(&path, &name, end, names);
        } else if name.ends_with(end) {
            names.push(name);
        }
    }
}
