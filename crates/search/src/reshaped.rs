//! What plans of another shape would take: other widths of a mesh, stages dealt to devices in another way, and some kinds
//! of device only. Changes of single keys are [`edits`](crate::edits).

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::Graph;
use shardloom_plan::{Arrangement, Axis, Mesh, Plan, ScheduleKind};
use shardloom_program::quantity::counted;
use shardloom_sim::matmul_precision;

use crate::auto::{Finalist, fastest};
use crate::edits::arrangement;
use crate::explain::{fastest_like, is_searched};
use crate::judge::unless_too_large;
use crate::search::Search;
use crate::subset::Subset;
use crate::{Judgement, Only, Request, SearchError, judge};

/// The axes of a plan that a search finds, among which devices can be moved.
const AXES: [Axis; 3] = [Axis::DP, Axis::CP, Axis::TP];

/// Ways to deal stages to devices.
const ARRANGEMENTS: [Arrangement; 4] =
    [Arrangement::Chain, Arrangement::Looped, Arrangement::Wave, Arrangement::Bidirectional];

/// Plans of another shape than `plan`, each after what it has, to stand behind "with"; those of some kinds of device are
/// for these as a cluster of their own. What cannot be is left out.
///
/// # Errors
/// If the cluster lacks a device or a rate.
pub(crate) fn reshaped(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
) -> Result<Vec<(String, Finalist)>, SearchError> {
    let mut found = vec![];
    for (what, plan) in widths(plan) {
        let judgement = match unless_too_large(judge(graph, cluster, &plan)) {
            // The model or the batch does not go with it.
            Err(SearchError::Program(_)) => continue,
            judgement => judgement?,
        };
        found.extend(judgement.map(|it| (what, judged(plan, it))));
    }
    if is_searched(plan) {
        found.extend(dealt_otherwise(graph, cluster, plan)?);
        found.extend(on_some_kinds(graph, cluster, plan)?);
    }
    Ok(found)
}

fn judged(plan: Plan, judgement: Judgement) -> Finalist {
    Finalist { plan, estimated_seconds: None, judgement }
}

/// The mesh of all stages, if they have the same and it has no other axes than these.
fn mesh_of(plan: &Plan) -> Option<Mesh> {
    let mut meshes = plan.stages().map(|(_, stage)| stage.mesh);
    let mesh = meshes.next()?;
    let is_usual = mesh.axes().all(|axis| AXES.contains(&axis));
    (is_usual && meshes.all(|it| it == mesh)).then_some(mesh)
}

/// `plan` with half as many devices along one axis and twice as many along another, and what that is.
fn widths(plan: &Plan) -> Vec<(String, Plan)> {
    let Some(mesh) = mesh_of(plan) else { return vec![] };
    let mut found = vec![];
    for (from, to) in AXES.into_iter().flat_map(|from| AXES.map(|to| (from, to))) {
        let [less, more] = [from, to].map(|axis| mesh.width(axis) as u32);
        let splits = plan.layout.0.iter().any(|rule| rule.axis == to);
        if from == to || !less.is_multiple_of(2) || !splits {
            continue;
        }
        // As many positions of a micro-batch on a device as before: all axes but tensor parallelism split them.
        let microbatches = match (from, to) {
            (Axis::TP, _) if plan.microbatches.is_multiple_of(2) => plan.microbatches / 2,
            (Axis::TP, _) => continue,
            (_, Axis::TP) => plan.microbatches * 2,
            _ => plan.microbatches,
        };
        let mesh = mesh.with(from, less / 2).with(to, more * 2).arranged(&plan.axes);
        let mut other = Plan { microbatches, ..plan.clone() };
        for stage in other.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
            stage.mesh = mesh;
        }
        found.push((format!("{from} = {} and {to} = {}", less / 2, more * 2), other));
    }
    found
}

/// For each way to deal stages to devices that is not the plan's: the fastest plan of the same widths, micro-batches and
/// recomputation with a schedule that deals them so.
fn dealt_otherwise(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
) -> Result<Vec<(String, Finalist)>, SearchError> {
    let Some(mesh) = mesh_of(plan) else { return Ok(vec![]) };
    let pp = plan.device_count() / mesh.size();
    let own = arrangement(plan.schedule);
    let is_one = plan.pipeline.len() == 1 || own == Arrangement::Bidirectional;
    if pp < 2 || !is_one || !ScheduleKind::SEARCHED.contains(&plan.schedule) {
        return Ok(vec![]);
    }
    let samples = plan.global_batch / plan.microbatches / mesh.dp() as usize;
    let only = Only {
        pp: Some(pp as u32),
        dp: Some(mesh.dp()),
        cp: Some(mesh.width(Axis::CP) as u32),
        tp: Some(mesh.tp()),
        zero: Some(plan.sync.zero),
        microbatch: Some(samples as u32),
        recompute: Some(plan.recompute),
    };
    let planned = plan.graph_of(graph);
    let mut found = vec![];
    for other in ARRANGEMENTS.into_iter().filter(|&it| it != own) {
        let schedules = ScheduleKind::SEARCHED.into_iter().filter(|&it| arrangement(it) == other);
        // What `post_validation` would bring a search finds out by simulation; its estimates know nothing of it.
        let request = Request {
            only: only.clone(),
            schedules: schedules.collect(),
            post_validation: false,
            finalists: 1,
            ..Request::like(plan)
        };
        let mut search = match Search::of(&planned, cluster, &request) {
            Err(SearchError::NoneWith { .. } | SearchError::Request { .. }) => continue,
            search => search?,
        };
        let Some(finalists) = unless_too_large(search.finalists(&[]))? else { continue };
        if let Some(best) = fastest(&finalists, cluster, &request, &[]) {
            let stages = best.plan.stages().count() / pp;
            let stages = counted(stages, "stage");
            let what = format!("schedule = {:?}, {stages} on a device", best.plan.schedule.name());
            found.push((what, best));
        }
    }
    Ok(found)
}

/// The fastest plan by estimate for each choice of kinds of device that leaves out devices of the plan.
fn on_some_kinds(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
) -> Result<Vec<(String, Finalist)>, SearchError> {
    let used = plan.devices();
    let kind = |device: u32| cluster.kind_of(DeviceId(device)).ok().map(|it| it.name.as_str());
    let first = used.first().and_then(|&device| kind(device));
    if used.iter().all(|&device| kind(device) == first) {
        return Ok(vec![]);
    }
    let mut found = vec![];
    // Where a kind that the plan does not use has no rate in its format, kinds cannot be told to be fast.
    let Ok(subsets) = Subset::of_kinds(cluster, matmul_precision(plan.precision.compute)) else {
        return Ok(vec![]);
    };
    for subset in subsets.into_iter().filter(|it| !used.iter().all(|&device| it.has(device))) {
        if let Some(plan) = fastest_like(graph, &subset.cluster, plan)? {
            let profiles = subset.cluster.profiles().into_iter();
            let names: Vec<&str> = profiles.map(|it| it.device.name.as_str()).collect();
            let what = format!("{} alone ({} devices)", names.join(" and "), subset.count());
            let judgement = unless_too_large(judge(graph, &subset.cluster, &plan))?;
            found.extend(judgement.map(|it| (what, judged(plan, it))));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::Stack;
    use shardloom_graph::ModelSpec;
    use shardloom_plan::Uniform;

    use super::*;

    const MODEL: &str = "gpt:layers=6,hidden=64,heads=4,seq=32,vocab=64";

    fn graph() -> Graph {
        ModelSpec::parse(MODEL).and_then(|spec| spec.graph()).expect("a model")
    }

    fn cluster(text: &str) -> Cluster {
        Cluster::parse(text).expect("a cluster").under(Stack::default())
    }

    fn plan(pp: usize, mesh: Mesh, microbatches: usize) -> Plan {
        let uniform = Uniform { pp, mesh, microbatches, global_batch: 48, ..Uniform::default() };
        uniform.plan(&graph(), MODEL, "c")
    }

    #[test]
    fn widths_are_moved_between_axes_with_as_many_positions_on_a_device() {
        let of = |plan: &Plan| -> Vec<(String, Mesh, usize)> {
            let found = widths(plan).into_iter();
            found.map(|(what, it)| (what, it.pipeline[0].stage[0].mesh, it.microbatches)).collect()
        };
        let expected = [
            ("dp = 2 and cp = 2", Mesh::of(2, 2, 2), 4),
            ("dp = 2 and tp = 4", Mesh::of(2, 1, 4), 8),
            ("tp = 1 and dp = 8", Mesh::of(8, 1, 1), 2),
            ("tp = 1 and cp = 2", Mesh::of(4, 2, 1), 2),
        ];
        let expected = expected.map(|(what, mesh, batches)| (what.to_owned(), mesh, batches));
        for pp in [1, 2] {
            assert_eq!(of(&plan(pp, Mesh::of(4, 1, 2), 4)), expected, "{pp}");
        }
        // Three replicas cannot be halved, and an odd number of micro-batches neither.
        assert_eq!(of(&plan(1, Mesh::of(3, 1, 2), 1)), []);
        assert_eq!(of(&plan(1, Mesh::SINGLE, 4)), []);
        let shared = Mesh::of(4, 1, 2).sharing_within(2).expect("it divides");
        assert_eq!(of(&plan(1, shared, 4)), []);
        // Nothing of the model is split along an axis that no rule names.
        let mut unruled = plan(1, Mesh::of(4, 1, 2), 4);
        unruled.layout.0.retain(|rule| rule.axis != Axis::CP);
        let names: Vec<String> = of(&unruled).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["dp = 2 and tp = 4", "tp = 1 and dp = 8"]);
        // Stages of other widths have no width of the plan.
        let mut uneven = plan(2, Mesh::of(2, 1, 1), 4);
        uneven.pipeline[0].stage[1].mesh = Mesh::of(1, 1, 2);
        assert_eq!(of(&uneven), []);
    }

    #[test]
    fn stages_are_dealt_in_each_other_way_at_the_same_widths() {
        let (graph, cluster) = (graph(), cluster("h100-80g:8"));
        let planned = plan(2, Mesh::of(2, 1, 2), 4);
        let found = dealt_otherwise(&graph, &cluster, &planned).expect("it is searched");
        let ways: Vec<Arrangement> =
            found.iter().map(|it| arrangement(it.1.plan.schedule)).collect();
        assert_eq!(ways, ARRANGEMENTS[1..]);
        for (what, it) in &found {
            let other = &it.plan;
            assert!(other.stages().all(|(_, stage)| stage.mesh == Mesh::of(2, 1, 2)));
            let kept = [&planned, other]
                .map(|it| (it.device_count(), it.microbatches, it.recompute, it.sync.zero));
            assert_eq!(kept[0], kept[1], "{what}");
            assert!(what.contains(other.schedule.name()), "{what}");
            assert_eq!(judge(&graph, &cluster, other).expect("it is a plan"), it.judgement);
        }
        // Two pipelines of two stages each are not one of four.
        let mut replicas = plan(2, Mesh::SINGLE, 4);
        let mut other = replicas.pipeline[0].clone();
        other.stage.iter_mut().for_each(|stage| stage.devices.0[0] += 2);
        replicas.pipeline.push(other);
        assert!(dealt_otherwise(&graph, &cluster, &replicas).expect("it is two").is_empty());
        let one_stage = plan(1, Mesh::of(4, 1, 2), 4);
        assert!(dealt_otherwise(&graph, &cluster, &one_stage).expect("it is one").is_empty());
    }

    #[test]
    fn kinds_of_device_are_left_out_where_a_plan_has_several() {
        let (graph, mixed) = (graph(), cluster("h100-80g:1x2+v100-32g:1x2"));
        let planned = plan(1, Mesh::of(4, 1, 1), 4);
        let found = on_some_kinds(&graph, &mixed, &planned).expect("it is searched");
        let names: Vec<&str> = found.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["h100-80g alone (2 devices)", "v100-32g alone (2 devices)"]);
        let alone = cluster("h100-80g:1x2");
        let fastest = fastest_like(&graph, &alone, &planned).expect("a search").expect("a plan");
        assert_eq!(found[0].1.plan, fastest);
        assert_eq!(found[0].1.judgement, judge(&graph, &alone, &fastest).expect("it is a plan"));
        // A plan for the devices of one kind leaves out the others already.
        let of_one = plan(1, Mesh::of(2, 1, 1), 4);
        assert!(on_some_kinds(&graph, &mixed, &of_one).expect("nothing to do").is_empty());
    }
}
