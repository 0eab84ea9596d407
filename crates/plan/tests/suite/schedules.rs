//! What a plan says of its schedule: the orders of a table, and the times of passes.

use shardloom_plan::{PassTimes, ScheduleKind};

use crate::scenario::{complaint, plan};

#[test]
fn only_a_table_has_an_order() {
    let rule = "it needs the key `order`, with a line of actions for each device";
    let table = complaint(|it| it.schedule = ScheduleKind::Table);
    assert_eq!(table, format!("schedule = table: {rule}"));
    let rule = "only a schedule \"table\" has lines of actions";
    assert_eq!(complaint(|it| it.order = vec!["F0".into()]), format!("order = [\"F0\"]: {rule}"));
}

#[test]
fn pass_times_are_finite_and_not_negative() {
    for (change, key) in [
        ((|it| it.forward = -1.0) as fn(&mut PassTimes), "forward = -1"),
        (|it| it.weight = f64::NAN, "weight = NaN"),
        (|it| it.message = f64::INFINITY, "message = inf"),
    ] {
        let complaint = complaint(|it| change(&mut it.pass_times));
        assert_eq!(complaint, format!("pass_times.{key}: a time is finite and at least 0"));
    }
    for kept in [-0.1, 1.1, f64::NAN] {
        let complaint = complaint(|it| it.pass_times.kept = kept);
        let rule = "a share of what a forward pass leaves is from 0 to 1";
        assert_eq!(complaint, format!("pass_times.kept = {kept}: {rule}"));
    }
}

#[test]
fn passes_of_which_nobody_says_more_are_alike_and_keep_everything_for_weight_gradients() {
    let alike = PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0, kept: 1.0 };
    assert_eq!(plan().pass_times, alike);
}
