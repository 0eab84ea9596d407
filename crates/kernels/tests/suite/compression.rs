//! Compressors against what they are by definition, and how much they may leave out.

use proptest::prelude::*;
use shardloom_kernels::compression::{Factors, Matrix, Shares, Step, one_bit, top_k};
use shardloom_kernels::{Format, Memory, processor};

fn squares(values: &[f32]) -> f64 {
    values.iter().map(|&it| f64::from(it).powi(2)).sum()
}

fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * next() * next()).collect()
}

fn matrix(offset: usize, rows: usize, columns: usize) -> Matrix {
    Matrix { offset, rows, columns }
}

/// Sends the rows of a matrix of so many columns, and what they are for who gets them.
fn by_sign(gradients: &[f32], columns: usize, residual: &mut [f32]) -> Vec<f32> {
    let rows = gradients.len() / columns;
    let shares: Shares = [[matrix(0, rows, columns)].into()].into();
    let mut signs = vec![7; rows * (8 + columns.div_ceil(8))];
    one_bit::signs(&shares, gradients, &mut signs, residual);
    let mut found = vec![f32::NAN; gradients.len()];
    one_bit::from_signs(&shares, &signs, &mut found);
    found
}

fn by_size(gradients: &[f32], count: usize, residual: &mut [f32]) -> Vec<f32> {
    let mut words = vec![7; 2 * count];
    top_k::largest(gradients, &mut words, residual);
    let mut found = vec![f32::NAN; gradients.len()];
    top_k::from_largest(&words, 1, &mut found);
    found
}

proptest! {
    #[test]
    fn the_largest_are_those_of_a_sorted_list(
        gradients in prop::collection::vec(
            prop_oneof![-2.0f32..2.0, Just(0.5), Just(-0.5), Just(0.0), Just(1e-42), Just(f32::MAX)],
            1..400,
        ),
        share in 1usize..=400,
    ) {
        let count = share.min(gradients.len());
        let mut order: Vec<usize> = (0..gradients.len()).collect();
        order.sort_by(|&one, &other| gradients[other].abs().total_cmp(&gradients[one].abs()));
        let mut expected = vec![0.0; gradients.len()];
        order[..count].iter().for_each(|&at| expected[at] = gradients[at]);
        let mut residual = vec![0.0; gradients.len()];
        prop_assert_eq!(&by_size(&gradients, count, &mut residual), &expected);
        let left: Vec<f32> = gradients.iter().zip(&expected).map(|(one, other)| one - other).collect();
        prop_assert_eq!(residual, left);
    }

    #[test]
    fn two_means_by_sign_are_the_nearest_two_numbers(
        gradients in prop::collection::vec(-2.0f32..2.0, 60),
        columns in prop::sample::select(vec![1, 2, 3, 10, 12, 30, 60]),
        other in (-2.0f32..2.0, -2.0f32..2.0),
    ) {
        let mut residual = vec![0.0; gradients.len()];
        let found = by_sign(&gradients, columns, &mut residual);
        for (row, found) in gradients.chunks(columns).zip(found.chunks(columns)) {
            let error = |of: &dyn Fn(usize) -> f32| -> f64 {
                (0..row.len()).map(|at| f64::from(row[at] - of(at)).powi(2)).sum()
            };
            let own = error(&|at| found[at]);
            let others = error(&|at| if row[at] < 0.0 { other.0 } else { other.1 });
            prop_assert!(own <= others * (1.0 + 1e-5) + 1e-10, "{own} for {others}");
        }
    }
}

/// Error feedback leaves out at most so much after any number of steps (Karimireddy et al. 2019, lemma 3, for
/// a compressor that leaves out at most `1 - delta` of a sum of squares): the root of `1 - delta` of the largest
/// gradient's norm, over and over.
fn bound(delta: f64, largest: f64) -> f64 {
    let kept = (1.0 - delta).sqrt();
    kept / (1.0 - kept) * largest
}

/// The same direction again and again, and something of the step's own.
fn gradients(step: u32, elements: usize) -> Vec<f32> {
    let mut gradients = values(1, elements);
    for (gradient, own) in gradients.iter_mut().zip(values(step + 2, elements)) {
        *gradient = 0.3 * *gradient + own;
    }
    gradients
}

#[test]
fn what_is_left_out_is_bounded_and_nothing_is_lost() {
    const ELEMENTS: usize = 3000;
    const STEPS: u32 = 200;
    type Compress<'a> = &'a dyn Fn(&[f32], &mut [f32]) -> Vec<f32>;
    let by_tenths: Compress<'_> = &|part, residual| by_size(part, ELEMENTS / 10, residual);
    // Of a row of n elements at least the n-th part of the squares is sent.
    let signs: Compress<'_> = &|part, residual| by_sign(part, 100, residual);
    for (compress, delta) in [(by_tenths, 0.1), (signs, 1.0 / 100.0)] {
        let mut residual = vec![0.0; ELEMENTS];
        let (mut sent, mut all) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
        let mut largest: f64 = 0.0;
        for step in 0..STEPS {
            let gradients = gradients(step, ELEMENTS);
            largest = largest.max(squares(&gradients).sqrt());
            let before: Vec<f32> =
                residual.iter().zip(&gradients).map(|(one, other)| one + other).collect();
            let found = compress(&gradients, &mut residual);
            let kept = squares(&residual);
            assert!(kept <= (1.0 - delta) * squares(&before) * (1.0 + 1e-6), "a contraction");
            assert!(kept.sqrt() <= bound(delta, largest), "{} at step {step}", kept.sqrt());
            for at in 0..ELEMENTS {
                sent[at] += f64::from(found[at]);
                all[at] += f64::from(gradients[at]);
            }
        }
        for at in 0..ELEMENTS {
            let lost = all[at] - sent[at] - f64::from(residual[at]);
            assert!(lost.abs() < 1e-4, "{lost} of element {at}");
        }
    }
}

/// Half of what the last binary digit of a number counts, with so many behind the point and no less than in the least
/// number.
fn half_a_unit(number: f32, digits: i32, least: i32) -> f64 {
    let exponent = (number.abs().to_bits() >> 23) as i32 - 127;
    2f64.powi((exponent - digits).max(least) - 1)
}

/// Also of numbers of which fp16 has only the last digit, or not even that.
#[test]
fn what_rounding_leaves_out_is_at_most_half_a_unit_in_the_last_place_and_nothing_is_lost() {
    const ELEMENTS: usize = 3000;
    const STEPS: u32 = 200;
    let (device, memory) = (processor(), Memory::new(processor()));
    for (format, digits, least) in [(Format::Bf16, 7, -133), (Format::F16, 10, -24)] {
        let mut rounded = memory.alloc(format, ELEMENTS);
        let mut lent = [(); 2].map(|()| memory.alloc(Format::F32, ELEMENTS));
        let mut residual = vec![0.0_f32; ELEMENTS];
        let (mut sent, mut all) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
        // How far sums of residuals and gradients, which are fp32, were rounded.
        let mut additions = vec![0.0; ELEMENTS];
        let mut most = vec![0.0; ELEMENTS];
        for step in 0..STEPS {
            let mut gradients = gradients(step, ELEMENTS);
            gradients.iter_mut().step_by(3).for_each(|it| *it *= 1e-7);
            device.set_reals(&gradients, lent[0].view_mut());
            device.set_reals(&residual, lent[1].view_mut());
            let [gradient, kept] = &mut lent;
            let writes = &mut [rounded.view_mut(), kept.view_mut()];
            device.compress(&Step::Round, &[gradient.view()], writes);
            let (found, kept) = (device.reals(rounded.view()), device.reals(kept.view()));
            for at in 0..ELEMENTS {
                let before = residual[at] + gradients[at];
                most[at] = half_a_unit(before, digits, least);
                let left = f64::from(kept[at]);
                assert!(left.abs() <= most[at], "{left} of {before} in {format} at step {step}");
                let both = f64::from(found[at]) + left;
                assert_eq!(both, f64::from(before), "what is not sent is kept");
                additions[at] += half_a_unit(before, 23, -149);
                sent[at] += f64::from(found[at]);
                all[at] += f64::from(gradients[at]);
            }
            residual = kept;
        }
        for at in 0..ELEMENTS {
            let apart = (all[at] - sent[at]).abs();
            let most = most[at] + additions[at];
            assert!(apart <= most, "{} for {} of element {at} in {format}", sent[at], all[at]);
        }
    }
}

#[test]
fn members_sum_shares_of_rows_and_what_is_left_of_their_room_is_nothing() {
    // Three members: one with rows of two matrices, one with fewer, one with none.
    let elements = 4 * 30 + 9 + 2 * 5;
    let shares: Shares =
        [[matrix(0, 4, 30), matrix(120, 1, 9)].into(), [matrix(129, 2, 5)].into(), [].into()]
            .into();
    let (members, each) = (shares.len(), 4 * 12 + 10);
    let parts: Vec<Vec<f32>> = (0..members).map(|it| values(it as u32, elements)).collect();
    let mut decoded = vec![vec![f32::NAN; elements]; members];
    let mut signs = vec![vec![7; members * each]; members];
    for member in 0..members {
        let mut residual = vec![0.0; elements];
        one_bit::signs(&shares, &parts[member], &mut signs[member], &mut residual);
        one_bit::from_signs(&shares, &signs[member], &mut decoded[member]);
        assert!(signs[member][each + 2 * 9..].iter().all(|&it| it == 0), "nothing behind the rows");
    }
    let mut all_sums = vec![];
    let mut left = vec![];
    for (member, share) in shares.iter().enumerate() {
        let to_member = signs.iter().flat_map(|signs| &signs[member * each..(member + 1) * each]);
        let all: Vec<u8> = to_member.copied().collect();
        let (mut sums, mut residual) = (vec![7; each], vec![0.0; 129]);
        one_bit::signs_of_sum(share, &all, &mut sums, &mut residual);
        let own: usize = share.iter().map(|it| it.rows * it.columns).sum();
        left.extend_from_slice(&residual[..own]);
        all_sums.extend(sums);
    }
    let mut found = vec![f32::NAN; elements];
    one_bit::from_signs(&shares, &all_sums, &mut found);
    for at in 0..elements {
        let expected = decoded.iter().fold(0.0, |sum, part| sum + part[at]);
        let sent = found[at] + left[at];
        assert!((sent - expected).abs() < 1e-6, "{sent} for {expected} of element {at}");
    }
}

/// Parts of members of a bucket with a matrix, a vector and another matrix.
struct Bucket {
    factors: Factors,
    elements: usize,
}

fn bucket(rank: usize) -> Bucket {
    let factored = vec![matrix(0, 12, 9), matrix(118, 7, 20)];
    let plain = vec![matrix(108, 1, 10)];
    let factors = Factors { rank, factored: factored.into(), plain: plain.into() };
    Bucket { factors, elements: 258 }
}

/// What a member keeps.
struct Member {
    residual: Vec<f32>,
    right: Vec<f32>,
}

impl Bucket {
    fn members(&self, count: usize) -> Vec<Member> {
        let rank = self.factors.rank;
        let member = |_| Member { residual: vec![0.0; self.elements], right: vec![0.0; 29 * rank] };
        (0..count).map(member).collect()
    }

    /// One exchange: the sum that members find.
    fn exchange(&self, parts: &[Vec<f32>], members: &mut [Member]) -> Vec<f32> {
        let rank = self.factors.rank;
        let sum = |all: &[Vec<f32>]| -> Vec<f32> {
            (0..all[0].len()).map(|at| all.iter().map(|it| it[at]).sum()).collect()
        };
        let lefts: Vec<Vec<f32>> = parts
            .iter()
            .zip(&mut *members)
            .map(|(part, member)| {
                let mut left = vec![f32::NAN; 19 * rank + 10];
                self.factors.left(part, &mut left, &mut member.residual, &mut member.right);
                left
            })
            .collect();
        let mut left = sum(&lefts);
        let summed = left.clone();
        for member in &mut *members {
            left = summed.clone();
            self.factors.right(&member.residual, &mut member.right, &mut left);
        }
        let rights: Vec<Vec<f32>> = members.iter().map(|it| it.right.clone()).collect();
        let right = sum(&rights);
        let mut found = vec![f32::NAN; self.elements];
        let count = members.len();
        for member in members {
            member.right.clone_from(&right);
            let Member { residual, right } = member;
            self.factors.product(&left, count, &mut found, residual, right);
        }
        found
    }
}

#[test]
fn factors_find_a_matrix_of_their_rank_and_vectors_as_they_are() {
    let bucket = bucket(2);
    // Of rank 2 in all, of which members have parts of a higher one.
    let mut whole = values(9, bucket.elements);
    for Matrix { offset, rows, columns } in bucket.factors.factored.iter().copied() {
        let (one, two) = (values(3, rows + columns), values(4, rows + columns));
        for row in 0..rows {
            for column in 0..columns {
                whole[offset + row * columns + column] =
                    one[row] * one[rows + column] + two[row] * two[rows + column];
            }
        }
    }
    let apart = values(5, bucket.elements);
    let parts: Vec<Vec<f32>> = [1.0, -1.0, 0.0]
        .map(|sign| whole.iter().zip(&apart).map(|(it, own)| it / 3.0 + sign * own).collect())
        .into();
    let mut members = bucket.members(3);
    let found = bucket.exchange(&parts, &mut members);
    for at in 0..bucket.elements {
        assert!((found[at] - whole[at]).abs() < 1e-5, "{} for {}", found[at], whole[at]);
    }
    // What is left out of one's own part adds up to what is left out of the sum, as good as nothing.
    let left = |at: usize| members.iter().map(|it| it.residual[at]).sum::<f32>();
    assert!((0..bucket.elements).all(|at| left(at).abs() < 1e-5));
    assert!(members.iter().any(|it| it.residual.iter().any(|it| it.abs() > 0.1)));
}

/// Those of two matrices side by side are those of one with the columns of both.
#[test]
fn right_factors_are_drawn_by_their_place_among_all_of_a_bucket() {
    let drawn = |factored: Vec<Matrix>| {
        let elements: usize = factored.iter().map(|it| it.rows * it.columns).sum();
        let rows: usize = factored.iter().map(|it| it.rows).sum();
        let factors = Factors { rank: 2, factored: factored.into(), plain: vec![].into() };
        let (mut left, mut right) = (vec![0.0; 2 * rows], vec![0.0; 2 * 18]);
        factors.left(&vec![0.0; elements], &mut left, &mut vec![0.0; elements], &mut right);
        right
    };
    let apart = drawn(vec![matrix(0, 5, 9), matrix(45, 5, 9)]);
    assert_eq!(apart, drawn(vec![matrix(0, 5, 18)]));
    assert_ne!(apart[..18], apart[18..]);
}

/// The sum of squares of what is left of a matrix without all along the columns of its product with right factors, by
/// Gram and Schmidt in double precision.
fn left_of(whole: &[f64], matrix: Matrix, right: &[f32], rank: usize) -> f64 {
    let element = |row: usize, column: usize| whole[matrix.offset + row * matrix.columns + column];
    let mut directions: Vec<Vec<f64>> = vec![];
    for factor in 0..rank {
        let product = |row| -> f64 {
            let of_columns = (0..matrix.columns)
                .map(|column| element(row, column) * f64::from(right[column * rank + factor]));
            of_columns.sum()
        };
        let mut direction: Vec<f64> = (0..matrix.rows).map(product).collect();
        for other in &directions {
            let along: f64 = direction.iter().zip(other).map(|(one, other)| one * other).sum();
            direction.iter_mut().zip(other).for_each(|(it, other)| *it -= along * other);
        }
        let norm = direction.iter().map(|it| it * it).sum::<f64>().sqrt();
        direction.iter_mut().for_each(|it| *it /= norm);
        directions.push(direction);
    }
    let mut left = 0.0;
    for column in 0..matrix.columns {
        let own: Vec<f64> = (0..matrix.rows).map(|row| element(row, column)).collect();
        left += own.iter().map(|it| it * it).sum::<f64>();
        for direction in &directions {
            let along: f64 = own.iter().zip(direction).map(|(one, other)| one * other).sum();
            left -= along * along;
        }
    }
    left
}

/// A step takes from the sum of what members compress all along the columns of its left factors, which are orthonormal.
/// So what is left of the sum is never more than there was, and how much it is follows from the right factors of the
/// step before. Each step sends at least half of an average direction's share of the squares, for each of its rank, of
/// the 9 that one matrix has (the other has 7), and what is left out is bounded as for any such compressor. What single
/// members keep besides adds up to nothing.
#[test]
fn what_factors_leave_out_of_the_sum_is_bounded_and_nothing_is_lost() {
    const STEPS: u32 = 200;
    for (count, rank) in [(1, 1), (1, 2), (3, 2), (2, 3)] {
        let bucket = bucket(rank);
        let least = 0.5 * rank as f64 / 9.0;
        let mut members = bucket.members(count);
        let mut largest: f64 = 0.0;
        let (mut sent, mut all) = (vec![0.0; bucket.elements], vec![0.0; bucket.elements]);
        for step in 0..STEPS {
            let of = format!("rank {rank}, {count} members, step {step}");
            let parts: Vec<Vec<f32>> = (0..count as u32)
                .map(|member| gradients(STEPS * member + step, bucket.elements))
                .collect();
            let before: Vec<Vec<f32>> = parts
                .iter()
                .zip(&members)
                .map(|(part, member)| {
                    part.iter().zip(&member.residual).map(|(a, b)| a + b).collect()
                })
                .collect();
            let right = members[0].right.clone();
            let found = bucket.exchange(&parts, &mut members);
            let sum = |all: &dyn Fn(usize, usize) -> f32| -> Vec<f64> {
                let of_members = |at| (0..count).map(|member| f64::from(all(member, at))).sum();
                (0..bucket.elements).map(of_members).collect()
            };
            let whole = sum(&|member, at| before[member][at]);
            let left = sum(&|member, at| members[member].residual[at]);
            let gradient = sum(&|member, at| parts[member][at]);
            for (at, &found) in found.iter().enumerate() {
                // What is not sent is kept, by each member of an equal share, and nothing of what has no factors.
                let is_plain = (108..118).contains(&at);
                for (before, member) in before.iter().zip(&members) {
                    let share = if is_plain { before[at] } else { found / count as f32 };
                    let both = member.residual[at] + share;
                    let apart = (both - before[at]).abs();
                    assert!(apart < 1e-5, "{both} for {} of element {at}, {of}", before[at]);
                }
                sent[at] += f64::from(found);
                all[at] += gradient[at];
            }
            let norm = |of: &[f64]| -> f64 {
                // What has no factors is sent as it is.
                let factored = bucket.factors.factored.iter();
                let elements = factored.flat_map(|it| &of[it.offset..][..it.rows * it.columns]);
                elements.map(|it| it * it).sum::<f64>().sqrt()
            };
            let (whole_norm, kept) = (norm(&whole), norm(&left));
            largest = largest.max(norm(&gradient));
            assert!(kept <= whole_norm * (1.0 + 1e-5), "{kept} of {whole_norm}, {of}");
            // The first right factors are drawn.
            if step > 0 {
                let mut rights = &right[..];
                let mut expected = 0.0;
                for &matrix in &bucket.factors.factored {
                    let (own, rest) = rights.split_at(matrix.columns * rank);
                    expected += left_of(&whole, matrix, own, rank);
                    rights = rest;
                }
                let expected = expected.sqrt();
                assert!((kept - expected).abs() <= 1e-4 * whole_norm, "{kept}, {expected}, {of}");
            }
            let share = 1.0 - (kept / whole_norm).powi(2);
            assert!(share >= least, "{share} is sent, {of}");
            assert!(kept <= bound(least, largest), "{kept}, {largest}, {of}");
        }
        for at in 0..bucket.elements {
            let kept: f64 = members.iter().map(|it| f64::from(it.residual[at])).sum();
            let lost = all[at] - sent[at] - kept;
            assert!(lost.abs() < 1e-4, "{lost} of element {at}, rank {rank}, {count} members");
        }
    }
}

#[test]
fn warm_factors_come_to_the_best_of_their_rank() {
    // A diagonal matrix, whose best approximation keeps the largest elements.
    let diagonal = [5.0, 4.0, 1.0, 0.5, 0.25, 0.1];
    let mut part = vec![0.0; 36];
    diagonal.iter().enumerate().for_each(|(at, &value)| part[7 * at] = value);
    let factors = Factors { rank: 2, factored: [matrix(0, 6, 6)].into(), plain: [].into() };
    let bucket = Bucket { factors, elements: 36 };
    let mut errors = vec![];
    let mut right = vec![0.0; 12];
    for _ in 0..12 {
        // Without feedback, so that it is the same matrix each time.
        let (mut left, mut residual) = (vec![0.0; 12], vec![0.0; 36]);
        bucket.factors.left(&part, &mut left, &mut residual, &mut right);
        bucket.factors.right(&residual, &mut right, &mut left);
        let mut found = vec![0.0; 36];
        bucket.factors.product(&left, 1, &mut found, &mut residual, &mut right);
        errors.push(squares(&residual));
    }
    let best = 1.0 + 0.25 + 0.0625 + 0.01;
    assert!(errors.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-4)), "{errors:?}");
    assert!((errors[11] - best).abs() < 1e-3 * best, "{errors:?} for {best}");
}

#[test]
fn what_is_not_finite_is_sent_and_not_kept() {
    let mut gradients = values(1, 700);
    gradients[600] = f32::NAN;
    gradients[20] = f32::INFINITY;
    for count in [1, 70] {
        let mut residual = vec![0.0; 700];
        let found = by_size(&gradients, count, &mut residual);
        assert!(found[600].is_nan(), "what is no number is the largest");
        assert!(residual.iter().all(|it| it.is_finite()));
    }
    let mut residual = vec![0.0; 700];
    let found = by_sign(&gradients, 50, &mut residual);
    assert!(!found[20].is_finite() && !found[600].is_finite());
    assert!(residual.iter().all(|it| it.is_finite()));
    let bucket = bucket(1);
    let mut members = bucket.members(1);
    let found = bucket.exchange(&[gradients[..bucket.elements].to_vec()], &mut members);
    assert!(!found[20].is_finite());
    let Member { residual, right } = &members[0];
    assert!(residual.iter().chain(right).all(|it| it.is_finite()));
    // The next step is as good as any.
    let found = bucket.exchange(&[values(2, bucket.elements)], &mut members);
    assert!(found.iter().all(|it| it.is_finite()));
}

/// Whether they send the same elements or others.
#[test]
fn what_members_send_of_their_largest_is_summed_element_by_element() {
    for (members, elements, count) in [(1, 7, 3), (2, 7, 7), (3, 20, 1), (3, 20, 5), (4, 9, 8)] {
        let (mut words, mut expected) = (vec![], vec![0.0; elements]);
        for member in 0..members {
            let part = values(member, elements);
            let (mut own, mut residual) = (vec![0; 2 * count], vec![0.0; elements]);
            top_k::largest(&part, &mut own, &mut residual);
            // What is not left out is sent.
            for ((sum, part), left) in expected.iter_mut().zip(&part).zip(&residual) {
                *sum += part - left;
            }
            words.extend(own);
        }
        let mut found = vec![f32::NAN; elements];
        top_k::from_largest(&words, members as usize, &mut found);
        assert_eq!(found, expected, "{members} members send {count} of {elements}");
    }
}
