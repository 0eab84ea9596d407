//! Configurations as people have them, and what plans they are; and what is refused.

use crate::plans::{Case, LLAMA, numbers, plan};
use shardloom_exchange::{ExchangeError, Given, Imported, Project, export, import, project_of};
use shardloom_graph::ModelSpec;
use shardloom_plan::{
    AttentionKind, Axis, Mesh, Number, Optimizer, Plan, Precision, Recompute, ScheduleKind, Sync,
    Uniform, Weights,
};

pub const NOTHING: Given<'_> = Given {
    model: None,
    cluster: "h100-80g:16",
    devices: 16,
    global_batch: None,
    microbatches: None,
    table: None,
};

pub fn read(place: &str, text: &str, given: &Given<'_>) -> Result<Imported, ExchangeError> {
    import(project_of(place, text)?, text, place, given)
}

const MEGATRON: &str = r#"
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=2
TP=2
MODEL_ARGS=(
    --num-layers 12
    --hidden-size 512
    --num-attention-heads 8
    --seq-length 1024
    --max-position-embeddings 1024
    --attention-backend auto
)
TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 128
    --train-iters 500000
    --clip-grad 1.0
    --bf16
    --lr 6.0e-5   # not --hidden-size 9
)
MODEL_PARALLEL_ARGS=( --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 4 --sequence-parallel )
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} \
    --vocab-size 50257 --use-distributed-optimizer --recompute-activations \
    --num-layers-per-virtual-pipeline-stage 1 --data-path ${DATA_PATH}
"#;

#[test]
fn a_script_of_megatron_is_a_plan_with_megatrons_defaults() {
    let imported = read("train.sh", MEGATRON, &NOTHING).expect("a plan");
    // The vocabulary is padded to a multiple of 128 for each of two ranks.
    let model = "gpt:layers=12,hidden=512,heads=8,seq=1024,vocab=50432,dropout=0.1,tied=true";
    assert_eq!(imported.plan.model, model);
    let numbers = Uniform {
        pp: 4,
        mesh: Mesh::of(2, 1, 2),
        sequence_parallel: true,
        global_batch: 128,
        microbatches: 32,
        schedule: ScheduleKind::Interleaved,
        recompute: Recompute::Selective,
        // Without --overlap-grad-reduce all gradients are reduced together.
        sync: Sync { zero: 1, bucket_bytes: 1 << 40, ..Sync::default() },
        precision: Precision::MIXED,
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        clip_norm: Some(1.0),
    };
    let mut expected = plan(model, &numbers, 3);
    for (stage, blocks) in expected.pipeline[0].stage.iter_mut().zip(1..) {
        // One layer each; the embedding is with the first, the head with the last.
        stage.blocks = (blocks, blocks + 1);
    }
    expected.pipeline[0].stage[0].blocks.0 = 0;
    expected.pipeline[0].stage[11].blocks.1 = 14;
    expected.attention = AttentionKind::Fused;
    assert_eq!(imported.plan.to_toml(), expected.to_toml());
    let note = &imported.notes[0];
    for unread in ["--train-iters", "--lr", "--data-path"] {
        assert!(note.contains(unread), "{note}");
    }
    for read in ["--bf16", "--clip-grad", "--attention-backend"] {
        assert!(!note.contains(read), "{note}");
    }
}

#[test]
fn a_gated_width_that_is_not_said_is_rounded_down_as_in_megatron() {
    let llama = "--swiglu --normalization RMSNorm --position-embedding-type rope \
                 --disable-bias-linear --attention-dropout 0 --hidden-dropout 0";
    let imported = read("train.sh", &format!("{MEGATRON} {llama}"), &NOTHING).expect("a plan");
    // Two thirds of 4 x 512 are 1365, and 21 x 64 are 1344.
    let model = &imported.plan.model;
    assert!(model.starts_with("llama:") && model.contains(",ffn=1344,"), "{model}");
}

#[test]
fn what_megatron_says_and_plans_do_not_is_refused_with_its_option() {
    let refused = [
        ("--num-experts 8", "--num-experts = given: a model with experts is described in TOML"),
        ("--fp8-format hybrid --fp8-param-gather", "--fp8-param-gather = given"),
        ("--fp8-format e5m2", "there are hybrid and e4m3"),
        ("--fp8-format hybrid --fp8-recipe custom", "--fp8-recipe = custom"),
        ("--cpu-offloading", "--cpu-offloading = given"),
        ("--qk-layernorm", "--qk-layernorm = given"),
        ("--window-size 8,0", "--window-size = given"),
        ("--optimizer muon", "--optimizer = muon"),
        ("--micro-batch-size 3", "--global-batch-size = 128"),
        ("--tensor-model-parallel-size 3", "it must divide the 16 devices"),
        ("--nnodes 4", "--nproc-per-node = 8 on 4 nodes"),
        ("--swiglu", "--position-embedding-type"),
        ("--hidden-size x", "--hidden-size = x: a number is needed"),
        ("--seq-length $LENGTH", "$LENGTH: the variable is not assigned"),
        (
            "--recompute-granularity full --recompute-activations --recompute-modules mlp",
            "core_attn",
        ),
        ("--num-layers-per-virtual-pipeline-stage 2", "it divides the 3 layers of each rank"),
        ("--rotary-percent 0.5", "--rotary-percent = another share"),
        ("--context-parallel-size 2 --cp-comm-type a2a", "--cp-comm-type = a2a"),
        ("--step-batch-size-schedule 0:16", "--step-batch-size-schedule = given"),
        ("--delay-wgrad-compute", "--delay-wgrad-compute = given"),
        ("--apply-layernorm-1p", "--apply-layernorm-1p = given"),
        (
            "--cpu-offloading --apply-layernorm-1p --rampup-batch-size 8 8 100",
            "keep activations on devices; nor is --rampup-batch-size taken: a plan has one global batch; nor is \
             --apply-layernorm-1p taken: gains",
        ),
        ("--exp-avg-dtype fp8", "--exp-avg-dtype = fp8"),
        ("--reset-position-ids", "--reset-position-ids = given"),
        (
            "--num-virtual-stages-per-pipeline-rank 3 --microbatch-group-size-per-virtual-pipeline-stage 8",
            "--microbatch-group-size-per-virtual-pipeline-stage = 8",
        ),
        ("--clip-grad nan", "--clip-grad = NaN"),
        ("--clip-grad -1", "--clip-grad = -1"),
        ("--micro-batch-size 2305843009213693952", "--global-batch-size = 128"),
    ];
    for (words, message) in refused {
        let error = read("train.sh", &format!("{MEGATRON} {words}"), &NOTHING).expect_err(words);
        assert!(error.to_string().contains(message), "{words}: {error}");
    }
    let ring = read("train.sh", &format!("{MEGATRON} --context-parallel-size 2"), &NOTHING);
    let notes = ring.expect("a plan").notes;
    assert!(notes.iter().any(|note| note.contains("p2p")), "{notes:?}");
}

#[test]
fn variables_that_are_made_of_each_other_do_not_fill_the_memory() {
    let mut script = String::from("A0=xxxxxxxxxxxxxxxx\n");
    for index in 1..40 {
        script += &format!("A{index}=$A{0}$A{0}\n", index - 1);
    }
    script += "torchrun pretrain_gpt.py --num-layers $A39\n";
    let error = read("train.sh", &script, &NOTHING).expect_err("too long").to_string();
    assert!(error.contains("with variables replaced"), "{error}");
    // Nor do very many words that are short.
    let script = "xxxxxxxx ".repeat((1 << 19) + 1);
    let error = read("train.sh", &script, &NOTHING).expect_err("too long").to_string();
    assert!(error.contains("its words have more than 4194304 bytes"), "{error}");
}

#[test]
fn deepspeed_says_two_of_three_numbers_of_a_batch_and_what_is_auto_is_not_said() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..NOTHING };
    let text = r#"{
        "train_batch_size": 256, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto", "gradient_clipping": 1.0,
        "bf16": { "enabled": true }, "fp16": { "enabled": false },
        "zero_optimization": { "stage": 3, "reduce_bucket_size": 5e7, "overlap_comm": true },
        "steps_per_print": 10
    }"#;
    let imported = read("ds.json", text, &given).expect("a plan");
    let Plan { microbatches, global_batch, sync, precision, clip_norm, .. } = &imported.plan;
    assert_eq!((*microbatches, *global_batch, *clip_norm), (8, 256, Some(1.0)));
    assert_eq!((sync.zero, sync.bucket_bytes), (3, 100_000_000));
    let half = Precision {
        compute: Number::Bf16,
        gradients: Number::Bf16,
        master: true,
        ..Precision::FP32
    };
    assert_eq!(*precision, half);
    assert!(imported.notes.iter().any(|note| note == "not part of a plan: steps_per_print"));
    for (word, message) in [
        (r#""fp8": { "enabled": true }"#, "fp8.enabled = true"),
        (
            r#""activation_checkpointing": { "cpu_checkpointing": true }"#,
            "activation_checkpointing.cpu_checkpointing = true",
        ),
    ] {
        let asked = text.replacen(r#""steps_per_print": 10"#, word, 1);
        let error = read("ds.json", &asked, &given).expect_err(word).to_string();
        assert!(error.contains(message), "{error}");
    }
    let scalar =
        text.replacen(r#"{ "stage": 3, "reduce_bucket_size": 5e7, "overlap_comm": true }"#, "3", 1);
    let error = read("ds.json", &scalar, &given).expect_err("a table").to_string();
    assert!(error.contains("zero_optimization = 3: a table of further words is needed"), "{error}");
    for (from, to, message) in [
        (
            "\"overlap_comm\": true",
            "\"offload_optimizer\": { \"device\": \"cpu\" }",
            "offload_optimizer",
        ),
        ("256", "255", "here 2 x 7 x 16"),
        ("\"stage\": 3", "\"stage\": 4", "a stage is 0 to 3"),
        ("{", "[", "ds.json"),
    ] {
        let error = read("ds.json", &text.replacen(from, to, 1), &given).expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
    }
    let error = read("ds.json", text, &NOTHING).expect_err("no model");
    assert!(error.to_string().contains("name it with --model"), "{error}");
}

#[test]
fn torchtitans_toml_is_a_plan_with_torchtitans_defaults() {
    let text = "
        [model]\nname = 'llama3'\nflavor = '8B'\n
        [training]\nlocal_batch_size = 1\nglobal_batch_size = 32\nseq_len = 8192\nmax_norm = 1.0\n
        [parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n
        [activation_checkpoint]\nmode = 'full'\n
        [optimizer]\nname = 'AdamW'\nlr = 3e-4\n";
    let imported = read("llama3_8b.toml", text, &NOTHING).expect("a plan");
    let spec = ModelSpec::parse("llama-3-8b:seq=8192").expect("a preset");
    assert_eq!(imported.spec, spec);
    let numbers = Uniform {
        mesh: Mesh::of(8, 1, 2),
        sequence_parallel: true,
        global_batch: 32,
        microbatches: 4,
        recompute: Recompute::Block,
        sync: Sync { zero: 3, ..Sync::default() },
        ..numbers()
    };
    let attention = AttentionKind::Fused;
    let expected = Plan { attention, ..plan("llama-3-8b:seq=8192", &numbers, 1) };
    assert_eq!(imported.plan.to_toml(), expected.to_toml());
    // Without a word torchtitan clips to a norm of 1, and with 0 not at all.
    for (said, norm) in [("", Some(1.0)), ("max_norm = 0.5", Some(0.5)), ("max_norm = 0", None)] {
        let text = text.replace("max_norm = 1.0", said);
        let imported = read("llama3_8b.toml", &text, &NOTHING).expect("a plan");
        assert_eq!(imported.plan.clip_norm, norm, "{said:?}");
    }
}

#[test]
fn torchtitan_cuts_stages_as_it_does_itself() {
    let text = "
        [model]\nname = 'llama3'\nflavor = '8B'\n
        [training]\nlocal_batch_size = 16\nseq_len = 8192\n
        [parallelism]\npipeline_parallel_degree = 16\n";
    let blocks = |text: &str| -> Vec<(usize, usize)> {
        let plan = read("titan.toml", text, &NOTHING).expect("a plan").plan;
        plan.pipeline[0].stage.iter().map(|stage| stage.blocks).collect()
    };
    // 34 in 16 stages: two have 3, the embedding and the head count as one.
    let cut = blocks(text);
    assert_eq!((cut[0], cut[1], cut[2], cut[15]), ((0, 3), (3, 6), (6, 8), (32, 34)));
    let stages = "pipeline_parallel_schedule = 'Interleaved1F1B'\n";
    assert_eq!(blocks(&format!("{text}{stages}")).len(), 32);
}

#[test]
fn what_torchtitan_writes_of_an_exported_plan_is_that_plan() {
    for (name, text) in [
        ("zero-bubble-v", include_str!("torchtitan/zero-bubble-v.json")),
        ("fully-sharded", include_str!("torchtitan/fully-sharded.json")),
        ("uneven-stages", include_str!("torchtitan/uneven-stages.json")),
    ] {
        let case = crate::plans::case(name);
        let exported =
            export(Project::Torchtitan, &case.plan, &case.spec, &case.graph, case.machines());
        let files = exported.expect("torchtitan says it").files;
        let table = files.iter().find(|file| file.name == "schedule.csv");
        let given = Given {
            cluster: &case.plan.cluster,
            devices: case.plan.device_count(),
            table: table.map(|file| (file.name, file.text.as_str())),
            ..NOTHING
        };
        let imported =
            read("plan.json", text, &given).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(imported.spec.network(), case.spec.network(), "{name}");
        let back = Plan { model: case.plan.model.clone(), ..imported.plan };
        // Attention is fused there, and so has no core to compute again.
        let recompute = match case.plan.recompute {
            Recompute::Selective => Recompute::None,
            other => other,
        };
        let expected = Plan { attention: AttentionKind::Fused, recompute, ..case.plan.clone() };
        assert_eq!(back.to_toml(), expected.to_toml(), "{name}");
    }
}

#[test]
fn a_table_that_is_no_known_schedule_is_read_as_a_table() {
    let case = crate::plans::case("zero-bubble-v");
    let text = include_str!("torchtitan/uneven-stages.json").replace(
        "\"pipeline_parallel_schedule_csv\": \"\"",
        "\"pipeline_parallel_schedule_csv\": \"a.csv\"",
    );
    // Warm-up passes of 1F1B, one more than that has.
    let rank = |rank: usize| -> String {
        let warm = (5 - rank).min(8);
        let first = (0..warm).map(|it| format!("{rank}F{it}"));
        let rest = (0..8).flat_map(|it| {
            let backward = Some(format!("{rank}B{it}"));
            backward.into_iter().chain((it + warm < 8).then(|| format!("{rank}F{}", it + warm)))
        });
        first.chain(rest).collect::<Vec<_>>().join(",")
    };
    let table = (0..4).map(rank).collect::<Vec<_>>().join("\n");
    fn with(table: &str) -> Given<'_> {
        Given { cluster: "h100-80g:4", devices: 4, table: Some(("a.csv", table)), ..NOTHING }
    }
    let plan = read("plan.json", &text, &with(&table)).expect("a plan").plan;
    assert_eq!(plan.schedule, ScheduleKind::Table);
    assert_eq!(plan.order[3], "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
    assert_eq!(case.plan.microbatches, plan.microbatches);
    for (from, to, message) in [
        ("0F0", "0SEND_F0", "a.csv:1: \"0SEND_F0\" is no action"),
        ("0F0,0F1", "0B0,0F1", ""),
        (",0B7", "", ""),
    ] {
        let wrong = table.replacen(from, to, 1);
        let error = read("plan.json", &text, &with(&wrong)).expect_err(to);
        assert!(error.to_string().contains(message), "{error}");
    }
    // The last rank first.
    let reversed: Vec<&str> = table.lines().rev().collect();
    let error = read("plan.json", &text, &with(&reversed.join("\n"))).expect_err("another order");
    assert!(error.to_string().contains("stages are on ranks 0, 1 and so on"), "{error}");
}

#[test]
fn accelerate_says_how_parameters_are_sharded_and_the_rest_is_given() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given =
        Given { model: Some(&spec), global_batch: Some(64), microbatches: Some(2), ..NOTHING };
    let text = "
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 1
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_processes: 16
";
    let plan = read("accelerate.yaml", text, &given).expect("a plan").plan;
    assert_eq!((plan.sync.zero, plan.recompute), (2, Recompute::Block));
    assert_eq!((plan.global_batch, plan.microbatches), (64, 2));
    assert_eq!(plan.precision, Precision::MIXED);
    for (strategy, zero) in [
        ("fsdp_sharding_strategy: 1", 3),
        ("fsdp_sharding_strategy: 2", 2),
        ("fsdp_sharding_strategy: NO_SHARD", 0),
        ("fsdp_reshard_after_forward: NO_SHARD", 0),
        ("fsdp_reshard_after_forward: false", 2),
        ("fsdp_reshard_after_forward: true", 3),
        ("fsdp_state_dict_type: FULL_STATE_DICT", 3),
    ] {
        let text = text.replace("fsdp_sharding_strategy: SHARD_GRAD_OP", strategy);
        let plan = read("accelerate.yaml", &text, &given).expect(strategy).plan;
        assert_eq!(plan.sync.zero, zero, "{strategy}");
    }
    let deepspeed = text.replace("FSDP", "DEEPSPEED") + "deepspeed_config:\n  zero_stage: 3\n";
    let deepspeed = deepspeed + "  gradient_clipping: 0.5\n";
    let plan = read("accelerate.yaml", &deepspeed, &given).expect("a plan").plan;
    assert_eq!((plan.sync.zero, plan.sync.bucket_bytes), (3, 1_000_000_000));
    assert_eq!((plan.clip_norm, plan.precision.gradients), (Some(0.5), Number::Bf16));
    let half = read("accelerate.yaml", &deepspeed.replace("bf16", "fp16"), &given);
    assert_eq!(half.expect("a plan").plan.precision.gradients, Number::Fp16);
    for (from, to, message) in [
        ("num_processes: 16", "num_processes: 8", "num_processes = 8"),
        ("SHARD_GRAD_OP", "HYBRID_SHARD", "num_machines = nothing"),
        (
            "fsdp_sharding_strategy: SHARD_GRAD_OP",
            "fsdp_reshard_after_forward: banana",
            "fsdp_reshard_after_forward = banana",
        ),
        ("FSDP", "MEGATRON_LM", "distributed_type = MEGATRON_LM"),
        ("bf16", "fp8", "enable_fsdp_float8_all_gather = true"),
        ("bf16", "fp4", "mixed_precision = fp4"),
        ("fsdp_version: 1", "fsdp_offload_params: true", "fsdp_offload_params = true"),
        ("mixed", "\tmixed", "accelerate.yaml"),
    ] {
        let error = read("accelerate.yaml", &text.replacen(from, to, 1), &given).expect_err(to);
        assert!(error.to_string().contains(message), "{to}: {error}");
    }
    let error =
        read("accelerate.yaml", text, &Given { global_batch: None, ..given }).expect_err("batch");
    assert!(error.to_string().contains("--global-batch"), "{error}");
}

#[test]
fn a_project_is_known_by_its_file() {
    let known = |place, text| project_of(place, text).expect("a project");
    assert_eq!(known("a.json", "{\"train_batch_size\": 8}"), Project::DeepSpeed);
    assert_eq!(known("a.json", "{\"parallelism\": {}}"), Project::Torchtitan);
    assert_eq!(known("a.yaml", "parallelism:\n  dp: 1"), Project::Nanotron);
    assert_eq!(known("a.yml", "distributed_type: FSDP"), Project::Accelerate);
    assert_eq!(known("a.toml", ""), Project::Torchtitan);
    assert_eq!(known("run.slurm", ""), Project::Megatron);
    assert_eq!(known("shardloom_plan.py", ""), Project::Torchtitan);
    let launched = "# torchtitan.train\ntorchrun -m torchtitan.train --module shardloom_plan";
    let error = project_of("train.sh", launched).expect_err("it says nothing of the model");
    assert!(error.to_string().contains("import the TOML or Python that it names"), "{error}");
    assert_eq!(known("train.sh", "# torchtitan.train"), Project::Megatron);
}

/// Asserts that no project takes a plan, and that the words are in what it says.
fn refused_everywhere(change: impl FnOnce(&mut Plan), key: &str) {
    let mut plan = plan(LLAMA, &Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), ..numbers() }, 1);
    change(&mut plan);
    let case = Case::of(key, plan);
    for project in Project::ALL {
        let error = export(project, &case.plan, &case.spec, &case.graph, case.machines());
        let error = error.expect_err(key).to_string();
        let refused = format!("{project} has no word for {key} = ");
        // Whether or not there is a word for it there.
        let unwritten = error.contains(&format!(" is not written for {project} yet: "));
        let is_unwritten = error.starts_with(&format!("{key} = ")) && unwritten;
        assert!(error.starts_with(&refused) || is_unwritten, "{error}");
    }
}

/// torchtitan always has attention within documents, and others where they are told so, which is not written.
#[test]
fn attention_within_documents_is_written_where_it_always_is() {
    for mask_documents in [false, true] {
        let mut plan = plan(LLAMA, &Uniform { mesh: Mesh::of(2, 1, 1), ..numbers() }, 1);
        plan.mask_documents = mask_documents;
        let case = Case::of("documents", plan);
        let written =
            |project| export(project, &case.plan, &case.spec, &case.graph, case.machines());
        let found = written(Project::Torchtitan).expect("it is written");
        assert_eq!(found.unsaid.iter().any(|it| it.key == "mask_documents"), !mask_documents);
        let others = Project::ALL.into_iter().filter(|it| *it != Project::Torchtitan);
        for project in others.filter(|_| mask_documents) {
            let error = written(project).expect_err("it is not written").to_string();
            assert!(error.starts_with("mask_documents = true"), "{error}");
        }
    }
    let masked = read("train.sh", &format!("{MEGATRON} --reset-attention-mask"), &NOTHING);
    assert!(masked.expect("a plan").plan.mask_documents);
    assert!(!read("train.sh", MEGATRON, &NOTHING).expect("a plan").plan.mask_documents);
}

#[test]
fn what_makes_a_plan_another_one_elsewhere_is_refused_by_its_key() {
    refused_everywhere(
        |plan| {
            plan.schedule = ScheduleKind::PipeDream;
            plan.weights = Weights::Stash;
        },
        "weights.rule",
    );
    refused_everywhere(
        |plan| {
            let blocks = plan.pipeline[0].stage[1].blocks.1;
            let worker = |device| {
                let devices = shardloom_plan::DeviceList(vec![device]);
                let stage = shardloom_plan::Stage::new((0, blocks), Mesh::SINGLE, devices);
                shardloom_plan::Pipeline::of(vec![stage])
            };
            plan.pipeline = (0..2).map(worker).collect();
            plan.sync = Sync { zero: 0, ..plan.sync };
            plan.sync.summation = Some(shardloom_plan::Summation::of(1));
        },
        "sync.summation",
    );
    refused_everywhere(|plan| (plan.sync.sparse, plan.sync.zero) = (true, 0), "sync.sparse");
    refused_everywhere(
        |plan| {
            plan.sync.zero = 0;
            plan.communication = shardloom_plan::Communication::Thread;
            plan.sync.negotiation =
                Some(shardloom_plan::Negotiation { cycle_seconds: 1e-3, fusion_bytes: 1 << 20 });
        },
        "sync.negotiation",
    );
    refused_everywhere(
        |plan| plan.pipeline[0].stage[1].recompute = Some(Recompute::None),
        "pipeline.stage.recompute",
    );
    refused_everywhere(
        |plan| {
            let mut group = shardloom_plan::ParameterGroup::named("*norm*");
            group.zero = Some(1);
            plan.parameters = vec![group];
        },
        "parameters",
    );
    refused_everywhere(
        |plan| plan.layout = String::from("batch:dp, ffn:dp").try_into().expect("a layout"),
        "layout",
    );
    refused_everywhere(
        |plan| {
            let rows = Axis::named("rows").expect("a name");
            plan.axes = vec![rows];
            for stage in &mut plan.pipeline[0].stage {
                stage.mesh = Mesh::SINGLE.with(rows, 2);
            }
            plan.layout = String::from("batch:rows").try_into().expect("a layout");
        },
        "pipeline.stage.mesh.rows",
    );
    refused_everywhere(
        |plan| {
            let [first, second] = &mut plan.pipeline[0].stage[..] else { panic!("two stages") };
            std::mem::swap(&mut first.devices, &mut second.devices);
        },
        "pipeline.stage.devices",
    );
}

#[test]
fn what_need_not_be_said_is_listed() {
    let mut plan = plan(LLAMA, &Uniform { mesh: Mesh::of(8, 1, 1), ..numbers() }, 1);
    plan.skip_non_finite = true;
    plan.post_validation = true;
    plan.recompute_last = false;
    let case = Case::of("unsaid", plan);
    let exported = export(Project::Megatron, &case.plan, &case.spec, &case.graph, case.machines());
    let exported = exported.expect("Megatron-LM says the rest");
    let keys: Vec<&str> = exported.unsaid.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["sync.algorithm", "recompute_last", "post_validation", "skip_non_finite"]);
    for unsaid in &exported.unsaid {
        let line = format!("# - {} = {}: {}\n", unsaid.key, unsaid.value, unsaid.reason);
        assert!(exported.files[0].text.contains(&line), "{line}");
    }
}

#[test]
fn a_single_device_has_no_buckets_to_leave_out() {
    let unsaid = |dp: u32| -> Vec<String> {
        let sync = Sync { zero: 3, ..Sync::default() };
        let plan = plan(LLAMA, &Uniform { mesh: Mesh::of(dp, 1, 1), sync, ..numbers() }, 1);
        let case = Case::of("accelerate", plan);
        let exported =
            export(Project::Accelerate, &case.plan, &case.spec, &case.graph, case.machines());
        exported.expect("Accelerate says it").unsaid.into_iter().map(|it| it.key).collect()
    };
    assert!(unsaid(8).contains(&"sync.bucket_bytes".to_owned()));
    assert!(!unsaid(1).contains(&"sync.bucket_bytes".to_owned()));
}

#[test]
fn ranks_are_numbered_among_the_devices_that_take_part() {
    let exported = |first: u32| {
        let mut plan = plan(LLAMA, &Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), ..numbers() }, 1);
        for device in plan.pipeline[0].stage.iter_mut().flat_map(|it| &mut it.devices.0) {
            *device += first;
        }
        let case = Case::of("some machines", plan);
        let machines = case.machines();
        export(Project::Megatron, &case.plan, &case.spec, &case.graph, machines).expect("a file")
    };
    let [all, some] = [0, 4].map(exported);
    let [unsaid] =
        &some.unsaid.iter().filter(|it| !all.unsaid.contains(it)).collect::<Vec<_>>()[..]
    else {
        panic!("{:?}", some.unsaid);
    };
    assert_eq!((unsaid.key.as_str(), unsaid.value.as_str()), ("pipeline.stage.devices", "4..8"));
    let line = format!("# - {} = {}: {}\n", unsaid.key, unsaid.value, unsaid.reason);
    assert_eq!(some.files[0].text.replace(&line, ""), all.files[0].text);
}

#[test]
fn accelerate_has_tensor_parallelism_with_shards_only() {
    let exported = |zero: u8| {
        let sync = Sync { zero, ..Sync::default() };
        let plan = plan(LLAMA, &Uniform { mesh: Mesh::of(2, 1, 4), sync, ..numbers() }, 1);
        let mut case = Case::of("tensor parallelism", plan);
        case.plan.layout.0.retain(|rule| rule.dim != "seq");
        let machines = case.machines();
        export(Project::Accelerate, &case.plan, &case.spec, &case.graph, machines)
    };
    let error = exported(0).expect_err("replicas beside tensor parallelism").to_string();
    assert!(error.contains("sync.zero = 0"), "{error}");
    for zero in [2, 3] {
        let files = exported(zero).expect("FSDP").files;
        for line in ["dp_shard_size: 2", "dp_replicate_size: 1", "tp_size: 4"] {
            assert!(files[0].text.contains(line), "{line}: {}", files[0].text);
        }
    }
}
