//! The one even cut of blocks into stages.

/// The even cut of `blocks` blocks into `stages` stages: the first block of each stage, then the number of
/// blocks. [`even_cut`] says which.
pub fn even_cuts(blocks: usize, stages: usize) -> Vec<usize> {
    (0..=stages).map(|stage| even_cut(blocks, stages, stage)).collect()
}

/// The first block of stage number `stage` of `stages` over `blocks` blocks; of the number `stages` itself,
/// the number of blocks. Stages' lengths differ by at most one, and longer ones stand in the middle: the
/// first stage has the embedding and the last the head besides. Fewer blocks than stages leave empty ones,
/// which validation refuses.
pub fn even_cut(blocks: usize, stages: usize, stage: usize) -> usize {
    let stages = stages.max(1);
    let (least, longer) = (blocks / stages, blocks % stages);
    let first_longer = (stages - longer).div_ceil(2);
    stage * least + stage.saturating_sub(first_longer).min(longer)
}

#[cfg(test)]
mod tests {
    use super::even_cuts;

    #[test]
    fn even_cuts_put_longer_stages_in_the_middle() {
        assert_eq!(even_cuts(6, 4), [0, 1, 3, 5, 6]);
        assert_eq!(even_cuts(8, 4), [0, 2, 4, 6, 8]);
        assert_eq!(even_cuts(5, 2), [0, 2, 5]);
        assert_eq!(even_cuts(1, 1), [0, 1]);
    }
}
