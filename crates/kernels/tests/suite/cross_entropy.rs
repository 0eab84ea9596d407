use shardloom_kernels::cross_entropy::*;
use shardloom_kernels::reduce::{max_into, sum_into};

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

const SIZES: [(usize, usize); 5] = [(1, 1), (3, 17), (5, 8), (1, 40), (9, 33)];

fn loss_exact(logits: &[f64], targets: &[u32]) -> f64 {
    let columns = logits.len() / targets.len();
    logits
        .chunks(columns)
        .zip(targets)
        .map(|(row, &target)| row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[target as usize])
        .sum()
}

fn targets(rows: usize, columns: usize) -> Vec<u32> {
    (0..rows).map(|row| (row * 7 % columns) as u32).collect()
}

#[test]
fn the_phases_in_turn_give_the_loss_and_its_gradient() {
    for (rows, columns) in SIZES {
        let logits: Vec<f32> = numbers(1, rows * columns).iter().map(|x| 8.0 * x).collect();
        let targets = targets(rows, columns);
        let [mut m, mut z, mut t] = std::array::from_fn(|_| vec![f32::NAN; rows]);
        logit_max(&logits, Entries::ALL, &mut m);
        logit_sum(&logits, &m, &targets, Entries::ALL, &mut z, &mut t);
        let want = loss_exact(&widen(&logits), &targets);
        assert!((loss(&z, &t) - want).abs() < 1e-5 * (1.0 + want), "{} for {want}", loss(&z, &t));

        let grad = numeric_grad(|logits| vec![loss_exact(logits, &targets)], &logits, &[0.5]);
        check_destination(&grad, 1e-5, |dlogits, accumulate| {
            logits_grad(&logits, &m, &z, &targets, Entries::ALL, 0.5, dlogits, accumulate);
        });
    }
}

#[test]
fn huge_logits_do_not_overflow() {
    let logits = [1e4, 0.0, -1e4];
    let (mut m, mut z, mut t) = ([0.0], [0.0], [0.0]);
    logit_max(&logits, Entries::ALL, &mut m);
    logit_sum(&logits, &m, &[1], Entries::ALL, &mut z, &mut t);
    assert_eq!(loss(&z, &t), 1e4);
}

#[test]
fn splitting_the_vocabulary_changes_neither_loss_nor_gradient() {
    let (rows, columns, cut) = (6, 29, 11);
    let logits: Vec<f32> = numbers(1, rows * columns).iter().map(|x| 8.0 * x).collect();
    let targets = targets(rows, columns);
    let part = |from: usize, to: usize| -> Vec<f32> {
        logits.chunks(columns).flat_map(|row| row[from..to].to_vec()).collect()
    };
    let parts = [(0, part(0, cut)), (cut, part(cut, columns))];

    let mut m = vec![f32::NEG_INFINITY; rows];
    for (_, logits) in &parts {
        let mut local = vec![0.0; rows];
        logit_max(logits, Entries::ALL, &mut local);
        max_into(&mut m, &local);
    }
    let (mut z, mut t) = (vec![0.0; rows], vec![0.0; rows]);
    for (first, logits) in &parts {
        let entries = Entries { first: *first, classes: None };
        let (mut local_z, mut local_t) = (vec![0.0; rows], vec![0.0; rows]);
        logit_sum(logits, &m, &targets, entries, &mut local_z, &mut local_t);
        sum_into(&mut z, &local_z);
        sum_into(&mut t, &local_t);
    }
    let want = loss_exact(&widen(&logits), &targets);
    assert!((loss(&z, &t) - want).abs() < 1e-5 * want);

    let grad = numeric_grad(|logits| vec![loss_exact(logits, &targets)], &logits, &[1.0]);
    let widths = [cut, columns - cut];
    for ((start, logits), width) in parts.iter().zip(widths) {
        let entries = Entries { first: *start, classes: None };
        let mut dlogits = vec![0.0; logits.len()];
        logits_grad(logits, &m, &z, &targets, entries, 1.0, &mut dlogits, false);
        let want: Vec<f64> =
            grad.chunks(columns).flat_map(|row| row[*start..start + width].to_vec()).collect();
        assert_close(&dlogits, &want, 1e-5);
    }
}

#[test]
fn logits_far_below_zero_are_taken_from_their_own_maximum() {
    let logits = [-1e4; 3];
    let (mut m, mut z, mut t) = ([0.0], [0.0], [0.0]);
    logit_max(&logits, Entries::ALL, &mut m);
    assert_eq!(m, [-1e4]);
    logit_sum(&logits, &m, &[1], Entries::ALL, &mut z, &mut t);
    assert!((loss(&z, &t) - 3f64.ln()).abs() < 1e-6, "{} for ln 3", loss(&z, &t));
    let mut gradient = [0.0; 3];
    logits_grad(&logits, &m, &z, &[1], Entries::ALL, 1.0, &mut gradient, false);
    assert_close(&gradient, &[1.0 / 3.0, -2.0 / 3.0, 1.0 / 3.0], 1e-6);
}

/// Whatever logits stand there: rows of padding have weights, too. One rank has nothing else.
#[test]
fn padding_has_no_part_in_loss_and_gradient() {
    let (rows, classes, width) = (5, 13, 6);
    let real: Vec<f32> = numbers(1, rows * classes).iter().map(|x| 8.0 * x).collect();
    let targets = targets(rows, classes);
    let gradient = numeric_grad(|logits| vec![loss_exact(logits, &targets)], &real, &[1.0]);
    let at = |row: usize, entry: usize| match entry < classes {
        true => real[row * classes + entry],
        false => [1e4, f32::INFINITY, f32::NAN][entry % 3],
    };
    let held = |first: usize| -> Vec<f32> {
        (0..rows * width).map(|it| at(it / width, first + it % width)).collect()
    };
    let parts = [0, width, 2 * width, 3 * width]
        .map(|first| (Entries { first, classes: Some(classes) }, held(first)));

    let [mut m, mut z, mut t] = [f32::NEG_INFINITY, 0.0, 0.0].map(|start| vec![start; rows]);
    for (entries, logits) in &parts {
        let mut local = vec![f32::NAN; rows];
        logit_max(logits, *entries, &mut local);
        max_into(&mut m, &local);
    }
    for (entries, logits) in &parts {
        let (mut local_z, mut local_t) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
        logit_sum(logits, &m, &targets, *entries, &mut local_z, &mut local_t);
        sum_into(&mut z, &local_z);
        sum_into(&mut t, &local_t);
    }
    let want = loss_exact(&widen(&real), &targets);
    assert!((loss(&z, &t) - want).abs() < 1e-5 * want, "{} for {want}", loss(&z, &t));

    for (entries, logits) in &parts {
        let want = (0..rows * width).map(|it| match entries.first + it % width {
            entry if entry < classes => gradient[it / width * classes + entry],
            _ => 0.0,
        });
        check_destination(&Vec::from_iter(want), 1e-5, |dlogits, accumulate| {
            logits_grad(logits, &m, &z, &targets, *entries, 1.0, dlogits, accumulate);
        });
    }
}
