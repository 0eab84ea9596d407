//! Collectives on all members' buffers in one place, element by element.

#[path = "../engines/arithmetic.rs"]
mod arithmetic;

use arithmetic::{Plain, bf16, f16, from_bf16, from_f16};
use shardloom_collectives::{Algorithm, Kind, Reduction, plan};
use shardloom_fabric::{Contents, Format, View, ViewMut, apply, apply_fused};

const FORMATS: [Format; 6] =
    [Format::F32, Format::F64, Format::Bf16, Format::F16, Format::U32, Format::U8];

fn contents(format: Format, values: &[u8]) -> Contents {
    let mut contents = Contents::zeroed(format, values.len());
    let values = values.iter().copied();
    match contents.view_mut() {
        ViewMut::F32(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = it.into()),
        ViewMut::F64(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = it.into()),
        ViewMut::Bf16(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = bf16(it.into())),
        ViewMut::F16(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = f16(it.into())),
        ViewMut::U32(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = it.into()),
        ViewMut::U8(to) => to.iter_mut().zip(values).for_each(|(to, it)| *to = it),
    }
    contents
}

fn values(contents: &Contents) -> Vec<f64> {
    match contents.view() {
        View::F32(all) => all.iter().map(|&it| it.into()).collect(),
        View::F64(all) => all.to_vec(),
        View::Bf16(all) => all.iter().map(|&it| from_bf16(it).into()).collect(),
        View::F16(all) => all.iter().map(|&it| from_f16(it).into()).collect(),
        View::U32(all) => all.iter().map(|&it| it.into()).collect(),
        View::U8(all) => all.iter().map(|&it| it.into()).collect(),
    }
}

/// What a member brings: whole numbers that all formats have, as their sums.
fn brought(member: usize, elements: usize) -> Vec<u8> {
    (0..elements).map(|at| ((member * 5 + at * 3) % 11) as u8).collect()
}

#[test]
fn all_members_get_the_sum_or_the_largest_in_every_format() {
    let (members, elements) = (4, 10);
    for format in FORMATS {
        for reduction in [Reduction::Sum, Reduction::Max] {
            let list = plan(Kind::AllReduce, Algorithm::Ring, members as u32, elements);
            let mut all: Vec<Contents> =
                (0..members).map(|member| contents(format, &brought(member, elements))).collect();
            apply(&list.expect("a ring"), &mut all, (&Plain, reduction)).expect("carried out");
            let expected: Vec<f64> = (0..elements)
                .map(|at| {
                    let each = (0..members).map(|member| f64::from(brought(member, elements)[at]));
                    if reduction == Reduction::Sum { each.sum() } else { each.fold(0.0, f64::max) }
                })
                .collect();
            for found in &all {
                assert_eq!(values(found), expected, "{reduction:?} of {format}");
            }
        }
    }
}

/// Cut anywhere, also into parts of no element.
#[test]
fn several_buffers_of_a_member_count_as_one_that_lies_side_by_side() {
    let (members, lengths) = (3, [4, 0, 1, 7]);
    let elements = lengths.iter().sum();
    for format in FORMATS {
        let list = plan(Kind::AllReduce, Algorithm::Direct, members as u32, elements);
        let cut = |member: usize| -> Vec<Contents> {
            let whole = brought(member, elements);
            let mut rest = &whole[..];
            let parts = lengths.iter().map(|&length| {
                let (part, after) = rest.split_at(length);
                rest = after;
                contents(format, part)
            });
            parts.collect()
        };
        let mut all: Vec<Vec<Contents>> = (0..members).map(cut).collect();
        apply_fused(&list.expect("a list"), &mut all, (&Plain, Reduction::Sum)).expect("done");
        for parts in &all {
            assert_eq!(parts.iter().map(|it| values(it).len()).collect::<Vec<_>>(), lengths);
            let found: Vec<f64> = parts.iter().flat_map(values).collect();
            let sum = |at: usize| (0..members).map(|it| f64::from(brought(it, elements)[at])).sum();
            assert_eq!(found, (0..elements).map(sum).collect::<Vec<f64>>(), "{format}");
        }
    }
}

#[test]
#[should_panic(expected = "members bring elements of one format")]
fn members_with_elements_of_two_formats_are_a_mistake_of_the_caller() {
    let list = plan(Kind::AllReduce, Algorithm::Direct, 2, 3).expect("a list");
    let mut all = [contents(Format::F32, &[1, 2, 3]), contents(Format::U32, &[1, 2, 3])];
    let _ = apply(&list, &mut all, (&Plain, Reduction::Sum));
}
