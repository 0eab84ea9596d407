//! What published systems choose is really trained with.

use std::time::Duration;

use shardloom::cluster::Cluster;
use shardloom::methods::{self, Family, Method};
use shardloom::plan::{Optimizer, Plan, Precision};
use shardloom::search::Request;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{Data, Model, Sampling, Session, TextTokenizer, plan_by_method, usual_request};

const MACHINES: &str = "h100-80g:4";

fn model() -> Model {
    let text = "gpt:layers=6,hidden=16,heads=2,seq=8,vocab=256,tied=false";
    Model::load(text).expect("a model")
}

/// The plan of a method for four devices, two of them in a pipeline.
fn plan(model: &Model, method: &Method) -> Plan {
    let cluster = Cluster::parse(MACHINES).expect("a preset");
    let request = Request {
        precision: Precision::FP32,
        optimizer: Optimizer::sgd(0.0),
        // Methods without flush clip nothing.
        clip_norm: None,
        ..usual_request(model, &cluster, MACHINES, 8)
    };
    let planned = plan_by_method(model, &cluster, &request, method);
    planned.unwrap_or_else(|error| panic!("{}: {error}", method.name)).outcome.plan
}

/// The losses of some steps on this file.
fn losses(model: &Model, plan: &Plan) -> Vec<f64> {
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/methods.rs");
    let tokenizer = TextTokenizer::open("bytes").expect("bytes need no file");
    let data = Data::open(model, &[source.into()], &tokenizer, sampling).expect("a text");
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 0.1 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    let mut session = Session::start(model, plan, data, settings).expect("it starts");
    let steps = session.train_steps(6).expect("it trains");
    steps.iter().map(|step| step.loss).collect()
}

#[test]
fn the_plan_of_every_method_trains_and_with_a_flush_loses_the_same() {
    let model = model();
    let exact = losses(&model, &plan(&model, methods::named("data-parallel").expect("registered")));
    assert!(exact[5] < exact[0], "nothing is learnt: {exact:?}");
    for method in methods::all() {
        let plan = plan(&model, method);
        let losses = losses(&model, &plan);
        let apart = |range: std::ops::Range<usize>| {
            let pairs = losses[range.clone()].iter().zip(&exact[range]);
            pairs.map(|(loss, exact)| (loss / exact - 1.0).abs()).fold(0.0, f64::max)
        };
        // The first loss is that of the first weights.
        assert!(apart(0..1) < 1e-4, "{}: {losses:?}", method.name);
        // PipeDream's partition of so small a model is data parallelism.
        let late =
            method.family == Family::AsynchronousPipeline && plan.pipeline[0].stage.len() > 1;
        match late {
            true => assert!(losses[5] < losses[0], "{}: {losses:?}", method.name),
            false => assert!(apart(0..6) < 1e-4, "{}: {losses:?}", method.name),
        }
    }
}
