//! Fields of tables.

/// A number.
pub(crate) fn number(field: &str) -> Result<f32, String> {
    let number = field.parse::<f32>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("{field:?} is no finite number"))
}

/// The category of the n-th feature that has some, below `below`.
pub(crate) fn category(field: &str, feature: usize, below: usize) -> Result<u32, String> {
    let category = field.parse::<u32>().ok().filter(|&it| (it as usize) < below);
    category.ok_or_else(|| {
        let most = below.saturating_sub(1);
        format!("{field:?} is no category.{feature}: a whole number from 0 to {most}")
    })
}

/// A class, which may be written as any number that is whole.
pub(crate) fn class(field: &str) -> Option<u32> {
    let class = field.parse::<f32>().ok()?;
    // Up to here whole numbers are exact in 32-bit floating point; the next one is read as this one.
    (class >= 0.0 && class.fract() == 0.0 && class < 16_777_216.0).then_some(class as u32)
}
