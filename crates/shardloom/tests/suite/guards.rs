//! What looking out for gradients that are not finite asks of a plan.

use shardloom::plan::{ScheduleKind, Uniform, Weights};
use shardloom::train::OnNonFinite;
use shardloom::{Model, Plan, guarded};

fn plan(schedule: ScheduleKind, weights: Weights) -> Plan {
    let uniform =
        Uniform { pp: 2, global_batch: 4, microbatches: 2, schedule, ..Uniform::default() };
    let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32").expect("a model");
    Plan { weights, ..uniform.plan(model.graph(), "model", "cluster") }
}

#[test]
fn a_run_that_is_to_stop_waits_for_a_norm_where_the_plan_has_a_flush() {
    let cases = [
        (ScheduleKind::OneForwardOneBackward, Weights::Flush, true),
        (ScheduleKind::PipeDream, Weights::Stash, false),
        (ScheduleKind::Table, Weights::Flush, true),
        (ScheduleKind::Table, Weights::Stash, false),
    ];
    for (schedule, weights, waits) in cases {
        let plan = plan(schedule, weights);
        let looks = |on_non_finite| guarded(&plan, on_non_finite).looks_at_norm();
        assert_eq!(looks(OnNonFinite::Stop), waits, "{schedule:?} {weights:?}");
        assert!(looks(OnNonFinite::Skip));
        assert!(!looks(OnNonFinite::Continue));
    }
}
