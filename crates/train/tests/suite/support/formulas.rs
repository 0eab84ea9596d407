//! Optimizers' formulas, element by element.

use shardloom_plan::Optimizer;

/// Updates a weight and its moments with a gradient, the `number`-th time, counted from 1.
pub fn update(
    optimizer: Optimizer,
    (rate, decays, number): (f32, bool, f64),
    [w, m, v]: [&mut f32; 3],
    g: f32,
) {
    match optimizer {
        Optimizer::Sgd { momentum: 0.0, .. } => *w -= rate * g,
        Optimizer::Sgd { momentum, .. } => {
            *m = (momentum as f32).mul_add(*m, g);
            *w -= rate * *m;
        }
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } => {
            let decay = if decays { weight_decay as f32 } else { 0.0 };
            let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(|it| it as f32);
            let filled = |beta: f32| (1.0 - f64::from(beta).powf(number)) as f32;
            *m = beta1.mul_add(*m, (1.0 - beta1) * g);
            *v = beta2.mul_add(*v, (1.0 - beta2) * g * g);
            let root = v.sqrt().mul_add(1.0 / filled(beta2).sqrt(), epsilon);
            *w = (1.0 - rate * decay) * *w - rate / filled(beta1) * *m / root;
        }
        _ => unreachable!("these are tested"),
    }
}
