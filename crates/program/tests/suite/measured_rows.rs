//! What a run has measured of where rows went.

use shardloom_graph::{ModelSpec, ValueId};
use shardloom_program::{MeasuredRows, Placement};

fn some_value() -> ValueId {
    let spec = ModelSpec::parse("mlp:inputs=2,hidden=2,layers=1,classes=2");
    let graph = spec.and_then(|spec| spec.graph()).expect("a model");
    graph.parameters().next().expect("it has parameters").0
}

/// Two ranks count three experts' rows of two samples: one the first two experts' of both, one the last's.
#[test]
fn rows_that_ranks_have_counted_are_found_by_expert_and_sample() {
    let counts = some_value();
    let mut measured = MeasuredRows::default();
    assert!(measured.is_empty());
    let of = |start: usize, experts| Placement { start: vec![start, 0], extent: vec![experts, 2] };
    measured.note((counts, 1), [3, 2], &of(0, 2), [1, 2, 3, 4]);
    measured.note((counts, 1), [3, 2], &of(2, 1), [5, 6]);
    let by_expert: Vec<_> = measured.by_expert().collect();
    assert_eq!(by_expert, [(counts, 1, vec![3, 7, 11])]);
    assert_eq!(measured.rows(counts, 1, 0..3, 0..1), Some(1 + 3 + 5));
    assert_eq!(measured.rows(counts, 1, 1..2, 0..2), Some(3 + 4));
    assert_eq!(measured.rows(counts, 0, 0..3, 0..2), None);
    assert!(!measured.is_empty());
}
