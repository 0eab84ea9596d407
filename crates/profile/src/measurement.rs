//! Which sizes are measured, and the profile that comes of it.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_cluster::{
    Curve, DeviceKind, FormatRates, Link, MatmulPoint, MatmulRates, MeasuredMatmul, NodeKind,
    PeakFlops, Precision, Profile,
};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_fabric::Engine;
use shardloom_graph::work::{MatmulShape, Pass};
use shardloom_graph::{Extents, Graph, OpId, OpKind};
use shardloom_kernels::optimizer::{Adafactor, AdamW, Lamb, Optimizer, Sgd};
use shardloom_sim::{collective_rate_name, rate_name};

use crate::Result;
use crate::bench::{self, Repeats, Timed};
use crate::examples::{self, Occurrence};
use crate::fit::{TimedProduct, fit};
use crate::machine::Machine;
use crate::monotone::rising;
use crate::operand::cold_bytes;
use crate::sites::Pairs;
use crate::streaming::Streaming;
use crate::task::{COPY, LAUNCH, MESSAGE, MESSAGE_OUT, MESSAGES_OUT, Size, Task};
use crate::{Effort, Estimate, Scope};

/// The sizes to measure at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub repeats: Repeats,
    /// Formats of operands: fp32, and others.
    pub formats: Vec<Precision>,
    /// Rows of operators that are no products: multiples of the positions of a sequence, or fewer.
    pub rows: Vec<usize>,
    /// Rows, inputs and outputs of contractions.
    pub contractions: Vec<[usize; 3]>,
    /// Positions and head widths of attention.
    pub attentions: Vec<[usize; 2]>,
    /// Probabilities of an attention over all samples, at least those of one: more than a core's own cache holds, as
    /// in training.
    pub probabilities: usize,
    /// Samples, positions and cells of recurrences.
    pub recurrences: Vec<[usize; 3]>,
    /// Elements of parameters and of tensors that are added and copied.
    pub elements: Vec<usize>,
    /// Elements of collectives.
    pub exchanges: Vec<usize>,
    /// Elements of messages on one machine.
    pub messages: Vec<usize>,
    /// Elements of messages between machines.
    pub messages_out: Vec<usize>,
}

impl Plan {
    pub fn of(scope: Scope) -> Plan {
        let cold_bytes = cold_bytes();
        let fp16 = scope.fp16.then_some(Precision::Fp16);
        let quick = Plan {
            formats: [Precision::Fp32, Precision::Bf16].into_iter().chain(fp16).collect(),
            repeats: Repeats { batches: 5, batch_seconds: 1e-3, most: 1000, cold_bytes },
            rows: vec![16, 128, 512, 1024, 2048, 4096],
            contractions: vec![
                [64, 64, 64],
                [100, 200, 300],
                [128, 128, 512],
                [128, 512, 128],
                [256, 256, 256],
                [256, 512, 2048],
                [256, 2048, 512],
                [512, 128, 128],
                [512, 128, 512],
                [512, 128, 4096],
                [512, 256, 1024],
                [512, 512, 128],
                [512, 1024, 256],
                [1024, 256, 256],
                [1024, 512, 512],
                [2048, 128, 512],
                [2048, 512, 128],
            ],
            attentions: vec![
                [16, 32],
                [64, 16],
                [64, 64],
                [128, 32],
                [128, 64],
                [256, 16],
                [256, 64],
                [256, 128],
                [512, 64],
            ],
            probabilities: 1 << 20,
            recurrences: vec![
                [4, 16, 64],
                [8, 32, 128],
                [16, 8, 64],
                [16, 16, 256],
                [32, 8, 128],
                [32, 32, 32],
                [64, 4, 64],
                [64, 4, 256],
                [4, 64, 128],
            ],
            elements: vec![1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22],
            exchanges: vec![1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22],
            messages: vec![1 << 10, 1 << 20],
            messages_out: vec![1, 1 << 10, 1 << 14, 1 << 17, 1 << 20],
        };
        match scope.effort {
            Effort::Quick => quick,
            Effort::Thorough => Plan {
                repeats: Repeats { batches: 21, batch_seconds: 5e-3, most: 5000, cold_bytes },
                rows: vec![16, 64, 128, 256, 512, 1024, 2048, 4096, 8192],
                ..quick
            },
        }
    }

    /// Sizes between those that are measured.
    fn between(&self) -> Plan {
        Plan {
            repeats: self.repeats,
            formats: self.formats.clone(),
            rows: vec![256, 768, 1536],
            contractions: vec![
                [512, 256, 256],
                [1024, 128, 384],
                [768, 384, 192],
                [512, 192, 768],
                [300, 700, 500],
                [1024, 1024, 256],
                [256, 256, 8192],
                [1024, 512, 2048],
            ],
            attentions: vec![[96, 48], [128, 128], [192, 64], [256, 32]],
            probabilities: 1 << 20,
            recurrences: vec![[8, 24, 96], [24, 12, 192]],
            elements: vec![1 << 17, 3 << 18],
            exchanges: vec![1 << 14, 3 << 17, 3 << 19],
            messages: vec![1 << 16],
            messages_out: vec![1 << 15],
        }
    }
}

/// See [`crate::measure`].
pub(crate) fn measure(
    engine: &dyn Engine<Timed>,
    machine: &Machine,
    plan: &Plan,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Profile> {
    let examples = examples::examples();
    let tasks = tasks(machine, plan, &examples);
    let seconds = time(engine, machine, plan, &tasks, progress)?;
    let named = tasks.iter().map(|task| ((task.format, &*task.name), task.size)).zip(seconds);
    profile(machine, named.filter_map(|(task, seconds)| Some((task, seconds?))))
}

/// See [`crate::check`].
pub(crate) fn check(
    profile: &Profile,
    engine: &dyn Engine<Timed>,
    machine: &Machine,
    plan: &Plan,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Vec<Estimate>> {
    let examples = examples::examples();
    let plan = plan.between();
    let tasks = tasks(machine, &plan, &examples);
    let seconds = time(engine, machine, &plan, &tasks, progress)?;
    let estimates = tasks.iter().zip(seconds).filter_map(|(task, seconds)| {
        let measured_seconds = seconds?;
        let (size, estimated_seconds) = match task.size {
            Size::Elements(elements) => {
                let seconds = match &*task.name {
                    MESSAGE => profile.node.intra.transfer_seconds(4.0 * elements as f64),
                    name => {
                        let curve = profile.device.measured_rate(task.format, name)?;
                        curve.seconds(elements as f64, 0.0)
                    }
                };
                (format!("{elements}"), seconds)
            }
            Size::Product(MatmulShape { batch, m, n, k }) => {
                let product = profile.device.measured_product(task.format, &task.name)?;
                let seconds = product.seconds(m as u64, n as u64, k as u64);
                (format!("{m} x {n} x {k}, {batch} at once"), seconds)
            }
        };
        let class = match task.format {
            Precision::Fp32 => task.name.clone(),
            format => format!("{} in {format}", task.name),
        };
        Some(Estimate { class, size, estimated_seconds, measured_seconds })
    });
    Ok(estimates.collect())
}

fn time(
    engine: &dyn Engine<Timed>,
    machine: &Machine,
    plan: &Plan,
    tasks: &[Task<'_>],
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Vec<Option<f64>>> {
    bench::run(engine, machine, plan.repeats, progress, |bench| {
        let timed = tasks.iter().enumerate().map(|(index, task)| {
            bench.announce(&task.name, index as f64 / tasks.len() as f64);
            task.seconds(bench)
        });
        timed.collect()
    })
}

fn tasks<'a>(machine: &Machine, plan: &Plan, examples: &'a [Graph]) -> Vec<Task<'a>> {
    let mut tasks = vec![Task::launch()];
    for (name, Occurrence { example, op, pass }) in examples::classes(examples) {
        let graph = &examples[example];
        let extents: Vec<Extents> = match graph.op(op).kind {
            OpKind::Contract { .. } => {
                let sizes = plan.contractions.iter();
                sizes.map(|&sizes| examples::contraction(graph, op, sizes)).collect()
            }
            OpKind::ExpertContract => {
                let sizes = plan.contractions.iter();
                sizes.map(|&sizes| examples::experts_contraction(graph, op, sizes)).collect()
            }
            OpKind::AttentionProbs { .. }
            | OpKind::AttentionContext { .. }
            | OpKind::FusedAttention { .. } => {
                let sizes = plan.attentions.iter();
                sizes.map(|&sizes| examples::attention(graph, sizes, plan.probabilities)).collect()
            }
            OpKind::SampledCrossEntropy { .. } => {
                // Of each number of drawn classes that examples have, with rows and inputs of products in turn.
                let all =
                    examples.iter().flat_map(|graph| graph.ops().map(move |it| (graph, it.0)));
                let drawing = all.filter(|&(graph, op)| rate_name(graph, op, pass) == name);
                let sizes = plan.contractions.iter();
                let each = |(&sizes, (graph, op)): (&[usize; 3], (&'a Graph, OpId))| {
                    let extents = examples::drawn(graph, op, sizes);
                    of_each_format(plan, &name, graph, op, pass, extents)
                };
                let drawing: Vec<_> = drawing.collect();
                tasks.extend(sizes.zip(drawing.into_iter().cycle()).flat_map(each));
                continue;
            }
            OpKind::Lstm { .. } => {
                let sizes = plan.recurrences.iter();
                sizes.map(|&sizes| examples::recurrence(graph, op, sizes)).collect()
            }
            _ => plan.rows.iter().map(|&rows| examples::rows(graph, rows)).collect(),
        };
        let each = |extents| of_each_format(plan, &name, graph, op, pass, extents);
        tasks.extend(extents.into_iter().flat_map(each));
    }
    for (name, streaming) in streamings() {
        let each = |&elements: &usize| Task::streaming(&name, streaming, elements);
        tasks.extend(plan.elements.iter().map(each));
    }
    // All ranks measure the same, also those of machines that have fewer.
    for members in group_sizes(machine.sites.most()) {
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            let kinds = [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll];
            for kind in kinds.into_iter().filter(|kind| kind.has(algorithm)) {
                let name = collective_rate_name(algorithm, kind, members as usize);
                let each = |&elements: &usize| {
                    // Every member gets the same, and something.
                    let elements = elements.next_multiple_of(members as usize);
                    Task::collective(&name, algorithm, kind, members, elements)
                };
                tasks.extend(plan.exchanges.iter().map(each));
            }
        }
    }
    let message = |pairs| move |&elements: &usize| Task::message(elements, pairs);
    tasks.extend(plan.messages.iter().map(message(Pairs::Within)));
    if machine.sites.are_several() {
        tasks.extend(plan.messages_out.iter().map(message(Pairs::Alone)));
        tasks.extend(plan.messages_out.iter().max().map(message(Pairs::Together)));
    }
    tasks
}

/// A pass of an operator with operands in each of the formats.
fn of_each_format<'a>(
    plan: &Plan,
    name: &str,
    graph: &'a Graph,
    op: OpId,
    pass: Pass,
    extents: Extents,
) -> Vec<Task<'a>> {
    let each =
        |&format: &Precision| Task::operator((name, format), graph, op, pass, extents.clone());
    plan.formats.iter().map(each).collect()
}

/// Sizes of groups that train together: powers of two, and all ranks.
fn group_sizes(ranks: u32) -> BTreeSet<u32> {
    let powers = (1..u32::BITS).map(|power| 1 << power).take_while(|&size| size <= ranks);
    powers.chain((ranks > 1).then_some(ranks)).collect()
}

fn streamings() -> Vec<(String, Streaming)> {
    let weight_decay = 0.1;
    let (beta1, beta2, epsilon) = (0.9, 0.95, 1e-8);
    let optimizers = [
        ("sgd", Optimizer::Sgd(Sgd::new(0.9, weight_decay))),
        ("adamw", Optimizer::AdamW(AdamW { beta1, beta2, epsilon, weight_decay })),
        ("lamb", Optimizer::Lamb(Lamb { beta1, beta2, epsilon, weight_decay })),
        (
            "adafactor",
            Optimizer::Adafactor(Adafactor {
                decay_exponent: 0.8,
                clip: 1.0,
                least_parameter_rms: 1e-3,
                weight_decay,
            }),
        ),
    ];
    let mut all = vec![
        ("add".to_owned(), Streaming::Add),
        (COPY.to_owned(), Streaming::Copy),
        ("norm".to_owned(), Streaming::Norm),
    ];
    for (name, optimizer) in optimizers {
        all.push((format!("update.{name}"), Streaming::Update(optimizer)));
        if optimizer.rounds() > 0 {
            all.push((format!("statistics.{name}"), Streaming::Statistics(optimizer)));
        }
    }
    all
}

/// What was timed in one format: seconds by elements, and of products.
#[derive(Default)]
struct Measured<'a> {
    curves: BTreeMap<&'a str, Vec<(f64, f64)>>,
    products: BTreeMap<&'a str, Vec<TimedProduct>>,
}

impl Measured<'_> {
    /// Operations a second of the fastest contraction.
    fn fastest(&self) -> f64 {
        let contractions = self.products.iter().filter(|(name, _)| name.starts_with("contract"));
        let flops = |it: &TimedProduct| 2.0 * (it.m * it.n * it.k) as f64 / it.seconds;
        contractions.flat_map(|(_, points)| points).map(flops).fold(0.0, f64::max)
    }

    /// The plain products as a table.
    fn matmul(&self, format: Precision) -> Result<MeasuredMatmul> {
        let points = self.products["contract.forward"].iter().map(|it| {
            let [m, n, k] = [it.m, it.n, it.k].map(|size| size as u32);
            MatmulPoint { m, n, k, seconds: it.seconds }
        });
        Ok(MeasuredMatmul::new(format, points.collect())?)
    }

    /// All of it, where it was timed in another format than the full one.
    fn rates(self, format: Precision) -> Result<FormatRates> {
        let matmul = Some(self.matmul(format)?);
        let rates = self.curves.into_iter();
        let rates = rates.map(|(name, points)| Ok((name.to_owned(), Curve::new(rising(&points))?)));
        let products = self.products.into_iter();
        let products = products.map(|(name, points)| (name.to_owned(), fit(&points)));
        let rates = rates.collect::<Result<_>>()?;
        Ok(FormatRates { rates, products: products.collect(), matmul })
    }
}

fn profile<'a>(
    machine: &Machine,
    timed: impl Iterator<Item = (((Precision, &'a str), Size), f64)>,
) -> Result<Profile> {
    let mut measured: BTreeMap<Precision, Measured<'_>> = BTreeMap::new();
    for (((format, name), size), seconds) in timed {
        let Measured { curves, products } = measured.entry(format).or_default();
        match size {
            Size::Elements(elements) => {
                curves.entry(name).or_default().push((elements as f64, seconds));
            }
            Size::Product(MatmulShape { m, n, k, .. }) => {
                let [m, n, k] = [m, n, k].map(|size| size as u64);
                products.entry(name).or_default().push(TimedProduct { m, n, k, seconds });
            }
        }
    }
    let fastest = |format| measured.get(&format).map(Measured::fastest);
    let [fp32, bf16, fp16] = [Precision::Fp32, Precision::Bf16, Precision::Fp16].map(fastest);
    let full = measured.remove(&Precision::Fp32).expect("full precision is always timed");
    let matmul = full.matmul(Precision::Fp32)?;
    let Measured { curves, products } = full;
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> =
        curves.into_iter().map(|(name, points)| (name, rising(&points))).collect();
    let mut take = |name| curves.remove(name).expect("launches and messages are always timed");
    let launch_seconds = take(LAUNCH)[0].1;
    let messages = in_bytes(take(MESSAGE));
    let out = [MESSAGE_OUT, MESSAGES_OUT].map(|name| curves.remove(name).map(in_bytes));
    // Read once, written once.
    let (elements, seconds) = *curves[COPY].last().expect("copies have sizes");
    let memory_bytes_per_second = 2.0 * size_of::<f32>() as f64 * elements / seconds;
    let link = Link {
        latency_seconds: messages[0].1,
        bytes_per_second: memory_bytes_per_second,
        reachable: 1.0,
        curve: Some(Curve::new(messages)?),
    };
    let whole_node = memory_bytes_per_second * f64::from(machine.ranks);
    let (links, inter, uplink_bytes_per_second) = match out {
        [Some(alone), Some(together)] => {
            let inter = link_out(alone)?;
            let (bytes, seconds) = *together.last().expect("it was measured");
            let uplink = machine.sites.senders(machine.rank) as f64 * bytes / seconds;
            let nodes = machine.sites.nodes().count();
            let links =
                format!("and {nodes} machines, links between them measured in pairs of machines");
            (links, inter.clone(), uplink.max(inter.bytes_per_second))
        }
        _ => {
            let links = "nothing was measured between machines, and links between nodes are taken to be as \
                         those within";
            (links.to_owned(), link.clone(), whole_node)
        }
    };
    let rates = curves
        .into_iter()
        .map(|(name, points)| Ok((name.to_owned(), Curve::new(points)?)))
        .collect::<Result<_>>()?;
    let fits = products.iter().map(|(name, points)| ((*name).to_owned(), fit(points)));
    let in_format = measured.into_iter().map(|(format, it)| Ok((format, it.rates(format)?)));
    let in_format = in_format.collect::<Result<_>>()?;
    Ok(Profile {
        stack: None,
        source: format!(
            "measured on {} with {} ranks at once; {links}",
            machine.measured_on.processor, machine.ranks
        ),
        calibrated_on: None,
        measured_on: Some(machine.measured_on.clone()),
        device: DeviceKind {
            name: "local".into(),
            memory_bytes: machine.memory_bytes / u64::from(machine.ranks),
            memory_bytes_per_second,
            memory_reachable: 1.0,
            launch_seconds,
            lanes_overlap: false,
            fused_attention: None,
            price_per_hour: None,
            price_to_buy: None,
            peak_flops: PeakFlops { fp32, bf16, fp16, ..PeakFlops::default() },
            matmul: MatmulRates::Measured(matmul),
            rates,
            products: fits.collect(),
            in_format,
        },
        node: NodeKind {
            devices: machine.ranks,
            uplink_bytes_per_second,
            oversubscription: 1.0,
            intra: link,
            inter,
            torus: None,
        },
    })
}

/// Points by elements as points by bytes.
fn in_bytes(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let in_bytes = |(elements, seconds)| (elements * size_of::<f32>() as f64, seconds);
    points.into_iter().map(in_bytes).collect()
}

/// The link that messages between machines took, by bytes and seconds.
pub(crate) fn link_out(messages: Vec<(f64, f64)>) -> Result<Link> {
    let (latency_seconds, (bytes, seconds)) = (messages[0].1, messages[messages.len() - 1]);
    // A message that takes no longer than the smallest tells of its whole time.
    let streaming = if seconds > latency_seconds { seconds - latency_seconds } else { seconds };
    Ok(Link {
        latency_seconds,
        bytes_per_second: bytes / streaming,
        reachable: 1.0,
        curve: Some(Curve::new(messages)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sites;
    use crate::tests::{hasty, machine};

    fn all_tasks<'a>(machine: &Machine, examples: &'a [Graph]) -> Vec<Task<'a>> {
        tasks(machine, &Plan { rows: vec![2, 16, 256], ..hasty() }, examples)
    }

    /// The sizes that a class is measured at in fp32, in order.
    fn sizes(name: &str) -> Vec<Size> {
        let examples = examples::examples();
        let all = all_tasks(&machine(), &examples).into_iter();
        let own = all.filter(|it| it.name == name && it.format == Precision::Fp32);
        own.map(|it| it.size).collect()
    }

    fn products(sizes: impl IntoIterator<Item = [usize; 3]>) -> Vec<Size> {
        let product = |[m, n, k]: [usize; 3]| Size::Product(MatmulShape { batch: 1, m, n, k });
        sizes.into_iter().map(product).collect()
    }

    /// Rows, inputs and outputs of products; in the other passes what is summed over is another.
    #[test]
    fn classes_are_measured_at_the_sizes_that_are_wanted() {
        // 4 rows of 8 numbers that become 16, and so on.
        let forward = [[4, 16, 8], [16, 4, 8], [8, 8, 8]];
        assert_eq!(sizes("contract.forward"), products(forward));
        assert_eq!(sizes("contract.input"), products(forward.map(|[m, n, k]| [m, k, n])));
        assert_eq!(sizes("contract.weight"), products(forward.map(|[m, n, k]| [k, n, m])));
        // Rows of 256 numbers, however they are dealt to samples.
        let rows = [2, 16, 256].map(|rows| Size::Elements(rows * 256));
        assert_eq!(sizes("layer-norm.forward"), rows);
        // Each of rows and inputs in turn with a sixteenth, a quarter and half of 1024 classes, and the target's.
        let drawn = [[4, 65, 8], [16, 257, 8], [8, 513, 8]];
        assert_eq!(sizes("sampled-cross-entropy.forward"), products(drawn));
        // 2 and so on samples, and four gates of 4 and so on cells; the state is half of them if it is projected.
        let recurrence = |state: fn(usize) -> usize| {
            [[2, 4], [3, 8], [4, 4]].map(|[m, cells]| [m, 4 * cells, state(cells)])
        };
        assert_eq!(sizes("lstm.forward"), products(recurrence(|cells| cells)));
        assert_eq!(sizes("lstm+projection.forward"), products(recurrence(|cells| cells / 2)));
    }

    #[test]
    fn groups_are_powers_of_two_and_all_ranks() {
        let sizes = |ranks| group_sizes(ranks).into_iter().collect::<Vec<u32>>();
        assert_eq!([sizes(1), sizes(2), sizes(3)], [vec![], vec![2], vec![2, 3]]);
        assert_eq!([sizes(6), sizes(8)], [vec![2, 4, 6], vec![2, 4, 8]]);
    }

    /// A profile of a machine that takes so long for each task.
    fn made(machine: &Machine, seconds: impl Fn(&Task<'_>) -> f64) -> Profile {
        let examples = examples::examples();
        let tasks = all_tasks(machine, &examples);
        let timed = tasks.iter().map(|it| (((it.format, &*it.name), it.size), seconds(it)));
        profile(machine, timed).expect("a profile")
    }

    fn elements(task: &Task<'_>) -> f64 {
        match task.size {
            Size::Elements(elements) => elements as f64,
            Size::Product(MatmulShape { m, n, k, .. }) => (m * n * k) as f64,
        }
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn memory_is_as_fast_as_copies_that_read_and_write_each_byte() {
        // A nanosecond for each number of four bytes.
        let profile = made(&machine(), |task| 1e-9 * elements(task));
        near(profile.device.memory_bytes_per_second, 8e9);
        near(profile.node.intra.bytes_per_second, 8e9);
        // What leaves the node is what its two ranks reach.
        near(profile.node.uplink_bytes_per_second, 16e9);
    }

    #[test]
    fn the_peak_is_that_of_the_fastest_contraction_and_of_nothing_else() {
        let profile = made(&machine(), |task| {
            let faster = if task.format == Precision::Bf16 { 4.0 } else { 1.0 };
            let nanoseconds = match &*task.name {
                "contract.weight" => 1.0,
                name if name.starts_with("contract") => 2.0,
                // Two operations for each multiplication, so that these would be faster.
                _ => 0.1,
            };
            1e-9 * nanoseconds * elements(task) / faster
        });
        let peak = &profile.device.peak_flops;
        near(peak.fp32.expect("it is measured"), 2e9);
        near(peak.bf16.expect("it is measured"), 8e9);
    }

    /// Messages of 4 and of 256 bytes.
    #[test]
    fn links_between_machines_are_by_bytes_and_all_senders_share_what_leaves_a_node() {
        let sites = Sites::of(&[("a", ()), ("a", ()), ("b", ()), ("b", ())]).expect("in order");
        let profile = made(&Machine { sites, ..machine() }, |task| match &*task.name {
            MESSAGE_OUT => {
                if elements(task) > 1.0 {
                    3e-6
                } else {
                    1e-6
                }
            }
            MESSAGES_OUT => 4e-7,
            _ => 1e-9 * elements(task),
        });
        let inter = &profile.node.inter;
        near(inter.latency_seconds, 1e-6);
        near(inter.bytes_per_second, 256.0 / 2e-6);
        near(inter.transfer_seconds(4.0), 1e-6);
        near(inter.transfer_seconds(256.0), 3e-6);
        // Two ranks at once, each of which sends one such message.
        near(profile.node.uplink_bytes_per_second, 2.0 * 256.0 / 4e-7);
    }

    /// The sizes in elements that a class is measured at on a machine.
    fn elements_of(machine: &Machine, name: &str) -> Vec<usize> {
        let examples = examples::examples();
        let all = all_tasks(machine, &examples).into_iter().filter(|it| it.name == name);
        all.filter(|it| it.format == Precision::Fp32)
            .map(|it| match it.size {
                Size::Elements(elements) => elements,
                size @ Size::Product(_) => panic!("{name} is of {size:?}"),
            })
            .collect()
    }

    #[test]
    fn streams_collectives_and_messages_are_measured_at_the_sizes_that_are_wanted() {
        let of = |ranks, name: &str| {
            elements_of(&Machine { sites: Sites::one(ranks), ranks, ..machine() }, name)
        };
        for (name, _) in streamings() {
            assert_eq!(of(2, &name), [256, 512], "{name}");
        }
        assert_eq!(of(2, LAUNCH), [1]);
        assert_eq!(of(2, MESSAGE), [1, 64]);
        assert_eq!((of(2, MESSAGE_OUT), of(2, MESSAGES_OUT)), (vec![], vec![]));
        // Every member gets the same, and something.
        for (ranks, members, sizes) in
            [(2, 2, [2, 64]), (3, 2, [2, 64]), (3, 3, [3, 66]), (5, 5, [5, 65])]
        {
            for name in ["ring.all-reduce", "direct.all-reduce", "direct.all-to-all"] {
                assert_eq!(of(ranks, &format!("{name}.{members}")), sizes, "{name} of {members}");
            }
        }
        assert_eq!(of(1, "ring.all-reduce.1"), [0; 0]);
        // Of several machines also messages between them, of all ranks at once only the largest.
        let sites = Sites::of(&[("a", ()), ("b", ())]).expect("in order");
        let two = Machine { sites, ranks: 1, ..machine() };
        assert_eq!(elements_of(&two, MESSAGE_OUT), [1, 64]);
        assert_eq!(elements_of(&two, MESSAGES_OUT), [64]);
        assert_eq!(elements_of(&two, "ring.all-reduce.2"), [0; 0], "each has one rank");
    }

    #[test]
    fn every_format_has_every_size_and_all_else_is_in_the_full_one() {
        let examples = examples::examples();
        let all = all_tasks(&machine(), &examples);
        for task in &all {
            let alike = all.iter().filter(|it| it.name == task.name && it.size == task.size);
            let formats: BTreeSet<Precision> = alike.map(|it| it.format).collect();
            let is_operator = task.name.ends_with(".forward")
                || task.name.ends_with(".input")
                || task.name.ends_with(".weight");
            match is_operator {
                true => assert_eq!(formats.len(), 2, "{}", task.name),
                false => assert_eq!(formats, [Precision::Fp32].into(), "{}", task.name),
            }
        }
    }

    /// Three sizes of rows, of which each larger one was timed at half of the one before: all take their geometric mean.
    #[test]
    fn curves_of_every_format_do_not_fall_with_size() {
        let profile = made(&machine(), |task| match task.size {
            Size::Elements(elements) if task.name.ends_with("layer-norm.forward") => {
                [4e-6, 2e-6, 1e-6]
                    [[512, 4096, 65_536].iter().position(|it| *it == elements).expect("a size")]
            }
            _ => 1e-9 * elements(task),
        });
        let device = &profile.device;
        for rates in [&device.rates, &device.in_format[&Precision::Bf16].rates] {
            let points: Vec<(f64, f64)> = rates["layer-norm.forward"].clone().into();
            assert_eq!(points.len(), 3);
            points.iter().for_each(|(_, seconds)| near(*seconds, 2e-6));
        }
    }

    /// Rows, columns and what is summed over count differently.
    #[test]
    fn times_of_products_are_those_of_their_rows_columns_and_sums() {
        let seconds = |m: usize, n: usize, k: usize| 1e-9 * (m + 10 * n + 100 * k) as f64;
        let profile = made(&machine(), |task| match task.size {
            Size::Product(MatmulShape { m, n, k, .. }) => seconds(m, n, k),
            Size::Elements(_) => 1e-9 * elements(task),
        });
        for format in [Precision::Fp32, Precision::Bf16] {
            for [m, n, k] in [[4, 16, 8], [16, 4, 8], [8, 8, 8]] {
                let found = profile.device.matmul_seconds(format, 1, m, n, k);
                near(found.expect("it was measured"), seconds(m as usize, n as usize, k as usize));
            }
        }
    }
}
