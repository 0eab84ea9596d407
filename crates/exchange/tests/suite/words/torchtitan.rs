//! torchtitan's words.

use shardloom_exchange::{Given, Project, import};
use shardloom_graph::ModelSpec;
use shardloom_graph::Network;
use shardloom_graph::families::RopeScaling;
use shardloom_plan::{AttentionKind, Axis, Number, Precision, Recompute, ScheduleKind};

use super::{Base, Word, Wrong, blocks, given, is_adamw, is_hybrid, width};
use crate::plans::LLAMA;

/// 12 layers in 4 stages, 2 replicas of 2 devices.
const TORCHTITAN: &str = "
[training]
local_batch_size = 16
seq_len = 1024
[parallelism]
pipeline_parallel_degree = 4
tensor_parallel_degree = 2
[activation_checkpoint]
mode = 'full'
";

#[test]
fn torchtitans_words() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    let plan = base.read("", "").expect("a plan").plan;
    // 14 in 4 stages, longer ones first, the embedding and the head with one less.
    assert_eq!(blocks(&plan), [(0, 4), (4, 8), (8, 11), (11, 14)]);
    assert_eq!((plan.global_batch, plan.microbatches, plan.sync.zero), (32, 16, 2));
    assert_eq!(plan.attention, AttentionKind::Fused);
    assert!(is_adamw(&plan, [0.9, 0.95, 1e-8, 0.1]));
    let words: [Word; 25] = [
        ("pipeline_parallel_degree = 4\n", "data_parallel_replicate_degree = 2\n", |it| {
            is_hybrid(it, 3, 2, 4)
        }),
        (
            "[training]",
            "[model]\nconverters = ['quantize.linear.float8']\n[quantize.linear.float8]\nfilter_fqns = ['output']\n[training]",
            |it| it.precision.fp8_products,
        ),
        ("'full'", "'none'", |it| it.recompute == Recompute::None),
        ("'full'", "'selective'", |it| it.recompute == Recompute::None),
        ("tensor_parallel_degree = 2\n", "", |it| {
            (width(it, Axis::TP), width(it, Axis::DP)) == (1, 4)
        }),
        ("tensor_parallel_degree = 2\n", "context_parallel_degree = 2\n", |it| {
            width(it, Axis::CP) == 2
        }),
        ("[parallelism]", "[parallelism]\nenable_sequence_parallel = false", |it| {
            !it.layout.splits("seq", Axis::TP)
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_microbatch_size = 2", |it| {
            it.microbatches == 8
        }),
        ("[parallelism]", "[parallelism]\nfsdp_reshard_after_forward = 'always'", |it| {
            it.sync.zero == 3
        }),
        ("[parallelism]", "[parallelism]\ndata_parallel_replicate_degree = 2", |it| {
            it.sync.zero == 0
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'GPipe'", |it| {
            it.schedule == ScheduleKind::Afab
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'Interleaved1F1B'", |it| {
            it.schedule == ScheduleKind::Interleaved && blocks(it).len() == 8
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'ZBVZeroBubble'", |it| {
            it.schedule == ScheduleKind::ZeroBubbleV && blocks(it).len() == 8
        }),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_first_stage_less_layers = 3",
            // 16 in 4 stages of 4, the first with 3 less.
            |it| blocks(it) == [(0, 2), (2, 6), (6, 10), (10, 14)],
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_last_stage_less_layers = 0",
            // 13 in 4 stages, the embedding as one.
            |it| blocks(it) == [(0, 4), (4, 7), (7, 10), (10, 14)],
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_layers_per_stage = 4\npipeline_parallel_schedule = '1F1B'
             pipeline_parallel_last_stage_less_layers = 3",
            // 16 in stages of 4, the last with 3 less, the first with one less.
            |it| blocks(it) == [(0, 4), (4, 8), (8, 12), (12, 14)],
        ),
        ("[training]", "[training]\nmax_norm = 0.5", |it| it.clip_norm == Some(0.5)),
        ("[training]", "[training]\ndtype = 'bfloat16'", |it| {
            let (gradients, master) = (Number::Bf16, false);
            it.precision == Precision { gradients, master, ..Precision::MIXED }
        }),
        ("[training]", "[training]\nmixed_precision_param = 'float32'", |it| {
            it.precision == Precision::FP32
        }),
        ("[training]", "[optimizer]\nbeta1 = 0.8\nbeta2 = 0.7\n[training]", |it| {
            is_adamw(it, [0.8, 0.7, 1e-8, 0.1])
        }),
        ("[training]", "[optimizer]\neps = 1e-6\nweight_decay = 0.3\n[training]", |it| {
            is_adamw(it, [0.9, 0.95, 1e-6, 0.3])
        }),
        ("local_batch_size = 16\n", "", |it| (it.global_batch, it.microbatches) == (16, 8)),
        ("pipeline_parallel_degree = 4\n", "", |it| {
            // Eight replicas with 16 samples at a time.
            (it.global_batch, it.microbatches, it.sync.zero) == (128, 1, 3)
        }),
        (
            "local_batch_size = 16\nseq_len = 1024\n[parallelism]\npipeline_parallel_degree = 4\n",
            "local_batch_size = 4\nglobal_batch_size = 64\n[parallelism]\n",
            |it| (it.global_batch, it.microbatches) == (64, 2),
        ),
        (
            "pipeline_parallel_degree = 4\n",
            "data_parallel_replicate_degree = 8\nfsdp_reshard_after_forward = 'never'\n",
            |it| it.sync.zero == 0,
        ),
    ];
    let wrong: [Wrong; 19] = [
        // Of early versions.
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_split_points = ['layers.2']",
            "parallelism.module_fqns_per_model_part says that now",
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_microbatches = 8",
            "parallelism.pipeline_parallel_microbatch_size says that now",
        ),
        ("local_batch_size", "batch_size", "training.local_batch_size says that now"),
        (
            "seq_len = 1024",
            "tensor_parallel_degree = 2",
            "training.tensor_parallel_degree = 2: a word of an early version",
        ),
        (
            "[training]",
            "[experimental]\ncontext_parallel_degree = 2\n[training]",
            "parallelism.context_parallel_degree says that now",
        ),
        ("[parallelism]", "[parallelism]\nexpert_parallel_degree = 2", "the model has no experts"),
        ("[training]", "[training]\nenable_cpu_offload = true", "enable_cpu_offload = true"),
        (
            "[training]",
            "[model]\nconverters = ['quantize.linear.float8']\n[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n[training]",
            "enable_fsdp_float8_all_gather = true",
        ),
        (
            "[training]",
            "[model]\nconverters = ['quantize.linear.mx']\n[training]",
            "model.converters",
        ),
        ("[training]", "[training]\nglobal_batch_size = 64", "several rounds of a pipeline"),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_microbatch_size = 3",
            "2 replicas with 16 samples at a time",
        ),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = '2F2B'", "_dump_csv"),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_schedule_csv = 'a.csv'",
            "name that file after the configuration",
        ),
        (
            "[parallelism]",
            "[parallelism]\ndata_parallel_shard_degree = 4",
            "with the other widths there are 2 replicas",
        ),
        ("[parallelism]", "[parallelism]\nfsdp_reshard_after_forward = 'no'", "default, always or"),
        (
            "pipeline_parallel_degree = 4\n",
            "data_parallel_replicate_degree = 3\n",
            "with the other widths there are 8 replicas",
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_first_stage_less_layers = 5",
            "leave a stage without one",
        ),
        ("[training]", "[training]\nmixed_precision_reduce = 'bfloat16'", "reduced in fp32"),
        ("[training]", "[optimizer]\nname = 'Adam'\n[training]", "AdamW is known here"),
    ];
    base.check(&words, &wrong);
}

/// What torchtitan writes itself has defaults, too.
#[test]
fn torchtitans_json_has_the_defaults_of_pytorchs_adamw() {
    let text = include_str!("../torchtitan/fully-sharded.json");
    let base = Base { place: "plan.json", text, given: given(8) };
    let settings = "\"lr\": 0.0003, \"betas\": [0.9, 0.95], \"eps\": 1e-08, \"weight_decay\": 0.1";
    let words: [Word; 2] = [
        (settings, "\"lr\": 0.0003", |it| is_adamw(it, [0.9, 0.999, 1e-8, 0.01])),
        (settings, "\"betas\": [0.5, 0.6], \"eps\": 1e-3, \"weight_decay\": 0.3", |it| {
            is_adamw(it, [0.5, 0.6, 1e-3, 0.3])
        }),
    ];
    base.check(&words, &[("\"llama3\"", "\"llama4\"", "model_spec.name = llama4")]);
}

#[test]
fn words_that_are_not_read_are_named_and_lines_that_cannot_be_too() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    let notes = base.read("[training]", "[training]\nsteps = 10").expect("a plan").notes;
    assert_eq!(notes, ["not part of a plan: training.seq_len, training.steps"]);
    let error = base.read("[training]", "[training").expect_err("no TOML").to_string();
    assert!(error.starts_with("titan.toml:2"), "{error}");
}

#[test]
fn torchtitans_names_of_models() {
    let text = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\n";
    let base = Base { place: "titan.toml", text, given: given(256) };
    let words: [Word; 3] = [
        ("8B", "70B", |it| it.model.contains("layers=80")),
        ("8B", "405B", |it| it.model.contains("layers=126")),
        ("size = 1", "size = 1\nseq_len = 4096", |it| it.model.contains("seq=4096")),
    ];
    let wrong = [("8B", "1B", "model.flavor = 1B of llama3"), ("llama3", "llama4", "of llama4")];
    base.check(&words, &wrong);
    let model = base.read("", "").expect("a plan").plan.model;
    assert!(model.contains("layers=32") && model.contains("seq=2048"), "{model}");
}

/// A configuration as people write it for torchtitan today.
const PYTHON: &str = r#"
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry


def ours() -> Trainer.Config:
    spec = model_registry("8B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    config = Trainer.Config(
        model_spec=spec,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree=-1,
            tensor_parallel_degree=8,
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )
    config.parallelism.data_parallel_replicate_degree = 1
    return config
"#;

#[test]
fn torchtitans_python_is_read_as_it_is_written_today() {
    let base = Base { place: "config_registry.py", text: PYTHON, given: given(256) };
    let imported = base.read("", "").expect("a plan");
    let plan = &imported.plan;
    assert!(plan.model.contains("layers=32") && plan.model.contains("seq=8192"), "{}", plan.model);
    assert_eq!((width(plan, Axis::TP), width(plan, Axis::DP), plan.global_batch), (8, 32, 64));
    assert!(is_adamw(plan, [0.9, 0.95, 1e-8, 0.1]));
    let notes = imported.notes;
    assert!(notes[0].starts_with("activation_checkpoint: cheap operators"), "{notes:?}");
    assert_eq!(notes[1..], ["not part of a plan: optimizer.lr, training.steps"]);
    let words: [Word; 5] = [
        ("replicate_degree = 1", "replicate_degree = 4", |it| is_hybrid(it, 3, 4, 8)),
        ("SelectiveAC", "FullAC", |it| it.recompute == Recompute::Block),
        ("SelectiveAC.Config()", "None, compile=X()", |it| {
            // Nothing is computed twice in either case.
            it.recompute == Recompute::None && it.sync.zero == 3
        }),
        ("parallel_degree=8", "parallel_degree=4, enable_sequence_parallel=False", |it| {
            width(it, Axis::TP) == 4 && !it.layout.splits("seq", Axis::TP)
        }),
        ("\"8B\"", "\"70B\"", |it| it.model.contains("layers=80")),
    ];
    base.check(&words[..2], &[]);
    base.check(&words[3..], &[]);
    let found = base.read(words[2].0, words[2].1).expect("a plan");
    assert!((words[2].2)(&found.plan) && found.notes.len() == 1, "{:?}", found.notes);
    let plain =
        base.read(", converters=[Float8LinearConverter.Config(filter_fqns=[\"lm_head\"])]", "");
    assert!(plan.precision.fp8_products && !plain.expect("a plan").plan.precision.fp8_products);
    let whole = base.read("filter_fqns=[\"lm_head\"]", "").expect("a plan").notes;
    assert!(whole.iter().any(|note| note.contains("the last product is in 8 bits")), "{whole:?}");
    base.check(
        &[],
        &[
            (
                "degree=8",
                "degree=2 * 4",
                "config_registry.py:14: parallelism.tensor_parallel_degree = 2 * 4: a whole number",
            ),
            ("\"8B\"", "NAME", "model_spec.(0)"),
            ("torchtitan.models.llama3", "torchtitan.models.qwen3", "name others with --model"),
            ("SelectiveAC", "MemoryBudgetAC", "FullAC.Config and SelectiveAC.Config are known"),
            ("Float8Linear", "MXFP8Linear", "model.converters"),
            ("return config", "return config.parallelism", "no function without arguments"),
        ],
    );
}

/// What is left of a file, or has a character too many, is read or refused, and nothing else.
#[test]
fn no_piece_of_python_makes_it_end() {
    let base = Base { place: "config_registry.py", text: PYTHON, given: given(256) };
    let mut refused = 0;
    let letters: Vec<usize> = PYTHON.char_indices().map(|(at, _)| at).collect();
    for (index, &at) in letters.iter().enumerate() {
        let (before, after) = PYTHON.split_at(at);
        let texts = [before.to_owned(), after.to_owned()];
        let marks = ["(", "]", "}", "\"", "\\", ",", "=", "-", ".", ":", "#", "\n", " return "];
        let mark = marks[index % marks.len()];
        for text in texts.into_iter().chain([format!("{before}{mark}{after}")]) {
            let read = import(Project::Torchtitan, &text, base.place, &base.given);
            refused += usize::from(read.is_err_and(|error| !error.to_string().is_empty()));
        }
    }
    assert!(refused > letters.len(), "{refused} of {} texts are refused", 3 * letters.len());
}

/// Each word of the first layer's rotary embedding is one of the model, and has its default where it is not said.
#[test]
fn torchtitans_json_has_the_defaults_of_its_llama() {
    let text = include_str!("../torchtitan/fully-sharded.json");
    let base = Base { place: "plan.json", text, given: given(8) };
    let llama = |from: &str, to: &str| {
        let spec = base.read(from, to).unwrap_or_else(|error| panic!("{from}: {error}")).spec;
        let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
        llama.clone()
    };
    let words = "\"scaling\": \"none\", \"scaling_factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0";
    let plain = llama("", "");
    assert_eq!((plain.rope_theta, plain.norm_epsilon, plain.rope_scaling), (5e5, 1e-5, None));
    let scaled = |factor, low, high| Some(RopeScaling::ByWavelength(factor, low, high, 8192));
    let on = "\"scaling\": \"llama\"";
    assert_eq!(llama(words, on).rope_scaling, scaled(8.0, 1.0, 4.0));
    for (word, factors) in [
        ("scaling_factor", [2.0, 1.0, 4.0]),
        ("low_freq_factor", [8.0, 2.0, 4.0]),
        ("high_freq_factor", [8.0, 1.0, 2.0]),
    ] {
        let [factor, low, high] = factors;
        let one = llama(words, &format!("{on}, \"{word}\": 2.0"));
        assert_eq!(one.rope_scaling, scaled(factor, low, high), "{word}");
    }
    assert_eq!(llama("\"theta\": 500000.0, ", "").rope_theta, 1e4);
    assert_eq!(llama("\"eps\": 1e-05, ", "").norm_epsilon, 1e-5);
    assert_eq!(llama("\"eps\": 1e-05, ", "\"eps\": 0.25, ").norm_epsilon, 0.25);
}

#[test]
fn texts_of_torchtitan_are_texts() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let of = |word: &'static str| ("[parallelism]\n", format!("[parallelism]\n{word} = @\n"), word);
    let words = [
        "pipeline_parallel_schedule",
        "pipeline_parallel_schedule_csv",
        "fsdp_reshard_after_forward",
    ];
    let words: Vec<_> = words.map(of).into();
    let words: Vec<(&str, &str, &str)> =
        words.iter().map(|(from, to, path)| (*from, &to[..], *path)).collect();
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    base.check_texts(&words);
    base.check_texts(&[
        ("seq_len = 1024", "seq_len = 1024\nmixed_precision_param = @", "mixed_precision_param"),
        ("[parallelism]", "[optimizer]\nname = @\n[parallelism]", "optimizer.name"),
    ]);
    let base =
        Base { text: TORCHTITAN, place: "titan.toml", given: Given { model: None, ..base.given } };
    base.check_texts(&[
        ("[parallelism]", "[model]\nname = @\nflavor = '8B'\n[parallelism]", "model.name"),
        ("[parallelism]", "[model]\nname = 'llama3'\nflavor = @\n[parallelism]", "model.flavor"),
    ]);
}

/// As [`PYTHON`] says them, or otherwise.
#[test]
fn numbers_and_texts_of_python_are_the_same_however_they_are_written() {
    let base = Base { place: "config_registry.py", text: PYTHON, given: given(256) };
    let plain = base.read("", "").expect("a plan");
    for (from, to) in [
        ("seq_len=8192", "seq_len=8_192"),
        ("seq_len=8192", "seq_len=(8192)"),
        ("\"8B\"", "'8B'"),
        ("\"8B\"", "str(\"8B\")"),
        ("seq_len=8192", "seq_len=length()"),
        ("degree = 1", "degree = one()"),
    ] {
        let functions =
            "def length():\n    return 8192\n\n\ndef one():\n    return 1\n\n\ndef ours()";
        let text = PYTHON.replacen(from, to, 1).replacen("def ours()", functions, 1);
        assert!(PYTHON.contains(from), "{from}");
        let found = import(Project::Torchtitan, &text, base.place, &base.given);
        let found = found.unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(found.plan.to_toml(), plain.plan.to_toml(), "{to}");
        // What a function is given may change what it returns.
        if let Some((before, after)) = text.split_once("=length()") {
            for arguments in ["n=1", "1"] {
                let text = format!("{before}=length({arguments}){after}");
                let found = import(Project::Torchtitan, &text, base.place, &base.given);
                assert!(found.is_err(), "length({arguments}) is read as length()");
            }
        }
    }
}

/// The norm and the head are one block.
#[test]
fn torchtitans_parts_are_cut_anywhere_but_between_the_norm_and_the_head() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    let layers = (0..12).map(|layer| format!("layers.{layer}"));
    for head in ["lm_head", "output"] {
        let names = ["tok_embeddings".to_owned()].into_iter().chain(layers.clone());
        let names: Vec<String> = names.chain(["norm".into(), head.into()]).collect();
        for cut in 1..names.len() {
            let parts = format!(
                "pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [{:?}, {:?}]\n",
                &names[..cut],
                &names[cut..]
            );
            let found = base.read("pipeline_parallel_degree = 4\n", &parts);
            match cut {
                14 => {
                    let error = found.expect_err("the head alone").to_string();
                    assert!(error.contains("module_fqns_per_model_part"), "{error}");
                }
                _ => {
                    let plan = found.unwrap_or_else(|error| panic!("{cut}: {error}")).plan;
                    assert_eq!(blocks(&plan), [(0, cut), (cut, 14)]);
                }
            }
        }
    }
}

/// It may be refused, but it is not read as if the condition held.
#[test]
fn what_stands_in_pythons_loops_and_conditions_is_not_taken_as_it_stands() {
    let base = Base { place: "config_registry.py", text: PYTHON, given: given(256) };
    let plain = base.read("", "").expect("a plan").plan.to_toml();
    for inside in [
        "if big:\n        config.parallelism.data_parallel_replicate_degree = 4\n",
        "for degree in degrees:\n        config.parallelism.data_parallel_replicate_degree = 4\n",
        "if big:\n        return other\n",
        "with context:\n        if big:\n            config.training.seq_len = 4096\n",
    ] {
        let text = format!("{inside}    return config\n");
        if let Ok(found) = base.read("return config\n", &text) {
            assert_eq!(found.plan.to_toml(), plain, "{inside}");
        }
    }
    let always = "config.parallelism.data_parallel_replicate_degree = 4\n    return config\n";
    assert_ne!(base.read("return config\n", always).expect("a plan").plan.to_toml(), plain);
}
