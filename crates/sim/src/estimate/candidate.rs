//! A 3D plan in the numbers that a search varies.

use shardloom_graph::{DimId, Graph};
use shardloom_plan::{Arrangement, Axis, LayoutRules, Mesh, Recompute, ScheduleKind, Uniform};

/// Where stages are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cut {
    /// Equal numbers of blocks, as [`Uniform`](shardloom_plan::Uniform) deals them.
    Even,
    /// The least time of the slowest stage, embedding and head weighed as what they cost.
    Balanced,
    /// Where whoever is to run the plan cuts it: as the settings say for so many stages.
    Own,
}

/// What a width of tensor or context parallelism does not divide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undivided {
    /// The model has nothing that it would split.
    Nothing,
    /// A dimension that it would split unevenly.
    Dim(DimId),
}

/// A uniform 3D plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Meshes of devices that a pipeline goes through: its stages, if each holds one.
    pub pp: u32,
    /// Data-parallel width.
    pub dp: u32,
    /// Context-parallel width.
    pub cp: u32,
    /// Tensor-parallel width.
    pub tp: u32,
    /// Whether operators that tensor parallelism leaves whole are split along the sequence.
    pub sequence_parallel: bool,
    /// ZeRO stage, 0 to 3.
    pub zero: u8,
    /// How many neighbouring data-parallel replicas, with their context-parallel ranks, share what that
    /// says: `dp` if all do. It divides `dp`.
    pub sharing: u32,
    /// Samples of one micro-batch on one replica.
    pub microbatch: u32,
    /// Micro-batches of a step on one replica.
    pub microbatches: u32,
    /// Which activations are computed twice.
    pub recompute: Recompute,
    /// Order of passes.
    pub schedule: ScheduleKind,
    /// Stages on each mesh, of all pipelines together.
    pub chunks: u32,
    /// Where stages are cut.
    pub cut: Cut,
}

impl Candidate {
    /// The devices it uses.
    pub fn devices(&self) -> u32 {
        self.pp * self.mesh_devices()
    }

    /// The devices of a stage.
    pub fn mesh_devices(&self) -> u32 {
        self.dp * self.sample_devices()
    }

    /// The mesh of a stage.
    pub fn mesh(&self) -> Mesh {
        let mesh = Mesh::of(self.dp, self.cp, self.tp);
        mesh.sharing_within(self.sharing).unwrap_or(mesh)
    }

    /// The devices that work on one sample of a stage.
    pub fn sample_devices(&self) -> u32 {
        self.cp * self.tp
    }

    /// Ranks that share what ZeRO shards.
    pub fn sharers(&self) -> u32 {
        self.sharing * self.cp
    }

    /// Samples of one step.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.dp) * u64::from(self.microbatch) * u64::from(self.microbatches)
    }

    /// Where its stages live.
    pub fn arrangement(&self) -> Arrangement {
        self.schedule.arrangement().unwrap_or(Arrangement::Chain)
    }

    /// The stages of a pipeline.
    pub fn stages(&self) -> usize {
        match self.arrangement() {
            // Those on a mesh are of different pipelines.
            Arrangement::Bidirectional => self.pp as usize,
            _ => self.pp as usize * self.chunks as usize,
        }
    }

    /// Whether its backward passes are run in halves, input and weight gradients.
    pub fn halves(&self) -> bool {
        self.schedule.halves()
    }

    /// The same with a schedule whose backward passes are whole.
    pub(super) fn with_whole_passes(&self) -> Candidate {
        Candidate { schedule: ScheduleKind::Afab, chunks: 1, ..*self }
    }

    /// Whether tensor and context parallelism of its widths each split something of `graph`, and all that
    /// they split evenly.
    pub fn divides(&self, graph: &Graph) -> bool {
        self.undivided(graph).is_none()
    }

    /// What stands against splitting `graph` by tensor and context parallelism of its widths; none if it
    /// [divides](Candidate::divides) all.
    pub fn undivided(&self, graph: &Graph) -> Option<Undivided> {
        let (layout, mesh) = (self.layout(graph), self.mesh());
        let axes_of = layout.axes_by_dim();
        let of_axis = |axis: Axis| {
            if mesh.width(axis) == 1 {
                return None;
            }
            let rules = layout.0.iter().filter(|rule| rule.axis == axis);
            let mut dims = rules.filter_map(|rule| graph.dim_named(&rule.dim)).peekable();
            let parts = |dim: &str| -> usize {
                let axes = [Axis::CP, Axis::TP].into_iter();
                axes.filter(|axis| axes_of[dim].contains(axis))
                    .map(|axis| mesh.width(axis))
                    .product()
            };
            if dims.peek().is_none() {
                return Some(Undivided::Nothing);
            }
            let divides = |dim| graph.dim(dim).size.is_multiple_of(parts(&graph.dim(dim).name));
            dims.find(|&dim| !divides(dim)).map(Undivided::Dim)
        };
        of_axis(Axis::TP).or_else(|| of_axis(Axis::CP))
    }

    /// Which dimensions it splits: those that [`Uniform`] plans do, but a vocabulary that tensor
    /// parallelism does not divide stays whole.
    pub fn layout(&self, graph: &Graph) -> LayoutRules {
        let uniform = Uniform {
            mesh: self.mesh(),
            sequence_parallel: self.sequence_parallel,
            schedule: self.schedule,
            recompute: self.recompute,
            ..Uniform::default()
        };
        let mut rules = uniform.plan(graph, "", "").layout;
        let divides = |dim: &str| {
            let size = graph.dim_named(dim).map(|dim| graph.dim(dim).size);
            size.is_none_or(|size| size.is_multiple_of(self.tp as usize))
        };
        rules.0.retain(|it| it.axis != Axis::TP || it.dim != "vocab" || divides("vocab"));
        rules
    }
}
