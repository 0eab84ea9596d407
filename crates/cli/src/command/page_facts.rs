//! What a page says of a predicted plan besides its timeline.

use std::borrow::Cow;
use std::collections::BTreeMap;

use shardloom::plan::Plan;
use shardloom::program::quantity::{bytes, percent};
use shardloom::program::{MemoryUse, Program, Rank};
use shardloom::sim::{Fit, MemoryFit};
use shardloom::{Model, Prediction, Unpredicted};
use shardloom_report::Report;

use super::memory;
use super::plan_line::plan_line;

/// The page of a plan of which nothing but a prediction is known; its figures, and what else there is to say, are left
/// to the command.
pub fn of_prediction<'a>(
    (title, model): (&str, &Model),
    plan: &Plan,
    prediction: &'a Prediction,
) -> Report<'a> {
    Report {
        title: format!("{title} {}", model.spec().name()),
        model: plan.model.clone(),
        cluster: plan.cluster.clone(),
        plan_toml: plan.to_toml(),
        warnings: warnings(prediction),
        predicted: Some(Cow::Borrowed(&prediction.timeline)),
        device_memory: device_memory(&prediction.memory),
        notes: why(plan, prediction),
        ..Report::default()
    }
}

/// What stands above all else: that the plan does not fit, and that its times may be too long, if so.
pub fn warnings(prediction: &Prediction) -> Vec<String> {
    let slow = super::disturbed(prediction.disturbed_percent).map(|it| sentence(&it));
    excess(&prediction.memory).into_iter().chain(slow).collect()
}

/// That a plan does not fit, if so: of the rank whose device lacks most.
pub fn excess(ranks: &[MemoryFit]) -> Option<String> {
    let fullest = MemoryFit::fullest(ranks).filter(|it| it.fit() == Fit::Exceeds);
    let said = |it: &MemoryFit| {
        let (peak, all) = (bytes(it.peak_bytes), bytes(it.memory_bytes));
        let over = bytes(it.margin_bytes().unsigned_abs());
        format!("Does not fit: rank {} needs {peak} of {all}, {over} too much.", it.fullest_rank)
    };
    fullest.map(said)
}

/// The memory of each rank's device, in bytes.
pub fn device_memory(ranks: &[MemoryFit]) -> BTreeMap<u32, u64> {
    ranks.iter().map(|it| (it.rank, it.memory_bytes)).collect()
}

/// How full the fullest device is.
pub fn fullest(ranks: &[MemoryFit]) -> Option<(String, String)> {
    let fullest = MemoryFit::fullest(ranks)?;
    let share = format!("{} of {}", bytes(fullest.peak_bytes), bytes(fullest.memory_bytes));
    Some(("Peak memory".to_owned(), share))
}

/// The share of the devices' peak FLOP/s that steps of such a time use.
pub fn utilisation(prediction: &Prediction, step_seconds: f64) -> Option<(String, String)> {
    let used = prediction.model_flops_utilisation(step_seconds)?;
    Some(("Share of peak FLOP/s (MFU)".to_owned(), percent(used)))
}

/// What the plan is, what its ranks do with their time, and what fills their memory.
pub fn why(plan: &Plan, prediction: &Prediction) -> Vec<String> {
    let parts = prediction.shares.parts().map(|(name, share)| format!("{} {name}", percent(share)));
    let mut said = vec![
        format!("The plan: {}.", plan_line(plan)),
        format!("Of a predicted step's time, on average over all ranks: {}.", parts.join(", ")),
    ];
    let fullest = MemoryFit::fullest(&prediction.memory);
    said.extend(fullest.map(|it| format!("Memory: {}.", memory::described(it))));
    said
}

/// What each rank of a program holds, by rank: what can be said where no times are known.
pub fn memory_uses(program: &Program) -> Vec<MemoryUse> {
    let of_rank = |rank| {
        let (class, position) = program.locate(Rank(rank));
        program.class(class).memory_use(program, position)
    };
    (0..program.ranks() as u32).map(of_rank).collect()
}

/// What the plan is and what fills the memory of the fullest rank, where no times are known, which is said with why.
pub fn why_untimed(plan: &Plan, uses: &[MemoryUse], unpredicted: &Unpredicted) -> Vec<String> {
    let mut said = vec![format!("The plan: {}.", plan_line(plan))];
    let fullest = uses.iter().enumerate().rev().max_by_key(|(_, it)| it.peak_bytes);
    said.extend(fullest.map(|(rank, it)| format!("Memory: {}.", memory::held(rank, it))));
    said.push(format!(
        "Times, a predicted timeline and the share of peak FLOP/s (MFU) are not known, as {unpredicted}."
    ));
    said
}

/// What is said on a line of a terminal as a sentence.
pub fn sentence(line: &str) -> String {
    let mut letters = line.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    let end = if line.ends_with('.') { "" } else { "." };
    format!("{}{}{end}", first.collect::<String>(), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, gib: u64) -> MemoryFit {
        MemoryFit {
            rank,
            fullest_rank: rank,
            peak_bytes: gib << 30,
            memory_bytes: 80 << 30,
            persistent: Default::default(),
            activation_bytes: 0,
        }
    }

    #[test]
    fn a_plan_that_does_not_fit_names_the_fullest_rank_and_what_it_lacks() {
        let said = excess(&[rank(0, 60), rank(4, 100), rank(8, 90)]).expect("it does not fit");
        assert_eq!(said, "Does not fit: rank 4 needs 100 GiB of 80.0 GiB, 20.0 GiB too much.");
        assert_eq!(excess(&[rank(0, 60), rank(4, 80)]), None);
        assert_eq!(
            fullest(&[rank(0, 60), rank(4, 70)]),
            Some(("Peak memory".to_owned(), "70.0 GiB of 80.0 GiB".to_owned()))
        );
        assert_eq!(device_memory(&[rank(4, 1)]), BTreeMap::from([(4, 80 << 30)]));
    }

    #[test]
    fn lines_become_sentences() {
        assert_eq!(sentence("the limit is computing"), "The limit is computing.");
        assert_eq!(sentence("Ends."), "Ends.");
        assert_eq!(sentence(""), ".");
    }
}
