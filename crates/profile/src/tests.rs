//! A profile made in a moment has all that one made with patience has.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::thread;

use shardloom_cluster::{MeasuredOn, Precision, ProductSeconds, Profile};
use shardloom_fabric::{InProcess, MessagePassing, Queues};
use shardloom_graph::{Extents, Graph, ModelSpec, work};
use shardloom_sim::rate_name;

use crate::bench::Repeats;
use crate::machine::Machine;
use crate::measurement::{self, Plan};
use crate::{Scope, Sites, examples};

pub(crate) fn machine() -> Machine {
    let measured_on = MeasuredOn {
        processor: "a processor".into(),
        cores: 4,
        kernels: "portable".into(),
        version: "1.2.3".into(),
        others_percent: 0,
    };
    Machine { sites: Sites::one(2), rank: 0, ranks: 2, memory_bytes: 8 << 30, measured_on }
}

pub(crate) fn hasty() -> Plan {
    Plan {
        repeats: Repeats { batches: 1, batch_seconds: 1e-6, most: 1, cold_bytes: 1 << 20 },
        formats: vec![Precision::Fp32, Precision::Bf16],
        rows: vec![2, 16],
        contractions: vec![[4, 8, 16], [16, 8, 4], [8, 8, 8]],
        attentions: vec![[4, 8], [8, 4]],
        probabilities: 1 << 8,
        recurrences: vec![[2, 3, 4], [3, 2, 8], [4, 4, 4]],
        elements: vec![256, 512],
        exchanges: vec![2, 64],
        messages: vec![1, 64],
        messages_out: vec![1, 64],
    }
}

static PROFILE: LazyLock<Profile> = LazyLock::new(|| {
    measurement::measure(&InProcess, &machine(), &hasty(), &mut |_, _| ())
        .expect("a profile is measured")
});

fn rates(profile: &Profile) -> impl Iterator<Item = (&str, Vec<(f64, f64)>)> {
    profile.device.rates.iter().map(|(name, curve)| (name.as_str(), curve.clone().into()))
}

/// Models of other sizes than those that are measured.
fn models() -> Vec<Graph> {
    [
        "gpt:layers=2,hidden=32,heads=2,seq=16,vocab=64,dropout=0.2",
        "gpt:layers=2,hidden=32,heads=2,seq=16,vocab=64,tied=true",
        "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=48,seq=16,vocab=64",
        "mlp:inputs=8,hidden=16,layers=3,classes=5",
        "u-transformer:layers=4,hidden=32,heads=2,seq=16,vocab=64,dropout=0.2",
        "lstm:layers=2,hidden=12,embed=10,seq=5,vocab=64,dropout=0.2",
        "lstm:layers=1,hidden=12,embed=6,seq=5,vocab=64,projection=6,tied=true",
        "dlrm:dense=3,rows=3x20,embed=8,bottom=12,top=12-10",
    ]
    .into_iter()
    .map(graph)
    .collect()
}

fn graph(model: &str) -> Graph {
    ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model")
}

#[test]
fn a_profile_survives_being_written_and_read() {
    let text = PROFILE.to_toml().expect("it can be written");
    assert_eq!(Profile::from_toml(&text).expect("it can be read"), *PROFILE);
}

#[test]
fn every_pass_of_every_operator_of_the_families_is_measured() {
    for graph in models() {
        let extents = Extents::global(&graph, 2);
        for (op, pass) in examples::passes(&graph) {
            let name = rate_name(&graph, op, pass);
            let work = work::work(&graph, op, pass, &extents, 4).expect("the pass exists");
            let device = &PROFILE.device;
            let in_bf16 = &device.in_format[&Precision::Bf16];
            let found = match work.matmul {
                Some(_) => [&device.products, &in_bf16.products].map(|it| it.contains_key(&name)),
                None => [&device.rates, &in_bf16.rates].map(|it| it.contains_key(&name)),
            };
            let name = format!("{name} of {} of {}", graph.op(op).name, graph.name());
            assert_eq!(found, [true; 2], "a rate of {name} in fp32 and in bf16");
        }
    }
}

#[test]
fn what_the_examples_add_is_measured_too() {
    let names = [
        "dropout+dropout.input",
        "bias-dropout-add+dropout.weight",
        "attention-context+dropout.input",
        "attention-context+causal+dropout.input",
        "attention-context+causal.forward",
        "attention-probs.forward",
        "attention-probs+causal.input",
        "fused-attention.forward",
        "fused-attention+dropout.input",
        "fused-attention+causal.forward",
        "fused-attention+causal+dropout.input",
        "relu.input",
        "gelu.forward",
        "swiglu.input",
        "geglu.input",
        "soft-cap.input",
        "scale.forward",
        "concat.forward",
        "sampled-cross-entropy.weight",
        "contract+transposed+bias.weight",
        "add+broadcast.weight",
        "route.input",
        "dispatch.forward",
        "expert-contract.weight",
        "combine.input",
        "lstm.weight",
        "lstm+projection.input",
        "dot-interaction.input",
        "sigmoid-cross-entropy.forward",
    ];
    let examples = examples::examples();
    let classes = examples::classes(&examples);
    for name in names {
        assert!(classes.contains_key(name), "{name} is not among {:?}", classes.keys());
    }
}

#[test]
fn updates_streams_and_collectives_are_measured() {
    let found: BTreeSet<&str> = rates(&PROFILE).map(|(name, _)| name).collect();
    for name in [
        "add",
        "copy",
        "norm",
        "update.sgd",
        "update.adamw",
        "update.lamb",
        "update.adafactor",
        "statistics.lamb",
        "statistics.adafactor",
        "direct.all-reduce.2",
        "direct.reduce-scatter.2",
        "direct.all-gather.2",
        "direct.all-to-all.2",
        "ring.all-reduce.2",
        "ring.reduce-scatter.2",
        "ring.all-gather.2",
    ] {
        assert!(found.contains(name), "{name} is not among {found:?}");
    }
}

#[test]
fn curves_rise_from_above_zero() {
    for (name, points) in rates(&PROFILE) {
        assert!(points.len() > 1, "{name} is one point");
        assert!(points[0].1 > 0.0, "{name} starts with {:?}", points[0]);
        assert!(points.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} falls: {points:?}");
    }
}

#[test]
fn each_rank_is_a_device_with_its_share_of_the_memory() {
    assert_eq!(PROFILE.node.devices, 2);
    assert_eq!(PROFILE.device.memory_bytes, 4 << 30);
    assert!(!PROFILE.device.lanes_overlap);
    let device = &PROFILE.device;
    assert!(device.matmul_seconds(Precision::Fp32, 1, 8, 8, 8).expect("fp32 is measured") > 0.0);
    assert!(device.matmul_seconds(Precision::Bf16, 1, 8, 8, 8).expect("so is bf16") > 0.0);
    let error = device.matmul_seconds(Precision::Fp16, 1, 8, 8, 8).expect_err("fp16 is not");
    let message = "local has no fp16 rate; it has fp32, bf16; shardloom profile --fp16 measures it";
    assert_eq!(error.to_string(), message);
}

#[test]
fn what_is_measured_in_bf16_is_measured_in_fp16_where_that_is_wanted() {
    let scope = Scope { fp16: true, ..Scope::default() };
    let formats = Plan::of(scope).formats;
    let one = Machine { sites: Sites::one(1), ranks: 1, ..machine() };
    let plan = Plan { formats, ..hasty() };
    let profile = measurement::measure(&InProcess, &one, &plan, &mut |_, _| ()).expect("measured");
    let device = &profile.device;
    let [bf16, fp16] = [Precision::Bf16, Precision::Fp16].map(|it| &device.in_format[&it]);
    assert!(bf16.rates.keys().eq(fp16.rates.keys()), "other operators");
    assert!(bf16.products.keys().eq(fp16.products.keys()), "other products");
    assert!(bf16.rates != fp16.rates && bf16.products != fp16.products, "the same times");
    assert!(device.matmul_seconds(Precision::Fp16, 1, 8, 8, 8).expect("a rate") > 0.0);
}

#[test]
fn the_check_compares_sizes_between_with_the_profile() {
    let plan = Plan { repeats: hasty().repeats, ..Plan::of(Scope::default()) };
    let one = Machine { sites: Sites::one(1), ranks: 1, ..machine() };
    let mut profile =
        measurement::measure(&InProcess, &one, &hasty(), &mut |_, _| ()).expect("a profile");
    let link = &mut profile.node.intra;
    link.curve = None;
    (link.latency_seconds, link.bytes_per_second, link.reachable) = (0.0, 1e9, 0.5);
    // A second for any product in fp32, two for any in bf16.
    let product = "contract.forward";
    let always = |seconds| ProductSeconds::from([seconds, 0.0, 0.0, 0.0, 0.0]);
    let device = &mut profile.device;
    device.products.insert(product.into(), always(1.0));
    let in_bf16 = device.in_format.get_mut(&Precision::Bf16).expect("it is measured");
    in_bf16.products.insert(product.into(), always(2.0));
    let estimates = measurement::check(&profile, &InProcess, &one, &plan, &mut |_, _| ())
        .expect("a comparison");
    assert!(estimates.iter().any(|it| it.class == "contract+bias.weight"));
    assert!(estimates.iter().any(|it| it.class == "message"));
    for (class, seconds) in [(product.to_owned(), 1.0), (format!("{product} in bf16"), 2.0)] {
        let mut of_class = estimates.iter().filter(|it| it.class == class).peekable();
        assert!(of_class.peek().is_some(), "{class}");
        assert!(of_class.all(|it| it.estimated_seconds == seconds), "{class}");
    }
    for it in estimates {
        let seconds = [it.estimated_seconds, it.measured_seconds];
        assert!(seconds.iter().all(|&each| each > 0.0 && each.is_finite()), "{it:?}");
        if it.class == "message" {
            // A link is for bytes, and what is sent is numbers of four.
            let expected = 4.0 * it.size.parse::<f64>().expect("a number of elements") / 0.5e9;
            assert!((it.estimated_seconds / expected - 1.0).abs() < 1e-9, "{it:?}");
        }
    }
}

#[test]
fn progress_only_rises_and_names_what_is_measured() {
    let mut told: Vec<(String, f64)> = vec![];
    let mut listen = |what: &str, done: f64| told.push((what.to_owned(), done));
    measurement::measure(&InProcess, &machine(), &hasty(), &mut listen).expect("a profile");
    assert!(told.windows(2).all(|pair| pair[0].1 < pair[1].1));
    assert!(told.iter().all(|&(_, done)| (0.0..1.0).contains(&done)));
    assert!(told.iter().any(|(what, _)| what == "layer-norm.input"));
}

#[test]
fn more_ranks_than_a_process_can_hold_are_refused() {
    let machine = Machine { sites: Sites::one(u32::MAX), ranks: u32::MAX, ..machine() };
    let measured =
        measurement::measure(&InProcess, &machine, &Plan::of(Scope::default()), &mut |_, _| {});
    let error = measured.expect_err("refused").to_string();
    assert!(error.starts_with("4294967295 ranks are too many"), "{error}");
}

/// The profiles that ranks on these machines come to, each in a process of its own.
fn measured_in_processes(ranks: &[(&'static str, u32)]) -> Vec<Profile> {
    let sites = Sites::of(ranks).expect("in order");
    let transports = Queues::between(ranks.len() as u32);
    thread::scope(|scope| {
        let one = |(rank, transport)| {
            let sites = sites.clone();
            scope.spawn(move || {
                let own = sites.beside(rank).len() as u32;
                let machine = Machine { sites, rank, ranks: own, ..machine() };
                let engine = MessagePassing::over(Box::new(transport)).expect("a thread");
                measurement::measure(&engine, &machine, &hasty(), &mut |_, _| ())
                    .unwrap_or_else(|error| panic!("{error}"))
            })
        };
        let threads: Vec<_> = (0..).zip(transports).map(one).collect();
        threads.into_iter().map(|it| it.join().expect("it measures")).collect()
    })
}

#[test]
fn processes_on_machines_of_one_kind_come_to_one_profile_with_links_between_machines() {
    let profiles = measured_in_processes(&[("a", 1), ("a", 1), ("b", 1), ("b", 1)]);
    let first = &profiles[0];
    assert!(profiles.iter().all(|it| it == first), "they differ");
    assert_eq!((first.node.devices, first.device.memory_bytes), (2, 4 << 30));
    let [within, out] = [&first.node.intra, &first.node.inter];
    assert!(within.curve != out.curve, "{within:?}");
    assert!(first.node.uplink_bytes_per_second >= out.bytes_per_second, "{:?}", first.node);
    // Collectives are of one machine.
    let names: BTreeSet<&str> = rates(first).map(|(name, _)| name).collect();
    assert!(names.contains("ring.all-reduce.2") && !names.contains("ring.all-reduce.4"));
}

#[test]
fn what_only_other_machines_have_is_left_out() {
    let profiles = measured_in_processes(&[("a", 1), ("a", 1), ("b", 2)]);
    assert!(profiles[0] == profiles[1], "they differ");
    let alone = &profiles[2];
    assert_eq!(alone.node.devices, 1);
    // Operators are each machine's own, in every format.
    let operators = |it: &Profile| {
        let in_bf16 = &it.device.in_format[&Precision::Bf16];
        let names = in_bf16.rates.keys().chain(in_bf16.products.keys());
        names.cloned().collect::<BTreeSet<String>>()
    };
    assert_eq!(operators(alone), operators(&profiles[0]));
    let names: BTreeSet<&str> = rates(alone).map(|(name, _)| name).collect();
    assert!(alone.device.products.contains_key("contract.forward"));
    assert!(!names.iter().any(|name| name.contains("all-reduce")), "{names:?}");
    // The link between the two is measured on the clock of the first.
    let curves = |it: &Profile| (it.node.intra.curve.clone(), it.node.inter.curve.clone());
    let (within, out) = curves(&profiles[0]);
    assert!(within != out);
    let (within, out) = curves(alone);
    assert!(within == out);
}

#[test]
fn a_link_between_machines_streams_as_fast_as_its_largest_message_after_the_latency() {
    let link =
        measurement::link_out(vec![(4.0, 1e-5), (1e3, 3e-5), (1e6, 2.01e-3)]).expect("rises");
    assert_eq!(link.latency_seconds, 1e-5);
    assert!((link.bytes_per_second / 5e8 - 1.0).abs() < 1e-9, "{}", link.bytes_per_second);
    // One that takes no longer than the smallest message.
    let flat = measurement::link_out(vec![(4.0, 1e-5), (1e3, 1e-5)]).expect("stays");
    assert!((flat.bytes_per_second / 1e8 - 1.0).abs() < 1e-9, "{}", flat.bytes_per_second);
}
