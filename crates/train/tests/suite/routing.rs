//! Rows that choose their experts while running: wherever experts and samples are, training is the serial
//! run's.

use crate::support::trained::Trained;
use crate::support::{Samples, mesh, serial, settings, trainer, trainer_with, trainer_with_clock};
use shardloom_checkpoint::{Checkpoint, Meta};
use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec, OpKind};
use shardloom_plan::{
    LayoutRules, Mesh, Number, Optimizer, Plan, Precision, Recompute, ScheduleKind, Sync, Uniform,
};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::verify::verify;
use shardloom_program::{Entry, MeasuredRows, Placement, Program, lower};
use shardloom_sim::{
    Call, Driver, Modelled, Options, Recorded, RowCounts, SimError, run as simulate,
};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{RunClock, Trainer};

const EXAMPLE: &str = include_str!("../../../../examples/models/routed-experts.toml");
const SEQ: usize = 16;
const VOCAB: u32 = 64;

/// The example with so many slots of an expert for the rows of one sample: 16 are enough for all.
fn graph(slots: usize, overflow: &str) -> Graph {
    let text = EXAMPLE
        .replace("slot = 8 ", &format!("slot = {slots} "))
        .replace("overflow = \"drop\"", &format!("overflow = \"{overflow}\""));
    let spec = ModelSpec::from_toml(&text, "routed-experts.toml");
    spec.and_then(|spec| spec.graph()).unwrap_or_else(|error| panic!("{error}"))
}

fn samples() -> Samples {
    Samples::patterned(64, SEQ, VOCAB)
}

/// With momentum and without clipping, which would hide a factor in gradients.
fn plain() -> Uniform {
    let optimizer = Optimizer::sgd(0.9);
    Uniform { optimizer, clip_norm: None, ..serial() }
}

fn layout(text: &str) -> LayoutRules {
    text.to_owned().try_into().unwrap_or_else(|error| panic!("{error}"))
}

/// Experts are dealt to data-parallel ranks.
const OVER_DP: &str = "expert:dp, batch:dp";
/// The batch is split over both axes and experts over one: the other has replicas of the groups of experts.
const GROUPS: &str = "expert:cp, batch:dp, batch:cp";

fn planned(graph: &Graph, uniform: &Uniform, rules: &str) -> Plan {
    Plan { layout: layout(rules), ..uniform.plan(graph, "model", "local") }
}

fn run(graph: &Graph, plan: &Plan, steps: usize) -> (Trained, Trainer) {
    let mut trainer = trainer(graph, plan, samples(), 0.02);
    let trained = Trained::in_rows(&mut trainer, &vec![1; steps]);
    (trained, trainer)
}

fn reference(graph: &Graph, microbatches: usize) -> Trained {
    let uniform = Uniform { microbatches, ..plain() };
    let (reference, _) = run(graph, &planned(graph, &uniform, "batch:dp"), 12);
    let far = reference.distance();
    assert!(far > 0.2, "the parameters move far, not {far}");
    reference
}

/// Checks losses and movements against the serial run, and memory against the program's bounds.
fn assert_like(reference: &Trained, graph: &Graph, plan: &Plan) {
    let (trained, trainer) = run(graph, plan, 12);
    let text = plan.to_toml();
    trained.assert_losses(reference, 1e-6, &text);
    trained.assert_moved(reference, 1e-4, &text);
    let peaks = trainer.program().classes().flat_map(|(_, class)| {
        let peak = |position| class.memory_use(trainer.program(), position).peak_bytes;
        (0..class.mesh.size()).map(peak)
    });
    assert_eq!(trainer.peak_bytes_per_rank(), peaks.collect::<Vec<_>>(), "{text}");
}

fn meshes() -> [(Mesh, &'static str); 5] {
    [
        (mesh(2, 1, 1), "batch:dp"),
        (mesh(2, 1, 1), OVER_DP),
        (mesh(4, 1, 1), OVER_DP),
        (mesh(2, 2, 1), GROUPS),
        (mesh(1, 2, 1), GROUPS),
    ]
}

#[test]
fn two_and_four_ranks_train_like_one_with_room_for_all_rows_and_without() {
    for slots in [16, 3] {
        let graph = graph(slots, "drop");
        let reference = reference(&graph, 1);
        for (mesh, rules) in meshes() {
            let plan = planned(&graph, &Uniform { mesh, ..plain() }, rules);
            assert_like(&reference, &graph, &plan);
        }
    }
}

/// The example in which rows also come back from where they were sent as they are.
fn graph_with_a_second_reader() -> Graph {
    let straight = "[[block.op]]\nname = \"straight\"\nkind = \"combine\"\n\
                    inputs = [\"dispatch\", \"route\"]\n\n[[block.op]]\nname = \"both\"\n\
                    kind = \"add\"\ninputs = [\"combine\", \"straight\"]\n\n\
                    [[block.op]]\nname = \"sum\"";
    let text = EXAMPLE
        .replace("[[block.op]]\nname = \"sum\"", straight)
        .replace("inputs = [\"input\", \"combine\"]", "inputs = [\"input\", \"both\"]");
    let spec = ModelSpec::from_toml(&text, "routed-experts.toml");
    spec.and_then(|spec| spec.graph()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn rows_that_two_operators_read_in_different_layouts_train_like_those_of_one_rank() {
    let graph = graph_with_a_second_reader();
    let reference = reference(&graph, 2);
    for recompute in [Recompute::None, Recompute::Full] {
        for (mesh, rules) in meshes() {
            let uniform = Uniform { mesh, microbatches: 2, recompute, ..plain() };
            let plan = planned(&graph, &uniform, rules);
            let program = lower(&graph, &plan, plan.device_count()).expect("a program");
            assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
            assert_like(&reference, &graph, &plan);
        }
    }
}

#[test]
fn micro_batches_stages_recomputation_and_shared_state_change_nothing() {
    let graph = graph(3, "drop");
    let reference = reference(&graph, 4);
    let [two, four, groups] = [mesh(2, 1, 1), mesh(4, 1, 1), mesh(2, 2, 1)];
    let flush = ScheduleKind::OneForwardOneBackward;
    for (pp, mesh, rules, schedule, recompute, zero) in [
        (2, Mesh::SINGLE, "batch:dp", flush, Recompute::None, 0),
        (2, two, OVER_DP, flush, Recompute::None, 0),
        (2, two, OVER_DP, ScheduleKind::ZeroBubbleH1, Recompute::None, 0),
        (2, two, OVER_DP, flush, Recompute::Full, 1),
        (1, two, OVER_DP, flush, Recompute::Full, 0),
        (1, two, OVER_DP, flush, Recompute::Stage, 3),
        (1, groups, GROUPS, flush, Recompute::None, 3),
        (1, groups, GROUPS, flush, Recompute::Full, 2),
        (2, four, OVER_DP, ScheduleKind::Afab, Recompute::None, 1),
    ] {
        let sync = Sync { zero, bucket_bytes: 20_000, ..Sync::default() };
        let (microbatches, global_batch) = (if mesh.size() == 4 { 2 } else { 4 }, 8);
        let uniform =
            Uniform { pp, mesh, schedule, recompute, sync, microbatches, global_batch, ..plain() };
        assert_like(&reference, &graph, &planned(&graph, &uniform, rules));
    }
}

#[test]
fn rows_without_a_slot_contribute_nothing_and_are_the_same_however_samples_are_dealt() {
    let counts = |slots: usize, mesh: Mesh, rules: &str, microbatches: usize| {
        let graph = graph(slots, "drop");
        let uniform = Uniform { mesh, microbatches, ..plain() };
        let (_, mut trainer) = run(&graph, &planned(&graph, &uniform, rules), 3);
        let measured = trainer.row_counts().unwrap_or_else(|error| panic!("{error}"));
        let mut sums = std::collections::BTreeMap::new();
        for (routing, _, by_expert) in measured.by_expert() {
            let sum = sums.entry(routing).or_insert_with(|| vec![0; by_expert.len()]);
            sum.iter_mut().zip(by_expert).for_each(|(sum, rows)| *sum += rows);
        }
        sums
    };
    let one = Mesh::SINGLE;
    let all = counts(16, one, "batch:dp", 1);
    assert_eq!(all.len(), 2, "both layers route");
    assert!(
        all.values().all(|it| it.iter().sum::<usize>() == 8 * 16),
        "no row is dropped: {all:?}"
    );
    let kept = counts(3, one, "batch:dp", 1);
    assert!(kept.values().all(|it| it.iter().all(|&rows| rows <= 8 * 3)), "{kept:?}");
    let dropped = kept.values().all(|it| it.iter().sum::<usize>() < 8 * 16);
    assert!(dropped, "each layer drops some: {kept:?}");
    for (mesh, rules) in meshes() {
        assert_eq!(counts(3, mesh, rules, 1), kept, "{mesh}, {rules}");
        assert_eq!(counts(3, mesh, rules, 2), kept, "{mesh}, {rules}, two micro-batches");
    }
}

#[test]
fn a_row_too_many_stops_the_run_where_the_model_says_so_and_is_named() {
    let graph_with_room = graph(16, "drop");
    let plan = planned(&graph_with_room, &plain(), "batch:dp");
    let mut with_room = trainer(&graph_with_room, &plan, samples(), 0.02);
    with_room.step().expect("a step");
    let measured = with_room.row_counts().expect("counts");
    let (routing, _, _) = measured.by_expert().next().expect("the first layer routes");
    for (mesh, rules) in [(Mesh::SINGLE, "batch:dp"), (mesh(2, 1, 1), OVER_DP)] {
        let graph = graph(3, "stop");
        let plan = planned(&graph, &Uniform { mesh, ..plain() }, rules);
        let mut stopped = trainer(&graph, &plan, samples(), 0.02);
        let text = stopped.step().expect_err("some expert has more than 3 rows").to_string();
        for part in ["step 0, layer.0.route: ", " rows of sample ", "which has 3 slots"] {
            assert!(text.contains(part), "{text}");
        }
        // It is the number of rows that chose this expert where there is room for them.
        let words = text.split([' ', ',', ':']);
        let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
        let [_, 0, count, sample, expert, 3] = numbers[..] else { panic!("{text}") };
        let chosen = measured.rows(routing, 0, expert..expert + 1, sample..sample + 1);
        assert_eq!(chosen, Some(count), "{text}");
        let mut stopped = trainer(&graph, &plan, samples(), 0.02);
        let text = stopped.validate(1).expect_err("nor has validation room").to_string();
        for part in ["validation, layer.0.route: ", " rows of validation sample "] {
            assert!(text.contains(part), "{text}");
        }
    }
    // With room for all nothing stops, and it is what dropping nothing is.
    let reference = reference(&graph(16, "drop"), 1);
    let roomy = graph(16, "stop");
    assert_like(&reference, &roomy, &planned(&roomy, &plain(), "batch:dp"));
}

#[test]
fn validation_leaves_the_counts_of_training() {
    let graph = graph(16, "drop");
    let plan = planned(&graph, &plain(), "batch:dp");
    let mut trainer = trainer(&graph, &plan, samples(), 0.02);
    for _ in 0..3 {
        trainer.step().expect("a step");
    }
    let before = trainer.row_counts().expect("counts");
    trainer.validate(1).expect("a loss").expect("samples");
    assert_eq!(trainer.row_counts().expect("counts"), before);
}

#[test]
fn a_run_that_stopped_in_the_middle_of_a_step_does_no_more_under_either_clock() {
    let graph = graph(3, "stop");
    let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 4, ..plain() };
    let plan = planned(&graph, &uniform, OVER_DP);
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    for clock in [RunClock::Wall, RunClock::Virtual(cluster)] {
        let mut stopped = trainer_with_clock(&graph, &plan, samples(), 0.02, clock);
        let text = stopped.step().expect_err("some expert has more than 3 rows").to_string();
        assert!(text.contains("which has 3 slots"), "{text}");
        let folder = tempfile::tempdir().expect("a folder");
        for refused in [
            stopped.step().map(drop),
            stopped.validate(1).map(drop),
            stopped.save(folder.path(), Meta::default(), None).map(drop),
        ] {
            let text = refused.expect_err("it has failed").to_string();
            assert!(text.contains("it failed before"), "{text}");
        }
    }
}

/// Bytes that a rank sends in a step with these counts.
fn sent(program: &Program, rank: u32, measured: &MeasuredRows) -> u64 {
    let (id, position) = program.locate(shardloom_program::Rank(rank));
    let class = program.class(id);
    let of = |entry: &Entry| -> u64 {
        let body = &class.body_of(entry).instructions;
        let each = body.iter().map(|it| match class.row_exchange(position, it) {
            None => program.instruction_sent_bytes(id, position, it),
            Some(exchange) => {
                let microbatch = entry.microbatch.expect("rows are of micro-batches");
                let rows = |of: &Placement| {
                    let rows = measured.rows(exchange.counts, microbatch, of.range(0), of.range(1));
                    rows.map(|it| it as f64).ok_or(of.clone())
                };
                exchange.sent_bytes(rows).expect("all were measured")
            }
        });
        each.sum()
    };
    class.entries().map(of).sum()
}

#[test]
fn every_rank_sends_what_the_program_says_of_the_measured_counts() {
    let graph = graph(3, "drop");
    for (mesh, rules) in meshes() {
        let plan = planned(&graph, &Uniform { mesh, microbatches: 2, ..plain() }, rules);
        let cluster = Cluster::parse("a100-40g:8").expect("a preset");
        for clock in [RunClock::Wall, RunClock::Virtual(cluster)] {
            let mut trainer = trainer_with_clock(&graph, &plan, samples(), 0.02, clock);
            let mut expected = vec![0; mesh.size()];
            for _ in 0..3 {
                trainer.step().unwrap_or_else(|error| panic!("{error}"));
                let measured = trainer.row_counts().unwrap_or_else(|error| panic!("{error}"));
                for (rank, expected) in (0u32..).zip(&mut expected) {
                    let bytes = sent(trainer.program(), rank, &measured);
                    let most =
                        trainer.program().sent_bytes(shardloom_program::ClassId(0), rank as usize);
                    assert!(bytes <= most, "{bytes} of {most}");
                    *expected += bytes;
                }
                assert_eq!(trainer.sent_bytes_per_rank(), expected, "{mesh}, {rules}");
            }
        }
    }
}

/// Computes as long as was recorded, and exchanges as long as the model says.
struct ModelledExchanges<'a> {
    recorded: Recorded<'a>,
    modelled: Modelled<'a>,
    exchanges: usize,
}

impl Driver for ModelledExchanges<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        self.recorded.clock()
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.recorded.local(call)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.recorded.send(call, durations)
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.recorded.receive(call)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let recorded = self.recorded.collective(members)?;
        let modelled = self.modelled.collective(members)?;
        assert_eq!(recorded, modelled, "{:?}", members[0].instruction);
        self.exchanges += 1;
        Ok(modelled)
    }
}

#[test]
fn the_virtual_clock_equals_the_simulator_that_is_given_the_measured_counts() {
    let graph = graph(3, "drop");
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    for (mesh, rules) in meshes() {
        let uniform = Uniform { mesh, microbatches: 2, ..plain() };
        let plan = planned(&graph, &uniform, rules);
        let clock = RunClock::Virtual(cluster.clone());
        let mut trainer = trainer_with_clock(&graph, &plan, samples(), 0.02, clock);
        for _ in 0..2 {
            let (_, executed) = trainer.step_recorded().unwrap_or_else(|error| panic!("{error}"));
            let measured = trainer.row_counts().unwrap_or_else(|error| panic!("{error}"));
            let rows = RowCounts::Measured(measured);
            let program = trainer.program();
            let modelled = Modelled::new(&graph, &cluster, program).expect("a known device");
            let recording = trainer.recording().expect("the virtual clock records");
            let mut driver = ModelledExchanges {
                recorded: Recorded::new(recording),
                modelled: modelled.with_rows(rows.clone()),
                exchanges: 0,
            };
            let options = Options { steps: 1, folded: false };
            let mut simulated = simulate(program, &cluster, options, &mut driver)
                .unwrap_or_else(|it| panic!("{it}"));
            assert!(driver.exchanges > 0);
            simulated.count_rows(program, &driver.modelled).expect("all were measured");
            // What a rank held at once is the program's, and what it sent that of the counts.
            assert_eq!(simulated.timeline, executed, "{mesh}, {rules}");
        }
    }
}

#[test]
fn experts_are_saved_by_who_has_them_and_resumed_under_any_other_plan() {
    let graph = graph(3, "drop");
    let adam = Uniform { optimizer: Optimizer::default(), ..plain() };
    let plan_of =
        |(mesh, rules): (Mesh, &str)| planned(&graph, &Uniform { mesh, ..adam.clone() }, rules);
    let start = |plan: &Plan| {
        trainer_with(&graph, plan, samples(), settings(Curve::Constant { peak: 0.01 }))
    };
    let four = plan_of((mesh(4, 1, 1), OVER_DP));
    let mut whole = start(&four);
    whole.train_steps(3).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = whole.save(folder.path(), Meta::default(), None).expect("saved");
    let digest = whole.weights_digest().expect("weights");
    whole.train_steps(3).unwrap_or_else(|error| panic!("{error}"));
    let expected = whole.weights().expect("weights");
    for (mesh, rules) in meshes().into_iter().chain([(Mesh::SINGLE, "batch:dp")]) {
        let plan = plan_of((mesh, rules));
        let mut resumed = start(&plan);
        resumed.resume(Checkpoint::open(&path).expect("whole")).expect("resumed");
        assert_eq!(resumed.weights_digest().expect("weights"), digest, "{mesh}, {rules}");
        resumed.train_steps(3).unwrap_or_else(|error| panic!("{error}"));
        for (name, values) in resumed.weights().expect("weights") {
            for (value, expected) in values.iter().zip(&expected[&name]) {
                let same = plan == four;
                let apart = (value - expected).abs();
                assert!(
                    if same { apart == 0.0 } else { apart < 1e-4 },
                    "{name}: {apart:e}, {mesh}"
                );
            }
        }
    }
}

#[test]
fn experts_over_ranks_have_bitwise_the_results_of_one_rank_where_no_sum_is_split() {
    // Forward passes only: the first loss of each sample is a sum over its own rows.
    let graph = graph(3, "drop");
    assert!(graph.ops().any(|(_, op)| matches!(op.kind, OpKind::Route { slots: 3, .. })));
    for precision in [Precision::FP32, BF16] {
        let one = |mesh, rules| {
            let uniform = Uniform { mesh, precision, global_batch: 2, ..plain() };
            let mut trainer = trainer(&graph, &planned(&graph, &uniform, rules), samples(), 0.02);
            trainer.validate(2).expect("samples").expect("enough").to_bits()
        };
        let split = one(mesh(2, 1, 1), OVER_DP);
        assert_eq!(split, one(mesh(2, 1, 1), "batch:dp"), "whether rows travel changes no bit");
    }
}

const BF16: Precision =
    Precision { compute: Number::Bf16, gradients: Number::Bf16, master: true, ..Precision::MIXED };

#[test]
fn experts_in_bf16_train_nearly_as_in_fp32_and_count_in_fp32() {
    let graph = graph(16, "drop");
    let (reference, _) = run(&graph, &planned(&graph, &plain(), "batch:dp"), 4);
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    let uniform = Uniform { mesh: mesh(2, 1, 1), precision: BF16, ..plain() };
    let plan = planned(&graph, &uniform, OVER_DP);
    for clock in [RunClock::Wall, RunClock::Virtual(cluster)] {
        let mut trainer = trainer_with_clock(&graph, &plan, samples(), 0.02, clock);
        let mut expected = vec![0; 2];
        let mut losses = vec![];
        for _ in 0..4 {
            losses.push(trainer.step().unwrap_or_else(|error| panic!("{error}")).loss);
            let measured = trainer.row_counts().unwrap_or_else(|error| panic!("{error}"));
            for (rank, expected) in (0u32..).zip(&mut expected) {
                *expected += sent(trainer.program(), rank, &measured);
            }
        }
        assert_eq!(trainer.sent_bytes_per_rank(), expected);
        for (loss, expected) in losses.iter().zip(&reference.losses) {
            assert!((loss - expected).abs() < 0.01 * expected, "{losses:?}");
        }
    }
    let class = &trainer(&graph, &plan, samples(), 0.02).program().classes[0].clone();
    let rows = class.tensors.iter().filter(|tensor| tensor.counts().is_some());
    assert!(rows.clone().count() > 0);
    assert!(rows.clone().all(|it| it.format == shardloom_program::Format::Bf16));
    let counts = rows.filter_map(|it| Some(class.tensor(it.counts()?.tensor)));
    assert!(counts.into_iter().all(|it| it.format == shardloom_program::Format::F32));
}
