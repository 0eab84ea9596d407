//! The options that make a plan.

use std::num::NonZeroU32;

use clap::Args;
use shardloom::cluster::Cluster;
use shardloom::plan::{LossScale, Number, Plan, Precision, Sync};
use shardloom::search::{Outcome, Request};
use shardloom::{Launched, LocalProfile, Model, find_plan, usual_request};

use crate::command::dimensions::{Dimensions, Place};
use crate::command::in_options::of_request;
use crate::command::order::OrderOptions;
use crate::command::plan_line::plan_line;
use crate::command::{load_cluster, machines_of};
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

/// A plan to train with.
pub struct Chosen {
    /// The plan.
    pub plan: Plan,
    /// The search that found it, if one did.
    pub search: Option<Outcome>,
}

impl From<Plan> for Chosen {
    /// A plan that was given.
    fn from(plan: Plan) -> Chosen {
        Chosen { plan, search: None }
    }
}

impl Shape {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let ranks = self.ranks.map(|_| "--ranks");
        ranks.or(self.order.given()).or(self.dimensions.given())
    }

    /// The plan for `model`.
    pub fn plan(
        &self,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        match self.ranks {
            Some(ranks) => self.found_here(ranks.get(), model, local, terminal),
            None => self.said(model).map(Chosen::from),
        }
    }

    /// Errors if a plan is to be found for the cores of one machine.
    pub fn require_no_ranks(&self) -> Result<(), Failure> {
        let message = "--ranks: finds a plan for the cores of one machine; of several processes each has \
                       a rank, and a plan is found for these without --ranks";
        match self.ranks {
            Some(_) => Err(Failure::usage("--ranks", message)),
            None => Ok(()),
        }
    }

    /// Whether nothing is said of how the model is split.
    pub fn leaves_split(&self) -> bool {
        self.ranks.is_none() && self.order.given().is_none() && self.dimensions.leaves_split()
    }

    /// The fastest plan on the machines of several processes, which are measured if they never were.
    pub fn found_for(
        &self,
        model: &Model,
        on: (&Launched, &LocalProfile),
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        self.dimensions.refuse_unjudged("a search for a plan")?;
        found_on(on, terminal, |cluster, file| self.found(model, cluster, file, terminal))
    }

    /// Likewise, to come to the same as `plan` but for the order of additions.
    ///
    /// # Errors
    /// If that is trained with late weights, which depend on the split.
    pub fn found_instead(
        &self,
        plan: &Plan,
        model: &Model,
        on: (&Launched, &LocalProfile),
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        if !plan.parameters.is_empty() {
            let message = "--replan: groups of parameters are not found; start as many processes as the plan has \
                           ranks, or give another plan";
            return Err(Failure::usage("--replan", message));
        }
        let Sync { averaging, compression, .. } = plan.sync;
        if !plan.flushes() || plan.sync.has_servers() || averaging.is_some() {
            let message = "--replan: what a plan without flush, with servers, or with averaged replicas comes to \
                           depends on its split; start as many processes as it has ranks, or give another plan";
            return Err(Failure::usage("--replan", message));
        }
        if !compression.is_none() {
            let message = "--replan: what compressed gradients come to depends on how many replicas round them; start \
                           as many processes as the plan has ranks, or give another plan";
            return Err(Failure::usage("--replan", message));
        }
        let found = found_on(on, terminal, |cluster, file| {
            let usual = usual_request(model, cluster, file, plan.global_batch);
            fastest(model, cluster, &anew(plan, usual), terminal)
        })?;
        Ok(Chosen { plan: as_before(found.plan, plan), ..found })
    }

    /// The plan that options say.
    fn said(&self, model: &Model) -> Result<Plan, Failure> {
        let order = self.order.order();
        let microbatches = self.dimensions.microbatches(model, &[order]);
        self.dimensions.plan(model, order, microbatches, &Place::here(&self.dimensions))
    }

    fn found_here(
        &self,
        ranks: u32,
        model: &Model,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        self.dimensions.leave_choice_to("--ranks", self.order.given())?;
        self.dimensions.refuse_unjudged("--ranks")?;
        let cores = load_cluster("local", local, terminal)?.device_count();
        if ranks > cores {
            let message = format!("--ranks {ranks}: this machine has 1 to {cores} to plan for");
            return Err(Failure::usage("--ranks", message));
        }
        let text = format!("local:{ranks}");
        let cluster = load_cluster(&text, local, terminal)?;
        self.found(model, &cluster, &text, terminal)
    }

    /// The fastest plan on cores.
    fn found(
        &self,
        model: &Model,
        cluster: &Cluster,
        text: &str,
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        let usual = usual_request(model, cluster, text, self.dimensions.global_batch());
        let request = self.dimensions.request(
            Request { precision: Precision::FP32, formats_by_machines: false, ..usual },
            model,
        )?;
        fastest(model, cluster, &request, terminal)
    }
}

fn fastest(
    model: &Model,
    cluster: &Cluster,
    request: &Request,
    terminal: Terminal,
) -> Result<Chosen, Failure> {
    let outcome = find_plan(model, cluster, request).map_err(of_request)?.outcome;
    // People read it in the lines that a run begins with.
    if terminal.json() {
        terminal.note(format_args!("plan: {}", plan_line(&outcome.plan)));
    }
    outcome.notes.iter().for_each(|note| terminal.note(note));
    Ok(Chosen { plan: outcome.plan.clone(), search: Some(outcome) })
}

/// A plan that is found on the machines of several processes; `find` is told these and the file that has them.
fn found_on(
    (launched, local): (&Launched, &LocalProfile),
    terminal: Terminal,
    find: impl FnOnce(&Cluster, &str) -> Result<Chosen, Failure>,
) -> Result<Chosen, Failure> {
    let (cluster, file) = machines_of(launched, local, terminal)?;
    find(&cluster, &file.display().to_string())
}

/// What a search is asked for a plan by which a run goes on: `usual` but for what `before` says of what is computed.
fn anew(before: &Plan, usual: Request) -> Request {
    // No machine is measured in fp16.
    let precision = match before.precision.compute {
        Number::Fp16 => Precision::FP32,
        Number::Fp32 | Number::Bf16 => before.precision,
    };
    Request {
        precision,
        formats_by_machines: false,
        optimizer: before.optimizer,
        clip_norm: before.clip_norm,
        mask_documents: before.mask_documents,
        ..usual
    }
}

/// A plan that was found, with what the plan of before says of what is computed and not of how it is split.
fn as_before(found: Plan, before: &Plan) -> Plan {
    let Plan { precision, skip_non_finite, loss_scale, .. } = *before;
    // Where the scale may change a step waits for the norm of the one before.
    let may_overlap = !matches!(loss_scale, Some(LossScale::Dynamic { .. }));
    let post_validation = found.post_validation && may_overlap;
    Plan { precision, skip_non_finite, loss_scale, post_validation, ..found }
}

#[cfg(test)]
mod tests {
    use shardloom::plan::Uniform;

    use super::*;

    #[test]
    fn a_run_goes_on_with_attention_within_documents() {
        let text = "gpt:layers=2,hidden=8,heads=2,seq=8,vocab=16";
        let model = Model::load(text).expect("a model");
        let plan = Uniform::default().plan(model.graph(), text, "local");
        for mask_documents in [false, true] {
            let before = Plan { mask_documents, ..plan.clone() };
            let request = anew(&before, Request::new(text, "local", 8));
            assert_eq!(request.mask_documents, mask_documents);
        }
    }

    /// Also where the plan was found for fp32, as no machine is measured in fp16.
    #[test]
    fn a_run_goes_on_in_its_own_formats() {
        let model = Model::load("mlp:inputs=4,hidden=8,layers=2,classes=2").expect("a model");
        let plan = |pp, precision| {
            let uniform = Uniform { pp, precision, ..Uniform::default() };
            uniform.plan(model.graph(), "model", "local")
        };
        let loss_scale = Some(LossScale::dynamic());
        let before = Plan { skip_non_finite: true, loss_scale, ..plan(2, Precision::MIXED) };
        // A scale that may change does not go with updates that are validated afterwards.
        let found = Plan { post_validation: true, ..plan(1, Precision::FP32) };
        let found = as_before(found, &before);
        let expected = Plan { skip_non_finite: true, loss_scale, ..plan(1, Precision::MIXED) };
        assert_eq!(found, expected);
        let before = Plan { loss_scale: None, ..before };
        let found = Plan { post_validation: true, ..plan(1, Precision::FP32) };
        assert!(as_before(found, &before).post_validation);
    }
}
