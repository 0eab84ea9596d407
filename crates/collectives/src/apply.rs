use serde::{Deserialize, Serialize};

use crate::{CollectiveError, Combine, StepList};

/// What reducing two elements means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Addition.
    Sum,
    /// The larger one.
    Max,
}

/// A number that collectives reduce.
pub trait Element: Copy {
    /// `self` and `other` reduced.
    fn reduce(self, other: Self, reduction: Reduction) -> Self;
}

macro_rules! element {
    ($($number:ty),*) => {$(
        impl Element for $number {
            fn reduce(self, other: Self, reduction: Reduction) -> Self {
                match reduction {
                    Reduction::Sum => self + other,
                    Reduction::Max => self.max(other),
                }
            }
        }
    )*};
}

element!(f32, f64);

impl StepList {
    /// Reference interpreter: carries the list out on one buffer per member.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::BufferShape`] if the number or lengths of the buffers are
    /// not those of the list; the buffers are then untouched.
    pub fn apply<E: Element>(
        &self,
        buffers: &mut [Vec<E>],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        self.apply_with(buffers, |into, part| {
            for (into, &part) in into.iter_mut().zip(part) {
                *into = into.reduce(part, reduction);
            }
        })
    }

    /// Likewise with an arithmetic of choice: `reduce` sets each element of its first slice to what it and
    /// the one of its second come to. Both are as long.
    ///
    /// # Errors
    ///
    /// As [`apply`](StepList::apply).
    pub fn apply_with<E: Copy>(
        &self,
        buffers: &mut [Vec<E>],
        mut reduce: impl FnMut(&mut [E], &[E]),
    ) -> Result<(), CollectiveError> {
        if buffers.len() != self.members as usize
            || buffers.iter().any(|buffer| buffer.len() != self.elements)
        {
            return Err(CollectiveError::BufferShape {
                members: self.members,
                elements: self.elements,
                lengths: buffers.iter().map(Vec::len).collect(),
            });
        }
        for step in &self.steps {
            let messages: Vec<Vec<E>> = step
                .iter()
                .map(|transfer| buffers[transfer.from.index()][transfer.source.clone()].to_vec())
                .collect();
            for (transfer, message) in step.iter().zip(messages) {
                let range = transfer.target..transfer.target + message.len();
                let target = &mut buffers[transfer.to.index()][range];
                match transfer.combine {
                    Combine::Overwrite => target.copy_from_slice(&message),
                    Combine::Reduce => reduce(target, &message),
                }
            }
        }
        Ok(())
    }
}
