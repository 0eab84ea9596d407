//! Which copies of a tensor there are.

use std::collections::BTreeSet;

/// The micro-batches whose copies there are. They come and go in order, or in the reverse of it, so that they nearly
/// always are one run of numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveCopies {
    /// The run: the first, and one more than the last.
    first: u32,
    end: u32,
    /// All that are not in the run.
    #[expect(
        clippy::box_collection,
        reason = "hardly ever there, and there are many of these side by side"
    )]
    others: Option<Box<BTreeSet<u32>>>,
}

impl LiveCopies {
    /// Adds a copy; whether it was not there.
    pub fn insert(&mut self, copy: u32) -> bool {
        if (self.first..self.end).contains(&copy) {
            return false;
        }
        if let Some(others) = &mut self.others {
            return others.insert(copy);
        }
        match self {
            _ if self.first == self.end => (self.first, self.end) = (copy, copy + 1),
            _ if self.end == copy => self.end += 1,
            _ if self.first == copy + 1 => self.first = copy,
            _ => self.others = Some(Box::new(BTreeSet::from([copy]))),
        }
        true
    }

    /// Removes a copy; whether it was there.
    pub fn remove(&mut self, copy: u32) -> bool {
        if let Some(others) = &mut self.others
            && others.remove(&copy)
        {
            if others.is_empty() {
                self.others = None;
            }
            return true;
        }
        if !(self.first..self.end).contains(&copy) {
            return false;
        }
        match copy {
            _ if self.first == copy => self.first += 1,
            _ if self.end == copy + 1 => self.end = copy,
            _ => {
                let behind = copy + 1..self.end;
                self.others.get_or_insert_default().extend(behind);
                self.end = copy;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn copies_come_and_go_as_in_a_set(
            changes in prop::collection::vec((any::<bool>(), 0u32..6), 0..64),
        ) {
            let mut copies = LiveCopies::default();
            let mut expected = BTreeSet::new();
            for (comes, copy) in changes {
                match comes {
                    true => prop_assert_eq!(copies.insert(copy), expected.insert(copy)),
                    false => prop_assert_eq!(copies.remove(copy), expected.remove(&copy)),
                }
            }
        }
    }
}
