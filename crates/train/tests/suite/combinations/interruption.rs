//! Interrupted runs, which go on under the same plan, and whose checkpoints other plans read.

use std::collections::BTreeMap;

use shardloom_checkpoint::{Checkpoint, Meta, Store};
use shardloom_train::Trainer;
use tempfile::TempDir;

use super::resharding::read_and_written_again;
use super::words::{Combination, combinations};

/// Steps between one filling of the pipeline and the next; runs are interrupted after each but the last.
const ROWS: [u32; 3] = [3, 1, 2];

/// What all steps came to, to the bit: losses may be no numbers.
pub fn train(trainer: &mut Trainer, steps: u32, of: &Combination<'_>) -> Vec<(u64, u64, bool)> {
    let trained = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error} in {of}"));
    trained.iter().map(|step| (step.step, step.loss.to_bits(), step.skipped)).collect()
}

pub fn saved(trainer: &mut Trainer, of: &Combination<'_>) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    let written = trainer.save(folder.path(), Meta::default(), None);
    written.unwrap_or_else(|error| panic!("{error} in {of}"));
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    (folder, latest.unwrap_or_else(|error| panic!("{error} in {of}")).0)
}

pub fn digest(trainer: &mut Trainer) -> String {
    trainer.weights_digest().unwrap_or_else(|error| panic!("{error}"))
}

/// What a run saved, and how it was trained.
struct Written<'a> {
    by: &'a Combination<'a>,
    checkpoint: (TempDir, Checkpoint),
}

/// What was seen in the runs of several combinations.
#[derive(Default)]
struct Seen {
    /// Runs that left out an update.
    skipped: usize,
    /// Tensors of corrections that another plan had too.
    corrections: usize,
}

/// Interrupts a run after each row, and holds what goes on in a new one to what went on in it. The first of these
/// has read `former` before, and written it again. Returns what the run wrote after its first row.
fn check<'a>(
    combination: &'a Combination<'a>,
    former: Option<Written<'_>>,
    seen: &mut Seen,
) -> Written<'a> {
    let blueprint = combination.blueprint();
    let start = || combination.start_of(blueprint.clone());
    let mut whole = start();
    let mut interrupted = vec![];
    let mut rows = vec![];
    for (row, &steps) in ROWS.iter().enumerate() {
        if row > 0 {
            interrupted.push(saved(&mut whole, combination));
        }
        rows.push(train(&mut whole, steps, combination));
    }
    let expected = digest(&mut whole);
    let goes_on = |resumed: &mut Trainer, row: usize, checkpoint: &Checkpoint| {
        let same = Checkpoint::open(checkpoint.path()).unwrap_or_else(|error| panic!("{error}"));
        resumed.resume(same).unwrap_or_else(|error| panic!("{error} in {combination}"));
        for (steps, expected) in ROWS.iter().zip(&rows).skip(row) {
            let steps = train(resumed, *steps, combination);
            assert_eq!(steps, *expected, "interrupted after row {row} of {combination}");
        }
        assert_eq!(digest(resumed), expected, "after row {row} of {combination}");
    };
    for (row, (_, checkpoint)) in (1..).zip(&interrupted) {
        let mut resumed = start();
        if let (1, Some(Written { by, checkpoint })) = (row, &former) {
            let both = read_and_written_again(&checkpoint.1, by, &mut resumed, combination);
            seen.corrections += both;
        }
        goes_on(&mut resumed, row, checkpoint);
    }
    seen.skipped += usize::from(rows.iter().flatten().any(|&(_, _, skipped)| skipped));
    Written { by: combination, checkpoint: interrupted.swap_remove(0) }
}

/// Combinations of every `of`-th model from `part` on: tests run side by side. What a combination wrote the next reads
/// whose state has the same names.
fn check_part(part: usize, of: usize) {
    let mut written: BTreeMap<(&str, String, usize, bool), Written<'_>> = BTreeMap::new();
    let mut seen = Seen::default();
    for combination in combinations().iter().filter(|it| it.model() % of == part) {
        let optimizer = format!("{:?}", combination.plan.optimizer);
        let (model, replicas) = (combination.graph.name(), combination.own_replicas());
        let state = (model, optimizer, replicas, combination.pushes_deltas());
        let former = written.remove(&state).filter(|it| combination.can_read_own_of(it.by));
        written.insert(state, check(combination, former, &mut seen));
    }
    let Seen { skipped, corrections } = seen;
    // Counts of updates differ from those of steps then.
    assert!(skipped > 5, "updates are left out in {skipped} runs only");
    assert!(corrections > 20, "{corrections} tensors of corrections show nothing");
}

#[test]
fn interrupted_runs_go_on_as_if_they_had_not_been_and_other_plans_read_what_they_saved_even() {
    check_part(0, 2);
}

#[test]
fn interrupted_runs_go_on_as_if_they_had_not_been_and_other_plans_read_what_they_saved_odd() {
    check_part(1, 2);
}
