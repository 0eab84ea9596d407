//! Gradients of parameters that are there only from their first write in a step to its end.

use std::collections::BTreeSet;

use shardloom_program::{Class, Content, Instruction, Keep, Tensor, TensorId, Write};

/// Those of one rank.
pub(crate) struct LateGradients {
    /// Bytes of all of them.
    all: u64,
    /// Bytes of those that are there.
    held: u64,
    /// What was written in this step: tensors, and where in them.
    written: BTreeSet<(TensorId, usize)>,
}

/// Whether a tensor is gradients that ranks hold from step to step without a need.
fn is_late(tensor: &Tensor) -> bool {
    tensor.content == Content::Gradient && tensor.keep == Keep::Resident
}

impl LateGradients {
    /// Those that `position` of `class` has; none of them is there yet.
    pub fn new(class: &Class, position: usize) -> LateGradients {
        let late = class.lasting().filter(|(_, tensor)| is_late(tensor));
        let all = late.map(|(id, _)| class.tensor_bytes(id, position)).sum();
        LateGradients { all, held: 0, written: BTreeSet::new() }
    }

    /// Bytes of those that are not there.
    pub fn absent(&self) -> u64 {
        self.all - self.held
    }

    /// Bytes of those that `instruction` is the first to write in this step.
    pub fn write(&mut self, class: &Class, position: usize, instruction: &Instruction) -> u64 {
        let late = |write: &&Write| is_late(class.tensor(write.to.tensor));
        let mut first = 0;
        for Write { to, .. } in instruction.writes.iter().filter(late) {
            let start = class.view_range(*to, position).start;
            if self.written.insert((to.tensor, start)) {
                first += class.view_bytes(*to, position);
            }
        }
        // What is written whole after its parts, as by a reduction, is there already.
        let first = first.min(self.absent());
        self.held += first;
        first
    }

    /// Frees all of them: so many bytes.
    pub fn free(&mut self) -> u64 {
        self.written.clear();
        std::mem::take(&mut self.held)
    }
}
