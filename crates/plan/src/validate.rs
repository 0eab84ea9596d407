//! Whether a plan fits a model and a number of devices.

use std::collections::BTreeSet;

use shardloom_collectives::Kind;
use shardloom_graph::{AttentionKind, Extents, Graph};

use crate::{
    Arrangement, Axis, Compression, LayoutRules, Mesh, Number, Optimizer, ParameterGroup,
    ParameterGroups, Plan, PlanError, Precision, Rounding, ScheduleKind, ServerSet, Servers, Share,
    Stage, Staleness, Summation, Sync, Updates,
};

impl Plan {
    /// Checks that the plan fits `graph` and a cluster of `devices` devices: stages tile the model,
    /// devices exist and are used once, and everything that is split divides. Whether it fits in memory
    /// is a question for its program.
    ///
    /// # Errors
    /// The first field that does not fit, and what would.
    pub fn validate(&self, graph: &Graph, devices: usize) -> Result<(), PlanError> {
        self.validate_attention(graph)?;
        self.validate_batch()?;
        self.validate_sync(graph)?;
        self.validate_servers(devices)?;
        self.optimizer.validate()?;
        self.validate_momentum()?;
        if let Some(norm) = self.clip_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return Err(PlanError::field("clip_norm", norm, "a norm is finite and above 0"));
        }
        if let Some(scale) = self.loss_scale {
            scale.validate(self)?;
        }
        self.validate_axes()?;
        self.validate_layout(graph, &self.layout, "layout")?;
        self.validate_rounding()?;
        if let Some(averaging) = self.sync.averaging {
            averaging.validate(self, graph)?;
        }
        if let Some(negotiation) = self.sync.negotiation {
            negotiation.validate(self)?;
        }
        let mut owners: Vec<Option<&Stage>> = vec![None; devices];
        for (pipeline, each) in self.pipeline.iter().enumerate() {
            let mut next = 0;
            for (index, stage) in each.stage.iter().enumerate() {
                let key = |field: &str| format!("pipeline[{pipeline}].stage[{index}].{field}");
                let (first, end) = stage.blocks;
                if first != next || end <= first {
                    let rule = format!(
                        "stages follow each other and hold at least one block; this one begins at {next}"
                    );
                    return Err(PlanError::field(key("blocks"), format!("[{first}, {end}]"), rule));
                }
                next = end;
                validate_devices(stage, &mut owners, &key)?;
                self.validate_stage(graph, stage, &key)?;
            }
            let blocks = graph.blocks().len();
            if next != blocks {
                let key = format!("pipeline[{pipeline}].stage");
                let rule = format!("the stages must end at the model's {blocks} blocks");
                return Err(PlanError::field(key, format!("end at block {next}"), rule));
            }
        }
        Ok(())
    }

    /// Checks that momentum scaled from a reference batch is still between 0 and 1 in the 32 bits it is used
    /// with.
    fn validate_momentum(&self) -> Result<(), PlanError> {
        let Optimizer::Sgd { momentum, reference_batch: Some(reference), .. } = self.optimizer
        else {
            return Ok(());
        };
        let samples = match self.updates {
            Updates::Step => self.global_batch,
            Updates::Round => self.microbatch_samples(),
        };
        let (scaled, _) = self.optimizer.for_batch(samples);
        let Optimizer::Sgd { momentum: scaled, .. } = scaled else { return Ok(()) };
        let (size, end) = match scaled as f32 {
            1.0 => ("large", 1),
            0.0 if momentum > 0.0 => ("small", 0),
            _ => return Ok(()),
        };
        let rule = format!(
            "so {size} that the momentum of updates of {samples} samples is {end} in 32 bits"
        );
        Err(PlanError::field("optimizer.reference_batch", reference, rule))
    }

    fn validate_batch(&self) -> Result<(), PlanError> {
        if self.pipeline.is_empty() {
            let rule = format!(
                "at least one; {} may have none for these numbers of stages and chunks",
                self.schedule.name()
            );
            return Err(PlanError::field("pipeline", 0, rule));
        }
        if self.microbatches == 0 || self.global_batch == 0 {
            let (key, value) = match self.microbatches {
                0 => ("microbatches", self.microbatches),
                _ => ("global_batch", self.global_batch),
            };
            return Err(PlanError::field(key, value, "at least 1"));
        }
        if !self.global_batch.is_multiple_of(self.microbatches) {
            let rule = format!("micro-batches must divide global_batch = {}", self.global_batch);
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        let pipelines = self.pipeline.len();
        if self.microbatches < pipelines {
            let rule = format!("one for each of {pipelines} pipelines, or more");
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        match self.pipeline.iter().any(|it| it.microbatches.is_some()) {
            true => self.validate_shares()?,
            false
                if !self.microbatches.is_multiple_of(pipelines) && !self.takes_uneven_shares() =>
            {
                let rule = format!(
                    "micro-batches are dealt to {pipelines} pipelines, so a multiple of that"
                );
                return Err(PlanError::field("microbatches", self.microbatches, rule));
            }
            false => {}
        }
        if self.order.is_empty() == (self.schedule == ScheduleKind::Table) {
            let rule =
                "a schedule \"table\" has a line of actions for each device, and no other has";
            return Err(PlanError::field("order", format!("{:?}", self.order), rule));
        }
        let zero = self.syncs().map(|sync| sync.zero).max().unwrap_or(0);
        self.weights.validate(self.schedule, &self.optimizer, zero)?;
        self.updates.validate(self)?;
        if self.post_validation && !self.flushes() {
            let rule = "an update is validated before any of the next step's gradients is there; only a \
                        schedule with flush (weights.rule = \"flush\") keeps them apart";
            return Err(PlanError::field("post_validation", true, rule));
        }
        self.pass_times.validate()
    }

    /// Checks that the pipelines, which say how many micro-batches each gets, get those of a step.
    fn validate_shares(&self) -> Result<(), PlanError> {
        let key = |pipeline: usize| format!("pipeline[{pipeline}].microbatches");
        for (index, pipeline) in self.pipeline.iter().enumerate() {
            match pipeline.microbatches {
                Some(0) => return Err(PlanError::field(key(index), 0, "at least 1")),
                Some(_) => {}
                None => {
                    let rule = "all pipelines say how many they get, or none does";
                    return Err(PlanError::field(key(index), "absent", rule));
                }
            }
        }
        let shares = self.shares();
        let sum = shares.iter().fold(0, |sum: usize, &share| sum.saturating_add(share));
        if sum != self.microbatches {
            let rule = format!("the pipelines' come to {sum}");
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        let takes_any = match self.schedule.arrangement() {
            Some(arrangement) => arrangement == Arrangement::TakingTurns,
            None => true,
        };
        if shares.windows(2).any(|pair| pair[0] != pair[1]) && !(takes_any && self.flushes()) {
            let rule = "unequal shares are for schedules with flush whose pipelines do not depend on each \
                        other, such as \"1f1b\" and \"afab\"";
            return Err(PlanError::field(key(0), shares[0], rule));
        }
        Ok(())
    }

    /// Whether one pipeline may get a micro-batch more than another.
    fn takes_uneven_shares(&self) -> bool {
        match self.schedule {
            ScheduleKind::Chimera => true,
            ScheduleKind::Table => self.flushes(),
            _ => false,
        }
    }

    fn validate_attention(&self, graph: &Graph) -> Result<(), PlanError> {
        if self.attention == AttentionKind::Fused && graph.attention().is_none() {
            let rule = "the model has no attention to fuse";
            return Err(PlanError::field("attention", self.attention.name(), rule));
        }
        Ok(())
    }

    fn validate_sync(&self, graph: &Graph) -> Result<(), PlanError> {
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
            group.validate_servers(&key, self.sync)?;
            check_sync(&key, group.sync(self.sync), group.precision(self.precision))?;
        }
        self.validate_compressed(graph)?;
        self.validate_sparse(graph, &groups)?;
        self.validate_shards(graph)
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

    /// Checks that what servers do for workers is all that keeps replicas equal.
    fn validate_servers(&self, devices: usize) -> Result<(), PlanError> {
        let (key, count) = match (self.sync.servers, self.sync.summation) {
            (None, None) => return Ok(()),
            (Some(servers), None) => ("sync.servers.count", servers.count),
            (None, Some(summation)) => ("sync.summation.servers", summation.servers),
            (Some(_), Some(summation)) => {
                let rule = "servers hold the weights (sync.servers) or sum gradients (sync.summation), and \
                            not both";
                return Err(PlanError::field("sync.summation.servers", summation.servers, rule));
            }
        };
        if count == 0 {
            return Err(PlanError::field(key, 0, "at least 1"));
        }
        if self.least_devices() > devices {
            let least = self.least_devices();
            let rule = format!(
                "with servers each has a device after those of the workers, {least} in all; the cluster has \
                 {devices}"
            );
            return Err(PlanError::field(key, count, rule));
        }
        self.validate_workers()?;
        match (self.sync.servers, self.sync.summation) {
            (Some(servers), _) => self.validate_held(servers),
            (_, Some(summation)) => self.validate_summation(summation),
            (None, None) => Ok(()),
        }
    }

    /// Checks that each pipeline is a worker that does one step after another.
    fn validate_workers(&self) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(PlanError::field(key, value, format!("with servers {rule}")))
        };
        if let Some(pipeline) = self.pipeline.iter().find(|pipeline| pipeline.stage.len() != 1) {
            let rule = "each pipeline is one stage, a worker with the whole model";
            return refuse("pipeline.stage", pipeline.stage.len().to_string(), rule);
        }
        if let Some((_, stage)) = self.stages().find(|(_, stage)| stage.mesh != Mesh::SINGLE) {
            let rule = "each worker is one device: what splits or copies it is not built";
            return refuse("pipeline.stage.mesh", stage.mesh.to_string(), rule);
        }
        let devices: BTreeSet<u32> =
            self.stages().flat_map(|(_, stage)| stage.devices.0.iter().copied()).collect();
        if devices.len() < self.pipeline.len() {
            let rule = "each worker has a device of its own";
            return refuse(
                "pipeline",
                format!("{} on {} devices", self.pipeline.len(), devices.len()),
                rule,
            );
        }
        if let Some(sync) = self.syncs().find(|sync| sync.zero > 0) {
            let rule = "nothing is sharded over workers";
            return refuse("sync.zero", sync.zero.to_string(), rule);
        }
        if !self.flushes() {
            let rule = "a worker has one set of weights in a step, so flush";
            return refuse("weights.rule", self.weights.name().into(), rule);
        }
        if self.updates != Updates::Step {
            let rule = "a worker sends its gradients once a step, so step";
            return refuse("updates", self.updates.name().into(), rule);
        }
        Ok(())
    }

    /// Checks what servers that sum gradients can have.
    fn validate_summation(&self, summation: Summation) -> Result<(), PlanError> {
        if let Share::Part(part) = summation.share
            && !(part > 0.0 && part <= 1.0)
        {
            let rule =
                "above 0 and up to 1, or \"balanced\"; without sync.summation workers sum all";
            return Err(PlanError::field("sync.summation.share", part, rule));
        }
        let to_servers = |group: &ParameterGroup| group.sync(self.sync).summation.is_some();
        let groups = self.parameters.iter().enumerate();
        let mut groups = groups.filter(|(_, group)| to_servers(group));
        if let Some((index, algorithm)) =
            groups.find_map(|(index, it)| Some((index, it.algorithm?)))
        {
            let rule = "workers sum what servers leave by direct all-reduces: leave it out, or let workers sum \
                        all (servers = [])";
            return Err(PlanError::field(
                format!("parameters[{index}].algorithm"),
                algorithm,
                rule,
            ));
        }
        Ok(())
    }

    /// Checks that there are weights that are rounded stochastically, where the plan says so.
    fn validate_rounding(&self) -> Result<(), PlanError> {
        let Precision { compute, rounding, .. } = self.precision;
        let has_any = compute == Number::Bf16 && self.trained_precisions().any(|it| !it.master);
        if rounding == Rounding::Nearest || has_any {
            return Ok(());
        }
        let rule = "of weights in bf16 without an fp32 copy: compute = \"bf16\" and master = false";
        Err(PlanError::field("precision.rounding", rounding.name(), rule))
    }

    /// Checks what servers that hold the weights cannot have.
    fn validate_held(&self, servers: Servers) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(PlanError::field(key, value, format!("with servers {rule}")))
        };
        if let Some(key) = self.norm_key() {
            let rule = "each updates what it holds by itself, so no update can be made smaller, or left out, \
                        by what all gradients come to";
            return refuse(key, "set".into(), rule);
        }
        if self.precision != Precision::FP32 {
            let rule =
                "everything is in fp32 so far: compute and gradients = \"fp32\", master = false";
            return refuse("precision", format!("{:?}", self.precision), rule);
        }
        let adds_up = servers.staleness == Staleness::SYNCHRONOUS;
        let Servers { count, replicas, lost, .. } = servers;
        if replicas > 0 && !adds_up {
            let rule = "and staleness an update is made with each worker's gradients by themselves, and replicas \
                        are sent only what was added up: staleness = 0, or no replicas";
            return refuse("sync.servers.replicas", replicas.to_string(), rule);
        }
        if replicas >= count {
            let rule =
                format!("each replica of a range is on another one: fewer than count = {count}");
            return refuse("sync.servers.replicas", replicas.to_string(), &rule);
        }
        if replicas > 0 && count > ServerSet::MOST {
            let rule = format!("that have replicas there are at most {}", ServerSet::MOST);
            return refuse("sync.servers.count", count.to_string(), &rule);
        }
        if servers.left().next().is_none() || lost.iter().any(|server| server >= count) {
            let rule = format!("some of {count}, numbered from 0, are lost, and not all");
            return refuse("sync.servers.lost", lost.to_string(), &rule);
        }
        if let (false, Optimizer::Sgd { reference_batch: Some(batch), .. }) =
            (adds_up, self.optimizer)
        {
            let rule = "and staleness an update is made for each worker's part of a step, and none for so \
                        many samples";
            return refuse("optimizer.reference_batch", batch.to_string(), rule);
        }
        Ok(())
    }

    /// Checks that a layout splits dimensions of the model over axes of the plan; `key` says where it stands.
    fn validate_layout(
        &self,
        graph: &Graph,
        layout: &LayoutRules,
        key: &str,
    ) -> Result<(), PlanError> {
        for rule in &layout.0 {
            if graph.dim_named(&rule.dim).is_none() {
                let names: Vec<_> = graph.dims().iter().map(|dim| dim.name.as_str()).collect();
                let rule_text = format!("the model's dimensions are {}", names.join(", "));
                return Err(PlanError::field(key, &rule.dim, rule_text));
            }
            if !self.axes.contains(&rule.axis) {
                let text = format!("{}:{}", rule.dim, rule.axis);
                return Err(PlanError::field(key, text, self.axes_rule()));
            }
        }
        Ok(())
    }

    /// Checks that axes are named once.
    fn validate_axes(&self) -> Result<(), PlanError> {
        let mut known: Vec<Axis> = vec![];
        for &axis in &self.axes {
            if known.contains(&axis) {
                return Err(PlanError::field("axes", axis, "each axis is named once"));
            }
            known.push(axis);
        }
        Ok(())
    }

    /// What to say of an axis that the plan does not have.
    fn axes_rule(&self) -> String {
        let names: Vec<&str> = self.axes.iter().map(Axis::name).collect();
        format!("the plan's mesh axes are {}; others are named in `axes`", names.join(", "))
    }

    /// Checks that a mesh has axes of the plan, in their order, and none of width 0.
    fn validate_mesh(&self, mesh: &Mesh, key: &dyn Fn(&str) -> String) -> Result<(), PlanError> {
        for axis in mesh.axes() {
            let refuse = |rule: String| {
                Err(PlanError::field(key(&format!("mesh.{axis}")), mesh.width(axis), rule))
            };
            if !self.axes.contains(&axis) {
                return refuse(self.axes_rule());
            }
            if mesh.width(axis) == 0 {
                return refuse("at least 1".into());
            }
        }
        if mesh.arranged(&self.axes) != *mesh {
            let rule = "its axes are in the order of the plan's `axes`";
            return Err(PlanError::field(key("mesh"), mesh, rule));
        }
        Ok(())
    }

    fn validate_stage(
        &self,
        graph: &Graph,
        stage: &Stage,
        key: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        let mesh = stage.mesh;
        self.validate_mesh(&mesh, key)?;
        let layout = self.layout_of(stage);
        if let Some(own) = &stage.layout {
            self.validate_layout(graph, own, &key("layout"))?;
        }
        let mut widths = mesh.axes().map(|axis| mesh.width(axis));
        let size = widths.try_fold(1usize, |product, width| product.checked_mul(width));
        if size != Some(stage.devices.0.len()) {
            let count = stage.devices.0.len();
            let rule =
                format!("the mesh ({mesh}) must have as many devices as are listed, {count}");
            return Err(PlanError::field(key("devices"), listed(stage), rule));
        }
        let samples = self.microbatch_samples();
        let extents = Extents::global(graph, samples);
        for axis in mesh.axes() {
            let width = mesh.width(axis);
            let mut split = false;
            for rule in layout.0.iter().filter(|rule| rule.axis == axis) {
                let Some(dim) = graph.dim_named(&rule.dim) else { continue };
                let others: usize = mesh
                    .axes()
                    .filter(|&other| other != axis && layout.splits(&rule.dim, other))
                    .map(|other| mesh.width(other))
                    .product();
                let extent = extents.get(dim);
                if !extent.is_multiple_of(width * others) {
                    let what = if dim == graph.batch() {
                        format!(
                            "a micro-batch of {} (global batch {} in {})",
                            counted(samples, "sample"),
                            self.global_batch,
                            counted(self.microbatches, "micro-batch")
                        )
                    } else {
                        format!("{} = {extent}", rule.dim)
                    };
                    let together = match others {
                        1 => String::new(),
                        _ => format!(
                            "with the axes that split {} too, {} parts, ",
                            rule.dim,
                            width * others
                        ),
                    };
                    let larger = match rule.dim.as_str() {
                        "vocab" => larger_vocabulary(extent, width * others),
                        _ => String::new(),
                    };
                    let rule = format!("{together}it must divide {what}{larger}");
                    return Err(PlanError::field(key(&format!("mesh.{axis}")), width, rule));
                }
                split = true;
            }
            if !split {
                let rule = format!(
                    "the layout \"{}\" splits nothing over {axis}",
                    String::from(layout.clone())
                );
                return Err(PlanError::field(key(&format!("mesh.{axis}")), width, rule));
            }
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
    if sync.server_count() > 0 {
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

/// Checks that the devices of a stage exist, are named once, and belong to no other stage unless that
/// has the very same devices in the same mesh.
fn validate_devices<'p>(
    stage: &'p Stage,
    owners: &mut [Option<&'p Stage>],
    key: &dyn Fn(&str) -> String,
) -> Result<(), PlanError> {
    let refuse = |device: u32, rule: String| {
        let rule = format!("device {device}: {rule}");
        Err(PlanError::field(key("devices"), listed(stage), rule))
    };
    let count = owners.len();
    let owner = |device: &u32| owners.get(*device as usize).copied().flatten();
    if let Some(other) = stage.devices.0.first().and_then(owner)
        && other.devices == stage.devices
        && other.mesh == stage.mesh
    {
        return Ok(());
    }
    for &device in &stage.devices.0 {
        match owners.get_mut(device as usize) {
            Some(owner @ None) => *owner = Some(stage),
            Some(Some(owner)) if std::ptr::eq(*owner, stage) => {
                return refuse(device, "each device once".into());
            }
            Some(Some(_)) => {
                let rule = "stages share either all of their devices, in the same mesh, or none";
                return refuse(device, rule.into());
            }
            None => {
                return refuse(device, format!("the cluster has {count} devices, numbered from 0"));
            }
        }
    }
    Ok(())
}

/// The devices of a stage as a plan lists them.
fn listed(stage: &Stage) -> String {
    let text = String::from(stage.devices.clone());
    let shown: String = text.chars().take(60).collect();
    let rest = if shown.len() < text.len() { ".." } else { "" };
    format!("\"{shown}{rest}\"")
}

/// The vocabularies behind one of `size` tokens that `parts` divide.
fn larger_vocabulary(size: usize, parts: usize) -> String {
    // Vocabularies are usually padded to multiples of 128, at which matrix products are fast.
    let padded = (128 >> parts.trailing_zeros().min(7)) as usize;
    let multiple = parts.saturating_mul(padded);
    let (Some(next), Some(usual)) =
        (size.checked_next_multiple_of(parts), size.checked_next_multiple_of(multiple))
    else {
        return String::new();
    };
    if parts > size {
        return String::new();
    }
    format!(
        "; the next size that it divides is {next}, and {usual}, a multiple of {multiple}, is a usual one: \
         vocab={usual} in the words of the model"
    )
}

/// `1 sample`, `2 samples`, `2 micro-batches`.
fn counted(count: usize, thing: &str) -> String {
    match (count, thing.ends_with("ch")) {
        (1, _) => format!("1 {thing}"),
        (_, true) => format!("{count} {thing}es"),
        (_, false) => format!("{count} {thing}s"),
    }
}
