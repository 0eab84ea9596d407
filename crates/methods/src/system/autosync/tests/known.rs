//! What a file says of earlier trials, and what a search makes of it.

use std::path::PathBuf;

use super::*;

/// A file with one problem's trials, in a folder that lives as long.
fn kept(problem: &Problem, done: Vec<Trial>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trials.json");
    trials::write(&path, [&Trials { problem: problem.clone(), done }].into_iter())
        .expect("written");
    (folder, path)
}

#[test]
fn trials_that_are_no_strategies_of_their_problem_are_refused() {
    with(|_, problem| {
        let random = &mut Random::new(4);
        let sampler = Sampler::new(problem, true);
        let shape = problem.shapes.len() - 1;
        let servers = problem.shapes[shape].server_bandwidths.len() as u32;
        let mut drawn = (0..).map(|_| sampler.sample(random));
        let mut sound = drawn.find(|it| it.shape == shape && it.servers() > 0).expect("one");
        let at = sound.synchronisers.iter().position(|it| matches!(it, Synchroniser::Servers(_)));
        let at = at.expect("servers sum something");
        sound.synchronisers[at] = Synchroniser::Servers(vec![servers - 1]);
        let reads = |seconds: f64, change: &dyn Fn(&mut Strategy)| {
            let mut strategy = sound.clone();
            change(&mut strategy);
            let good = Trial { strategy: sound.clone(), seconds: 0.5 };
            let (_folder, path) = kept(problem, vec![good, Trial { strategy, seconds }]);
            match trials::read(&path) {
                Ok(found) => found[0].done.len() == 2,
                Err(error) => {
                    assert!(error.to_string().contains("trial 1 of"), "{error}");
                    false
                }
            }
        };
        let list = |servers: &[u32]| Synchroniser::Servers(servers.to_vec());
        let reduced = |compression| Synchroniser::AllReduce { group: 0, compression };
        assert!(reads(1e-9, &|_| {}));
        assert!(!reads(0.0, &|_| {}) && !reads(-1.0, &|_| {}));
        assert!(reads(1.0, &|it| it.synchronisers[at] = list(&[0, servers - 1])));
        assert!(!reads(1.0, &|it| it.synchronisers[at] = list(&[0, servers])));
        assert!(!reads(1.0, &|it| it.synchronisers[at] = list(&[])));
        assert!(!reads(1.0, &|it| it.synchronisers.truncate(at)));
        assert!(!reads(1.0, &|it| it.synchronisers.push(list(&[0]))));
        assert!(!reads(1.0, &|it| it.shape = problem.shapes.len()));
        // Workers beside servers send what they have, and those without servers may compress it.
        let half = Compression::Rounded { to: Number::Fp16, feedback: false };
        for (shape, compression) in [(shape, Compression::None), (0, Compression::None), (0, half)]
        {
            assert!(reads(1.0, &|it| {
                it.shape = shape;
                it.synchronisers.fill(reduced(compression));
            }));
        }
        assert!(problem.shapes[0].server_bandwidths.is_empty());
        assert!(!reads(1.0, &|it| it.synchronisers.fill(reduced(half))));
        assert!(!reads(1.0, &|it| it.shape = 0), "there are no servers");
    });
}

/// Where no more are to be tried, and all methods without trials are slower. What compresses counts where that is asked
/// for.
#[test]
fn of_known_trials_the_fastest_is_tried_once_more_and_is_the_answer() {
    let (model, cluster, plain) = (graph(), cluster(), request());
    let graph = plain.graph_of(&model, &cluster).expect("as plans of the request have it");
    let mut task = Task::new("autosync", &graph, &cluster, &plain);
    let problem = Problem { measured: true, ..problem(&mut task).expect("a problem") };
    let random = &mut Random::new(11);
    let sampler = Sampler::new(&problem, true);
    let (mut compressing, mut others) = (vec![], vec![]);
    while compressing.is_empty() || others.len() < 4 {
        let strategy = sampler.sample(random);
        match strategy.compresses() {
            true => compressing.push(strategy),
            false if !others.contains(&strategy) => others.push(strategy),
            false => {}
        }
    }
    let known = [(&others[0], 0.4), (&compressing[0], 0.1), (&others[1], 0.2), (&others[2], 0.3)];
    for (compressed, best) in [(false, &others[1]), (true, &compressing[0])] {
        let done = known.map(|(it, seconds)| Trial { strategy: it.clone(), seconds });
        let (_folder, path) = kept(&problem, done.to_vec());
        let trials = Asked { count: Some(0), compressed, file: Some(path), ..Asked::default() };
        let request = Request { trials, ..plain.clone() };
        let best = words::plan(&task, &problem, best);
        let mut tried = vec![];
        let mut measure = |plan: &Plan| -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
            tried.push(plan.clone());
            Ok(if *plan == best { 0.15 } else { 2.0 })
        };
        let choice = METHOD.choose_by_measuring(&model, &cluster, &request, &mut measure);
        let choice = choice.expect("a plan");
        assert_eq!(choice.plan, best);
        assert_eq!(choice.judgement.step_seconds, 0.15);
        assert_eq!(tried.iter().filter(|plan| **plan == best).count(), 1);
        // The methods without trials come before it, and nothing after.
        assert_eq!(tried.last(), Some(&best));
    }
}

/// Otherwise a search would begin anew, and write over what was there.
#[test]
fn only_where_there_is_no_file_are_there_no_trials() {
    with(|_, problem| {
        let random = &mut Random::new(6);
        let sampler = Sampler::new(problem, false);
        let trial = || Trial { strategy: sampler.sample(random), seconds: 0.5 };
        let done: Vec<Trial> = std::iter::repeat_with(trial).take(3).collect();
        let (folder, path) = kept(problem, done);
        assert_eq!(trials_in(&path).expect("it is one"), 3);
        for missing in ["another.json", "no-folder/trials.json"] {
            assert_eq!(trials_in(&folder.path().join(missing)).expect("no trials"), 0);
        }
        let refused = |path: &std::path::Path| {
            let error = trials_in(path).expect_err("no file of trials").to_string();
            let name = path.file_name().and_then(|it| it.to_str()).expect("a name");
            assert!(error.contains(name), "{error}");
        };
        refused(folder.path());
        let text = std::fs::read(&path).expect("it is there");
        for (name, bytes) in [
            ("empty.json", &b""[..]),
            ("cut.json", &text[..text.len() / 2]),
            ("bytes.json", &[0xff, 0xfe, 0x00, 0x80][..]),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            refused(&path);
        }
    });
}
