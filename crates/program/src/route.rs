//! Ways between stages: which part of a value goes from which position to which.

use std::sync::Arc;

use shardloom_graph::ValueId;
use shardloom_plan::Mesh;

use crate::{BucketId, ClassId, Format, Layout, Placement};

/// Identifies a route of a program.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct RouteId(pub u32);

/// A part of a tensor that goes from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Position in the sending class.
    pub from: usize,
    /// Position in the receiving class.
    pub to: usize,
    /// Where the part lies in the sender's local tensor.
    pub source: Placement,
    /// Where the part lies in the receiver's local tensor.
    pub target: Placement,
}

/// What goes from one class to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// A value, for every micro-batch.
    Value(ValueId),
    /// The gradient of a value, for every micro-batch.
    Gradient(ValueId),
    /// The squared norm of gradients, once in a step.
    Norm,
    /// Weights of a range of the receiver's bucket, from the server that updates them.
    Weights(BucketId),
    /// Gradients of a range of the sender's bucket, to the server.
    Gradients(BucketId),
    /// By how much the sender's update has changed a range of its bucket, to the server that adds that to its weights.
    Deltas(BucketId),
    /// Gradients of the sender's bucket, added up over all workers, from the server that owns it to one that has a
    /// replica of it.
    Aggregated(BucketId),
    /// Gradients of a range of the receiver's bucket, summed over all workers, from the server that sums them.
    Sums(BucketId),
    /// Which rows of a piece of the sender's table it looks up, to the server that holds this piece: its number.
    Lookups(BucketId, u32),
    /// The weights of these rows of the receiver's table, from that server.
    LookedUp(BucketId, u32),
    /// Gradients of these rows of the sender's table, to that server.
    RowGradients(BucketId, u32),
}

/// How something goes from one class to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What.
    pub carried: Carried,
    /// The sending class.
    pub from: ClassId,
    /// The receiving class.
    pub to: ClassId,
    /// How elements are stored.
    pub format: Format,
    /// The parts. Routes between meshes and layouts alike have one list of them, as a chain of thousands of stages
    /// would hold millions otherwise.
    pub messages: Arc<[Message]>,
    /// How urgent it is among all that a device's ranks send by priority; none of what is sent in the order of the
    /// program.
    pub priority: Option<Priority>,
}

/// How urgent messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Their place among all that a device's ranks send by priority: of those that are ready the lowest goes first.
    pub place: u32,
    /// How many of all that these send by priority may be under way to other processes at a time: sent, and not known to
    /// have arrived.
    pub most_under_way: u32,
}

/// One end of a route: a layout on a mesh.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    /// The layout.
    pub layout: &'a Layout,
    /// The mesh.
    pub mesh: &'a Mesh,
}

/// The messages that bring a tensor of shape `global` from one layout to another: the intersections of
/// what senders hold with what receivers need, each taken from one of the senders that hold it. Between
/// equal meshes and layouts every position sends to its own number.
pub(crate) fn messages(global: &[usize], from: Side<'_>, to: Side<'_>) -> Vec<Message> {
    if from.mesh == to.mesh && from.layout == to.layout {
        let whole = |position| {
            let extent = from.layout.local_shape(global, from.mesh);
            let part = Placement { start: vec![0; extent.len()], extent };
            Message { from: position, to: position, source: part.clone(), target: part }
        };
        return (0..from.mesh.size()).map(whole).collect();
    }
    let held: Vec<Placement> = (0..from.mesh.size())
        .map(|position| from.layout.placement(global, from.mesh, position))
        .collect();
    let mut messages = vec![];
    for receiver in 0..to.mesh.size() {
        let needed = to.layout.placement(global, to.mesh, receiver);
        // Replicas of one part: keyed by where it starts, since extents are equal.
        let mut parts: Vec<(&Placement, Vec<usize>)> = vec![];
        for (sender, placement) in held.iter().enumerate() {
            if placement.intersection(&needed).is_none() {
                continue;
            }
            match parts.iter_mut().find(|(part, _)| *part == placement) {
                Some((_, senders)) => senders.push(sender),
                None => parts.push((placement, vec![sender])),
            }
        }
        for (placement, senders) in parts {
            let Some(shared) = placement.intersection(&needed) else { continue };
            let sender = match senders.contains(&receiver) {
                true => receiver,
                false => senders[receiver % senders.len()],
            };
            let relative = |outer: &Placement| Placement {
                start: shared.start.iter().zip(&outer.start).map(|(a, b)| a - b).collect(),
                extent: shared.extent.clone(),
            };
            messages.push(Message {
                from: sender,
                to: receiver,
                source: relative(placement),
                target: relative(&needed),
            });
        }
    }
    messages
}

impl Route {
    /// Whether it is between a server and a worker, or between servers.
    pub fn is_of_server(&self) -> bool {
        match self.carried {
            Carried::Weights(_) | Carried::Gradients(_) | Carried::Sums(_) => true,
            Carried::Deltas(_) | Carried::Aggregated(_) => true,
            Carried::Lookups(..) | Carried::LookedUp(..) | Carried::RowGradients(..) => true,
            Carried::Value(_) | Carried::Gradient(_) | Carried::Norm => false,
        }
    }

    /// The way of a norm: every position of a mesh of `receivers` gets it from one of `senders`.
    pub(crate) fn of_norm(
        (from, senders): (ClassId, usize),
        (to, receivers): (ClassId, usize),
    ) -> Route {
        let number = || Placement { start: vec![], extent: vec![] };
        let message = |to| Message { from: to % senders, to, source: number(), target: number() };
        let messages = (0..receivers).map(message).collect();
        Route { carried: Carried::Norm, from, to, format: Format::F64, messages, priority: None }
    }

    /// The way of a range of a flat tensor between two classes of one rank, from where it begins in the one's
    /// to where it begins in the other's.
    pub(crate) fn of_range(
        carried: Carried,
        [(from, source), (to, target)]: [(ClassId, usize); 2],
        format: Format,
        elements: usize,
    ) -> Route {
        let part = |start| Placement { start: vec![start], extent: vec![elements] };
        let messages =
            Arc::new([Message { from: 0, to: 0, source: part(source), target: part(target) }]);
        Route { carried, from, to, format, messages, priority: None }
    }

    /// Whether it brings rows of a table, as many as turn out while running: its messages have room for the most, and
    /// of an end where rows of all pieces lie one behind the other they say nothing more.
    pub fn moves_rows(&self) -> bool {
        matches!(
            self.carried,
            Carried::Lookups(..) | Carried::LookedUp(..) | Carried::RowGradients(..)
        )
    }

    /// The way of up to so many rows of a shape, from the row where they begin at the one class to that at the
    /// other.
    pub(crate) fn of_rows(
        carried: Carried,
        [(from, source), (to, target)]: [(ClassId, usize); 2],
        format: Format,
        rows: usize,
        columns: Option<usize>,
    ) -> Route {
        let part = |start| Placement {
            start: [start].into_iter().chain(columns.map(|_| 0)).collect(),
            extent: [rows].into_iter().chain(columns).collect(),
        };
        let messages =
            Arc::new([Message { from: 0, to: 0, source: part(source), target: part(target) }]);
        Route { carried, from, to, format, messages, priority: None }
    }

    /// The micro-batch that its messages belong to in an entry of this one: the same, but where what it carries
    /// belongs to a step, whatever it is sent beside.
    pub fn microbatch(&self, of_entry: Option<u32>) -> Option<u32> {
        match self.carried {
            Carried::Value(_) | Carried::Gradient(_) => of_entry,
            Carried::Norm | Carried::Weights(_) | Carried::Gradients(_) | Carried::Sums(_) => None,
            Carried::Lookups(..) | Carried::LookedUp(..) | Carried::RowGradients(..) => None,
            Carried::Deltas(_) | Carried::Aggregated(_) => None,
        }
    }

    /// Bytes of one message.
    pub fn message_bytes(&self, message: &Message) -> u64 {
        (message.source.elements() * self.format.bytes()) as u64
    }

    /// What `position` of the sending class sends.
    pub fn sent_by(&self, position: usize) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.from == position)
    }

    /// What `position` of the receiving class receives.
    pub fn received_by(&self, position: usize) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.to == position)
    }
}
