//! What is compared: schedules of one shape, or methods that choose their plans.

use std::fmt;

use shardloom::cluster::Cluster;
use shardloom::methods::{self, Method};
use shardloom::plan::{Plan, ScheduleKind};
use shardloom::search::{Judgement, Request};
use shardloom::{Model, find_plan};

use crate::command::dimensions::{Dimensions, Place};
use crate::command::in_options::of_request;
use crate::command::order::Order;
use crate::command::schedule_kind::Named;
use crate::failure::Failure;

/// A way of choosing a plan.
#[derive(Clone, Copy, Debug)]
pub enum Chooser {
    /// The search of `shardloom plan`.
    Search,
    /// A published system.
    Method(&'static Method),
}

/// What one of them comes with.
pub struct Planned {
    pub plan: Plan,
    /// How it was simulated, by who chose it.
    pub judgement: Option<Judgement>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What is compared.
pub enum Contenders<'a> {
    /// Schedules of one shape.
    Orders { orders: Vec<Order>, dimensions: &'a Dimensions, microbatches: usize, place: Place },
    /// Methods for one request.
    Choosers { choosers: Vec<Chooser>, cluster: &'a Cluster, request: Box<Request> },
}

impl Contenders<'_> {
    /// Their number.
    pub fn len(&self) -> usize {
        match self {
            Contenders::Orders { orders, .. } => orders.len(),
            Contenders::Choosers { choosers, .. } => choosers.len(),
        }
    }

    /// What one is called.
    pub fn name(&self, index: usize) -> String {
        match self {
            Contenders::Orders { orders, .. } => orders[index].to_string(),
            Contenders::Choosers { choosers, .. } => choosers[index].to_string(),
        }
    }

    /// The plan of one.
    ///
    /// # Errors
    /// If it has none for these numbers.
    pub fn plan(&self, index: usize, model: &Model) -> Result<Planned, Failure> {
        let (plan, judgement, notes) = match self {
            Contenders::Orders { orders, dimensions, microbatches, place } => {
                let plan = dimensions.plan(model, orders[index], *microbatches, place)?;
                (plan, None, vec![])
            }
            Contenders::Choosers { choosers, cluster, request } => match choosers[index] {
                Chooser::Search => {
                    let found = find_plan(model, cluster, request).map_err(of_request)?.outcome;
                    (found.plan, Some(found.judgement), found.notes)
                }
                Chooser::Method(method) => {
                    let found = method.choose(model.graph(), cluster, request);
                    let found = found.map_err(of_request)?;
                    (found.plan, Some(found.judgement), found.notes)
                }
            },
        };
        Ok(Planned { plan, judgement, notes })
    }

    /// Micro-batches of a step, where all have the same number.
    pub fn microbatches(&self) -> Option<usize> {
        match self {
            Contenders::Orders { microbatches, .. } => Some(*microbatches),
            Contenders::Choosers { .. } => None,
        }
    }

    /// How many devices there are for each.
    pub fn devices(&self) -> usize {
        match self {
            Contenders::Orders { dimensions, .. } => dimensions.ranks().unwrap_or(0),
            Contenders::Choosers { cluster, .. } => cluster.device_count() as usize,
        }
    }

    /// What the first column holds.
    pub fn heading(&self) -> &'static str {
        match self {
            Contenders::Orders { .. } => "schedule",
            Contenders::Choosers { .. } => "method",
        }
    }
}

impl Chooser {
    /// What the search is called among methods.
    const SEARCH: &'static str = "auto";
}

impl fmt::Display for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Chooser::Search => Chooser::SEARCH,
            Chooser::Method(method) => method.name,
        })
    }
}

/// Parses methods separated by commas, or `all`.
///
/// # Errors
/// What would be right.
pub fn choosers(text: &str) -> Result<Choosers, String> {
    let one = |name: &str| match name {
        name if name.eq_ignore_ascii_case(Chooser::SEARCH) => Ok(Chooser::Search),
        name => methods::named(name).map(Chooser::Method).map_err(|error| error.to_string()),
    };
    let all = || {
        let methods = methods::all().iter().map(Chooser::Method);
        [Chooser::Search].into_iter().chain(methods).collect()
    };
    Ok(Choosers(match text {
        "all" => all(),
        text => text.split(',').map(one).collect::<Result<_, _>>()?,
    }))
}

/// Methods that were asked for.
#[derive(Clone, Debug)]
pub struct Choosers(pub Vec<Chooser>);

/// All schedules but orders that are written down, which are a plan's.
pub fn every_order() -> Vec<Order> {
    let known = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    known.map(|kind| Order { named: Named::own(kind), chunks: None, versions: None }).collect()
}
