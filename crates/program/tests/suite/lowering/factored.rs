//! Adafactor's sums over rows and columns: which splits of which parameters it refuses.

use std::collections::BTreeSet;

use shardloom_graph::Graph;
use shardloom_plan::{Axis, LayoutRules, Optimizer, ParameterGroup, Plan, Uniform};
use shardloom_program::{Program, ProgramError, lower};

use super::model::{gpt, llama, mesh, single};

const ADAFACTOR: Optimizer = Optimizer::Adafactor {
    decay_exponent: 0.8,
    clip: 1.0,
    least_parameter_rms: 1e-3,
    weight_decay: 0.0,
};

/// Splits that ranks have runs of rows or columns under, and such that they have not.
fn plans() -> Vec<(Graph, Plan)> {
    let mut plans = vec![];
    let layouts = [None, Some("head_dim:tp, ffn:tp"), Some("head_dim:tp"), Some("ffn:tp")];
    for graph in [gpt(false), gpt(true), llama()] {
        for (pp, dp, tp) in [(1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 1, 4)] {
            for layout in layouts {
                let uniform = Uniform {
                    pp,
                    mesh: mesh(dp, 1, tp),
                    global_batch: 4,
                    microbatches: 2,
                    ..single()
                };
                let mut plan = uniform.plan(&graph, "model", "local");
                if let Some(layout) = layout.filter(|_| tp > 1) {
                    let rules = plan.layout.0.iter().filter(|rule| rule.axis != Axis::TP);
                    let mut rules: Vec<_> = rules.cloned().collect();
                    rules.extend(LayoutRules::try_from(layout.to_owned()).expect("rules").0);
                    plan.layout = LayoutRules(rules);
                }
                plans.push((graph.clone(), plan));
            }
        }
    }
    plans
}

fn lowered(
    graph: &Graph,
    plan: &Plan,
    (optimizer, frozen): (Optimizer, &BTreeSet<String>),
) -> Result<Program, ProgramError> {
    let names: Vec<&str> = frozen.iter().map(String::as_str).collect();
    let group = ParameterGroup { frozen: true, ..ParameterGroup::of_all(&names) };
    let parameters = if names.is_empty() { vec![] } else { vec![group] };
    let plan = Plan { optimizer, parameters, ..plan.clone() };
    lower(graph, &plan, plan.device_count())
}

/// The matrices that are split within their rows or within their columns, each with the first such dimension: ranks
/// have no run of either.
fn split_within(graph: &Graph, program: &Program) -> BTreeSet<(String, String)> {
    let mut split = BTreeSet::new();
    for param in program.classes.iter().flat_map(|class| &class.params) {
        let node = graph.value(param.value);
        let is_matrix = param.row_axes > 0 && param.row_axes < node.axes.len();
        let splits: &[Vec<Axis>] = &param.layout.splits;
        let (rows, columns) = splits.split_at(param.row_axes);
        let within = |axes: &[Vec<Axis>]| (1..axes.len()).find(|&at| !axes[at].is_empty());
        let at = within(rows).or(within(columns).map(|at| param.row_axes + at));
        if let Some(at) = at.filter(|_| is_matrix) {
            split.insert((node.name.clone(), graph.dim(node.axes[at]).name.clone()));
        }
    }
    split
}

#[test]
fn adafactor_refuses_matrices_that_are_split_within_their_rows_or_columns_unless_they_are_frozen() {
    let (mut refused_in_all, mut taken) = (BTreeSet::new(), 0);
    for (graph, plan) in plans() {
        let all = |frozen: &BTreeSet<String>| lowered(&graph, &plan, (ADAFACTOR, frozen));
        // Whatever no optimizer takes says nothing of this one.
        let Ok(others) = lowered(&graph, &plan, (Optimizer::default(), &BTreeSet::new())) else {
            continue;
        };
        let expected = split_within(&graph, &others);
        let mut refused = BTreeSet::new();
        let mut frozen = BTreeSet::new();
        while let Err(error) = all(&frozen) {
            let ProgramError::FactoredSplit { name, dim } = error else { panic!("{error}") };
            assert!(frozen.insert(name.clone()), "{name} is frozen under\n{}", plan.to_toml());
            refused.insert((name, dim));
        }
        taken += usize::from(refused.is_empty());
        assert_eq!(refused, expected, "under\n{}", plan.to_toml());
        // Each of them alone is refused.
        for name in &frozen {
            let mut rest = frozen.clone();
            rest.remove(name);
            let Err(ProgramError::FactoredSplit { name: found, .. }) = all(&rest) else {
                panic!("{name} is taken under\n{}", plan.to_toml())
            };
            assert_eq!(found, *name);
        }
        refused_in_all.extend(refused);
    }
    assert!(refused_in_all.len() > 3 && taken > 10, "{refused_in_all:?}, {taken} taken");
}
