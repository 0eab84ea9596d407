//! Parallax (Kim et al. 2019, "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", EuroSys, arXiv
//! 1808.02621): variables whose gradients are rows and values lie on servers, all others are all-reduced.

mod partitions;

use std::collections::BTreeSet;

use shardloom_graph::{Extents, Graph};
use shardloom_plan::{Optimizer, ParameterGroup, Plan, Summation, Sync, Uniform};
use shardloom_program::drawn_share;
use shardloom_search::{divisors, judge};

use super::replicas;
use super::workers::{self, FewestServers};
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::selection::Selection;
use crate::{Choice, MethodError};

/// Workers of one device each, and servers with the tables.
pub(crate) const METHOD: Method = Method {
    name: "parallax",
    family: Family::DataParallel,
    paper: "Kim et al. 2019, Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks, EuroSys, \
            arXiv 1808.02621",
    about: "Tables of which samples look up few rows lie on servers, from which workers get these rows and to which \
            they send the gradients of them; all other gradients are all-reduced.",
    rules: |_| Rules::FLUSH,
    chooser,
};

/// From which share of a table's rows on, that a worker looks up in a step, its gradient is all-reduced as those of
/// others are. The paper says "close to 1".
const DENSE: f64 = 0.95;

/// How many pieces of a table there are at most for each server.
const MOST_PIECES: usize = 16;

/// A table of which few rows are looked up.
pub(super) struct Table<'g> {
    pub(super) name: &'g str,
    rows: usize,
    columns: usize,
    /// The share of its rows that a worker looks up in a step, where each is as likely as any other.
    pub(super) share: f64,
}

fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let (graph, cluster, request) = (task.graph, task.cluster, task.request);
    let batch = request.global_batch;
    let all = divisors(batch as u32).filter(|&it| it <= cluster.device_count()).max().unwrap_or(1);
    if sparse(graph, batch / all as usize).is_empty() {
        let mut choice = replicas::with_largest_microbatches(task, |common| common)?;
        choice.notes.push(format!(
            "no table is on a server: there is none that only embeddings read and of whose rows a worker looks up less \
             than {:.0}% in a step, so all gradients are all-reduced",
            100.0 * DENSE
        ));
        return Ok(choice);
    }
    task.require_none_frozen()?;
    let mut choice = workers::fastest_plan(task, FewestServers::None, |servers, common| {
        plan(task, servers, common)
    })?;
    let Some(summation) = choice.plan.sync.summation else { return Ok(choice) };
    let workers = choice.plan.pipeline.len();
    let servers = summation.of_workers(workers);
    let tables = sparse(graph, batch / workers);
    let most = tables.iter().map(|table| table.pieces(request.optimizer, usize::MAX)).max();
    let most = most.unwrap_or(1).min(MOST_PIECES * servers as usize);
    // The same but for the pieces, which no search over machines has looked at.
    let cut = |pieces: usize| {
        let groups = groups(&tables, request.optimizer, (servers, pieces));
        Plan { parameters: groups, ..choice.plan.clone() }
    };
    let mut selection = Selection::new(request.memory_share);
    let mut simulated = 0;
    let mut time = |pieces: usize| -> Result<f64, MethodError> {
        let plan = cut(pieces);
        // With fewer pieces some server may have none.
        if used(&plan) < servers {
            return Ok(f64::INFINITY);
        }
        let judgement = judge(graph, cluster, &plan)?;
        let seconds = judgement.step_seconds;
        simulated += 1;
        selection.offer(plan, judgement);
        Ok(seconds)
    };
    let tried = partitions::search(servers as usize, most, &mut time)?;
    let tried: Vec<(usize, f64)> = tried.into_iter().filter(|it| it.1.is_finite()).collect();
    let best = partitions::best(&tried).unwrap_or(servers as usize);
    if tried.iter().all(|it| it.0 != best) {
        time(best)?;
    }
    let (space, simulated) = (choice.space + simulated, choice.simulated + simulated);
    let notes = std::mem::take(&mut choice.notes);
    if let Ok(found) = selection.finish(task) {
        choice = found.choice(space, simulated);
    }
    choice.notes = notes;
    if summation.colocated {
        choice.notes.push("every worker's device has a server, and there are no others".into());
    }
    let numbers: Vec<String> = tried.iter().map(|it| it.0.to_string()).collect();
    choice.notes.push(format!(
        "the published model of the time, fitted to steps with tables in {} pieces, has its least at {best}; the \
         fastest of these is answered",
        numbers.join(", ")
    ));
    for Table { name, share, .. } in &tables {
        choice.notes.push(format!(
            "a worker looks up {:.1}% of the rows of {name} in a step, if each is as likely as any other",
            100.0 * share
        ));
    }
    Ok(choice)
}

/// Workers with so many servers on devices of their own, or without any with one on the device of each worker; each
/// table has as many pieces. None if for so many workers no table is sparse.
fn plan(task: &Task<'_>, servers: u32, common: Uniform) -> Option<Plan> {
    let request = task.request;
    let workers = common.mesh.dp() as usize;
    let tables = sparse(task.graph, common.global_batch / workers);
    let summation = Summation { colocated: servers == 0, ..Summation::of(servers) };
    let servers = summation.of_workers(workers);
    let parameters = groups(&tables, request.optimizer, (servers, servers as usize));
    let sync = Sync { summation: Some(summation), ..common.sync };
    let plan = Uniform { sync, ..common }.plan(task.graph, &request.model, &request.cluster);
    (!tables.is_empty()).then_some(Plan { parameters, ..plan })
}

/// The tables of which a worker with so many samples a step looks up few rows.
pub(super) fn sparse(graph: &Graph, samples: usize) -> Vec<Table<'_>> {
    let extents = Extents::global(graph, samples);
    let tables = graph.tables().filter_map(|table| {
        let node = graph.value(table);
        let indices: Vec<_> = graph.table_indices(table).map(|it| graph.value(it)).collect();
        // What servers hold is asked for by what the data name.
        if indices.iter().any(|it| it.producer.is_some()) || graph.drawn_rows(table) > 0 {
            return None;
        }
        let lookups: usize = indices.iter().map(|it| extents.elements(&it.axes)).sum();
        let shape = extents.shape(&node.axes);
        let (rows, columns) = (shape[0], shape[1..].iter().product());
        Some(Table { name: &node.name, rows, columns, share: drawn_share(rows, lookups) })
    });
    tables.filter(|table| table.share < DENSE).collect()
}

impl Table<'_> {
    /// Into how many pieces it is cut where there are to be so many: no more than it has rows, and it stays whole for
    /// an optimizer that looks at all of it.
    fn pieces(&self, optimizer: Optimizer, wanted: usize) -> usize {
        if optimizer.updates_by_element() { wanted.min(self.rows) } else { 1 }
    }
}

/// A group for each table, cut into so many pieces, each on the server that has the fewest bytes to send so far, the
/// largest first; and one for all else, which workers all-reduce.
fn groups(
    tables: &[Table<'_>],
    optimizer: Optimizer,
    (servers, pieces): (u32, usize),
) -> Vec<ParameterGroup> {
    let bytes = |table: &Table<'_>| table.share * (table.rows * table.columns) as f64;
    let mut order: Vec<usize> = (0..tables.len()).collect();
    order.sort_by(|&one, &other| bytes(&tables[other]).total_cmp(&bytes(&tables[one])));
    let mut loads = vec![0.0_f64; servers as usize];
    let mut lists: Vec<Vec<u32>> = vec![vec![]; tables.len()];
    for index in order {
        let count = tables[index].pieces(optimizer, pieces);
        for _ in 0..count {
            let least = (0..loads.len()).min_by(|&one, &other| loads[one].total_cmp(&loads[other]));
            let Some(server) = least else { continue };
            loads[server] += bytes(&tables[index]) / count as f64;
            lists[index].push(server as u32);
        }
    }
    let of_table = |(table, servers): (&Table<'_>, Vec<u32>)| ParameterGroup {
        sparse: Some(true),
        servers: Some(servers),
        ..ParameterGroup::of_all(&[table.name])
    };
    let rest = ParameterGroup { servers: Some(vec![]), ..ParameterGroup::named("*") };
    tables.iter().zip(lists).map(of_table).chain([rest]).collect()
}

/// How many servers hold something.
fn used(plan: &Plan) -> u32 {
    let named = plan.parameters.iter().filter_map(|group| group.servers.as_ref()).flatten();
    named.collect::<BTreeSet<_>>().len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, rows: usize, share: f64) -> Table<'_> {
        Table { name, rows, columns: 10, share }
    }

    /// The servers of each table, in order of its pieces.
    fn dealt(tables: &[Table<'_>], servers: u32, pieces: usize) -> Vec<Vec<u32>> {
        let groups = groups(tables, Optimizer::sgd(0.9), (servers, pieces));
        groups.into_iter().filter_map(|it| it.servers).collect()
    }

    #[test]
    fn pieces_go_to_the_server_with_the_least_to_send_largest_tables_first() {
        // 8,000, 2,000 and 1,000 numbers are looked up. Of the first each server has 4,000, of the second
        // 1,000, of the third 500; in the end nobody holds what workers keep.
        let tables = [table("few", 1000, 0.1), table("most", 1000, 0.8), table("some", 1000, 0.2)];
        assert_eq!(dealt(&tables, 2, 2), [vec![0, 1], vec![0, 1], vec![0, 1], vec![]]);
        // Whole tables: the largest is alone, and the third is where less is.
        assert_eq!(dealt(&tables, 2, 1), [vec![1], vec![0], vec![1], vec![]]);
        // 2,667 numbers a piece, of which the first server has two; of 1,800 a piece the second then has two.
        let two = [table("some", 600, 0.9), table("most", 1000, 0.8)];
        assert_eq!(dealt(&two, 2, 3), [vec![1, 1, 0], vec![0, 1, 0], vec![]]);
        // The only row is 900; three pieces of 200 are less.
        let row = Table { name: "row", rows: 1, columns: 1000, share: 0.9 };
        let three = [row, table("pieces", 100, 0.6)];
        assert_eq!(dealt(&three, 2, 3), [vec![0], vec![1, 1, 1], vec![]]);
    }

    #[test]
    fn what_is_looked_up_counts_and_not_what_a_table_has() {
        // 900 of 9,000 numbers, and 1,000 of 2,000.
        let tables = [table("large", 900, 0.1), table("small", 200, 0.5), table("last", 100, 0.5)];
        // The small one goes first, the large one to the other server, and so does the last.
        assert_eq!(dealt(&tables, 2, 1), [vec![1], vec![0], vec![1], vec![]]);
    }

    #[test]
    fn a_table_has_no_more_pieces_than_rows_and_one_where_an_optimizer_looks_at_all_of_it() {
        let tables = [table("short", 3, 0.5)];
        assert_eq!(dealt(&tables, 2, 5), [vec![0, 1, 0], vec![]]);
        let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.0 };
        assert_eq!(groups(&tables, lamb, (2, 5))[0].servers, Some(vec![0]));
    }
}
