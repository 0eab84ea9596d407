use std::slice::from_mut;

use shardloom_collectives::{CollectiveError, Reduction, StepList};

use crate::{Format, Lent, Reduce, ViewMut, view::Element};

/// Carries a collective out on all members' buffers at once, for whoever has them all in one place: in the
/// order of its list and with the arithmetic that engines are given, so to the last bit as they do.
///
/// # Errors
///
/// As [`StepList::apply`]; the buffers are then untouched.
///
/// # Panics
///
/// If buffers are of different formats.
pub fn apply<B: Lent>(
    list: &StepList,
    members: &mut [B],
    how: (&dyn Reduce, Reduction),
) -> Result<(), CollectiveError> {
    let mut members: Vec<&mut [B]> = members.iter_mut().map(from_mut).collect();
    apply_to_all(list, &mut members, how)
}

/// The same where each member has several buffers, which count as one, as if they lay side by side.
///
/// # Errors
///
/// As [`apply`].
///
/// # Panics
///
/// As [`apply`].
pub fn apply_fused<B: Lent>(
    list: &StepList,
    members: &mut [Vec<B>],
    how: (&dyn Reduce, Reduction),
) -> Result<(), CollectiveError> {
    let mut members: Vec<&mut [B]> = members.iter_mut().map(Vec::as_mut_slice).collect();
    apply_to_all(list, &mut members, how)
}

fn apply_to_all<B: Lent>(
    list: &StepList,
    members: &mut [&mut [B]],
    (arithmetic, reduction): (&dyn Reduce, Reduction),
) -> Result<(), CollectiveError> {
    let Some(first) = members.first_mut().and_then(|own| own.first_mut()) else { return Ok(()) };
    let mut format = Format::F32;
    first.lend(&mut |buffer| format = buffer.format());
    let how = (arithmetic, reduction, format);
    match format {
        Format::F32 => apply_to::<f32, B>(list, members, how),
        Format::F64 => apply_to::<f64, B>(list, members, how),
        Format::Bf16 | Format::F16 => apply_to::<u16, B>(list, members, how),
        Format::U32 => apply_to::<u32, B>(list, members, how),
        Format::U8 => apply_to::<u8, B>(list, members, how),
    }
}

fn apply_to<T: Element, B: Lent>(
    list: &StepList,
    members: &mut [&mut [B]],
    (arithmetic, reduction, format): (&dyn Reduce, Reduction, Format),
) -> Result<(), CollectiveError> {
    let mut buffers: Vec<Vec<T>> = Vec::with_capacity(members.len());
    for member in &mut *members {
        let mut all = vec![];
        for part in member.iter_mut() {
            part.lend(&mut |buffer: ViewMut<'_>| {
                assert_eq!(buffer.format(), format, "members bring elements of one format");
                all.extend_from_slice(T::elements(buffer));
            });
        }
        buffers.push(all);
    }
    list.apply_with(&mut buffers, |into, part| {
        arithmetic.reduce(reduction, T::view_mut(format, into), T::view(format, part));
    })?;
    for (member, values) in members.iter_mut().zip(buffers) {
        let mut rest = &values[..];
        for part in member.iter_mut() {
            part.lend(&mut |buffer| {
                let own = T::elements(buffer);
                let (values, after) = rest.split_at(own.len());
                own.copy_from_slice(values);
                rest = after;
            });
        }
    }
    Ok(())
}
