use shardloom_collectives::Reduction;

/// A number that collectives reduce.
pub(super) trait Element: Copy + Default + Send + 'static {
    fn add(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

impl Element for f32 {
    fn add(self, other: Self) -> Self {
        self + other
    }

    fn larger(self, other: Self) -> Self {
        self.max(other)
    }
}

impl Element for f64 {
    fn add(self, other: Self) -> Self {
        self + other
    }

    fn larger(self, other: Self) -> Self {
        self.max(other)
    }
}

/// `target = target (op) arriving`, element by element.
pub(super) fn reduce_into<T: Element>(target: &mut [T], arriving: &[T], reduction: Reduction) {
    // One loop per operation, so that each vectorises.
    match reduction {
        Reduction::Sum => {
            target.iter_mut().zip(arriving).for_each(|(to, &with)| *to = to.add(with));
        }
        Reduction::Max => {
            target.iter_mut().zip(arriving).for_each(|(to, &with)| *to = to.larger(with));
        }
    }
}
