//! Servers on the workers' devices, besides those on devices of their own: how much each has, and what devices send.

use shardloom_plan::{Mesh, Ranges, Servers, Share, Staleness, Summation, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{Action, ClassId, Instruction, ProgramError, lower};

use crate::summing::{elements, graph, lowered, summation, uniform};

/// Servers on machines of their own sum M_c each and those on workers' devices M_g, which workers do not sum themselves:
/// a device sends what its worker and its server do to others.
#[test]
fn devices_with_a_worker_and_a_server_send_what_the_closed_form_says() {
    let graph = graph("mlp:inputs=32,hidden=32,layers=4,classes=32");
    for (workers, servers) in [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 3), (8, 3)] {
        for share in [Share::Balanced, Share::Part(0.5)] {
            let of = Summation { colocated: true, ..summation(servers, Ranges::Equal, share) };
            let plan = uniform(workers, of).plan(&graph, "model", "local");
            let program = lowered(&graph, &plan);
            assert_eq!(verify(&program), Ok(()));
            let devices: Vec<u32> = (0..workers + servers).chain(0..workers).collect();
            assert_eq!(program.devices(), devices);
            assert_eq!(plan.device_count() as u32, workers + servers);
            let collectives = program.classes().flat_map(|(_, class)| class.instructions());
            let is_collective = |it: &Instruction| matches!(it.action, Action::Collective { .. });
            assert!(!collectives.into_iter().any(|(_, _, it)| is_collective(it)));
            let whole = elements(&program.classes[0]) as f64;
            let (n, k) = (f64::from(workers), f64::from(servers));
            let part = if servers == 0 { 0.0 } else { share.part(workers as usize, servers) };
            let by_server = if servers == 0 { 0.0 } else { part * whole / k };
            let by_worker = (1.0 - part) * whole / n;
            let pieces = 2.0 * n * program.classes[0].buckets.len() as f64;
            for device in 0..workers + servers {
                let routes = program.routes.iter().filter(|route| {
                    let [from, to] =
                        [route.from, route.to].map(|it| program.class(it).devices[0].0);
                    from == device && to != device
                });
                let bytes: u64 = routes
                    .flat_map(|route| route.messages.iter().map(|it| route.message_bytes(it)))
                    .sum();
                let expected = match device < workers {
                    true => k * by_server + 2.0 * (n - 1.0) * by_worker,
                    false => n * by_server,
                };
                let apart = (bytes as f64 / 4.0 - expected).abs();
                assert!(apart <= pieces, "{workers}, {servers}, {share}, {device}: {bytes}");
            }
        }
    }
}

/// Weights are dealt as sums are, but for a piece: so much to those on devices of their own, as evenly as these are
/// dealt, and the rest to the others.
#[test]
fn servers_that_hold_weights_have_the_published_split() {
    const PIECE: usize = 16;
    let graph = graph("mlp:inputs=32,hidden=32,layers=4,classes=32");
    for (workers, own) in [(2, 0), (3, 1), (4, 2), (6, 3)] {
        let servers = Servers { colocated: true, ..Servers::of(own, Staleness::Within(1)) };
        let uniform = Uniform {
            mesh: Mesh::of(workers, 1, 1),
            global_batch: 2 * workers as usize,
            microbatches: 2,
            sync: Sync { servers: Some(servers), bucket_bytes: 4 * PIECE, ..Sync::default() },
            ..Uniform::default()
        };
        let program = lowered(&graph, &uniform.plan(&graph, "model", "local"));
        assert_eq!(verify(&program), Ok(()));
        let worker = &program.classes[0];
        let held = |server: u32| -> usize {
            let ranges = worker.buckets.iter().flat_map(|bucket| &bucket.served);
            ranges.filter(|it| it.server == ClassId(server)).map(|it| it.range.len()).sum()
        };
        let all: Vec<usize> = (workers..2 * workers + own).map(held).collect();
        let (of_own, of_workers) = all.split_at(own as usize);
        let whole = elements(worker);
        assert_eq!(all.iter().sum::<usize>(), whole);
        let part = if own == 0 { 0.0 } else { Share::Balanced.part(workers as usize, own) };
        let own_elements = of_own.iter().sum::<usize>() as f64;
        assert!((own_elements - part * whole as f64).abs() <= PIECE as f64, "{workers}, {own}");
        for of_kind in [of_own, of_workers] {
            let mean = of_kind.iter().sum::<usize>() as f64 / of_kind.len().max(1) as f64;
            let most = 9.0 / 8.0 * mean + PIECE as f64;
            assert!(of_kind.iter().all(|&it| it > 0 && it as f64 <= most), "{of_kind:?}");
        }
    }
}

/// One that sums nothing is there all the same, as each worker's device has one; of those that hold weights each has some.
#[test]
fn a_model_of_few_pieces_leaves_servers_that_sum_without_any_and_others_are_refused() {
    let graph = graph("mlp:inputs=2,hidden=2,layers=1,classes=2");
    let summing = Summation { colocated: true, ..summation(0, Ranges::Hashed, Share::default()) };
    let few = Uniform {
        sync: Sync { summation: Some(summing), ..Sync::default() },
        ..uniform(4, summing)
    };
    let program = lowered(&graph, &few.plan(&graph, "model", "local"));
    assert_eq!(verify(&program), Ok(()));
    let summed = |server: u32| {
        let mut pieces = program.classes[0].buckets.iter().flat_map(|it| &it.summed);
        pieces.any(|it| it.server == ClassId(server))
    };
    assert_eq!(program.ranks(), 8);
    assert!((4..8).any(summed) && !(4..8).all(summed));
    let servers = Servers { colocated: true, ..Servers::of(0, Staleness::SYNCHRONOUS) };
    let held = Uniform { sync: Sync { servers: Some(servers), ..Sync::default() }, ..few };
    let plan = held.plan(&graph, "model", "local");
    let refused = lower(&graph, &plan, plan.device_count());
    assert!(
        matches!(refused, Err(ProgramError::TooManyServers { servers: 4, .. })),
        "{:?}",
        refused.err()
    );
}
