//! What a plan is in numbers, if that is all that it is.

use super::{RankOrder, Recipe, StagePlace};
use crate::{ExchangeError, Project, Transformer, Unsaid};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Arrangement, Axis, Communication, DeviceList, LayoutRule, LayoutRules, Mesh, Number, Plan,
    Rounding, ScheduleKind, Stage, Uniform, Updates, Weights,
};

/// A plan has another number of pipelines than one.
pub(super) fn several_pipelines(project: Project, count: usize) -> ExchangeError {
    let reason = "a rank has the stages of one pipeline, forward through the ranks or to and fro, and data \
                  parallelism is inside of stages (mesh = { dp = 2 })";
    ExchangeError::refused(project, "pipeline", format!("{count} pipelines"), reason)
}

/// The sizes of a model that is written for other projects.
pub(crate) fn transformer_of(
    project: Project,
    spec: &ModelSpec,
) -> Result<Transformer, ExchangeError> {
    if let Some(model) = Transformer::of(spec) {
        return Ok(model);
    }
    let reason = "only a GPT, a Llama, and the network of examples/models/transformer-with-experts.toml, their loss in one \
                  block with the head, are written for other projects";
    Err(ExchangeError::refused(project, "model", spec.name(), reason))
}

impl Recipe {
    /// A plan for `spec`, whose graph is `graph`, in numbers, and what of it no project says.
    ///
    /// # Errors
    /// If the plan says something that no project's configuration says, and that makes it what it is.
    pub(crate) fn of(
        project: Project,
        plan: &Plan,
        spec: &ModelSpec,
        graph: &Graph,
    ) -> Result<(Recipe, Vec<Unsaid>), ExchangeError> {
        // Whoever gives plans a new word decides here what becomes of it elsewhere.
        let Plan {
            format: _,
            model: _,
            cluster: _,
            axes: _,
            global_batch,
            microbatches,
            schedule,
            order: _,
            pass_times: _,
            weights,
            updates,
            recompute: _,
            recompute_last: _,
            attention,
            mask_documents,
            keeps_gathered,
            layout: _,
            clip_norm,
            skip_non_finite,
            loss_scale,
            post_validation,
            communication,
            sync,
            precision,
            parameters,
            optimizer,
            pipeline,
        } = plan;
        let refuse = |key: &str, value: String, reason: &str| {
            Err(ExchangeError::refused(project, key, value, reason))
        };
        let unwritten = |key: &'static str, value: String, reason: &'static str| {
            Err(ExchangeError::Unwritten { project, key, value, reason })
        };
        let model = transformer_of(project, spec)?;
        if let Some(servers) = &sync.servers {
            let reason = "there are no parameter servers";
            return refuse("sync.servers", servers.count.to_string(), reason);
        }
        if !sync.compression.is_none() {
            let reason = "leave it out, and turn compression of gradients on there";
            return unwritten("sync.compression", sync.compression.to_string(), reason);
        }
        if sync.sparse {
            let reason = "leave it out, and turn sparse gradients of embeddings on there";
            return unwritten("sync.sparse", "true".into(), reason);
        }
        // It always has attention within documents.
        let masks = project == Project::Torchtitan;
        if *mask_documents && !masks {
            let reason = "leave it out, and keep attention within documents there";
            return unwritten("mask_documents", "true".into(), reason);
        }
        if let Some(averaging) = &sync.averaging {
            let reason = "replicas have equal weights: leave sync.averaging out";
            return refuse("sync.averaging", format!("every {} steps", averaging.every), reason);
        }
        if let Some(summation) = &sync.summation {
            let reason = "there are no servers that sum gradients";
            return refuse("sync.summation", summation.servers.to_string(), reason);
        }
        if let Some(negotiation) = &sync.negotiation {
            let reason = "gradients are reduced in the order of the backward pass: leave sync.negotiation out";
            let value = format!("cycles of {} s", negotiation.cycle_seconds);
            return refuse("sync.negotiation", value, reason);
        }
        if precision.rounding != Rounding::Nearest {
            let reason =
                "no project that plans go to rounds weights so: master = true, and leave it out";
            return refuse("precision.rounding", precision.rounding.name().into(), reason);
        }
        if *weights != Weights::Flush {
            let reason = "a step's passes all run with the weights of its begin: choose a schedule \
                          with a flush";
            return refuse("weights.rule", weights.name().into(), reason);
        }
        if *updates != Updates::Step {
            let reason = "stages update once a step: leave `updates` out";
            return refuse("updates", updates.name().into(), reason);
        }
        if let Some(group) = parameters.first() {
            let reason = "all parameters are kept equal alike: leave out the groups";
            return refuse("parameters", format!("{:?}", group.names), reason);
        }
        let [pipeline] = &pipeline[..] else {
            return Err(several_pipelines(project, pipeline.len()));
        };
        let (first, rest) = pipeline.stage.split_first().ok_or_else(|| {
            ExchangeError::refused(project, "pipeline.stage", 0, "at least one is needed")
        })?;
        let recompute = plan.recompute_of(first);
        if rest.iter().any(|stage| plan.recompute_of(stage) != recompute) {
            let reason = "one policy goes for all stages";
            return refuse("pipeline.stage.recompute", "differs".into(), reason);
        }
        let layout = plan.layout_of(first);
        if rest.iter().any(|stage| plan.layout_of(stage) != layout || stage.mesh != first.mesh) {
            let reason = "one mesh and one layout go for all stages";
            return refuse("pipeline.stage.mesh", "differs".into(), reason);
        }
        let widths = Widths::of(project, plan, layout, first.mesh, graph)?;
        let used: Vec<u32> = plan.devices().into_iter().collect();
        let (stages, rank_order) = places(project, &pipeline.stage, &used)?;
        let groups = stages.iter().map(|stage| stage.group).max().map_or(0, |last| last + 1);
        if let Some(arrangement) = schedule.arrangement() {
            let given: Vec<usize> = stages.iter().map(|stage| stage.group).collect();
            if usual_groups(*schedule, groups, given.len() / groups.max(1)) != Some(given) {
                let reason = format!(
                    "its stages are arranged otherwise than {arrangement:?} has them on {groups} groups \
                     of devices"
                );
                return refuse("schedule", schedule.name().into(), &reason);
            }
        }
        let recipe = Recipe {
            model,
            pp: groups,
            dp: widths.dp,
            groups: widths.groups,
            second_copy: widths.second_copy,
            ep: widths.ep,
            cp: widths.cp,
            tp: widths.tp,
            sequence_parallel: widths.sequence_parallel,
            keeps_gathered: *keeps_gathered,
            stages,
            rank_order,
            global_batch: *global_batch,
            microbatches: *microbatches,
            schedule: *schedule,
            recompute,
            attention: *attention,
            zero: if widths.sharing_ranks > 1 { sync.zero } else { 0 },
            bucket_bytes: sync.bucket_bytes,
            precision: *precision,
            optimizer: *optimizer,
            clip_norm: *clip_norm,
            loss_scale: loss_scale.filter(|_| precision.compute == Number::Fp16),
        };
        let mut unsaid = vec![];
        let mut leave_out = |key: &str, value: String, reason: &str| {
            unsaid.push(Unsaid { key: key.into(), value, reason: reason.into() });
        };
        if recipe.devices() > 1 {
            let reason = "the communication library chooses the algorithm of each collective";
            leave_out("sync.algorithm", sync.algorithm.to_string(), reason);
        }
        if used.iter().zip(0..).any(|(&device, rank)| device != rank) {
            let reason =
                "ranks are numbered from 0 on: start them on the machines of these devices only";
            leave_out("pipeline.stage.devices", String::from(DeviceList(used)), reason);
        }
        if sync.zero > recipe.zero {
            let reason = "there is one replica to share it, so nothing is sharded";
            leave_out("sync.zero", sync.zero.to_string(), reason);
        }
        if masks && !mask_documents {
            let reason = "attention is within documents there, as far as samples have several";
            leave_out("mask_documents", "false".into(), reason);
        }
        if plan.spares_last() {
            let reason = "the last micro-batch is computed twice as the others are";
            leave_out("recompute_last", "false".into(), reason);
        }
        // What nanotron does.
        let all_reduces = project == Project::Nanotron;
        if recipe.zero == 1 && sync.all_reduces != all_reduces {
            let reason = "gradients are reduced as the project does it";
            leave_out("sync.all_reduces", sync.all_reduces.to_string(), reason);
        }
        if recipe.zero == 0 && recipe.dp > 1 && all_reduces && !sync.splits_blocks {
            let reason = "buckets end within blocks, as in PyTorch's DistributedDataParallel";
            leave_out("sync.splits_blocks", "false".into(), reason);
        }
        if *keeps_gathered && project != Project::Nanotron {
            let reason = "what is gathered is kept or gathered again as the project does it";
            leave_out("keeps_gathered", "true".into(), reason);
        }
        if *post_validation {
            let reason = "updates wait for the norm of all gradients";
            leave_out("post_validation", "true".into(), reason);
        }
        if *communication != Communication::default() {
            let reason = "devices have their own queues for communication";
            leave_out("communication", "thread".into(), reason);
        }
        if let Some(scale) = loss_scale.filter(|_| recipe.loss_scale.is_none()) {
            leave_out("loss_scale", scale.initial().to_string(), "it is said in fp16 only");
        }
        if loss_scale.is_none() && precision.compute == Number::Fp16 {
            let reason = "in fp16 the loss is scaled, as usual there";
            leave_out("loss_scale", "none".into(), reason);
        }
        if *skip_non_finite {
            let reason = "what is done about gradients that are not finite is decided there";
            leave_out("skip_non_finite", "true".into(), reason);
        }
        Ok((recipe, unsaid))
    }
}

struct Widths {
    dp: usize,
    /// Groups of replicas that shard among themselves.
    groups: usize,
    /// How many neighbouring replicas share a second copy of the weights.
    second_copy: Option<usize>,
    /// Ranks that share what ZeRO shards, those of one sequence counted.
    sharing_ranks: usize,
    /// Ranks among which experts are dealt.
    ep: usize,
    cp: usize,
    tp: usize,
    sequence_parallel: bool,
}

impl Widths {
    /// The widths of a mesh that is split as usual.
    fn of(
        project: Project,
        plan: &Plan,
        layout: &LayoutRules,
        mesh: Mesh,
        graph: &Graph,
    ) -> Result<Widths, ExchangeError> {
        let known = [Axis::REPLICA, Axis::DP, Axis::EP, Axis::CP, Axis::TP];
        if let Some(other) = mesh.axes().find(|axis| !known.contains(axis)) {
            let reason = "devices are told apart by data, expert, context and tensor parallelism, called \
                          dp (and replica), ep, cp and tp";
            return Err(ExchangeError::refused(
                project,
                format!("pipeline.stage.mesh.{other}"),
                mesh.width(other),
                reason,
            ));
        }
        if mesh != mesh.arranged(&Axis::USUAL) {
            let reason = "tensor-parallel neighbours are adjacent ranks, then context-parallel ones, then \
                          replicas: leave `axes` out";
            return Err(ExchangeError::refused(project, "axes", mesh, reason));
        }
        let (groups, sharing_ranks) = sharing(project, plan, mesh)?;
        let second_copy = second_copy(project, plan, mesh)?;
        let (layout, ep) = without_experts(project, layout, mesh)?;
        let layout = &layout;
        let counts = |layout: &LayoutRules| -> Vec<_> {
            layout.0.iter().filter(|rule| mesh.width(rule.axis) > 1).cloned().collect()
        };
        let usual = |sequence_parallel: bool| {
            let numbers = Uniform {
                pp: 1,
                mesh,
                sequence_parallel,
                global_batch: 1,
                microbatches: 1,
                schedule: ScheduleKind::Afab,
                recompute: plan.recompute,
                sync: plan.sync,
                precision: plan.precision,
                optimizer: plan.optimizer,
                clip_norm: None,
            };
            numbers.plan_of(graph, "", "", vec![]).layout
        };
        let (with, without) = (usual(true), usual(false));
        let sequence_parallel = mesh.tp() > 1 && counts(layout) == counts(&with);
        if !sequence_parallel && counts(layout) != counts(&without) {
            let reason = format!(
                "tensors are split as \"{}\", with or without \"seq:tp\" as the last",
                String::from(without)
            );
            let value = format!("{:?}", String::from(layout.clone()));
            return Err(ExchangeError::refused(project, "layout", value, reason));
        }
        let [cp, tp] = [Axis::CP, Axis::TP].map(|axis| mesh.width(axis));
        if ep > 1 && groups > 1 {
            let reason = "with expert parallelism all replicas share: leave it out";
            let value = plan.sync.shard_over.map_or_else(|| "all".into(), |over| over.to_string());
            return Err(ExchangeError::refused(project, "sync.shard_over", value, reason));
        }
        let dp = mesh.span(&[Axis::REPLICA, Axis::DP, Axis::EP]);
        Ok(Widths { dp, groups, second_copy, sharing_ranks, ep, cp, tp, sequence_parallel })
    }
}

/// A layout without what deals experts to ranks, `expert:ep, batch:ep` or `expert:dp`, and to how many that does.
fn without_experts(
    project: Project,
    layout: &LayoutRules,
    mesh: Mesh,
) -> Result<(LayoutRules, usize), ExchangeError> {
    let is_of_experts = |rule: &LayoutRule| rule.dim == "expert" && mesh.width(rule.axis) > 1;
    let dealt: Vec<Axis> =
        layout.0.iter().filter(|rule| is_of_experts(rule)).map(|rule| rule.axis).collect();
    let refuse = || {
        let reason = "experts are dealt to neighbouring replicas: \"expert:ep, batch:dp, batch:ep\" with an axis ep, \
                      or \"expert:dp\"";
        let value = format!("{:?}", String::from(layout.clone()));
        Err(ExchangeError::refused(project, "layout", value, reason))
    };
    let has_axis = mesh.width(Axis::EP) > 1;
    let axis = match dealt[..] {
        [] if !has_axis => return Ok((layout.clone(), 1)),
        [axis @ Axis::EP] => axis,
        [axis @ Axis::DP] if !has_axis && mesh.width(Axis::REPLICA) == 1 => axis,
        _ => return refuse(),
    };
    // Samples are split over the axis too, after all slower ones.
    let batch = layout.0.iter().filter(|rule| rule.dim == "batch" && mesh.width(rule.axis) > 1);
    if batch.map(|rule| rule.axis).next_back() != Some(axis) {
        return refuse();
    }
    let mut rest = layout.clone();
    rest.0.retain(|rule| rule.dim != "expert" && rule.axis != Axis::EP);
    Ok((rest, mesh.width(axis)))
}

/// How many groups of replicas shard among themselves, and how many ranks there are in each.
fn sharing(project: Project, plan: &Plan, mesh: Mesh) -> Result<(usize, usize), ExchangeError> {
    let all = [Axis::REPLICA, Axis::DP, Axis::EP, Axis::CP];
    let over = plan.sync.shard_over.filter(|_| plan.sync.zero > 0);
    let shares = |axis: &Axis| over.is_none_or(|over| over.iter().any(|it| it == *axis));
    let wide = all.into_iter().filter(|&axis| mesh.width(axis) > 1);
    let (apart, sharers): (Vec<Axis>, Vec<Axis>) = wide.partition(|axis| !shares(axis));
    // Those who share are neighbours, and a sequence's ranks are together.
    let slowest_first: Vec<Axis> = apart.iter().chain(&sharers).copied().collect();
    if slowest_first != all.into_iter().filter(|&axis| mesh.width(axis) > 1).collect::<Vec<_>>()
        || apart.contains(&Axis::CP)
    {
        let reason = "neighbouring replicas share, with all ranks of their sequences: mesh = { replica = 2, dp = \
                      8 } and shard_over = [\"dp\"], and \"cp\" too where there is context parallelism";
        let value = plan.sync.shard_over.map_or_else(|| "all".into(), |over| over.to_string());
        return Err(ExchangeError::refused(project, "sync.shard_over", value, reason));
    }
    let (groups, sharers) = (mesh.span(&apart), mesh.span(&sharers));
    // Whoever has all of it shares with nobody.
    Ok(if sharers == 1 { (1, 1) } else { (groups, sharers) })
}

/// How many neighbouring replicas share a second copy of the weights, where all share the first.
fn second_copy(project: Project, plan: &Plan, mesh: Mesh) -> Result<Option<usize>, ExchangeError> {
    let Some(over) = plan.sync.second_copy_over else { return Ok(None) };
    let wide = mesh.axes().filter(|&axis| over.contains(axis));
    let shares_all = plan.sync.shard_over.is_none_or(|first| first.contains(Axis::REPLICA));
    match wide.eq([Axis::DP]) && shares_all {
        true => Ok(Some(mesh.width(Axis::DP))),
        false => {
            let reason = "neighbouring replicas share the second copy, and all of them the first: mesh = { replica \
                          = 2, dp = 8 }, shard_over = [\"replica\", \"dp\"] and second_copy_over = [\"dp\"]";
            Err(ExchangeError::refused(project, "sync.second_copy_over", over, reason))
        }
    }
}

/// On which group of devices each stage is, and how ranks are numbered so that the `used` devices are in their
/// order.
fn places(
    project: Project,
    stages: &[Stage],
    used: &[u32],
) -> Result<(Vec<StagePlace>, RankOrder), ExchangeError> {
    let mut groups: Vec<&[u32]> = vec![];
    let mut group_of = vec![];
    for stage in stages {
        let devices = &stage.devices.0[..];
        let known = groups.iter().position(|group| *group == devices);
        group_of.push(known.unwrap_or_else(|| {
            groups.push(devices);
            groups.len() - 1
        }));
    }
    let place =
        |(stage, group): (&Stage, &usize)| StagePlace { blocks: stage.blocks, group: *group };
    let places: Vec<StagePlace> = stages.iter().zip(&group_of).map(place).collect();
    let mesh = stages.first().map_or(Mesh::SINGLE, |stage| stage.mesh);
    let orders = [RankOrder::PipelineSlowest, RankOrder::DataSlowest];
    let numbered = |order: &RankOrder| {
        let mut each = groups.iter().enumerate();
        each.all(|(group, devices)| {
            let ranks = order.devices(group, groups.len(), mesh);
            let device = |rank: u32| used.get(rank as usize).copied();
            ranks.into_iter().map(device).eq(devices.iter().map(|&device| Some(device)))
        })
    };
    let Some(order) = orders.into_iter().find(numbered) else {
        let reason = "ranks are numbered as devices are, tensor-parallel neighbours first, and a \
                      pipeline's stages begin on its first ranks";
        let value = stages.first().map_or_else(String::new, |it| String::from(it.devices.clone()));
        return Err(ExchangeError::refused(project, "pipeline.stage.devices", value, reason));
    };
    if !places.len().is_multiple_of(groups.len().max(1)) {
        let value = format!("{} on {} groups of devices", places.len(), groups.len());
        let reason = "every group of devices has as many stages";
        return Err(ExchangeError::refused(project, "pipeline.stage", value, reason));
    }
    Ok((places, order))
}

impl RankOrder {
    /// The devices of a group, in the order of mesh positions.
    pub(crate) fn devices(self, group: usize, groups: usize, mesh: Mesh) -> Vec<u32> {
        let size = mesh.size();
        // What lies between two data-parallel neighbours.
        let inner = size / mesh.dp() as usize;
        let device = |position: usize| match self {
            RankOrder::PipelineSlowest => group * size + position,
            RankOrder::DataSlowest => {
                (position / inner) * inner * groups + group * inner + position % inner
            }
        };
        (0..size).map(|position| device(position) as u32).collect()
    }
}

/// Where a schedule's stages are on `groups` groups of devices with `chunks` stages each, for schedules of one
/// pipeline.
pub(crate) fn usual_groups(
    schedule: ScheduleKind,
    groups: usize,
    chunks: usize,
) -> Option<Vec<usize>> {
    let arrangement = schedule.arrangement().unwrap_or(Arrangement::Chain);
    arrangement.places(groups, chunks).ok()?.into_iter().next()
}
