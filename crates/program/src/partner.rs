//! Whom a replica fetches weights from.

use crate::ring::mixed;
use crate::{ClassId, Group, Program, Rank};

impl Program {
    /// The rank of a group whose weights `position` of a class fetches in a step, counted from 0 since the start of
    /// the run. Members are drawn alike, by a hash of the step and the place in the group, so that all runs and
    /// simulations of a plan have the same partners; who draws itself takes the next member (KungFu, Mai et al.
    /// 2020, `get_random_peer`).
    pub fn partner(&self, class: ClassId, position: usize, group: &Group, step: u64) -> Rank {
        let members = self.members(class, position, group);
        let own = Rank(self.class(class).first_rank.0 + position as u32);
        let place = members.iter().position(|&member| member == own);
        let place = place.expect("a rank is in the groups that it acts in");
        members[partner(step, place, members.len())]
    }
}

/// Which of so many members the one at `own` takes in a step.
fn partner(step: u64, own: usize, members: usize) -> usize {
    let hash = u128::from(mixed(mixed(step) ^ own as u64));
    // Its high bits are a fraction of one.
    let drawn = ((hash * members as u128) >> 64) as usize;
    if drawn == own { (own + 1) % members } else { drawn }
}

#[cfg(test)]
mod tests {
    use super::partner;

    #[test]
    fn each_member_is_drawn_alike_and_the_next_also_for_oneself() {
        const STEPS: u64 = 20_000;
        for members in [2, 3, 8] {
            for own in 0..members {
                let mut times = vec![0_u32; members];
                (0..STEPS).for_each(|step| times[partner(step, own, members)] += 1);
                for (other, &times) in times.iter().enumerate() {
                    let shares = match other {
                        _ if other == own => 0,
                        _ if other == (own + 1) % members => 2,
                        _ => 1,
                    };
                    let expected = f64::from(shares) * STEPS as f64 / members as f64;
                    // Five standard deviations.
                    let most = 5.0 * expected.sqrt();
                    assert!((f64::from(times) - expected).abs() <= most, "{own}: {times}");
                }
            }
        }
    }

    #[test]
    fn members_draw_apart_and_steps_too() {
        let draws =
            |own: usize| (0..64).map(move |step| partner(step, own, 1000)).collect::<Vec<_>>();
        assert_ne!(draws(3), draws(4));
        let mut first = draws(3);
        first.sort_unstable();
        first.dedup();
        assert!(first.len() > 55, "{first:?}");
        // Plans that were simulated come to the same in later versions.
        assert_eq!(draws(0)[..4], [652, 368, 392, 737]);
    }
}
