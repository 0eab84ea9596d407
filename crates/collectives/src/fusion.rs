//! Which of several buffers that are reduced one after the other are reduced as one.

/// Cuts buffers that follow each other, each with its kind and its bytes, into runs that are reduced as one: of one
/// kind, and of at most `most_bytes` together, as many as fit (tensor fusion: Sergeev and Del Balso 2018, arXiv
/// 1802.05799, section 7). A larger one is a run by itself. What runs come to is their lengths, in order.
///
/// ```
/// use shardloom_collectives::fused;
///
/// assert_eq!(fused([('a', 3), ('a', 4), ('a', 2), ('b', 1), ('b', 9)], 7), [2, 1, 1, 1]);
/// ```
pub fn fused<K: PartialEq>(
    buffers: impl IntoIterator<Item = (K, usize)>,
    most_bytes: usize,
) -> Vec<usize> {
    let mut runs: Vec<(K, usize, usize)> = vec![];
    for (kind, bytes) in buffers {
        match runs.last_mut() {
            Some((last, held, length))
                if *last == kind && held.saturating_add(bytes) <= most_bytes =>
            {
                *held += bytes;
                *length += 1;
            }
            _ => runs.push((kind, bytes, 1)),
        }
    }
    runs.into_iter().map(|(_, _, length)| length).collect()
}
