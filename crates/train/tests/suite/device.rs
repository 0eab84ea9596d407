//! A device that no crate knows: it counts what it is asked for and has the processor do it. Training on it
//! needs nothing else, and nothing gets past it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::support::{Samples, gpt, mesh, serial, settings};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpKind};
use shardloom_kernels::compression::Step;
use shardloom_kernels::device::{
    BoxOf, Combine, Device, Gradients, HostSlice, HostSliceMut, Input, Kernel, OperandSize, Output,
    Region, Rows, Update,
};
use shardloom_kernels::optimizer::{Optimizer, Piece};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Format, Processor, View, ViewMut};
use shardloom_plan::{Number, Plan, Precision, Sync, Uniform};
use shardloom_program::{self as program, Action, Content, Program};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, Trainer};

/// How often each thing was asked for, by name.
type Counts = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct Counting {
    counts: Mutex<Counts>,
}

impl Counting {
    fn note(&self, what: impl Into<String>) {
        let mut counts = self.counts.lock().expect("nobody panics while counting");
        *counts.entry(what.into()).or_default() += 1;
    }

    fn take(&self) -> Counts {
        std::mem::take(&mut *self.counts.lock().expect("nobody panics while counting"))
    }
}

fn kernel(kind: &OpKind, pass: Pass) -> String {
    format!("{} {pass:?}", kind.name())
}

impl Device for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn region(&self, bytes: usize) -> Box<dyn Region> {
        self.note("region");
        Processor.region(bytes)
    }

    fn upload(&self, from: HostSlice<'_>, to: ViewMut<'_>) {
        self.note("upload");
        Processor.upload(from, to);
    }

    fn download(&self, from: View<'_>, to: HostSliceMut<'_>) {
        self.note("download");
        Processor.download(from, to);
    }

    fn download_box(&self, from: BoxOf<'_, View<'_>>, extent: &[usize], to: HostSliceMut<'_>) {
        self.note("download_box");
        Processor.download_box(from, extent, to);
    }

    fn upload_box(&self, from: HostSlice<'_>, extent: &[usize], to: BoxOf<'_, ViewMut<'_>>) {
        self.note("upload_box");
        Processor.upload_box(from, extent, to);
    }

    /// As a device does whose memory is not the host's: lends a copy.
    fn lend(&self, mut elements: ViewMut<'_>, user: &mut dyn FnMut(HostSliceMut<'_>)) {
        self.note("lend");
        let count = elements.len();
        match elements.format() {
            Format::F32 => {
                let mut copy = vec![0.0; count];
                Processor.download(elements.as_view(), HostSliceMut::F32(&mut copy));
                user(HostSliceMut::F32(&mut copy));
                Processor.upload(HostSlice::F32(&copy), elements.reborrow());
            }
            Format::U32 => {
                let mut copy = vec![0; count];
                Processor.download(elements.as_view(), HostSliceMut::U32(&mut copy));
                user(HostSliceMut::U32(&mut copy));
                Processor.upload(HostSlice::U32(&copy), elements.reborrow());
            }
            Format::Bf16 => {
                let mut copy = vec![0; count];
                Processor.download(elements.as_view(), HostSliceMut::Bf16(&mut copy));
                user(HostSliceMut::Bf16(&mut copy));
                Processor.upload(HostSlice::Bf16(&copy), elements.reborrow());
            }
            other => panic!("nothing of {other} is lent here"),
        }
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        self.note("copy");
        Processor.copy(from, to);
    }

    fn cast(&self, from: View<'_>, to: ViewMut<'_>) {
        self.note("cast");
        Processor.cast(from, to);
    }

    fn copy_box(&self, from: BoxOf<'_, View<'_>>, to: BoxOf<'_, ViewMut<'_>>, extent: &[usize]) {
        self.note("copy box");
        Processor.copy_box(from, to, extent);
    }

    fn fill(&self, elements: ViewMut<'_>, value: f32) {
        self.note("fill");
        Processor.fill(elements, value);
    }

    fn combine(&self, to: ViewMut<'_>, part: View<'_>, how: Combine) {
        self.note("combine");
        Processor.combine(to, part, how);
    }

    fn scale_and_add(&self, to: ViewMut<'_>, scale: f32, with: View<'_>, factor: f32) {
        self.note("scale and add");
        Processor.scale_and_add(to, scale, with, factor);
    }

    fn squared_norm(&self, elements: View<'_>) -> f64 {
        self.note("squared norm");
        Processor.squared_norm(elements)
    }

    fn squared_norm_of_rows(&self, rows: Rows<'_>, of: Range<usize>) -> f64 {
        self.note("squared norm");
        Processor.squared_norm_of_rows(rows, of)
    }

    fn sum_rows(
        &self,
        table_rows: usize,
        count: usize,
        rows: ViewMut<'_>,
        values: ViewMut<'_>,
        order: ViewMut<'_>,
    ) {
        self.note("sum rows");
        Processor.sum_rows(table_rows, count, rows, values, order);
    }

    fn scratch_elements(
        &self,
        kind: &OpKind,
        pass: Pass,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) -> usize {
        Processor.scratch_elements(kind, pass, reads, writes)
    }

    fn run(
        &self,
        of: Kernel<'_>,
        reads: &[Input<'_>],
        writes: &mut [Output<'_>],
        scratch: ViewMut<'_>,
    ) {
        self.note(kernel(of.kind, of.pass));
        for format in reads.iter().map(|it| it.data.format()) {
            self.note(format!("{} reads {format}", kernel(of.kind, of.pass)));
        }
        for format in writes.iter().map(|it| it.data.format()) {
            self.note(format!("{} writes {format}", kernel(of.kind, of.pass)));
        }
        Processor.run(of, reads, writes, scratch);
    }

    fn round_stochastically(&self, from: View<'_>, to: ViewMut<'_>, key: Key, piece: &Piece) {
        self.note("round stochastically");
        self.note(format!("random numbers {}", key.stream));
        Processor.round_stochastically(from, to, key, piece);
    }

    fn update_scratch_elements(&self, elements: usize, gradients: Format) -> usize {
        Processor.update_scratch_elements(elements, gradients)
    }

    fn row_update_scratch_elements(&self, optimizer: Optimizer, piece: &Piece) -> usize {
        Processor.row_update_scratch_elements(optimizer, piece)
    }

    fn statistics(
        &self,
        update: Update<'_>,
        round: usize,
        weights: View<'_>,
        gradients: Gradients<'_>,
        state: &mut [ViewMut<'_>],
        previous: Option<View<'_>>,
        out: ViewMut<'_>,
        scratch: ViewMut<'_>,
    ) {
        self.note("statistics");
        Processor.statistics(update, round, weights, gradients, state, previous, out, scratch);
    }

    fn compress(&self, step: &Step, reads: &[View<'_>], writes: &mut [ViewMut<'_>]) {
        self.note("compress");
        Processor.compress(step, reads, writes);
    }

    fn update(
        &self,
        update: Update<'_>,
        weights: ViewMut<'_>,
        gradients: Gradients<'_>,
        state: &mut [ViewMut<'_>],
        sums: Option<View<'_>>,
        scratch: ViewMut<'_>,
    ) {
        self.note("update");
        Processor.update(update, weights, gradients, state, sums, scratch);
    }
}

const STEPS: usize = 3;

/// The kernels of a step, the formats of their operands and the parts of parameters that are updated, on all ranks: as a device is asked.
fn planned(trainer: &Trainer) -> Counts {
    let program: &Program = trainer.program();
    let mut counts = Counts::new();
    for class in &program.classes {
        for position in 0..class.mesh.size() {
            for entry in class.unguarded() {
                for instruction in &class.body_of(entry).instructions {
                    match &instruction.action {
                        Action::Kernel { op, pass, .. } => {
                            let name = kernel(&trainer.graph().op(*op).kind, *pass);
                            let format = |view: &program::View| class.tensor(view.tensor).format;
                            for read in &instruction.reads {
                                let what = format!("{name} reads {}", format(read));
                                *counts.entry(what).or_default() += 1;
                            }
                            for write in &instruction.writes {
                                let what = format!("{name} writes {}", format(&write.to));
                                *counts.entry(what).or_default() += 1;
                            }
                            *counts.entry(name).or_default() += 1;
                        }
                        Action::SumRows => *counts.entry("sum rows".into()).or_default() += 1,
                        Action::Norm => {
                            let content = |view: &&program::View| class.tensor(view.tensor).content;
                            let reads = instruction.reads.iter();
                            let sums = reads.filter(|it| content(it) == Content::Gradient).count();
                            *counts.entry("squared norm".into()).or_default() += sums;
                        }
                        Action::Optimizer => {
                            let weights = instruction.writes[0].to;
                            let updated = class.bucket_range(weights, position);
                            let bucket = class.tensor(weights.tensor).bucket.expect("of a bucket");
                            let params = class.bucket(bucket).params.iter();
                            let parts = params.filter(|&&param| {
                                let range = class.param(param).range();
                                range.start.max(updated.start) < range.end.min(updated.end)
                            });
                            *counts.entry("update".into()).or_default() += parts.count();
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    counts
}

fn uniform(zero: u8) -> Uniform {
    let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
    Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 2, sync, ..serial() }
}

fn plan(zero: u8) -> Plan {
    uniform(zero).plan(&gpt(), "model", "local")
}

/// One whose gradients of tables are rows.
fn sparse_plan() -> Plan {
    let sync = Sync { sparse: true, ..uniform(0).sync };
    Uniform { sync, ..uniform(0) }.plan(&crate::support::llama(), "model", "local")
}

fn trainer(plan: &Plan, device: Option<Arc<dyn Device>>) -> Trainer {
    trainer_of(gpt(), plan, device)
}

fn trainer_of(graph: Graph, plan: &Plan, device: Option<Arc<dyn Device>>) -> Trainer {
    let settings = settings(Curve::Constant { peak: 0.01 });
    let blueprint = Blueprint::new(graph, plan, 4, settings);
    let blueprint = blueprint.unwrap_or_else(|error| panic!("{error}"));
    let blueprint = match device {
        Some(device) => blueprint.on(device),
        None => blueprint,
    };
    let samples = Samples::patterned(64, 16, 64);
    Trainer::start(blueprint, Box::new(samples)).expect("ranks start")
}

#[test]
fn another_device_trains_the_same_weights_and_sees_every_kernel() {
    for zero in 0..4 {
        let plan = plan(zero);
        let counting = Arc::new(Counting::default());
        let mut own = trainer(&plan, Some(counting.clone()));
        let mut usual = trainer(&plan, None);
        // Once ranks answer, they are there.
        own.weights().expect("weights");
        counting.take();
        for _ in 0..STEPS {
            let [one, other] = [&mut own, &mut usual].map(|it| it.step().expect("a step"));
            assert_eq!(one.loss.to_bits(), other.loss.to_bits(), "zero {zero}");
            assert_eq!(one.gradient_norm, other.gradient_norm, "zero {zero}");
        }
        let seen = counting.take();
        for (what, count) in planned(&own) {
            assert_eq!(seen.get(&what), Some(&(STEPS * count)), "zero {zero}: {what}");
        }
        // What is lent: inputs, and what collectives exchange. What goes to the host and back: messages.
        let of = |what: &str| seen.get(what).copied().unwrap_or(0);
        assert!(of("lend") > 0 && of("download") > 0 && of("upload") > 0, "{seen:?}");
        let kernels = seen.keys().filter(|what| what.ends_with("Forward")).count();
        assert!(kernels >= 8, "{seen:?}");
        assert_eq!(seen.get("region"), None, "all memory is there before the first step");
        let [one, other] = [&mut own, &mut usual].map(|it| it.weights().expect("weights"));
        assert_eq!(one, other, "zero {zero}");
    }
}

#[test]
fn another_device_sums_the_rows_of_tables() {
    let counting = Arc::new(Counting::default());
    let of = |device| trainer_of(crate::support::llama(), &sparse_plan(), device);
    let (mut own, mut usual) = (of(Some(counting.clone() as Arc<dyn Device>)), of(None));
    own.weights().expect("weights");
    counting.take();
    let [one, other] = [&mut own, &mut usual].map(|it| it.step().expect("a step"));
    assert_eq!(one.gradient_norm, other.gradient_norm);
    let seen = counting.take();
    for (what, count) in planned(&own) {
        assert_eq!(seen.get(&what), Some(&count), "{what}");
    }
    // Those of each of two replicas, and of both.
    assert_eq!(seen.get("sum rows"), Some(&4));
    let [one, other] = [&mut own, &mut usual].map(|it| it.weights().expect("weights"));
    assert_eq!(one, other);
}

#[test]
fn kernels_get_their_operands_in_the_formats_of_the_program() {
    let products = |precision| {
        let plan = Uniform { precision, ..uniform(1) }.plan(&gpt(), "model", "local");
        let counting = Arc::new(Counting::default());
        let mut own = trainer(&plan, Some(counting.clone()));
        own.weights().expect("weights");
        counting.take();
        own.step().expect("a step");
        let seen = counting.take();
        for (what, count) in planned(&own) {
            assert_eq!(seen.get(&what), Some(&count), "{what}");
        }
        let of = |what: &str| seen.get(what).copied().unwrap_or(0);
        ["f32", "bf16"].map(|format| of(&format!("contract Forward reads {format}")))
    };
    let bf16 = Precision {
        compute: Number::Bf16,
        gradients: Number::Bf16,
        master: true,
        ..Precision::MIXED
    };
    let [single, half] = [Precision::FP32, bf16].map(products);
    assert!(single[0] > 0 && half == [0, single[0]], "{single:?} {half:?}");
}

/// With the same random numbers, those of two parameters would be rounded up and down together.
#[test]
fn the_weights_of_each_parameter_are_rounded_by_random_numbers_of_its_own() {
    let uniform = Uniform { precision: Precision::STOCHASTIC, ..serial() };
    let plan = uniform.plan(&gpt(), "model", "local");
    let counting = Arc::new(Counting::default());
    let mut run = trainer(&plan, Some(counting.clone()));
    run.step().expect("a step");
    let seen = counting.take();
    let own = seen.iter().filter(|(what, _)| what.starts_with("random numbers"));
    let own: Vec<usize> = own.map(|(_, &count)| count).collect();
    assert_eq!(own, vec![1; run.graph().parameters().count()]);
}

#[test]
fn a_run_goes_on_on_its_device_under_another_plan() {
    let counting = Arc::new(Counting::default());
    let mut own = trainer(&plan(1), Some(counting.clone()));
    own.step().expect("a step");
    own.replan(&plan(3), 4).expect("the same model");
    own.weights().expect("weights");
    counting.take();
    own.step().expect("a step");
    let expected = planned(&own);
    let seen = counting.take();
    assert!(expected.iter().all(|(what, count)| seen.get(what) == Some(count)), "{seen:?}");
    let gathered = |program: &Program| {
        let held = program.classes[0].tensors.iter();
        held.filter(|it| it.content == Content::Weight).count()
    };
    assert!(gathered(own.program()) > own.program().classes[0].buckets.len());
}
