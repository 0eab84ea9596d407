//! Files that are refused: which, in what line, and what would be right.

use crate::bad_input::{GPT, PLAN};
use crate::invocation::Place;

/// A configuration of Hugging Face's library.
const CLASSIFIER: &str = r#"{"model_type": "llama",
  "architectures": ["LlamaForSequenceClassification"],
  "hidden_size": 64, "intermediate_size": 128, "vocab_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 3, "max_position_embeddings": 64}
"#;

#[test]
fn a_file_is_told_what_it_looks_like_where_it_is_no_plan() {
    let place = Place::new();
    place.write("model.toml", "[gpt]\nlayers = 2\n");
    place.write("cluster.toml", "[[group]]\nmachine = \"h100-80g\"\nnodes = 1\n");
    for (file, looks) in
        [("model.toml", "a model without its table [model]"), ("cluster.toml", "a cluster")]
    {
        let looks = format!("{file}:1: this is neither a plan nor a model, but rather {looks}");
        place.run(&format!("simulate {file} --json")).refuses("plan", &looks);
        place
            .run(&format!("train {file} --data text.txt --steps 2 --json"))
            .refuses("plan", &looks);
    }
    std::fs::create_dir(place.path("run")).expect("a folder");
    place
        .run("export run --to megatron -o there --json")
        .refuses("plan", "run: this is a folder, and a plan is a file");
    place.run("generate nodir --prompt a --json").refuses("file", "there is no folder nodir");
}

/// Every kind of file that people write: where it is wrong, in which line, and no types of this program.
#[test]
fn files_are_refused_in_one_style() {
    let place = Place::new();
    place.write("plan.toml", PLAN.replacen("microbatches = 2", "microbatches = \"two\"", 1));
    place.write("model.toml", "[model]\nname = \"m\"\n[gpt]\nlayers = \"x\"\n");
    place.write("cluster.toml", "[[group]]\nmachine = \"h100-80g\"\nnodes = \"x\"\n");
    place.write("machine.toml", "[[group]]\nmachine = \"h100-80\"\nnodes = 1\n");
    place.write(
        "nodes.toml",
        "[[group]]\nmachine = \"h100-80g\"\nnodes = 1\ndevices_per_node = 99\n",
    );
    place.write("stack.toml", "name = \"s\"\nhost = 3\n");
    place.write("config.json", "{\n \"model_type\": \"gpt2\",\n \"n_layer\": \"x\"}");
    place.write("broken.json", "{\n \"model_type\": \"gpt2\",\n}");
    place.write(
        "zero.json",
        "{\n \"train_batch_size\": 8,\n \"zero_optimisation\": {\"stage\": 2}}",
    );
    place.write("size.json", "{\n \"train_batch_size\": \"x\"}");
    place.write(
        "titan.toml",
        "[model]\nname = 'llama3'\n[parallelism]\ntensor_parallel_degree = 3\n",
    );
    place.write("fsdp.yaml", "distributed_type: FSDP\nnum_processes: many\n");
    place.write("open.yaml", "distributed_type: FSDP\na: }\n");
    place.write("train.sh", "python pretrain_gpt.py \\\n  --tensor-model-parallel-size x\n");
    place.write("broken.toml", "device = 3\n");
    place.write("family.plan.toml", PLAN.replacen("heads=", "hoods=", 1));
    place.write("sound.plan.toml", PLAN);
    place.write("one.plan.toml", PLAN.replacen("h100-80g:2", "h100-80g:1", 1));
    place.write("twice.plan.toml", PLAN.replacen("heads=", "layers=2,heads=", 1));
    place.write("classifier.json", CLASSIFIER);
    place.write("heads.json", CLASSIFIER.replace("ForSequenceClassification", "ForCausalLM"));
    place.write("machine.plan.toml", PLAN.replacen("h100-80g:2", "h100:2", 1));
    place.write("devices.plan.toml", PLAN.replacen("h100-80g:2", "h100-80g:1", 1));
    place.write("order.plan.toml", PLAN.replacen("\"1f1b\"", "\"table\"", 1));
    place.write("stages.plan.toml", PLAN.replacen("\"1f1b\"", "\"zb-v\"", 1));
    place.write("alone.toml", "source = \"s\"\n[device]\nname = \"d\"\n");
    place.write("list.json", "[1]\n");
    place.write("kindless.json", "{\n \"n_layer\": 2}");
    place.write(
        "misspelt.sh",
        "torchrun pretrain_gpt.py \\\n  --num-layer 2 --hidden-size 8 --num-attention-heads 2",
    );
    place.write(
        "quote.sh",
        "LR=1\ntorchrun pretrain_gpt.py \\\n  --num-layers \"2 --hidden-size 8\n",
    );
    place.write(
        "tokens.yaml",
        "parallelism:\n  dp: 8\n  pp: 1\n  tp: 1\ntokns:\n  sequence_length: 8\n",
    );
    place.write("rows.csv", "1,2,0\n1,x,1\n");
    place.write("short.csv", "1,2,0\n1,1\n");
    place.write("names.csv", "a;b\n");
    place.write("tokenizer.json", "{\n \"model\": {\n  \"type\": \"Words\"\n }\n}");
    std::fs::create_dir(place.path("weights")).expect("a folder");
    let map = "{\n \"weight_map\": {\n  \"wte.weight\": \"a.safetensors\"}}";
    place.write("weights/model.safetensors.index.json", map);
    place.write("log.csv", "step,step_s\n1,2\n2,-1\n");
    place.write("good.plan.toml", PLAN);
    let mlp = "train mlp:inputs=2,hidden=4,layers=1,classes=2 --steps 2 --data";
    let gpt = "train gpt:layers=1,hidden=16,heads=2 --seq 8 --steps 1 --data text.txt";
    let plan = format!("plan {GPT} --global-batch 4 --cluster");
    let import = format!("import --model {GPT} --global-batch 8 --cluster h100-80g:8");
    for (arguments, said) in [
        (
            "simulate plan.toml".to_owned(),
            "plan.toml:6: microbatches: a whole number is needed, not the text \"two\"",
        ),
        (
            "plan model.toml --cluster h100-80g:1 --global-batch 4".into(),
            "model.toml:4: gpt.layers: a whole number is needed",
        ),
        (
            format!("{plan} cluster.toml"),
            "cluster.toml:3: group[0].nodes: a whole number is needed",
        ),
        (
            format!("{plan} machine.toml"),
            "machine.toml:2: machine: unknown machine `h100-80`, did you mean `h100-80g`?",
        ),
        (format!("{plan} nodes.toml"), "nodes.toml:2: a node of h100-80g has 8 devices, not 99"),
        (
            format!("{plan} h100-80g:1 --stack stack.toml"),
            "stack.toml:2: host: a table of keys and values is needed, not 3",
        ),
        (
            format!("{plan} local:1 --profile broken.toml"),
            "broken.toml:1: device: a table of keys and values is needed, not 3",
        ),
        (
            "plan config.json --cluster h100-80g:1 --global-batch 4".into(),
            "config.json:3: n_layer = \"x\"",
        ),
        (
            "plan broken.json --cluster h100-80g:1 --global-batch 4".into(),
            "broken.json:3: it is no JSON: ",
        ),
        (
            format!("{import} zero.json"),
            "zero.json:3: there is no zero_optimisation, did you mean zero_optimization?",
        ),
        (format!("{import} size.json"), "size.json:2: train_batch_size = \"x\": a whole number"),
        (
            format!("{import} titan.toml"),
            "titan.toml:4: parallelism: tp x pp x cp = 3: it must divide the 8 devices of --cluster h100-80g:8",
        ),
        (format!("{import} fsdp.yaml"), "fsdp.yaml:2: num_processes = \"many\": a whole number"),
        (format!("{import} open.yaml"), "open.yaml:2: it is no YAML: "),
        (
            format!("{import} train.sh"),
            "train.sh:2: --tensor-model-parallel-size = x: a number is needed",
        ),
        (
            "simulate family.plan.toml".into(),
            "family.plan.toml:3: key \"hoods\": gpt has no such key (did you mean \"heads\"?)",
        ),
        (
            "simulate twice.plan.toml".into(),
            "twice.plan.toml:3: gpt:layers=2: the key is given twice",
        ),
        (
            "simulate classifier.json".into(),
            "classifier.json:2: architectures = LlamaForSequenceClassification is not possible: a language model",
        ),
        (
            "simulate heads.json --cluster h100-80g:1".into(),
            "heads.json:4: num_key_value_heads = 3 is not possible: key-value heads must divide num_attention_heads = 4",
        ),
        // Of two plans the one that does not fit is named.
        (
            "explain sound.plan.toml --against one.plan.toml".into(),
            "one.plan.toml:16: pipeline[0].stage[1].devices = \"1\": device 1: the cluster has 1 devices",
        ),
        (
            "simulate machine.plan.toml".into(),
            "machine.plan.toml:4: unknown machine `h100`, did you mean `h100-80g`?",
        ),
        ("simulate devices.plan.toml".into(), "devices.plan.toml:"),
        (
            "simulate order.plan.toml".into(),
            "order.plan.toml:7: schedule = table: it needs the key `order`",
        ),
        ("simulate stages.plan.toml".into(), "stages.plan.toml:7: schedule: zb-v wants 2 stages"),
        (
            format!("{plan} alone.toml"),
            "alone.toml:2: this is the profile of a machine, which --profile takes",
        ),
        (
            "plan list.json --cluster h100-80g:1 --global-batch 4".into(),
            "list.json:1: a configuration is a JSON object",
        ),
        (
            "plan kindless.json --cluster h100-80g:1 --global-batch 4".into(),
            "kindless.json:1: the key model_type is missing",
        ),
        (
            "import misspelt.sh --cluster h100-80g:8".into(),
            "misspelt.sh:2: there is no --num-layer here, did you mean --num-layers?",
        ),
        (
            "import quote.sh --cluster h100-80g:8".into(),
            "quote.sh:3: the quote that begins here is not closed",
        ),
        (
            "import tokens.yaml --model llama-3-8b --cluster h100-80g:8".into(),
            "tokens.yaml:5: there is no tokns, did you mean tokens?",
        ),
        (format!("{mlp} rows.csv"), "rows.csv:2: \"x\" is no finite number"),
        (format!("{mlp} short.csv"), "short.csv:2: 2 columns, but rows before it have 3"),
        (format!("{mlp} names.csv"), "names.csv:1: it has no number, so it is taken for the names"),
        (
            format!("{gpt} --tokenizer tokenizer.json"),
            "tokenizer.json:2: cannot use this tokenizer: model: ",
        ),
        (
            format!("{gpt} --weights weights --tokenizer bytes"),
            "index.json:3: wte.weight is in a.safetensors, which is not in the folder",
        ),
        (
            "validate --log log.csv --plan good.plan.toml".into(),
            "log.csv:3: column step_s: a number above 0 is needed, not \"-1\"",
        ),
    ] {
        let outcome = place.run(&arguments);
        let stderr = &outcome.stderr;
        outcome.check(outcome.status == Some(2), "another status");
        outcome.check(stderr.contains(said), said);
        outcome.check(stderr.contains(" | "), "no line is shown");
        outcome.check(!stderr.contains("usize") && !stderr.contains("struct"), "a type is named");
    }
}

/// Nothing is read until memory ends.
#[cfg(target_os = "linux")]
#[test]
fn a_device_without_an_end_is_no_file() {
    let place = Place::new();
    place.write("plan.toml", PLAN);
    for (command, said) in [
        (
            format!("train {GPT} --steps 1 --data text.txt --tokenizer /dev/zero"),
            "longer than 256 MiB",
        ),
        (
            format!("train {GPT} --steps 1 --data text.txt --weights /dev/zero"),
            "longer than 256 MiB",
        ),
        (format!("train {GPT} --steps 1 --data /dev/zero"), "neither a file nor a folder"),
        (
            "train mlp:inputs=4,hidden=8,layers=2,classes=3 --steps 1 --data /dev/zero".into(),
            "neither a file nor a folder",
        ),
        ("explain plan.toml --against /dev/zero".into(), "longer than 256 MiB"),
        ("simulate /dev/zero".into(), "longer than 256 MiB"),
        ("validate --log /dev/zero --plan plan.toml".into(), "longer than 256 MiB"),
        (format!("import /dev/zero --model {GPT} --cluster h100-80g:1"), "longer than 256 MiB"),
    ] {
        let outcome = place.run(&command);
        let is_said = outcome.status == Some(2) && outcome.stderr.contains(said);
        outcome.check(is_said, said);
    }
}
