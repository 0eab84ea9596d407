//! A session goes on from checkpoints of the same run only.

use std::fs;
use std::path::Path;
use std::time::Duration;

use shardloom::plan::{Mesh, Optimizer, Uniform};
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{Data, Error, Model, Sampling, Session, TextTokenizer};

/// What a run is of.
#[derive(Clone)]
struct Run {
    model: &'static str,
    global_batch: usize,
    optimizer: Optimizer,
    seed: u64,
    dp: u32,
    validation_fraction: f64,
}

const RUN: Run = Run {
    model: "gpt:layers=1,hidden=8,heads=2,seq=4,vocab=256",
    global_batch: 4,
    optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, reference_batch: None },
    seed: 1,
    dp: 1,
    validation_fraction: 0.0,
};

fn session(folder: &Path, run: &Run) -> Session {
    let model = Model::load(run.model).expect("a model");
    let plan = Uniform {
        mesh: Mesh::of(run.dp, 1, 1),
        global_batch: run.global_batch,
        optimizer: run.optimizer,
        ..Uniform::default()
    };
    let plan = plan.plan(model.graph(), &model.text(), "local");
    let text = folder.join("text.txt");
    fs::write(&text, "one two three two ".repeat(20)).expect("written");
    let tokenizer = TextTokenizer::open("bytes").expect("a tokenizer");
    let sampling = Sampling { seed: 1, validation_fraction: run.validation_fraction };
    let data = Data::open(&model, &[text], &tokenizer, sampling).expect("enough text");
    let settings = Settings {
        seed: run.seed,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-3 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Session::start(&model, &plan, data, settings).expect("a session")
}

#[test]
fn a_checkpoint_of_another_run_is_refused_by_what_differs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = folder.path().join("run");
    let mut first = session(folder.path(), &RUN);
    first.step().expect("a step");
    first.save(&checkpoints, None).expect("saved");
    let again = |run: Run| session(folder.path(), &run);

    let decaying = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.1, reference_batch: None };
    for same in [RUN, Run { dp: 2, ..RUN }] {
        let resumed =
            again(same).resume(&checkpoints).expect("the same run").expect("a checkpoint");
        assert_eq!(resumed.step, 1);
    }
    let wider = "gpt:layers=1,hidden=16,heads=2,seq=4,vocab=256";
    let others = [
        ("the model", Run { model: wider, ..RUN }),
        ("the seed", Run { seed: 2, ..RUN }),
        ("what is kept for validation", Run { validation_fraction: 0.2, ..RUN }),
        ("the optimizer", Run { optimizer: Optimizer::default(), ..RUN }),
        ("the global batch", Run { global_batch: 2, ..RUN }),
    ];
    for (differs, run) in others {
        match again(run).resume(&checkpoints) {
            Err(Error::OtherRun { what, .. }) => assert_eq!(what, differs),
            other => panic!("{differs} differs, and it is {other:?}"),
        }
    }
    // An optimizer's settings may change in the middle of a run.
    let resumed =
        again(Run { optimizer: decaying, ..RUN }).resume(&checkpoints).expect("the same run");
    let changes = resumed.expect("a checkpoint").plan_changes;
    let keys: Vec<&str> = changes.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["optimizer.weight_decay"]);
}

#[test]
fn momentum_that_a_checkpoint_has_none_of_begins_at_zero() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = folder.path().join("run");
    let mut first = session(folder.path(), &RUN);
    first.step().expect("a step");
    first.save(&checkpoints, None).expect("saved");
    let digest = |session: &mut Session| session.trainer().weights_digest().expect("a digest");
    for dp in [1, 2] {
        let resumed = |momentum| {
            let mut session =
                session(folder.path(), &Run { dp, optimizer: Optimizer::sgd(momentum), ..RUN });
            session.resume(&checkpoints).expect("the same run").expect("a checkpoint");
            session
        };
        let (mut plain, mut with_momentum) = (resumed(0.0), resumed(0.9));
        for session in [&mut plain, &mut with_momentum] {
            session.step().expect("a step");
        }
        // A velocity of zero and a gradient are the gradient; afterwards there is a velocity.
        assert_eq!(digest(&mut with_momentum), digest(&mut plain));
        for session in [&mut plain, &mut with_momentum] {
            session.step().expect("a step");
        }
        assert_ne!(digest(&mut with_momentum), digest(&mut plain));

        // Without momentum again, what was kept of it does not matter.
        let later = folder.path().join(format!("later-{dp}"));
        with_momentum.save(&later, None).expect("saved");
        let mut without = session(folder.path(), &Run { dp, ..RUN });
        without.resume(&later).expect("the same run").expect("a checkpoint");
        assert_eq!(digest(&mut without), digest(&mut with_momentum));
        without.step().expect("a step");
    }
}

/// A checkpoint whose digests are all right, in which the velocity of one parameter has another name.
#[test]
fn momentum_that_a_checkpoint_has_of_some_parameters_only_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = folder.path().join("run");
    let run = Run { optimizer: Optimizer::sgd(0.9), ..RUN };
    let mut first = session(folder.path(), &run);
    first.step().expect("a step");
    first.save(&checkpoints, None).expect("saved");
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let entries = std::fs::read_dir(&checkpoints).expect("a folder").filter_map(Result::ok);
    let saved = entries.map(|it| it.path()).find(|it| it.is_dir()).expect("a checkpoint");
    let shard = saved.join("shard-00000.safetensors");
    let mut bytes = std::fs::read(&shard).expect("read");
    let (name, other) = ("optimizer.0/embedding.token", "optimizer.9/embedding.token");
    let before = digest(&bytes);
    let is_name = |at: &usize| bytes[*at..].starts_with(name.as_bytes());
    let places: Vec<usize> = (0..bytes.len()).filter(is_name).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + other.len()].copy_from_slice(other.as_bytes());
    }
    std::fs::write(&shard, &bytes).expect("written");
    let manifest = std::fs::read_to_string(saved.join("manifest.json")).expect("read");
    let manifest = manifest.replace(&before, &digest(&bytes)).replace(name, other);
    std::fs::write(saved.join("manifest.json"), &manifest).expect("written");
    let of_manifest = format!("{}\n", digest(manifest.as_bytes()));
    std::fs::write(saved.join("manifest.blake3"), of_manifest).expect("written");
    let error = session(folder.path(), &run).resume(&checkpoints).expect_err("one is missing");
    assert!(error.to_string().contains(name), "{error}");
}
