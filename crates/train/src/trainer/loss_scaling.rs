//! The scale of the loss as a run goes on. All ranks are told it with each row of steps.

use shardloom_checkpoint::Meta;
use shardloom_plan::LossScale;

/// The scale of the loss in the next step.
#[derive(Clone, Debug)]
pub(super) struct LossScaling {
    /// What the plan says; none for no scale.
    rule: Option<LossScale>,
    scale: f64,
    /// How many steps in a row have had finite gradients with this scale.
    finite: u64,
}

/// Keys in a checkpoint's extra entries.
const SCALE: &str = "loss-scale";
const FINITE: &str = "loss-scale.finite-steps";

impl LossScaling {
    /// At the start of a run.
    pub fn new(rule: Option<LossScale>) -> LossScaling {
        LossScaling { rule, scale: rule.map_or(1.0, LossScale::initial), finite: 0 }
    }

    /// Whether there is one.
    pub fn is_used(&self) -> bool {
        self.rule.is_some()
    }

    /// Whether steps may change it.
    pub fn changes(&self) -> bool {
        matches!(self.rule, Some(LossScale::Dynamic { .. }))
    }

    /// The factor of the next step.
    pub fn now(&self) -> f64 {
        self.scale
    }

    /// Whether a smaller one comes after a step with gradients that are not finite.
    pub fn can_shrink(&self) -> bool {
        self.changes() && self.scale > 1.0
    }

    /// Takes in whether the gradients of a step were finite.
    pub fn note(&mut self, is_finite: bool) {
        if let Some(rule) = self.rule {
            (self.scale, self.finite) = rule.after(self.scale, self.finite, is_finite);
        }
    }

    /// Notes it in a checkpoint.
    pub fn write(&self, meta: &mut Meta) {
        for (key, value) in [(SCALE, self.scale.to_string()), (FINITE, self.finite.to_string())] {
            match self.changes() {
                true => meta.extra.insert(key.into(), value),
                false => meta.extra.remove(key),
            };
        }
    }

    /// Goes on from a checkpoint, as at the start of a run if none is noted there.
    pub fn read(&mut self, meta: &Meta) {
        let scale = meta.extra.get(SCALE).and_then(|it| it.parse().ok());
        let finite = meta.extra.get(FINITE).and_then(|it| it.parse().ok());
        self.go_on(scale.zip(finite));
    }

    /// Goes on from that of the plan before.
    pub fn go_on_from(&mut self, before: &LossScaling) {
        self.go_on(before.changes().then_some((before.scale, before.finite)));
    }

    fn go_on(&mut self, from: Option<(f64, u64)>) {
        let sound = from.filter(|(scale, _)| scale.is_finite() && *scale >= 1.0);
        *self = LossScaling::new(self.rule);
        if let Some((scale, finite)) = sound.filter(|_| self.changes()) {
            (self.scale, self.finite) = (scale, finite);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dynamic() -> LossScaling {
        LossScaling::new(Some(LossScale::Dynamic { initial: 64.0, growth_interval: 3 }))
    }

    fn noting(mut scaling: LossScaling, finite: &[bool]) -> LossScaling {
        finite.iter().for_each(|&it| scaling.note(it));
        scaling
    }

    /// Doubled after three finite steps in a row, of which one has been before the checkpoint.
    #[test]
    fn a_run_goes_on_with_the_scale_and_the_steps_of_a_checkpoint() {
        let mut meta = Meta::default();
        noting(dynamic(), &[false, true]).write(&mut meta);
        let mut read = noting(dynamic(), &[false, false, false]);
        read.read(&meta);
        assert_eq!(read.now(), 32.0);
        assert_eq!(noting(read.clone(), &[true]).now(), 32.0);
        assert_eq!(noting(read, &[true, true]).now(), 64.0);
    }

    /// The scale after these steps: half of it after one that is not finite, but no less than 1, and twice as much
    /// after each three finite ones in a row.
    fn counted(initial: f64, finite: &[bool]) -> f64 {
        let mut scale = initial;
        for row in finite.split_inclusive(|finite| !finite) {
            let ends = row.iter().filter(|finite| !*finite).count();
            scale *= 2.0_f64.powi(((row.len() - ends) / 3) as i32);
            scale = if ends == 1 { (scale / 2.0).max(1.0) } else { scale };
        }
        scale
    }

    #[test]
    fn wherever_a_run_is_saved_or_gets_another_plan_its_scale_is_as_if_it_had_not() {
        let begin =
            |initial| LossScaling::new(Some(LossScale::Dynamic { initial, growth_interval: 3 }));
        for (initial, code) in (0..512).flat_map(|code| [(1.0, code), (2.0, code), (64.0, code)]) {
            let steps: Vec<bool> = (0..8).map(|step| code >> step & 1 == 1).collect();
            let steps = &steps[..code % 9];
            for at in 0..=steps.len() {
                let before = noting(begin(initial), &steps[..at]);
                let mut meta = Meta::default();
                before.write(&mut meta);
                // What is read or taken over replaces what was there.
                let mut saved = noting(begin(initial), &[false, true]);
                let mut replanned = saved.clone();
                saved.read(&meta);
                replanned.go_on_from(&before);
                for scaling in [saved, replanned] {
                    let found = noting(scaling, &steps[at..]).now();
                    assert_eq!(found, counted(initial, steps), "{steps:?} from {initial} at {at}");
                }
            }
        }
    }

    #[test]
    fn without_a_sound_scale_in_a_checkpoint_it_is_that_of_the_start() {
        for scale in [None, Some("0.5"), Some("NaN"), Some("inf"), Some("much")] {
            let mut meta = Meta::default();
            if let Some(scale) = scale {
                meta.extra.insert(SCALE.into(), scale.into());
                meta.extra.insert(FINITE.into(), "2".into());
            }
            let mut read = noting(dynamic(), &[false, true, true]);
            read.read(&meta);
            assert_eq!(read.now(), 64.0, "{scale:?}");
            // None of the steps before count.
            assert_eq!(noting(read, &[true]).now(), 64.0, "{scale:?}");
        }
    }

    #[test]
    fn a_constant_scale_goes_on_from_nothing_and_is_not_written() {
        let constant = || LossScaling::new(Some(LossScale::Constant { scale: 8.0 }));
        let mut meta = Meta::default();
        noting(dynamic(), &[false]).write(&mut meta);
        let mut read = constant();
        read.read(&meta);
        read.go_on_from(&noting(dynamic(), &[false]));
        assert_eq!(read.now(), 8.0);
        read.write(&mut meta);
        assert!(meta.extra.is_empty(), "{:?}", meta.extra);
        // Nor does one that changes go on from it.
        let mut other = noting(dynamic(), &[false]);
        other.go_on_from(&read);
        assert_eq!(other.now(), 64.0);
    }
}
