//! A program and the places of all that its ranks will hold, before anything is allocated.

use std::sync::Arc;

use shardloom_fabric::Engine;
use shardloom_graph::Graph;
use shardloom_plan::{Number, Plan};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::sync::Synchronisation;
use shardloom_program::{Program, ProgramError, lower, lower_with};

use crate::{Contribution, Error, OnNonFinite, Result, Settings};

/// What a [`Trainer`](crate::Trainer) is made of, so that what it will hold is known before it holds it.
pub struct Blueprint {
    pub(crate) graph: Graph,
    pub(crate) program: Program,
    /// By class.
    pub(crate) buffers: Vec<BufferPlan>,
    pub(crate) messages: MessagePlan,
    pub(crate) skip_non_finite: bool,
    pub(crate) settings: Settings,
    /// What connects the ranks, if not the engine of one process.
    pub(crate) engine: Option<Arc<dyn Engine<Contribution>>>,
}

impl Blueprint {
    /// Lowers `plan` on `devices` devices and plans all buffers: some tenths of a second for ranks with ten
    /// thousands of tensors in a step.
    ///
    /// # Errors
    /// If the plan does not fit the graph, or asks for number formats other than fp32.
    pub fn new(graph: Graph, plan: &Plan, devices: usize, settings: Settings) -> Result<Blueprint> {
        Blueprint::lowered(graph, plan, settings, |graph, plan| lower(graph, plan, devices))
    }

    /// The same, with replicas kept equal in another way than the plan's `sync` says.
    ///
    /// # Errors
    /// As [`Blueprint::new`].
    pub fn with_way(
        graph: Graph,
        plan: &Plan,
        devices: usize,
        settings: Settings,
        way: &dyn Synchronisation,
    ) -> Result<Blueprint> {
        Blueprint::lowered(graph, plan, settings, |graph, plan| {
            lower_with(graph, plan, devices, way)
        })
    }

    fn lowered(
        graph: Graph,
        plan: &Plan,
        settings: Settings,
        lower: impl FnOnce(&Graph, &Plan) -> std::result::Result<Program, ProgramError>,
    ) -> Result<Blueprint> {
        let mut plan = plan.clone();
        let precision = plan.precision;
        if precision.compute != Number::Fp32 || precision.gradients != Number::Fp32 {
            let reason = "training here is in fp32; set precision.compute and \
                          precision.gradients to \"fp32\", and master to false";
            return Err(Error::Unsupported { reason: reason.into() });
        }
        plan.skip_non_finite |= settings.on_non_finite == OnNonFinite::Skip;
        let program = lower(&graph, &plan)?;
        let buffers =
            program.classes.iter().map(|class| BufferPlan::new(&program, class)).collect();
        let messages = MessagePlan::new(&program);
        let skip_non_finite = plan.skip_non_finite;
        let engine = None;
        Ok(Blueprint { graph, program, buffers, messages, skip_non_finite, settings, engine })
    }

    /// The same, with ranks connected by another engine than that of one process. Where the plan says that
    /// ranks have a communication thread, they start collectives and go on; whether these then proceed is the
    /// engine's matter ([`Overlapped`](shardloom_fabric::Overlapped) sees to it). Under the virtual clock
    /// communication is modelled, and no engine is asked.
    #[must_use]
    pub fn with_engine(self, engine: Arc<dyn Engine<Contribution>>) -> Blueprint {
        Blueprint { engine: Some(engine), ..self }
    }

    /// The program that will be executed.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes that all ranks together will hold, messages between stages included; kernels' scratch
    /// and what collectives send their messages in, up to one buffer of the largest for each group that a
    /// rank is in, are not.
    pub fn needed_bytes(&self) -> u64 {
        let classes = self.program.classes.iter().zip(&self.buffers).map(|(class, buffers)| {
            let held = class.persistent_bytes(0).total();
            held.saturating_add(buffers.arena_bytes).saturating_mul(class.mesh.size() as u64)
        });
        classes.fold(self.messages.bytes(&self.program), u64::saturating_add)
    }
}
