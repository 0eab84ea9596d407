//! The arguments that name a plan: a plan file, or a model and how it is split.

use std::path::{Path, PathBuf};

use clap::Args;
use shardloom::cluster::Cluster;
use shardloom::plan::Plan;
use shardloom::program::quantity::counted;
use shardloom::{LocalProfile, Model, read_plan_and_model, usual_request};

use super::dimensions::{Dimensions, Place};
use super::order::OrderOptions;
use super::padding::Padding;
use super::uplink::Network;
use super::{StackName, is_plan, load_model, require_no_option};
use crate::failure::Failure;
use crate::number::size;
use crate::terminal::Terminal;

/// A plan file, or a model and its machines. [`Shape`] says how the model is split; it is apart so that its
/// options come last in help.
#[derive(Debug, Args)]
pub struct PlanOrModel {
    /// A plan file, as `shardloom plan -o` writes it, or a model, with --cluster and what else makes a
    /// plan
    #[arg(value_name = "PLAN|MODEL")]
    what: String,

    /// The machines of a MODEL
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    pub stack: StackName,

    /// Sequence length of a MODEL [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = size)]
    seq: Option<usize>,

    #[command(flatten)]
    padding: Padding,
}

/// How a model that comes without a plan is split.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan (of a MODEL; a plan file says all this itself)")]
pub struct Shape {
    #[command(flatten)]
    order: OrderOptions,

    #[command(flatten)]
    dimensions: Dimensions,
}

/// A plan and its model.
pub struct Planned {
    /// The model.
    pub model: Model,
    /// The plan.
    pub plan: Plan,
    /// The machines, where they had to be looked at to make the plan.
    pub cluster: Option<Cluster>,
    /// The plan's file, if it has one.
    pub file: Option<PathBuf>,
}

impl PlanOrModel {
    /// The plan that the arguments name; a model is split as `shape` says.
    ///
    /// # Errors
    /// If there is no such plan or model, options contradict it, or it does not fit.
    pub fn planned(
        &self,
        Shape { order, dimensions }: &Shape,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Planned, Failure> {
        let path = Path::new(&self.what);
        match &self.cluster {
            Some(text) if !is_plan(path)? => {
                let model = self.padding.of(load_model(&self.what, self.seq, terminal)?)?;
                let text = &self.network.of(text)?;
                let cluster = self.stack.load_cluster(text, local, terminal)?;
                let usual = usual_request(&model, &cluster, text, dimensions.global_batch());
                let order = order.order();
                let microbatches = dimensions.microbatches(&model, &[order]);
                let mut plan =
                    dimensions.plan(&model, order, microbatches, &Place::on(&cluster, &usual))?;
                let (needed, there) = (plan.device_count(), cluster.device_count() as usize);
                if needed > there {
                    let message = format!(
                        "--cluster {text} has {}, but the plan needs {needed}: take more, or less of --pp, \
                         --dp, --cp, --tp and servers",
                        counted(there, "device")
                    );
                    return Err(Failure::option("--cluster", message));
                }
                plan.recompute = plan.recompute.under(cluster.stack());
                Ok(Planned { model, plan, cluster: Some(cluster), file: None })
            }
            cluster => {
                if !is_plan(path)? {
                    Model::load(&self.what)?;
                    let message = format!("--cluster is needed to make a plan of {}", self.what);
                    return Err(Failure::usage("--cluster", message));
                }
                let cluster = cluster.as_ref().map(|_| "--cluster");
                let seq = self.seq.map(|_| "--seq");
                let given = cluster
                    .or(seq)
                    .or(self.padding.given())
                    .or(order.given())
                    .or(dimensions.given());
                let (mut plan, model) = read_plan_and_model(path)?;
                require_no_option(given, path)?;
                plan.cluster = self.network.of(&plan.cluster)?;
                Ok(Planned { model, plan, cluster: None, file: Some(path.to_path_buf()) })
            }
        }
    }
}
