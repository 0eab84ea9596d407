//! Which way the parameters of each bucket are kept equal in.

use shardloom_plan::{
    Axis, Compression, ParameterGroup, ParameterGroups, Plan, PlanError, Precision, Sync,
};

use super::{
    AllReduce, AnsweredRows, AskedRows, Compressed, Frozen, Holder, Hybrid, Lookups, Server,
    Sparse, Summing, Synchronisation, Zero,
};

/// The way that a plan asks for.
pub(crate) fn way(sync: Sync) -> Box<dyn Synchronisation> {
    let algorithm = sync.algorithm;
    if let Some(summation) = sync.summation {
        return Box::new(Summing { summation });
    }
    match (sync.servers, sync.zero) {
        (Some(servers), _) => Box::new(Server { servers }),
        (None, 0) => match sync.compression {
            Compression::None => Box::new(AllReduce { algorithm }),
            how => Box::new(Compressed { how, algorithm }),
        },
        (None, stage) => {
            let within = Zero { stage, all_reduces: sync.all_reduces, algorithm };
            match sync.shard_over {
                None => Box::new(within),
                Some(_) => Box::new(Hybrid { within }),
            }
        }
    }
}

/// How buckets are kept equal over their replicas, and in which formats they are.
pub(crate) struct Ways<'a> {
    /// Those that have several replicas and belong to none of the plan's groups of parameters.
    common: &'a dyn Synchronisation,
    /// Those that have several, by the group of their parameters.
    of_groups: Vec<Box<dyn Synchronisation>>,
    /// Those that have one.
    alone: AllReduce,
    /// Those of which no two replicas share, though the plan has others share, by group.
    whole: Vec<AllReduce>,
    /// Tables whose gradients are rows and values, by group.
    sparse: Vec<Sparse>,
    /// Frozen ones, by group.
    frozen: Vec<Option<Frozen>>,
    groups: ParameterGroups,
    syncs: Vec<Sync>,
    precisions: Vec<Precision>,
}

/// Which of a plan's groups of parameters it is; none for what is in none.
pub(crate) type ParameterGroupId = Option<usize>;

impl<'a> Ways<'a> {
    pub fn new(plan: &Plan, common: &'a dyn Synchronisation) -> Result<Ways<'a>, PlanError> {
        let frozen = |group: &ParameterGroup| {
            let sync = group.sync(plan.sync);
            let Sync { zero: stage, algorithm, .. } = sync;
            let shared = Zero { stage, all_reduces: false, algorithm };
            group.frozen.then_some(Frozen { shared: (sync.zero >= 3).then_some(shared) })
        };
        Ok(Ways {
            common,
            of_groups: plan.syncs().skip(1).map(way).collect(),
            alone: AllReduce { algorithm: plan.sync.algorithm },
            whole: plan.syncs().map(|it| AllReduce { algorithm: it.algorithm }).collect(),
            sparse: plan.syncs().map(|it| Sparse { algorithm: it.algorithm }).collect(),
            frozen: std::iter::once(None).chain(plan.parameters.iter().map(frozen)).collect(),
            groups: ParameterGroups::of(plan)?,
            syncs: plan.syncs().collect(),
            precisions: plan.precisions().collect(),
        })
    }

    /// The group of a parameter.
    pub fn group(&self, name: &str) -> ParameterGroupId {
        self.groups.group(name)
    }

    /// How the parameters of no group are kept equal.
    pub fn common(&self) -> &'a dyn Synchronisation {
        self.common
    }

    /// How the parameters of a group are kept equal, those with several replicas.
    pub fn replicated(&self, group: ParameterGroupId) -> &dyn Synchronisation {
        group.map_or(self.common, |group| &*self.of_groups[group])
    }

    /// How the parameters of a group are kept equal that have these replicas, or are such a table.
    pub fn of(
        &self,
        group: ParameterGroupId,
        replicas: &[Axis],
        lookups: Option<Lookups>,
    ) -> &dyn Synchronisation {
        let index = group.map_or(0, |group| 1 + group);
        if let Some(frozen) = &self.frozen[index] {
            return frozen;
        }
        match lookups.map(|it| it.holder) {
            Some(Holder::Readers) => return &self.sparse[index],
            Some(Holder::Servers) => return &AskedRows,
            Some(Holder::Server { .. }) => return &AnsweredRows,
            None => {}
        }
        match replicas.is_empty() && self.common.updates_alike() {
            true => &self.alone,
            false if self.shards(group, replicas).is_empty() && !replicas.is_empty() => {
                &self.whole[index]
            }
            false => self.replicated(group),
        }
    }

    /// Along which of these replicas the plan has the parameters of a group shared.
    pub fn shards(&self, group: ParameterGroupId, replicas: &[Axis]) -> Vec<Axis> {
        let over = self.sync(group).shard_over;
        let shares = |axis: &Axis| over.is_none_or(|over| over.contains(*axis));
        replicas.iter().copied().filter(shares).collect()
    }

    /// Along which of these replicas the plan has a second copy of the weights of a group shared; along none where all
    /// that share the weights would.
    pub fn second_shards(&self, group: ParameterGroupId, replicas: &[Axis]) -> Vec<Axis> {
        let Some(over) = self.sync(group).second_copy_over else { return vec![] };
        let mut shards = self.shards(group, replicas);
        let all = shards.len();
        shards.retain(|axis| over.contains(*axis));
        if shards.len() < all { shards } else { vec![] }
    }

    /// Whether tables of a group have gradients that are rows and values.
    pub fn is_sparse(&self, group: ParameterGroupId) -> bool {
        self.sync(group).sparse
    }

    /// Whether the parameters of a group are frozen.
    pub fn is_frozen(&self, group: ParameterGroupId) -> bool {
        self.frozen[group.map_or(0, |group| 1 + group)].is_some()
    }

    /// Whether each parameter is a bucket by itself, of which members tell each other when it is ready.
    pub fn parameters_are_apart(&self) -> bool {
        self.sync(None).negotiation.is_some()
    }

    /// What the plan says of a group on keeping replicas equal.
    pub fn sync(&self, group: ParameterGroupId) -> Sync {
        self.syncs[group.map_or(0, |group| 1 + group)]
    }

    /// The number formats of a group.
    pub fn precision(&self, group: ParameterGroupId) -> Precision {
        self.precisions[group.map_or(0, |group| 1 + group)]
    }
}
