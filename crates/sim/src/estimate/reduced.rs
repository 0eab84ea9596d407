//! The reduced model, lowered: one block of each kind, each a stage of its own.
//!
//! What lowering makes of such a stage is what it would make of the block anywhere: the same
//! instructions in the same layouts, with what comes from the blocks around it received and what goes
//! to them sent.

use shardloom_collectives::Kind;
use shardloom_graph::{Graph, Representative};
use shardloom_plan::{Mesh, ParameterGroup, ParameterGroups, ScheduleKind, Sync, Uniform};
use shardloom_program::{Program, ProgramError, lower};

use super::{Candidate, Settings};
use crate::SimError;

/// Replicas of the reduced model: as few as make lowering gather, scatter and reduce over them. How many a
/// candidate has changes nothing of what happens on one device between synchronisations.
const REPLICAS: u32 = 2;

/// Lowers the reduced model, split, recomputed and with a micro-batch as `candidate` asks, under ZeRO-3
/// if the algorithm can scatter.
///
/// None if the model cannot be split like that.
///
/// # Errors
/// If the settings are impossible for every candidate.
pub(super) fn program(
    representative: &Representative,
    settings: &Settings,
    candidate: &Candidate,
) -> Result<Option<Program>, SimError> {
    let graph = representative.graph();
    if !candidate.divides(graph) {
        return Ok(None);
    }
    let Settings { precision, optimizer, algorithm, bucket_bytes, .. } = *settings;
    let scatters = [Kind::ReduceScatter, Kind::AllGather].iter().all(|kind| kind.has(algorithm));
    let stages = graph.blocks().len();
    let mesh = Mesh::of(REPLICAS, candidate.cp, candidate.tp);
    let uniform = Uniform {
        pp: stages,
        mesh,
        sequence_parallel: candidate.sequence_parallel,
        global_batch: REPLICAS as usize * candidate.microbatch as usize,
        microbatches: 1,
        // Any with a stage on each device whose backward passes are whole, or in halves.
        schedule: match candidate.halves() {
            true => ScheduleKind::ZeroBubbleH1,
            false => ScheduleKind::Afab,
        },
        recompute: candidate.recompute,
        sync: Sync {
            algorithm,
            zero: if scatters { 3 } else { 0 },
            bucket_bytes,
            ..Sync::default()
        },
        precision,
        optimizer,
        clip_norm: None,
    };
    let mut plan = uniform.plan(graph, "", "");
    plan.layout = candidate.layout(graph);
    plan.parameters = frozen(graph, settings)?;
    plan.keeps_gathered = settings.plan_defaults.keeps_gathered;
    match lower(graph, &plan, stages * mesh.size()) {
        Ok(program) => Ok(Some(program)),
        Err(
            ProgramError::ParameterLayouts { .. }
            | ProgramError::ParameterGradients { .. }
            | ProgramError::FactoredSplit { .. }
            | ProgramError::Redistribution { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The parameters of the reduced model that are frozen, by their names: it may have none of those that a group's pattern
/// is about.
fn frozen(graph: &Graph, settings: &Settings) -> Result<Vec<ParameterGroup>, SimError> {
    let groups = ParameterGroups::from_groups(&settings.frozen).map_err(ProgramError::from)?;
    let names = graph.parameters().map(|(_, node)| node.name.as_str());
    let names: Vec<&str> = names.filter(|name| groups.group(name).is_some()).collect();
    let group = ParameterGroup { frozen: true, ..ParameterGroup::of_all(&names) };
    Ok(if names.is_empty() { vec![] } else { vec![group] })
}
