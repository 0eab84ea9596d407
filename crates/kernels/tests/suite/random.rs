use proptest::prelude::*;
use shardloom_kernels::random::*;
use shardloom_kernels::window::{Window, cut_box};
use smallvec::smallvec;

const KEY: Key = Key { seed: 42, stream: 7, step: 3 };

fn windows() -> impl Strategy<Value = Window> {
    prop::collection::vec((1..40usize, 0..10usize, 0..10usize), 1..=3).prop_map(|axes| Window {
        extent: axes.iter().map(|a| a.0).collect(),
        start: axes.iter().map(|a| a.1).collect(),
        global: axes.iter().map(|a| a.0 + a.1 + a.2).collect(),
    })
}

/// The window's elements by filling it, and by cutting it out of the filled whole.
fn both<T: Copy + Default>(window: &Window, fill: impl Fn(&Window, &mut [T])) -> (Vec<T>, Vec<T>) {
    let mut direct = vec![T::default(); window.elements()];
    fill(window, &mut direct);
    let whole = Window::whole(&window.global);
    let mut filled = vec![T::default(); whole.elements()];
    fill(&whole, &mut filled);
    let mut cut = vec![T::default(); window.elements()];
    cut_box(&filled, &window.global, &window.start, &mut cut, &window.extent);
    (direct, cut)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_box_of_a_filled_tensor_is_the_filled_box(window in windows()) {
        let (direct, cut) = both(&window, |w, out| dropout_mask(KEY, w, 0.3, out));
        prop_assert_eq!(direct, cut);
        let (direct, cut) = both(&window, |w, out| normal_fill(KEY, w, 1.0, 2.0, out));
        prop_assert_eq!(direct, cut);
        let (direct, cut) = both(&window, |w, out| uniform_fill(KEY, w, -1.0, 1.0, out));
        prop_assert_eq!(direct, cut);
    }
}

#[test]
fn a_mask_drops_its_share() {
    let n = 100_000;
    for probability in [0.0, 0.1, 0.5, 0.9, 1.0] {
        let mut mask = vec![2; n];
        dropout_mask(KEY, &Window::whole(&[n]), probability, &mut mask);
        assert!(mask.iter().all(|&m| m <= 1));
        let dropped = mask.iter().filter(|&&m| m == 0).count() as f64 / n as f64;
        // Four standard deviations.
        let bound =
            4.0 * (f64::from(probability) * (1.0 - f64::from(probability)) / n as f64).sqrt();
        assert!((dropped - f64::from(probability)).abs() <= bound, "{dropped} of {probability}");
    }
}

#[test]
fn factors_are_those_of_the_mask() {
    let window = Window {
        extent: [2, 3, 70].into_iter().collect(),
        start: [1, 0, 5].into_iter().collect(),
        global: [4, 3, 80].into_iter().collect(),
    };
    let key = Key { seed: 1, stream: 2, step: 3 };
    let (mut mask, mut factors) = (vec![0; 420], vec![f32::NAN; 420]);
    for probability in [0.0, 0.2] {
        dropout_mask(key, &window, probability, &mut mask);
        dropout_factors(key, &window, probability, &mut factors);
        let kept = 1.0 / (1.0 - probability);
        let expected: Vec<f32> = mask.iter().map(|&it| f32::from(it) * kept).collect();
        assert_eq!(factors, expected);
    }
}

#[test]
fn seed_stream_and_step_each_change_the_numbers() {
    let fill = |key| {
        let mut out = vec![0.0; 200];
        uniform_fill(key, &Window::whole(&[200]), 0.0, 1.0, &mut out);
        out
    };
    let base = fill(KEY);
    assert_eq!(base, fill(KEY));
    for key in [
        Key { seed: 43, ..KEY },
        Key { stream: 8, ..KEY },
        Key { step: 4, ..KEY },
        Key { step: KEY.stream, stream: KEY.step, ..KEY },
    ] {
        let same = base.iter().zip(fill(key)).filter(|(a, b)| **a == *b).count();
        assert!(same <= 1, "{key:?} repeats {same} of 200 numbers");
    }
}

#[test]
fn elements_beyond_the_32_bit_range_have_their_own_numbers() {
    let at = |start: usize| {
        let window =
            Window { extent: smallvec![64], start: smallvec![start], global: smallvec![1 << 42] };
        let mut out = vec![0.0; 64];
        uniform_fill(KEY, &window, 0.0, 1.0, &mut out);
        out
    };
    // One period of the low counter word apart.
    assert_ne!(at(0), at(1 << 34));
    assert_ne!(at(0), at(1 << 32));
}

#[test]
fn normal_and_uniform_numbers_have_the_right_moments() {
    let n = 200_000;
    let moments = |x: &[f32], power: i32| {
        x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / x.len() as f64
    };
    let mut x = vec![0.0; n];
    normal_fill(KEY, &Window::whole(&[n]), 0.0, 1.0, &mut x);
    // Four standard errors of each moment of a normal distribution.
    for (power, want, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
        let bound = 4.0 * f64::sqrt(variance / n as f64);
        let got = moments(&x, power);
        assert!((got - want).abs() < bound, "moment {power} is {got}");
    }
    assert!(x.iter().all(|x| x.is_finite()));
    // Elements 16 apart come from one pair of words.
    let pairs = x.windows(17).map(|w| f64::from(w[0]) * f64::from(w[16])).sum::<f64>();
    assert!((pairs / n as f64).abs() < 4.0 / (n as f64).sqrt());

    uniform_fill(KEY, &Window::whole(&[n]), 2.0, 4.0, &mut x);
    assert!(x.iter().all(|x| (2.0..4.0).contains(x)));
    assert!((moments(&x, 1) - 3.0).abs() < 4.0 * (1.0 / 3.0 / n as f64).sqrt());
}
