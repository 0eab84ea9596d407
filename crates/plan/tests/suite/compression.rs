//! What compressed gradients go with.

use shardloom_plan::{Compression, DeviceList, Mesh, Number, ParameterGroup, Plan};

use crate::scenario::{DEVICES, complaint, graph, plan};

#[test]
fn compression_is_of_fp32_gradients_between_replicas_that_update_all_weights() {
    let with = |how: &str, change: &dyn Fn(&mut Plan)| {
        complaint(|it| {
            it.sync.compression = how.parse().expect("a compression");
            change(it);
        })
    };
    assert_eq!(
        with("top-k:100", &|it| it.sync.zero = 1),
        "sync.zero = 1: with compression top-k:100 every replica updates all weights, so 0"
    );
    let tree = |it: &mut Plan| it.sync.algorithm = "binary-tree".parse().expect("an algorithm");
    assert_eq!(
        with("one-bit", &tree),
        "sync.algorithm = binary-tree: with compression one-bit replicas gather what all send, which this \
         algorithm does not do; ring, direct, halving-doubling and hierarchical do"
    );
    assert_eq!(
        with("fp16", &|it| it.precision.gradients = Number::Bf16),
        "precision.gradients = bf16: with compression fp16 gradients are accumulated in fp32"
    );
    let group = |it: &mut Plan| {
        let zero = Some(2);
        it.parameters = vec![ParameterGroup { zero, ..ParameterGroup::named("*") }];
    };
    assert_eq!(
        with("power-sgd:4", &group),
        "parameters[0].zero = 2: with compression power-sgd:4 every replica updates all weights, so 0"
    );
    let mut pipelines = plan();
    pipelines
        .pipeline
        .iter_mut()
        .flat_map(|it| &mut it.stage)
        .for_each(|it| it.mesh = Mesh::of(1, 1, 4));
    let mut second = pipelines.pipeline[0].clone();
    for (stage, first) in second.stage.iter_mut().zip([8, 12]) {
        stage.devices = DeviceList((first..first + 4).collect());
    }
    pipelines.pipeline.push(second);
    pipelines.sync.compression = Compression::OneBit;
    let refused = pipelines.validate(&graph(), 16).expect_err("nothing would be compressed");
    assert!(refused.to_string().contains("what pipelines sum up goes as it is"), "{refused}");
    // Sums need no gathering, and a group may go without.
    let mut plan = plan();
    tree(&mut plan);
    plan.sync.compression = Compression::PowerSgd { rank: 4 };
    let none = Some(Compression::None);
    plan.parameters =
        vec![ParameterGroup { zero: Some(0), compression: none, ..ParameterGroup::named("*") }];
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
}
