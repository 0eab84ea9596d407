//! From when to when each tenant of a rank is there.

use std::collections::HashMap;

use super::{LINE_BYTES, Stay};
use crate::tenant::{Arrival, Tenancy};
use crate::{Class, Program, StreamItem, Tenant};

/// A tenant with the time that it stays, however often its bytes change hands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub birth: Birth,
    /// Its bytes, in whole lines, counted in instructions.
    pub stay: Stay,
    /// Its own bytes.
    pub bytes: u64,
}

/// What brought a tenant in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    /// The entry of the stream, its micro-batch counted from the first of all steps.
    pub item: StreamItem,
    pub step: u32,
    /// Its place in the body.
    pub instruction: u32,
    pub tenant: Tenant,
}

/// Lives on a circle of time.
#[derive(Debug)]
pub(super) struct Timeline {
    pub lives: Vec<Life>,
    pub period: u64,
    /// When entries of the stream begin.
    pub borders: Vec<u64>,
}

impl Timeline {
    /// Training, which repeats after so many `rounds` of the stream, from where all that can be under way
    /// is.
    pub fn training(program: &Program, class: &Class, rounds: u32) -> Timeline {
        let mut walk = Walk::new(program, class);
        // Past the first period all that is in flight has begun, and by the end of the third all that
        // began in the second is over. With a flush each step is over by itself, unless it is validated
        // in the next.
        let overlaps = program.ahead > 0 || class.ends_late();
        let (filling, passes) = if overlaps { (rounds, 3) } else { (0, 1) };
        // What is run once more lies where it lay, which has been left.
        let entries: Vec<&StreamItem> =
            class.stream.iter().filter(|item| !class.repeats(item)).collect();
        for round in 0..rounds * passes {
            walk.recording = (filling..filling + rounds).contains(&round);
            for &&item in &entries {
                let first = round * program.microbatches as u32;
                let microbatch = item.microbatch.map(|it| first + it);
                walk.entry(StreamItem { microbatch, ..item }, round);
            }
        }
        let period = walk.now / u64::from(passes);
        walk.finish(period, overlaps)
    }

    /// The evaluation of one micro-batch.
    pub fn evaluation(program: &Program, class: &Class) -> Timeline {
        let mut walk = Walk::new(program, class);
        walk.recording = true;
        class.evaluation.iter().for_each(|&body| walk.entry(StreamItem::new(body, Some(0)), 0));
        let period = walk.now;
        walk.finish(period, false)
    }
}

/// Follows a stream.
struct Walk<'a> {
    tenancy: Tenancy<'a>,
    /// Instructions so far.
    now: u64,
    /// Whether those that move in now are to be told of.
    recording: bool,
    open: HashMap<Tenant, Open>,
    lives: Vec<Life>,
    /// When entries began.
    entries: Vec<u64>,
}

/// A tenant who is there.
struct Open {
    birth: Birth,
    since: u64,
    bytes: u64,
    recorded: bool,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, class: &'a Class) -> Walk<'a> {
        // Shares differ by an element at most, and the first position's are the largest, but for factored
        // optimizer state.
        let tenancy = Tenancy { program, class, position: 0 };
        let (open, lives, entries) = (HashMap::new(), vec![], vec![]);
        Walk { tenancy, now: 0, recording: false, open, lives, entries }
    }

    fn entry(&mut self, item: StreamItem, step: u32) {
        let StreamItem { body, microbatch, .. } = item;
        let tenancy = self.tenancy;
        self.entries.push(self.now);
        for (instruction, each) in (0u32..).zip(&tenancy.class.body(body).instructions) {
            tenancy.arrivals(each, microbatch, |Arrival { tenant, bytes, from }| {
                if let Some(handed) = from.and_then(|from| self.open.remove(&from)) {
                    self.open.insert(tenant, handed);
                    return;
                }
                let birth = Birth { item, step, instruction, tenant };
                let bytes = self.most_bytes(tenant, bytes);
                let open = || Open { birth, since: self.now, bytes, recorded: self.recording };
                self.open.entry(tenant).or_insert_with(open);
            });
            self.now += 1;
            tenancy.departures(each, microbatch, |tenant| {
                let Some(open) = self.open.remove(&tenant) else { return };
                let Open { birth, since, bytes, recorded } = open;
                if recorded {
                    let length = self.now - since;
                    let lines = bytes.div_ceil(LINE_BYTES) * LINE_BYTES;
                    let stay = Stay { start: since, length, bytes: lines };
                    self.lives.push(Life { birth, stay, bytes });
                }
            });
        }
    }

    /// What a tenant needs that needs `bytes` at the first position, at any.
    fn most_bytes(&self, tenant: Tenant, bytes: u64) -> u64 {
        let Tenancy { program, class, .. } = self.tenancy;
        let Tenant::Backup(bucket) = tenant else { return bytes };
        let positions = 0..class.mesh.size();
        positions.map(|it| class.backup_bytes(program, bucket, it)).fold(bytes, u64::max)
    }

    /// All lives, on a circle of `period` instructions.
    ///
    /// # Panics
    /// If a tenant never leaves: each is freed by its last reader, or by what ends its use.
    fn finish(self, period: u64, overlaps: bool) -> Timeline {
        let Walk { open, mut lives, mut entries, tenancy, .. } = self;
        let forgotten = open.values().find(|it| it.recorded || !overlaps);
        if let Some(Open { birth, .. }) = forgotten {
            panic!("nothing frees {}", tenancy.class.tenant_text(birth.tenant));
        }
        for Life { birth, stay, .. } in &mut lives {
            assert!(
                stay.length <= period,
                "{} outlives its row",
                tenancy.class.tenant_text(birth.tenant)
            );
            // Copies for validation come and go at entries that no step leaves out.
            let of_bucket = !matches!(
                birth.tenant,
                Tenant::Slot(..) | Tenant::Staging(..) | Tenant::Backup(..)
            );
            let block = |moment: u64| entries.partition_point(|&entry| entry <= moment);
            let across = block(stay.start) != block(stay.start + stay.length - 1);
            if overlaps && of_bucket && across {
                // Where filling or draining leaves entries out, another may bring it in or let it go.
                (stay.start, stay.length) = (0, period);
            }
            stay.start %= period;
        }
        entries.retain(|&entry| entry < period);
        entries.dedup();
        if entries.is_empty() {
            entries.push(0);
        }
        Timeline { lives, period: period.max(1), borders: entries }
    }
}
