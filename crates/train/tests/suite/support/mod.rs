//! What tests of training share: small models, data, and runs.

pub mod formulas;
pub mod golden;
pub mod processes;
pub mod replica;
pub mod trained;
pub mod two_nodes;
pub mod watched;

use std::time::Duration;

use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::{Extents, Graph, ModelSpec};
use shardloom_plan::{Mesh, Plan, Stage, Uniform};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{OnNonFinite, RunClock, Settings, Trainer};

pub fn graph(spec: &str) -> Graph {
    let spec = ModelSpec::parse(spec).expect("a valid model");
    spec.graph().expect("a valid model")
}

/// A GPT with all there is in one: dropout, and a parameter with two holders.
pub fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true")
}

/// A GPT so small that replicas of it can be followed element by element.
pub fn small_gpt() -> Graph {
    graph("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32,tied=true")
}

/// A Llama with fewer key heads than query heads.
pub fn llama() -> Graph {
    graph("llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq=16,vocab=64")
}

pub fn mesh(dp: u32, cp: u32, tp: u32) -> Mesh {
    Mesh::of(dp, cp, tp)
}

/// How many parameters the blocks of a stage read, elements of tensors.
pub fn stage_parameters(graph: &Graph, stage: &Stage) -> usize {
    let blocks = stage.blocks.0..stage.blocks.1;
    let inside = |op| blocks.contains(&graph.op(op).block.index());
    let own = graph.parameters().filter(|(_, value)| value.consumers.iter().any(|&op| inside(op)));
    own.map(|(_, value)| Extents::global(graph, 1).elements(&value.axes)).sum()
}

/// All on one rank, in one micro-batch: what other plans are compared with, or differ from in some
/// fields.
pub fn serial() -> Uniform {
    Uniform { global_batch: 8, clip_norm: Some(1.0), ..Uniform::default() }
}

/// Samples of tokens and targets, the same for training and validation.
pub struct Samples {
    pub inputs: Vec<Vec<u32>>,
    pub targets: Vec<Vec<u32>>,
}

impl Samples {
    /// Tokens with some structure, so that there is something to learn.
    pub fn patterned(samples: usize, seq: usize, vocab: u32) -> Samples {
        let mut state = 12345u32;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            state >> 16
        };
        let stream = |start: u32, noise: &mut dyn FnMut() -> u32| -> Vec<u32> {
            let mut token = start % vocab;
            let step = |token: u32, noise: u32| match noise % 4 {
                0 => noise / 4 % vocab,
                _ => (token * 3 + 1) % vocab,
            };
            (0..=seq)
                .map(|_| {
                    token = step(token, noise());
                    token
                })
                .collect()
        };
        let rows: Vec<Vec<u32>> =
            (0..samples as u32).map(|start| stream(start, &mut next)).collect();
        Samples {
            inputs: rows.iter().map(|row| row[..seq].to_vec()).collect(),
            targets: rows.iter().map(|row| row[1..].to_vec()).collect(),
        }
    }
}

impl Source for Samples {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let row = |rows: &'a [Vec<u32>]| &rows[position as usize % rows.len()][..];
        Ok(Some(Field::Indices(match input {
            "tokens" => row(&self.inputs),
            "targets" => row(&self.targets),
            "documents" => {
                room.clear();
                // What ends a document is the last of it.
                let ends = row(&self.inputs).iter().map(|token| token.is_multiple_of(5));
                let mut start = 0;
                room.extend((1..).zip(ends).map(|(next, ends)| {
                    let here = start;
                    if ends {
                        start = next;
                    }
                    here
                }));
                room
            }
            _ => return Ok(None),
        })))
    }

    fn validation_len(&self) -> u64 {
        self.inputs.len() as u64
    }
}

/// A trainer with a constant learning rate.
pub fn trainer(
    graph: &Graph,
    plan: &Plan,
    source: impl Source + Send + 'static,
    learning_rate: f64,
) -> Trainer {
    trainer_with_clock(graph, plan, source, learning_rate, RunClock::Wall)
}

/// A trainer with a constant learning rate under a clock of choice.
pub fn trainer_with_clock(
    graph: &Graph,
    plan: &Plan,
    source: impl Source + Send + 'static,
    learning_rate: f64,
    clock: RunClock,
) -> Trainer {
    let settings = Settings { clock, ..settings(Curve::Constant { peak: learning_rate }) };
    trainer_with(graph, plan, source, settings)
}

/// Settings of a run in real time that stops where a number is not finite.
pub fn settings(curve: Curve) -> Settings {
    Settings {
        seed: 7,
        learning_rate: LearningRate::new(curve).expect("a positive rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    }
}

/// A trainer with settings of choice.
pub fn trainer_with(
    graph: &Graph,
    plan: &Plan,
    source: impl Source + Send + 'static,
    settings: Settings,
) -> Trainer {
    let devices = plan.device_count();
    Trainer::new(graph.clone(), plan, devices, Box::new(source), settings)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The losses of `steps` steps.
pub fn losses(trainer: &mut Trainer, steps: usize) -> Vec<f64> {
    let step = |_| trainer.step().unwrap_or_else(|error| panic!("{error}")).loss;
    (0..steps).map(step).collect()
}
