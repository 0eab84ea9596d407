//! Plain data parallelism with compressed gradients: what replicas exchange is smaller than their gradients, and
//! the sum that comes of it is near the sum of these.
//!
//! A replica compresses its own gradients and its *residual*, which is what it has left out so far, as soon as the
//! gradients are whole. The sum is made of what all have sent before the update. All replicas make it of the same
//! numbers in the same order, so their weights stay equal.

use shardloom_collectives::Algorithm;
use shardloom_plan::Compression;

use super::{AllReduce, Replicated, SUM, Synchronisation, Unheld, add};
use crate::{
    Action, Collective, Content, Copies, Format, Initial, Instruction, Keep, Matrix, Shape, Tensor,
    TensorId, View,
};

/// Replicas that exchange compressed gradients.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// How they are compressed.
    pub how: Compression,
    /// The algorithm of the collectives that reduce or gather what is compressed.
    pub algorithm: Algorithm,
}

impl Compressed {
    /// How many elements of a bucket are sent by [`Compression::TopK`].
    pub fn largest(elements: usize, of: u32) -> usize {
        elements.div_ceil(of as usize)
    }

    fn weights(&self) -> AllReduce {
        AllReduce { algorithm: self.algorithm }
    }

    fn compress(&self, round: u8, reads: &[TensorId], writes: &[TensorId]) -> Instruction {
        let whole = |ids: &[TensorId]| ids.iter().map(|&it| View::whole(it)).collect::<Vec<_>>();
        Instruction::new(Action::Compress { how: self.how, round }, whole(reads), whole(writes))
    }

    fn decompress(&self, reads: &[TensorId], writes: &[TensorId]) -> Instruction {
        let whole = |ids: &[TensorId]| ids.iter().map(|&it| View::whole(it)).collect::<Vec<_>>();
        Instruction::new(Action::Decompress { how: self.how }, whole(reads), whole(writes))
    }

    fn reduce(&self, bucket: &Unheld<'_>, sent: TensorId) -> Instruction {
        bucket.over_replicas(SUM, self.algorithm, View::whole(sent), View::whole(sent))
    }

    fn gather(&self, bucket: &Unheld<'_>, own: TensorId, all: TensorId) -> Instruction {
        let (own_view, all) = (View::whole(own), View::whole(all));
        let kind = Collective::AllGather { axis: 0 };
        bucket.over_replicas(kind, self.algorithm, own_view, all).freeing([own])
    }
}

impl Synchronisation for Compressed {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let mut held = self.weights().tensors(bucket, tensors);
        let mut own = |name: &str, shape: &[usize], format, keep, content| {
            let tensor = Tensor {
                name: format!("{} {name}", bucket.name),
                shape: Shape::Local(shape.to_vec()),
                format,
                keep,
                copies: Copies::One,
                content,
                bucket: Some(bucket.id),
            };
            add(tensors, tensor)
        };
        let kept = Keep::State(Initial::Zero);
        let passing = |format| (format, Keep::Transient, Content::Compressed);
        let (elements, members) = (bucket.elements, bucket.members());
        if self.how.keeps_residual() {
            let content = Content::OfRank(0);
            let name = format!("residual of {}", self.how);
            held.own.push(own(&name, &[elements], Format::F32, kept, content));
        }
        let mut sent = |name: &str, shape: &[usize], format| {
            let (format, keep, content) = passing(format);
            own(name, shape, format, keep, content)
        };
        match self.how {
            Compression::None => {}
            Compression::Rounded { to, .. } => {
                held.own.push(sent("rounded", &[elements], Format::of_number(to)));
            }
            Compression::OneBit => {
                let shares = Matrix::shares(&bucket.matrices, members);
                let most = |of: fn(Matrix) -> usize| {
                    let of_share = |share: &Vec<Matrix>| share.iter().map(|&it| of(it)).sum();
                    shares.iter().map(of_share).max().unwrap_or(0)
                };
                let (bytes, each) = (most(Matrix::sign_bytes), most(Matrix::elements));
                let own_share = [
                    sent("signs", &[members, bytes], Format::U8),
                    sent("signs of all", &[1, members * bytes], Format::U8),
                    sent("signs of the sum", &[1, bytes], Format::U8),
                    sent("signs of all sums", &[members, bytes], Format::U8),
                ];
                let (shape, content) = ([each], Content::OfRank(1));
                held.own.push(own(
                    "residual of the sum of signs",
                    &shape,
                    Format::F32,
                    kept,
                    content,
                ));
                held.own.extend(own_share);
            }
            Compression::TopK { of } => {
                let numbers = 2 * Compressed::largest(elements, of);
                held.own.push(sent("largest", &[1, numbers], Format::U32));
                held.own.push(sent("largest of all", &[members, numbers], Format::U32));
            }
            Compression::PowerSgd { rank } => {
                let (factored, plain) = Matrix::factored(&bucket.matrices, rank);
                let rows: usize = factored.iter().map(|it| it.rows).sum();
                let columns: usize = factored.iter().map(|it| it.columns).sum();
                let rest: usize = plain.iter().map(|it| it.elements()).sum();
                let rank = rank as usize;
                let left = sent("left factors", &[rows * rank + rest], Format::F32);
                let content = Content::OfRank(2);
                let shape = [columns * rank];
                held.own.push(own(
                    &format!("right factors of {}", self.how),
                    &shape,
                    Format::F32,
                    kept,
                    content,
                ));
                held.own.push(left);
            }
        }
        held
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let gradients = held.expect_gradients().written;
        match (self.how, &held.own[..]) {
            (Compression::Rounded { .. }, &[rounded]) => {
                vec![self.compress(0, &[gradients], &[rounded]), self.reduce(bucket, rounded)]
            }
            (Compression::Rounded { .. }, &[residual, rounded]) => vec![
                self.compress(0, &[gradients, residual], &[rounded, residual]),
                self.reduce(bucket, rounded),
            ],
            (Compression::OneBit, &[residual, _, signs, all, ..]) => {
                let kind = Collective::AllToAll { from: 1, to: 0 };
                let [from, to] = [signs, all].map(View::whole);
                let exchange = bucket.over_replicas(kind, Algorithm::Direct, from, to);
                vec![
                    self.compress(0, &[gradients, residual], &[signs, residual]),
                    exchange.freeing([signs]),
                ]
            }
            (Compression::TopK { .. }, &[residual, largest, all]) => vec![
                self.compress(0, &[gradients, residual], &[largest, residual]),
                self.gather(bucket, largest, all),
            ],
            (Compression::PowerSgd { .. }, &[residual, right, left]) => vec![
                self.compress(0, &[gradients, residual, right], &[left, residual, right]),
                self.reduce(bucket, left),
            ],
            (how, own) => unreachable!("{how} has no {} tensors", own.len()),
        }
    }

    fn before_update(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let gradients = held.expect_gradients().written;
        match (self.how, &held.own[..]) {
            (Compression::Rounded { .. }, &[.., rounded]) => {
                vec![self.decompress(&[rounded], &[gradients]).freeing([rounded])]
            }
            (Compression::OneBit, &[_, residual, _, all, sums, all_sums]) => vec![
                self.compress(1, &[all, residual], &[sums, residual]).freeing([all]),
                self.gather(bucket, sums, all_sums),
                self.decompress(&[all_sums], &[gradients]).freeing([all_sums]),
            ],
            (Compression::TopK { .. }, &[_, _, all]) => {
                vec![self.decompress(&[all], &[gradients]).freeing([all])]
            }
            (Compression::PowerSgd { .. }, &[residual, right, left]) => {
                let (reads, writes) = ([right, left, residual], [gradients, residual, right]);
                vec![
                    self.compress(1, &[left, residual], &[right, left]),
                    self.reduce(bucket, right),
                    self.decompress(&reads, &writes).freeing([left]),
                ]
            }
            (how, own) => unreachable!("{how} has no {} tensors", own.len()),
        }
    }
}
