//! Which words of plans each project has, one word at a time: what it refuses, what it leaves out, and that the rest
//! comes back as it was.

use std::collections::BTreeSet;

use shardloom_exchange::{ExchangeError, Project, export};
use shardloom_plan::{
    AttentionKind, Communication, LossScale, Mesh, Number, Optimizer, Plan, Precision, Recompute,
    ScheduleKind, Sync, Uniform, diff,
};

use crate::plans::{Case, LLAMA, data_slowest, numbers, plan};
use crate::there_and_back::there_and_back;

/// Four replicas of a Llama.
fn base(zero: u8) -> Uniform {
    let sync = Sync { zero, ..Sync::default() };
    Uniform { mesh: Mesh::of(4, 1, 1), recompute: Recompute::None, sync, ..numbers() }
}

fn said(numbers: Uniform) -> Plan {
    Plan { attention: AttentionKind::Fused, ..plan(LLAMA, &numbers, 1) }
}

fn of_model(usual: u8, model: &str, mesh: Mesh) -> Plan {
    let numbers = Uniform { mesh, ..base(usual) };
    Plan { attention: AttentionKind::Fused, ..plan(model, &numbers, 1) }
}

fn in_stages(usual: u8, schedule: ScheduleKind, chunks: usize) -> Plan {
    let numbers = Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), schedule, ..base(usual) };
    Plan { attention: AttentionKind::Fused, ..plan(LLAMA, &numbers, chunks) }
}

fn formats(usual: u8, compute: Number, gradients: Number, master: bool) -> Plan {
    let precision = Precision { compute, gradients, master, ..Precision::MIXED };
    let plan = said(Uniform { precision, ..base(usual) });
    let loss_scale = (compute == Number::Fp16).then(LossScale::dynamic);
    Plan { loss_scale, ..plan }
}

fn optimized(usual: u8, optimizer: Optimizer) -> Plan {
    said(Uniform { optimizer, ..base(usual) })
}

fn plans(usual: u8) -> Vec<(&'static str, Plan)> {
    use Number::{Bf16, Fp16, Fp32};
    let tp = |sequence_parallel, dp| {
        let mesh = Mesh::of(dp, 1, 2);
        let sync = Sync { zero: 2, ..Sync::default() };
        said(Uniform { mesh, sequence_parallel, sync, ..base(usual) })
    };
    let cp = |zero| {
        let sync = Sync { zero, ..Sync::default() };
        said(Uniform { mesh: Mesh::of(2, 2, 1), sync, ..base(usual) })
    };
    let scaled = |loss_scale| Plan { loss_scale, ..formats(usual, Fp16, Fp32, true) };
    let decayed =
        |weight_decay| Optimizer::Adamw { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay };
    let tied = "llama:layers=12,hidden=512,heads=8,ffn=1408,seq=1024,vocab=32000,tied=true";
    let odd = "llama:layers=12,hidden=512,heads=8,ffn=1408,seq=1024,vocab=32000,head_dim=32";
    let apart =
        "llama:layers=12,hidden=512,heads=8,ffn=1408,seq=1024,vocab=32000,separate_loss=true";
    let gpt = "gpt:layers=12,hidden=512,heads=8,seq=1024,vocab=50257";
    let gpt_apart = "gpt:layers=12,hidden=512,heads=8,seq=1024,vocab=50304,separate_loss=true";
    let padded = "gpt:layers=12,hidden=512,heads=8,seq=1024,vocab=50257,padded_vocab=50304";
    let stages = |model| {
        let numbers = Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), ..base(usual) };
        Plan { attention: AttentionKind::Fused, ..plan(model, &numbers, 1) }
    };
    let plain = || said(base(usual));
    let synced = |sync: fn(&mut Sync), zero_stage| {
        let mut plan = said(base(zero_stage));
        sync(&mut plan.sync);
        plan
    };
    vec![
        ("as it is", plain()),
        ("zero 1", said(base(1))),
        ("zero 2", said(base(2))),
        ("zero 3", said(base(3))),
        ("tp", tp(false, 2)),
        ("sequence-parallel", tp(true, 2)),
        ("cp", cp(0)),
        ("cp and zero 1", cp(1)),
        ("cp and zero 3", cp(3)),
        ("1f1b", in_stages(usual, ScheduleKind::OneForwardOneBackward, 1)),
        ("afab", in_stages(usual, ScheduleKind::Afab, 1)),
        ("interleaved", in_stages(usual, ScheduleKind::Interleaved, 2)),
        ("zb-h1", in_stages(usual, ScheduleKind::ZeroBubbleH1, 1)),
        ("data outside", data_slowest(in_stages(usual, ScheduleKind::OneForwardOneBackward, 1))),
        ("fp32", formats(usual, Fp32, Fp32, false)),
        ("fp32 with a copy", formats(usual, Fp32, Fp32, true)),
        ("bf16 without a copy", formats(usual, Bf16, Fp32, false)),
        ("bf16 gradients", formats(usual, Bf16, Bf16, true)),
        ("bf16 alone", formats(usual, Bf16, Bf16, false)),
        ("fp16", formats(usual, Fp16, Fp32, true)),
        ("fp16, constant scale", scaled(Some(LossScale::Constant { scale: 128.0 }))),
        ("fp16, no scale", scaled(None)),
        ("sgd", optimized(usual, Optimizer::sgd(0.9))),
        (
            "sgd for a batch",
            optimized(
                usual,
                Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(8) },
            ),
        ),
        ("adamw without decay", optimized(usual, decayed(0.0))),
        ("adamw", optimized(usual, decayed(0.25))),
        (
            "lamb",
            optimized(
                usual,
                Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 },
            ),
        ),
        (
            "adafactor",
            optimized(
                usual,
                Optimizer::Adafactor {
                    decay_exponent: 0.8,
                    clip: 1.0,
                    least_parameter_rms: 1e-3,
                    weight_decay: 0.0,
                },
            ),
        ),
        ("no clipping", said(Uniform { clip_norm: None, ..base(usual) })),
        ("recompute selective", said(Uniform { recompute: Recompute::Selective, ..base(usual) })),
        ("recompute full", said(Uniform { recompute: Recompute::Full, ..base(usual) })),
        ("recompute block", said(Uniform { recompute: Recompute::Block, ..base(usual) })),
        ("recompute stage", said(Uniform { recompute: Recompute::Stage, ..base(usual) })),
        (
            "last spared",
            Plan {
                recompute_last: false,
                ..said(Uniform { recompute: Recompute::Block, ..base(usual) })
            },
        ),
        ("unfused", Plan { attention: AttentionKind::Unfused, ..plain() }),
        ("keeps gathered", Plan { keeps_gathered: true, ..plain() }),
        ("validates afterwards", Plan { post_validation: true, ..plain() }),
        ("skips", Plan { skip_non_finite: true, ..plain() }),
        ("thread", Plan { communication: Communication::Thread, ..plain() }),
        ("splits blocks", synced(|sync| sync.splits_blocks = true, 0)),
        ("all-reduces", synced(|sync| sync.all_reduces = true, 1)),
        ("buckets", synced(|sync| sync.bucket_bytes = 1 << 20, 2)),
        ("tied in stages", stages(tied)),
        ("tied", of_model(usual, tied, Mesh::of(4, 1, 1))),
        ("narrow heads", of_model(usual, odd, Mesh::of(4, 1, 1))),
        ("loss apart", of_model(usual, apart, Mesh::of(4, 1, 1))),
        ("gpt", of_model(usual, gpt, Mesh::of(4, 1, 1))),
        ("gpt, loss apart", of_model(usual, gpt_apart, Mesh::of(4, 1, 1))),
        ("padded gpt", of_model(usual, padded, Mesh::of(4, 1, 1))),
    ]
}

/// What a project makes of a plan: `!` and the key that it refuses, or those that it leaves out. What it says comes
/// back as it was.
fn outcome(case: &Case, project: Project) -> BTreeSet<String> {
    let exported = match export(project, &case.plan, &case.spec, &case.graph, case.machines()) {
        Err(ExchangeError::Refused { key, .. }) => return BTreeSet::from([format!("!{key}")]),
        Err(error) => panic!("{project}: {error}"),
        Ok(exported) => exported,
    };
    let back = there_and_back(case, project);
    let back = back.unwrap_or_else(|error| panic!("{} by {project}: {error}", case.name));
    let back = Plan { model: case.plan.model.clone(), ..back.plan };
    let unsaid: BTreeSet<String> = exported.unsaid.into_iter().map(|it| it.key).collect();
    for difference in diff(&case.plan, &back) {
        let path = &difference.key;
        let is_of = |key: &str| *path == key || path.starts_with(&format!("{key}."));
        let means_nothing = match &path[..] {
            // Fused attention keeps no scores that could be computed twice.
            "recompute" => case.plan.recompute == Recompute::Selective,
            // No activation is gathered in these plans.
            "keeps_gathered" => true,
            // Buckets are always cut so there, or hold what a layer has.
            "sync.splits_blocks" => true,
            _ => false,
        };
        let expected = unsaid.iter().any(|key| is_of(key)) || means_nothing;
        assert!(expected, "{} by {project}: {path}", case.name);
    }
    unsaid
}

/// Those whose word is not that of the plan as it is, of all projects.
fn table() -> String {
    let mut lines = vec![];
    for project in Project::ALL {
        // Of gradients in fp32 and weights in bf16 these two are said of replicas that share.
        let usual = match project {
            Project::DeepSpeed => 1,
            Project::Accelerate => 2,
            _ => 0,
        };
        let mut base = BTreeSet::new();
        for (index, (name, plan)) in plans(usual).into_iter().enumerate() {
            let case = Case::of(name, plan);
            let keys = outcome(&case, project);
            if index == 0 {
                lines.push(format!(
                    "{project}: {}",
                    keys.iter().cloned().collect::<Vec<_>>().join(" ")
                ));
                base = keys;
                continue;
            }
            let is_refused = keys.iter().any(|key| key.starts_with('!'));
            let less = base.difference(&keys).filter(|_| !is_refused).map(|key| format!("-{key}"));
            let more = keys.difference(&base).cloned();
            let words: Vec<String> = more.chain(less).collect();
            if !words.is_empty() {
                lines.push(format!("  {name}: {}", words.join(" ")));
            }
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn every_word_of_a_plan_is_said_listed_or_refused_as_docs_exchange_says() {
    let (found, expected) = (table(), TABLE);
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert_eq!(differs, None);
    assert_eq!(found, expected);
}

/// docs/exchange.md in the words of these plans: of each project what it leaves out of the plan as it is; and then of
/// which plans it leaves out more, `-` less, or which it refuses, `!`.
const TABLE: &str = "\
Megatron-LM: sync.algorithm
  zero 2: sync.bucket_bytes
  zero 3: sync.bucket_bytes
  tp: sync.bucket_bytes
  sequence-parallel: sync.bucket_bytes
  cp and zero 3: sync.bucket_bytes
  afab: !schedule
  zb-h1: !schedule
  fp32 with a copy: !precision.master
  bf16 without a copy: !precision.master
  bf16 alone: !precision.master
  fp16, no scale: loss_scale
  sgd for a batch: !optimizer.kind
  lamb: !optimizer.kind
  adafactor: !optimizer.kind
  recompute full: recompute
  last spared: recompute_last
  keeps gathered: keeps_gathered
  validates afterwards: post_validation
  skips: skip_non_finite
  thread: communication
  all-reduces: sync.all_reduces
  buckets: sync.bucket_bytes
  loss apart: !model
  gpt, loss apart: !model
  padded gpt: model
DeepSpeed: attention model optimizer.weight_decay sync.algorithm
  sequence-parallel: !layout
  cp: !pipeline.stage.mesh.cp
  cp and zero 1: !pipeline.stage.mesh.cp
  cp and zero 3: !pipeline.stage.mesh.cp
  1f1b: !pipeline.stage
  afab: !pipeline.stage
  interleaved: !pipeline.stage
  zb-h1: !pipeline.stage
  data outside: !pipeline.stage
  fp32 with a copy: !precision.master
  bf16 without a copy: !precision.master
  bf16 alone: !precision.master
  fp16, no scale: loss_scale
  sgd: -optimizer.weight_decay
  sgd for a batch: !optimizer.kind
  adamw without decay: -optimizer.weight_decay
  adafactor: !optimizer.kind
  recompute selective: recompute
  recompute full: recompute
  recompute block: recompute
  recompute stage: recompute
  last spared: recompute recompute_last
  keeps gathered: keeps_gathered
  validates afterwards: post_validation
  skips: skip_non_finite
  thread: communication
  splits blocks: !precision.gradients
  all-reduces: sync.all_reduces
  tied in stages: !pipeline.stage
  loss apart: !model
  gpt, loss apart: !model
torchtitan: mask_documents model sync.algorithm sync.bucket_bytes
  zero 1: !sync.zero
  cp: !sync.zero
  cp and zero 1: !sync.zero
  data outside: !pipeline.stage.devices
  fp32 with a copy: !precision.master
  bf16 without a copy: !precision.master
  bf16 gradients: !precision.gradients
  bf16 alone: !precision.gradients
  fp16: !precision.compute
  fp16, constant scale: !precision.compute
  fp16, no scale: !precision.compute
  sgd: !optimizer.kind
  sgd for a batch: !optimizer.kind
  lamb: !optimizer.kind
  adafactor: !optimizer.kind
  recompute full: recompute
  recompute stage: !recompute
  last spared: recompute_last
  unfused: attention
  keeps gathered: keeps_gathered
  validates afterwards: post_validation
  skips: skip_non_finite
  thread: communication
  all-reduces: !sync.zero
  tied in stages: !model
  narrow heads: !model
  loss apart: !model
  gpt: !model
  gpt, loss apart: !model
  padded gpt: !model
nanotron: sync.algorithm sync.bucket_bytes sync.splits_blocks
  zero 1: sync.all_reduces -sync.splits_blocks
  zero 2: !sync.zero
  zero 3: !sync.zero
  tp: !sync.zero
  sequence-parallel: !sync.zero
  cp: !pipeline.stage.mesh.cp
  cp and zero 1: !pipeline.stage.mesh.cp
  cp and zero 3: !pipeline.stage.mesh.cp
  1f1b: !pipeline.stage.blocks
  afab: !pipeline.stage.blocks
  interleaved: !schedule
  zb-h1: !schedule
  data outside: !pipeline.stage.devices
  fp32 with a copy: !precision
  bf16 without a copy: !precision
  bf16 gradients: !precision
  bf16 alone: !precision
  fp16: !precision.compute
  fp16, constant scale: !precision.compute
  fp16, no scale: !precision.compute
  sgd: !optimizer.kind
  sgd for a batch: !optimizer.kind
  lamb: !optimizer.kind
  adafactor: !optimizer.kind
  recompute full: recompute
  recompute stage: !recompute
  last spared: recompute_last
  unfused: attention
  validates afterwards: post_validation
  skips: skip_non_finite
  thread: communication
  splits blocks: -sync.splits_blocks
  all-reduces: -sync.splits_blocks
  buckets: !sync.zero
  tied in stages: !pipeline.stage.blocks
  narrow heads: !model
  loss apart: !model
  gpt: !model
  gpt, loss apart: !model
  padded gpt: !model
Accelerate: attention clip_norm global_batch model optimizer precision.gradients sync.algorithm sync.bucket_bytes
  zero 1: !sync.zero
  sequence-parallel: !layout
  cp: !sync.zero
  cp and zero 1: !sync.zero
  1f1b: !pipeline.stage
  afab: !pipeline.stage
  interleaved: !pipeline.stage
  zb-h1: !pipeline.stage
  data outside: !pipeline.stage
  fp32: -precision.gradients
  fp32 with a copy: !precision.master
  bf16 without a copy: !precision.master
  bf16 gradients: !precision.gradients
  bf16 alone: !precision.master
  fp16, constant scale: loss_scale
  fp16, no scale: loss_scale
  recompute selective: recompute
  recompute full: recompute
  recompute stage: !recompute
  last spared: recompute_last
  keeps gathered: keeps_gathered
  validates afterwards: post_validation
  skips: skip_non_finite
  thread: communication
  splits blocks: -precision.gradients
  all-reduces: !sync.zero
  tied in stages: !pipeline.stage
  loss apart: !model
  gpt, loss apart: !model
";
