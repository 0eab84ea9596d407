//! A bound on how many steps workers of parameter servers may be ahead of the slowest, that follows how far apart they
//! were: stale synchronous parallel training (Ho et al. 2013, NIPS) with another bound in each row of steps. The rule
//! is this program's own.

use shardloom_checkpoint::Meta;
use shardloom_plan::{Plan, Staleness};

use crate::{Error, Result};

/// The share of a row's fetches above which so many were held back that the bound is loosened.
const HELD_SHARE: f64 = 0.1;

/// How far apart workers were in a row of steps, counted from the order in which servers answered them, and so the same
/// under every clock. Of several servers, each of which answers by itself, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// How many times a worker that had ended a step was to get the weights for another of the row.
    pub fetches: u64,
    /// How many of these had to wait for the gradients of others, as the worker was further ahead of the slowest than
    /// the bound.
    pub held: u64,
    /// The most steps that a worker was ahead of the slowest when it had ended a step, but the row's last.
    pub farthest: u32,
}

impl Distances {
    /// Adds those of a row of so many steps of one server, which has answered so many workers in this order. Nothing
    /// if it has not answered each of them twice a step.
    pub fn add(self, answers: &[u32], workers: usize, steps: u32, bound: u32) -> Option<Distances> {
        let Distances { mut fetches, mut held, mut farthest } = self;
        // By worker: its steps that were ended, and after which it has got the weights.
        let (mut ended, mut sent) = (vec![0_u32; workers], vec![0_u32; workers]);
        for &worker in answers {
            let worker = worker as usize;
            if ended.get(worker)? > &sent[worker] {
                sent[worker] += 1;
                continue;
            }
            ended[worker] += 1;
            if ended[worker] >= steps {
                continue;
            }
            let ahead = ended[worker] - ended.iter().min()?;
            fetches += 1;
            held += u64::from(ahead > bound);
            farthest = farthest.max(ahead);
        }
        let is_whole = ended.iter().chain(&sent).all(|&count| count == steps);
        is_whole.then_some(Distances { fetches, held, farthest })
    }

    /// The share of fetches that were held back.
    pub fn held_share(&self) -> f64 {
        if self.fetches == 0 { 0.0 } else { self.held as f64 / self.fetches as f64 }
    }
}

/// A bound that changes between rows of steps, within limits. After each row:
///
/// - Where more than a tenth of the fetches were held back by the bound, and the mean loss of the row is not above
///   that of the row before (or there is none), it is loosened by one step.
/// - Where none was held back, it is tightened to the most steps that a worker was ahead by: under that bound the row
///   would have held back none either.
/// - Otherwise it stays; so it does after a row in which no worker fetched weights, as one of a single step.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayBound {
    least: u32,
    most: u32,
    /// The bound of the next row.
    next: u32,
    /// The mean loss of the last.
    loss: Option<f64>,
}

/// A bound that has become another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundChange {
    /// The first step that has the new one.
    pub step: u64,
    /// The bound before, in steps.
    pub from: u32,
    /// The bound from then on, in steps.
    pub to: u32,
    /// How far apart workers were in the row of steps before.
    pub distances: Distances,
}

/// Keys in a checkpoint's extra entries.
const BOUND: &str = "staleness.bound";
const LOSS: &str = "staleness.loss";

impl DelayBound {
    /// A bound within these limits that begins as the plan has it.
    ///
    /// # Errors
    /// If the plan has no parameter servers, the limits are no range from 1 on, or the plan's bound is outside.
    pub fn new(least: u32, most: u32, plan: &Plan) -> Result<DelayBound> {
        let refuse = |reason: String| Err(Error::Unsupported { reason });
        let limits = format!("a bound on staleness within {least} and {most}");
        let Some(servers) = plan.sync.servers else {
            return refuse(format!(
                "{limits} is for workers of parameter servers (sync.servers), of which the plan has none"
            ));
        };
        if least == 0 || most < least {
            return refuse(format!(
                "{limits}: from 1 step on, the lesser first; with 0 servers wait for all workers in every step, and \
                 nothing tells how far apart they would be"
            ));
        }
        match servers.staleness {
            Staleness::Within(next) if (least..=most).contains(&next) => {
                Ok(DelayBound { least, most, next, loss: None })
            }
            other => refuse(format!(
                "{limits} begins with the plan's, which is {other} (sync.servers.staleness); set that to one of them"
            )),
        }
    }

    /// The bound of the next row of steps.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Takes in a row that had this bound: how far apart workers were, and the mean loss.
    pub fn note(&mut self, row: &Distances, loss: f64) {
        let is_worse = self.loss.is_some_and(|before| loss.is_nan() || loss > before);
        self.loss = Some(loss);
        if row.fetches == 0 {
            return;
        }
        let bound = match row.held {
            0 => row.farthest.min(self.next),
            _ if row.held_share() > HELD_SHARE && !is_worse => self.next.saturating_add(1),
            _ => self.next,
        };
        self.next = bound.clamp(self.least, self.most);
    }

    /// Notes it in a checkpoint.
    pub(crate) fn write(&self, meta: &mut Meta) {
        meta.extra.insert(BOUND.into(), self.next.to_string());
        if let Some(loss) = self.loss {
            meta.extra.insert(LOSS.into(), loss.to_string());
        }
    }

    /// Goes on from a checkpoint that has one, from the nearest within the limits.
    pub(crate) fn read(&mut self, meta: &Meta) {
        let bound = meta.extra.get(BOUND).and_then(|it| it.parse::<u32>().ok());
        self.next = bound.map_or(self.next, |bound| bound.clamp(self.least, self.most));
        self.loss = meta.extra.get(LOSS).and_then(|it| it.parse().ok());
    }
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Servers, Sync, Uniform};

    use super::*;

    fn plan(staleness: Option<Staleness>) -> Plan {
        let spec = ModelSpec::parse("mlp:inputs=4,hidden=8,layers=2,classes=2").expect("a model");
        let servers = staleness.map(|staleness| Servers::of(1, staleness));
        let sync = Sync { servers, ..Sync::default() };
        let uniform = Uniform { mesh: Mesh::of(2, 1, 1), sync, ..Uniform::default() };
        uniform.plan(&spec.graph().expect("a model"), "model", "local")
    }

    fn bound(least: u32, most: u32, from: u32) -> DelayBound {
        DelayBound::new(least, most, &plan(Some(Staleness::Within(from)))).expect("within")
    }

    fn row(fetches: u64, held: u64, farthest: u32) -> Distances {
        Distances { fetches, held, farthest }
    }

    #[test]
    fn distances_are_counted_from_the_order_of_answers() {
        let of = |answers: &[u32], bound| Distances::default().add(answers, 2, 3, bound);
        // In turn: nobody is ever more than a step ahead.
        let in_turn = [0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1];
        assert_eq!(of(&in_turn, 1), Some(row(4, 0, 1)));
        // The first ends two steps, is held after the second, and gets the weights once the other has ended one.
        let held = [0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1];
        assert_eq!(of(&held, 1), Some(row(4, 1, 2)));
        // Under a wider bound that order is one in which nobody waited for it.
        assert_eq!(of(&held, 2), Some(row(4, 0, 2)));
        // Of two servers.
        let both =
            Distances::default().add(&in_turn, 2, 3, 1).and_then(|it| it.add(&held, 2, 3, 1));
        assert_eq!(both, Some(row(8, 1, 2)));
        // Rows that lack an answer, or have one of somebody else.
        for wrong in [&in_turn[1..], &[0, 0, 2, 2], &[]] {
            assert_eq!(of(wrong, 1), None, "{wrong:?}");
        }
        // In a row of one step nobody fetches weights for another.
        assert_eq!(Distances::default().add(&[0, 1, 0, 1], 2, 1, 1), Some(row(0, 0, 0)));
    }

    #[test]
    fn it_is_loosened_where_many_are_held_back_and_the_loss_does_not_rise() {
        let mut it = bound(1, 3, 1);
        let mut after = |held, loss| {
            it.note(&row(100, held, 4), loss);
            it.next()
        };
        assert_eq!(after(10, 5.0), 1, "a tenth is not more than a tenth");
        assert_eq!(after(11, 5.0), 2, "it has not risen");
        assert_eq!(after(50, 5.1), 2, "it has risen");
        assert_eq!(after(50, f64::NAN), 2, "it is no number");
        assert_eq!(after(50, 5.0), 3, "nothing is known of whether it has risen");
        assert_eq!(after(50, 4.0), 3, "that is the most");
    }

    #[test]
    fn it_is_tightened_to_what_workers_were_apart_where_none_was_held_back() {
        let mut it = bound(2, 9, 8);
        let mut after = |held, farthest| {
            it.note(&row(100, held, farthest), 1.0);
            it.next()
        };
        assert_eq!(after(1, 9), 8, "one was held back");
        assert_eq!(after(0, 8), 8, "one was that far ahead");
        assert_eq!(after(0, 5), 5);
        assert_eq!(after(0, 0), 2, "that is the least");
        it.note(&Distances::default(), 1.0);
        assert_eq!(it.next(), 2, "nothing is known");
    }

    /// A row of workers of which one is twice as fast holds it back again and again; two that are alike do not.
    #[test]
    fn rows_of_made_up_orders_lead_to_their_bound() {
        let mut it = bound(1, 4, 1);
        let mut bounds = vec![];
        for (row, fast) in [2, 2, 2, 2, 1, 1].into_iter().enumerate() {
            let order = ordered(12, fast, it.next());
            let distances = Distances::default().add(&order, 2, 12, it.next()).expect("a row");
            it.note(&distances, 1.0 - row as f64 / 100.0);
            bounds.push(it.next());
        }
        assert_eq!(bounds, [2, 3, 4, 4, 1, 1]);
    }

    /// The answers to two workers of which the first ends `fast` steps while the other ends one, as far as it may.
    fn ordered(steps: u32, fast: u32, bound: u32) -> Vec<u32> {
        let (mut ended, mut sent, mut answers) = ([0_u32; 2], [0_u32; 2], vec![]);
        while sent.iter().any(|&sent| sent < steps) {
            for (worker, times) in [(0, fast), (1, 1)] {
                for _ in 0..times {
                    if ended[worker] == sent[worker] && ended[worker] < steps {
                        ended[worker] += 1;
                        answers.push(worker as u32);
                    }
                    for (other, sent) in sent.iter_mut().enumerate() {
                        let bound = if ended[other] == steps { 0 } else { bound };
                        let last = ended[0].min(ended[1]);
                        if *sent < ended[other] && ended[other] <= last + bound {
                            *sent += 1;
                            answers.push(other as u32);
                        }
                    }
                }
            }
        }
        answers
    }

    #[test]
    fn it_goes_on_from_a_checkpoint_within_its_limits() {
        let mut it = bound(1, 9, 1);
        it.note(&row(10, 9, 4), 0.1);
        it.note(&row(10, 9, 4), 1.0 / 3.0);
        let mut meta = Meta::default();
        it.write(&mut meta);
        let mut read = bound(1, 9, 5);
        read.read(&meta);
        assert_eq!(read, it);
        let mut narrower = bound(4, 9, 5);
        narrower.read(&meta);
        assert_eq!((narrower.next(), narrower.loss), (4, it.loss));
        // Of a run that had none it takes nothing.
        narrower.read(&Meta::default());
        assert_eq!((narrower.next(), narrower.loss), (4, None));
    }

    #[test]
    fn a_bound_is_taken_at_both_limits_and_refused_beyond_them() {
        for (least, most, from) in (0..5 * 5 * 5).map(|it| (it / 25, it / 5 % 5, it % 5)) {
            let made = DelayBound::new(least, most, &plan(Some(Staleness::Within(from))));
            // In order, with no step at which servers wait for all.
            let mut ordered = [least, from, most];
            ordered.sort_unstable();
            let is_within = least > 0 && ordered == [least, from, most];
            let next = made.ok().map(|it| it.next());
            assert_eq!(next, is_within.then_some(from), "{from} within {least} and {most}");
        }
    }

    #[test]
    fn plans_without_such_a_bound_and_limits_that_are_none_are_refused() {
        let within = |steps| Some(Staleness::Within(steps));
        for (least, most, staleness, expected) in [
            (1, 4, None, "of which the plan has none"),
            (0, 4, within(1), "from 1 step on"),
            (4, 2, within(3), "the lesser first"),
            (1, 4, within(0), "which is 0"),
            (1, 4, within(5), "which is 5"),
            (1, 4, Some(Staleness::Unbounded), "which is unbounded"),
        ] {
            let error = DelayBound::new(least, most, &plan(staleness)).expect_err("refused");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
