//! Data that lacks an input of a sample, or has it of another shape or kind than the model reads: the run ends there
//! and says which input of which sample that is.

use crate::support::{graph, mesh, serial, settings, trainer_with};
use shardloom_cluster::Cluster;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::Graph;
use shardloom_plan::{
    LossScale, Number, ParameterGroup, Plan, Precision, Summation, Sync, Uniform,
};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{RunClock, Settings, Trainer};

/// What a sample has as an input.
#[derive(Clone, Debug)]
enum Given {
    Nothing,
    Indices(Vec<u32>),
    Reals(Vec<f32>),
}

/// Data in which all samples are alike, but for one input of one.
#[derive(Clone)]
struct Data {
    /// By input.
    usual: Vec<(&'static str, Given)>,
    other: Option<(Part, u64, &'static str, Given)>,
}

impl Source for Data {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let usual = self.usual.iter().find(|(name, _)| *name == input).map(|(_, given)| given);
        let other = self.other.as_ref().filter(|it| (it.0, it.1, it.2) == (part, position, input));
        Ok(match other.map(|it| &it.3).or(usual) {
            Some(Given::Indices(all)) => Some(Field::Indices(all)),
            Some(Given::Reals(all)) => Some(Field::Reals(all)),
            Some(Given::Nothing) | None => None,
        })
    }

    fn validation_len(&self) -> u64 {
        16
    }
}

/// What is not an input like `given`: nothing, others of its kind, and one of the other kind.
fn unlike(given: &Given) -> Vec<Given> {
    let len = match given {
        Given::Nothing => 0,
        Given::Indices(all) => all.len(),
        Given::Reals(all) => all.len(),
    };
    let is_real = matches!(given, Given::Reals(_));
    let of = |is_real: bool, len: usize| match is_real {
        true => Given::Reals(vec![0.5; len]),
        false => Given::Indices(vec![1; len]),
    };
    vec![
        Given::Nothing,
        of(is_real, 0),
        of(is_real, len - 1),
        of(is_real, len + 1),
        of(is_real, 2 * len),
        of(!is_real, len),
    ]
}

fn llama() -> (Graph, Data) {
    let tokens = || Given::Indices(vec![3, 1, 4, 1, 5, 9, 2, 6]);
    let usual = vec![("tokens", tokens()), ("targets", tokens())];
    let graph = graph("llama:layers=2,hidden=16,heads=2,kv_heads=2,ffn=16,seq=8,vocab=16");
    (graph, Data { usual, other: None })
}

fn mlp() -> (Graph, Data) {
    let features = Given::Reals(vec![0.5, -1.0, 0.25, 2.0]);
    let usual = vec![("features", features), ("targets", Given::Indices(vec![2]))];
    (graph("mlp:inputs=4,hidden=8,layers=2,classes=4"), Data { usual, other: None })
}

fn dlrm() -> (Graph, Data) {
    let usual = vec![
        ("features", Given::Reals(vec![0.5, -1.0])),
        ("category.0", Given::Indices(vec![3])),
        ("targets", Given::Indices(vec![1])),
    ];
    (graph("dlrm:dense=2,rows=4,embed=4,bottom=8,top=8"), Data { usual, other: None })
}

/// Models with plans that split samples, sequences, layers and what is inside of them, in every format that inputs are
/// read in, and one whose table is on a server.
fn runs() -> Vec<(Graph, Data, Plan)> {
    let one = || Uniform { clip_norm: None, ..serial() };
    let of = |pp, (dp, cp, tp), microbatches| Uniform {
        pp,
        mesh: mesh(dp, cp, tp),
        microbatches,
        ..one()
    };
    let mut runs = vec![];
    let mut add = |(graph, data): (Graph, Data), uniform: Uniform| {
        let plan = uniform.plan(&graph, "model", "a100-40g:2x8");
        runs.push((graph, data, plan));
    };
    add(llama(), one());
    add(llama(), of(1, (1, 2, 1), 2));
    add(llama(), of(2, (2, 1, 1), 4));
    add(llama(), of(1, (1, 1, 2), 2));
    add(mlp(), of(1, (2, 1, 2), 2));
    add(mlp(), Uniform { precision: Precision::MIXED, ..of(2, (1, 1, 1), 2) });
    add(dlrm(), of(1, (2, 1, 1), 2));
    let fp16 = Precision { compute: Number::Fp16, ..Precision::MIXED };
    add(mlp(), Uniform { precision: fp16, ..one() });
    let last = &mut runs.last_mut().expect("a run").2;
    last.loss_scale = Some(LossScale::Constant { scale: 64.0 });
    let (graph, data) = llama();
    let summation = Some(Summation::of(1));
    let served = Uniform { sync: Sync { summation, ..Sync::default() }, ..of(1, (2, 1, 1), 2) };
    let group = |names: &str, servers: &[u32], sparse| ParameterGroup {
        servers: Some(servers.to_vec()),
        sparse,
        ..ParameterGroup::named(names)
    };
    let mut plan = served.plan(&graph, "model", "a100-40g:2x8");
    plan.parameters = vec![group("embedding.token", &[0], Some(true)), group("*", &[], None)];
    runs.push((graph, data, plan));
    runs
}

fn start(graph: &Graph, plan: &Plan, data: Data, clock: RunClock) -> Trainer {
    let settings = Settings { clock, ..settings(Curve::Constant { peak: 0.01 }) };
    trainer_with(graph, plan, data, settings)
}

fn clocks() -> [RunClock; 2] {
    [RunClock::Wall, RunClock::Virtual(Cluster::parse("a100-40g:2x8").expect("a preset"))]
}

#[test]
fn a_run_ends_with_the_first_sample_whose_input_is_not_as_the_model_reads_it() {
    for (number, (graph, data, plan)) in runs().into_iter().enumerate() {
        let clock = || clocks().into_iter().nth(number % 2).expect("two clocks");
        let mut usual = start(&graph, &plan, data.clone(), clock());
        usual.train_steps(3).unwrap_or_else(|error| panic!("{error}"));
        usual.evaluate(100).unwrap_or_else(|error| panic!("{error}"));
        for (at, (input, given)) in data.usual.iter().enumerate() {
            for (kind, other) in unlike(given).into_iter().enumerate() {
                let which = format!("{input} as {other:?} under\n{}", plan.to_toml());
                // In the second step of two, of eight samples each, and in an evaluation of sixteen.
                let position = ((5 * kind + 3 * at) % 8) as u64;
                let says = |position| {
                    format!("sample {position} has no input `{input}` of the shape and kind")
                };
                let spoilt = |part, position| {
                    let other = Some((part, position, *input, other.clone()));
                    start(&graph, &plan, Data { other, ..data.clone() }, clock())
                };
                let mut run = spoilt(Part::Training, 8 + position);
                run.train_steps(1).unwrap_or_else(|error| panic!("{error}: {which}"));
                let error = run.train_steps(2).expect_err(&which).to_string();
                assert!(error.contains(&says(8 + position)), "{error}: {which}");
                let mut run = spoilt(Part::Validation, 4 + position);
                run.train_steps(1).unwrap_or_else(|error| panic!("{error}: {which}"));
                let error = run.evaluate(100).expect_err(&which).to_string();
                assert!(error.contains(&says(4 + position)), "{error}: {which}");
            }
        }
    }
}
