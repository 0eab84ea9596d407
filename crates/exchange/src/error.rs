//! Why a plan cannot go to another project, or a configuration cannot become a plan.

use std::fmt::Display;

use shardloom_graph::GraphError;
use shardloom_plan::PlanError;
use shardloom_schedule::ScheduleError;

use crate::Project;

/// Why a plan cannot go to another project, or a configuration cannot become a plan.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The project has no words for something without which the plan would be another one.
    #[error("{project} has no word for {key} = {value}: {reason}")]
    Refused {
        /// Where the plan was to go.
        project: Project,
        /// What the plan says.
        key: String,
        /// The value that it says.
        value: String,
        /// Why that cannot be said there, and what can.
        reason: String,
    },
    /// This program does not write something without which the plan would be another one, whether or not the
    /// project has words for it.
    #[error("{key} = {value} is not written for {project} yet: {reason}")]
    Unwritten {
        /// Where the plan was to go.
        project: Project,
        /// What the plan says.
        key: &'static str,
        /// The value that it says.
        value: String,
        /// What can be done instead.
        reason: &'static str,
    },
    /// A word of a configuration cannot become part of a plan.
    #[error("{place}: {key} = {value}: {rule}")]
    Word {
        /// The file.
        place: String,
        /// The word.
        key: String,
        /// Its value.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// A text is no configuration.
    #[error("{place}: {message}")]
    Text {
        /// The file.
        place: String,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// A configuration makes a plan that does not fit its model or machines.
    #[error("{place} makes a plan that does not fit: {source}")]
    Plan {
        /// The file.
        place: String,
        /// Why it does not.
        source: PlanError,
    },
    /// A configuration makes a model that cannot be built.
    #[error("{place} describes a model that cannot be built: {source}")]
    Model {
        /// The file.
        place: String,
        /// Why it cannot.
        source: Box<GraphError>,
    },
    /// The plan's schedule does not exist.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl ExchangeError {
    /// The configuration that is wrong, if it is one.
    pub fn place(&self) -> Option<&str> {
        match self {
            ExchangeError::Refused { .. }
            | ExchangeError::Unwritten { .. }
            | ExchangeError::Schedule(_) => None,
            ExchangeError::Word { place, .. }
            | ExchangeError::Text { place, .. }
            | ExchangeError::Plan { place, .. }
            | ExchangeError::Model { place, .. } => Some(place),
        }
    }

    /// `project` has no word for this key of a plan.
    pub(crate) fn refused(
        project: Project,
        key: impl Into<String>,
        value: impl Display,
        reason: impl Into<String>,
    ) -> ExchangeError {
        let (key, reason) = (key.into(), reason.into());
        ExchangeError::Refused { project, key, value: value.to_string(), reason }
    }
}
