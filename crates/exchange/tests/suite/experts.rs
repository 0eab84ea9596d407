//! Experts that are dealt to ranks.

use crate::plans::{EXPERTS_TEXT, LLAMA, numbers, plan_with_experts};
use shardloom_exchange::{Given, Machines, Project, export, import};
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, LayoutRules, Mesh, Plan, Uniform};

fn of(devices: usize) -> Given<'static> {
    Given {
        model: None,
        cluster: "h100-80g:16",
        devices,
        global_batch: None,
        microbatches: None,
        table: None,
    }
}

/// What a script says of experts, of whose model there is a description.
#[test]
fn megatrons_experts_are_those_of_the_model_and_one_for_each_row() {
    let spec = ModelSpec::from_toml(EXPERTS_TEXT, "experts.toml").expect("a model");
    let given = Given { model: Some(&spec), ..of(16) };
    let text = "pretrain_gpt.py --micro-batch-size 1 --num-experts 8 --moe-router-topk 1 \
                --moe-router-pre-softmax --expert-model-parallel-size 4";
    let imported = import(Project::Megatron, text, "train.sh", &given).expect("a plan");
    let mesh = imported.plan.pipeline[0].stage[0].mesh;
    assert_eq!([Axis::DP, Axis::EP].map(|axis| mesh.width(axis)), [4, 4]);
    assert!(imported.plan.layout.splits("expert", Axis::EP));
    assert_eq!(imported.plan.global_batch, 16);
    for (from, to, message) in [
        ("--num-experts 8", "--num-experts 4", "--num-experts = 4: the model of --model has 8"),
        ("--num-experts 8", "", "--num-experts = 0"),
        ("topk 1", "topk 2", "--moe-router-topk = 2: a row has one expert"),
        ("--moe-router-topk 1", "", "--moe-router-topk = 2"),
        ("--moe-router-pre-softmax", "", "--moe-router-pre-softmax = nothing"),
        ("size 4", "size 3", "it divides the 16 replicas and the 8 experts"),
        ("size 4", "size 4 --moe-expert-capacity-factor 1.25", "no row is left out"),
        ("size 4", "size 4 --moe-aux-loss-coeff 0.01", "--moe-aux-loss-coeff = more"),
        ("size 4", "size 4 --moe-z-loss-coeff 0.01", "--moe-z-loss-coeff = given"),
        ("size 4", "size 4 --expert-tensor-parallel-size 2", "experts are not split"),
    ] {
        let error = import(Project::Megatron, &text.replacen(from, to, 1), "train.sh", &given)
            .expect_err(to);
        assert!(error.to_string().contains(message), "{to}: {error}");
    }
    let llama = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&llama), ..of(16) };
    let error = import(Project::Megatron, text, "train.sh", &given)
        .expect_err("it has no experts")
        .to_string();
    assert!(error.contains("the model of --model has 0"), "{error}");
}

/// A network is known by its operators, whatever its sizes are.
#[test]
fn a_network_with_experts_goes_elsewhere_if_it_computes_what_others_do() {
    let exported = |change: &dyn Fn(&str) -> String, plan_change: &dyn Fn(&mut Plan)| {
        let spec = ModelSpec::from_toml(&change(EXPERTS_TEXT), "experts.toml").expect("a model");
        let graph = spec.graph().expect("a graph");
        let numbers = Uniform { mesh: Mesh::of(2, 1, 1), ..numbers() };
        let mut plan = plan_with_experts(&numbers, 4);
        plan.pipeline[0].stage[0].blocks.1 = graph.blocks().len();
        plan_change(&mut plan);
        plan.validate(&graph, plan.least_devices()).expect("a plan");
        let machines = Machines { nodes: 1, devices: plan.device_count() };
        export(Project::Megatron, &plan, &spec, &graph, machines)
    };
    let same = |_: &mut Plan| {};
    let text = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    for (from, to, argument) in [
        ("ffn = 128", "ffn = 96", "--moe-ffn-hidden-size 96"),
        ("group = 2", "group = 3", "--num-attention-heads 6"),
        ("repeat = 4", "repeat = 6", "--num-layers 6"),
        ("epsilon = 1e-5", "epsilon = 0.25", "--norm-epsilon 0.25"),
        ("theta = 10000.0", "theta = 500000.0", "--rotary-base 500000"),
        ("normal = 0.02 ", "normal = 0.5 ", "--init-method-std 0.5"),
        ("slot = 64", "slot = 80", "--moe-router-topk 1"),
    ] {
        let found = exported(&|it| text(it, from, to), &same);
        let found = found.unwrap_or_else(|error| panic!("{to}: {error}"));
        assert!(found.files[0].text.contains(argument), "{to}: {}", found.files[0].text);
    }
    for (from, to) in [
        // Rows would be left out.
        ("slot = 64", "slot = 32"),
        ("kind = \"gelu\"", "kind = \"relu\""),
        ("inputs = [\"ffn_norm\", \"route\"]", "inputs = [\"attention_residual\", \"route\"]"),
        ("causal = true", "causal = false"),
        ("overflow = \"drop\"", "overflow = \"stop\""),
    ] {
        let error = exported(&|it| text(it, from, to), &same).expect_err(to).to_string();
        assert!(error.contains("has no word for model"), "{to}: {error}");
    }
    let one_norm = |it: &str| it.replacen("epsilon = 1e-5", "epsilon = 0.25", 1);
    exported(&one_norm, &same).expect_err("norms are not alike");
    // Experts that are dealt to all replicas, without an axis of their own.
    let to_replicas = |plan: &mut Plan| {
        plan.pipeline[0].stage[0].mesh = Mesh::of(8, 1, 1);
        plan.layout = LayoutRules::try_from("expert:dp, batch:dp".to_owned()).expect("rules");
    };
    let found = exported(&str::to_owned, &to_replicas);
    // Whose other operators are not split, as there are no axes for it.
    assert!(found.expect("it is taken").files[0].text.contains("--expert-model-parallel-size 8"));
    let with_tensors = |plan: &mut Plan| {
        plan.pipeline[0].stage[0].mesh = Mesh::of(4, 1, 2);
        plan.layout = LayoutRules::try_from("expert:dp, batch:dp, heads:tp, vocab:tp".to_owned())
            .expect("rules");
    };
    exported(&str::to_owned, &with_tensors)
        .expect_err("experts are whole on tensor-parallel ranks");
    let with_zero = |plan: &mut Plan| plan.sync.zero = 3;
    let error = exported(&str::to_owned, &with_zero).expect_err("not there").to_string();
    assert!(error.contains("sync.zero = 3"), "{error}");
    let plain = |plan: &mut Plan| {
        plan.layout = LayoutRules::try_from("batch:dp, batch:ep".to_owned()).expect("rules");
    };
    let error =
        exported(&str::to_owned, &plain).expect_err("nothing is dealt along it").to_string();
    assert!(error.contains("has no word for layout"), "{error}");
}
