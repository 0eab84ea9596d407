//! What tensors, weights and buckets of a class are called in its text. No two tensors have the same name.

use std::collections::BTreeMap;

use shardloom_graph::Graph;

use super::entries::Entries;
use crate::{BodyId, BucketId, Class, ParamId, TensorId};

/// The names of a class.
pub(super) struct Names {
    tensors: Vec<String>,
    buckets: Vec<String>,
    params: Vec<String>,
    bodies: BTreeMap<BodyId, String>,
}

impl Names {
    /// Tensors of equal names are numbered in the order in which the text comes to them.
    pub fn of(graph: &Graph, class: &Class, entries: &Entries) -> Names {
        let bodies = entries.step.iter().chain(&entries.evaluation).filter_map(|entry| entry.body);
        let operands = bodies.flat_map(|body| &class.body(body).instructions);
        let operands = operands.flat_map(|it| it.operands().map(|view| view.tensor));
        let lasting = class.lasting().map(|(id, _)| id);
        let mut order: Vec<TensorId> = vec![];
        let mut known = vec![false; class.tensors.len()];
        for id in lasting.chain(operands).chain(class.tensors().map(|(id, _)| id)) {
            if !std::mem::replace(&mut known[id.0 as usize], true) {
                order.push(id);
            }
        }
        let names = order.iter().map(|&id| compact(&class.tensor(id).name)).collect();
        let mut tensors = vec![String::new(); class.tensors.len()];
        for (id, name) in order.into_iter().zip(numbered(names)) {
            tensors[id.0 as usize] = name;
        }
        let params = class.params.iter().map(|param| {
            let name = &graph.value(param.value).name;
            let bucket = &class.bucket(param.bucket).name;
            let rest = name.strip_prefix(bucket.as_str()).and_then(|it| it.strip_prefix('.'));
            rest.unwrap_or(name).to_owned()
        });
        Names {
            params: params.collect(),
            tensors,
            buckets: numbered(class.buckets.iter().map(|it| it.name.clone()).collect()),
            bodies: entries.bodies.clone(),
        }
    }

    pub fn tensor(&self, id: TensorId) -> &str {
        &self.tensors[id.0 as usize]
    }

    pub fn bucket(&self, id: BucketId) -> &str {
        &self.buckets[id.0 as usize]
    }

    /// The entry below which the instructions of a body stand.
    pub fn body(&self, id: BodyId) -> &str {
        self.bodies.get(&id).map_or("an entry that is not run", String::as_str)
    }

    /// A weight's name within its bucket.
    pub fn param(&self, id: ParamId) -> &str {
        &self.params[id.0 as usize]
    }
}

/// A name without the spaces of a layout in it, so that a comma with a space ends an operand.
fn compact(name: &str) -> String {
    name.replace(", ", ",").replace("] P(", "]P(").replace(") P(", ")P(")
}

/// The second of equal names gets `#2` and so on.
fn numbered(names: Vec<String>) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let number = |name: String| {
        let count = seen.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { name } else { format!("{name} #{count}") }
    };
    names.into_iter().map(number).collect()
}
