//! Programs in which tables lie on servers are sound, and rejected where an instruction of it is left out, done twice
//! or in another order, is about other rows, or goes another way.

use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Optimizer, ParameterGroup, Plan, Recompute, Summation, Sync, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{Action, Carried, Class, Content, Instruction, Program, Window, lower};

use crate::programs::gpt;

fn group(names: &str, servers: &[u32]) -> ParameterGroup {
    ParameterGroup { servers: Some(servers.to_vec()), ..ParameterGroup::named(names) }
}

fn table(servers: &[u32]) -> ParameterGroup {
    ParameterGroup { sparse: Some(true), ..group("embedding.token", servers) }
}

/// So many workers, and a table on these servers; the rest is summed as the groups say.
fn plan(
    graph: &Graph,
    (workers, servers): (u32, &[u32]),
    rest: Vec<ParameterGroup>,
    clip_norm: Option<f64>,
) -> Plan {
    let count = 1 + servers.iter().max().expect("a server");
    let uniform = Uniform {
        mesh: Mesh::of(workers, 1, 1),
        sync: Sync { summation: Some(Summation::of(count)), ..Sync::default() },
        global_batch: 24,
        microbatches: 2,
        clip_norm,
        ..Uniform::default()
    };
    let parameters = [table(servers)].into_iter().chain(rest).collect();
    Plan { parameters, ..uniform.plan(graph, "model", "local") }
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two workers, and a table in three pieces on two servers.
fn program() -> Program {
    let graph = gpt(false);
    lowered(&graph, &plan(&graph, (2, &[0, 1, 0]), vec![group("*", &[])], Some(1.0)))
}

#[test]
fn tables_on_servers_are_sound() {
    let graph = gpt(false);
    for workers in [1, 2, 3, 4] {
        for servers in [&[0][..], &[0, 1], &[1, 0, 1]] {
            for rest in [vec![group("*", &[])], vec![], vec![group("*norm*", &[])]] {
                for clip_norm in [None, Some(1.0)] {
                    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
                        for recompute in [Recompute::None, Recompute::Full, Recompute::Block] {
                            let plan = plan(&graph, (workers, servers), rest.clone(), clip_norm);
                            let plan = Plan { optimizer, recompute, ..plan };
                            let program = lowered(&graph, &plan);
                            assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
                            let of = program.classes.iter().filter(|it| it.holds_tables());
                            assert!(of.count() > 0);
                        }
                    }
                }
            }
        }
    }
}
