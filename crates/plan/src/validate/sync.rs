//! Whether replicas can be kept equal, of all parameters and of groups of them.

use std::collections::BTreeSet;

use shardloom_collectives::Kind;
use shardloom_graph::Graph;

use crate::{
    Axis, Compression, Number, ParameterGroup, ParameterGroups, Plan, PlanError, Precision, Stage,
    Sync,
};

impl Plan {
    pub(super) fn validate_sync(&self, graph: &Graph) -> Result<(), PlanError> {
        check_sync("sync", self.sync, self.precision)?;
        let groups = ParameterGroups::of(self)?;
        let parameters = graph.values().filter(|(_, value)| value.parameter().is_some());
        let used: BTreeSet<usize> =
            parameters.filter_map(|(_, value)| groups.group(&value.name)).collect();
        for (index, group) in self.parameters.iter().enumerate() {
            let key = format!("parameters[{index}]");
            if !used.contains(&index) {
                let rule = "names of the model's parameters that no group before it has";
                let names = format!("{:?}", group.names);
                return Err(PlanError::field(format!("{key}.names"), names, rule));
            }
            if self.sync.servers.is_some() {
                let rule = "with servers, which hold all parameters alike, there are no groups";
                return Err(PlanError::field(key, format!("{:?}", group.names), rule));
            }
            group.validate_frozen(&key)?;
            group.validate_servers(&key, self.sync, self.pipeline.len())?;
            check_sync(&key, group.sync(self.sync), group.precision(self.precision))?;
        }
        self.validate_compressed(graph)?;
        self.validate_sparse(graph, &groups)?;
        self.validate_shards(graph)?;
        self.validate_second_copy(graph)
    }

    /// Checks that where gradients are to be compressed some are: those that pipelines sum up among themselves go
    /// as they are.
    fn validate_compressed(&self, graph: &Graph) -> Result<(), PlanError> {
        let axes = self.replica_axes(graph);
        let is_wide = |stage: &Stage| stage.mesh.span(&axes) > 1;
        let compressed = self.syncs().find(|sync| !sync.compression.is_none());
        match compressed.filter(|_| self.pipeline.len() > 1) {
            Some(sync) if !self.stages().any(|(_, stage)| is_wide(stage)) => {
                let rule = "replicas within stages (mesh = { dp = 2 }), between which gradients are compressed; \
                            what pipelines sum up goes as it is";
                Err(PlanError::field("sync.compression", sync.compression, rule))
            }
            _ => Ok(()),
        }
    }

    /// Checks that replicas share along axes that have replicas, and that there is something that they
    /// share.
    fn validate_shards(&self, graph: &Graph) -> Result<(), PlanError> {
        let of_plan =
            ("sync".to_owned(), self.sync.shard_over, self.syncs().all(|it| it.zero == 0));
        let of_group = |(index, group): (usize, &ParameterGroup)| {
            let zero = group.sync(self.sync).zero;
            (format!("parameters[{index}]"), group.shard_over, zero == 0)
        };
        let replicas = self.replica_axes(graph);
        let groups = self.parameters.iter().enumerate().map(of_group);
        for (key, axes, whole) in std::iter::once(of_plan).chain(groups) {
            let Some(axes) = axes else { continue };
            let refuse =
                |rule: String| Err(PlanError::field(format!("{key}.shard_over"), axes, rule));
            if whole {
                return refuse("with zero = 0 nothing is shared; 1 to 3 share".into());
            }
            if axes.iter().next().is_none() {
                return refuse("at least one axis; zero = 0 shares nothing".into());
            }
            if axes.iter().any(|axis| !replicas.contains(&axis)) {
                let names: Vec<&str> = replicas.iter().map(Axis::name).collect();
                return refuse(format!("the axes that have replicas are {}", names.join(", ")));
            }
        }
        Ok(())
    }

    /// Checks that a second copy of shared weights is among fewer ranks than the first, in some stage.
    fn validate_second_copy(&self, graph: &Graph) -> Result<(), PlanError> {
        let Some(axes) = self.sync.second_copy_over else { return Ok(()) };
        let refuse = |rule: String| Err(PlanError::field("sync.second_copy_over", axes, rule));
        let mut over: Vec<Axis> = self.replica_axes(graph);
        for sync in self.syncs().filter(|sync| sync.zero == 3) {
            let shares = |axis: &Axis| sync.shard_over.is_none_or(|over| over.contains(*axis));
            over.retain(shares);
        }
        if self.syncs().all(|sync| sync.zero != 3) {
            return refuse("a second copy is of weights that are shared: zero = 3".into());
        }
        if !self.flushes() {
            let rule = "it is of the last forward pass, and the weights of a backward pass are others where \
                        steps overlap: give a schedule with a flush";
            return refuse(rule.into());
        }
        let names = || over.iter().map(|axis| axis.name()).collect::<Vec<_>>().join(", ");
        if axes.iter().any(|axis| !over.contains(&axis)) {
            return refuse(format!("the axes along which all weights are shared are {}", names()));
        }
        let axes: Vec<Axis> = axes.iter().collect();
        let is_among_fewer = |stage: &Stage| {
            let [second, first] = [&axes, &over].map(|axes| stage.mesh.span(axes));
            1 < second && second < first
        };
        if !self.stages().any(|(_, stage)| is_among_fewer(stage)) {
            return refuse(format!(
                "it is shared by at least two ranks, and by fewer than the first copy, which is along {}",
                names()
            ));
        }
        Ok(())
    }
}

/// Checks what a plan's `key` says on how replicas stay equal.
fn check_sync(key: &str, sync: Sync, precision: Precision) -> Result<(), PlanError> {
    let refuse = |field: &str, value: String, rule: &str| {
        Err(PlanError::field(format!("{key}.{field}"), value, rule))
    };
    if sync.zero > 3 {
        return refuse("zero", sync.zero.to_string(), "a ZeRO stage is 0 to 3");
    }
    if sync.bucket_bytes == 0 {
        return refuse("bucket_bytes", "0".into(), "at least 1");
    }
    if sync.splits_blocks && sync.zero > 2 {
        let rule = "for weights that are not gathered block by block: zero up to 2, or leave splits_blocks out";
        return refuse("splits_blocks", "true".into(), rule);
    }
    if sync.all_reduces && sync.zero != 1 {
        let rule =
            "for replicas that share optimizer state alone: zero = 1, or leave all_reduces out";
        return refuse("all_reduces", "true".into(), rule);
    }
    let algorithm = sync.algorithm;
    let scatters = [Kind::ReduceScatter, Kind::AllGather].iter().all(|kind| kind.has(algorithm));
    if sync.zero > 0 && !scatters {
        let rule = "ZeRO scatters and gathers, which this algorithm does not do; ring, direct, \
                    halving-doubling and hierarchical do";
        return refuse("algorithm", algorithm.to_string(), rule);
    }
    check_compression(key, sync, precision)
}

/// Checks that what a plan's `key` says on compression can be done with what else it says.
fn check_compression(key: &str, sync: Sync, precision: Precision) -> Result<(), PlanError> {
    let how = sync.compression;
    if how.is_none() {
        return Ok(());
    }
    let refuse = |field: String, value: String, rule: &str| {
        Err(PlanError::field(field, value, format!("with compression {how} {rule}")))
    };
    if sync.has_servers() {
        let rule = "there are no servers: workers send them their gradients as they are";
        return refuse(format!("{key}.compression"), how.to_string(), rule);
    }
    if sync.averaging.is_some() {
        let rule = "replicas exchange gradients: leave sync.averaging out";
        return refuse(format!("{key}.compression"), how.to_string(), rule);
    }
    if sync.zero > 0 {
        let rule = "every replica updates all weights, so 0";
        return refuse(format!("{key}.zero"), sync.zero.to_string(), rule);
    }
    if precision.gradients != Number::Fp32 {
        let rule = "gradients are accumulated in fp32";
        let found = format!("{:?}", precision.gradients).to_lowercase();
        return refuse("precision.gradients".into(), found, rule);
    }
    let algorithm = sync.algorithm;
    let gathers = matches!(how, Compression::OneBit | Compression::TopK { .. });
    if gathers && !Kind::AllGather.has(algorithm) {
        let rule = "replicas gather what all send, which this algorithm does not do; ring, direct, \
                    halving-doubling and hierarchical do";
        return refuse(format!("{key}.algorithm"), algorithm.to_string(), rule);
    }
    Ok(())
}
