//! Plans that a method finds by trials that are really made.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use shardloom::cluster::{Cluster, NodeGroup, Profile};
use shardloom::plan::Precision;
use shardloom::search::Trials;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, Model, Plan, Sampling, TextTokenizer, measured_step_seconds, methods,
    plan_by_measured_trials, simulate, usual_request,
};

const MODEL: &str = "gpt:layers=1,hidden=16,heads=2,seq=8,vocab=256";

type Failure = Box<dyn Error + Send + Sync>;

fn measured(model: &Model, plan: &Plan) -> Result<f64, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session.rs");
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let data = Data::open(model, &[source], &TextTokenizer::open("bytes")?, sampling)?;
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-2 })?,
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Ok(measured_step_seconds(model, plan, data, settings, 2)?)
}

#[test]
fn every_trial_is_trained_with_and_the_answer_is_the_fastest_of_them() {
    let model = Model::load(MODEL).expect("a model");
    let profile = Profile::preset("h100-80g").expect("a preset");
    let group = NodeGroup { profile, nodes: 1, devices_per_node: 4 };
    let cluster = Cluster::new(vec![group]).expect("a cluster");
    let mut request = usual_request(&model, &cluster, "h100-80g:4", 12);
    request.precision = Precision::FP32;
    request.trials = Trials { count: Some(12), ..Trials::default() };
    let method = methods::named("autosync").expect("registered");
    let mut tried: Vec<(Plan, f64)> = vec![];
    let found = plan_by_measured_trials(&model, &cluster, &request, method, |plan| {
        let seconds = measured(&model, plan)?;
        tried.push((plan.clone(), seconds));
        Ok::<_, Failure>(seconds)
    });
    let found = found.expect("a plan");
    // The plans of three methods that treat all variables alike, one with the table on servers, and twelve strategies.
    assert_eq!(tried.len(), 16);
    let fastest = tried.iter().map(|it| it.1).fold(f64::INFINITY, f64::min);
    assert_eq!(found.measured_step_seconds, Some(fastest));
    let predicted = simulate(&model, &found.outcome.plan, &cluster, true).expect("simulated");
    assert_eq!(found.outcome.judgement.step_seconds, predicted.summary.step_seconds);
    assert!(
        tried.iter().any(|(plan, seconds)| { *plan == found.outcome.plan && *seconds == fastest })
    );
    assert!(tried.iter().any(|(plan, _)| plan.parameters.len() > 3));
}

#[test]
fn what_a_trial_cannot_do_is_said_and_so_is_a_method_without_trials() {
    let model = Model::load(MODEL).expect("a model");
    let cluster = Cluster::parse("h100-80g:2").expect("a cluster");
    let request = usual_request(&model, &cluster, "h100-80g:2", 4);
    let fails = |name: &str| {
        let method = methods::named(name).expect("registered");
        let nowhere = Path::new("/nowhere/at/all").to_path_buf();
        let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
        let found = plan_by_measured_trials(&model, &cluster, &request, method, |_| {
            let bytes = TextTokenizer::open("bytes")?;
            Data::open(&model, std::slice::from_ref(&nowhere), &bytes, sampling)?;
            Ok::<_, Failure>(1.0)
        });
        found.expect_err(name).to_string()
    };
    assert!(fails("autosync").contains("/nowhere/at/all"), "{}", fails("autosync"));
    assert!(fails("gpipe").contains("trials = measured"), "{}", fails("gpipe"));
}
