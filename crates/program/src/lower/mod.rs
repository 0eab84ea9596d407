//! Lowering: (graph, plan) to a program.
//!
//! Stage by stage: operators get their loops assigned to mesh axes, a backward body is built that asks
//! for the values it needs (which decides what the forward body keeps and what is computed again), then
//! the forward body. Class by class, a class being the ranks that hold the same stages: parameters get
//! their buckets, bodies the synchronisation that ZeRO and the plan's `sync` call for, and last the
//! control follows the schedule's order. No step looks at which combination of parallelisms it serves.

mod backward;
mod bodies;
mod boundary;
mod buckets;
mod emitter;
pub(crate) mod epilogue;
mod extrapolation;
mod forward;
mod halves;
mod holdings;
mod inner_groups;
mod liveness;
mod needed_gradients;
mod order;
mod overlap;
mod owners;
mod post_validation;
mod queues;
mod rows;
mod sharding;
mod stage;
mod versions;
mod whole_gradients;

use std::collections::BTreeMap;

use shardloom_cluster::DeviceId;
use shardloom_graph::Graph;
use shardloom_plan::{DeviceList, Plan, ScheduleKind};

use crate::class::{Class, HeldStage, Program, Rank};
use crate::sync::{self, Role, Synchronisation, add};
use crate::{
    ClassId, Content, Control, Copies, Entry, Format, Group, Keep, Layout, ProgramError, Tensor,
    TensorId,
};
use bodies::StageBodies;
pub(crate) use boundary::Boundaries;
use boundary::{Handover, Handovers, Transfer, Way};
pub(crate) use buckets::{Parameters, RangeUse};
pub use needed_gradients::NeededGradients;
pub(crate) use order::Order;
use post_validation::PostValidation;
use shardloom_schedule::{Instance, PassKind, Schedule, ScheduleError, StageMap};
use stage::{StageId, StageModel};
use versions::Versions;

/// The program of `plan` for `graph` on a cluster of `devices` devices.
///
/// # Errors
/// If the plan does not fit the graph or the number of devices, its schedule does not exist for its
/// pipelines, or it asks for layouts that cannot be joined.
pub fn lower(graph: &Graph, plan: &Plan, devices: usize) -> Result<Program, ProgramError> {
    lower_with(graph, plan, devices, &*sync::way(plan.sync))
}

/// The same, with replicas kept equal in another way than the plan's `sync` says, but those of parameters for
/// which one of its groups says how.
///
/// # Errors
/// As [`lower`].
pub fn lower_with(
    graph: &Graph,
    plan: &Plan,
    devices: usize,
    way: &dyn Synchronisation,
) -> Result<Program, ProgramError> {
    if let Some(kind) = graph.attention().filter(|&it| it != plan.attention) {
        return Err(ScheduleError::Rule(format!(
            "attention is {} in the plan, and {} in the graph it is lowered for (see Plan::graph_of)",
            plan.attention.name(),
            kind.name()
        ))
        .into());
    }
    let masks = graph.masks_documents();
    if masks != plan.mask_documents && graph.with_document_mask().is_some() {
        return Err(ScheduleError::Rule(format!(
            "mask_documents is {} in the plan, and {masks} in the graph it is lowered for (see Plan::graph_of)",
            plan.mask_documents
        ))
        .into());
    }
    plan.validate(graph, devices)?;
    sync::require_same_servers(way, plan)?;
    let lists = device_lists(plan);
    let stages = stage_models(graph, plan, &lists)?;
    let ways = sync::Ways::new(plan, way)?;
    let gradients_needed = NeededGradients::of(graph, |name| !ways.is_frozen(ways.group(name)));
    if !gradients_needed.needs(graph.loss()) {
        return Err(nothing_to_train());
    }
    let mut boundaries = Boundaries::find(graph, plan.precision, &stages, &gradients_needed)?;
    let map = stage_map(plan, &stages)?;
    let schedule = Schedule::of(plan, map)?;
    require_rule(plan, &schedule)?;
    // Who has all gradients knows their norm by itself.
    let post_validation = match way.completes_gradients() {
        true => None,
        false => PostValidation::of(plan, &schedule, &stages, &mut boundaries),
    };
    let versions = Versions::new(plan, &schedule);
    let units = buckets::Units::of(graph, plan, &ways);
    let ids = || (0u32..lists.len() as u32).map(ClassId);
    let parameters = |id| {
        let validated = post_validation.as_ref().is_some_and(|it| !it.knows_all(id));
        let is_delayed = delay(&stages, &versions, id) > 0.0;
        let (averages, updates) = (false, way.updates_here());
        let keeps = holdings::Keeps { is_delayed, backs_up: validated, averages, updates };
        buckets::Parameters::of(graph, plan, &ways, &stages, &units, (id, keeps))
    };
    let mut parameters: Vec<buckets::Parameters<'_>> =
        ids().map(parameters).collect::<Result<_, _>>()?;
    let early = match way.completes_gradients() {
        true => vec![owners::Early::default(); lists.len()],
        false => owners::early(&schedule, &plan.pass_times, &stages, &parameters)?,
    };
    let roles = sync::roles(way, (graph, plan), &mut parameters, &mut boundaries)?;
    let mut classes: Vec<Class> = vec![];
    for (((id, devices), parameters), early) in ids().zip(&lists).zip(parameters).zip(early) {
        let first_rank = classes.last().map_or(0, |it| it.first_rank.0 + it.mesh.size() as u32);
        let lowering = ClassLowering {
            graph,
            plan,
            gradients_needed: &gradients_needed,
            stages: &stages,
            early: &early,
            boundaries: &boundaries,
            schedule: &schedule,
            versions: &versions,
            post_validation: post_validation.as_ref(),
            roles: &roles,
            id,
        };
        let class = lowering.class(Rank(first_rank), devices, parameters)?;
        roles.iter().try_for_each(|role| role.check(&class))?;
        classes.push(class);
    }
    roles.iter().try_for_each(|role| role.add_classes(plan, &mut classes))?;
    require_common_updates(&classes)?;
    let mut program = Program {
        classes,
        routes: boundaries.routes,
        precision: plan.precision,
        optimizer: plan.optimizer,
        clip_norm: plan.clip_norm,
        global_batch: plan.global_batch,
        microbatch_samples: plan.microbatch_samples(),
        microbatches: plan.microbatches,
        ahead: schedule.ahead(),
        corrections: plan.weights.corrections(),
        batch_axes: plan.batch_axes(graph),
        communication: plan.communication,
        negotiation: plan.sync.negotiation,
    };
    program.fit_inner_groups()?;
    program.add_requests();
    program.assign_queues();
    Ok(program)
}

/// Makes sure that the weights' rule fits a written order, which alone says whether devices run ahead.
fn require_rule(plan: &Plan, schedule: &Schedule) -> Result<(), ProgramError> {
    let runs_ahead = schedule.ahead() > 0;
    if plan.schedule != ScheduleKind::Table || runs_ahead != plan.flushes() {
        return Ok(());
    }
    let rule = match runs_ahead {
        true => {
            "some device runs ahead of its step, so stash, vertical-sync, double-buffer or newest"
        }
        false => "no device runs ahead of its step, so flush",
    };
    let name = plan.weights.name();
    Err(ScheduleError::Rule(format!("weights.rule = {name}: {rule}")).into())
}

/// Makes sure that all classes that hold a parameter update it equally often.
fn require_common_updates(classes: &[Class]) -> Result<(), ProgramError> {
    for class in classes {
        for bucket in &class.buckets {
            let others = bucket.classes.iter().map(|other| &classes[other.0 as usize]);
            if let Some(other) = others.into_iter().find(|other| other.updates() != class.updates())
            {
                return Err(ScheduleError::Rule(format!(
                    "updates = round: {} is a parameter of {} and of {}, which update {} and {} times \
                     a step; give these stages as many replicas, or do not tie the parameter",
                    bucket.name,
                    class.place(),
                    other.place(),
                    class.updates(),
                    other.updates()
                ))
.into());
            }
        }
    }
    Ok(())
}

/// The device lists that stages live on, one per class: by the stage that they appear at first, and by
/// pipeline where several do at the same, so that a pipeline runs from lower classes to higher.
fn device_lists(plan: &Plan) -> Vec<&DeviceList> {
    let mut lists: Vec<(usize, &DeviceList)> = vec![];
    for ((_, index), stage) in plan.stages() {
        // Lists are equal or share nothing.
        if lists.iter().all(|(_, known)| known.0.first() != stage.devices.0.first()) {
            lists.push((index, &stage.devices));
        }
    }
    lists.sort_by_key(|&(index, _)| index);
    lists.into_iter().map(|(_, list)| list).collect()
}

fn stage_models(
    graph: &Graph,
    plan: &Plan,
    lists: &[&DeviceList],
) -> Result<Vec<StageModel>, ProgramError> {
    plan.stages()
        .map(|((pipeline, index), stage)| {
            let place = Instance { pipeline: pipeline as u16, stage: index as u16 };
            let class = lists.iter().position(|list| list.0.first() == stage.devices.0.first());
            let class = ClassId(class.expect("all stages' lists were collected") as u32);
            StageModel::of(graph, plan, (place, class), stage)
        })
        .collect()
}

fn stage_map(plan: &Plan, stages: &[StageModel]) -> Result<StageMap, ProgramError> {
    let mut places: Vec<Vec<usize>> = vec![vec![]; plan.pipeline.len()];
    for stage in stages {
        places[stage.place.pipeline as usize].push(stage.class.0 as usize);
    }
    Ok(StageMap::with_shares(places, &plan.shares())?)
}

/// How many updates there are, on average over the stages of a class and their micro-batches, between a
/// forward pass and the update with its gradient.
fn delay(stages: &[StageModel], versions: &Versions<'_>, class: ClassId) -> f64 {
    let own = stages.iter().filter(|stage| stage.class == class);
    let delays: Vec<f64> = own.map(|stage| versions.delay(stage.place)).collect();
    delays.iter().sum::<f64>() / delays.len() as f64
}

/// Lowers one class of ranks.
struct ClassLowering<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    gradients_needed: &'a NeededGradients,
    stages: &'a [StageModel],
    early: &'a owners::Early,
    boundaries: &'a Boundaries,
    schedule: &'a Schedule,
    versions: &'a Versions<'a>,
    post_validation: Option<&'a PostValidation>,
    roles: &'a [Box<dyn Role + 'a>],
    id: ClassId,
}

impl ClassLowering<'_> {
    fn class(
        &self,
        first_rank: Rank,
        devices: &DeviceList,
        parameters: buckets::Parameters<'_>,
    ) -> Result<Class, ProgramError> {
        let ClassLowering { graph, plan, boundaries, schedule, versions, early, .. } = *self;
        let order = &schedule.orders[self.id.0 as usize];
        let mut tensors = parameters.tensors.clone();
        let handovers = self.handovers(&mut tensors);
        let mut stages = vec![];
        let own = self.stages.iter().enumerate().filter(|(_, stage)| stage.class == self.id);
        for (index, model) in own {
            let stage = StageId(index);
            let context = stage::Context {
                graph,
                plan,
                gradients_needed: self.gradients_needed,
                model,
                params: &parameters,
                boundaries,
                stage,
                handovers: &handovers,
            };
            let halved = |kind| matches!(kind, PassKind::BackwardInput | PassKind::BackwardWeight);
            let in_halves = order
                .iter()
                .flat_map(|action| action.passes())
                .any(|pass| pass.instance == model.place && halved(pass.kind));
            stages.push((stage, model, StageBodies::of(&context, &mut tensors, in_halves)?));
        }
        let mesh = stages[0].1.mesh;
        let places: Vec<Instance> = stages.iter().map(|(_, model, _)| model.place).collect();
        let replica = schedule.map.replica(places[0]);
        let delay = delay(self.stages, versions, self.id);
        let held = |&instance: &Instance| {
            let reverse = schedule.map.chain(instance).is_reverse();
            HeldStage { instance, reverse }
        };
        let flag = self.post_validation.map(|later| later.flag(&mut tensors));
        let flags: Vec<Option<TensorId>> =
            self.roles.iter().map(|role| role.flag(&parameters, &mut tensors)).collect();
        let assembly = order::Assembly {
            graph,
            parameters: &parameters,
            tensors: &tensors,
            map: &schedule.map,
            device: self.id.0 as usize,
            stages,
            versions,
            early,
        };
        let norm = match self.post_validation {
            Some(later) => later.norm(self.id, &parameters),
            None => epilogue::norm(&parameters, Group::World),
        };
        let end = self.roles.iter().find_map(|role| role.end_of_step(self.id, &parameters));
        let end = end.unwrap_or_else(|| epilogue::body(&parameters, early, norm));
        let mut order = assembly.order(order, end)?;
        let begin = self.roles.iter();
        let begin = begin.filter_map(|role| role.arrange(&mut order, self.id, &parameters));
        let begin: Vec<Entry> = begin.collect();
        let versions = 1 + order.entries.iter().map(|(entry, _)| entry.age).max().unwrap_or(0);
        let control: Vec<Control> = match (self.post_validation, flag) {
            (Some(later), Some(flag)) => {
                let known = (&parameters, tensors.as_slice(), flag);
                later.control(&mut order, self.id, known, boundaries, self.stages)
            }
            _ => {
                let mut of_roles = self.roles.iter().zip(&flags).filter_map(|(role, &flag)| {
                    role.control(&mut order, self.id, &parameters, flag)
                });
                let own = of_roles.next();
                own.unwrap_or_else(|| {
                    order.entries.iter().map(|&(entry, _)| Control::Run(entry)).collect()
                })
            }
        };
        let is_frozen =
            |it: &Tensor| it.bucket.is_some_and(|id| parameters.buckets[id.0 as usize].is_frozen);
        let lasting = |it: &&mut Tensor| {
            it.content == Content::Weight && it.keep != Keep::Transient && !is_frozen(it)
        };
        for weights in tensors.iter_mut().filter(lasting) {
            weights.copies = if versions > 1 { Copies::Versions(versions) } else { Copies::One };
        }
        let control = begin.into_iter().map(Control::Run).chain(control).collect();
        Ok(Class {
            stages: places.iter().map(held).collect(),
            replica,
            mesh,
            first_rank,
            devices: devices.0.iter().map(|&device| DeviceId(device)).collect(),
            tensors,
            params: parameters.params,
            buckets: parameters.buckets,
            communicators: vec![],
            bodies: order.bodies,
            control,
            delay,
            evaluation: order.evaluation,
        })
    }

    /// Where values wait that go from one of the class's stages to another.
    fn handovers(&self, tensors: &mut Vec<Tensor>) -> Handovers {
        let mut handovers = BTreeMap::new();
        for (id, transfer) in self.boundaries.transfers() {
            let producer = &self.stages[transfer.from.0];
            if transfer.way != Way::Stays || producer.class != self.id {
                continue;
            }
            let mut waiting = |transfer: &Transfer, layout: &Layout, suffix: &str| {
                let node = self.graph.value(transfer.value);
                let shape = layout.local_shape(&producer.extents.shape(&node.axes), &producer.mesh);
                let format = Format::of_value(node.dtype, self.plan.precision);
                let name = format!("{}{suffix}", node.name);
                add(tensors, emitter::of_microbatch(name, shape, format))
            };
            let value = waiting(transfer, &transfer.received, " (waiting)");
            let gradient = self
                .gradients_needed
                .needs(transfer.value)
                .then(|| waiting(transfer, &transfer.handed, ".gradient (waiting)"));
            handovers.insert(id, Handover { value, gradient });
        }
        handovers
    }
}

/// All parameters that the loss depends on are frozen.
fn nothing_to_train() -> ProgramError {
    let rule = "parameters: all that the loss depends on are frozen, so that there is nothing to train; leave some out \
                of the groups with frozen = true";
    ScheduleError::Rule(rule.into()).into()
}
