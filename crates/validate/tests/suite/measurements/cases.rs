//! What rows say was run, in words, sizes and plans.

use super::files::{row, shipped};
use shardloom_cluster::Stack;
use shardloom_plan::{Axis, Number, Plan, Recompute, ScheduleKind, Sync};
use shardloom_validate::{
    Case, FeatureValue, Hardware, MemoryOf, MicroBatch, Refusal, cluster, features, predict, read,
};

fn case(changes: &[(&str, &str)]) -> Case {
    row(changes).case.expect("it can be predicted")
}

fn plan(case: &Case, stack: Option<&Stack>) -> Plan {
    let spec = case.spec().expect("a model");
    let graph = spec.graph().expect("a graph");
    let cluster = case.cluster(stack).expect("a cluster");
    let micro = case.micro_batches().expect("micro-batches")[0];
    case.plan(&spec, &graph, &cluster, micro, case.recomputations()[0]).expect("a plan")
}

/// Two of everything, on 16 devices.
const SPLIT: [(&str, &str); 8] = [
    ("gpus", "16"),
    ("tp", "2"),
    ("pp", "2"),
    ("vp", "2"),
    ("cp", "2"),
    ("dp", "2"),
    ("precision", "fp8"),
    ("recompute", ""),
];

#[test]
fn a_row_is_described_by_what_it_splits() {
    let plain = case(&[]).describe(None);
    assert_eq!(plain, "8 devices: dp 8, ZeRO-1, micro-batch 2");
    assert_eq!(case(&[]).describe(Some(4)), "8 devices: dp 8, ZeRO-1, micro-batch 4");
    let split = case(&SPLIT).describe(None);
    let right = "16 devices: dp 2, cp 2, tp 2, pp 2, chunks 2, ZeRO-1, micro-batch 2, fp8, \
                 recomputation assumed";
    assert_eq!(split, right);
    let some = case(&[("sharding", "zero1:4"), ("recompute", "full")]).describe(None);
    assert_eq!(some, "8 devices: dp 8, ZeRO-1 within 4 replicas, micro-batch 2");
    let all = case(&[("sharding", "zero1:8")]).describe(None);
    assert!(!all.contains("within"), "{all}");
    let replicas = case(&[("sharding", "ddp")]);
    assert_eq!(replicas.describe(None), "8 devices: dp 8, micro-batch 2");
    let fitting = Case { micro_batch: MicroBatch::LargestFitting(8), ..replicas };
    assert_eq!(fitting.describe(None), "8 devices: dp 8");
}

#[test]
fn widths_of_a_row_are_those_of_its_plan() {
    let found = plan(&case(&SPLIT), None);
    let (_, stage) = found.stages().next().expect("a stage");
    let widths = [Axis::DP, Axis::CP, Axis::TP].map(|axis| stage.mesh.width(axis));
    assert_eq!((widths, found.stages().count(), found.device_count()), ([2, 2, 2], 4, 16));
    assert_eq!(found.schedule, ScheduleKind::Interleaved);
    // 64 samples in micro-batches of 2 on each of two replicas.
    assert_eq!((found.global_batch, found.microbatches), (64, 16));
    assert_eq!((found.precision.compute, found.precision.fp8_products), (Number::Bf16, true));
    // Without a word nothing is computed twice where that fits.
    assert_eq!(found.recompute, Recompute::None.under(&Stack::parse("internevo").expect("one")));
    assert_eq!(case(&SPLIT).recomputations(), [Recompute::None, Recompute::Full]);
    assert_eq!((found.clip_norm, found.sync.zero), (Some(1.0), 1));
    // One replica has nobody to share with, unless the sequence is split.
    let single = [("gpus", "8"), ("dp", "1"), ("tp", "8")];
    assert_eq!(plan(&case(&single), None).sync.zero, 0);
    let context = [("gpus", "8"), ("dp", "1"), ("tp", "4"), ("cp", "2")];
    assert_eq!(plan(&case(&context), None).sync.zero, 1);
    // Nor have replicas of which each shares with itself alone.
    assert_eq!(plan(&case(&[("sharding", "zero1:1")]), None).sync.zero, 0);
    let some = plan(&case(&[("sharding", "zero1:4")]), None);
    let (_, stage) = some.stages().next().expect("a stage");
    assert_eq!((stage.mesh.size(), stage.mesh.width(Axis::DP)), (8, 4));
}

#[test]
fn plans_have_the_defaults_of_the_software() {
    let case = case(&[("gpus", "8"), ("dp", "2"), ("tp", "4")]);
    let mut stack = Stack::parse("megatron").expect("a preset");
    for keeps in [false, true] {
        stack.plan_defaults.keeps_gathered = keeps;
        assert_eq!(plan(&case, Some(&stack)).keeps_gathered, keeps);
    }
    // Shares that are reduced once, at the end, are so under ZeRO-1 and ZeRO-2, of which weights are not gathered.
    stack.plan_defaults.reduces_shards_at_end = true;
    let usual = Sync::default().bucket_bytes;
    for (sharding, at_once) in [("ddp", false), ("zero1", true), ("zero2", true), ("zero3", false)]
    {
        let case = self::case(&[("sharding", sharding)]);
        let bucket_bytes = plan(&case, Some(&stack)).sync.bucket_bytes;
        assert_eq!(
            (bucket_bytes > usual, bucket_bytes == usual),
            (at_once, !at_once),
            "{sharding}"
        );
    }
}

#[test]
fn sources_say_whose_memory_they_measured() {
    let rows =
        read(&shipped("nanotron_ultrascale_h100.csv")).expect("it is part of the project").rows;
    let first = rows[0].case.clone().expect("it can be predicted");
    assert_eq!(first.memory_of, MemoryOf::First);
    assert_eq!(case(&[]).memory_of, MemoryOf::Fullest);
}

#[test]
fn devices_are_whole_nodes_or_a_part_of_one() {
    let on = |gpus: u32| {
        let hardware = Hardware {
            preset: "h100-80g".into(),
            gpus,
            uplink_bytes_per_second: Some(123e9),
            network_latency_seconds: Some(7e-6),
            network_reachable: Some(0.5),
        };
        cluster(&hardware).map(|it| it.groups()[0].clone())
    };
    for (gpus, nodes, devices_per_node) in [(1, 1, 1), (4, 1, 4), (8, 1, 8), (24, 3, 8)] {
        let group = on(gpus).expect("a cluster");
        assert_eq!((group.nodes, group.devices_per_node), (nodes, devices_per_node));
        let node = &group.profile.node;
        assert_eq!(node.uplink_bytes_per_second, 123e9);
        assert_eq!((node.inter.latency_seconds, node.inter.reachable), (7e-6, 0.5));
    }
    for gpus in [9, 12, 0] {
        on(gpus).expect_err("they do not fill nodes");
    }
}

/// Norms, biases and positions are no matrices, and are less than a hundredth.
#[test]
fn matrices_are_nearly_all_parameters_of_every_kind_of_model() {
    let mut kinds = vec![];
    for (file, line) in
        [("internevo.csv", 0), ("korthikanti22_table5.csv", 0), ("nanotron_ultrascale_h100.csv", 0)]
    {
        let rows = read(&shipped(file)).expect("it is part of the project").rows;
        kinds.push(rows[line].case.clone().expect("it can be predicted"));
    }
    let dgxc = read(&shipped("nvidia_dgxc_benchmarking.csv")).expect("part of the project").rows;
    let nemotron = dgxc.iter().find(|row| row.model == "nemotron15b" && row.case.is_ok());
    kinds.push(nemotron.expect("one in bf16").case.clone().expect("it can be predicted"));
    let grouped = case(&[("kv_heads", "8"), ("model", "some-llama")]);
    kinds.push(grouped);
    for case in kinds {
        let graph = case.spec().expect("a model").graph().expect("a graph");
        let mut all = graph.parameter_count() as f64;
        if !case.shape.tied {
            // The embedding and the head count once.
            all -= (case.shape.vocab * case.shape.hidden) as f64;
        }
        let found = case.shape.parameters();
        assert!((found / all - 1.0).abs() < 0.01, "{:?}: {found} of {all}", case.shape.kind);
    }
}

#[test]
fn features_are_the_numbers_and_words_of_a_row() {
    let row = row(&[("recompute", "full")]);
    let case = row.case.clone().expect("it can be predicted");
    let outcome = predict(&[row], None, &|| {}).remove(0);
    let prediction = outcome.prediction.expect("a prediction");
    let found = features(&case, &prediction);
    let number = |name: &str| {
        let found = found.iter().find(|it| it.name == name).expect("a feature");
        match found.value {
            FeatureValue::Number(number) => number,
            FeatureValue::Word(word) => panic!("{name} is {word}"),
        }
    };
    for (name, right) in [
        ("devices", 8.0),
        ("parameters", case.shape.parameters()),
        ("sequence length", 2048.0),
        ("global batch", 64.0),
        ("micro-batch", 2.0),
        ("micro-batches of a replica", 4.0),
        ("data-parallel replicas", 8.0),
        ("tensor-parallel degree", 1.0),
        ("pipeline stages", 1.0),
        ("context-parallel degree", 1.0),
    ] {
        assert_eq!(number(name), right, "{name}");
    }
    let words: Vec<(&str, FeatureValue)> =
        found.iter().skip(10).map(|it| (it.name, it.value)).collect();
    let right = [("ZeRO stage", "1"), ("recomputation", "full"), ("products in", "bf16")];
    assert_eq!(words, right.map(|(name, word)| (name, FeatureValue::Word(word))));
    // The same prediction beside another split.
    let other = self::case(&SPLIT);
    let found = features(&other, &prediction);
    let values: Vec<FeatureValue> = found.into_iter().map(|it| it.value).collect();
    // 64 samples on two replicas in micro-batches of two, two stages on each of two devices.
    let numbers = [16.0, 2.0, 2.0, 4.0, 2.0];
    let places = [0, 6, 7, 8, 9];
    assert_eq!(places.map(|it| values[it]), numbers.map(FeatureValue::Number));
    assert_eq!(values[5], FeatureValue::Number(16.0));
    let words = ["1", "not stated", "fp8"];
    assert_eq!([10, 11, 12].map(|it| values[it]), words.map(FeatureValue::Word));
}

#[test]
fn micro_batches_that_fit_are_tried_from_the_largest_power_of_two_down() {
    let fitting = |most, global_batch| Case {
        micro_batch: MicroBatch::LargestFitting(most),
        global_batch,
        ..case(&[])
    };
    assert_eq!(fitting(8, 64).micro_batches(), Ok(vec![8, 4, 2, 1]));
    assert_eq!(fitting(7, 64).micro_batches(), Ok(vec![4, 2, 1]));
    assert_eq!(fitting(8, 48).micro_batches(), Ok(vec![2, 1]));
    assert_eq!(fitting(8, 8).micro_batches(), Ok(vec![1]));
    assert!(matches!(fitting(8, 12).micro_batches(), Err(Refusal::Numbers(_))));
    assert!(matches!(fitting(8, 0).micro_batches(), Err(Refusal::Numbers(_))));
}

/// Whose rows do not say it.
#[test]
fn what_sources_do_alike_is_taken_of_all_of_their_rows() {
    let of = |source, tp, dp| {
        let changes =
            [("source", source), ("model", "llama"), ("vocab", "1000"), ("tp", tp), ("dp", dp)];
        let case = case(&changes);
        let plan = plan(&case, None);
        let vocabulary = case.spec().expect("a model").to_string();
        let vocabulary = vocabulary.split("vocab=").nth(1).map(|it| it[..4].to_owned());
        (vocabulary.expect("it has one"), plan.layout.splits("seq", Axis::TP))
    };
    // Megatron-LM pads to 128 for each rank, and splits the sequence where there are several.
    let megatron = "NVIDIA/dgxc-benchmarking";
    assert_eq!(of(megatron, "1", "8"), ("1024".into(), false));
    assert_eq!(of(megatron, "4", "2"), ("1024".into(), true));
    assert_eq!(of("InternLM/InternEvo", "4", "2"), ("1000".into(), false));
}

/// Where rows do not say it: two matrices with embedding and head as one, or three with each of its own; in the
/// playbook, whose rows say so, below 4 billion parameters.
#[test]
fn heads_share_the_weights_of_the_embedding_where_models_of_the_source_do() {
    let is_tied = |changes: &[(&str, &str)]| case(changes).shape.tied;
    assert!(!is_tied(&[("model", "llama-7b")]));
    assert!(is_tied(&[("model", "gpt-7b")]));
    let playbook = ("source", "nanotron ultra-scale playbook");
    // Layers of 4 x 4096^2 + 3 x 4096 x 11008 weights, and an embedding of 103168 x 4096: 4 x 10^9 are 17 layers.
    let of = |layers| {
        let case = case(&[playbook, ("layers", layers), ("model", "llama")]);
        assert_eq!((case.shape.hidden, case.shape.ffn, case.shape.vocab), (4096, 11008, 103_168));
        case.shape.tied
    };
    assert_eq!(["17", "18"].map(of), [true, false]);
}

/// Two stages, of which the last has the logits of a million classes.
#[test]
fn a_plan_that_some_device_has_no_memory_for_does_not_fit_though_the_first_was_measured() {
    let changes = [
        ("gpus", "2"),
        ("dp", "1"),
        ("pp", "2"),
        ("hidden", "512"),
        ("heads", "8"),
        ("kv_heads", "8"),
        ("ffn", "1024"),
        ("layers", "2"),
        ("vocab", "1000000"),
        ("gbs", "16"),
        ("mbs", "16"),
        ("recompute", "none"),
    ];
    let fullest = case(&changes);
    let first = Case { memory_of: MemoryOf::First, ..fullest.clone() };
    let [fullest, first] = [fullest, first].map(|it| it.predict(None).expect("a prediction"));
    let device_bytes = 80 << 30;
    assert!(first.peak_bytes < device_bytes && device_bytes < fullest.peak_bytes, "{first:?}");
    assert!(fullest.exceeds && first.exceeds);
}

/// Without recomputation the activations of 8 samples need more than is there: 34 bytes for each of 2048 x 4096 numbers
/// of 32 layers are 73 GB (Korthikanti et al. 2023, equation 1, but for attention), beside 7 billion weights.
#[test]
fn everything_is_computed_twice_before_micro_batches_get_smaller() {
    let fitting = Case { micro_batch: MicroBatch::LargestFitting(8), ..case(&[("gbs", "64")]) };
    let micro_batch = |recompute: &str| {
        let split = case(&[("recompute", recompute)]).split;
        let found = Case { split, ..fitting.clone() }.predict(None).expect("a prediction");
        assert!(!found.exceeds, "{recompute}");
        found.micro_batch
    };
    assert!(micro_batch("none") < 8);
    assert_eq!(["full", ""].map(micro_batch), [8, 8]);
}
