//! Gradients of tables as rows and values for them.
//!
//! A pass of an embedding writes a row for each index that it has read. `sum_equal` makes different ones of them,
//! in ascending order, so that an update can go through table and rows side by side.

use std::ops::Range;

use half::{bf16, f16};

use crate::reduce::LANES;

/// In place of a row where there is none. No table has so many.
pub const NO_ROW: u32 = u32::MAX;

/// Weight gradient of [`gather`](crate::embedding::gather) as rows: `rows[r]` is the table row of `tokens[r]` on a
/// device whose part of the vocabulary begins at `vocab_start`, and `values[r, ..]` is `dy[r, ..]`. Rows of tokens
/// outside that part are none of the table's.
pub fn of_tokens(
    tokens: &[u32],
    dy: &[f32],
    vocab_start: usize,
    rows: &mut [u32],
    values: &mut [f32],
) {
    assert_eq!((rows.len(), values.len()), (tokens.len(), dy.len()), "a row for each token");
    for (row, &token) in rows.iter_mut().zip(tokens) {
        *row = token.wrapping_sub(vocab_start as u32);
    }
    for (value, &dy) in values.iter_mut().zip(dy) {
        // As a sum that begins with zero, which has no negative zeros.
        *value = 0.0 + dy;
    }
}

/// A real number as it is stored.
pub(crate) trait Real: Copy {
    fn wide(self) -> f32;
    fn rounded(number: f32) -> Self;
}

impl Real for f32 {
    fn wide(self) -> f32 {
        self
    }

    fn rounded(number: f32) -> f32 {
        number
    }
}

impl Real for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn rounded(number: f32) -> bf16 {
        bf16::from_f32(number)
    }
}

impl Real for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn rounded(number: f32) -> f16 {
        f16::from_f32(number)
    }
}

/// Elements of a row that are added up at a time.
const COLUMNS: usize = 64;

/// Makes different rows of the first `given` ones of a table of `table_rows` rows: the values of equal ones are summed
/// in their order, in fp32, and rounded once. They stand first afterwards, in ascending order; behind them are
/// [`NO_ROW`] and values that mean nothing. `order` is room for the order of the rows.
pub(crate) fn sum_equal<T: Real>(
    (table_rows, given): (usize, usize),
    rows: &mut [u32],
    values: &mut [T],
    order: &mut [u32],
) {
    if rows.is_empty() {
        return;
    }
    let columns = values.len() / rows.len();
    assert_eq!((columns * rows.len(), order.len()), (values.len(), rows.len()), "values of rows");
    let order = &mut order[..given];
    for (place, at) in (0..).zip(order.iter_mut()) {
        *at = place;
    }
    order.sort_unstable_by_key(|&place| (rows[place as usize], place));
    let (mut start, mut count) = (0, 0);
    while start < order.len() {
        let first = order[start] as usize;
        if rows[first] as usize >= table_rows {
            break;
        }
        let is_equal = |&&place: &&u32| rows[place as usize] == rows[first];
        let equal = order[start..].iter().take_while(is_equal).count();
        if equal > 1 {
            add_up(&order[start..start + equal], columns, values);
        }
        order[count] = first as u32;
        (start, count) = (start + equal, count + 1);
    }
    for index in 0..count {
        // What was at a place before `index` has been swapped to where that place's row came from.
        let mut from = order[index] as usize;
        while from < index {
            from = order[from] as usize;
        }
        order[index] = from as u32;
        if from > index {
            rows.swap(index, from);
            let (head, tail) = values.split_at_mut(from * columns);
            head[index * columns..][..columns].swap_with_slice(&mut tail[..columns]);
        }
    }
    rows[count..].fill(NO_ROW);
}

/// Sums the values at some places into those at the first.
fn add_up<T: Real>(places: &[u32], columns: usize, values: &mut [T]) {
    let mut sums = [0.0_f32; COLUMNS];
    for start in (0..columns).step_by(COLUMNS) {
        let sums = &mut sums[..COLUMNS.min(columns - start)];
        sums.fill(0.0);
        let range = |place: u32| {
            let first = place as usize * columns + start;
            first..first + COLUMNS.min(columns - start)
        };
        for &place in places {
            for (sum, &value) in sums.iter_mut().zip(&values[range(place)]) {
                *sum += value.wide();
            }
        }
        for (value, &sum) in values[range(places[0])].iter_mut().zip(&*sums) {
            *value = T::rounded(sum);
        }
    }
}

/// How many of some rows there are: those before the first [`NO_ROW`].
pub(crate) fn count(rows: &[u32]) -> usize {
    rows.partition_point(|&row| row != NO_ROW)
}

/// The sum of the squares of those elements of a table that lie in a range, in double precision and in the order in
/// which the same is found of all elements, `chunk` of them at a time.
pub(crate) fn squared_norm<T: Real>(
    rows: &[u32],
    values: &[T],
    of: &Range<usize>,
    chunk: usize,
) -> f64 {
    let (mut sum, mut lanes, mut number) = (0.0, [0.0_f64; LANES], 0);
    let columns = values.len() / rows.len().max(1);
    for (&row, values) in rows[..count(rows)].iter().zip(values.chunks_exact(columns.max(1))) {
        let start = row as usize * columns;
        let part = start.max(of.start)..(start + columns).min(of.end);
        for at in part {
            let place = at - of.start;
            if place / chunk != number {
                sum += lanes.iter().sum::<f64>();
                (lanes, number) = ([0.0; LANES], place / chunk);
            }
            let value = f64::from(values[at - start].wide());
            lanes[place % chunk % LANES] += value * value;
        }
    }
    sum + lanes.iter().sum::<f64>()
}
