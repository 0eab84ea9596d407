//! Costs of single instructions, in exact numbers.

use std::collections::BTreeSet;

use crate::scenario::{cores, exchanged, gpt, h100, lowered, narrow, uniform};
use shardloom_cluster::{
    AttentionPass, Cluster, Curve, DeviceId, FormatRates, FusedAttention, NodeGroup,
    Precision as Format,
};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, ModelSpec, OpKind};
use shardloom_plan::{
    AttentionKind, Corrections, Optimizer, Plan, Precision, Prediction, ScheduleKind, Uniform,
    Weights,
};
use shardloom_program::timeline::{Activity, Picos};
use shardloom_program::{
    Action, Bucket, Carried, ClassId, Collective, Content, Exchange, Group, Instruction, Program,
    View, lower,
};
use shardloom_sim::{CostModel, Options, SimError, simulate};

/// What `cores` move per second.
const MEMORY: f64 = 8e9;

/// One stage on two cores.
fn two_cores(zero: u8, optimizer: Optimizer) -> (Graph, Program) {
    let graph = gpt(2, false);
    let mut plan = uniform(1, 2, 1, 1);
    plan.precision = Precision::FP32;
    plan.sync.zero = zero;
    plan.optimizer = optimizer;
    let program = lowered(&graph, &plan);
    (graph, program)
}

fn with_rates(rates: &[(&str, f64)]) -> Cluster {
    let mut groups: Vec<NodeGroup> = cores(2).groups().to_vec();
    for &(name, seconds_per_element) in rates {
        let curve = Curve::new(vec![(1.0, seconds_per_element)]).expect("a curve");
        groups[0].profile.device.rates.insert(name.to_owned(), curve);
    }
    Cluster::new(groups).expect("a cluster")
}

fn find(program: &Program, wanted: impl Fn(&Action) -> bool) -> &Instruction {
    let mut all = program.classes[0].bodies.iter().flat_map(|body| &body.instructions);
    all.find(|it| wanted(&it.action)).expect("the program has one")
}

fn computes(graph: &Graph, pass: Pass, wanted: fn(&OpKind) -> bool) -> impl Fn(&Action) -> bool {
    move |action| match action {
        Action::Kernel { op, pass: its, .. } => *its == pass && wanted(&graph.op(*op).kind),
        _ => false,
    }
}

/// The bucket that an instruction of the first class writes.
fn bucket<'p>(program: &'p Program, instruction: &Instruction) -> &'p Bucket {
    let class = &program.classes[0];
    let tensor = class.tensor(instruction.writes[0].to.tensor);
    class.bucket(tensor.bucket.expect("it lies in a bucket"))
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-12, "{found} is not {expected}");
}

fn seconds(graph: &Graph, cluster: &Cluster, program: &Program, of: &Instruction) -> f64 {
    let costs = CostModel::new(graph, cluster, program);
    costs.local_seconds(ClassId(0), 0, of).expect("it has a cost")
}

#[test]
fn a_contraction_takes_the_time_of_its_product() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let contracts = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
    let cluster = cores(2);
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    // The query projection: 32 positions of one sample, 64 wide, to 64.
    let forward = find(&program, computes(&graph, Pass::Forward, contracts));
    let product = device.matmul_seconds(Format::Fp32, 1, 32, 64, 64).expect("it has a rate");
    close(seconds(&graph, &cluster, &program, forward), product);
}

#[test]
fn attention_adds_the_softmax_to_its_products() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let probabilities = |kind: &OpKind| matches!(kind, OpKind::AttentionProbs { .. });
    let cluster = cores(2);
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let product = device.matmul_seconds(Format::Fp32, 8, 32, 32, 8).expect("it has a rate");
    let bytes = 4.0 * 8.0 * 32.0 * 32.0;
    let forward = find(&program, computes(&graph, Pass::Forward, probabilities));
    close(seconds(&graph, &cluster, &program, forward), product + 2.0 * bytes / MEMORY);
    let backward = find(&program, computes(&graph, Pass::Input, probabilities));
    close(seconds(&graph, &cluster, &program, backward), 2.0 * product + 3.0 * bytes / MEMORY);
}

#[test]
fn a_concatenation_passes_each_element_in_and_out_both_ways() {
    let spec = "u-transformer:layers=3,hidden=64,heads=8,seq=32,vocab=128";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform { precision: Precision::FP32, ..uniform(1, 1, 1, 1) };
    let program = lowered(&graph, &plan);
    for pass in [Pass::Forward, Pass::Input] {
        let joins = computes(&graph, pass, |kind| matches!(kind, OpKind::Concat { .. }));
        // 32 positions of one sample, 128 wide.
        let seconds = seconds(&graph, &cores(1), &program, find(&program, joins));
        close(seconds, 2.0 * 4.0 * 32.0 * 128.0 / MEMORY);
    }
}

/// A product with the recurrent weights for each of 6 positions that have one before them, and gates, cells and
/// results through memory; in the weight gradient one for the sample, and nothing beside it.
#[test]
fn a_recurrence_takes_a_product_for_each_position_after_the_other() {
    let spec = "lstm:layers=1,hidden=48,embed=32,seq=7,vocab=128";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform { precision: Precision::FP32, ..uniform(1, 1, 1, 1) };
    let program = lowered(&graph, &plan);
    let cluster = cores(1);
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let of = |pass| {
        let found = computes(&graph, pass, |kind| matches!(kind, OpKind::Lstm { .. }));
        seconds(&graph, &cluster, &program, find(&program, found))
    };
    let product = |m, n, k| device.matmul_seconds(Format::Fp32, 1, m, n, k).expect("it has a rate");
    let beside = 4.0 * 7.0 * (2.0 * 4.0 * 48.0 + 2.0 * 48.0 + 48.0) / MEMORY;
    close(of(Pass::Forward), 6.0 * product(1, 192, 48) + beside);
    close(of(Pass::Input), 6.0 * product(1, 48, 192) + beside);
    close(of(Pass::Weight), product(48, 192, 6));
}

#[test]
fn attention_dropout_passes_the_probabilities_and_their_mask() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let context = |kind: &OpKind| matches!(kind, OpKind::AttentionContext { .. });
    let cluster = cores(2);
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let product = device.matmul_seconds(Format::Fp32, 8, 32, 8, 32).expect("it has a rate");
    let beside = 9.0 * 8.0 * 32.0 * 32.0 / MEMORY;
    let forward = find(&program, computes(&graph, Pass::Forward, context));
    close(seconds(&graph, &cluster, &program, forward), product + beside);
}

#[test]
fn a_measured_rate_wins_over_the_model() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let norms = |kind: &OpKind| matches!(kind, OpKind::LayerNorm { .. });
    let contracts = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
    let cluster = with_rates(&[("layer-norm.weight", 3e-9), ("contract+bias.forward", 5e-9)]);
    let backward = find(&program, computes(&graph, Pass::Weight, norms));
    close(seconds(&graph, &cluster, &program, backward), 3e-9 * 32.0 * 64.0);
    let forward = find(&program, computes(&graph, Pass::Forward, contracts));
    close(seconds(&graph, &cluster, &program, forward), 5e-9 * 64.0 * 64.0);
}

#[test]
fn an_update_passes_gradient_weights_and_state_of_the_owned_elements() {
    for (zero, optimizer, bytes) in [
        (0, Optimizer::default(), 4 + 8 + 16),
        (1, Optimizer::default(), 4 + 8 + 16),
        (2, Optimizer::sgd(0.0), 4 + 8),
        (0, Optimizer::sgd(0.9), 4 + 8 + 8),
    ] {
        let (graph, program) = two_cores(zero, optimizer);
        let update = find(&program, |action| matches!(action, Action::Optimizer));
        let bucket = bucket(&program, update);
        let owned = match zero {
            0 => bucket.elements,
            _ => bucket.elements.div_ceil(2),
        };
        let found = seconds(&graph, &cores(2), &program, update);
        close(found, (owned * bytes) as f64 / MEMORY);
        let name = if zero == 0 && bytes == 28 { "update.adamw" } else { "update.sgd" };
        let rated = seconds(&graph, &with_rates(&[(name, 1e-9)]), &program, update);
        let expected = if matches!(optimizer, Optimizer::Sgd { .. }) || zero == 0 {
            owned as f64 * 1e-9
        } else {
            found
        };
        close(rated, expected);
    }
}

/// The product of its elements and its bytes is beyond 64 bits.
#[test]
fn an_update_of_five_billion_elements_takes_as_long_for_each_as_a_small_one() {
    let text = "dlrm:dense=1,rows=40000000,embed=128,bottom=4-128,top=4";
    let graph = shardloom_graph::ModelSpec::parse(text).and_then(|it| it.graph()).expect("a model");
    let mut plan = uniform(1, 2, 1, 1);
    plan.precision = Precision::FP32;
    plan.optimizer = Optimizer::default();
    let program = lowered(&graph, &plan);
    let cluster = cores(2);
    let costs = CostModel::new(&graph, &cluster, &program);
    let bodies = program.classes[0].bodies.iter();
    let updates = bodies.flat_map(|body| &body.instructions);
    let updates = updates.filter(|it| matches!(it.action, Action::Optimizer));
    let mut largest = 0;
    for update in updates {
        let elements = bucket(&program, update).elements;
        let found = costs.local_seconds(ClassId(0), 0, update).expect("it has a cost");
        close(found, elements as f64 * 28.0 / MEMORY);
        largest = largest.max(elements);
    }
    assert!(largest > 5_000_000_000, "{largest}");
}

#[test]
fn the_norm_reads_each_owned_gradient_once() {
    for zero in [0, 2] {
        let (graph, program) = two_cores(zero, Optimizer::default());
        let norm = find(&program, |action| matches!(action, Action::Norm));
        let owned = |elements: usize| if zero == 0 { elements } else { elements.div_ceil(2) };
        let buckets = program.classes[0].buckets.iter();
        let elements: usize = buckets.map(|bucket| owned(bucket.elements)).sum();
        let found = seconds(&graph, &cores(2), &program, norm);
        close(found, 4.0 * elements as f64 / MEMORY);
        let rated = seconds(&graph, &with_rates(&[("norm", 1e-9)]), &program, norm);
        close(rated, 1e-9 * elements as f64);
    }
}

#[test]
fn direct_collectives_take_their_measured_rate_where_cores_run_them() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let exchange = |algorithm| Exchange {
        kind: Kind::AllReduce,
        group: Group::World,
        elements: 1000,
        element_bytes: 4,
        algorithm,
    };
    let devices = [DeviceId(0), DeviceId(1)];
    let rated = with_rates(&[("direct.all-reduce.2", 1e-9)]);
    let of = |cluster: &Cluster, algorithm, group: &[DeviceId]| {
        let costs = CostModel::new(&graph, cluster, &program);
        costs.collective_seconds(&exchange(algorithm), group, 1).expect("it has a cost")
    };
    close(of(&rated, Algorithm::Direct, &devices), 1e-6);
    let ring = of(&rated, Algorithm::Ring, &devices);
    close(ring, 2.0 * (2e-6 + 2000.0 / 5e9));
    close(of(&cores(2), Algorithm::Direct, &devices), ring);
    assert_eq!(of(&rated, Algorithm::Direct, &devices[..1]), 0.0);
}

#[test]
fn a_collective_of_one_number_takes_its_latencies_and_one_of_none_takes_no_time() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let cluster = cores(2);
    let costs = CostModel::new(&graph, &cluster, &program);
    let of = |elements| {
        let (kind, group, algorithm) = (Kind::AllReduce, Group::World, Algorithm::Direct);
        let exchange = Exchange { kind, group, elements, element_bytes: 8, algorithm };
        let devices = [DeviceId(0), DeviceId(1)];
        costs.collective_seconds(&exchange, &devices, 1).expect("it has a cost")
    };
    close(of(1), 2.0 * (2e-6 + 4.0 / 5e9));
    assert_eq!(of(0), 0.0);
}

#[test]
fn a_message_takes_the_time_of_its_link() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let cluster = cores(2);
    let costs = CostModel::new(&graph, &cluster, &program);
    let message = |to| costs.message_seconds(DeviceId(0), DeviceId(to), 5000, 1).expect("a link");
    close(message(1), 2e-6 + 1e-6);
    assert_eq!(message(0), 0.0);
}

/// What the first byte takes keeps nobody else from coming in meanwhile.
#[test]
fn a_message_occupies_the_way_into_its_receiver_for_its_bytes_and_not_for_its_latency() {
    let (graph, program) = two_cores(0, Optimizer::default());
    let mut groups = cores(1).groups().to_vec();
    groups[0].nodes = 2;
    let [apart, beside] = [Cluster::new(groups).expect("a cluster"), cores(2)];
    let inflow = |cluster: &Cluster, to| {
        let costs = CostModel::new(&graph, cluster, &program);
        costs.inflow_seconds(DeviceId(0), DeviceId(to), 1_000_000).expect("a link")
    };
    // At 100 MB/s between nodes, whose first byte takes 0.1 ms, and at 5 GB/s within.
    close(inflow(&apart, 1), 0.01);
    close(inflow(&beside, 1), 0.0002);
    assert_eq!(inflow(&beside, 0), 0.0);
}

#[test]
fn a_device_without_the_precision_is_named() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let cluster = cores(1);
    let costs = CostModel::new(&graph, &cluster, &program);
    let contracts = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
    let forward = find(&program, computes(&graph, Pass::Forward, contracts));
    let error = costs.local_seconds(ClassId(0), 0, forward).expect_err("cores have no bf16");
    assert_eq!(error.to_string(), "cores has no bf16 rate; it has fp32");
}

#[test]
fn operators_of_16_bits_take_what_was_measured_in_16_bits_and_copies_and_collectives_what_their_bytes_do()
 {
    let graph = gpt(2, false);
    let in_bf16 = lowered(&graph, &uniform(1, 2, 1, 1));
    let (_, in_fp32) = two_cores(0, Optimizer::default());
    let cluster =
        with_rates(&[("layer-norm.forward", 3e-9), ("copy", 2e-9), ("direct.all-reduce.2", 1e-9)]);
    let mut groups = cluster.groups().to_vec();
    let device = &mut groups[0].profile.device;
    device.peak_flops.bf16 = Some(1e12);
    let curve = Curve::new(vec![(1.0, 1e-9)]).expect("a curve");
    device.in_format.insert(
        Format::Bf16,
        FormatRates {
            rates: [("layer-norm.forward".to_owned(), curve)].into(),
            products: [("contract+bias.forward".to_owned(), [0.0, 0.0, 0.0, 0.0, 1e-9].into())]
                .into(),
            matmul: None,
        },
    );
    let cluster = Cluster::new(groups).expect("a cluster");
    let norms = |kind: &OpKind| matches!(kind, OpKind::LayerNorm { .. });
    let contracts = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
    let of = |program: &Program, wanted: &dyn Fn(&Action) -> bool| {
        seconds(&graph, &cluster, program, find(program, wanted))
    };
    // 32 positions of one sample, 64 wide.
    let norm = computes(&graph, Pass::Forward, norms);
    close(of(&in_fp32, &norm), 32.0 * 64.0 * 3e-9);
    close(of(&in_bf16, &norm), 32.0 * 64.0 * 1e-9);
    close(of(&in_bf16, &computes(&graph, Pass::Forward, contracts)), 32.0 * 64.0 * 64.0 * 1e-9);
    // Masters are read and weights written: 6 bytes an element, of 8 that a copy in fp32 has.
    let cast = find(&in_bf16, |action| matches!(action, Action::Cast));
    let elements = in_bf16.classes[0].view_range(cast.writes[0].to, 0).len() as f64;
    close(seconds(&graph, &cluster, &in_bf16, cast), 0.75 * elements * 2e-9);
    let costs = CostModel::new(&graph, &cluster, &in_bf16);
    let reduced = |element_bytes| {
        let (kind, group, algorithm) = (Kind::AllReduce, Group::World, Algorithm::Direct);
        let exchange = Exchange { kind, group, elements: 1000, element_bytes, algorithm };
        let devices = [DeviceId(0), DeviceId(1)];
        costs.collective_seconds(&exchange, &devices, 1).expect("it has a cost")
    };
    close(reduced(4), 1000.0 * 1e-9);
    close(reduced(2), 500.0 * 1e-9);
}

#[test]
fn a_pass_that_the_graph_does_not_have_is_named() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let pointwise = |kind: &OpKind| matches!(kind, OpKind::Pointwise(_));
    let mut backward = find(&program, computes(&graph, Pass::Input, pointwise)).clone();
    if let Action::Kernel { pass, .. } = &mut backward.action {
        *pass = Pass::Weight;
    }
    let cluster = h100(1);
    let costs = CostModel::new(&graph, &cluster, &program);
    let error = costs.local_seconds(ClassId(0), 0, &backward).expect_err("gelu has no weights");
    assert!(matches!(error, SimError::NoPass { kind: "gelu", pass: "weight", .. }), "{error}");
}

#[test]
fn what_leaves_a_node_together_shares_its_uplink() {
    // Two stages of dp 4 x tp 4, each on two nodes: data-parallel groups have two members in each of
    // both nodes, tensor-parallel ones stay within.
    let graph = gpt(2, false);
    let plan = uniform(2, 4, 4, 2);
    let program = lowered(&graph, &plan);
    let cluster = narrow(32);
    let options = Options { steps: 1, folded: true };
    let found = simulate(&graph, &cluster, &program, options).expect("it runs");
    let lengths = |activity, label: &str| -> Vec<Picos> {
        let intervals = found.timeline.tracks[0].intervals.iter();
        let those = intervals.filter(|it| it.activity == activity && it.label == label);
        those.map(|it| it.end.since(it.start)).collect()
    };

    let class = &program.classes[0];
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let mut reductions = instructions.filter(|it| exchanged(class, it) == Some(Content::Gradient));
    let bucket = bucket(&program, reductions.next().expect("gradients are reduced"));
    let bytes = 4.0 * bucket.elements as f64;
    let group: Vec<DeviceId> = [0, 4, 8, 12].map(DeviceId).to_vec();
    let alone = |concurrent| {
        let (kind, algorithm) = (Kind::AllReduce, Algorithm::Ring);
        let seconds = cluster.collective_seconds(kind, algorithm, &group, bytes, concurrent);
        Picos::from_seconds(seconds.expect("it has a time"))
    };
    assert!(alone(4) > alone(1));
    let label = format!("all-reduce {}", bucket.name);
    assert!(lengths(Activity::Collective, &label).contains(&alone(4)));

    let route = &program.routes[0];
    let bytes = route.message_bytes(&route.messages[0]) as f64;
    let path = cluster.link(DeviceId(0), DeviceId(16)).expect("devices").expect("two of them");
    let message = Picos::from_seconds(path.transfer_seconds(bytes, 8));
    let Carried::Value(value) = route.carried else { panic!("activations go first") };
    let label = format!("send {}", graph.value(value).name);
    assert_eq!(lengths(Activity::Send, &label), [message; 2]);
}

/// What cores move to bring parts of tensors side by side, or shards into and out of whole buckets.
#[test]
fn staging_passes_what_a_collective_takes_and_leaves() {
    let graph = gpt(2, false);
    let mut plan = uniform(1, 2, 2, 1);
    plan.precision = Precision::FP32;
    plan.sequence_parallel = true;
    plan.sync.zero = 3;
    let program = lowered(&graph, &plan);
    let class = &program.classes[0];
    let staging = |cluster: &Cluster, of: &Instruction| {
        let costs = CostModel::new(&graph, cluster, &program);
        costs.staging_seconds(ClassId(0), 0, of).expect("it has a cost")
    };
    let elements = |view: View| class.view_range(view, 0).len() as f64;
    let half =
        |instruction: &Instruction| bucket(&program, instruction).elements.div_ceil(2) as f64;
    let mut found = BTreeSet::new();
    for instruction in class.bodies.iter().flat_map(|body| &body.instructions) {
        let Action::Collective { kind, .. } = instruction.action else { continue };
        let (name, bytes) = match (exchanged(class, instruction), kind) {
            // Read and written: a shard.
            (Some(Content::Weight), _) => ("gather", 2.0 * 4.0 * half(instruction)),
            // A shard is added to what is there.
            (Some(Content::Gradient), Collective::ReduceScatter { .. }) => {
                ("reduce", 3.0 * 4.0 * half(instruction))
            }
            (Some(Content::Activation), Collective::AllGather { .. }) => {
                ("all-gather", 2.0 * 4.0 * elements(instruction.writes[0].to))
            }
            (Some(Content::Activation), Collective::ReduceScatter { .. }) => {
                ("reduce-scatter", 2.0 * 4.0 * elements(instruction.reads[0]))
            }
            _ => ("", 0.0),
        };
        found.insert(name);
        let seconds = staging(&cores(4), instruction);
        match bytes {
            0.0 => assert_eq!(seconds, 0.0),
            _ => close(seconds, bytes / MEMORY),
        }
        // Copy engines do it on the way.
        assert_eq!(staging(&h100(4), instruction), 0.0);
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
fn an_update_also_passes_what_it_keeps_of_older_weights_and_for_corrections() {
    let graph = gpt(2, false);
    let corrections = |prediction, discrepancy| Weights::Newest {
        corrections: Corrections { prediction, discrepancy, ..Corrections::default() },
    };
    let moved = corrections(Some(Prediction::Weights), None);
    let both = corrections(Some(Prediction::Weights), Some(0.1));
    let plain = corrections(None, None);
    for (schedule, weights, kept) in [
        // An older version is a copy of the weights: read and written.
        (ScheduleKind::PipeDream, Weights::Stash, 8),
        (ScheduleKind::PipeMare, plain, 0),
        // The weights before the update, or the mean velocity, are read and written, and weights read.
        (ScheduleKind::PipeMare, moved, 12),
        (ScheduleKind::PipeMare, both, 24),
    ] {
        let uniform = Uniform {
            schedule,
            precision: Precision::FP32,
            optimizer: Optimizer::sgd(0.9),
            clip_norm: None,
            ..uniform(2, 1, 1, 1)
        };
        let plan = Plan { weights, ..uniform.plan(&graph, "gpt", "cluster") };
        let program = lower(&graph, &plan, 2).expect("the plan fits");
        let cluster = cores(2);
        let costs = CostModel::new(&graph, &cluster, &program);
        for (id, class) in program.classes() {
            let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
            for update in instructions.filter(|it| matches!(it.action, Action::Optimizer)) {
                // The last stage runs no pass late.
                let kept = if id == ClassId(0) { kept } else { 0 };
                let elements = class.view_range(update.writes[0].to, 0).len();
                let bytes = elements * (4 + 8 + 8 + kept);
                let found = costs.local_seconds(id, 0, update).expect("it has a cost");
                close(found, bytes as f64 / MEMORY);
            }
        }
    }
}

#[test]
fn an_update_changes_a_master_copy_and_a_cast_makes_the_weights_in_use_of_it() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let cluster = h100(1);
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let update = find(&program, |action| matches!(action, Action::Optimizer));
    let elements = bucket(&program, update).elements as f64;
    // Gradients and the two moments in 32 bits, the master read and written.
    let bytes = elements * (4.0 + 2.0 * 8.0 + 2.0 * 4.0);
    let expected = device.memory_bound_seconds("update.adamw", elements, bytes);
    close(seconds(&graph, &cluster, &program, update), expected);
    // The master read, bf16 weights written.
    let cast = find(&program, |action| matches!(action, Action::Cast));
    let expected = device.memory_bound_seconds("copy", elements, elements * (4.0 + 2.0));
    close(seconds(&graph, &cluster, &program, cast), expected);
}

/// The head's: no other is as wide.
#[test]
fn a_vocabulary_that_no_vector_divides_makes_the_products_of_the_head_slower() {
    let slowest = |vocabulary: usize, pass| {
        let spec = format!("gpt:layers=1,hidden=1024,heads=8,seq=1024,vocab={vocabulary}");
        let graph = ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a model");
        let program = lowered(&graph, &uniform(1, 1, 1, 1));
        let contracts = computes(&graph, pass, |kind| matches!(kind, OpKind::Contract { .. }));
        let all = program.classes[0].bodies.iter().flat_map(|body| &body.instructions);
        let all = all.filter(|it| contracts(&it.action));
        all.map(|it| seconds(&graph, &h100(1), &program, it)).fold(0.0, f64::max)
    };
    for pass in [Pass::Forward, Pass::Input, Pass::Weight] {
        let times = slowest(50_257, pass) / slowest(50_264, pass);
        assert!((3.0..7.0).contains(&times), "{pass:?}: {times}");
    }
}

/// An H100 that attends so.
fn attending(kernels: FusedAttention) -> Cluster {
    let mut groups = h100(1).groups().to_vec();
    groups[0].profile.device.fused_attention = Some(kernels);
    Cluster::new(groups).expect("a cluster")
}

/// Of a window of 8 of 32 positions the first queries see half of what the others do: an eighth is not there.
#[test]
fn fused_attention_computes_the_keys_of_a_window_only() {
    let text = "llama:layers=1,hidden=64,heads=8,ffn=64,seq=32,vocab=64,windows=8";
    let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
    let graph = graph.with_fused_attention();
    let plan = uniform(1, 1, 1, 1).plan(&graph, "llama", "cluster");
    let plan = Plan { attention: AttentionKind::Fused, ..plan };
    let program = lower(&graph, &plan, 1).expect("it fits");
    let cluster = attending(FusedAttention::flat(0.6));
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let (peak, reached) = (device.peak_flops(Format::Bf16).expect("it computes in bf16"), 0.6);
    let product = 2.0 * 8.0 * 32.0 * 8.0 * 8.0;
    let attention = |kind: &OpKind| matches!(kind, OpKind::FusedAttention { .. });
    for (pass, count) in [(Pass::Forward, 2.0), (Pass::Input, 5.0)] {
        let at = find(&program, computes(&graph, pass, attention));
        let expected = device.launch_seconds + 0.875 * count * product / (peak * reached);
        close(seconds(&graph, &cluster, &program, at), expected);
    }
}

/// Half of 32 keys are seen on average, by 8 heads of 8 numbers over 32 positions.
#[test]
fn fused_attention_takes_exponentials_and_what_few_keys_cost() {
    let graph = gpt(2, false).with_fused_attention();
    let plan = uniform(1, 1, 1, 1).plan(&graph, "gpt", "cluster");
    let plan = Plan { attention: AttentionKind::Fused, ..plan };
    let program = lower(&graph, &plan, 1).expect("it fits");
    let forward = AttentionPass { reachable: 0.5, score_seconds: 1e-9, half_keys: 48.0 };
    let backward = AttentionPass { reachable: 0.25, score_seconds: 3e-9, half_keys: 8.0 };
    let cluster = attending(FusedAttention { forward, backward });
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let peak = device.peak_flops(Format::Bf16).expect("it computes in bf16");
    let attention = |kind: &OpKind| matches!(kind, OpKind::FusedAttention { .. });
    let scores = 8.0 * 32.0 * 16.0;
    for (pass, expected) in [
        (Pass::Forward, scores * (2.0 * 2.0 * 8.0 / (peak * 0.5) + 1e-9) * 4.0),
        (Pass::Input, scores * (5.0 * 2.0 * 8.0 / (peak * 0.25) + 3e-9) * 1.5),
    ] {
        let at = find(&program, computes(&graph, pass, attention));
        close(seconds(&graph, &cluster, &program, at), device.launch_seconds + expected);
    }
}

#[test]
fn fused_attention_skips_the_half_that_a_causal_mask_hides() {
    let graph = gpt(2, false).with_fused_attention();
    let plan = uniform(1, 1, 1, 1).plan(&graph, "gpt", "cluster");
    let plan = Plan { attention: AttentionKind::Fused, ..plan };
    let program = lower(&graph, &plan, 1).expect("it fits");
    let cluster = attending(FusedAttention::flat(0.6));
    let device = cluster.kind_of(DeviceId(0)).expect("it is there");
    let (peak, reached) = (device.peak_flops(Format::Bf16).expect("it computes in bf16"), 0.6);
    // Eight heads of eight numbers over 32 positions of one sample.
    let product = 2.0 * 8.0 * 32.0 * 32.0 * 8.0;
    let attention = |kind: &OpKind| matches!(kind, OpKind::FusedAttention { .. });
    let forward = find(&program, computes(&graph, Pass::Forward, attention));
    let expected = device.launch_seconds + 0.5 * 2.0 * product / (peak * reached);
    close(seconds(&graph, &cluster, &program, forward), expected);
    // The scores again, and the gradients of probabilities, values, queries and keys.
    let backward = find(&program, computes(&graph, Pass::Input, attention));
    let expected = device.launch_seconds + 0.5 * 5.0 * product / (peak * reached);
    close(seconds(&graph, &cluster, &program, backward), expected);
}
