use std::process::{Command, Output};

use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::tier::VARIABLE;
use shardloom_kernels::window::Window;
use shardloom_kernels::{
    Tier, activation, concat, interaction, layer_norm, lstm, reduce, rms_norm,
    sigmoid_cross_entropy,
};

use crate::oracle::numbers;

/// Runs this program's tests again with the kernels of `tier`.
fn rerun(tier: Tier, arguments: &[&str]) -> Output {
    let program = std::env::current_exe().expect("the system knows this program");
    let mut command = Command::new(program);
    command.args(arguments).env(VARIABLE, tier.name()).output().expect("this program runs again")
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn every_test_passes_on_every_tier_of_this_machine() {
    let selected = Tier::selected().expect("a tier of this machine");
    for tier in Tier::available().into_iter().filter(|&tier| tier != selected) {
        let output = rerun(tier, &["--skip", "tiers::every"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{tier}: {text}");
        assert!(text.contains("test linear::"), "{tier} ran no tests: {text}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn every_tier_of_this_machine_gives_the_same_bits() {
    let name = "tiers::bits_do_not_depend_on_the_call";
    let mut digests = vec![];
    for tier in Tier::available() {
        let output = rerun(tier, &["--exact", name, "--nocapture"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let digest = text.lines().find_map(|line| line.split_once(MARK));
        let (_, digest) = digest.unwrap_or_else(|| panic!("{tier}: {text}"));
        digests.push((tier, digest.to_owned()));
    }
    for (tier, digest) in &digests {
        assert_eq!(digest, &digests[0].1, "{tier} against {}", digests[0].0);
    }
}

const MARK: &str = "bits of this tier: ";

/// Also what each tier is asked by the test above.
#[test]
fn bits_do_not_depend_on_the_call() {
    let digest = digest();
    assert_eq!(digest, self::digest());
    println!("{MARK}{digest:016x}");
}

/// What elementwise functions, sums in rows and columns and random numbers come to; matrix products
/// are free to add in another order.
fn digest() -> u64 {
    const ROWS: usize = 19;
    const COLUMNS: usize = 77;
    let x = numbers(1, ROWS * COLUMNS);
    let (gain, bias, dy) = (numbers(2, COLUMNS), numbers(3, COLUMNS), numbers(4, x.len()));
    let mut results = vec![];
    let mut result = |len: usize, fill: &mut dyn FnMut(&mut [f32])| {
        let mut y = vec![0.0; len];
        fill(&mut y);
        results.extend(y.iter().map(|y| y.to_bits()));
        y
    };
    result(x.len(), &mut |y| activation::gelu(&x, y));
    result(x.len(), &mut |y| activation::swiglu(&x, &dy, y));
    result(x.len(), &mut |y| activation::geglu(&x, &dy, y));
    result(x.len(), &mut |dgate| {
        let mut dup = vec![0.0; dgate.len()];
        activation::geglu_input_grad(&x, &dy, &dy, dgate, &mut dup, false, false);
    });
    let mut stats = vec![0.0; ROWS];
    result(x.len(), &mut |y| rms_norm::rms_norm(&x, &gain, 1.0, 1e-5, y, &mut stats));
    result(x.len(), &mut |dx| {
        rms_norm::rms_norm_input_grad(&x, &gain, 1.0, &stats, &dy, dx, false);
    });
    result(2 * x.len(), &mut |y| concat::concat(&[&x, &dy], ROWS, y));
    result(x.len(), &mut |dx| {
        concat::concat_input_grad(&[&x[..], &dy].concat(), ROWS, COLUMNS, dx, false);
    });
    let mut stats = vec![0.0; 2 * ROWS];
    result(x.len(), &mut |y| layer_norm::layer_norm(&x, &gain, &bias, 1e-5, y, &mut stats));
    result(x.len(), &mut |y| {
        layer_norm::layer_norm_input_grad(&x, &gain, &stats, &dy, y, false);
    });
    let mut dbias = vec![0.0; COLUMNS];
    result(COLUMNS, &mut |dgain| {
        layer_norm::layer_norm_weight_grad(&x, &stats, &dy, dgain, &mut dbias, [false; 2]);
    });
    let parts = [&x[..], &dy, &x];
    result(3 * ROWS, &mut |y| interaction::dot_interaction(&parts, COLUMNS, false, y));
    result(x.len(), &mut |dx| {
        let dy = &dy[..3 * ROWS];
        interaction::dot_interaction_input_grad(&parts, COLUMNS, false, dy, 2, dx, false);
    });
    // A single position has no product.
    let hidden = 11;
    let batch = x.len() / (4 * hidden);
    let shape = lstm::Lstm { batch, seq: 1, hidden, units: hidden, forget_bias: 1.0 };
    let (gates, w) = (&x[..batch * 4 * hidden], vec![0.5; hidden * 4 * hidden]);
    let [mut cell, mut activated] = [vec![0.0; batch * hidden], vec![0.0; gates.len()]];
    result(cell.len(), &mut |y| {
        lstm::lstm(&shape, gates, &w, None, y, &mut activated, &mut cell, None);
    });
    result(gates.len(), &mut |dx| {
        let mut scratch = vec![0.0; shape.input_grad_scratch()];
        let dy = &dy[..batch * hidden];
        lstm::lstm_input_grad(&shape, &w, &activated, &cell, dy, None, dx, &mut scratch);
    });
    let targets = vec![1; x.len()];
    result(x.len(), &mut |dx| {
        sigmoid_cross_entropy::logits_grad(&x, &targets, 0.5, dx, false);
    });
    let key = Key { seed: 1, stream: 2, step: 3 };
    result(x.len(), &mut |y| normal_fill(key, &Window::whole(&[y.len()]), 0.5, 2.0, y));
    results.push(reduce::squared_norm(&x).to_bits() as u32);
    // FNV-1a, by words.
    let step = |hash: u64, &word: &u32| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    results.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
