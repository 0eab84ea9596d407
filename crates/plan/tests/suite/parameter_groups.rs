//! What a group of parameters says, and what it leaves to the plan.

use shardloom_collectives::Algorithm;
use shardloom_plan::{
    Compression, Number, ParameterGroup, ParameterGroups, Plan, Precision, Summation, Sync, Uniform,
};

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
