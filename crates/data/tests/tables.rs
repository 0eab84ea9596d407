//! Tables as training data.

use shardloom_data::Table;

#[test]
fn the_digest_changes_with_any_feature_and_any_class() {
    let digest = |features: [f32; 4], classes: [u32; 2]| {
        let table = Table::from_rows(features.to_vec(), classes.to_vec(), 0.0, 5);
        table.expect("two rows").digest()
    };
    let known = digest([1.0, 2.0, 3.0, 4.0], [0, 1]);
    assert_eq!(digest([1.0, 2.0, 3.0, 4.0], [0, 1]), known);
    assert_ne!(digest([1.0, 2.0, 3.0, 5.0], [0, 1]), known);
    assert_ne!(digest([1.0, 2.0, 3.0, 4.0], [1, 0]), known);
}
