//! What is computed twice, and what that saves: GPipe's stages (Huang et al. 2019, arXiv 1811.06965, section
//! 2.3) and torchgpipe's last micro-batch (Kim et al. 2020, arXiv 2004.09910).

use shardloom_graph::work::{self, Pass};
use shardloom_graph::{Graph, ModelSpec, OpId};
use shardloom_plan::{
    Corrections, Mesh, Plan, Prediction, Recompute, ScheduleKind, Uniform, Weights,
};
use shardloom_program::{
    Action, BodyKind, Class, Collective, Content, Instruction, Program, lower,
};

const STAGES: usize = 4;
const HIDDEN: usize = 32;
const SEQ: usize = 16;

fn graph(layers: usize) -> Graph {
    with_dropout(layers, 0.1)
}

fn with_dropout(layers: usize, dropout: f64) -> Graph {
    let text =
        format!("gpt:layers={layers},hidden={HIDDEN},heads=4,seq={SEQ},vocab=64,dropout={dropout}");
    ModelSpec::parse(&text).and_then(|spec| spec.graph()).expect("a model")
}

fn gpipe(global_batch: usize, microbatches: usize) -> Uniform {
    Uniform {
        pp: STAGES,
        global_batch,
        microbatches,
        schedule: ScheduleKind::Afab,
        recompute: Recompute::Stage,
        ..Uniform::default()
    }
}

/// The program with or without recomputation of the last micro-batch.
fn program(graph: &Graph, uniform: &Uniform, recompute_last: bool) -> Program {
    let plan = Plan { recompute_last, ..uniform.plan(graph, "gpt", "cluster") };
    lower(graph, &plan, STAGES).expect("the plan fits")
}

/// Bytes that a rank of `class` holds at most, besides what it always holds.
fn activation_bytes(program: &Program, class: &Class) -> usize {
    let found = class.memory_use(program, 0);
    (found.peak_bytes - found.persistent.total()) as usize
}

/// The second stage holds only layers, and as many as the third.
fn inner(program: &Program) -> &Class {
    &program.classes[1]
}

/// What a sample takes at the boundary of a stage.
const INPUT_BYTES: usize = 4 * SEQ * HIDDEN;

#[test]
fn a_micro_batch_in_flight_takes_the_input_of_its_stage_and_no_more() {
    let graph = graph(14);
    for in_flight in [[4, 8], [8, 32]] {
        let [few, many] = in_flight.map(|microbatches| {
            let program = program(&graph, &gpipe(2 * microbatches, microbatches), true);
            activation_bytes(&program, inner(&program))
        });
        // Two samples each.
        assert_eq!(many - few, 2 * (in_flight[1] - in_flight[0]) * INPUT_BYTES);
    }
}

/// N + (L / K) (N / M): inputs of all samples, and the layers of one micro-batch.
#[test]
fn the_most_activations_are_gpipes_formula() {
    let batch = 32;
    let beside_inputs = |layers: usize, microbatches: usize| {
        let program = program(&graph(layers), &gpipe(batch, microbatches), true);
        (activation_bytes(&program, inner(&program)) - batch * INPUT_BYTES) as f64
    };
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.05, "{found}");
    for layers in [14, 30] {
        for microbatches in [4, 8, 16] {
            near(
                beside_inputs(layers, microbatches) / beside_inputs(layers, 2 * microbatches),
                2.0,
            );
        }
    }
    // Four blocks to a stage, and eight.
    let layers = |layers: usize| {
        let graph = graph(layers);
        let program = program(&graph, &gpipe(batch, 8), true);
        let products = inner(&program).params.iter().filter(|it| it.rows > 1 && it.columns > 1);
        products.count() as f64
    };
    let deeper = layers(30) / layers(14);
    near(beside_inputs(30, 8) / beside_inputs(14, 8), deeper);
}

#[test]
fn from_a_stages_input_every_operator_runs_again_once_but_those_that_only_leave() {
    let graph = graph(14);
    let program = program(&graph, &gpipe(8, 4), true);
    for class in &program.classes {
        let again = again(class, |microbatch| microbatch == 0);
        let forward: Vec<OpId> = forwards(class);
        let last = *forward.last().expect("a stage computes");
        for op in forward {
            let runs = again.iter().filter(|&&it| it == op).count();
            assert!(runs <= 1, "{} runs {runs} times", graph.op(op).name);
            let read = graph.op(op).outputs.iter().flat_map(|&it| &graph.value(it).consumers);
            let inside = read.clone().any(|reader| again.contains(reader));
            // Whatever something that runs again reads does so too.
            assert!(runs == 1 || !inside || op == last, "{}", graph.op(op).name);
        }
        // Far more than half of the stage's work, in any case.
        assert!(flops(&graph, &program, &again) > 0.5 * flops(&graph, &program, &forwards(class)));
    }
}

/// A layer of a tensor-parallel pair sums its activations twice in a forward pass and twice in a backward pass.
/// Only the first sum of a forward pass is needed to compute it again, unless there is a mask of dropout to be had
/// after the second; frameworks that run a block again repeat both.
#[test]
fn a_block_that_is_run_again_repeats_its_operators_and_collectives() {
    let program = |layers, dropout, recompute| {
        let graph = with_dropout(layers, dropout);
        let mesh = Mesh::of(1, 1, 2);
        let uniform = Uniform { pp: 1, mesh, recompute, ..gpipe(1, 1) };
        let plan = uniform.plan(&graph, "gpt", "cluster");
        (lower(&graph, &plan, 2).expect("the plan fits"), graph)
    };
    let sums = |layers, dropout, recompute| {
        let (program, _) = program(layers, dropout, recompute);
        let class = &program.classes[0];
        let run = class.unguarded().flat_map(|entry| &class.body_of(entry).instructions);
        let sums = run.filter(|it| match it.action {
            Action::Collective { kind: Collective::AllReduce(_), .. } => {
                class.tensor(it.reads[0].tensor).is_activation()
            }
            _ => false,
        });
        sums.count()
    };
    let policies = [Recompute::None, Recompute::Full, Recompute::Block];
    for (dropout, expected) in [(0.0, [4, 5, 6]), (0.1, [4, 6, 6])] {
        let of_layer = |recompute| sums(5, dropout, recompute) - sums(4, dropout, recompute);
        assert_eq!(policies.map(of_layer), expected);
    }
    let (program, graph) = program(3, 0.0, Recompute::Block);
    let class = &program.classes[0];
    let again = again(class, |_| true);
    let loss = graph.op(*forwards(class).last().expect("a loss")).block;
    for op in forwards(class) {
        let node = graph.op(op);
        let is_layer = node.block != loss && node.block != graph.op(forwards(class)[0]).block;
        let runs = again.iter().filter(|&&it| it == op).count();
        assert_eq!(runs, usize::from(is_layer), "{}", node.name);
    }
}

/// The operators that run again for micro-batches.
fn again(class: &Class, of: impl Fn(u32) -> bool) -> Vec<OpId> {
    let mut found = vec![];
    for item in class.entries().filter(|item| item.microbatch.is_some_and(&of)) {
        for instruction in &class.body(item.body).instructions {
            if let Action::Kernel { op, again: true, .. } = instruction.action {
                found.push(op);
            }
        }
    }
    found
}

/// The operators of a stage's forward pass.
fn forwards(class: &Class) -> Vec<OpId> {
    let first = class.entries().next().expect("a stage goes forward");
    let instructions = class.body(first.body).instructions.iter();
    instructions
        .filter_map(|it| match it.action {
            Action::Kernel { op, pass: Pass::Forward, .. } => Some(op),
            _ => None,
        })
        .collect()
}

fn flops(graph: &Graph, program: &Program, ops: &[OpId]) -> f64 {
    let extents = program.microbatch_extents(graph);
    let work = |&op: &OpId| work::work(graph, op, Pass::Forward, &extents, 4);
    ops.iter().map(|op| work(op).expect("it goes forward").flops).sum()
}

/// `always`, `except_last` and `never` compute the share M, M - 1 and none of M micro-batches again, of each
/// pipeline.
#[test]
fn except_last_computes_all_but_one_micro_batch_of_each_pipeline_again() {
    let graph = graph(14);
    for (schedule, pipelines) in
        [(ScheduleKind::Afab, 1), (ScheduleKind::ZeroBubbleH1, 1), (ScheduleKind::Chimera, 2)]
    {
        for recompute in &Recompute::ALL[1..] {
            let recompute = *recompute;
            let uniform = Uniform { schedule, recompute, ..gpipe(16, 8) };
            let repeated = |uniform: &Uniform, recompute_last| -> f64 {
                let program = program(&graph, uniform, recompute_last);
                let of = |class| flops(&graph, &program, &again(class, |_| true));
                program.classes.iter().map(of).sum()
            };
            let never = Uniform { recompute: Recompute::None, ..uniform.clone() };
            let (always, except_last) = (repeated(&uniform, true), repeated(&uniform, false));
            assert_eq!(repeated(&never, true), 0.0);
            let expected = f64::from(8 - pipelines) / 8.0;
            assert!((except_last / always - expected).abs() < 1e-12, "{schedule:?} {recompute:?}");
            let program = program(&graph, &uniform, false);
            for class in &program.classes {
                let last = |microbatch| microbatch >= 8 - pipelines as u32;
                assert_eq!(again(class, last), [], "{schedule:?} {recompute:?}");
            }
        }
    }
}

#[test]
fn a_stage_with_a_policy_of_its_own_is_as_in_a_plan_that_has_it_for_all() {
    let graph = graph(8);
    let policies = Recompute::ALL;
    let lowered = |plan: &Plan| lower(&graph, plan, STAGES).expect("the plan fits");
    let plan = |recompute| {
        let uniform = Uniform { recompute, ..gpipe(4, 4) };
        Plan { recompute_last: false, ..uniform.plan(&graph, "gpt", "cluster") }
    };
    for usual in policies {
        let of_all = lowered(&plan(usual));
        for own in policies {
            let mut mixed = plan(usual);
            mixed.pipeline[0].stage[1].recompute = Some(own);
            assert_eq!(Plan::from_toml(&mixed.to_toml(), "plan").expect("its text"), mixed);
            let (mixed, alone) = (lowered(&mixed), lowered(&plan(own)));
            for (index, class) in mixed.classes.iter().enumerate() {
                let like = if index == 1 { &alone } else { &of_all };
                assert_eq!(class, &like.classes[index], "{own:?} among {usual:?}");
            }
        }
    }
}

#[test]
fn without_recomputation_there_is_nothing_to_spare() {
    let graph = graph(14);
    let uniform = Uniform { recompute: Recompute::None, ..gpipe(8, 4) };
    assert_eq!(program(&graph, &uniform, true), program(&graph, &uniform, false));
}

/// The last micro-batch goes backward first, so that what it keeps is what the others compute again.
#[test]
fn in_gpipes_order_sparing_the_last_micro_batch_takes_hardly_more_memory() {
    let graph = graph(14);
    let most = |recompute, recompute_last| {
        let uniform = Uniform { recompute, ..gpipe(32, 8) };
        let program = program(&graph, &uniform, recompute_last);
        activation_bytes(&program, inner(&program)) as f64
    };
    let (always, except_last) = (most(Recompute::Stage, true), most(Recompute::Stage, false));
    assert!((except_last / always - 1.0).abs() < 0.1, "{except_last} against {always}");
    assert!(except_last < 0.4 * most(Recompute::None, true));
}

/// A forward pass that is run again belongs to the backward pass: predicted weights are for the first one alone, and
/// a correction of what gradients are taken with is for all others.
#[test]
fn what_is_run_again_reads_the_weights_of_backward_passes() {
    let graph = graph(4);
    let prediction = Some(Prediction::Weights);
    let predicted = Corrections { prediction, ..Corrections::default() };
    let corrected = Corrections { discrepancy: Some(0.1), ..Corrections::default() };
    for (corrections, moves_first) in [(predicted, true), (corrected, false)] {
        let uniform =
            Uniform { schedule: ScheduleKind::PipeDream, clip_norm: None, ..gpipe(STAGES, STAGES) };
        let plan = uniform.plan(&graph, "gpt", "cluster");
        let plan = Plan { weights: Weights::Newest { corrections }, ..plan };
        let program = lower(&graph, &plan, STAGES).expect("the plan fits");
        // First passes, those that are run again, and all others.
        let mut seen = [0; 3];
        let class = inner(&program);
        for body in class.bodies.iter().filter(|it| it.kind != BodyKind::Evaluation) {
            let moves = |it: &&Instruction| matches!(it.action, Action::Extrapolate { .. });
            let moved: Vec<_> =
                body.instructions.iter().filter(moves).map(|it| it.writes[0].to.tensor).collect();
            for instruction in &body.instructions {
                let Action::Kernel { op, pass, again, .. } = instruction.action else { continue };
                let reads = || instruction.reads.iter().map(|it| it.tensor);
                let reads_moved = reads().any(|it| moved.contains(&it));
                let reads_kept = reads().any(|it| class.tensor(it).content == Content::Weight);
                if !reads_moved && !reads_kept {
                    continue;
                }
                let is_first = pass == Pass::Forward && !again;
                let kind = match (is_first, again) {
                    (true, _) => 0,
                    (false, true) => 1,
                    (false, false) => 2,
                };
                seen[kind] += 1;
                let expected = (is_first == moves_first, is_first != moves_first);
                let name = &graph.op(op).name;
                assert_eq!((reads_moved, reads_kept), expected, "{name} {pass:?}, again: {again}");
            }
        }
        assert!(seen.iter().all(|&it| it > 0), "{seen:?}");
    }
}
