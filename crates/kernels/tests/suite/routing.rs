use proptest::prelude::*;
use shardloom_graph::op::UNROUTED;
use shardloom_kernels::expert_contract::*;
use shardloom_kernels::routing::*;

use crate::oracle::{assert_close, check_destination, matmul, numbers, numeric_grad, widen};

/// What a routing decided, owned.
#[derive(Clone, Debug, PartialEq)]
struct Decided {
    probability: Vec<f32>,
    choice: Vec<u32>,
    slot: Vec<u32>,
    counts: Vec<f32>,
}

impl Decided {
    fn of(sizes: Routing, logits: &[f32], most: Option<usize>) -> Decided {
        let rows = logits.len() / sizes.experts;
        let mut made = Decided {
            probability: vec![f32::NAN; rows],
            choice: vec![7; rows],
            slot: vec![7; rows],
            counts: vec![7.0; sizes.experts * sizes.samples],
        };
        let Decided { probability, choice, slot, counts } = &mut made;
        route(sizes, logits, most, Decision { probability, choice, slot, counts });
        made
    }

    fn routed(&self) -> Routed<'_> {
        Routed { choice: &self.choice, slot: &self.slot, counts: &self.counts }
    }

    /// By definition: for each row that has a slot its place among packed rows.
    fn places(&self, sizes: Routing) -> Vec<Option<usize>> {
        let of_sample = self.choice.len() / sizes.samples;
        let sample = |row: usize| row / of_sample;
        let key = |row: usize| (self.choice[row], sample(row), self.slot[row]);
        let mut kept: Vec<usize> =
            (0..self.choice.len()).filter(|&row| self.slot[row] != UNROUTED).collect();
        kept.sort_by_key(|&row| key(row));
        (0..self.choice.len()).map(|row| kept.iter().position(|&it| it == row)).collect()
    }
}

proptest! {
    #[test]
    fn rows_of_a_sample_take_the_slots_of_their_largest_logit_in_order(
        experts in 1..5usize,
        samples in 1..4usize,
        of_sample in 1..8usize,
        most in prop::option::of(1..4usize),
        seed in 0..1000u64,
    ) {
        let sizes = Routing { experts, samples };
        // Few values, so that there are ties.
        let logits: Vec<f32> =
            numbers(seed, experts * samples * of_sample).iter().map(|x| (x * 3.0).round()).collect();
        let made = Decided::of(sizes, &logits, most);
        let mut counts = vec![0; experts * samples];
        for (row, logits) in logits.chunks(experts).enumerate() {
            let largest = logits.iter().fold(f32::MIN, |most, &it| most.max(it));
            let chosen = logits.iter().position(|&it| it == largest).expect("one is the largest");
            prop_assert_eq!(made.choice[row], chosen as u32);
            let sum: f64 = logits.iter().map(|&it| f64::from(it - largest).exp()).sum();
            prop_assert!((f64::from(made.probability[row]) - 1.0 / sum).abs() < 1e-6);
            let count = &mut counts[chosen * samples + row / of_sample];
            match most.is_none_or(|most| *count < most) {
                true => {
                    prop_assert_eq!(made.slot[row], *count as u32);
                    *count += 1;
                }
                false => prop_assert_eq!(made.slot[row], UNROUTED),
            }
        }
        let counts: Vec<f32> = counts.into_iter().map(|count| count as f32).collect();
        prop_assert_eq!(&made.counts, &counts);
    }

    #[test]
    fn packed_rows_are_those_with_a_slot_in_order_of_expert_sample_and_slot(
        experts in 1..5usize,
        samples in 1..4usize,
        of_sample in 1..8usize,
        most in prop::option::of(1..3usize),
        width in 1..6usize,
    ) {
        let sizes = Routing { experts, samples };
        let rows = samples * of_sample;
        let made = Decided::of(sizes, &numbers(5, rows * experts), most);
        let x = numbers(6, rows * width);
        let mut packed = vec![f32::NAN; rows * width];
        dispatch(sizes, made.routed(), width, &x, &mut packed);
        let places = made.places(sizes);
        for (row, place) in places.iter().enumerate() {
            if let Some(place) = place {
                prop_assert_eq!(&packed[place * width..][..width], &x[row * width..][..width]);
            }
        }
        let kept = places.iter().flatten().count();
        prop_assert_eq!(kept as f32, made.counts.iter().sum::<f32>());
        prop_assert!(packed[kept * width..].iter().all(|it| it.is_nan()), "written beyond");

        let mut y = vec![f32::NAN; rows * width];
        combine(sizes, made.routed(), width, &packed, &made.probability, &mut y);
        for (row, place) in places.iter().enumerate() {
            for at in row * width..(row + 1) * width {
                let want = place.map_or(0.0, |_| x[at] * made.probability[row]);
                prop_assert_eq!(y[at], want);
            }
        }
    }
}

#[test]
fn the_gradient_of_the_probability_is_that_of_the_softmax_at_the_choice() {
    let sizes = Routing { experts: 5, samples: 2 };
    let logits = numbers(1, 5 * 8);
    let made = Decided::of(sizes, &logits, None);
    let dp = numbers(2, 8);
    let probability = |x: &[f64]| {
        let row = |(logits, &chosen): (&[f64], &u32)| {
            let sum: f64 = logits.iter().map(|it| it.exp()).sum();
            logits[chosen as usize].exp() / sum
        };
        x.chunks(5).zip(&made.choice).map(row).collect()
    };
    let want = numeric_grad(probability, &logits, &dp);
    check_destination(&want, 1e-5, |dx, accumulate| {
        route_input_grad(&logits, &made.probability, &made.choice, &dp, dx, accumulate);
    });
}

#[test]
fn the_gradients_of_the_ways_there_and_back_are_those_of_their_definitions() {
    let (sizes, width) = (Routing { experts: 3, samples: 2 }, 4);
    let made = Decided::of(sizes, &numbers(3, 3 * 10), Some(1));
    let places = made.places(sizes);
    let kept = places.iter().flatten().count();
    assert!(kept < 10, "some row finds no slot");
    let x = numbers(4, 10 * width);
    let dpacked = numbers(5, kept * width);
    let pack = |x: &[f64]| {
        let mut packed = vec![0.0; kept * width];
        for (row, place) in places.iter().enumerate() {
            if let Some(place) = place {
                packed[place * width..][..width].copy_from_slice(&x[row * width..][..width]);
            }
        }
        packed
    };
    let want = numeric_grad(pack, &x, &dpacked);
    check_destination(&want, 1e-6, |dx, accumulate| {
        dispatch_input_grad(sizes, made.routed(), width, &dpacked, dx, accumulate);
    });

    let packed = numbers(6, kept * width);
    let (probability, dy) = (made.probability.clone(), numbers(7, 10 * width));
    let back = |packed: &[f64], probability: &[f64]| {
        let mut y = vec![0.0; 10 * width];
        for (row, place) in places.iter().enumerate() {
            for at in 0..width {
                let result = place.map_or(0.0, |place| packed[place * width + at]);
                y[row * width + at] = probability[row] * result;
            }
        }
        y
    };
    let run = |dpacked: &mut [f32], dp: &mut [f32], accumulate| {
        let routed = made.routed();
        combine_input_grad(
            sizes,
            routed,
            width,
            &packed,
            &probability,
            &dy,
            dpacked,
            dp,
            accumulate,
        );
    };
    let want = numeric_grad(|it| back(it, &widen(&probability)), &packed, &dy);
    check_destination(&want, 1e-6, |d, accumulate| {
        run(d, &mut [0.0; 10], [accumulate, false]);
    });
    let want = numeric_grad(|it| back(&widen(&packed), it), &probability, &dy);
    check_destination(&want, 1e-6, |d, accumulate| {
        run(&mut vec![0.0; kept * width], d, [false, accumulate]);
    });
}

#[test]
fn products_of_experts_and_their_gradients_are_those_of_each_experts_rows() {
    let shape = ExpertContract { inputs: 7, outputs: 5 };
    // The second expert has no rows, of the third all are of the second sample.
    let counts = [2.0, 1.0, 0.0, 0.0, 0.0, 4.0];
    let rows = [(0, 3), (3, 0), (3, 4)];
    let (x, w, dy) = (numbers(1, 7 * 7), numbers(2, 3 * 35), numbers(3, 7 * 5));
    let product = |x: &[f64], w: &[f64]| {
        let each = rows
            .iter()
            .zip(w.chunks(35))
            .map(|(&(first, count), w)| matmul(&x[first * 7..(first + count) * 7], w, count, 7, 5));
        each.collect::<Vec<_>>().concat()
    };
    let mut y = vec![f32::NAN; 7 * 5];
    expert_contract(shape, &counts, &x, &w, &mut y);
    assert_close(&y, &product(&widen(&x), &widen(&w)), 1e-6);
    let want = numeric_grad(|it| product(it, &widen(&w)), &x, &dy);
    check_destination(&want, 1e-5, |dx, accumulate| {
        expert_contract_input_grad(shape, &counts, &dy, &w, dx, accumulate);
    });
    let want = numeric_grad(|it| product(&widen(&x), it), &w, &dy);
    check_destination(&want, 1e-5, |dw, accumulate| {
        expert_contract_weight_grad(shape, &counts, &x, &dy, dw, accumulate);
    });
}
