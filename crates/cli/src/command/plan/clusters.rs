//! Plans for several clusters beside each other.

use serde::Serialize;
use shardloom::Model;
use shardloom::program::quantity::{digits, seconds};

use super::{Answer, Answered, Plan};
use crate::command::cost::{Cost, dollars};
use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;

/// One of the clusters, with its plan or why there is none.
#[derive(Serialize)]
struct On<'a> {
    cluster: &'a str,
    #[serde(flatten)]
    answer: Option<Answer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
}

/// Plans for each of `clusters`, and shows them, fastest first; the fastest plan is written to `output`.
pub(super) fn run(
    asked: &Plan,
    clusters: &[String],
    model: &Model,
    output: Option<&OutputFile>,
    terminal: Terminal,
) -> Result<(), Failure> {
    let (mut found, mut refused) = (vec![], vec![]);
    let clusters: Vec<String> =
        clusters.iter().map(|text| asked.network.of(text)).collect::<Result<_, _>>()?;
    for text in &clusters {
        match asked.find(model, text, terminal) {
            Ok(answered) => found.push((text.as_str(), answered)),
            // Any other failure ends the command.
            Err(failure) => match failure.unanswered().map(str::to_owned) {
                Some(reason) => refused.push((text.as_str(), reason)),
                None => return Err(failure),
            },
        }
    }
    let step_seconds = |it: &Answered| it.planned.outcome.judgement.step_seconds;
    found.sort_by(|(_, a), (_, b)| step_seconds(a).total_cmp(&step_seconds(b)));
    let Some((fastest, first)) = found.first() else {
        let reasons = refused.iter().map(|(cluster, reason)| format!("{cluster}: {reason}"));
        return Err(Failure::usage("--cluster", reasons.collect::<Vec<_>>().join("; ")));
    };
    if let Some(file) = output {
        file.write(first.planned.outcome.plan.to_toml())?;
    }
    if terminal.json() {
        for (cluster, answered) in &found {
            let answer = Some(asked.answer(answered));
            terminal.object(&On { cluster, answer, refused: None })?;
        }
        for (cluster, reason) in &refused {
            terminal.object(&On { cluster, answer: None, refused: Some(reason) })?;
        }
        return Ok(());
    }
    let rate = format!("{}/s", first.targets);
    let heading =
        ["cluster", "devices", "step", &rate, "USD an hour", "USD for 1e6 samples", "USD to buy"];
    terminal.text(table(&heading, &rows(&found)))?;
    for (cluster, reason) in &refused {
        terminal.line(format_args!("{cluster}: {reason}"))?;
    }
    for (cluster, answered) in &found {
        let budget = asked.budget(answered).map(|budget| budget.described(answered.targets));
        let software = format!("Software: {}", answered.cluster.stack().described());
        let speedup = super::speedup(&answered.planned, &answered.cluster);
        let not_searched = &answered.planned.outcome.not_searched;
        let not_searched = (!not_searched.is_empty())
            .then(|| format!("Not searched: {}", not_searched.join("; ")));
        let notes = answered.planned.outcome.notes.iter().cloned();
        let said = speedup.into_iter().chain([software]).chain(budget).chain(notes);
        for said in said.chain(not_searched) {
            terminal.line(format_args!("{cluster}: {said}"))?;
        }
    }
    if let Some(warning) = unlike_calibration(&found) {
        terminal.line(warning)?;
    }
    terminal.line(format_args!("Fastest: {fastest}"))?;
    type Price = fn(&Cost) -> Option<f64>;
    let prices: [(&str, Price); 2] =
        [("Cheapest a sample", |it| it.per_sample), ("Cheapest to buy", |it| it.to_buy)];
    for (what, price) in prices {
        let known = found.iter().filter_map(|(name, it)| Some((name, price(it.cost.as_ref()?)?)));
        if let Some((cheapest, _)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) {
            terminal.line(format_args!("{what}: {cheapest}"))?;
        }
    }
    match &asked.output {
        Some(path) => {
            let stack = asked.stack_to_simulate_with(&first.cluster);
            let path = path.display();
            terminal.line(format_args!("Written to {path}: the plan for {fastest}{stack}"))
        }
        None => Ok(()),
    }
}

/// What to know where some times are of calibrated software and others are not: those were held to no measurement, and
/// published steps took longer than uncalibrated software said (docs/accuracy.md). None if all are of one sort.
fn unlike_calibration(found: &[(&str, Answered)]) -> Option<String> {
    let (fitted, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|(_, it)| it.cluster.stack().calibrated_on.is_some());
    if fitted.is_empty() || others.is_empty() {
        return None;
    }
    let names: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
    Some(format!(
        "Not alike: the software of {} is not calibrated, so that its times are held to no measurement, and mostly too \
         short beside the others",
        names.join(", ")
    ))
}

fn rows(found: &[(&str, Answered)]) -> Vec<Vec<String>> {
    let row = |(cluster, answered): &(&str, Answered)| {
        let Answered { planned, cost, .. } = answered;
        let price = |of: fn(&Cost) -> Option<f64>, times: f64| {
            cost.as_ref().and_then(of).map_or("-".into(), |price| dollars(times * price))
        };
        vec![
            (*cluster).to_owned(),
            planned.outcome.plan.device_count().to_string(),
            seconds(planned.outcome.judgement.step_seconds),
            digits(planned.tokens_per_second),
            price(|it| it.per_hour, 1.0),
            price(|it| it.per_sample, 1e6),
            price(|it| it.to_buy, 1.0),
        ]
    };
    found.iter().map(row).collect()
}
