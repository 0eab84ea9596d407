//! Names of kinds and algorithms, as text and in serde.

use shardloom_collectives::{Algorithm, Kind, Member};

#[test]
fn names_round_trip_through_text_and_serde() {
    let algorithms = [
        (Algorithm::Direct, "direct"),
        (Algorithm::Ring, "ring"),
        (Algorithm::HalvingDoubling, "halving-doubling"),
        (Algorithm::BinaryTree, "binary-tree"),
        (Algorithm::DoubleBinaryTree, "double-binary-tree"),
        (Algorithm::Star, "star"),
        (Algorithm::Hierarchical { inner: 8 }, "hierarchical:8"),
        (Algorithm::TwoLevelStar { inner: 2 }, "two-level-star:2"),
        (Algorithm::MultiStar { inner: 1 }, "multi-star:1"),
        (Algorithm::BinaryTreeStar { inner: 3 }, "binary-tree-star:3"),
        (Algorithm::MultiBinaryTreeStar { inner: 4 }, "multi-binary-tree-star:4"),
    ];
    assert_eq!(algorithms.len(), Algorithm::FLAT.len() + Algorithm::NESTED.len());
    for (algorithm, name) in algorithms {
        assert_eq!(algorithm.to_string(), name);
        assert_eq!(name.parse(), Ok(algorithm));
        let json = serde_json::to_string(&algorithm).unwrap();
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<Algorithm>(&json).unwrap(), algorithm);
    }
    let kinds = [
        (Kind::AllReduce, "all-reduce"),
        (Kind::ReduceScatter, "reduce-scatter"),
        (Kind::AllGather, "all-gather"),
        (Kind::AllToAll, "all-to-all"),
        (Kind::Broadcast { root: Member(3) }, "broadcast:3"),
        (Kind::Reduce { root: Member(0) }, "reduce:0"),
    ];
    for (kind, name) in kinds {
        assert_eq!(kind.to_string(), name);
        assert_eq!(name.parse(), Ok(kind));
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<Kind>(&json).unwrap(), kind);
    }
}

#[test]
fn names_of_algorithms_are_known_in_letters_of_either_case() {
    assert_eq!("Ring".parse(), Ok(Algorithm::Ring));
    assert_eq!("Hierarchical:4".parse::<Algorithm>(), "hierarchical:4".parse());
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let names = [
        "",
        "rings",
        "hierarchical",
        "hierarchical:0",
        "hierarchical:x",
        "ring:2",
        "star:2",
        "multi-star",
        "binary-tree-star:-1",
        "binary-tree-star:2:2",
    ];
    for name in names {
        let error = name.parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown collective algorithm `{name}`")), "{error}");
        assert!(error.contains("halving-doubling"), "{error}");
    }
    for name in ["", "allreduce", "broadcast", "broadcast:-1", "all-reduce:0"] {
        let error = name.parse::<Kind>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown collective `{name}`")), "{error}");
    }
}
