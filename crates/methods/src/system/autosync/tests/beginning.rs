//! What a search has before its first round: the plans of methods without trials, and strategies to begin with.

use super::*;

/// A network without tables.
const MLP: &str = "mlp:inputs=8,hidden=16,layers=2,classes=4";

/// Data parallelism, BytePS and Herring; Parallax where there are tables; of one device only the first has a plan.
#[test]
fn methods_that_have_a_plan_are_counted_among_what_was_simulated() {
    for (model, devices, fixed) in [(MLP, 1, 1), (MLP, 4, 3), (GPT, 1, 1), (GPT, 4, 4)] {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse(&format!("a100-40g:1x{devices}")).expect("a preset");
        for count in [0, 1] {
            let trials = Asked { count: Some(count), ..Asked::default() };
            let request = Request { trials, ..Request::new(model, "cluster", 8) };
            let choice = METHOD.choose(&graph, &cluster, &request).expect("a plan");
            let found = (choice.space, choice.simulated, choice.impossible);
            assert_eq!(found, (fixed + count, fixed + count, 0), "{devices} devices, {model}");
        }
    }
}

/// All alike in every shape first, and then tables on all servers beside one all-reduce of the others.
#[test]
fn a_search_begins_with_one_way_for_all_and_with_one_for_each_kind() {
    let cluster = cluster();
    for model in [MLP, GPT] {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let request = Request::new(model, "hosts.toml", 24);
        let mut task = Task::new("autosync", &graph, &cluster, &request);
        let problem = problem(&mut task).expect("a problem");
        let count = problem.shapes.len();
        let begin = begin(&problem);
        let shapes: Vec<usize> = begin.iter().map(|it| it.shape).collect();
        let has_tables = |&it: &usize| !problem.shapes[it].looked_up.is_empty();
        let with_tables: Vec<usize> = (0..count).filter(has_tables).collect();
        assert_eq!(with_tables.is_empty(), model == MLP);
        assert_eq!(shapes[..count], Vec::from_iter(0..count));
        assert_eq!(shapes[count..], with_tables);
        for (place, strategy) in begin.iter().enumerate() {
            let shape = &problem.shapes[strategy.shape];
            let servers = shape.server_bandwidths.len() as u32;
            let mut dealt = vec![];
            for (variable, by) in problem.variables.iter().zip(&strategy.synchronisers) {
                let is_table = shape.looked_up.contains_key(&variable.name);
                match by {
                    Synchroniser::AllReduce { group, compression } => {
                        assert_eq!((*group, *compression), (0, Compression::None));
                        assert!(servers == 0 || (place >= count && !is_table));
                    }
                    Synchroniser::Servers(list) if place < count => {
                        assert_eq!(list.len(), 1);
                        dealt.push(list[0]);
                    }
                    Synchroniser::Servers(list) => {
                        assert!(is_table, "{}", variable.name);
                        assert_eq!(*list, Vec::from_iter(0..servers));
                    }
                }
            }
            // One variable after the other, so that no server has more than one more than another.
            let counts = (0..servers).map(|it| dealt.iter().filter(|at| **at == it).count());
            let counts: Vec<usize> = counts.collect();
            let most = counts.iter().max().copied().unwrap_or(0);
            assert!(counts.iter().all(|it| it + 1 >= most), "{counts:?}");
        }
    }
}

/// Every third strategy is no plan that fits; the others take as long as bytes over bandwidths say.
#[test]
fn models_are_judged_by_what_fits_wherever_that_stands_in_its_round() {
    with(|_, problem| {
        for left_out in 0..3 {
            let mut tried = 0;
            let run = &mut |strategy: &Strategy| {
                tried += 1;
                let fits = tried % 3 != left_out;
                Ok(fits.then(|| predefined::seconds(problem, strategy)))
            };
            let keep = &mut |_: &Trials| Ok(());
            let known = Trials { problem: problem.clone(), done: vec![] };
            let sampler = Sampler::new(problem, false);
            let trying = search::Trying { run, keep };
            let found = search::search(&sampler, begin(problem), known, &[], (14, 9), trying);
            let found = found.expect("it can run");
            assert_eq!((found.tried, found.accuracies[0]), (14, Some(1.0)));
        }
    });
}

/// 200, as published; at most 100,000 workers times micro-batches times blocks where they are simulated, and 20 at
/// least.
#[test]
fn as_many_strategies_are_tried_as_published_unless_simulating_them_takes_long() {
    let mut measure =
        |_: &Plan| -> Result<f64, Box<dyn std::error::Error + Send + Sync>> { Ok(1.0) };
    let (graph, cluster, request) = (graph(), cluster(), request());
    assert_eq!(graph.blocks().len(), 4);
    let mut task = Task::new("autosync", &graph, &cluster, &request);
    let mut problem = problem(&mut task).expect("a problem");
    let mut of = |task: &Task<'_>, workers: u32, microbatches: usize| {
        // The largest of all counts.
        for (place, shape) in problem.shapes.iter_mut().enumerate() {
            let is_largest = place == 1;
            shape.workers = if is_largest { workers } else { 1 };
            shape.microbatches = if is_largest { microbatches } else { 1 };
        }
        usual_trials(task, &problem)
    };
    let cases =
        [(1, 1, 200), (5, 25, 200), (25, 8, 125), (8, 50, 62), (100, 12, 20), (100, 13, 20)];
    let cases = [&cases[..], &[(2, 100, 125), (100, 100, 20), (1, 625, 40)]].concat();
    for &(workers, microbatches, count) in &cases {
        assert_eq!(of(&task, workers, microbatches), count, "{workers} x {microbatches}");
    }
    task.measure = Some(std::cell::RefCell::new(&mut measure));
    for &(workers, microbatches, _) in &cases {
        assert_eq!(of(&task, workers, microbatches), 200);
    }
}
