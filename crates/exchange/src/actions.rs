//! A schedule as PyTorch's table of actions.
//!
//! `torch.distributed.pipelining` reads a CSV file with a row for each rank, and in it the rank's actions in
//! order: stage, letter, micro-batch (`0F0`, `3B1`, `2I0`, `2W0`), two that overlap as
//! `(0F3;3B1)OVERLAP_F_B`. The letters are those of this program. PyTorch adds what is sent itself.

use shardloom_schedule::{Action, Pass, Schedule};

/// The table of a schedule of one pipeline.
pub(crate) fn table(schedule: &Schedule) -> String {
    let row = |order: &Vec<Action>| {
        let actions: Vec<String> = order.iter().map(|&action| text(action)).collect();
        actions.join(",") + "\n"
    };
    schedule.orders.iter().map(row).collect()
}

fn text(action: Action) -> String {
    let pass = |it: Pass| format!("{}{}{}", it.instance.stage, it.kind.letter(), it.microbatch);
    match action {
        Action::Alone(alone) => pass(alone),
        Action::Overlapped(first, second) => {
            format!("({};{})OVERLAP_F_B", pass(first), pass(second))
        }
    }
}
