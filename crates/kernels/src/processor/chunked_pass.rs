//! A pass of an operator, whose operands of 16 bits are widened and rounded chunk by chunk, so that what is in fp32
//! meanwhile stays in the caches nearest to the core.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;
use smallvec::SmallVec;

use super::operands::{Rest, read, settle, widened_elements, written};
use crate::Format;
use crate::device::{Input, OperandSize, Output, Setting};
use crate::dispatch::{self, Chunking, InBf16, Unit};

/// fp32 elements that operands are widened to at a time, where one row or sample does not take more: 128 KiB.
const WIDENED: usize = 32 * 1024;

type Shape = SmallVec<[usize; 6]>;

/// A pass and the chunks that it is run in, which is one where nothing is divided.
pub(super) struct ChunkedPass<'a> {
    kind: &'a OpKind,
    pass: Pass,
    forms: Forms,
    /// Rows or samples, and of how many a chunk is; one of one where nothing is divided.
    units: usize,
    units_per_chunk: usize,
    /// For each tensor read and each written the shape of a chunk of it, or nothing where each chunk takes all of it. What
    /// is written is written in chunks, or as a whole that each chunk adds to.
    reads: SmallVec<[Option<Shape>; 8]>,
    writes: SmallVec<[Option<Shape>; 4]>,
}

/// How a kernel takes what it reads and writes.
#[derive(Clone, Copy)]
struct Forms {
    in_bf16: InBf16,
    /// Tensors that it does not look at.
    unread: &'static [usize],
}

impl Forms {
    /// Whether a tensor that is read is taken in fp32 whatever its format.
    fn widens(&self, number: usize) -> bool {
        ![self.in_bf16.reads, self.unread].iter().any(|numbers| numbers.contains(&number))
    }

    /// A tensor that is read, or a chunk of one.
    fn read<'a>(
        &self,
        number: usize,
        input: &Input<'a>,
        scratch: &mut &'a mut [f32],
    ) -> dispatch::Input<'a> {
        match self.unread.contains(&number) {
            true => dispatch::Input { shape: input.shape, data: dispatch::Data::Unread },
            false => read(input, self.in_bf16.reads.contains(&number), scratch),
        }
    }
}

impl<'a> ChunkedPass<'a> {
    /// How a pass runs that reads and writes tensors of these sizes.
    pub fn new(
        kind: &'a OpKind,
        pass: Pass,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) -> ChunkedPass<'a> {
        let shape = |read: usize| reads[read].shape;
        let mut chunked = ChunkedPass {
            kind,
            pass,
            forms: Forms {
                in_bf16: dispatch::in_bf16(kind, pass, reads, writes),
                unread: dispatch::unread(kind, pass),
            },
            units: 1,
            units_per_chunk: 1,
            reads: reads.iter().map(|_| None).collect(),
            writes: writes.iter().map(|_| None).collect(),
        };
        if let Some(chunking) = dispatch::chunking(kind, pass, reads.len(), shape) {
            chunked.divide(chunking, reads, writes);
        }
        chunked
    }

    /// Divides a pass of which something is widened, and more than at a time.
    fn divide(
        &mut self,
        chunking: Chunking,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) {
        let is_whole = |read: usize| chunking.whole.contains(&read);
        let first = (0..reads.len()).find(|&read| !is_whole(read)).expect("a pass reads something");
        let shape = reads[first].shape;
        let units: usize = match chunking.of {
            Unit::Rows => shape[..shape.len().saturating_sub(1)].iter().product(),
            Unit::Samples => shape[0],
        };
        if units < 2 {
            return;
        }
        let unit = |size: &OperandSize<'_>| -> Shape {
            let elements: usize = size.shape.iter().product();
            assert!(
                elements.is_multiple_of(units),
                "{:?} is of {units} {:?}",
                size.shape,
                chunking.of
            );
            match chunking.of {
                Unit::Rows => [1, elements / units].into_iter().collect(),
                Unit::Samples => [1].iter().chain(&size.shape[1..]).copied().collect(),
            }
        };
        let of_read = |(read, size)| (!is_whole(read)).then(|| unit(size));
        let divided = ChunkedPass {
            units,
            reads: reads.iter().enumerate().map(of_read).collect(),
            writes: writes.iter().map(|size| (!chunking.sums).then(|| unit(size))).collect(),
            ..*self
        };
        let of_one = divided.widened(reads, writes, |chunk| chunk.is_some());
        if of_one * units > WIDENED {
            *self = ChunkedPass { units_per_chunk: (WIDENED / of_one).max(1), ..divided };
            self.shape(self.units_per_chunk);
        }
    }

    /// Gives chunks the shape of so many rows or samples.
    fn shape(&mut self, units_per_chunk: usize) {
        for shape in self.reads.iter_mut().chain(&mut self.writes).flatten() {
            shape[0] = units_per_chunk;
        }
    }

    /// fp32 elements that operands are widened to at a time, of those only of which `counts` is true: it is told the
    /// shape of an operand's chunks, if it is taken in chunks.
    fn widened(
        &self,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
        counts: impl Fn(Option<&Shape>) -> bool,
    ) -> usize {
        let wide = |(chunk, size): (&Option<Shape>, &OperandSize<'_>)| {
            let shape = chunk.as_deref().unwrap_or(size.shape);
            match counts(chunk.as_ref()) {
                true => widened_elements(shape.iter().product(), size.format),
                false => 0,
            }
        };
        let reads = self.reads.iter().zip(reads).enumerate();
        let reads = reads.filter(|&(read, _)| self.forms.widens(read)).map(|(_, it)| wide(it));
        let writes = self.writes.iter().zip(writes);
        let writes =
            writes.filter(|(_, size)| !(self.forms.in_bf16.results && size.format == Format::Bf16));
        reads.sum::<usize>() + writes.map(wide).sum::<usize>()
    }

    /// fp32 elements of scratch that it takes.
    pub fn scratch_elements(&self, reads: &[OperandSize<'_>], writes: &[OperandSize<'_>]) -> usize {
        let chunks = self.reads.iter().zip(reads);
        let shapes: SmallVec<[&[usize]; 8]> =
            chunks.map(|(chunk, size)| chunk.as_deref().unwrap_or(size.shape)).collect();
        let own = dispatch::scratch_elements(self.kind, self.pass, &shapes, writes.len());
        own + self.widened(reads, writes, |_| true)
    }

    /// Runs it with as much scratch.
    pub fn run<'b>(
        mut self,
        reads: &'b [Input<'b>],
        writes: &'b mut [Output<'_>],
        setting: &Setting,
        mut scratch: &'b mut [f32],
    ) {
        let ChunkedPass { kind, pass, forms, units, .. } = self;
        let results_in_bf16 = forms.in_bf16.results;
        let wholes: SmallVec<[Option<dispatch::Input<'_>>; 8]> = (reads.iter().zip(&self.reads))
            .enumerate()
            .map(|(number, (input, chunk))| {
                chunk.is_none().then(|| forms.read(number, input, &mut scratch))
            })
            .collect();
        let is_divided = self.writes.iter().any(Option::is_some);
        let (divided, whole) = writes.split_at_mut(if is_divided { writes.len() } else { 0 });
        let (mut sums, left) = begin(whole, results_in_bf16, &mut scratch);
        for start in (0..units).step_by(self.units_per_chunk) {
            let these = start..units.min(start + self.units_per_chunk);
            let elements = |all: usize| these.start * all / units..these.end * all / units;
            self.shape(these.len());
            let mut scratch = &mut *scratch;
            let inputs: SmallVec<[dispatch::Input<'_>; 8]> = (reads.iter().zip(&self.reads))
                .zip(&wholes)
                .enumerate()
                .map(|(number, ((input, chunk), whole))| match (chunk, whole) {
                    (Some(shape), _) => {
                        let data = input.data.slice(elements(input.data.len()));
                        forms.read(number, &Input { shape, data }, &mut scratch)
                    }
                    (None, Some(whole)) => *whole,
                    (None, None) => unreachable!("what is not taken in chunks is taken whole"),
                })
                .collect();
            if is_divided {
                let mut chunks: SmallVec<[Output<'_>; 4]> = (divided.iter_mut().zip(&self.writes))
                    .map(|(output, chunk)| Output {
                        shape: chunk.as_deref().expect("all or none is written in chunks"),
                        data: {
                            let range = elements(output.data.len());
                            output.data.reborrow().slice(range)
                        },
                        accumulate: output.accumulate,
                    })
                    .collect();
                let mut rest = &mut *scratch;
                let (mut results, left) = begin(&mut chunks, results_in_bf16, &mut rest);
                dispatch::run(kind, pass, &inputs, &mut results, setting, rest);
                end(results, left);
            } else {
                dispatch::run(kind, pass, &inputs, &mut sums, setting, scratch);
                sums.iter_mut().for_each(|sum| sum.accumulate = true);
            }
        }
        end(sums, left);
    }
}

type Results<'a> = SmallVec<[dispatch::Output<'a>; 4]>;
type Left<'a> = SmallVec<[Rest<'a>; 4]>;

/// Where a kernel writes tensors, and what is left to do afterwards.
fn begin<'a>(
    outputs: &'a mut [Output<'_>],
    as_it_is: bool,
    scratch: &mut &'a mut [f32],
) -> (Results<'a>, Left<'a>) {
    outputs.iter_mut().map(|output| written(output, as_it_is, scratch)).unzip()
}

/// Rounds what a kernel has written to where it belongs.
fn end(results: Results<'_>, left: Left<'_>) {
    for (result, rest) in results.into_iter().zip(left) {
        if let (dispatch::DataMut::F32(wide), Some(rest)) = (result.data, rest) {
            settle(wide, rest);
        }
    }
}
