//! Constants fitted to rows whose times are predictions under known constants.

use super::files::shipped;
use shardloom_cluster::Stack;
use shardloom_validate::{FitError, Fitted, Row, constant_named, fit, read};

/// Rows of InternLM on few devices, measured to take what is predicted under `stack`, of two sources and of
/// one model for every number of devices.
fn rows(stack: &Stack) -> Vec<Row> {
    let mut rows = read(&shipped("internevo.csv")).expect("it is part of the project").rows;
    rows.retain(|row| row.case.as_ref().is_ok_and(|case| case.hardware.gpus <= 8));
    rows.truncate(4);
    for (index, row) in rows.iter_mut().enumerate() {
        let case = row.case.as_ref().expect("it can be predicted");
        row.measured.step_seconds =
            Some(case.predict(Some(stack)).expect("it can be predicted").step_seconds);
        row.source = if index % 2 == 0 { "even".into() } else { "odd".into() };
    }
    rows
}

fn internevo() -> Stack {
    Stack::parse("internevo").expect("a preset")
}

fn fitted(rows: &[Row], stack: &Stack, names: &[&str]) -> Result<Fitted, FitError> {
    let rows: Vec<&Row> = rows.iter().collect();
    let constants: Result<Vec<(String, f64)>, FitError> =
        names.iter().map(|name| constant_named(stack, name)).collect();
    fit(&rows, stack, &constants?, &|_| {})
}

#[test]
fn constants_that_rows_were_made_with_are_found_again() {
    let right = [("product_time", 1.5), ("memory_time", 1.7)];
    let rows = rows(&internevo().with_constants(right).expect("they are in range"));
    let found = fitted(&rows, &internevo(), &["product_time", "memory_time"]).expect("a fit");
    for (constant, (name, value)) in found.constants.iter().zip(right) {
        assert_eq!(constant.name, name);
        assert_eq!(constant.rows, rows.len(), "every row depends on {name}");
        assert!((constant.after / value - 1.0).abs() < 0.08, "{constant:?}");
        assert!(!constant.at_end_of_range);
    }
    assert_eq!(found.rows, rows.len());
    assert!(found.error_before > 0.05 && found.error_after < 0.01, "{found:?}");
    // Rows that were left out are of the same constants.
    let sources = found.held_out.iter().find(|it| it.by == "source").expect("two sources");
    let names: Vec<&str> = sources.groups.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["even", "odd"]);
    assert_eq!(sources.groups.iter().map(|it| it.rows).sum::<usize>(), rows.len());
    assert!(sources.error_after < 0.01 && sources.error_before > 0.05, "{sources:?}");
    assert!(found.held_out.iter().all(|it| it.by != "model"), "there is one model");
    assert_eq!(found.stack.plan_defaults, internevo().plan_defaults);
}

#[test]
fn a_constant_that_no_row_depends_on_is_left_alone() {
    let stack = internevo();
    let mut rows = rows(&stack);
    rows.truncate(2);
    // There is no layer norm in these models.
    let norm = "operators.layer-norm.forward.traffic";
    let text = stack.to_toml().expect("it can be written");
    let text = text + "\n[operators.\"layer-norm.forward\"]\ntraffic = 1.3\n";
    let stack = Stack::from_toml(&text).expect("a stack");
    let found = fitted(&rows, &stack, &[norm, "memory_time"]).expect("a fit");
    let [norm, memory] = &found.constants[..] else { panic!("{found:?}") };
    assert_eq!((norm.rows, norm.after), (0, 1.3));
    assert_eq!((memory.rows, memory.after), (2, memory.before), "it is right already");
    assert_eq!(found.error_after, found.error_before);
}

/// Such as the share of its peak that a kernel reaches.
#[test]
fn rows_depend_on_a_constant_that_makes_them_faster() {
    let stack = internevo();
    let mut rows = rows(&stack);
    rows.truncate(2);
    let text = stack.to_toml().expect("it can be written");
    let text = text + "\n[fused_attention]\n\"a100-80g\" = 0.3\n";
    let stack = Stack::from_toml(&text).expect("a stack");
    let found = fitted(&rows, &stack, &["fused_attention.a100-80g"]).expect("a fit");
    assert_eq!(found.constants[0].rows, 2, "{found:?}");
}

/// Rows of one source take what they take under other constants than those of the other: what is fitted to one
/// source is wrong for the other.
#[test]
fn a_group_that_is_left_out_is_predicted_by_what_the_others_say() {
    let other = internevo().with_constants([("memory_time", 3.0)]).expect("it is in range");
    let (mut even, odd) = (rows(&internevo()), rows(&other));
    even.truncate(2);
    even[1] = odd[1].clone();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let count = |_| {
        calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let constants = vec![constant_named(&internevo(), "memory_time").expect("it is there")];
    let both: Vec<&Row> = even.iter().collect();
    let found = fit(&both, &internevo(), &constants, &count).expect("a fit");
    assert_eq!(found.simulations, calls.into_inner());
    let sources = found.held_out.iter().find(|it| it.by == "source").expect("two sources");
    let [left, right] = &sources.groups[..] else { panic!("{sources:?}") };
    // The even row was right already, and the odd one's constants are far off for it.
    assert!(left.error_before < 1e-3 && left.error_after > 0.02, "{left:?}");
    // What is fitted to the even row are the constants that there were.
    assert!(right.error_before > 0.02, "{right:?}");
    assert!((right.error_after - right.error_before).abs() < 1e-9, "{right:?}");
}

/// Every row is left out once: what is said of all of them are means over rows, however large their groups are.
#[test]
fn rows_of_uneven_groups_count_alike() {
    let mut rows = rows(&internevo());
    rows.truncate(3);
    // A prediction is off by its difference from what was measured, over that.
    for (row, (source, ratio)) in rows.iter_mut().zip([("a", 1.0), ("a", 1.25), ("b", 2.0)]) {
        row.source = source.into();
        row.measured.step_seconds = row.measured.step_seconds.map(|seconds| seconds * ratio);
    }
    let found = fitted(&rows, &internevo(), &["memory_time"]).expect("a fit");
    let sources = found.held_out.iter().find(|it| it.by == "source").expect("two sources");
    let of_groups: Vec<_> = sources.groups.iter().map(|it| (it.rows, it.error_before)).collect();
    let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {found:?}");
    assert_eq!(of_groups.iter().map(|it| it.0).collect::<Vec<_>>(), [2, 1]);
    close(of_groups[0].1, (0.0 + 0.2) / 2.0);
    close(of_groups[1].1, 0.5);
    for before in [sources.error_before, found.error_before] {
        close(before, (0.0 + 0.2 + 0.5) / 3.0);
    }
    let [a, b] = &sources.groups[..] else { panic!("{sources:?}") };
    assert!((a.error_after - b.error_after).abs() > 0.01, "the groups are alike: {sources:?}");
    close(sources.error_after, (2.0 * a.error_after + b.error_after) / 3.0);
}

#[test]
fn fits_are_the_same_every_time() {
    let right = internevo().with_constants([("memory_time", 3.0)]).expect("it is in range");
    let mut rows = rows(&right);
    rows.truncate(2);
    let one = fitted(&rows, &internevo(), &["memory_time"]).expect("a fit");
    assert_eq!(one, fitted(&rows, &internevo(), &["memory_time"]).expect("a fit"));
}

#[test]
fn wrong_names_are_refused_with_those_that_there_are() {
    let named = |name: &str| constant_named(&internevo(), name);
    assert_eq!(
        named("host.kernel_seconds").expect("it is there"),
        ("host.kernel_seconds".into(), 20e-6)
    );
    assert_eq!(named("kernel_seconds").expect("one ends so").0, "host.kernel_seconds");
    let Err(FitError::Unknown { known, .. }) = named("kernel_second") else {
        panic!("it is there")
    };
    assert!(known.contains("host.kernel_seconds") && known.contains("memory_time"), "{known}");
    // Several end so.
    assert!(matches!(named("traffic"), Err(FitError::Unknown { .. })));
    assert!(matches!(named("step_seconds"), Err(FitError::Zero { .. })));
    assert!(matches!(fitted(&[], &internevo(), &["memory_time"]), Err(FitError::NoRows { .. })));
}
