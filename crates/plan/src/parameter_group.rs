//! What is otherwise for some parameters.

use globset::{Glob, GlobBuilder, GlobSet};
use serde::{Deserialize, Serialize};
use shardloom_collectives::Algorithm;

use crate::{AxisSet, Compression, Number, Plan, PlanError, Precision, Sync};

/// Some parameters by their names, and what is not for them as the plan says it for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// Their names; `*` stands for any characters, `?` for one, `{a,b}` for either: `block.*.ffn.*`.
    pub names: String,
    /// The algorithm of collectives over their replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Their ZeRO stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero: Option<u8>,
    /// The mesh axes along which their replicas share what their ZeRO stage says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_over: Option<AxisSet>,
    /// Up to how many bytes of their gradients consecutive blocks share one collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_bytes: Option<usize>,
    /// How their gradients are compressed on their way between replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Which of the plan's servers that sum ([`Sync::summation`]) get their gradients, where these do not deal
    /// them as they deal others: each parameter is cut along its first axis into as many pieces as are listed
    /// here, or as it has rows if these are fewer, equal but for a row, and each piece is summed by the server
    /// of its place in the list. The same one may be listed several times. With none the workers sum all of it
    /// among themselves by `algorithm`. With [`sparse`](Self::sparse) these servers hold and update the pieces:
    /// workers ask them for rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<u32>>,
    /// Whether their gradients are rows and values: they are tables that only embeddings read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<bool>,
    /// The format of their accumulated gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<Number>,
    /// Whether the optimizer keeps an fp32 copy of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<bool>,
    /// Whether they stay as they are: they have no gradients that last, no optimizer state and no copy in fp32.
    /// Nothing is computed for gradients alone that no trained parameter needs, but those that an operator gives
    /// along with one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub frozen: bool,
}

fn is_false(it: &bool) -> bool {
    !it
}

impl ParameterGroup {
    /// These parameters, all of them as the plan says.
    pub fn named(names: &str) -> ParameterGroup {
        ParameterGroup {
            names: names.into(),
            algorithm: None,
            zero: None,
            shard_over: None,
            bucket_bytes: None,
            compression: None,
            servers: None,
            sparse: None,
            gradients: None,
            master: None,
            frozen: false,
        }
    }

    /// Parameters of just these names, all of them as the plan says.
    pub fn of_all(names: &[&str]) -> ParameterGroup {
        let escaped: Vec<String> = names.iter().map(|name| globset::escape(name)).collect();
        match &escaped[..] {
            [name] => ParameterGroup::named(name),
            names => {
                // A comma between braces would end a name.
                let names: Vec<String> = names.iter().map(|it| it.replace(',', "[,]")).collect();
                ParameterGroup::named(&format!("{{{}}}", names.join(",")))
            }
        }
    }

    /// How replicas of these parameters stay equal, where `sync` is the plan's.
    pub fn sync(&self, sync: Sync) -> Sync {
        let zero = self.zero.unwrap_or(sync.zero);
        Sync {
            algorithm: self.algorithm.unwrap_or(sync.algorithm),
            zero,
            bucket_bytes: self.bucket_bytes.unwrap_or(sync.bucket_bytes),
            splits_blocks: sync.splits_blocks && zero < 3,
            all_reduces: sync.all_reduces && zero == 1,
            // Where nothing is shared, what the plan says of others has no meaning.
            shard_over: self.shard_over.or(sync.shard_over.filter(|_| zero > 0)),
            second_copy_over: sync.second_copy_over.filter(|_| zero == 3),
            servers: sync.servers,
            compression: match self.frozen {
                true => Compression::None,
                false => self.compression.unwrap_or(sync.compression),
            },
            averaging: sync.averaging,
            summation: sync.summation.filter(|_| !self.is_summed_by_workers()),
            negotiation: sync.negotiation,
            sparse: !self.frozen && self.sparse.unwrap_or(sync.sparse),
        }
    }

    /// Whether the plan's servers, where there are such, sum none of it.
    fn is_summed_by_workers(&self) -> bool {
        self.frozen || self.servers.as_ref().is_some_and(Vec::is_empty)
    }

    /// Checks which servers get what, where the plan's `sync` is this and it has so many workers; `key` says which
    /// group it is.
    pub(crate) fn validate_servers(
        &self,
        key: &str,
        sync: Sync,
        workers: usize,
    ) -> Result<(), PlanError> {
        let Some(servers) = &self.servers else { return Ok(()) };
        let refuse = |rule: String| {
            Err(PlanError::field(format!("{key}.servers"), format!("{servers:?}"), rule))
        };
        let Some(summation) = sync.summation else {
            return refuse(
                "for plans with servers that sum (sync.summation); this one has none".into(),
            );
        };
        let all = summation.of_workers(workers);
        let colocated = match summation.colocated {
            true => format!(" and {workers} are colocated"),
            false => String::new(),
        };
        match servers.iter().find(|&&server| server >= all) {
            Some(server) => refuse(format!(
                "there is no server {server}: sync.summation.servers = {}{colocated}, numbered from 0",
                summation.servers
            )),
            None => Ok(()),
        }
    }

    /// Checks that a group that is frozen says nothing of gradients and updates; `key` says which group it is.
    pub(crate) fn validate_frozen(&self, key: &str) -> Result<(), PlanError> {
        let said = [
            ("compression", self.compression.is_some()),
            ("servers", self.servers.is_some()),
            ("sparse", self.sparse.is_some()),
            ("gradients", self.gradients.is_some()),
            ("master", self.master.is_some()),
        ];
        match said.into_iter().find(|&(_, is_said)| self.frozen && is_said) {
            Some((word, _)) => {
                let rule = format!(
                    "frozen parameters have no gradients and no updates, of which {word} says something: leave \
                     out either"
                );
                Err(PlanError::field(format!("{key}.frozen"), true, rule))
            }
            None => Ok(()),
        }
    }

    /// Their number formats, where `precision` is the plan's.
    pub fn precision(&self, precision: Precision) -> Precision {
        Precision {
            gradients: self.gradients.unwrap_or(precision.gradients),
            master: !self.frozen && self.master.unwrap_or(precision.master),
            ..precision
        }
    }

    /// The pattern of their names, or what is wrong with it.
    fn glob(&self) -> Result<Glob, String> {
        match self.names.len() > LONGEST_NAMES {
            true => Err(format!("a pattern of at most {LONGEST_NAMES} bytes")),
            false => {
                GlobBuilder::new(&self.names).build().map_err(|error| error.kind().to_string())
            }
        }
    }
}

/// To which of a plan's groups parameters belong.
#[derive(Clone, Debug)]
pub struct ParameterGroups(Vec<Consecutive>);

/// Consecutive groups, whose patterns are looked at together.
#[derive(Clone, Debug)]
struct Consecutive {
    /// How many groups there are before them.
    before: usize,
    patterns: GlobSet,
}

/// The most bytes that the names of a group have.
const LONGEST_NAMES: usize = 1 << 20;

/// Up to how many groups are looked at together, and with how many bytes of names, unless one alone has more: how
/// large what tells names apart may become has a limit.
const TOGETHER: usize = 256;
const BYTES_TOGETHER: usize = 1 << 14;

impl ParameterGroups {
    /// Those of `plan`.
    ///
    /// # Errors
    /// If a group's names are no pattern.
    pub fn of(plan: &Plan) -> Result<ParameterGroups, PlanError> {
        ParameterGroups::from_groups(&plan.parameters)
    }

    /// These.
    ///
    /// # Errors
    /// As [`ParameterGroups::of`].
    pub fn from_groups(groups: &[ParameterGroup]) -> Result<ParameterGroups, PlanError> {
        let refuse = |index: usize, rule: String| {
            let names = format!("{:?}", groups[index].names);
            PlanError::field(format!("parameters[{index}].names"), names, rule)
        };
        let mut found = vec![];
        let mut before = 0;
        while before < groups.len() {
            let mut bytes = 0;
            let fits = |group: &&ParameterGroup| {
                bytes += group.names.len();
                bytes <= BYTES_TOGETHER
            };
            let together = groups[before..].iter().take(TOGETHER).take_while(fits).count().max(1);
            let globs = (before..before + together)
                .map(|index| groups[index].glob().map_err(|error| refuse(index, error)));
            let globs: Vec<Glob> = globs.collect::<Result<_, _>>()?;
            let patterns =
                GlobSet::new(globs).map_err(|error| refuse(before, too_large(&error)))?;
            found.push(Consecutive { before, patterns });
            before += together;
        }
        Ok(ParameterGroups(found))
    }

    /// Whether a parameter is frozen, where these groups are those of `plan`.
    pub fn is_frozen(&self, plan: &Plan, name: &str) -> bool {
        self.group(name).is_some_and(|group| plan.parameters[group].frozen)
    }

    /// The group of a parameter: the first that its name is one of; none for what has no group.
    pub fn group(&self, name: &str) -> Option<usize> {
        self.0.iter().find_map(|Consecutive { before, patterns }| {
            patterns.matches(name).into_iter().min().map(|index| before + index)
        })
    }
}

/// What there is to say of patterns that are as they should be and yet not looked for.
fn too_large(error: &globset::Error) -> String {
    format!("a simpler pattern: {}", error.kind())
}
