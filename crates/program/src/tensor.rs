//! What a rank holds: every tensor of a program, lasting or passing, is named.
//!
//! Memory is the sum over tensors. What is saved, loaded and resharded are those that [`Keep::State`]
//! says, by the [parameters](crate::WeightParam) that lie in them. Nobody else decides what a rank
//! holds.

use std::fmt;
use std::ops::Range;

use shardloom_graph::{DType, ValueId};
use shardloom_plan::{Kept, Number, Precision};

use crate::{Bucket, BucketId, Class, Layout, ParamId, Placement};

/// Identifies a tensor of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// How one element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// 32-bit floating point.
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit floating point.
    F16,
    /// 64-bit floating point: sums of squares over all parameters.
    F64,
    /// 32-bit unsigned integers: tokens and class labels.
    U32,
    /// Bytes: dropout masks.
    U8,
    /// 8-bit floating point with scales, which are not counted.
    F8,
}

impl Format {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Format::F64 => 8,
            Format::F32 | Format::U32 => 4,
            Format::Bf16 | Format::F16 => 2,
            Format::U8 | Format::F8 => 1,
        }
    }

    /// How a plan's numbers are stored.
    pub fn of_number(number: Number) -> Format {
        match number {
            Number::Fp32 => Format::F32,
            Number::Bf16 => Format::Bf16,
            Number::Fp16 => Format::F16,
        }
    }

    /// How a value of the graph is stored where the plan computes in `precision`.
    pub fn of_value(dtype: DType, precision: Precision) -> Format {
        match dtype {
            DType::Real => Format::of_number(precision.compute),
            DType::Float => Format::F32,
            DType::Index => Format::U32,
            DType::Mask => Format::U8,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::F64 => "f64",
            Format::U32 => "u32",
            Format::U8 => "u8",
            Format::F8 => "f8",
        })
    }
}

/// What a tensor begins with where no checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Initial {
    /// The parameters' initial values, as the graph says.
    Drawn,
    /// The weights, as they are given or drawn.
    Weights,
    /// Zeros.
    Zero,
}

/// How long a tensor is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keep {
    /// For the whole run, and saved in checkpoints.
    State(Initial),
    /// For the whole run, but rebuilt and not saved.
    Resident,
    /// From the first instruction that writes it to the one that frees it.
    Transient,
}

/// How many copies of a tensor there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Copies {
    /// One.
    One,
    /// One for each micro-batch that is under way.
    PerMicrobatch,
    /// So many versions: the newest, and those before the last updates.
    Versions(u32),
}

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// A value of a micro-batch, or the gradient of one.
    Activation,
    /// Parts side by side, as a collective takes or leaves them, or what else one instruction needs for itself.
    Staging,
    /// Weights that operators read, or the shards that they are gathered from.
    Weight,
    /// Weights in full precision that the optimizer updates.
    MasterWeight,
    /// Gradients of weights.
    Gradient,
    /// Which rows of a table gradients are of.
    Rows,
    /// Which rows of a table that servers hold a worker's samples look up: different ones, in ascending order, and
    /// behind them none.
    Lookups,
    /// The weights of these rows.
    LookedUp,
    /// The n-th tensor that the optimizer keeps.
    OptimizerState(u8),
    /// Weights before their last update, for linear weight prediction.
    PreviousWeight,
    /// Mean changes of weights from update to update, for PipeMare's discrepancy correction.
    WeightVelocity,
    /// A weight moved along its velocity, for the instruction that reads it.
    ExtrapolatedWeight,
    /// The shards of a second copy of weights.
    SecondWeight,
    /// The n-th tensor that a way of keeping replicas equal keeps for itself.
    Synchronisation(u8),
    /// The n-th tensor that a way of keeping replicas equal keeps for itself, another one on each rank.
    OfRank(u8),
    /// Compressed gradients on their way between replicas.
    Compressed,
    /// What ranks that negotiate their reductions need: what they tell each other, and gradients side by side.
    Negotiation,
    /// The sum over replicas of weights of which each has its own, or what one of them has published.
    SummedWeight,
    /// By how much a worker's update has changed weights, which a server adds to its own.
    WeightDelta,
    /// Weights that a replica with its own publishes for others to fetch.
    PublishedWeight,
    /// Sums of a round of the optimizer's statistics.
    Statistics,
    /// The squared norm of gradients.
    Norm,
    /// What an update has changed, as it was before, until it is known whether the update was right.
    Backup,
    /// Whether something holds, for a guard of the control: zero if it does not.
    Flag,
}

/// How many elements of a flat tensor a position has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many, everywhere.
    Exactly(usize),
    /// Its share of the bucket.
    Share,
    /// Its share of a second copy of the bucket.
    SecondShare,
    /// What is kept of one parameter, or of as much of it as lies in the position's share of the bucket.
    OfParam {
        /// The parameter.
        param: ParamId,
        /// A number for each of its elements, or so many where there is any.
        kept: Kept,
        /// Whether only the position's share counts.
        shared: bool,
    },
}

/// The shape of a tensor on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The same at all positions of the mesh.
    Local(Vec<usize>),
    /// A run of elements of a bucket.
    Flat(Extent),
    /// As many rows as turn out while running, side by side.
    AtMost {
        /// The shape if all slots are filled, for which there is room: experts, samples, slots, and the
        /// elements of a row.
        bound: Vec<usize>,
        /// How many slots are filled, for each expert and sample.
        counts: View,
        /// Which experts and samples these are.
        counted: Counted,
    },
}

/// Experts and samples whose rows are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The graph's value that counts them.
    pub by: ValueId,
    /// How experts and samples are spread over the mesh.
    pub layout: Layout,
}

/// A tensor that ranks of a class hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// For people.
    pub name: String,
    /// How large it is.
    pub shape: Shape,
    /// How its elements are stored.
    pub format: Format,
    /// How long it is there.
    pub keep: Keep,
    /// How many of it there are.
    pub copies: Copies,
    /// What it holds.
    pub content: Content,
    /// The parameters that it belongs to; none of values and the norm.
    pub bucket: Option<BucketId>,
}

impl Tensor {
    /// A Boolean, from the instruction that writes it to the end of the guard that goes by it.
    pub(crate) fn flag(name: &str) -> Tensor {
        Tensor {
            name: name.into(),
            shape: Shape::Local(vec![]),
            format: Format::U8,
            keep: Keep::Transient,
            copies: Copies::One,
            content: Content::Flag,
            bucket: None,
        }
    }

    /// Whether it is a value of a micro-batch or the gradient of one.
    pub fn is_activation(&self) -> bool {
        matches!(self.content, Content::Activation)
    }

    /// Whether each micro-batch has a copy of its own.
    pub fn is_of_microbatch(&self) -> bool {
        self.copies == Copies::PerMicrobatch
    }

    /// Its extents where messages cut parts out of it: those of its axes, or its elements in a row.
    pub fn extents(&self) -> &[usize] {
        match &self.shape {
            Shape::Flat(Extent::Exactly(elements)) => std::slice::from_ref(elements),
            _ => self.local_shape(),
        }
    }

    /// Its shape, if that is the same everywhere and has axes; the largest that it can have.
    pub fn local_shape(&self) -> &[usize] {
        match &self.shape {
            Shape::Local(shape) | Shape::AtMost { bound: shape, .. } => shape,
            Shape::Flat(_) => &[],
        }
    }

    /// What says how many rows it has, where that is known only while running.
    pub fn counts(&self) -> Option<View> {
        match self.shape {
            Shape::AtMost { counts, .. } => Some(counts),
            Shape::Local(_) | Shape::Flat(_) => None,
        }
    }
}

/// Which part of a tensor an instruction touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Window {
    /// All that the rank holds of it.
    Whole,
    /// One parameter of a flat tensor that holds the whole bucket.
    Param(ParamId),
    /// The rank's share of a flat tensor that holds the whole bucket.
    Share,
    /// Its share of a second copy of the bucket, of a flat tensor that holds the whole bucket.
    SecondShare,
    /// These elements of a flat tensor.
    Elements {
        /// The first.
        start: usize,
        /// The one after the last.
        end: usize,
    },
    /// So many elements behind those that were written in this way since the tensor was used, or the first of it.
    Next {
        /// How many.
        elements: usize,
    },
}

/// A part of a tensor, as an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View {
    /// The tensor.
    pub tensor: TensorId,
    /// Which part of it.
    pub window: Window,
}

impl View {
    /// All of a tensor.
    pub fn whole(tensor: TensorId) -> View {
        View { tensor, window: Window::Whole }
    }
}

/// What becomes of what was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// It is overwritten.
    Set,
    /// It is added to.
    Add,
    /// It is added to, but for the first write of a parameter since the sum was used, which overwrites. A
    /// parameter to which nothing was added since then reads as zero.
    AddUnlessFirst,
}

/// A part of a tensor that an instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where to.
    pub to: View,
    /// What becomes of what was there.
    pub mode: Mode,
}

impl Write {
    /// A write that overwrites.
    pub fn set(to: View) -> Write {
        Write { to, mode: Mode::Set }
    }
}

impl Class {
    /// One tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// All tensors with their ids.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors.iter().enumerate().map(|(index, tensor)| (TensorId(index as u32), tensor))
    }

    /// Elements of one copy of a tensor at a position of the mesh, or the most that there is room for.
    pub fn elements(&self, id: TensorId, position: usize) -> usize {
        let tensor = self.tensor(id);
        match &tensor.shape {
            Shape::Local(shape) | Shape::AtMost { bound: shape, .. } => shape.iter().product(),
            Shape::Flat(Extent::Exactly(elements)) => *elements,
            Shape::Flat(extent) => {
                let bucket = tensor.bucket.expect("shares are of buckets");
                let bucket = self.bucket(bucket);
                match *extent {
                    Extent::Exactly(elements) => elements,
                    Extent::Share => self.shard_range(bucket, position).len(),
                    Extent::SecondShare => self.second_shard_range(bucket, position).len(),
                    Extent::OfParam { kept, .. } => {
                        let here = self.bucket_range(View::whole(id), position);
                        match kept {
                            Kept::PerElement => here.len(),
                            Kept::PerParameter(_) if here.is_empty() => 0,
                            Kept::PerParameter(elements) => elements,
                        }
                    }
                }
            }
        }
    }

    /// Which experts and samples a position has the rows of, where how many these are is known only while
    /// running, and what counts them.
    pub fn counted(&self, id: TensorId, position: usize) -> Option<(ValueId, Placement)> {
        let Shape::AtMost { bound, counted, .. } = &self.tensor(id).shape else { return None };
        let spans = counted.layout.splits.iter().map(|axes| self.mesh.span(axes));
        let global: Vec<usize> =
            bound.iter().zip(spans).map(|(local, span)| local * span).collect();
        Some((counted.by, counted.layout.placement(&global, &self.mesh, position)))
    }

    /// Bytes of one copy of a tensor at a position of the mesh.
    pub fn tensor_bytes(&self, id: TensorId, position: usize) -> u64 {
        (self.elements(id, position) * self.tensor(id).format.bytes()) as u64
    }

    /// The elements of its tensor that a view covers at a position.
    pub fn view_range(&self, view: View, position: usize) -> Range<usize> {
        match view.window {
            Window::Whole => 0..self.elements(view.tensor, position),
            Window::Param(param) => self.param(param).range(),
            Window::Elements { start, end } => start..end,
            // Where that is depends on what has run.
            Window::Next { elements } => 0..elements,
            Window::Share => self.shard_range(self.bucket_of(view), position),
            Window::SecondShare => self.second_shard_range(self.bucket_of(view), position),
        }
    }

    /// The bucket that a view is a share of, or of a share of.
    fn bucket_of(&self, view: View) -> &Bucket {
        self.bucket(self.tensor(view.tensor).bucket.expect("shares are of buckets"))
    }

    /// The elements of its bucket that a view covers, or belongs to, at a position.
    pub fn bucket_range(&self, view: View, position: usize) -> Range<usize> {
        let share = || self.shard_range(self.bucket_of(view), position);
        match (&self.tensor(view.tensor).shape, view.window) {
            (Shape::Flat(Extent::Share), Window::Whole) => share(),
            (Shape::Flat(Extent::SecondShare), Window::Whole) => {
                self.second_shard_range(self.bucket_of(view), position)
            }
            (&Shape::Flat(Extent::OfParam { param, shared, .. }), Window::Whole) => {
                let whole = self.param(param).range();
                if shared { overlap(&share(), &whole) } else { whole }
            }
            _ => self.view_range(view, position),
        }
    }

    /// Whether a view has another size at another position.
    pub fn differs(&self, view: View) -> bool {
        let shape = &self.tensor(view.tensor).shape;
        let shared = matches!(
            shape,
            Shape::Flat(Extent::Share | Extent::SecondShare | Extent::OfParam { .. })
        );
        matches!(view.window, Window::Share | Window::SecondShare) || shared
    }

    /// Bytes of a view at a position.
    pub fn view_bytes(&self, view: View, position: usize) -> u64 {
        (self.view_range(view, position).len() * self.tensor(view.tensor).format.bytes()) as u64
    }

    /// The local shape of an operand of an operator.
    pub fn shape(&self, view: View) -> &[usize] {
        match view.window {
            Window::Param(param) => &self.param(param).shape,
            Window::Whole
            | Window::Share
            | Window::SecondShare
            | Window::Elements { .. }
            | Window::Next { .. } => self.tensor(view.tensor).local_shape(),
        }
    }
}

/// The indices that two ranges share.
pub fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
