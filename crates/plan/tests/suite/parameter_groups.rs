//! What a group of parameters says, and what it leaves to the plan.

use shardloom_collectives::Algorithm;
use shardloom_plan::{
    Axis, AxisSet, Compression, Corrections, Number, ParameterGroup, ParameterGroups, Plan,
    PlanError, Precision, ScheduleKind, Summation, Sync, Uniform, Weights,
};

use crate::scenario::{DEVICES, complaint, graph, plan};

#[test]
fn a_group_of_some_names_has_these_and_no_others() {
    let graph = shardloom_graph::ModelSpec::parse("mlp:inputs=4,hidden=4,layers=1,classes=2");
    let graph = graph.and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform::default().plan(&graph, "model", "local");
    for names in [&["a.b"][..], &["a.b", "c"], &["a*", "b,c", "d{e}[f]?"]] {
        let parameters = vec![ParameterGroup::of_all(names)];
        let groups = ParameterGroups::of(&Plan { parameters, ..plan.clone() }).expect("a pattern");
        assert!(names.iter().all(|name| groups.group(name) == Some(0)), "{names:?}");
        let others = ["a", "ab", "ac", "b", "d", "de", "a.b.c", "b,cc", "d{e}f?", "d{e}[f]g"];
        assert!(others.iter().all(|name| groups.group(name).is_none()), "{names:?}");
    }
}

#[test]
fn of_many_groups_a_parameter_belongs_to_the_first_that_has_its_name() {
    // Long names and short ones, so that more and fewer of them are looked at together.
    let pattern = |index: usize| match index % 5 {
        0 => format!("layer.{index}.*"),
        1 => format!("*.{index}"),
        2 => format!("layer.{{{index},{}}}.bias", index + 7),
        3 => format!("{}.{index}?", "long".repeat(index)),
        _ => "none".into(),
    };
    let groups: Vec<ParameterGroup> =
        (0..700).map(|index| ParameterGroup::named(&pattern(index))).collect();
    let all = ParameterGroups::from_groups(&groups).expect("patterns");
    let alone = groups.iter().map(|it| ParameterGroups::from_groups(std::slice::from_ref(it)));
    let alone: Vec<ParameterGroups> = alone.collect::<Result<_, _>>().expect("patterns");
    let names = (0..710).flat_map(|index| {
        let long = "long".repeat(index);
        [format!("layer.{index}.weight"), format!("layer.{index}.bias"), format!("a.{index}"), {
            format!("{long}.{index}x")
        }]
    });
    let mut found = std::collections::BTreeSet::new();
    for name in names.chain(["none".into(), "other".into()]) {
        let first = alone.iter().position(|group| group.group(&name).is_some());
        assert_eq!(all.group(&name), first, "{name}");
        found.extend(first);
    }
    assert!(found.len() > 400, "most groups have a name: {}", found.len());
}

#[test]
fn names_that_are_too_much_to_look_for_are_refused() {
    for (names, rule) in [
        ("?".repeat((1 << 20) + 1), "a pattern of at most 1048576 bytes"),
        ("?".repeat(1 << 20), "a simpler pattern: "),
        ("{aa,bb}".repeat(1 << 17), "a simpler pattern: "),
    ] {
        let good = ParameterGroup::named("a");
        let groups = [good.clone(), ParameterGroup::named(&names), good];
        // What is found is much to print.
        let Err(PlanError::Field { key, rule: told, .. }) = ParameterGroups::from_groups(&groups)
        else {
            panic!("it is too much: {rule}")
        };
        assert_eq!(key, "parameters[1].names");
        assert!(told.starts_with(rule), "{}", &told[..told.len().min(200)]);
    }
}

#[test]
fn a_group_without_servers_has_none_that_sum() {
    let sync = Sync { summation: Some(Summation::of(2)), ..Sync::default() };
    let of = |servers| ParameterGroup { servers, ..ParameterGroup::named("*") }.sync(sync);
    assert_eq!(of(None), sync);
    assert_eq!(of(Some(vec![1])), sync);
    assert_eq!(of(Some(vec![])), Sync { summation: None, ..sync });
}

#[test]
fn what_is_frozen_has_no_master_copy_and_nothing_of_gradients() {
    let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("*") };
    let expected = Precision { master: false, ..Precision::MIXED };
    assert_eq!(frozen.precision(Precision::MIXED), expected);
    let sync = Sync { zero: 3, bucket_bytes: 7, ..Sync::default() };
    let compression = Compression::OneBit;
    let summation = Some(Summation::of(2));
    let all = Sync { compression, summation, sparse: true, ..sync };
    assert_eq!(frozen.sync(all), sync);
}

#[test]
fn tables_that_are_frozen_have_no_sparse_gradients() {
    let graph = shardloom_graph::ModelSpec::parse("dlrm:dense=4,rows=8-9,embed=4,bottom=4,top=4");
    let graph = graph.and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform::default().plan(&graph, "model", "local");
    let plan = Plan { sync: Sync { sparse: true, ..plan.sync }, ..plan };
    assert_eq!(plan.validate(&graph, 1), Ok(()));
    let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("table.*") };
    let plan = Plan { parameters: vec![frozen], ..plan };
    let error = plan.validate(&graph, 1).expect_err("refused").to_string();
    assert!(error.contains("all tables are frozen"), "{error}");
    let tables: Vec<&str> = graph.tables().map(|it| graph.value(it).name.as_str()).collect();
    let of = |name: &str| ParameterGroup::of_all(&[name]);
    let frozen = ParameterGroup { frozen: true, ..of(tables[0]) };
    let dense = ParameterGroup { sparse: Some(false), ..of(tables[1]) };
    let plan = Plan { parameters: vec![frozen, dense], ..plan };
    let error = plan.validate(&graph, 1).expect_err("refused").to_string();
    assert!(error.contains("in no group that is otherwise"), "{error}");
}

#[test]
fn a_frozen_group_says_nothing_of_gradients() {
    let graph = shardloom_graph::ModelSpec::parse("mlp:inputs=4,hidden=4,layers=1,classes=2");
    let graph = graph.and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform::default().plan(&graph, "model", "local");
    let check = |group: ParameterGroup| {
        Plan { parameters: vec![group], ..plan.clone() }.validate(&graph, 1)
    };
    let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("*weight") };
    let (zero, bucket_bytes) = (Some(3), Some(5));
    assert_eq!(check(ParameterGroup { zero, bucket_bytes, ..frozen.clone() }), Ok(()));
    for (word, group) in [
        (
            "compression",
            ParameterGroup { compression: Some(Compression::OneBit), ..frozen.clone() },
        ),
        ("servers", ParameterGroup { servers: Some(vec![]), ..frozen.clone() }),
        ("sparse", ParameterGroup { sparse: Some(false), ..frozen.clone() }),
        ("gradients", ParameterGroup { gradients: Some(Number::Fp32), ..frozen.clone() }),
        ("master", ParameterGroup { master: Some(true), ..frozen.clone() }),
    ] {
        let error = check(group).expect_err("refused").to_string();
        assert!(error.contains("parameters[0].frozen"), "{error}");
        assert!(error.contains(&format!("of which {word} says")), "{error}");
    }
}

#[test]
fn what_a_group_says_counts_and_of_all_else_the_plan() {
    let group = ParameterGroup::named("*");
    for master in [false, true] {
        let precision = Precision { master, ..Precision::MIXED };
        assert_eq!(group.precision(precision), precision);
        // Nothing updates what is frozen, so its weights have no other numbers.
        let frozen = ParameterGroup { frozen: true, ..group.clone() };
        assert_eq!(frozen.precision(precision), Precision { master: false, ..precision });
        for own in [false, true] {
            let saying = ParameterGroup { master: Some(own), ..group.clone() };
            assert_eq!(saying.precision(precision), Precision { master: own, ..precision });
        }
        let saying = ParameterGroup { gradients: Some(Number::Bf16), ..group.clone() };
        let expected = Precision { gradients: Number::Bf16, ..precision };
        assert_eq!(saying.precision(precision), expected);
    }
    for (zero, bucket_bytes) in [(0, 1_000), (2, 3_000)] {
        let sync = Sync { zero, bucket_bytes, ..Sync::default() };
        assert_eq!(group.sync(sync), sync);
        for own in 0..4 {
            let saying = ParameterGroup { zero: Some(own), ..group.clone() };
            assert_eq!(saying.sync(sync), Sync { zero: own, ..sync });
            let own = 1_000 * usize::from(own);
            let saying = ParameterGroup { bucket_bytes: Some(own), ..group.clone() };
            assert_eq!(saying.sync(sync), Sync { bucket_bytes: own, ..sync });
        }
        let saying = ParameterGroup { algorithm: Some(Algorithm::Direct), ..group.clone() };
        assert_eq!(saying.sync(sync), Sync { algorithm: Algorithm::Direct, ..sync });
    }
}

/// What is said of a plan with this group of its parameters.
fn of(group: ParameterGroup) -> String {
    complaint(|it| it.parameters = vec![group])
}

fn all() -> ParameterGroup {
    ParameterGroup::named("*")
}

#[test]
fn groups_name_parameters_of_the_model_that_no_group_before_them_has() {
    assert!(of(ParameterGroup::named("*.ffn.up")).starts_with(
        "parameters[0].names = \"*.ffn.up\": names of the model's parameters that no group before it has"
    ));
    assert!(
        of(ParameterGroup::named("block.[0")).starts_with("parameters[0].names = \"block.[0\": ")
    );
    assert_eq!(
        complaint(|it| it.parameters = vec![all(), ParameterGroup::named("head.*")]),
        "parameters[1].names = \"head.*\": names of the model's parameters that no group before it has"
    );
    let mut plan = plan();
    plan.parameters =
        vec![ParameterGroup { zero: Some(3), ..ParameterGroup::named("block.?.ffn.{up,down}.*") }];
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn zero_stages_buckets_and_algorithms_of_a_group_are_as_those_of_a_plan() {
    assert_eq!(
        of(ParameterGroup { zero: Some(4), ..all() }),
        "parameters[0].zero = 4: a ZeRO stage is 0 to 3"
    );
    assert_eq!(
        of(ParameterGroup { bucket_bytes: Some(0), ..all() }),
        "parameters[0].bucket_bytes = 0: at least 1"
    );
    // The plan's algorithm cannot scatter, or the group's.
    let tree = || "binary-tree".parse().expect("an algorithm");
    let message = complaint(|it| {
        it.sync.algorithm = tree();
        it.parameters = vec![ParameterGroup { zero: Some(1), ..all() }];
    });
    assert!(
        message.starts_with("parameters[0].algorithm = binary-tree: ZeRO scatters"),
        "{message}"
    );
    let message = complaint(|it| {
        it.sync.zero = 2;
        it.parameters = vec![ParameterGroup { algorithm: Some(tree()), ..all() }];
    });
    assert!(
        message.starts_with("parameters[0].algorithm = binary-tree: ZeRO scatters"),
        "{message}"
    );
}

#[test]
fn what_is_moved_along_its_velocity_is_whole_in_every_group() {
    let mut plan = plan();
    plan.parameters =
        vec![ParameterGroup { zero: Some(3), ..ParameterGroup::named("block.?.ffn.{up,down}.*") }];
    plan.schedule = ScheduleKind::PipeMare;
    plan.clip_norm = None;
    let corrections = Corrections { discrepancy: Some(0.1), ..Corrections::default() };
    plan.weights = Weights::Newest { corrections };
    let error = plan.validate(&graph(), DEVICES).expect_err("weights in shards do not move");
    assert!(error.to_string().contains("weights.discrepancy moves weights for the passes"));
}

/// Words of a way in which its parameters are not kept mean nothing for a group.
#[test]
fn a_group_has_the_words_of_the_plan_that_go_with_its_own() {
    let [over, own, second] =
        [[Axis::DP, Axis::CP], [Axis::DP, Axis::REPLICA], [Axis::CP, Axis::TP]]
            .map(|it| AxisSet::of(&it));
    for (of_plan, of_group) in (0..4).flat_map(|it| (0..4).map(move |own| (it, own))) {
        for (is_own_zero, is_own_over) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let plan = Sync {
                zero: of_plan,
                splits_blocks: true,
                all_reduces: true,
                shard_over: over,
                second_copy_over: second,
                bucket_bytes: 7,
                ..Sync::default()
            };
            let group = ParameterGroup {
                zero: is_own_zero.then_some(of_group),
                shard_over: own.filter(|_| is_own_over),
                ..ParameterGroup::named("*")
            };
            let found = group.sync(plan);
            let zero = if is_own_zero { of_group } else { of_plan };
            let shares = if zero > 0 { over } else { None };
            let expected = Sync {
                zero,
                splits_blocks: zero < 3,
                all_reduces: zero == 1,
                shard_over: if is_own_over { own } else { shares },
                second_copy_over: if zero == 3 { second } else { None },
                ..plan
            };
            assert_eq!(found, expected, "{group:?}");
            // Without the plan's words there are none.
            let plain = ParameterGroup { zero: Some(zero), ..ParameterGroup::named("*") };
            let none = Sync { zero, ..Sync::default() };
            assert_eq!(plain.sync(Sync { zero: of_plan, ..none }), none);
        }
    }
}
