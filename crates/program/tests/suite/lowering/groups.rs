//! Groups of parameters: each bucket is kept as its own group says, whichever group is named before it.

use std::collections::BTreeMap;

use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{Number, ParameterGroup, Plan, Precision, Sync, Uniform};
use shardloom_program::{
    Action, Bucket, Class, Content, Extent, Format, Keep, Program, Shape, lower,
};

use super::invariants::check_invariants;
use super::model::{gpt, mesh, single};

/// What a group says of its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    algorithm: Algorithm,
    zero: u8,
    gradients: Number,
    master: bool,
}

/// What each group says, by a part of the names that it has, and what the plan says for all others.
const GROUPS: [(&str, Said); 3] = [
    (
        "norm",
        Said { algorithm: Algorithm::Direct, zero: 0, gradients: Number::Fp32, master: false },
    ),
    (
        "ffn.",
        Said {
            algorithm: Algorithm::HalvingDoubling,
            zero: 1,
            gradients: Number::Bf16,
            master: true,
        },
    ),
    (
        "embedding",
        Said { algorithm: Algorithm::Direct, zero: 2, gradients: Number::Fp32, master: true },
    ),
];
const REST: Said =
    Said { algorithm: Algorithm::Ring, zero: 3, gradients: Number::Bf16, master: true };

/// The groups in an order, on two stages of two replicas that are split in two.
fn plan(graph: &Graph, order: [usize; 3]) -> Plan {
    let Said { algorithm, zero, gradients, master } = REST;
    let sync = Sync { algorithm, zero, bucket_bytes: 3000, ..Sync::default() };
    let precision = Precision { gradients, master, ..Precision::MIXED };
    let uniform = Uniform {
        pp: 2,
        mesh: mesh(2, 1, 2),
        sequence_parallel: true,
        global_batch: 8,
        microbatches: 2,
        sync,
        precision,
        ..single()
    };
    let mut plan = uniform.plan(graph, "model", "local");
    plan.parameters = order
        .map(|group| {
            let (names, said) = GROUPS[group];
            ParameterGroup {
                algorithm: Some(said.algorithm),
                zero: Some(said.zero),
                gradients: Some(said.gradients),
                master: Some(said.master),
                ..ParameterGroup::named(&format!("*{names}*"))
            }
        })
        .into();
    plan
}

fn lowered(graph: &Graph, order: [usize; 3]) -> Program {
    let plan = plan(graph, order);
    lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// What was said of the parameters of a bucket, which are all of one group.
fn said(graph: &Graph, class: &Class, bucket: &Bucket) -> Said {
    let of_name = |name: &str| {
        let group = GROUPS.iter().find(|(part, _)| name.contains(part));
        group.map_or(REST, |(_, said)| *said)
    };
    let names = bucket.params.iter().map(|&it| graph.value(class.param(it).value).name.as_str());
    let mut all: Vec<Said> = names.map(of_name).collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{}", bucket.name);
    all[0]
}

#[test]
fn every_bucket_is_reduced_and_stored_as_its_group_says_whichever_group_comes_first() {
    for tied in [false, true] {
        let graph = gpt(tied);
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let program = lowered(&graph, order);
            check_invariants(&program);
            let mut reduced: BTreeMap<String, usize> = BTreeMap::new();
            for class in &program.classes {
                for (_, _, instruction) in class.instructions() {
                    let Action::Collective { algorithm, .. } = instruction.action else { continue };
                    let read = class.tensor(instruction.reads[0].tensor);
                    let Some(bucket) = read.bucket.map(|id| class.bucket(id)) else { continue };
                    assert_eq!(algorithm, said(&graph, class, bucket).algorithm, "{}", read.name);
                    *reduced.entry(algorithm.to_string()).or_default() += 1;
                }
                for (id, bucket) in class.buckets() {
                    let said = said(&graph, class, bucket);
                    let tensors = || class.tensors.iter().filter(|it| it.bucket == Some(id));
                    let lasting = |content| {
                        let mut all = tensors()
                            .filter(|it| it.content == content && it.keep != Keep::Transient);
                        let found = all.next();
                        assert!(all.next().is_none(), "{} twice", bucket.name);
                        found
                    };
                    let gradients = lasting(Content::Gradient).expect("what is summed up lasts");
                    let format = match said.gradients {
                        Number::Fp32 => Format::F32,
                        Number::Bf16 => Format::Bf16,
                        Number::Fp16 => Format::F16,
                    };
                    assert_eq!(gradients.format, format, "{}", gradients.name);
                    let master = lasting(Content::MasterWeight);
                    assert_eq!(master.is_some(), said.master, "{}", bucket.name);
                    let weights = lasting(Content::Weight).expect("weights last");
                    // ZeRO: optimizer state is shared from the first stage on, gradients from the second,
                    // weights with the third.
                    let is_shared = |shape: &Shape| *shape == Shape::Flat(Extent::Share);
                    assert_eq!(is_shared(&weights.shape), said.zero == 3, "{}", weights.name);
                    assert_eq!(is_shared(&gradients.shape), said.zero >= 2, "{}", gradients.name);
                    for state in tensors().filter(|it| {
                        matches!(it.content, Content::OptimizerState(_) | Content::MasterWeight)
                    }) {
                        assert_eq!(is_shared(&state.shape), said.zero >= 1, "{}", state.name);
                    }
                }
            }
            assert!(reduced.len() == 3 && reduced.values().all(|&it| it > 3), "{reduced:?}");
        }
    }
}
