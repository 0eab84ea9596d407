//! Trials: strategies that a method tries one after another.

use std::path::PathBuf;

/// How many are tried, and what is known of earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trials {
    /// How many; none where the method says.
    pub count: Option<usize>,
    /// What random choices follow from.
    pub seed: u64,
    /// Whether strategies may round the gradients that are exchanged to 16 bits, with which training is not the
    /// same.
    pub compressed: bool,
    /// A file of earlier trials, to which those that are made are added; it need not be there yet.
    pub file: Option<PathBuf>,
}

impl Trials {
    /// What is asked for.
    pub fn described(&self) -> String {
        let Trials { count, seed, compressed, file } = self;
        let count = count.map(|it| format!("{it} of them"));
        let seed = (*seed != 0).then(|| format!("seed {seed}"));
        let file = file.as_ref().map(|it| format!("file {}", it.display()));
        let compressed = compressed.then(|| "compressed".to_owned());
        [count, seed, compressed, file].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
