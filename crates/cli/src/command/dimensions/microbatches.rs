//! How many micro-batches a step has.

use shardloom::Model;
use shardloom::plan::Updates;

use super::Dimensions;
use crate::command::order::Order;

impl Dimensions {
    /// Micro-batches of a step, as given. Otherwise, of a pipeline, with which the most of `orders` exist
    /// for `model`, and among those the most up to four per device that replicas can share; one, if all of
    /// `orders` update after every micro-batch.
    pub fn microbatches(&self, model: &Model, orders: &[Order]) -> usize {
        if let Some(microbatches) = self.split.microbatches {
            return microbatches;
        }
        // What is wrong with the optimizer or the versions is refused with the plan.
        let optimizer = self.optimizer().unwrap_or_default();
        let single = |order: &Order| {
            order.rules(&optimizer).is_ok_and(|rules| rules.updates == Updates::Round)
        };
        if !orders.is_empty() && orders.iter().all(single) {
            return 1;
        }
        let pp = self.pp();
        // More devices or stages than blocks are refused with the plan.
        let blocks = model.graph().blocks().len();
        let few = |order: &&Order| pp <= blocks && order.chunks() <= blocks;
        let existing = |microbatches: usize| {
            orders.iter().filter(few).filter(|order| order.exists(pp, microbatches)).count()
        };
        let candidates = candidates(self.global_batch(), pp, self.split.dp.unwrap_or(1));
        candidates.max_by_key(|&microbatches| (existing(microbatches), microbatches)).unwrap_or(1)
    }
}

/// Numbers of micro-batches that replicas can share: of a pipeline up to four per device, otherwise one.
fn candidates(global_batch: usize, pp: usize, dp: u32) -> impl Iterator<Item = usize> {
    let most = if pp <= 1 { 1 } else { pp.saturating_mul(4).min(global_batch) };
    (1..=most).filter(move |&microbatches| {
        global_batch.is_multiple_of(microbatches)
            && (global_batch / microbatches).is_multiple_of(dp.max(1) as usize)
    })
}

#[cfg(test)]
mod tests {
    use shardloom::plan::ScheduleKind;

    use super::*;
    use crate::command::dimensions::split::Split;
    use crate::command::schedule_kind::Named;

    fn dimensions(global_batch: usize, pp: usize, dp: u32) -> Dimensions {
        Dimensions {
            split: Split { pp: Some(pp), dp: Some(dp), ..Split::default() },
            global_batch: Some(global_batch),
            algorithm: None,
            precision: None,
            stochastic_rounding: false,
            freeze: vec![],
            mask_documents: false,
            optimizer: None,
            clip_norm: None,
            no_clip: false,
            post_validation: false,
            communication_thread: false,
        }
    }

    fn chosen(kinds: &[ScheduleKind], (global_batch, pp, dp): (usize, usize, u32)) -> usize {
        let model = Model::load("gpt:layers=10,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let orders: Vec<Order> = kinds
            .iter()
            .map(|&kind| Order { named: Named::own(kind), chunks: None, versions: None })
            .collect();
        dimensions(global_batch, pp, dp).microbatches(&model, &orders)
    }

    #[test]
    fn a_pipeline_gets_as_many_microbatches_as_divide() {
        let chosen = |numbers| chosen(&[ScheduleKind::OneForwardOneBackward], numbers);
        assert_eq!(chosen((8, 1, 2)), 1);
        assert_eq!(chosen((8, 2, 1)), 8);
        assert_eq!(chosen((8, 2, 2)), 4);
        assert_eq!(chosen((64, 2, 2)), 8);
        assert_eq!(chosen((7, 2, 2)), 1);
        assert_eq!(chosen((0, 2, 0)), 1);
    }

    #[test]
    fn one_schedule_that_updates_after_every_microbatch_leaves_others_theirs() {
        let (one, each) = (ScheduleKind::OneForwardOneBackward, ScheduleKind::PipeDream);
        let numbers = (24, 2, 1);
        assert_eq!(chosen(&[each], numbers), 1);
        assert_eq!(chosen(&[each, one], numbers), chosen(&[one], numbers));
        assert_eq!(chosen(&[one, each], numbers), 8);
    }

    #[test]
    fn schedules_get_microbatches_with_which_they_exist() {
        let one = ScheduleKind::OneForwardOneBackward;
        assert_eq!(chosen(&[one], (24, 5, 1)), 12);
        // Interleaved wants as many as there are devices: of 1 and 3 that is none of five.
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (3, 5, 1)), 3);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (24, 5, 1)), 12);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (18, 4, 1)), 9);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (20, 3, 1)), 10);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (42, 4, 1)), 14);
        assert_eq!(chosen(&[ScheduleKind::Interleaved], (30, 3, 1)), 10);
        assert_eq!(chosen(&[one, ScheduleKind::Interleaved], (30, 3, 1)), 10);
        assert_eq!(chosen(&[ScheduleKind::Chimera], (9, 2, 1)), 3);
        assert_eq!(chosen(&[ScheduleKind::Chimera], (30, 4, 1)), 15);
        assert_eq!(chosen(&[ScheduleKind::ChimeraDoubling], (30, 4, 1)), 15);
        assert_eq!(chosen(&[ScheduleKind::ChimeraDoubling], (60, 4, 1)), 12);
    }
}
