//! Ranks in processes that share no memory.

use std::sync::Arc;
use std::thread;

use shardloom_fabric::{MessagePassing, Queues};
use shardloom_train::{Blueprint, Processes, Trainer};

use super::interruption::{digest, saved, train};
use super::words::{Combination, combinations};

/// Every so many combinations are tried: those of interrupted runs are all.
const OF: usize = 4;

const ROWS: [u32; 2] = [2, 1];

/// Has `lead` lead the ranks of a combination, each of which is a process; beside an odd number of ranks there is
/// one without any.
fn led<R: Send>(
    of: &Combination<'_>,
    blueprint: &Blueprint,
    lead: impl FnOnce(Trainer) -> R + Send,
) -> R {
    let ranks = blueprint.program().ranks() as u32;
    // Processes lower a plan each by itself: those that follow apart from the one that leads.
    let followed = of.blueprint();
    thread::scope(|scope| {
        let mut transports = Queues::between(ranks.next_multiple_of(2)).into_iter();
        let join = |transport| {
            let engine = MessagePassing::over(Box::new(transport)).expect("a thread");
            Arc::new(Processes::join(Arc::new(engine)).unwrap_or_else(|error| panic!("{error}")))
        };
        let first = transports.next().expect("a rank");
        let followers = transports.map(|transport| {
            let blueprint = followed.clone();
            scope.spawn(move || {
                let (blueprint, data) = (blueprint.over(join(transport)), of.data());
                let followed = Trainer::follow(blueprint, Box::new(data));
                followed.unwrap_or_else(|error| panic!("{error} in {of}"));
            })
        });
        let followers: Vec<_> = followers.collect();
        let outcome = lead(of.start_of(blueprint.clone().over(join(first))));
        for follower in followers {
            assert!(follower.join().is_ok(), "of {of}");
        }
        outcome
    })
}

#[test]
fn ranks_in_processes_come_to_what_threads_come_to_and_resume_what_they_saved() {
    // Besides, one whose replicas have weights of their own.
    let apart = combinations().iter().position(|it| it.own_replicas() > 1);
    // And one whose tables lie on servers.
    let tables = combinations().iter().position(|it| {
        let on_servers = it.plan.parameters.iter().any(|group| group.sparse == Some(true));
        on_servers && it.plan.sync.summation.is_some()
    });
    assert!(tables.is_some());
    let several = combinations().iter().enumerate();
    let several =
        several.filter(|&(index, _)| index % OF == 0 || [apart, tables].contains(&Some(index)));
    let several = several.map(|(_, it)| it).filter(|it| it.plan.device_count() > 1);
    let mut tried = 0;
    for of in several {
        tried += 1;
        let blueprint = of.blueprint();
        let start = || of.start_of(blueprint.clone());
        let mut threads = start();
        let before = train(&mut threads, ROWS[0], of);
        let (_folder, saved_by_threads) = saved(&mut threads, of);
        let after = train(&mut threads, ROWS[1], of);
        let (sent, last) = (threads.sent_bytes_per_rank().to_vec(), digest(&mut threads));
        led(of, &blueprint, |mut processes| {
            assert_eq!(train(&mut processes, ROWS[0], of), before, "in {of}");
            let (_folder, saved_by_processes) = saved(&mut processes, of);
            assert_eq!(train(&mut processes, ROWS[1], of), after, "in {of}");
            // How often replicas tell each other what is ready depends on time.
            if of.plan.sync.negotiation.is_none() {
                assert_eq!(processes.sent_bytes_per_rank(), sent, "in {of}");
            }
            assert_eq!(digest(&mut processes), last, "in {of}");
            // What the one saved the other goes on from.
            processes.resume(saved_by_threads).unwrap_or_else(|error| panic!("{error} in {of}"));
            assert_eq!(train(&mut processes, ROWS[1], of), after, "in {of}");
            let mut threads = start();
            threads.resume(saved_by_processes).unwrap_or_else(|error| panic!("{error} in {of}"));
            assert_eq!(train(&mut threads, ROWS[1], of), after, "in {of}");
        });
    }
    assert!(tried > 12, "{tried}");
}
