//! The passes of operators as a device takes them from a graph: with the operands that gradient rules list, every
//! gradient is the derivative of what the forward pass of the same operator gives.

use shardloom_graph::gradient::{self, Operand};
use shardloom_graph::work::Pass;
use shardloom_graph::{DType, Extents, Graph, ModelSpec, Op, OpId, OpKind, ValueId};
use shardloom_kernels::device::{
    HostSlice, HostSliceMut, Input, Kernel, OperandSize, Output, Setting,
};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Format, Memory, processor};

use crate::oracle::numbers;

const BATCH: usize = 2;

/// The graph whose values all have their elements: parameters and features are drawn, the rest follows from them.
struct Run {
    graph: Graph,
    extents: Extents,
    memory: Memory,
    values: Vec<Buffer>,
    /// Where the device's part of a sequence, and of a table or vocabulary, begins.
    firsts: (usize, usize),
}

fn format(dtype: DType) -> Format {
    match dtype {
        DType::Real | DType::Float => Format::F32,
        DType::Index => Format::U32,
        DType::Mask => Format::U8,
    }
}

impl Run {
    fn of(graph: Graph, firsts: (usize, usize)) -> Run {
        let extents = Extents::global(&graph, BATCH);
        let memory = Memory::new(processor());
        let made = |(id, value): (ValueId, &shardloom_graph::Value)| {
            let elements = extents.elements(&value.axes);
            let mut buffer = memory.alloc_zeroed(format(value.dtype), elements);
            let drawn = numbers(id.index() as u64 + 1, elements);
            match value.dtype {
                DType::Index => {
                    // Tokens below the smallest table, some before its part; targets of that part.
                    let is_click = graph.dim_named("click").is_some();
                    let index = |it: &f32| match (value.name.as_str(), is_click) {
                        ("targets", true) => ((it + 1.0) * 3.5) as u32 % 2,
                        ("targets", false) => 1 + ((it + 1.0) * 3.5) as u32 % 3,
                        _ => ((it + 1.0) * 3.5) as u32 % 4,
                    };
                    let drawn: Vec<u32> = drawn.iter().map(index).collect();
                    processor().upload(HostSlice::U32(&drawn), buffer.view_mut());
                }
                DType::Mask => {}
                DType::Real | DType::Float => processor().set_reals(&drawn, buffer.view_mut()),
            }
            buffer
        };
        let values = graph.values().map(made).collect();
        let mut run = Run { graph, extents, memory, values, firsts };
        let ops: Vec<OpId> = run.graph.ops().map(|(id, _)| id).collect();
        ops.into_iter().for_each(|op| run.forward(op));
        run
    }

    fn shape(&self, value: ValueId) -> Vec<usize> {
        self.extents.shape(&self.graph.value(value).axes)
    }

    fn setting(&self, op: &Op) -> Setting {
        let mask = op.mask_loops().map(|loops| {
            let dims: Vec<_> = loops.iter().map(|&it| op.signature.loops[it].dim).collect();
            let shape = self.extents.shape(&dims);
            Window {
                extent: shape.iter().copied().collect(),
                start: shape.iter().map(|_| 0).collect(),
                global: shape.iter().copied().collect(),
            }
        });
        let (first_position, first_index) = self.firsts;
        let key = Key { seed: 1, stream: 2, step: 3 };
        Setting { mask, first_position, first_index, loss_scale: 0.75, key }
    }

    /// Runs a pass that reads and writes these, and gives what it has written.
    fn pass(
        &self,
        op: OpId,
        pass: Pass,
        reads: &[(Vec<usize>, &Buffer)],
        mut writes: Vec<(Vec<usize>, Buffer, bool)>,
    ) -> Vec<Buffer> {
        let device = processor();
        let op = self.graph.op(op);
        let size = |shape, format| OperandSize { shape, format };
        let read: Vec<_> = reads.iter().map(|(shape, it)| size(shape, it.format())).collect();
        let written: Vec<_> =
            writes.iter().map(|(shape, it, _)| size(shape, it.format())).collect();
        let elements = device.scratch_elements(&op.kind, pass, &read, &written);
        let mut scratch = self.memory.alloc(Format::F32, elements);
        let inputs: Vec<_> =
            reads.iter().map(|(shape, it)| Input { shape, data: it.view() }).collect();
        let output = |(shape, it, accumulate): &mut (Vec<usize>, Buffer, bool)| {
            let (shape, accumulate) = (std::mem::take(shape), *accumulate);
            (shape, std::mem::replace(it, self.memory.alloc(Format::F32, 0)), accumulate)
        };
        let mut taken: Vec<_> = writes.iter_mut().map(output).collect();
        let mut outputs: Vec<_> = taken
            .iter_mut()
            .map(|(shape, it, accumulate)| Output {
                shape,
                data: it.view_mut(),
                accumulate: *accumulate,
            })
            .collect();
        let setting = self.setting(op);
        let kernel = Kernel { kind: &op.kind, pass, setting: &setting };
        device.run(kernel, &inputs, &mut outputs, scratch.view_mut());
        drop(outputs);
        taken.into_iter().map(|(_, buffer, _)| buffer).collect()
    }

    fn forward(&mut self, op: OpId) {
        let node = self.graph.op(op);
        let outputs = node.outputs.clone();
        let empty = |value: &ValueId| {
            let shape = self.shape(*value);
            let elements = shape.iter().product();
            let format = format(self.graph.value(*value).dtype);
            (shape, self.memory.alloc_zeroed(format, elements), false)
        };
        let writes = outputs.iter().map(empty).collect();
        let reads: Vec<_> =
            node.inputs.iter().map(|&it| (self.shape(it), &self.values[it.index()])).collect();
        let written = self.pass(op, Pass::Forward, &reads, writes);
        for (value, buffer) in outputs.into_iter().zip(written) {
            self.values[value.index()] = buffer;
        }
    }

    fn reals(&self, value: ValueId) -> Vec<f32> {
        processor().reals(self.values[value.index()].view())
    }

    fn set(&mut self, value: ValueId, elements: &[f32]) {
        processor().set_reals(elements, self.values[value.index()].view_mut());
    }

    /// The operators whose forward passes make what the gradient of an operator is the derivative of: the phases of
    /// a cross-entropy have one together.
    fn chain(&self, op: OpId) -> Vec<OpId> {
        let node = self.graph.op(op);
        match node.kind {
            OpKind::CrossEntropy { .. } => {
                let producer = |index: usize| self.graph.value(node.inputs[index]).producer;
                [producer(1), producer(2), Some(op)].into_iter().flatten().collect()
            }
            _ => vec![op],
        }
    }

    /// The derivative, with respect to each element of an input of an operator, of the sum of its first output's
    /// elements times `weights`.
    fn derivative(&mut self, op: OpId, input: ValueId, weights: &[f32]) -> Vec<f64> {
        const STEP: f32 = 1.0 / 256.0;
        let (chain, output) = (self.chain(op), self.graph.op(op).outputs[0]);
        let original = self.reals(input);
        let at = |run: &mut Run, elements: &[f32]| -> f64 {
            run.set(input, elements);
            chain.iter().for_each(|&op| run.forward(op));
            let found = run.reals(output);
            found.iter().zip(weights).map(|(y, w)| f64::from(*y) * f64::from(*w)).sum()
        };
        let mut derivative = vec![];
        for index in 0..original.len() {
            let moved = |by: f32| {
                let mut elements = original.clone();
                elements[index] += by;
                elements
            };
            // Two differences, of which the error of third order goes.
            let [one, two] = [1.0f32, 2.0].map(|times| {
                let step = times * STEP;
                let (above, below) = (at(self, &moved(step)), at(self, &moved(-step)));
                (above - below) / (2.0 * f64::from(step))
            });
            derivative.push((4.0 * one - two) / 3.0);
        }
        at(self, &original);
        derivative
    }

    /// Compares the gradients of an operator with derivatives, whichever of them are added to what is there.
    fn check(&mut self, op: OpId) -> usize {
        let rule = gradient::rule(&self.graph, op);
        let node = self.graph.op(op).clone();
        let output = node.outputs[0];
        let is_loss = node.kind.is_loss();
        let elements = self.extents.elements(&self.graph.value(output).axes);
        let weights = if is_loss { vec![0.75] } else { numbers(77, elements) };
        let mut of_output = self.memory.alloc(Format::F32, elements);
        processor().set_reals(&weights, of_output.view_mut());
        let mut of_inputs: Vec<Option<Buffer>> = node.inputs.iter().map(|_| None).collect();
        let mut checked = 0;
        for (pass, gradient) in [(Pass::Input, rule.input), (Pass::Weight, rule.weight)] {
            let Some(gradient) = gradient else { continue };
            let produced: Vec<ValueId> =
                gradient.produces.iter().map(|&index| node.inputs[index]).collect();
            let expected: Vec<Vec<f64>> =
                produced.iter().map(|&it| self.derivative(op, it, &weights)).collect();
            let is_context = matches!(node.kind, OpKind::AttentionContext { .. });
            let is_causal = is_context && node.kind.causal() == Some(true);
            let first = self.reals(produced[0]);
            let unseen = |index: usize, place: usize| {
                is_causal && gradient.produces[index] == 0 && first[place] == 0.0
            };
            // None, each by itself, all. What enters a recurrence nobody else reads.
            let count = produced.len();
            let masks = match (&node.kind, pass) {
                (OpKind::Lstm { .. }, Pass::Input) => vec![0],
                _ => (0..count).map(|index| 1 << index).chain([0, (1 << count) - 1]).collect(),
            };
            let mut last = vec![];
            for mask in masks {
                let adds = |index: usize| mask >> index & 1 == 1;
                let reads: Vec<(Vec<usize>, &Buffer)> = gradient
                    .reads
                    .iter()
                    .map(|read| match *read {
                        Operand::Input(it) => {
                            (self.shape(node.inputs[it]), &self.values[node.inputs[it].index()])
                        }
                        Operand::Output(it) => {
                            (self.shape(node.outputs[it]), &self.values[node.outputs[it].index()])
                        }
                        Operand::OutputGradient => (self.shape(output), &of_output),
                        Operand::InputGradient(it) => {
                            let found = of_inputs[it].as_ref().expect("it is found before");
                            (self.shape(node.inputs[it]), found)
                        }
                    })
                    .collect();
                let before: Vec<Vec<f32>> = expected
                    .iter()
                    .zip(&produced)
                    .enumerate()
                    .map(|(index, (expected, value))| {
                        let counted = self.graph.value(*value).counts.is_some();
                        match adds(index) {
                            true => numbers(5 + index as u64, expected.len()),
                            // What rows there are none of is left as it is.
                            false if counted => vec![0.0; expected.len()],
                            false => vec![f32::NAN; expected.len()],
                        }
                    })
                    .collect();
                let writes =
                    produced.iter().zip(&before).enumerate().map(|(index, (&it, before))| {
                        let mut buffer = self.memory.alloc(Format::F32, before.len());
                        processor().set_reals(before, buffer.view_mut());
                        (self.shape(it), buffer, adds(index))
                    });
                let written = self.pass(op, pass, &reads, writes.collect());
                for (index, (found, expected)) in written.iter().zip(&expected).enumerate() {
                    let of = &self.graph.value(produced[index]).name;
                    let size = expected.iter().fold(1.0, |size: f64, it| size.max(it.abs()));
                    for (place, (found, expected)) in
                        processor().reals(found.view()).into_iter().zip(expected).enumerate()
                    {
                        // The gradient of the probability of a key that is not seen is 0, whatever was there.
                        if unseen(index, place) {
                            assert_eq!(found, 0.0, "a key that is not seen");
                            continue;
                        }
                        let before = if adds(index) { before[index][place] } else { 0.0 };
                        let error = (f64::from(found - before) - expected).abs() / size;
                        assert!(
                            error < 2e-3,
                            "{} {pass:?}, element {place} of the gradient of {of}: {found} less {before}, not \
                             {expected}; added to {mask:b}",
                            node.kind.name()
                        );
                    }
                }
                checked += written.len();
                last = written;
            }
            for (&index, buffer) in gradient.produces.iter().zip(last) {
                of_inputs[index] = Some(buffer);
            }
        }
        checked
    }
}

/// A network of routed experts, of which some rows find no slot.
const ROUTED: &str = r#"
[model]
name = "routed"
[dims]
seq = 4
model = 5
choices = 3
expert = 3
slot = 2
hidden = 4
vocab = 6
[[input]]
name = "tokens"
kind = "index"
axes = ["seq"]
[[input]]
name = "targets"
kind = "index"
axes = ["seq"]
[[block]]
name = "all"
[[block.op]]
name = "tokens"
kind = "embed"
inputs = ["tokens"]
table = { axes = ["vocab", "model"], init = { normal = 0.5 } }
[[block.op]]
name = "positions"
kind = "add-bias"
inputs = ["all.tokens"]
bias = { axes = ["seq", "model"], rows = 1, init = { normal = 0.3 } }
[[block.op]]
name = "gate"
kind = "contract"
inputs = ["positions"]
weight = { axes = ["model", "choices"], init = { normal = 0.3 } }
[[block.op]]
name = "route"
kind = "route"
inputs = ["gate"]
experts = "expert"
slots = "slot"
overflow = "drop"
[[block.op]]
name = "dispatch"
kind = "dispatch"
inputs = ["positions", "route"]
[[block.op]]
name = "up"
kind = "expert-contract"
inputs = ["dispatch"]
weight = { axes = ["expert", "model", "hidden"], init = { normal = 0.15 } }
[[block.op]]
name = "gelu"
kind = "gelu"
inputs = ["up"]
[[block.op]]
name = "down"
kind = "expert-contract"
inputs = ["gelu"]
weight = { axes = ["expert", "hidden", "model"], init = { normal = 0.15 } }
[[block.op]]
name = "combine"
kind = "combine"
inputs = ["down", "route"]
[[block.op]]
name = "sum"
kind = "add"
inputs = ["positions", "combine"]
[[block.op]]
name = "head"
kind = "contract"
inputs = ["sum"]
weight = { axes = ["vocab", "model"], init = { normal = 0.2 } }
[[block.op]]
name = "loss"
kind = "cross-entropy"
inputs = ["head", "targets"]
"#;

/// Checks all operators of a model, and that those named are among them.
#[track_caller]
fn check(spec: &ModelSpec, firsts: (usize, usize), named: &[&str]) {
    check_graph(spec.graph().expect("a model"), firsts, named);
}

#[track_caller]
fn check_graph(graph: Graph, firsts: (usize, usize), named: &[&str]) {
    let mut run = Run::of(graph, firsts);
    let ops: Vec<OpId> = run.graph.ops().map(|(id, _)| id).collect();
    let mut kinds = vec![];
    for op in ops {
        if run.check(op) > 0 {
            kinds.push(run.graph.op(op).kind.name());
        }
    }
    for name in named {
        assert!(kinds.contains(name), "{name} is not among {kinds:?}");
    }
}

#[track_caller]
fn check_text(text: &str, firsts: (usize, usize), named: &[&str]) {
    check(&ModelSpec::parse(text).expect("a model"), firsts, named);
}

#[test]
fn gradients_of_a_gpt_with_dropout_are_derivatives() {
    let kinds = [
        "embed",
        "dropout",
        "bias-dropout-add",
        "layer-norm",
        "attention-context",
        "cross-entropy",
    ];
    // All of the vocabulary, and its part from the second entry on.
    for first in [0, 1] {
        let text = "gpt:layers=1,hidden=6,heads=2,seq=4,vocab=6,dropout=0.25";
        check_text(text, (0, first), &kinds);
    }
    // Without dropout a bias has another gradient.
    let kinds = ["bias-dropout-add", "gelu"];
    check_text("gpt:layers=1,hidden=6,heads=2,seq=4,vocab=6", (0, 0), &kinds);
}

#[test]
fn gradients_of_a_llama_on_a_part_of_the_sequence_are_derivatives() {
    let text = "llama:layers=1,hidden=8,heads=4,kv_heads=2,ffn=6,seq=4,vocab=6,qkv_bias=true";
    for first in [0, 2] {
        check_text(
            text,
            (first, 0),
            &["rms-norm", "swiglu", "rotary", "attention-probs", "contract"],
        );
    }
}

#[test]
fn gradients_of_fused_attention_are_derivatives() {
    for (text, first) in [
        ("gpt:layers=1,hidden=6,heads=2,seq=4,vocab=6,dropout=0.25", 0),
        ("llama:layers=1,hidden=8,heads=4,kv_heads=2,ffn=6,seq=4,vocab=6", 2),
    ] {
        let graph = ModelSpec::parse(text).and_then(|it| it.graph()).expect("a model");
        check_graph(graph.with_fused_attention(), (first, 0), &["fused-attention"]);
    }
}

#[test]
fn gradients_of_a_loss_over_drawn_classes_are_derivatives() {
    for tied in [false, true] {
        let text = format!(
            "lstm:layers=1,hidden=4,embed=4,seq=3,vocab=10,init_std=0.3,tied={tied},sampled_softmax=4"
        );
        check_text(&text, (0, 0), &["sampled-cross-entropy"]);
    }
}

#[test]
fn gradients_of_a_gemma_are_derivatives() {
    let text = "llama:layers=1,hidden=6,heads=2,kv_heads=1,head_dim=4,ffn=6,seq=4,vocab=6,tied=true,\
                geglu=true,scaled_embedding=true,zero_centered_gain=true";
    for first in [0, 2] {
        check_text(text, (first, 0), &["rms-norm", "geglu", "scale", "rotary", "embed"]);
    }
}

#[test]
fn gradients_of_windows_and_bounds_are_derivatives() {
    let text = "llama:layers=2,hidden=6,heads=2,kv_heads=1,head_dim=4,ffn=6,seq=4,vocab=6,windows=2-0,\
                window_rope_theta=100,rope_scaling=[2],attention_scalar=3,attention_cap=0.5,logit_cap=0.25,\
                qk_norm=true,zero_centered_gain=true";
    for first in [0, 2] {
        let kinds = ["soft-cap", "rms-norm", "rotary", "attention-probs", "attention-context"];
        check_text(text, (first, 0), &kinds);
        let graph = ModelSpec::parse(text).and_then(|it| it.graph()).expect("a model");
        check_graph(graph.with_fused_attention(), (first, 0), &["fused-attention"]);
    }
}

#[test]
fn gradients_of_heads_rotated_in_part_and_layers_side_by_side_are_derivatives() {
    let text = "gpt:layers=1,hidden=12,heads=2,seq=4,vocab=6,rotary=4,parallel=true,head_bias=true";
    for first in [0, 2] {
        check_text(text, (first, 0), &["rotary", "contract", "bias-dropout-add"]);
    }
}

#[test]
fn gradients_of_routed_rows_are_derivatives() {
    let spec = ModelSpec::from_toml(ROUTED, "the test").expect("a model");
    let run = Run::of(spec.graph().expect("a model"), (0, 0));
    let is_route = |(_, op): &(OpId, &Op)| matches!(op.kind, OpKind::Route { .. });
    let (_, route) = run.graph.ops().find(is_route).expect("it routes");
    let slots = &run.values[route.outputs[2].index()];
    let mut found = vec![0; slots.len()];
    processor().download(slots.view(), HostSliceMut::U32(&mut found));
    let lost = found.iter().filter(|&&slot| slot == shardloom_graph::op::UNROUTED).count();
    assert!((1..found.len()).contains(&lost), "some rows find a slot and some none: {found:?}");
    let kinds = ["route", "dispatch", "expert-contract", "gelu", "combine", "add", "embed"];
    check(&spec, (0, 0), &kinds);
}

#[test]
fn gradients_of_recurrences_with_and_without_a_projection_are_derivatives() {
    let text = "lstm:layers=1,hidden=3,embed=4,vocab=6,seq=4,dropout=0.2";
    check_text(text, (0, 0), &["lstm", "dropout", "contract"]);
    check_text(&format!("{text},projection=2"), (0, 0), &["lstm"]);
}

#[test]
fn gradients_of_interactions_and_of_what_is_joined_are_derivatives() {
    for diagonal in ["", ",diagonal=true"] {
        let text = format!("dlrm:dense=3,rows=4-5,embed=4,bottom=3,top=5{diagonal}");
        let kinds = ["dot-interaction", "concat", "relu", "sigmoid-cross-entropy", "add"];
        check_text(&text, (0, 0), &kinds);
    }
    check_text("u-transformer:layers=3,hidden=4,heads=2,seq=3,vocab=5", (0, 0), &["concat"]);
}
