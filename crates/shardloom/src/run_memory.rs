//! The memory that a run needs on this machine, and what there is.

use shardloom_profile::SystemMemory;
use shardloom_train::Blueprint;

use crate::{Error, Result};

/// The memory of the part of a run that is in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMemory {
    /// What its ranks hold together at their peaks.
    pub needed_bytes: u64,
    /// How many ranks.
    pub ranks: usize,
    /// What its data take, which are there already; files that are read where samples are wanted take none.
    pub data_bytes: u64,
    /// What the machine has left besides the data; none where it does not say.
    pub available_bytes: Option<u64>,
}

impl RunMemory {
    /// Of a run whose ranks `share` of are in this process, with so many `besides` bytes for all ranks and data that
    /// are read already.
    pub(crate) fn of(
        blueprint: &Blueprint,
        besides: u64,
        share: f64,
        data_bytes: u64,
    ) -> RunMemory {
        let needed = blueprint.needed_bytes().saturating_add(besides);
        RunMemory {
            needed_bytes: (needed as f64 * share).ceil() as u64,
            ranks: (blueprint.program().ranks() as f64 * share).ceil() as usize,
            data_bytes,
            available_bytes: SystemMemory::of_this_process().map(|it| it.available_bytes),
        }
    }

    /// Errors if it needs more than there is.
    pub(crate) fn require(self) -> Result<RunMemory> {
        let RunMemory { needed_bytes, ranks, data_bytes, available_bytes } = self;
        match available_bytes {
            Some(available_bytes) if needed_bytes > available_bytes => {
                Err(Error::Memory { needed_bytes, ranks, data_bytes, available_bytes })
            }
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_need_must_be_there_besides_the_data() {
        let memory = |available_bytes| RunMemory {
            needed_bytes: 100,
            ranks: 2,
            data_bytes: 70,
            available_bytes,
        };
        assert!(memory(None).require().is_ok());
        assert!(memory(Some(100)).require().is_ok());
        let refused = memory(Some(99)).require().expect_err("a byte too few").to_string();
        assert!(refused.starts_with("training needs 100 B on 2 ranks together"), "{refused}");
        assert!(refused.contains("99 B available besides 70 B of data"), "{refused}");
    }
}
