//! The ordinary 3D plan in a few numbers: equal stages, one mesh for all.

use shardloom_graph::Graph;

use crate::{
    Arrangement, Axis, AxisSet, Communication, DeviceList, FORMAT, LayoutRule, LayoutRules, Mesh,
    Optimizer, PassTimes, Pipeline, Plan, PlanError, Precision, Recompute, ScheduleKind, Stage,
    Sync, Updates, even_cuts,
};

/// What `--pp 2 --dp 2 --tp 1 --zero 0 --schedule 1f1b` says. Ranks are numbered tensor parallelism
/// fastest, then context, then data, then pipeline (Narayanan et al. 2021, section 3).
#[derive(Clone, Debug, PartialEq)]
pub struct Uniform {
    /// Meshes of devices that a pipeline goes through: its stages, if each holds one.
    pub pp: usize,
    /// The mesh of every stage; with servers, as many workers of one device each as it has replicas.
    pub mesh: Mesh,
    /// Whether operators that tensor parallelism leaves whole are split along the sequence.
    pub sequence_parallel: bool,
    /// Samples of one step.
    pub global_batch: usize,
    /// Micro-batches of one step; with servers, of each worker in a step.
    pub microbatches: usize,
    /// Order of passes.
    pub schedule: ScheduleKind,
    /// Which activations are computed twice.
    pub recompute: Recompute,
    /// How replicas stay equal.
    pub sync: Sync,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Global norm of clipped gradients.
    pub clip_norm: Option<f64>,
}

impl Default for Uniform {
    /// One device and one sample in fp32, with no choice made.
    fn default() -> Uniform {
        Uniform {
            pp: 1,
            mesh: Mesh::SINGLE,
            sequence_parallel: false,
            global_batch: 1,
            microbatches: 1,
            schedule: ScheduleKind::OneForwardOneBackward,
            recompute: Recompute::None,
            sync: Sync::default(),
            precision: Precision::FP32,
            optimizer: Optimizer::default(),
            clip_norm: None,
        }
    }
}

impl Uniform {
    /// The plan in full, for `graph` written as `model` on `cluster`, with as few stages on each device
    /// as the schedule wants and blocks dealt [evenly](crate::even_cut). Numbers for which its
    /// arrangement does not exist leave no pipeline, which validation refuses.
    pub fn plan(&self, graph: &Graph, model: &str, cluster: &str) -> Plan {
        let places = self.places(self.least_chunks()).unwrap_or_default();
        self.cut_evenly(graph, model, cluster, &places)
    }

    /// Likewise with `chunks` stages on each of the `pp` meshes of devices.
    ///
    /// # Errors
    /// If the schedule's arrangement does not exist for these numbers.
    pub fn plan_in_chunks(
        &self,
        graph: &Graph,
        model: &str,
        cluster: &str,
        chunks: usize,
    ) -> Result<Plan, PlanError> {
        Ok(self.cut_evenly(graph, model, cluster, &self.places(chunks)?))
    }

    fn cut_evenly(&self, graph: &Graph, model: &str, cluster: &str, places: &[Vec<usize>]) -> Plan {
        let cuts = even_cuts(graph.blocks().len(), places.first().map_or(1, Vec::len));
        self.plan_of(graph, model, cluster, self.pipelines(places, &cuts))
    }

    /// For each pipeline the mesh, from 0, on which each of its stages lives, with `chunks` stages on each
    /// of the `pp` meshes. All pipelines have as many stages.
    ///
    /// # Errors
    /// If the schedule's arrangement does not exist for these numbers.
    pub fn places(&self, chunks: usize) -> Result<Vec<Vec<usize>>, PlanError> {
        self.arrangement().places(self.pp, chunks)
    }

    /// The workers of servers, if there are any: replicas of the whole model that are not split.
    fn workers(&self) -> Option<u32> {
        let is_split = self.pp > 1 || self.mesh.size() != self.mesh.dp() as usize;
        (self.sync.has_servers() && !is_split).then_some(self.mesh.dp())
    }

    /// Pipelines whose stages live on the meshes `places` and are cut at `cuts`: the first block of each
    /// stage, then the number of blocks. Workers are a pipeline each.
    pub fn pipelines(&self, places: &[Vec<usize>], cuts: &[usize]) -> Vec<Pipeline> {
        if let (Some(workers), Some(&end)) = (self.workers(), cuts.last()) {
            let worker = |device| {
                let devices = DeviceList(vec![device]);
                Pipeline::of(vec![Stage::new((0, end), Mesh::SINGLE, devices)])
            };
            return (0..workers).map(worker).collect();
        }
        let size = self.mesh.size() as u32;
        let stage = |(&place, run): (&usize, &[usize])| {
            let first = place as u32 * size;
            let devices = DeviceList((first..first + size).collect());
            Stage::new((run[0], run[1]), self.mesh, devices)
        };
        let pipeline = |places: &Vec<usize>| {
            Pipeline::of(places.iter().zip(cuts.windows(2)).map(stage).collect())
        };
        places.iter().map(pipeline).collect()
    }

    /// The fewest stages on each device that the schedule wants.
    pub fn least_chunks(&self) -> usize {
        self.arrangement().least_chunks()
    }

    fn arrangement(&self) -> Arrangement {
        self.schedule.arrangement().unwrap_or(Arrangement::Chain)
    }

    /// The plan that has these `pipelines`.
    pub fn plan_of(
        &self,
        graph: &Graph,
        model: &str,
        cluster: &str,
        pipelines: Vec<Pipeline>,
    ) -> Plan {
        // Replicas along an axis of their own do not share with those along the others, unless these share a second copy.
        let shares = || {
            let replicas: Vec<Axis> = [Axis::DP, Axis::CP]
                .into_iter()
                .filter(|&axis| self.mesh.width(axis) > 1)
                .collect();
            let is_cut = self.sync.zero > 0 && self.mesh.width(Axis::REPLICA) > 1;
            let replicas = if replicas.is_empty() { vec![Axis::DP] } else { replicas };
            AxisSet::of(&replicas).filter(|_| is_cut && self.sync.second_copy_over.is_none())
        };
        let shard_over = self.sync.shard_over.or_else(shares);
        Plan {
            format: FORMAT,
            model: model.into(),
            cluster: cluster.into(),
            axes: Axis::USUAL.to_vec(),
            global_batch: self.global_batch,
            microbatches: self.microbatches.saturating_mul(self.workers().unwrap_or(1) as usize),
            schedule: self.schedule,
            order: vec![],
            pass_times: PassTimes::default(),
            weights: self.schedule.usual_weights(),
            updates: Updates::default(),
            recompute: self.recompute,
            recompute_last: true,
            attention: graph.attention().unwrap_or_default(),
            mask_documents: graph.masks_documents(),
            keeps_gathered: false,
            layout: default_rules(graph, &self.mesh, self.sequence_parallel),
            clip_norm: self.clip_norm,
            skip_non_finite: false,
            loss_scale: None,
            post_validation: false,
            communication: match self.sync.negotiation {
                Some(_) => Communication::Thread,
                None => Communication::default(),
            },
            sync: Sync { shard_over, ..self.sync },
            precision: self.precision,
            parameters: vec![],
            optimizer: self.optimizer,
            pipeline: pipelines,
        }
    }
}

/// Megatron's split for transformers: heads, feed-forward width and vocabulary over tp, the batch over
/// dp (and before over replica, where the mesh has that), the sequence over cp. Plain stacks of layers split every second width,
/// and, where tp divides them, their classes, and tables of categories their rows.
fn default_rules(graph: &Graph, mesh: &Mesh, sequence_parallel: bool) -> LayoutRules {
    let mut rules = vec![];
    let mut rule = |dim: &str, axis: Axis| {
        if graph.dim_named(dim).is_some() {
            rules.push(LayoutRule { dim: dim.into(), axis });
        }
    };
    if mesh.width(Axis::REPLICA) > 1 {
        rule("batch", Axis::REPLICA);
    }
    rule("batch", Axis::DP);
    rule("seq", Axis::CP);
    for dim in ["heads", "ffn"] {
        rule(dim, Axis::TP);
    }
    // A vocabulary that is not divided is to be padded, which classes cannot be: they stay whole.
    let classes =
        graph.dims().iter().find(|it| it.name == "vocab" && graph.dim_named("seq").is_none());
    if classes.is_none_or(|it| it.size.is_multiple_of(mesh.width(Axis::TP))) {
        rule("vocab", Axis::TP);
    }
    for dim in graph.dims() {
        let width = dim.name.strip_prefix("width.").and_then(|index| index.parse::<usize>().ok());
        let is_split = width.is_some_and(|index| index.is_multiple_of(2));
        let rows = dim.name.strip_prefix("rows.").is_some_and(|it| it.parse::<usize>().is_ok());
        if is_split || (rows && dim.size.is_multiple_of(mesh.width(Axis::TP))) {
            rule(&dim.name, Axis::TP);
        }
    }
    if sequence_parallel {
        rule("seq", Axis::TP);
    }
    LayoutRules(rules)
}
