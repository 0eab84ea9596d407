//! Replicas that exchange compressed gradients, against a serial replay of what they do: replicas that compute
//! their gradients one after the other, and compressors written element by element. Weights are equal bit for bit.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::support::replica::{Replica, Tensors};
use crate::support::{Samples, graph, mesh, serial, settings, trainer_with};
use shardloom_checkpoint::{Meta, Store};
use shardloom_graph::Graph;
use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::window::Window;
use shardloom_plan::{Compression, Mesh, Optimizer, Plan, Sync, Uniform};
use shardloom_program::{ParamId, Program};
use shardloom_train::Trainer;
use shardloom_train::learning_rate::{Curve, LearningRate};

const STEPS: usize = 5;
const CURVE: Curve =
    Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: STEPS as u64, floor: 0.01 };

fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=32,heads=2,seq=8,vocab=32,tied=true")
}

fn plan(graph: &Graph, how: &str, mesh: Mesh, optimizer: Optimizer) -> Plan {
    let compression = how.parse().expect("a compression");
    let algorithm = "direct".parse().expect("an algorithm");
    let sync = Sync { compression, algorithm, bucket_bytes: 20_000, ..Sync::default() };
    let uniform = Uniform { sync, mesh, microbatches: 1, optimizer, clip_norm: None, ..serial() };
    uniform.plan(graph, "model", "local")
}

fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(graph, plan, Samples::patterned(64, 8, 32), settings(CURVE))
}

/// What a replica keeps of a bucket, element by element.
#[derive(Clone, Default)]
struct Kept {
    residual: Vec<f32>,
    /// Of the sum, of the first of all.
    of_sum: Vec<f32>,
    /// By matrix, the right factors of the step before.
    right: Vec<Vec<f32>>,
}

/// A parameter in its bucket.
struct Param {
    name: String,
    range: Range<usize>,
    /// Rows and columns.
    shape: [usize; 2],
}

/// What a row becomes with its two means.
fn by_sign(row: &[f32]) -> Vec<f32> {
    let mean = |negative: bool| {
        let those: Vec<f64> =
            row.iter().filter(|&&it| (it < 0.0) == negative).map(|&it| f64::from(it)).collect();
        (those.iter().sum::<f64>() / those.len().max(1) as f64) as f32
    };
    let means = [mean(false), mean(true)];
    row.iter().map(|&it| means[usize::from(it < 0.0)]).collect()
}

fn less(of: &[f32], sent: &[f32]) -> Vec<f32> {
    of.iter().zip(sent).map(|(of, sent)| of - sent).collect()
}

/// The rows of all parameters of a bucket.
fn rows(params: &[Param]) -> impl Iterator<Item = Range<usize>> {
    params.iter().flat_map(|param| {
        let [rows, columns] = param.shape;
        let start = move |row: usize| param.range.start + row * columns;
        (0..rows).map(move |row| start(row)..start(row + 1))
    })
}

/// The sum of what replicas send, in their order.
fn sum(parts: &[Vec<f32>]) -> Vec<f32> {
    let at = |index: usize| parts.iter().map(|part| part[index]).sum();
    (0..parts[0].len()).map(at).collect()
}

/// What replicas make of their parts of a bucket's gradients.
fn exchange(how: Compression, params: &[Param], parts: &[&[f32]], kept: &mut [Kept]) -> Vec<f32> {
    let elements = parts[0].len();
    let full: Vec<Vec<f32>> = parts
        .iter()
        .zip(kept.iter_mut())
        .map(|(part, kept)| {
            kept.residual.resize(elements, 0.0);
            part.iter().zip(&kept.residual).map(|(one, other)| one + other).collect()
        })
        .collect();
    match how {
        Compression::TopK { of } => {
            let count = elements.div_ceil(of as usize);
            let sent: Vec<Vec<f32>> = full
                .iter()
                .map(|full| {
                    let mut order: Vec<usize> = (0..elements).collect();
                    order.sort_by(|&one, &other| full[other].abs().total_cmp(&full[one].abs()));
                    let mut sent = vec![0.0; elements];
                    order[..count].iter().for_each(|&at| sent[at] = full[at]);
                    sent
                })
                .collect();
            for ((kept, full), sent) in kept.iter_mut().zip(&full).zip(&sent) {
                kept.residual = less(full, sent);
            }
            sum(&sent)
        }
        Compression::OneBit => {
            let by_rows = |of: &[f32], rows: &[Range<usize>]| -> Vec<f32> {
                rows.iter().flat_map(|row| by_sign(&of[row.clone()])).collect()
            };
            let all: Vec<Range<usize>> = rows(params).collect();
            let sent: Vec<Vec<f32>> = full.iter().map(|full| by_rows(full, &all)).collect();
            for ((kept, full), sent) in kept.iter_mut().zip(&full).zip(&sent) {
                kept.residual = less(full, sent);
            }
            // Whoever sums a row keeps what is left out of its sum; that there is one residual of all shows
            // the same.
            let of_sum = &mut kept[0].of_sum;
            of_sum.resize(elements, 0.0);
            for sent in &sent {
                of_sum.iter_mut().zip(sent).for_each(|(to, part)| *to += part);
            }
            let sums = by_rows(of_sum, &all);
            *of_sum = less(of_sum, &sums);
            sums
        }
        Compression::Rounded { feedback, .. } => {
            let sent: Vec<Vec<half::f16>> = full
                .iter()
                .zip(parts)
                .map(|(full, part)| {
                    let from = if feedback { full } else { *part };
                    from.iter().map(|&it| half::f16::from_f32(it)).collect()
                })
                .collect();
            if feedback {
                for ((kept, full), sent) in kept.iter_mut().zip(&full).zip(&sent) {
                    let sent: Vec<f32> = sent.iter().map(|it| it.to_f32()).collect();
                    kept.residual = less(full, &sent);
                }
            }
            let sum = |at: usize| {
                let parts = sent.iter().map(|sent| sent[at]);
                let add = |one: half::f16, other: half::f16| {
                    half::f16::from_f32(one.to_f32() + other.to_f32())
                };
                parts.reduce(add).expect("replicas").to_f32()
            };
            (0..elements).map(sum).collect()
        }
        Compression::PowerSgd { rank } => {
            let mut found = vec![0.0; elements];
            for (kept, full) in kept.iter_mut().zip(&full) {
                kept.residual.clone_from(full);
            }
            let mut rows_before = 0;
            for (index, param) in params.iter().enumerate() {
                let parts: Vec<&[f32]> = full.iter().map(|it| &it[param.range.clone()]).collect();
                let rows = factored_columns(param, rank as usize);
                let sum = match rows {
                    0 => sum(&parts.iter().map(|it| it.to_vec()).collect::<Vec<_>>()),
                    _ => factored(param, rank as usize, &parts, kept, (index, rows_before)),
                };
                rows_before += rows;
                for kept in kept.iter_mut() {
                    let residual = &mut kept.residual[param.range.clone()];
                    for (left, sum) in residual.iter_mut().zip(&sum) {
                        *left = if rows > 0 { *left - sum / parts.len() as f32 } else { 0.0 };
                    }
                }
                found[param.range.clone()].copy_from_slice(&sum);
            }
            found
        }
        Compression::None => unreachable!("nothing is compressed"),
    }
}

/// The columns of a parameter that has factors.
fn factored_columns(param: &Param, rank: usize) -> usize {
    let [rows, columns] = param.shape;
    if rank * (rows + columns) < rows * columns { columns } else { 0 }
}

/// The product of factors of the sum of parts of a matrix, of which others have so many columns before its own.
fn factored(
    param: &Param,
    rank: usize,
    parts: &[&[f32]],
    kept: &mut [Kept],
    (index, columns_before): (usize, usize),
) -> Vec<f32> {
    let [rows, columns] = param.shape;
    let lefts: Vec<Vec<f32>> = parts
        .iter()
        .zip(&mut *kept)
        .map(|(part, kept)| {
            kept.right.resize(kept.right.len().max(index + 1), vec![]);
            let right = &mut kept.right[index];
            if right.is_empty() {
                *right = vec![0.0; columns * rank];
                for of in 0..rank {
                    let window = Window {
                        extent: [columns].as_slice().into(),
                        start: [columns_before].as_slice().into(),
                        global: [columns_before + columns].as_slice().into(),
                    };
                    let mut drawn = vec![0.0; columns];
                    let key = Key { seed: 0, stream: of as u64, step: 0 };
                    normal_fill(key, &window, 0.0, 1.0, &mut drawn);
                    (0..columns).for_each(|at| right[at * rank + of] = drawn[at]);
                }
            }
            let element = |at: usize| {
                let (row, of) = (at / rank, at % rank);
                (0..columns)
                    .fold(0.0, |sum, it| sum + part[row * columns + it] * right[it * rank + of])
            };
            (0..rows * rank).map(element).collect()
        })
        .collect();
    let mut left = sum(&lefts);
    for of in 0..rank {
        let column = |left: &[f32], of: usize| -> Vec<f64> {
            (0..rows).map(|row| f64::from(left[row * rank + of])).collect()
        };
        let norm = column(&left, of).iter().map(|it| it * it).sum::<f64>().sqrt() as f32 + 1e-8;
        (0..rows).for_each(|row| left[row * rank + of] /= norm);
        for other in of + 1..rank {
            let (one, two) = (column(&left, of), column(&left, other));
            let along = one.iter().zip(two).map(|(one, two)| one * two).sum::<f64>() as f32;
            (0..rows).for_each(|row| left[row * rank + other] -= along * left[row * rank + of]);
        }
    }
    let rights: Vec<Vec<f32>> = parts
        .iter()
        .map(|part| {
            let element = |at: usize| {
                let (column, of) = (at / rank, at % rank);
                let product = |row: usize| part[row * columns + column] * left[row * rank + of];
                (0..rows).fold(0.0, |sum, row| sum + product(row))
            };
            (0..columns * rank).map(element).collect()
        })
        .collect();
    let right = sum(&rights);
    kept.iter_mut().for_each(|kept| kept.right[index].clone_from(&right));
    let element = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        (0..rank).map(|of| left[row * rank + of] * right[column * rank + of]).sum()
    };
    (0..rows * columns).map(element).collect()
}

/// The parameters of each bucket, in order.
fn buckets(graph: &Graph, program: &Program) -> Vec<Vec<Param>> {
    let class = &program.classes[0];
    let of = |&param: &ParamId| {
        let spec = class.param(param);
        let name = graph.value(spec.value).name.clone();
        Param { name, range: spec.range(), shape: [spec.rows, spec.columns] }
    };
    class.buckets.iter().map(|bucket| bucket.params.iter().map(of).collect()).collect()
}

fn replay(graph: &Graph, program: &Program, how: Compression, replicas: usize) -> Tensors {
    let alone = Uniform { optimizer: Optimizer::sgd(0.5), clip_norm: None, ..serial() };
    let alone = Uniform { global_batch: 8 / replicas, ..alone }.plan(graph, "m", "c");
    let mut all: Vec<Replica> =
        (0..replicas).map(|_| Replica::new(trainer(graph, &alone), replicas)).collect();
    let buckets = buckets(graph, program);
    let mut kept = vec![vec![Kept::default(); replicas]; buckets.len()];
    let mut weights = all[0].weights.clone();
    let rates = LearningRate::new(CURVE).expect("a positive rate");
    for step in 0..STEPS {
        for (number, replica) in all.iter_mut().enumerate() {
            replica.weights = weights.clone();
            replica.compute(number);
        }
        for (bucket, kept) in buckets.iter().zip(&mut kept) {
            let part = |replica: &Replica| {
                let gradients = &replica.gradients[step];
                bucket.iter().flat_map(|param| gradients[&param.name].clone()).collect::<Vec<f32>>()
            };
            let parts: Vec<Vec<f32>> = all.iter().map(part).collect();
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            let mut gradients = exchange(how, bucket, &parts, kept).into_iter();
            for param in bucket {
                for (weight, gradient) in weights
                    .get_mut(&param.name)
                    .expect("a parameter")
                    .iter_mut()
                    .zip(&mut gradients)
                {
                    *weight -= rates.at(step as u64) as f32 * gradient;
                }
            }
        }
    }
    weights
}

fn assert_same(found: &Tensors, expected: &Tensors, what: &str) {
    for (name, expected) in expected {
        let differ = found[name].iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ.count(), 0, "{name} of {}, {what}", expected.len());
    }
}

fn trained(graph: &Graph, plan: &Plan) -> Tensors {
    let mut trainer = trainer(graph, plan);
    trainer.train_steps(STEPS as u32).unwrap_or_else(|error| panic!("{error}"));
    trainer.weights().expect("weights")
}

#[test]
fn weights_are_those_of_a_serial_replay_bit_for_bit() {
    let graph = gpt();
    for how in
        ["fp16", "fp16-feedback", "one-bit", "top-k:4", "top-k:50", "power-sgd:1", "power-sgd:3"]
    {
        for replicas in [2, 4] {
            let plan = plan(&graph, how, mesh(replicas as u32, 1, 1), Optimizer::sgd(0.0));
            let mut trainer = trainer(&graph, &plan);
            trainer.train_steps(STEPS as u32).unwrap_or_else(|error| panic!("{error}"));
            let compression = plan.sync.compression;
            let expected = replay(&graph, trainer.program(), compression, replicas);
            let found = trainer.weights().expect("weights");
            assert_same(&found, &expected, &format!("{how} at {replicas} replicas"));
        }
    }
}

/// At the highest rank at which the factors of some parameter are smaller than it, and at the next.
#[test]
fn parameters_have_factors_up_to_the_rank_at_which_these_are_as_large() {
    let graph = gpt();
    let of = |how: &str| plan(&graph, how, mesh(2, 1, 1), Optimizer::sgd(0.0));
    let params = buckets(&graph, trainer(&graph, &of("none")).program()).into_iter().flatten();
    let shapes: BTreeSet<[usize; 2]> = params.map(|param| param.shape).collect();
    let is_smaller =
        |rank: &usize, [rows, columns]: [usize; 2]| rank * rows + rank * columns < rows * columns;
    let highest = |&shape: &[usize; 2]| (1..100).rfind(|rank| is_smaller(rank, shape));
    let highest: BTreeSet<usize> = shapes.iter().filter_map(highest).collect();
    assert!(highest.len() > 2, "{highest:?} of {shapes:?}");
    for rank in highest.into_iter().flat_map(|rank| [rank, rank + 1]) {
        let how = format!("power-sgd:{rank}");
        let plan = of(&how);
        let mut trainer = trainer(&graph, &plan);
        trainer.train_steps(STEPS as u32).unwrap_or_else(|error| panic!("{error}"));
        let expected = replay(&graph, trainer.program(), plan.sync.compression, 2);
        assert_same(&trainer.weights().expect("weights"), &expected, &how);
    }
}

#[test]
fn what_leaves_nothing_out_is_plain_data_parallelism() {
    let graph = gpt();
    for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
        for replicas in [1, 2, 3, 4, 8] {
            let batch = |plan: Plan| Plan { global_batch: 24, ..plan };
            let of = |how| batch(plan(&graph, how, mesh(replicas, 1, 1), optimizer));
            let expected = trained(&graph, &of("none"));
            // All elements are sent, or no factors would be smaller.
            for how in ["top-k:1", "power-sgd:1000"] {
                let what = format!("{how} at {replicas} replicas");
                assert_same(&trained(&graph, &of(how)), &expected, &what);
            }
        }
    }
}

#[test]
fn a_resumed_run_goes_on_with_what_was_left_out() {
    let graph = gpt();
    for how in ["bf16-feedback", "one-bit", "top-k:50", "power-sgd:2"] {
        let plan = plan(&graph, how, mesh(2, 1, 2), Optimizer::sgd(0.9));
        let mut whole = trainer(&graph, &plan);
        let folder = tempfile::tempdir().expect("a folder");
        whole.train_steps(2).expect("steps");
        whole.save(folder.path(), Meta::default(), None).expect("saved");
        whole.train_steps(3).expect("steps");
        let latest = || Store::open(folder.path()).and_then(|store| store.load_latest());
        let go_on = |plan: &Plan| {
            let mut resumed = trainer(&graph, plan);
            resumed.resume(latest().expect("the checkpoint").0).expect("resumed");
            resumed.train_steps(3).expect("steps");
            resumed.weights().expect("weights")
        };
        let expected = whole.weights().expect("weights");
        assert_same(&go_on(&plan), &expected, how);
        let plain =
            Plan { sync: Sync { compression: Compression::None, ..plan.sync }, ..plan.clone() };
        assert_ne!(go_on(&plain), expected, "{how} shows");
        // Under another mesh, and as another compression, all of it begins anew.
        let wider = self::plan(&graph, how, mesh(4, 1, 1), Optimizer::sgd(0.9));
        let another = self::plan(&graph, "top-k:7", mesh(2, 1, 2), Optimizer::sgd(0.9));
        for other in [wider, another] {
            let mut resumed = trainer(&graph, &other);
            resumed.resume(latest().expect("the checkpoint").0).expect("resumed");
            let folder = tempfile::tempdir().expect("a folder");
            resumed.save(folder.path(), Meta::default(), None).expect("saved");
            let again = Store::open(folder.path()).and_then(|store| store.load_latest());
            let again = again.expect("the checkpoint").0;
            let own = again.names().filter(|name| name.starts_with("rank-state."));
            let own: Vec<&str> = own.collect();
            assert!(own.len() >= 4, "{own:?}");
            for name in own {
                let values = again.read_whole(name).expect("it is there");
                assert!(values.iter().all(|&it| it == 0.0), "{name} of {how}");
            }
        }
    }
}

/// Bytes that all replicas send in a step, of a bucket of these parameters.
fn bytes(how: Compression, bucket: &[Param], replicas: usize) -> usize {
    let elements: usize = bucket.iter().map(|it| it.range.len()).sum();
    // An all-reduce sends everything to where it is summed and back, a gathering everything to all others.
    let all_reduce = |bytes: usize| 2 * (replicas - 1) * bytes;
    let gather = |own: usize| replicas * (replicas - 1) * own;
    match how {
        Compression::None => all_reduce(4 * elements),
        Compression::Rounded { .. } => all_reduce(2 * elements),
        Compression::TopK { of } => gather(8 * elements.div_ceil(of as usize)),
        // A bit for each element and 8 bytes for each row, to who sums it and from there to all. Each has as
        // much room as whose rows take the most.
        Compression::OneBit => {
            let rows: Vec<usize> = rows(bucket).map(|row| 8 + row.len().div_ceil(8)).collect();
            let total: usize = rows.iter().sum();
            let mut shares = vec![0; replicas];
            let mut start = 0;
            for row in rows {
                let share = (0..replicas).rfind(|it| total * it / replicas <= start);
                shares[share.expect("the first begins at 0")] += row;
                start += row;
            }
            2 * gather(shares.into_iter().max().unwrap_or(0))
        }
        Compression::PowerSgd { rank } => {
            let of = |param: &Param| match factored_columns(param, rank as usize) {
                0 => param.range.len(),
                _ => rank as usize * (param.shape[0] + param.shape[1]),
            };
            all_reduce(4 * bucket.iter().map(of).sum::<usize>())
        }
    }
}

#[test]
fn replicas_send_what_the_compressors_say() {
    let graph = gpt();
    for replicas in [2, 3, 4] {
        let of = |how| {
            let plan = plan(&graph, how, mesh(replicas as u32, 1, 1), Optimizer::sgd(0.0));
            let mut trainer = trainer(&graph, &Plan { global_batch: 12, ..plan });
            let before: u64 = trainer.sent_bytes_per_rank().iter().sum();
            trainer.train_steps(1).expect("a step");
            let sent = trainer.sent_bytes_per_rank().iter().sum::<u64>() - before;
            let compression: Compression = how.parse().expect("a compression");
            let buckets = buckets(&graph, trainer.program());
            let expected: usize = buckets.iter().map(|it| bytes(compression, it, replicas)).sum();
            assert_eq!(sent, expected as u64, "{how} at {replicas} replicas");
            sent
        };
        let [plain, half, bits, tenths, factors] =
            ["none", "fp16", "one-bit", "top-k:100", "power-sgd:1"].map(of);
        assert_eq!(plain, 2 * half);
        assert!(bits < plain / 8 && tenths < plain / 10 && factors < plain / 4);
    }
}
