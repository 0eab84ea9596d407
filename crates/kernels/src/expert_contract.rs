//! The products of experts' rows, packed side by side, with a matrix of each expert.

use crate::matmul::{
    Factor, Linear, Product, WeightLayout, linear, linear_input_grad, linear_weight_grad,
};

/// The sizes of each expert's product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertContract {
    /// Columns of the rows.
    pub inputs: usize,
    /// Columns of the products.
    pub outputs: usize,
}

impl ExpertContract {
    /// For each expert its number, its first row and its product, where `counts [experts, samples]` rows are
    /// packed.
    fn each(self, experts: usize, counts: &[f32], mut visit: impl FnMut(usize, usize, Linear)) {
        let ExpertContract { inputs, outputs } = self;
        let mut first = 0;
        for (expert, counts) in counts.chunks_exact(counts.len() / experts).enumerate() {
            let rows = counts.iter().map(|&count| count as usize).sum();
            let layout = WeightLayout::InputsByOutputs;
            visit(expert, first, Linear { rows, inputs, outputs, layout });
            first += rows;
        }
    }

    fn experts(self, weights: usize) -> usize {
        weights / (self.inputs * self.outputs)
    }
}

/// y = x w for the rows of each expert.
pub fn expert_contract<T: Factor, R: Product<T>>(
    shape: ExpertContract,
    counts: &[f32],
    x: &[T],
    w: &[T],
    y: &mut [R],
) {
    let ExpertContract { inputs, outputs } = shape;
    shape.each(shape.experts(w.len()), counts, |expert, first, product| {
        let x = &x[first * inputs..][..product.rows * inputs];
        let w = &w[expert * inputs * outputs..][..inputs * outputs];
        let y = &mut y[first * outputs..][..product.rows * outputs];
        if product.rows > 0 {
            linear(product, x, w, None, y);
        }
    });
}

/// Input gradient of [`expert_contract`].
pub fn expert_contract_input_grad<T: Factor, R: Product<T>>(
    shape: ExpertContract,
    counts: &[f32],
    dy: &[T],
    w: &[T],
    dx: &mut [R],
    accumulate: bool,
) {
    let ExpertContract { inputs, outputs } = shape;
    shape.each(shape.experts(w.len()), counts, |expert, first, product| {
        let dy = &dy[first * outputs..][..product.rows * outputs];
        let w = &w[expert * inputs * outputs..][..inputs * outputs];
        let dx = &mut dx[first * inputs..][..product.rows * inputs];
        if product.rows > 0 {
            linear_input_grad(product, dy, w, dx, accumulate);
        }
    });
}

/// Weight gradient of [`expert_contract`]; zero for an expert without rows.
pub fn expert_contract_weight_grad<T: Factor, R: Product<T>>(
    shape: ExpertContract,
    counts: &[f32],
    x: &[T],
    dy: &[T],
    dw: &mut [R],
    accumulate: bool,
) {
    let ExpertContract { inputs, outputs } = shape;
    shape.each(shape.experts(dw.len()), counts, |expert, first, product| {
        let x = &x[first * inputs..][..product.rows * inputs];
        let dy = &dy[first * outputs..][..product.rows * outputs];
        let dw = &mut dw[expert * inputs * outputs..][..inputs * outputs];
        linear_weight_grad(product, x, dy, dw, accumulate);
    });
}
