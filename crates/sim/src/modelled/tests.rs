use shardloom_plan::Axis;

use super::*;
use crate::node_patterns::tests::{graph, program};

impl Modelled<'_> {
    /// How long each group like `group` takes to sum a mebibyte, per position of `class`.
    fn seconds_of_groups(&mut self, class: ClassId, group: &Group) -> Vec<Picos> {
        let shapes = self.group_shapes(class, group).unwrap();
        let of_position: Vec<u32> = shapes.group_of.iter().map(|&it| shapes.of_group[it]).collect();
        let exchange = Exchange {
            kind: Kind::AllReduce,
            algorithm: Algorithm::Ring,
            elements: 1 << 18,
            element_bytes: 4,
            group: group.clone(),
        };
        of_position.into_iter().map(|shape| self.exchange_on(&exchange, shape).unwrap()).collect()
    }
}

/// What is found for one class, or pair of classes, and taken for others alike is what these have themselves.
#[test]
fn messages_and_groups_of_classes_alike_take_as_long_as_their_own() {
    let graph = graph();
    let ordered: Vec<u32> = (0..24).collect();
    let spread: Vec<u32> = (0..24).map(|it| it * 7 % 24).collect();
    let swapped: Vec<u32> = [4..12, 0..4, 12..24].into_iter().flatten().collect();
    for devices in [ordered, spread, swapped] {
        let program = program(&graph, &devices);
        for cluster in [
            "h100-80g:6x4",
            "h100-80g:3x8",
            "h100-80g:4x6",
            "h100-80g:2x5+a100-80g:2x8",
            "h100-80g:1x3+a100-80g:3x7",
        ] {
            let cluster = Cluster::parse(cluster).unwrap();
            let mut shared = Modelled::new(&graph, &cluster, &program).unwrap();
            for (id, route) in (0..).map(RouteId).zip(&program.routes) {
                let found = shared.route(id).unwrap();
                let own = shared.timed(route).unwrap();
                assert_eq!((&found.durations, found.slowest), (&own.durations, own.slowest));
            }
            for (class, axis) in (0..6).map(ClassId).flat_map(|it| [(it, Axis::DP), (it, Axis::TP)])
            {
                let group = Group::Mesh(vec![axis]);
                let mut alone = Modelled::new(&graph, &cluster, &program).unwrap();
                let [found, own] =
                    [&mut shared, &mut alone].map(|it| it.seconds_of_groups(class, &group));
                assert_eq!(found, own);
            }
        }
    }
}

/// Of all pairs of ranks the time of one is the longest, and some of those that are tried takes as long.
#[test]
fn of_pairs_that_fetch_the_slowest_of_all_is_tried() {
    let graph = graph();
    let ordered: Vec<u32> = (0..24).collect();
    let spread: Vec<u32> = (0..24).map(|it| it * 7 % 24).collect();
    for devices in [ordered, spread] {
        let program = program(&graph, &devices);
        // On one node, and over several.
        for cluster in ["h100-80g:3x8", "h100-80g:6x4", "h100-80g:4x6", "h100-80g:2x5+a100-80g:2x8"]
        {
            let cluster = Cluster::parse(cluster).unwrap();
            let modelled = Modelled::new(&graph, &cluster, &program).unwrap();
            for (id, class) in program.classes() {
                let node = |position: usize| cluster.node_of(class.devices[position]).unwrap();
                let all = 0..class.devices.len();
                let mut seconds = |(to, from): (usize, usize)| {
                    // Those on a node share its way in, where they fetch from others.
                    let here = all.clone().filter(|&it| node(it) == node(to)).count() as u32;
                    let concurrent = if node(from) == node(to) { 1 } else { here };
                    let [to, from] = [to, from].map(|it| class.devices[it]);
                    modelled.costs.message_seconds(from, to, 1 << 20, concurrent).unwrap()
                };
                let pairs = all.clone().flat_map(|to| all.clone().map(move |from| (to, from)));
                let pairs = pairs.filter(|(to, from)| to != from);
                let slowest = pairs.map(&mut seconds).fold(0.0, f64::max);
                let mut alone = Modelled::new(&graph, &cluster, &program).unwrap();
                let tried = alone.unlike_pairs(id).unwrap();
                assert!(tried.iter().all(|(to, from)| to != from), "{tried:?}");
                let found = tried.into_iter().map(&mut seconds).fold(0.0, f64::max);
                assert!(slowest > 0.0);
                assert_eq!(found, slowest, "{:?}", class.devices);
            }
        }
    }
}

/// Whatever else has been asked before: exchanges that differ in anything are other exchanges.
#[test]
fn an_exchange_takes_what_its_own_kind_size_and_group_say_whatever_was_asked_before() {
    let graph = graph();
    let devices: Vec<u32> = (0..24).map(|it| it * 7 % 24).collect();
    let program = program(&graph, &devices);
    let cluster = Cluster::parse("h100-80g:2x5+a100-80g:2x8").unwrap();
    let costs = CostModel::new(&graph, &cluster, &program);
    let mut modelled = Modelled::new(&graph, &cluster, &program).unwrap();
    let mut times = BTreeSet::new();
    // Sums of two and four bytes an element, then other kinds, ways and sizes; all of it twice.
    for round in 0..2 {
        for (class, axes) in (0..6).map(ClassId).flat_map(|it| {
            [vec![Axis::DP], vec![Axis::TP], vec![Axis::DP, Axis::TP]].map(|axes| (it, axes))
        }) {
            let group = Group::Mesh(axes);
            let siblings = Siblings::of(&program, class, &group);
            let concurrent = siblings.concurrent(&cluster).unwrap();
            for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather] {
                for (algorithm, elements, element_bytes) in
                    [Algorithm::Ring, Algorithm::Direct].into_iter().flat_map(|way| {
                        [1 << 14, 1 << 20]
                            .into_iter()
                            .flat_map(move |elements| [2, 4, 1].map(|bytes| (way, elements, bytes)))
                    })
                {
                    let group = group.clone();
                    let exchange = Exchange { kind, algorithm, elements, element_bytes, group };
                    let shapes = modelled.group_shapes(class, &exchange.group).unwrap();
                    let of_group = shapes.of_group.clone();
                    for ((devices, concurrent), shape) in
                        siblings.groups.iter().zip(&concurrent).zip(of_group)
                    {
                        let found = modelled.exchange_on(&exchange, shape).unwrap();
                        let own = costs.collective_seconds(&exchange, devices, *concurrent);
                        let own = Picos::from_seconds(own.unwrap());
                        assert_eq!(found, own, "{exchange:?} on {devices:?}, {round}");
                        times.insert(found);
                    }
                }
            }
        }
    }
    assert!(times.len() > 40, "{}", times.len());
}
