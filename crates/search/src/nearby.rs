//! Another global batch, close to the one asked for, that machines divide better.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;

use crate::auto::{Finalist, SearchCounts, fastest};
use crate::judge::unless_too_large;
use crate::search::Search;
use crate::{Request, SearchError};

/// How far a batch may be from the one asked for, as a share of that.
const CLOSE: f64 = 0.125;

/// By how much samples a second have to grow for another batch to be worth a word.
const WORTH: f64 = 1.02;

/// What a reader should know if a step of about as many samples as asked for trains more of them a second
/// than the plan that was found, which takes `step_seconds`.
///
/// # Errors
/// As [`Search::of`].
pub(crate) fn note(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    step_seconds: f64,
    counts: &mut SearchCounts,
) -> Result<Option<String>, SearchError> {
    let Some(global_batch) = divided(cluster.device_count() as usize, request.global_batch) else {
        return Ok(None);
    };
    let other = Request { global_batch, ..request.clone() };
    let mut search = Search::of(graph, cluster, &other)?;
    let Some(finalists) = unless_too_large(search.finalists(&[]))? else { return Ok(None) };
    counts.add(&search, finalists.len());
    let rate = |found: &Finalist| global_batch as f64 / found.step_seconds();
    let asked_rate = request.global_batch as f64 / step_seconds;
    let found = fastest(&finalists, cluster, request, &[]);
    let found = found.filter(|it| rate(it) > WORTH * asked_rate);
    Ok(found.map(|found| {
        format!(
            "with {global_batch} samples a step instead of {}, {} devices would train {:.0}% more samples \
             a second",
            request.global_batch,
            found.plan.device_count(),
            100.0 * (rate(&found) / asked_rate - 1.0)
        )
    }))
}

/// The batch next to `asked` that the largest part of `devices` divides for which there is one close to it;
/// none if they divide `asked` as well.
fn divided(devices: usize, asked: usize) -> Option<usize> {
    let parts = (0..usize::BITS).map(|power| devices >> power).take_while(|&part| part > 0);
    let whole = parts.enumerate().take_while(|(power, part)| part << power == devices);
    let near = whole.map(|(_, part)| ((asked + part / 2) / part).max(1) * part);
    let close = |&batch: &usize| batch.abs_diff(asked) as f64 <= CLOSE * asked as f64;
    let mut near = near.filter(close);
    near.next().filter(|&batch| batch != asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_batch_that_most_devices_divide_is_proposed() {
        for (devices, asked, expected) in [
            (992, 1024, Some(992)),
            (1024, 1000, Some(1024)),
            (1024, 1024, None),
            (64, 100, Some(96)),
            (16384, 2048, None),
            (7, 2, None),
            (24, 64, Some(72)),
        ] {
            assert_eq!(divided(devices, asked), expected, "{asked} on {devices}");
        }
    }
}
