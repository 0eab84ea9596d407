//! What a software stack adds to the machines' own times.

use std::collections::BTreeSet;

use crate::estimate::candidates::pipeline;
use crate::estimate::simulated::MIXED;
use crate::scenario::{gpt, h100, lowered, uniform};
use shardloom_cluster::{
    Algorithms, Attention, BetweenNodes, Cluster, DeviceId, FusedAttention, Kernels, Stack,
};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::work::Pass;
use shardloom_graph::{ModelSpec, OpKind};
use shardloom_plan::{AttentionKind, Optimizer, Plan, Recompute, Uniform};
use shardloom_program::timeline::Picos;
use shardloom_program::{Action, Exchange, Instruction, Program, lower};
use shardloom_sim::estimate::{Candidate, Estimator, Settings};
use shardloom_sim::{CostModel, Modelled, Options, Recorded, Recorder, run, simulate};

fn under(ranks: usize, change: impl Fn(&mut Stack)) -> Cluster {
    let mut stack = Stack::default();
    change(&mut stack);
    h100(ranks).under(stack)
}

/// The steady step on `cluster`.
fn step(program: &Program, cluster: &Cluster, graph: &shardloom_graph::Graph) -> Picos {
    simulate(graph, cluster, program, Options::default()).expect("it runs").step_time()
}

/// What a rank of the only class runs in a step.
fn instructions(program: &Program) -> impl Iterator<Item = &Instruction> {
    let class = &program.classes[0];
    class.unguarded().flat_map(|entry| &class.body_of(entry).instructions)
}

#[test]
fn a_device_that_is_faster_than_its_host_takes_the_hosts_time() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 3));
    let slow = under(1, |stack| {
        stack.host.kernel_seconds = 1e-3;
        stack.host.waits_for_steps = true;
    });
    let costs = CostModel::new(&graph, &slow, &program);
    let class = program.classes().next().expect("a class").0;
    let launches =
        instructions(&program).map(|it| Picos::from_seconds(costs.launch_seconds(class, it)));
    let launched: u64 = launches.map(|it| it.0).sum();
    let last = instructions(&program).last().expect("a step ends with something");
    let last = costs.local_seconds(class, 0, last);
    let after = Picos::from_seconds(last.expect("a device of the cluster")).0;
    assert!(launched > 100 * Picos::from_seconds(1e-3).0, "{launched}");
    // What is launched last runs after its launch; the next step begins after that.
    assert_eq!(step(&program, &slow, &graph).0, launched + after);
}

#[test]
fn a_host_that_is_faster_than_its_device_only_delays_the_first_kernel_of_a_step() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 3));
    let alone = step(&program, &h100(1), &graph).0;
    let launch = 1e-9;
    let fast = under(1, |stack| {
        stack.host.kernel_seconds = launch;
        stack.host.waits_for_steps = true;
    });
    let found = step(&program, &fast, &graph).0 - alone;
    let first = Picos::from_seconds(launch).0;
    assert!((first..=3 * first).contains(&found), "{found} after {first}");
}

#[test]
fn a_host_that_waits_for_messages_launches_nothing_meanwhile() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 4));
    let times = [false, true].map(|waits| {
        let cluster = under(2, |stack| {
            stack.host.kernel_seconds = 20e-6;
            stack.host.communication_seconds = 20e-6;
            stack.host.waits_for_messages = waits;
        });
        step(&program, &cluster, &graph)
    });
    assert!(times[1] > times[0], "{times:?}");
}

#[test]
fn an_operator_takes_the_kernels_and_the_traffic_that_the_stack_says() {
    let graph = gpt(1, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let class = program.classes().next().expect("a class").0;
    let is = |instruction: &Instruction, wanted: Pass| match &instruction.action {
        Action::Kernel { op, pass, .. } => {
            matches!(graph.op(*op).kind, OpKind::LayerNorm { .. }) && *pass == wanted
        }
        _ => false,
    };
    let of = |pass| instructions(&program).find(|it| is(it, pass)).expect("a layer norm");
    let cluster = under(1, |stack| {
        stack.host.kernel_seconds = 1e-6;
        let kernels = Kernels { launched: 5.0, traffic: 3.0, workspace: 0.0, saved: 0.0 };
        stack.operators.insert("layer-norm.forward".into(), kernels);
    });
    let bare = h100(1);
    let [costs, before] = [&cluster, &bare].map(|it| CostModel::new(&graph, it, &program));
    let launch = bare.groups()[0].profile.device.launch_seconds;
    let seconds = |costs: &CostModel<'_>, pass| {
        costs.local_seconds(class, 0, of(pass)).expect("a device") - launch
    };
    assert_eq!(costs.launch_seconds(class, of(Pass::Forward)), 5.0 * 1e-6);
    assert_eq!(costs.launch_seconds(class, of(Pass::Input)), 1e-6);
    let ratio = seconds(&costs, Pass::Forward) / seconds(&before, Pass::Forward);
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
    assert_eq!(seconds(&costs, Pass::Input), seconds(&before, Pass::Input));
}

#[test]
fn a_host_that_waits_for_steps_does_what_it_does_between_them() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 3));
    let with = |seconds: f64, waits: bool| {
        let cluster = under(2, |stack| {
            stack.host.kernel_seconds = 1e-6;
            stack.host.waits_for_steps = waits;
            stack.host.step_seconds = seconds;
        });
        step(&program, &cluster, &graph).0
    };
    assert_eq!(with(0.5, false), with(0.0, false));
    // The stages end their steps at different times, and wait for each other in the next.
    let more = with(0.5, true) - with(0.0, true);
    assert_eq!(more, Picos::from_seconds(0.5).0);
}

#[test]
fn collectives_of_stages_on_several_nodes_take_the_host_what_the_stack_says() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 4, 1));
    let on = |nodes: usize| {
        let text = format!("h100-80g:{nodes}x{}", 8 / nodes);
        let mut stack = Stack::default();
        stack.host.communication_seconds = 1e-5;
        stack.host.between_nodes = BetweenNodes { seconds: 1e-4, exponent: 1.5 };
        let cluster = Cluster::parse(&text).map(|it| it.under(stack)).expect("a preset");
        let costs = CostModel::new(&graph, &cluster, &program);
        let (class, _) = program.classes().next().expect("a class");
        let mut seconds = vec![];
        for instruction in instructions(&program) {
            if let Action::Collective { .. } = instruction.action {
                let value = program.class(class).tensor(instruction.reads[0].tensor);
                seconds.push((value.is_activation(), costs.launch_seconds(class, instruction)));
            }
        }
        assert!(seconds.len() > 4, "{seconds:?}");
        seconds
    };
    let between = 1e-5 + 1e-4 * 4_f64.powf(1.5);
    for (of_value, seconds) in on(2) {
        assert_eq!(seconds, if of_value { between } else { 1e-5 });
    }
    assert!(on(1).iter().all(|&(_, seconds)| seconds == 1e-5));
}

#[test]
fn slicing_shares_takes_the_host_time_for_every_parameter_and_replica() {
    let graph = gpt(2, false);
    // Of pairs of replicas that share, each with all of the parameters, there are two.
    let updates = |zero: u8, sharing: u32| {
        let mut plan = uniform(1, 4, 1, 1);
        plan.sync.zero = zero;
        plan.mesh = plan.mesh.sharing_within(sharing).expect("it divides the replicas");
        let program = lowered(&graph, &plan);
        let cluster = under(4, |stack| {
            stack.host.kernel_seconds = 1e-6;
            stack.host.share_seconds = 1e-3;
        });
        let costs = CostModel::new(&graph, &cluster, &program);
        let (class, _) = program.classes().next().expect("a class");
        let updates = instructions(&program).filter(|it| it.action == Action::Optimizer);
        updates.map(|it| costs.launch_seconds(class, it) - 1e-6).sum::<f64>()
    };
    assert_eq!(updates(0, 4), 0.0);
    for sharing in [2, 4] {
        let shares = f64::from(sharing) * graph.parameters().count() as f64;
        let found = updates(1, sharing);
        assert!((found - 1e-3 * shares).abs() < 1e-9, "{found} where {sharing} share");
    }
}

#[test]
fn what_an_operator_uses_besides_counts_while_it_runs() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 2));
    let peak = |workspace: f64| {
        let cluster = under(1, |stack| {
            let kernels = Kernels { workspace, ..Kernels::default() };
            stack.operators.insert("cross-entropy.forward".into(), kernels);
        });
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        simulation.timeline.tracks[0].peak_bytes
    };
    // So much that the most is in use where the loss is computed: of 32 positions, 128 logits each.
    let (most, more) = (peak(1e6), peak(1e6 + 100.0));
    assert!(most > 1_000_000 * 32 * 128);
    assert_eq!(more - most, 100 * 32 * 128);
    assert_eq!(peak(0.0), peak(1e-9));
}

#[test]
fn the_course_of_memory_shows_what_an_operator_uses_besides_and_nothing_of_it_afterwards() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 2));
    let cluster = under(1, |stack| {
        let kernels = Kernels { workspace: 1e6, ..Kernels::default() };
        stack.operators.insert("cross-entropy.forward".into(), kernels);
    });
    let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
    let track = &simulation.timeline.tracks[0];
    let held = || track.memory.iter().map(|&(_, bytes)| bytes);
    assert_eq!(held().max(), Some(track.peak_bytes));
    assert_eq!(held().next_back(), held().next());
    // In each of the steps the losses of two micro-batches.
    let high = held().filter(|&bytes| bytes > track.peak_bytes / 2).count();
    assert!(high >= 2 && 2 * high < track.memory.len(), "{high} of {}", track.memory.len());
}

#[test]
fn what_a_forward_pass_saves_is_there_until_its_backward_pass() {
    let graph = gpt(2, false);
    // Both blocks' at once, or where forward passes are run again before backward passes those of one block.
    for (recompute, blocks) in [(Recompute::None, 2), (Recompute::Full, 1)] {
        let program = lowered(&graph, &Uniform { recompute, ..uniform(1, 1, 1, 2) });
        let track = |saved: f64| {
            let cluster = under(1, |stack| {
                let kernels = Kernels { saved, ..Kernels::default() };
                stack.operators.insert("gelu.forward".into(), kernels);
            });
            let simulation = simulate(&graph, &cluster, &program, Options::default());
            simulation.expect("it runs").timeline.tracks[0].clone()
        };
        // Of 32 positions, 256 elements each.
        let (plain, most, more) = (track(0.0), track(1000.0), track(1000.0 + 1.0));
        assert_eq!(more.peak_bytes - most.peak_bytes, blocks * 32 * 256, "{recompute:?}");
        assert!(most.peak_bytes - plain.peak_bytes <= 1000 * blocks * 32 * 256);
        // Between micro-batches nothing of it is left.
        let last =
            |track: &shardloom_program::timeline::Track| track.memory.last().expect("it ends").1;
        assert_eq!(last(&most), last(&plain));
    }
}

#[test]
fn copies_of_gradients_are_held_all_the_time() {
    let graph = gpt(2, false);
    let held = |dp: u32, separate: bool, buckets: bool| {
        let program = lowered(&graph, &uniform(1, dp, 1, 2));
        let cluster = under(dp as usize, |stack| {
            stack.memory.separate_gradients = separate;
            stack.memory.reduction_buckets = buckets;
        });
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        let fit = simulation.memory_fits(&program, &cluster).expect("devices")[0];
        let copies = fit.persistent.gradients - program.classes[0].persistent_bytes(0).gradients;
        (copies, fit.peak_bytes)
    };
    // Two bytes a parameter, each.
    let copy = 2 * graph.parameter_count();
    let (none, plain) = held(2, false, false);
    assert_eq!(none, 0);
    for (separate, buckets, copies) in [(true, false, 1), (false, true, 1), (true, true, 2)] {
        assert_eq!(held(2, separate, buckets), (copies * copy, plain + copies * copy));
    }
    // One replica reduces nothing.
    assert_eq!(held(1, true, true).0, copy);
}

/// Of one micro-batch the most is there before any gradient is: its activations, which get less as gradients get more.
/// With two, the second meets the first's gradients.
#[test]
fn gradients_that_come_late_are_there_from_their_first_write_to_the_end_of_the_step() {
    let spec = "gpt:layers=4,hidden=64,heads=8,seq=256,vocab=2048";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let gradients = 4 * graph.parameter_count();
    let held = |microbatches: usize, late: bool| {
        let program = lowered(&graph, &uniform(1, 1, 1, microbatches));
        let cluster = under(1, |stack| stack.memory.late_gradients = late);
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        let fit = simulation.memory_fits(&program, &cluster).expect("devices")[0];
        let track = &simulation.timeline.tracks[0];
        let (first, last) = (track.memory[0].1, track.memory.last().expect("it ends").1);
        assert_eq!(first, program.classes[0].persistent_bytes(0).total() - absent(late, gradients));
        assert_eq!(last, first + absent(late, gradients));
        fit
    };
    let (always, late) = (held(1, false), held(1, true));
    assert_eq!(always.persistent.gradients, gradients);
    assert_eq!(late.peak_bytes, always.peak_bytes - gradients);
    assert_eq!(late.persistent.gradients, 0);
    assert_eq!(
        (late.activation_bytes, late.buffer_bytes()),
        (always.activation_bytes, always.buffer_bytes())
    );
    assert_eq!(held(2, true), held(2, false));
}

fn absent(late: bool, gradients: u64) -> u64 {
    if late { gradients } else { 0 }
}

/// Where hardly anything is kept, the most is there when all gradients are.
#[test]
fn a_model_of_few_activations_needs_all_of_its_gradients_at_once() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let peak = |late: bool| {
        let cluster = under(1, |stack| stack.memory.late_gradients = late);
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        simulation.timeline.tracks[0].peak_bytes
    };
    let all = program.classes[0].persistent_bytes(0).total();
    assert!((all..peak(false)).contains(&peak(true)), "{} {} {all}", peak(true), peak(false));
}

#[test]
fn a_host_ahead_of_its_device_cannot_use_again_what_collectives_have_not_freed() {
    let graph = gpt(4, false);
    let plan = Uniform { sequence_parallel: true, ..uniform(1, 1, 2, 2) };
    let program = lowered(&graph, &plan);
    let peak = |queued_kernels: u32, kernel_seconds: f64| {
        let cluster = under(2, |stack| {
            stack.host.kernel_seconds = kernel_seconds;
            stack.memory.queued_kernels = queued_kernels;
        });
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        simulation.timeline.tracks[0].peak_bytes
    };
    // A device that waits for its host has ended every collective when the next kernel is launched.
    assert_eq!(peak(1000, 1e-2), peak(0, 1e-2));
    // A host that waits for nobody gets no sum of parts back from its device: two in each block's forward pass, of 32
    // positions and 64 elements.
    let (ahead, most) = (peak(1_000_000, 1e-9), peak(0, 1e-9));
    assert!(ahead >= most + 2 * 3 * 32 * 64 * 2, "{ahead} {most}");
    // It waits when it has launched as many as there may be.
    assert!(peak(10, 1e-9) < ahead);
}

#[test]
fn fused_attention_reaches_what_the_software_reaches_on_the_device() {
    let graph = gpt(1, false).with_fused_attention();
    let plan = Plan {
        attention: AttentionKind::Fused,
        ..uniform(1, 1, 1, 1).plan(&graph, "gpt", "cluster")
    };
    let program = lower(&graph, &plan, 1).expect("it fits");
    let (class, _) = program.classes().next().expect("a class");
    let core = instructions(&program).find(|it| match &it.action {
        Action::Kernel { op, .. } => matches!(graph.op(*op).kind, OpKind::FusedAttention { .. }),
        _ => false,
    });
    let core = core.expect("it attends");
    let seconds = |name: &str, reached: f64| {
        let cluster = under(1, |stack| {
            stack.fused_attention.insert(name.into(), FusedAttention::flat(reached));
        });
        let launch = cluster.groups()[0].profile.device.launch_seconds;
        let costs = CostModel::new(&graph, &cluster, &program);
        costs.local_seconds(class, 0, core).expect("a device") - launch
    };
    let (fast, slow) = (seconds("h100-80g", 0.5), seconds("h100-80g", 0.25));
    assert!((slow / fast - 2.0).abs() < 1e-6, "{slow} {fast}");
    assert_eq!(seconds("a100-80g", 0.5), seconds("a100-80g", 0.25));
}

#[test]
fn an_all_reduce_takes_the_algorithm_that_is_faster_for_its_size() {
    let graph = gpt(1, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let planned = h100(64);
    let by_size = under(64, |stack| stack.algorithms = Algorithms::BySize);
    let group: Vec<DeviceId> = (0..64).map(DeviceId).collect();
    let seconds = |cluster: &Cluster, kind, algorithm, elements| {
        let group_of = shardloom_program::Group::World;
        let exchange = Exchange { kind, group: group_of, elements, element_bytes: 4, algorithm };
        let costs = CostModel::new(&graph, cluster, &program);
        costs.collective_seconds(&exchange, &group, 1).expect("it exists")
    };
    let mut trees = 0;
    let shape = planned.group_shape(&group, 1).expect("devices");
    for elements in [64, 6_400, 640_000, 64_000_000_000] {
        let ring = seconds(&planned, Kind::AllReduce, Algorithm::Ring, elements);
        let tree = shape.tree_of_nodes_seconds(4.0 * elements as f64);
        let found = seconds(&by_size, Kind::AllReduce, Algorithm::Direct, elements);
        assert_eq!(found, ring.min(tree));
        trees += usize::from(tree < ring);
        let gather = seconds(&by_size, Kind::AllGather, Algorithm::Direct, elements);
        assert_eq!(gather, seconds(&planned, Kind::AllGather, Algorithm::Ring, elements));
        // It has no ring.
        let to_all =
            seconds(&by_size, Kind::AllToAll, Algorithm::Hierarchical { inner: 8 }, elements);
        assert_eq!(to_all, seconds(&planned, Kind::AllToAll, Algorithm::Direct, elements));
    }
    assert!((1..4).contains(&trees), "{trees}");
}

#[test]
fn products_in_8_bits_take_the_devices_rate_for_them_and_casts() {
    let graph = gpt(1, false);
    let mut plan = uniform(1, 1, 1, 1);
    let program_in = |fp8_products: bool, plan: &mut Uniform| {
        plan.precision.fp8_products = fp8_products;
        lowered(&graph, plan)
    };
    let [wide, narrow] = [false, true].map(|it| program_in(it, &mut plan));
    let cluster = h100(1);
    let [wide, narrow] = [&wide, &narrow].map(|it| (it, CostModel::new(&graph, &cluster, it)));
    let mut changed = BTreeSet::new();
    for (one, other) in instructions(wide.0).zip(instructions(narrow.0)) {
        let [before, after] =
            [(one, &wide), (other, &narrow)].map(|(instruction, (program, costs))| {
                let (class, _) = program.classes().next().expect("a class");
                costs.local_seconds(class, 0, instruction).expect("a device")
            });
        if before != after {
            let Action::Kernel { op, .. } = &one.action else { panic!("{one:?}") };
            changed.insert(graph.op(*op).name.clone());
        }
    }
    let products = graph.ops().filter(|(_, op)| matches!(op.kind, OpKind::Contract { .. }));
    let expected = products.map(|(_, op)| op.name.clone()).filter(|name| name != "head").collect();
    assert_eq!(changed, expected);
    // A device that has no such products computes nothing in them.
    let old = Cluster::parse("a100-80g:1").expect("a preset");
    let error = simulate(&graph, &old, narrow.0, Options::default()).unwrap_err().to_string();
    assert!(error.contains("fp8"), "{error}");
}

#[test]
fn casts_to_8_bits_are_of_what_a_pass_has_first_activations_or_their_gradients() {
    let graph = gpt(1, false);
    let mut plan = uniform(1, 1, 1, 1);
    plan.precision.fp8_products = true;
    let program = lowered(&graph, &plan);
    let cluster = h100(1);
    let costs = CostModel::new(&graph, &cluster, &program);
    let class = program.classes().next().expect("a class").0;
    let seconds = |name: &str, pass: Pass| {
        let is_it = |it: &&Instruction| match &it.action {
            Action::Kernel { op, pass: of, again: false, .. } => {
                graph.op(*op).name == name && *of == pass
            }
            _ => false,
        };
        let found = instructions(&program).find(is_it).expect("a product");
        costs.local_seconds(class, 0, found).expect("a device")
    };
    // Widened going forward and narrowed going back, or the other way round: the same product of the same casts.
    let (up, down) = ("block.0.ffn.up", "block.0.ffn.down");
    assert_eq!(seconds(up, Pass::Input), seconds(down, Pass::Forward));
    assert_eq!(seconds(down, Pass::Input), seconds(up, Pass::Forward));
}

#[test]
fn memory_that_the_software_keeps_for_itself_is_not_there_for_tensors() {
    let graph = gpt(1, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let memory = |bytes: u64| {
        let cluster = under(1, |stack| stack.context_bytes = bytes);
        let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        simulation.memory_fits(&program, &cluster).expect("a device")[0].memory_bytes
    };
    assert_eq!(memory(0) - memory(3_000_000_000), 3_000_000_000);
    assert_eq!(memory(u64::MAX), 0);
}

#[test]
fn attention_is_fused_where_the_plan_says_so_and_the_software_and_the_device_have_kernels() {
    let unfused = gpt(1, false);
    let graph = unfused.with_fused_attention();
    let plan = uniform(1, 1, 1, 1).plan(&graph, "gpt", "cluster");
    let plan = Plan { attention: AttentionKind::Fused, ..plan };
    let program = lower(&graph, &plan, 1).expect("it fits");
    let separate = under(1, |stack| stack.attention = Attention::Separate);
    let mut without = h100(1).groups().to_vec();
    without[0].profile.device.fused_attention = None;
    let without = Cluster::new(without).expect("a cluster");
    let [separate, without, fused] =
        [&separate, &without, &h100(1)].map(|cluster| step(&program, cluster, &graph));
    assert_eq!(separate, without);
    assert_ne!(separate, fused);
    // Operators that are not fused take the same everywhere.
    let program = lowered(&unfused, &uniform(1, 1, 1, 1));
    let separate = under(1, |stack| stack.attention = Attention::Separate);
    let [separate, fused] = [&separate, &h100(1)].map(|cluster| step(&program, cluster, &unfused));
    assert_eq!(separate, fused);
}

#[test]
fn products_take_as_much_longer_as_the_stack_says() {
    let graph = gpt(1, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let class = program.classes().next().expect("a class").0;
    let contracts = instructions(&program).filter(|it| match &it.action {
        Action::Kernel { op, .. } => matches!(graph.op(*op).kind, OpKind::Contract { .. }),
        _ => false,
    });
    let slower = under(1, |stack| stack.product_time = 1.5);
    let bare = h100(1);
    let [slower, bare] = [&slower, &bare].map(|it| CostModel::new(&graph, it, &program));
    let mut count = 0;
    for contract in contracts {
        let seconds = |costs: &CostModel<'_>| costs.local_seconds(class, 0, contract).unwrap();
        assert_eq!(seconds(&slower), 1.5 * seconds(&bare));
        count += 1;
    }
    assert!(count > 10, "{count}");
}

#[test]
fn the_estimate_knows_the_host() {
    let graph = gpt(3, false);
    let plan = uniform(1, 1, 1, 2);
    let program = lowered(&graph, &plan);
    let cluster = under(1, |stack| stack.host.kernel_seconds = 1e-4);
    let bucket_bytes = plan.sync.bucket_bytes;
    let settings = Settings { optimizer: plan.optimizer, bucket_bytes, ..MIXED };
    let mut estimator = Estimator::new(&graph, &cluster, settings).expect("a cluster");
    let candidate =
        Candidate { recompute: plan.recompute, schedule: plan.schedule, ..pipeline(1, 1, 2) };
    let estimate = estimator.estimate(&candidate).expect("it runs").expect("it divides");
    let simulated = step(&program, &cluster, &graph).seconds();
    let ratio = estimate.step_seconds / simulated;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// A pipeline that fills a node sends nothing out of it.
#[test]
fn the_estimate_has_what_hosts_do_between_nodes_where_a_pipeline_has_several() {
    let graph = gpt(2, false);
    let candidate = pipeline(2, 4, 2);
    let optimizer = Optimizer::sgd(0.9);
    let settings = Settings { optimizer, norm: false, bucket_bytes: 1 << 20, ..MIXED };
    let step = |nodes: u32, seconds: f64| {
        let mut stack = Stack::default();
        stack.host.between_nodes = BetweenNodes { seconds, exponent: 1.0 };
        let text = format!("h100-80g:{nodes}x{}", 8 / nodes);
        let cluster = Cluster::parse(&text).map(|it| it.under(stack)).expect("a preset");
        let mut estimator = Estimator::new(&graph, &cluster, settings.clone()).expect("a cluster");
        estimator.estimate(&candidate).expect("it runs").expect("it divides").step_seconds
    };
    assert_eq!(step(1, 1e-2), step(1, 0.0));
    // At least a forward and a backward pass of both micro-batches, each with a collective of four.
    assert!(step(2, 1e-2) > step(2, 0.0) + 4.0 * 4e-2);
}

#[test]
fn a_run_that_is_written_down_and_repeated_launches_as_it_did() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 4));
    let cluster = under(2, |stack| {
        stack.host.kernel_seconds = 20e-6;
        stack.host.communication_seconds = 30e-6;
        let kernels = Kernels { workspace: 1e6, ..Kernels::default() };
        stack.operators.insert("cross-entropy.forward".into(), kernels);
    });
    let mut recorder = Recorder::new(Modelled::new(&graph, &cluster, &program).expect("costs"));
    let options = Options { steps: 2, folded: false };
    let first = run(&program, &cluster, options, &mut recorder).expect("it runs");
    let (_, recording) = recorder.finish();
    let again = run(&program, &cluster, options, &mut Recorded::new(&recording)).expect("it runs");
    assert_eq!(again.timeline.tracks, first.timeline.tracks);
    assert!(first.step_time() > step(&program, &h100(2), &graph));
}

#[test]
fn a_pass_keeps_the_device_while_that_waits_for_its_host() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 3));
    let slow = under(1, |stack| stack.host.kernel_seconds = 1e-3);
    let options = Options { steps: 1, folded: true };
    let found = simulate(&graph, &slow, &program, options).expect("it runs");
    let drawn = &found.timeline.tracks[0].intervals;
    // Three passes forward, three backward, and the end of the step, instead of every kernel.
    assert!(drawn.len() <= 10, "{drawn:?}");
    let busy = found.timeline.tracks[0].busy().seconds();
    assert!(busy > 0.9 * found.step_time().seconds(), "{busy}");
}

/// A host that does not wait for steps launches the second while the device runs the first, which waits longer.
#[test]
fn a_device_is_busy_for_no_longer_than_a_step() {
    let spec = ModelSpec::parse("llama:layers=4,hidden=512,heads=8,ffn=1408,seq=512,vocab=51200");
    let graph = spec.and_then(|spec| spec.graph()).expect("a model");
    let program = lowered(&graph, &uniform(1, 8, 1, 8));
    let cluster = h100(8).under(Stack::parse("megatron").expect("a preset"));
    let found = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
    let summary = found.summary();
    for rank in &summary.ranks {
        assert!(rank.busy_seconds <= summary.step_seconds, "{summary:?}");
    }
    assert!((0.0..1.0).contains(&summary.bubble_fraction), "{summary:?}");
}
