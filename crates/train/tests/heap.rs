//! Once a row of steps runs, training asks the heap for nothing at all: not for buffers, and not for short
//! lists either. Only the row as a whole costs a few calls, however many instructions it has. What can be known
//! ahead of instructions is worked out when ranks are built, so that a row before the one that is watched need
//! have but one step.
//!
//! The calls of all threads are counted, so that all this is one test.
#![expect(unsafe_code, reason = "only an allocator sees how often it is called")]

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "these tests use a part")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use shardloom_collectives::Algorithm;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Axis, AxisSet, Communication, Corrections, Number, Optimizer, Plan, Precision, Prediction,
    Push, Recompute, ScheduleKind, SendOrder, Servers, Share, Staleness, Summation, Sync, Uniform,
    Weights,
};
use support::{Samples, graph, mesh, serial, trainer};

/// How often the heap was asked for memory, by whichever thread.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// How often it was, but by the thread that gives the orders and by the test harness. The former waits for the
/// ranks' answers, and a channel asks for memory when it is waited at for the first time, whenever that is; the
/// latter says that a test takes long.
static RANK_THREADS_CALLS: AtomicUsize = AtomicUsize::new(0);

static TEST_BEGAN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this is a thread of the test harness, which asked for memory before the test began.
    static OF_THE_HARNESS: bool = !TEST_BEGAN.load(Ordering::SeqCst);

    /// Whether this is the thread that gives the orders.
    static GIVES_ORDERS: Cell<bool> = const { Cell::new(false) };
}

/// Whether calls are passed over that are like those of the `gemm` crates. They ask twice for each product:
/// for what they pack operands into, and for flags of what is packed.
static LIKE_PRODUCTS_PASSED_OVER: AtomicBool = AtomicBool::new(false);

/// The alignment of what the `gemm` crates pack into, which nothing of our own has.
const PACKED_ALIGNMENT: usize = 128;

struct Counting;

fn count(layout: Layout, zeroed: bool) {
    let like_products = layout.align() == PACKED_ALIGNMENT || zeroed && layout.align() == 1;
    if !(like_products && LIKE_PRODUCTS_PASSED_OVER.load(Ordering::Relaxed)) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let of_a_rank =
            OF_THE_HARNESS.with(|of_the_harness| !of_the_harness) && !GIVES_ORDERS.get();
        RANK_THREADS_CALLS.fetch_add(usize::from(of_a_rank), Ordering::SeqCst);
    }
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, false);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout, true);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout, false);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn calls() -> usize {
    CALLS.load(Ordering::SeqCst)
}

const SAMPLES: usize = 16;
const SEQ: usize = 16;
const VOCAB: u32 = 32;

/// Steps of the row that is watched: the first few, in which ranks begin the row at different times and
/// pipelines fill; those in which nobody may ask for anything; and the last few, as a rank that is through with
/// the row answers while others are still at their last step.
const FIRST_STEPS: u32 = 2;
const WATCHED_STEPS: u32 = 8;
const LAST_STEPS: u32 = 2;

/// What a row of one step may cost in all, and for each rank: telling the rank, what it answers, and the
/// sum of the loss.
const ROW_CALLS: usize = 6;
const RANK_CALLS: usize = 8;

/// Samples that note how often the heap was asked between two points of a row of steps.
struct Watched {
    samples: Samples,
    watch: Arc<Watch>,
}

struct Watch {
    first_sample: AtomicU64,
    end_sample: AtomicU64,
    /// The calls counted when the first of these samples was loaded, and the last so far.
    before: AtomicUsize,
    after: AtomicUsize,
}

impl Watch {
    /// Watches from where the first of some samples is loaded to where the last is.
    fn watch(&self, samples: Range<u64>) {
        self.before.store(usize::MAX, Ordering::SeqCst);
        self.after.store(0, Ordering::SeqCst);
        self.first_sample.store(samples.start, Ordering::SeqCst);
        self.end_sample.store(samples.end, Ordering::SeqCst);
    }

    /// The calls in between.
    fn calls(&self) -> usize {
        let [before, after] = [&self.before, &self.after].map(|it| it.load(Ordering::SeqCst));
        assert!(before <= after, "the watched samples are loaded");
        after - before
    }
}

impl Source for Watched {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let [first, end] = [&self.watch.first_sample, &self.watch.end_sample];
        if (first.load(Ordering::SeqCst)..end.load(Ordering::SeqCst)).contains(&position) {
            let calls = RANK_THREADS_CALLS.load(Ordering::SeqCst);
            self.watch.before.fetch_min(calls, Ordering::SeqCst);
            self.watch.after.fetch_max(calls, Ordering::SeqCst);
        }
        self.samples.field(part, position, input, room)
    }

    fn validation_len(&self) -> u64 {
        self.samples.validation_len()
    }
}

/// Trains a few rows of steps, the last but one of which is watched from the inside, the last as a whole, and
/// validates.
fn assert_asks_for_nothing(graph: &Graph, plan: &Plan) {
    GIVES_ORDERS.set(true);
    let watch = Arc::new(Watch {
        first_sample: AtomicU64::new(u64::MAX),
        end_sample: AtomicU64::new(u64::MAX),
        before: AtomicUsize::new(usize::MAX),
        after: AtomicUsize::new(0),
    });
    let samples = Samples::patterned(32, SEQ, VOCAB);
    let source = Watched { samples, watch: Arc::clone(&watch) };
    let mut trainer = trainer(graph, plan, source, 1e-3);
    let mut train = |steps| {
        let trained = trainer.train_steps(steps);
        trained.unwrap_or_else(|error| panic!("{error}\n{}", plan.to_toml()));
        trainer.next_step()
    };
    let start = train(1) + u64::from(FIRST_STEPS);
    let end = start + u64::from(WATCHED_STEPS);
    watch.watch(start * SAMPLES as u64..end * SAMPLES as u64);
    assert_eq!(train(FIRST_STEPS + WATCHED_STEPS + LAST_STEPS), end + u64::from(LAST_STEPS));
    assert_eq!(watch.calls(), 0, "calls in the midst of a row of\n{}", plan.to_toml());

    let before = calls();
    train(1);
    let row = calls() - before;
    let most = ROW_CALLS + RANK_CALLS * plan.device_count();
    assert!(row <= most, "{row} calls in a step of\n{}", plan.to_toml());

    // Several ranks need not be through at the same time, and answer when they are.
    if plan.device_count() == 1 {
        watch.watch(SAMPLES as u64..2 * SAMPLES as u64);
        trainer.validate(u64::MAX).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(watch.calls(), 0, "calls in the midst of validation of\n{}", plan.to_toml());
    }
}

fn assert_uniform_asks_for_nothing(graph: &Graph, uniform: &Uniform) {
    assert_asks_for_nothing(graph, &uniform.plan(graph, "model", "local"));
}

fn gpt(layers: usize) -> Graph {
    graph(&format!(
        "gpt:layers={layers},hidden=32,heads=2,seq={SEQ},vocab={VOCAB},dropout=0.1,tied=true"
    ))
}

fn uniform() -> Uniform {
    let sync = Sync { bucket_bytes: 10_000, ..Sync::default() };
    Uniform { global_batch: SAMPLES, microbatches: 4, sync, ..serial() }
}

const SGD: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1, reference_batch: None };

#[test]
fn in_the_midst_of_a_row_of_steps_the_heap_is_asked_for_nothing() {
    TEST_BEGAN.store(true, Ordering::SeqCst);
    if cfg!(not(target_arch = "x86_64")) {
        // Elsewhere products of all sizes are computed by the `gemm` crates.
        LIKE_PRODUCTS_PASSED_OVER.store(true, Ordering::Relaxed);
    }
    whatever_the_number_of_instructions();
    with_every_way_of_splitting();
    with_a_second_copy_of_weights();
    with_every_optimizer();
    under_every_schedule();
    under_every_rule_for_weights();
    in_other_networks();
    in_bfloat16();
    with_a_communication_thread();
    with_parameter_servers();
    with_servers_that_sum();
    with_sparse_gradients();
    with_recurrences();
    with_rows_that_choose_their_experts();
}

fn with_parameter_servers() {
    let graph = gpt(2);
    let (gradients, deltas) = (Push::Gradients, Push::Deltas);
    let pushes = [(1, 1, gradients), (2, 1, gradients), (2, 2, gradients), (2, 2, deltas)];
    for (workers, count, push) in pushes {
        // Without a bound of staleness workers end the row at different times.
        let servers = Some(Servers { push, ..Servers::of(count, Staleness::Within(0)) });
        let sync = Sync { servers, ..uniform().sync };
        let mesh = mesh(workers, 1, 1);
        let uniform = Uniform { mesh, sync, microbatches: 2, clip_norm: None, ..uniform() };
        assert_uniform_asks_for_nothing(&graph, &uniform);
    }
}

fn with_servers_that_sum() {
    let graph = gpt(2);
    for (workers, servers, share, colocated) in
        [(1, 1, 1.0, false), (2, 1, 0.5, false), (2, 2, 1.0, false), (2, 1, 0.5, true)]
    {
        let share = Share::Part(share);
        for order in [SendOrder::Backward, SendOrder::NextUse] {
            let summation = Some(Summation { share, order, colocated, ..Summation::of(servers) });
            let sync = Sync { summation, ..uniform().sync };
            let mesh = mesh(workers, 1, 1);
            let uniform = Uniform { mesh, sync, microbatches: 2, clip_norm: None, ..uniform() };
            assert_uniform_asks_for_nothing(&graph, &uniform);
        }
    }
}

fn with_sparse_gradients() {
    let graph = graph("gpt:layers=2,hidden=32,heads=2,seq=16,vocab=64,tied=false");
    for optimizer in [SGD, Optimizer::default()] {
        for replicas in [1, 2] {
            let sync = Sync { sparse: true, algorithm: Algorithm::Direct, ..uniform().sync };
            let uniform = Uniform { optimizer, mesh: mesh(replicas, 1, 1), sync, ..uniform() };
            assert_uniform_asks_for_nothing(&graph, &uniform);
        }
    }
}

fn with_recurrences() {
    let graph = graph("lstm:layers=2,hidden=32,embed=32,projection=16,seq=16,vocab=64");
    for (pp, mesh) in [(1, mesh(1, 1, 1)), (1, mesh(2, 1, 1)), (2, mesh(1, 1, 1))] {
        assert_uniform_asks_for_nothing(&graph, &Uniform { pp, mesh, ..uniform() });
    }
}

fn with_rows_that_choose_their_experts() {
    let text = include_str!("../../../examples/models/routed-experts.toml");
    let spec = ModelSpec::from_toml(text, "routed-experts.toml").and_then(|spec| spec.graph());
    let graph = spec.unwrap_or_else(|error| panic!("{error}"));
    // Products with as few columns as there are experts are those of the `gemm` crates.
    let before = LIKE_PRODUCTS_PASSED_OVER.swap(true, Ordering::Relaxed);
    for microbatches in [2, 4] {
        let uniform = Uniform { microbatches, ..uniform() };
        assert_uniform_asks_for_nothing(&graph, &uniform);
    }
    LIKE_PRODUCTS_PASSED_OVER.store(before, Ordering::Relaxed);
}

fn with_a_communication_thread() {
    for (pp, mesh, zero) in
        [(1, mesh(2, 1, 1), 0), (1, mesh(2, 1, 1), 3), (2, mesh(2, 1, 1), 2), (1, mesh(2, 1, 2), 1)]
    {
        let sync = Sync { zero, ..uniform().sync };
        let uniform = Uniform { pp, mesh, sync, ..uniform() };
        let plan = uniform.plan(&gpt(2), "model", "local");
        assert_asks_for_nothing(&gpt(2), &Plan { communication: Communication::Thread, ..plan });
    }
}

fn whatever_the_number_of_instructions() {
    for (layers, microbatches) in [(2, 2), (2, 8), (6, 2)] {
        for pp in [1, 2] {
            let uniform = Uniform { pp, microbatches, ..uniform() };
            assert_uniform_asks_for_nothing(&gpt(layers), &uniform);
        }
    }
}

fn with_every_way_of_splitting() {
    for (pp, mesh, sequence_parallel) in [
        (1, mesh(2, 1, 1), false),
        (1, mesh(1, 2, 1), false),
        (1, mesh(1, 1, 2), false),
        (1, mesh(1, 1, 2), true),
        (2, mesh(2, 1, 1), false),
        (2, mesh(1, 1, 2), true),
        (1, mesh(2, 1, 2), true),
    ] {
        for zero in (0..4).take(if mesh.dp() > 1 { 4 } else { 1 }) {
            for algorithm in [Algorithm::Ring, Algorithm::Direct] {
                let sync = Sync { algorithm, zero, ..uniform().sync };
                let uniform = Uniform { pp, mesh, sequence_parallel, sync, ..uniform() };
                assert_uniform_asks_for_nothing(&gpt(2), &uniform);
            }
        }
    }
}

fn with_a_second_copy_of_weights() {
    let mesh = mesh(4, 1, 1).sharing_within(2).expect("two nodes");
    let sync = Sync { zero: 3, second_copy_over: AxisSet::of(&[Axis::DP]), ..uniform().sync };
    assert_uniform_asks_for_nothing(&gpt(2), &Uniform { mesh, sync, ..uniform() });
}

fn with_every_optimizer() {
    let optimizers = [
        SGD,
        Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.0,
        },
    ];
    for optimizer in optimizers {
        for (mesh, zero) in [(mesh(1, 1, 1), 0), (mesh(2, 1, 1), 1)] {
            let sync = Sync { zero, ..uniform().sync };
            let uniform = Uniform { optimizer, mesh, sync, ..uniform() };
            assert_uniform_asks_for_nothing(&gpt(2), &uniform);
        }
    }
}

fn under_every_schedule() {
    let graph = gpt(6);
    for schedule in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        let clip_norm = schedule.flushes().then_some(0.1);
        let recompute = Recompute::Selective;
        let uniform =
            Uniform { pp: 2, schedule, microbatches: 8, clip_norm, recompute, ..uniform() };
        assert_uniform_asks_for_nothing(&graph, &uniform);
    }
    let uniform = Uniform { pp: 2, schedule: ScheduleKind::ZeroBubbleH1, ..uniform() };
    let plan = Plan { post_validation: true, ..uniform.plan(&graph, "model", "local") };
    assert_asks_for_nothing(&graph, &plan);
}

fn under_every_rule_for_weights() {
    let newest = |discrepancy, prediction| Weights::Newest {
        corrections: Corrections { discrepancy, prediction, ..Corrections::default() },
    };
    let rules = [
        (ScheduleKind::PipeDream, Weights::Stash),
        (ScheduleKind::PipeDream, Weights::VerticalSync),
        (ScheduleKind::PipeDream, Weights::DoubleBuffer),
        (ScheduleKind::PipeMare, newest(Some(0.135), None)),
        (ScheduleKind::PipeMare, newest(None, Some(Prediction::Velocity))),
        (ScheduleKind::PipeMare, newest(None, Some(Prediction::Weights))),
    ];
    let graph = gpt(2);
    for (schedule, weights) in rules {
        let uniform = Uniform { pp: 2, schedule, optimizer: SGD, clip_norm: None, ..uniform() };
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.weights = weights;
        assert_asks_for_nothing(&graph, &plan);
    }
}

fn in_other_networks() {
    let llama =
        format!("llama:layers=2,hidden=64,heads=4,kv_heads=2,ffn=64,seq={SEQ},vocab={VOCAB}");
    let u_shaped = format!("u-transformer:layers=5,hidden=32,heads=2,seq={SEQ},vocab={VOCAB}");
    for network in [llama, u_shaped] {
        for mesh in [mesh(1, 1, 1), mesh(1, 1, 2)] {
            for recompute in [Recompute::None, Recompute::Full] {
                let uniform = Uniform { pp: 2, mesh, recompute, ..uniform() };
                assert_uniform_asks_for_nothing(&graph(&network), &uniform);
            }
        }
    }
}

fn in_bfloat16() {
    for (compute, gradients) in [(Number::Bf16, Number::Bf16), (Number::Bf16, Number::Fp32)] {
        let precision = Precision { compute, gradients, master: true, ..Precision::MIXED };
        for (pp, mesh, zero) in
            [(1, mesh(1, 1, 1), 0), (2, mesh(2, 1, 1), 3), (1, mesh(1, 1, 2), 0)]
        {
            let sync = Sync { zero, ..uniform().sync };
            let uniform = Uniform { pp, mesh, sync, precision, ..uniform() };
            assert_uniform_asks_for_nothing(&gpt(2), &uniform);
        }
    }
}
