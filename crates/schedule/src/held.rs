//! What a device holds from slot to slot, while its passes move into earlier slots.

/// What a slot of a device is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing; or the oldest weight gradients that wait, where these have no slots of their own.
    Idle,
    /// A forward pass, which holds activations from then on.
    Forward,
    /// Input gradients, after which weight gradients of the same activations can run.
    Gradients,
    /// Weight gradients, which free activations.
    Weights,
}

/// What a device has on its hands between two slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Activations of a stage.
    held: usize,
    /// Those of them that only weight gradients still need.
    waiting: usize,
}

/// The slots of a device, with what it holds after each.
pub(super) struct Held {
    uses: Vec<Use>,
    /// Whether weight gradients have slots of their own.
    placed: bool,
    /// The state after each slot, for as many as are known.
    after: Vec<State>,
    /// Slots whose state was computed.
    #[cfg(test)]
    computed: std::cell::Cell<usize>,
}

impl Held {
    /// A device that uses its slots so. Weight gradients take idle slots if none of them has one.
    pub fn new(uses: Vec<Use>) -> Held {
        let placed = uses.contains(&Use::Weights);
        Held {
            uses,
            placed,
            after: vec![],
            #[cfg(test)]
            computed: std::cell::Cell::new(0),
        }
    }

    /// The most activations that are held at a time.
    pub fn most(&mut self) -> usize {
        self.know(self.uses.len());
        self.after.iter().map(|state| state.held).max().unwrap_or(0)
    }

    /// Moves what uses `slot` into the earliest idle slot from `first` on with which no more than `limit`
    /// activations are held. It stays where there is none. Returns its slot.
    ///
    /// No more than `limit` may be held before, and what uses later slots has not moved yet. What is held after
    /// `slot` only gets less: later weight gradients find as many idle slots as before, and more to do.
    pub fn move_forward(&mut self, first: usize, slot: usize, limit: usize) -> usize {
        self.know(slot);
        let moved = self.uses[slot];
        let mut from = first;
        while let Some(place) = (from..slot).find(|&place| self.uses[place] == Use::Idle) {
            match self.first_above(place, slot, limit) {
                // In every idle slot up to there at least as much would be held by then.
                Some(full) => from = full + 1,
                None => {
                    self.uses[place] = moved;
                    self.uses[slot] = Use::Idle;
                    self.after.truncate(place);
                    return place;
                }
            }
        }
        slot
    }

    /// The first slot up to `slot` in which more than `limit` is held if what uses `slot` moves to `place`.
    fn first_above(&self, place: usize, slot: usize, limit: usize) -> Option<usize> {
        let mut state = self.before(place);
        (place..=slot).find(|&at| {
            let used = match at {
                _ if at == place => self.uses[slot],
                _ if at == slot => Use::Idle,
                _ => self.uses[at],
            };
            state = self.next(state, used);
            state.held > limit
        })
    }

    /// Computes the states after the first `slots` slots.
    fn know(&mut self, slots: usize) {
        for slot in self.after.len()..slots {
            let state = self.next(self.before(slot), self.uses[slot]);
            self.after.push(state);
        }
    }

    fn before(&self, slot: usize) -> State {
        slot.checked_sub(1).map_or_else(State::default, |before| self.after[before])
    }

    /// The state after a slot that is used so.
    fn next(&self, State { held, waiting }: State, used: Use) -> State {
        #[cfg(test)]
        self.computed.set(self.computed.get() + 1);
        match used {
            Use::Forward => State { held: held + 1, waiting },
            Use::Gradients => State { held, waiting: waiting + 1 },
            Use::Weights => State { held: held - 1, waiting },
            Use::Idle if !self.placed && waiting > 0 => {
                State { held: held - 1, waiting: waiting - 1 }
            }
            Use::Idle => State { held, waiting },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The most that is held with slots used so, counted from the start.
    fn most(uses: &[Use]) -> usize {
        Held::new(uses.to_vec()).most()
    }

    /// The move by its definition: every idle slot is tried, and everything counted anew.
    fn tried(uses: &mut [Use], first: usize, slot: usize, limit: usize) -> usize {
        for place in first..slot {
            if uses[place] == Use::Idle {
                uses.swap(place, slot);
                if most(uses) <= limit {
                    return place;
                }
                uses.swap(place, slot);
            }
        }
        slot
    }

    /// A row of forwards, gradients and idle slots, in which as many gradients as forwards follow forwards; with
    /// weight gradients in slots of their own or without.
    fn any_row() -> impl Strategy<Value = Vec<Use>> {
        (prop::collection::vec(0..6u8, 1..60), any::<bool>()).prop_map(|(draws, placed)| {
            let (mut forward, mut waiting) = (0, 0);
            let used = |draw: u8| match draw {
                0 | 1 => {
                    forward += 1;
                    Use::Forward
                }
                2 if forward > 0 => {
                    forward -= 1;
                    waiting += 1;
                    Use::Gradients
                }
                3 if placed && waiting > 0 => {
                    waiting -= 1;
                    Use::Weights
                }
                _ => Use::Idle,
            };
            draws.into_iter().map(used).collect()
        })
    }

    proptest! {
        #[test]
        fn passes_move_to_where_trying_every_slot_puts_them(uses in any_row(), reach in 1..20usize) {
            let limit = most(&uses);
            let (mut held, mut uses) = (Held::new(uses.clone()), uses);
            for slot in 0..uses.len() {
                // Forwards may move anywhere; what frees something not before what it frees.
                let first = match uses[slot] {
                    Use::Idle => continue,
                    Use::Forward => slot.saturating_sub(reach),
                    Use::Gradients => last(&uses[..slot], Use::Forward),
                    Use::Weights => last(&uses[..slot], Use::Gradients),
                };
                let place = held.move_forward(first, slot, limit);
                prop_assert_eq!(place, tried(&mut uses, first, slot, limit));
                prop_assert_eq!(&held.uses, &uses);
            }
        }
    }

    /// Behind the last slot that is used so.
    fn last(uses: &[Use], used: Use) -> usize {
        uses.iter().rposition(|&it| it == used).map_or(0, |at| at + 1)
    }

    #[test]
    fn a_move_looks_at_each_slot_that_it_passes_only_a_few_times() {
        // Full up to its last slot, so that none of many idle slots will do.
        let idle = 10_000;
        let uses: Vec<Use> = [Use::Forward].into_iter().chain(vec![Use::Idle; idle]).collect();
        let uses: Vec<Use> =
            uses.into_iter().chain([Use::Gradients, Use::Idle, Use::Forward]).collect();
        let slot = uses.len() - 1;
        let mut held = Held::new(uses);
        assert_eq!(held.move_forward(1, slot, 1), slot);
        assert!(held.computed.get() <= 3 * slot, "{} states for {slot} slots", held.computed.get());
    }
}
