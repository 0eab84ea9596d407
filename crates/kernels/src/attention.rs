//! Attention with grouped queries, as two operators: the probabilities softmax(scale Q K^T), of scores
//! that may be [capped](Scores), and the context P V with dropout on the probabilities; or as [one](fused)
//! that keeps no probabilities.
//!
//! Shapes, all row-major: `q` and the context `o` `[batch, queries, kv_heads, group, head_dim]`;
//! `k` and `v` `[batch, keys, kv_heads, head_dim]`; probabilities `[batch, kv_heads, group,
//! queries, keys]`. A key head serves the `group` query heads beside it; `group` 1 is multi-head
//! attention.
//!
//! The work goes by tiles of query rows. A tile leaves out the keys before and behind those that its queries
//! see, which halves the work of a long sequence under a causal mask and makes it proportional to the window
//! where there is one; intermediate matrices live in a scratch tile that stays in cache.
//!
//! Where a sequence is packed of several documents, a query sees no key before its own: `documents [batch,
//! queries]` says for each the first key of its document.

pub mod fused;

use std::ops::Range;

use crate::elementary::{exp, tanh};
use crate::gemm::{Matrix, MatrixMut, multiply};
use crate::matmul::Factor;
use crate::reduce::{max, sum, sum_pairs};
use crate::simd::simd;

/// Query rows computed together, and to how many keys fewer are: fewer skip more of a causal mask, more make
/// faster products.
const TILE: usize = 64;
const SHORT_TILE: usize = 32;
const SHORT: usize = 128;

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// All of them.
    All,
    /// Query i sees the keys 0 ..= `first_query` + i.
    Causal {
        /// The position, counted from the first key, of the first query.
        first_query: usize,
    },
    /// Of these the last `positions`, its own among them.
    Window {
        /// The position, counted from the first key, of the first query.
        first_query: usize,
        /// How many keys at most; at least one.
        positions: usize,
    },
}

/// What the scores are of which the softmax is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor on the dot products.
    pub scale: f32,
    /// Where a score s becomes cap tanh(s / cap): it then lies between -cap and cap.
    pub cap: Option<f32>,
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys of a sequence.
    pub keys: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Query heads of a key head.
    pub group: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Which keys a query sees.
    pub visibility: Visibility,
}

/// A dropout mask on the probabilities, of their shape (1 keeps, 0 drops), and the factor on those
/// kept.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// The mask.
    pub mask: &'a [u8],
    /// 1 / (1 - drop probability).
    pub keep_scale: f32,
}

/// The query rows `start .. start + rows` of one head, and where they lie.
struct Tile<'d> {
    rows: usize,
    /// The first of the keys that some query of the tile sees, and how many these are.
    first_key: usize,
    seen: usize,
    /// Of the tile in `q` and `o`.
    query_at: usize,
    /// Of the first of these keys in `k` and `v`.
    key_at: usize,
    /// Of the tile in the probabilities.
    probs_at: usize,
    /// Behind which key the tile's first query sees none, how many keys further each next one, and how many keys
    /// before that it sees.
    sight: Sight<'d>,
}

/// Which keys the queries of a tile see, by row.
#[derive(Clone, Copy)]
struct Sight<'d> {
    /// Behind the last key that the first row sees.
    end: usize,
    /// How many keys further the next row sees.
    growth: usize,
    /// How many keys a row sees at most.
    positions: usize,
    /// The first key of each row's document, where there are several.
    documents: Option<&'d [u32]>,
}

impl Sight<'_> {
    /// The columns that row `row` sees, of `columns` of which the first is the key `origin`.
    #[inline(always)]
    fn columns(self, row: usize, origin: usize, columns: usize) -> Range<usize> {
        let end = self.end + row * self.growth;
        let document = self.documents.map_or(0, |documents| documents[row] as usize);
        let start = end.saturating_sub(self.positions).max(document).saturating_sub(origin);
        let end = columns.min(end.saturating_sub(origin));
        start.min(end)..end
    }
}

impl Attention {
    /// Elements of `q` and of the context.
    pub fn query_elements(&self) -> usize {
        self.batch * self.queries * self.query_stride()
    }

    /// Elements of `k` and of `v`.
    pub fn key_elements(&self) -> usize {
        self.batch * self.keys * self.key_stride()
    }

    /// Elements of the probabilities.
    pub fn probs_elements(&self) -> usize {
        self.batch * self.kv_heads * self.group * self.queries * self.keys
    }

    /// Elements of the scratch slice that [`context`] and [`context_input_grad`] need under dropout.
    pub fn scratch_elements(&self) -> usize {
        self.tile_rows() * self.keys
    }

    /// Elements of the scratch slice that [`probs_input_grad`] needs.
    pub fn probs_input_grad_scratch(&self, capped: bool) -> usize {
        (2 + usize::from(capped)) * self.scratch_elements()
    }

    /// Query rows of all tiles but the last of a head.
    fn tile_rows(&self) -> usize {
        let rows = if self.keys <= SHORT { SHORT_TILE } else { TILE };
        rows.min(self.queries)
    }

    fn query_stride(&self) -> usize {
        self.kv_heads * self.group * self.head_dim
    }

    fn key_stride(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn tiles(self, documents: Option<&[u32]>) -> impl Iterator<Item = Tile<'_>> {
        let (heads, most) = (self.kv_heads * self.group, self.tile_rows());
        (0..self.batch * heads).flat_map(move |head| {
            let (batch, head) = (head / heads, head % heads);
            (0..self.queries).step_by(most).map(move |start| {
                let rows = most.min(self.queries - start);
                let (end, growth, positions) = match self.visibility {
                    Visibility::All => (self.keys, 0, usize::MAX),
                    Visibility::Causal { first_query } => (first_query + start + 1, 1, usize::MAX),
                    Visibility::Window { first_query, positions } => {
                        (first_query + start + 1, 1, positions)
                    }
                };
                let first_row = batch * self.queries + start;
                let documents = documents.map(|it| &it[first_row..first_row + rows]);
                let sight = Sight { end, growth, positions, documents };
                let starts = (0..rows).map(|row| sight.columns(row, 0, self.keys).start);
                let end = sight.columns(rows - 1, 0, self.keys).end;
                let first_key = starts.min().unwrap_or(0).min(end);
                Tile {
                    rows,
                    first_key,
                    seen: end - first_key,
                    query_at: first_row * self.query_stride() + head * self.head_dim,
                    key_at: (batch * self.keys + first_key) * self.key_stride()
                        + head / self.group * self.head_dim,
                    probs_at: ((batch * heads + head) * self.queries + start) * self.keys,
                    sight,
                }
            })
        })
    }

    /// The tile's rows of `q` or `o`.
    fn query<'a, T>(&self, tile: &Tile<'_>, q: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(&q[tile.query_at..], tile.rows, self.head_dim, self.query_stride())
    }

    fn query_mut<'a>(&self, tile: &Tile<'_>, q: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::new(&mut q[tile.query_at..], tile.rows, self.head_dim, self.query_stride())
    }

    /// The keys or values the tile sees.
    fn key<'a, T>(&self, tile: &Tile<'_>, k: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(&k[tile.key_at..], tile.seen, self.head_dim, self.key_stride())
    }

    fn key_mut<'a>(&self, tile: &Tile<'_>, k: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::new(&mut k[tile.key_at..], tile.seen, self.head_dim, self.key_stride())
    }

    fn is_empty(&self) -> bool {
        self.query_elements() == 0 || self.key_elements() == 0
    }

    fn check_documents(&self, documents: Option<&[u32]>) {
        let queries = self.batch * self.queries;
        assert!(
            documents.is_none_or(|it| it.len() == queries),
            "{self:?} got documents of {:?} queries",
            documents.map(<[u32]>::len)
        );
    }

    fn check(&self, queries: &[usize], keys: &[usize], probs: &[usize]) {
        assert!(
            queries.iter().all(|&len| len == self.query_elements())
                && keys.iter().all(|&len| len == self.key_elements())
                && probs.iter().all(|&len| len == self.probs_elements()),
            "{self:?} got queries of {queries:?}, keys of {keys:?} and probabilities of {probs:?} \
             elements"
        );
    }
}

impl Tile<'_> {
    fn elements(&self, keys: usize) -> Range<usize> {
        self.probs_at..self.probs_at + self.rows * keys
    }

    /// The columns of the probabilities that are of the keys it sees.
    fn columns(&self) -> Range<usize> {
        self.first_key..self.first_key + self.seen
    }
}

/// p = softmax over keys of the scores scale q k^T, capped where they are, and exactly 0 where a key is not
/// seen.
pub fn probs<T: Factor>(
    shape: &Attention,
    q: &[T],
    k: &[T],
    documents: Option<&[u32]>,
    scores: Scores,
    p: &mut [f32],
) {
    shape.check(&[q.len()], &[k.len()], &[p.len()]);
    shape.check_documents(documents);
    if shape.is_empty() {
        return;
    }
    for tile in shape.tiles(documents) {
        let p = &mut p[tile.elements(shape.keys)];
        let target = MatrixMut::new(&mut p[tile.first_key..], tile.rows, tile.seen, shape.keys);
        let k = shape.key(&tile, k).transposed();
        T::multiply(scores.scale, shape.query(&tile, q), k, target, false);
        if let Some(cap) = scores.cap {
            cap_rows(p, shape.keys, tile.columns(), cap);
        }
        softmax_rows(p, shape.keys, tile.sight, 0);
    }
}

/// Input gradients of [`probs`]: for `q` and for `k`. Scores that are capped are computed again. The gradients of
/// scores are rounded to the format of `q` and `k`, in which they are multiplied with these.
///
/// `scratch` holds at least [`Attention::probs_input_grad_scratch`].
pub fn probs_input_grad<T: Factor>(
    shape: &Attention,
    p: &[f32],
    dp: &[f32],
    q: &[T],
    k: &[T],
    scores: Scores,
    dq: &mut [f32],
    dk: &mut [f32],
    scratch: &mut [f32],
    accumulate_q: bool,
    accumulate_k: bool,
) {
    shape.check(&[q.len(), dq.len()], &[k.len(), dk.len()], &[p.len(), dp.len()]);
    if !accumulate_k {
        dk.fill(0.0);
    }
    if shape.is_empty() {
        if !accumulate_q {
            dq.fill(0.0);
        }
        return;
    }
    let Scores { scale, cap } = scores;
    let (ds, rest) = scratch.split_at_mut(shape.scratch_elements());
    let (room, again) = rest.split_at_mut(shape.scratch_elements());
    for tile in shape.tiles(None) {
        let range = tile.elements(shape.keys);
        let Tile { rows, seen, .. } = tile;
        let ds = &mut ds[..rows * seen];
        softmax_rows_grad(&p[range.clone()], &dp[range], shape.keys, tile.columns(), ds);
        let (queries, keys) = (shape.query(&tile, q), shape.key(&tile, k));
        if let Some(cap) = cap {
            let again = &mut again[..rows * seen];
            let target = MatrixMut::new(again, rows, seen, seen);
            T::multiply(scale, queries, keys.transposed(), target, false);
            scale_by_cap_slope(ds, again, cap);
        }
        let (ds, scale) = T::factors(ds, scale, room);
        let ds = Matrix::new(ds, rows, seen, seen);
        T::multiply(scale, ds, keys, shape.query_mut(&tile, dq), accumulate_q);
        T::multiply(scale, ds.transposed(), queries, shape.key_mut(&tile, dk), true);
    }
}

/// o = dropout(p) v.
///
/// Under dropout `scratch` holds at least [`Attention::scratch_elements`].
pub fn context(
    shape: &Attention,
    p: &[f32],
    dropout: Option<Dropout>,
    v: &[f32],
    o: &mut [f32],
    scratch: &mut [f32],
) {
    let Some(dropout) = dropout else { return whole_context(shape, p, v, o) };
    shape.check(&[o.len()], &[v.len()], &[p.len()]);
    if shape.is_empty() {
        o.fill(0.0);
        return;
    }
    for tile in shape.tiles(None) {
        let p = shape.dropped(&tile, p, dropout, scratch);
        multiply(1.0, p, shape.key(&tile, v), shape.query_mut(&tile, o), false);
    }
}

/// o = p v.
pub fn whole_context<T: Factor>(shape: &Attention, p: &[T], v: &[T], o: &mut [f32]) {
    shape.check(&[o.len()], &[v.len()], &[p.len()]);
    if shape.is_empty() {
        o.fill(0.0);
        return;
    }
    for tile in shape.tiles(None) {
        let p = shape.seen(&tile, p);
        T::multiply(1.0, p, shape.key(&tile, v), shape.query_mut(&tile, o), false);
    }
}

/// Input gradients of [`context`]: for the probabilities and for `v`.
///
/// The gradient of the probability of a key that is not seen is set to 0, `accumulate_p` or not, as
/// that probability is constant.
/// Under dropout `scratch` holds at least [`Attention::scratch_elements`].
pub fn context_input_grad(
    shape: &Attention,
    p: &[f32],
    dropout: Option<Dropout>,
    v: &[f32],
    d_o: &[f32],
    dp: &mut [f32],
    dv: &mut [f32],
    scratch: &mut [f32],
    accumulate_p: bool,
    accumulate_v: bool,
) {
    let Some(dropout) = dropout else {
        return whole_context_input_grad(shape, p, v, d_o, dp, dv, accumulate_p, accumulate_v);
    };
    shape.begin_context_gradients(p, v, d_o, (&mut *dp, accumulate_p), (&mut *dv, accumulate_v));
    if shape.is_empty() {
        return;
    }
    let Dropout { mask, keep_scale } = dropout;
    let keys = shape.keys;
    for tile in shape.tiles(None) {
        let d_o = shape.query(&tile, d_o);
        let dropped = shape.dropped(&tile, p, dropout, scratch);
        multiply(1.0, dropped.transposed(), d_o, shape.key_mut(&tile, dv), true);

        let range = tile.elements(keys);
        let product = &mut scratch[..tile.rows * tile.seen];
        let target = MatrixMut::new(product, tile.rows, tile.seen, tile.seen);
        multiply(1.0, d_o, shape.key(&tile, v).transposed(), target, false);
        let (columns, dp) = (tile.columns(), &mut dp[range.clone()]);
        mask_rows_grad(product, columns, &mask[range], keep_scale, keys, dp, accumulate_p);
        clear_unseen(dp, keys, tile.sight, 0);
    }
}

/// The same of [`whole_context`].
pub fn whole_context_input_grad<T: Factor>(
    shape: &Attention,
    p: &[T],
    v: &[T],
    d_o: &[T],
    dp: &mut [f32],
    dv: &mut [f32],
    accumulate_p: bool,
    accumulate_v: bool,
) {
    shape.begin_context_gradients(p, v, d_o, (&mut *dp, accumulate_p), (&mut *dv, accumulate_v));
    if shape.is_empty() {
        return;
    }
    let keys = shape.keys;
    for tile in shape.tiles(None) {
        let d_o = shape.query(&tile, d_o);
        let p = shape.seen(&tile, p).transposed();
        T::multiply(1.0, p, d_o, shape.key_mut(&tile, dv), true);
        let dp = &mut dp[tile.elements(keys)];
        let target = MatrixMut::new(&mut dp[tile.first_key..], tile.rows, tile.seen, keys);
        let v = shape.key(&tile, v).transposed();
        T::multiply(1.0, d_o, v, target, accumulate_p);
        clear_unseen(dp, keys, tile.sight, 0);
    }
}

impl Attention {
    /// The tile's probabilities, of the keys it sees.
    fn seen<'a, T>(&self, tile: &Tile<'_>, p: &'a [T]) -> Matrix<'a, T> {
        let p = &p[tile.elements(self.keys)][tile.first_key..];
        Matrix::new(p, tile.rows, tile.seen, self.keys)
    }

    /// The same under dropout.
    fn dropped<'a>(
        &self,
        tile: &Tile<'_>,
        p: &[f32],
        Dropout { mask, keep_scale }: Dropout,
        scratch: &'a mut [f32],
    ) -> Matrix<'a> {
        let range = tile.elements(self.keys);
        let dropped = &mut scratch[..tile.rows * tile.seen];
        let p = &p[range.clone()];
        mask_rows(p, &mask[range], keep_scale, self.keys, tile.columns(), dropped);
        Matrix::new(dropped, tile.rows, tile.seen, tile.seen)
    }

    /// Checks the sizes of what gradients of a context are made of, and clears what they are to overwrite: that of the
    /// values, to which each tile adds, and that of the probabilities, if there are none.
    fn begin_context_gradients<T>(
        &self,
        p: &[T],
        v: &[T],
        d_o: &[T],
        (dp, accumulate_p): (&mut [f32], bool),
        (dv, accumulate_v): (&mut [f32], bool),
    ) {
        self.check(&[d_o.len()], &[v.len(), dv.len()], &[p.len(), dp.len()]);
        if !accumulate_v {
            dv.fill(0.0);
        }
        if self.is_empty() && !accumulate_p {
            dp.fill(0.0);
        }
    }
}

simd! {
    /// Softmax of each row over the columns that it sees, of which the first is the key `origin`, and zero
    /// elsewhere.
    fn softmax_rows(rows: &mut [f32], columns: usize, sight: Sight<'_>, origin: usize) {
        for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
            let seen = sight.columns(i, origin, columns);
            row[..seen.start].fill(0.0);
            let (seen, unseen) = row[seen.start..].split_at_mut(seen.len());
            let largest = max(seen);
            for x in seen.iter_mut() {
                *x = exp(*x - largest);
            }
            let inverse = 1.0 / sum(seen, |x| x);
            for x in seen {
                *x *= inverse;
            }
            unseen.fill(0.0);
        }
    }

    /// Zeroes each row but for the columns that it sees, of which the first is the key `origin`.
    fn clear_unseen(rows: &mut [f32], columns: usize, sight: Sight<'_>, origin: usize) {
        for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
            let seen = sight.columns(i, origin, columns);
            row[..seen.start].fill(0.0);
            row[seen.end..].fill(0.0);
        }
    }

    /// s = cap tanh(s / cap) in these columns of rows of `keys`.
    fn cap_rows(rows: &mut [f32], keys: usize, columns: Range<usize>, cap: f32) {
        let inverse = 1.0 / cap;
        for row in rows.chunks_exact_mut(keys) {
            for s in &mut row[columns.clone()] {
                *s = cap * tanh(inverse * *s);
            }
        }
    }

    /// ds times the slope of cap tanh(s / cap) at the scores s before they are capped.
    fn scale_by_cap_slope(ds: &mut [f32], scores: &[f32], cap: f32) {
        let inverse = 1.0 / cap;
        for (ds, &s) in ds.iter_mut().zip(scores) {
            let t = tanh(inverse * s);
            *ds *= (1.0 - t) * (1.0 + t);
        }
    }

    /// ds = p (dp - sum of dp p over the row), for these columns.
    fn softmax_rows_grad(
        p: &[f32],
        dp: &[f32],
        keys: usize,
        columns: Range<usize>,
        ds: &mut [f32],
    ) {
        let rows = p.chunks_exact(keys).zip(dp.chunks_exact(keys));
        for ((p, dp), ds) in rows.zip(ds.chunks_exact_mut(columns.len())) {
            let (p, dp) = (&p[columns.clone()], &dp[columns.clone()]);
            let mean = sum_pairs(p, dp, |p, dp| p * dp);
            for (ds, (&p, &dp)) in ds.iter_mut().zip(p.iter().zip(dp)) {
                *ds = p * (dp - mean);
            }
        }
    }

    /// These columns under dropout.
    fn mask_rows(
        p: &[f32],
        mask: &[u8],
        keep_scale: f32,
        keys: usize,
        columns: Range<usize>,
        dropped: &mut [f32],
    ) {
        let rows = p.chunks_exact(keys).zip(mask.chunks_exact(keys));
        for ((p, mask), dropped) in rows.zip(dropped.chunks_exact_mut(columns.len())) {
            let seen = p[columns.clone()].iter().zip(&mask[columns.clone()]);
            for (dropped, (&p, &mask)) in dropped.iter_mut().zip(seen) {
                *dropped = f32::from(mask) * keep_scale * p;
            }
        }
    }

    /// The gradient through dropout of these columns.
    fn mask_rows_grad(
        product: &[f32],
        columns: Range<usize>,
        mask: &[u8],
        keep_scale: f32,
        keys: usize,
        dp: &mut [f32],
        accumulate: bool,
    ) {
        let rows = dp.chunks_exact_mut(keys).zip(mask.chunks_exact(keys));
        for ((dp, mask), product) in rows.zip(product.chunks_exact(columns.len())) {
            let seen = dp[columns.clone()].iter_mut().zip(&mask[columns.clone()]);
            for ((dp, &mask), &product) in seen.zip(product) {
                let term = f32::from(mask) * keep_scale * product;
                *dp = if accumulate { *dp + term } else { term };
            }
        }
    }
}
