use serde::{Deserialize, Serialize};
use shardloom_document::{line_at, read_text, toml_fault, toml_line_of};
use toml::Spanned;

use crate::{
    ClusterError, DeviceKind, Path, Profile, Stack, checked,
    profile::unknown_machine,
    spec::{self, GroupSpec, Spec},
};

/// A device of a cluster, counted node by node from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(pub u32);

/// A node of a cluster, counted from 0 over all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Equal nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeGroup {
    /// Their kind.
    pub profile: Profile,
    /// How many.
    pub nodes: u32,
    /// Devices used in each; at most what the kind has.
    pub devices_per_node: u32,
}

impl NodeGroup {
    /// Devices in all its nodes.
    pub fn devices(&self) -> u32 {
        self.nodes * self.devices_per_node
    }
}

/// Machines to train on: groups of equal nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    groups: Vec<NodeGroup>,
    /// First device and first node of each group, then the totals.
    starts: Vec<(u32, u32)>,
    stack: Box<Stack>,
}

/// Where a device sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// Index of its node group.
    pub(crate) group: usize,
    pub(crate) node: NodeId,
}

impl Cluster {
    /// Most devices a cluster may have.
    pub const MAX_DEVICES: u32 = 1_000_000;

    /// A cluster of these groups, devices numbered in their order.
    ///
    /// # Errors
    ///
    /// When there is no group, a count is 0, a node has fewer devices than asked of
    /// it, the cluster exceeds [`Cluster::MAX_DEVICES`], or two groups have
    /// different profiles under one name, where more than what a node sends out differs.
    pub fn new(groups: Vec<NodeGroup>) -> Result<Self, ClusterError> {
        if groups.is_empty() {
            return Err(ClusterError::Nothing { what: "the number of node groups".into() });
        }
        let mut devices = 0u64;
        let mut nodes = 0u32;
        let mut starts = vec![(0, 0)];
        for (index, group) in groups.iter().enumerate() {
            let name = &group.profile.device.name;
            for (count, what) in [(group.nodes, "nodes"), (group.devices_per_node, "devices")] {
                if count == 0 {
                    return Err(ClusterError::Nothing { what: format!("{what} of {name}") });
                }
            }
            let available = group.profile.node.devices;
            if group.devices_per_node > available {
                return Err(ClusterError::NodeTooSmall {
                    name: name.clone(),
                    available,
                    asked: group.devices_per_node,
                    nodes: group.nodes,
                });
            }
            let same_name = |other: &&NodeGroup| other.profile.device.name == *name;
            let earlier = groups[..index].iter().find(same_name);
            if earlier.is_some_and(|it| !it.profile.is_same_machine(&group.profile)) {
                return Err(ClusterError::NameClash { name: name.clone() });
            }
            devices += u64::from(group.nodes) * u64::from(group.devices_per_node);
            if devices > u64::from(Self::MAX_DEVICES) {
                let limit = u64::from(Self::MAX_DEVICES);
                return Err(ClusterError::TooManyDevices { devices, limit });
            }
            nodes += group.nodes;
            starts.push((devices as u32, nodes));
        }
        Ok(Self { groups, starts, stack: Box::default() })
    }

    /// The same machines under a software stack.
    #[must_use]
    pub fn under(self, stack: Stack) -> Self {
        Self { stack: Box::new(stack), ..self }
    }

    /// Other machines under the same software stack.
    ///
    /// # Errors
    ///
    /// As [`Cluster::new`].
    pub fn with_groups(&self, groups: Vec<NodeGroup>) -> Result<Self, ClusterError> {
        Ok(Self::new(groups)?.under(self.stack().clone()))
    }

    /// The software that drives the machines.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The software stack that training on the machines usually runs under; of kinds that differ, that of the first that names one.
    ///
    /// # Errors
    ///
    /// As [`Stack::parse`], of the name in a profile.
    pub fn usual_stack(&self) -> Result<Stack, ClusterError> {
        let named = self.groups.iter().find_map(|group| group.profile.stack.as_deref());
        named.map_or_else(|| Ok(Stack::default()), Stack::parse)
    }

    /// Whether the software has fused kernels for attention on all of these machines, which keep no scores.
    pub fn fuses_attention(&self) -> bool {
        let fuses = |group: &NodeGroup| self.stack.fused_attention(&group.profile.device).is_some();
        self.groups.iter().all(fuses)
    }

    /// [`Cluster::parse_with`] without a measured profile.
    ///
    /// # Errors
    ///
    /// As [`Cluster::parse_with`].
    pub fn parse(spec: &str) -> Result<Self, ClusterError> {
        Self::parse_with(spec, None)
    }

    /// A cluster from its text form: `a100-80g:8` (one node of 8), `h100-80g:64x8`
    /// (64 nodes of 8), several of those joined by `+`, or the path of a file
    /// ending in `.toml`. Behind a size, `,uplink=800Gbps` or `,cards=8x100Gbps` says what
    /// each of the nodes sends out ([`crate::Uplink`]). The machine `local` stands for the measured profile.
    ///
    /// # Errors
    ///
    /// When the text or file is malformed, a machine unknown, `local` not measured,
    /// or a size impossible (as [`Cluster::new`]).
    pub fn parse_with(spec: &str, local: Option<&Profile>) -> Result<Self, ClusterError> {
        match spec::parse(spec)? {
            Spec::File(path) => {
                let text = read_text(&path)
                    .map_err(|source| ClusterError::Read { path: path.clone(), source })?;
                Self::read(&text, local, &path.display().to_string())
            }
            Spec::Groups(groups) => {
                let group = |spec: GroupSpec<'_>| {
                    let (nodes, devices_per_node) = (spec.nodes, spec.devices_per_node);
                    let mut profile = machine(spec.machine, &[], local, None)?;
                    if let Some(uplink) = &spec.uplink {
                        uplink.apply(&mut profile.node);
                    }
                    Ok(NodeGroup { profile, nodes, devices_per_node })
                };
                Self::new(groups.into_iter().map(group).collect::<Result<_, ClusterError>>()?)
            }
        }
    }

    /// Reads a cluster file: `[[group]]` tables with `machine`, `nodes` and
    /// optionally `devices_per_node`, `uplink_bytes_per_second` (what a node sends out) and
    /// `inter_bytes_per_second` (what one of its devices does), and a `[[machine]]` table, in the form of a
    /// [`Profile`], for each machine that is not a preset.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Text`] with line and key, or as [`Cluster::new`].
    pub fn from_toml(text: &str) -> Result<Self, ClusterError> {
        Self::read(text, None, "cluster file")
    }

    /// Likewise, of a document that errors call `place`, with `local` as the machine of that name.
    ///
    /// # Errors
    ///
    /// As [`Cluster::from_toml`].
    pub fn read(text: &str, local: Option<&Profile>, place: &str) -> Result<Self, ClusterError> {
        let file: ClusterFile = toml::from_str(text).map_err(|error| {
            let mut fault = toml_fault(text, &error);
            // Whatever is wrong with it by the keys of clusters is no help.
            if let Some(line) = toml_line_of(text, "device").or(toml_line_of(text, "node")) {
                fault.line = Some(line);
                fault.message = "this is the profile of a machine, which --profile takes; a cluster has [[group]] \
                                 with `machine` and `nodes`, and such profiles as [[machine]]"
                    .into();
            }
            ClusterError::in_document(place, fault)
        })?;
        let group = |table: GroupTable| {
            let line = line_at(text, table.machine.span().start);
            let at = format!("{place}:{line}");
            let mut profile =
                machine(table.machine.get_ref(), &file.machine, local, Some(at.clone()))?;
            if let Some(bytes_per_second) = table.uplink_bytes_per_second {
                profile.node.send_out(bytes_per_second);
            }
            if let Some(bytes_per_second) = table.inter_bytes_per_second {
                profile.node.inter.bytes_per_second = bytes_per_second;
            }
            let devices_per_node = table.devices_per_node.unwrap_or(profile.node.devices);
            let group = NodeGroup { profile, nodes: table.nodes, devices_per_node };
            match Self::new(vec![group.clone()]) {
                Ok(_) => Ok(group),
                Err(error) => Err(ClusterError::Text { place: at, message: error.to_string() }),
            }
        };
        Self::new(file.group.into_iter().map(group).collect::<Result<_, ClusterError>>()?).map_err(
            |error| ClusterError::Text { place: place.to_owned(), message: error.to_string() },
        )
    }

    /// Writes what [`Cluster::from_toml`] reads, profiles included, so that the
    /// text means the same wherever and whenever it is read.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Write`] for values TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, ClusterError> {
        let mut file = ClusterFile { group: Vec::new(), machine: Vec::new() };
        for group in &self.groups {
            let name = &group.profile.device.name;
            // Machines of one name differ in what their nodes send out, which groups can say.
            let differs = match file.machine.iter().find(|machine| machine.device.name == *name) {
                Some(machine) => *machine != group.profile,
                None => {
                    file.machine.push(group.profile.clone());
                    false
                }
            };
            let node = &group.profile.node;
            file.group.push(GroupTable {
                machine: Spanned::new(0..0, name.clone()),
                nodes: group.nodes,
                devices_per_node: Some(group.devices_per_node),
                uplink_bytes_per_second: differs.then_some(node.uplink_bytes_per_second),
                inter_bytes_per_second: differs.then_some(node.inter.bytes_per_second),
            });
        }
        Ok(toml::to_string_pretty(&file)?)
    }

    /// The groups, in order of their devices.
    pub fn groups(&self) -> &[NodeGroup] {
        &self.groups
    }

    /// The kinds of machine, each name once, in order of their devices.
    pub fn profiles(&self) -> Vec<&Profile> {
        let mut kinds: Vec<&Profile> = vec![];
        for NodeGroup { profile, .. } in &self.groups {
            if kinds.iter().all(|kind| kind.device.name != profile.device.name) {
                kinds.push(profile);
            }
        }
        kinds
    }

    /// Number of devices.
    pub fn device_count(&self) -> u32 {
        self.starts[self.groups.len()].0
    }

    /// Number of nodes.
    pub fn node_count(&self) -> u32 {
        self.starts[self.groups.len()].1
    }

    /// All devices, in order.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        (0..self.device_count()).map(DeviceId)
    }

    /// The kind of a device.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn kind_of(&self, device: DeviceId) -> Result<&DeviceKind, ClusterError> {
        Ok(&self.groups[self.site(device)?.group].profile.device)
    }

    /// The node a device sits in.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn node_of(&self, device: DeviceId) -> Result<NodeId, ClusterError> {
        Ok(self.site(device)?.node)
    }

    /// The number of the group of nodes, all of one kind, that a device's node is of.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn group_of(&self, device: DeviceId) -> Result<usize, ClusterError> {
        Ok(self.site(device)?.group)
    }

    /// Whether two devices sit in one node.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn same_node(&self, a: DeviceId, b: DeviceId) -> Result<bool, ClusterError> {
        Ok(self.node_of(a)? == self.node_of(b)?)
    }

    /// Memory of a device that tensors can have: what its software does not keep for itself.
    pub fn memory_bytes(&self, device: &DeviceKind) -> u64 {
        device.memory_bytes.saturating_sub(self.stack.context_bytes)
    }

    /// Whether two devices are in one machine; not if one of them is unknown.
    pub fn share_node(&self, a: DeviceId, b: DeviceId) -> bool {
        matches!(self.same_node(a, b), Ok(true))
    }

    /// What lies between two devices; nothing between a device and itself.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn link(&self, a: DeviceId, b: DeviceId) -> Result<Option<Path<'_>>, ClusterError> {
        let sites = [self.site(a)?, self.site(b)?];
        let [from, to] = sites.map(|site| &self.groups[site.group].profile.node);
        if a == b {
            return Ok(None);
        }
        if self.directly_wired(sites[0], sites[1]) {
            return Ok(Some(Path { link: &from.intra, shared_bytes_per_second: None }));
        }
        let slower = |node: &crate::NodeKind| node.inter.reachable_bytes_per_second();
        let link = if slower(to) < slower(from) { &to.inter } else { &from.inter };
        let shared = from.reachable_uplink().min(to.reachable_uplink());
        Ok(Some(Path { link, shared_bytes_per_second: Some(shared) }))
    }

    /// What a message goes through into `to`, however slow the way out of `from` is; nothing between a device and
    /// itself.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownDevice`].
    pub fn way_in(&self, from: DeviceId, to: DeviceId) -> Result<Option<Path<'_>>, ClusterError> {
        let (sender, receiver) = (self.site(from)?, self.site(to)?);
        if from == to || self.directly_wired(sender, receiver) {
            return self.link(from, to);
        }
        let node = &self.groups[receiver.group].profile.node;
        let shared_bytes_per_second = Some(node.reachable_uplink());
        Ok(Some(Path { link: &node.inter, shared_bytes_per_second }))
    }

    /// Whether traffic between two sites stays off the network: in one node, or on
    /// one torus.
    pub(crate) fn directly_wired(&self, a: Site, b: Site) -> bool {
        a.node == b.node
            || (a.group == b.group && self.groups[a.group].profile.node.torus.is_some())
    }

    pub(crate) fn site(&self, device: DeviceId) -> Result<Site, ClusterError> {
        if device.0 >= self.device_count() {
            return Err(ClusterError::UnknownDevice { id: device, devices: self.device_count() });
        }
        let group = self.starts.partition_point(|&(first, _)| first <= device.0) - 1;
        let (first_device, first_node) = self.starts[group];
        let node = first_node + (device.0 - first_device) / self.groups[group].devices_per_node;
        Ok(Site { group, node: NodeId(node) })
    }
}

/// A machine by name: of the file at hand, the measured one, or a preset.
fn machine(
    name: &str,
    file: &[Profile],
    local: Option<&Profile>,
    place: Option<String>,
) -> Result<Profile, ClusterError> {
    if let Some(profile) = file.iter().find(|profile| profile.device.name == name) {
        return Ok(profile.clone());
    }
    if name == "local" {
        return local.cloned().ok_or(ClusterError::NoLocalProfile);
    }
    if Profile::preset_names().any(|known| known.eq_ignore_ascii_case(name)) {
        return Profile::preset(name);
    }
    let mut known: Vec<&str> = file.iter().map(|profile| profile.device.name.as_str()).collect();
    for preset in Profile::preset_names() {
        known.push(preset);
    }
    known.push("local");
    Err(unknown_machine(name, &known, place))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    group: Vec<GroupTable>,
    #[serde(default)]
    machine: Vec<Profile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupTable {
    machine: Spanned<String>,
    #[serde(deserialize_with = "checked::count")]
    nodes: u32,
    #[serde(default)]
    devices_per_node: Option<u32>,
    #[serde(default, deserialize_with = "checked::optional_transfer_rate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    uplink_bytes_per_second: Option<f64>,
    #[serde(default, deserialize_with = "checked::optional_transfer_rate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    inter_bytes_per_second: Option<f64>,
}
