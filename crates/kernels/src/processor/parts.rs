//! A pass of an operator, whose operands of 16 bits are widened and rounded part by part, so that what is in fp32
//! meanwhile stays in the caches nearest to the core.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;
use smallvec::SmallVec;

use super::operands::{Rest, read, settle, widened_elements, written};
use crate::Format;
use crate::device::{Input, OperandSize, Output, Setting};
use crate::dispatch::{self, Division, InBf16, Parts};

/// fp32 elements that operands are widened to at a time, where one row or sample does not take more: 128 KiB.
const WIDENED: usize = 32 * 1024;

type Shape = SmallVec<[usize; 6]>;

/// How a pass is run.
pub(super) struct Parted<'a> {
    kind: &'a OpKind,
    pass: Pass,
    forms: Forms,
    /// Rows or samples, and of how many a part is; one of one where nothing is divided.
    count: usize,
    of_a_part: usize,
    /// For each tensor read and each written the shape of a part of it, or nothing where each part takes all of it. What
    /// is written is written in parts, or as a whole that each part adds to.
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

    /// A tensor that is read, or a part of one.
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

impl<'a> Parted<'a> {
    /// How a pass runs that reads and writes tensors of these sizes.
    pub fn new(
        kind: &'a OpKind,
        pass: Pass,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) -> Parted<'a> {
        let shape = |read: usize| reads[read].shape;
        let mut parted = Parted {
            kind,
            pass,
            forms: Forms {
                in_bf16: dispatch::in_bf16(kind, pass, reads, writes),
                unread: dispatch::unread(kind, pass),
            },
            count: 1,
            of_a_part: 1,
            reads: reads.iter().map(|_| None).collect(),
            writes: writes.iter().map(|_| None).collect(),
        };
        if let Some(division) = dispatch::division(kind, pass, reads.len(), shape) {
            parted.divide(division, reads, writes);
        }
        parted
    }

    /// Divides a pass of which something is widened, and more than at a time.
    fn divide(
        &mut self,
        division: Division,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) {
        let is_whole = |read: usize| division.whole.contains(&read);
        let first = (0..reads.len()).find(|&read| !is_whole(read)).expect("a pass reads something");
        let shape = reads[first].shape;
        let count: usize = match division.of {
            Parts::Rows => shape[..shape.len().saturating_sub(1)].iter().product(),
            Parts::Samples => shape[0],
        };
        if count < 2 {
            return;
        }
        let part = |size: &OperandSize<'_>| -> Shape {
            let elements: usize = size.shape.iter().product();
            assert!(elements.is_multiple_of(count), "{:?} is of {count} parts", size.shape);
            match division.of {
                Parts::Rows => [1, elements / count].into_iter().collect(),
                Parts::Samples => [1].iter().chain(&size.shape[1..]).copied().collect(),
            }
        };
        let of_read = |(read, size)| (!is_whole(read)).then(|| part(size));
        let divided = Parted {
            count,
            reads: reads.iter().enumerate().map(of_read).collect(),
            writes: writes.iter().map(|size| (!division.sums).then(|| part(size))).collect(),
            ..*self
        };
        let of_one = divided.widened(reads, writes, |part| part.is_some());
        if of_one * count > WIDENED {
            *self = Parted { of_a_part: (WIDENED / of_one).max(1), ..divided };
            self.shape(self.of_a_part);
        }
    }

    /// Gives parts the shape of so many rows or samples.
    fn shape(&mut self, of_a_part: usize) {
        for shape in self.reads.iter_mut().chain(&mut self.writes).flatten() {
            shape[0] = of_a_part;
        }
    }

    /// fp32 elements that operands are widened to at a time, of those only of which `counts` is true: it is told the
    /// shape of an operand's parts, if it is taken in parts.
    fn widened(
        &self,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
        counts: impl Fn(Option<&Shape>) -> bool,
    ) -> usize {
        let wide = |(part, size): (&Option<Shape>, &OperandSize<'_>)| {
            let shape = part.as_deref().unwrap_or(size.shape);
            match counts(part.as_ref()) {
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
        let parts = self.reads.iter().zip(reads);
        let shapes: SmallVec<[&[usize]; 8]> =
            parts.map(|(part, size)| part.as_deref().unwrap_or(size.shape)).collect();
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
        let Parted { kind, pass, forms, count, .. } = self;
        let results_in_bf16 = forms.in_bf16.results;
        let wholes: SmallVec<[Option<dispatch::Input<'_>>; 8]> = (reads.iter().zip(&self.reads))
            .enumerate()
            .map(|(number, (input, part))| {
                part.is_none().then(|| forms.read(number, input, &mut scratch))
            })
            .collect();
        let is_divided = self.writes.iter().any(Option::is_some);
        let (divided, whole) = writes.split_at_mut(if is_divided { writes.len() } else { 0 });
        let (mut sums, left) = begin(whole, results_in_bf16, &mut scratch);
        for start in (0..count).step_by(self.of_a_part) {
            let these = start..count.min(start + self.of_a_part);
            let elements = |all: usize| these.start * all / count..these.end * all / count;
            self.shape(these.len());
            let mut scratch = &mut *scratch;
            let inputs: SmallVec<[dispatch::Input<'_>; 8]> = (reads.iter().zip(&self.reads))
                .zip(&wholes)
                .enumerate()
                .map(|(number, ((input, part), whole))| match (part, whole) {
                    (Some(shape), _) => {
                        let data = input.data.slice(elements(input.data.len()));
                        forms.read(number, &Input { shape, data }, &mut scratch)
                    }
                    (None, Some(whole)) => *whole,
                    (None, None) => unreachable!("what is not taken in parts is taken whole"),
                })
                .collect();
            if is_divided {
                let mut parts: SmallVec<[Output<'_>; 4]> = (divided.iter_mut().zip(&self.writes))
                    .map(|(output, part)| Output {
                        shape: part.as_deref().expect("all or none is written in parts"),
                        data: {
                            let range = elements(output.data.len());
                            output.data.reborrow().slice(range)
                        },
                        accumulate: output.accumulate,
                    })
                    .collect();
                let mut rest = &mut *scratch;
                let (mut results, left) = begin(&mut parts, results_in_bf16, &mut rest);
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
