use proptest::prelude::*;
use shardloom_kernels::window::{copy_box, cut_box, place_box};

/// Shapes of both tensors, the extent and both starts, for one to four axes.
fn boxes() -> impl Strategy<Value = [Vec<usize>; 5]> {
    let axis = (0..4usize, 0..3usize, 0..3usize, 0..3usize, 0..3usize);
    prop::collection::vec(axis, 1..=4).prop_map(|axes| {
        let of =
            |f: fn(&(usize, usize, usize, usize, usize)) -> usize| axes.iter().map(f).collect();
        [of(|a| a.0 + a.1 + a.2), of(|a| a.0 + a.3 + a.4), of(|a| a.0), of(|a| a.1), of(|a| a.3)]
    })
}

fn flat(index: &[usize], start: &[usize], shape: &[usize]) -> usize {
    (0..shape.len()).fold(0, |at, axis| at * shape[axis] + start[axis] + index[axis])
}

proptest! {
    #[test]
    fn copying_a_box_moves_its_elements_and_no_others(
        [from_shape, to_shape, extent, from, to] in boxes(),
    ) {
        let source: Vec<u32> = (0..from_shape.iter().product::<usize>() as u32).collect();
        let mut got = vec![u32::MAX; to_shape.iter().product()];
        let mut want = got.clone();
        copy_box(&source, &from_shape, &from, &mut got, &to_shape, &to, &extent);

        for i in 0..extent.iter().product() {
            let mut rest: usize = i;
            let mut index = vec![0; extent.len()];
            for axis in (0..extent.len()).rev() {
                index[axis] = rest % extent[axis];
                rest /= extent[axis];
            }
            want[flat(&index, &to, &to_shape)] = source[flat(&index, &from, &from_shape)];
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn a_box_that_is_cut_out_and_placed_elsewhere_is_the_copied_box(
        [from_shape, to_shape, extent, from, to] in boxes(),
    ) {
        let source: Vec<u32> = (0..from_shape.iter().product::<usize>() as u32).collect();
        let mut want = vec![u32::MAX; to_shape.iter().product()];
        let mut got = want.clone();
        copy_box(&source, &from_shape, &from, &mut want, &to_shape, &to, &extent);

        let mut part = vec![0; extent.iter().product()];
        cut_box(&source, &from_shape, &from, &mut part, &extent);
        place_box(&part, &extent, &mut got, &to_shape, &to);
        prop_assert_eq!(got, want);
    }
}

#[test]
fn a_scalar_is_a_box_of_one_element() {
    let mut y = [0.0];
    copy_box(&[3.0], &[], &[], &mut y, &[], &[], &[]);
    assert_eq!(y, [3.0]);
}

#[test]
#[should_panic(expected = "does not lie in a tensor of shape [2, 3]")]
fn a_box_outside_its_tensor_is_refused() {
    copy_box(&[0; 6], &[2, 3], &[0, 2], &mut [0; 6], &[2, 3], &[0, 0], &[2, 2]);
}

/// Of tensors of two axes: whether a box lies in one follows from its last element.
#[test]
fn a_box_is_copied_where_it_lies_in_both_tensors_and_refused_else() {
    let (source_shape, target_shape) = ([2, 3], [3, 2]);
    let lies = |extent: [usize; 2], start: [usize; 2], shape: [usize; 2]| {
        [0, 1]
            .into_iter()
            .all(|axis| (start[axis]..start[axis] + extent[axis]).all(|at| at < shape[axis]))
    };
    for extent in [[1, 1], [1, 2], [2, 1], [2, 2]] {
        for case in 0..81 {
            let [from_row, from_column, to_row, to_column] =
                [case / 27, case / 9 % 3, case / 3 % 3, case % 3];
            let (from, to) = ([from_row, from_column], [to_row, to_column]);
            let copied = std::panic::catch_unwind(|| {
                copy_box(&[1; 6], &source_shape, &from, &mut [0; 6], &target_shape, &to, &extent);
            });
            let fits = lies(extent, from, source_shape) && lies(extent, to, target_shape);
            assert_eq!(copied.is_ok(), fits, "{extent:?} from {from:?} to {to:?}");
        }
    }
}

#[test]
fn boxes_of_other_numbers_of_axes_than_their_tensors_are_refused() {
    let copied = |from: &[usize], to: &[usize], extent: &[usize]| {
        std::panic::catch_unwind(|| {
            copy_box(&[1; 6], &[2, 3], from, &mut [0; 6], &[2, 3], to, extent);
        })
        .is_ok()
    };
    assert!(copied(&[0, 0], &[0, 0], &[1, 1]));
    assert!(!copied(&[0], &[0, 0], &[1, 1]));
    assert!(!copied(&[0, 0], &[0], &[1, 1]));
    assert!(!copied(&[0, 0], &[0, 0], &[1]));
    assert!(!copied(&[0, 0], &[0, 0, 0], &[1, 1]));
}
