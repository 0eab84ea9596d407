//! The serial run against PyTorch: same initial weights, same data, same losses. The golden files and
//! how they were made: `benches/golden/make_golden.py`.

use std::process::Command;

use crate::support::golden::{initial, losses_of, tokens};
use crate::support::{graph, losses, trainer};
use shardloom_graph::Graph;
use shardloom_kernels::{Tier, tier};
use shardloom_plan::{Optimizer, Plan, Uniform};

fn serial(graph: &Graph, optimizer: Optimizer, clip_norm: Option<f64>) -> Plan {
    let uniform = Uniform { optimizer, clip_norm, ..crate::support::serial() };
    uniform.plan(graph, "golden", "local:1")
}

fn check(model: &str, graph: &Graph) {
    let expected = losses_of(model);
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let sgd = Optimizer::sgd(0.9);
    for (name, optimizer, rate, clip) in
        [("adamw", adamw, 1e-3, Some(1.0)), ("sgd", sgd, 0.1, None)]
    {
        let plan = serial(graph, optimizer, clip);
        let mut trainer = trainer(graph, &plan, tokens(), rate);
        trainer.set_weights(initial(model)).expect("golden weights are the model's");
        let losses = losses(&mut trainer, 20);
        for (step, loss) in losses.iter().enumerate() {
            let reference = expected[name]["losses"][step].as_f64().expect("20 losses");
            // PyTorch's own fp32 run drifts from its float64 run by 1.5e-7; a wrong epsilon, GELU
            // formula or decay rule shows from 6e-6 on.
            let difference = (loss - reference).abs() / reference;
            assert!(
                difference < 2e-6,
                "{model}, {name}, step {step}: {loss} instead of {reference}, off by {difference:e}"
            );
        }
    }
}

#[test]
fn gpt_trains_like_pytorch() {
    check("gpt", &graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64"));
}

#[test]
fn gpt_with_tied_head_trains_like_pytorch() {
    check("gpt-tied", &graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,tied=true"));
}

#[test]
fn llama_trains_like_pytorch() {
    let spec = "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq=16,vocab=64";
    check("llama", &graph(spec));
}

/// In processes of their own, as a process has one tier.
#[test]
fn the_kernels_of_every_tier_train_like_pytorch() {
    let selected = Tier::selected().expect("a tier of this machine");
    for other in Tier::available().into_iter().filter(|&tier| tier != selected) {
        let program = std::env::current_exe().expect("the system knows this program");
        let mut command = Command::new(program);
        command
            .args(["--exact", "golden::gpt_trains_like_pytorch"])
            .env(tier::VARIABLE, other.name());
        let output = command.output().expect("this program runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{other}: {text}");
        assert!(text.contains("1 passed"), "{other}: {text}");
    }
}
