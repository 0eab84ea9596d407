//! The TOML form: what is written is read back, and what is wrong is refused with its place.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;
use shardloom_collectives::Algorithm;
use shardloom_graph::ModelSpec;
use shardloom_plan::{
    AttentionKind, Averaging, AveragingTime, Axis, AxisSet, Communication, Compression,
    Corrections, DeviceList, FORMAT, LayoutRule, LayoutRules, LossScale, Mesh, Negotiation, Number,
    Optimizer, ParameterGroup, Partners, PassTimes, Pipeline, Plan, PlanError, Precision,
    Prediction, Ranges, Recompute, Rounding, ScheduleKind, Servers, Share, Stage, Staleness,
    Summation, Sync, Updates, Weights, usual_attention,
};

fn optimizer() -> impl Strategy<Value = Optimizer> {
    let share = 0.0..1.0f64;
    let positive = 1e-12..1e3f64;
    let adam = (share.clone(), share.clone(), positive.clone(), positive.clone());
    prop_oneof![
        (share, positive.clone(), option::of(1..=1usize << 40)).prop_map(
            |(momentum, weight_decay, reference_batch)| Optimizer::Sgd {
                momentum,
                weight_decay,
                reference_batch,
            }
        ),
        (adam, any::<bool>()).prop_map(|((beta1, beta2, epsilon, weight_decay), layerwise)| {
            match layerwise {
                true => Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
                false => Optimizer::Adamw { beta1, beta2, epsilon, weight_decay },
            }
        }),
        (positive.clone(), positive.clone(), positive.clone(), positive).prop_map(
            |(decay_exponent, clip, least_parameter_rms, weight_decay)| Optimizer::Adafactor {
                decay_exponent,
                clip,
                least_parameter_rms,
                weight_decay,
            }
        ),
    ]
}

fn sync() -> impl Strategy<Value = Sync> {
    let algorithms = select(vec![
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::BinaryTree,
        Algorithm::DoubleBinaryTree,
        Algorithm::Star,
        Algorithm::Hierarchical { inner: 8 },
        Algorithm::MultiBinaryTreeStar { inner: 3 },
    ]);
    let over = select(vec![
        None,
        AxisSet::of(&[Axis::DP]),
        AxisSet::of(&[Axis::CP, Axis::REPLICA]),
        AxisSet::of(&[]),
    ]);
    let compressions = select(vec![
        Compression::None,
        Compression::Rounded { to: Number::Bf16, feedback: true },
        Compression::OneBit,
        Compression::TopK { of: 100 },
        Compression::PowerSgd { rank: 4 },
    ]);
    let parts = (algorithms, 0..=3u8, 1..=1usize << 40, over, compressions);
    parts.prop_map(|(algorithm, zero, bucket_bytes, shard_over, compression)| Sync {
        splits_blocks: zero < 3 && bucket_bytes % 3 == 0,
        all_reduces: zero == 1 && bucket_bytes % 2 == 0,
        algorithm,
        zero,
        bucket_bytes,
        shard_over,
        second_copy_over: shard_over.filter(|_| zero == 3),
        averaging: (zero == 1).then_some(Averaging {
            every: bucket_bytes as u32,
            rate: 1.0 / (1 + bucket_bytes) as f64,
            when: match bucket_bytes % 2 {
                0 => AveragingTime::BeforeUpdate,
                _ => AveragingTime::AfterUpdate,
            },
            partners: if bucket_bytes % 3 == 0 { Partners::One } else { Partners::All },
            over: shard_over,
            until: (bucket_bytes % 7 == 0).then_some(bucket_bytes as u32),
        }),
        servers: (zero == 0).then_some(Servers::of(2, staleness(bucket_bytes))),
        compression,
        summation: (zero == 1).then_some(summation(bucket_bytes)),
        sparse: bucket_bytes % 5 == 0,
        negotiation: (zero == 2).then_some(Negotiation {
            cycle_seconds: 1.0 / (1 + bucket_bytes) as f64,
            fusion_bytes: bucket_bytes,
        }),
    })
}

fn summation(number: usize) -> Summation {
    let ranges = [Ranges::Hashed, Ranges::Equal][number % 2];
    let share = match number % 3 {
        0 => Share::Balanced,
        1 => Share::default(),
        _ => Share::Part((number % 1000) as f64 / 1024.0),
    };
    Summation { ranges, share, ..Summation::of(number as u32 % 7) }
}

fn staleness(number: usize) -> Staleness {
    match number as u32 % 5 {
        4 => Staleness::Unbounded,
        steps => Staleness::Within(steps),
    }
}

fn stage() -> impl Strategy<Value = Stage> {
    let mesh = (1..=4u32, 1..=2u32, 1..=8u32).prop_map(|(dp, cp, tp)| Mesh::of(dp, cp, tp));
    let devices = vec(0..100_000u32, 0..12).prop_map(DeviceList);
    let policies = vec![Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Stage];
    let recompute = proptest::option::of(select(policies));
    let parts = ((0..200usize, 0..200usize), mesh, devices, recompute, option::of(layout()));
    parts.prop_map(|(blocks, mesh, devices, recompute, layout)| Stage {
        recompute,
        layout,
        ..Stage::new(blocks, mesh, devices)
    })
}

fn pipeline() -> impl Strategy<Value = Pipeline> {
    let parts = (option::of(1..1usize << 40), vec(stage(), 0..4));
    parts.prop_map(|(microbatches, stage)| Pipeline { microbatches, stage })
}

/// The usual axes, or others in an order of their own.
fn axes() -> impl Strategy<Value = Vec<Axis>> {
    let mut named = vec![Axis::TP, Axis::CP, Axis::DP];
    named.extend(Axis::named("rows-2"));
    select(vec![Axis::USUAL.to_vec(), named])
}

fn group() -> impl Strategy<Value = ParameterGroup> {
    use proptest::option::of;
    let numbers = select(vec![Number::Fp32, Number::Bf16]);
    let servers = of(vec(0..4u32, 0..4));
    let words = (of(sync()), any::<[bool; 4]>(), servers, of(numbers), of(any::<bool>()));
    let group = |(names, (sync, has, servers, gradients, master))| {
        of_words(names, sync, has, (servers, gradients, master))
    };
    ("[a-z.*?]{0,9}", words).prop_map(group)
}

fn of_words(
    names: String,
    sync: Option<Sync>,
    has: [bool; 4],
    (servers, gradients, master): (Option<Vec<u32>>, Option<Number>, Option<bool>),
) -> ParameterGroup {
    ParameterGroup {
        names,
        algorithm: sync.filter(|_| has[0]).map(|it| it.algorithm),
        zero: sync.filter(|_| has[1]).map(|it| it.zero),
        shard_over: sync.and_then(|it| it.shard_over),
        compression: sync.filter(|_| has[0]).map(|it| it.compression),
        sparse: sync.filter(|_| has[1]).map(|it| it.sparse),
        bucket_bytes: sync.filter(|_| has[2]).map(|it| it.bucket_bytes),
        servers,
        gradients,
        master,
        frozen: has[3],
    }
}

fn layout() -> impl Strategy<Value = LayoutRules> {
    let dims = select(vec!["batch", "seq", "heads", "ffn", "vocab", "width.2"]);
    let rule = (dims, select(Axis::USUAL.to_vec()))
        .prop_map(|(dim, axis)| LayoutRule { dim: dim.into(), axis });
    vec(rule, 0..6).prop_map(LayoutRules)
}

fn weights() -> impl Strategy<Value = Weights> {
    use proptest::option::of;
    let prediction = of(select(vec![Prediction::Velocity, Prediction::Weights]));
    let numbers = (of(1..1000u64), of(0.01..0.99f64), 0..9u64, of(0.5..3.0f64), prediction);
    let newest =
        numbers.prop_map(|(anneal_steps, discrepancy, synchronous_steps, spike, prediction)| {
            Weights::Newest {
                corrections: Corrections {
                    anneal_steps,
                    discrepancy,
                    synchronous_steps,
                    spike,
                    prediction,
                },
            }
        });
    let others = vec![Weights::Flush, Weights::Stash, Weights::VerticalSync, Weights::DoubleBuffer];
    prop_oneof![select(others), newest]
}

fn plan() -> impl Strategy<Value = Plan> {
    let number = || select(vec![Number::Fp32, Number::Bf16, Number::Fp16]);
    let precision = (number(), number(), any::<bool>(), any::<bool>()).prop_map(
        |(compute, gradients, master, fp8_products)| Precision {
            compute,
            gradients,
            master,
            fp8_products,
            rounding: if master { Rounding::Nearest } else { Rounding::Stochastic },
        },
    );
    // Names may hold anything a path or a description does.
    let name = "[ -~\n\"\\\\é]{0,20}";
    let numbers = (name, name, 1..1usize << 40, 1..1usize << 40, axes());
    let attention = select(AttentionKind::ALL.to_vec());
    let recompute = (select(Recompute::ALL.to_vec()), any::<bool>(), attention);
    let words = (select(ScheduleKind::PLAIN.to_vec()), recompute);
    let communication = select(vec![Communication::InLine, Communication::Thread]);
    let growing = (1.0..1e9f64, 1..1u64 << 40)
        .prop_map(|(initial, growth_interval)| LossScale::Dynamic { initial, growth_interval });
    let loss_scale =
        prop_oneof![(1.0..1e9f64).prop_map(|scale| LossScale::Constant { scale }), growing];
    let norm = (proptest::option::of(1e-9..1e9f64), proptest::option::of(loss_scale));
    let norm = (norm, any::<bool>(), any::<bool>(), communication);
    let rest = (norm, sync(), (precision, vec(group(), 0..3)), optimizer());
    let pipeline = vec(pipeline(), 0..3);
    let order = vec("[FBIW0-9@<+. ]{0,9}", 0..3);
    let time = || 0.0..1e3f64;
    let share = prop_oneof![Just(1.0), 0.0..=1.0f64];
    let times = (time(), time(), time(), time(), share);
    let times = times.prop_map(|(forward, input, weight, message, kept)| PassTimes {
        forward,
        input,
        weight,
        message,
        kept,
    });
    let times = prop_oneof![Just(PassTimes::default()), times];
    let updates = select(vec![Updates::Step, Updates::Round]);
    (numbers, words, layout(), rest, (order, times, weights(), updates, pipeline))
        .prop_map(
            |(
                (model, cluster, global_batch, microbatches, axes),
                (schedule, (recompute, recompute_last, attention)),
                layout,
                (
                    ((clip_norm, loss_scale), skip_non_finite, post_validation, communication),
                    sync,
                    (precision, parameters),
                    optimizer,
                ),
                (order, pass_times, weights, updates, pipeline),
            )| Plan {
                format: FORMAT,
                model,
                cluster,
                axes,
                global_batch,
                microbatches,
                schedule,
                order,
                pass_times,
                weights,
                updates,
                recompute,
                recompute_last,
                attention,
                keeps_gathered: microbatches % 2 == 1,
                mask_documents: global_batch % 2 == 1,
                layout,
                clip_norm,
                skip_non_finite,
                loss_scale,
                post_validation,
                communication,
                sync,
                precision,
                parameters,
                optimizer,
                pipeline,
            },
        )
        .prop_map(|mut plan| {
            for stage in plan.pipeline.iter_mut().flat_map(|pipeline| &mut pipeline.stage) {
                stage.mesh = stage.mesh.arranged(&plan.axes);
            }
            plan
        })
}

const TEXT: &str = r#"format = 1
model = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=100"
cluster = "local"
global_batch = 8
microbatches = 4
schedule = "1f1b"
recompute = "selective"
layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
clip_norm = 1.0

[sync]
algorithm = "ring"
zero = 1
bucket_bytes = 25000000

[precision]
compute = "bf16"
gradients = "fp32"
master = true

[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1

[[pipeline]]

[[pipeline.stage]]
blocks = [0, 2]
mesh = { dp = 2, tp = 2 }
devices = "0..4"

[[pipeline.stage]]
blocks = [2, 4]
mesh = { dp = 4 }
devices = "4, 6..9"
"#;

#[test]
fn a_plan_reads_as_it_is_written_down() {
    let plan = Plan::from_toml(TEXT, "plan.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plan.schedule, ScheduleKind::OneForwardOneBackward);
    assert_eq!(plan.recompute, Recompute::Selective);
    assert_eq!(plan.precision, Precision::MIXED);
    assert_eq!(plan.optimizer, Optimizer::default());
    assert_eq!(plan.sync, Sync { zero: 1, ..Sync::default() });
    assert!(plan.layout.splits("heads", Axis::TP) && !plan.layout.splits("heads", Axis::DP));
    assert_eq!((plan.clip_norm, plan.skip_non_finite), (Some(1.0), false));
    let stages: Vec<_> = plan.stages().map(|(place, stage)| (place, stage.clone())).collect();
    let second = Stage {
        blocks: (2, 4),
        mesh: Mesh::of(4, 1, 1),
        devices: DeviceList(vec![4, 6, 7, 8]),
        recompute: None,
        layout: None,
    };
    assert_eq!(stages[1], ((0, 1), second));
    assert_eq!(plan.device_count(), 8);
    assert_eq!(plan.microbatch_samples(), 2);
}

fn refusal(text: &str) -> String {
    match Plan::from_toml(text, "plan.toml") {
        Err(error @ PlanError::Text { .. }) => error.to_string(),
        other => panic!("it should be refused, and is {other:?}"),
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (from, to, expected) in [
        ("clip_norm = 1.0", "clip = 1.0", "plan.toml:9: unknown key `clip`; known: "),
        (
            "clip_norm = 1.0",
            "clip_norm = 1.0\ncommunication = \"fibre\"",
            "plan.toml:10: communication: there is no `fibre`; known: in-line, thread",
        ),
        ("zero = 1", "zero = 1\nlevel = 2", "plan.toml:14: unknown key `level`; known: "),
        (
            "tp = 2 }",
            "tp = 2, Ep = 2 }",
            "plan.toml:32: pipeline[0].stage[0].mesh: \"Ep\" names no mesh axis: a name is a lower-case \
             letter, then such letters, digits, - and _, 12 at most",
        ),
        (
            "\"1f1b\"",
            "\"1f2b\"",
            "plan.toml:6: schedule: there is no `1f2b`, did you mean `1f1b`?; known: afab, 1f1b",
        ),
        (
            "= 8",
            "= \"8\"",
            "plan.toml:4: global_batch: a whole number is needed, not the text \"8\"",
        ),
        ("= 8", "= -8", "plan.toml:4: global_batch: a whole number from 0 up is needed, not -8"),
        (
            "heads:tp",
            "heads:Xp",
            "plan.toml:8: layout = \"heads:Xp\": rules are written dimension:axis, e.g. \"batch:dp, \
             heads:tp\"",
        ),
        (
            "0..4",
            "4..0",
            "plan.toml:33: devices = \"4..0\": a range needs a larger end, and at most a million \
             devices",
        ),
        (
            "\"4, 6..9\"",
            "\"4, six\"",
            "plan.toml:38: devices = \"six\": devices are numbers and ranges such as \"0..8, 16\"",
        ),
        ("\"ring\"", "\"rings\"", "plan.toml:12: "),
        (
            "blocks = [2, 4]",
            "blocks = [2, 4, 5]",
            "plan.toml:36: pipeline[0].stage[1].blocks: a list of two, the first block and the block after the last, \
             is needed, not of 3",
        ),
        (
            "kind = \"adamw\"",
            "kind = \"adam\"",
            "plan.toml:22: optimizer.kind: there is no `adam`, did you mean `adamw`?",
        ),
    ] {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT);
        let message = refusal(&text);
        assert!(message.starts_with(expected), "{message}\nshould begin with\n{expected}");
    }
}

#[test]
fn a_missing_key_is_named() {
    let message = refusal(&TEXT.replacen("recompute = \"selective\"\n", "", 1));
    assert!(message.contains("the key `recompute` is missing"), "{message}");
}

#[test]
fn text_that_is_no_toml_is_refused_at_its_line() {
    let message = refusal(&TEXT.replacen("zero = 1", "zero = = 1", 1));
    assert!(message.starts_with("plan.toml:13: "), "{message}");
}

#[test]
fn another_format_is_refused_before_its_keys_are_looked_at() {
    let text = TEXT.replacen("format = 1", "format = 2\nnovelty = true", 1);
    assert_eq!(refusal(&text), "plan.toml:1: format = 2, but this version reads 1");
    let text = TEXT.replacen("format = 1\n", "", 1);
    assert_eq!(
        refusal(&text),
        "plan.toml:1: this is a plan without the key `format`; a plan begins with format = 1"
    );
}

#[test]
fn what_is_no_plan_is_told_what_it_looks_like() {
    for (text, looks) in [
        ("[model]\nname = \"m\"", ", but rather a model: "),
        ("[gpt]\nlayers = 2", ", but rather a model without its table [model]: "),
        ("[[group]]\nmachine = \"h100-80g\"", ", but rather a cluster, which --cluster takes: "),
        (
            "[device]\nname = \"d\"",
            ", but rather the profile of a machine, which --profile takes: ",
        ),
        ("[host]\ncall_seconds = 1.0", ", but rather a software stack, which --stack takes: "),
        ("a = 1", "neither a plan nor a model: "),
    ] {
        let message = refusal(text);
        let rule =
            "a plan begins with format = 1, and a model with a table [model] that has its name";
        assert!(
            message.starts_with("plan.toml:1: this is neither a plan nor a model"),
            "{message}"
        );
        assert!(message.contains(looks) && message.ends_with(rule), "{message}");
    }
    let message = refusal("0 is the square of 0.");
    let rule = "plan.toml:1: this is no plan, which begins with format = 1: it is no TOML: ";
    assert!(message.starts_with(rule), "{message}");
    let text = TEXT.replacen("format = 1", "format = \"1\"", 1);
    assert_eq!(refusal(&text), "plan.toml:1: format = \"1\", but this version reads 1");
}

#[test]
fn a_bucket_without_bound_survives_writing() {
    let mut plan = Plan::from_toml(TEXT, "plan.toml").expect("the text is right");
    plan.sync.bucket_bytes = usize::MAX;
    let text = plan.to_toml();
    assert_eq!(Plan::from_toml(&text, "plan.toml"), Ok(plan));
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(3), ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_read_back_as_it_was_written(plan in plan()) {
        let text = plan.to_toml();
        prop_assert_eq!(Plan::from_toml(&text, "plan.toml").map_err(|e| e.to_string()), Ok(plan));
    }

    #[test]
    fn mutated_text_is_read_or_refused_and_never_panics(
        at in any::<Index>(),
        until in any::<Index>(),
        insertion in "[ -~\n\"\\[\\]{}=.,é0-9]{0,8}",
    ) {
        let characters: Vec<char> = TEXT.chars().collect();
        let (at, until) = (at.index(characters.len()), until.index(characters.len()));
        // Short cuts and long ones.
        let until = if until % 2 == 0 { at + until % 7 } else { until }.min(characters.len());
        let mut text: String = characters[..at].iter().collect();
        text += &insertion;
        text.extend(&characters[at.max(until)..]);
        match Plan::from_toml(&text, "plan.toml") {
            Ok(plan) => prop_assert_eq!(Plan::from_toml(&plan.to_toml(), ""), Ok(plan)),
            Err(error) => prop_assert!(error.to_string().starts_with("plan.toml")),
        }
    }

    #[test]
    fn a_list_of_devices_is_read_back_as_it_was_written(devices in vec(0..50u32, 0..30)) {
        let list = DeviceList(devices);
        let text = String::from(list.clone());
        prop_assert_eq!(DeviceList::try_from(text).map_err(|error| error.to_string()), Ok(list));
    }

    #[test]
    fn any_text_is_devices_or_an_error(text in "[0-9., x]{0,30}") {
        if let Ok(list) = DeviceList::try_from(text) {
            let again = String::from(list.clone());
            prop_assert_eq!(DeviceList::try_from(again).map_err(|error| error.to_string()), Ok(list));
        }
    }
}

#[test]
fn a_value_of_the_wrong_type_is_named_by_line_and_key() {
    let complaint = |from: &str, to: &str| {
        let text = TEXT.replace(from, to);
        assert_ne!(text, TEXT);
        Plan::from_toml(&text, "plan.toml").expect_err("it is wrong").to_string()
    };
    let wrong = complaint("global_batch = 8", "global_batch = \"x\"");
    assert!(wrong.starts_with("plan.toml:4: global_batch: a whole number is needed"), "{wrong}");
    let wrong = complaint("zero = 1", "zero = true");
    assert!(wrong.starts_with("plan.toml:13: sync.zero: a whole number is needed"), "{wrong}");
    let wrong = complaint("blocks = [0, ", "blocks = [\"0\", ");
    assert!(
        wrong.contains(": pipeline[0].stage[0].blocks[0]: a whole number is needed"),
        "{wrong}"
    );
}

#[test]
fn a_value_that_cannot_be_is_placed_in_its_text() {
    let placed = |key: &str| {
        let error =
            PlanError::Field { key: key.into(), value: "9".into(), rule: "at most 3".into() };
        Plan::place_error(TEXT, "plan.toml", error).to_string()
    };
    assert_eq!(placed("sync.zero"), "plan.toml:13: sync.zero = 9: at most 3");
    // What is not written down is placed where it would stand.
    assert_eq!(placed("sync.unknown"), "plan.toml:11: sync.unknown = 9: at most 3");
    let stage = TEXT.lines().position(|line| line.starts_with("blocks")).expect("a stage") + 1;
    let expected = format!("plan.toml:{stage}: pipeline[0].stage[0].blocks = 9: at most 3");
    assert_eq!(placed("pipeline[0].stage[0].blocks"), expected);
    assert_eq!(placed("order"), "plan.toml: order = 9: at most 3");
}

#[test]
fn a_rule_for_weights_has_no_other_keys_than_its_own() {
    let complaint = |weights: &str| {
        let text = format!("{TEXT}\n[weights]\n{weights}\n");
        Plan::from_toml(&text, "plan.toml").expect_err("it is wrong").to_string()
    };
    for rule in ["flush", "stash", "vertical-sync", "double-buffer", "newest"] {
        let message = complaint(&format!("rule = \"{rule}\"\nfoo = 3"));
        assert!(message.contains("unknown key `foo`"), "{message}");
    }
    let message = complaint("rule = \"stash\"\nspike = 1.0");
    assert!(message.contains("only \"newest\" has corrections"), "{message}");
}

/// The examples of the documentation, in order.
fn documented() -> Vec<&'static str> {
    let text = include_str!("../../../../docs/plan.md");
    text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn examples_of_the_documentation_are_plans() {
    let [
        whole,
        groups,
        frozen,
        pipelines,
        compressed,
        negotiated,
        sparse,
        served,
        averaging,
        summing,
        by_group,
        tables,
        axes,
    ] = documented()[..]
    else {
        panic!("thirteen examples")
    };
    let (words, _) = whole.split_once("[[pipeline]]").expect("it has pipelines");
    let (first, rest) = whole.split_once("[sync]").expect("it has a table of sync");
    let unlike = |line: &&str| !line.starts_with("layout");
    let first: Vec<&str> = first.lines().filter(unlike).collect();
    let meshes = rest.replace("dp = 4, tp = 2", "columns = 2, replica = 4");
    let renamed = format!("{}\n{axes}\n[sync]{meshes}", first.join("\n"));
    let unshared = whole.replace("zero = 1 ", "zero = 0 ");
    let apart = unshared.replace("clip_norm = 1.0\n", "");
    // A table of its own, so that it may stand behind all others of `sync`; nothing is sharded over workers.
    let workers = words.replace("zero = 1 ", "zero = 0 ");
    // Servers have everything in fp32, and no norm over all of them.
    let in_fp32 =
        workers.replace("\"bf16\"", "\"fp32\"").replace("master = true ", "master = false ");
    let served = format!("{}\n{served}\n{pipelines}", in_fp32.replace("clip_norm = 1.0\n", ""));
    let summed = format!("{workers}\n{summing}\n{pipelines}");
    let tables = format!("{workers}\n{summing}\n{tables}\n{pipelines}");
    let summed_by_group = format!("{workers}\n{summing}\n{by_group}\n{pipelines}");
    for text in [
        whole.to_owned(),
        format!("{whole}\n{groups}"),
        format!("{whole}\n{frozen}"),
        format!("{unshared}\n{compressed}"),
        // A key of the whole plan, and a table.
        negotiated.replacen('[', &format!("{unshared}\n["), 1),
        format!("{whole}\n{sparse}"),
        format!("{words}\n{pipelines}"),
        format!("{apart}\n{averaging}"),
        served,
        summed,
        summed_by_group,
        tables,
        renamed,
    ] {
        let plan = Plan::from_toml(&text, "plan.md").unwrap_or_else(|error| panic!("{error}"));
        let graph = ModelSpec::parse(&plan.model).and_then(|spec| spec.graph()).expect("a model");
        assert_eq!(plan.validate(&graph, 16), Ok(()), "{text}");
        assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml"), Ok(plan));
    }
}

/// Frameworks that run modules again have no full recomputation but of whole blocks, and fused attention has no
/// core to compute again.
#[test]
fn what_is_computed_again_follows_the_software_stack() {
    use Recompute::{Block, Full, None, Selective, Stage};
    let choices = |reruns_blocks, attention| {
        let mut stack = shardloom_cluster::Stack::default();
        stack.plan_defaults.reruns_blocks = reruns_blocks;
        assert_eq!(Stage.under(&stack), Stage);
        Recompute::by_block_under(&stack, attention)
    };
    let (unfused, fused) = (Some(AttentionKind::Unfused), Some(AttentionKind::Fused));
    assert_eq!(choices(false, unfused), [None, Selective, Full]);
    assert_eq!(choices(false, Option::None), [None, Selective, Full]);
    assert_eq!(choices(true, unfused), [None, Selective, Block]);
    assert_eq!(choices(true, fused), [None, Block]);
}

#[test]
fn attention_is_fused_where_there_are_kernels_for_it_and_the_model_has_any() {
    let graph = |text: &str| ModelSpec::parse(text).and_then(|it| it.graph()).expect("a model");
    let gpt = graph("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16");
    let mlp = graph("mlp:inputs=5,hidden=7,layers=2,classes=3");
    assert_eq!(usual_attention(&gpt, true), AttentionKind::Fused);
    assert_eq!(usual_attention(&gpt, false), AttentionKind::Unfused);
    assert_eq!(usual_attention(&mlp, true), AttentionKind::Unfused);
    assert_eq!(usual_attention(&gpt.with_fused_attention(), false), AttentionKind::Fused);
}
