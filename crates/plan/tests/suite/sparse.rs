//! Tables whose gradients are rows, exchanged between replicas or held by servers.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Compression, Mesh, Optimizer, ParameterGroup, Plan, Servers, Staleness, Summation, Sync,
    Uniform,
};

use crate::scenario::{DEVICES, plan};

const UNTIED: &str = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=false";
const TIED: &str = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=true";

fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a valid model")
}

fn said(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn sparse_gradients_are_of_tables_that_only_lookups_read_and_every_replica_updates() {
    let refused = |spec, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        plan.sync.sparse = true;
        change(&mut plan);
        plan.validate(&model(spec), DEVICES).err().map(|error| error.to_string())
    };
    let sparse = |names| ParameterGroup { sparse: Some(true), ..ParameterGroup::named(names) };
    assert_eq!(refused(UNTIED, &|_| {}), None);
    assert_eq!(
        refused(TIED, &|_| {}),
        said(
            "sync.sparse = true: for tables that nothing but embeddings and sampled softmax reads; embedding.token is read by \
             head too, whose gradient has all rows: leave it out of the group, or give it one with \
             sparse = false"
        )
    );
    assert_eq!(
        refused("mlp:inputs=8,hidden=16,layers=2,classes=4", &|_| {}),
        said(
            "sync.sparse = true: for models with a table that only embeddings or sampled softmax read, in no group that is \
             otherwise; this one has none"
        )
    );
    assert_eq!(
        refused(UNTIED, &|it| {
            it.sync.sparse = false;
            it.parameters = vec![sparse("embedding.*")];
        }),
        said(
            "parameters[0].sparse = true: for tables that nothing but embeddings and sampled softmax reads; embedding.position is \
             read by embedding.sum too, whose gradient has all rows: leave it out of the group, or give it one \
             with sparse = false"
        )
    );
    assert_eq!(
        refused(UNTIED, &|it| it.sync.zero = 2),
        said(
            "sync.zero = 2: with sparse gradients every replica updates all of embedding.token, so 0: give it a \
             group of its own (names = \"embedding.token\", sparse = true, zero = 0)"
        )
    );
    let own = |it: &mut Plan| {
        it.sync = Sync { sparse: false, zero: 2, ..it.sync };
        it.parameters = vec![ParameterGroup { zero: Some(0), ..sparse("embedding.token") }];
    };
    assert_eq!(refused(UNTIED, &own), None);
    assert_eq!(
        refused(UNTIED, &|it| it.sync.compression = Compression::OneBit),
        said(
            "sync.compression = one-bit: with sparse gradients what is exchanged of embedding.token is small as \
             it is: give it a group of its own (names = \"embedding.token\", sparse = true, compression = \
             \"none\")"
        )
    );
    assert_eq!(
        refused(UNTIED, &|it| {
            it.sync.algorithm = "binary-tree".parse().expect("an algorithm");
        }),
        said(
            "sync.algorithm = binary-tree: with sparse gradients replicas gather the rows of all, which this \
             algorithm does not do; ring, direct, halving-doubling and hierarchical do"
        )
    );
    let served = |it: &mut Plan| {
        let staleness = Staleness::SYNCHRONOUS;
        it.sync.servers = Some(Servers::of(1, staleness));
    };
    assert_eq!(
        refused(UNTIED, &served),
        said(
            "sync.sparse = true: with sparse gradients there are no servers: workers exchange rows among \
             themselves"
        )
    );
}

#[test]
fn tables_on_servers_are_sparse_and_say_which_servers_have_rows_of_them() {
    let table = |servers: &[u32]| ParameterGroup {
        sparse: Some(true),
        servers: Some(servers.to_vec()),
        ..ParameterGroup::named("embedding.token")
    };
    let refused = |spec, change: &dyn Fn(&mut Plan)| {
        let sync = Sync { summation: Some(Summation::of(2)), ..Sync::default() };
        let uniform =
            Uniform { mesh: Mesh::of(2, 1, 1), sync, global_batch: 8, ..Uniform::default() };
        let graph = model(spec);
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.parameters = vec![table(&[0, 1])];
        change(&mut plan);
        plan.validate(&graph, DEVICES).err().map(|error| error.to_string())
    };
    assert_eq!(refused(UNTIED, &|_| {}), None);
    let without = |group: ParameterGroup| {
        refused(UNTIED, &move |it: &mut Plan| it.parameters = vec![group.clone()])
    };
    for servers in [None, Some(vec![])] {
        assert_eq!(
            without(ParameterGroup { servers, ..table(&[]) }),
            said(
                "parameters[0].sparse = true: with sparse gradients workers of servers have embedding.token on some \
                 of these: give it a group of its own that says on which (names = \"embedding.token\", sparse = true, \
                 servers = [0])"
            )
        );
    }
    assert_eq!(
        refused(UNTIED, &|it| (it.parameters, it.sync.sparse) = (vec![], true)),
        said(
            "sync.sparse = true: with sparse gradients workers of servers have embedding.token on some of these: give \
             it a group of its own that says on which (names = \"embedding.token\", sparse = true, servers = [0])"
        )
    );
    assert_eq!(
        without(table(&[0, 2])),
        said(
            "parameters[0].servers = [0, 2]: there is no server 2: sync.summation.servers = 2, numbered from 0"
        )
    );
    let many: Vec<u32> = (0..97).map(|piece| piece % 2).collect();
    assert_eq!(
        without(table(&many)),
        said(&format!(
            "parameters[0].servers = {many:?}: embedding.token has 96 rows, and each of these gets one at least"
        ))
    );
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.0 };
    assert_eq!(
        refused(UNTIED, &|it| it.optimizer = lamb),
        said(
            "parameters[0].servers = [0, 1]: lamb looks at all of embedding.token when it updates, so one server has \
             all of it: servers = [0]"
        )
    );
    assert_eq!(
        refused(UNTIED, &|it| (it.optimizer, it.parameters) = (lamb, vec![table(&[1])])),
        None
    );
    // Only replicas gather the rows of all, which this algorithm does not do.
    let tree = "binary-tree".parse().expect("an algorithm");
    assert_eq!(refused(UNTIED, &|it| it.sync.algorithm = tree), None);
    assert!(
        refused(TIED, &|_| {}).is_some_and(|it| it.contains("embedding.token is read by head too"))
    );
}
