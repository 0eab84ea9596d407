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

/// A network without tables, most of whose memory is for what 64 samples keep.
const MLP: &str = "mlp:inputs=8,hidden=16,layers=2,classes=4";

/// Workers, servers and micro-batches.
type Words = (u32, u32, usize);

/// The words of each shape on devices that are alike, of whose memory plans may take a share,
/// and the bytes that the first of them takes.
fn shapes_on(devices: u32, batch: usize, memory_share: f64) -> Option<(Vec<Words>, u64)> {
    let model = ModelSpec::parse(MLP).and_then(|spec| spec.graph()).expect("a model");
    let cluster = Cluster::parse(&format!("a100-40g:1x{devices}")).expect("a preset");
    let request = Request { memory_share, ..Request::new(MLP, "cluster", batch) };
    let graph = request.graph_of(&model, &cluster).expect("a graph");
    let mut task = Task::new("autosync", &graph, &cluster, &request);
    let found = match problem(&mut task) {
        Ok(found) => found,
        Err(MethodError::Impossible { key: "devices", .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut peak = None;
    for shape in &found.shapes {
        // It fits, and with fewer micro-batches it would not.
        let fewer = divisors(batch as u32 / shape.workers).map(|it| it as usize);
        for microbatches in fewer.filter(|&it| it <= shape.microbatches) {
            let mut other = found.clone();
            other.shapes = vec![Shape { microbatches, ..shape.clone() }];
            let plan = words::plan(&task, &other, &alike(&other, 0));
            let judgement = judge(&graph, &cluster, &plan).expect("a plan");
            assert_eq!(
                judgement.fits(memory_share),
                microbatches == shape.microbatches,
                "{shape:?}"
            );
            peak = peak.or(judgement.fullest().map(|it| it.peak_bytes));
        }
        // Each micro-batch takes as long as the passes of all blocks with its samples.
        let samples = batch / shape.workers as usize / shape.microbatches;
        let layers = task.layers(samples).expect("a profile");
        let pass: f64 = layers.iter().map(|it| it.forward_seconds + it.backward_seconds).sum();
        let all = pass * shape.microbatches as f64;
        assert!((shape.compute_seconds - all).abs() < 1e-9 * all, "{shape:?}");
    }
    let words = |it: &Shape| (it.workers, it.server_bandwidths.len() as u32, it.microbatches);
    Some((found.shapes.iter().map(words).collect(), peak?))
}

/// No server, one, two and four, of which workers are as many at least, and as many as divide the batch.
#[test]
fn servers_are_at_most_half_of_the_devices_and_workers_divide_the_batch() {
    for (devices, batch) in (1..=8).flat_map(|devices| [5, 12].map(|batch| (devices, batch))) {
        let mut expected = vec![];
        for servers in [0, 1, 2, 4].into_iter().filter(|&servers| 2 * servers <= devices) {
            let left = devices - servers;
            let workers = (1..=left).rev().find(|it| batch % it == 0).expect("one divides all");
            expected.push((workers, servers, 1));
        }
        let (found, _) = shapes_on(devices, batch as usize, 0.95).expect("shapes");
        assert_eq!(found, expected, "{devices} devices, {batch} samples");
    }
}

#[test]
fn workers_take_the_fewest_micro_batches_that_fit() {
    let (_, peak) = shapes_on(4, 64, 0.95).expect("shapes");
    let (mut more, mut refused) = (BTreeSet::new(), 0);
    for part in 1..20 {
        let memory_share = f64::from(part) / 20.0 * peak as f64 / 40e9;
        match shapes_on(4, 64, memory_share) {
            Some((found, _)) => more.extend(found.iter().map(|it| it.2)),
            None => refused += 1,
        }
    }
    assert!(more.len() > 2 && refused > 0, "{more:?} micro-batches, and {refused} refused");
}

/// Sixteen servers, twenty groups, what is compressed and how, servers or workers, and four quantities.
#[test]
fn everything_that_cost_models_know_of_a_shard_has_a_place_of_its_own() {
    with(|_, problem| {
        let mut problem = problem.clone();
        problem.variables.truncate(1);
        let shape = problem.shapes[0].clone();
        problem.shapes = vec![Shape { server_bandwidths: vec![1e9; 16], ..shape }];
        let places = |by: Synchroniser| -> BTreeSet<usize> {
            let found = features(&problem, &Strategy { shape: 0, synchronisers: vec![by] });
            found[0][0].iter().map(|&(place, _)| place).collect()
        };
        let mut all: Vec<BTreeSet<usize>> =
            (0..16).map(|server| places(Synchroniser::Servers(vec![server]))).collect();
        let of_servers = 2 + 4;
        assert!(all.iter().all(|it| it.len() == of_servers));
        for (group, compression) in
            (0..20).flat_map(|group| super::super::sampler::COMPRESSIONS.map(|it| (group, it)))
        {
            let found = places(Synchroniser::AllReduce { group, compression });
            assert_eq!(found.len(), 3 + 4);
            all.push(found);
        }
        // No two are alike, and together they have all places.
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 16 + 20 * 3);
        let places: BTreeSet<usize> = all.into_iter().flatten().collect();
        assert_eq!(places.len(), 16 + 20 + 3 + 2 + 4);
    });
}
