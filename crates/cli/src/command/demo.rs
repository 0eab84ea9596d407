//! `shardloom demo`: everything once, on this machine.

use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::Args;
use shardloom::plan::Precision;
use shardloom::profile::Options;
use shardloom::search::Request;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, Drawing, Generator, Model, Sampling, TextTokenizer, find_plan, predict_here,
    usual_request,
};

use super::ProfileFile;
use super::train::run::{Checkpoints, Job, Validation, claim};
use super::train::{TIMEOUT, VALIDATION_FRACTION};
use crate::failure::Failure;
use crate::number::whole;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Train a small GPT on Shardloom's own source text with an automatic plan, and show how it went
///
/// Of a program that was installed and whose source was moved away, the text is its documentation.
///
/// Measures this machine if that was never done, finds the fastest plan for its cores, trains for about
/// a minute and a half, and writes a report. What an earlier demo has left is replaced.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom demo
  shardloom demo --steps 20")]
pub struct Demo {
    /// Steps to train [default: as many as are predicted to take a minute and a half]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU64>)]
    steps: Option<NonZeroU64>,

    /// Folder for the report and the checkpoint
    #[arg(long, value_name = "FOLDER", default_value = "shardloom-demo")]
    output: PathBuf,

    #[command(flatten)]
    profile: ProfileFile,
}

const MODEL: &str = "gpt:layers=4,hidden=128,heads=4,seq=128,vocab=256";
const GLOBAL_BATCH: usize = 16;
const SEED: u64 = 0;
/// How long the demo is to train.
const TRAINING_SECONDS: f64 = 90.0;
/// What an installed program has to learn.
const DOCUMENTATION: [&str; 5] = [
    include_str!("../../../../docs/plan.md"),
    include_str!("../../../../docs/program.md"),
    include_str!("../../../../docs/running.md"),
    include_str!("../../../../docs/methods.md"),
    include_str!("../../../../docs/decisions.md"),
];
/// Tokens that the trained model adds to a prompt.
const SAMPLED_TOKENS: usize = 160;

impl Demo {
    /// Runs the demo.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let folder = &self.output;
        take(folder)?;
        let local = self.profile.local();
        if let Err(stale @ shardloom::Error::OtherMachine { .. }) = local.load() {
            terminal.note(format_args!("{stale}; it is measured again now"));
            let bar = terminal.share();
            let mut hear = super::measuring(&bar, "this machine", terminal);
            let measured = local.measure(Options::default(), &mut hear);
            bar.finish_and_clear();
            measured?;
        }
        let cluster = super::load_cluster("local", &local, terminal)?;
        let text = format!("local:{}", cluster.device_count());
        let model = Model::load(MODEL)?;
        let usual = usual_request(&model, &cluster, &text, GLOBAL_BATCH);
        let request = Request { precision: Precision::FP32, formats_by_machines: false, ..usual };
        let search = find_plan(&model, &cluster, &request)?.outcome;
        let plan = search.plan.clone();
        let prediction = predict_here(&model, &plan, &local)?;
        let predicted = prediction.as_ref().map(|prediction| prediction.summary.step_seconds);
        let usual = predicted.map_or(500.0, |step| TRAINING_SECONDS / step).clamp(50.0, 5000.0);
        let steps = self.steps.map_or(usual as u64, NonZeroU64::get);

        let repository = repository();
        let (source, prompt) = match repository {
            Some(root) => (root.join("crates"), "//! "),
            None => {
                let text = folder.join("text.md");
                OutputFile::new(&text, true)?.write(DOCUMENTATION.concat())?;
                (text, "The ")
            }
        };
        let tokenizer = TextTokenizer::open("bytes")?;
        let sampling = Sampling { seed: SEED, validation_fraction: VALIDATION_FRACTION };
        let data = Data::open(&model, std::slice::from_ref(&source), &tokenizer, sampling)?;
        let warmup_steps = (steps / 20).max(1);
        let peak = 2e-3;
        let curve = Curve::Cosine { peak, warmup_steps, total_steps: steps, floor: peak / 10.0 };
        let settings = Settings {
            seed: SEED,
            learning_rate: LearningRate::new(curve).map_err(shardloom::Error::from)?,
            on_non_finite: OnNonFinite::Stop,
            timeout: TIMEOUT,
            clock: RunClock::Wall,
        };
        let checkpoints = folder.join("checkpoints");
        let job = Job {
            model,
            data: vec![source],
            tokenizer: data.tokenizer().map(str::to_owned),
            plan,
            search: Some(search),
            steps,
            weights: None,
            new_head: false,
            checkpoints: Some(Checkpoints {
                folder: claim(&checkpoints, terminal)?,
                every: None,
                keep: None,
                resumable: false,
                resume: false,
                force: true,
            }),
            validation: Some(Validation { every: None, microbatches: 16 }),
            prediction,
            prediction_after: None,
            cost: None,
            html: Some(OutputFile::new(&folder.join("report.html"), true)?),
            trace: None,
            drain_every: super::train::DRAIN_EVERY,
            delay_bound: None,
        };
        job.run(data, settings, None, terminal)?;
        if terminal.json() {
            return Ok(());
        }
        let drawing = Drawing { temperature: 0.7, top_k: Some(40), seed: SEED };
        let mut generator = Generator::open(&checkpoints, None, drawing)?;
        generator.prompt(prompt)?;
        for _ in 0..SAMPLED_TOKENS {
            generator.next_token()?;
        }
        terminal.line(format_args!("\nIt now writes:\n{}", generator.text()?))
    }
}

/// What a demo's folder has, by which the next one knows that what is there may be replaced.
const MARK: &str = ".shardloom-demo";

/// Takes a folder for the demo: one that is empty, that it makes, or that an earlier demo has made.
fn take(folder: &Path) -> Result<(), Failure> {
    let other = "--output names another folder";
    let refuse = |error: io::Error| {
        let what = format!("cannot create {}: {error}", folder.display());
        Failure::file(folder, format!("{what}; {other}"))
    };
    fs::create_dir_all(folder).map_err(refuse)?;
    let mark = folder.join(MARK);
    let mut entries = fs::read_dir(folder).map_err(refuse)?;
    if let Some(Ok(entry)) = entries.next()
        && !mark.exists()
    {
        let found = entry.file_name();
        let message = format!(
            "{} has {}, which is of no demo and would be replaced or mixed with this one's; {other}",
            folder.display(),
            found.display()
        );
        return Err(Failure::file(folder, message));
    }
    fs::write(mark, "").map_err(refuse)
}

/// The folder that this program was built from, if it is still there.
fn repository() -> Option<&'static Path> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).filter(|root| root.join("Cargo.toml").is_file())
}
