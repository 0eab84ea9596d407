//! Stochastic rounding to bfloat16.

use half::bf16;
use shardloom_kernels::optimizer::{Block, Piece};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Format, Memory, processor};

const KEY: Key = Key { seed: 5, stream: 7, step: 11 };

fn rounded(key: Key, piece: &Piece, values: &[f32]) -> Vec<bf16> {
    let device = processor();
    let memory = Memory::new(processor());
    let mut from = memory.alloc(Format::F32, values.len());
    device.set_reals(values, from.view_mut());
    let mut to = memory.alloc(Format::Bf16, values.len());
    device.round_stochastically(from.view(), to.view_mut(), key, piece);
    device.reals(to.view()).into_iter().map(bf16::from_f32).collect()
}

#[test]
fn a_number_becomes_either_neighbour_with_the_mean_of_itself() {
    const COUNT: usize = 40_000;
    let piece = Piece::whole(200, COUNT / 200);
    // Between 1 and 1 + 2^-7, below zero, and below the smallest normal number.
    for value in [1.0 + 0.3 / 128.0, -3.01, 3e-40_f32] {
        let all = rounded(KEY, &piece, &vec![value; COUNT]);
        let low = f32::from_bits(value.to_bits() & 0xffff_0000);
        let high = f32::from_bits((value.to_bits() & 0xffff_0000) + 0x1_0000);
        assert!(all.iter().all(|it| [low, high].contains(&it.to_f32())));
        let share = all.iter().filter(|it| it.to_f32() == high).count() as f64 / COUNT as f64;
        let expected = f64::from(value - low) / f64::from(high - low);
        // Five standard deviations.
        let most = 5.0 * (expected * (1.0 - expected) / COUNT as f64).sqrt();
        assert!((share - expected).abs() < most, "{share} for {expected} of {value}");
    }
}

#[test]
fn what_is_bfloat16_stays_and_what_is_no_number_stays_none() {
    let kept = [0.0, -0.0, 1.0, -2.5, f32::INFINITY, f32::NEG_INFINITY, 1e-40_f32];
    let kept = kept.map(bf16::from_f32);
    let values: Vec<f32> = kept.iter().map(|it| it.to_f32()).collect();
    for step in 0..50 {
        let found = rounded(Key { step, ..KEY }, &Piece::whole(1, values.len()), &values);
        assert!(found.iter().zip(&kept).all(|(one, other)| one.to_bits() == other.to_bits()));
    }
    let nans = [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)];
    assert!(rounded(KEY, &Piece::whole(1, 3), &nans).iter().all(|it| it.is_nan()));
    let found = rounded(KEY, &Piece::whole(1, 64), &[f32::MAX; 64]);
    assert!(found.iter().all(|it| *it == bf16::MAX || *it == bf16::INFINITY));
}

#[test]
fn which_neighbour_it_is_follows_from_where_the_element_is_in_the_whole() {
    let (rows, cols) = (24, 300);
    let values: Vec<f32> = (0..rows * cols).map(|it| 1.0 + it as f32 * 1.7e-5).collect();
    let whole = rounded(KEY, &Piece::whole(rows, cols), &values);
    // A block of some rows and columns, of which a range is owned that begins within a row.
    let block = Block {
        global_rows: rows,
        global_cols: cols,
        row_start: 8,
        col_start: 100,
        rows: 8,
        cols: 150,
    };
    let range = 70..1100;
    let place = |at: usize| (8 + at / 150) * cols + 100 + at % 150;
    let own: Vec<f32> = range.clone().map(|at| values[place(at)]).collect();
    let found = rounded(KEY, &Piece { block, range: range.clone() }, &own);
    let expected: Vec<bf16> = range.map(|at| whole[place(at)]).collect();
    assert_eq!(found, expected);
    for key in [Key { seed: 6, ..KEY }, Key { stream: 8, ..KEY }, Key { step: 12, ..KEY }] {
        assert_ne!(rounded(key, &Piece::whole(rows, cols), &values), whole);
    }
}
