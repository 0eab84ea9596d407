//! What forward passes keep, and what runs again.

use shardloom_graph::Graph;
use shardloom_graph::work::Pass;
use shardloom_plan::{Plan, Recompute, Uniform};
use shardloom_program::{
    Action, BodyKind, Class, Collective, Copies, Instruction, Program, TensorId, lower,
};
use std::collections::{BTreeMap, BTreeSet};

use super::model::{
    HEADS, HIDDEN, LAYERS, SAMPLES, SEQ, VOCAB, body, changes, gpt, llama, mesh, program, single,
};

/// Bytes that a forward pass leaves behind in values whose names begin with `prefix`.
fn kept_bytes(class: &Class, prefix: &str) -> usize {
    let mut live: BTreeSet<TensorId> = BTreeSet::new();
    for instruction in body(class, BodyKind::Forward) {
        let written = instruction.writes.iter().map(|write| write.to.tensor);
        live.extend(written.filter(|&it| class.tensor(it).copies == Copies::PerMicrobatch));
        for tensor in &instruction.frees {
            live.remove(tensor);
        }
    }
    let named = live.into_iter().filter(|&it| class.tensor(it).name.starts_with(prefix));
    named.map(|tensor| class.tensor_bytes(tensor, 0) as usize).sum()
}

#[test]
fn a_layer_keeps_what_korthikanti_counts() {
    let (s, b, h, a) = (SEQ, SAMPLES, HIDDEN, HEADS);
    let sbh = s * b * h;
    // Beyond the paper's terms: two norms' means and deviations, two 32-bit numbers per token each.
    let statistics = 2 * 8 * s * b;
    // Of attention the paper counts 5 bytes per probability: the softmax, the mask and the product of
    // both. The product is made again from the other two here, which leaves 3.
    let core = 3 * a * s * s * b;
    let kept = |t: u32, sequence_parallel, recompute| {
        let uniform = Uniform { mesh: mesh(1, 1, t), sequence_parallel, recompute, ..single() };
        kept_bytes(&program(&gpt(true), &uniform).classes[0], "block.1.")
    };
    let (none, selective, full) = (Recompute::None, Recompute::Selective, Recompute::Full);
    assert_eq!(kept(1, false, none), 34 * sbh + core + statistics);
    assert_eq!(kept(1, false, selective), 34 * sbh + statistics);
    assert_eq!(kept(1, false, full), 2 * sbh);
    for t in [2, 4] {
        let width = t as usize;
        assert_eq!(kept(t, false, none), 10 * sbh + 24 * sbh / width + core / width + statistics);
        assert_eq!(kept(t, false, selective), 10 * sbh + 24 * sbh / width + statistics);
        assert_eq!(kept(t, false, full), 2 * sbh);
        assert_eq!(kept(t, true, none), (34 * sbh + core + statistics) / width);
        assert_eq!(kept(t, true, selective), (34 * sbh + statistics) / width);
        assert_eq!(kept(t, true, full), 2 * sbh / width);
    }
}

#[test]
fn what_was_gathered_is_kept_whole_or_gathered_again_as_the_plan_says() {
    let sbh = SEQ * SAMPLES * HIDDEN;
    for t in [2_usize, 4] {
        let uniform = Uniform { mesh: mesh(1, 1, t as u32), sequence_parallel: true, ..single() };
        let mut plan = uniform.plan(&gpt(true), "model", "local");
        let of = |plan: &Plan| {
            let program = lower(&gpt(true), plan, plan.device_count()).expect("it fits");
            let gathers = changes(&program.classes[0], BodyKind::Backward, "block.1.");
            let gathers = gathers.iter().filter(|it| matches!(it, Collective::AllGather { .. }));
            (kept_bytes(&program.classes[0], "block.1."), gathers.count())
        };
        let (again, all_gathers) = of(&plan);
        plan.keeps_gathered = true;
        let (kept, gathers) = of(&plan);
        // The inputs of attention and of the feed-forward layer, two bytes each (section 4.2.2): 1/t of
        // them is there anyway.
        assert_eq!(kept, again + 2 * 2 * sbh * (t - 1) / t);
        assert_eq!(gathers, all_gathers - 2);
    }
}

#[test]
fn a_whole_model_keeps_its_layers_the_embeddings_mask_and_what_the_head_needs() {
    let (s, b, h, v) = (SEQ, SAMPLES, HIDDEN, VOCAB);
    for t in [1, 2, 4] {
        let sequence_parallel = t > 1;
        let uniform = Uniform { mesh: mesh(1, 1, t), sequence_parallel, ..single() };
        let program = program(&gpt(false), &uniform);
        let class = &program.classes[0];
        let t = t as usize;
        // The embedding's mask; the input of the first layer and of the head.
        let ends = (s * b * h + 4 * s * b * h) / t;
        // Logits in the compute precision (the paper has 4 bytes); the final norm's statistics.
        let head = 2 * s * b * v / t + 8 * s * b / t;
        // Maximum and sum over the whole vocabulary, on every rank.
        let loss = 8 * s * b;
        let layers = LAYERS * kept_bytes(class, "block.1.");
        assert_eq!(kept_bytes(class, ""), layers + ends + head + loss);
    }
}

#[test]
fn a_stage_without_the_head_keeps_its_layers_times_the_micro_batches_in_flight() {
    let uniform = Uniform { pp: 2, global_batch: 8, microbatches: 4, ..single() };
    let program = program(&gpt(false), &uniform);
    let class = &program.classes[0];
    let persistent = class.persistent_bytes(0).total();
    let kept = kept_bytes(class, "") as u64;
    let peak = class.memory_use(&program, 0).peak_bytes;
    // Two in flight, and what the passes need meanwhile, which is less than one keeps.
    assert!((persistent + 2 * kept..persistent + 3 * kept).contains(&peak));
}

/// The operators that a backward pass runs again, with how often.
fn repeated(program: &Program, graph: &Graph, class: &Class) -> BTreeMap<String, usize> {
    assert_eq!(program.ranks(), class.mesh.size());
    let mut counts = BTreeMap::new();
    for instruction in body(class, BodyKind::Backward) {
        if let Action::Kernel { op, pass: Pass::Forward, again, .. } = instruction.action {
            assert!(again, "a backward pass runs no operator forward for the first time");
            *counts.entry(graph.op(op).name.clone()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn selective_recomputation_repeats_the_core_of_attention_and_nothing_else() {
    for (graph, core) in [(gpt(true), &["probs", "context"][..]), (llama(), &["probs"])] {
        let uniform = Uniform { mesh: mesh(1, 1, 2), recompute: Recompute::Selective, ..single() };
        let program = program(&graph, &uniform);
        let names = (0..LAYERS).flat_map(|layer| {
            core.iter().map(move |part| (format!("block.{layer}.attention.{part}"), 1))
        });
        assert_eq!(repeated(&program, &graph, &program.classes[0]), names.collect());
    }
}

#[test]
fn full_recomputation_repeats_no_operator_twice_and_none_of_the_last_block() {
    for graph in [gpt(true), llama()] {
        for sequence_parallel in [false, true] {
            let uniform = Uniform {
                mesh: mesh(1, 1, 2),
                recompute: Recompute::Full,
                sequence_parallel,
                ..single()
            };
            let program = program(&graph, &uniform);
            let counts = repeated(&program, &graph, &program.classes[0]);
            assert!(counts.values().all(|&count| count == 1), "{counts:?}");
            for (_, op) in graph.ops() {
                let block = &graph.blocks()[op.block.index()].name;
                if block == "head" {
                    assert!(!counts.contains_key(&op.name), "{}", op.name);
                } else if op.kind.in_attention_core() || op.name.ends_with("norm") {
                    assert!(counts.contains_key(&op.name), "{} runs again", op.name);
                }
            }
        }
    }
}

#[test]
fn without_recomputation_nothing_runs_again() {
    let graph = gpt(true);
    let program = program(&graph, &Uniform { mesh: mesh(2, 1, 2), ..single() });
    let class = &program.classes[0];
    let forward =
        |it: &&Instruction| matches!(it.action, Action::Kernel { pass: Pass::Forward, .. });
    assert_eq!(body(class, BodyKind::Backward).iter().filter(forward).count(), 0);
}
