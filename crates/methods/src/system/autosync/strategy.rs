//! How the gradients of each variable of a model are synchronised.

use serde::{Deserialize, Serialize};
use shardloom_plan::Compression;

/// A trained parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Variable {
    /// Its name.
    pub name: String,
    /// Elements of its first axis.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}

/// Who sums the gradients of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Synchroniser {
    /// Servers: the variable is cut along its first axis into as many shards, and each is summed by the server of
    /// this number.
    Servers(Vec<u32>),
    /// The workers, by an all-reduce together with all variables of the same group.
    AllReduce {
        /// Which group.
        group: u32,
        /// What workers make of their gradients before that.
        compression: Compression,
    },
}

/// A way to synchronise a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Strategy {
    /// Which of the problem's [shapes](super::problem::Shape).
    pub shape: usize,
    /// By variable, in the order of the model.
    pub synchronisers: Vec<Synchroniser>,
}

/// A part of a variable, and the one who synchronises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    /// Its elements.
    pub elements: usize,
    /// Who.
    pub by: By,
}

/// The one who synchronises a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A server.
    Server(u32),
    /// A group of variables that workers all-reduce together.
    Group(u32, Compression),
}

impl Variable {
    /// Its elements.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }
}

impl Synchroniser {
    /// The shards of a variable, which tile it.
    pub fn shards(&self, variable: &Variable) -> Vec<Shard> {
        match self {
            Synchroniser::AllReduce { group, compression } => {
                let by = By::Group(*group, *compression);
                vec![Shard { elements: variable.elements(), by }]
            }
            Synchroniser::Servers(servers) => {
                let shard = |(piece, &server): (usize, &u32)| {
                    // The first have a row more where rows do not divide.
                    let (each, more) =
                        (variable.rows / servers.len(), variable.rows % servers.len());
                    let rows = each + usize::from(piece < more);
                    Shard { elements: rows * variable.columns, by: By::Server(server) }
                };
                let shards = servers.iter().enumerate().map(shard);
                shards.filter(|shard| shard.elements > 0).collect()
            }
        }
    }
}

impl Strategy {
    /// How many servers it takes: one more than the largest number of one.
    pub fn servers(&self) -> u32 {
        let lists = self.synchronisers.iter().filter_map(|it| match it {
            Synchroniser::Servers(servers) => Some(servers),
            Synchroniser::AllReduce { .. } => None,
        });
        lists.flatten().max().map_or(0, |&last| last + 1)
    }

    /// Whether it compresses the gradients of some variable.
    pub fn compresses(&self) -> bool {
        let is_compressed = |it: &Synchroniser| matches!(it, Synchroniser::AllReduce { compression, .. } if !compression.is_none());
        self.synchronisers.iter().any(is_compressed)
    }

    /// The same with servers numbered without gaps, as there is no server that has nothing to do.
    #[must_use]
    pub fn without_idle_servers(mut self) -> Strategy {
        let used = |server: u32| {
            let mut all = self.synchronisers.iter();
            all.any(|it| matches!(it, Synchroniser::Servers(list) if list.contains(&server)))
        };
        let numbers: Vec<u32> = (0..self.servers())
            .scan(0, |next, server| {
                let number = *next;
                *next += u32::from(used(server));
                Some(number)
            })
            .collect();
        for synchroniser in &mut self.synchronisers {
            if let Synchroniser::Servers(servers) = synchroniser {
                for server in servers {
                    *server = numbers[*server as usize];
                }
            }
        }
        self
    }
}
