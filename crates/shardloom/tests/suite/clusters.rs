//! Clusters that have this machine in them.

use std::fs;

use shardloom::cluster::Profile;
use shardloom::{LocalProfile, load_cluster};

#[test]
fn a_cluster_file_that_names_this_machine_has_its_profile() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.name = "local".into();
    profile.node.devices = 6;
    profile.device.memory_bytes = 1_234_567;
    let measured = folder.path().join("profile.toml");
    fs::write(&measured, profile.to_toml().expect("a text")).expect("written");
    let file = folder.path().join("cluster.toml");
    let groups = [("local", 1), ("a100-80g", 8)].map(|(machine, devices)| {
        format!("[[group]]\nmachine = {machine:?}\nnodes = 1\ndevices_per_node = {devices}\n")
    });
    fs::write(&file, groups.concat()).expect("written");
    let local = LocalProfile::at(&measured);
    let mut measure = |_: &str, _: f64| panic!("it was measured");
    let cluster =
        load_cluster(&file.display().to_string(), &local, &mut measure).expect("a cluster");
    assert_eq!(cluster.device_count(), 9);
    assert_eq!(cluster.groups()[0].profile.device.memory_bytes, 1_234_567);
    assert_eq!(cluster.groups()[1].profile, Profile::preset("a100-80g").expect("a preset"));
}
