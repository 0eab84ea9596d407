//! Estimates of every schedule that is searched, beside simulations.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Number, Precision, ScheduleKind};
use shardloom_program::BodyKind;
use shardloom_sim::CostModel;
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};

use super::candidates::{ORDERS, candidates_in_all_orders, pipeline, possible, sample};
use super::simulated::{MIXED, mean_error, model, program, rank_correlation, times};
use crate::scenario::{cores, gpt, h100};

/// Pearson's correlation.
fn correlation(times: &[(f64, f64)]) -> f64 {
    let count = times.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| times.iter().map(of).sum::<f64>() / count;
    let (first, second) = (mean(|it| it.0), mean(|it| it.1));
    let products = |of: fn(f64, f64) -> f64| {
        times.iter().map(|it| of(it.0 - first, it.1 - second)).sum::<f64>()
    };
    products(|a, b| a * b) / (products(|a, _| a * a) * products(|_, b| b * b)).sqrt()
}

fn check(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    candidates: Vec<Candidate>,
    error: f64,
) {
    let candidates = possible(graph, cluster, settings, candidates);
    let times = times(graph, cluster, settings, &candidates);
    let kinds = ORDERS.iter().filter(|(kind, _)| candidates.iter().any(|it| it.schedule == *kind));
    assert!(kinds.count() == ORDERS.len() && candidates.len() > 60, "{} plans", candidates.len());
    let (rank, linear) = (rank_correlation(&times), correlation(&times));
    let found = mean_error(&times);
    println!("rank {rank}, linear {linear}, mean error {found} of {}", times.len());
    assert!(rank >= 0.98 && linear >= 0.98, "rank {rank}, linear {linear}");
    assert!(found <= error, "mean error {found}");
}

#[test]
fn estimates_rank_plans_of_all_schedules() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200");
    check(&graph, &h100(16), &MIXED, sample(candidates_in_all_orders(16, 64), 20), 0.03);
}

#[test]
fn estimates_rank_plans_of_all_schedules_over_slow_shared_links() {
    let graph = model(
        "llama:layers=30,hidden=512,heads=8,kv_heads=4,seq=512,vocab=4096,ffn=1408,tied=true",
    );
    let cluster = Cluster::parse("v100-16g:4x4").expect("a preset");
    let precision = Precision { compute: Number::Fp16, ..Precision::MIXED };
    let settings = Settings { precision, ..MIXED };
    check(&graph, &cluster, &settings, sample(candidates_in_all_orders(16, 32), 20), 0.05);
}

#[test]
fn estimates_rank_plans_of_all_schedules_where_lanes_do_not_overlap() {
    let graph = gpt(30, false);
    let settings = Settings { precision: Precision::FP32, bucket_bytes: 100_000, ..MIXED };
    check(&graph, &cores(8), &settings, sample(candidates_in_all_orders(8, 32), 20), 0.05);
}

/// Steps of many micro-batches are not run to their end.
#[test]
fn rounds_that_repeat_add_as_much_each() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200");
    let plans = ORDERS.map(|(schedule, chunks)| Candidate {
        schedule,
        chunks,
        cut: Cut::Balanced,
        ..pipeline(4, 1, 192)
    });
    let times = times(&graph, &h100(4), &MIXED, &plans);
    for (plan, (estimated, simulated)) in plans.iter().zip(times) {
        let ratio = estimated / simulated;
        assert!((0.95..=1.05).contains(&ratio), "{:?}: {ratio}", plan.schedule);
    }
}

/// So many micro-batches are not run to their end, and rounds are of four.
#[test]
fn micro_batches_that_do_not_fill_a_round_count_like_those_that_do() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200");
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    for (schedule, chunks) in ORDERS {
        let mut of = |microbatches: u32| {
            let candidate = Candidate { schedule, chunks, ..pipeline(4, 1, microbatches) };
            let found = estimator.estimate(&candidate).expect("costs");
            found.map(|it| it.step_seconds)
        };
        let [Some(before), Some(after)] = [192, 200].map(&mut of) else {
            panic!("{schedule:?} has orders of whole rounds")
        };
        let each = (after - before) / 8.0;
        assert!(each > 0.0, "{schedule:?}");
        for microbatches in 193..200 {
            // Some schedules have orders of whole rounds only.
            let Some(found) = of(microbatches) else { continue };
            let beyond = (found - before) / each - f64::from(microbatches - 192);
            // Orders of Hanayo are made pass by pass, and differ with each more.
            let most = if schedule == ScheduleKind::Hanayo { 8.0 } else { 2.5 };
            assert!(beyond.abs() < most, "{schedule:?}: {microbatches} are {beyond} off");
        }
    }
}

/// What a device holds in a schedule's order.
#[test]
fn memory_of_all_schedules_is_estimated_as_their_programs_hold_it() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200,tied=true");
    let cluster = h100(8);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let (mut near, mut count) = (0, 0);
    for candidate in possible(&graph, &cluster, &MIXED, sample(candidates_in_all_orders(8, 32), 12))
    {
        let estimated = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
        let program = program(&graph, &mut estimator, &MIXED, &candidate);
        for (class, estimated) in program.classes.iter().zip(&estimated) {
            let ratio = estimated / class.memory_use(&program, 0).peak_bytes as f64;
            assert!((0.9..=1.1).contains(&ratio), "{}: {ratio} of {candidate:?}", class.place());
            count += 1;
            near += usize::from((0.99..=1.01).contains(&ratio));
        }
    }
    assert!(10 * near >= 9 * count, "{near} of {count} within a hundredth");
}

/// In terms of forward passes, to the nearest of twenty parts of one, and for Hanayo of a thousand.
#[test]
fn orders_are_made_for_what_the_passes_of_the_device_with_the_most_work_take() {
    let graph = model("gpt:layers=14,hidden=512,heads=8,seq=256,vocab=8192");
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let mut checked = 0;
    let timed = ORDERS.into_iter().filter(|(schedule, _)| schedule.is_timed());
    for (schedule, chunks) in timed {
        for cut in [Cut::Even, Cut::Balanced] {
            let candidate = Candidate { schedule, chunks, cut, ..pipeline(4, 1, 8) };
            let found = estimator.pass_times(&candidate).expect("costs").expect("a layout");
            let program = program(&graph, &mut estimator, &MIXED, &candidate);
            let costs = CostModel::new(&graph, &cluster, &program);
            // Of a step: forward passes, input and weight gradients, of each device.
            let sums = program.classes().map(|(id, class)| {
                let mut sums = [0.0; 3];
                for entry in class.unguarded() {
                    let body = class.body_of(entry);
                    let all = body.instructions.iter();
                    let seconds = all.map(|it| costs.local_seconds(id, 0, it).expect("a cost"));
                    let seconds: f64 = seconds.sum();
                    match body.kind {
                        BodyKind::Forward => sums[0] += seconds,
                        BodyKind::BackwardInput => sums[1] += seconds,
                        BodyKind::BackwardWeight => sums[2] += seconds,
                        BodyKind::Backward => {
                            sums[1] += seconds / 2.0;
                            sums[2] += seconds / 2.0;
                        }
                        _ => {}
                    }
                }
                sums
            });
            let total = |sums: &[f64; 3]| sums.iter().sum::<f64>();
            let most = sums.max_by(|one, other| total(one).total_cmp(&total(other)));
            let [forward, input, weight] = most.expect("four devices");
            let part = if schedule == ScheduleKind::Hanayo { 0.001 } else { 0.05 };
            for (found, exact) in [(found.input, input), (found.weight, weight)] {
                let exact = exact / forward;
                let place = format!("{schedule:?}, {chunks}, {cut:?}: {found} for {exact}");
                assert!((found - exact).abs() <= 0.501 * part, "{place}");
                let parts = found / part;
                assert!((parts - parts.round()).abs() < 1e-6, "{place}");
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked}");
}

/// Candidates have much in common, which an estimator remembers.
#[test]
fn an_estimate_is_the_same_whatever_was_estimated_before() {
    let (graph, cluster) = (gpt(14, false), h100(8));
    let mut all = vec![];
    for it in sample(candidates_in_all_orders(8, 32), 120) {
        all.push(it);
        // With other replicas that share, and with halves of backward passes or whole ones.
        let sharing = it.dp / 2;
        all.extend((it.zero > 0 && sharing > 1).then_some(Candidate { sharing, ..it }));
        let others = [ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV];
        let of_two = it.chunks == 2 && others.contains(&it.schedule);
        all.extend(
            others.map(|schedule| Candidate { schedule, ..it }).into_iter().filter(|_| of_two),
        );
    }
    let of = |estimator: &mut Estimator<'_>, candidate: &Candidate| {
        let found = estimator.estimate(candidate).expect("costs");
        found.map(|it| [it.step_seconds, it.peak_bytes])
    };
    let new = || Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let alone: Vec<Option<[f64; 2]>> = all.iter().map(|it| of(&mut new(), it)).collect();
    let mut estimator = new();
    // Forwards and back, so that each comes before and after each other.
    for index in (0..all.len()).chain((0..all.len()).rev()) {
        let (found, alone) = (of(&mut estimator, &all[index]), alone[index]);
        assert_eq!(found.is_some(), alone.is_some(), "{:?}", all[index]);
        for (found, alone) in found.into_iter().flatten().zip(alone.into_iter().flatten()) {
            let near = (found / alone - 1.0).abs() < 1e-9;
            assert!(near, "{found} for {alone}: {:?}", all[index]);
        }
    }
    let shares_less = all.iter().filter(|it| it.sharing < it.dp).count();
    let whole = all.iter().filter(|it| it.schedule == ScheduleKind::DualPipeV).count();
    assert!(shares_less > 3 && whole > 1, "{shares_less} and {whole} of {}", all.len());
}
