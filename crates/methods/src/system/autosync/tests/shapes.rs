//! How fast workers and servers reach each other, and what cost models see of that.

use shardloom_cluster::DeviceId;

use super::*;

/// Bytes a second that a message between two devices has by itself.
fn rate(cluster: &Cluster, from: u32, to: u32) -> f64 {
    let path = cluster.link(DeviceId(from), DeviceId(to)).expect("devices").expect("two devices");
    let own = path.link.reachable_bytes_per_second();
    path.shared_bytes_per_second.map_or(own, |shared| own.min(shared))
}

/// Workers come first, and are a ring; a server talks to all of them.
#[test]
fn rings_and_servers_are_as_fast_as_their_slowest_link() {
    let cluster = cluster();
    for (workers, servers) in [(1, 0), (2, 0), (8, 0), (6, 1), (4, 4), (5, 2), (2, 6), (1, 1)] {
        let shape = Shape::of(&cluster, (workers, servers), (3, 0.5)).expect("devices");
        let hops = (1..workers).map(|worker| rate(&cluster, worker - 1, worker));
        assert_eq!(shape.ring_bandwidth, hops.reduce(f64::min), "{workers} workers");
        let slowest = |server: u32| {
            let to_all = (0..workers).map(|worker| rate(&cluster, worker, server));
            to_all.fold(f64::INFINITY, f64::min)
        };
        let expected: Vec<f64> = (workers..workers + servers).map(slowest).collect();
        assert_eq!(shape.server_bandwidths, expected, "{workers} workers, {servers} servers");
        assert_eq!((shape.workers, shape.microbatches, shape.compute_seconds), (workers, 3, 0.5));
    }
}

/// The last four numbers of a shard: its part of all elements, its bandwidth, and the workers and the time to compute
/// of its shape, each as a part of the most that there are.
#[test]
fn cost_models_see_parts_of_the_most_that_there_are() {
    with(|_, problem| {
        let most = |of: &dyn Fn(&Shape) -> f64| problem.shapes.iter().map(of).fold(0.0, f64::max);
        let workers = most(&|shape| f64::from(shape.workers));
        let seconds = most(&|shape| shape.compute_seconds);
        let fastest = |shape: &Shape| {
            let all = shape.server_bandwidths.iter().copied().chain(shape.ring_bandwidth);
            all.filter(|it| it.is_finite()).fold(0.0, f64::max)
        };
        let largest = most(&fastest);
        let whole: usize = problem.variables.iter().map(|it| it.elements()).sum();
        let sampler = Sampler::new(problem, true);
        let random = &mut Random::new(21);
        for _ in 0..50 {
            let strategy = sampler.sample(random);
            let shape = &problem.shapes[strategy.shape];
            let found = features(problem, &strategy);
            for ((variable, synchroniser), found) in
                problem.variables.iter().zip(&strategy.synchronisers).zip(&found)
            {
                let shards = synchroniser.shards(variable);
                assert_eq!(found.len(), shards.len());
                for (shard, found) in shards.iter().zip(found) {
                    let bandwidth = match shard.by {
                        By::Server(server) => shape.server_bandwidths[server as usize],
                        By::Group(..) => shape.ring_bandwidth.unwrap_or(largest),
                    };
                    let expected = [
                        shard.elements as f64 / whole as f64,
                        (bandwidth / largest).min(1.0),
                        f64::from(shape.workers) / workers,
                        shape.compute_seconds / seconds,
                    ];
                    let numbers: Vec<f64> = found.iter().map(|&(_, number)| number).collect();
                    assert_eq!(numbers[numbers.len() - 4..], expected, "{shard:?}");
                    // Who synchronises it, and by what.
                    assert!(numbers[..numbers.len() - 4].iter().all(|&number| number == 1.0));
                    let places: BTreeSet<usize> = found.iter().map(|&(place, _)| place).collect();
                    assert_eq!(places.len(), found.len(), "each place once");
                }
            }
        }
    });
}
