//! What a group of parameters says, and what it leaves to the plan.

use shardloom_collectives::Algorithm;
use shardloom_plan::{Number, ParameterGroup, Precision, Sync};

#[test]
fn what_a_group_says_counts_and_of_all_else_the_plan() {
    let group = ParameterGroup::named("*");
    for master in [false, true] {
        let precision = Precision { master, ..Precision::MIXED };
        assert_eq!(group.precision(precision), precision);
        for own in [false, true] {
            let saying = ParameterGroup { master: Some(own), ..group.clone() };
            assert_eq!(saying.precision(precision), Precision { master: own, ..precision });
        }
        let saying = ParameterGroup { gradients: Some(Number::Bf16), ..group.clone() };
        let expected = Precision { gradients: Number::Bf16, ..precision };
        assert_eq!(saying.precision(precision), expected);
    }
    for (zero, bucket_bytes) in [(0, 1_000), (2, 3_000)] {
        let sync = Sync { zero, bucket_bytes, ..Sync::default() };
        assert_eq!(group.sync(sync), sync);
        for own in 0..4 {
            let saying = ParameterGroup { zero: Some(own), ..group.clone() };
            assert_eq!(saying.sync(sync), Sync { zero: own, ..sync });
            let own = 1_000 * usize::from(own);
            let saying = ParameterGroup { bucket_bytes: Some(own), ..group.clone() };
            assert_eq!(saying.sync(sync), Sync { bucket_bytes: own, ..sync });
        }
        let saying = ParameterGroup { algorithm: Some(Algorithm::Direct), ..group.clone() };
        assert_eq!(saying.sync(sync), Sync { algorithm: Algorithm::Direct, ..sync });
    }
}
