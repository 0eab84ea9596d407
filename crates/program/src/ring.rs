//! Which server holds which range of parameters: consistent hashing with bounded loads.
//!
//! Every server stands at many points of a ring of 2^64 places, and every range at one; a range belongs to the
//! server whose point follows (Karger et al. 1997, STOC). So a server that is added takes ranges from the others,
//! and one that is removed leaves its own to them. Hashes deal unevenly: a server that has
//! [its most](MOST_LOAD) takes no further range, which goes on to the next (Mirrokni et al. 2018, SODA); that moves
//! some more, in all at most about 1.6 shares as tested. Ranges are known by their numbers: cut into others, all
//! may move.

use std::collections::BTreeMap;

/// How many points each server has: what they deal to servers differs by a twelfth or so of its mean.
const POINTS: u64 = 128;

/// The multiple of an equal share from which on a server takes no further range, as a fraction. So none has more
/// than that and one range.
const MOST_LOAD: (u128, u128) = (9, 8);

/// Servers on a ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Where servers stand, ascending.
    points: Vec<(u64, u32)>,
    servers: usize,
}

impl Ring {
    /// The ring of these servers, each of which is there once.
    pub fn of(servers: impl IntoIterator<Item = u32>) -> Ring {
        let mut points = vec![];
        let mut count = 0;
        for server in servers {
            count += 1;
            let key = mixed(u64::from(server) + 1);
            points.extend((0..POINTS).map(|number| (mixed(key ^ mixed(number)), server)));
        }
        points.sort_unstable();
        Ring { points, servers: count }
    }

    /// The server of each of some ranges, of which these are the sizes. No server has more than 9/8 of an equal
    /// share and one range, and each has one if there are as many ranges as servers.
    ///
    /// # Panics
    /// If there are ranges and no server.
    pub fn owners(&self, sizes: &[usize]) -> Vec<u32> {
        let total: u128 = sizes.iter().map(|&size| size as u128).sum();
        let is_full = |load: u128| {
            let (most, of) = MOST_LOAD;
            load > 0 && load * self.servers as u128 * of >= total * most
        };
        // How much of what each has, and how many ranges.
        let mut loads: BTreeMap<u32, (u128, usize)> =
            self.points.iter().map(|&(_, server)| (server, (0, 0))).collect();
        let mut owners = vec![];
        for (range, &size) in sizes.iter().enumerate() {
            let mut followers = self.followers(place(range));
            let server = followers.find(|server| !is_full(loads[server].0));
            let server = server.expect("not all servers have more than an equal share");
            let load = loads.get_mut(&server).expect("it is on the ring");
            *load = (load.0 + size as u128, load.1 + 1);
            owners.push(server);
        }
        // A server that the hashes leave nothing takes the range that follows it from one that has several.
        let idle: Vec<u32> = loads.iter().filter(|(_, it)| it.1 == 0).map(|(&it, _)| it).collect();
        for server in idle {
            let first = self.points.iter().find(|&&(_, other)| other == server);
            let first = first.expect("it is on the ring").0;
            let spare = (0..owners.len()).filter(|&range| loads[&owners[range]].1 > 1);
            let Some(range) = spare.min_by_key(|&range| place(range).wrapping_sub(first)) else {
                break;
            };
            loads.get_mut(&owners[range]).expect("it is on the ring").1 -= 1;
            loads.get_mut(&server).expect("it is on the ring").1 += 1;
            owners[range] = server;
        }
        owners
    }

    /// The servers that follow the owner of a range, from the nearest on, each once: those that have its replicas
    /// (Li et al. 2014, OSDI, section 4.3).
    pub fn successors(&self, range: usize, owner: u32) -> Vec<u32> {
        let mut order: Vec<u32> = vec![];
        for server in self.followers(place(range)) {
            if !order.contains(&server) {
                order.push(server);
            }
        }
        let own = order.iter().position(|&server| server == owner);
        order.rotate_left(own.map_or(0, |own| own));
        order.retain(|&server| server != owner);
        order
    }

    /// The servers from a place on, each as often as it has points.
    fn followers(&self, place: u64) -> impl Iterator<Item = u32> + '_ {
        let first = self.points.partition_point(|&(point, _)| point < place);
        let (before, after) = self.points.split_at(first);
        after.iter().chain(before).map(|&(_, server)| server)
    }
}

/// Where a range stands.
fn place(range: usize) -> u64 {
    mixed(!(range as u64))
}

/// A hash of a number (the finaliser of SplitMix64, Steele et al. 2014, OOPSLA).
pub(crate) fn mixed(number: u64) -> u64 {
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_what_follows_from_them_never_change() {
        // The first two numbers of SplitMix64 from 0, as published.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mixed(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
        let owners = Ring::of(0..3).owners(&[4; 12]);
        assert_eq!(owners, [0, 1, 0, 0, 0, 0, 2, 2, 2, 1, 1, 1]);
    }
}
