//! The page of a plan that was found.

use shardloom::search::{Explanation, Topic};
use shardloom::{Model, explain, simulate};
use shardloom_report::Report;

use super::{Answered, speedup};
use crate::command::interval::Interval;
use crate::command::page_facts::sentence;
use crate::command::simulate::{figures, page_figures};
use crate::command::{considered, page_facts};
use crate::failure::Failure;

/// The page: a step of the plan, simulated, the plans that it was found among, and what other values of its keys would
/// do.
///
/// # Errors
/// If the plan cannot be simulated, which it was before.
pub fn html(model: &Model, on: &Answered) -> Result<String, Failure> {
    let Answered { planned, cluster, cost, .. } = on;
    let outcome = &planned.outcome;
    let plan = &outcome.plan;
    let prediction = simulate(model, plan, cluster, true)?;
    let explanation = explain(model, cluster, plan, &[])?;
    let interval = Interval::of(plan, cluster, prediction.summary.step_seconds);
    let figures = figures(&prediction, cluster, interval.as_ref(), (None, *cost));
    let mut summary = page_figures(&figures, model, plan, &prediction, interval.as_ref());
    let speedup = speedup(planned, cluster);
    let speedup = speedup.as_ref().and_then(|line| line.split_once(": "));
    summary.extend(speedup.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let page = page_facts::of_prediction(("Plan for", model), plan, &prediction);
    let mut notes = page.notes.clone();
    notes.extend(considered::sentences(outcome));
    notes.extend(outcome.notes.iter().map(|note| sentence(note)));
    notes.extend(experiments(&explanation));
    let tables = vec![considered::table(outcome)];
    Ok(Report { summary, notes, tables, ..page }.html())
}

/// What experiments say of the plan that its timeline and its memory do not: what limits it, and what would change it.
fn experiments(explanation: &Explanation) -> impl Iterator<Item = String> {
    let facts = explanation.facts.iter();
    let facts = facts.filter(|fact| !matches!(fact.topic, Topic::Share | Topic::Memory));
    facts.map(|fact| sentence(&fact.sentence))
}
