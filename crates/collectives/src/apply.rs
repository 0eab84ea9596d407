use crate::{CollectiveError, Combine, StepList};

/// What reducing two elements means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Addition.
    Sum,
    /// The larger one.
    Max,
}

impl Reduction {
    fn of(self, left: f64, right: f64) -> f64 {
        match self {
            Reduction::Sum => left + right,
            Reduction::Max => left.max(right),
        }
    }
}

impl StepList {
    /// Reference interpreter: carries the list out on one buffer per member.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::BufferShape`] if the number or lengths of the buffers are
    /// not those of the list; the buffers are then untouched.
    pub fn apply(
        &self,
        buffers: &mut [Vec<f64>],
        reduction: Reduction,
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
            let messages: Vec<Vec<f64>> = step
                .iter()
                .map(|transfer| buffers[transfer.from.index()][transfer.source.clone()].to_vec())
                .collect();
            for (transfer, message) in step.iter().zip(messages) {
                let target = &mut buffers[transfer.to.index()][transfer.target..];
                for (element, arriving) in target.iter_mut().zip(message) {
                    *element = match transfer.combine {
                        Combine::Overwrite => arriving,
                        Combine::Reduce => reduction.of(*element, arriving),
                    };
                }
            }
        }
        Ok(())
    }
}
