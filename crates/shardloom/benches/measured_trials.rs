//! What a search by trials that are really made loses to the best fixed way of synchronising, on this machine.
//!
//! `cargo bench -p shardloom --bench measured_trials [-- RANKS TRIALS REPEATS]` has `autosync` train with each of so
//! many strategies on so many ranks. Then its answer and the plans of methods that are fixed take turns, each as often
//! as is said, and the answer once more in each turn, so that it is seen how far the same plan is apart from itself.
//! The regret is the median over turns of what the answer took by what the method took that was fastest on the whole.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use shardloom::plan::Precision;
use shardloom::search::{Request, Trials};
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, LocalProfile, Model, Plan, Sampling, TextTokenizer, load_cluster, measured_step_seconds,
    methods, plan_by_measured_trials, plan_by_method, usual_request,
};

/// A language model over a large vocabulary, and one without a table of which few rows are looked up.
const MODELS: [&str; 2] = [
    "lstm:layers=1,hidden=128,embed=128,seq=20,vocab=16384,sampled_softmax=256",
    "gpt:layers=4,hidden=128,heads=4,seq=64,vocab=256,tied=true",
];

const FIXED: [&str; 6] =
    ["data-parallel", "horovod", "parameter-server", "byteps", "herring", "parallax"];

const BATCH: usize = 16;

/// Steps of a trial, and of a turn, after one that does not count.
const STEPS: (u32, u32) = (3, 12);

type Failure = Box<dyn Error + Send + Sync>;

fn measured(model: &Model, plan: &Plan, steps: u32) -> Result<f64, Failure> {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let data = Data::open(model, &[text], &TextTokenizer::open("bytes")?, sampling)?;
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-3 })?,
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Ok(measured_step_seconds(model, plan, data, settings, steps)?)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> Result<(), Failure> {
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let of = |index: usize, usual: usize| numbers.get(index).copied().unwrap_or(usual);
    let (ranks, trials, repeats) = (of(0, 4), of(1, 200), of(2, 9));
    let name = format!("local:{ranks}");
    let cluster = load_cluster(&name, &LocalProfile::of_user(), &mut |_, _| {})?;
    for text in MODELS {
        let model = Model::load(text)?;
        let usual = usual_request(&model, &cluster, &name, BATCH);
        let request = Request { precision: Precision::FP32, clip_norm: None, ..usual };
        let by_trials = Request {
            trials: Trials { count: Some(trials), ..Trials::default() },
            ..request.clone()
        };
        let autosync = methods::named("autosync")?;
        let found = plan_by_measured_trials(&model, &cluster, &by_trials, autosync, |plan| {
            measured(&model, plan, STEPS.0)
        })?;
        let answer = found.outcome.plan;
        let mut plans = vec![("autosync", answer.clone()), ("autosync again", answer)];
        for method in FIXED {
            let of_name = methods::named(method)?;
            match plan_by_method(&model, &cluster, &request, of_name) {
                Ok(planned) => plans.push((method, planned.outcome.plan)),
                Err(error) => println!("{method}: {error}"),
            }
        }
        let mut took = vec![vec![]; plans.len()];
        for turn in 0..repeats {
            for at in 0..plans.len() {
                // Who goes first takes turns, too.
                let at = (at + turn) % plans.len();
                took[at].push(measured(&model, &plans[at].1, STEPS.1)?);
            }
        }
        println!("\n{text}, {ranks} ranks, {trials} trials, {repeats} turns\n");
        println!("| plan | ms a step (median) |\n|---|---|");
        for ((name, _), times) in plans.iter().zip(&took) {
            println!("| {name} | {:.2} |", 1e3 * median(times.clone()));
        }
        let fixed = (2..plans.len())
            .min_by(|&a, &b| median(took[a].clone()).total_cmp(&median(took[b].clone())));
        let fixed = fixed.ok_or("no method has a plan")?;
        let ratios = |other: usize| -> Vec<f64> {
            took[0].iter().zip(&took[other]).map(|(own, other)| own / other - 1.0).collect()
        };
        let mut itself: Vec<f64> = ratios(1).into_iter().map(f64::abs).collect();
        itself.sort_by(f64::total_cmp);
        println!(
            "\nregret to {}: {:.1}%; the same plan is apart from itself by {:.1}% (median), {:.1}% (most)",
            plans[fixed].0,
            100.0 * median(ratios(fixed)),
            100.0 * median(itself.clone()),
            100.0 * itself.last().copied().unwrap_or(0.0),
        );
    }
    Ok(())
}
