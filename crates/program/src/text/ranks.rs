//! Lists of ranks, short however many they are.

use crate::Rank;

/// More ranks than these are given by their first, second and last where they are evenly spaced.
const LISTED: usize = 8;

/// `rank 3`, `ranks 0 2`, `ranks 0 8 .. 120 (16 ranks)`.
pub(super) fn ranks(ranks: &[Rank]) -> String {
    let list = |some: &[Rank]| some.iter().map(|it| it.0.to_string()).collect::<Vec<_>>().join(" ");
    match ranks {
        [one] => format!("rank {}", one.0),
        all if all.len() <= LISTED => format!("ranks {}", list(all)),
        all => runs(all, list),
    }
}

/// Evenly spaced runs, each with its length; what is no run is listed.
fn runs(all: &[Rank], list: impl Fn(&[Rank]) -> String) -> String {
    let mut parts = vec![];
    let mut rest = all;
    while !rest.is_empty() {
        let step = |pair: &[Rank]| i64::from(pair[1].0) - i64::from(pair[0].0);
        let even = rest.windows(2).take_while(|pair| step(pair) == step(rest)).count() + 1;
        let (run, after) = rest.split_at(even.min(rest.len()));
        match run {
            [first, second, .., last] if run.len() > 3 => {
                parts.push(format!("{} {} .. {}", first.0, second.0, last.0));
            }
            _ => parts.push(list(run)),
        }
        rest = after;
    }
    format!("ranks {} ({} ranks)", parts.join(" "), all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(numbers: impl IntoIterator<Item = u32>) -> String {
        ranks(&numbers.into_iter().map(Rank).collect::<Vec<_>>())
    }

    #[test]
    fn few_ranks_are_listed() {
        assert_eq!(text([3]), "rank 3");
        assert_eq!(text([0, 2, 7]), "ranks 0 2 7");
    }

    #[test]
    fn many_ranks_are_given_by_the_ends_of_their_runs() {
        assert_eq!(text(0..16), "ranks 0 1 .. 15 (16 ranks)");
        assert_eq!(text((0..128).step_by(8)), "ranks 0 8 .. 120 (16 ranks)");
        let threes = (0..18).filter(|rank| rank % 6 < 3);
        assert_eq!(text(threes), "ranks 0 1 2 6 7 8 12 13 14 (9 ranks)");
        let without = (0..16).filter(|&rank| rank != 5);
        assert_eq!(text(without), "ranks 0 1 .. 4 6 7 .. 15 (15 ranks)");
    }
}
