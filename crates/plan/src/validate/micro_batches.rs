//! Whether a batch can be cut into micro-batches, and dealt to pipelines.

use crate::{Arrangement, Plan, PlanError, ScheduleKind};

impl Plan {
    /// Checks that there are pipelines, and micro-batches for all of them.
    pub(super) fn validate_batch(&self) -> Result<(), PlanError> {
        if self.pipeline.is_empty() {
            let rule = format!(
                "at least one; {} may have none for these numbers of stages and chunks",
                self.schedule.name()
            );
            return Err(PlanError::field("pipeline", 0, rule));
        }
        if self.microbatches == 0 || self.global_batch == 0 {
            let (key, value) = match self.microbatches {
                0 => ("microbatches", self.microbatches),
                _ => ("global_batch", self.global_batch),
            };
            return Err(PlanError::field(key, value, "at least 1"));
        }
        if !self.global_batch.is_multiple_of(self.microbatches) {
            let rule = format!("micro-batches must divide global_batch = {}", self.global_batch);
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        let pipelines = self.pipeline.len();
        if self.microbatches < pipelines {
            let rule = format!("one for each of {pipelines} pipelines, or more");
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        match self.pipeline.iter().any(|it| it.microbatches.is_some()) {
            true => self.validate_shares()?,
            false
                if !self.microbatches.is_multiple_of(pipelines) && !self.takes_uneven_shares() =>
            {
                let rule = format!(
                    "micro-batches are dealt to {pipelines} pipelines, so a multiple of that"
                );
                return Err(PlanError::field("microbatches", self.microbatches, rule));
            }
            false => {}
        }
        Ok(())
    }

    /// Checks that the pipelines, which say how many micro-batches each gets, get those of a step.
    fn validate_shares(&self) -> Result<(), PlanError> {
        let key = |pipeline: usize| format!("pipeline[{pipeline}].microbatches");
        for (index, pipeline) in self.pipeline.iter().enumerate() {
            match pipeline.microbatches {
                Some(0) => return Err(PlanError::field(key(index), 0, "at least 1")),
                Some(_) => {}
                None => {
                    let rule = "all pipelines say how many they get, or none does";
                    return Err(PlanError::field(key(index), "absent", rule));
                }
            }
        }
        let shares = self.shares();
        let sum = shares.iter().fold(0, |sum: usize, &share| sum.saturating_add(share));
        if sum != self.microbatches {
            let rule = format!("the pipelines' come to {sum}");
            return Err(PlanError::field("microbatches", self.microbatches, rule));
        }
        let takes_any = match self.schedule.arrangement() {
            Some(arrangement) => arrangement == Arrangement::TakingTurns,
            None => true,
        };
        if shares.windows(2).any(|pair| pair[0] != pair[1]) && !(takes_any && self.flushes()) {
            let rule = "unequal shares are for schedules with flush whose pipelines do not depend on each \
                        other, such as \"1f1b\" and \"afab\"";
            return Err(PlanError::field(key(0), shares[0], rule));
        }
        Ok(())
    }

    /// Whether one pipeline may get a micro-batch more than another.
    fn takes_uneven_shares(&self) -> bool {
        match self.schedule {
            ScheduleKind::Chimera => true,
            ScheduleKind::Table => self.flushes(),
            _ => false,
        }
    }
}
