//! The classes of validation samples under any plan, and the share of them that are right, against a plain loop over
//! the weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{gpt, graph, serial, trainer, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_data::{Field, Part, Records, Source, Table};
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Plan, Precision, ScheduleKind, Servers, Staleness, Sync, Uniform};
use shardloom_train::{Classification, Classifier, Evaluation, RunClock, Trainer};

const MLP: &str = "mlp:inputs=5,hidden=8,layers=3,classes=4";
const COLUMNS: usize = 5;
const SAMPLES: usize = 24;

/// As many rows to train on as to validate on, of random features in which the classes are to be seen somewhat.
fn table(samples: usize) -> Table {
    table_of(samples, 4)
}

/// The same with so many classes.
fn table_of(samples: usize, count: u32) -> Table {
    let mut state = 99_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let classes: Vec<u32> = (0..2 * samples).map(|_| next() % count).collect();
    let mut features = vec![];
    for &class in &classes {
        let noise: [f32; COLUMNS] = std::array::from_fn(|_| (next() % 2000) as f32 / 1000.0 - 1.0);
        let hint = |at: usize| if at == class as usize { 0.8 } else { 0.0 };
        features.extend((0..).zip(noise).map(|(at, noise)| noise + hint(at)));
    }
    Table::from_rows(features, classes, 0.5, 5).expect("rows")
}

/// The features and the class of the n-th sample to validate on.
fn sample(table: &Table, position: u64) -> (Vec<f32>, u32) {
    let (mut room, mut other) = (vec![], vec![]);
    let features = table.field(Part::Validation, position, "features", &mut room);
    let class = table.field(Part::Validation, position, "targets", &mut other);
    match (features, class) {
        (Ok(Some(Field::Reals(features))), Ok(Some(Field::Indices(&[class])))) => {
            (features.to_vec(), class)
        }
        _ => panic!("a table has features and one class per row"),
    }
}

/// The logits of a perceptron, by a plain loop.
fn logits(weights: &BTreeMap<String, Vec<f32>>, features: &[f32]) -> Vec<f32> {
    let mut x = features.to_vec();
    for layer in 0.. {
        let named = |name: &str| weights.get(&format!("block.{layer}.{name}"));
        let (Some(weight), Some(bias)) = (named("weight"), named("bias")) else { break };
        let mut y = bias.clone();
        for (x, row) in x.iter().zip(weight.chunks(bias.len())) {
            y.iter_mut().zip(row).for_each(|(y, weight)| *y += x * weight);
        }
        x = y.into_iter().map(|y| y.max(0.0)).collect();
    }
    let head = weights["head.weight"].chunks(x.len());
    head.map(|row| row.iter().zip(&x).map(|(weight, x)| weight * x).sum()).collect()
}

/// The first of the largest.
fn largest(logits: &[f32]) -> usize {
    let mut best = 0;
    for at in 0..logits.len() {
        if logits[at] > logits[best] {
            best = at;
        }
    }
    best
}

fn evaluated(trainer: &mut Trainer, most: u64) -> Evaluation {
    trainer.evaluate(most).expect("it runs").expect("there are samples")
}

/// Plans that split samples, features, classes and layers in every way, and keep weights in several.
fn plans() -> Vec<Uniform> {
    let split = |pp, (dp, tp), microbatches| Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        microbatches,
        schedule: ScheduleKind::OneForwardOneBackward,
        ..serial()
    };
    let sharded = Sync { zero: 3, ..Sync::default() };
    let servers = Some(Servers::of(2, Staleness::Within(0)));
    let served = Sync { servers, bucket_bytes: 200, ..Sync::default() };
    vec![
        serial(),
        split(1, (2, 1), 2),
        split(1, (1, 2), 2),
        split(1, (1, 4), 4),
        split(2, (1, 1), 4),
        split(4, (1, 1), 4),
        split(2, (2, 2), 2),
        Uniform { schedule: ScheduleKind::Chimera, ..split(2, (1, 2), 4) },
        Uniform { schedule: ScheduleKind::Interleaved, ..split(2, (1, 2), 4) },
        Uniform { sync: sharded, ..split(1, (2, 1), 2) },
        Uniform { sync: served, clip_norm: None, ..split(1, (2, 1), 2) },
    ]
}

/// Asks for one micro-batch more at a time, so that a sample whose class is wrong is not made up for by another.
fn assert_right(trainer: &mut Trainer, graph: &Graph, table: &Table, plan: &Plan) {
    let weights = trainer.weights().expect("weights");
    let each = plan.microbatch_samples();
    let mut right = 0;
    let mut found = vec![];
    for most in 1..=SAMPLES / each {
        for position in (most - 1) * each..most * each {
            let (features, class) = sample(table, position as u64);
            right += usize::from(largest(&logits(&weights, &features)) == class as usize);
        }
        let expected = right as f64 / (most * each) as f64;
        let accuracy = evaluated(trainer, most as u64).accuracy;
        assert_eq!(accuracy, Some(expected), "{most} of {each} under\n{}", plan.to_toml());
        found.push(right);
    }
    assert!(right > 0 && right < SAMPLES, "nothing to tell apart in {}: {found:?}", graph.name());
}

#[test]
fn the_share_of_samples_that_get_their_class_is_that_of_a_plain_loop_under_every_plan() {
    let graph = graph(MLP);
    for uniform in plans() {
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, table(SAMPLES), 0.05);
        trainer.train_steps(4).expect("steps");
        assert_right(&mut trainer, &graph, &table(SAMPLES), &plan);
    }
}

#[test]
fn in_virtual_time_it_is_the_same() {
    let graph = graph(MLP);
    for uniform in plans() {
        let plan = uniform.plan(&graph, "model", "local");
        let clock = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
        let mut virtually = trainer_with_clock(&graph, &plan, table(SAMPLES), 0.05, clock);
        let mut really = trainer(&graph, &plan, table(SAMPLES), 0.05);
        for most in [1, 2, 100] {
            let (one, other) = (evaluated(&mut virtually, most), evaluated(&mut really, most));
            assert_eq!(one, other, "{most} under\n{}", plan.to_toml());
            assert_eq!(virtually.validate(most).expect("it runs"), Some(one.loss));
        }
    }
}

/// Weights with which logits of several classes are equal and largest.
fn tied(trainer: &mut Trainer, largest: [f32; 4]) {
    let mut weights = trainer.weights().expect("weights");
    let head = weights.get_mut("head.weight").expect("a head");
    let width = head.len() / largest.len();
    // What comes before the head is 1 everywhere.
    head.chunks_mut(width).zip(largest).for_each(|(row, value)| row.fill(value));
    for (name, values) in &mut weights {
        match name.strip_prefix("block.2.") {
            Some("bias") => values.fill(1.0),
            Some("weight") => values.fill(0.0),
            _ => {}
        }
    }
    trainer.set_weights(weights).expect("the same shapes");
}

#[test]
fn of_equal_logits_the_first_wins_also_where_ranks_hold_one_class_each() {
    let graph = graph(MLP);
    let share = |class: u32| {
        let table = table(SAMPLES);
        let of = (0..SAMPLES as u64).filter(|&at| sample(&table, at).1 == class).count();
        Some(of as f64 / SAMPLES as f64)
    };
    for uniform in plans() {
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, table(SAMPLES), 0.05);
        for (largest, class) in [
            ([1.0; 4], 0),
            ([0.0, 1.0, 0.5, 1.0], 1),
            ([-0.5, -1.0, -0.5, -1.0], 0),
            ([0.0, 0.0, 2.0, 2.0], 2),
        ] {
            tied(&mut trainer, largest);
            let found = evaluated(&mut trainer, 100).accuracy;
            assert_eq!(found, share(class), "{largest:?} under\n{}", plan.to_toml());
        }
    }
}

#[test]
fn samples_without_a_class_are_not_right() {
    let graph = graph(MLP);
    for tp in [1, 2] {
        let uniform = Uniform { mesh: Mesh::of(1, 1, tp), ..serial() };
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, table(SAMPLES), 0.05);
        tied(&mut trainer, [f32::NAN; 4]);
        assert_eq!(evaluated(&mut trainer, 100).accuracy, Some(0.0));
    }
}

#[test]
fn in_bf16_the_share_is_that_of_some_class_for_each_sample() {
    let graph = graph(MLP);
    let precision = Precision::MIXED;
    let split = |tp| Uniform { mesh: Mesh::of(1, 1, tp), precision, ..serial() };
    let found = [1, 2, 4].map(|tp| {
        let plan = split(tp).plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, table(SAMPLES), 0.05);
        tied(&mut trainer, [0.0, 1.0, 0.5, 1.0]);
        evaluated(&mut trainer, 100).accuracy
    });
    let table = table(SAMPLES);
    let of_one = (0..SAMPLES as u64).filter(|&at| sample(&table, at).1 == 1).count();
    assert_eq!(found, [Some(of_one as f64 / SAMPLES as f64); 3]);
}

/// 24 rows to train on and 24 to validate on.
fn clicks() -> Records {
    let row = |row: u32| {
        let (x, y) = (f64::from(row * 3 % 7) / 7.0 - 0.4, f64::from(row * 5 % 11) / 11.0 - 0.4);
        format!("{x},{y},{},{}\n", row % 4, row * 5 % 11 % 2)
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("clicks.csv");
    std::fs::write(&path, (0..48).map(row).collect::<String>()).expect("written");
    Records::open(&path, 2, &[4], 0.5, 5).expect("records")
}

/// The label of the n-th row to validate on.
fn label(position: u64) -> u32 {
    match clicks().field(Part::Validation, position, "targets", &mut vec![]) {
        Ok(Some(Field::Indices(&[label]))) => label,
        _ => panic!("records have a label per row"),
    }
}

/// A label is right where it is likelier than not, that is where its loss is below the logarithm of 2.
#[test]
fn one_logit_decides_between_two_classes_as_the_losses_of_samples_say() {
    let graph = graph("dlrm:dense=2,rows=4,embed=4,bottom=8,top=8");
    let of_losses = |weights| {
        let plan = Uniform { global_batch: 1, ..serial() }.plan(&graph, "model", "local");
        let mut serial = trainer(&graph, &plan, clicks(), 0.01);
        serial.set_weights(weights).expect("the same shapes");
        let sums = (0..=24).map(|most| match most {
            0 => 0.0,
            _ => most as f64 * evaluated(&mut serial, most).loss,
        });
        let sums: Vec<f64> = sums.collect();
        sums.windows(2).map(|pair| pair[1] - pair[0] < 2.0_f64.ln()).collect::<Vec<bool>>()
    };
    for (dp, tp, pp) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)] {
        let mesh = Mesh::of(dp, 1, tp);
        let uniform = Uniform { pp, mesh, microbatches: 4, ..serial() };
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, clicks(), 0.01);
        trainer.train_steps(4).expect("steps");
        let mut weights = trainer.weights().expect("weights");
        let classified = |weights: &BTreeMap<String, Vec<f32>>| {
            let classifier = Classifier::new(graph.clone(), weights, Arc::new(clicks()), None);
            classifier.and_then(|mut it| it.classify()).expect("classes")
        };
        // Half of the samples above 0, half below, and many near it.
        let logit = |it: &Classification| {
            let odds = (it.probability / (1.0 - it.probability)).ln();
            if it.class == 1 { odds } else { -odds }
        };
        let mut logits: Vec<f64> = classified(&weights).iter().map(logit).collect();
        logits.sort_by(f64::total_cmp);
        let middle = (logits[11] + logits[12]) / 2.0;
        weights.get_mut("head.bias").expect("one number")[0] -= middle as f32;
        trainer.set_weights(weights.clone()).expect("the same shapes");
        let right = of_losses(weights.clone());
        assert!(right.contains(&true) && right.contains(&false), "{right:?}");
        let found = classified(&weights);
        assert_eq!(found.iter().filter(|it| it.class == 1).count(), 12);
        assert!(found.iter().any(|it| it.class == 1 && logit(it) < 0.25), "none near {middle}");
        for (sample, (found, &right)) in (0..).zip(found.iter().zip(&right)) {
            let label = label(sample);
            assert_eq!(found.class == label, right, "{sample}: {found:?} for {label}");
        }
        for most in 1..=12 {
            let count = right[..2 * most].iter().filter(|&&right| right).count();
            let expected = count as f64 / (2 * most) as f64;
            let found = evaluated(&mut trainer, most as u64).accuracy;
            assert_eq!(found, Some(expected), "{most} under\n{}", plan.to_toml());
        }
    }
}

/// Where all weights are zero but the last bias, that is the logit of every sample.
#[test]
fn one_logit_is_for_the_second_class_only_above_zero() {
    let graph = graph("dlrm:dense=2,rows=4,embed=4,bottom=8,top=8");
    let of_label = |class: u32| (0..24).filter(|&at| label(at) == class).count();
    assert_ne!(of_label(0), of_label(1));
    for (dp, tp, pp) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)] {
        let uniform = Uniform { pp, mesh: Mesh::of(dp, 1, tp), microbatches: 4, ..serial() };
        let plan = uniform.plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, clicks(), 0.01);
        let mut weights = trainer.weights().expect("weights");
        weights.values_mut().for_each(|values| values.fill(0.0));
        for (logit, class) in [(0.0, 0), (-0.0, 0), (-1e-30, 0), (1e-30, 1)] {
            weights.insert("head.bias".into(), vec![logit]);
            let classifier = Classifier::new(graph.clone(), &weights, Arc::new(clicks()), None);
            let found = classifier.and_then(|mut it| it.classify()).expect("classes");
            assert_eq!(found.len(), 24);
            assert!(found.iter().all(|it| it.class == class && it.probability == 0.5), "{logit}");
            trainer.set_weights(weights.clone()).expect("the same shapes");
            let expected = of_label(class) as f64 / 24.0;
            let found = evaluated(&mut trainer, 100).accuracy;
            assert_eq!(found, Some(expected), "{logit} under\n{}", plan.to_toml());
        }
    }
}

#[test]
fn language_models_have_none() {
    let plan = serial().plan(&gpt(), "model", "local");
    let samples = crate::support::Samples::patterned(8, 16, 64);
    let mut trainer = trainer(&gpt(), &plan, samples, 1e-3);
    assert_eq!(evaluated(&mut trainer, 1).accuracy, None);
}

#[test]
fn a_classifier_gives_the_classes_and_probabilities_of_a_plain_loop() {
    let graph = graph(MLP);
    // More than go through at once, and no whole number of such.
    let table = table(150);
    let uniform = Uniform { mesh: Mesh::of(1, 1, 2), ..serial() };
    let mut trainer = trainer(&graph, &uniform.plan(&graph, "model", "local"), table.clone(), 0.05);
    trainer.train_steps(4).expect("steps");
    let weights = trainer.weights().expect("weights");
    let mut classifier = Classifier::new(graph.clone(), &weights, Arc::new(table.clone()), None)
        .expect("a classifier");
    let found = classifier.classify().expect("classes");
    assert_eq!(found.len(), 150);
    let mut right = 0;
    for (position, found) in (0..).zip(&found) {
        let (features, class) = sample(&table, position);
        let logits = logits(&weights, &features);
        let class_found = largest(&logits);
        assert_eq!(found.class as usize, class_found, "sample {position}");
        let terms = logits.iter().map(|&logit| f64::from(logit).exp());
        let expected = f64::from(logits[class_found]).exp() / terms.sum::<f64>();
        assert!((found.probability - expected).abs() < 1e-5, "{found:?} for {expected}");
        right += u64::from(found.class == class);
    }
    // 18 micro-batches of 8 are 144 samples.
    let of_144 = (0..144).filter(|&at| found[at as usize].class == sample(&table, at).1).count();
    assert_eq!(evaluated(&mut trainer, 100).accuracy, Some(of_144 as f64 / 144.0));
    assert!(right > 38 && right < 150, "{right} are no better than chance, or all");
}

/// Two classes with a logit each are not the two of one logit.
#[test]
fn a_classifier_tells_as_many_classes_apart_as_there_are_logits() {
    for count in [1, 2, 3, 5] {
        let graph = graph(&format!("mlp:inputs=5,hidden=8,layers=3,classes={count}"));
        let table = table_of(70, count);
        let plan = serial().plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, table.clone(), 0.1);
        trainer.train_steps(8).expect("steps");
        let weights = trainer.weights().expect("weights");
        let classifier = Classifier::new(graph, &weights, Arc::new(table.clone()), None);
        let found = classifier.and_then(|mut it| it.classify()).expect("classes");
        assert_eq!(found.len(), 70);
        for (position, found) in (0..).zip(&found) {
            let logits = logits(&weights, &sample(&table, position).0);
            let class = largest(&logits);
            assert_eq!(found.class as usize, class, "sample {position} of {count} classes");
            let others = logits.iter().map(|it| f64::from(it - logits[class]).exp());
            let expected = 1.0 / others.sum::<f64>();
            assert!((found.probability - expected).abs() < 1e-5, "{found:?} for {expected}");
        }
    }
}

#[test]
fn a_language_model_is_no_classifier() {
    let plan = serial().plan(&gpt(), "model", "local");
    let samples = crate::support::Samples::patterned(8, 16, 64);
    let weights = trainer(&gpt(), &plan, samples, 1e-3).weights().expect("weights");
    let made = Classifier::new(gpt(), &weights, Arc::new(table(4)), None);
    let message = made.err().expect("refused").to_string();
    assert!(message.contains("each position of a sequence"), "{message}");
}
