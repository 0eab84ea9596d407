use std::ops::Range;

/// The `index`-th of `parts` contiguous, balanced chunks of `elements`.
///
/// The chunks tile `0..elements` in order; their lengths differ by at most one,
/// the longer ones first. With fewer elements than parts the last ones are empty.
///
/// # Panics
///
/// If `index` is not below `parts`.
pub fn chunk(elements: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "chunk {index} of {parts} parts does not exist");
    let (length, longer) = (elements / parts, elements % parts);
    let start = index * length + index.min(longer);
    start..start + length + usize::from(index < longer)
}

/// [`chunk`] of a range instead of a whole buffer.
pub fn chunk_of(range: &Range<usize>, parts: usize, index: usize) -> Range<usize> {
    let within = chunk(range.len(), parts, index);
    range.start + within.start..range.start + within.end
}
