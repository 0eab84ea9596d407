//! The linear layer y = x w + bias and its gradients.
//!
//! `x` is `[rows, inputs]` and `y` `[rows, outputs]`. With `accumulate` a gradient is added onto
//! its destination, otherwise it overwrites. What is multiplied may be in bfloat16; results are in fp32.

use half::bf16;

pub use crate::gemm::writes_bf16;
use crate::gemm::{Matrix, MatrixMut, multiply, multiply_bf16, multiply_to_bf16};
use crate::processor::cast::{as_bf16, from_bf16, round_scaled_to_bf16};
use crate::reduce::column_sums;
use crate::simd::simd;

/// Numbers that products multiply: fp32 or bfloat16, whose products are summed in fp32. bfloat16 is multiplied as
/// such, which is faster than widened where the tier is [`Tier::Avx512Bf16`](crate::Tier::Avx512Bf16) or
/// [`Tier::Amx`](crate::Tier::Amx); elsewhere widen it.
pub trait Factor: Copy + multiplied::Summed {}

impl Factor for f32 {}
impl Factor for bf16 {}

/// Numbers that results of products of `T` are written in: fp32, or bfloat16 where [`writes_bf16`] says so.
pub trait Product<T: Factor>: Copy + multiplied::Written<T> {}

impl<T: Factor> Product<T> for f32 {}
impl Product<bf16> for bf16 {}

mod multiplied {
    use super::round_scaled_to_bf16;
    use super::{
        Factor, Matrix, MatrixMut, as_bf16, bf16, multiply, multiply_bf16, multiply_to_bf16,
    };

    pub trait Summed: Sized {
        /// c = scale a b in fp32, or with `accumulate`, which goes with a scale of 1, c += a b.
        #[expect(private_interfaces, reason = "nobody else has such numbers")]
        fn multiply(
            scale: f32,
            a: Matrix<'_, Self>,
            b: Matrix<'_, Self>,
            c: MatrixMut<'_>,
            accumulate: bool,
        );

        /// `scale` times these values as factors, and by what products of them are still to be scaled: the values as
        /// they are, or rounded into `room`, which has as many elements.
        fn factors<'a>(values: &'a [f32], scale: f32, room: &'a mut [f32]) -> (&'a [Self], f32);
    }

    impl Summed for f32 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
            multiply(scale, a, b, c, accumulate);
        }

        fn factors<'a>(values: &'a [f32], scale: f32, _: &'a mut [f32]) -> (&'a [f32], f32) {
            (values, scale)
        }
    }

    impl Summed for bf16 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(
            scale: f32,
            a: Matrix<'_, bf16>,
            b: Matrix<'_, bf16>,
            c: MatrixMut,
            accumulate: bool,
        ) {
            multiply_bf16(scale, a, b, c, accumulate);
        }

        fn factors<'a>(values: &'a [f32], scale: f32, room: &'a mut [f32]) -> (&'a [bf16], f32) {
            let rounded = &mut as_bf16(room)[..values.len()];
            round_scaled_to_bf16(values, scale, rounded);
            (rounded, 1.0)
        }
    }

    pub trait Written<T>: Sized {
        /// c = a b + bias, where the bias has an element for each column, or with `accumulate`, which goes without a
        /// bias, c += a b.
        #[expect(private_interfaces, reason = "nobody else has such numbers")]
        fn multiply(
            a: Matrix<'_, T>,
            b: Matrix<'_, T>,
            bias: Option<&[f32]>,
            c: MatrixMut<'_, Self>,
            accumulate: bool,
        );
    }

    impl<T: Factor> Written<T> for f32 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(
            a: Matrix<'_, T>,
            b: Matrix<'_, T>,
            bias: Option<&[f32]>,
            mut c: MatrixMut<'_>,
            accumulate: bool,
        ) {
            if let Some(bias) = bias {
                c.fill_rows(bias);
            }
            T::multiply(1.0, a, b, c, accumulate || bias.is_some());
        }
    }

    impl Written<bf16> for bf16 {
        #[expect(private_interfaces, reason = "as of the trait")]
        fn multiply(
            a: Matrix<'_, bf16>,
            b: Matrix<'_, bf16>,
            bias: Option<&[f32]>,
            c: MatrixMut<'_, bf16>,
            accumulate: bool,
        ) {
            multiply_to_bf16(a, b, bias, c, accumulate);
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
pub fn linear<T: Factor, R: Product<T>>(
    shape: Linear,
    x: &[T],
    w: &[T],
    bias: Option<&[f32]>,
    y: &mut [R],
) {
    shape.check(x.len(), w.len(), y.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias element for each output");
    let x = Matrix::new(x, rows, inputs, inputs);
    let y = MatrixMut::new(y, rows, outputs, outputs);
    R::multiply(x, shape.weight(w), bias, y, false);
}

/// Input gradient of [`linear`]: dx = dy w^T.
pub fn linear_input_grad<T: Factor, R: Product<T>>(
    shape: Linear,
    dy: &[T],
    w: &[T],
    dx: &mut [R],
    accumulate: bool,
) {
    shape.check(dx.len(), w.len(), dy.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    let dy = Matrix::new(dy, rows, outputs, outputs);
    let dx = MatrixMut::new(dx, rows, inputs, inputs);
    R::multiply(dy, shape.weight(w).transposed(), None, dx, accumulate);
}

/// Weight gradient of [`linear`]: dw = x^T dy, in the layout of the weight.
pub fn linear_weight_grad<T: Factor, R: Product<T>>(
    shape: Linear,
    x: &[T],
    dy: &[T],
    dw: &mut [R],
    accumulate: bool,
) {
    shape.check(x.len(), dw.len(), dy.len());
    let Linear { rows, inputs, outputs, .. } = shape;
    let x = Matrix::new(x, rows, inputs, inputs);
    let dy = Matrix::new(dy, rows, outputs, outputs);
    match shape.layout {
        WeightLayout::InputsByOutputs => {
            let dw = MatrixMut::new(dw, inputs, outputs, outputs);
            R::multiply(x.transposed(), dy, None, dw, accumulate);
        }
        WeightLayout::OutputsByInputs => {
            let dw = MatrixMut::new(dw, outputs, inputs, inputs);
            R::multiply(dy.transposed(), x, None, dw, accumulate);
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
