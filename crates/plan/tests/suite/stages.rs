//! Pipelines, the stages that they are of, and the devices of these.

use shardloom_plan::{DeviceList, Mesh, Pipeline};

use crate::scenario::{DEVICES, complaint, graph, plan};

#[test]
fn a_plan_that_fits_is_valid() {
    assert_eq!(plan().validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn there_is_a_pipeline_of_stages_that_tile_the_model() {
    assert_eq!(
        complaint(|it| it.pipeline = vec![]),
        "pipeline = 0: at least one; 1f1b may have none for these numbers of stages and chunks"
    );
    assert_eq!(
        complaint(|it| it.pipeline = vec![Pipeline::of(vec![])]),
        "pipeline[0].stage = end at block 0: the stages must end at the model's 4 blocks"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (2, 3)),
        "pipeline[0].stage = end at block 3: the stages must end at the model's 4 blocks"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (2, 5)),
        "pipeline[0].stage = end at block 5: the stages must end at the model's 4 blocks"
    );
    let follow = "stages follow each other and hold at least one block; this one begins at";
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].blocks = (1, 4)),
        format!("pipeline[0].stage[1].blocks = [1, 4]: {follow} 2")
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].blocks = (0, 0)),
        format!("pipeline[0].stage[0].blocks = [0, 0]: {follow} 0")
    );
}

#[test]
fn devices_exist_and_are_used_once_and_as_many_as_the_mesh_has() {
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6, 8])),
        "pipeline[0].stage[1].devices = \"4..7, 8\": device 8: the cluster has 8 devices, numbered from 0"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6, 3])),
        "pipeline[0].stage[1].devices = \"4..7, 3\": device 3: stages share either all of their devices, in the same mesh, \
         or none"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].devices = DeviceList(vec![4, 5, 6])),
        "pipeline[0].stage[1].devices = \"4..7\": the mesh (dp 2 x tp 2) must have as many devices as are \
         listed, 3"
    );
    let huge = Mesh::of(u32::MAX, u32::MAX, u32::MAX);
    let message = complaint(|it| it.pipeline[0].stage[0].mesh = huge);
    assert!(message.starts_with("pipeline[0].stage[0].devices = \"0..4\": the mesh"), "{message}");
}

#[test]
fn stages_share_all_of_their_devices_in_the_same_mesh_or_none() {
    let mut shared = plan();
    shared.pipeline[0].stage[1].devices = shared.pipeline[0].stage[0].devices.clone();
    assert_eq!(shared.validate(&graph(), DEVICES), Ok(()));
    let rule = "stages share either all of their devices, in the same mesh, or none";
    assert_eq!(
        complaint(|it| {
            *it = shared.clone();
            it.pipeline[0].stage[1].mesh = Mesh::of(1, 1, 4);
        }),
        format!("pipeline[0].stage[1].devices = \"0..4\": device 0: {rule}")
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].devices = DeviceList(vec![0, 1, 2, 2])),
        "pipeline[0].stage[0].devices = \"0..3, 2\": device 2: each device once"
    );
}

#[test]
fn lists_have_a_million_devices() {
    let count = |text: &str| DeviceList::try_from(text.to_owned()).map(|list| list.0.len());
    assert_eq!(count("0..1048576"), Ok(1 << 20));
    assert_eq!(count("7..1048583"), Ok(1 << 20));
    assert!(count("0..1048577").is_err());
    assert!(count("0..1048576, 0, 1").is_err());
}
