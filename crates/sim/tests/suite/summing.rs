//! Servers that sum, on links that only have a bandwidth: a step takes what the published closed form says.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::scenario::{gpt, h100, uniform};
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Precision, Ranges, SendOrder, Share, Summation, Sync, Uniform};
use shardloom_program::timeline::{Activity, Clock, Picos, Timeline};
use shardloom_program::{Action, Carried, ClassId, Program, Rank, RouteId, lower};
use shardloom_sim::{Call, Driver, Options, SimError, run, simulate};

/// Workers of one micro-batch each, with as many buckets as blocks.
fn program(graph: &Graph, workers: u32, sync: Sync) -> Program {
    let uniform = Uniform {
        sync: Sync { bucket_bytes: 1, ..sync },
        precision: Precision::FP32,
        clip_norm: None,
        mesh: Mesh::of(workers, 1, 1),
        global_batch: workers as usize,
        ..uniform(1, 1, 1, 1)
    };
    let plan = uniform.plan(graph, "model", "cluster");
    lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn summed(servers: u32, ranges: Ranges, share: Share) -> Sync {
    Sync {
        summation: Some(Summation { ranges, share, ..Summation::of(servers) }),
        ..Sync::default()
    }
}

/// A byte takes a thousand picoseconds on any link between devices; nothing else takes any time. A direct all-reduce has
/// every member send, and receive, 2 (n - 1) / n of its bytes.
struct Links<'p>(&'p Program);

impl Links<'_> {
    /// How long the messages of a route take, on its way out or in: nothing within a device.
    fn takes(&self, route: RouteId) -> u64 {
        let route = self.0.route(route);
        let [from, to] = [route.from, route.to].map(|class| self.0.class(class).devices[0]);
        let bytes: u64 = route.messages.iter().map(|it| route.message_bytes(it)).sum();
        if from == to { 0 } else { BYTE * bytes }
    }
}

const BYTE: u64 = 1000;

impl Driver for Links<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        // Workers and servers are one rank each.
        durations.push(Picos(self.takes(route)));
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let Action::Receive { route } = call.instruction.action else { return Ok(Picos::ZERO) };
        Ok(Picos(self.takes(route)))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let first = &members[0];
        let class = self.0.class(first.actor.class);
        let bytes = class.view_bytes(first.instruction.reads[0], first.actor.position);
        let n = members.len() as u64;
        Ok(Picos(BYTE * 2 * (n - 1) * bytes / n))
    }
}

/// The same with kernels that take some time each.
struct Timed<'p> {
    links: Links<'p>,
    kernel: u64,
    /// When the first worker had which bucket's pieces ready, in its order.
    whole: Vec<(usize, Picos)>,
}

impl Driver for Timed<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let computes = matches!(call.instruction.action, Action::Kernel { .. });
        Ok(Picos(if computes { self.kernel } else { 0 }))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        if let (Action::Send { route }, Rank(0)) = (&call.instruction.action, call.actor.rank)
            && let Carried::Gradients(bucket) = self.links.0.route(*route).carried
        {
            self.whole.push((bucket.0 as usize, call.start));
        }
        self.links.send(call, durations)
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.links.receive(call)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.links.inflow(call)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        self.links.collective(members)
    }
}

/// How long a step of several takes, in what a byte takes.
fn step_bytes(program: &Program) -> f64 {
    let options = Options { steps: 2, folded: false };
    let cluster = h100(program.ranks());
    let found = run(program, &cluster, options, &mut Links(program)).expect("it runs");
    let end = found.step_ends.iter().flatten().max().expect("steps");
    end.0 as f64 / (f64::from(options.steps) * BYTE as f64)
}

/// With k servers for n workers and a gradient of M bytes 2 n (n - 1) M / (n^2 + k n - 2 k), from the bound of an
/// all-reduce, without servers, to M, with as many as workers. A step is longer by the first bucket's way to the
/// servers and the last one's back, each a 128th.
#[test]
fn a_step_takes_the_published_time_of_the_balanced_split() {
    let spec = "mlp:inputs=32,hidden=32,layers=128,classes=32";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let whole = 4.0 * graph.parameter_count() as f64;
    // Of two workers any number of servers takes as long as none.
    for workers in [3, 4, 6] {
        let n = f64::from(workers);
        let ring = Sync { algorithm: Algorithm::Direct, ..Sync::default() };
        let without = step_bytes(&program(&graph, workers, ring));
        assert!((without / (2.0 * (n - 1.0) / n * whole) - 1.0).abs() < 1e-3, "{without}");
        let mut before = without;
        for servers in 1..=workers {
            let k = f64::from(servers);
            let sync = summed(servers, Ranges::Equal, Share::Balanced);
            let found = step_bytes(&program(&graph, workers, sync));
            let expected = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k) * whole;
            let apart = found / expected - 1.0;
            assert!((-1e-3..0.03).contains(&apart), "{workers}, {servers}: {found} for {expected}");
            assert!(found < before, "a further server saves time");
            before = found;
            // With a larger share servers take longer. With a smaller one the workers' links would, but the
            // simulator has messages and collectives of one rank each at full bandwidth at the same time.
            let balanced = Share::Balanced.part(workers as usize, servers);
            let larger = (1.2 * balanced).min(1.0);
            if larger > balanced {
                let sync = summed(servers, Ranges::Equal, Share::Part(larger));
                let found_larger = step_bytes(&program(&graph, workers, sync));
                assert!(found_larger > found, "{larger}: {found_larger}, not above {found}");
            }
        }
    }
}

/// Where workers' devices have servers for the rest a step takes as long, as a device's worker and its server share its
/// link, and what they send each other takes none: with no other servers what a direct all-reduce takes. In the order
/// of the backward pass, of which nothing takes time here, all that workers send is before all sums, and links that
/// bring both stand idle at first.
#[test]
fn servers_on_workers_devices_take_the_published_time_too() {
    let spec = "mlp:inputs=32,hidden=32,layers=128,classes=32";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let whole = 4.0 * graph.parameter_count() as f64;
    for workers in [2, 3, 4] {
        let n = f64::from(workers);
        for servers in 0..workers {
            let k = f64::from(servers);
            for (order, most) in [(SendOrder::Backward, 0.3), (SendOrder::NextUse, 0.02)] {
                let sync = summed(servers, Ranges::Equal, Share::Balanced);
                let summation = sync.summation.map(|it| Summation { colocated: true, order, ..it });
                let program = program(&graph, workers, Sync { summation, ..sync });
                assert_eq!(program.ranks(), (2 * workers + servers) as usize);
                assert_eq!(program.devices().into_iter().max(), Some(workers + servers - 1));
                let found = step_bytes(&program);
                let expected = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k) * whole;
                let apart = found / expected - 1.0;
                assert!(
                    (-1e-3..most).contains(&apart),
                    "{workers}, {servers}, {order}: {found} for {expected}"
                );
            }
        }
    }
}

/// What one needs at most is not there for the other.
#[test]
fn a_worker_and_the_server_on_its_device_share_its_memory() {
    let graph = gpt(2, false);
    let sync = summed(0, Ranges::Hashed, Share::default());
    let summation = sync.summation.map(|it| Summation { colocated: true, ..it });
    let program = program(&graph, 2, Sync { summation, ..sync });
    let cluster = h100(2);
    let options = Options { steps: 1, folded: false };
    let found = simulate(&graph, &cluster, &program, options).expect("it runs");
    let fits = found.memory_fits(&program, &cluster).expect("there are two devices");
    let device = cluster.memory_bytes(&cluster.groups()[0].profile.device);
    let (workers, servers) = fits.split_at(2);
    for (worker, server) in workers.iter().zip(servers) {
        assert!(worker.peak_bytes > server.peak_bytes && server.peak_bytes > 0);
        assert_eq!(worker.memory_bytes, device - server.peak_bytes);
        assert_eq!(server.memory_bytes, device - worker.peak_bytes);
    }
    // Two devices, not four ranks, stand for all that is averaged.
    let summary = found.summary();
    let busy: f64 = summary.ranks[..2].iter().map(|rank| rank.busy_seconds).sum();
    let idle = 1.0 - busy / (2.0 * summary.step_seconds);
    assert!((summary.bubble_fraction - idle).abs() < 1e-9);
}

/// All of the gradients on one server: what comes to it, from all workers at once, goes over one link, and so does
/// what it sends them, at the same time.
#[test]
fn one_server_takes_as_long_as_its_link_for_what_all_workers_send() {
    let spec = "mlp:inputs=32,hidden=32,layers=64,classes=32";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let whole = 4.0 * graph.parameter_count() as f64;
    for workers in [1, 2, 5] {
        let sync = summed(1, Ranges::Equal, Share::Part(1.0));
        let found = step_bytes(&program(&graph, workers, sync)) / whole;
        let apart = found / f64::from(workers) - 1.0;
        assert!((-1e-3..0.05).contains(&apart), "{workers}: {found}");
    }
    // A worker's link likewise, for what comes from several servers at once.
    for servers in [1, 2, 4] {
        let sync = summed(servers, Ranges::Equal, Share::Part(1.0));
        let found = step_bytes(&program(&graph, 2, sync)) / whole;
        let expected = f64::max(1.0, 2.0 / f64::from(servers));
        assert!((-1e-3..0.05).contains(&(found / expected - 1.0)), "{servers}: {found}");
    }
}

/// On modelled devices and links, with both ways to deal.
#[test]
fn what_is_sent_is_as_the_program_says_and_servers_only_communicate_and_add() {
    let graph = gpt(2, false);
    for ranges in [Ranges::Hashed, Ranges::Equal] {
        let program = program(&graph, 2, summed(2, ranges, Share::Balanced));
        let options = Options { steps: 2, folded: false };
        let found = simulate(&graph, &h100(4), &program, options).expect("it runs");
        for (index, (id, class)) in program.classes().enumerate() {
            let sent = found.timeline.tracks[index].sent_bytes;
            assert_eq!(sent, u64::from(options.steps) * program.sent_bytes(id, 0));
            assert_eq!(class.sums(), id >= ClassId(2));
        }
        assert!(found.step_ends.iter().all(|ends| ends.len() == 2));
    }
}

/// Pieces are under way while the backward pass goes on: a step takes less than its passes and all messages one
/// after another.
#[test]
fn pieces_are_sent_beside_the_backward_pass() {
    const KERNEL: u64 = 200 * BYTE;
    let spec = "mlp:inputs=8,hidden=8,layers=16,classes=8";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let program = program(&graph, 2, summed(2, Ranges::Equal, Share::default()));
    let options = Options { steps: 1, folded: false };
    let end = |driver: &mut Timed<'_>| {
        let found = run(&program, &h100(4), options, driver).expect("it runs");
        found.step_ends.iter().flatten().max().expect("steps").0
    };
    let found = end(&mut Timed { links: Links(&program), kernel: KERNEL, whole: vec![] });
    let kernels = |class: ClassId| {
        let class = program.class(class);
        let bodies = class.entries().map(|entry| class.body_of(entry));
        let all = bodies.flat_map(|body| &body.instructions);
        all.filter(|it| matches!(it.action, Action::Kernel { .. })).count() as u64
    };
    let passes = kernels(ClassId(0)) * KERNEL;
    let messages = 2 * BYTE * program.sent_bytes(ClassId(0), 0);
    // Only the first block's, the last to be whole, goes and comes after the last kernel.
    let last = program.class(ClassId(0)).buckets.iter().map(|it| 4 * it.elements as u64).max();
    let most = passes + 4 * BYTE * last.expect("buckets");
    assert!(
        found >= passes && found <= most && most < passes + messages / 2,
        "{found} {passes} {messages}"
    );
}

/// That which is used first goes first, and at most so many are under way.
fn by_next_use(credits: u32) -> Summation {
    let credits = NonZeroU32::new(credits);
    Summation { order: SendOrder::NextUse, credits, ..Summation::of(1) }
}

/// Six steps of a model of like layers, which so many workers and servers run that send like this: the program, what
/// happened, when the gradients of each bucket of the first worker were whole in each step, and how long the last but
/// one took.
fn sent_in(
    count: u32,
    servers: Summation,
    kernel: u64,
) -> (Program, Timeline, Vec<(usize, Picos)>, u64) {
    let spec = "mlp:inputs=8,hidden=8,layers=16,classes=8";
    let graph = ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model");
    let summation = Some(Summation { servers: count, ranges: Ranges::Equal, ..servers });
    let program = program(&graph, count, Sync { summation, ..Sync::default() });
    let options = Options { steps: 6, folded: false };
    let mut driver = Timed { links: Links(&program), kernel, whole: vec![] };
    let found = run(&program, &h100(2 * count as usize), options, &mut driver).expect("it runs");
    let ends = &found.step_ends[0];
    let (took, whole) = (ends[4].0 - ends[3].0, std::mem::take(&mut driver.whole));
    (program, found.timeline, whole, took)
}

/// Whenever fewer of a worker's pieces are under way than may be, that is chosen, of the buckets whose gradients are
/// whole, which the next step uses first: nothing that is more urgent is ready then and waits. A piece is under way from
/// when it is chosen until it is out, so it is chosen no sooner than so many before it are out.
#[test]
fn of_what_is_ready_that_is_sent_first_which_is_used_first() {
    for kernel in [0, 20 * BYTE, 100 * BYTE, 400 * BYTE, 2000 * BYTE] {
        let mut in_line = vec![];
        for credits in [1, 2, 4, 1000] {
            let (program, timeline, whole, _) = sent_in(2, by_next_use(credits), kernel);
            let class = program.class(ClassId(0));
            let intervals = timeline.tracks[0].intervals.iter();
            let sends: Vec<_> = intervals.filter(|it| it.activity == Activity::Send).collect();
            // Buckets are blocks, in the order of the model.
            let bucket = |label: &str| {
                let name = label.strip_prefix("send ").expect("it is a send");
                class.buckets.iter().position(|it| it.name == name).expect("a bucket is sent")
            };
            let of_step = 2 * class.buckets.len();
            assert_eq!((sends.len(), whole.len()), (6 * of_step, 6 * of_step));
            // Out of the order of use, and of these those that were ready before the other had its way.
            let (mut overtaken, mut waited) = (0, 0);
            let mut chosen = Picos(0);
            for (step, whole) in whole.chunks(of_step).enumerate() {
                let ready: BTreeMap<usize, Picos> = whole.iter().copied().collect();
                let of_this = &sends[step * of_step..][..of_step];
                let order: Vec<usize> = of_this.iter().map(|it| bucket(&it.label)).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                let each: Vec<usize> = (0..of_step).map(|it| it / 2).collect();
                assert_eq!(sorted, each, "each server gets a piece of each bucket");
                for (place, sent) in order.iter().enumerate() {
                    let number = step * of_step + place;
                    let is_room = number.checked_sub(credits as usize).map(|it| sends[it].end);
                    chosen = chosen.max(ready[sent]).max(is_room.unwrap_or_default());
                    assert!(chosen <= of_this[place].start);
                    for later in order[place + 1..].iter().filter(|&later| later < sent) {
                        assert!(
                            ready[later] > chosen,
                            "{kernel}, {credits}: bucket {sent} before {later}"
                        );
                        overtaken += 1;
                        waited += usize::from(ready[later] <= of_this[place].start);
                    }
                }
            }
            // With kernels that take time the last layers are sent before the first ones are whole.
            assert_eq!(overtaken > 0, kernel > 0, "{kernel}, {credits}");
            in_line.push(waited);
        }
        // With one at a time nothing waits for what is less urgent; with more it does where messages take longer than
        // kernels, and the longer the more may be under way.
        assert_eq!(in_line[0], 0);
        assert!(in_line.is_sorted(), "{kernel}: {in_line:?}");
        assert_eq!(in_line[3] > 0, (1..100 * BYTE).contains(&kernel), "{kernel}: {in_line:?}");
    }
}

/// As the pieces of a bucket are, one for each server.
#[test]
fn what_is_equally_urgent_is_sent_in_the_order_of_the_program() {
    for (credits, kernel) in [(1, 0), (1, 100 * BYTE), (4, 100 * BYTE)] {
        let (program, timeline, ..) = sent_in(2, by_next_use(credits), kernel);
        let by_bucket = |routes: Vec<RouteId>| {
            let mut all: BTreeMap<u32, Vec<RouteId>> = BTreeMap::new();
            for route in routes {
                let Carried::Gradients(bucket) = program.route(route).carried else { continue };
                all.entry(bucket.0).or_default().push(route);
            }
            all
        };
        let class = program.class(ClassId(0));
        let bodies = class.entries().flat_map(|entry| &class.body_of(entry).instructions);
        let said = bodies.filter_map(|it| match it.action {
            Action::Send { route } => Some(route),
            _ => None,
        });
        let said = by_bucket(said.collect());
        let messages = timeline.tracks[0].messages.iter();
        let sent = messages.filter(|it| it.interval.activity == Activity::Send);
        let sent = by_bucket(sent.map(|it| it.route).collect());
        assert_eq!(sent.len(), class.buckets.len());
        for (bucket, routes) in sent {
            assert_eq!(said[&bucket].len(), 2, "a piece for each server");
            assert_eq!(routes, said[&bucket].repeat(6), "{kernel}, {credits}: bucket {bucket}");
        }
    }
}

/// The next step begins with the first layers while the sums of others are under way, so that a step of a worker and a
/// server is shorter than in the order of the backward pass if messages take longer than kernels, and else as long; and
/// it takes little more than its kernels or its messages.
#[test]
fn the_next_step_begins_before_all_sums_are_there() {
    for (kernel, credits) in
        [20, 60, 100, 400, 2000].into_iter().flat_map(|it| [1, 2, 4].map(|n| (it * BYTE, n)))
    {
        let [backward, next_use] =
            [Summation::of(1), by_next_use(credits)].map(|servers| sent_in(1, servers, kernel));
        let program = &backward.0;
        let messages = BYTE * program.sent_bytes(ClassId(0), 0);
        let class = program.class(ClassId(0));
        let bodies = class.entries().flat_map(|entry| &class.body_of(entry).instructions);
        let kernels = bodies.filter(|it| matches!(it.action, Action::Kernel { .. })).count();
        let kernels = kernels as u64 * kernel;
        let (before, now) = (backward.3, next_use.3);
        assert!(now >= kernels.max(messages), "{now}: {kernels} and {messages}");
        let is_less = if messages > kernels { now < before } else { now <= before };
        assert!(is_less, "{kernel}: {now} after {before}");
        // Either hides all but the way of one layer.
        let layer = messages / class.buckets.len() as u64;
        let most = kernels.max(messages) + 4 * layer + 4 * kernel;
        assert!(now <= most, "{kernel}: {now}, more than {most}");
    }
}
