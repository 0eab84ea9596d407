//! Rows of choices in which every two choices that go together are together in some row.

use std::collections::BTreeSet;

/// The number of a choice among those of its factor.
pub type Row = Vec<usize>;

/// Two factors and their choices; the first factor has the lower number.
pub type Pair = ((usize, usize), (usize, usize));

/// Rows, and the pairs that are in none.
pub struct Covering {
    pub rows: Vec<Row>,
    pub impossible: Vec<Pair>,
}

/// Rows tried for a pair with choices that make as many further pairs as can be, and with any choices.
const GREEDY: usize = 12;
const RANDOM: usize = 400;

/// Covers all pairs of factors with so many choices each, greedily, by rows that are `valid`. Choices that are
/// expected to be `refused` together are only tried where a pair asks for them. The same numbers make the same rows.
pub fn covering(
    choices: &[usize],
    refused: &BTreeSet<Pair>,
    valid: impl Fn(&Row) -> bool,
) -> Covering {
    let mut random = Random(1);
    let (mut rows, mut impossible) = (vec![], vec![]);
    let mut open = all_pairs(choices);
    let nothing = BTreeSet::new();
    while let Some(&pair) = open.first() {
        let mut greedy: Vec<Row> = (0..if refused.contains(&pair) { 0 } else { GREEDY })
            .map(|_| fill(choices, pair, &open, refused, &mut random))
            .collect();
        greedy.sort_by_key(|row| std::cmp::Reverse(gain(row, &open)));
        let found = greedy.into_iter().find(&valid);
        // Rows that have one of the pair are tried with the other: some choices go with so few others that hardly any
        // random row has them.
        let found = found.or_else(|| {
            let mut near = rows.iter().filter_map(|row: &Row| {
                let ((first, one), (second, other)) = pair;
                let mut near = row.clone();
                (near[first], near[second]) = (one, other);
                (row[first] == one || row[second] == other).then_some(near)
            });
            near.find(&valid)
        });
        let found = found.or_else(|| {
            let any = |_| fill(choices, pair, &nothing, &nothing, &mut random);
            (0..RANDOM).map(any).find(&valid)
        });
        match found {
            Some(row) => {
                pairs_of(&row).for_each(|pair| {
                    open.remove(&pair);
                });
                rows.push(row);
            }
            None => {
                open.remove(&pair);
                impossible.push(pair);
            }
        }
    }
    Covering { rows, impossible }
}

/// All pairs, in order.
pub fn all_pairs(choices: &[usize]) -> BTreeSet<Pair> {
    let mut pairs = BTreeSet::new();
    for (second, &of_second) in choices.iter().enumerate() {
        for (first, &of_first) in choices[..second].iter().enumerate() {
            for one in 0..of_first {
                pairs.extend((0..of_second).map(|other| ((first, one), (second, other))));
            }
        }
    }
    pairs
}

fn pairs_of(row: &Row) -> impl Iterator<Item = Pair> {
    (0..row.len())
        .flat_map(move |second| (0..second).map(move |it| ((it, row[it]), (second, row[second]))))
}

fn gain(row: &Row, open: &BTreeSet<Pair>) -> usize {
    pairs_of(row).filter(|pair| open.contains(pair)).count()
}

/// A row with `pair`, factor by factor in any order with the choice that makes most `open` pairs of those that are
/// not `refused` beside what was chosen before; if there are none, of all.
fn fill(
    choices: &[usize],
    pair: Pair,
    open: &BTreeSet<Pair>,
    refused: &BTreeSet<Pair>,
    random: &mut Random,
) -> Row {
    let mut row: Vec<Option<usize>> = vec![None; choices.len()];
    for (factor, choice) in [pair.0, pair.1] {
        row[factor] = Some(choice);
    }
    let mut rest: Vec<usize> = (0..choices.len()).filter(|&it| row[it].is_none()).collect();
    while !rest.is_empty() {
        let factor = rest.swap_remove(random.below(rest.len()));
        let pairs = |choice: usize| {
            let others = row.iter().enumerate().filter_map(|(it, there)| Some((it, (*there)?)));
            others.map(move |other: (usize, usize)| match other.0 < factor {
                true => (other, (factor, choice)),
                false => ((factor, choice), other),
            })
        };
        let first = random.below(choices[factor]);
        let turned = (0..choices[factor]).map(|it| (first + it) % choices[factor]);
        row[factor] = turned.max_by_key(|&choice| {
            let goes = !pairs(choice).any(|pair| refused.contains(&pair));
            (goes, pairs(choice).filter(|pair| open.contains(pair)).count())
        });
    }
    row.into_iter().flatten().collect()
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn every_two_choices_that_go_together_are_in_a_row() {
    // The second factor's last choice goes with no choice of the first but its last.
    let valid = |row: &Row| row[1] != 3 || row[0] == 2;
    let expected = BTreeSet::from([((0, 0), (1, 3))]);
    let Covering { rows, impossible } = covering(&[3, 4, 2, 5], &expected, valid);
    let mut found: BTreeSet<Pair> = rows.iter().flat_map(pairs_of).collect();
    assert_eq!(impossible, [((0, 0), (1, 3)), ((0, 1), (1, 3))]);
    found.extend(impossible);
    assert_eq!(found, all_pairs(&[3, 4, 2, 5]));
    assert!(rows.iter().all(valid));
    assert!((20..28).contains(&rows.len()), "{} rows for at least 20", rows.len());
}
