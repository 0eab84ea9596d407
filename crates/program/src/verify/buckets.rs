//! Parameters fill their buckets, and tensors of buckets have their size.

use super::violation::Violation;
use crate::{Bucket, BucketId, Class, Content, Extent, Shape, Tensor, TensorId};

/// Checks the buckets of a class and the tensors that are held of them.
pub(super) fn check(class: &Class, found: &mut Vec<Violation>) {
    for (id, bucket) in class.buckets() {
        let mut wrong = |tensor: &str| {
            let (place, bucket) = (class.place(), bucket.name.clone());
            found.push(Violation::Bucket { place, bucket, tensor: tensor.to_owned() });
        };
        if !is_filled(class, id, bucket) {
            wrong("it");
        }
        // A server that adds what workers' updates have changed has no gradients either.
        let is_delta = |it: &TensorId| class.tensor(*it).content == Content::WeightDelta;
        let is_added_to =
            class.serves().is_some() && bucket.held.replicated.own.iter().any(is_delta);
        if (bucket.is_frozen || is_added_to) == bucket.held.replicated.gradients.is_some() {
            wrong("what says whether it is frozen");
        }
        for tensor in class.tensors.iter().filter(|tensor| tensor.bucket == Some(id)) {
            if !fits(class, tensor, bucket) {
                wrong(&tensor.name);
            }
        }
    }
}

/// Whether a bucket's parameters lie side by side in all of it, each with elements that it has; all of them, but
/// on servers.
fn is_filled(class: &Class, id: BucketId, bucket: &Bucket) -> bool {
    let mut filled = 0;
    for &param in &bucket.params {
        let Some(param) = class.params.get(param.0 as usize) else { return false };
        let whole = param.shape.iter().product();
        let is_part = class.stages.is_empty() || param.is_whole();
        if param.bucket != id || param.offset != filled || param.part.end > whole || !is_part {
            return false;
        }
        filled = param.range().end;
    }
    filled == bucket.elements
}

/// Whether a tensor of a bucket has an element for each of the bucket's, where it should.
fn fits(class: &Class, tensor: &Tensor, bucket: &Bucket) -> bool {
    let flat = match tensor.content {
        Content::Statistics
        | Content::ExtrapolatedWeight
        | Content::OfRank(_)
        | Content::Compressed => return true,
        // A run of rows of a table that is alone in its bucket.
        Content::Rows | Content::Lookups => return tensor.local_shape().len() == 1,
        Content::LookedUp if bucket.held.replicated.rows().is_none() => return false,
        Content::Gradient | Content::LookedUp if bucket.held.replicated.rows().is_some() => {
            let [param] = bucket.params[..] else { return false };
            let own = &class.param(param).shape[1..];
            return tensor.local_shape().get(1..) == Some(&[own.iter().product()]);
        }
        _ => &tensor.shape,
    };
    match flat {
        Shape::Flat(Extent::Exactly(elements)) => *elements == bucket.elements,
        Shape::Flat(Extent::Share) => true,
        Shape::Flat(Extent::SecondShare) => tensor.content == Content::SecondWeight,
        Shape::Flat(Extent::OfParam { param, .. }) => bucket.params.contains(param),
        Shape::Local(_) | Shape::AtMost { .. } => false,
    }
}
