//! Plans with servers: what they are in a few numbers, and what they cannot be.

use shardloom_plan::{
    Mesh, Number, ParameterGroup, Plan, ServerSet, Servers, Share, Staleness, Summation, Sync,
    Uniform,
};

use crate::scenario::graph;

/// What `--pp .. --dp .. --tp .. --servers 1` says, with two micro-batches for each worker.
fn plan(pp: usize, dp: u32, tp: u32) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: 24,
        microbatches: 2,
        sync: Sync { servers: Some(Servers::of(1, Staleness::Within(0))), ..Sync::default() },
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

#[test]
fn replicas_of_the_whole_model_are_a_worker_each_with_micro_batches_of_its_own() {
    for workers in [1, 3] {
        let plan = plan(1, workers, 1);
        assert_eq!(plan.validate(&graph(), 8), Ok(()));
        assert_eq!(plan.microbatches, 2 * workers as usize);
        assert_eq!(plan.pipeline.len(), workers as usize);
        for (device, worker) in (0..).zip(&plan.pipeline) {
            let [stage] = &worker.stage[..] else { panic!("{} stages", worker.stage.len()) };
            assert_eq!((stage.blocks, stage.mesh), ((0, 4), Mesh::SINGLE));
            assert_eq!(stage.devices.0, [device]);
        }
    }
}

#[test]
fn a_worker_that_was_to_be_split_is_refused_and_not_made_whole() {
    for (pp, dp, tp, key) in [
        (2, 1, 1, "pipeline.stage = 2: with servers each pipeline is one stage"),
        (2, 2, 1, "pipeline.stage = 2: with servers each pipeline is one stage"),
        (1, 2, 2, "pipeline.stage.mesh = dp 2 x tp 2: with servers each worker is one device"),
    ] {
        let plan = plan(pp, dp, tp);
        assert_eq!(plan.microbatches, 2);
        let error = plan.validate(&graph(), 8).expect_err("a worker is one device").to_string();
        assert!(error.starts_with(key), "{error}");
    }
}

#[test]
fn servers_have_devices_after_those_of_the_workers() {
    let plan = plan(1, 3, 1);
    assert_eq!(plan.server_devices().collect::<Vec<_>>(), [3]);
    let error = plan.validate(&graph(), 3).expect_err("there is no fourth device").to_string();
    let rule =
        "with servers each has a device after those of the workers, 4 in all; the cluster has 3";
    assert_eq!(error, format!("sync.servers.count = 1: {rule}"));
}

#[test]
fn colocated_servers_are_on_the_workers_devices_after_all_others() {
    let complaint = |plan: &Plan| plan.validate(&graph(), 8).expect_err("refused").to_string();
    for own in [0, 2] {
        let mut held = plan(1, 3, 1);
        let servers = Servers { colocated: true, ..Servers::of(own, Staleness::Within(1)) };
        held.sync.servers = Some(servers);
        let mut summing = plan(1, 3, 1);
        let share = Share::Part(0.5);
        let summation = Summation { colocated: true, share, ..Summation::of(own) };
        summing.sync = Sync { summation: Some(summation), ..Sync::default() };
        for plan in [&held, &summing] {
            assert_eq!(plan.validate(&graph(), 8), Ok(()));
            let devices: Vec<u32> = (3..3 + own).chain(0..3).collect();
            assert_eq!(plan.server_devices().collect::<Vec<_>>(), devices);
            let count = 3 + own as usize;
            assert_eq!((plan.device_count(), plan.least_devices()), (count, count));
            let text = plan.to_toml();
            assert!(text.contains("colocated = true"), "{text}");
            assert_eq!(Plan::from_toml(&text, "a plan").expect("its own text"), *plan);
        }
        assert_eq!((servers.of_workers(3), summation.of_workers(3)), (3 + own, 3 + own));
        let lost = ServerSet::default().with(0).expect("a small number");
        for other in [Servers { replicas: 1, ..servers }, Servers { lost, ..servers }] {
            let text = complaint(&Plan {
                sync: Sync {
                    servers: Some(Servers { staleness: Staleness::SYNCHRONOUS, ..other }),
                    ..held.sync
                },
                ..held.clone()
            });
            assert!(text.starts_with("sync.servers.colocated = true: "), "{text}");
        }
        // Numbers of servers go on with colocated ones.
        for (servers, is_one) in [(own + 2, true), (own + 3, false)] {
            let servers = Some(vec![servers]);
            let group = ParameterGroup { servers, ..ParameterGroup::named("*") };
            let named = Plan { parameters: vec![group], ..summing.clone() };
            assert_eq!(named.validate(&graph(), 8).is_ok(), is_one);
        }
    }
    // What others leave nothing of.
    let all = Summation { colocated: true, ..Summation::of(1) };
    let balanced = |servers| Summation { share: Share::Balanced, ..Summation { servers, ..all } };
    for (summation, refused) in
        [(all, true), (balanced(1), false), (balanced(2), false), (balanced(3), true)]
    {
        let mut plan = plan(1, 3, 1);
        plan.sync = Sync { summation: Some(summation), ..Sync::default() };
        let key = "sync.summation.colocated = true: ";
        let found = plan.validate(&graph(), 8).map_err(|error| error.to_string());
        assert_eq!(found.is_err_and(|it| it.starts_with(key)), refused, "{summation:?}");
    }
}

#[test]
fn there_is_a_server_and_it_holds_everything_in_32_bits() {
    let refusal = |change: fn(&mut Plan)| {
        let mut plan = plan(1, 3, 1);
        change(&mut plan);
        plan.validate(&graph(), 8).expect_err("no such servers").to_string()
    };
    let none = refusal(|it| it.sync.servers = Some(Servers::of(0, Staleness::Within(0))));
    assert_eq!(
        none,
        "sync.servers.count = 0: at least 1, or colocated = true for servers on the workers' devices"
    );
    for zero in 1..=3 {
        let mut plan = plan(1, 3, 1);
        plan.sync.zero = zero;
        let error = plan.validate(&graph(), 8).expect_err("servers hold all").to_string();
        assert!(error.starts_with(&format!("sync.zero = {zero}")), "{error}");
    }
    for change in [
        |it: &mut Plan| it.precision.compute = Number::Bf16,
        |it: &mut Plan| it.precision.gradients = Number::Bf16,
        |it: &mut Plan| it.precision.master = true,
    ] {
        let message = refusal(change);
        assert!(message.starts_with("precision = { compute = \""), "{message}");
        assert!(message.contains("with servers everything is in fp32 so far"), "{message}");
    }
}

#[test]
fn workers_have_devices_and_algorithms_of_their_own_only_where_these_count() {
    let mut plan = plan(1, 2, 1);
    plan.sync.servers = None;
    plan.sync.summation = Some(Summation::of(1));
    let complaint =
        |plan: &Plan| plan.validate(&graph(), 8).expect_err("it is refused").to_string();
    let mut shared = plan.clone();
    shared.pipeline[1].stage[0].devices = shared.pipeline[0].stage[0].devices.clone();
    assert!(complaint(&shared).contains("each worker has a device of its own"), "{shared:?}");
    let algorithm = Some("ring".parse().expect("an algorithm"));
    plan.parameters = vec![ParameterGroup { algorithm, ..ParameterGroup::named("*") }];
    assert_eq!(
        complaint(&plan),
        "parameters[0].algorithm = ring: workers sum what servers leave by direct all-reduces: leave it out, \
         or let workers sum all (servers = [])"
    );
    plan.parameters[0].servers = Some(vec![]);
    assert_eq!(plan.validate(&graph(), 8), Ok(()));
}

#[test]
fn replicas_are_of_servers_without_staleness_fewer_than_these_and_lost_servers_are_some_of_them() {
    let complaint = |change: &dyn Fn(&mut Servers)| {
        let mut plan = plan(1, 3, 1);
        let mut servers = Servers { replicas: 1, ..Servers::of(3, Staleness::SYNCHRONOUS) };
        change(&mut servers);
        plan.sync.servers = Some(servers);
        plan.validate(&graph(), 100).err().map(|error| error.to_string())
    };
    assert_eq!(complaint(&|_| {}), None);
    let all = ServerSet::try_from(vec![0, 1, 2]).expect("three servers");
    let one = |server| ServerSet::default().with(server).expect("a small number");
    assert_eq!(complaint(&|it| it.lost = one(2)), None);
    for (complaint, key) in [
        (complaint(&|it| it.staleness = Staleness::Within(1)), "sync.servers.replicas = 1: "),
        (complaint(&|it| it.replicas = 3), "sync.servers.replicas = 3: "),
        (complaint(&|it| it.count = 65), "sync.servers.count = 65: "),
        (complaint(&|it| it.lost = one(3)), "sync.servers.lost = [3]: "),
        (complaint(&|it| it.lost = all), "sync.servers.lost = [0, 1, 2]: "),
    ] {
        let complaint = complaint.expect(key);
        assert!(complaint.starts_with(key), "{complaint}");
    }
}

#[test]
fn a_lost_server_leaves_its_device_and_the_text_of_a_plan_names_it() {
    let mut plan = plan(1, 2, 1);
    plan.sync.servers = Some(Servers::of(3, Staleness::SYNCHRONOUS));
    let plain = plan.to_toml();
    assert!(!plain.contains("replicas") && !plain.contains("lost"), "{plain}");
    let lost = ServerSet::default().with(1).expect("a small number");
    let servers = Servers { replicas: 2, lost, ..Servers::of(3, Staleness::SYNCHRONOUS) };
    plan.sync.servers = Some(servers);
    assert_eq!(plan.server_devices().collect::<Vec<_>>(), [2, 4]);
    assert_eq!((plan.device_count(), plan.least_devices()), (4, 5));
    let text = plan.to_toml();
    assert!(text.contains("lost = [1]"), "{text}");
    assert_eq!(Plan::from_toml(&text, "a plan").expect("its own text"), plan);
}
