//! Parameters of a class of ranks, gathered in buckets that are reduced, gathered and updated as one.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::{Extents, Graph, ValueId, gradient};
use shardloom_plan::{Axis, Optimizer, Plan};

use super::stage::StageModel;
use crate::class::{Bucket, BucketId, ClassId, ParamId, WeightParam};
use crate::{Layout, ProgramError};

/// The parameters of a class's stages, and their buckets.
pub(super) struct Parameters {
    pub params: Vec<WeightParam>,
    pub buckets: Vec<Bucket>,
    by_value: BTreeMap<ValueId, ParamId>,
}

/// What parameters of one bucket have in common.
#[derive(Clone, PartialEq)]
struct Key {
    /// Consecutive blocks that share buckets.
    unit: usize,
    replicas: Vec<Axis>,
    partial: Vec<Axis>,
    splits: Vec<Axis>,
    homes: Vec<ClassId>,
}

impl Parameters {
    /// The parameters of `class`, by the `units` that they belong to. All classes that hold a parameter
    /// have it in the same bucket, and those buckets in the same order.
    pub fn of(
        graph: &Graph,
        plan: &Plan,
        stages: &[StageModel],
        units: &Units,
        class: ClassId,
    ) -> Result<Parameters, ProgramError> {
        let mut held: BTreeMap<(usize, ValueId), (usize, Layout)> = BTreeMap::new();
        let mut models = vec![];
        for (stage, model) in stages.iter().enumerate().filter(|(_, it)| it.class == class) {
            models.push(model);
            for (value, layout) in model.parameters(graph) {
                held.entry((units.0[&value], value)).or_insert((stage, layout.clone()));
            }
        }
        let mut keys: Vec<Key> = vec![];
        let mut members: Vec<Vec<(ValueId, Layout)>> = vec![];
        for ((unit, value), (stage, layout)) in held {
            check_factors(graph, &plan.optimizer, value, &layout)?;
            let key = Key { unit, ..key(graph, stages, stage, value, &layout)? };
            match keys.iter().position(|known| *known == key) {
                Some(bucket) => members[bucket].push((value, layout)),
                None => {
                    keys.push(key);
                    members.push(vec![(value, layout)]);
                }
            }
        }
        // All stages of a class have its mesh, and all stages the same micro-batches.
        let model = models[0];
        let mut parts = Parameters { params: vec![], buckets: vec![], by_value: BTreeMap::new() };
        for (key, members) in keys.into_iter().zip(members) {
            let bucket = BucketId(parts.buckets.len() as u32);
            let mut offset = 0;
            let mut ids = vec![];
            let name = graph.value(members[0].0).name.clone();
            for (value, layout) in members {
                let global = model.extents.shape(&graph.value(value).axes);
                let shape = layout.local_shape(&global, &model.mesh);
                let id = ParamId(parts.params.len() as u32);
                let row_axes = graph.value(value).parameter().map_or(0, |it| it.row_axes);
                let rows: usize = global[..row_axes].iter().product();
                let columns = global[row_axes..].iter().product();
                let param = WeightParam { value, bucket, offset, layout, shape, rows, columns };
                offset += param.elements();
                parts.params.push(param);
                parts.by_value.insert(value, id);
                ids.push(id);
            }
            let wide = |axis: &Axis| model.mesh.width(*axis) > 1;
            let copies = Axis::ALL
                .into_iter()
                .filter(|axis| wide(axis) && !key.splits.contains(axis))
                .collect();
            parts.buckets.push(Bucket {
                name: unit_name(&name),
                elements: offset,
                params: ids,
                replicas: key.replicas,
                partial: key.partial,
                copies,
                splits: key.splits,
                homes: key.homes,
            });
        }
        Ok(parts)
    }

    pub fn param(&self, value: ValueId) -> ParamId {
        self.by_value[&value]
    }

    /// The graph's parameters in a bucket.
    pub fn values(&self, bucket: BucketId) -> impl Iterator<Item = ValueId> {
        let params = &self.buckets[bucket.0 as usize].params;
        params.iter().map(|param| self.params[param.0 as usize].value)
    }
}

/// `block.3.ffn.up.weight` belongs to `block.3`.
fn unit_name(parameter: &str) -> String {
    let mut parts = parameter.split('.');
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) if second.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{first}.{second}")
        }
        (Some(first), _) => first.to_owned(),
        _ => parameter.to_owned(),
    }
}

/// The unit of each parameter: a run of consecutive blocks that share buckets, the same for all classes.
pub(super) struct Units(BTreeMap<ValueId, usize>);

impl Units {
    /// Deals blocks to units: up to the plan's bucket size and never across a cut of a pipeline, or
    /// single blocks under ZeRO-3, which gathers block by block. A parameter belongs where it is used
    /// first.
    pub fn of(graph: &Graph, plan: &Plan) -> Units {
        let cuts: BTreeSet<usize> = plan.stages().map(|(_, stage)| stage.blocks.0).collect();
        let extents = Extents::global(graph, plan.microbatch_samples());
        let gradient_bytes = plan.precision.gradients.bytes();
        let mut units = BTreeMap::new();
        let (mut unit, mut filled) = (0, 0);
        for (index, block) in graph.blocks().iter().enumerate() {
            let inputs = block.ops.iter().flat_map(|&op| &graph.op(op).inputs);
            let used: Vec<ValueId> =
                inputs.copied().filter(|&it| graph.value(it).parameter().is_some()).collect();
            let bytes = |value: &ValueId| extents.elements(&graph.value(*value).axes);
            let bytes = used.iter().map(bytes).sum::<usize>() * gradient_bytes;
            let full = plan.sync.zero >= 3 || filled + bytes > plan.sync.bucket_bytes;
            if cuts.contains(&index) || (full && filled > 0) {
                unit += 1;
                filled = 0;
            }
            filled += bytes;
            for value in used {
                units.entry(value).or_insert(unit);
            }
        }
        Units(units)
    }
}

/// Everything of a parameter's key but its unit.
fn key(
    graph: &Graph,
    stages: &[StageModel],
    index: usize,
    value: ValueId,
    layout: &Layout,
) -> Result<Key, ProgramError> {
    let model = &stages[index];
    let uses = |stage: &StageModel| graph.value(value).consumers.iter().any(|&op| stage.holds(op));
    let mut homes: BTreeSet<ClassId> = BTreeSet::new();
    for (other_index, other) in stages.iter().enumerate().filter(|(_, stage)| uses(stage)) {
        homes.insert(other.class);
        let name = || graph.value(value).name.clone();
        if other.mesh != model.mesh {
            return Err(ProgramError::SharedMeshes {
                name: name(),
                first: index,
                second: other_index,
                first_mesh: model.mesh.to_string(),
                second_mesh: other.mesh.to_string(),
            });
        }
        let there = other.parameter_layout(value);
        if there != layout {
            let (first, second) = (layout.to_string(), there.to_string());
            return Err(ProgramError::ParameterLayouts { name: name(), first, second });
        }
    }
    let (partial, replicas): (Vec<Axis>, Vec<Axis>) =
        gradient_axes(graph, stages, value)?.into_iter().partition(|&axis| axis == Axis::Tp);
    let mut splits: Vec<Axis> = layout.splits.concat();
    splits.sort();
    let homes = if homes.len() == 1 { vec![] } else { homes.into_iter().collect() };
    Ok(Key { unit: 0, replicas, partial, splits, homes })
}

/// The mesh axes over which the gradient of `value` is partial, in every use alike: it is added up over
/// uses before it is reduced.
fn gradient_axes(
    graph: &Graph,
    stages: &[StageModel],
    value: ValueId,
) -> Result<Vec<Axis>, ProgramError> {
    let mut known: Option<Vec<Axis>> = None;
    for &op in &graph.value(value).consumers {
        let Some(model) = stages.iter().find(|stage| stage.holds(op)) else { continue };
        for (input, _) in
            graph.op(op).inputs.iter().enumerate().filter(|&(_, &input)| input == value)
        {
            debug_assert!(
                gradient::rule(graph, op).weight.is_some_and(|it| it.produces.contains(&input))
            );
            let gradient = model.assignment(op).input_gradient(graph, op, input);
            let axes: Vec<Axis> = gradient.partial.iter().map(|&(axis, _)| axis).collect();
            match &known {
                Some(first) if *first != axes => {
                    return Err(ProgramError::ParameterGradients {
                        name: graph.value(value).name.clone(),
                        first: axes_text(first),
                        second: axes_text(&axes),
                    });
                }
                _ => known = Some(axes),
            }
        }
    }
    Ok(known.unwrap_or_default())
}

fn axes_text(axes: &[Axis]) -> String {
    let names: Vec<&str> = axes.iter().map(|axis| axis.name()).collect();
    if names.is_empty() { "no axis".into() } else { names.join(" and ") }
}

/// Checks that an optimizer with sums over rows and columns can update the parts of `value`.
fn check_factors(
    graph: &Graph,
    optimizer: &Optimizer,
    value: ValueId,
    layout: &Layout,
) -> Result<(), ProgramError> {
    let node = graph.value(value);
    let rows = node.parameter().map_or(0, |parameter| parameter.row_axes);
    let vector = rows == 0 || rows == node.axes.len();
    let inner = |axis: &usize| *axis != 0 && *axis != rows && !layout.splits[*axis].is_empty();
    match (0..node.axes.len()).find(inner) {
        Some(axis) if matches!(optimizer, Optimizer::Adafactor { .. }) && !vector => {
            let dim = graph.dim(node.axes[axis]).name.clone();
            Err(ProgramError::FactoredSplit { name: node.name.clone(), dim })
        }
        _ => Ok(()),
    }
}
