//! The loop: a cost model proposes strategies, the best are tried, and the model learns from what they took.

use std::collections::HashSet;

use super::features::{OfStrategy, features};
use super::predefined;
use super::problem::Problem;
use super::random::Random;
use super::ranker::{Kind, Ranker};
use super::ranking;
use super::sampler::Sampler;
use super::strategy::Strategy;
use super::trials::{Trial, Trials};
use crate::MethodError;

/// Strategies that are tried before models learn from them.
const ROUND: usize = 10;

/// Strategies that are drawn for a round.
const DRAWN: usize = 160;

/// Of each round the last, drawn and not chosen, so that models see others than those that they like.
const AT_RANDOM: usize = 2;

/// Steps of training after each round, and on the trials of other problems before the first.
const STEPS: (usize, usize) = (10, 120);

/// Rounds by which models are judged.
const JUDGED: usize = 3;

/// What comes of a search.
pub(super) struct Searched {
    /// How many strategies were tried, of which some may have been no plan or not fit.
    pub tried: usize,
    /// How many strategies were drawn.
    pub drawn: usize,
    /// The models in the order of [`Models`], each with the share of pairs that it put in the right order before
    /// it knew them; none where there were no pairs.
    pub accuracies: [Option<f64>; 3],
}

/// The cost models that there are: the predefined one, the linear one and RankRNN.
struct Models {
    trained: [Ranker; 2],
    /// By round and model.
    accuracies: Vec<[Option<f64>; 3]>,
}

impl Models {
    fn new(seed: u64) -> Models {
        let trained = [Kind::Linear, Kind::RankRnn].map(|kind| Ranker::new(kind, seed));
        Models { trained, accuracies: vec![] }
    }

    /// Scores of strategies by each.
    fn scores(&self, problem: &Problem, strategies: &[Strategy]) -> [Vec<f64>; 3] {
        let known: Vec<OfStrategy> = strategies.iter().map(|it| features(problem, it)).collect();
        let [linear, network] = &self.trained;
        let predefined = strategies.iter().map(|it| predefined::seconds(problem, it)).collect();
        [predefined, linear.scores(&known), network.scores(&known)]
    }

    fn fit(&mut self, trials: &[&Trials], steps: usize) {
        self.trained.iter_mut().for_each(|model| model.fit(trials, steps));
    }

    /// How well each has done in the last rounds.
    fn accuracy(&self) -> [Option<f64>; 3] {
        let last = &self.accuracies[self.accuracies.len().saturating_sub(JUDGED)..];
        [0, 1, 2].map(|model| {
            let all: Vec<f64> = last.iter().filter_map(|it| it[model]).collect();
            (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
        })
    }

    /// The one that proposes: that which has put most pairs of the last rounds in the right order before it knew
    /// them; without a round the network if it has learned from other problems, and else the predefined one.
    fn proposer(&self, is_warm: bool) -> usize {
        let accuracy = self.accuracy();
        if accuracy.iter().all(Option::is_none) {
            return if is_warm { 2 } else { 0 };
        }
        let by_accuracy = |one: &usize, other: &usize| {
            let of = |model: usize| accuracy[model].unwrap_or(0.0);
            of(*one).total_cmp(&of(*other))
        };
        // Of equal ones that which would be taken without a round.
        let order: [usize; 3] = if is_warm { [0, 1, 2] } else { [2, 1, 0] };
        order.into_iter().max_by(by_accuracy).unwrap_or(0)
    }
}

/// How strategies are tried.
pub(super) struct Trying<'a> {
    /// Says how long a step with a strategy takes, or that it is no plan that fits.
    pub run: &'a mut dyn FnMut(&Strategy) -> Result<Option<f64>, MethodError>,
    /// Is given all trials after each round, and before the search fails.
    pub keep: &'a mut dyn FnMut(&Trials) -> Result<(), MethodError>,
}

/// Tries so many strategies, those of `begin` first. `known` are earlier trials of the problem, which are not made
/// again, and `others` those of other problems, from which models learn before the first round. All follows from
/// the seed.
///
/// # Errors
/// Those of the trials, of which all that were made before are kept.
pub(super) fn search(
    sampler: &Sampler<'_>,
    begin: Vec<Strategy>,
    known: Trials,
    others: &[Trials],
    (count, seed): (usize, u64),
    Trying { run, keep }: Trying<'_>,
) -> Result<Searched, MethodError> {
    let mut random = Random::new(seed);
    let mut models = Models::new(seed);
    let is_warm = others.iter().any(|it| it.done.len() > 1);
    let others: Vec<&Trials> = others.iter().collect();
    if is_warm {
        models.fit(&others, STEPS.1);
    }
    let mut trials = known;
    let problem = trials.problem.clone();
    if trials.done.len() > 1 {
        models.fit(&[&trials], STEPS.1);
    }
    let mut met: HashSet<Strategy> = trials.done.iter().map(|it| it.strategy.clone()).collect();
    let (mut tried, mut drawn) = (0, 0);
    let mut next: Vec<Strategy> = vec![];
    for strategy in begin {
        if met.insert(strategy.clone()) {
            next.push(strategy);
        }
    }
    loop {
        next.truncate(count - tried);
        let scores = models.scores(&problem, &next);
        let (mut places, mut seconds, mut failure) = (vec![], vec![], None);
        for (place, strategy) in next.iter().enumerate() {
            match run(strategy) {
                Ok(None) => {}
                Ok(Some(took)) => {
                    places.push(place);
                    seconds.push(took);
                    trials.done.push(Trial { strategy: strategy.clone(), seconds: took });
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        keep(&trials)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        tried += next.len();
        let accuracy = |scores: &Vec<f64>| {
            let scores: Vec<f64> = places.iter().map(|&at| scores[at]).collect();
            ranking::accuracy(&scores, &seconds)
        };
        models.accuracies.push([0, 1, 2].map(|model| accuracy(&scores[model])));
        if tried >= count {
            break;
        }
        models.fit(&[&trials], STEPS.0);
        next = propose(sampler, &models, is_warm, &mut met, &mut random);
        drawn += DRAWN;
        if next.is_empty() {
            break;
        }
    }
    Ok(Searched { accuracies: models.accuracy(), tried, drawn })
}

/// The strategies of a round: of those drawn and not met before the best by the model that proposes, and a few
/// others.
fn propose(
    sampler: &Sampler<'_>,
    models: &Models,
    is_warm: bool,
    met: &mut HashSet<Strategy>,
    random: &mut Random,
) -> Vec<Strategy> {
    let mut drawn: Vec<Strategy> = vec![];
    for _ in 0..DRAWN {
        let strategy = sampler.sample(random);
        if !met.contains(&strategy) && !drawn.contains(&strategy) {
            drawn.push(strategy);
        }
    }
    let scores = models.scores(sampler.problem(), &drawn);
    let scores = &scores[models.proposer(is_warm)];
    let mut order: Vec<usize> = (0..drawn.len()).collect();
    order.sort_by(|&one, &other| scores[one].total_cmp(&scores[other]));
    let best = order.len().min(ROUND - AT_RANDOM);
    let mut rest = order.split_off(best);
    for _ in 0..AT_RANDOM.min(rest.len()) {
        order.push(rest.swap_remove(random.below(rest.len())));
    }
    let chosen: Vec<Strategy> = order.into_iter().map(|at| drawn[at].clone()).collect();
    met.extend(chosen.iter().cloned());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(accuracies: &[[Option<f64>; 3]]) -> Models {
        let mut models = Models::new(0);
        models.accuracies = accuracies.to_vec();
        models
    }

    #[test]
    fn models_are_judged_by_the_mean_of_the_last_rounds_that_had_pairs() {
        let rounds =
            [[Some(1.0); 3], [Some(0.5), None, None], [Some(0.25), Some(0.5), None], [None; 3]];
        let first = |count| judged(&rounds[..count]).accuracy();
        assert_eq!(first(0), [None; 3]);
        assert_eq!(first(1), [Some(1.0); 3]);
        assert_eq!(first(2), [Some(0.75), Some(1.0), Some(1.0)]);
        assert_eq!(first(3), [Some(1.75 / 3.0), Some(0.75), Some(1.0)]);
        // The first of four is no more looked at.
        assert_eq!(first(4), [Some(0.375), Some(0.5), None]);
    }

    #[test]
    fn the_model_proposes_that_was_right_most_often_and_of_equal_ones_the_one_to_begin_with() {
        let all = [None, Some(0.25), Some(0.5), Some(1.0)];
        let triples = all.into_iter().flat_map(|a| all.map(|b| [a, b]));
        let triples = triples.flat_map(|[a, b]| all.map(|c| [a, b, c]));
        for triple in triples {
            let right = triple.map(|it| it.unwrap_or(0.0));
            let most = right.into_iter().fold(0.0, f64::max);
            let is_best = |model: &usize| right[*model] == most;
            let models = judged(&[triple]);
            // Without a round that had pairs all are equal.
            let known = triple.iter().any(Option::is_some);
            let best = |order: [usize; 3]| order.into_iter().find(|it| !known || is_best(it));
            assert_eq!(Some(models.proposer(false)), best([0, 1, 2]), "{triple:?}");
            assert_eq!(Some(models.proposer(true)), best([2, 1, 0]), "{triple:?}, warm");
        }
    }
}
