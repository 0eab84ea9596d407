use std::{collections::HashMap, sync::Arc};

use shardloom_collectives::{Algorithm, CollectiveError, Kind, StepList, plan};

use super::Script;

/// Scripts a group keeps. Callers mostly use a few sizes again and again; those that
/// do not must not fill the memory.
const MOST: usize = 256;

/// By kind, algorithm, elements and the bytes of one.
type Key = (Kind, Algorithm, usize, usize);

/// The scripts of one member of a group, each made when first asked for.
#[derive(Debug, Default)]
pub(crate) struct Scripts(HashMap<Key, Arc<Script>>);

impl Scripts {
    /// The script of a collective among so many members, made of its step list where there is none yet.
    pub(crate) fn get(
        &mut self,
        (kind, algorithm, elements, element_bytes): Key,
        members: usize,
        make: impl FnOnce(&StepList) -> Script,
    ) -> Result<Arc<Script>, CollectiveError> {
        let key = (kind, algorithm, elements, element_bytes);
        if let Some(script) = self.0.get(&key) {
            return Ok(Arc::clone(script));
        }
        let list = plan(kind, algorithm, members as u32, elements)?;
        let script = Arc::new(make(&list));
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(key, Arc::clone(&script));
        Ok(script)
    }
}
