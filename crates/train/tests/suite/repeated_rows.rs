//! What ranks decided in a row of steps is repeated by a row of as many steps and by no other, whatever they decide;
//! and only where a row is what was asked for.

use crate::support::two_nodes::{CLUSTER, cluster, data, gpt, started, train, weights};
use crate::support::{mesh, serial, settings, trainer_with};
use shardloom_plan::{
    Averaging, LossScale, Negotiation, Number, Optimizer, Plan, Precision, Servers, Staleness,
    Sync, Uniform,
};
use shardloom_train::RunClock;
use shardloom_train::learning_rate::Curve;

const STEPS: u32 = 3;

/// Two replicas or workers on a micro-batch each.
fn plan(sync: Sync, precision: Precision) -> Plan {
    let uniform = Uniform {
        sync,
        precision,
        mesh: mesh(2, 1, 1),
        optimizer: Optimizer::sgd(0.9),
        clip_norm: None,
        ..serial()
    };
    uniform.plan(&gpt(), "model", CLUSTER)
}

/// Servers that say whom they answer, where workers wait for each other in each step and where they do not; replicas
/// that agree on the order of reductions; and replicas that take in what another has published.
fn deciding() -> [Sync; 4] {
    let [together, apart] = [0, 1].map(|it| Some(Servers::of(2, Staleness::Within(it))));
    let negotiation = Some(Negotiation { cycle_seconds: 1e-4, fusion_bytes: 3000 });
    let averaging = Some(Averaging::PAIRS);
    [
        Sync { servers: together, bucket_bytes: 4000, ..Sync::default() },
        Sync { servers: apart, bucket_bytes: 4000, ..Sync::default() },
        Sync { negotiation, ..Sync::default() },
        Sync { averaging, bucket_bytes: 4000, ..Sync::default() },
    ]
}

#[test]
fn answers_are_of_as_many_steps_as_the_row_that_wrote_them() {
    let graph = gpt();
    for sync in deciding() {
        let plan = plan(sync, Precision::FP32);
        let mut wrote = started(&graph, &plan, RunClock::Wall);
        let losses = train(&mut wrote, STEPS);
        let answers = wrote.answers().to_vec();
        // Who lacks an answer to a request waits for it until the time is out that it is given.
        let most = if sync.negotiation.is_some() { STEPS } else { STEPS + 2 };
        for steps in 1..=most {
            let mut repeats = started(&graph, &plan, RunClock::Wall);
            repeats.repeat_answers(answers.clone()).expect("threads");
            let row = repeats.train_steps(steps);
            if steps == STEPS {
                let row = row.unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(row.iter().map(|it| it.loss).collect::<Vec<_>>(), losses);
                assert_eq!(repeats.answers(), answers);
                assert_eq!(weights(&mut repeats), weights(&mut wrote));
            } else {
                let error = row.map(|_| steps).expect_err("a row of another length").to_string();
                assert!(error.contains("number of steps"), "{steps} with {sync:?}: {error}");
            }
        }
    }
}

#[test]
fn only_threads_whose_rows_have_several_steps_repeat_answers() {
    let graph = gpt();
    for sync in deciding() {
        let plan = plan(sync, Precision::FP32);
        let mut really = started(&graph, &plan, RunClock::Wall);
        let answers = vec![vec![]; really.program().ranks()];
        really.repeat_answers(answers.clone()).expect("threads");
        let mut virtually = started(&graph, &plan, RunClock::Virtual(cluster()));
        let error = virtually.repeat_answers(answers).expect_err("modelled time").to_string();
        assert!(error.contains("modelled time"), "{error}");
    }
    // Where a step says how the loss of the next is scaled, each is a row of its own.
    let fp16 = Precision { compute: Number::Fp16, master: true, ..Precision::MIXED };
    let dynamic = LossScale::Dynamic { initial: 64.0, growth_interval: 100 };
    for (scale, is_taken) in [(LossScale::Constant { scale: 64.0 }, true), (dynamic, false)] {
        let plan = Plan { loss_scale: Some(scale), ..plan(Sync::default(), fp16) };
        let settings = settings(Curve::Constant { peak: 0.05 });
        let mut run = trainer_with(&graph, &plan, data(), settings);
        assert_eq!(run.repeat_answers(vec![vec![]; 2]).is_ok(), is_taken, "{scale:?}");
    }
}
