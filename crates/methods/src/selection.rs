//! The fastest of some plans that fits in memory.

use shardloom_plan::{Mesh, Plan, Stage};
use shardloom_program::quantity::counted;
use shardloom_search::Judgement;

use crate::choice::Task;
use crate::{Choice, MethodError};

/// A plan and how it was simulated.
pub(crate) struct Found {
    pub plan: Plan,
    pub judgement: Judgement,
}

/// What comes of plans that are offered one by one: the fastest that fits, or the one that comes closest.
pub(crate) struct Selection {
    memory_share: f64,
    offered: usize,
    best: Option<Found>,
    closest: Option<Found>,
}

impl Selection {
    /// Of plans that may fill this share of a device's memory.
    pub fn new(memory_share: f64) -> Selection {
        Selection { memory_share, offered: 0, best: None, closest: None }
    }

    /// Keeps a plan if it is better than those before, and says whether it fits.
    pub fn offer(&mut self, plan: Plan, judgement: Judgement) -> bool {
        self.offered += 1;
        let fits = judgement.fits(self.memory_share);
        let measure = if fits { step_seconds } else { share };
        let kept = if fits { &mut self.best } else { &mut self.closest };
        if kept.as_ref().is_none_or(|it| measure(&judgement) < measure(&it.judgement)) {
            *kept = Some(Found { plan, judgement });
        }
        fits
    }

    /// Whether some plan fits.
    pub fn fits(&self) -> bool {
        self.best.is_some()
    }

    /// The fastest plan that fits.
    ///
    /// # Errors
    /// If none does, with the one that comes closest; without a reason where none was offered.
    pub fn finish(self, task: &Task<'_>) -> Result<Found, Option<MethodError>> {
        match (self.best, self.closest) {
            (Some(best), _) => Ok(best),
            (None, closest) => Err(closest.map(|it| nothing_fits(task, &it, self.offered))),
        }
    }
}

impl Found {
    /// The answer, of `space` configurations of which so many were simulated.
    pub fn choice(self, space: usize, simulated: usize) -> Choice {
        let Found { plan, judgement } = self;
        Choice { plan, judgement, space, impossible: 0, simulated, notes: vec![] }
    }
}

fn step_seconds(judgement: &Judgement) -> f64 {
    judgement.step_seconds
}

/// How full the fullest device is.
fn share(judgement: &Judgement) -> f64 {
    let fullest = judgement.fullest();
    fullest.map_or(0.0, |it| it.peak_bytes as f64 / it.memory_bytes as f64)
}

fn nothing_fits(task: &Task<'_>, closest: &Found, simulated: usize) -> MethodError {
    let fullest = closest.judgement.fullest();
    let memory = fullest.map_or(0, |it| it.memory_bytes) as f64;
    let available_bytes = (memory * task.request.memory_share) as u64;
    let lasting = fullest.map_or(0, |it| it.persistent.total());
    MethodError::NothingFits {
        method: task.method,
        model: task.graph.name().to_owned(),
        cluster: task.request.cluster.clone(),
        simulated: simulated as u32,
        closest: in_words(&closest.plan),
        needed_bytes: fullest.map_or(0, |it| it.peak_bytes),
        available_bytes,
        replicas_exceed: holds_all(&closest.plan) && lasting > available_bytes,
    }
}

/// Whether each device has the whole model, with all that is kept of it.
fn holds_all(plan: &Plan) -> bool {
    let is_whole = |stage: &Stage| stage.mesh.size() == stage.mesh.dp() as usize;
    let alone = plan.pipeline.iter().all(|pipeline| pipeline.stage.len() == 1);
    let shared = plan.syncs().any(|sync| sync.zero > 0 || sync.has_servers());
    alone && !shared && plan.stages().all(|(_, stage)| is_whole(stage))
}

fn in_words(plan: &Plan) -> String {
    let mesh = plan.stages().next().map_or(Mesh::SINGLE, |(_, stage)| stage.mesh);
    let parts = if plan.sync.has_servers() { "worker" } else { "stage" };
    format!(
        "{} of {mesh} with {} and recomputation {}",
        counted(plan.stages().count(), parts),
        counted(plan.microbatches, "micro-batch"),
        plan.recompute.name()
    )
}
