//! Validation takes each sample once, in order, whatever a micro-batch has.

use crate::support::{Samples, gpt, llama, serial, small_gpt, trainer, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_plan::{Mesh, Plan, ScheduleKind, Uniform};
use shardloom_train::{RunClock, Trainer};

const SEQ: usize = 16;

/// Samples that are all different, so that the loss says which were taken.
fn samples() -> Samples {
    Samples::patterned(12, SEQ, 64)
}

fn plan(pp: usize, dp: u32, samples_of_a_microbatch: usize) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, 1),
        global_batch: 4 * samples_of_a_microbatch,
        microbatches: 4,
        schedule: ScheduleKind::OneForwardOneBackward,
        ..serial()
    };
    uniform.plan(&gpt(), "model", "local")
}

/// The loss over the first `most` micro-batches.
fn loss(trainer: &mut Trainer, most: u64) -> f64 {
    trainer.validate(most).expect("an evaluation").expect("there are samples")
}

#[test]
fn micro_batches_of_several_samples_evaluate_each_sample_once() {
    let mut one_by_one = trainer(&gpt(), &plan(1, 1, 1), samples(), 1e-3);
    let first = |trainer: &mut Trainer, samples: u64| loss(trainer, samples);
    let expected: Vec<f64> = (1..=12).map(|count| first(&mut one_by_one, count)).collect();
    // Samples differ, so that taking one twice would show.
    assert!(expected.windows(2).all(|pair| (pair[0] - pair[1]).abs() > 1e-5), "{expected:?}");
    for (pp, dp, each) in [(1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 3), (2, 2, 4), (1, 1, 12)] {
        let plan = plan(pp, dp, each);
        let clock = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
        let really = trainer(&gpt(), &plan, samples(), 1e-3);
        let virtually = trainer_with_clock(&gpt(), &plan, samples(), 1e-3, clock);
        for mut trainer in [really, virtually] {
            for most in 1..=12 / each as u64 {
                let found = loss(&mut trainer, most);
                let expected = expected[most as usize * each - 1];
                assert!((found - expected).abs() < 1e-5 * expected, "{most} of {each}: {found}");
            }
            // No more than there are.
            let all = loss(&mut trainer, 100);
            assert!((all - expected[11]).abs() < 1e-5 * all, "{all} of {each} samples each");
        }
    }
}

#[test]
fn samples_that_make_no_whole_micro_batch_are_left_out() {
    let mut one_by_one = trainer(&gpt(), &plan(1, 1, 1), samples(), 1e-3);
    let mut in_fives = trainer(&gpt(), &plan(1, 1, 5), samples(), 1e-3);
    let (expected, found) = (loss(&mut one_by_one, 10), loss(&mut in_fives, 100));
    assert!((found - expected).abs() < 1e-5 * expected, "{found} for {expected}");
    let mut too_many = trainer(&gpt(), &plan(1, 1, 13), samples(), 1e-3);
    assert_eq!(too_many.validate(100).expect("an evaluation"), None);
}

/// Samples are the same for training and validation, and a step says the loss before its update.
#[test]
fn the_loss_over_samples_is_what_a_step_on_them_says_and_that_of_a_guess_where_weights_are_zero() {
    let models = [small_gpt(), llama()];
    for (graph, (seq, vocab)) in models.into_iter().zip([(8, 32), (16, 64)]) {
        for (pp, dp, tp) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)] {
            let mesh = Mesh::of(dp, 1, tp);
            let uniform = Uniform { pp, mesh, microbatches: 2, ..serial() };
            let plan = uniform.plan(&graph, "model", "local");
            let mut run = trainer(&graph, &plan, Samples::patterned(12, seq, vocab), 1e-3);
            // A step of 8 samples in two micro-batches.
            let each = plan.microbatch_samples() as u64;
            let found = loss(&mut run, 8 / each);
            let trained = run.step().expect("a step").loss;
            assert!((found - trained).abs() < 1e-5 * trained, "{found} for {trained}");
            let mut weights = run.weights().expect("weights");
            weights.values_mut().for_each(|values| values.fill(0.0));
            run.set_weights(weights).expect("the same shapes");
            let guess = f64::from(vocab).ln();
            let found = loss(&mut run, 8 / each);
            assert!((found - guess).abs() < 1e-6 * guess, "{found} for {guess}");
            let trained = run.step().expect("a step").loss;
            assert!((trained - guess).abs() < 1e-6 * guess, "{trained} for {guess}");
        }
    }
}
