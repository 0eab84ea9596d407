//! Replicas with state of their own: each tensor is saved once for each of them, under a name that says whose it
//! is, and what is asked for by its plain name is the mean over them.

use crate::reader::Checkpoint;
use crate::{CheckpointError, Result};

/// What names of a replica's own tensors begin with.
const REPLICA: &str = "replica.";

/// The name of a tensor of which the n-th replica has its own.
#[must_use]
pub fn replica_name(replica: usize, name: &str) -> String {
    format!("{REPLICA}{replica}/{name}")
}

/// The plain name of a tensor of which a replica has its own, after the replica's number; none of others.
#[must_use]
pub fn replica_of(name: &str) -> Option<(usize, &str)> {
    let (replica, name) = name.strip_prefix(REPLICA)?.split_once('/')?;
    Some((replica.parse().ok()?, name))
}

/// The mean of equally long tensors, element by element: their sum in the order in which they come, in fp64,
/// divided by their number and rounded to fp32.
#[derive(Debug, Default)]
pub struct Mean {
    sum: Vec<f64>,
    count: usize,
}

impl Mean {
    /// Takes in one more.
    pub fn add(&mut self, values: &[f32]) {
        self.sum.resize(values.len(), 0.0);
        self.sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
        self.count += 1;
    }

    /// The mean of those that were added.
    #[must_use]
    pub fn finish(self) -> Vec<f32> {
        let count = self.count.max(1) as f64;
        self.sum.into_iter().map(|sum| (sum / count) as f32).collect()
    }
}

impl Checkpoint {
    /// How many replicas have a tensor of this plain name of their own; 0 where it is one for all.
    #[must_use]
    pub fn replicas(&self, name: &str) -> usize {
        let has = |replica: &usize| self.stored_shape(&replica_name(*replica, name)).is_some();
        (0..).take_while(has).count()
    }

    /// The mean over replicas of a tensor of which each has its own, all of one shape.
    pub(crate) fn mean(&self, name: &str, replicas: usize) -> Result<Vec<f32>> {
        let first = self.global_shape(name).unwrap_or_default();
        let mut mean = Mean::default();
        for replica in 0..replicas {
            let name = replica_name(replica, name);
            if let Some(shape) = self.stored_shape(&name).filter(|&shape| shape != first) {
                let (first, second) = (first.to_vec(), shape.to_vec());
                return Err(CheckpointError::ShapeConflict { name, first, second });
            }
            mean.add(&self.read_whole(&name)?);
        }
        Ok(mean.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Meta, Piece, Store, Writer};

    #[test]
    fn what_replicas_have_of_their_own_is_read_and_exported_as_the_mean() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = Writer::create(folder.path(), 2).expect("a writer");
        let of = [[1.0, 2.0], [2.0, -4.0], [6.0, 5.0]];
        let names: Vec<String> = (0..3).map(|replica| replica_name(replica, "w")).collect();
        let pieces = names.iter().zip(&of).map(|(name, values)| Piece::whole(name, &[2], values));
        writer.shard(0, pieces.chain([Piece::whole("x", &[1], &[7.0])])).expect("a shard");
        writer.finish(Meta::default(), None).expect("a checkpoint");
        let found = Store::open(folder.path()).and_then(|store| store.load_latest());
        let found = found.expect("the checkpoint").0;
        assert_eq!((found.replicas("w"), found.replicas("x")), (3, 0));
        assert_eq!(found.global_shape("w"), Some(&[2][..]));
        assert_eq!(found.read_whole("w").expect("the mean"), [3.0, 1.0]);
        assert_eq!(found.read_whole("replica.2/w").expect("its own"), [6.0, 5.0]);
        let file = folder.path().join("weights.safetensors");
        found.export_safetensors(&file, |name| name == "w" || name == "x").expect("a file");
        let tensors = crate::read_safetensors(&file).expect("the file");
        let values: Vec<&[f32]> = tensors.values().map(|it| it.values.as_slice()).collect();
        assert_eq!(values, [&[3.0, 1.0][..], &[7.0]]);
    }

    #[test]
    fn replicas_that_differ_in_shape_have_no_mean() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = Writer::create(folder.path(), 2).expect("a writer");
        let names = [replica_name(0, "w"), replica_name(1, "w")];
        let pieces =
            [Piece::whole(&names[0], &[2], &[1.0; 2]), Piece::whole(&names[1], &[3], &[1.0; 3])];
        writer.shard(0, pieces).expect("a shard");
        writer.finish(Meta::default(), None).expect("a checkpoint");
        let found = Store::open(folder.path()).and_then(|store| store.load_latest());
        let found = found.expect("the checkpoint").0;
        let error = found.read_whole("w").expect_err("no mean").to_string();
        assert!(error.contains("`replica.1/w`") && error.contains("[3]"), "{error}");
        let file = folder.path().join("weights.safetensors");
        assert!(found.export_safetensors(&file, |_| true).is_err());
    }

    /// Of one replica, as after others are gone, the mean is what that one has.
    #[test]
    fn what_one_replica_has_of_its_own_is_read_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = Writer::create(folder.path(), 2).expect("a writer");
        let name = replica_name(0, "w");
        writer.shard(0, [Piece::whole(&name, &[2], &[3.0, -4.0])]).expect("a shard");
        writer.finish(Meta::default(), None).expect("a checkpoint");
        let found = Store::open(folder.path()).and_then(|store| store.load_latest());
        let found = found.expect("the checkpoint").0;
        assert_eq!(found.replicas("w"), 1);
        assert_eq!(found.read_whole("w").expect("its own"), [3.0, -4.0]);
    }

    #[test]
    fn a_name_says_whose_it_is() {
        assert_eq!(replica_of(&replica_name(12, "optimizer.0/w")), Some((12, "optimizer.0/w")));
        assert_eq!((replica_of("w"), replica_of("replica.x/w")), (None, None));
    }
}
