//! What happens to gradients and weights that are no numbers.

use crate::support::{Samples, gpt, graph, serial, settings, trainer_with};
use shardloom_checkpoint::Meta;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, ScheduleKind, Uniform};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Error, Trainer};

fn plan(graph: &Graph, schedule: ScheduleKind) -> Plan {
    let uniform = Uniform {
        pp: 2,
        microbatches: 4,
        schedule,
        optimizer: Optimizer::sgd(0.0),
        clip_norm: None,
        ..serial()
    };
    Plan { skip_non_finite: schedule.flushes(), ..uniform.plan(graph, "model", "local") }
}

/// A learning rate that blows the weights up in a step or two.
fn blown_up(schedule: ScheduleKind) -> Trainer {
    let graph = gpt();
    let samples = Samples::patterned(64, 16, 64);
    let settings = settings(Curve::Constant { peak: 1e20 });
    trainer_with(&graph, &plan(&graph, schedule), samples, settings)
}

/// Features near the largest number there is.
struct Huge;

impl Source for Huge {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        const FEATURES: &[f32] = &[3e38; 16];
        const CLASSES: &[u32] = &[0, 1, 2, 3];
        Ok(Some(match input {
            "features" => Field::Reals(FEATURES),
            _ => Field::Indices(&CLASSES[position as usize % 4..][..1]),
        }))
    }

    fn validation_len(&self) -> u64 {
        0
    }
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_before_its_update() {
    let mut trainer = blown_up(ScheduleKind::OneForwardOneBackward);
    let error = (0..8).find_map(|_| trainer.step().err()).expect("it cannot go well");
    assert!(matches!(error, Error::NonFiniteLoss { .. }), "{error}");
    let weights = trainer.weights().expect("weights");
    assert!(weights.values().flatten().all(|weight| weight.is_finite()));
}

/// Small weights on huge features give an ordinary loss, and the product of features and gradients is too
/// large.
#[test]
fn a_gradient_that_is_not_finite_stops_the_run_before_its_update() {
    let graph = graph("mlp:inputs=16,hidden=24,layers=2,classes=4");
    let plan = plan(&graph, ScheduleKind::OneForwardOneBackward);
    let mut trainer = trainer_with(&graph, &plan, Huge, settings(Curve::Constant { peak: 1.0 }));
    let mut weights = trainer.weights().expect("weights");
    for values in weights.values_mut() {
        let scale = if values.len() == 16 * 24 { 1e-37 } else { 1e3 };
        values.iter_mut().for_each(|value| *value *= scale);
    }
    trainer.set_weights(weights.clone()).expect("the same parameters");
    let error = trainer.train_steps(3).expect_err("it overflows");
    assert!(matches!(error, Error::NonFiniteGradient { step: 0 }), "{error}");
    assert_eq!(trainer.next_step(), 0);
    assert_eq!(trainer.weights().expect("weights"), weights);
}

#[test]
fn weights_that_are_not_finite_are_not_saved() {
    // Without a flush only the loss is looked at, and that comes too late.
    let mut trainer = blown_up(ScheduleKind::PipeDream);
    assert!(matches!(trainer.train_steps(8), Err(Error::NonFiniteLoss { .. })));
    let folder = tempfile::tempdir().expect("a folder");
    let error = trainer.save(folder.path(), Meta::default(), None).expect_err("nothing to save");
    assert!(matches!(error, Error::NonFiniteWeights { .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
    // Ranks are still there to be asked.
    let weights = trainer.weights().expect("weights");
    assert!(weights.values().flatten().any(|weight| !weight.is_finite()));
}
