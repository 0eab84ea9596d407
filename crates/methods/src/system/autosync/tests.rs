//! Strategies, what becomes of them in programs, and what models learn of them.

mod beginning;
mod known;
mod shapes;

use std::collections::BTreeSet;

use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::Optimizer;
use shardloom_program::verify::verify;
use shardloom_program::{ClassId, lower};
use shardloom_search::{Request, Trials as Asked};

use super::features::features;
use super::random::Random;
use super::ranker::{Kind, Ranker};
use super::sampler::MOST_GROUPS;
use super::strategy::By;
use super::*;

const GPT: &str = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=256";

/// Four hosts of two GPUs, of which the network cards differ.
const HOSTS: &str = "
[[group]]
machine = \"a100-40g\"
nodes = 1
devices_per_node = 2

[[group]]
machine = \"a100-40g\"
nodes = 1
devices_per_node = 2
uplink_bytes_per_second = 1e10

[[group]]
machine = \"a100-40g\"
nodes = 1
devices_per_node = 2
uplink_bytes_per_second = 2.5e9

[[group]]
machine = \"a100-40g\"
nodes = 1
devices_per_node = 2
uplink_bytes_per_second = 5e9
";

fn graph() -> Graph {
    ModelSpec::parse(GPT).and_then(|spec| spec.graph()).expect("a model")
}

fn cluster() -> Cluster {
    Cluster::from_toml(HOSTS).expect("four hosts")
}

fn request() -> Request {
    Request::new(GPT, "hosts.toml", 24)
}

/// What `look` finds out about the problem, in which servers sum whole tables.
fn with<T>(look: impl FnOnce(&mut Task<'_>, &Problem) -> T) -> T {
    let (graph, cluster, request) = (graph(), cluster(), request());
    let mut task = Task::new("autosync", &graph, &cluster, &request);
    let mut problem = problem(&mut task).expect("a problem");
    problem.shapes.iter_mut().for_each(|shape| shape.looked_up.clear());
    look(&mut task, &problem)
}

/// So many trials of drawn strategies.
fn trials(task: &Task<'_>, problem: &Problem, seed: u64, count: usize) -> Trials {
    let sampler = Sampler::new(problem, true);
    let random = &mut Random::new(seed);
    let mut selection = Selection::new(0.95);
    let done = (0..count).filter_map(|_| {
        let strategy = sampler.sample(random);
        let plan = words::plan(task, problem, &strategy);
        let seconds = tried(task, &mut selection, plan).expect("it can be simulated")?;
        Some(Trial { strategy, seconds })
    });
    Trials { problem: problem.clone(), done: done.collect() }
}

#[test]
fn workers_and_servers_are_dealt_to_the_devices_and_reach_each_other_as_their_cards_do() {
    with(|_, problem| {
        let counts: Vec<(u32, usize)> =
            problem.shapes.iter().map(|it| (it.workers, it.server_bandwidths.len())).collect();
        assert_eq!(counts, [(8, 0), (6, 1), (6, 2), (4, 4)]);
        let of_last = &problem.shapes[3];
        let [third, _, fourth, _] = of_last.server_bandwidths[..] else { panic!("{of_last:?}") };
        assert!(third < fourth && of_last.compute_seconds > problem.shapes[0].compute_seconds);
    });
}

#[test]
fn shards_of_drawn_strategies_tile_their_variables_and_have_one_synchroniser_each() {
    with(|_, problem| {
        let sampler = Sampler::new(problem, true);
        let random = &mut Random::new(1);
        let (mut cut, mut kinds) = (0, BTreeSet::new());
        for _ in 0..300 {
            let strategy = sampler.sample(random);
            assert_eq!(strategy.synchronisers.len(), problem.variables.len());
            let mut servers = BTreeSet::new();
            let mut last = 0;
            for (variable, synchroniser) in problem.variables.iter().zip(&strategy.synchronisers) {
                let shards = synchroniser.shards(variable);
                let elements: usize = shards.iter().map(|it| it.elements).sum();
                assert_eq!(elements, variable.elements());
                cut += usize::from(shards.len() > 1);
                for shard in shards {
                    match shard.by {
                        By::Server(server) => _ = servers.insert(server),
                        By::Group(group, compression) => {
                            assert!((last..MOST_GROUPS as u32).contains(&group), "in order");
                            last = group;
                            kinds.insert((compression.to_string(), strategy.servers() > 0));
                        }
                    }
                }
            }
            let count = problem.shapes[strategy.shape].server_bandwidths.len() as u32;
            assert!(strategy.servers() <= count);
            // Numbers have no gaps.
            assert_eq!(servers.len() as u32, strategy.servers());
        }
        assert!(cut > 100, "{cut}");
        let with_servers: Vec<&str> =
            kinds.iter().filter(|it| it.1).map(|it| it.0.as_str()).collect();
        assert_eq!(with_servers, ["none"], "workers with servers exchange gradients as they are");
        assert_eq!(kinds.len(), 4);
    });
}

#[test]
fn small_variables_are_never_cut_and_large_ones_always() {
    with(|_, problem| {
        let mut problem = problem.clone();
        problem.shapes.truncate(2);
        problem.shapes.remove(0);
        let mean = problem.variables.iter().map(|it| it.elements()).sum::<usize>()
            / problem.variables.len();
        // Of these two the others make up the mean.
        problem.variables[0].rows = 100 * mean / problem.variables[0].columns;
        let sampler = Sampler::new(&problem, false);
        let random = &mut Random::new(5);
        let small = problem.variables.iter().position(|it| it.elements() * 4 < mean);
        let small = small.expect("a bias");
        for _ in 0..200 {
            let strategy = sampler.sample(random);
            let shards = |variable: usize| match &strategy.synchronisers[variable] {
                Synchroniser::Servers(servers) => Some(servers.len()),
                Synchroniser::AllReduce { .. } => None,
            };
            assert!(shards(0).is_none_or(|count| (2..=40).contains(&count)));
            assert!(shards(small).is_none_or(|count| count == 1));
        }
    });
}

#[test]
fn no_variable_is_cut_into_more_shards_than_it_has_rows() {
    with(|_, problem| {
        let mut problem = problem.clone();
        problem.shapes.truncate(2);
        problem.shapes.remove(0);
        // So large that it is always cut.
        let elements: usize = problem.variables.iter().map(|it| it.elements()).sum();
        (problem.variables[0].rows, problem.variables[0].columns) = (3, 100 * elements);
        let sampler = Sampler::new(&problem, false);
        let random = &mut Random::new(7);
        let mut counts = BTreeSet::new();
        for _ in 0..200 {
            if let Synchroniser::Servers(servers) = &sampler.sample(random).synchronisers[0] {
                counts.insert(servers.len());
            }
        }
        assert_eq!(counts, BTreeSet::from([2, 3]));
    });
}

/// On the program: each element of a variable is summed by the server that the strategy says, or with its group.
#[test]
fn plans_of_drawn_strategies_are_sound_and_sum_every_shard_where_the_strategy_says() {
    with(|task, problem| {
        let sampler = Sampler::new(problem, true);
        let random = &mut Random::new(2);
        for _ in 0..15 {
            let strategy = sampler.sample(random);
            let plan = words::plan(task, problem, &strategy);
            let program = lower(task.graph, &plan, task.cluster.device_count() as usize);
            let program = program.unwrap_or_else(|error| panic!("{error}\n{}", plan.to_toml()));
            assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
            let class = program.class(ClassId(0));
            let workers = problem.shapes[strategy.shape].workers;
            let mut groups: std::collections::BTreeMap<u32, BTreeSet<u32>> = Default::default();
            for (id, bucket) in class.buckets() {
                for &param in &bucket.params {
                    let param = class.param(param);
                    let name = &task.graph.value(param.value).name;
                    let at = problem.variables.iter().position(|it| it.name == *name);
                    let at = at.expect("a variable of the problem");
                    let found = bucket.summed.iter().filter(|it| {
                        param.range().start <= it.range.start && it.range.end <= param.range().end
                    });
                    let found: Vec<_> =
                        found.map(|it| (it.range.len(), it.server.0 - workers)).collect();
                    let shards = strategy.synchronisers[at].shards(&problem.variables[at]);
                    let expected: Vec<_> = shards
                        .iter()
                        .filter_map(|shard| match shard.by {
                            By::Server(server) => Some((shard.elements, server)),
                            By::Group(group, _) => {
                                groups.entry(group).or_default().insert(id.0);
                                None
                            }
                        })
                        .collect();
                    assert_eq!(found, expected, "{name}");
                }
            }
            // What is all-reduced together is one bucket, and no two groups share one.
            assert!(groups.values().all(|buckets| buckets.len() == 1), "{groups:?}");
            let buckets: BTreeSet<u32> = groups.values().flatten().copied().collect();
            assert_eq!(buckets.len(), groups.len());
        }
    });
}

#[test]
fn trained_models_rank_pairs_that_they_have_not_seen() {
    with(|task, problem| {
        let known = trials(task, problem, 3, 80);
        let unseen = trials(task, problem, 4, 50);
        let of = |trials: &Trials| -> Vec<_> {
            trials.done.iter().map(|it| features(problem, &it.strategy)).collect()
        };
        let seconds: Vec<f64> = unseen.done.iter().map(|it| it.seconds).collect();
        for (kind, least) in [(Kind::Linear, 0.7), (Kind::RankRnn, 0.7)] {
            let mut model = Ranker::new(kind, 0);
            model.fit(&[&known], 300);
            let found = ranking::accuracy(&model.scores(&of(&unseen)), &seconds);
            let found = found.expect("they take differently long");
            assert!(found > least, "{kind:?} {found}");
        }
        // Bytes over bandwidths say more than few trials: why the search does not begin with a trained model.
        let predefined: Vec<f64> =
            unseen.done.iter().map(|it| predefined::seconds(problem, &it.strategy)).collect();
        let predefined =
            ranking::accuracy(&predefined, &seconds).expect("they take differently long");
        let few = Trials { done: known.done[..20].to_vec(), ..known };
        let mut model = Ranker::new(Kind::RankRnn, 0);
        model.fit(&[&few], 300);
        let learned = ranking::accuracy(&model.scores(&of(&unseen)), &seconds);
        assert!(learned.is_some_and(|it| it < predefined), "{learned:?} for {predefined}");
        assert!(predefined > 0.9, "{predefined}");
    });
}

/// The link of a server has a part from and to each worker; that of a ring each part twice but for one.
#[test]
fn the_predefined_model_divides_bytes_by_bandwidths() {
    with(|_, problem| {
        let mut problem = problem.clone();
        problem.gradient_bytes = 2;
        problem.variables.truncate(2);
        for (variable, rows) in problem.variables.iter_mut().zip([300, 700]) {
            (variable.rows, variable.columns) = (rows, 10);
        }
        let shape = Shape {
            workers: 3,
            microbatches: 3,
            compute_seconds: 0.5,
            ring_bandwidth: Some(4e4),
            server_bandwidths: vec![1e5, 2e4],
            latency_seconds: 0.25,
            looked_up: [].into(),
        };
        problem.shapes = vec![shape];
        let seconds = |synchronisers: [Synchroniser; 2]| {
            let synchronisers = synchronisers.into();
            predefined::seconds(&problem, &Strategy { shape: 0, synchronisers })
        };
        let server = |server| Synchroniser::Servers(vec![server]);
        let reduced = |group| Synchroniser::AllReduce { group, compression: Compression::None };
        // 6,000 bytes at 20,000 a second; 14,000 at 100,000 take less.
        assert_eq!(seconds([server(1), server(0)]), 0.5 + 3.0 * (0.3 + 0.25));
        // Both on one: 20,000 bytes in two messages.
        assert_eq!(seconds([server(0), server(0)]), 0.5 + 3.0 * (0.06 + 0.25 + 0.14 + 0.25));
        // 4 hops of a third of the bytes, together and one after the other.
        let together = 0.5 + 4.0 * (20_000.0 / 3.0 / 4e4 + 0.25);
        assert!((seconds([reduced(0), reduced(0)]) - together).abs() < 1e-12);
        let apart = together + 4.0 * 0.25;
        assert!((seconds([reduced(0), reduced(1)]) - apart).abs() < 1e-12);
    });
}

/// What comes of a search, and its trials.
fn searched(
    task: &Task<'_>,
    problem: &Problem,
    others: &[Trials],
    count: usize,
) -> (Searched, Vec<Trial>) {
    let mut selection = Selection::new(0.95);
    let known = Trials { problem: problem.clone(), done: vec![] };
    let sampler = Sampler::new(problem, true);
    let run = &mut |strategy: &Strategy| {
        tried(task, &mut selection, words::plan(task, problem, strategy))
    };
    let mut kept = vec![];
    let keep = &mut |trials: &Trials| {
        kept = trials.done.clone();
        Ok(())
    };
    let trying = search::Trying { run, keep };
    let found = search::search(&sampler, begin(problem), known, others, (count, 9), trying);
    (found.expect("it can run"), kept)
}

#[test]
fn what_was_tried_before_a_trial_that_fails_is_kept() {
    with(|task, problem| {
        let (_, whole) = searched(task, problem, &[], 14);
        let (mut left, mut took, mut kept) = (13_u32, 0, vec![]);
        let mut selection = Selection::new(0.95);
        let run = &mut |strategy: &Strategy| {
            left = left.checked_sub(1).ok_or(MethodError::Trial("the machine is gone".into()))?;
            let seconds = tried(task, &mut selection, words::plan(task, problem, strategy))?;
            took += usize::from(seconds.is_some());
            Ok(seconds)
        };
        let keep = &mut |trials: &Trials| {
            kept = trials.done.clone();
            Ok(())
        };
        let known = Trials { problem: problem.clone(), done: vec![] };
        let sampler = Sampler::new(problem, true);
        let trying = search::Trying { run, keep };
        let failed = search::search(&sampler, begin(problem), known, &[], (14, 9), trying);
        assert!(matches!(failed, Err(MethodError::Trial(_))));
        assert_eq!((kept.len(), &kept[..]), (took, &whole[..took]));
    });
}

#[test]
fn with_more_trials_the_same_come_first_and_none_twice() {
    with(|task, problem| {
        let [few, more, most] = [4, 14, 34].map(|count| searched(task, problem, &[], count));
        assert_eq!(few.1[..], more.1[..few.1.len()]);
        assert_eq!(more.1[..], most.1[..more.1.len()]);
        assert_eq!(most.0.tried, 34);
        let mut all: Vec<String> = most.1.iter().map(|it| format!("{:?}", it.strategy)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), most.1.len());
    });
}

#[test]
fn what_is_known_of_a_problem_is_not_tried_again() {
    with(|task, problem| {
        let (_, first) = searched(task, problem, &[], 14);
        let sampler = Sampler::new(problem, true);
        for known in [0, 5, first.len()].map(|count| &first[..count]) {
            let mut made: Vec<Strategy> = vec![];
            let run = &mut |strategy: &Strategy| {
                made.push(strategy.clone());
                Ok(Some(made.len() as f64))
            };
            let mut kept = vec![];
            let keep = &mut |trials: &Trials| {
                kept = trials.done.clone();
                Ok(())
            };
            let trials = Trials { problem: problem.clone(), done: known.to_vec() };
            let trying = search::Trying { run, keep };
            let found = search::search(&sampler, begin(problem), trials, &[], (10, 9), trying);
            assert_eq!((found.expect("it can run").tried, made.len()), (10, 10));
            // What is not known of the strategies to begin with comes first.
            let is_known = |it: &Strategy| known.iter().any(|known| known.strategy == *it);
            let unknown: Vec<_> = begin(problem).into_iter().filter(|it| !is_known(it)).collect();
            assert_eq!(made[..unknown.len()], unknown);
            assert!(!made.iter().any(is_known), "{} were known", known.len());
            // All that is kept is what was known and then what was tried.
            assert_eq!(kept[..known.len()], *known);
            let tried: Vec<_> = kept[known.len()..].iter().map(|it| it.strategy.clone()).collect();
            assert_eq!(tried, made);
        }
    });
}

#[test]
fn trials_of_another_model_change_what_is_proposed_first() {
    with(|task, problem| {
        let mut other = trials(task, problem, 6, 60);
        other.problem.model = "another".into();
        let (_, cold) = searched(task, problem, &[], 14);
        let (_, warm) = searched(task, problem, std::slice::from_ref(&other), 14);
        let (_, again) = searched(task, problem, &[other], 14);
        assert_eq!(warm, again);
        assert_ne!(cold, warm);
    });
}

#[test]
fn files_of_trials_are_read_as_they_were_written_and_others_refused() {
    with(|task, problem| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trials.json");
        assert_eq!(trials::read(&path).expect("none yet"), []);
        let made = [trials(task, problem, 8, 6)];
        trials::write(&path, made.iter()).expect("written");
        assert_eq!(trials::read(&path).expect("read"), made);
        let format = "\"format\":1";
        let others = [(format, "\"format\":2"), (format, "\"format\":0")];
        for (what, of) in others.into_iter().chain([("\"shape\":", "\"shape\":9")]) {
            let text = std::fs::read_to_string(&path).expect("a file");
            let wrong = folder.path().join("wrong.json");
            std::fs::write(&wrong, text.replace(what, of)).expect("written");
            let error = trials::read(&wrong).expect_err(of).to_string();
            assert!(error.contains("wrong.json"), "{error}");
        }
    });
}

/// What servers sum is in no group, and so in no group's part: as many groups as there are variables for them may be.
#[test]
fn groups_are_of_what_workers_sum_and_may_be_as_many_as_that() {
    with(|_, problem| {
        let one = problem.variables[0].clone();
        let problem = Problem { variables: vec![one; 8], ..problem.clone() };
        let (sampler, mut random) = (Sampler::new(&problem, false), Random::new(3));
        let mut seen = BTreeSet::new();
        for _ in 0..2000 {
            let strategy = sampler.sample(&mut random);
            let groups = strategy.synchronisers.iter().filter_map(|it| match it {
                Synchroniser::AllReduce { group, .. } => Some(*group + 1),
                Synchroniser::Servers(_) => None,
            });
            let groups: Vec<u32> = groups.collect();
            seen.extend(groups.iter().max().map(|&most| (groups.len(), most)));
        }
        for summed in 1..=8 {
            assert!(seen.contains(&(summed, summed as u32)), "{summed} by workers: {seen:?}");
        }
    });
}

/// Trials with another optimizer are of another problem: what they found is not taken for known.
#[test]
fn trials_with_other_settings_are_not_known() {
    let (graph, cluster) = (graph(), cluster());
    let folder = tempfile::tempdir().expect("a folder");
    let file = Some(folder.path().join("trials.json"));
    let trials = Asked { count: Some(6), seed: 1, file: file.clone(), ..Asked::default() };
    let adamw = Request { trials, ..request() };
    let sgd = Request { optimizer: Optimizer::sgd(0.9), ..adamw.clone() };
    let known = |request: &Request| {
        let choice = METHOD.choose(&graph, &cluster, request).expect("a plan");
        choice.notes[0].contains("that were known")
    };
    assert_eq!([&adamw, &sgd, &adamw].map(known), [false, false, true]);
    let of_both = trials::read(file.as_deref().expect("a file")).expect("trials");
    assert_eq!(of_both.len(), 2);
}

#[test]
fn trials_go_on_from_a_file_and_the_answer_is_no_slower() {
    let (graph, cluster) = (graph(), cluster());
    let folder = tempfile::tempdir().expect("a folder");
    let file = Some(folder.path().join("trials.json"));
    let asked =
        |count| Asked { count: Some(count), seed: 1, file: file.clone(), ..Asked::default() };
    let chosen = |count| {
        let request = Request { trials: asked(count), ..request() };
        METHOD.choose(&graph, &cluster, &request).expect("a plan")
    };
    let first = chosen(14);
    let second = chosen(0);
    assert!(second.judgement.step_seconds <= first.judgement.step_seconds);
    let known = trials::read(file.as_deref().expect("a file")).expect("trials");
    assert_eq!(known.len(), 1);
    let third = chosen(10);
    assert!(third.judgement.step_seconds <= second.judgement.step_seconds);
    assert!(third.notes[0].contains("14 that were known"), "{:?}", third.notes);
}

#[test]
fn other_methods_take_no_trials() {
    let (graph, cluster) = (graph(), cluster());
    let trials = Asked { count: Some(5), ..Asked::default() };
    let request = Request { trials, ..request() };
    let error = data_parallel::METHOD.choose(&graph, &cluster, &request).expect_err("it has none");
    assert!(error.to_string().contains("trials = 5 of them"), "{error}");
}

#[test]
fn gradients_are_compressed_only_where_that_is_asked_for() {
    let (graph, cluster) =
        (graph(), Cluster::parse("a100-40g:3x1,uplink=1Gbps").expect("slow links"));
    let chosen = |compressed| {
        let trials = Asked { count: Some(20), compressed, ..Asked::default() };
        let request = Request { trials, ..request() };
        METHOD.choose(&graph, &cluster, &request).expect("a plan")
    };
    let (whole, compressed) = (chosen(false), chosen(true));
    assert!(whole.plan.syncs().all(|sync| sync.compression.is_none()));
    assert!(compressed.plan.syncs().any(|sync| !sync.compression.is_none()));
    assert!(compressed.notes.iter().any(|note| note.contains("16 bits")), "{:?}", compressed.notes);
}

/// All-reduces, one server, several, and the published splits.
#[test]
fn on_four_unequal_hosts_two_hundred_trials_find_a_faster_plan_than_any_fixed_method() {
    let (graph, cluster) = (graph(), cluster());
    let trials = Asked { count: Some(200), ..Asked::default() };
    let request = Request { trials, ..request() };
    let found = METHOD.choose(&graph, &cluster, &request).expect("a plan");
    let plain = Request { trials: Asked::default(), ..request.clone() };
    for method in [data_parallel::METHOD, byteps::METHOD, herring::METHOD] {
        let fixed = method.choose(&graph, &cluster, &plain).expect("a plan");
        let (found, fixed) = (found.judgement.step_seconds, fixed.judgement.step_seconds);
        assert!(found < fixed, "{}: {found} for {fixed}", method.name);
    }
    with(|task, problem| {
        for shape in 0..problem.shapes.len() {
            let plan = words::plan(task, problem, &alike(problem, shape));
            let fixed = judge(task.graph, task.cluster, &plan).expect("simulated").step_seconds;
            assert!(found.judgement.step_seconds < fixed, "{shape}: {fixed}");
        }
    });
}

/// Of a large vocabulary, with a softmax over drawn classes and over all.
const SPARSE: [&str; 2] = [
    "lstm:layers=1,hidden=256,embed=128,seq=20,vocab=20000,sampled_softmax=256",
    "lstm:layers=1,hidden=256,embed=128,seq=20,vocab=20000",
];

#[test]
fn on_four_unequal_hosts_two_hundred_trials_find_a_faster_plan_for_a_sparse_language_model() {
    let cluster = cluster();
    for model in SPARSE {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let plain = Request::new(model, "hosts.toml", 24);
        let trials = Asked { count: Some(200), ..Asked::default() };
        let request = Request { trials, ..plain.clone() };
        let found = METHOD.choose(&graph, &cluster, &request).expect("a plan");
        let mut fixed = vec![];
        for method in [
            data_parallel::METHOD,
            crate::system::horovod::METHOD,
            crate::system::zero::METHOD,
            crate::system::parameter_server::METHOD,
            byteps::METHOD,
            herring::METHOD,
            parallax::METHOD,
        ] {
            let choice = method.choose(&graph, &cluster, &plain).expect("a plan");
            fixed.push((method.name, choice.judgement.step_seconds));
        }
        let (name, least) = fixed.iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("some");
        let seconds = found.judgement.step_seconds;
        assert!(seconds < *least, "{model}: {seconds} for {least} of {name}: {:?}", found.plan);
    }
}

/// Every strategy leaves tables to servers where there are any, whose plans are sound.
#[test]
fn tables_of_which_few_rows_are_looked_up_lie_on_servers() {
    let cluster = cluster();
    let graph = ModelSpec::parse(SPARSE[0]).and_then(|spec| spec.graph()).expect("a model");
    let request = Request::new(SPARSE[0], "hosts.toml", 24);
    let mut task = Task::new("autosync", &graph, &cluster, &request);
    let problem = problem(&mut task).expect("a problem");
    let shares: Vec<Option<f64>> =
        problem.shapes.iter().map(|it| it.looked_up.get("embedding.token").copied()).collect();
    // Of four, four and six samples of twenty tokens each.
    let drawn = |samples: i32| 1.0 - (1.0 - 1.0 / 20_000_f64).powi(20 * samples);
    let expected = [None, Some(drawn(4)), Some(drawn(4)), Some(drawn(6))];
    for (found, expected) in shares.iter().zip(expected) {
        assert_eq!(found.is_some(), expected.is_some(), "{shares:?}");
        let apart = found.unwrap_or(0.0) - expected.unwrap_or(0.0);
        assert!(apart.abs() < 1e-9, "{shares:?}");
    }
    assert!(problem.shapes.iter().all(|it| it.looked_up.len() <= 1));
    let table = problem.variables.iter().position(|it| it.name == "embedding.token");
    let table = table.expect("a variable");
    let sampler = Sampler::new(&problem, true);
    let random = &mut Random::new(2);
    let drawn = (0..40).map(|_| sampler.sample(random));
    for strategy in drawn.chain(begin(&problem)) {
        let plan = words::plan(&task, &problem, &strategy);
        let program = lower(&graph, &plan, cluster.device_count() as usize);
        let program = program.unwrap_or_else(|error| panic!("{error}\n{}", plan.to_toml()));
        assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
        let sparse: Vec<_> = plan.parameters.iter().filter(|it| it.sparse.is_some()).collect();
        let has_servers = !problem.shapes[strategy.shape].server_bandwidths.is_empty();
        let servers = match &strategy.synchronisers[table] {
            Synchroniser::Servers(servers) => Some(servers),
            Synchroniser::AllReduce { .. } => None,
        };
        assert_eq!(servers.is_some(), has_servers);
        assert_eq!(sparse.len(), usize::from(has_servers));
        assert!(sparse.iter().all(|it| it.servers.as_ref() == servers), "{}", plan.to_toml());
    }
}
