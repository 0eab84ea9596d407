//! Softmax cross-entropy of a linear layer over each row's target and drawn classes (Jean et al. 2015, arXiv
//! 1412.2007, section 3; TensorFlow's `sampled_softmax_loss` with its log-uniform sampler).
//!
//! All rows of a step have the same drawn classes, whoever computes them: they follow from the [`Key`]. Numbers are
//! drawn until there are as many different classes as are to be drawn, class c with probability
//!
//! ```text
//! p(c) = ln((c + 2) / (c + 1)) / ln(classes + 1)
//! ```
//!
//! (Zipf's law, about, of words in the order of their frequency). After t numbers class c is expected to be there
//! `1 - (1 - p(c))^t` times; the logarithm of that is taken from its logit, whether it is the target or drawn. A
//! target that is drawn is not counted a second time in its own row.
//!
//! `x` is `[rows, model]`, `w` `[classes, model]`, `bias` `[classes]`; `target` `[rows]` and `sampled` `[rows, drawn
//! classes]` are the probabilities of a row's target and of the drawn classes.

use crate::elementary::exp;
use crate::matmul::{
    Linear, WeightLayout, bias_grad, linear, linear_input_grad, linear_weight_grad,
};
use crate::random::{Key, random_words};
use crate::reduce::{max, sum, sum_pairs};
use crate::simd::simd;

/// The sizes of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledSoftmax {
    /// Rows of `x`.
    pub rows: usize,
    /// Columns of `x`.
    pub model: usize,
    /// Classes there are.
    pub classes: usize,
    /// Classes that are drawn, at most half of them.
    pub samples: usize,
}

/// Logits of so many classes, at most, are there at a time where the softmax is over all.
const COLUMNS: usize = 256;

/// In place of a drawn class's number in the table by which classes are found: none.
const NONE: u32 = u32::MAX;

/// Weight gradients of a table: of all rows, or as rows and values for them.
pub enum Rows<'a> {
    /// A row for each class, to which is added.
    All(&'a mut [f32]),
    /// For each row of `x` that of its target, and then those of the drawn classes.
    Read {
        /// Which rows.
        rows: &'a mut [u32],
        /// A row of values for each.
        values: &'a mut [f32],
    },
}

impl Rows<'_> {
    /// Where the values for a class are added, which are the n-th that are.
    fn row(&mut self, at: usize, class: u32, columns: usize) -> &mut [f32] {
        match self {
            Rows::All(all) => &mut all[class as usize * columns..][..columns],
            Rows::Read { rows, values } => {
                rows[at] = class;
                let row = &mut values[at * columns..][..columns];
                row.fill(0.0);
                row
            }
        }
    }
}

simd! {
    fn product(x: &[f32], w: &[f32]) -> f32 {
        sum_pairs(x, w, |x, w| x * w)
    }

    fn add_scaled(to: &mut [f32], factor: f32, x: &[f32]) {
        to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
    }

    fn scaled(to: &mut [f32], factor: f32, x: &[f32]) {
        to.iter_mut().zip(x).for_each(|(to, x)| *to = factor * x);
    }

    /// Makes probabilities of logits and one more logit, and gives what -ln of that one's is, and its own.
    fn softmax(logits: &mut [f32], logit: f32) -> (f64, f32) {
        let most = max(logits).max(logit);
        for logit in logits.iter_mut() {
            *logit = exp(*logit - most);
        }
        let of_one = exp(logit - most);
        let z = of_one + sum(logits, |it| it);
        for it in logits.iter_mut() {
            *it /= z;
        }
        (f64::from(z).ln() - f64::from(logit - most), of_one / z)
    }

    /// Adds logits to the largest so far and the sum of exponentials of what they are less than it.
    fn gather(logits: &[f32], most: &mut f32, z: &mut f32) {
        let now = max(logits).max(*most);
        *z = *z * exp(*most - now) + sum(logits, |logit| exp(logit - now));
        *most = now;
    }
}

/// The classes that a step draws.
///
/// Whole numbers are kept in scratch as the bits of fp32 numbers.
struct Drawn<'a> {
    classes: usize,
    /// In the order in which they were drawn.
    of: &'a [f32],
    /// The place of a class in `of`, by a hash of its number; places that are taken are passed over.
    places: &'a [f32],
    /// How many numbers were drawn for them.
    tries: u64,
}

/// Whole numbers in scratch.
fn number(slot: f32) -> u32 {
    slot.to_bits()
}

/// Where a class is looked for first among so many places, a power of two.
fn hashed(class: u32, places: usize) -> usize {
    (class.wrapping_mul(0x9E37_79B9) as usize ^ (class as usize >> 15)) & (places - 1)
}

impl<'a> Drawn<'a> {
    /// Draws as many classes as `of` is long, with room for their `places`.
    fn new(key: Key, classes: usize, of: &'a mut [f32], places: &'a mut [f32]) -> Drawn<'a> {
        places.fill(f32::from_bits(NONE));
        let scale = ((classes + 1) as f64).ln();
        let mut words = [0; 64];
        let (mut count, mut tries) = (0, 0);
        while count < of.len() {
            let at = tries as usize % words.len();
            if at == 0 {
                random_words(key, tries as usize, &mut words);
            }
            tries += 1;
            let uniform = (f64::from(words[at]) + 0.5) * 2f64.powi(-32);
            // A rounded power may be one past the last.
            let class = (((uniform * scale).exp() - 1.0) as usize).min(classes - 1) as u32;
            let mut place = hashed(class, places.len());
            loop {
                match number(places[place]) {
                    NONE => {
                        places[place] = f32::from_bits(count as u32);
                        of[count] = f32::from_bits(class);
                        count += 1;
                        break;
                    }
                    known if number(of[known as usize]) == class => break,
                    _ => place = (place + 1) & (places.len() - 1),
                }
            }
        }
        Drawn { classes, of, places, tries }
    }

    /// The logarithm of how often a class is expected among those that are drawn.
    fn log_expected(&self, class: u32) -> f64 {
        let class = f64::from(class);
        let p = ((class + 2.0) / (class + 1.0)).ln() / ((self.classes + 1) as f64).ln();
        (-(self.tries as f64 * (-p).ln_1p()).exp_m1()).ln()
    }

    /// Which of those that are drawn a class is.
    fn place(&self, class: u32) -> Option<usize> {
        let mut place = hashed(class, self.places.len());
        loop {
            match number(self.places[place]) {
                NONE => return None,
                known if number(self.of[known as usize]) == class => return Some(known as usize),
                _ => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    fn classes(&self) -> impl Iterator<Item = u32> {
        self.of.iter().map(|&slot| number(slot))
    }
}

/// The classes that a step draws of `classes`, as many as `drawn` is long, in the order in which they are drawn, and
/// how many numbers were drawn for them.
pub fn draw(key: Key, classes: usize, drawn: &mut [u32]) -> u64 {
    assert!(2 * drawn.len() <= classes, "{} of {classes} classes", drawn.len());
    let mut of = vec![0.0; drawn.len()];
    let mut places = vec![0.0; places(drawn.len())];
    let found = Drawn::new(key, classes, &mut of, &mut places);
    drawn.iter_mut().zip(found.classes()).for_each(|(drawn, class)| *drawn = class);
    found.tries
}

/// Places among which so many classes are found, half of them free at least.
fn places(samples: usize) -> usize {
    2 * samples.next_power_of_two()
}

/// Scratch in its parts.
struct Parts<'a> {
    drawn: Drawn<'a>,
    /// `[drawn classes, model]`.
    weights: &'a mut [f32],
    /// `[drawn classes]`.
    biases: &'a mut [f32],
}

impl SampledSoftmax {
    /// Elements of scratch that any of the passes over drawn classes needs.
    pub fn scratch_elements(&self) -> usize {
        self.samples * (self.model + 2) + places(self.samples)
    }

    /// Elements of scratch that [`loss_over_all`](SampledSoftmax::loss_over_all) needs.
    pub fn scratch_elements_over_all(&self) -> usize {
        self.rows * (2 + self.columns())
    }

    fn columns(&self) -> usize {
        COLUMNS.min(self.classes)
    }

    /// The linear layer of so many classes.
    fn linear(&self, outputs: usize) -> Linear {
        let layout = WeightLayout::OutputsByInputs;
        Linear { rows: self.rows, inputs: self.model, outputs, layout }
    }

    fn parts<'a>(&self, key: Key, scratch: &'a mut [f32]) -> Parts<'a> {
        let (weights, rest) = scratch.split_at_mut(self.samples * self.model);
        let (biases, rest) = rest.split_at_mut(self.samples);
        let (of, rest) = rest.split_at_mut(self.samples);
        let places = &mut rest[..places(self.samples)];
        Parts { drawn: Drawn::new(key, self.classes, of, places), weights, biases }
    }

    /// The row of a class.
    fn row<'a>(&self, w: &'a [f32], class: u32) -> &'a [f32] {
        &w[class as usize * self.model..][..self.model]
    }

    fn check(&self, targets: &[u32], target: &[f32], sampled: &[f32]) {
        assert!(
            targets.len() == self.rows
                && target.len() == self.rows
                && sampled.len() == self.rows * self.samples,
            "{} targets, {} and {} probabilities for {self:?}",
            targets.len(),
            target.len(),
            sampled.len()
        );
        let outside = targets.iter().find(|&&it| it as usize >= self.classes);
        assert!(outside.is_none(), "a target {outside:?} of {} classes", self.classes);
    }

    /// Writes the probabilities, and gives the sum over rows of -ln of the target's.
    pub fn loss(
        &self,
        key: Key,
        (x, targets): (&[f32], &[u32]),
        (w, bias): (&[f32], &[f32]),
        target: &mut [f32],
        sampled: &mut [f32],
        scratch: &mut [f32],
    ) -> f64 {
        self.check(targets, target, sampled);
        let Parts { drawn, weights, biases } = self.parts(key, scratch);
        let rows = weights.chunks_exact_mut(self.model).zip(biases.iter_mut());
        for (class, (weights, biased)) in drawn.classes().zip(rows) {
            weights.copy_from_slice(self.row(w, class));
            *biased = bias[class as usize] - drawn.log_expected(class) as f32;
        }
        linear(self.linear(self.samples), x, weights, Some(biases), sampled);
        let mut total = 0.0;
        let of_rows = x.chunks_exact(self.model).zip(targets);
        let probabilities = target.iter_mut().zip(sampled.chunks_exact_mut(self.samples));
        for ((x, &class), (target, sampled)) in of_rows.zip(probabilities) {
            let logit = product(x, self.row(w, class))
                + (bias[class as usize] - drawn.log_expected(class) as f32);
            if let Some(place) = drawn.place(class) {
                sampled[place] = f32::NEG_INFINITY;
            }
            let (loss, probability) = softmax(sampled, logit);
            *target = probability;
            total += loss;
        }
        total
    }

    /// The same over all classes, without corrections, as in an evaluation.
    pub fn loss_over_all(
        &self,
        (x, targets): (&[f32], &[u32]),
        (w, bias): (&[f32], &[f32]),
        target: &mut [f32],
        scratch: &mut [f32],
    ) -> f64 {
        self.check(targets, target, &[]);
        let (most, rest) = scratch.split_at_mut(self.rows);
        let (z, rest) = rest.split_at_mut(self.rows);
        most.fill(f32::NEG_INFINITY);
        z.fill(0.0);
        let blocks = w.chunks(self.columns() * self.model).zip(bias.chunks(self.columns()));
        let mut first = 0;
        for (w, bias) in blocks {
            let logits = &mut rest[..self.rows * bias.len()];
            linear(self.linear(bias.len()), x, w, Some(bias), logits);
            let rows = logits.chunks_exact(bias.len()).zip(targets);
            let found = most.iter_mut().zip(z.iter_mut()).zip(target.iter_mut());
            for ((logits, &class), ((most, z), target)) in rows.zip(found) {
                gather(logits, most, z);
                if let Some(&logit) =
                    (class as usize).checked_sub(first).and_then(|it| logits.get(it))
                {
                    *target = logit;
                }
            }
            first += bias.len();
        }
        let of_rows = target.iter().zip(most.iter().zip(z.iter()));
        of_rows.map(|(&t, (&most, &z))| f64::from(z).ln() - f64::from(t - most)).sum()
    }

    /// Gradient of `scale` times the loss with respect to `x`.
    pub fn input_grad(
        &self,
        key: Key,
        (targets, w): (&[u32], &[f32]),
        (target, sampled): (&[f32], &[f32]),
        scale: f32,
        dx: &mut [f32],
        accumulate: bool,
        scratch: &mut [f32],
    ) {
        self.check(targets, target, sampled);
        let Parts { drawn, weights, .. } = self.parts(key, scratch);
        for (class, weights) in drawn.classes().zip(weights.chunks_exact_mut(self.model)) {
            scaled(weights, scale, self.row(w, class));
        }
        linear_input_grad(self.linear(self.samples), sampled, weights, dx, accumulate);
        for ((dx, &class), target) in dx.chunks_exact_mut(self.model).zip(targets).zip(target) {
            add_scaled(dx, scale * (target - 1.0), self.row(w, class));
        }
    }

    /// Gradients of `scale` times the loss with respect to `w` and `bias`; what is to begin from zero is zero.
    pub fn weight_grad(
        &self,
        key: Key,
        (x, targets): (&[f32], &[u32]),
        (target, sampled): (&[f32], &[f32]),
        scale: f32,
        (mut dw, mut dbias): (Rows<'_>, Rows<'_>),
        scratch: &mut [f32],
    ) {
        self.check(targets, target, sampled);
        let Parts { drawn, weights, biases } = self.parts(key, scratch);
        linear_weight_grad(self.linear(self.samples), x, sampled, weights, false);
        bias_grad(sampled, biases, false);
        weights.iter_mut().chain(biases.iter_mut()).for_each(|it| *it *= scale);
        let factors = target.iter().map(|target| scale * (target - 1.0));
        let of_rows = x.chunks_exact(self.model).zip(targets).zip(factors);
        for (at, ((x, &class), factor)) in of_rows.enumerate() {
            add_scaled(dw.row(at, class, self.model), factor, x);
            dbias.row(at, class, 1)[0] += factor;
        }
        let of_drawn = weights.chunks_exact(self.model).zip(biases.iter());
        for ((at, class), (weights, bias)) in (self.rows..).zip(drawn.classes()).zip(of_drawn) {
            add_scaled(dw.row(at, class, self.model), 1.0, weights);
            dbias.row(at, class, 1)[0] += bias;
        }
    }
}
