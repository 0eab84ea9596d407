use shardloom_kernels::lstm::*;

use crate::oracle::{assert_close, check_destination, matmul, numbers, numeric_grad, widen};

/// The recurrence written out in double precision, one sample and one position after the other.
fn reference(shape: &Lstm, gates: &[f64], w: &[f64], projection: Option<&[f64]>) -> Vec<f64> {
    let Lstm { batch, seq, hidden, units, forget_bias } = *shape;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut all = vec![];
    for sample in 0..batch {
        let (mut y, mut cell) = (vec![0.0; units], vec![0.0; hidden]);
        for t in 0..seq {
            let mut z = gates[(sample * seq + t) * 4 * hidden..][..4 * hidden].to_vec();
            let recurrent = matmul(&y, w, 1, units, 4 * hidden);
            z.iter_mut().zip(recurrent).for_each(|(z, more)| *z += more);
            let mut output = vec![0.0; hidden];
            for cell_at in 0..hidden {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| z[gate * hidden + cell_at]);
                cell[cell_at] =
                    sigmoid(f + f64::from(forget_bias)) * cell[cell_at] + sigmoid(i) * g.tanh();
                output[cell_at] = sigmoid(o) * cell[cell_at].tanh();
            }
            y = match projection {
                Some(projection) => matmul(&output, projection, 1, hidden, units),
                None => output,
            };
            all.extend(&y);
        }
    }
    all
}

/// Operands of a recurrence, and what its passes give.
struct Case {
    shape: Lstm,
    gates: Vec<f32>,
    w: Vec<f32>,
    projection: Option<Vec<f32>>,
    dy: Vec<f32>,
}

struct Kept {
    y: Vec<f32>,
    activated: Vec<f32>,
    cell: Vec<f32>,
    output: Option<Vec<f32>>,
}

fn case(batch: usize, seq: usize, hidden: usize, units: Option<usize>) -> Case {
    let shape = Lstm { batch, seq, hidden, units: units.unwrap_or(hidden), forget_bias: 0.7 };
    Case {
        shape,
        gates: numbers(1, batch * seq * 4 * hidden),
        w: numbers(2, shape.units * 4 * hidden),
        projection: units.map(|units| numbers(3, hidden * units)),
        dy: numbers(4, batch * seq * shape.units),
    }
}

fn cases() -> Vec<Case> {
    vec![
        case(1, 1, 1, None),
        case(2, 1, 5, None),
        case(3, 4, 6, None),
        case(1, 7, 17, None),
        case(2, 3, 7, Some(4)),
        case(4, 5, 3, Some(5)),
        case(1, 1, 4, Some(2)),
    ]
}

impl Case {
    fn forward(&self) -> Kept {
        let Lstm { batch, seq, hidden, units, .. } = self.shape;
        let nan = |width: usize| vec![f32::NAN; batch * seq * width];
        let (mut y, mut activated, mut cell) = (nan(units), nan(4 * hidden), nan(hidden));
        let mut output = self.projection.as_ref().map(|_| nan(hidden));
        let (gates, w, projection) = (&self.gates, &self.w, self.projection.as_deref());
        let kept = output.as_deref_mut();
        lstm(&self.shape, gates, w, projection, &mut y, &mut activated, &mut cell, kept);
        Kept { y, activated, cell, output }
    }

    fn gate_gradient(&self, kept: &Kept) -> Vec<f32> {
        let mut dgates = vec![f32::NAN; self.gates.len()];
        let mut scratch = vec![f32::NAN; self.shape.input_grad_scratch()];
        let Kept { activated, cell, .. } = kept;
        let projection = self.projection.as_deref();
        let (w, dy) = (&self.w, &self.dy);
        let target = &mut dgates;
        lstm_input_grad(&self.shape, w, activated, cell, dy, projection, target, &mut scratch);
        dgates
    }

    fn reference(&self, gates: &[f64], w: &[f64], projection: Option<&[f64]>) -> Vec<f64> {
        reference(&self.shape, gates, w, projection)
    }

    fn widened(&self) -> (Vec<f64>, Vec<f64>, Option<Vec<f64>>) {
        (widen(&self.gates), widen(&self.w), self.projection.as_deref().map(widen))
    }
}

#[test]
fn results_are_those_of_the_recurrence_written_out() {
    for case in cases() {
        let (gates, w, projection) = case.widened();
        let want = case.reference(&gates, &w, projection.as_deref());
        assert_close(&case.forward().y, &want, 2e-6);
    }
}

/// What the LSTM operator of ONNX Runtime 1.32.0 (CPU) gives for these numbers, with gates as its input through an
/// identity, in its order input, output, forget, candidate, and the forget bias among its biases: by sample
/// and position, and the last cells.
#[test]
fn results_and_cells_are_those_of_onnx_runtime() {
    let case = case(2, 4, 3, None);
    let Kept { y, cell, .. } = case.forward();
    #[rustfmt::skip]
    let results = [
        0.101_666_354, -0.081_772_06, 0.243_288_58, 0.223_968_19, 0.070_135_07, 0.267_464_28,
        -0.058_929_63, -0.082_853_474, 0.048_400_47, -0.119_479_35, 0.042_992_54, 0.155_266_18,
        0.048_347_756, -0.225_549_76, 0.250_332_5, -0.055_500_567, -0.275_341_54, 0.119_496_97,
        -0.121_643_49, -0.139_553_79, -0.053_161_532, 0.043_969_173, -0.080_876_38, -0.073_923_36,
    ];
    assert_close(&y, &results, 3e-7);
    let last = [&cell[9..12], &cell[21..]].concat();
    let cells =
        [-0.332_725_88, 0.099_424_19, 0.341_794_85, 0.160_366_03, -0.294_866_6, -0.167_645_3];
    assert_close(&last, &cells, 3e-7);
}

#[test]
fn gradients_of_gates_and_weights_are_those_of_central_differences() {
    for case in cases() {
        let kept = case.forward();
        let (gates, w, projection) = case.widened();
        let dgates = case.gate_gradient(&kept);
        let of_gates = |x: &[f64]| case.reference(x, &w, projection.as_deref());
        assert_close(&dgates, &numeric_grad(of_gates, &case.gates, &case.dy), 5e-6);

        let of_weights = |x: &[f64]| case.reference(&gates, x, projection.as_deref());
        let want = numeric_grad(of_weights, &case.w, &case.dy);
        check_destination(&want, 1e-5, |dw, accumulate| {
            lstm_weight_grad(&case.shape, &kept.y, &dgates, dw, accumulate);
        });

        if let (Some(given), Some(output)) = (&case.projection, &kept.output) {
            let of_projection = |x: &[f64]| case.reference(&gates, &w, Some(x));
            let want = numeric_grad(of_projection, given, &case.dy);
            let mut scratch = vec![f32::NAN; case.shape.projection_grad_scratch()];
            check_destination(&want, 1e-5, |dp, accumulate| {
                let (shape, w, dy) = (&case.shape, &case.w, &case.dy);
                projection_grad(shape, &dgates, w, output, dy, dp, &mut scratch, accumulate);
            });
        }
    }
}

#[test]
fn samples_do_not_depend_on_those_beside_them() {
    let whole = case(3, 4, 6, None);
    let together = whole.forward().y;
    for sample in 0..3 {
        let gates = whole.gates[sample * 96..][..96].to_vec();
        let alone = Case { shape: Lstm { batch: 1, ..whole.shape }, gates, ..case(3, 4, 6, None) };
        assert_close(&alone.forward().y, &widen(&together[sample * 24..][..24]), 1e-6);
    }
}

#[test]
#[should_panic(expected = "weights and None of a projection")]
fn a_narrower_result_without_a_projection_is_refused() {
    let mut narrow = case(1, 2, 4, Some(2));
    narrow.projection = None;
    narrow.forward();
}
