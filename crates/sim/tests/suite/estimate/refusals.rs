//! What has no estimate: layouts that cannot be, and what estimates are not made for.

use shardloom_plan::{Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Estimator, Settings};

use super::candidates::{candidates, pipeline};
use super::simulated::MIXED;
use crate::scenario::{gpt, h100};

#[test]
fn a_layout_that_cannot_be_has_no_estimate_and_wrong_settings_have_an_error() {
    let graph = gpt(4, false);
    let cluster = h100(8);
    let candidate = pipeline(2, 2, 4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    assert!(estimator.estimate(&candidate).expect("costs").is_some());
    for impossible in [Candidate { tp: 3, ..candidate }, Candidate { pp: 7, ..candidate }] {
        assert_eq!(estimator.estimate(&impossible).expect("no error"), None, "{impossible:?}");
    }
    let wrong = Settings { bucket_bytes: 0, ..MIXED };
    let mut estimator = Estimator::new(&graph, &cluster, wrong).expect("an estimator");
    let error = estimator.estimate(&candidate).expect_err("a bucket holds something");
    assert!(error.to_string().starts_with("sync.bucket_bytes = 0"), "{error}");
}

#[test]
fn a_schedule_that_has_no_estimate_is_refused_by_name() {
    let graph = gpt(6, false);
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let candidate = candidates(4, 8).swap_remove(0);
    for schedule in ScheduleKind::ALL {
        let estimated = estimator.estimate(&Candidate { schedule, ..candidate });
        match ScheduleKind::SEARCHED.contains(&schedule) {
            true => assert!(estimated.is_ok(), "{schedule:?}: {estimated:?}"),
            false => {
                let message = estimated.expect_err("no estimate").to_string();
                let expected = format!("schedule {} has no estimate", schedule.name());
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
}

#[test]
fn recomputation_that_depends_on_the_stage_is_refused_by_name() {
    let graph = gpt(6, false);
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let candidate = candidates(4, 8).swap_remove(0);
    let staged = Candidate { recompute: Recompute::Stage, ..candidate };
    let message = estimator.estimate(&staged).expect_err("no estimate").to_string();
    assert_eq!(message, "recomputation stage has no estimate; simulate its program");
    assert!(estimator.least_bytes(&staged).is_err() && estimator.least_seconds(&staged).is_err());
}
