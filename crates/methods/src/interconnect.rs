//! Links as planners of equal stages see them: fast ones within a node, slow ones between nodes.

use shardloom_cluster::{Cluster, Link, NodeGroup};

/// The links of a cluster of equal nodes. Replicas of a stage lie next to each other, then stages
/// (PipeDream-2BW, section 3.3).
#[derive(Clone, Debug, PartialEq)]
pub struct Interconnect {
    /// Devices in a node.
    pub per_node: u32,
    /// Between devices of a node.
    pub within: Link,
    /// Between devices of different nodes, while all devices of a node talk; on a torus as within one.
    pub across: Link,
    /// Between two nodes, while one device of each talks.
    pub between: Link,
}

impl Interconnect {
    /// The links of `cluster`, each as slow as that of its slowest kind of node.
    pub fn of(cluster: &Cluster) -> Interconnect {
        let slowest = |links: Vec<Link>| {
            let rate = Link::reachable_bytes_per_second;
            links.into_iter().min_by(|a, b| rate(a).total_cmp(&rate(b)))
        };
        let groups = || cluster.groups().iter();
        let outward = |group: &NodeGroup, talking: u32| {
            let node = &group.profile.node;
            if node.torus.is_some() && cluster.groups().len() == 1 {
                return node.intra.clone();
            }
            let share = node.uplink_bytes_per_second / node.oversubscription / f64::from(talking);
            let bytes_per_second = node.inter.bytes_per_second.min(share);
            Link { bytes_per_second, curve: None, ..node.inter.clone() }
        };
        let across = groups().map(|group| outward(group, group.devices_per_node));
        let between = groups().map(|group| outward(group, 1));
        let within = groups().map(|group| group.profile.node.intra.clone());
        let no_groups = "a cluster has a group of nodes";
        Interconnect {
            per_node: groups().map(|group| group.devices_per_node).min().expect(no_groups),
            within: slowest(within.collect()).expect(no_groups),
            across: slowest(across.collect()).expect(no_groups),
            between: slowest(between.collect()).expect(no_groups),
        }
    }

    /// What `count` devices from device `first` on talk over: links within the node if all of them lie
    /// in one.
    pub fn span(&self, first: u32, count: u32) -> &Link {
        let last = first + count.max(1) - 1;
        let together = first / self.per_node == last / self.per_node;
        if together { &self.within } else { &self.across }
    }

    /// What the `width` replicas of stage `stage` talk over.
    pub fn width(&self, width: u32, stage: u32) -> &Link {
        self.span(stage * width, width)
    }

    /// What neighbouring stages of `width` replicas talk over: links within the node if all `depth`
    /// stages lie in one.
    pub fn depth(&self, width: u32, depth: u32) -> &Link {
        self.span(0, width * depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_a_node_talks_within_it() {
        let links = Interconnect::of(&Cluster::parse("v100-16g:8x8").expect("a preset"));
        assert_eq!(links.per_node, 8);
        assert_eq!(links.width(8, 1), &links.within);
        assert_eq!(links.width(9, 0), &links.across);
        assert_eq!(links.depth(2, 4), &links.within);
        assert_eq!(links.depth(2, 5), &links.across);
        // Eight devices share an uplink of four cards of 12.5 GB/s.
        assert_eq!(links.across.bytes_per_second, 6.25e9);
        assert_eq!(links.between.bytes_per_second, 12.5e9);
    }

    #[test]
    fn an_oversubscribed_network_carries_less_between_nodes() {
        let cluster = Cluster::parse("v100-16g:8x8").expect("a preset");
        let mut groups = cluster.groups().to_vec();
        groups[0].profile.node.oversubscription = 8.0;
        let links = Interconnect::of(&cluster.with_groups(groups).expect("a cluster"));
        // An eighth of four cards of 12.5 GB/s, of eight devices together or of one.
        assert_eq!(links.across.bytes_per_second, 0.78125e9);
        assert_eq!(links.between.bytes_per_second, 6.25e9);
        assert_eq!(links.within, Interconnect::of(&cluster).within);
    }

    #[test]
    fn replicas_that_lie_on_two_nodes_talk_across() {
        let links = Interconnect::of(&Cluster::parse("v100-16g:8x8").expect("a preset"));
        for (width, stage) in (1..=64).flat_map(|width| (0..64 / width).map(move |it| (width, it)))
        {
            let nodes = (stage * width..(stage + 1) * width).map(|device| device / 8);
            let apart = nodes.clone().min() != nodes.max();
            let link = if apart { &links.across } else { &links.within };
            assert_eq!(links.width(width, stage), link, "stage {stage} of {width} replicas");
        }
        // Six of eight devices: the second stage has two of them and four of the next node.
        assert_eq!(links.width(6, 0), &links.within);
        assert_eq!(links.width(6, 1), &links.across);
    }

    #[test]
    fn of_unlike_nodes_the_smallest_and_the_slowest_links_count() {
        let cluster = Cluster::parse("h100-80g:2x8+v100-16g:3x4").expect("presets");
        let links = Interconnect::of(&cluster);
        let slow = Interconnect::of(&Cluster::parse("v100-16g:3x4").expect("a preset"));
        assert_eq!(links, slow);
        assert_eq!(links.per_node, 4);
    }

    #[test]
    fn a_torus_has_no_slower_links_between_nodes() {
        let links = Interconnect::of(&Cluster::parse("tpu-v4:4x4").expect("a preset"));
        assert_eq!(links.across, links.within);
    }

    /// What leaves a node among others goes over its card, be it one of a torus or not.
    #[test]
    fn beside_other_nodes_a_torus_is_left_over_cards() {
        let own = |name: &str| {
            let cluster = Cluster::parse(name).expect("a preset");
            cluster.groups()[0].clone()
        };
        let rate = |group: &NodeGroup, talking: u32| {
            let node = &group.profile.node;
            let uplink = node.uplink_bytes_per_second / node.oversubscription;
            f64::min(node.inter.bytes_per_second, uplink / f64::from(talking))
                * node.inter.reachable
        };
        let torus = own("tpu-v4:4x4");
        for other in ["v100-16g:3x4", "h100-80g:2x8", "a100-80g:2x2"] {
            let both = [torus.clone(), own(other)];
            let cluster = Cluster::parse(&format!("tpu-v4:4x4+{other}")).expect("presets");
            let links = Interconnect::of(&cluster);
            let slowest = |talking: &dyn Fn(&NodeGroup) -> u32| {
                both.iter().map(|it| rate(it, talking(it))).fold(f64::INFINITY, f64::min)
            };
            for (link, expected) in [
                (&links.across, slowest(&|it| it.devices_per_node)),
                (&links.between, slowest(&|_| 1)),
            ] {
                let found = link.reachable_bytes_per_second();
                assert!((found / expected - 1.0).abs() < 1e-9, "{other}: {found} for {expected}");
            }
        }
    }

    /// Which may be that of more bytes a second, where less of them is reached.
    #[test]
    fn of_unlike_links_that_counts_over_which_bytes_come_slowest() {
        let cluster = Cluster::parse("v100-16g:2x4+h100-80g:2x8").expect("presets");
        let mut number = 5_u64;
        let mut next = |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (1 + (number >> 33) % below) as f64
        };
        let mut crossed = 0;
        for _ in 0..200 {
            let mut groups = cluster.groups().to_vec();
            for group in &mut groups {
                let node = &mut group.profile.node;
                for link in [&mut node.intra, &mut node.inter] {
                    link.bytes_per_second = 1e9 * next(40);
                    (link.reachable, link.curve) = (next(10) / 10.0, None);
                }
                node.uplink_bytes_per_second = 1e9 * next(80);
            }
            let links = Interconnect::of(&cluster.with_groups(groups.clone()).expect("a cluster"));
            let least = |rate: &dyn Fn(&NodeGroup) -> f64| {
                groups.iter().map(rate).fold(f64::INFINITY, f64::min)
            };
            let outward = |group: &NodeGroup, talking: f64| {
                let node = &group.profile.node;
                let share = node.uplink_bytes_per_second / node.oversubscription / talking;
                node.inter.bytes_per_second.min(share) * node.inter.reachable
            };
            for (link, expected) in [
                (
                    &links.within,
                    least(&|it| {
                        let link = &it.profile.node.intra;
                        link.bytes_per_second * link.reachable
                    }),
                ),
                (&links.across, least(&|it| outward(it, f64::from(it.devices_per_node)))),
                (&links.between, least(&|it| outward(it, 1.0))),
            ] {
                let found = link.bytes_per_second * link.reachable;
                assert!((found / expected - 1.0).abs() < 1e-9, "{found} for {expected}");
            }
            let fewest = groups.iter().map(|it| it.profile.node.intra.bytes_per_second);
            let fewest = fewest.fold(f64::INFINITY, f64::min);
            crossed += usize::from(links.within.bytes_per_second > fewest);
        }
        assert!(crossed > 10, "{crossed}");
    }
}
