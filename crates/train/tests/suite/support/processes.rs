//! Ranks in processes that share no memory.

use std::sync::Arc;
use std::thread;

use shardloom_data::Source;
use shardloom_fabric::{MessagePassing, Queues};
use shardloom_train::{Blueprint, Processes, Trainer};

/// Has `lead` lead the ranks of a blueprint, each of which is a process, with the data that `data` makes; beside an
/// odd number of ranks there is a process without any. Processes lower a plan each by itself: those that follow apart
/// from the one that leads.
pub fn led<S: Source + Send + 'static, R: Send>(
    blueprint: &(dyn Fn() -> Blueprint + Sync),
    data: &(dyn Fn() -> S + Sync),
    lead: impl FnOnce(Blueprint) -> R + Send,
) -> R {
    let leader = blueprint();
    let ranks = leader.program().ranks() as u32;
    thread::scope(|scope| {
        let mut transports = Queues::between(ranks.next_multiple_of(2)).into_iter();
        let join = |transport| {
            let engine = MessagePassing::over(Box::new(transport)).expect("a thread");
            Arc::new(Processes::join(Arc::new(engine)).unwrap_or_else(|error| panic!("{error}")))
        };
        let first = transports.next().expect("a rank");
        let followers = transports.map(|transport| {
            scope.spawn(move || {
                let blueprint = blueprint().over(join(transport));
                let followed = Trainer::follow(blueprint, Box::new(data()));
                followed.unwrap_or_else(|error| panic!("{error}"));
            })
        });
        let followers: Vec<_> = followers.collect();
        let outcome = lead(leader.over(join(first)));
        for follower in followers {
            assert!(follower.join().is_ok(), "a process that follows fails");
        }
        outcome
    })
}
