//! The options that make a plan.

use std::num::NonZeroU32;

use clap::Args;
use shardloom::plan::{Plan, Precision};
use shardloom::search::Request;
use shardloom::{LocalProfile, Model, find_plan, usual_request};

use crate::command::dimensions::{Dimensions, Place};
use crate::command::load_cluster;
use crate::command::order::OrderOptions;
use crate::command::plan_line::plan_line;
use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;

/// How a model that comes without a plan is trained.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan (of a MODEL; a plan file says all this itself)")]
pub struct Shape {
    /// Find the fastest plan for this many ranks on this machine, which is measured if it never was
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU32>)]
    ranks: Option<NonZeroU32>,

    #[command(flatten)]
    order: OrderOptions,

    #[command(flatten)]
    dimensions: Dimensions,
}

impl Shape {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let ranks = self.ranks.map(|_| "--ranks");
        ranks.or(self.order.given()).or(self.dimensions.given())
    }

    /// Errors if a plan is to be found for this machine.
    pub fn require_no_search(&self) -> Result<(), Failure> {
        let message = "--ranks: finds a plan for the cores of one machine, not for several processes; give \
                       a plan, or its widths (--dp, --tp, --pp)";
        match self.ranks {
            Some(_) => Err(Failure::usage("--ranks", message)),
            None => Ok(()),
        }
    }

    /// The plan for `model`.
    pub fn plan(
        &self,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Plan, Failure> {
        match self.ranks {
            Some(ranks) => self.found(ranks.get(), model, local, terminal),
            None => {
                let order = self.order.order();
                let microbatches = self.dimensions.microbatches(model, &[order]);
                let place = Place::here(&self.dimensions);
                self.dimensions.plan(model, order, microbatches, &place)
            }
        }
    }

    fn found(
        &self,
        ranks: u32,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Plan, Failure> {
        self.dimensions.leave_choice_to("--ranks", self.order.given())?;
        self.dimensions.require_in_line("--ranks")?;
        let cores = load_cluster("local", local, terminal)?.device_count();
        if ranks > cores {
            let message = format!("--ranks {ranks}: this machine has 1 to {cores} to plan for");
            return Err(Failure::usage("--ranks", message));
        }
        let text = format!("local:{ranks}");
        let cluster = load_cluster(&text, local, terminal)?;
        let usual = usual_request(model, &cluster, &text, self.dimensions.global_batch());
        let request = self.dimensions.request(Request { precision: Precision::FP32, ..usual })?;
        let plan = find_plan(model, &cluster, &request)?.outcome.plan;
        terminal.note(format_args!("plan: {}", plan_line(&plan)));
        Ok(plan)
    }
}
