//! Parameters of a class of ranks, gathered in buckets that are reduced, gathered and updated as one.

use std::collections::{BTreeMap, BTreeSet};

use std::ops::{Bound, Range};

use shardloom_collectives::Algorithm;
use shardloom_graph::{Extents, Graph, ValueId, gradient};
use shardloom_plan::{Axis, Mesh, Optimizer, Plan, Updates};

use super::holdings::{Keeps, Whose};
use super::stage::StageModel;
use crate::class::{Bucket, BucketId, ClassId, ParamId, WeightParam};
use crate::sync::{Holder, LookedUp, Lookups, ParameterGroupId, Ways, add};
use crate::{
    Content, Copies, Format, Instruction, Keep, Layout, Mode, ProgramError, Shape, Tensor,
    TensorId, View, Window, Write, overlap,
};

/// The parameters of a class's stages, their buckets, and the tensors that hold them.
pub(crate) struct Parameters<'a> {
    pub params: Vec<WeightParam>,
    pub buckets: Vec<Bucket>,
    /// By bucket, to which group its parameters belong.
    pub groups: Vec<ParameterGroupId>,
    /// By bucket, what is read of it, if it is a table whose gradient is rows and values.
    pub lookups: Vec<Option<Lookups>>,
    pub tensors: Vec<Tensor>,
    /// The squared norm of gradients, where the plan looks at it.
    pub norm: Option<TensorId>,
    /// The mesh of the class's ranks.
    pub mesh: Mesh,
    by_value: BTreeMap<ValueId, ParamId>,
    /// By bucket: what sums its gradients over the workers of servers once they are whole, but for what comes
    /// back. Empty without such servers.
    pub exchanged: Vec<Vec<Instruction>>,
    /// Where a weight stands that was moved along its velocity.
    pub(super) moved: BTreeMap<ParamId, TensorId>,
    pub plan: &'a Plan,
    pub ways: &'a Ways<'a>,
}

/// What a server does with a range of a bucket.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RangeUse {
    /// It owns and updates it.
    Updated,
    /// It owns it, and adds to it what updates of workers have changed.
    AddedTo,
    /// It owns and updates it, a piece of a table of which so many rows are read.
    Table(Lookups),
    /// It has a replica of this bucket of another server.
    Replica((ClassId, BucketId)),
}

/// What parameters of one bucket have in common.
#[derive(Clone, PartialEq)]
struct Key {
    /// The plan's group of parameters.
    group: ParameterGroupId,
    /// Those that share buckets.
    unit: Unit,
    /// The table alone, if its gradient is rows and values.
    table: Option<ValueId>,
    replicas: Vec<Axis>,
    own: Vec<Axis>,
    partial: Vec<Axis>,
    splits: Vec<Axis>,
    classes: Vec<ClassId>,
}

impl<'a> Parameters<'a> {
    /// The parameters of `class`, by the `units` that they belong to. All classes that hold a parameter
    /// have it in the same bucket, and those buckets in the same order.
    pub(super) fn of(
        graph: &Graph,
        plan: &'a Plan,
        ways: &'a Ways<'a>,
        stages: &[StageModel],
        units: &Units,
        (class, keeps): (ClassId, Keeps),
    ) -> Result<Parameters<'a>, ProgramError> {
        let mut held: BTreeMap<(Unit, ValueId), (usize, Layout)> = BTreeMap::new();
        let mut models = vec![];
        for (stage, model) in stages.iter().enumerate().filter(|(_, it)| it.class == class) {
            models.push(model);
            for (value, layout) in model.parameters(graph) {
                held.entry((units.0[&value], value)).or_insert((stage, layout.clone()));
            }
        }
        let of_trained = (plan.replica_axes(graph), plan.averaged_axes(graph));
        // Frozen parameters are alike on all replicas, also where these have others of their own.
        let of_frozen = (of_trained.0.clone(), vec![]);
        let axes_of = |is_frozen| if is_frozen { &of_frozen } else { &of_trained };
        let holder = ways.common().holder_of_tables();
        let is_updated_here =
            |is_table: bool| keeps.updates && !(is_table && holder == Holder::Servers);
        let mut keys: Vec<Key> = vec![];
        let mut members: Vec<Vec<(ValueId, Layout)>> = vec![];
        for ((unit, value), (stage, layout)) in held {
            let group = ways.group(&graph.value(value).name);
            let is_frozen = ways.is_frozen(group);
            if !is_frozen {
                check_factors(graph, &plan.optimizer, value, &layout)?;
            }
            let table = (ways.is_sparse(group) && graph.is_table(value)).then_some(value);
            let mut key = Key {
                unit,
                group,
                table,
                ..key(graph, axes_of(is_frozen), (stages, stage), value, &layout)?
            };
            if !is_updated_here(table.is_some()) || !ways.common().updates_alike() {
                // Nobody adds gradients up: each class sends its own, or updates with it.
                key.classes.clear();
            }
            // Parameters come unit by unit, so that buckets of this one are the last.
            let of_unit = keys.iter().rev().take_while(|known| known.unit == unit).count();
            let first = keys.len() - of_unit;
            let known = keys[first..].iter().position(|known| *known == key);
            match known.filter(|_| !ways.parameters_are_apart()).map(|at| first + at) {
                Some(bucket) => members[bucket].push((value, layout)),
                None => {
                    keys.push(key);
                    members.push(vec![(value, layout)]);
                }
            }
        }
        // All stages of a class have its mesh, and all stages the same micro-batches.
        let model = models[0];
        let mut parts = Parameters::none(plan, ways, model.mesh);
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
                let part = 0..shape.iter().product();
                let param = WeightParam {
                    value,
                    bucket,
                    offset,
                    layout,
                    shape,
                    rows,
                    columns,
                    row_axes,
                    part,
                };
                offset += param.elements();
                parts.params.push(param);
                parts.by_value.insert(value, id);
                ids.push(id);
            }
            let differ = |axis: &Axis| key.splits.contains(axis) || key.own.contains(axis);
            let copies = model.mesh.axes().filter(|axis| !differ(axis)).collect();
            let name = if ways.parameters_are_apart() { name } else { unit_name(&name) };
            let updates = is_updated_here(key.table.is_some());
            let keeps = Keeps { averages: !key.own.is_empty(), updates, ..keeps };
            let lookups = key.table.map(|table| {
                let columns = parts.params[ids[0].0 as usize].shape[1..].iter().product();
                Lookups { rows: rows_read(graph, plan, stages, table), columns, holder }
            });
            let whose = Whose {
                group: key.group,
                replicas: &key.replicas,
                partial: &key.partial,
                classes: &key.classes,
                lookups,
                is_added_to: false,
            };
            let held = parts.hold(bucket, &name, offset, &ids, whose, keeps);
            parts.groups.push(key.group);
            parts.lookups.push(lookups);
            parts.buckets.push(Bucket {
                name,
                elements: offset,
                params: ids,
                shards: ways.shards(key.group, &key.replicas),
                second_shards: ways.second_shards(key.group, &key.replicas),
                replicas: key.replicas,
                own: key.own,
                partial: key.partial,
                copies,
                splits: key.splits,
                is_frozen: ways.is_frozen(key.group),
                owned_here: updates && key.classes.first().is_none_or(|&first| first == class),
                served: vec![],
                apart: None,
                summed: vec![],
                classes: key.classes,
                replica_of: None,
                held,
            });
        }
        if keeps.is_delayed && plan.weights.corrections().move_weights() {
            parts.add_moved(graph);
        }
        parts.add_norm();
        Ok(parts)
    }

    /// Adds the squared norm of gradients, where the plan looks at it.
    pub fn add_norm(&mut self) {
        let norm = || Tensor {
            name: "gradient norm".into(),
            shape: Shape::Local(vec![]),
            format: Format::F64,
            keep: Keep::Resident,
            copies: Copies::One,
            content: Content::Norm,
            bucket: None,
        };
        self.norm = self.plan.looks_at_norm().then(|| add(&mut self.tensors, norm()));
    }

    pub fn none(plan: &'a Plan, ways: &'a Ways<'a>, mesh: Mesh) -> Parameters<'a> {
        Parameters {
            params: vec![],
            buckets: vec![],
            groups: vec![],
            lookups: vec![],
            tensors: vec![],
            norm: None,
            mesh,
            by_value: BTreeMap::new(),
            exchanged: vec![],
            moved: BTreeMap::new(),
            plan,
            ways,
        }
    }

    /// Adds a range of a bucket of `from`, for which it answers by itself, as a bucket of its own.
    pub fn hold_range(
        &mut self,
        from: &Parameters<'a>,
        index: usize,
        range: &Range<usize>,
        use_of: RangeUse,
    ) {
        let bucket = &from.buckets[index];
        let id = BucketId(self.buckets.len() as u32);
        let mut ids = vec![];
        for param in &bucket.params {
            let param = &from.params[param.0 as usize];
            let held = overlap(range, &param.range());
            if held.is_empty() {
                continue;
            }
            let part = held.start - param.offset..held.end - param.offset;
            let offset = held.start - range.start;
            let param = WeightParam { bucket: id, offset, part, ..param.clone() };
            ids.push(ParamId(self.params.len() as u32));
            self.by_value.insert(param.value, ids[ids.len() - 1]);
            self.params.push(param);
        }
        let is_added_to = use_of == RangeUse::AddedTo;
        let (lookups, replica_of) = match use_of {
            RangeUse::Updated | RangeUse::AddedTo => (None, None),
            RangeUse::Table(lookups) => (Some(lookups), None),
            RangeUse::Replica(owner) => (None, Some(owner)),
        };
        let updates = !is_added_to;
        let keeps = Keeps { is_delayed: false, backs_up: false, averages: false, updates };
        let group = from.groups[index];
        let whose = Whose { lookups, is_added_to, ..Whose::alone(group) };
        let name = match replica_of {
            Some(_) => format!("replica of {}", bucket.name),
            None => bucket.name.clone(),
        };
        let held = self.hold(id, &name, range.len(), &ids, whose, keeps);
        self.groups.push(group);
        self.lookups.push(lookups);
        self.buckets.push(Bucket {
            name,
            params: ids,
            elements: range.len(),
            held,
            served: vec![],
            apart: None,
            owned_here: replica_of.is_none(),
            replica_of,
            ..bucket.clone()
        });
    }

    /// The algorithm of collectives of a bucket that are no replicas' own.
    pub fn algorithm(&self, id: BucketId) -> Algorithm {
        self.ways.sync(self.groups[id.0 as usize]).algorithm
    }

    /// Which rows of a table a rank has, and their weights, if somebody else holds it.
    pub fn looked_up(&self, value: ValueId) -> Option<LookedUp> {
        let bucket = self.params[self.by_value.get(&value)?.0 as usize].bucket;
        self.replicated(bucket).looked_up
    }

    /// A weight as operators read it.
    pub fn weight(&self, value: ValueId) -> View {
        if let Some(LookedUp { weights, .. }) = self.looked_up(value) {
            return View::whole(weights);
        }
        let param = self.param(value);
        let bucket = self.params[param.0 as usize].bucket;
        View { tensor: self.replicated(bucket).used, window: Window::Param(param) }
    }

    /// Where an operator writes a weight's gradient, which reads so many rows of it if it is a table.
    pub fn gradient(&self, value: ValueId, rows_read: impl Fn() -> usize) -> Vec<Write> {
        let param = self.param(value);
        let bucket = self.params[param.0 as usize].bucket;
        let held = self.replicated(bucket).expect_gradients();
        match (held.rows, self.lookups[bucket.0 as usize]) {
            (Some(rows), Some(Lookups { columns, .. })) => {
                let count = rows_read();
                let next = |(tensor, elements)| {
                    Write::set(View { tensor, window: Window::Next { elements } })
                };
                [(rows.written, count), (held.written, count * columns)].map(next).to_vec()
            }
            _ => {
                let to = View { tensor: held.written, window: Window::Param(param) };
                vec![Write { to, mode: Mode::AddUnlessFirst }]
            }
        }
    }

    /// The parameter that operators read, if a view is one.
    pub fn read_weight(&self, view: View) -> Option<ParamId> {
        match view.window {
            Window::Param(param) if self.tensor(view).content == Content::Weight => Some(param),
            _ => None,
        }
    }

    /// The bucket whose weights or gradients a view is of.
    pub fn bucket_of(&self, view: View) -> Option<BucketId> {
        self.tensors.get(view.tensor.0 as usize)?.bucket
    }

    fn param(&self, value: ValueId) -> ParamId {
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

/// A run of parameters of one group that share buckets, by its first: the block that uses it first, and its place
/// among those of that block, 0 where runs are of whole blocks.
type Unit = (usize, usize);

/// The unit of each parameter, the same for all classes.
pub(super) struct Units(BTreeMap<ValueId, Unit>);

/// The unit of a group that blocks are added to.
#[derive(Clone, Copy)]
struct Filling {
    unit: Unit,
    bytes: usize,
}

impl Units {
    /// Deals blocks to units: up to the plan's bucket size and never across a cut of a pipeline, or
    /// single blocks where weights are gathered block by block, or parameters where units end within blocks.
    /// A parameter belongs where it is used first.
    pub fn of(graph: &Graph, plan: &Plan, ways: &Ways<'_>) -> Units {
        let cuts: BTreeSet<usize> = plan.stages().map(|(_, stage)| stage.blocks.0).collect();
        let extents = Extents::global(graph, plan.microbatch_samples());
        let mut units = BTreeMap::new();
        let mut filling: BTreeMap<ParameterGroupId, Filling> = BTreeMap::new();
        let mut apart: BTreeMap<ParameterGroupId, Vec<FirstUse>> = BTreeMap::new();
        for (index, block) in graph.blocks().iter().enumerate() {
            if cuts.contains(&index) {
                filling.clear();
            }
            let inputs = block.ops.iter().flat_map(|&op| &graph.op(op).inputs);
            let used = inputs.copied().filter(|&it| graph.value(it).parameter().is_some());
            let mut of_group: BTreeMap<ParameterGroupId, Vec<ValueId>> = BTreeMap::new();
            for value in used {
                of_group.entry(ways.group(&graph.value(value).name)).or_default().push(value);
            }
            for (group, used) in of_group {
                let elements = |value: &ValueId| extents.elements(&graph.value(*value).axes);
                let number = ways.precision(group).gradients.bytes();
                if ways.sync(group).splits_blocks {
                    let apart = apart.entry(group).or_default();
                    for (place, value) in used.into_iter().enumerate() {
                        let bytes = elements(&value) * number;
                        apart.push(FirstUse { value, place: (index, place), bytes });
                    }
                    continue;
                }
                let bytes = used.iter().map(elements).sum::<usize>() * number;
                let unit = (index, 0);
                let filling = filling.entry(group).or_insert(Filling { unit, bytes: 0 });
                let full = ways.replicated(group).gathers_blocks()
                    || filling.bytes + bytes > ways.sync(group).bucket_bytes;
                if full && filling.bytes > 0 {
                    *filling = Filling { unit, bytes: 0 };
                }
                filling.bytes += bytes;
                for value in used {
                    units.entry(value).or_insert(filling.unit);
                }
            }
        }
        for (group, mut parameters) in apart {
            let mut seen = BTreeSet::new();
            parameters.retain(|it| seen.insert(it.value));
            let most = ways.sync(group).bucket_bytes;
            units.extend(full_units(&parameters, most, &cuts));
        }
        Units(units)
    }
}

/// A parameter, where it is used first, and how large its gradient is.
struct FirstUse {
    value: ValueId,
    /// The block and the place among that block's.
    place: Unit,
    bytes: usize,
}

/// Deals parameters, in the order of their first use, to units, from the last to the first: a unit ends with the
/// parameter with which its gradients have `most` bytes, and before a cut.
fn full_units(
    parameters: &[FirstUse],
    most: usize,
    cuts: &BTreeSet<usize>,
) -> BTreeMap<ValueId, Unit> {
    let mut units = BTreeMap::new();
    let (mut end, mut bytes) = (parameters.len(), 0);
    for (index, parameter) in parameters.iter().enumerate().rev() {
        bytes += parameter.bytes;
        let block = parameter.place.0;
        let before = parameters[..index].last().map(|it| it.place.0);
        let is_cut = before.is_some_and(|before| {
            cuts.range((Bound::Excluded(before), Bound::Included(block))).next().is_some()
        });
        if bytes >= most || is_cut || index == 0 {
            units.extend(parameters[index..end].iter().map(|it| (it.value, parameter.place)));
            (end, bytes) = (index, 0);
        }
    }
    units
}

/// Everything of a parameter's key but its unit and its group.
fn key(
    graph: &Graph,
    (replica_axes, averaged_axes): &(Vec<Axis>, Vec<Axis>),
    (stages, index): (&[StageModel], usize),
    value: ValueId,
    layout: &Layout,
) -> Result<Key, ProgramError> {
    let model = &stages[index];
    let uses = |stage: &StageModel| graph.value(value).consumers.iter().any(|&op| stage.holds(op));
    let mut classes: BTreeSet<ClassId> = BTreeSet::new();
    for (other_index, other) in stages.iter().enumerate().filter(|(_, stage)| uses(stage)) {
        classes.insert(other.class);
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
    let (mut replicas, mut partial): (Vec<Axis>, Vec<Axis>) = gradient_axes(graph, stages, value)?
        .into_iter()
        .partition(|axis| replica_axes.contains(axis));
    replicas.retain(|axis| !averaged_axes.contains(axis));
    let mut own: Vec<Axis> =
        model.mesh.axes().filter(|axis| averaged_axes.contains(axis)).collect();
    let mut splits: Vec<Axis> = layout.splits.concat();
    for axes in [&mut replicas, &mut own, &mut partial, &mut splits] {
        model.mesh.sort(axes);
    }
    let classes = if classes.len() == 1 { vec![] } else { classes.into_iter().collect() };
    Ok(Key { unit: (0, 0), group: None, table: None, replicas, own, partial, splits, classes })
}

/// The most rows that a rank reads of a table from one update to the next, the same for all classes that hold it.
fn rows_read(graph: &Graph, plan: &Plan, stages: &[StageModel], table: ValueId) -> usize {
    let shares = plan.shares();
    let mut of_class: BTreeMap<ClassId, usize> = BTreeMap::new();
    for stage in stages {
        let ops = graph.value(table).consumers.iter().filter(|&&op| stage.holds(op));
        let of_pass: usize = ops.map(|&op| stage.rows_read(graph, op)).sum();
        let rows = of_class.entry(stage.class).or_default();
        *rows = match plan.updates {
            Updates::Step => *rows + of_pass * shares[usize::from(stage.place.pipeline)],
            // An update follows each pass.
            Updates::Round => of_pass.max(*rows),
        };
    }
    of_class.into_values().max().unwrap_or(0)
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
        Some(axis) if optimizer.factors_matrices() && !vector => {
            let dim = graph.dim(node.axes[axis]).name.clone();
            Err(ProgramError::FactoredSplit { name: node.name.clone(), dim })
        }
        _ => Ok(()),
    }
}
