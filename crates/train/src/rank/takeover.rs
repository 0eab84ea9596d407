//! What ranks do where a server is lost and others have replicas of its ranges: each says how far it has come in the
//! row of steps that was broken off, workers bring their gradients once more, and servers whose ranges lack an update
//! that others have had make it with these.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardloom_fabric::View;
use shardloom_program::{Action, Carried, Run};

use super::link::Work;
use super::update::StepOutcome;
use super::{At, Rank};
use crate::Result;

/// How far a rank has come in a row of steps.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RowEnd {
    /// By bucket: how often it was updated in the row.
    pub updated: Vec<u32>,
    /// How many updates parameters had had before the row, by name.
    pub updates_before: BTreeMap<String, u64>,
    /// What steps of the row came to, as far as is known.
    pub outcomes: Vec<StepOutcome>,
}

/// What a worker sends to servers in a step, by route.
pub(crate) type Gradients = BTreeMap<u32, Vec<f32>>;

impl Rank {
    /// How far the rank has come in the row that was broken off.
    pub fn end_row(&mut self) -> RowEnd {
        self.end_step();
        let class = self.class();
        let owned = self.parameters.owned.iter().flatten();
        let counted = owned.filter(|it| it.piece.elements() > 0);
        let before = counted.filter_map(|it| {
            let bucket = class.param(it.param).bucket;
            let before = it.updates - u64::from(self.updated[bucket.0 as usize]);
            let is_updated_here = class.bucket(bucket).is_updated_here();
            is_updated_here.then(|| (self.site(it.param).name, before))
        });
        RowEnd {
            updated: self.updated.clone(),
            updates_before: before.collect(),
            outcomes: self.outcomes.clone(),
        }
    }

    /// The gradients of its last finished step that a worker sends to servers. They are there until the weights of
    /// the next step have come from all of them.
    pub fn gradients_for_servers(&self) -> Gradients {
        let program = self.program();
        let instructions = self.class().bodies.iter().flat_map(|body| &body.instructions);
        let sent = instructions.filter_map(|instruction| match instruction.action {
            Action::Send { route } => {
                let is_gradients = matches!(program.route(route).carried, Carried::Gradients(_));
                is_gradients.then_some((route, instruction.reads[0].tensor))
            }
            _ => None,
        });
        let values = |(route, tensor)| {
            let held = self.store.get(self.store.slot(tensor), At::START).view();
            let range = program.route(route).messages[0].source.range(0);
            (route.0, self.device().reals(held.slice(range)))
        };
        sent.map(values).collect()
    }

    /// Updates these buckets in the n-th step of the row, as if all workers' gradients of it had just come.
    ///
    /// # Errors
    /// As [`Rank::execute`].
    pub fn catch_up(&mut self, step: u32, buckets: &[u32], gradients: &[Gradients]) -> Result<()> {
        let (shared, linked) = (self.shared.clone(), self.linked.clone());
        let class = shared.program.class(self.class);
        let clients = class.serves().map_or(&[][..], |serve| &serve.clients);
        let handlers = clients
            .iter()
            .flat_map(|client| client.handlers.iter().map(move |handler| (client.class, handler)));
        for (number, (client, handler)) in handlers.enumerate() {
            let is_worker = shared.program.class(client).serves().is_none();
            if !handler.publishes || !is_worker {
                continue;
            }
            let entry = handler.run;
            let step = i64::from(step);
            self.begin_entry(&Run { entry, number, arm: None, step, microbatch: None });
            let instructions = &class.body(entry.body).instructions;
            for (index, (instruction, linked)) in
                (0..).zip(instructions.iter().zip(linked.body(entry.body)))
            {
                let written = instruction.writes.first().map(|write| write.to.tensor);
                let bucket = written.and_then(|tensor| class.tensor(tensor).bucket);
                if !bucket.is_some_and(|bucket| buckets.contains(&bucket.0)) {
                    continue;
                }
                let at = self.at(index);
                match &linked.work {
                    Work::Local(work) => self.execute(linked, work, at)?,
                    Work::Receive(receives) => {
                        let come = gradients.iter().find_map(|of| of.get(&receives.route.0));
                        let come = come.expect("workers bring all that servers receive");
                        for received in &receives.messages {
                            self.unpack(receives, received, at, View::F32(come));
                        }
                        self.free(linked, at);
                    }
                    // A server is alone in its groups.
                    Work::Collective(_) => self.free(linked, at),
                    Work::Send(_) => unreachable!("what is sent writes nothing"),
                    Work::Publish(_) | Work::Fetch(_) => unreachable!("servers publish nothing"),
                }
            }
        }
        Ok(())
    }
}
