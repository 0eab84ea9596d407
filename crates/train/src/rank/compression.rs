//! Compression of gradients, and the sum that is made of what was exchanged.

use shardloom_kernels::compression::{Factors, Matrix, Shares, Step};
use shardloom_kernels::{Buffer, View, ViewMut};
use shardloom_plan::Compression as How;
use shardloom_program::{self as program, Action, Bucket, Group, Instruction, ParamId, TensorId};
use smallvec::SmallVec;

use super::arena::Room;
use super::exchange::Unwritten;
use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// A step of the compression of a bucket's gradients.
pub(crate) struct Compression {
    /// What is done with numbers; nothing where they are only rounded or widened.
    step: Option<Step>,
    unwritten: Option<Unwritten>,
    /// What is read and not written.
    reads: Box<[Slot]>,
    /// What is written, read before or not.
    writes: Box<[Room]>,
}

/// A few operands; on the heap only beyond four, as no step has them.
type Few<T> = SmallVec<[T; 4]>;

impl Compression {
    /// Links a step.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Compression {
        let class = linker.class;
        let first = instruction.reads[0];
        let bucket = class.tensor(first.tensor).bucket.expect("gradients are of buckets");
        let bucket = class.bucket(bucket);
        let is_written =
            |tensor: TensorId| instruction.writes.iter().any(|it| it.to.tensor == tensor);
        let reads = instruction.reads.iter().filter(|it| !is_written(it.tensor));
        Compression {
            step: step(linker, bucket, instruction),
            unwritten: Unwritten::link(linker, first),
            reads: reads.map(|&it| linker.slot(it)).collect(),
            writes: instruction.writes.iter().map(|it| linker.room(it.to.tensor)).collect(),
        }
    }
}

/// What an instruction does with numbers, if it does not only round or widen them.
fn step(linker: &Linker<'_>, bucket: &Bucket, instruction: &Instruction) -> Option<Step> {
    let (place, members) = linker.place_in_group(&Group::Mesh(bucket.replicas.clone()));
    let matrix = |&param: &ParamId| program::Matrix::of(linker.class.param(param));
    let all: Vec<program::Matrix> = bucket.params.iter().map(matrix).collect();
    let kernels = |all: &[program::Matrix]| -> Box<[Matrix]> {
        let own =
            |it: &program::Matrix| Matrix { offset: it.offset, rows: it.rows, columns: it.columns };
        all.iter().map(own).collect()
    };
    let factors = |rank: u32| {
        let (factored, plain) = program::Matrix::factored(&all, rank);
        Factors { rank: rank as usize, factored: kernels(&factored), plain: kernels(&plain) }
    };
    let shares = || -> Shares {
        let shares = program::Matrix::shares(&all, members);
        shares.iter().map(|share| kernels(share)).collect()
    };
    match instruction.action {
        Action::Compress { how, round } => match (how, round) {
            (How::Rounded { feedback: true, .. }, _) => Some(Step::Round),
            (How::None | How::Rounded { feedback: false, .. }, _) => None,
            (How::OneBit, 0) => Some(Step::Signs(shares())),
            (How::OneBit, _) => Some(Step::SignsOfSum(shares()[place].clone())),
            (How::TopK { .. }, _) => Some(Step::Largest),
            (How::PowerSgd { rank }, 0) => Some(Step::Left(factors(rank))),
            (How::PowerSgd { rank }, _) => Some(Step::Right(factors(rank))),
        },
        Action::Decompress { how } => match how {
            How::None | How::Rounded { .. } => None,
            How::OneBit => Some(Step::FromSigns(shares())),
            How::TopK { .. } => Some(Step::FromLargest { members }),
            How::PowerSgd { rank } => Some(Step::FromFactors { factors: factors(rank), members }),
        },
        _ => unreachable!("{:?} compresses nothing", instruction.action),
    }
}

impl Rank {
    /// Compresses gradients, or makes them of what was exchanged.
    pub(super) fn compress(&mut self, of: &Compression, at: At) {
        self.clear_unwritten(of.unwritten.as_ref());
        let take = |room: &Room| {
            self.store.take(room.slot, at).unwrap_or_else(|| self.arena.take(room, at))
        };
        let mut written: Few<Buffer> = of.writes.iter().map(take).collect();
        {
            let reads: Few<View<'_>> =
                of.reads.iter().map(|&slot| self.store.get(slot, at).view()).collect();
            let mut writes: Few<ViewMut<'_>> = written.iter_mut().map(Buffer::view_mut).collect();
            match &of.step {
                Some(step) => self.device().compress(step, &reads, &mut writes),
                None => self.device().cast(reads[0], writes[0].reborrow()),
            }
        }
        for (room, buffer) in of.writes.iter().zip(written) {
            self.store.put(room.slot, at, buffer);
        }
    }
}
