//! A GPT and a Llama, plans for them, and what their programs hold.

use shardloom_graph::{Graph, ModelSpec, Reduction};
use shardloom_plan::{Mesh, Precision, Sync, Uniform};
use shardloom_program::{Action, BodyKind, Class, Collective, Copies, Instruction, Program, lower};

pub const LAYERS: usize = 3;
pub const SEQ: usize = 16;
pub const HIDDEN: usize = 32;
pub const HEADS: usize = 4;
pub const VOCAB: usize = 64;
pub const SAMPLES: usize = 2;

pub fn graph(spec: &str) -> Graph {
    let spec = ModelSpec::parse(spec).expect("a valid model");
    spec.graph().expect("a valid model")
}

pub fn gpt(tied: bool) -> Graph {
    graph(&format!(
        "gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={SEQ},vocab={VOCAB},dropout=0.1,tied={tied}"
    ))
}

pub fn llama() -> Graph {
    graph("llama:layers=3,hidden=32,heads=8,kv_heads=4,ffn=64,seq=16,vocab=64")
}

pub fn mesh(dp: u32, cp: u32, tp: u32) -> Mesh {
    Mesh::of(dp, cp, tp)
}

pub fn single() -> Uniform {
    Uniform {
        global_batch: SAMPLES,
        sync: Sync { bucket_bytes: 1, ..Sync::default() },
        precision: Precision::MIXED,
        ..Uniform::default()
    }
}

pub fn program(graph: &Graph, uniform: &Uniform) -> Program {
    let plan = uniform.plan(graph, "model", "local");
    lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn body(class: &Class, kind: BodyKind) -> &[Instruction] {
    let found = class.bodies.iter().find(|body| body.kind == kind);
    &found.expect("every class has a body of each kind").instructions
}

/// The changes of layout in a body whose tensor's name begins with `prefix`.
pub fn changes(class: &Class, kind: BodyKind, prefix: &str) -> Vec<Collective> {
    let of_value = |instruction: &&Instruction| {
        let read = class.tensor(instruction.reads[0].tensor);
        read.copies == Copies::PerMicrobatch && read.name.starts_with(prefix)
    };
    let collectives = body(class, kind).iter().filter(|it| {
        assert!(!matches!(it.action, Action::Slice { .. }), "no layer is sliced");
        matches!(it.action, Action::Collective { .. })
    });
    let of_values = collectives.filter(of_value).map(|it| match it.action {
        Action::Collective { kind, .. } => kind,
        _ => unreachable!("only collectives are left"),
    });
    of_values.collect()
}

pub fn count(changes: &[Collective], wanted: impl Fn(&Collective) -> bool) -> usize {
    changes.iter().filter(|change| wanted(change)).count()
}

pub const SUM: Collective = Collective::AllReduce(Reduction::Sum);
pub const SCATTER: Collective = Collective::ReduceScatter { axis: 1, reduction: Reduction::Sum };
pub const GATHER: Collective = Collective::AllGather { axis: 1 };
