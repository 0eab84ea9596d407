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
