//! The part of the devices' peak that a plan uses.

use shardloom::{LocalProfile, Model, load_cluster, methods, plan_by_method, usual_request};

/// Tokens take as many FLOPs under every plan, so on the same devices speed says it all.
#[test]
fn a_device_with_several_stages_counts_once() {
    let model = Model::load("gpt:layers=14,hidden=256,heads=4,vocab=512,seq=128").expect("a model");
    let place = "a100-80g:4";
    let cluster = load_cluster(place, &LocalProfile::at("none".as_ref()), &mut |_, _| {});
    let cluster = cluster.expect("a preset");
    let request = usual_request(&model, &cluster, place, 32);
    let per_token = |name: &str| {
        let method = methods::named(name).expect("a method");
        let planned = plan_by_method(&model, &cluster, &request, method).expect("a plan");
        let stages = planned.outcome.plan.stages().count();
        let used = planned.model_flops_utilisation.expect("the peak is known");
        (stages, used / planned.tokens_per_second)
    };
    let (few, of_few) = per_token("zb-h1");
    let (many, of_many) = per_token("zb-v");
    assert!(many > few, "{many} and {few} stages");
    assert!((of_many / of_few - 1.0).abs() < 1e-9, "{of_many} against {of_few}");
}
