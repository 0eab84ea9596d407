//! What published systems choose is really trained with.

use std::collections::BTreeMap;
use std::time::Duration;

use shardloom::cluster::Cluster;
use shardloom::collectives::Algorithm;
use shardloom::methods::{self, Family, Method};
use shardloom::plan::{Optimizer, Plan, Precision};
use shardloom::search::{Request, Trials};
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
    plan_with(model, method, Optimizer::sgd(0.0))
}

fn plan_with(model: &Model, method: &Method, optimizer: Optimizer) -> Plan {
    let cluster = Cluster::parse(MACHINES).expect("a preset");
    // Of a method that tries strategies one after another a few will do.
    let count = (method.name == "autosync").then_some(12);
    let request = Request {
        trials: Trials { count, ..Trials::default() },
        precision: Precision::FP32,
        optimizer,
        // Methods without flush clip nothing.
        clip_norm: None,
        ..usual_request(model, &cluster, MACHINES, 8)
    };
    let planned = plan_by_method(model, &cluster, &request, method);
    let planned = planned.unwrap_or_else(|error| panic!("{}: {error}", method.name));
    let mut plan = planned.outcome.plan;
    if plan.sync.negotiation.is_some() {
        // What is reduced as one depends on time, and shows in the sums of other algorithms.
        plan.sync.algorithm = Algorithm::Direct;
    }
    plan
}

/// A run on this file.
fn start(model: &Model, plan: &Plan) -> Session {
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/methods.rs");
    let tokenizer = TextTokenizer::open("bytes").expect("bytes need no file");
    let data = Data::open(model, &[source.into()], &tokenizer, sampling).expect("a text");
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 0.1 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Session::start(model, plan, data, settings).expect("it starts")
}

fn train(session: &mut Session, steps: u32) -> Vec<f64> {
    let steps = session.train_steps(steps).expect("it trains");
    steps.iter().map(|step| step.loss).collect()
}

/// The losses of some steps.
fn losses(model: &Model, plan: &Plan) -> Vec<f64> {
    train(&mut start(model, plan), 6)
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
        // Replicas that are only averaged descend on their own samples meanwhile.
        match late || plan.sync.averaging.is_some() {
            true => assert!(losses[5] < losses[0], "{}: {losses:?}", method.name),
            false => assert!(apart(0..6) < 1e-4, "{}: {losses:?}", method.name),
        }
    }
}

/// Weights that no run begins with, and the loss of the first step with them.
fn trained(model: &Model) -> (f64, BTreeMap<String, Vec<f32>>) {
    let serial = plan(model, methods::named("data-parallel").expect("registered"));
    let mut session = start(model, &serial);
    let own = train(&mut session, 6)[0];
    let weights = session.trainer().weights().expect("weights");
    let mut session = start(model, &serial);
    session.trainer().set_weights(weights.clone()).expect("the same model");
    let loss = train(&mut session, 1)[0];
    assert!((loss / own - 1.0).abs() > 1e-2, "{loss} and {own} tell no weights apart");
    (loss, weights)
}

/// With momentum pipelined backpropagation predicts along it, and without along the last update.
#[test]
fn an_interrupted_run_of_every_method_goes_on_and_begins_with_the_weights_it_was_given() {
    let model = model();
    let (first, weights) = trained(&model);
    for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
        for method in methods::all() {
            let plan = plan_with(&model, method, optimizer);
            let name = format!("{} with {}", method.name, optimizer.name());
            let mut whole = start(&model, &plan);
            whole.trainer().set_weights(weights.clone()).expect("the same model");
            let before = train(&mut whole, 3);
            assert!((before[0] / first - 1.0).abs() < 1e-4, "{name}: {before:?}, not {first}");
            let folder = tempfile::tempdir().expect("a folder");
            whole.save(folder.path(), None).expect("saved");
            let expected = train(&mut whole, 3);
            let mut resumed = start(&model, &plan);
            resumed.resume(folder.path()).expect("resumed");
            // What depends on time, as whose weights a replica fetched, comes out as it did.
            let answers = whole.trainer().answers().to_vec();
            resumed.trainer().repeat_answers(answers).expect("threads");
            assert_eq!(train(&mut resumed, 3), expected, "{name}");
            let digests = [&mut whole, &mut resumed].map(|it| it.trainer().weights_digest());
            let [one, other] = digests.map(|it| it.expect("weights"));
            assert_eq!(one, other, "{name}");
        }
    }
}
