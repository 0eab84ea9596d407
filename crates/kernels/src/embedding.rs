//! Rows of an embedding table, of which a rank may hold only a range of the vocabulary.

use crate::simd::simd;

/// The table row of a token, if it is one of the `rows` from `vocab_start`.
#[inline(always)]
fn local_row(token: u32, vocab_start: usize, rows: usize) -> Option<usize> {
    (token as usize).checked_sub(vocab_start).filter(|&row| row < rows)
}

/// `y[r, ..]` = table[`tokens[r]` - vocab_start, ..] for `table` `[vocabulary range, columns]` and `y`
/// `[tokens, columns]`, both of one format.
///
/// A token outside the range gives zeros, so that the sum over the holders of all ranges is the
/// embedding.
pub fn gather<T: Copy + Default>(
    tokens: &[u32],
    table: &[T],
    columns: usize,
    vocab_start: usize,
    y: &mut [T],
) {
    assert_eq!(y.len(), tokens.len() * columns, "an output row for each token");
    if columns == 0 {
        return;
    }
    let rows = table.len() / columns;
    for (&token, y) in tokens.iter().zip(y.chunks_exact_mut(columns)) {
        match local_row(token, vocab_start, rows) {
            Some(row) => y.copy_from_slice(&table[row * columns..][..columns]),
            None => y.fill(T::default()),
        }
    }
}

simd! {
    /// Weight gradient of [`gather`]: adds each row of `dy` to the table row of its token, in the
    /// order of the rows. Without `accumulate` the table gradient starts from zero.
    pub fn gather_weight_grad(
        tokens: &[u32],
        dy: &[f32],
        columns: usize,
        vocab_start: usize,
        dtable: &mut [f32],
        accumulate: bool,
    ) {
        assert_eq!(dy.len(), tokens.len() * columns, "a gradient row for each token");
        if !accumulate {
            dtable.fill(0.0);
        }
        if columns == 0 {
            return;
        }
        let rows = dtable.len() / columns;
        for (&token, dy) in tokens.iter().zip(dy.chunks_exact(columns)) {
            if let Some(row) = local_row(token, vocab_start, rows) {
                for (d, &dy) in dtable[row * columns..][..columns].iter_mut().zip(dy) {
                    *d += dy;
                }
            }
        }
    }
}
