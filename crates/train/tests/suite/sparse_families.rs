//! Families with sparsity: a language model of long short-term memories and a recommendation model have the
//! gradients of their losses, and train under every plan as on one rank.

use std::collections::BTreeMap;

use crate::support::trained::Trained;
use crate::support::{Samples, graph, mesh, serial, settings, trainer_with};
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, Axis, LayoutRule, Mesh, Optimizer, Plan, Recompute, ScheduleKind, Sync, Uniform,
};

use shardloom_train::Trainer;
use shardloom_train::learning_rate::Curve;

const SEQ: usize = 8;
const VOCAB: usize = 32;
const BATCH: usize = 8;
const RATE: f64 = 0.3;

/// Two layers with dropout and a tied head, and one whose results are narrower than its cells; with a loss over all
/// classes and one over drawn ones.
fn lstms() -> [Graph; 3] {
    [
        graph("lstm:layers=2,hidden=16,embed=16,seq=8,vocab=32,dropout=0.1,tied=true,init_std=0.3"),
        graph("lstm:layers=2,hidden=16,embed=12,seq=8,vocab=32,projection=8,init_std=0.3"),
        graph(
            "lstm:layers=2,hidden=16,embed=12,seq=8,vocab=32,projection=8,init_std=0.3,sampled_softmax=12",
        ),
    ]
}

/// Tables of which tensor parallelism splits some, and one that it does not divide.
fn dlrm() -> Graph {
    graph("dlrm:dense=4,rows=2x12-40-7,embed=8,bottom=16,top=16-8")
}

/// Features that a label depends on, and categories of which one says as much.
struct Clicks {
    rows: Vec<(Vec<f32>, Vec<u32>, u32)>,
}

impl Clicks {
    fn new() -> Clicks {
        let tokens = Samples::patterned(64, 8, 840);
        let row = |tokens: &Vec<u32>| {
            let features = tokens[..4].iter().map(|&it| it as f32 / 420.0 - 1.0).collect();
            let limits = [12, 12, 40, 7];
            let categories: Vec<u32> =
                tokens[4..].iter().zip(limits).map(|(token, limit)| token % limit).collect();
            let label = u32::from(tokens[0] + 70 * categories[3] > 630);
            (features, categories, label)
        };
        Clicks { rows: tokens.inputs.iter().map(row).collect() }
    }
}

impl Source for Clicks {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let (features, categories, label) = &self.rows[position as usize % self.rows.len()];
        Ok(match input {
            "features" => Some(Field::Reals(features)),
            "targets" => Some(Field::Indices(std::slice::from_ref(label))),
            _ => {
                let number =
                    input.strip_prefix("category.").and_then(|it| it.parse::<usize>().ok());
                number.and_then(|at| categories.get(at..=at)).map(Field::Indices)
            }
        })
    }

    fn validation_len(&self) -> u64 {
        self.rows.len() as u64
    }
}

fn start(graph: &Graph, plan: &Plan) -> Trainer {
    let settings = settings(Curve::Constant { peak: RATE });
    match graph.inputs().any(|(_, input)| input.name == "features") {
        true => trainer_with(graph, plan, Clicks::new(), settings),
        false => trainer_with(graph, plan, Samples::patterned(BATCH, SEQ, VOCAB as u32), settings),
    }
}

/// With momentum and without clipping, which would hide a factor in gradients.
fn plain() -> Uniform {
    let optimizer = Optimizer::sgd(0.9);
    Uniform { optimizer, clip_norm: None, global_batch: BATCH, ..serial() }
}

fn run(graph: &Graph, plan: &Plan) -> Trained {
    let mut trainer = start(graph, plan);
    let planned = trainer.program().classes().flat_map(|(_, class)| {
        let peak = |position| class.memory_use(trainer.program(), position).peak_bytes;
        (0..class.mesh.size()).map(peak)
    });
    let planned: Vec<u64> = planned.collect();
    let trained = Trained::in_rows(&mut trainer, &[1; 8]);
    assert_eq!(trainer.peak_bytes_per_rank(), planned, "peaks\n{}", plan.to_toml());
    trained
}

fn assert_like_serial(graph: &Graph, uniforms: impl Iterator<Item = Uniform>) {
    let plan = |uniform: &Uniform| uniform.plan(graph, "model", "local");
    let expected = run(graph, &plan(&plain()));
    let losses = &expected.losses;
    // Losses over other classes in each step are not of one function; what they come to is in `sampled_softmax`.
    let draws = graph.ops().any(|(_, op)| op.kind.drawn_classes() > 0);
    assert!(draws || losses[7] < 0.99 * losses[0], "{} learns: {losses:?}", graph.name());
    for uniform in uniforms {
        let trained = run(graph, &plan(&uniform));
        let of = format!("{} {uniform:?}", graph.name());
        trained.assert_losses(&expected, 2e-5, &of);
        trained.assert_moved(&expected, 2e-4, &of);
    }
}

/// Data, tensor and context parallelism, alone and in pipelines, with ZeRO and every policy of recomputation.
fn layouts() -> Vec<Uniform> {
    let mut all = vec![];
    for (pp, mesh, sequence_parallel) in [
        (1, mesh(2, 1, 1), false),
        (1, mesh(1, 1, 2), false),
        (1, mesh(2, 1, 2), true),
        (2, mesh(1, 2, 1), false),
        (2, mesh(2, 1, 1), false),
        (4, mesh(1, 1, 2), false),
    ] {
        for (at, recompute) in Recompute::ALL.into_iter().enumerate() {
            let zero = if mesh.dp() > 1 { at as u8 % 4 } else { 0 };
            let schedule = ScheduleKind::PLAIN[at % if pp > 1 { 2 } else { 1 }];
            all.push(Uniform {
                pp,
                mesh,
                sequence_parallel,
                microbatches: if pp > 1 { 4 } else { 2 },
                schedule,
                recompute,
                sync: Sync { zero, bucket_bytes: 4_000, ..Sync::default() },
                ..plain()
            });
        }
    }
    all
}

#[test]
fn recurrent_language_models_train_under_every_plan_as_on_one_rank() {
    for graph in lstms() {
        assert_like_serial(&graph, layouts().into_iter());
    }
}

#[test]
fn a_recommendation_model_trains_under_every_plan_as_on_one_rank() {
    let without_sequence = |it: &Uniform| it.mesh.width(Axis::CP) == 1 && !it.sequence_parallel;
    assert_like_serial(&dlrm(), layouts().into_iter().filter(without_sequence));
}

/// Weight gradients of recurrences read what their input gradients have written, which other passes run after.
#[test]
fn backward_passes_in_halves_leave_the_gradients_of_gates_as_they_were() {
    let kinds = ScheduleKind::SEARCHED.into_iter().filter(|it| it.flushes());
    for graph in [&lstms()[..], &[dlrm()]].concat() {
        let uniforms = kinds.clone().map(|schedule| {
            let chunks = schedule.arrangement().map_or(1, Arrangement::least_chunks);
            let recompute = Recompute::None;
            Uniform { pp: 4 / chunks.min(2), microbatches: 4, schedule, recompute, ..plain() }
        });
        assert_like_serial(&graph, uniforms);
    }
}

#[test]
fn rows_of_tables_are_split_where_the_width_divides_them() {
    let uniform = Uniform { mesh: Mesh::of(1, 1, 2), ..plain() };
    let plan = uniform.plan(&dlrm(), "model", "local");
    let split = |dim: &str| plan.layout.0.contains(&LayoutRule { dim: dim.into(), axis: Axis::TP });
    let dims = ["rows.0", "rows.1", "rows.2", "rows.3", "width.0", "width.2", "width.3"];
    assert_eq!(dims.map(split), [true, true, true, false, true, true, false]);
}

/// The slope of the loss along the gradient that a step took is the gradient's squared length.
#[test]
fn a_step_goes_along_the_gradient_of_the_loss_by_central_differences() {
    let graphs = [
        graph("lstm:layers=2,hidden=16,embed=16,seq=8,vocab=32,tied=true"),
        graph("lstm:layers=2,hidden=16,embed=12,seq=8,vocab=32,projection=8,forget_bias=0.5"),
        graph("lstm:layers=2,hidden=16,embed=16,seq=8,vocab=32,sampled_softmax=12"),
        graph("lstm:layers=2,hidden=16,embed=16,seq=8,vocab=32,tied=true,sampled_softmax=12"),
        dlrm(),
        graph("dlrm:dense=4,rows=2x12-40-7,embed=8,bottom=,top=,diagonal=true"),
    ];
    for graph in graphs {
        let uniform = Uniform { optimizer: Optimizer::sgd(0.0), clip_norm: None, ..plain() };
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = start(&graph, &plan);
        let before = trainer.weights().expect("weights");
        trainer.step().expect("a step");
        let after = trainer.weights().expect("weights");
        let gradient: BTreeMap<&String, Vec<f64>> = before
            .iter()
            .map(|(name, old)| {
                let pairs = old.iter().zip(&after[name]);
                (name, pairs.map(|(old, new)| f64::from(old - new) / RATE).collect())
            })
            .collect();
        let squared: f64 = gradient.values().flatten().map(|it| it * it).sum();
        // As far along it as gives a change that rounding does not hide.
        let h = 0.01 / squared.sqrt();
        let loss = |sign: f64| {
            let moved = before.iter().map(|(name, old)| {
                let moved = old.iter().zip(&gradient[name]);
                let moved = moved.map(|(old, slope)| (f64::from(*old) + sign * h * slope) as f32);
                (name.clone(), moved.collect())
            });
            let mut other = start(&graph, &plan);
            other.set_weights(moved.collect()).expect("the weights of this model");
            other.step().expect("a step").loss
        };
        let slope = (loss(1.0) - loss(-1.0)) / (2.0 * h);
        let apart = (slope / squared - 1.0).abs();
        assert!(apart < 5e-3, "{}: a slope of {slope} along {squared}", graph.name());
    }
}
