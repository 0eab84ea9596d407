//! Rows that choose their experts while running: how long a step takes follows how many rows each has, and
//! ranks stand for each other only where they have equally many.

use crate::noted::Noted;
use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{LayoutRules, Mesh, Plan, Uniform};
use shardloom_program::timeline::Picos;
use shardloom_program::{MeasuredRows, Program, lower};
use shardloom_sim::{
    CostModel, Modelled, Options, RowCounts, Simulation, run, simulate, simulate_rows,
};

/// Four experts for 16 rows of 32 elements a sample, in two layers; wide experts, so that rows take time.
fn graph(slots: usize) -> Graph {
    let text = include_str!("../../../../examples/models/routed-experts.toml")
        .replace("slot = 8 ", &format!("slot = {slots} "))
        .replace("hidden = 48", "hidden = 65536");
    let spec = ModelSpec::from_toml(&text, "routed-experts.toml");
    spec.and_then(|spec| spec.graph()).unwrap_or_else(|error| panic!("{error}"))
}

const SAMPLES: usize = 8;

fn plan(graph: &Graph, mesh: Mesh, layout: &str) -> Plan {
    let uniform = Uniform { mesh, global_batch: SAMPLES, microbatches: 2, ..Uniform::default() };
    let layout: LayoutRules = layout.to_owned().try_into().expect("rules");
    Plan { layout, ..uniform.plan(graph, "model", "a100-40g:4") }
}

const FOUR: Mesh = Mesh::of(4, 1, 1);
const OVER_RANKS: &str = "expert:dp, batch:dp";

struct Case {
    graph: Graph,
    cluster: Cluster,
    program: Program,
}

impl Case {
    fn new(mesh: Mesh, layout: &str) -> Case {
        Case::with_slots(16, mesh, layout)
    }

    fn with_slots(slots: usize, mesh: Mesh, layout: &str) -> Case {
        let graph = graph(slots);
        let plan = plan(&graph, mesh, layout);
        let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
        Case { graph, cluster: Cluster::parse("a100-40g:4").expect("a preset"), program }
    }

    fn simulated(&self, folded: bool, rows: RowCounts) -> Simulation {
        let Case { graph, cluster, program } = self;
        let options = Options { steps: 2, folded };
        simulate_rows(graph, cluster, program, options, rows)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// What a rank counted of rows `[experts, samples]`: all experts, and its one sample of a micro-batch.
    fn measured(&self, rows: fn(u32) -> [u32; 4]) -> RowCounts {
        let mut measured = MeasuredRows::default();
        let (_, class) = self.program.classes().next().expect("a class");
        for (id, _) in class.tensors().filter(|(_, tensor)| tensor.counts().is_some()) {
            let Some((counts, mut whole)) = class.counted(id, 0) else { continue };
            (whole.start, whole.extent) = (vec![0, 0], vec![4, 4]);
            for microbatch in 0..2 {
                let of_samples = rows(microbatch).into_iter().flat_map(|rows| [rows; 4]);
                measured.note((counts, microbatch), [4, 4], &whole, of_samples);
            }
        }
        RowCounts::Measured(measured)
    }
}

#[test]
fn equal_counts_fold_and_one_rank_stands_for_all() {
    let case = Case::new(FOUR, OVER_RANKS);
    let folded = case.simulated(true, RowCounts::Even);
    assert!(folded.folded);
    assert_eq!(folded.timeline.tracks.len(), 1);
    let unfolded = case.simulated(false, RowCounts::Even);
    assert_eq!(unfolded.timeline.tracks.len(), 4);
    assert_eq!(folded.step_time(), unfolded.step_time());
    for track in &unfolded.timeline.tracks {
        assert_eq!(track.sent_bytes, folded.timeline.tracks[0].sent_bytes);
    }
    let Case { graph, cluster, program } = &case;
    let usual = simulate(graph, cluster, program, Options::default()).expect("a simulation");
    assert_eq!(usual, folded, "what is not said is even");
    assert_eq!(case.simulated(true, RowCounts::Shares(vec![0.25; 4])), folded);
}

#[test]
fn counts_that_differ_by_rank_are_simulated_rank_by_rank_and_say_so() {
    let shares = || RowCounts::Shares(vec![5.0, 1.0, 1.0, 1.0]);
    let apart = Case::new(FOUR, OVER_RANKS).simulated(true, shares());
    assert!(!apart.folded);
    assert_eq!(apart.timeline.tracks.len(), 4);
    // Where every rank has all experts, all have equally many rows.
    let together = Case::new(FOUR, "batch:dp").simulated(true, shares());
    assert!(together.folded);
    assert_eq!(together.timeline.tracks.len(), 1);
}

/// With slots for 2 of the 4 rows of a sample that an expert would have.
#[test]
fn no_expert_has_more_rows_than_slots_however_they_are_told() {
    let case = Case::with_slots(2, FOUR, OVER_RANKS);
    let even = case.simulated(false, RowCounts::Even);
    assert_eq!(case.simulated(false, RowCounts::Shares(vec![0.25; 4])), even);
    let roomy = Case::new(FOUR, OVER_RANKS).simulated(false, RowCounts::Even);
    assert!(even.step_time() < roomy.step_time());
}

#[test]
fn a_step_takes_as_long_as_the_expert_with_the_most_rows() {
    let case = Case::new(FOUR, OVER_RANKS);
    let time = |shares: [f64; 4]| {
        case.simulated(true, RowCounts::Shares(shares.to_vec())).step_time().seconds()
    };
    let (even, skewed, one) =
        (time([1.0; 4]), time([2.5, 0.5, 0.5, 0.5]), time([1.0, 0.0, 0.0, 0.0]));
    assert!(even < skewed && skewed < one, "{even} {skewed} {one}");
    // Who has the rows makes no difference.
    assert_eq!(time([0.5, 0.5, 2.5, 0.5]), skewed);
}

#[test]
fn each_rank_sends_the_rows_that_are_not_its_own_four_times_a_layer() {
    let case = Case::new(FOUR, OVER_RANKS);
    let sent = |rows| -> Vec<u64> {
        let simulation = case.simulated(false, rows);
        simulation.timeline.tracks.iter().map(|track| track.sent_bytes).collect()
    };
    // In each of 2 steps with 2 micro-batches, a rank has one sample of 16 rows of 32 elements.
    let row = 32 * 4;
    let times = 2 * 2 * 2;
    // Rows forward and their gradients backward go from samples to experts; results, and the gradients of
    // rows, the other way: as many of other samples as come to this rank's experts.
    let bytes = |own_samples: u64, own_expert: u64| times * row * 2 * (own_samples + own_expert);
    let none = sent(RowCounts::Shares(vec![1.0, 0.0, 0.0, 0.0]));
    // All rows go to the first rank, which sends none to others and all of theirs back.
    let rest: u64 = none[1] - bytes(16, 0);
    assert_eq!(none, [rest + bytes(0, 3 * 16), none[1], none[1], none[1]]);
    assert_eq!(sent(RowCounts::Even), [rest + bytes(12, 12); 4]);
}

#[test]
fn what_is_not_known_of_counts_is_an_error() {
    let case = Case::new(FOUR, OVER_RANKS);
    let Case { graph, cluster, program } = &case;
    let error = |rows| {
        let simulated = simulate_rows(graph, cluster, program, Options::default(), rows);
        simulated.expect_err("counts are not known").to_string()
    };
    let few = error(RowCounts::Shares(vec![1.0; 3]));
    assert!(few.contains("route.counts") && few.contains("there are 4 experts"), "{few}");
    let negative = error(RowCounts::Shares(vec![1.0, -1.0, 1.0, 1.0]));
    assert!(negative.contains("not negative"), "{negative}");
    let none = error(RowCounts::Measured(Default::default()));
    assert!(none.contains("micro-batch 0 were not measured"), "{none}");
}

/// What a run has measured of one step holds for every step.
#[test]
fn every_step_is_like_the_one_that_was_measured() {
    let case = Case::new(FOUR, OVER_RANKS);
    let measured = |rows: fn(u32) -> [u32; 4]| case.measured(rows);
    let even = case.simulated(false, measured(|_| [4; 4]));
    let usual = case.simulated(false, RowCounts::Even);
    assert_eq!(even.steps(), 2);
    assert_eq!(even.step_ends, usual.step_ends);
    for (even, usual) in even.timeline.tracks.iter().zip(&usual.timeline.tracks) {
        assert_eq!(even.sent_bytes, usual.sent_bytes);
    }
    // A step in which one of the two micro-batches goes to one expert is between the others.
    let time = |rows| case.simulated(false, measured(rows)).step_time();
    let half = time(|microbatch| if microbatch == 0 { [4; 4] } else { [16, 0, 0, 0] });
    assert!(usual.step_time() < half && half < time(|_| [16, 0, 0, 0]));
}

/// By itself, as a simulation has it: each rank has one of the experts, and a sample of each micro-batch.
#[test]
fn an_instruction_takes_as_long_as_the_rows_that_come_to_its_rank_want() {
    let case = Case::new(FOUR, OVER_RANKS);
    let Case { graph, cluster, program } = &case;
    let (id, class) = program.classes().next().expect("a class");
    let seconds = |rows: RowCounts, position: usize| -> Vec<f64> {
        let costs = CostModel::new(graph, cluster, program).with_rows(rows);
        let all = class.bodies.iter().flat_map(|body| &body.instructions);
        all.map(|it| costs.local_seconds(id, position, it).expect("a cost")).collect()
    };
    let even = seconds(RowCounts::Even, 0);
    for position in 0..4 {
        assert_eq!(seconds(RowCounts::Shares(vec![3.0; 4]), position), even);
        let of = |expert: usize| {
            let shares = (0..4).map(|it| if it == expert { 1.0 } else { 0.0 });
            seconds(RowCounts::Shares(shares.collect()), position)
        };
        let (all, none) = (of(position), of((position + 1) % 4));
        // Where the number of rows makes a difference.
        let differing =
            even.iter().zip(all.iter().zip(&none)).filter(|(_, (all, none))| all != none);
        let differing: Vec<_> = differing.collect();
        assert!(
            differing.iter().all(|(even, (all, none))| none < all && none <= even && even <= all)
        );
        assert!(differing.len() > 5, "{} at {position}", differing.len());
    }
}

/// Micro-batches are counted on from step to step, and each step is like the one that was measured.
#[test]
fn an_exchange_takes_as_long_as_the_rows_of_its_own_micro_batch_want() {
    let case = Case::new(FOUR, OVER_RANKS);
    let Case { graph, cluster, program } = &case;
    let rows = || case.measured(|it| if it == 0 { [16, 0, 0, 0] } else { [2, 3, 4, 7] });
    let modelled = Modelled::new(graph, cluster, program).expect("costs").with_rows(rows());
    let mut driver = Noted::new(modelled);
    run(program, cluster, Options { steps: 3, folded: false }, &mut driver).expect("it runs");
    let costs = CostModel::new(graph, cluster, program).with_rows(rows());
    let (id, class) = program.classes().next().expect("a class");
    let mut differing = 0;
    for &((body, index), microbatch, took) in &driver.exchanges {
        let instruction = &class.bodies[body as usize].instructions[index];
        let mut of = [0, 1].map(|microbatch| {
            let exchange = costs.exchange(id, 0, instruction, microbatch).expect("known rows");
            let exchange = exchange.expect("it is a collective");
            let seconds = costs.collective_seconds(&exchange, &class.devices, 1);
            Picos::from_seconds(seconds.expect("a cost"))
        });
        differing += usize::from(of[0] != of[1]);
        of.rotate_left(microbatch.unwrap_or(0) as usize % 2);
        assert_eq!(took, of[0], "{instruction:?} of micro-batch {microbatch:?}");
    }
    assert!(differing > 20, "{differing} of {}", driver.exchanges.len());
}
