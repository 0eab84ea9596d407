//! What passes between devices that each have a worker and a server of tables, by the messages that the engine is
//! given. What a worker and the server on its own device tell each other passes between no devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::watched::{Watched, Watcher};
use crate::support::{Samples, graph, mesh, serial, settings};
use shardloom_collectives::Algorithm;
use shardloom_fabric::{Endpoint, Engine, FabricError, InProcess, Lent, Message, Settings};
use shardloom_plan::{ParameterGroup, Summation, Sync, Uniform};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, Trainer};

const HIDDEN: usize = 16;
const BATCH: usize = 24;
/// Rows of each of the tables, and how many of these each worker looks up in a step.
const ROWS: usize = 12;
const LOOKED_UP: usize = 4;
/// Tokens of a sample.
const SEQ: usize = 8;

/// Bytes of messages from one rank to another.
type Sent = Arc<Mutex<BTreeMap<(u32, u32), usize>>>;

struct Counting(Sent);

impl<B: Lent> Engine<B> for Counting {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let counted = |inner| -> Box<dyn Endpoint<B>> {
            Box::new(Watched { inner, watcher: Counted(Arc::clone(&self.0)) })
        };
        Ok(InProcess.connect(ranks, settings)?.into_iter().map(counted).collect())
    }
}

struct Counted(Sent);

impl<B: Lent> Watcher<B> for Counted {
    fn sends(&mut self, message: &Message) {
        let mut sent = self.0.lock().expect("the counts");
        *sent.entry((message.from(), message.to())).or_default() += message.bytes() as usize;
    }
}

/// Samples of which any three in a row look up the same rows of each of so many tables, which are rows of one.
fn samples(tables: usize) -> Samples {
    let token = |sample: usize, position: usize| {
        let (table, turn) = (position % tables, position / tables);
        // A worker's samples of a step are over a row of three.
        let row = (sample % 3 * (SEQ / tables) + turn) % LOOKED_UP;
        (table * ROWS + row) as u32
    };
    let sample = |it: usize| (0..SEQ).map(|position| token(it, position)).collect();
    let inputs: Vec<Vec<u32>> = (0..BATCH).map(sample).collect();
    Samples { targets: inputs.clone(), inputs }
}

/// With m tables of w bytes, dealt out evenly to servers on N workers' devices, each of which looks up a share a of each
/// table's rows, 4 a w m (N - 1) / N bytes pass into and out of each device in a step: Parallax (Kim et al. 2019),
/// table 1, of sparse variables on servers. Here besides which rows these are, a number of 4 bytes for each, once.
#[test]
fn as_many_bytes_pass_each_device_as_published_for_tables_on_all_devices() {
    for (workers, tables) in [(2usize, 2usize), (2, 4), (4, 4)] {
        let vocab = tables * ROWS;
        let graph = graph(&format!(
            "gpt:layers=1,hidden={HIDDEN},heads=2,seq={SEQ},vocab={vocab},tied=false"
        ));
        let uniform = Uniform {
            mesh: mesh(workers as u32, 1, 1),
            sync: Sync {
                summation: Some(Summation { colocated: true, ..Summation::of(0) }),
                ..Sync::default()
            },
            global_batch: BATCH,
            clip_norm: None,
            ..serial()
        };
        let mut plan = uniform.plan(&graph, "model", "a100-40g:2x8");
        let servers = (0..tables).map(|table| (table % workers) as u32).collect();
        plan.parameters = vec![
            ParameterGroup {
                sparse: Some(true),
                servers: Some(servers),
                ..ParameterGroup::named("embedding.token")
            },
            // No messages: it is summed by a collective.
            ParameterGroup {
                servers: Some(vec![]),
                algorithm: Some(Algorithm::Direct),
                ..ParameterGroup::named("*")
            },
        ];
        let curve = Curve::Constant { peak: 0.05 };
        let blueprint = Blueprint::new(graph, &plan, plan.device_count(), settings(curve));
        let sent = Sent::default();
        let engine = Arc::new(Counting(Arc::clone(&sent)));
        let blueprint = blueprint.expect("a plan").with_engine(engine);
        let mut trainer = Trainer::start(blueprint, Box::new(samples(tables))).expect("it starts");
        for _ in 0..3 {
            sent.lock().expect("the counts").clear();
            trainer.step().expect("a step");
            let sent = sent.lock().expect("the counts");
            for device in 0..workers as u32 {
                // A rank's device is the worker's of its number, and a server's rank follows the workers'.
                let on = |rank: u32| rank % workers as u32 == device;
                let passing = sent.iter().filter(|((from, to), _)| on(*from) != on(*to));
                let passing: usize = passing.map(|it| it.1).sum();
                // 4 a w, with a w the bytes of the rows that are looked up, and 2 times the numbers of these.
                let each = 4 * (LOOKED_UP * 4 * HIDDEN) + 2 * (LOOKED_UP * 4);
                let expected = each * tables * (workers - 1) / workers;
                assert_eq!(passing, expected, "device {device} of {workers}, {tables} tables");
            }
        }
    }
}
