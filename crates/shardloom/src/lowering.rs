//! Plans, checked for size before anything is made of them.

use std::path::Path;

use shardloom_cluster::Cluster;
use shardloom_document::{at_line, toml_line_of};
use shardloom_graph::{Extents, Graph, GraphError};
use shardloom_plan::{Axis, ParameterGroup, Plan, PlanError, Uniform};
use shardloom_program::Program;
use shardloom_sim::estimate::balanced_stages;

use crate::arithmetic::sample_flops;
use crate::{Error, Model, Result, model};

/// The most bytes that a value of one step may have over all devices together.
const MOST_BYTES: u128 = 1 << 60;

/// The most passes that the stages of a pipeline may run in a step.
const MOST_PASSES: u128 = 10_000_000;

/// Reads a plan.
///
/// # Errors
/// If the file cannot be read or holds no plan.
pub fn read_plan(path: &Path) -> Result<Plan> {
    Ok(Written::read(path)?.plan)
}

/// Reads a plan and its model, and checks that they fit each other.
///
/// # Errors
/// If a file cannot be read, or the plan does not fit its model; then with file and line.
pub fn read_plan_and_model(path: &Path) -> Result<(Plan, Model)> {
    let written = Written::read(path)?;
    let model = Model::load(&written.plan.model).map_err(|error| written.of_model(error))?;
    written.require_fit(&model)?;
    Ok((written.plan, model))
}

/// Where a key, or the longest part of it that is there, stands in a plan's file: `plan.toml:4`.
pub fn place_in_plan(path: &Path, key: &str) -> String {
    let line = model::read(path).ok().and_then(|text| toml_line_of(&text, key));
    at_line(&path.display().to_string(), line)
}

/// A plan with the text that it is written in, for errors to say where.
struct Written {
    plan: Plan,
    text: String,
    place: String,
}

impl Written {
    fn read(path: &Path) -> Result<Written> {
        let place = path.display().to_string();
        if path.is_dir() {
            let message =
                "this is a folder, and a plan is a file, as `shardloom plan -o` writes it";
            return Err(PlanError::Text { place, message: message.into() }.into());
        }
        let text = model::read(path)?;
        Ok(Written { plan: Plan::from_toml(&text, &place)?, text, place })
    }

    /// What is wrong with the model that the plan names, unless that is in a file of its own.
    fn of_model(&self, error: Error) -> Error {
        let is_here = match &error {
            Error::Graph(GraphError::Text { .. }) => Model::is_line(&self.plan.model),
            Error::Graph(_) => true,
            _ => false,
        };
        if !is_here {
            return error;
        }
        let place = at_line(&self.place, toml_line_of(&self.text, "model"));
        GraphError::Text { place, message: error.to_string() }.into()
    }

    /// Checks that the plan fits `model`.
    fn require_fit(&self, model: &Model) -> Result<()> {
        let Written { plan, text, place } = self;
        require_sizes(model, plan)?;
        // Whether the cluster has so many devices is another question.
        let devices = plan.least_devices().min(Cluster::MAX_DEVICES as usize);
        let fit = plan.validate(&plan.graph_of(model.graph()), devices);
        fit.map_err(|error| Plan::place_error(text, place, error).into())
    }
}

/// The plan that a few numbers describe, in full and checked, with as few stages on each device as the
/// schedule wants. Stages are cut so that the device with the most arithmetic, in all its stages, has as
/// little as can be: the last stage holds the head and the loss, which may outweigh many layers, the first the embedding, which has
/// none to speak of. This depends on the model alone, so it is the same on every machine, measured or not.
///
/// ```
/// use shardloom::plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
/// use shardloom::{Model, uniform_plan};
///
/// let model = Model::load("gpt:layers=4,hidden=64,heads=4,seq=32,vocab=256")?;
/// let numbers = Uniform {
///     pp: 2,
///     mesh: Mesh::of(2, 1, 1),
///     sequence_parallel: false,
///     global_batch: 8,
///     microbatches: 4,
///     schedule: ScheduleKind::OneForwardOneBackward,
///     recompute: Recompute::None,
///     sync: Sync::default(),
///     precision: Precision::FP32,
///     optimizer: Optimizer::default(),
///     clip_norm: Some(1.0),
/// };
/// let plan = uniform_plan(&model, &numbers, "local:4")?;
/// assert_eq!(plan.device_count(), 4);
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If it does not fit the model or has numbers beyond any machine.
pub fn uniform_plan(model: &Model, numbers: &Uniform, cluster: &str) -> Result<Plan> {
    uniform_plan_in_chunks(model, numbers, cluster, numbers.least_chunks(), vec![])
}

/// Likewise with `chunks` stages on each device, of one pipeline or, where the schedule has pipelines in
/// both directions, of as many pipelines, and with the parameters of some groups `frozen`.
///
/// # Errors
/// As [`uniform_plan`], and if the schedule has no such stages.
pub fn uniform_plan_in_chunks(
    model: &Model,
    numbers: &Uniform,
    cluster: &str,
    chunks: usize,
    frozen: Vec<ParameterGroup>,
) -> Result<Plan> {
    let mesh = numbers.mesh;
    let width = |axis| mesh.width(axis);
    let factors = [
        ("pp", numbers.pp),
        ("dp", mesh.dp() as usize),
        ("cp", width(Axis::CP)),
        ("tp", width(Axis::TP)),
    ];
    if let Some(&(key, _)) = factors.iter().find(|(_, factor)| *factor == 0) {
        return Err(Error::PlanSize { key, value: 0, rule: "at least 1 is needed".into() });
    }
    let devices =
        factors.iter().fold(1u128, |all, &(_, factor)| all.saturating_mul(factor as u128));
    let most = u128::from(Cluster::MAX_DEVICES);
    if devices > most {
        let rule = format!("pp x dp x cp x tp is at most {most}");
        return Err(Error::PlanSize { key: "devices", value: devices, rule });
    }
    let blocks = model.graph().blocks().len();
    let rule = format!(
        "{} has {blocks} blocks, embedding and head included, and a stage holds at least one",
        model.spec().name()
    );
    if numbers.pp > blocks {
        return Err(Error::PlanSize { key: "pp", value: numbers.pp as u128, rule });
    }
    // No arrangement has more stages of one pipeline, and few have more pipelines than devices.
    if chunks > blocks.max(numbers.pp) {
        return Err(Error::PlanSize { key: "chunks", value: chunks as u128, rule });
    }
    let places = numbers.places(chunks)?;
    let stages = places[0].len();
    if stages > blocks {
        let rule = format!("with pp = {} these are {stages} stages; {rule}", numbers.pp);
        return Err(Error::PlanSize { key: "chunks", value: chunks as u128, rule });
    }
    let cuts = balanced_stages(&flops_before(model.graph(), &frozen)?, &places);
    let pipelines = numbers.pipelines(&places, &cuts);
    let mut plan = numbers.plan_of(model.graph(), &model.text(), cluster, pipelines);
    plan.parameters = frozen;
    require_sizes(model, &plan)?;
    plan.validate(model.graph(), plan.device_count())?;
    Ok(plan)
}

/// FLOPs of a sample in all blocks before each one, and in all.
fn flops_before(graph: &Graph, frozen: &[ParameterGroup]) -> Result<Vec<f64>> {
    let mut before = vec![0.0];
    let mut flops = 0.0;
    for of_block in sample_flops(graph, frozen)? {
        flops += of_block;
        before.push(flops);
    }
    Ok(before)
}

/// The program of `plan` on a cluster of `devices` devices.
///
/// # Errors
/// If the plan does not fit the model or the devices, or has numbers beyond any machine.
pub fn lower(model: &Model, plan: &Plan, devices: usize) -> Result<Program> {
    require_sizes(model, plan)?;
    Ok(shardloom_program::lower(&plan.graph_of(model.graph()), plan, devices)?)
}

/// Refuses numbers beyond any machine, before anything is made of them.
pub(crate) fn require_sizes(model: &Model, plan: &Plan) -> Result<()> {
    let stages = plan.stages().count() as u128;
    let passes = stages.saturating_mul(plan.microbatches as u128).saturating_mul(2);
    if passes > MOST_PASSES {
        let rule = format!(
            "with {stages} stages a step of at most {} micro-batches is needed",
            MOST_PASSES / stages.max(1) / 2
        );
        let value = plan.microbatches as u128;
        return Err(Error::PlanSize { key: "microbatches", value, rule });
    }
    let graph = model.graph();
    let extents = Extents::global(graph, 1);
    let largest = graph.values().map(|(_, value)| extents.elements(&value.axes)).max();
    let bytes = (largest.unwrap_or(0) as u128 * 8).saturating_mul(plan.global_batch as u128);
    if bytes > MOST_BYTES {
        let rule = format!(
            "with it a tensor of {} has over 2^60 bytes; is a number mistyped?",
            model.spec().name()
        );
        let value = plan.global_batch as u128;
        return Err(Error::PlanSize { key: "global_batch", value, rule });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardloom_plan::ScheduleKind;

    use super::*;

    /// The blocks of each stage of a GPT, its embedding and head the first and the last block.
    fn stages(layers: usize, vocabulary: usize, pp: usize) -> Vec<(usize, usize)> {
        let text = format!("gpt:layers={layers},hidden=64,heads=4,seq=32,vocab={vocabulary}");
        let model = Model::load(&text).expect("a model");
        let plan = uniform_plan(&model, &numbers(pp), "local:2").expect("a plan");
        plan.stages().map(|(_, stage)| stage.blocks).collect()
    }

    fn numbers(pp: usize) -> Uniform {
        Uniform { pp, global_batch: 8, microbatches: 4, ..Uniform::default() }
    }

    #[test]
    fn stages_of_every_pipeline_are_cut_by_their_arithmetic() {
        let text = "gpt:layers=6,hidden=64,heads=4,seq=32,vocab=64";
        let model = Model::load(text).expect("a model");
        let plan = |schedule, pp, chunks| {
            let numbers = Uniform { schedule, ..numbers(pp) };
            uniform_plan_in_chunks(&model, &numbers, "local:4", chunks, vec![])
        };
        let cuts = |plan: &Plan| -> Vec<Vec<usize>> {
            let ends = |pipeline: &shardloom_plan::Pipeline| {
                pipeline.stage.iter().map(|stage| stage.blocks.1).collect()
            };
            plan.pipeline.iter().map(ends).collect()
        };
        let interleaved = plan(ScheduleKind::Interleaved, 2, 3).expect("a plan");
        // The embedding has no arithmetic, and the head next to none.
        assert_eq!(cuts(&interleaved), [[2, 3, 4, 5, 6, 8]]);
        let chimera = plan(ScheduleKind::Chimera, 4, 4).expect("a plan");
        assert_eq!(cuts(&chimera).len(), 4);
        let one = stages(6, 64, 4).iter().map(|blocks| blocks.1).collect::<Vec<_>>();
        assert!(cuts(&chimera).iter().all(|cut| *cut == one), "{:?}", cuts(&chimera));
        for (schedule, pp, chunks, key) in [
            (ScheduleKind::OneForwardOneBackward, 2, 2, "chunks"),
            (ScheduleKind::Interleaved, 2, 5, "chunks"),
            (ScheduleKind::Interleaved, 2, usize::MAX, "chunks"),
            (ScheduleKind::Interleaved, 9, 2, "pp"),
        ] {
            let error = plan(schedule, pp, chunks).expect_err("no plan").to_string();
            assert!(error.starts_with(&format!("{key} = ")), "{error}");
        }
    }

    #[test]
    fn stages_are_cut_by_their_arithmetic() {
        // A head of 64 x 64 is a twelfth of a layer's matrices, so layers alone are dealt.
        assert_eq!(stages(4, 64, 2), [(0, 3), (3, 6)]);
        assert_eq!(stages(3, 64, 2), [(0, 3), (3, 5)]);
        // A head of 64 x 12288 is as much as 16 layers.
        assert_eq!(stages(4, 12_288, 2), [(0, 5), (5, 6)]);
        assert_eq!(stages(4, 12_288, 3).last(), Some(&(5, 6)));
        assert_eq!(stages(4, 64, 1), [(0, 6)]);
        assert_eq!(stages(1, 64, 3), [(0, 1), (1, 2), (2, 3)]);
    }
}
