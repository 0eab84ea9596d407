//! A pass over a space: its fastest candidates by estimate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use shardloom_plan::{Arrangement, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Estimate, Estimator};

use crate::edits::arrangement;
use crate::ranking::Ranking;
use crate::space::Space;
use crate::{Request, SearchError};

/// How many times as many candidates as finalists are ranked, to have others where some turn out not to
/// fit.
pub(crate) const RESERVE: usize = 2;

/// How many candidates with backward passes in halves are kept besides, to be tried with updates that are
/// validated afterwards: those gain most where weight gradients end a step.
const VALIDATED: usize = 4;

/// Those kept besides take at most so many times as long as the fastest.
const CLOSE: f64 = 1.05;

/// The fastest candidates of a space, and how much of it was looked at.
pub(crate) struct Scan {
    /// Candidates that were estimated.
    pub evaluated: usize,
    /// Those that cannot be, or not be among the fastest.
    pub bounded_away: usize,
    /// Fastest first.
    pub ranking: Vec<(Candidate, Estimate)>,
    /// Those with backward passes in halves, fastest first.
    pub halves: Vec<(Candidate, Estimate)>,
    /// The fastest with stages on devices in each of the ways there are, fastest first, of those that are close.
    pub arranged: Vec<(Candidate, Estimate)>,
    /// Whether some were left alone only because they take too long.
    pub has_slower: bool,
}

/// What candidates of interest need less than.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The memory of a device; as much is still enough.
    pub bytes: f64,
    /// A step by estimate.
    pub seconds: f64,
}

/// A candidate on its way to an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    /// What it takes at least, as bits: those of positive numbers are in the order of the numbers.
    least_seconds: u64,
    /// Whether that is the closest bound there is.
    close: bool,
    /// Among the candidates of the space.
    index: usize,
}

/// Of two schedules on the same stages the first takes no less time and holds less than the second, where there
/// are as many micro-batches as meshes: it is looked at only where the second does not fit.
const SMALLER: [(ScheduleKind, ScheduleKind); 4] = [
    (ScheduleKind::VHalf, ScheduleKind::ZeroBubbleV),
    (ScheduleKind::VMin, ScheduleKind::VHalf),
    (ScheduleKind::ZeroBubbleOneP, ScheduleKind::ZeroBubbleTwoP),
    (ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2),
];

/// Whether larger schedules take no more time than smaller ones for it.
fn is_paired(candidate: &Candidate) -> bool {
    candidate.microbatches >= candidate.pp
}

/// The candidate of `space` to look at where this one does not fit.
fn smaller(space: &Space, candidate: &Candidate) -> Option<Candidate> {
    let found = SMALLER.iter().find(|(_, larger)| *larger == candidate.schedule);
    let other = Candidate { schedule: found.map(|&(smaller, _)| smaller)?, ..*candidate };
    match space.has(other.schedule) && space.takes(&other) {
        true => Some(other),
        false => smaller(space, &other),
    }
}

/// The schedule that holds more than this one, and is looked at before it.
fn larger(schedule: ScheduleKind) -> Option<ScheduleKind> {
    SMALLER.iter().find(|(smaller, _)| *smaller == schedule).map(|&(_, larger)| larger)
}

/// Whether `space` has the candidate with a schedule after which its own is looked at.
fn has_larger(space: &Space, candidate: &Candidate) -> bool {
    larger(candidate.schedule).is_some_and(|schedule| {
        let other = Candidate { schedule, ..*candidate };
        (space.has(schedule) && space.takes(&other)) || has_larger(space, &other)
    })
}

impl Scan {
    /// The fastest candidates of `space` within `limits`, those with the lowest bounds first: when the next
    /// bound exceeds the estimates of as many as are wanted, no other can be among them.
    pub fn of(
        space: &Space,
        request: &Request,
        limits: Limits,
        estimator: &mut Estimator<'_>,
    ) -> Result<Scan, SearchError> {
        let mut all = vec![];
        let mut waiting = BinaryHeap::new();
        for candidate in space.candidates() {
            let index = all.len();
            all.push(candidate);
            if is_paired(&candidate) && has_larger(space, &candidate) {
                continue;
            }
            let bytes = estimator.least_bytes(&candidate)?;
            if bytes.is_some_and(|it| it <= limits.bytes)
                && let Some(seconds) = estimator.least_seconds(&candidate)?
                && seconds.is_finite()
            {
                let least_seconds = seconds.to_bits();
                waiting.push(Reverse(Waiting { least_seconds, close: false, index }));
            }
        }
        let space_size = all.len();
        let mut evaluated = 0;
        let mut ranking = Ranking::new(RESERVE * request.finalists);
        let mut halves = Ranking::new(VALIDATED);
        let ways = all.iter().map(|it| (arrangement(it.schedule), Ranking::new(1)));
        let mut arranged: BTreeMap<Arrangement, Ranking> = ways.collect();
        let mut has_slower = false;
        while let Some(Reverse(next)) = waiting.pop() {
            let least = f64::from_bits(next.least_seconds);
            if least >= limits.seconds {
                has_slower = true;
                break;
            }
            let close = CLOSE * ranking.best_seconds();
            let of_ways = arranged.values().map(Ranking::threshold_seconds);
            let besides = of_ways.fold(halves.threshold_seconds(), f64::max).min(close);
            if least >= ranking.threshold_seconds().max(besides) {
                break;
            }
            let candidate = all[next.index];
            let of_way = arranged.get(&arrangement(candidate.schedule));
            let of_way = of_way.map_or(0.0, Ranking::threshold_seconds);
            let of_halves = if candidate.halves() { halves.threshold_seconds() } else { 0.0 };
            if least >= ranking.threshold_seconds() && least >= of_way.max(of_halves).min(close) {
                continue;
            }
            let fits = match next.close {
                false => {
                    let bound = estimator.bound(&candidate)?;
                    let bound = bound.filter(|it| it.step_seconds.is_finite());
                    let fits = bound.is_some_and(|it| it.peak_bytes <= limits.bytes);
                    if let Some(bound) = bound.filter(|_| fits) {
                        let least_seconds = bound.step_seconds.to_bits().max(next.least_seconds);
                        waiting.push(Reverse(Waiting { least_seconds, close: true, ..next }));
                    }
                    // Without a bound its layout cannot be, whatever the schedule.
                    fits || bound.is_none()
                }
                true => {
                    evaluated += 1;
                    let estimate = estimator.estimate(&candidate)?;
                    let estimate = estimate.filter(|it| it.step_seconds.is_finite());
                    let fits = estimate.filter(|it| it.peak_bytes <= limits.bytes);
                    if fits.is_some_and(|it| it.step_seconds >= limits.seconds) {
                        has_slower = true;
                    } else if let Some(estimate) = fits {
                        ranking.insert(candidate, estimate);
                        if let Some(way) = arranged.get_mut(&arrangement(candidate.schedule)) {
                            way.insert(candidate, estimate);
                        }
                        if candidate.halves() {
                            halves.insert(candidate, estimate);
                        }
                    }
                    fits.is_some()
                }
            };
            let smaller = || smaller(space, &candidate);
            if let Some(smaller) = (!fits && is_paired(&candidate)).then(smaller).flatten() {
                let index = all.len();
                all.push(smaller);
                waiting.push(Reverse(Waiting { close: false, index, ..next }));
            }
        }
        let bounded_away = space_size - evaluated;
        let close = CLOSE * ranking.best_seconds();
        let arranged = arranged.into_values().flat_map(Ranking::into_ranked);
        let mut arranged: Vec<_> = arranged.filter(|it| it.1.step_seconds <= close).collect();
        arranged.sort_by(|a, b| a.1.step_seconds.total_cmp(&b.1.step_seconds));
        let (ranking, halves) = (ranking.into_ranked(), halves.into_ranked());
        Ok(Scan { evaluated, bounded_away, ranking, halves, arranged, has_slower })
    }
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::Cluster;
    use shardloom_graph::ModelSpec;

    use super::*;

    #[test]
    fn a_scan_ranks_what_estimating_every_candidate_ranks() {
        let text = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=1024";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse("h100-80g:2x4").expect("a preset");
        for finalists in [4, 16, 64] {
            let request = Request { finalists, ..Request::new(text, "c", 32) };
            let space = Space::new(&graph, &cluster, &request).expect("a space");
            let mut estimator =
                Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
            // Enough for some of the candidates only.
            for limit_bytes in [f64::INFINITY, 1e8] {
                let mut looked_at: Vec<(Candidate, Estimate)> = vec![];
                for candidate in space.candidates() {
                    let mut fits = |candidate: &Candidate| {
                        let found = estimator.estimate(candidate).expect("it is estimated");
                        found.filter(|it| it.peak_bytes <= limit_bytes)
                    };
                    let enough = candidate.microbatches >= candidate.pp;
                    let mut larger = larger(candidate.schedule).filter(|_| enough);
                    let mut is_looked_at = true;
                    while let Some(schedule) = larger {
                        is_looked_at &= fits(&Candidate { schedule, ..candidate }).is_none();
                        larger = self::larger(schedule);
                    }
                    let found = fits(&candidate).filter(|_| is_looked_at);
                    looked_at.extend(found.map(|estimate| (candidate, estimate)));
                }
                let mut all: Vec<Estimate> = looked_at.iter().map(|it| it.1).collect();
                let key = |it: &Estimate| (it.step_seconds, it.peak_bytes);
                all.sort_by(|a, b| key(a).partial_cmp(&key(b)).expect("they are numbers"));
                let most = RESERVE * finalists;
                assert!(all.len() > most && all[0].step_seconds < all[most - 1].step_seconds);
                let limits = Limits { bytes: limit_bytes, seconds: f64::INFINITY };
                let scan = Scan::of(&space, &request, limits, &mut estimator).expect("a scan");
                assert!(scan.bounded_away > 0, "nothing was pruned");
                assert_eq!(scan.evaluated + scan.bounded_away, space.count());
                let ranked: Vec<(f64, f64)> = scan.ranking.iter().map(|it| key(&it.1)).collect();
                // Of those as slow as the last any may have got its place.
                let last = all[most - 1].step_seconds;
                let faster = all.iter().map(key).take_while(|it| it.0 < last);
                let faster: Vec<(f64, f64)> = faster.collect();
                assert_eq!(ranked[..faster.len()], faster, "{finalists} in {limit_bytes} bytes");
                let others = &ranked[faster.len()..];
                assert!(ranked.len() == most && others.iter().all(|it| it.0 == last));
                // Where only faster ones are looked for it is these, of fewer estimates.
                let limits = Limits { seconds: last, ..limits };
                let limited = Scan::of(&space, &request, limits, &mut estimator).expect("a scan");
                let found: Vec<(f64, f64)> = limited.ranking.iter().map(|it| key(&it.1)).collect();
                assert!(found == faster && limited.has_slower);
                assert!(limited.evaluated <= scan.evaluated);
                // Of each way to deal stages the fastest is there, if it is close to the fastest of all.
                let ways = scan.arranged.iter().map(|it| (arrangement(it.0.schedule), it.1));
                let ways: Vec<(Arrangement, f64)> =
                    ways.map(|(way, it)| (way, it.step_seconds)).collect();
                let mut expected: BTreeMap<Arrangement, f64> = BTreeMap::new();
                for (candidate, estimate) in &looked_at {
                    let least = expected.entry(arrangement(candidate.schedule));
                    let least = least.or_insert(f64::INFINITY);
                    *least = least.min(estimate.step_seconds);
                }
                expected.retain(|_, seconds| *seconds <= CLOSE * all[0].step_seconds);
                assert!(expected.len() > 1 && ways.is_sorted_by(|a, b| a.1 <= b.1));
                assert_eq!(ways.into_iter().collect::<BTreeMap<_, _>>(), expected);
            }
        }
    }

    /// Of two micro-batches on two meshes only some of each pair of schedules fits, and the smaller is looked at where
    /// the larger does not.
    #[test]
    fn smaller_schedules_are_looked_at_where_larger_ones_do_not_fit_and_only_there() {
        let text = "gpt:layers=6,hidden=256,heads=4,seq=128,vocab=1024";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse("h100-80g:4").expect("a preset");
        for (small, large) in SMALLER {
            let request = Request {
                schedules: vec![small, large],
                finalists: 1000,
                only: crate::Only { pp: Some(2), dp: Some(2), ..crate::Only::default() },
                ..Request::new(text, "c", 32)
            };
            let space = Space::new(&graph, &cluster, &request).expect("a space");
            let mut estimator =
                Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
            let mut peaks = vec![];
            for candidate in space.candidates() {
                let found = estimator.estimate(&candidate).expect("it is estimated");
                peaks.extend(found.map(|it| it.peak_bytes));
            }
            peaks.sort_by(f64::total_cmp);
            for share in [0.1, 0.3, 0.5, 0.7, 0.9] {
                let bytes = peaks[(share * peaks.len() as f64) as usize];
                let limits = Limits { bytes, seconds: f64::INFINITY };
                let scan = Scan::of(&space, &request, limits, &mut estimator).expect("a scan");
                assert_eq!(scan.evaluated + scan.bounded_away, space.count());
                let mut expected = vec![];
                for candidate in space.candidates() {
                    let mut fits = |schedule| {
                        let other = Candidate { schedule, ..candidate };
                        let found = estimator.estimate(&other).expect("it is estimated");
                        found.is_some_and(|it| it.peak_bytes <= bytes)
                    };
                    let is_hidden = candidate.schedule == small
                        && candidate.microbatches >= candidate.pp
                        && fits(large);
                    if fits(candidate.schedule) && !is_hidden {
                        expected.push(candidate);
                    }
                }
                let found: Vec<Candidate> = scan.ranking.iter().map(|(it, _)| *it).collect();
                assert_eq!(found.len(), expected.len(), "{small:?} of {large:?} in {bytes}");
                assert!(expected.iter().all(|it| found.contains(it)), "{small:?} of {large:?}");
            }
        }
    }
}
