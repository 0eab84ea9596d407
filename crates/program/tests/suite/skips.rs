//! Long skips in a program: a value read far behind its producer goes there once, straight, and nobody
//! holds it longer than its readers need it.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::work::Pass;
use shardloom_graph::{BlockId, Graph, ModelSpec, Op, OpId, OpKind, Role, ValueId};
use shardloom_plan::{
    Arrangement, DeviceList, Mesh, Pipeline, Plan, Recompute, ScheduleKind, Stage, Uniform,
    Weights, even_cut,
};
use shardloom_program::{
    Action, Body, BodyKind, Carried, Class, ClassId, Instruction, Program, Route, RouteId,
    TensorId, View, lower,
};

const LAYERS: usize = 6;
const SEQ: usize = 16;
const HIDDEN: usize = 32;
const SAMPLES: usize = 2;
const MICROBATCHES: usize = 4;

fn graph() -> Graph {
    let text = format!(
        "u-transformer:layers={LAYERS},hidden={HIDDEN},heads=4,seq={SEQ},vocab=64,dropout=0.1"
    );
    ModelSpec::parse(&text).and_then(|spec| spec.graph()).unwrap_or_else(|error| panic!("{error}"))
}

fn uniform(pp: usize, recompute: Recompute) -> Uniform {
    Uniform {
        pp,
        global_batch: SAMPLES * MICROBATCHES,
        microbatches: MICROBATCHES,
        schedule: ScheduleKind::Afab,
        recompute,
        ..Uniform::default()
    }
}

/// A plan of one pipeline whose stages live on the devices of `places`.
fn placed(graph: &Graph, recompute: Recompute, places: &[usize]) -> Plan {
    let mut plan = uniform(1, recompute).plan(graph, "model", "local");
    let (blocks, stages) = (graph.blocks().len(), places.len());
    let stage = |(index, &place): (usize, &usize)| Stage {
        blocks: (even_cut(blocks, stages, index), even_cut(blocks, stages, index + 1)),
        mesh: Mesh::SINGLE,
        devices: DeviceList(vec![place as u32]),
        recompute: None,
        layout: None,
    };
    plan.pipeline = vec![Pipeline::of(places.iter().enumerate().map(stage).collect())];
    plan
}

/// One stage to a device in chains of 2, 4 and 8, and several to a device in loops and in waves.
fn places() -> Vec<Vec<usize>> {
    let arranged = |arrangement: Arrangement, chunks| {
        arrangement.places(2, chunks).unwrap_or_else(|error| panic!("{error}")).remove(0)
    };
    vec![
        vec![0, 1],
        vec![0, 1, 2, 3],
        (0..LAYERS + 2).collect(),
        arranged(Arrangement::Looped, 2),
        arranged(Arrangement::Wave, 2),
        arranged(Arrangement::Wave, 4),
    ]
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// A long skip: what a join reads besides the result of the block before, and the layers at its ends.
struct Skip {
    value: ValueId,
    encoder: usize,
    decoder: usize,
}

fn skips(graph: &Graph) -> Vec<Skip> {
    // The embedding is the first block.
    let layer = |op: OpId| graph.op(op).block.index() - 1;
    let joins = graph.ops().filter(|(_, op)| matches!(op.kind, OpKind::Concat { .. }));
    let skip = |(id, op): (OpId, &Op)| {
        let value = op.inputs[1];
        let producer = graph.value(value).producer.expect("an operator makes it");
        Skip { value, encoder: layer(producer), decoder: layer(id) }
    };
    joins.map(skip).collect()
}

/// The program with one block to a stage and one stage to a device, and its skips.
fn spread(graph: &Graph, recompute: Recompute) -> (Program, Vec<Skip>) {
    let places: Vec<usize> = (0..LAYERS + 2).collect();
    (lowered(graph, &placed(graph, recompute, &places)), skips(graph))
}

/// The stage of each block.
fn stage_of(pipeline: &Pipeline, block: BlockId) -> usize {
    let holds = |stage: &Stage| (stage.blocks.0..stage.blocks.1).contains(&block.index());
    pipeline.stage.iter().position(holds).expect("every block is in a stage")
}

/// How often each way of a value (`gradient` or not, from device to device) is needed in one step, from
/// nothing but the graph and the places of the stages: for every micro-batch of a pipeline once to each
/// other stage that reads it, and once back, but for stages on the producer's own device.
fn needed(graph: &Graph, plan: &Plan) -> BTreeMap<Way, usize> {
    let mut needed = BTreeMap::new();
    let microbatches = plan.microbatches / plan.pipeline.len();
    for pipeline in &plan.pipeline {
        let stage = |op: OpId| stage_of(pipeline, graph.op(op).block);
        let device = |stage: usize| pipeline.stage[stage].devices.0[0];
        for (value, node) in graph.values().filter(|(_, node)| node.role == Role::Activation) {
            let Some(producer) = node.producer else { continue };
            let here = device(stage(producer));
            let readers: BTreeSet<usize> = node.consumers.iter().map(|&op| stage(op)).collect();
            for there in readers.into_iter().map(device).filter(|&there| there != here) {
                *needed.entry((value, false, here, there)).or_insert(0) += microbatches;
                *needed.entry((value, true, there, here)).or_insert(0) += microbatches;
            }
        }
    }
    needed
}

/// A value, whether its gradient is meant, from which device, to which.
type Way = (ValueId, bool, u32, u32);

/// The value that goes this way, or whose gradient does.
fn valued(route: &Route) -> ValueId {
    match route.carried {
        Carried::Value(value) | Carried::Gradient(value) => value,
        other => panic!("{other:?} goes from stage to stage in these plans"),
    }
}

fn is_gradient(route: &Route) -> bool {
    matches!(route.carried, Carried::Gradient(_))
}

fn way(program: &Program, route: &Route) -> Way {
    let device = |class: ClassId| program.class(class).devices[0].0;
    (valued(route), is_gradient(route), device(route.from), device(route.to))
}

/// How often `wanted` instructions run in one step, by the way of their route.
fn runs(program: &Program, wanted: impl Fn(&Action) -> Option<RouteId>) -> BTreeMap<Way, usize> {
    let mut runs = BTreeMap::new();
    for class in &program.classes {
        for entry in class.entries() {
            for instruction in &class.body_of(entry).instructions {
                if let Some(route) = wanted(&instruction.action) {
                    *runs.entry(way(program, program.route(route))).or_insert(0) += 1;
                }
            }
        }
    }
    runs
}

/// Plans of AFAB in all places, and of every other schedule, and rule for weights, in its own.
fn plans(graph: &Graph, recompute: Recompute) -> Vec<Plan> {
    let mut plans: Vec<Plan> =
        places().iter().map(|places| placed(graph, recompute, places)).collect();
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for (schedule, pp) in kinds.flat_map(|kind| [(kind, 2), (kind, 4)]) {
        // DualPipe wants two for each device.
        let uniform = Uniform {
            global_batch: SAMPLES * 2 * MICROBATCHES,
            microbatches: 2 * MICROBATCHES,
            schedule,
            ..uniform(pp, recompute)
        };
        let plan = uniform.plan(graph, "model", "local");
        if schedule == ScheduleKind::PipeDream {
            for weights in [Weights::VerticalSync, Weights::DoubleBuffer] {
                plans.push(Plan { weights, ..plan.clone() });
            }
        }
        plans.push(plan);
    }
    plans
}

#[test]
fn every_skip_is_sent_once_each_way_straight_between_its_stages_for_every_microbatch() {
    let graph = graph();
    let bytes = (4 * SAMPLES * SEQ * HIDDEN) as u64;
    for plan in Recompute::ALL.into_iter().flat_map(|recompute| plans(&graph, recompute)) {
        let program = lowered(&graph, &plan);
        let needed = needed(&graph, &plan);
        let text = plan.to_toml();
        let each = plan.microbatches / plan.pipeline.len();
        let mut found: BTreeMap<Way, usize> = BTreeMap::new();
        for route in &program.routes {
            *found.entry(way(&program, route)).or_insert(0) += each;
            let [message] = &route.messages[..] else { panic!("one device to one device") };
            assert_eq!(route.message_bytes(message), bytes, "{text}");
        }
        assert_eq!(found, needed, "routes of\n{text}");
        let sends = runs(&program, |action| match *action {
            Action::Send { route } => Some(route),
            _ => None,
        });
        assert_eq!(sends, needed, "sends of\n{text}");
        let receives = runs(&program, |action| match *action {
            Action::Receive { route } => Some(route),
            _ => None,
        });
        assert_eq!(receives, needed, "receives of\n{text}");
    }
}

/// torchgpipe's portals (Kim et al. 2020, section 3.2.2): a skip over d - s stages crosses once, where
/// stages that hand it on would send it d - s times.
#[test]
fn a_skip_crosses_one_boundary_instead_of_all_between() {
    let graph = graph();
    for pp in [2, 4, 8] {
        let places: Vec<usize> = (0..pp).collect();
        let plan = placed(&graph, Recompute::None, &places);
        let program = lowered(&graph, &plan);
        let (mut direct, mut handed_on) = (0, 0);
        for Skip { value: skip, encoder, decoder } in skips(&graph) {
            let block = |layer: usize| BlockId(layer as u32 + 1);
            let [from, to] =
                [encoder, decoder].map(|layer| stage_of(&plan.pipeline[0], block(layer)));
            let arrives = |it: &&Route| {
                it.carried == Carried::Value(skip) && program.class(it.to).devices[0].0 == to as u32
            };
            let routes: Vec<&Route> = program.routes.iter().filter(arrives).collect();
            assert_eq!(routes.len(), usize::from(from != to), "{pp} stages");
            for route in &routes {
                assert_eq!(program.class(route.from).devices[0].0, from as u32, "{pp} stages");
            }
            direct += routes.len();
            handed_on += to - from;
        }
        let expected = match pp {
            2 => (2, 2),
            4 => (2, 4),
            _ => (2, 8),
        };
        assert_eq!((direct, handed_on), expected, "{pp} stages");
    }
}

/// A wave folds the pipeline in the middle, so that both ends of a skip come to lie on one device.
#[test]
fn in_a_wave_only_what_the_next_stage_reads_leaves_its_device() {
    let graph = graph();
    let places = [0, 1, 1, 0];
    let program = lowered(&graph, &placed(&graph, Recompute::None, &places));
    let ways: BTreeSet<(&str, bool, u32, u32)> = program
        .routes
        .iter()
        .map(|route| way(&program, route))
        .map(|(value, gradient, from, to)| (graph.value(value).name.as_str(), gradient, from, to))
        .collect();
    let (down, up) = ("block.0.ffn.residual", "block.4.ffn.residual");
    let expected = [(down, false, 0, 1), (down, true, 1, 0), (up, false, 1, 0), (up, true, 0, 1)];
    assert_eq!(ways, BTreeSet::from(expected));
    assert_eq!(program.routes.len(), expected.len());
}

/// The class that holds this block of layers, where each block is a stage.
fn class_of(program: &Program, layer: usize) -> &Class {
    &program.classes[layer + 1]
}

/// What `class` runs for the first micro-batch.
fn first_microbatch(class: &Class) -> impl Iterator<Item = &Body> {
    let entries = class.entries().filter(|entry| (entry.microbatch, entry.shift) == (Some(0), 0));
    entries.map(|entry| class.body_of(entry))
}

/// The tensor in which `class` receives `skip`, or its gradient, from the class that holds a layer.
fn end_of_way(program: &Program, class: &Class, skip: ValueId, from: usize) -> TensorId {
    let instructions = first_microbatch(class).flat_map(|body| &body.instructions);
    let mut received = instructions.filter_map(|instruction| match instruction.action {
        Action::Receive { route } => {
            let route = program.route(route);
            let sender = program.class(route.from);
            let found = valued(route) == skip && sender.devices == class_of(program, from).devices;
            found.then_some(instruction.writes[0].to)
        }
        _ => None,
    });
    match (received.next(), received.next()) {
        (Some(view), None) => view.tensor,
        found => panic!("received as {found:?}"),
    }
}

/// The body and the instruction that free `tensor`.
fn freed_by(class: &Class, tensor: TensorId) -> (BodyKind, &Instruction) {
    let mut frees = first_microbatch(class).flat_map(|body| {
        let frees = body.instructions.iter().filter(move |it| it.frees.contains(&tensor));
        frees.map(|instruction| (body.kind, instruction))
    });
    match (frees.next(), frees.next()) {
        (Some(freed), None) => freed,
        found => panic!("{tensor:?} is freed by {found:?}"),
    }
}

fn is_join(graph: &Graph, action: &Action, repeated: bool) -> bool {
    match *action {
        Action::Kernel { op, pass: Pass::Forward, again, .. } => {
            matches!(graph.op(op).kind, OpKind::Concat { .. }) && again == repeated
        }
        _ => false,
    }
}

#[test]
fn a_skip_is_freed_after_its_last_use_at_both_ends() {
    let graph = graph();
    for recompute in Recompute::ALL {
        let (program, skips) = spread(&graph, recompute);
        for Skip { value: skip, encoder, decoder } in skips {
            // Where it is read: by the join, which full recomputation runs again.
            let reader = class_of(&program, decoder);
            let (body, last) = freed_by(reader, end_of_way(&program, reader, skip, encoder));
            let repeated =
                matches!(recompute, Recompute::Full | Recompute::Block | Recompute::Stage);
            let expected = if repeated { BodyKind::Backward } else { BodyKind::Forward };
            assert_eq!(body, expected, "{recompute:?}");
            assert!(is_join(&graph, &last.action, repeated), "{recompute:?}: {last:?}");
            // Where it is made: by the last message, as no gradient operator of its block reads it.
            let maker = class_of(&program, encoder);
            let made = |it: &&Instruction| {
                let producer = graph.value(skip).producer;
                matches!(it.action, Action::Kernel { op, pass: Pass::Forward, .. } if Some(op) == producer)
            };
            let made = first_microbatch(maker).flat_map(|body| &body.instructions).find(made);
            let made = made.expect("the block makes its result");
            let (body, last) = freed_by(maker, made.writes[0].to.tensor);
            assert_eq!(body, BodyKind::Forward, "{recompute:?}");
            assert!(matches!(last.action, Action::Send { .. }), "{recompute:?}: {last:?}");
            // Its gradient from the join is added to the other in the backward pass that it arrives in.
            let gradient = end_of_way(&program, maker, skip, decoder);
            assert_eq!(freed_by(maker, gradient).0, BodyKind::Backward, "{recompute:?}");
        }
    }
}

#[test]
fn stages_between_the_ends_of_a_skip_never_hold_it() {
    let graph = graph();
    for recompute in Recompute::ALL {
        let (program, skips) = spread(&graph, recompute);
        for Skip { value: skip, encoder, decoder } in skips {
            let name = &graph.value(skip).name;
            let holds = |layer: &usize| {
                class_of(&program, *layer).tensors.iter().any(|it| it.name.starts_with(name))
            };
            let holders: Vec<usize> = (0..LAYERS).filter(holds).collect();
            assert_eq!(holders, [encoder, encoder + 1, decoder], "{recompute:?}");
        }
    }
}

/// Every dimension but that of the width splits as it does elsewhere: data, context and sequence
/// parallelism have each device join its own part, without a message.
#[test]
fn a_join_runs_on_each_devices_own_part() {
    let graph = graph();
    let mesh = |dp, cp, tp| Mesh::of(dp, cp, tp);
    for (mesh, sequence_parallel, parts) in [
        (mesh(2, 1, 1), false, 2),
        (mesh(1, 2, 1), false, 2),
        (mesh(1, 1, 2), false, 1),
        (mesh(1, 1, 2), true, 2),
        (mesh(2, 2, 2), true, 8),
    ] {
        let uniform = Uniform { mesh, sequence_parallel, ..uniform(1, Recompute::None) };
        let program = lowered(&graph, &uniform.plan(&graph, "model", "local"));
        let class = &program.classes[0];
        let elements = |view: View| class.shape(view).iter().product::<usize>();
        let extents = program.microbatch_extents(&graph);
        let mut joins = 0;
        for body in first_microbatch(class) {
            for instruction in &body.instructions {
                let Action::Kernel { op, pass, .. } = instruction.action else { continue };
                if !matches!(graph.op(op).kind, OpKind::Concat { .. }) {
                    continue;
                }
                let whole = extents.elements(&graph.value(graph.op(op).outputs[0]).axes);
                let (joined, apart) = match pass {
                    Pass::Forward => (instruction.writes[0].to, &instruction.reads),
                    _ => (
                        instruction.reads[0],
                        &instruction.writes.iter().map(|write| write.to).collect(),
                    ),
                };
                assert_eq!(elements(joined), whole / parts, "{mesh:?}");
                assert_eq!(apart.iter().map(|&it| elements(it)).sum::<usize>(), whole / parts);
                joins += 1;
            }
        }
        assert_eq!(joins, 2 * skips(&graph).len(), "forward and backward");
        let changed = first_microbatch(class).flat_map(|body| &body.instructions);
        let changed = changed
            .filter(|it| matches!(it.action, Action::Slice { .. } | Action::Collective { .. }));
        let changed = changed.filter(|it| class.tensor(it.reads[0].tensor).is_activation());
        for instruction in changed {
            let name = &class.tensor(instruction.writes[0].to.tensor).name;
            assert!(!name.contains(".skip"), "{name} changes its layout on {mesh:?}");
        }
    }
}
