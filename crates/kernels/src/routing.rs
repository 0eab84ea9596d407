//! Top-1 routing of rows to experts, and the ways there and back.
//!
//! The rows of each sample choose an expert, whose slots for that sample they take in their order. Packed
//! rows lie side by side in the order of expert, sample and slot; counts `[experts, samples]` say how many
//! there are of each. Counts are whole numbers up to 2^24, which 32-bit floating point holds exactly.

use shardloom_graph::op::UNROUTED;

use crate::elementary::exp;

/// The sizes of a routed block on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Experts to choose from.
    pub experts: usize,
    /// Samples, each with slots of its own.
    pub samples: usize,
}

/// Where rows go.
#[derive(Clone, Copy, Debug)]
pub struct Routed<'a> {
    /// For each row its expert.
    pub choice: &'a [u32],
    /// For each row its slot there, or [`UNROUTED`].
    pub slot: &'a [u32],
    /// `[experts, samples]`: how many rows have a slot.
    pub counts: &'a [f32],
}

/// What a routing decides.
#[derive(Debug)]
pub struct Decision<'a> {
    /// For each row the softmax of its logits at its choice.
    pub probability: &'a mut [f32],
    /// For each row the expert of its largest logit, of equal ones the first.
    pub choice: &'a mut [u32],
    /// For each row its slot there, or [`UNROUTED`].
    pub slot: &'a mut [u32],
    /// `[experts, samples]`: how many rows have a slot.
    pub counts: &'a mut [f32],
}

/// Decides where rows with `logits [samples, rows, experts]` go, if each expert takes up to `most` rows of a
/// sample; all that come, if none is said.
pub fn route(sizes: Routing, logits: &[f32], most: Option<usize>, decision: Decision<'_>) {
    let Routing { experts, samples } = sizes;
    let Decision { probability, choice, slot, counts } = decision;
    let rows = probability.len();
    assert!(
        logits.len() == rows * experts
            && (choice.len(), slot.len()) == (rows, rows)
            && counts.len() == experts * samples
            && rows.is_multiple_of(samples.max(1)),
        "{rows} rows of {samples} samples have {} logits and {} counts of {experts} experts",
        logits.len(),
        counts.len()
    );
    counts.fill(0.0);
    let of_sample = rows / samples.max(1);
    for (row, logits) in logits.chunks_exact(experts).enumerate() {
        let better = |best: usize, other: usize| match logits[other] > logits[best] {
            true => other,
            false => best,
        };
        let chosen = (1..experts).fold(0, better);
        let sum: f32 = logits.iter().map(|logit| exp(logit - logits[chosen])).sum();
        probability[row] = 1.0 / sum;
        choice[row] = chosen as u32;
        let count = &mut counts[chosen * samples + row / of_sample];
        slot[row] = match most.is_none_or(|most| (*count as usize) < most) {
            true => {
                *count += 1.0;
                *count as u32 - 1
            }
            false => UNROUTED,
        };
    }
}

/// The gradient of [`route`]'s probabilities with respect to the logits: `dp p (d_jc - softmax_j)`, where c is
/// the choice.
pub fn route_input_grad(
    logits: &[f32],
    probability: &[f32],
    choice: &[u32],
    dp: &[f32],
    dlogits: &mut [f32],
    accumulate: bool,
) {
    let experts = logits.len() / probability.len().max(1);
    assert!(
        logits.len() == dlogits.len() && dp.len() == probability.len(),
        "{} probabilities of {} logits have {} gradients",
        probability.len(),
        logits.len(),
        dp.len()
    );
    let rows = logits.chunks_exact(experts).zip(dlogits.chunks_exact_mut(experts));
    for (row, (logits, dlogits)) in rows.enumerate() {
        let (chosen, p) = (choice[row] as usize, probability[row]);
        let scale = dp[row] * p;
        for (expert, (logit, dlogit)) in logits.iter().zip(dlogits).enumerate() {
            let softmax = exp(logit - logits[chosen]) * p;
            let own = if expert == chosen { 1.0 } else { 0.0 };
            let gradient = scale * (own - softmax);
            *dlogit = if accumulate { *dlogit + gradient } else { gradient };
        }
    }
}

impl Routed<'_> {
    /// Calls `visit` with each row that has a slot and its place among the packed rows.
    fn each(&self, sizes: Routing, mut visit: impl FnMut(usize, usize)) {
        let Routing { experts, samples } = sizes;
        let of_sample = self.choice.len() / samples.max(1);
        let mut first = 0;
        for expert in 0..experts {
            for sample in 0..samples {
                let count = self.counts[expert * samples + sample] as usize;
                if count == 0 {
                    continue;
                }
                for row in sample * of_sample..(sample + 1) * of_sample {
                    if self.choice[row] == expert as u32 && self.slot[row] != UNROUTED {
                        visit(row, first + self.slot[row] as usize);
                    }
                }
                first += count;
            }
        }
    }
}

/// Packs the rows of `x` that have a slot, of `width` elements each.
pub fn dispatch(sizes: Routing, routed: Routed<'_>, width: usize, x: &[f32], packed: &mut [f32]) {
    routed.each(sizes, |row, place| {
        packed[place * width..][..width].copy_from_slice(&x[row * width..][..width]);
    });
}

/// The gradient of [`dispatch`] with respect to `x`: rows without a slot have none.
pub fn dispatch_input_grad(
    sizes: Routing,
    routed: Routed<'_>,
    width: usize,
    dpacked: &[f32],
    dx: &mut [f32],
    accumulate: bool,
) {
    if !accumulate {
        dx.fill(0.0);
    }
    routed.each(sizes, |row, place| {
        let gradients = &dpacked[place * width..][..width];
        for (dx, gradient) in dx[row * width..][..width].iter_mut().zip(gradients) {
            *dx += gradient;
        }
    });
}

/// Puts packed rows, times their probabilities, where the rows came from; rows without a slot are zero.
pub fn combine(
    sizes: Routing,
    routed: Routed<'_>,
    width: usize,
    packed: &[f32],
    probability: &[f32],
    y: &mut [f32],
) {
    y.fill(0.0);
    routed.each(sizes, |row, place| {
        let results = &packed[place * width..][..width];
        for (y, result) in y[row * width..][..width].iter_mut().zip(results) {
            *y = probability[row] * result;
        }
    });
}

/// The gradients of [`combine`] with respect to packed rows and probabilities.
pub fn combine_input_grad(
    sizes: Routing,
    routed: Routed<'_>,
    width: usize,
    packed: &[f32],
    probability: &[f32],
    dy: &[f32],
    dpacked: &mut [f32],
    dprobability: &mut [f32],
    accumulate: [bool; 2],
) {
    if !accumulate[1] {
        dprobability.fill(0.0);
    }
    routed.each(sizes, |row, place| {
        let (range, dy) = (place * width..(place + 1) * width, &dy[row * width..][..width]);
        let mut dot = 0.0;
        for ((result, gradient), dy) in
            packed[range.clone()].iter().zip(&mut dpacked[range]).zip(dy)
        {
            dot += result * dy;
            let own = probability[row] * dy;
            *gradient = if accumulate[0] { *gradient + own } else { own };
        }
        dprobability[row] += dot;
    });
}
