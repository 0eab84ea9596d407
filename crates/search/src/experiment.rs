//! Experiments in the simulator: the same program with some of its communication for nothing, or on
//! another cluster.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, Class, Instruction, Program};
use shardloom_sim::{Call, Driver, Modelled, Options, SimError, Simulation, run};

use crate::SearchError;

/// What a plan communicates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Activations within tensor-parallel groups.
    Tensor,
    /// Gradients and weights between replicas, and the agreement on a norm.
    Replicas,
    /// Activations and gradients between stages.
    Stages,
}

impl Traffic {
    pub(crate) const ALL: [Traffic; 3] = [Traffic::Tensor, Traffic::Replicas, Traffic::Stages];

    fn of(class: &Class, instruction: &Instruction) -> Option<Traffic> {
        let of_values =
            instruction.operands().all(|view| class.tensor(view.tensor).is_of_microbatch());
        match (&instruction.action, of_values) {
            (Action::Collective { .. }, true) => Some(Traffic::Tensor),
            (Action::Send { .. } | Action::Receive { .. }, true) => Some(Traffic::Stages),
            (Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. }, false) => {
                Some(Traffic::Replicas)
            }
            _ => None,
        }
    }
}

/// Durations from the cost model, but none for some traffic.
struct Without<'d, 'a> {
    program: &'d Program,
    modelled: &'d mut Modelled<'a>,
    free: &'d [Traffic],
}

impl Without<'_, '_> {
    fn is_free(&self, call: &Call<'_>) -> bool {
        let class = self.program.class(call.actor.class);
        Traffic::of(class, call.instruction).is_some_and(|it| self.free.contains(&it))
    }
}

impl Driver for Without<'_, '_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn launches(&self) -> bool {
        self.modelled.launches()
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        match self.is_free(call) {
            true => Ok(Picos::ZERO),
            false => self.modelled.launch(call),
        }
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.modelled.local(call)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.modelled.send(call, durations)?;
        if self.is_free(call) {
            durations.fill(Picos::ZERO);
        }
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.modelled.receive(call)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        match members.first().is_some_and(|call| self.is_free(call)) {
            true => Ok(Picos::ZERO),
            false => self.modelled.collective(members),
        }
    }
}

/// A plan's program on its cluster.
pub(crate) struct Bench<'a> {
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub program: Program,
}

impl<'a> Bench<'a> {
    /// Lowers `plan`.
    ///
    /// # Errors
    /// If the plan does not fit the model or the cluster.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        plan: &Plan,
    ) -> Result<Bench<'a>, SearchError> {
        let program = shardloom_program::lower(graph, plan, cluster.device_count() as usize)?;
        Ok(Bench { graph, cluster, program })
    }

    /// Simulates it where `free` traffic takes no time.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn without(&self, free: &[Traffic]) -> Result<Simulation, SearchError> {
        self.on(self.cluster, free)
    }

    /// Simulates it on another cluster of as many devices.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn on(&self, cluster: &Cluster, free: &[Traffic]) -> Result<Simulation, SearchError> {
        let mut modelled = Modelled::new(self.graph, cluster, &self.program)?;
        let mut driver = Without { program: &self.program, modelled: &mut modelled, free };
        let options = Options::default().filled(&self.program);
        Ok(run(&self.program, cluster, options, &mut driver)?)
    }
}

/// `cluster` with every group of nodes changed.
///
/// # Errors
/// As [`Cluster::new`].
pub(crate) fn changed(
    cluster: &Cluster,
    change: impl Fn(&mut NodeGroup),
) -> Result<Cluster, SearchError> {
    let mut groups = cluster.groups().to_vec();
    groups.iter_mut().for_each(change);
    Ok(cluster.with_groups(groups)?)
}
