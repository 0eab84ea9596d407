//! Ranks in processes that share no memory.

use super::interruption::{digest, saved, train};
use super::words::combinations;
use crate::support::processes::led;

/// Every so many combinations are tried: those of interrupted runs are all.
const OF: usize = 4;

const ROWS: [u32; 2] = [2, 1];

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
        led(&|| of.blueprint(), &|| of.data(), |blueprint| {
            let mut processes = of.start_of(blueprint);
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
