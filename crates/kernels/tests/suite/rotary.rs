use shardloom_kernels::rotary::*;

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

const THETA: f64 = 10_000.0;

/// Hugging Face's `rotate_half` form of the first `width` elements of a head: x cos + rotate_half(x) sin.
fn rotate_exact(x: &[f64], positions: usize, heads: Heads, width: usize, first: usize) -> Vec<f64> {
    (0..x.len())
        .map(|i| {
            let (e, head_start) = (i % heads.width, i - i % heads.width);
            if e >= width {
                return x[i];
            }
            let position = first + i / (heads.count * heads.width) % positions;
            let half = width / 2;
            let angle = position as f64 * THETA.powf(-((e % half) as f64) / half as f64);
            let other = if e < half { -x[head_start + e + half] } else { x[head_start + e - half] };
            x[i] * angle.cos() + other * angle.sin()
        })
        .collect()
}

#[test]
fn rotation_and_its_gradient_match() {
    for (batch, positions, count, head_dim, width, first) in [
        (1, 1, 1, 2, 2, 0),
        (2, 3, 1, 6, 6, 0),
        (1, 4, 3, 2, 2, 5),
        (2, 2, 2, 34, 34, 100),
        (2, 3, 2, 10, 4, 1),
        (1, 2, 3, 5, 4, 0),
    ] {
        let heads = Heads { count, width: head_dim };
        let table = RotaryTable::new(width, THETA, None, first, positions);
        let x = numbers(1, batch * positions * count * head_dim);
        let exact = |x: &[f64]| rotate_exact(x, positions, heads, width, first);
        let mut y = vec![f32::NAN; x.len()];
        rotate(&x, heads, &table, &mut y);
        assert_close(&y, &exact(&widen(&x)), 1e-6);

        let dy = numbers(2, x.len());
        let want = numeric_grad(exact, &x, &dy);
        check_destination(&want, 1e-6, |dx, accumulate| {
            rotate_input_grad(&dy, heads, &table, dx, accumulate);
        });
    }
}

#[test]
fn a_later_first_position_continues_the_sequence() {
    let (count, head_dim) = (2, 8);
    let heads = Heads { count, width: head_dim };
    let x = numbers(1, 6 * count * head_dim);
    let mut whole = vec![0.0; x.len()];
    rotate(&x, heads, &RotaryTable::new(head_dim, THETA, None, 0, 6), &mut whole);
    let mut tail = vec![0.0; 2 * count * head_dim];
    let table = RotaryTable::new(head_dim, THETA, None, 4, 2);
    rotate(&x[4 * count * head_dim..], heads, &table, &mut tail);
    assert_eq!(tail, whole[4 * count * head_dim..]);
}

/// The turn per position of each pair, read back from how a unit vector turns.
fn turns(scaling: Option<Scaling>) -> Vec<f64> {
    let table = RotaryTable::new(128, 500_000.0, scaling, 1, 1);
    let unit: Vec<f32> = (0..128).map(|e| if e < 64 { 1.0 } else { 0.0 }).collect();
    let mut y = vec![0.0; 128];
    rotate(&unit, Heads { count: 1, width: 128 }, &table, &mut y);
    (0..64).map(|j| f64::from(y[j + 64]).atan2(f64::from(y[j]))).collect()
}

fn llama_3_scaling(factor: f64) -> Scaling {
    Scaling::ByWavelength {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    }
}

#[test]
fn a_shared_table_turns_by_its_own_arguments_whatever_was_asked_for_before() {
    let x = numbers(1, 3 * 64);
    let [some, more] = [8.0, 32.0].map(|factor| Some(llama_3_scaling(factor)));
    for (theta, scaling, first) in [
        (THETA, None, 1),
        (THETA, some, 1),
        (THETA, more, 1),
        (500_000.0, more, 1),
        (THETA, Some(Scaling::Linear { factor: 8.0 }), 1),
        (THETA, None, 7),
        (THETA, None, 1),
    ] {
        let turned = |table: &RotaryTable| {
            let mut y = vec![0.0; x.len()];
            rotate(&x, Heads { count: 1, width: 64 }, table, &mut y);
            y
        };
        let own = RotaryTable::new(64, theta, scaling, first, 3);
        let shared = RotaryTable::shared(64, theta, scaling, first, 3);
        assert_eq!(turned(&shared), turned(&own), "{theta}, {scaling:?}, from {first}");
    }
}

#[test]
fn llama_3_scaling_keeps_high_frequencies_and_divides_low_ones() {
    let scaling = llama_3_scaling(8.0);
    let (plain, scaled) = (turns(None), turns(Some(scaling)));
    for (&plain, &scaled) in plain.iter().zip(&scaled) {
        let turns = 8192.0 * plain / std::f64::consts::TAU;
        let want = if turns > 4.0 {
            plain
        } else if turns < 1.0 {
            plain / 8.0
        } else {
            // Transformers: (1 - smooth) f / factor + smooth f.
            let smooth = (turns - 1.0) / 3.0;
            (1.0 - smooth) * plain / 8.0 + smooth * plain
        };
        assert!((scaled - want).abs() < 1e-6 * want, "{scaled} for {want} at {turns} turns");
    }
    assert!(plain.iter().zip(&scaled).any(|(p, s)| (p / s - 8.0).abs() < 1e-4));
    assert!(plain.iter().zip(&scaled).any(|(p, s)| p == s));
}

#[test]
fn linear_scaling_divides_all_frequencies() {
    let (plain, scaled) = (turns(None), turns(Some(Scaling::Linear { factor: 8.0 })));
    for (plain, scaled) in plain.iter().zip(&scaled) {
        assert!((8.0 * scaled - plain).abs() < 1e-6 * plain, "{scaled} for {plain}");
    }
}
