//! Training goes on without a server that is lost where others have replicas of its ranges, wherever in a row of steps
//! that is, and comes to the weights of a run without the loss, bit for bit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::support::two_nodes::{
    CLUSTER, assert_runs_as_predicted, data, gpt, started, train, weights,
};
use crate::support::watched::{Watched, Watcher};
use crate::support::{mesh, serial, settings};
use shardloom_checkpoint::{Meta, Store};
use shardloom_fabric::{Endpoint, Engine, FabricError, InProcess, Lent, Settings};
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, Servers, Staleness, Sync, Uniform};
use shardloom_program::{Program, Rank};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, Error, RunClock, Trainer};

/// The engine of one process, in which ranks panic with one of their messages, in the first run of ranks that it
/// connects; in the next others may.
struct Losing {
    /// The ranks, and how many messages each sends and receives before, in each run of ranks to come.
    losses: Mutex<VecDeque<Vec<(u32, u64)>>>,
}

impl<B: Lent> Engine<B> for Losing {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let losses = self.losses.lock().expect("the losses").pop_front().unwrap_or_default();
        let losing = |inner: Box<dyn Endpoint<B>>| -> Box<dyn Endpoint<B>> {
            let left = losses.iter().find(|loss| loss.0 == inner.rank()).map(|loss| loss.1);
            Box::new(Watched { inner, watcher: Left(left) })
        };
        Ok(InProcess.connect(ranks, settings)?.into_iter().map(losing).collect())
    }
}

/// How many messages a rank still sends and receives, if it is to be lost.
struct Left(Option<u64>);

impl<B: Lent> Watcher<B> for Left {
    fn message(&mut self) {
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(1).unwrap_or_else(|| panic!("lost by the test"));
        }
    }
}

const LAMB: Optimizer =
    Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 };

fn servers(count: u32, replicas: u32) -> Servers {
    Servers { replicas, ..Servers::of(count, Staleness::SYNCHRONOUS) }
}

/// So many workers of a micro-batch each.
fn served(graph: &Graph, workers: u32, servers: Servers, optimizer: Optimizer) -> Plan {
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let plain = Uniform { clip_norm: None, optimizer, microbatches: 1, ..serial() };
    Uniform { sync, mesh: mesh(workers, 1, 1), ..plain }.plan(graph, "model", CLUSTER)
}

/// Ranks of which these are lost, one after the other.
fn losing(graph: &Graph, plan: &Plan, losses: &[(u32, u64)]) -> Trainer {
    losing_at_once(graph, plan, losses.iter().map(|&loss| vec![loss]).collect())
}

/// Ranks of which these are lost, all of a list in the same run of ranks.
fn losing_at_once(graph: &Graph, plan: &Plan, losses: VecDeque<Vec<(u32, u64)>>) -> Trainer {
    let settings = settings(Curve::Constant { peak: 0.05 });
    let blueprint = Blueprint::new(graph.clone(), plan, plan.least_devices(), settings);
    let engine = Losing { losses: Mutex::new(losses) };
    let blueprint = blueprint.expect("a plan that fits").with_engine(Arc::new(engine));
    Trainer::start(blueprint, Box::new(data())).expect("threads")
}

/// Two rows of steps, and what they come to: losses, and weights after each.
fn trained(trainer: &mut Trainer) -> (Vec<f64>, [Vec<f32>; 2]) {
    let mut losses = train(trainer, 3);
    let first = weights(trainer);
    losses.extend(train(trainer, 2));
    (losses, [first, weights(trainer)])
}

/// Loses a server at every n-th of its messages in two rows of steps, until it has no more; how often that was.
fn assert_survived(workers: u32, servers: Servers, optimizer: Optimizer, every: usize) -> usize {
    let graph = gpt();
    let plan = served(&graph, workers, servers, optimizer);
    let expected = trained(&mut started(&graph, &plan, RunClock::Wall));
    let mut losses = 0;
    for server in 0..servers.count {
        for at in (u64::from(server)..).step_by(every) {
            let mut trainer = losing(&graph, &plan, &[(workers + server, at)]);
            assert_eq!(trained(&mut trainer), expected, "server {server} lost at message {at}");
            let [lost] = trainer.lost_servers() else { break };
            assert_eq!(lost.server, server);
            assert!(lost.reason.contains("lost by the test"), "{}", lost.reason);
            assert!(!lost.taken_over_by.is_empty() && !lost.taken_over_by.contains(&server));
            assert!(lost.step <= 5);
            assert_eq!(trainer.program().ranks() as u32, workers + servers.count - 1);
            losses += 1;
        }
    }
    losses
}

#[test]
fn replicas_change_nothing_of_what_is_trained() {
    let graph = gpt();
    for optimizer in [Optimizer::default(), Optimizer::sgd(0.9), LAMB] {
        for workers in [1, 2] {
            let run = |servers| {
                let plan = served(&graph, workers, servers, optimizer);
                trained(&mut started(&graph, &plan, RunClock::Wall))
            };
            let expected = run(servers(3, 0));
            assert!(expected.1[0] != expected.1[1], "it trains");
            for replicas in [1, 2] {
                assert_eq!(run(servers(3, replicas)), expected, "{replicas} of {workers} workers");
            }
        }
    }
}

#[test]
fn a_server_may_be_lost_at_any_of_its_messages() {
    let losses = assert_survived(2, servers(3, 1), Optimizer::default(), 3);
    assert!(losses > 60, "{losses}");
}

#[test]
fn a_server_of_one_worker_and_one_of_many_may_be_lost() {
    assert!(assert_survived(1, servers(2, 1), Optimizer::sgd(0.9), 5) > 5);
    assert!(assert_survived(4, servers(2, 1), Optimizer::default(), 23) > 5);
}

/// Of which a parameter is never cut, and whose update begins with sums.
#[test]
fn a_server_whose_optimizer_looks_at_whole_parameters_may_be_lost() {
    assert!(assert_survived(2, servers(3, 2), LAMB, 11) > 5);
}

#[test]
fn with_two_replicas_two_servers_may_be_lost_one_after_the_other() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(3, 2), Optimizer::default());
    let expected = trained(&mut started(&graph, &plan, RunClock::Wall));
    for (first, second) in [((3, 20), (3, 9)), ((4, 33), (2, 7)), ((2, 5), (3, 12))] {
        let mut trainer = losing(&graph, &plan, &[first, second]);
        assert_eq!(trained(&mut trainer), expected);
        let lost: Vec<u32> = trainer.lost_servers().iter().map(|it| it.server).collect();
        // Without the first the ranks of later ones are one lower.
        let next = if second.0 >= first.0 { second.0 + 1 } else { second.0 };
        assert_eq!(lost, [first.0 - 2, next - 2]);
        assert_eq!(trainer.program().ranks(), 3);
    }
}

/// What each server of a program owns, by its number: names of parameters and elements of these.
fn owned(graph: &Graph, program: &Program) -> BTreeMap<u32, BTreeSet<(String, usize)>> {
    let servers = program.classes().filter(|(_, class)| class.serves().is_some());
    let elements = servers.map(|(_, class)| {
        let own = class.params.iter().filter(|it| class.bucket(it.bucket).replica_of.is_none());
        let elements = own.flat_map(|param| {
            let name = &graph.value(param.value).name;
            param.part.clone().map(move |at| (name.clone(), at))
        });
        (class.replica.expect("servers have numbers"), elements.collect())
    });
    elements.collect()
}

/// They own elements of it afterwards, which nobody else does.
#[test]
fn of_servers_that_are_lost_at_once_it_is_said_of_each_who_owns_its_ranges_then() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(4, 2), Optimizer::default());
    let mut whole = started(&graph, &plan, RunClock::Wall);
    let before = owned(&graph, whole.program());
    let expected = trained(&mut whole);
    let mut unlike = 0;
    for (one, other) in (0..4).flat_map(|one| (one..4).map(move |other| (one, other))) {
        let losses = [one, other].map(|server| (2 + server, 0));
        let mut trainer = losing_at_once(&graph, &plan, VecDeque::from([losses.to_vec()]));
        assert_eq!(trained(&mut trainer), expected, "{one} and {other}");
        let after = owned(&graph, trainer.program());
        let lost = trainer.lost_servers();
        let numbers: Vec<u32> = lost.iter().map(|it| it.server).collect();
        assert_eq!(numbers, if one == other { vec![one] } else { vec![one, other] });
        for of in lost {
            let ranges = &before[&of.server];
            let has_some = |(_, owns): &(&u32, &BTreeSet<_>)| !owns.is_disjoint(ranges);
            let owners: Vec<u32> =
                after.iter().filter(has_some).map(|(&number, _)| number).collect();
            assert_eq!(of.taken_over_by, owners, "{} of {one} and {other}", of.server);
            let owned: usize = after.values().map(|it| it.intersection(ranges).count()).sum();
            assert_eq!(owned, ranges.len());
        }
        unlike += usize::from(lost[0].taken_over_by != lost[lost.len() - 1].taken_over_by);
    }
    assert!(unlike > 0, "they are always the same");
}

#[test]
fn after_a_loss_bytes_and_memory_are_those_of_the_plan_without_the_server() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(3, 1), Optimizer::default());
    let mut trainer = losing(&graph, &plan, &[(3, 0)]);
    train(&mut trainer, 4);
    let since = 4 - trainer.lost_servers()[0].step;
    let program = trainer.program();
    for rank in 0..program.ranks() {
        let (class, position) = program.locate(Rank(rank as u32));
        assert_eq!(
            trainer.sent_bytes_per_rank()[rank],
            since * program.sent_bytes(class, position)
        );
        let peak = program.class(class).memory_use(program, position).peak_bytes;
        assert_eq!(trainer.peak_bytes_per_rank()[rank], peak, "rank {rank}");
    }
    assert_eq!(trainer.system_allocations(), 0);
}

#[test]
fn who_was_lost_is_known_after_a_change_of_plan_too() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(3, 1), Optimizer::default());
    let mut trainer = losing(&graph, &plan, &[(3, 0)]);
    train(&mut trainer, 1);
    let lost = trainer.lost_servers().to_vec();
    assert_eq!(lost.iter().map(|it| it.server).collect::<Vec<_>>(), [1]);
    let other = served(&graph, 2, servers(2, 0), Optimizer::default());
    trainer.replan(&other, other.least_devices()).expect("the same model");
    assert_eq!(trainer.lost_servers(), lost);
}

#[test]
fn with_replicas_timelines_bytes_and_memory_are_as_predicted() {
    let graph = gpt();
    for (count, replicas) in [(2, 1), (3, 2)] {
        let plan = served(&graph, 4, servers(count, replicas), Optimizer::default());
        assert_runs_as_predicted(&graph, &plan, 4);
    }
}

#[test]
fn what_is_saved_after_a_loss_goes_on_under_the_plan_with_all_servers() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(3, 1), Optimizer::default());
    let mut whole = started(&graph, &plan, RunClock::Wall);
    train(&mut whole, 5);
    let mut trainer = losing(&graph, &plan, &[(3, 40)]);
    train(&mut trainer, 3);
    assert_eq!(trainer.lost_servers().len(), 1);
    let folder = tempfile::tempdir().expect("a folder");
    trainer.save(folder.path(), Meta::default(), None).expect("saved");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    let mut resumed = started(&graph, &plan, RunClock::Wall);
    resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
    train(&mut resumed, 2);
    assert_eq!(weights(&mut resumed), weights(&mut whole));
}

/// Those before the loss took as long as each other, and all together no longer than whoever waits for them waits.
#[test]
fn steps_before_a_loss_share_the_time_until_training_goes_on() {
    let graph = gpt();
    let plan = served(&graph, 2, servers(3, 1), Optimizer::default());
    let mut several = 0;
    for at in [30, 60, 90] {
        let mut trainer = losing(&graph, &plan, &[(3, at)]);
        let start = Instant::now();
        let row = trainer.train_steps(9).unwrap_or_else(|error| panic!("{error}"));
        let most = start.elapsed().as_secs_f64();
        assert_eq!(row.iter().map(|it| it.step).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
        let [lost] = trainer.lost_servers() else { continue };
        let (before, after) = row.split_at(lost.step as usize);
        for part in [before, after] {
            assert!(part.iter().all(|it| it.seconds > 0.0 && it.seconds == part[0].seconds));
        }
        let sum: f64 = row.iter().map(|it| it.seconds).sum();
        assert!(sum <= most, "{sum} s of {most} s, with {} steps before", lost.step);
        several += usize::from(before.len() > 1);
    }
    assert!(several > 0, "no loss is behind the second step");
}

#[test]
fn who_has_no_replica_ends_the_run_with_the_reason() {
    let graph = gpt();
    let without = served(&graph, 2, servers(2, 0), Optimizer::default());
    let with = served(&graph, 2, servers(2, 1), Optimizer::default());
    // A server without replicas, a worker, and the last server that is left.
    for (plan, losses) in
        [(&without, &[(2, 20)][..]), (&with, &[(0, 10)][..]), (&with, &[(2, 20), (2, 5)][..])]
    {
        let mut trainer = losing(&graph, plan, losses);
        let error = trainer.train_steps(5).expect_err("nobody has what is lost");
        let last = losses[losses.len() - 1].0;
        match error {
            Error::Rank { rank, ref reason } => {
                assert_eq!(rank, last);
                assert!(reason.contains("lost by the test"), "{reason}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(trainer.lost_servers().len(), losses.len() - 1);
    }
}
