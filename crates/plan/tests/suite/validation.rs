//! Validation: each mistake is named with its key and with what would be right.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Axis, AxisSet, Compression, Corrections, DeviceList, LayoutRules, LossScale, Mesh, Number,
    Optimizer, ParameterGroup, PassTimes, Pipeline, Plan, PlanError, Prediction, ScheduleKind,
    Stage, Summation, Sync, Uniform, Updates, Weights,
};

pub(crate) const DEVICES: usize = 8;

pub(crate) fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96");
    spec.and_then(|spec| spec.graph()).expect("a valid model")
}

/// Two stages of dp 2 x tp 2.
pub(crate) fn plan() -> Plan {
    let uniform = Uniform {
        pp: 2,
        mesh: Mesh::of(2, 1, 2),
        global_batch: 8,
        microbatches: 4,
        clip_norm: Some(1.0),
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

fn adamw(beta1: f64, epsilon: f64, weight_decay: f64) -> Optimizer {
    Optimizer::Adamw { beta1, beta2: 0.9, epsilon, weight_decay }
}

/// The complaint about the plan after `change`.
fn complaint(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = plan();
    change(&mut plan);
    match plan.validate(&graph(), DEVICES) {
        Err(error @ PlanError::Field { .. }) => error.to_string(),
        other => panic!("it should be refused, and is {other:?}"),
    }
}

fn rules(text: &str) -> LayoutRules {
    LayoutRules::try_from(text.to_owned()).expect("valid rules")
}

#[test]
fn lists_have_a_million_devices() {
    let count = |text: &str| DeviceList::try_from(text.to_owned()).map(|list| list.0.len());
    assert_eq!(count("0..1048576"), Ok(1 << 20));
    assert_eq!(count("7..1048583"), Ok(1 << 20));
    assert!(count("0..1048577").is_err());
    assert!(count("0..1048576, 0, 1").is_err());
}

#[test]
fn a_plan_that_fits_is_valid() {
    assert_eq!(plan().validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn batches_are_at_least_one_sample_and_divide() {
    assert_eq!(complaint(|it| it.global_batch = 0), "global_batch = 0: at least 1");
    assert_eq!(complaint(|it| it.microbatches = 0), "microbatches = 0: at least 1");
    assert_eq!(
        complaint(|it| it.microbatches = 3),
        "microbatches = 3: micro-batches must divide global_batch = 8"
    );
    assert_eq!(
        complaint(|it| it.microbatches = 8),
        "pipeline[0].stage[0].mesh.dp = 2: it must divide a micro-batch of 1 sample (global batch 8 \
         in 8 micro-batches)"
    );
}

#[test]
fn there_is_a_pipeline_of_stages_that_tile_the_model() {
    assert_eq!(
        complaint(|it| it.pipeline = vec![]),
        "pipeline = 0: at least one; 1f1b may have none for these numbers of stages and chunks"
    );
    assert_eq!(
        complaint(|it| it.pipeline = vec![Pipeline::of(vec![])]),
        "pipeline[0].stage = end at block 0: the stages must end at the model's 4 blocks"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (2, 3)),
        "pipeline[0].stage = end at block 3: the stages must end at the model's 4 blocks"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (2, 5)),
        "pipeline[0].stage = end at block 5: the stages must end at the model's 4 blocks"
    );
    let follow = "stages follow each other and hold at least one block; this one begins at";
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (1, 4)),
        format!("pipeline[0].stage[1].blocks = [1, 4]: {follow} 2")
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].blocks = (0, 0)),
        format!("pipeline[0].stage[0].blocks = [0, 0]: {follow} 0")
    );
}

#[test]
fn devices_exist_and_are_used_once_and_as_many_as_the_mesh_has() {
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6, 8])),
        "pipeline[0].stage[1].devices = \"4..7, 8\": device 8: the cluster has 8 devices, numbered from 0"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6, 3])),
        "pipeline[0].stage[1].devices = \"4..7, 3\": device 3: stages share either all of their devices, in the same mesh, \
         or none"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6])),
        "pipeline[0].stage[1].devices = \"4..7\": the mesh (dp 2 x tp 2) must have as many devices as are \
         listed, 3"
    );
    let huge = Mesh::of(u32::MAX, u32::MAX, u32::MAX);
    let message = complaint(|it| it.pipeline[0].stage[0].mesh = huge);
    assert!(message.starts_with("pipeline[0].stage[0].devices = \"0..4\": the mesh"), "{message}");
}

#[test]
fn meshes_split_what_divides() {
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].mesh = Mesh::of(2, 0, 2)),
        "pipeline[0].stage[0].mesh.cp = 0: at least 1"
    );
    let three = |it: &mut Plan| {
        it.pipeline[0].stage[0].mesh = Mesh::of(1, 1, 3);
        it.pipeline[0].stage[0].devices = DeviceList(vec![0, 1, 2]);
    };
    assert_eq!(complaint(three), "pipeline[0].stage[0].mesh.tp = 3: it must divide heads = 4");
    let both = |it: &mut Plan| {
        it.layout = rules("batch:dp, seq:cp, seq:tp, heads:tp");
        it.pipeline[0].stage[0].mesh = Mesh::of(1, 64, 1);
        it.pipeline[0].stage[0].devices = DeviceList((0..64).collect());
    };
    let mut plan = plan();
    both(&mut plan);
    let error = plan.validate(&graph(), 100).map_err(|error| error.to_string());
    let expected = "pipeline[0].stage[0].mesh.cp = 64: it must divide seq = 32";
    assert_eq!(error, Err(expected.to_owned()));
}

#[test]
fn axes_that_split_one_dimension_together_must_divide_it_together() {
    let graph = graph();
    let mut plan = plan();
    plan.pipeline[0].stage.truncate(1);
    plan.pipeline[0].stage[0].blocks = (0, 4);
    plan.pipeline[0].stage[0].mesh = Mesh::of(1, 16, 4);
    plan.pipeline[0].stage[0].devices = DeviceList((0..64).collect());
    plan.layout = rules("heads:tp, seq:cp, seq:tp");
    let error = plan.validate(&graph, 64).expect_err("16 x 4 does not divide 32").to_string();
    assert_eq!(
        error,
        "pipeline[0].stage[0].mesh.cp = 16: with the axes that split seq too, 64 parts, it must \
         divide seq = 32"
    );
    plan.pipeline[0].stage[0].mesh = Mesh::of(1, 8, 4);
    plan.pipeline[0].stage[0].devices = DeviceList((0..32).collect());
    assert_eq!(plan.validate(&graph, 64), Ok(()));
}

#[test]
fn layouts_name_dimensions_of_the_model_and_use_every_axis() {
    let message = complaint(|it| it.layout = rules("batch:dp, head:tp"));
    assert!(message.starts_with("layout = head: the model's dimensions are batch, "), "{message}");
    assert_eq!(
        complaint(|it| it.layout = rules("batch:dp")),
        "pipeline[0].stage[0].mesh.tp = 2: the layout \"batch:dp\" splits nothing over tp"
    );
}

#[test]
fn gradients_are_all_reduced_where_states_alone_are_shared() {
    let with = |zero| complaint(|it| it.sync = Sync { zero, all_reduces: true, ..it.sync });
    let rule = "for replicas that share optimizer state alone: zero = 1, or leave all_reduces out";
    for zero in [0, 2, 3] {
        assert_eq!(with(zero), format!("sync.all_reduces = true: {rule}"));
    }
}

#[test]
fn buckets_end_within_blocks_where_weights_are_not_gathered_by_block() {
    let with = |zero| complaint(|it| it.sync = Sync { zero, splits_blocks: true, ..it.sync });
    let rule = "for weights that are not gathered block by block: zero up to 2, or leave splits_blocks out";
    assert_eq!(with(3), format!("sync.splits_blocks = true: {rule}"));
}

#[test]
fn compression_is_possible() {
    let with = |how: &str, change: &dyn Fn(&mut Plan)| {
        complaint(|it| {
            it.sync.compression = how.parse().expect("a compression");
            change(it);
        })
    };
    assert_eq!(
        with("top-k:100", &|it| it.sync.zero = 1),
        "sync.zero = 1: with compression top-k:100 every replica updates all weights, so 0"
    );
    let tree = |it: &mut Plan| it.sync.algorithm = "binary-tree".parse().expect("an algorithm");
    assert_eq!(
        with("one-bit", &tree),
        "sync.algorithm = binary-tree: with compression one-bit replicas gather what all send, which this \
         algorithm does not do; ring, direct, halving-doubling and hierarchical do"
    );
    assert_eq!(
        with("fp16", &|it| it.precision.gradients = Number::Bf16),
        "precision.gradients = bf16: with compression fp16 gradients are accumulated in fp32"
    );
    let group = |it: &mut Plan| {
        let zero = Some(2);
        it.parameters = vec![ParameterGroup { zero, ..ParameterGroup::named("*") }];
    };
    assert_eq!(
        with("power-sgd:4", &group),
        "parameters[0].zero = 2: with compression power-sgd:4 every replica updates all weights, so 0"
    );
    let mut pipelines = plan();
    pipelines
        .pipeline
        .iter_mut()
        .flat_map(|it| &mut it.stage)
        .for_each(|it| it.mesh = Mesh::of(1, 1, 4));
    let mut second = pipelines.pipeline[0].clone();
    for (stage, first) in second.stage.iter_mut().zip([8, 12]) {
        stage.devices = DeviceList((first..first + 4).collect());
    }
    pipelines.pipeline.push(second);
    pipelines.sync.compression = Compression::OneBit;
    let refused = pipelines.validate(&graph(), 16).expect_err("nothing would be compressed");
    assert!(refused.to_string().contains("what pipelines sum up goes as it is"), "{refused}");
    // Sums need no gathering, and a group may go without.
    let mut plan = plan();
    tree(&mut plan);
    plan.sync.compression = Compression::PowerSgd { rank: 4 };
    let none = Some(Compression::None);
    plan.parameters =
        vec![ParameterGroup { zero: Some(0), compression: none, ..ParameterGroup::named("*") }];
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn sparse_gradients_are_possible() {
    let untied = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=false";
    let graph = |spec| ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model");
    let refused = |spec, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        plan.sync.sparse = true;
        change(&mut plan);
        plan.validate(&graph(spec), DEVICES).err().map(|error| error.to_string())
    };
    let said = |text: &str| Some(text.to_owned());
    let sparse = |names| ParameterGroup { sparse: Some(true), ..ParameterGroup::named(names) };
    assert_eq!(refused(untied, &|_| {}), None);
    assert_eq!(
        refused("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=true", &|_| {}),
        said(
            "sync.sparse = true: for tables that nothing but embeddings and sampled softmax reads; embedding.token is read by \
             head too, whose gradient has all rows: leave it out of the group, or give it one with \
             sparse = false"
        )
    );
    assert_eq!(
        refused("mlp:inputs=8,hidden=16,layers=2,classes=4", &|_| {}),
        said(
            "sync.sparse = true: for models with a table that only embeddings or sampled softmax read, in no group that is \
             otherwise; this one has none"
        )
    );
    assert_eq!(
        refused(untied, &|it| {
            it.sync.sparse = false;
            it.parameters = vec![sparse("embedding.*")];
        }),
        said(
            "parameters[0].sparse = true: for tables that nothing but embeddings and sampled softmax reads; embedding.position is \
             read by embedding.sum too, whose gradient has all rows: leave it out of the group, or give it one \
             with sparse = false"
        )
    );
    assert_eq!(
        refused(untied, &|it| it.sync.zero = 2),
        said(
            "sync.zero = 2: with sparse gradients every replica updates all of embedding.token, so 0: give it a \
             group of its own (names = \"embedding.token\", sparse = true, zero = 0)"
        )
    );
    let own = |it: &mut Plan| {
        it.sync = Sync { sparse: false, zero: 2, ..it.sync };
        it.parameters = vec![ParameterGroup { zero: Some(0), ..sparse("embedding.token") }];
    };
    assert_eq!(refused(untied, &own), None);
    assert_eq!(
        refused(untied, &|it| it.sync.compression = Compression::OneBit),
        said(
            "sync.compression = one-bit: with sparse gradients what is exchanged of embedding.token is small as \
             it is: give it a group of its own (names = \"embedding.token\", sparse = true, compression = \
             \"none\")"
        )
    );
    assert_eq!(
        refused(untied, &|it| {
            it.sync.algorithm = "binary-tree".parse().expect("an algorithm");
        }),
        said(
            "sync.algorithm = binary-tree: with sparse gradients replicas gather the rows of all, which this \
             algorithm does not do; ring, direct, halving-doubling and hierarchical do"
        )
    );
    let served = |it: &mut Plan| {
        let staleness = shardloom_plan::Staleness::SYNCHRONOUS;
        it.sync.servers = Some(shardloom_plan::Servers::of(1, staleness));
    };
    assert_eq!(
        refused(untied, &served),
        said(
            "sync.sparse = true: with sparse gradients there are no servers: workers exchange rows among \
             themselves"
        )
    );
}

#[test]
fn tables_on_servers_are_possible() {
    let graph = |spec| ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model");
    let untied = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=false";
    let table = |servers: &[u32]| ParameterGroup {
        sparse: Some(true),
        servers: Some(servers.to_vec()),
        ..ParameterGroup::named("embedding.token")
    };
    let refused = |spec, change: &dyn Fn(&mut Plan)| {
        let sync = Sync { summation: Some(Summation::of(2)), ..Sync::default() };
        let uniform =
            Uniform { mesh: Mesh::of(2, 1, 1), sync, global_batch: 8, ..Uniform::default() };
        let graph = graph(spec);
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.parameters = vec![table(&[0, 1])];
        change(&mut plan);
        plan.validate(&graph, DEVICES).err().map(|error| error.to_string())
    };
    let said = |text: &str| Some(text.to_owned());
    assert_eq!(refused(untied, &|_| {}), None);
    let without = |group: ParameterGroup| {
        refused(untied, &move |it: &mut Plan| it.parameters = vec![group.clone()])
    };
    for servers in [None, Some(vec![])] {
        assert_eq!(
            without(ParameterGroup { servers, ..table(&[]) }),
            said(
                "parameters[0].sparse = true: with sparse gradients workers of servers have embedding.token on some \
                 of these: give it a group of its own that says on which (names = \"embedding.token\", sparse = true, \
                 servers = [0])"
            )
        );
    }
    assert_eq!(
        refused(untied, &|it| (it.parameters, it.sync.sparse) = (vec![], true)),
        said(
            "sync.sparse = true: with sparse gradients workers of servers have embedding.token on some of these: give \
             it a group of its own that says on which (names = \"embedding.token\", sparse = true, servers = [0])"
        )
    );
    assert_eq!(
        without(table(&[0, 2])),
        said(
            "parameters[0].servers = [0, 2]: there is no server 2: sync.summation.servers = 2, numbered from 0"
        )
    );
    let many: Vec<u32> = (0..97).map(|piece| piece % 2).collect();
    assert_eq!(
        without(table(&many)),
        said(&format!(
            "parameters[0].servers = {many:?}: embedding.token has 96 rows, and each of these gets one at least"
        ))
    );
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.0 };
    assert_eq!(
        refused(untied, &|it| it.optimizer = lamb),
        said(
            "parameters[0].servers = [0, 1]: lamb looks at all of embedding.token when it updates, so one server has \
             all of it: servers = [0]"
        )
    );
    assert_eq!(
        refused(untied, &|it| (it.optimizer, it.parameters) = (lamb, vec![table(&[1])])),
        None
    );
    // Only replicas gather the rows of all, which this algorithm does not do.
    let tree = "binary-tree".parse().expect("an algorithm");
    assert_eq!(refused(untied, &|it| it.sync.algorithm = tree), None);
    let tied = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=true";
    assert!(
        refused(tied, &|_| {}).is_some_and(|it| it.contains("embedding.token is read by head too"))
    );
}

#[test]
fn synchronisation_is_possible() {
    assert_eq!(complaint(|it| it.sync.zero = 4), "sync.zero = 4: a ZeRO stage is 0 to 3");
    assert_eq!(complaint(|it| it.sync.bucket_bytes = 0), "sync.bucket_bytes = 0: at least 1");
    let with = |algorithm: &str, zero| {
        let algorithm = algorithm.parse().expect("an algorithm");
        complaint(|it| it.sync = Sync { algorithm, zero, ..Sync::default() })
    };
    assert_eq!(
        with("binary-tree", 1),
        "sync.algorithm = binary-tree: ZeRO scatters and gathers, which this algorithm does not do; \
         ring, direct, halving-doubling and hierarchical do"
    );
}

/// Two pipelines of one stage, with these shares of four micro-batches.
fn apart(schedule: ScheduleKind, shares: [Option<usize>; 2]) -> Result<(), String> {
    let mut plan = plan();
    plan.schedule = schedule;
    plan.weights = schedule.usual_weights();
    plan.clip_norm = None;
    let pipeline = |(from, microbatches): (u32, Option<usize>)| {
        let devices = DeviceList((from..from + 4).collect());
        let stage = Stage::new((0, 4), Mesh::of(2, 1, 2), devices);
        Pipeline { microbatches, ..Pipeline::of(vec![stage]) }
    };
    plan.pipeline = [0, 4].into_iter().zip(shares).map(pipeline).collect();
    plan.validate(&graph(), DEVICES).map_err(|error| error.to_string())
}

#[test]
fn shares_of_pipelines_are_those_of_the_step() {
    use ScheduleKind::{Afab, Chimera, OneForwardOneBackward, PipeDream};
    for schedule in [Afab, OneForwardOneBackward] {
        for shares in [[None, None], [Some(2), Some(2)], [Some(3), Some(1)], [Some(1), Some(3)]] {
            assert_eq!(apart(schedule, shares), Ok(()), "{schedule:?} {shares:?}");
        }
    }
    let complaint = |schedule, shares| apart(schedule, shares).expect_err("no such shares");
    assert_eq!(complaint(Afab, [Some(3), Some(2)]), "microbatches = 4: the pipelines' come to 5");
    assert_eq!(complaint(Afab, [Some(4), Some(0)]), "pipeline[1].microbatches = 0: at least 1");
    assert_eq!(
        complaint(Afab, [None, Some(2)]),
        "pipeline[0].microbatches = absent: all pipelines say how many they get, or none does"
    );
    for schedule in [PipeDream, Chimera] {
        let message = complaint(schedule, [Some(3), Some(1)]);
        assert!(
            message.starts_with("pipeline[0].microbatches = 3: unequal shares are"),
            "{message}"
        );
    }
}

#[test]
fn stages_split_what_their_own_layouts_say() {
    let own = |text: &str| {
        let layout = Some(rules(text));
        complaint(|it| it.pipeline[0].stage[1].layout = layout)
    };
    assert_eq!(
        own("batch:dp"),
        "pipeline[0].stage[1].mesh.tp = 2: the layout \"batch:dp\" splits nothing over tp"
    );
    assert!(
        own("batch:dp, head:tp")
            .starts_with("pipeline[0].stage[1].layout = head: the model's dimensions are ")
    );
    assert!(
        own("batch:dp, heads:rows")
            .starts_with("pipeline[0].stage[1].layout = heads:rows: the plan's mesh axes are ")
    );
    let mut plan = plan();
    plan.pipeline[0].stage[1].layout = Some(rules("batch:dp, heads:tp"));
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml"), Ok(plan));
}

#[test]
fn groups_of_parameters_are_of_the_model_and_do_what_is_possible() {
    let of = |group: ParameterGroup| complaint(|it| it.parameters = vec![group]);
    assert!(of(ParameterGroup::named("*.ffn.up")).starts_with(
        "parameters[0].names = \"*.ffn.up\": names of the model's parameters that no group before it has"
    ));
    assert!(
        of(ParameterGroup::named("block.[0")).starts_with("parameters[0].names = \"block.[0\": ")
    );
    let all = || ParameterGroup::named("*");
    assert_eq!(
        complaint(|it| it.parameters = vec![all(), ParameterGroup::named("head.*")]),
        "parameters[1].names = \"head.*\": names of the model's parameters that no group before it has"
    );
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
    let mut plan = plan();
    plan.parameters =
        vec![ParameterGroup { zero: Some(3), ..ParameterGroup::named("block.?.ffn.{up,down}.*") }];
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    // What is moved along its velocity is whole, in every group.
    plan.schedule = ScheduleKind::PipeMare;
    plan.clip_norm = None;
    let corrections = Corrections { discrepancy: Some(0.1), ..Corrections::default() };
    plan.weights = Weights::Newest { corrections };
    let error = plan.validate(&graph(), DEVICES).expect_err("weights in shards do not move");
    assert!(error.to_string().contains("weights that are moved along their velocity are whole"));
}

#[test]
fn axes_are_named_once_and_have_the_order_of_the_plan() {
    let axis = |name| Axis::named(name).expect("a name");
    assert_eq!(
        complaint(|it| it.axes = vec![Axis::TP, Axis::DP, Axis::TP]),
        "axes = tp: each axis is named once"
    );
    assert_eq!(
        complaint(|it| it.layout = rules("batch:dp, heads:tp, ffn:rows")),
        "layout = ffn:rows: the plan's mesh axes are replica, dp, ep, cp, tp; others are named in `axes`"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].mesh = Mesh::of(2, 1, 1).with(axis("rows"), 2)),
        "pipeline[0].stage[1].mesh.rows = 2: the plan's mesh axes are replica, dp, ep, cp, tp; others are named \
         in `axes`"
    );
    assert_eq!(
        complaint(|it| it.axes = vec![Axis::TP, Axis::DP, Axis::CP]),
        "pipeline[0].stage[0].mesh = dp 2 x tp 2: its axes are in the order of the plan's `axes`"
    );
    let mut plan = plan();
    plan.axes = vec![Axis::TP, axis("rows")];
    plan.layout = rules("batch:rows, heads:tp, ffn:tp, vocab:tp");
    for stage in &mut plan.pipeline[0].stage {
        stage.mesh = Mesh::SINGLE.with(Axis::TP, 2).with(axis("rows"), 2);
    }
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    // In the text meshes have their axes in any order.
    assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml"), Ok(plan));
}

#[test]
fn numbers_are_in_their_range() {
    for norm in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let message = complaint(|it| it.clip_norm = Some(norm));
        assert_eq!(message, format!("clip_norm = {norm}: a norm is finite and above 0"));
    }
    let optimizers = [
        (adamw(1.0, 1e-8, 0.0), "optimizer.beta1 = 1: at least 0 and below 1"),
        (adamw(f64::NAN, 1e-8, 0.0), "optimizer.beta1 = NaN: at least 0 and below 1"),
        (adamw(0.9, 0.0, 0.0), "optimizer.epsilon = 0: finite and above 0"),
        (adamw(0.9, 1e-8, -0.1), "optimizer.weight_decay = -0.1: finite and at least 0"),
        (Optimizer::sgd(-0.5), "optimizer.momentum = -0.5: at least 0 and below 1"),
        (
            Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(0) },
            "optimizer.reference_batch = 0: at least 1",
        ),
        (
            Optimizer::Lamb { beta1: 0.9, beta2: 1.5, epsilon: 1e-6, weight_decay: 0.0 },
            "optimizer.beta2 = 1.5: at least 0 and below 1",
        ),
        (
            Optimizer::Adafactor {
                decay_exponent: 0.8,
                clip: f64::INFINITY,
                least_parameter_rms: 1e-3,
                weight_decay: 0.0,
            },
            "optimizer.clip = inf: finite and above 0",
        ),
    ];
    for (optimizer, expected) in optimizers {
        assert_eq!(complaint(|it| it.optimizer = optimizer), expected);
    }
    let of = |reference| Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
        reference_batch: Some(reference),
    };
    let message = complaint(|it| it.optimizer = of(1 << 40));
    assert!(message.contains("so large that the momentum of updates of"), "{message}");
    let message = complaint(|it| {
        (it.global_batch, it.optimizer) = (1000 * it.global_batch, of(1));
    });
    assert!(message.contains("so small that the momentum of updates of"), "{message}");
    let mut rounds = plan();
    rounds.schedule = ScheduleKind::PipeDream;
    rounds.weights = Weights::Stash;
    rounds.updates = Updates::Round;
    rounds.clip_norm = None;
    rounds.optimizer = of(15_000_000);
    let message = rounds.validate(&graph(), DEVICES).expect_err("1 in 32 bits").to_string();
    assert!(message.contains("momentum of updates of 2 samples"), "{message}");
    let mut fine = plan();
    fine.optimizer = of(1 << 20);
    assert_eq!(fine.validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn stages_share_all_of_their_devices_in_the_same_mesh_or_none() {
    let mut shared = plan();
    shared.pipeline[0].stage[1].devices = shared.pipeline[0].stage[0].devices.clone();
    assert_eq!(shared.validate(&graph(), DEVICES), Ok(()));
    let rule = "stages share either all of their devices, in the same mesh, or none";
    assert_eq!(
        complaint(|it| {
            *it = shared.clone();
            it.pipeline[0].stage[1].mesh = Mesh::of(1, 1, 4);
        }),
        format!("pipeline[0].stage[1].devices = \"0..4\": device 0: {rule}")
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].devices = DeviceList(vec![0, 1, 2, 2])),
        "pipeline[0].stage[0].devices = \"0..3, 2\": device 2: each device once"
    );
}

#[test]
fn micro_batches_are_dealt_evenly_to_pipelines() {
    let mut two = plan();
    two.pipeline.push(two.pipeline[0].clone());
    assert_eq!(two.validate(&graph(), DEVICES), Ok(()));
    two.pipeline.push(two.pipeline[0].clone());
    assert_eq!(
        complaint(|it| *it = two.clone()),
        "microbatches = 4: micro-batches are dealt to 3 pipelines, so a multiple of that"
    );
}

#[test]
fn pass_times_are_finite_and_not_negative() {
    for (change, key) in [
        ((|it| it.forward = -1.0) as fn(&mut PassTimes), "forward = -1"),
        (|it| it.weight = f64::NAN, "weight = NaN"),
        (|it| it.message = f64::INFINITY, "message = inf"),
    ] {
        let complaint = complaint(|it| change(&mut it.pass_times));
        assert_eq!(complaint, format!("pass_times.{key}: a time is finite and at least 0"));
    }
    for kept in [-0.1, 1.1, f64::NAN] {
        let complaint = complaint(|it| it.pass_times.kept = kept);
        let rule = "a share of what a forward pass leaves is from 0 to 1";
        assert_eq!(complaint, format!("pass_times.kept = {kept}: {rule}"));
    }
}

#[test]
fn passes_of_which_nobody_says_more_are_alike_and_keep_everything_for_weight_gradients() {
    let alike = PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0, kept: 1.0 };
    assert_eq!(plan().pass_times, alike);
}

#[test]
fn only_a_table_has_an_order_and_only_schedules_without_flush_other_weights() {
    let rule = "a schedule \"table\" has a line of actions for each device, and no other has";
    assert_eq!(complaint(|it| it.schedule = ScheduleKind::Table), format!("order = []: {rule}"));
    assert_eq!(complaint(|it| it.order = vec!["F0".into()]), format!("order = [\"F0\"]: {rule}"));
    assert_eq!(
        complaint(|it| it.weights = Weights::Stash),
        "weights.rule = stash: 1f1b has a flush, so \"flush\""
    );
    assert_eq!(
        complaint(|it| it.schedule = ScheduleKind::PipeDream),
        "weights.rule = flush: pipedream has no flush, so \"stash\", \"vertical-sync\", \
         \"double-buffer\" or \"newest\""
    );
    let pipemare = |it: &mut Plan, corrections: Corrections| {
        it.schedule = ScheduleKind::PipeMare;
        it.optimizer = Optimizer::sgd(0.9);
        it.weights = Weights::Newest { corrections };
    };
    let newest = |corrections: Corrections| complaint(|it| pipemare(it, corrections));
    assert_eq!(
        newest(Corrections { discrepancy: Some(1.5), ..Corrections::default() }),
        "weights.discrepancy = 1.5: a share is above 0 and below 1"
    );
    for end in [0.0, 1.0] {
        let corrections = Corrections { discrepancy: Some(end), ..Corrections::default() };
        let rule = "a share is above 0 and below 1";
        assert_eq!(newest(corrections), format!("weights.discrepancy = {end}: {rule}"));
    }
    let moved = "weights that are moved along their velocity are whole: zero = 0";
    for zero in 1..=3 {
        for corrections in [
            Corrections { discrepancy: Some(0.1), ..Corrections::default() },
            Corrections { prediction: Some(Prediction::Velocity), ..Corrections::default() },
            Corrections { prediction: Some(Prediction::Weights), ..Corrections::default() },
        ] {
            let refused = complaint(|it| {
                pipemare(it, corrections);
                it.sync.zero = zero;
            });
            assert_eq!(refused, format!("sync.zero = {zero}: {moved}"));
        }
    }
    assert_eq!(
        newest(Corrections { spike: Some(-1.0), ..Corrections::default() }),
        "weights.spike = -1: finite and above 0"
    );
    assert_eq!(
        newest(Corrections { anneal_steps: Some(0), ..Corrections::default() }),
        "weights.anneal_steps = 0: at least 1 step"
    );
    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
        let without = |corrections: Corrections| {
            complaint(|it| {
                pipemare(it, corrections);
                it.optimizer = optimizer;
            })
        };
        let rule = "it is defined for optimizer.kind = \"sgd\" with momentum";
        assert_eq!(
            without(Corrections { spike: Some(1.0), ..Corrections::default() }),
            format!("weights.spike = set: {rule}")
        );
        let prediction = Some(Prediction::Velocity);
        assert_eq!(
            without(Corrections { prediction, ..Corrections::default() }),
            format!("weights.prediction = velocity: {rule}")
        );
    }
}

#[test]
fn rounds_of_replicas_update_without_a_flush_and_without_a_norm_of_all_gradients() {
    fn endless(plan: &mut Plan) {
        plan.schedule = ScheduleKind::PipeDream;
        plan.weights = Weights::Stash;
        plan.clip_norm = None;
        plan.updates = Updates::Round;
    }
    let mut plan = plan();
    endless(&mut plan);
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    let complaint = |change: fn(&mut Plan)| {
        complaint(|it| {
            endless(it);
            change(it);
        })
    };
    let flushed = complaint(|it| {
        it.schedule = ScheduleKind::OneForwardOneBackward;
        it.weights = Weights::Flush;
    });
    assert!(flushed.starts_with("updates = round: "), "{flushed}");
    assert!(flushed.contains("which has no flush"), "{flushed}");
    let buffered = complaint(|it| it.weights = Weights::DoubleBuffer);
    assert!(buffered.contains("\"stash\" or \"vertical-sync\""), "{buffered}");
    for change in [
        |it: &mut Plan| it.clip_norm = Some(1.0),
        |it: &mut Plan| it.skip_non_finite = true,
        |it: &mut Plan| it.loss_scale = Some(LossScale::Constant { scale: 8.0 }),
    ] {
        let clipped = complaint(change);
        assert!(clipped.contains("no norm of all gradients"), "{clipped}");
    }
}

#[test]
fn replicas_share_along_axes_that_have_replicas_if_they_share_at_all() {
    let graph = graph();
    let message = |zero: u8, axes: &[Axis]| {
        let mut plan = plan();
        plan.sync = Sync { zero, shard_over: AxisSet::of(axes), ..plan.sync };
        plan.validate(&graph, plan.device_count()).map_err(|error| error.to_string())
    };
    assert_eq!(message(1, &[Axis::DP]), Ok(()));
    assert_eq!(message(3, &[Axis::CP, Axis::DP]), Ok(()));
    assert_eq!(
        message(0, &[Axis::DP]),
        Err("sync.shard_over = [dp]: with zero = 0 nothing is shared; 1 to 3 share".into())
    );
    assert_eq!(
        message(1, &[]),
        Err("sync.shard_over = []: at least one axis; zero = 0 shares nothing".into())
    );
    let along_tp = message(2, &[Axis::DP, Axis::TP]).expect_err("operators are split");
    assert!(along_tp.starts_with("sync.shard_over = [dp, tp]: the axes that have replicas are"));
}
