//! What programs of every kind of plan do, at small sizes, in words that no change of the program's
//! types touches: kernels and their passes, collectives with their members and bytes, messages with their
//! bytes, and what memory each instruction takes and gives back. Recorded in `snapshots`; where a
//! recording changes, the commit says why.

pub mod plans;
mod reading;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Compares the traces of a family of plans with what was recorded.
fn check(family: Vec<plans::Case>) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let mut differ = vec![];
    for plans::Case { name, graph, plan } in family {
        let trace = reading::trace(&graph, &plan);
        let compared = catch_unwind(AssertUnwindSafe(|| {
            settings.bind(|| insta::assert_snapshot!(name.clone(), trace));
        }));
        if compared.is_err() {
            differ.push(name);
        }
    }
    assert!(differ.is_empty(), "traces differ from what was recorded: {differ:?}");
}

#[test]
fn every_schedule_does_what_it_did() {
    check(plans::schedules());
}

#[test]
fn validated_updates_do_what_they_did() {
    check(plans::validated());
}

#[test]
fn servers_and_workers_do_what_they_did() {
    check(plans::served());
}

#[test]
fn every_split_of_a_transformer_does_what_it_did() {
    check(plans::splits());
}

#[test]
fn every_optimizer_and_number_format_does_what_it_did() {
    check(plans::optimizers());
}

#[test]
fn every_rule_for_weight_versions_does_what_it_did() {
    check(plans::versions());
}

#[test]
fn every_recomputation_does_what_it_did() {
    check(plans::recomputation());
}

#[test]
fn long_skips_do_what_they_did() {
    check(plans::skips());
}
