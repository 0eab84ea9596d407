//! How large numbers are, and what optimizers keep of a parameter.

use shardloom_graph::{DimId, ModelSpec};
use shardloom_plan::{
    Axis, Kept, LayoutRule, Mesh, Number, Optimizer, Ranges, ScheduleKind, Servers, Staleness,
    Summation, Uniform,
};

#[test]
fn numbers_have_as_many_bytes_as_their_bits_take() {
    let bits = [(Number::Fp32, 32), (Number::Bf16, 16), (Number::Fp16, 16)];
    for (number, bits) in bits {
        assert_eq!(8 * number.bytes(), bits);
    }
}

#[test]
fn optimizers_keep_moments_of_each_element_and_adafactor_of_rows_and_columns() {
    let Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } = Optimizer::default() else {
        panic!("AdamW is the usual one");
    };
    let lamb = Optimizer::Lamb { beta1, beta2, epsilon, weight_decay };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay,
    };
    for (rows, columns) in [(3, 5), (1, 5), (5, 1), (2, 2), (1, 1)] {
        let kept = |optimizer: Optimizer| optimizer.keeps(rows, columns);
        assert_eq!(kept(Optimizer::sgd(0.0)), []);
        assert_eq!(kept(Optimizer::sgd(0.9)), [Kept::PerElement]);
        assert_eq!(kept(Optimizer::default()), [Kept::PerElement; 2]);
        assert_eq!(kept(lamb), [Kept::PerElement; 2]);
        // A vector has no rows and columns to add up over.
        let vector = rows == 1 || columns == 1;
        let sums = if vector { Kept::PerElement } else { Kept::PerParameter(rows + columns) };
        assert_eq!(kept(adafactor), [sums], "{rows} x {columns}");
    }
}

/// LAMB needs the norms of weights and update (You et al. 2020, algorithm 2); Adafactor row and column sums of
/// matrices (Shazeer and Stern 2018, algorithm 4), then the root mean square of the update and of the weights.
#[test]
fn statistics_over_whole_parameters_are_two_numbers_or_sums_of_rows_and_columns() {
    let (epsilon, weight_decay) = (1e-8, 0.0);
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon, weight_decay };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay,
    };
    let elements = |optimizer: Optimizer, rows: usize, columns: usize| -> Vec<usize> {
        let rounds = 0..optimizer.statistics_rounds();
        rounds.map(|round| optimizer.statistics_elements(rows, columns, round)).collect()
    };
    for (rows, columns) in [(3, 5), (5, 3), (2, 2), (1, 5), (5, 1)] {
        for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
            assert!(elements(optimizer, rows, columns).is_empty());
        }
        assert_eq!(elements(lamb, rows, columns), [2]);
        let sums = if rows == 1 || columns == 1 { 0 } else { rows + columns };
        assert_eq!(elements(adafactor, rows, columns), [sums, 2], "{rows} x {columns}");
    }
}

#[test]
fn what_is_not_said_of_a_uniform_plan_is_one_sample_on_one_device() {
    let model = "mlp:inputs=8,hidden=8,layers=2,classes=4";
    let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
    let plan = Uniform::default().plan(&graph, "model", "local");
    assert_eq!(plan.validate(&graph, 1), Ok(()));
    assert_eq!((plan.global_batch, plan.microbatches, plan.pipeline.len()), (1, 1, 1));
}

/// Of two products the first is split by columns and the second, which reads these, by rows (Megatron-LM,
/// Shoeybi et al. 2019, arXiv 1909.08053, section 3); what the second makes is whole.
#[test]
fn a_plain_stack_of_layers_splits_every_second_width() {
    let model = "mlp:inputs=8,hidden=8,layers=4,classes=4";
    let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
    let uniform = Uniform {
        mesh: Mesh::of(1, 1, 2),
        global_batch: 4,
        schedule: ScheduleKind::Afab,
        ..Uniform::default()
    };
    let plan = uniform.plan(&graph, model, "local");
    let is_split = |dim: DimId| {
        let name = &graph.dim(dim).name;
        plan.layout.0.iter().any(|rule| rule.dim == *name && rule.axis == Axis::TP)
    };
    for layer in 0..4 {
        let name = format!("block.{layer}.weight");
        let (_, weight) = graph.parameters().find(|(_, it)| it.name == name).expect("a weight");
        let split: Vec<bool> = weight.axes.iter().map(|&dim| is_split(dim)).collect();
        assert_eq!(split, [layer % 2 == 1, layer % 2 == 0], "{name}");
    }
    assert_eq!(plan.validate(&graph, 2), Ok(()));
}

/// Each shard of a table has as many rows as the others, or there are none.
#[test]
fn tables_are_split_by_rows_where_tensor_parallelism_divides_them() {
    let model = "dlrm:dense=4,rows=8-9,embed=4,bottom=4,top=4";
    let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
    for (tp, split) in [(2, [true, false]), (3, [false, true]), (4, [true, false]), (5, [false; 2])]
    {
        let uniform = Uniform { mesh: Mesh::of(1, 1, tp), global_batch: 4, ..Uniform::default() };
        let layout = uniform.plan(&graph, model, "local").layout;
        let found = ["rows.0", "rows.1"]
            .map(|dim| layout.0.contains(&LayoutRule { dim: dim.into(), axis: Axis::TP }));
        assert_eq!(found, split, "8 and 9 rows over {tp}");
    }
}

/// BytePS cuts at 4,096,000 bytes; models so small that some of 64 servers would be left without a range are cut
/// into 64, and no range is smaller than one number of 4 bytes. All workers together send 65,536 of them at most.
#[test]
fn servers_cut_buckets_into_64_ranges_of_at_most_4096000_bytes() {
    let for_workers = |model: &str, workers: usize| {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let servers = Servers::of(2, Staleness::SYNCHRONOUS);
        let summation = |ranges| Summation { ranges, ..Summation::of(2) };
        let hashed = summation(Ranges::Hashed).bucket_bytes(&graph, workers, 77);
        assert_eq!(servers.bucket_bytes(&graph, workers), hashed);
        assert_eq!(summation(Ranges::Equal).bucket_bytes(&graph, workers, 77), 77);
        (graph.parameter_count(), hashed)
    };
    let bytes = |model: &str| for_workers(model, 1);
    let (parameters, least) = bytes("mlp:inputs=2,hidden=3,layers=2,classes=2");
    assert!(parameters < 64, "{parameters}");
    assert_eq!(least, 4);
    let (parameters, of_64) = bytes("mlp:inputs=64,hidden=64,layers=2,classes=64");
    assert_eq!(64 * of_64 as u64, 4 * parameters);
    let (parameters, most) = bytes("gpt:layers=6,hidden=1024,heads=16,seq=32,vocab=1024");
    assert!(parameters > 64 * 1_024_000, "{parameters}");
    assert_eq!(most, 4_096_000);
    // 26.8 GB are 6,550 such ranges, and nine workers send 58,950 of them.
    let large = "gpt:layers=32,hidden=4096,heads=32,seq=32,vocab=32000";
    let (parameters, of_9) = for_workers(large, 9);
    assert_eq!((4 * parameters).div_ceil(4_096_000), 6_550);
    assert_eq!(of_9, 4_096_000);
    let (_, of_16) = for_workers(large, 16);
    assert_eq!(of_16 as u64, 4 * parameters * 16 / 65_536);
    // As many as 64 there always are.
    assert_eq!(for_workers(large, 4_096).1 as u64, 4 * parameters / 64);
}
