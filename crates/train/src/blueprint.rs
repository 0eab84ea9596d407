//! A program and the places of all that its ranks will hold, before anything is allocated.

use std::sync::Arc;

use shardloom_fabric::Engine;
use shardloom_graph::Graph;
use shardloom_kernels::{Device, processor};
use shardloom_plan::{LossScale, Number, Plan, Precision, Rounding};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::sync::Synchronisation;
use shardloom_program::{Group, Program, Rank, lower, lower_with};

use crate::{Contribution, Error, OnNonFinite, Processes, Result, Settings};

/// A way of keeping replicas equal that a run keeps for as long as it lasts.
pub(crate) type Way = dyn Synchronisation + Send + Sync;

/// What a [`Trainer`](crate::Trainer) is made of, so that what it will hold is known before it holds it.
/// A clone makes another trainer of the same plan without planning anew.
#[derive(Clone)]
pub struct Blueprint {
    pub(crate) graph: Graph,
    /// What was lowered, and on how many devices.
    pub(crate) plan: Plan,
    pub(crate) devices: usize,
    pub(crate) program: Program,
    /// By class.
    pub(crate) buffers: Vec<BufferPlan>,
    pub(crate) messages: MessagePlan,
    /// What all ranks compute on.
    pub(crate) device: Arc<dyn Device>,
    pub(crate) skip_non_finite: bool,
    pub(crate) settings: Settings,
    /// How replicas are kept equal, if not as the plan's `sync` says.
    pub(crate) way: Option<Arc<Way>>,
    pub(crate) connected: Connected,
    /// By rank: the others that do as much, on other samples.
    pub(crate) alike: Vec<Vec<usize>>,
}

/// What connects the ranks.
#[derive(Clone, Default)]
pub(crate) enum Connected {
    /// The engine of one process.
    #[default]
    Here,
    /// Another.
    By(Arc<dyn Engine<Contribution>>),
    /// That of several processes.
    Over(Arc<Processes>),
}

impl Blueprint {
    /// Lowers `plan` on `devices` devices and plans all buffers: some tenths of a second for ranks with ten
    /// thousands of tensors in a step.
    ///
    /// # Errors
    /// If the plan does not fit the graph, or asks for number formats that are not trained in.
    pub fn new(graph: Graph, plan: &Plan, devices: usize, settings: Settings) -> Result<Blueprint> {
        Blueprint::lowered(graph, plan, devices, settings, None)
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
        way: Arc<dyn Synchronisation + Send + Sync>,
    ) -> Result<Blueprint> {
        Blueprint::lowered(graph, plan, devices, settings, Some(way))
    }

    /// The one or the other.
    pub(crate) fn lowered(
        graph: Graph,
        plan: &Plan,
        devices: usize,
        settings: Settings,
        way: Option<Arc<Way>>,
    ) -> Result<Blueprint> {
        let original = plan;
        let mut plan = original.clone();
        if let Some(reason) = untrainable(&plan) {
            return Err(Error::Unsupported { reason: reason.into() });
        }
        plan.skip_non_finite |= settings.on_non_finite == OnNonFinite::Skip;
        let program = match &way {
            None => lower(&graph, &plan, devices)?,
            Some(way) => lower_with(&graph, &plan, devices, &**way)?,
        };
        let buffers =
            program.classes.iter().map(|class| BufferPlan::new(&program, class)).collect();
        let messages = MessagePlan::new(&program);
        let skip_non_finite = plan.leaves_out_non_finite();
        let alike = alike(&program, &Group::Mesh(plan.batch_axes(&graph)));
        let (device, connected) = (processor(), Connected::Here);
        Ok(Blueprint {
            graph,
            plan: original.clone(),
            devices,
            program,
            buffers,
            messages,
            device,
            skip_non_finite,
            settings,
            way,
            connected,
            alike,
        })
    }

    /// The same with ranks connected by another engine than that of one process. Where the plan says that
    /// ranks have a communication thread, they start collectives and go on; whether these then proceed is the
    /// engine's matter ([`Overlapped`](shardloom_fabric::Overlapped) sees to it). Under the virtual clock
    /// communication is modelled, and no engine is asked.
    #[must_use]
    pub fn with_engine(self, engine: Arc<dyn Engine<Contribution>>) -> Blueprint {
        Blueprint { connected: Connected::By(engine), ..self }
    }

    /// The same with ranks in several processes, each of which has its share of them.
    #[must_use]
    pub fn over(self, processes: Arc<Processes>) -> Blueprint {
        Blueprint { connected: Connected::Over(processes), ..self }
    }

    /// The same on another device than the processor.
    #[must_use]
    pub fn on(self, device: Arc<dyn Device>) -> Blueprint {
        Blueprint { device, ..self }
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

/// By rank: the other members of its group.
fn alike(program: &Program, group: &Group) -> Vec<Vec<usize>> {
    let others = |rank: u32| {
        let (class, position) = program.locate(Rank(rank));
        let members = program.members(class, position, group).into_iter();
        members.filter(|member| member.0 != rank).map(|member| member.0 as usize).collect()
    };
    (0..program.ranks() as u32).map(others).collect()
}

/// Why numbers of the plan's formats are not trained with, if they are not.
fn untrainable(plan: &Plan) -> Option<&'static str> {
    plan.trained_precisions().find_map(|precision| untrainable_in(plan, precision))
}

fn untrainable_in(plan: &Plan, precision: Precision) -> Option<&'static str> {
    let Precision { compute, gradients, master, fp8_products, rounding } = precision;
    if fp8_products {
        return Some(
            "products are trained in no format of 8 bits here; set precision.fp8_products to false",
        );
    }
    let moves_weights = plan.weights.corrections().move_weights();
    let fits = gradients == compute || gradients == Number::Fp32;
    match compute {
        Number::Fp32 if fits => None,
        Number::Bf16 if fits && !master && rounding == Rounding::Nearest => Some(
            "updates in 16 bits lose what is small beside a weight; set precision.master to true, or rounding = \
             \"stochastic\"",
        ),
        Number::Fp16 if fits && !master => Some(
            "updates in 16 bits lose what is small beside a weight; set precision.master to true",
        ),
        Number::Bf16 | Number::Fp16 if fits && moves_weights => Some(
            "discrepancy correction and weight prediction are trained in fp32 only; set \
             precision.compute and precision.gradients to \"fp32\", and master to false",
        ),
        Number::Fp16 if fits && plan.loss_scale.is_none() && LossScale::usual(plan).is_none() => {
            Some(
                "gradients below 6e-8 are zero in fp16, and the loss cannot be scaled: this plan finds no norm of all \
                 gradients, by which it is seen that they overflow, or keeps gradients from step to step; set \
                 precision.compute and precision.gradients to \"fp32\", and master to false",
            )
        }
        Number::Fp16 if fits && plan.loss_scale.is_none() => Some(
            "gradients below 6e-8 are zero in fp16, so that the loss has to be scaled; set loss_scale = { rule = \
             \"dynamic\" }, or without a flush, or with post_validation, { rule = \"constant\", scale = 1024.0 }",
        ),
        Number::Bf16 | Number::Fp16 if fits => None,
        _ => Some(
            "gradients are in fp32 or as precision.compute says; set precision.gradients to one of these",
        ),
    }
}
