//! One bit for each element (Seide, Fu, Droppo, Li and Yu 2014, Interspeech, "1-bit stochastic gradient descent and
//! its application to data-parallel distributed training of speech DNNs").
//!
//! Of each row of a matrix there are the mean of the elements that are not negative and the mean of those that
//! are, in fp32, and a bit for each element, set where it is not negative. No two numbers by sign are nearer to
//! the elements in the sum of squares. Rows of a share of a bucket's matrices, which lie side by side in the
//! bucket, follow each other byte by byte; what is left of the room for a share is zero.

use super::{Matrix, finite};

/// Bytes of a row's two means.
const HEAD: usize = 8;

/// Bytes of a row of so many elements.
fn row_bytes(columns: usize) -> usize {
    HEAD + columns.div_ceil(8)
}

/// Compresses the residuals of a row to its bytes; what these leave out becomes the residual.
fn compress(values: &mut [f32], row: &mut [u8]) {
    // By sign, the sum and how many there are.
    let mut sums = [(0.0, 0_u32); 2];
    for &value in &*values {
        let (sum, count) = &mut sums[usize::from(value < 0.0)];
        *sum += f64::from(value);
        *count += 1;
    }
    let means = sums.map(|(sum, count)| (sum / f64::from(count.max(1))) as f32);
    let (head, bits) = row.split_at_mut(HEAD);
    for (bytes, mean) in head.chunks_exact_mut(4).zip(means) {
        bytes.copy_from_slice(&mean.to_le_bytes());
    }
    for (values, bits) in values.chunks_mut(8).zip(bits) {
        *bits = 0;
        for (bit, value) in values.iter_mut().enumerate() {
            let is_negative = *value < 0.0;
            *bits |= u8::from(!is_negative) << bit;
            *value = finite(*value - means[usize::from(is_negative)]);
        }
    }
}

/// Calls `each` with the elements of a row, as many as there are `values`.
fn decompress(row: &[u8], values: &mut [f32], each: impl Fn(&mut f32, f32)) {
    let (head, bits) = row.split_at(HEAD);
    let mean = |at: usize| f32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let means = [mean(4), mean(0)];
    for (values, bits) in values.chunks_mut(8).zip(bits) {
        for (bit, value) in values.iter_mut().enumerate() {
            each(value, means[usize::from(bits >> bit & 1)]);
        }
    }
}

/// Compresses what is left of a share, and zeroes the rest of its room.
fn compress_share(share: &[Matrix], values: &mut [f32], room: &mut [u8]) {
    let (mut values, mut room) = (values, room);
    for matrix in share {
        for _ in 0..matrix.rows {
            let (row, left) = values.split_at_mut(matrix.columns);
            let (bytes, rest) = room.split_at_mut(row_bytes(matrix.columns));
            compress(row, bytes);
            (values, room) = (left, rest);
        }
    }
    room.fill(0);
}

/// Calls `each` with the elements of a share.
fn decompress_share(
    share: &[Matrix],
    room: &[u8],
    values: &mut [f32],
    each: impl Fn(&mut f32, f32),
) {
    let (mut values, mut room) = (values, room);
    for matrix in share {
        for _ in 0..matrix.rows {
            let (row, left) = values.split_at_mut(matrix.columns);
            let (bytes, rest) = room.split_at(row_bytes(matrix.columns));
            decompress(bytes, row, &each);
            (values, room) = (left, rest);
        }
    }
}

/// Where a share lies in its bucket.
fn range(share: &[Matrix]) -> std::ops::Range<usize> {
    let start = share.first().map_or(0, |first| first.offset);
    start..start + share.iter().map(|it| it.rows * it.columns).sum::<usize>()
}

/// [`Step::Signs`](super::Step::Signs).
pub fn signs(shares: &[Box<[Matrix]>], gradients: &[f32], signs: &mut [u8], residual: &mut [f32]) {
    for (left, gradient) in residual.iter_mut().zip(gradients) {
        *left += gradient;
    }
    let each = signs.len() / shares.len();
    for (share, room) in shares.iter().zip(signs.chunks_exact_mut(each)) {
        compress_share(share, &mut residual[range(share)], room);
    }
}

/// [`Step::SignsOfSum`](super::Step::SignsOfSum): the sums are formed in the order of members.
pub fn signs_of_sum(share: &[Matrix], all: &[u8], sums: &mut [u8], residual: &mut [f32]) {
    let own = &mut residual[..range(share).len()];
    for room in all.chunks_exact(sums.len()) {
        decompress_share(share, room, own, |value, part| *value += part);
    }
    compress_share(share, own, sums);
}

/// [`Step::FromSigns`](super::Step::FromSigns).
pub fn from_signs(shares: &[Box<[Matrix]>], signs: &[u8], gradients: &mut [f32]) {
    let each = signs.len() / shares.len();
    for (share, room) in shares.iter().zip(signs.chunks_exact(each)) {
        decompress_share(share, room, &mut gradients[range(share)], |value, element| {
            *value = element;
        });
    }
}
