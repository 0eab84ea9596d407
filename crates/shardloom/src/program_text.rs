//! What ranks of a plan hold and do, as text.

use serde::Serialize;
use shardloom_plan::Plan;
use shardloom_program::{Class, Rank};

use crate::{Error, Model, Result, lower};

/// What one rank holds and does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankText {
    /// The rank.
    pub rank: u32,
    /// How many ranks do the same on other parts, this one included.
    pub multiplicity: usize,
    /// One line for each tensor that it holds and each instruction that it follows;
    /// [`LEGEND`](shardloom_program::text::LEGEND) says how they are read.
    pub text: String,
}

/// What `rank` of `plan` holds and does in a step, or the first of all ranks that do the same.
///
/// ```
/// use shardloom::plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
/// use shardloom::{Model, program_text, uniform_plan};
///
/// let model = Model::load("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16")?;
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
///     clip_norm: None,
/// };
/// let plan = uniform_plan(&model, &numbers, "local:4")?;
/// let texts = program_text(&model, &plan, None)?;
/// assert_eq!(texts.iter().map(|it| it.rank).collect::<Vec<_>>(), [0, 2]);
/// assert!(texts[1].text.starts_with("rank 2 of 4: stage 1, dp 0; 2 ranks, 2 to 3, do the same"));
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If the plan does not fit the model, or there is no such rank.
pub fn program_text(model: &Model, plan: &Plan, rank: Option<u32>) -> Result<Vec<RankText>> {
    let program = lower(model, plan, plan.least_devices())?;
    let graph = plan.graph_of(model.graph());
    let text = |class: &Class, rank: Rank| {
        let text = program.text(&graph, rank)?;
        Some(RankText { rank: rank.0, multiplicity: class.mesh.size(), text })
    };
    if let Some(rank) = rank {
        let ranks = program.ranks();
        let known = Some(Rank(rank)).filter(|&it| (it.0 as usize) < ranks);
        let known = known.and_then(|it| text(program.class(program.locate(it).0), it));
        return Ok(vec![known.ok_or(Error::NoSuchRank { rank, ranks })?]);
    }
    Ok(program.classes.iter().filter_map(|class| text(class, class.first_rank)).collect())
}
