//! One thing to be timed.

use shardloom_cluster::Precision;
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::op::Activation;
use shardloom_graph::work::{self, MatmulShape, Pass};
use shardloom_graph::{Extents, Graph, OpId, OpKind};
use shardloom_kernels::Format;
use shardloom_kernels::device::{Input, Kernel, Output, Setting};
use shardloom_kernels::random::Key;

use crate::Result;
use crate::bench::{Bench, Clock};
use crate::links;
use crate::sites::Pairs;
use crate::streaming::Streaming;
use crate::subject::Subject;

/// The class of messages between two ranks of one machine.
pub(crate) const MESSAGE: &str = "message";
/// The class of messages between two machines: of one rank, and of all ranks of both at once.
pub(crate) const MESSAGE_OUT: &str = "message between machines";
pub(crate) const MESSAGES_OUT: &str = "messages between machines";
/// The class of the smallest operator.
pub(crate) const LAUNCH: &str = "launch";
/// The class of copies of tensors.
pub(crate) const COPY: &str = "copy";

/// What a time is a function of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    /// Elements.
    Elements(usize),
    /// A product's sizes; its time is that of one product of the batch, and of one turn.
    Product(MatmulShape),
}

/// One thing to be timed.
pub(crate) struct Task<'a> {
    /// The rate class.
    pub name: String,
    /// Of the operands.
    pub format: Precision,
    pub size: Size,
    work: Work<'a>,
}

enum Work<'a> {
    Operator { graph: &'a Graph, op: OpId, pass: Pass, extents: Extents, turns: usize },
    Streaming { streaming: Streaming, elements: usize },
    Collective { algorithm: Algorithm, kind: Kind, members: u32, elements: usize },
    Message { elements: usize, pairs: Pairs },
    Launch,
}

impl<'a> Task<'a> {
    /// A pass of an operator at given extents, with real numbers in `format`.
    pub fn operator(
        (name, format): (&str, Precision),
        graph: &'a Graph,
        op: OpId,
        pass: Pass,
        extents: Extents,
    ) -> Task<'a> {
        let work = work::work(graph, op, pass, &extents, format.bytes() as usize)
            .expect("only passes that an operator has are measured");
        let size = match work.matmul {
            Some((shape, _)) => Size::Product(shape),
            None => Size::Elements(work.elements),
        };
        let work = Work::Operator { graph, op, pass, extents, turns: work.turns };
        Task { name: name.to_owned(), format, size, work }
    }

    /// A pass over `elements`.
    pub fn streaming(name: &str, streaming: Streaming, elements: usize) -> Task<'a> {
        let work = Work::Streaming { streaming, elements };
        Task::in_full(name, Size::Elements(elements), work)
    }

    /// A collective over `elements` among groups of `members`.
    pub fn collective(
        name: &str,
        algorithm: Algorithm,
        kind: Kind,
        members: u32,
        elements: usize,
    ) -> Task<'a> {
        let work = Work::Collective { algorithm, kind, members, elements };
        Task::in_full(name, Size::Elements(elements), work)
    }

    /// A message of `elements`.
    pub fn message(elements: usize, pairs: Pairs) -> Task<'a> {
        let name = match pairs {
            Pairs::Within => MESSAGE,
            Pairs::Alone => MESSAGE_OUT,
            Pairs::Together => MESSAGES_OUT,
        };
        let work = Work::Message { elements, pairs };
        Task::in_full(name, Size::Elements(elements), work)
    }

    /// The smallest operator there is.
    pub fn launch() -> Task<'a> {
        Task::in_full(LAUNCH, Size::Elements(1), Work::Launch)
    }

    fn in_full(name: &str, size: Size, work: Work<'a>) -> Task<'a> {
        Task { name: name.to_owned(), format: Precision::Fp32, size, work }
    }

    /// Seconds it takes on machines of this rank's kind, if any of their ranks take part.
    ///
    /// # Errors
    /// If communication fails.
    pub fn seconds(&self, bench: &mut Bench) -> Result<Option<f64>> {
        let alone = match &self.work {
            Work::Collective { algorithm, kind, members, elements } => {
                return links::collective(*algorithm, *kind, *members, *elements, bench);
            }
            Work::Message { elements, pairs } => return links::message(*elements, *pairs, bench),
            Work::Operator { graph, op, pass, extents, .. } => {
                let format = operands(self.format);
                let formats = (format, bench.cold());
                let mut subject =
                    Subject::new(graph, *op, *pass, extents, formats, &mut bench.rooms);
                let seconds = bench.seconds(Clock::Processor, |_, call| {
                    subject.run(call);
                    Ok(())
                });
                subject.leave(&mut bench.rooms);
                seconds
            }
            Work::Streaming { streaming, elements } => streaming.seconds(*elements, bench),
            Work::Launch => launch_seconds(bench),
        }?;
        Ok(Some(alone / self.products() as f64))
    }

    /// How many products its time is of, one after the other; one, if it is of something else.
    fn products(&self) -> usize {
        match (self.size, &self.work) {
            (Size::Product(shape), Work::Operator { turns, .. }) => turns * shape.batch,
            _ => 1,
        }
    }
}

/// What real numbers are kept in.
fn operands(format: Precision) -> Format {
    match format {
        Precision::Fp32 => Format::F32,
        Precision::Bf16 => Format::Bf16,
        Precision::Fp16 => Format::F16,
        other => unreachable!("nothing is measured in {other}"),
    }
}

/// Seconds from deciding to run an operator until its result is released, when there is next to
/// nothing to compute.
fn launch_seconds(bench: &mut Bench) -> Result<f64> {
    let memory = bench.memory.clone();
    let kind = OpKind::Pointwise(Activation::Relu);
    let setting = Setting {
        mask: None,
        first_position: 0,
        first_index: 0,
        loss_scale: 1.0,
        key: Key { seed: 1, stream: 2, step: 3 },
    };
    let x = memory.alloc_zeroed(Format::F32, 1);
    let mut scratch = memory.alloc(Format::F32, 0);
    bench.seconds(Clock::Processor, |_, _| {
        let mut y = memory.alloc(Format::F32, 1);
        let reads = vec![Input { shape: &[1], data: x.view() }];
        let data = y.view_mut();
        let mut writes = vec![Output { shape: &[1], data, accumulate: false }];
        let kernel = Kernel { kind: &kind, pass: Pass::Forward, setting: &setting };
        memory.device().run(kernel, &reads, &mut writes, scratch.view_mut());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;

    use super::*;

    /// The products of the first operator of `model` of a kind.
    fn products(model: &str, samples: usize, is_it: impl Fn(&OpKind) -> bool) -> usize {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let (op, _) = graph.ops().find(|(_, op)| is_it(&op.kind)).expect("it has one");
        let extents = Extents::global(&graph, samples);
        Task::operator(("task", Precision::Fp32), &graph, op, Pass::Forward, extents).products()
    }

    #[test]
    fn a_time_is_of_one_product_of_each_turn_head_and_sample() {
        let gpt = "gpt:layers=1,hidden=12,heads=3,seq=5,vocab=16";
        let is_attention = |kind: &OpKind| matches!(kind, OpKind::AttentionProbs { .. });
        assert_eq!(products(gpt, 4, is_attention), 3 * 4);
        let is_product = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
        assert_eq!(products(gpt, 4, is_product), 1);
        let is_norm = |kind: &OpKind| matches!(kind, OpKind::LayerNorm { .. });
        assert_eq!(products(gpt, 4, is_norm), 1);
        // A recurrence multiplies its state once for each of 7 positions but the first, which has none.
        let lstm = "lstm:layers=1,hidden=12,embed=10,seq=7,vocab=16";
        let is_recurrence = |kind: &OpKind| matches!(kind, OpKind::Lstm { .. });
        assert_eq!(products(lstm, 4, is_recurrence), 6);
        assert_eq!(Task::launch().products(), 1);
    }
}
