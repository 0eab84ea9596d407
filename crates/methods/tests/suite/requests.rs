//! What a request says, in the plans of all methods: each has it, or its notes say why not.

use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::{Choice, Family, Method, MethodError, all};
use shardloom_plan::{Number, Optimizer, ParameterGroup, Plan, Precision};
use shardloom_search::{Request, Trials};

const GPT: &str = "gpt:layers=2,hidden=16,heads=2,seq=4,vocab=16,tied=false";
const CLUSTER: &str = "h100-80g:4";
const BATCH: usize = 12;

/// Those whose replicas or servers find no norm of all gradients.
const WITHOUT_NORM: [&str; 5] =
    ["parameter-server", "local-sgd", "synchronous-averaging", "pair-averaging", "adaptive-sgd"];

fn graph() -> Graph {
    ModelSpec::parse(GPT).and_then(|spec| spec.graph()).expect("a model")
}

fn request() -> Request {
    Request { precision: Precision::FP32, ..Request::new(GPT, CLUSTER, BATCH) }
}

fn choose(method: &Method, request: &Request) -> Result<Choice, MethodError> {
    // Those that try strategies are asked for none beside their fixed ones.
    let count = (method.name == "autosync").then_some(0);
    let trials = Trials { count, ..Trials::default() };
    let request = Request { trials, ..request.clone() };
    method.choose(&graph(), &Cluster::parse(CLUSTER).expect("a preset"), &request)
}

fn said(choice: &Choice, words: &str) -> bool {
    choice.notes.iter().any(|note| note.contains(words))
}

/// Whether updates wait for the norm of all gradients: not where stages or replicas update by themselves.
fn finds_norm(method: &Method, plan: &Plan) -> bool {
    let alone = method.family == Family::AsynchronousPipeline && plan.stages().count() > 1;
    !alone && !WITHOUT_NORM.contains(&method.name)
}

#[test]
fn plans_have_the_optimizer_clipping_and_reductions_that_were_asked_for() {
    let parameters = graph().parameter_count() as usize;
    for clip_norm in [None, Some(0.75)] {
        let request = Request {
            clip_norm,
            optimizer: Optimizer::sgd(0.5),
            algorithm: Algorithm::HalvingDoubling,
            bucket_bytes: 54_321,
            ..request()
        };
        for method in all() {
            let choice = choose(method, &request).expect(method.name);
            let (plan, name) = (&choice.plan, method.name);
            assert_eq!((&plan.model[..], &plan.cluster[..]), (GPT, CLUSTER), "{name}");
            assert_eq!((plan.global_batch, plan.precision), (BATCH, Precision::FP32), "{name}");
            assert_eq!(plan.optimizer, request.optimizer, "{name}");
            assert_eq!(plan.sync.algorithm, Algorithm::HalvingDoubling, "{name}");
            let finds = finds_norm(method, plan);
            assert_eq!(plan.clip_norm, clip_norm.filter(|_| finds), "{name}");
            let unclipped = clip_norm.is_some() && !finds;
            assert_eq!(said(&choice, "not clipped to 0.75"), unclipped, "{name}");
            let bucket_bytes = match name {
                // As many fp32 numbers as leave 64 pieces of this model, of at most 4 MB.
                "byteps" | "parameter-server" => parameters * 4 / 64,
                "herring" => 25_000_000,
                _ => 54_321,
            };
            // This one answers with what one of the others does.
            if name != "autosync" {
                assert_eq!(plan.sync.bucket_bytes, bucket_bytes, "{name}");
            }
            assert_eq!(plan.parameters.iter().filter(|it| it.frozen).count(), 0, "{name}");
            assert!(choice.simulated + choice.impossible <= choice.space, "{name}");
        }
    }
}

#[test]
fn what_is_frozen_is_frozen_in_every_plan_or_refused() {
    let group = ParameterGroup { frozen: true, ..ParameterGroup::named("block.0.*") };
    let request = Request { frozen: vec![group.clone()], ..request() };
    for method in all() {
        match choose(method, &request) {
            Ok(Choice { plan, .. }) => assert!(plan.parameters.contains(&group), "{}", method.name),
            Err(error) => {
                let alone = ["autosync", "parallax", "parameter-server"];
                assert!(alone.contains(&method.name), "{error}");
                assert!(error.to_string().contains("block.0.*"), "{error}");
            }
        }
    }
}

/// In fp16 the loss is scaled, which takes the norm of all gradients.
#[test]
fn plans_of_replicas_and_servers_are_in_the_formats_that_were_asked_for_or_say_why_not() {
    let formats = [Precision::FP32, Precision::MIXED, Precision::usual(Number::Fp16)];
    for asked in formats {
        let request = Request { precision: asked, ..request() };
        for method in all().iter().filter(|it| it.family == Family::DataParallel) {
            let choice = choose(method, &request).expect(method.name);
            let expected = match method.name {
                "parameter-server" => Precision::FP32,
                name if WITHOUT_NORM.contains(&name) && asked.compute == Number::Fp16 => {
                    Precision::FP32
                }
                _ => asked,
            };
            assert_eq!(choice.plan.precision, expected, "{}", method.name);
            let told = said(&choice, "everything is in fp32");
            assert_eq!(told, expected != asked, "{}: {:?}", method.name, choice.notes);
            assert_eq!(choice.plan.loss_scale.is_some(), expected.compute == Number::Fp16);
        }
    }
}

/// Six samples for four devices are three for each of two, or two for each of three.
#[test]
fn devices_that_the_batch_leaves_over_are_told_of() {
    for (batch, devices, replicas) in [(6, 4, 3), (5, 4, 1), (8, 4, 4), (7, 7, 7), (9, 8, 3)] {
        let text = format!("h100-80g:{devices}");
        let cluster = Cluster::parse(&text).expect("a preset");
        let request = Request { global_batch: batch, cluster: text, ..request() };
        for name in ["horovod", "local-sgd", "pair-averaging"] {
            let method = shardloom_methods::named(name).expect("registered");
            let choice = method.choose(&graph(), &cluster, &request).expect("a plan");
            assert_eq!(choice.plan.device_count(), replicas, "{name}: {batch} samples");
            let idle = devices - replicas;
            let told = said(&choice, &format!("{idle} of {devices} devices do nothing"));
            assert_eq!(told, idle > 0, "{name}: {:?}", choice.notes);
        }
        for name in ["herring", "byteps", "parameter-server"] {
            let method = shardloom_methods::named(name).expect("registered");
            let choice = method.choose(&graph(), &cluster, &request).expect("a plan");
            let (plan, servers) = (&choice.plan, choice.plan.sync.own_server_count() as usize);
            assert_eq!(batch % plan.pipeline.len(), 0, "{name}: {batch} samples");
            let idle = devices - plan.pipeline.len() - servers;
            let told = said(&choice, &format!("{idle} of {devices} devices do nothing"));
            assert_eq!(told, idle > 0, "{name}: {:?}", choice.notes);
        }
    }
}

/// An update that overflows is seen by the norm of all gradients, for which several stages wait and one does not.
#[test]
fn pipelines_without_flush_say_in_fp16_that_their_stages_wait() {
    let request = Request { precision: Precision::usual(Number::Fp16), ..request() };
    let mut counts = [0; 2];
    for name in ["pipedream", "pipedream-2bw"] {
        let method = shardloom_methods::named(name).expect("registered");
        let choice = choose(method, &request).expect("a plan");
        let several = choice.plan.stages().count() > 1;
        let scaled = choice.plan.loss_scale.is_some();
        assert_eq!(
            said(&choice, "stages wait for each other at the end"),
            several && scaled,
            "{name}"
        );
        counts[usize::from(several)] += 1;
    }
    assert_eq!(counts, [1, 1], "PipeDream has one stage here, and 2BW several");
}
