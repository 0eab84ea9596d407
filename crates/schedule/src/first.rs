//! Which device is first, while what each does next changes.

/// The times at which devices could do something, in a tree of which each node has the first of its two.
pub(super) struct First {
    /// Half the length of `nodes`: leaves begin there.
    leaves: usize,
    nodes: Vec<Option<(f64, usize)>>,
}

impl First {
    /// No device can do anything.
    pub fn new(devices: usize) -> First {
        First { leaves: devices, nodes: vec![None; 2 * devices] }
    }

    /// From when `device` could do something, if it could.
    pub fn set(&mut self, device: usize, start: Option<f64>) {
        let mut node = self.leaves + device;
        self.nodes[node] = start.map(|start| (start, device));
        while node > 1 {
            node /= 2;
            self.nodes[node] = first(self.nodes[2 * node], self.nodes[2 * node + 1]);
        }
    }

    /// The first start and its device; of devices that could start at the same time the one of the lowest
    /// number.
    pub fn get(&self) -> Option<(f64, usize)> {
        *self.nodes.get(1)?
    }
}

fn first(one: Option<(f64, usize)>, other: Option<(f64, usize)>) -> Option<(f64, usize)> {
    let both = one.into_iter().chain(other);
    both.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_the_one_that_looking_at_all_finds(
            devices in 1..20usize,
            changes in prop::collection::vec((0..20usize, prop::option::of(0..4u8)), 1..60),
        ) {
            let mut first = First::new(devices);
            let mut starts: Vec<Option<f64>> = vec![None; devices];
            prop_assert_eq!(first.get(), None);
            for (device, start) in changes {
                let (device, start) = (device % devices, start.map(f64::from));
                starts[device] = start;
                first.set(device, start);
                let known = starts.iter().enumerate();
                let known = known.filter_map(|(device, start)| Some(((*start)?, device)));
                let least = known.min_by(|one, other| one.0.total_cmp(&other.0));
                prop_assert_eq!(first.get(), least);
            }
        }
    }
}
