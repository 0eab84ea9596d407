//! What ways of synchronising do besides what stands at single buckets: how steps end, what controls a class, and
//! the classes of servers.

use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_schedule::ScheduleError;

use super::Synchronisation;
use super::averaging::Averages;
use super::server::Service;
use super::summing::Sums;
use crate::class::{Class, ClassId};
use crate::lower::{Boundaries, Order, Parameters};
use crate::{Control, Entry, Instruction, ProgramError, Tensor, TensorId};

/// A role that a class has for the sake of keeping replicas equal, or that further classes have.
///
/// Lowering asks for each class in the order of these methods.
pub(crate) trait Role {
    /// A flag that the class decides by, added to its tensors; none if it decides nothing.
    fn flag(&self, _parameters: &Parameters<'_>, _tensors: &mut Vec<Tensor>) -> Option<TensorId> {
        None
    }

    /// What ends a step, instead of sums that are left, the norm and the update.
    fn end_of_step(
        &self,
        _class: ClassId,
        _parameters: &Parameters<'_>,
    ) -> Option<Vec<Instruction>> {
        None
    }

    /// Changes what the class runs, once that is in order. What is returned begins its step.
    fn arrange(
        &self,
        _order: &mut Order,
        _class: ClassId,
        _parameters: &Parameters<'_>,
    ) -> Option<Entry> {
        None
    }

    /// The class's control, instead of its order alone, with the flag that was added for it.
    fn control(
        &self,
        _order: &mut Order,
        _class: ClassId,
        _parameters: &Parameters<'_>,
        _flag: Option<TensorId>,
    ) -> Option<Vec<Control>> {
        None
    }

    /// Checks a class that trains.
    ///
    /// # Errors
    /// If it does what the role forbids.
    fn check(&self, _class: &Class) -> Result<(), ProgramError> {
        Ok(())
    }

    /// Adds classes of servers behind those that train, which there are so far.
    ///
    /// # Errors
    /// If those do not go together with servers.
    fn add_classes(&self, _plan: &Plan, _classes: &mut Vec<Class>) -> Result<(), ProgramError> {
        Ok(())
    }
}

/// The roles that a plan and its common way of keeping replicas equal ask for. Adds routes to those of values, and to the
/// parameters of the classes that train, `workers`, what they do at single buckets for these roles.
///
/// # Errors
/// If the plan has other servers than the way, or more than there is for them to do.
pub(crate) fn roles<'a>(
    way: &dyn Synchronisation,
    (graph, plan): (&Graph, &Plan),
    workers: &mut [Parameters<'a>],
    boundaries: &mut Boundaries,
) -> Result<Vec<Box<dyn Role + 'a>>, ProgramError> {
    let mut roles: Vec<Box<dyn Role + 'a>> = vec![];
    if let Some(servers) = way.servers() {
        roles.push(Box::new(Service::of(servers, workers, boundaries)?));
    }
    if let Some(summation) = way.summation() {
        roles.push(Box::new(Sums::of(summation, graph, workers, boundaries)?));
    }
    if let Some(averaging) = plan.sync.averaging {
        roles.push(Box::new(Averages { averaging }));
    }
    Ok(roles)
}

/// Makes sure that a way has the servers that a plan says.
///
/// # Errors
/// If it has others.
pub(crate) fn require_same_servers(
    way: &dyn Synchronisation,
    plan: &Plan,
) -> Result<(), ProgramError> {
    let rule = if way.servers() != plan.sync.servers {
        format!(
            "sync.servers is {:?} in the plan, and {:?} as replicas are kept equal",
            plan.sync.servers,
            way.servers()
        )
    } else if way.summation() != plan.sync.summation {
        format!(
            "sync.summation is {:?} in the plan, and {:?} as replicas are kept equal",
            plan.sync.summation,
            way.summation()
        )
    } else {
        return Ok(());
    };
    Err(ScheduleError::Rule(rule).into())
}
