//! Tables as training data.

use std::collections::BTreeSet;
use std::fmt::Write;

use shardloom_data::{Field, Part, Records, Source, Table};

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

#[test]
fn the_digest_of_records_changes_with_any_number_any_category_and_any_label() {
    let digest = |text: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("records.csv");
        std::fs::write(&path, text).expect("a temporary file");
        Records::open(&path, 2, &[3, 9], 0.0, 5).expect("records").digest()
    };
    let (mut digests, plain) = (BTreeSet::new(), "1,2,0,5,1\n3,4,1,6,0\n");
    let others = [
        "7,2,0,5,1\n3,4,1,6,0\n",
        "1,2,0,5,1\n3,7,1,6,0\n",
        "1,2,2,5,1\n3,4,1,6,0\n",
        "1,2,0,5,1\n3,4,1,7,0\n",
        "1,2,0,5,0\n3,4,1,6,0\n",
        "1,2,0,5,1\n3,4,1,6,1\n",
        "3,4,1,6,0\n1,2,0,5,1\n",
    ];
    for text in [plain].iter().chain(&others) {
        assert!(digests.insert(digest(text)), "{text:?} is one of those before");
    }
    assert_eq!(digest("a,b,c,d,e\n1.0, 2.0, 0, 5, 1\n3,4,1,6,0"), digest(plain));
}

/// The rows at so many positions, of which each has its number as its first feature.
fn order(source: &dyn Source, positions: std::ops::Range<u64>) -> Vec<u32> {
    let row = |position| {
        let mut room = vec![];
        match source.field(Part::Training, position, "features", &mut room) {
            Ok(Some(Field::Reals(features))) => features[0] as u32,
            other => panic!("{other:?} at {position}"),
        }
    };
    positions.map(row).collect()
}

/// A table of so many rows and the same as records, both shuffled by a seed.
fn both(rows: u32, seed: u64) -> (Table, Records) {
    let features = (0..rows).map(|row| row as f32).collect();
    let table = Table::from_rows(features, vec![0; rows as usize], 0.0, seed).expect("rows");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("records.csv");
    let mut text = String::new();
    for row in 0..rows {
        writeln!(text, "{row},0,1").expect("a string takes everything");
    }
    std::fs::write(&path, text).expect("a temporary file");
    (table, Records::open(&path, 1, &[1], 0.0, seed).expect("records"))
}

#[test]
fn every_epoch_of_every_seed_has_an_order_of_its_own_which_tables_and_records_share() {
    const ROWS: u64 = 20;
    let mut known: Vec<Vec<u32>> = vec![];
    for seed in 0..4 {
        let (table, records) = both(ROWS as u32, seed);
        for epoch in 0..4 {
            let positions = epoch * ROWS..(epoch + 1) * ROWS;
            let found = order(&table, positions.clone());
            assert_eq!(found, order(&records, positions), "seed {seed}, epoch {epoch}");
            // 16 of the 20! orders are different ones.
            assert!(!known.contains(&found), "seed {seed}, epoch {epoch} is as one before");
            known.push(found);
        }
    }
}
