//! Experiments in the simulator: the same program with some of its communication for nothing, with parts of
//! it faster or slower, or on another cluster.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_graph::Graph;
use shardloom_plan::{Axis, Plan};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, Class, ClassId, Guard, Instruction, Program, Rank};
use shardloom_sim::{
    Actor, Call, Driver, ExtraBytes, Modelled, Options, SimError, Simulation, run_for_figures,
};

use crate::SearchError;

/// What a plan communicates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Activations within groups of tensor, context and expert parallelism.
    Tensor,
    /// Gradients and weights between replicas, and the agreement on a norm.
    Replicas,
    /// Activations and gradients between stages.
    Stages,
}

impl Traffic {
    pub(crate) const ALL: [Traffic; 3] = [Traffic::Tensor, Traffic::Replicas, Traffic::Stages];

    fn of(class: &Class, instruction: &Instruction) -> Option<Traffic> {
        let of_values =
            instruction.operands().all(|view| class.tensor(view.tensor).is_of_microbatch());
        match (&instruction.action, of_values) {
            (Action::Collective { .. }, true) => Some(Traffic::Tensor),
            (Action::Send { .. } | Action::Receive { .. }, true) => Some(Traffic::Stages),
            (Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. }, false)
            | (Action::Fetch { .. }, _) => Some(Traffic::Replicas),
            _ => None,
        }
    }
}

/// What a plan's communication is called, in the order of [`Traffic::ALL`], and what makes it smaller.
pub(crate) fn traffic_of(plan: &Plan) -> [(&'static str, &'static str); 3] {
    let splits = |axis| plan.stages().any(|(_, stage)| stage.mesh.width(axis) > 1);
    let within = match [Axis::TP, Axis::CP, Axis::EP].map(splits) {
        [_, false, false] => (
            "tensor-parallel communication",
            "faster links between its devices, or narrower tensor parallelism",
        ),
        [false, true, false] => (
            "context-parallel communication",
            "faster links between its devices, or narrower context parallelism",
        ),
        [false, false, true] => (
            "expert-parallel communication",
            "faster links between its devices, or narrower expert parallelism",
        ),
        _ => (
            "communication of tensor, context and expert parallelism",
            "faster links between its devices, or less of these",
        ),
    };
    [
        within,
        ("synchronising replicas", "a larger batch, faster links between nodes, or fewer replicas"),
        ("messages between stages", "fewer stages, or faster links between nodes"),
    ]
}

/// How many times as long as the cost model says parts of a step take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scales {
    /// What devices compute, all of them or those of one class.
    pub compute: (f64, Option<ClassId>),
    /// Communication, in the order of [`Traffic::ALL`].
    pub traffic: [f64; 3],
}

impl Scales {
    /// As the cost model says.
    pub const NONE: Scales = Scales { compute: (1.0, None), traffic: [1.0; 3] };

    /// Where some traffic takes no time.
    pub fn without(free: &[Traffic]) -> Scales {
        let share = |it: Traffic| if free.contains(&it) { 0.0 } else { 1.0 };
        Scales { traffic: Traffic::ALL.map(share), ..Scales::NONE }
    }
}

/// Durations from the cost model, scaled. What takes no time need not be launched either.
struct Scaled<'d, 'a> {
    program: &'d Program,
    modelled: &'d mut Modelled<'a>,
    scales: &'d Scales,
}

impl Scaled<'_, '_> {
    /// How many times as long a communication takes.
    fn traffic(&self, call: &Call<'_>) -> f64 {
        let class = self.program.class(call.actor.class);
        let traffic = Traffic::of(class, call.instruction);
        let index = traffic.and_then(|it| Traffic::ALL.iter().position(|known| *known == it));
        index.map_or(1.0, |index| self.scales.traffic[index])
    }
}

fn times(picos: Picos, factor: f64) -> Picos {
    // Most are not scaled, and are to stay as they are to the last digit.
    if factor == 1.0 { picos } else { Picos((picos.0 as f64 * factor).round() as u64) }
}

impl Driver for Scaled<'_, '_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn launches(&self) -> bool {
        self.modelled.launches()
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        match self.traffic(call) == 0.0 {
            true => Ok(Picos::ZERO),
            false => self.modelled.launch(call),
        }
    }

    fn extra_bytes(&mut self, call: &Call<'_>) -> ExtraBytes {
        self.modelled.extra_bytes(call)
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let (factor, class) = self.scales.compute;
        let concerns = class.is_none_or(|class| class == call.actor.class);
        Ok(times(self.modelled.local(call)?, if concerns { factor } else { 1.0 }))
    }

    fn fetch(&mut self, call: &Call<'_>, from: Rank) -> Result<Picos, SimError> {
        Ok(times(self.modelled.fetch(call, from)?, self.traffic(call)))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.modelled.send(call, durations)?;
        let factor = self.traffic(call);
        durations.iter_mut().for_each(|it| *it = times(*it, factor));
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.modelled.receive(call)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(times(self.modelled.inflow(call)?, self.traffic(call)))
    }

    fn negotiate(&mut self, members: &[Call<'_>], cycles: u64) -> Result<Picos, SimError> {
        let factor = members.first().map_or(1.0, |call| self.traffic(call));
        Ok(times(self.modelled.negotiate(members, cycles)?, factor))
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, SimError> {
        let factor = requests.iter().flatten().next().map_or(1.0, |call| self.traffic(call));
        Ok(times(self.modelled.fused(requests)?, factor))
    }

    fn holds(&mut self, actor: Actor, guard: &Guard, step: i64) -> Result<bool, SimError> {
        self.modelled.holds(actor, guard, step)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let factor = members.first().map_or(1.0, |call| self.traffic(call));
        Ok(times(self.modelled.collective(members)?, factor))
    }
}

/// A plan's program on its cluster.
pub(crate) struct Bench<'a> {
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub program: Program,
}

impl<'a> Bench<'a> {
    /// Lowers `plan`.
    ///
    /// # Errors
    /// If the plan does not fit the model or the cluster.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        plan: &Plan,
    ) -> Result<Bench<'a>, SearchError> {
        let program = shardloom_program::lower(graph, plan, cluster.device_count() as usize)?;
        Ok(Bench { graph, cluster, program })
    }

    /// Simulates it where `free` traffic takes no time.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn without(&self, free: &[Traffic]) -> Result<Simulation, SearchError> {
        self.on(self.cluster, free)
    }

    /// Simulates it with parts faster or slower.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn scaled(&self, scales: &Scales) -> Result<Simulation, SearchError> {
        self.simulate([self.cluster; 2], scales)
    }

    /// Simulates it on another cluster of as many devices.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn on(&self, cluster: &Cluster, free: &[Traffic]) -> Result<Simulation, SearchError> {
        self.simulate([cluster, cluster], &Scales::without(free))
    }

    /// Simulates it where everything takes as long as ever, but no device communicates while it computes.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn without_overlap(&self) -> Result<Simulation, SearchError> {
        let one_lane = changed(self.cluster, |group| group.profile.device.lanes_overlap = false)?;
        self.simulate([self.cluster, &one_lane], &Scales::NONE)
    }

    /// With durations of the first cluster, in an order that the second one's devices allow.
    fn simulate(
        &self,
        [durations, cluster]: [&Cluster; 2],
        scales: &Scales,
    ) -> Result<Simulation, SearchError> {
        let mut modelled = Modelled::new(self.graph, durations, &self.program)?;
        let mut driver = Scaled { program: &self.program, modelled: &mut modelled, scales };
        let options = Options::default().filled(&self.program);
        Ok(run_for_figures(&self.program, cluster, options, &mut driver)?)
    }
}

/// `cluster` with every group of nodes changed.
///
/// # Errors
/// As [`Cluster::new`].
pub(crate) fn changed(
    cluster: &Cluster,
    change: impl Fn(&mut NodeGroup),
) -> Result<Cluster, SearchError> {
    let mut groups = cluster.groups().to_vec();
    groups.iter_mut().for_each(change);
    Ok(cluster.with_groups(groups)?)
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::Curve;
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Communication, Mesh, Negotiation, Precision, Uniform};
    use shardloom_program::timeline::Activity;

    use super::*;

    const TEXT: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=1024";

    /// A plan of one kind of traffic, on four devices.
    fn bench<T>(
        [pp, dp, tp]: [u32; 3],
        also: impl Fn(&mut Plan),
        on: impl FnOnce(&Bench<'_>) -> T,
    ) -> T {
        let graph = ModelSpec::parse(TEXT).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse("h100-80g:4").expect("a preset");
        let uniform = Uniform {
            pp: pp as usize,
            mesh: Mesh::of(dp, 1, tp),
            global_batch: 32,
            microbatches: 4,
            precision: Precision::MIXED,
            clip_norm: None,
            ..Uniform::default()
        };
        let mut plan = uniform.plan(&graph, TEXT, "c");
        also(&mut plan);
        on(&Bench::new(&graph, &cluster, &plan).expect("it can be lowered"))
    }

    /// How many picoseconds all devices together do something of a kind.
    fn total(simulation: &Simulation, is_it: impl Fn(Activity) -> bool) -> f64 {
        let intervals = simulation.timeline.tracks.iter().flat_map(|track| &track.intervals);
        let lengths = intervals.filter(|it| is_it(it.activity)).map(|it| it.end.since(it.start));
        lengths.map(|it| it.0).sum::<u64>() as f64
    }

    fn communicating(simulation: &Simulation) -> f64 {
        total(simulation, |it| matches!(it, Activity::Collective | Activity::Send))
    }

    fn computing(simulation: &Simulation) -> f64 {
        let others = [Activity::Collective, Activity::Send, Activity::Receive];
        total(simulation, |it| !others.contains(&it))
    }

    fn negotiated(plan: &mut Plan) {
        plan.communication = Communication::Thread;
        plan.sync.negotiation = Some(Negotiation::default());
    }

    type Change = fn(&mut Plan);

    const KINDS: [(Traffic, [u32; 3], Change); 4] = [
        (Traffic::Tensor, [1, 1, 4], |_| ()),
        (Traffic::Replicas, [1, 4, 1], |_| ()),
        (Traffic::Stages, [4, 1, 1], |_| ()),
        // What is agreed on is reduced as one.
        (Traffic::Replicas, [1, 4, 1], negotiated),
    ];

    #[test]
    fn traffic_that_is_free_takes_no_time_and_the_rest_as_long_as_before() {
        for (index, (own, sizes, also)) in KINDS.into_iter().enumerate() {
            bench(sizes, also, |bench| {
                let usual = bench.without(&[]).expect("it can be simulated");
                let before = communicating(&usual);
                assert!(before > 0.0, "{index}");
                let others: Vec<Traffic> =
                    Traffic::ALL.into_iter().filter(|&it| it != own).collect();
                let same = bench.without(&others).expect("it can be simulated");
                assert_eq!(communicating(&same), before, "{index}");
                for free in [&[own][..], &Traffic::ALL] {
                    let free = bench.without(free).expect("it can be simulated");
                    assert_eq!(communicating(&free), 0.0, "{index}");
                    assert!(free.step_time() < usual.step_time(), "{index}");
                    let computed = computing(&free) / computing(&usual);
                    assert!((computed - 1.0).abs() < 1e-9, "{index}");
                }
            });
        }
    }

    #[test]
    fn traffic_that_is_slower_takes_so_many_times_as_long() {
        for (index, (own, sizes, also)) in KINDS.into_iter().enumerate() {
            bench(sizes, also, |bench| {
                let before = communicating(&bench.without(&[]).expect("it can be simulated"));
                for traffic in Traffic::ALL {
                    let slower = Traffic::ALL.map(|it| if it == traffic { 3.0 } else { 1.0 });
                    let scales = Scales { traffic: slower, ..Scales::NONE };
                    let found = communicating(&bench.scaled(&scales).expect("it can be simulated"));
                    let expected = if traffic == own { 3.0 } else { 1.0 };
                    assert!((found / before / expected - 1.0).abs() < 1e-6, "{index}: {traffic:?}");
                }
            });
        }
    }

    #[test]
    fn devices_that_are_slower_compute_so_many_times_as_long() {
        bench(
            [4, 1, 1],
            |_| (),
            |bench| {
                let usual = bench.without(&[]).expect("it can be simulated");
                let slower = |class| {
                    let scales = Scales { compute: (2.0, class), ..Scales::NONE };
                    bench.scaled(&scales).expect("it can be simulated")
                };
                let all = slower(None);
                assert!((computing(&all) / computing(&usual) - 2.0).abs() < 1e-6);
                assert_eq!(communicating(&all), communicating(&usual));
                for track in 0..4 {
                    let (class, _) = bench.program.locate(Rank(track));
                    let one = slower(Some(class));
                    for (index, (one, usual)) in
                        one.timeline.tracks.iter().zip(&usual.timeline.tracks).enumerate()
                    {
                        let ratio = one.busy().seconds() / usual.busy().seconds();
                        let expected = if index == track as usize { 2.0 } else { 1.0 };
                        assert!((ratio - expected).abs() < 1e-6, "{track}, {index}: {ratio}");
                    }
                }
            },
        );
    }

    /// Collectives of devices with one lane may have been measured; here they take what they took with two.
    #[test]
    fn without_overlap_everything_takes_as_long_as_with_it() {
        bench(
            [1, 4, 1],
            |plan| plan.sync.bucket_bytes = 100_000,
            |bench| {
                let measured = changed(bench.cluster, |group| {
                    let curve = Curve::new(vec![(1.0, 1.0), (1e9, 2.0)]).expect("a curve");
                    group.profile.device.rates.insert("ring.all-reduce.4".into(), curve);
                });
                let measured = measured.expect("a cluster");
                let program = bench.program.clone();
                let bench = Bench { graph: bench.graph, cluster: &measured, program };
                let usual = bench.without(&[]).expect("it can be simulated");
                let apart = bench.without_overlap().expect("it can be simulated");
                assert_eq!(communicating(&apart), communicating(&usual));
                assert_eq!(computing(&apart), computing(&usual));
                assert!(apart.step_time() > usual.step_time());
            },
        );
    }
}
