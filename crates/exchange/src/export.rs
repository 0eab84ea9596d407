//! Plans as other projects' configuration, one file for each.

mod accelerate;
mod deepspeed;
mod megatron;
mod nanotron;
mod torchtitan;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Plan, Uniform};

use crate::recipe::{Leaving, Recipe};
use crate::{ExchangeError, Project, Transformer, Unsaid};

/// What a plan is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The files, the one to begin with first.
    pub files: Vec<File>,
    /// What the plan says and they do not. It is written in them, too.
    pub unsaid: Vec<Unsaid>,
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub text: String,
}

/// The machines that a configuration is launched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// How many there are.
    pub nodes: usize,
    /// How many devices of each take part.
    pub devices: usize,
}

/// Writes `plan`, which trains `spec` with its graph `graph`, as `project` takes it.
///
/// # Errors
/// If the plan says something that makes it what it is, and that the project has no word for; or if it does
/// not use as many devices as `machines` are.
pub fn export(
    project: Project,
    plan: &Plan,
    spec: &ModelSpec,
    graph: &Graph,
    machines: Machines,
) -> Result<Exported, ExchangeError> {
    let (recipe, unsaid) = Recipe::of(project, plan, spec, graph)?;
    let leaving = Leaving { project, recipe, plan: Some(plan), machines, unsaid };
    let devices = leaving.recipe.devices();
    if machines.nodes * machines.devices != devices {
        let reason = format!(
            "it is launched on {} machines with {} devices each, all of which take part",
            machines.nodes, machines.devices
        );
        return leaving.refuse("pipeline.stage.devices", format!("{devices} devices"), reason);
    }
    written(leaving)
}

/// Whether [`export`] would write a plan of these numbers for `spec`, with `chunks` stages on each of its meshes: it
/// is asked itself, but for a table of actions, which every schedule has. Stages are cut evenly, or as the project
/// [cuts them](own_cuts).
///
/// # Errors
/// What [`export`] would say.
pub fn takes(
    project: Project,
    spec: &ModelSpec,
    numbers: &Uniform,
    chunks: usize,
) -> Result<(), ExchangeError> {
    let recipe = Recipe::of_numbers(project, spec, numbers, chunks)?;
    let machines = Machines { nodes: 1, devices: recipe.devices() };
    written(Leaving { project, recipe, plan: None, machines, unsaid: vec![] })?;
    Ok(())
}

/// Whether a project cuts models into stages itself, and takes no other cut.
pub fn cuts_itself(project: Project) -> bool {
    project == Project::Nanotron
}

/// Where a project that [cuts models itself](cuts_itself) cuts one: the first block of each stage, then the number of
/// blocks. None if it would leave a stage without a block, if it leaves cuts to plans, or if the model is none that is
/// written for other projects.
pub fn own_cuts(project: Project, spec: &ModelSpec, stages: usize) -> Option<Vec<usize>> {
    own_cut(project, &Transformer::of(spec)?, stages)
}

pub(crate) fn own_cut(project: Project, model: &Transformer, stages: usize) -> Option<Vec<usize>> {
    cuts_itself(project).then(|| nanotron::own_cut(model, stages))?
}

fn written(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    leaving.require_divided_vocabulary()?;
    leaving.leave_out_padding();
    leaving.require_experts_alone()?;
    if leaving.project != Project::DeepSpeed {
        leaving.require_no_second_copy()?;
    }
    match leaving.project {
        Project::Megatron => leaving.require_plain_model(&["qkv_bias", "qk_norm"])?,
        Project::Torchtitan | Project::Nanotron => leaving.require_plain_model(&[])?,
        Project::DeepSpeed | Project::Accelerate => {}
    }
    match leaving.project {
        Project::Megatron => megatron::export(leaving),
        Project::DeepSpeed => deepspeed::export(leaving),
        Project::Torchtitan => torchtitan::export(leaving),
        Project::Nanotron => nanotron::export(leaving),
        Project::Accelerate => accelerate::export(leaving),
    }
}

impl Leaving<'_> {
    /// Lines that say what a file is, for which version, and what is not said in it.
    fn heading(&self) -> Vec<String> {
        let Recipe { model, pp, dp, ep, cp, tp, .. } = &self.recipe;
        let experts = if *ep > 1 { format!(", ep {ep}") } else { String::new() };
        let mut lines = vec![
            format!("For {}; written by shardloom export.", self.project.version()),
            format!(
                "{} layers of width {} on {} devices: pp {pp}, dp {dp}{experts}, cp {cp}, tp {tp}; {} in {} \
                 micro-batches.",
                model.layers,
                model.hidden,
                self.recipe.devices(),
                match self.recipe.global_batch {
                    1 => "1 sample".into(),
                    samples => format!("{samples} samples"),
                },
                self.recipe.microbatches
            ),
        ];
        if !self.unsaid.is_empty() {
            lines.push("The plan also says what cannot be said here:".into());
        }
        for Unsaid { key, value, reason } in &self.unsaid {
            lines.push(format!("- {key} = {value}: {reason}"));
        }
        lines
    }

    /// The heading as comments that begin with `#`.
    fn comments(&self) -> String {
        self.heading().iter().map(|line| format!("# {line}\n")).collect()
    }
}

/// A number as it is written in every language: with a point or an exponent.
fn real(number: f64) -> String {
    format!("{number:?}")
}

/// A 32-bit number in its own digits, with a point or an exponent.
fn single(number: f32) -> String {
    format!("{number:?}")
}
