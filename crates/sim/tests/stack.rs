//! What a software stack adds to the machines' own times.

mod scenario;

use scenario::{gpt, h100, lowered, uniform};
use shardloom_cluster::{Attention, Cluster, Kernels, Stack};
use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;
use shardloom_program::timeline::Picos;
use shardloom_program::{Action, Instruction, Program};
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};
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
    let launches = instructions(&program).map(|it| Picos::from_seconds(costs.launch_seconds(it)));
    let launched: u64 = launches.map(|it| it.0).sum();
    let last = instructions(&program).last().expect("a step ends with something");
    let last = costs.local_seconds(program.classes().next().expect("a class").0, 0, last);
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
        let kernels = Kernels { launched: 5.0, traffic: 3.0 };
        stack.operators.insert("layer-norm.forward".into(), kernels);
    });
    let bare = h100(1);
    let [costs, before] = [&cluster, &bare].map(|it| CostModel::new(&graph, it, &program));
    let launch = bare.groups()[0].profile.device.launch_seconds;
    let seconds = |costs: &CostModel<'_>, pass| {
        costs.local_seconds(class, 0, of(pass)).expect("a device") - launch
    };
    assert_eq!(costs.launch_seconds(of(Pass::Forward)), 5.0 * 1e-6);
    assert_eq!(costs.launch_seconds(of(Pass::Input)), 1e-6);
    let ratio = seconds(&costs, Pass::Forward) / seconds(&before, Pass::Forward);
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
    assert_eq!(seconds(&costs, Pass::Input), seconds(&before, Pass::Input));
}

#[test]
fn separate_attention_is_products_and_a_softmax_also_where_a_fused_kernel_exists() {
    let graph = gpt(1, false);
    let program = lowered(&graph, &uniform(1, 1, 1, 1));
    let separate = under(1, |stack| stack.attention = Attention::Separate);
    let mut without = h100(1).groups().to_vec();
    without[0].profile.device.fused_attention = None;
    let without = Cluster::new(without).expect("a cluster");
    let [separate, without, fused] =
        [&separate, &without, &h100(1)].map(|cluster| step(&program, cluster, &graph));
    assert_eq!(separate, without);
    assert_ne!(separate, fused);
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
    let settings = Settings {
        precision: plan.precision,
        optimizer: plan.optimizer,
        norm: true,
        algorithm: plan.sync.algorithm,
        bucket_bytes: plan.sync.bucket_bytes,
    };
    let mut estimator = Estimator::new(&graph, &cluster, settings).expect("a cluster");
    let candidate = Candidate {
        pp: 1,
        dp: 1,
        tp: 1,
        sequence_parallel: false,
        zero: 0,
        microbatch: 1,
        microbatches: 2,
        recompute: plan.recompute,
        schedule: plan.schedule,
        chunks: 1,
        cut: Cut::Even,
    };
    let estimate = estimator.estimate(&candidate).expect("it runs").expect("it divides");
    let simulated = step(&program, &cluster, &graph).seconds();
    let ratio = estimate.step_seconds / simulated;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_run_that_is_written_down_and_repeated_launches_as_it_did() {
    let graph = gpt(2, false);
    let program = lowered(&graph, &uniform(2, 1, 1, 4));
    let cluster = under(2, |stack| {
        stack.host.kernel_seconds = 20e-6;
        stack.host.communication_seconds = 30e-6;
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
