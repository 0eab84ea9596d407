//! The linear layer y = x w + bias and its gradients.
//!
//! `x` is `[rows, inputs]` and `y` `[rows, outputs]`. With `accumulate` a gradient is added onto
//! its destination, otherwise it overwrites. What is multiplied may be in bfloat16; results are in fp32.

use half::bf16;

use crate::gemm::{Matrix, MatrixMut, multiply, multiply_bf16};
use crate::processor::cast::from_bf16;
use crate::reduce::column_sums;
use crate::simd::simd;

/// Numbers that products multiply: fp32 or bfloat16, whose products are summed in fp32. bfloat16 is multiplied as
/// such, which is faster than widened where the tier is [`Tier::Avx512Bf16`](crate::Tier::Avx512Bf16); elsewhere
/// widen it.
pub trait Factor: Copy + multiplied::Multiplied {}

impl Factor for f32 {}
impl Factor for bf16 {}

mod multiplied {
    use super::{Matrix, MatrixMut, bf16, multiply, multiply_bf16};

    pub trait Multiplied: Sized {
        /// c = a b, or with `accumulate` c += a b.
        #[expect(private_interfaces, reason = "nobody else has such numbers")]
        fn multiply(a: Matrix<'_, Self>, b: Matrix<'_, Self>, c: MatrixMut<'_>, accumulate: bool);
    }

    impl Multiplied for f32 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(a: Matrix<'_>, b: Matrix<'_>, c: MatrixMut<'_>, accumulate: bool) {
            multiply(1.0, a, b, c, accumulate);
        }
    }

    impl Multiplied for bf16 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(a: Matrix<'_, bf16>, b: Matrix<'_, bf16>, c: MatrixMut<'_>, accumulate: bool) {
            multiply_bf16(a, b, c, accumulate);
        }
    }
}

/// How a weight lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// `[inputs, outputs]`, so that y = x w.
    InputsByOutputs,
    /// `[outputs, inputs]`, so that y = x w^T: a tied embedding table, or PyTorch's linear layer.
    OutputsByInputs,
}

/// The sizes of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Rows of `x` and `y`: all axes but the last.
    pub rows: usize,
    /// Columns of `x`.
    pub inputs: usize,
    /// Columns of `y`.
    pub outputs: usize,
    /// The layout of the weight.
    pub layout: WeightLayout,
}

impl Linear {
    /// The weight as an `[inputs, outputs]` matrix.
    fn weight<'a, T>(&self, w: &'a [T]) -> Matrix<'a, T> {
        match self.layout {
            WeightLayout::InputsByOutputs => {
                Matrix::new(w, self.inputs, self.outputs, self.outputs)
            }
            WeightLayout::OutputsByInputs => {
                Matrix::new(w, self.outputs, self.inputs, self.inputs).transposed()
            }
        }
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        let Linear { rows, inputs, outputs, .. } = *self;
        assert!(
            x == rows * inputs && w == inputs * outputs && y == rows * outputs,
            "a linear layer of {rows} rows, {inputs} inputs, {outputs} outputs got {x} inputs, {w} \
             weights and {y} outputs"
        );
    }
}

/// y = x w (+ bias, of shape `[outputs]`).
pub fn linear<T: Factor>(shape: Linear, x: &[T], w: &[T], bias: Option<&[f32]>, y: &mut [f32]) {
    shape.check(x.len(), w.len(), y.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    if let Some(bias) = bias {
        assert_eq!(bias.len(), outputs, "a bias element for each output");
        if outputs > 0 {
            y.chunks_exact_mut(outputs).for_each(|y| y.copy_from_slice(bias));
        }
    }
    let x = Matrix::new(x, rows, inputs, inputs);
    let y = MatrixMut::new(y, rows, outputs, outputs);
    T::multiply(x, shape.weight(w), y, bias.is_some());
}

/// Input gradient of [`linear`]: dx = dy w^T.
pub fn linear_input_grad<T: Factor>(
    shape: Linear,
    dy: &[T],
    w: &[T],
    dx: &mut [f32],
    accumulate: bool,
) {
    shape.check(dx.len(), w.len(), dy.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    let dy = Matrix::new(dy, rows, outputs, outputs);
    let dx = MatrixMut::new(dx, rows, inputs, inputs);
    T::multiply(dy, shape.weight(w).transposed(), dx, accumulate);
}

/// Weight gradient of [`linear`]: dw = x^T dy, in the layout of the weight.
pub fn linear_weight_grad<T: Factor>(
    shape: Linear,
    x: &[T],
    dy: &[T],
    dw: &mut [f32],
    accumulate: bool,
) {
    shape.check(x.len(), dw.len(), dy.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    let x = Matrix::new(x, rows, inputs, inputs);
    let dy = Matrix::new(dy, rows, outputs, outputs);
    match shape.layout {
        WeightLayout::InputsByOutputs => {
            let dw = MatrixMut::new(dw, inputs, outputs, outputs);
            T::multiply(x.transposed(), dy, dw, accumulate);
        }
        WeightLayout::OutputsByInputs => {
            let dw = MatrixMut::new(dw, outputs, inputs, inputs);
            T::multiply(dy.transposed(), x, dw, accumulate);
        }
    }
}

simd! {
    /// Bias gradient of [`linear`]: `db[j]` = sum over rows of `dy[.., j]`.
    pub fn bias_grad(dy: &[f32], db: &mut [f32], accumulate: bool) {
        column_sums(dy, dy, db, accumulate, |_| (), |(), dy, _| dy);
    }

    /// The same of output gradients in bfloat16.
    pub fn bias_grad_of_bf16(dy: &[bf16], db: &mut [f32], accumulate: bool) {
        column_sums(dy, dy, db, accumulate, |_| (), |(), dy, _| from_bf16(dy));
    }
}
