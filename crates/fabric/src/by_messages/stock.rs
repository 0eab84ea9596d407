//! What a member's messages are sent in, at hand before the first is sent.

use std::collections::BTreeMap;

use shardloom_collectives::{Member, StepList};

/// What messages from one member to another are sent in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stock {
    /// How many can be under way at once: sent, and not yet given back.
    pub(crate) messages: usize,
    /// Bytes of the longest.
    pub(crate) bytes: usize,
}

impl Stock {
    /// The least that is enough for either.
    pub(crate) fn or(self, other: Stock) -> Stock {
        Stock { messages: self.messages.max(other.messages), bytes: self.bytes.max(other.bytes) }
    }
}

/// Up to how many members a member follows how far the others are.
const MOST_FOLLOWED: usize = 64;

/// What `own` needs for its messages of a step list to each member that it sends to, with elements of so
/// many bytes, whatever the members' speeds. At its start nothing is under way.
///
/// A message is back once its receiver has completed the step it was sent in. How far others are at
/// least, a member knows from those it has received from, directly or by way of others: vector clocks.
/// Of [many](MOST_FOLLOWED) members that is more work than it saves memory, and no message counts as back.
pub(crate) fn stock(list: &StepList, own: Member, element_bytes: usize) -> BTreeMap<usize, Stock> {
    let members = list.members as usize;
    let follows = members <= MOST_FOLLOWED;
    // By member: how many steps each has completed at least, as this one begins its next.
    let mut known: Vec<Vec<u32>> = if follows { vec![vec![0; members]; members] } else { vec![] };
    let mut before = known.clone();
    let mut sent: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let mut needed: BTreeMap<usize, Stock> = BTreeMap::new();
    for (number, step) in (0u32..).zip(&list.steps) {
        for transfer in step.iter().filter(|transfer| transfer.from == own) {
            let to = transfer.to.0 as usize;
            let sent = sent.entry(to).or_default();
            sent.push(number);
            let back = known.get(own.0 as usize).map_or(0, |known| known[to]);
            let messages = sent.iter().filter(|&&step| step >= back).count();
            let needed = needed.entry(to).or_default();
            *needed = needed.or(Stock { messages, bytes: transfer.source.len() * element_bytes });
        }
        if !follows {
            continue;
        }
        before.clone_from(&known);
        for transfer in step {
            let (from, to) = (transfer.from.0 as usize, transfer.to.0 as usize);
            let news = before[from].iter();
            known[to].iter_mut().zip(news).for_each(|(steps, &news)| *steps = (*steps).max(news));
        }
        for (member, known) in known.iter_mut().enumerate() {
            known[member] = number + 1;
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shardloom_collectives::{Algorithm, Combine, Kind, Transfer, pairs, plan};

    use super::*;

    /// The most messages of each pair that are under way in any order in which members can go on. Each is
    /// at twice the steps it has completed, and one more once it has sent its messages of the next.
    fn most_in_any_order(list: &StepList) -> BTreeMap<(u32, u32), usize> {
        let mut most = BTreeMap::new();
        let start = vec![0; list.members as usize];
        let mut seen = BTreeSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            let is_at = |member: Member| at[member.0 as usize];
            let mut under_way: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            for (number, step) in list.steps.iter().enumerate() {
                for transfer in step {
                    if is_at(transfer.from) > 2 * number && is_at(transfer.to) < 2 * (number + 1) {
                        *under_way.entry((transfer.from.0, transfer.to.0)).or_default() += 1;
                    }
                }
            }
            for (pair, messages) in under_way {
                let most = most.entry(pair).or_default();
                *most = messages.max(*most);
            }
            for (member, &place) in at.iter().enumerate() {
                let Some(step) = list.steps.get(place / 2) else { continue };
                let mut arriving = step.iter().filter(|it| it.to.0 as usize == member);
                if place % 2 == 0 || arriving.all(|it| is_at(it.from) > place - 1) {
                    let mut next = at.clone();
                    next[member] += 1;
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
        most
    }

    #[test]
    fn there_is_one_buffer_for_each_message_that_can_be_under_way_as_long_as_the_longest() {
        for members in 2..5 {
            for (kind, algorithm) in pairs(members, Member(1)) {
                // Where chunks may differ, some do.
                let uneven = plan(kind, algorithm, members, 2 * members as usize + 1);
                let list = uneven.or_else(|_| plan(kind, algorithm, members, 2 * members as usize));
                let list = list.unwrap();
                let most = most_in_any_order(&list);
                for own in 0..members {
                    let found = stock(&list, Member(own), 4);
                    let sent = list.steps.iter().flatten().filter(|it| it.from.0 == own);
                    let mut bytes: BTreeMap<usize, usize> = BTreeMap::new();
                    for it in sent {
                        let longest = bytes.entry(it.to.0 as usize).or_default();
                        *longest = it.source.len().max(*longest / 4) * 4;
                    }
                    let with = |(to, bytes): (usize, usize)| {
                        (to, Stock { messages: most[&(own, to as u32)], bytes })
                    };
                    let expected: BTreeMap<usize, Stock> = bytes.into_iter().map(with).collect();
                    assert_eq!(found, expected, "{own}, {kind:?} by {algorithm:?}");
                }
            }
        }
    }

    #[test]
    fn of_transfers_to_one_member_the_longest_counts_wherever_it_stands() {
        for lengths in [[1, 5, 2], [5, 1, 2], [1, 2, 5]] {
            let transfer = |&length: &usize| Transfer {
                from: Member(0),
                to: Member(1),
                source: 0..length,
                target: 0,
                combine: Combine::Overwrite,
            };
            let steps = lengths.iter().map(|it| vec![transfer(it)]).collect();
            let list = StepList { members: 2, elements: 5, steps };
            let expected = BTreeMap::from([(1, Stock { messages: 3, bytes: 5 * 8 })]);
            assert_eq!(stock(&list, Member(0), 8), expected, "{lengths:?}");
        }
    }

    #[test]
    fn of_many_members_no_message_counts_as_back() {
        let members = MOST_FOLLOWED as u32 + 1;
        let ring = plan(Kind::AllReduce, Algorithm::Ring, members, 8 * MOST_FOLLOWED + 8).unwrap();
        let stock = stock(&ring, Member(3), 4);
        let messages = 2 * MOST_FOLLOWED;
        assert_eq!(stock, BTreeMap::from([(4, Stock { messages, bytes: 4 * 8 })]));
    }

    #[test]
    fn the_messages_of_a_ring_take_no_more_than_what_is_reduced() {
        for members in (2..9).chain([MOST_FOLLOWED as u32]) {
            let ring = plan(Kind::AllReduce, Algorithm::Ring, members, 8 * members as usize);
            let stock = stock(&ring.unwrap(), Member(0), 4);
            let messages = members as usize;
            assert_eq!(stock, BTreeMap::from([(1, Stock { messages, bytes: 4 * 8 })]));
        }
    }
}
