//! Whether a plan fits a model and a number of devices.

mod layout;
mod micro_batches;
mod servers;
mod stages;
mod sync;

use shardloom_graph::{AttentionKind, Graph};

use crate::{Number, Optimizer, Plan, PlanError, Precision, Rounding, ScheduleKind, Updates};

impl Plan {
    /// Checks that the plan fits `graph` and a cluster of `devices` devices: stages tile the model,
    /// devices exist and are used once, and everything that is split divides. Whether it fits in memory
    /// is a question for its program.
    ///
    /// # Errors
    /// The first field that does not fit, and what would.
    pub fn validate(&self, graph: &Graph, devices: usize) -> Result<(), PlanError> {
        self.validate_attention(graph)?;
        self.validate_batch()?;
        self.validate_schedule()?;
        self.validate_sync(graph)?;
        self.validate_servers(devices)?;
        self.optimizer.validate()?;
        self.validate_momentum()?;
        if let Some(norm) = self.clip_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return Err(PlanError::field("clip_norm", norm, "a norm is finite and above 0"));
        }
        if let Some(scale) = self.loss_scale {
            scale.validate(self)?;
        }
        self.validate_axes()?;
        self.validate_layout(graph, &self.layout, "layout")?;
        self.validate_rounding()?;
        if let Some(averaging) = self.sync.averaging {
            averaging.validate(self, graph)?;
        }
        if let Some(negotiation) = self.sync.negotiation {
            negotiation.validate(self)?;
        }
        self.validate_stages(graph, devices)
    }

    fn validate_attention(&self, graph: &Graph) -> Result<(), PlanError> {
        if self.attention == AttentionKind::Fused && graph.attention().is_none() {
            let rule = "the model has no attention to fuse";
            return Err(PlanError::field("attention", self.attention.name(), rule));
        }
        if self.mask_documents && !graph.masks_documents() {
            return Err(PlanError::field("mask_documents", true, Graph::DOCUMENT_MASK_RULE));
        }
        Ok(())
    }

    /// Checks that what a plan says besides goes with its schedule.
    fn validate_schedule(&self) -> Result<(), PlanError> {
        match (self.order.is_empty(), self.schedule == ScheduleKind::Table) {
            (true, true) => {
                let rule = "it needs the key `order`, with a line of actions for each device";
                return Err(PlanError::field("schedule", "table", rule));
            }
            (false, false) => {
                let rule = "only a schedule \"table\" has lines of actions";
                return Err(PlanError::field("order", format!("{:?}", self.order), rule));
            }
            _ => {}
        }
        let zero = self.syncs().map(|sync| sync.zero).max().unwrap_or(0);
        self.weights.validate(self.schedule, &self.optimizer, zero)?;
        self.updates.validate(self)?;
        if self.post_validation && !self.flushes() {
            let rule = "an update is validated before any of the next step's gradients is there; only a \
                        schedule with flush (weights.rule = \"flush\") keeps them apart";
            return Err(PlanError::field("post_validation", true, rule));
        }
        self.pass_times.validate()
    }

    /// Checks that momentum scaled from a reference batch is still between 0 and 1 in the 32 bits it is used
    /// with.
    fn validate_momentum(&self) -> Result<(), PlanError> {
        let Optimizer::Sgd { momentum, reference_batch: Some(reference), .. } = self.optimizer
        else {
            return Ok(());
        };
        let samples = match self.updates {
            Updates::Step => self.global_batch,
            Updates::Round => self.microbatch_samples(),
        };
        let (scaled, _) = self.optimizer.for_batch(samples);
        let Optimizer::Sgd { momentum: scaled, .. } = scaled else { return Ok(()) };
        let (size, end) = match scaled as f32 {
            1.0 => ("large", 1),
            0.0 if momentum > 0.0 => ("small", 0),
            _ => return Ok(()),
        };
        let rule = format!(
            "so {size} that the momentum of updates of {samples} samples is {end} in 32 bits"
        );
        Err(PlanError::field("optimizer.reference_batch", reference, rule))
    }

    /// Checks that there are weights that are rounded stochastically, where the plan says so.
    fn validate_rounding(&self) -> Result<(), PlanError> {
        let Precision { compute, rounding, .. } = self.precision;
        let has_any = compute == Number::Bf16 && self.trained_precisions().any(|it| !it.master);
        if rounding == Rounding::Nearest || has_any {
            return Ok(());
        }
        let rule = "of weights in bf16 without an fp32 copy: compute = \"bf16\" and master = false";
        Err(PlanError::field("precision.rounding", rounding.name(), rule))
    }
}
