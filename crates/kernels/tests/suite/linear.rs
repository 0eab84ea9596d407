use shardloom_kernels::matmul::{
    Linear, WeightLayout, bias_grad, linear, linear_input_grad, linear_weight_grad,
};

use crate::oracle::{assert_close, check_destination, matmul, numbers, transpose, widen};

const SIZES: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (3, 1, 17),
    (1, 17, 3),
    (17, 3, 1),
    (17, 33, 9),
    (5, 64, 130),
    (70, 257, 31),
    (128, 96, 200),
];

fn in_layout(w: &[f32], shape: Linear) -> Vec<f32> {
    match shape.layout {
        WeightLayout::InputsByOutputs => w.to_vec(),
        WeightLayout::OutputsByInputs => {
            transpose(&widen(w), shape.inputs, shape.outputs).iter().map(|&x| x as f32).collect()
        }
    }
}

#[test]
fn linear_and_its_gradients_match_plain_matrix_products_in_both_layouts() {
    for layout in [WeightLayout::InputsByOutputs, WeightLayout::OutputsByInputs] {
        for (rows, inputs, outputs) in SIZES {
            let shape = Linear { rows, inputs, outputs, layout };
            let x = numbers(1, rows * inputs);
            let w = numbers(2, inputs * outputs);
            let bias = numbers(3, outputs);
            let dy = numbers(4, rows * outputs);
            let (x64, w64, dy64) = (widen(&x), widen(&w), widen(&dy));
            let stored = in_layout(&w, shape);

            let plain = matmul(&x64, &w64, rows, inputs, outputs);
            let mut y = vec![f32::NAN; rows * outputs];
            linear(shape, &x, &stored, None, &mut y);
            assert_close(&y, &plain, 1e-5);
            y.fill(f32::NAN);
            linear(shape, &x, &stored, Some(&bias), &mut y);
            let biased: Vec<f64> =
                plain.iter().enumerate().map(|(i, y)| y + f64::from(bias[i % outputs])).collect();
            assert_close(&y, &biased, 1e-5);

            let dx = matmul(&dy64, &transpose(&w64, inputs, outputs), rows, outputs, inputs);
            check_destination(&dx, 1e-5, |dx, accumulate| {
                linear_input_grad(shape, &dy, &stored, dx, accumulate);
            });

            let dw = matmul(&transpose(&x64, rows, inputs), &dy64, inputs, rows, outputs);
            let dw = match layout {
                WeightLayout::InputsByOutputs => dw,
                WeightLayout::OutputsByInputs => transpose(&dw, inputs, outputs),
            };
            check_destination(&dw, 1e-5, |dw, accumulate| {
                linear_weight_grad(shape, &x, &dy, dw, accumulate);
            });

            let db = matmul(&vec![1.0; rows], &dy64, 1, rows, outputs);
            check_destination(&db, 1e-5, |db, accumulate| bias_grad(&dy, db, accumulate));
        }
    }
}

#[test]
fn a_linear_layer_without_inputs_gives_its_bias_and_zero_without_one() {
    let shape = Linear { rows: 2, inputs: 0, outputs: 2, layout: WeightLayout::InputsByOutputs };
    let mut y = [f32::NAN; 4];
    linear::<f32, f32>(shape, &[], &[], Some(&[1.0, 2.0]), &mut y);
    assert_eq!(y, [1.0, 2.0, 1.0, 2.0]);
    linear::<f32, f32>(shape, &[], &[], None, &mut y);
    assert_eq!(y, [0.0; 4]);
}

#[test]
fn a_column_sum_of_many_rows_loses_no_more_than_rounding() {
    let rows = 20_000;
    let dy = numbers(7, rows * 3);
    let want = matmul(&vec![1.0; rows], &widen(&dy), 1, rows, 3);
    let mut db = [0.0; 3];
    bias_grad(&dy, &mut db, false);
    for (got, want) in db.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() < 2e-3, "{got} for {want}");
    }
}
