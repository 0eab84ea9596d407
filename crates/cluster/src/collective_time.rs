//! Collective times on a cluster's own devices.

use shardloom_collectives::{Algorithm, Kind, Member, StepList, plan};

use crate::{Cluster, ClusterError, DeviceId, GroupShape, Link, NodeGroup, cluster::Site};

/// Groups up to this size are timed by their step list.
const LISTED_MEMBERS: usize = 64;

/// Members of a group that reach each other without the network.
struct Domain<'a> {
    members: usize,
    intra: &'a Link,
    intra_links: f64,
    inter: &'a Link,
    outgoing_bytes_per_second: f64,
}

impl Cluster {
    /// Time of a collective over `group`, on a buffer of `bytes` per member, while
    /// `concurrent` groups like it (itself included) share each node's uplink.
    ///
    /// The members' order does not matter, as engines lay out their rings by
    /// topology; a root is an index into `group` as given. Small groups are timed
    /// step by step on the links they have, so unlike nodes count; above 64 members
    /// by [`GroupShape::seconds`]. The model is described at [`GroupShape`].
    ///
    /// # Errors
    ///
    /// If a device is unknown or repeated, or the collective does not exist for the
    /// group.
    pub fn collective_seconds(
        &self,
        kind: Kind,
        algorithm: Algorithm,
        group: &[DeviceId],
        bytes: f64,
        concurrent: u32,
    ) -> Result<f64, ClusterError> {
        let sorted = sorted(group)?;
        if group.len() > LISTED_MEMBERS {
            return Ok(self.shape(&sorted, concurrent)?.seconds(kind, algorithm, bytes)?);
        }
        let place = |root: Member| match group.get(root.0 as usize) {
            Some(device) => Member(sorted.partition_point(|other| other < device) as u32),
            None => root,
        };
        let kind = match kind {
            Kind::Broadcast { root } => Kind::Broadcast { root: place(root) },
            Kind::Reduce { root } => Kind::Reduce { root: place(root) },
            other => other,
        };
        let elements = divisible_elements(algorithm, group.len());
        let list = plan(kind, algorithm, group.len() as u32, elements)?;
        let domains = self.domains(&sorted, concurrent)?;
        Ok(list_seconds(&list, &domains, bytes.max(0.0)))
    }

    /// The shape of a group, for its closed forms; `concurrent` as in
    /// [`Cluster::collective_seconds`]. Of unlike nodes the slowest counts.
    ///
    /// # Errors
    ///
    /// If the group is empty, or a device unknown or repeated.
    pub fn group_shape(
        &self,
        group: &[DeviceId],
        concurrent: u32,
    ) -> Result<GroupShape<'_>, ClusterError> {
        self.shape(&sorted(group)?, concurrent)
    }

    fn shape(&self, sorted: &[DeviceId], concurrent: u32) -> Result<GroupShape<'_>, ClusterError> {
        let domains = self.domains(sorted, concurrent)?;
        let slowest = |speed: fn(&Domain<'_>) -> f64| {
            domains.iter().min_by(|a, b| speed(a).total_cmp(&speed(b)))
        };
        let intra_speed = |domain: &Domain<'_>| match domain.members {
            1 => f64::INFINITY,
            _ => domain.intra.reachable_bytes_per_second() * domain.intra_links,
        };
        let (Some(within), Some(across)) =
            (slowest(intra_speed), slowest(|domain| domain.outgoing_bytes_per_second))
        else {
            return Err(ClusterError::Nothing { what: "members of a group".into() });
        };
        let members = sorted.len() as u32;
        Ok(GroupShape {
            members,
            members_per_node: (members / domains.len() as u32).max(1),
            intra: within.intra,
            intra_links: within.intra_links,
            inter: across.inter,
            outgoing_bytes_per_second: across.outgoing_bytes_per_second,
        })
    }

    fn domains(
        &self,
        sorted: &[DeviceId],
        concurrent: u32,
    ) -> Result<Vec<Domain<'_>>, ClusterError> {
        let sites: Vec<Site> =
            sorted.iter().map(|&device| self.site(device)).collect::<Result<_, _>>()?;
        let mut domains = Vec::new();
        for together in sites.chunk_by(|a, b| self.directly_wired(*a, *b)) {
            let hosts = together.chunk_by(|a, b| a.node == b.node).count() as u32;
            let group = &self.groups()[together[0].group];
            domains.push(group.domain(together.len(), hosts, concurrent));
        }
        Ok(domains)
    }
}

impl NodeGroup {
    /// The shape of a group of `members`, `members_per_node` of them in each node,
    /// for searches that have not chosen devices yet; `concurrent` as in
    /// [`Cluster::collective_seconds`].
    pub fn group_shape(
        &self,
        members: u32,
        members_per_node: u32,
        concurrent: u32,
    ) -> GroupShape<'_> {
        let hosts = members.div_ceil(members_per_node.max(1));
        let wired = match self.profile.node.torus {
            Some(_) => members,
            None => members_per_node.clamp(1, members.max(1)),
        };
        let domain =
            self.domain(wired as usize, if wired == members { hosts } else { 1 }, concurrent);
        GroupShape {
            members,
            members_per_node: wired,
            intra: domain.intra,
            intra_links: domain.intra_links,
            inter: domain.inter,
            outgoing_bytes_per_second: domain.outgoing_bytes_per_second,
        }
    }

    fn domain(&self, members: usize, hosts: u32, concurrent: u32) -> Domain<'_> {
        let node = &self.profile.node;
        let size = members as u32;
        let cards = f64::from(size) * node.inter.reachable_bytes_per_second();
        let uplinks = f64::from(hosts) * node.reachable_uplink() / f64::from(concurrent.max(1));
        Domain {
            members,
            intra: &node.intra,
            intra_links: node.torus.map_or(1.0, |torus| torus.links(size, self.devices())),
            inter: &node.inter,
            outgoing_bytes_per_second: cards.min(uplinks),
        }
    }
}

fn sorted(group: &[DeviceId]) -> Result<Vec<DeviceId>, ClusterError> {
    let mut sorted = group.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ClusterError::RepeatedDevice(pair[0])),
        None => Ok(sorted),
    }
}

/// A buffer length every algorithm cuts evenly: into the members, the largest power of two in them, and twice
/// the segments of a tree (four per level), or the segments of a tree of every inner group.
fn divisible_elements(algorithm: Algorithm, members: usize) -> usize {
    let powers = members.next_power_of_two();
    let trees = algorithm.star_tree(members as u32);
    let segments = trees.map_or(1, |trees| trees.segments() as usize);
    members * powers * 8 * (powers.ilog2() as usize).max(1) * segments
}

/// Elements through one port in one step.
#[derive(Default, Clone, Copy)]
struct Port {
    sent: usize,
    received: usize,
}

impl Port {
    fn busier(self) -> usize {
        self.sent.max(self.received)
    }
}

fn list_seconds(list: &StepList, domains: &[Domain<'_>], bytes: f64) -> f64 {
    let element_bytes = bytes / list.elements.max(1) as f64;
    let domain_of: Vec<usize> = domains
        .iter()
        .enumerate()
        .flat_map(|(index, domain)| std::iter::repeat_n(index, domain.members))
        .collect();
    let step_seconds = |step: &Vec<shardloom_collectives::Transfer>| {
        let mut devices = vec![Port::default(); domain_of.len()];
        let mut uplinks = vec![Port::default(); domains.len()];
        for transfer in step.iter().filter(|transfer| transfer.from != transfer.to) {
            let [from, to] = [transfer.from.0 as usize, transfer.to.0 as usize];
            let elements = transfer.source.len();
            if domain_of[from] == domain_of[to] {
                devices[from].sent += elements;
                devices[to].received += elements;
            } else {
                uplinks[domain_of[from]].sent += elements;
                uplinks[domain_of[to]].received += elements;
            }
        }
        let within = devices.iter().zip(&domain_of).map(|(port, &index)| {
            let bytes = port.busier() as f64 * element_bytes;
            domains[index].intra.transfer_seconds(bytes / domains[index].intra_links)
        });
        let across = uplinks.iter().zip(domains).map(|(port, domain)| {
            let bytes = port.busier() as f64 * element_bytes;
            domain.inter.throttled_seconds(bytes, domain.outgoing_bytes_per_second)
        });
        within.chain(across).fold(0.0, f64::max)
    };
    list.steps.iter().map(step_seconds).sum()
}
