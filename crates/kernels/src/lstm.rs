//! The recurrence of a long short-term memory (Hochreiter and Schmidhuber, "Long Short-Term Memory",
//! Neural Computation 1997) with forget gates (Gers et al., "Learning to Forget", 2000), and with the
//! recurrent projection of Sak et al. (arXiv 1402.1128, section 2).
//!
//! With `gates` `[batch, seq, 4 hidden]`, what the input contributes to input gate, forget gate,
//! candidate and output gate, recurrent weights `w` `[units, 4 hidden]` and zeros before the first
//! position:
//!
//! ```text
//! (i, f, g, o) = gates_t + y_t-1 w
//! c_t = sigmoid(f + forget_bias) c_t-1 + sigmoid(i) tanh(g)
//! y_t = sigmoid(o) tanh(c_t), times the projection [hidden, units] if there is one
//! ```
//!
//! A position is a product over all samples and a pass over their cells. The forward function keeps the
//! gates after activation and the cells; the gradient of the weights reads what [`lstm_input_grad`] has
//! made of them.

use crate::elementary::{sigmoid, tanh};
use crate::gemm::{Matrix, MatrixMut, multiply};
use crate::simd::simd;

/// Input gate, forget gate, candidate, output gate.
const GATES: usize = 4;

/// The sizes of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm {
    /// Samples.
    pub batch: usize,
    /// Positions of a sample.
    pub seq: usize,
    /// Cells.
    pub hidden: usize,
    /// Width of the result: that of the projection, or as many as cells.
    pub units: usize,
    /// Added to the forget gate before activation.
    pub forget_bias: f32,
}

impl Lstm {
    /// Elements of scratch of [`lstm_input_grad`].
    pub fn input_grad_scratch(&self) -> usize {
        self.batch * (self.units + 2 * self.hidden)
    }

    /// Elements of scratch of [`projection_grad`].
    pub fn projection_grad_scratch(&self) -> usize {
        self.seq * self.units
    }

    fn columns(&self) -> usize {
        GATES * self.hidden
    }

    fn check(&self, gates: &[usize], cells: &[usize], results: &[usize]) {
        let positions = self.batch * self.seq;
        let all = |lens: &[usize], width: usize| lens.iter().all(|&len| len == positions * width);
        assert!(
            all(gates, self.columns()) && all(cells, self.hidden) && all(results, self.units),
            "{self:?} got gates of {gates:?}, cells of {cells:?} and results of {results:?} elements"
        );
    }

    fn check_weights(&self, w: usize, projection: Option<usize>) {
        let expected = match projection {
            Some(len) => len == self.hidden * self.units,
            None => self.hidden == self.units,
        };
        assert!(
            w == self.units * self.columns() && expected,
            "{self:?} got {w} weights and {projection:?} of a projection"
        );
    }

    /// Position `t` of all samples as a matrix, of elements that are `width` each.
    fn at<'a>(&self, x: &'a [f32], t: usize, width: usize) -> Matrix<'a> {
        Matrix::new(&x[t * width..], self.batch, width, self.seq * width)
    }

    fn at_mut<'a>(&self, x: &'a mut [f32], t: usize, width: usize) -> MatrixMut<'a> {
        MatrixMut::new(&mut x[t * width..], self.batch, width, self.seq * width)
    }

    fn weights<'a>(&self, w: &'a [f32]) -> Matrix<'a> {
        Matrix::new(w, self.units, self.columns(), self.columns())
    }
}

/// The recurrence. `activated` (as `gates`), `cell` and, with a projection, `output` (both `[batch, seq,
/// hidden]`) are what the gradients read; `output` is what the projection multiplies.
///
/// # Panics
/// If sizes contradict each other, or there is a projection without `output` or the reverse.
pub fn lstm(
    shape: &Lstm,
    gates: &[f32],
    w: &[f32],
    projection: Option<&[f32]>,
    y: &mut [f32],
    activated: &mut [f32],
    cell: &mut [f32],
    mut output: Option<&mut [f32]>,
) {
    let Lstm { seq, hidden, units, .. } = *shape;
    let kept = output.as_deref().map_or(cell.len(), <[f32]>::len);
    shape.check(&[gates.len(), activated.len()], &[cell.len(), kept], &[y.len()]);
    shape.check_weights(w.len(), projection.map(<[f32]>::len));
    activated.copy_from_slice(gates);
    for t in 0..seq {
        if t > 0 {
            let z = shape.at_mut(activated, t, shape.columns());
            multiply(1.0, shape.at(y, t - 1, units), shape.weights(w), z, true);
        }
        match (projection, &mut output) {
            (None, None) => activate(shape, t, activated, cell, y),
            (Some(projection), Some(output)) => {
                activate(shape, t, activated, cell, output);
                let matrix = Matrix::new(projection, hidden, units, units);
                let y = shape.at_mut(y, t, units);
                multiply(1.0, shape.at(output, t, hidden), matrix, y, false);
            }
            _ => panic!("a projection and what it multiplies are there together"),
        }
    }
}

/// Input gradient of [`lstm`]: what `gates` contributed, overwritten.
///
/// `scratch` holds at least [`Lstm::input_grad_scratch`].
pub fn lstm_input_grad(
    shape: &Lstm,
    w: &[f32],
    activated: &[f32],
    cell: &[f32],
    dy: &[f32],
    projection: Option<&[f32]>,
    dgates: &mut [f32],
    scratch: &mut [f32],
) {
    let Lstm { batch, seq, hidden, units, .. } = *shape;
    shape.check(&[activated.len(), dgates.len()], &[cell.len()], &[dy.len()]);
    shape.check_weights(w.len(), projection.map(<[f32]>::len));
    let (result, scratch) = scratch.split_at_mut(batch * units);
    let (dcell, scratch) = scratch.split_at_mut(batch * hidden);
    let doutput = &mut scratch[..batch * hidden];
    dcell.fill(0.0);
    for t in (0..seq).rev() {
        // The gradient of a result is what comes from outside and what the next position contributes.
        copy_position(dy, t, seq, units, result);
        if t + 1 < seq {
            let next = shape.at(dgates, t + 1, shape.columns());
            let sum = MatrixMut::new(result, batch, units, units);
            multiply(1.0, next, shape.weights(w).transposed(), sum, true);
        }
        let of_output = match projection {
            None => &*result,
            Some(projection) => {
                let matrix = Matrix::new(projection, hidden, units, units).transposed();
                let target = MatrixMut::new(doutput, batch, hidden, hidden);
                multiply(1.0, Matrix::new(result, batch, units, units), matrix, target, false);
                &*doutput
            }
        };
        activate_grad(shape, t, activated, cell, of_output, dcell, dgates);
    }
}

/// Gradient of the recurrent weights of [`lstm`], from its result and what [`lstm_input_grad`] gave.
pub fn lstm_weight_grad(shape: &Lstm, y: &[f32], dgates: &[f32], dw: &mut [f32], accumulate: bool) {
    let Lstm { batch, seq, units, .. } = *shape;
    let columns = shape.columns();
    shape.check(&[dgates.len()], &[], &[y.len()]);
    assert_eq!(dw.len(), units * columns, "a gradient for each weight");
    if !accumulate && (seq == 1 || batch == 0) {
        dw.fill(0.0);
    }
    let steps = seq - 1;
    if steps == 0 {
        return;
    }
    for sample in 0..batch {
        // Each position but the first beside the result before it.
        let before = Matrix::new(&y[sample * seq * units..], steps, units, units);
        let after = Matrix::new(&dgates[(sample * seq + 1) * columns..], steps, columns, columns);
        let dw = MatrixMut::new(dw, units, columns, columns);
        multiply(1.0, before.transposed(), after, dw, accumulate || sample > 0);
    }
}

/// Gradient of the projection of [`lstm`], from what it multiplied, `output`, and what
/// [`lstm_input_grad`] gave. The gradient of what it gave is computed again, a product for each sample.
///
/// `scratch` holds at least [`Lstm::projection_grad_scratch`].
pub fn projection_grad(
    shape: &Lstm,
    dgates: &[f32],
    w: &[f32],
    output: &[f32],
    dy: &[f32],
    dprojection: &mut [f32],
    scratch: &mut [f32],
    accumulate: bool,
) {
    let Lstm { batch, seq, hidden, units, .. } = *shape;
    let columns = shape.columns();
    shape.check(&[dgates.len()], &[output.len()], &[dy.len()]);
    shape.check_weights(w.len(), Some(dprojection.len()));
    if !accumulate && batch == 0 {
        dprojection.fill(0.0);
    }
    let result = &mut scratch[..seq * units];
    let steps = seq - 1;
    for sample in 0..batch {
        result.copy_from_slice(&dy[sample * seq * units..][..seq * units]);
        if steps > 0 {
            let after = &dgates[(sample * seq + 1) * columns..];
            let after = Matrix::new(after, steps, columns, columns);
            let sum = MatrixMut::new(result, steps, units, units);
            multiply(1.0, after, shape.weights(w).transposed(), sum, true);
        }
        let output = Matrix::new(&output[sample * seq * hidden..], seq, hidden, hidden);
        let target = MatrixMut::new(dprojection, hidden, units, units);
        let result = Matrix::new(result, seq, units, units);
        multiply(1.0, output.transposed(), result, target, accumulate || sample > 0);
    }
}

/// Position `t` of all samples of `x` `[batch, seq, width]`, one after another.
fn copy_position(x: &[f32], t: usize, seq: usize, width: usize, to: &mut [f32]) {
    for (to, x) in to.chunks_exact_mut(width).zip(x.chunks_exact(seq * width)) {
        to.copy_from_slice(&x[t * width..][..width]);
    }
}

simd! {
    /// Activates the gates of position `t` in place, and computes its cells and what they put out.
    fn activate(
        shape: &Lstm,
        t: usize,
        activated: &mut [f32],
        cell: &mut [f32],
        output: &mut [f32],
    ) {
        let Lstm { seq, hidden, forget_bias, .. } = *shape;
        for sample in 0..shape.batch {
            let row = sample * seq + t;
            let gates = &mut activated[row * GATES * hidden..][..GATES * hidden];
            let (input, gates) = gates.split_at_mut(hidden);
            let (forget, gates) = gates.split_at_mut(hidden);
            let (candidate, out) = gates.split_at_mut(hidden);
            for x in input.iter_mut() {
                *x = sigmoid(*x);
            }
            for x in out.iter_mut() {
                *x = sigmoid(*x);
            }
            for x in forget.iter_mut() {
                *x = sigmoid(*x + forget_bias);
            }
            for x in candidate.iter_mut() {
                *x = tanh(*x);
            }
            let (before, cell) = cell.split_at_mut(row * hidden);
            let cell = &mut cell[..hidden];
            for ((c, &i), &g) in cell.iter_mut().zip(&*input).zip(&*candidate) {
                *c = i * g;
            }
            if t > 0 {
                let before = &before[(row - 1) * hidden..];
                for ((c, &f), &before) in cell.iter_mut().zip(&*forget).zip(before) {
                    *c += f * before;
                }
            }
            let output = &mut output[row * hidden..][..hidden];
            for ((y, &o), &c) in output.iter_mut().zip(&*out).zip(&*cell) {
                *y = o * tanh(c);
            }
        }
    }

    /// The gradient of the gates of position `t` before activation, from that of what the cells put out,
    /// `[batch, hidden]`; `dcell` is the gradient of the cells that comes from the next position, and
    /// becomes that which the position before gets.
    fn activate_grad(
        shape: &Lstm,
        t: usize,
        activated: &[f32],
        cell: &[f32],
        doutput: &[f32],
        dcell: &mut [f32],
        dgates: &mut [f32],
    ) {
        let Lstm { seq, hidden, .. } = *shape;
        let outputs = doutput.chunks_exact(hidden).zip(dcell.chunks_exact_mut(hidden));
        for (sample, (doutput, dcell)) in outputs.enumerate() {
            let row = sample * seq + t;
            let gates = &activated[row * GATES * hidden..][..GATES * hidden];
            let (input, gates) = gates.split_at(hidden);
            let (forget, gates) = gates.split_at(hidden);
            let (candidate, out) = gates.split_at(hidden);
            let dgates = &mut dgates[row * GATES * hidden..][..GATES * hidden];
            let (dinput, dgates) = dgates.split_at_mut(hidden);
            let (dforget, dgates) = dgates.split_at_mut(hidden);
            let (dcandidate, dout) = dgates.split_at_mut(hidden);
            let now = &cell[row * hidden..][..hidden];
            for (((dc, &dy), (&o, &c)), d) in
                dcell.iter_mut().zip(doutput).zip(out.iter().zip(now)).zip(dout)
            {
                let squashed = tanh(c);
                *d = dy * squashed * o * (1.0 - o);
                *dc += dy * o * (1.0 - squashed * squashed);
            }
            for ((&dc, (&i, &g)), (di, dg)) in dcell
                .iter()
                .zip(input.iter().zip(candidate))
                .zip(dinput.iter_mut().zip(dcandidate))
            {
                *di = dc * g * i * (1.0 - i);
                *dg = dc * i * (1.0 - g * g);
            }
            match t {
                0 => dforget.fill(0.0),
                _ => {
                    let before = &cell[(row - 1) * hidden..][..hidden];
                    for ((&dc, (&f, &before)), df) in
                        dcell.iter().zip(forget.iter().zip(before)).zip(dforget)
                    {
                        *df = dc * before * f * (1.0 - f);
                    }
                }
            }
            for (dc, &f) in dcell.iter_mut().zip(forget) {
                *dc *= f;
            }
        }
    }
}
