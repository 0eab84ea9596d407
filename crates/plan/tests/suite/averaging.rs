//! Plans whose replicas have weights of their own: what is averaged along which axes, and what such plans cannot
//! have.

use shardloom_plan::{
    Averaging, Axis, AxisSet, LayoutRule, Mesh, Optimizer, ParameterGroup, Plan, Servers,
    Staleness, Sync, Uniform,
};

use crate::scenario::graph;

fn plan(mesh: Mesh) -> Plan {
    let averaging = Some(Averaging::local_sgd(4));
    let sync = Sync { averaging, ..Sync::default() };
    Uniform { mesh, global_batch: 24, sync, ..Uniform::default() }.plan(&graph(), "model", "local")
}

fn refusal(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = plan(Mesh::of(2, 1, 2));
    assert_eq!(plan.validate(&graph(), 8), Ok(()));
    change(&mut plan);
    plan.validate(&graph(), 8).expect_err("no such plan").to_string()
}

fn averaging(change: impl FnOnce(&mut Averaging)) -> String {
    refusal(|plan| change(plan.sync.averaging.as_mut().expect("it averages")))
}

#[test]
fn replicas_along_the_axes_that_split_nothing_but_the_batch_are_averaged() {
    let graph = graph();
    let mut plan = plan(Mesh::of(4, 2, 1).sharing_within(2).expect("two by two"));
    assert_eq!(plan.averaged_axes(&graph), [Axis::REPLICA, Axis::DP]);
    let over = AxisSet::of(&[Axis::REPLICA]);
    plan.sync.averaging = Some(Averaging { over, ..Averaging::SYNCHRONOUS });
    assert_eq!(plan.validate(&graph, 8), Ok(()));
    assert_eq!(plan.averaged_axes(&graph), [Axis::REPLICA]);
    plan.sync.averaging = None;
    assert_eq!(plan.averaged_axes(&graph), []);
}

#[test]
fn what_is_not_said_is_the_mean_after_every_update() {
    let text = plan(Mesh::of(2, 1, 1)).to_toml();
    let (before, rest) = text.split_once("[sync.averaging]\n").expect("it is written");
    let rest = rest.split_once("\n\n").map_or("", |(_, rest)| rest);
    let least = format!("{before}[sync.averaging]\n\n{rest}");
    let read = Plan::from_toml(&least, "plan.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.sync.averaging, Some(Averaging::local_sgd(1)));
    let wrong = least.replace("[sync.averaging]", "[sync.averaging]\nwhen = \"now\"");
    let error = Plan::from_toml(&wrong, "plan.toml").expect_err("no such time").to_string();
    assert!(error.contains("known: before-update, after-update"), "{error}");
}

#[test]
fn numbers_and_axes_that_mean_nothing_are_refused() {
    let every = averaging(|it| it.every = 0);
    assert_eq!(every, "sync.averaging.every = 0: from 1 to 1000 steps");
    let every = averaging(|it| it.every = 1001);
    assert_eq!(every, "sync.averaging.every = 1001: from 1 to 1000 steps");
    for rate in [0.0, -0.5, 1.5, f64::NAN] {
        let error = averaging(|it| it.rate = rate);
        let expected = format!("sync.averaging.rate = {rate}: a share of the mean is above 0");
        assert!(error.starts_with(&expected), "{error}");
    }
    for axes in [&[][..], &[Axis::TP], &[Axis::DP, Axis::CP]] {
        let error = averaging(|it| it.over = AxisSet::of(axes));
        let right = error.starts_with("sync.averaging.over = [") && error.contains("the batch");
        assert!(right, "{error}");
    }
    // Along this axis there is one replica.
    let error = refusal(|it| {
        it.layout.0.push(LayoutRule { dim: "batch".into(), axis: Axis::REPLICA });
        let over = AxisSet::of(&[Axis::REPLICA]);
        it.sync.averaging = Some(Averaging { over, ..Averaging::SYNCHRONOUS });
    });
    assert!(error.ends_with("some axis along which there are several replicas"), "{error}");
    let error = refusal(|it| {
        it.layout.0.retain(|rule| rule.axis == Axis::TP);
        for stage in &mut it.pipeline[0].stage {
            stage.mesh = Mesh::of(1, 1, 4);
        }
    });
    assert!(error.starts_with("sync.averaging.over = absent: some mesh axis"), "{error}");
}

#[test]
fn averages_end_with_the_step_that_is_said() {
    let mut adaptive = plan(Mesh::of(2, 1, 2));
    assert_eq!(adaptive.averaging_ends(), None);
    assert_eq!(*adaptive.in_step(u64::MAX), adaptive);
    let averaging = Averaging { until: Some(3), ..Averaging::SYNCHRONOUS };
    adaptive.sync.averaging = Some(averaging);
    assert_eq!(adaptive.validate(&graph(), 8), Ok(()));
    assert_eq!(Plan::from_toml(&adaptive.to_toml(), "plan.toml").as_ref(), Ok(&adaptive));
    assert_eq!(adaptive.averaging_ends(), Some(3));
    let sync = Sync { averaging: None, ..adaptive.sync };
    let after = Plan { sync, ..adaptive.clone() };
    for (step, expected) in [(0, &adaptive), (2, &adaptive), (3, &after), (9, &after)] {
        assert_eq!(*adaptive.in_step(step), *expected, "step {step}");
    }
    // The first average of every so many steps is at the end of the last of these.
    for (every, until, rule) in [(1, 0, "1 or more"), (4, 3, "4 or more")] {
        let error = self::averaging(|it| (it.every, it.until) = (every, Some(until)));
        let says = format!("sync.averaging.until = {until}: at least one step averages: {rule}");
        assert!(error.starts_with(&says), "{error}");
        adaptive.sync.averaging = Some(Averaging { every, until: Some(every), ..averaging });
        assert_eq!(adaptive.validate(&graph(), 8), Ok(()), "one average, with step {every}");
    }
    let error = refusal(|it| {
        it.sync.averaging = Some(averaging);
        it.pipeline[0].stage[0].mesh = Mesh::of(1, 1, 2);
        it.pipeline[0].stage[0].devices.0.truncate(2);
    });
    assert!(error.starts_with("sync.averaging.until = 3: one replica has no averages"), "{error}");
}

#[test]
fn what_needs_equal_replicas_is_refused() {
    let sgd =
        |reference_batch| Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch };
    let servers = Some(Servers::of(1, Staleness::Within(0)));
    let stage = |mesh: Mesh, first: u32| {
        let devices = (first..first + mesh.size() as u32).collect();
        shardloom_plan::Stage::new((0, 2), mesh, shardloom_plan::DeviceList(devices))
    };
    type Change = Box<dyn FnOnce(&mut Plan)>;
    let changes: [(&str, Change); 7] = [
        (
            "sync.zero = 1: with sync.averaging replicas have nothing",
            Box::new(|it| it.sync.zero = 1),
        ),
        (
            "sync.zero = 3: with sync.averaging replicas have nothing",
            Box::new(|it| {
                let group = ParameterGroup::named("*norm*");
                it.parameters = vec![ParameterGroup { zero: Some(3), ..group }];
            }),
        ),
        ("clip_norm = set: with sync.averaging each", Box::new(|it| it.clip_norm = Some(1.0))),
        ("skip_non_finite = set: with", Box::new(|it| it.skip_non_finite = true)),
        (
            "optimizer.reference_batch = 32: with sync.averaging an update",
            Box::new(move |it| it.optimizer = sgd(Some(32))),
        ),
        (
            "sync.servers = set: with sync.averaging there are no servers",
            Box::new(move |it| {
                it.sync.servers = servers;
                it.pipeline[0].stage[0].mesh = Mesh::SINGLE;
                it.pipeline[0].stage[0].devices.0.truncate(1);
            }),
        ),
        (
            "pipeline[0].stage[1].mesh = dp 4: with sync.averaging a replica has the same samples",
            Box::new(move |it| {
                let mut second = stage(Mesh::of(4, 1, 1), 4);
                second.blocks = (2, 4);
                it.pipeline[0].stage = vec![stage(Mesh::of(2, 1, 2), 0), second];
            }),
        ),
    ];
    for (expected, change) in changes {
        let error = refusal(change);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn pairs_are_of_replicas_of_one_rank_in_every_step_before_the_update() {
    let pairs = |mesh| {
        let mut plan = plan(mesh);
        plan.sync.averaging = Some(Averaging::PAIRS);
        plan
    };
    let alone = pairs(Mesh::of(4, 1, 1));
    assert_eq!(alone.validate(&graph(), 8), Ok(()));
    let text = alone.to_toml();
    assert!(text.contains("partners = \"one\"\n"), "{text}");
    assert_eq!(Plan::from_toml(&text, "plan.toml").expect("a plan"), alone);
    // Plans that say nothing of partners are of all.
    assert!(!plan(Mesh::of(4, 1, 1)).to_toml().contains("partners"));
    let refusal = |plan: Plan| plan.validate(&graph(), 8).expect_err("no such plan").to_string();
    let one = "with sync.averaging.partners = one";
    let one_rank =
        format!("{one} a replica is one rank, which publishes all of its weights at a time");
    assert_eq!(
        refusal(pairs(Mesh::of(2, 1, 2))),
        format!(
            "pipeline[0].stage[0].mesh = dp 2 x tp 2: {one_rank}: tp 1, or tp in sync.averaging.over"
        )
    );
    let within = Mesh::of(4, 1, 1).sharing_within(2).expect("two by two");
    let mut within = pairs(within);
    within.sync.averaging =
        Some(Averaging { over: AxisSet::of(&[Axis::REPLICA]), ..Averaging::PAIRS });
    assert!(refusal(within).contains(": dp 1, or dp in sync.averaging.over"));
    let stages = Uniform {
        mesh: Mesh::of(2, 1, 1),
        pp: 2,
        global_batch: 24,
        sync: alone.sync,
        ..Uniform::default()
    };
    let stages = refusal(stages.plan(&graph(), "model", "local"));
    assert_eq!(stages, format!("pipeline = 2: {one_rank}: one stage"));
    let mut seldom = alone.clone();
    seldom.sync.averaging = Some(Averaging { every: 2, ..Averaging::PAIRS });
    assert!(refusal(seldom).starts_with(&format!("sync.averaging.every = 2: {one} every step")));
    let mut replaced = alone.clone();
    replaced.sync.averaging = Some(Averaging { rate: 1.0, ..Averaging::PAIRS });
    let expected = format!("sync.averaging.rate = 1: {one} a replica keeps a share of its own");
    assert!(refusal(replaced).starts_with(&expected));
    let mut late = alone;
    let when = shardloom_plan::AveragingTime::AfterUpdate;
    late.sync.averaging = Some(Averaging { when, ..Averaging::PAIRS });
    let expected = format!("sync.averaging.when = after-update: {one} weights are averaged before");
    assert!(refusal(late).starts_with(&expected));
}
