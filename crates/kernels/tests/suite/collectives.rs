//! Collectives that an engine carries out on ranks of their own, and those on all buffers at once, come to
//! the same bits.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use shardloom_collectives::{Algorithm, Kind, Reduction, plan};
use shardloom_fabric::{
    Collective, Contents, Engine, Format, InProcess, Lent, Settings, View, ViewMut, apply,
};
use shardloom_kernels::Arithmetic;

const MEMBERS: u32 = 4;
const ELEMENTS: usize = 37;

/// Fractions whose sums round differently in every order, and among them what no number is larger than, and
/// what no number can be compared with.
fn value(member: u32, index: usize) -> f32 {
    match (member as usize + index) % 11 {
        3 => f32::NAN,
        7 => f32::INFINITY,
        8 => -f32::NAN,
        _ => ((member as usize * 7919 + index * 104_729 + 1) % 10_007) as f32 / 97.0 - 50.0,
    }
}

fn brought(format: Format, member: u32) -> Contents {
    let mut contents = Contents::zeroed(format, ELEMENTS);
    let value = |index| value(member, index);
    match contents.view_mut() {
        ViewMut::F32(all) => all.iter_mut().zip(0..).for_each(|(it, at)| *it = value(at)),
        ViewMut::F64(all) => all.iter_mut().zip(0..).for_each(|(it, at)| *it = value(at).into()),
        ViewMut::Bf16(all) => {
            all.iter_mut().zip(0..).for_each(|(it, at)| *it = bf16::from_f32(value(at)).to_bits());
        }
        ViewMut::F16(all) => {
            all.iter_mut().zip(0..).for_each(|(it, at)| *it = f16::from_f32(value(at)).to_bits());
        }
        ViewMut::U32(all) => all.iter_mut().zip(0..).for_each(|(it, at)| *it = value(at).to_bits()),
        ViewMut::U8(all) => all.iter_mut().zip(0..).for_each(|(it, at)| *it = value(at) as u8),
    }
    contents
}

fn bits(contents: &Contents) -> Vec<u64> {
    match contents.view() {
        View::F32(all) => all.iter().map(|it| it.to_bits().into()).collect(),
        View::F64(all) => all.iter().map(|it| it.to_bits()).collect(),
        View::Bf16(all) | View::F16(all) => all.iter().map(|&it| it.into()).collect(),
        View::U32(all) => all.iter().map(|&it| it.into()).collect(),
        View::U8(all) => all.iter().map(|&it| it.into()).collect(),
    }
}

/// What each member has afterwards, its rank a thread.
fn on_ranks(format: Format, algorithm: Algorithm, reduction: Reduction) -> Vec<Vec<u64>> {
    let settings = Settings { timeout: Duration::from_secs(60), arithmetic: Arc::new(Arithmetic) };
    let endpoints = InProcess.connect(MEMBERS, &settings).expect("ranks of a process");
    let ranks = endpoints.into_iter().map(|mut endpoint| {
        thread::spawn(move || {
            let everybody: Vec<u32> = (0..MEMBERS).collect();
            let mut group = endpoint.group(&everybody).expect("a group");
            let kind = Kind::AllReduce;
            let handle = group.start(
                Collective::Equal { kind, algorithm, reduction },
                brought(format, endpoint.rank()),
            );
            let (contents, outcome) = group.wait(handle);
            outcome.expect("all take part");
            bits(&contents)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
}

#[test]
fn all_at_once_is_what_ranks_of_their_own_come_to_in_every_format() {
    for format in [Format::F32, Format::F64, Format::Bf16, Format::F16, Format::U32, Format::U8] {
        for algorithm in [Algorithm::Direct, Algorithm::Ring, Algorithm::HalvingDoubling] {
            for reduction in [Reduction::Sum, Reduction::Max] {
                let list = plan(Kind::AllReduce, algorithm, MEMBERS, ELEMENTS).expect("it exists");
                let mut all: Vec<Contents> = (0..MEMBERS).map(|it| brought(format, it)).collect();
                apply(&list, &mut all, (&Arithmetic, reduction)).expect("buffers of its size");
                let found: Vec<_> = all.iter().map(bits).collect();
                let expected = on_ranks(format, algorithm, reduction);
                assert_eq!(found, expected, "{format}, {algorithm}, {reduction:?}");
            }
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_and_left() {
    let list = plan(Kind::AllReduce, Algorithm::Ring, MEMBERS, ELEMENTS + 1).expect("it exists");
    let mut all: Vec<Contents> = (0..MEMBERS).map(|it| brought(Format::Bf16, it)).collect();
    apply(&list, &mut all, (&Arithmetic, Reduction::Sum)).expect_err("one element too few");
    let mut first: Vec<u64> = vec![];
    all[0].lend(&mut |it| {
        let ViewMut::Bf16(words) = it else { unreachable!("it is bf16") };
        first = words.iter().map(|&word| word.into()).collect();
    });
    assert_eq!(first, bits(&brought(Format::Bf16, 0)));
}
