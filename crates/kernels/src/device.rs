//! What computes: the operations that a device offers on buffers in its memory.
//!
//! Whoever trains knows buffers, [views](crate::View) of them and these operations, and never what the
//! elements are. [`Processor`](crate::Processor) is the device that this crate has; another is another
//! implementation of [`Device`], in any crate, which may wrap one that exists.
//!
//! Operations on views of one device are carried out in the order in which a rank asks for them, and are
//! complete, or as good as, when they return: what reads a result afterwards finds it there.
//!
//! Operands whose lengths or formats contradict each other are a mistake of the caller, never of a user,
//! and a device panics with them in the message.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;

use half::{bf16, f16};
use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

use crate::compression;
use crate::optimizer::{Optimizer, Piece, Step};
use crate::random::Key;
use crate::window::Window;
use crate::{Format, View, ViewMut};

/// Bytes of a device's memory, of which buffers are parts.
///
/// The device that made a region knows its type again: `(region as &dyn Any).downcast_ref()`.
pub trait Region: Any + Send + Sync {}

/// Elements in memory that this program can read or write, as engines of communication have them: numbers of
/// 16 bits are words.
pub use shardloom_fabric::{View as HostSlice, ViewMut as HostSliceMut};

/// How a part is combined with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// The larger.
    Max,
}

/// A pass of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The operator.
    pub kind: &'a OpKind,
    /// Which pass of it.
    pub pass: Pass,
    /// What it depends on besides tensors.
    pub setting: &'a Setting,
}

/// Where a device's part lies in the whole, and what else a kernel depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The part of the elements that may be dropped that this device has; none where the operator drops none.
    pub mask: Option<Window>,
    /// First position of the local sequence.
    pub first_position: usize,
    /// First index of the local vocabulary.
    pub first_index: usize,
    /// Factor on the gradient of the loss.
    pub loss_scale: f32,
    /// Key of the operator's random numbers at this step.
    pub key: Key,
}

/// A tensor that a pass reads.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: View<'a>,
}

/// A tensor that a pass writes.
#[derive(Debug)]
pub struct Output<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: ViewMut<'a>,
    /// Whether the result is added onto what is there.
    pub accumulate: bool,
}

/// The size of a tensor that a pass reads or writes, before there is one.
#[derive(Clone, Copy, Debug)]
pub struct OperandSize<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// How each element is stored.
    pub format: Format,
}

/// A box of a row-major tensor.
#[derive(Clone, Copy, Debug)]
pub struct BoxOf<'a, T> {
    /// The tensor's elements.
    pub elements: T,
    /// The tensor's shape.
    pub shape: &'a [usize],
    /// Where in it the box begins.
    pub start: &'a [usize],
}

/// One update of a part of a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// By which rule.
    pub optimizer: Optimizer,
    /// Which update.
    pub step: Step,
    /// Which part.
    pub piece: &'a Piece,
}

/// Gradients of some rows of a table, or of a device's part of it.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Which rows, in ascending order, and behind them [`NO_ROW`](crate::rows::NO_ROW).
    pub rows: View<'a>,
    /// As many values for each of these, also for what is none.
    pub values: View<'a>,
}

/// Gradients of a part of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Gradients<'a> {
    /// Of each of its elements.
    All(View<'a>),
    /// Of some rows, where it is all that a device holds of the parameter; in all others they are zero.
    Rows(Rows<'a>),
}

/// A device, as a rank sees it. Ranks may share one, each from its own thread.
///
/// Gradients, and whatever a kernel reads and writes as real numbers, may be of any of
/// [`Format::F32`], [`Format::Bf16`] and [`Format::F16`]; arithmetic is in fp32, and what is written to 16
/// bits is rounded once, to nearest, ties to even. Weights that an optimizer updates, its state and its
/// statistics are fp32.
pub trait Device: Debug + Send + Sync {
    /// What to call it, for people.
    fn name(&self) -> &str;

    /// So many bytes of its memory, all zero, that begin at an address fit for any format.
    fn region(&self, bytes: usize) -> Box<dyn Region>;

    /// Copies from the host. Lengths and formats are equal.
    fn upload(&self, from: HostSlice<'_>, to: ViewMut<'_>);

    /// Copies to the host. Lengths and formats are equal.
    fn download(&self, from: View<'_>, to: HostSliceMut<'_>);

    /// Copies a box of shape `extent` of a tensor to the host, where nothing else lies beside it. Formats
    /// are equal.
    fn download_box(&self, from: BoxOf<'_, View<'_>>, extent: &[usize], to: HostSliceMut<'_>);

    /// The way back from [`Device::download_box`].
    fn upload_box(&self, from: HostSlice<'_>, extent: &[usize], to: BoxOf<'_, ViewMut<'_>>);

    /// Lends elements to the host: calls `user` once with them in the host's memory, and what `user` leaves
    /// there is what they are afterwards. A device whose memory is not the host's lends a copy.
    fn lend(&self, elements: ViewMut<'_>, user: &mut dyn FnMut(HostSliceMut<'_>));

    /// Copies elements. Lengths and formats are equal.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>);

    /// Copies elements from one format of real numbers to another, rounded to nearest, ties to even.
    fn cast(&self, from: View<'_>, to: ViewMut<'_>);

    /// Copies a box of shape `extent` from one tensor to another, of equal formats.
    fn copy_box(&self, from: BoxOf<'_, View<'_>>, to: BoxOf<'_, ViewMut<'_>>, extent: &[usize]);

    /// Sets all elements, which are real numbers or bytes, to one value that their format has.
    fn fill(&self, elements: ViewMut<'_>, value: f32);

    /// Combines a part with what is there, element by element, of equal formats: each element is widened,
    /// combined in fp32 (in fp64, of fp64) and rounded.
    fn combine(&self, to: ViewMut<'_>, part: View<'_>, how: Combine);

    /// `to = scale to + factor with`, element by element, of equal formats: two products and a sum in fp32,
    /// each rounded.
    fn scale_and_add(&self, to: ViewMut<'_>, scale: f32, with: View<'_>, factor: f32);

    /// The sum of the squares of real numbers, in double precision.
    fn squared_norm(&self, elements: View<'_>) -> f64;

    /// Likewise of those elements of a table that lie in a range and in some rows.
    fn squared_norm_of_rows(&self, rows: Rows<'_>, of: Range<usize>) -> f64;

    /// Makes different rows of the gradients of rows of a table of so many, as
    /// [`rows`](crate::rows) says: those that are none of the table's are dropped, and those behind the first
    /// `count`. `order` is room for an index for each row.
    fn sum_rows(
        &self,
        table_rows: usize,
        count: usize,
        rows: ViewMut<'_>,
        values: ViewMut<'_>,
        order: ViewMut<'_>,
    );

    /// How many fp32 elements of scratch [`Device::run`] needs for operands of these sizes.
    fn scratch_elements(
        &self,
        kind: &OpKind,
        pass: Pass,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) -> usize;

    /// Runs a pass of an operator. Reads and writes stand in the order of the operator's inputs and outputs
    /// (forward), or of its gradient rule's reads and produced gradients. `scratch` is fp32, at least as
    /// long as [`Device::scratch_elements`] says.
    fn run(
        &self,
        kernel: Kernel<'_>,
        reads: &[Input<'_>],
        writes: &mut [Output<'_>],
        scratch: ViewMut<'_>,
    );

    /// Rounds fp32 numbers of a part of a parameter to bfloat16: each becomes one of the two that it lies between, the
    /// upper one with the probability of its distance from the lower. Which one follows from the key and where the
    /// element lies in the whole parameter. What is bfloat16 already stays as it is.
    fn round_stochastically(&self, from: View<'_>, to: ViewMut<'_>, key: Key, piece: &Piece);

    /// How many fp32 elements of scratch an update, or a round of its statistics, of a part of so many
    /// elements needs whose gradients are of a format.
    fn update_scratch_elements(&self, elements: usize, gradients: Format) -> usize;

    /// Likewise of a part whose gradients are of rows.
    fn row_update_scratch_elements(&self, optimizer: Optimizer, piece: &Piece) -> usize;

    /// The part's share of a round of the optimizer's statistics: [`Optimizer::statistics`].
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
    );

    /// A step of the compression of gradients, which says what it reads and writes.
    fn compress(&self, step: &compression::Step, reads: &[View<'_>], writes: &mut [ViewMut<'_>]);

    /// Updates weights: [`Optimizer::apply`].
    fn update(
        &self,
        update: Update<'_>,
        weights: ViewMut<'_>,
        gradients: Gradients<'_>,
        state: &mut [ViewMut<'_>],
        sums: Option<View<'_>>,
        scratch: ViewMut<'_>,
    );
}

impl dyn Device + '_ {
    /// Real numbers of any format, widened to fp32.
    ///
    /// # Panics
    /// If they are indices, masks or in double precision.
    pub fn reals(&self, from: View<'_>) -> Vec<f32> {
        let count = from.len();
        match from.format() {
            Format::F32 => {
                let mut values = vec![0.0; count];
                self.download(from, HostSliceMut::F32(&mut values));
                values
            }
            Format::Bf16 => {
                let mut words = vec![0; count];
                self.download(from, HostSliceMut::Bf16(&mut words));
                words.into_iter().map(|word| bf16::from_bits(word).to_f32()).collect()
            }
            Format::F16 => {
                let mut words = vec![0; count];
                self.download(from, HostSliceMut::F16(&mut words));
                words.into_iter().map(|word| f16::from_bits(word).to_f32()).collect()
            }
            other => panic!("{other} is no format of real numbers"),
        }
    }

    /// Sets real numbers of any format from fp32, rounded to nearest, ties to even.
    ///
    /// # Panics
    /// If the elements are indices, masks or in double precision, or not as many.
    pub fn set_reals(&self, values: &[f32], to: ViewMut<'_>) {
        match to.format() {
            Format::F32 => self.upload(HostSlice::F32(values), to),
            Format::Bf16 => {
                let word = |&value: &f32| bf16::from_f32(value).to_bits();
                let words: Vec<u16> = values.iter().map(word).collect();
                self.upload(HostSlice::Bf16(&words), to);
            }
            Format::F16 => {
                let word = |&value: &f32| f16::from_f32(value).to_bits();
                let words: Vec<u16> = values.iter().map(word).collect();
                self.upload(HostSlice::F16(&words), to);
            }
            other => panic!("{other} is no format of real numbers"),
        }
    }
}
