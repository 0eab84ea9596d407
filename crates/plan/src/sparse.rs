//! Gradients of tables that are rows and values.
//!
//! An embedding reads few rows of its table, and a softmax over drawn classes few of its weights; the gradient is
//! zero in all others. Where the plan says so, such a
//! gradient is kept, exchanged and given to the optimizer as the rows that were read and the values for them
//! (TensorFlow's `IndexedSlices`, PyTorch's `sparse=True`). Replicas exchange such rows, or the table lies on servers,
//! from which workers get the rows that their samples look up (`servers` of a group of parameters). Which way is
//! better depends on how many rows of the table a step reads (Kim et al. 2019, EuroSys, arXiv 1808.02621, section 3).

use shardloom_collectives::Kind;
use shardloom_graph::{Extents, Graph, ValueId};

use crate::{ParameterGroups, Plan, PlanError, Sync};

impl Plan {
    /// Checks that where gradients are to be rows and values there are tables, that nothing else reads
    /// those, and that the rest of what the plan says of them can be done with rows.
    pub(crate) fn validate_sparse(
        &self,
        graph: &Graph,
        groups: &ParameterGroups,
    ) -> Result<(), PlanError> {
        let mut found = false;
        for (value, node) in graph.values().filter(|(_, node)| node.parameter().is_some()) {
            let group = groups.group(&node.name).map(|index| (index, &self.parameters[index]));
            let sync = group.map_or(self.sync, |(_, group)| group.sync(self.sync));
            if !sync.sparse {
                continue;
            }
            let named = group.filter(|(_, group)| group.sparse.is_some());
            let key = match named {
                Some((index, _)) => format!("parameters[{index}]"),
                None => "sync".to_owned(),
            };
            if !graph.is_table(value) {
                let readers = || node.consumers.iter().map(|&op| graph.op(op));
                let is_looked_up = node.axes.len() > 1 && readers().any(|op| op.kind.reads_rows());
                // Of all parameters those are left as they are of which nothing reads rows.
                if named.is_none() && !is_looked_up {
                    continue;
                }
                let all = match readers().find(|op| !op.kind.reads_rows()) {
                    Some(reader) => {
                        format!(
                            "{} is read by {} too, whose gradient has all rows",
                            node.name, reader.name
                        )
                    }
                    None => format!("{} is a vector, whose gradient has all elements", node.name),
                };
                let rule = format!(
                    "for tables that nothing but embeddings and sampled softmax reads; {all}: leave it out of the \
                     group, or give it one with sparse = false"
                );
                return Err(PlanError::field(format!("{key}.sparse"), true, rule));
            }
            found = true;
            let place =
                group.map_or("sync".to_owned(), |(index, _)| format!("parameters[{index}]"));
            // Servers that sum other parameters mean workers that are pipelines of their own.
            let servers = self
                .sync
                .has_servers()
                .then(|| group.and_then(|(_, group)| group.servers.as_deref()).unwrap_or(&[]));
            check_table((&key, &place), sync, servers, &node.name)?;
            if let Some(servers) = servers {
                self.check_served((&key, &place), servers, graph, value)?;
            }
        }
        match self.sync.sparse && !found {
            true => {
                let mut tables = graph.tables().map(|table| graph.value(table)).peekable();
                let has_any = tables.peek().is_some();
                let rule = match has_any && tables.all(|it| groups.is_frozen(self, &it.name)) {
                    true => "for tables that are trained; all tables are frozen",
                    false => {
                        "for models with a table that only embeddings or sampled softmax read, in no group that is otherwise; \
                         this one has none"
                    }
                };
                Err(PlanError::field("sync.sparse", true, rule))
            }
            false => Ok(()),
        }
    }

    /// Checks that a table can lie on these servers, as `place` says.
    fn check_served(
        &self,
        (key, place): (&str, &str),
        servers: &[u32],
        graph: &Graph,
        table: ValueId,
    ) -> Result<(), PlanError> {
        let node = graph.value(table);
        let name = &node.name;
        let mut indices = graph.table_indices(table).map(|it| graph.value(it));
        if let Some(computed) = indices.find(|it| it.producer.is_some()) {
            let rule = format!(
                "a worker asks servers for rows before its passes, so the data say which; those of {name} are {}, \
                 which is computed: leave servers out of the group",
                computed.name
            );
            return Err(PlanError::field(format!("{key}.sparse"), true, rule));
        }
        if graph.drawn_rows(table) > 0 {
            let rule = format!(
                "an evaluation reads all rows of {name}, for the softmax over all classes, and a worker gets from \
                 servers only those that its data name: leave it out of the group, and give it one with servers = []"
            );
            return Err(PlanError::field(format!("{key}.sparse"), true, rule));
        }
        let shape = Extents::global(graph, 1).shape(&node.axes);
        if servers.len() > shape[0] {
            let rule = format!("{name} has {} rows, and each of these gets one at least", shape[0]);
            return Err(PlanError::field(format!("{place}.servers"), format!("{servers:?}"), rule));
        }
        if servers.len() > 1 && !self.optimizer.updates_by_element() {
            let rule = format!(
                "{} looks at all of {name} when it updates, so one server has all of it: servers = [{}]",
                self.optimizer.name(),
                servers[0]
            );
            return Err(PlanError::field(format!("{place}.servers"), format!("{servers:?}"), rule));
        }
        Ok(())
    }
}

/// Checks what a plan's `place` says on how replicas of a table stay equal, whose gradient is rows and values, as
/// `key` says.
fn check_table(
    (key, place): (&str, &str),
    sync: Sync,
    servers: Option<&[u32]>,
    table: &str,
) -> Result<(), PlanError> {
    let refuse = |field: &str, value: String, rule: &str| {
        let rule = format!("with sparse gradients {rule}");
        let place = if field == "sparse" { key } else { place };
        Err(PlanError::field(format!("{place}.{field}"), value, rule))
    };
    if sync.servers.is_some() {
        let rule = "there are no servers: workers exchange rows among themselves";
        return refuse("sparse", "true".into(), rule);
    }
    if servers == Some(&[]) {
        let rule = format!(
            "workers of servers have {table} on some of these: give it a group of its own that says on which (names = \
             \"{table}\", sparse = true, servers = [0])"
        );
        return refuse("sparse", "true".into(), &rule);
    }
    if sync.negotiation.is_some() {
        let rule = "the order of reductions is fixed, without sync.negotiation, whose requests are all-reduces";
        return refuse("sparse", "true".into(), rule);
    }
    if sync.zero > 0 {
        let rule = format!(
            "every replica updates all of {table}, so 0: give it a group of its own (names = \"{table}\", sparse = \
             true, zero = 0)"
        );
        return refuse("zero", sync.zero.to_string(), &rule);
    }
    if !sync.compression.is_none() {
        let rule = format!(
            "what is exchanged of {table} is small as it is: give it a group of its own (names = \"{table}\", \
             sparse = true, compression = \"none\")"
        );
        return refuse("compression", sync.compression.to_string(), &rule);
    }
    if servers.is_none() && !Kind::AllGather.has(sync.algorithm) {
        let rule = "replicas gather the rows of all, which this algorithm does not do; ring, direct, \
                    halving-doubling and hierarchical do";
        return refuse("algorithm", sync.algorithm.to_string(), rule);
    }
    Ok(())
}
