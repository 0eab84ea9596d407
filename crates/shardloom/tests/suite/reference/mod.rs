//! docs/reference.md is what the types say.

mod declarations;
mod files;
mod page;

use std::fs;
use std::path::Path;

use shardloom::cluster::{Cluster, Profile, Stack};
use shardloom::plan::Plan;
use shardloom_graph::ModelSpec;

/// The folder of the whole project.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_reference_is_what_the_types_say() {
    let path = root().join("docs/reference.md");
    let page = files::page(root());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, &page).expect("written");
    }
    let found = fs::read_to_string(&path).expect("docs/reference.md");
    assert!(
        found == page,
        "docs/reference.md is not what the types say; UPDATE_REFERENCE=1 writes it"
    );
}

#[test]
fn examples_of_the_reference_are_read() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a preset");
    let plan = Plan::from_toml(files::PLAN, "the example").expect("a plan");
    let spec = ModelSpec::parse(&plan.model).expect("a model");
    plan.validate(&spec.graph().expect("a graph"), 4).expect("it fits the model");
    let model = ModelSpec::from_toml(files::MODEL, "the example").expect("a model");
    model.graph().expect("a graph");
    let cluster = Cluster::from_toml(files::CLUSTER).expect("a cluster");
    assert_eq!(cluster.device_count(), 48);
    Profile::from_toml(&read(files::MACHINE)).expect("a machine");
    Stack::from_toml(&read(files::STACK)).expect("a stack");
}
