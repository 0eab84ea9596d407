//! The plans beside which an answer was chosen: what each takes, or that it does not fit.

use std::collections::BTreeSet;

use shardloom::program::quantity::{seconds, whole};
use shardloom::search::{Baseline, Finalist, Judgement, Outcome};
use shardloom::sim::Fit;
use shardloom_report::Table;

use super::plan_line::plan_line;

/// The most candidates of a search that are told of, fastest first.
const MOST: usize = 8;

/// A plan that was simulated beside the answer, or could not be.
struct Considered {
    /// What it is called, of a baseline; a candidate of a search has only its plan.
    name: Option<&'static str>,
    /// The plan in one line; empty where nothing divides.
    plan: String,
    /// What a step takes, and how long that is beside the answer's; none where nothing divides.
    time: Option<(f64, f64)>,
    fits: bool,
}

impl Considered {
    fn baseline(it: &Baseline, own: f64) -> Considered {
        Considered {
            name: Some(it.name),
            plan: it.plan.as_ref().map(plan_line).unwrap_or_default(),
            time: it.step_seconds().map(|time| (time, time / own)),
            fits: it.fits,
        }
    }

    fn finalist(it: &Finalist, own: f64) -> Considered {
        let time = it.step_seconds();
        let plan = plan_line(&it.plan);
        Considered { name: None, plan, time: Some((time, time / own)), fits: fits(&it.judgement) }
    }

    /// Its step, and the verdict.
    fn cells(&self) -> [String; 2] {
        match (self.time, self.fits) {
            (None, _) if !self.plan.is_empty() => ["-".into(), "too large to simulate".into()],
            (None, _) => ["-".into(), "not possible".into()],
            (Some((time, _)), false) => [seconds(time), "does not fit in memory".into()],
            (Some((time, times)), true) => [seconds(time), longer(times)],
        }
    }

    /// The same after its name in a sentence.
    fn said(&self) -> String {
        let called = self.name.unwrap_or_default();
        match (self.time, self.fits) {
            (None, _) if !self.plan.is_empty() => format!("{called} is too large to simulate"),
            (None, _) => format!("{called} is not possible"),
            (Some((time, _)), false) => {
                format!(
                    "{called} does not fit in memory, where a step would take {}",
                    seconds(time)
                )
            }
            (Some((time, times)), true) => {
                format!("{called} takes {}, {}", longer(times), seconds(time))
            }
        }
    }
}

/// How much longer a step is.
fn longer(times: f64) -> String {
    match format!("{times:.2}").as_str() {
        "1.00" => "as long".into(),
        times => format!("{times} times as long"),
    }
}

/// Whether as much memory is left as an answer has to leave.
fn fits(judgement: &Judgement) -> bool {
    judgement.fullest().is_none_or(|it| it.fit() == Fit::Fits)
}

/// The answer and what people use without a search, as the terminal shows them: name, step and verdict.
pub fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let own = outcome.judgement.step_seconds;
    let mut rows = vec![vec!["this plan".to_owned(), seconds(own), String::new()]];
    rows.extend(outcome.baselines.iter().map(|each| {
        let mut row = vec![each.name.to_owned()];
        row.extend(Considered::baseline(each, own).cells());
        row
    }));
    rows
}

/// The candidates of the search besides the answer, fastest first.
fn candidates(outcome: &Outcome) -> Vec<Considered> {
    let own = outcome.judgement.step_seconds;
    let others = outcome.finalists.iter().filter(|it| it.plan != outcome.plan);
    let mut others: Vec<&Finalist> = others.collect();
    others.sort_by(|one, other| one.step_seconds().total_cmp(&other.step_seconds()));
    let mut others: Vec<Considered> =
        others.into_iter().map(|it| Considered::finalist(it, own)).collect();
    // What one line does not tell apart, as buckets of another size, is one plan to those who read.
    let mut met = BTreeSet::from([plan_line(&outcome.plan)]);
    others.retain(|it| met.insert(it.plan.clone()));
    others
}

/// Why this plan and no other, in sentences.
pub fn sentences(outcome: &Outcome) -> Vec<String> {
    let own = outcome.judgement.step_seconds;
    let rivals: Vec<String> = outcome
        .baselines
        .iter()
        .filter(|it| it.plan.as_ref() != Some(&outcome.plan))
        .map(|it| Considered::baseline(it, own).said())
        .collect();
    let mut said = vec![];
    if !rivals.is_empty() {
        said.push(format!("Plans that people use without a search: {}.", rivals.join("; ")));
    }
    let search = &outcome.search;
    let mut sentence = format!(
        "Of {} plans that {} looked at {} were estimated, as the others could not be, fit or be faster, and {} \
         simulated",
        whole(search.space as u64),
        search.method,
        whole(search.evaluated as u64),
        whole(search.simulated as u64),
    );
    if let Some(next) = candidates(outcome).iter().find(|it| it.fits) {
        let [step, verdict] = next.cells();
        sentence +=
            &format!("; the next of these that fits takes {step}, {verdict} ({})", next.plan);
    }
    said.push(sentence + ".");
    if !outcome.not_searched.is_empty() {
        said.push(format!("Not searched: {}.", outcome.not_searched.join("; ")));
    }
    said
}

/// The plans side by side, with what each is.
pub fn table(outcome: &Outcome) -> Table {
    let own = outcome.judgement.step_seconds;
    let row = |it: &Considered| {
        let [step, verdict] = it.cells();
        let name = it.name.unwrap_or("candidate of the search");
        vec![name.to_owned(), step, verdict, it.plan.clone()]
    };
    let this = ["this plan".to_owned(), seconds(own), String::new(), plan_line(&outcome.plan)];
    let mut rows = vec![this.to_vec()];
    rows.extend(outcome.baselines.iter().map(|it| row(&Considered::baseline(it, own))));
    rows.extend(candidates(outcome).iter().take(MOST).map(row));
    Table {
        title: "Plans that were considered".into(),
        columns: ["plan", "step", "against this plan", "what it is"].map(str::to_owned).into(),
        rows,
    }
}
