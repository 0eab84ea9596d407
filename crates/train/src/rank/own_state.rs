//! State that is another on each rank, such as what a rank has left out of the gradients that it sent. It is saved
//! by rank, under a name that says by which grid of ranks and for what: a run that goes on under the same plan goes
//! on with it, and under another it begins anew.

use shardloom_checkpoint::Saved;
use shardloom_program::{Content, Keep, Tensor, TensorId};

use super::Rank;
use super::pieces::OwnedPiece;
use crate::Result;

/// Whether a tensor is saved by rank.
pub(super) fn is_own(tensor: &Tensor) -> bool {
    matches!((tensor.keep, tensor.content), (Keep::State(_), Content::OfRank(_)))
}

impl Rank {
    /// All that lasts from step to step and is another on each rank.
    pub fn own_state(&self) -> Vec<OwnedPiece> {
        let piece = |(id, name): (TensorId, String)| {
            let values = self.device().reals(self.store.newest(self.store.slot(id)).view());
            OwnedPiece::whole(name, values)
        };
        self.own_tensors().into_iter().map(piece).collect()
    }

    /// Takes it from where it was saved, where it was by the same rank of such a grid.
    pub(super) fn restore_own(&mut self, checkpoint: &dyn Saved) -> Result<()> {
        for (id, name) in self.own_tensors() {
            let elements = self.class().elements(id, self.position());
            if checkpoint.global_shape(&name) != Some(&[elements]) {
                continue;
            }
            let values = checkpoint.read_whole(&name)?;
            let Rank { shared, store, .. } = self;
            shared.device.set_reals(&values, store.newest_mut(store.slot(id)).view_mut());
        }
        Ok(())
    }

    /// The tensors that are saved by rank, with their names in checkpoints.
    fn own_tensors(&self) -> Vec<(TensorId, String)> {
        let class = self.class();
        let named = |(id, tensor): (TensorId, &Tensor)| {
            let bucket = class.bucket(tensor.bucket.expect("state belongs to parameters"));
            let names = bucket
                .params
                .iter()
                .map(|&param| self.shared.graph.value(class.param(param).value).name.as_str());
            let parameter = names.clone().next()?;
            // Buckets of others may be as large and begin alike.
            let all = blake3::hash(names.collect::<Vec<_>>().join(",").as_bytes()).to_hex();
            let rank = class.first_rank.0 as usize + self.position();
            let (mesh, what) = (class.mesh, &tensor.name);
            Some((id, format!("rank-state.{rank}/{parameter}/{what}/{mesh}/{}", &all[..16])))
        };
        class.tensors().filter(|(_, tensor)| is_own(tensor)).filter_map(named).collect()
    }
}
