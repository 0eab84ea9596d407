//! Replicas of stages that take micro-batches in turn (1F1B-RR), against the reference.

use shardloom_cluster::Cluster;
use shardloom_plan::{Mesh, Recompute, Updates};
use shardloom_train::RunClock;

use super::comparison::{Case, TOLERANCE, adamw, apart, models, sgd, with_statistics};
use super::formulas::{Rule, Stage, Versions};
use crate::support::graph;

const STEPS: u32 = 12;

/// The rules with which stages update after every round.
const ROUNDS: [Rule; 2] = [Rule::Stash, Rule::VerticalSync];

/// Micro-batches after which all stages are at the first replica again.
fn turns(replicas: &[u64]) -> usize {
    let common = |number: &usize| replicas.iter().all(|it| number.is_multiple_of(*it as usize));
    (1..).find(common).expect("a product is a multiple")
}

fn case(replicas: &[u64], rule: Rule, updates: Updates, microbatches: usize) -> Case {
    Case {
        replicas: replicas.to_vec(),
        updates,
        rows: vec![STEPS],
        ..Case::new(rule, replicas.len(), microbatches)
    }
}

/// Two and three stages of which some have several replicas.
fn configurations() -> [&'static [u64]; 7] {
    [&[2, 1], &[1, 2], &[2, 2], &[3, 2], &[1, 2, 1], &[2, 1, 2], &[1, 3]]
}

#[test]
fn stages_that_update_after_every_round_train_by_the_formula() {
    for graph in models() {
        for replicas in configurations() {
            for rule in ROUNDS {
                for times in [1, 2] {
                    let microbatches = times * turns(replicas);
                    let case = case(replicas, rule, Updates::Round, microbatches);
                    // Rounding adds up over updates.
                    let rows = vec![STEPS / times as u32];
                    Case { rows, ..case }.check(&graph, RunClock::Wall);
                }
            }
        }
    }
}

#[test]
fn stages_that_update_after_every_step_train_by_the_formula() {
    for graph in models() {
        for replicas in configurations() {
            let least = turns(replicas);
            for (rule, microbatches) in
                [(Rule::Stash, least), (Rule::VerticalSync, 2 * least), (Rule::DoubleBuffer, 12)]
            {
                // Pipelines of three stages are full long before.
                let rows = vec![8];
                let case = Case { rows, ..case(replicas, rule, Updates::Step, microbatches) };
                case.check(&graph, RunClock::Wall);
            }
        }
    }
}

#[test]
fn a_chain_may_update_after_every_micro_batch() {
    for graph in models() {
        for rule in ROUNDS {
            case(&[1, 1, 1], rule, Updates::Round, 4).check(&graph, RunClock::Wall);
        }
    }
}

#[test]
fn adam_counts_the_updates_of_each_stage() {
    for graph in models() {
        for replicas in [&[2, 1][..], &[1, 2]] {
            let optimizer = adamw();
            let case = Case { optimizer, ..case(replicas, Rule::Stash, Updates::Round, 4) };
            case.check(&graph, RunClock::Wall);
        }
    }
}

/// A stage's momentum and learning rate are scaled to what its own updates have.
#[test]
fn stages_that_update_after_unlike_rounds_scale_unlike_momenta() {
    for graph in models() {
        for replicas in [&[2, 1][..], &[1, 3], &[1, 2, 1]] {
            let plain = case(replicas, Rule::Stash, Updates::Round, turns(replicas));
            Case { reference_batch: Some(8), ..plain }.check(&graph, RunClock::Wall);
        }
    }
}

/// The second update of a step has its own memory for what it needs while it runs.
#[test]
fn several_updates_a_step_with_sums_over_whole_parameters_train_by_the_formula() {
    for graph in models() {
        for optimizer in with_statistics() {
            for (replicas, microbatches) in [(&[1, 1, 1][..], 4), (&[2, 1], 4), (&[1, 2], 4)] {
                let updates = Updates::Round;
                let plain = case(replicas, Rule::Stash, updates, microbatches);
                let case = Case { optimizer, rows: vec![3, 5], ..plain };
                let virtual_clock =
                    RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
                for clock in [RunClock::Wall, virtual_clock] {
                    case.check(&graph, clock);
                }
            }
        }
    }
}

/// Stages with several holders add up shares of their gradients in each update.
#[test]
fn several_updates_a_step_of_sharded_state_train_by_the_formula() {
    let mesh = Mesh::of(2, 1, 1);
    for graph in models() {
        for zero in 1..=3 {
            for optimizer in [sgd(), with_statistics()[0]] {
                let plain = case(&[2, 1], Rule::Stash, Updates::Round, 4);
                let case = Case { mesh, zero, optimizer, rows: vec![3, 5], ..plain };
                case.check(&graph, RunClock::Wall);
            }
        }
    }
}

#[test]
fn replicas_may_be_meshes_and_shards_and_compute_again() {
    for graph in models() {
        for updates in [Updates::Step, Updates::Round] {
            let mesh = |dp, tp| Mesh::of(dp, 1, tp);
            let whole = case(&[2, 1], Rule::Stash, updates, 2);
            let all = [
                Case { mesh: mesh(1, 2), ..whole.clone() },
                Case { mesh: mesh(2, 1), zero: 1, ..whole.clone() },
                Case { mesh: mesh(2, 1), zero: 2, ..whole.clone() },
                Case { mesh: mesh(2, 1), zero: 3, ..whole.clone() },
                Case { recompute: Recompute::Full, ..whole.clone() },
            ];
            for case in all {
                case.check(&graph, RunClock::Wall);
            }
        }
    }
}

#[test]
fn a_pipeline_that_is_drained_and_filled_again_begins_with_the_newest_weights() {
    let graph = &models()[0];
    for replicas in [&[2, 1][..], &[1, 2, 1]] {
        for rule in ROUNDS {
            let rows = vec![5, 1, 6];
            let case = case(replicas, rule, Updates::Round, turns(replicas));
            Case { rows, ..case }.check(graph, RunClock::Wall);
        }
    }
}

#[test]
fn many_replicas_under_the_virtual_clock_train_by_the_formula() {
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    for replicas in [&[7, 1][..], &[1, 7], &[4, 3, 1]] {
        let cluster = Cluster::parse("a100-40g:8").expect("a preset");
        let case = case(replicas, Rule::Stash, Updates::Round, turns(replicas));
        Case { rows: vec![4], ..case }.check(&graph, RunClock::Virtual(cluster));
    }
}

/// Without this the comparison could not tell one from another.
#[test]
fn replicas_and_rounds_make_a_difference_to_the_loss() {
    let losses = |replicas: &[u64], rule, updates| {
        let [_, reference] = case(replicas, rule, updates, 2).train(&models()[0], RunClock::Wall);
        reference.losses
    };
    let runs = [
        losses(&[1, 1], Rule::Stash, Updates::Step),
        losses(&[1, 1], Rule::Stash, Updates::Round),
        losses(&[2, 1], Rule::Stash, Updates::Round),
        losses(&[1, 2], Rule::Stash, Updates::Round),
        losses(&[1, 2], Rule::VerticalSync, Updates::Round),
    ];
    for (index, run) in runs.iter().enumerate() {
        for (other, others) in runs[..index].iter().enumerate() {
            let apart = apart(run, others);
            assert!(apart > 10.0 * TOLERANCE, "{index} and {other} are {apart:e} apart");
        }
    }
}

/// The versions of a stage's micro-batches, turn by turn: all replicas run a forward pass, then from turn
/// `warm_up` on the backward pass of `warm_up` turns ago, and then update their weights.
fn turn_by_turn(replicas: u64, warm_up: u64, microbatches: u64) -> Vec<Versions> {
    let (mut updates, mut of_turns) = (0, vec![]);
    for turn in 0..=microbatches / replicas {
        of_turns.push(updates);
        updates += u64::from(turn >= warm_up);
    }
    let version = |microbatch: u64| of_turns[(microbatch / replicas) as usize];
    let both = |version| Versions { forward: version, backward: version };
    (0..microbatches).map(version).map(both).collect()
}

#[test]
fn versions_are_those_of_replicas_that_work_turn_by_turn() {
    for (replicas, warm_ups) in [
        (vec![2, 1], vec![1, 0]),
        (vec![1, 2], vec![2, 0]),
        (vec![7, 1], vec![1, 0]),
        (vec![1, 2, 1], vec![4, 1, 0]),
        (vec![3, 3, 1], vec![2, 1, 0]),
        (vec![2, 3, 2], vec![3, 1, 0]),
    ] {
        for (index, &warm_up) in warm_ups.iter().enumerate() {
            let stage = Stage { index, replicas: &replicas, microbatches: &replicas };
            assert_eq!(stage.ahead(), warm_up * replicas[index], "{stage:?}");
            let versions: Vec<Versions> =
                (0..60).map(|it| Rule::Stash.versions(stage, it, 0)).collect();
            assert_eq!(versions, turn_by_turn(replicas[index], warm_up, 60), "{stage:?}");
        }
    }
}
