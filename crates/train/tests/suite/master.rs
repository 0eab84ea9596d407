//! The master test: every combination of parallelisms, ZeRO stages, recomputation and schedules gives
//! the serial run's losses, and the same plan twice gives bitwise the same weights.

use std::collections::BTreeSet;

use crate::support::{Samples, gpt, llama, losses, serial, trainer};
use shardloom_graph::Graph;
use shardloom_plan::{Axis, Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_train::Trainer;

/// Steps of every [`OF`]-th combination and of the serial run.
const STEPS: usize = 20;

/// Steps of the other combinations: what is wrong from the first step on, or after the first update, shows in them.
const FEW: usize = 4;

/// Of so many combinations one takes all steps.
const OF: usize = 7;

/// Of so many combinations Llama is trained by one.
const EVERY_OF_LLAMA: usize = 3;

/// Of so many combinations Gemma, whose operators differ from Llama's in few, is trained by one.
const EVERY_OF_GEMMA: usize = 16;

/// Largest allowed relative difference to the serial run's loss.
const TOLERANCE: f64 = 1e-4;

/// Every combination on up to 8 ranks that differs from another: ZeRO needs replicas, a second schedule
/// needs a pipeline, sequence parallelism needs tensor parallelism.
fn combinations() -> Vec<Uniform> {
    let mut all = vec![];
    let meshes = [1, 2]
        .into_iter()
        .flat_map(|cp| [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(dp, tp)| Mesh::of(dp, cp, tp)));
    // Those that share along some axes only: two pairs, and the halves of each of two sequences.
    let some = [(Mesh::of(4, 1, 1), 2), (Mesh::of(4, 1, 2), 2), (Mesh::of(2, 2, 1), 1)];
    let some = some.map(|(mesh, width)| mesh.sharing_within(width).expect("it divides"));
    let meshes: Vec<Mesh> = meshes.chain(some).collect();
    for (pp, &mesh) in [1, 2, 4].into_iter().flat_map(|pp| meshes.iter().map(move |it| (pp, it))) {
        if pp * mesh.size() > 8 {
            continue;
        }
        let tp = mesh.tp();
        let replicas = mesh.size() as u32 / tp;
        let least = if mesh.width(Axis::REPLICA) > 1 { 1 } else { 0 };
        for zero in least..if replicas > 1 { 4 } else { 1 } {
            // Who shares has nothing to do with what is computed twice.
            let policies = if least > 0 { &Recompute::ALL[..1] } else { &Recompute::ALL[..] };
            for &recompute in policies {
                for &schedule in &ScheduleKind::PLAIN[..if pp > 1 { 2 } else { 1 }] {
                    for sequence_parallel in [false, true] {
                        if sequence_parallel && tp == 1 {
                            continue;
                        }
                        all.push(Uniform {
                            pp,
                            mesh,
                            sequence_parallel,
                            // Replicas of a micro-batch have a sample each at least.
                            microbatches: (if pp > 1 { 4 } else { 2 }).min(8 / mesh.dp() as usize),
                            schedule,
                            recompute,
                            sync: Sync { zero, bucket_bytes: 40_000, ..Sync::default() },
                            ..serial()
                        });
                    }
                }
            }
        }
    }
    all
}

/// Steps after which weights are compared too.
const FIRST: usize = 3;

/// The losses of all steps, and digests of the weights after [`FIRST`] and after all steps.
struct Run {
    losses: Vec<f64>,
    digests: [String; 2],
}

fn start(graph: &Graph, uniform: &Uniform) -> Trainer {
    let plan: Plan = uniform.plan(graph, "model", "local");
    trainer(graph, &plan, Samples::patterned(64, 16, 64), 3e-3)
}

fn digest(trainer: &mut Trainer) -> String {
    trainer.weights_digest().unwrap_or_else(|error| panic!("{error}"))
}

fn run(graph: &Graph, uniform: &Uniform, steps: usize) -> Run {
    let mut trainer = start(graph, uniform);
    let mut all = losses(&mut trainer, FIRST);
    let first = digest(&mut trainer);
    all.extend(losses(&mut trainer, steps - FIRST));
    Run { losses: all, digests: [first, digest(&mut trainer)] }
}

fn check_losses(of: &Run, reference: &Run, name: impl Fn() -> String) {
    for (step, (loss, expected)) in of.losses.iter().zip(&reference.losses).enumerate() {
        let difference = (loss - expected).abs() / expected;
        assert!(
            difference < TOLERANCE,
            "{}: step {step} has loss {loss}, serially {expected}",
            name()
        );
    }
}

/// Holds every `every`-th combination to the serial run, and a second run of the same plan to the first: of every
/// seventh of these all steps, of the others the first. Only combinations are
/// taken whose number leaves `part` when divided by `parts`.
fn check(graph: &Graph, every: usize, (part, parts): (usize, usize)) {
    let reference = run(graph, &serial(), STEPS);
    let losses_of = &reference.losses;
    assert!(losses_of[STEPS - 1] < 0.9 * losses_of[0], "the model learns: {losses_of:?}");
    let all = combinations();
    let those = all.iter().step_by(every).enumerate();
    for (index, uniform) in those.filter(|(index, _)| index % parts == part) {
        let name = || format!("{} with {uniform:?}", graph.name());
        let steps = if index % OF == 0 { STEPS } else { FEW };
        let first = run(graph, uniform, steps);
        check_losses(&first, &reference, name);
        let mut again = start(graph, uniform);
        assert_eq!(losses(&mut again, FIRST), first.losses[..FIRST], "{}", name());
        assert_eq!(digest(&mut again), first.digests[0], "{}", name());
        if steps == STEPS {
            assert_eq!(losses(&mut again, STEPS - FIRST), first.losses[FIRST..], "{}", name());
            assert_eq!(digest(&mut again), first.digests[1], "{}", name());
        }
    }
}

#[test]
fn every_combination_trains_gpt_like_the_serial_run_and_twice_the_same_even() {
    check(&gpt(), 1, (0, 2));
}

#[test]
fn every_combination_trains_gpt_like_the_serial_run_and_twice_the_same_odd() {
    check(&gpt(), 1, (1, 2));
}

/// Those that Llama is trained by have every choice of every word, and so have those that take all steps.
#[test]
fn parts_of_the_combinations_have_every_choice() {
    let all = combinations();
    let choices = |of: &[&Uniform]| {
        let words = of.iter().flat_map(|it| {
            [
                format!("pp {}", it.pp),
                format!("{:?}", it.mesh),
                format!("zero {}", it.sync.zero),
                format!("{:?}", it.recompute),
                format!("{:?}", it.schedule),
                format!("sequence {}", it.sequence_parallel),
                format!("micro-batches {}", it.microbatches),
            ]
        });
        words.collect::<BTreeSet<String>>()
    };
    let every = choices(&all.iter().collect::<Vec<_>>());
    for step in [EVERY_OF_LLAMA, OF] {
        let some: Vec<&Uniform> = all.iter().step_by(step).collect();
        assert_eq!(choices(&some), every, "every {step}th of {}", all.len());
    }
}

/// With other operators.
#[test]
fn every_third_combination_trains_llama_like_the_serial_run_and_twice_the_same() {
    check(&llama(), EVERY_OF_LLAMA, (0, 1));
}

/// With embeddings that are scaled behind their lookup, and gated units and norms of its own.
#[test]
fn some_combinations_train_gemma_like_the_serial_run_and_twice_the_same() {
    let text = "llama:layers=2,hidden=32,heads=4,kv_heads=2,head_dim=6,ffn=64,seq=16,vocab=64,tied=true,\
                geglu=true,scaled_embedding=true,zero_centered_gain=true";
    let spec = shardloom_graph::ModelSpec::parse(text).expect("a model");
    check(&spec.graph().expect("its sizes divide"), EVERY_OF_GEMMA, (0, 1));
}

/// With windows, in every other layer, that no part of a sequence is a multiple of, bounds, norms behind
/// attention and feed-forward, and frequencies by kind of layer.
#[test]
fn some_combinations_train_models_of_windows_like_the_serial_run_and_twice_the_same() {
    let common = "llama:layers=2,hidden=32,heads=4,kv_heads=2,head_dim=6,ffn=64,seq=16,vocab=64,tied=true,\
                  geglu=true,scaled_embedding=true,zero_centered_gain=true,post_norms=true,attention_scalar=9,\
                  init_std=0.1";
    let models = [
        "windows=5-0,attention_cap=1.5,logit_cap=8",
        "windows=7-0,window_rope_theta=100,rope_scaling=[8],qk_norm=true",
    ];
    let [bounded, local] = models.map(|words| {
        let spec = shardloom_graph::ModelSpec::parse(&format!("{common},{words}"));
        spec.and_then(|spec| spec.graph()).expect("a model")
    });
    for graph in [&bounded.with_fused_attention(), &local] {
        check(graph, EVERY_OF_GEMMA, (0, 1));
    }
}

/// With heads that are rotated in part, attention and feed-forward that read one norm, and a head with a bias.
#[test]
fn some_combinations_train_a_gpt_of_parallel_layers_like_the_serial_run_and_twice_the_same() {
    let text = "gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,embedding_dropout=0,rotary=6,\
                parallel=true,head_bias=true";
    let spec = shardloom_graph::ModelSpec::parse(text).expect("a model");
    check(&spec.graph().expect("its sizes divide"), EVERY_OF_GEMMA, (0, 1));
}

/// With as many stages as blocks, the last holds the loss and nothing else, and the first the embedding.
#[test]
fn a_loss_on_a_stage_of_its_own_trains_like_the_serial_run() {
    for text in [
        "gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,tied=true,separate_loss=true",
        "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq=16,vocab=64,separate_loss=true",
    ] {
        let spec = shardloom_graph::ModelSpec::parse(text).expect("a model");
        let graph = spec.graph().expect("its sizes divide");
        assert_eq!(graph.blocks().len(), 5);
        let reference = run(&graph, &serial(), STEPS);
        for tp in [1, 2] {
            for &schedule in &ScheduleKind::PLAIN[..2] {
                let uniform = Uniform {
                    pp: 5,
                    mesh: Mesh::of(1, 1, tp),
                    sequence_parallel: tp > 1,
                    microbatches: 4,
                    schedule,
                    ..serial()
                };
                check_losses(&run(&graph, &uniform, STEPS), &reference, || {
                    format!("{text}, {uniform:?}")
                });
            }
        }
    }
}
