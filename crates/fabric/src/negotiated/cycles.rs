use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use shardloom_collectives::{Algorithm, Kind, Member, Reduction, fused};

use super::{Fusible, Negotiation, Pending, Request};
use crate::{Collective, Completed, FabricError, Format, Group, Lent, ViewMut};

/// Marks the last request of a list in an answer.
const LAST: u32 = 1 << 31;

/// The member that coordinates.
const FIRST: Member = Member(0);

/// Where several requests' elements lie side by side.
struct Room<B> {
    format: Format,
    elements: usize,
    /// None while it is lent.
    buffer: Option<B>,
}

impl<B: Lent> Room<B> {
    fn new(mut buffer: B) -> Self {
        let (mut format, mut elements) = (Format::U8, 0);
        buffer.lend(&mut |view| {
            format = view.format();
            elements = view.elements();
        });
        Self { format, elements, buffer: Some(buffer) }
    }
}

/// What a thread that negotiates has.
pub(super) struct Cycles<B> {
    group: Box<dyn Group<B>>,
    negotiation: Negotiation,
    /// None while it is lent.
    told: Option<B>,
    side_by_side: Vec<Room<B>>,
    began: Option<Instant>,
    /// Since when nothing was answered, while something was there.
    idle_since: Option<Instant>,
}

impl<B: Fusible> Cycles<B> {
    pub(super) fn new(
        group: Box<dyn Group<B>>,
        negotiation: Negotiation,
        told: B,
        side_by_side: Vec<B>,
    ) -> Self {
        let told = Some(told);
        let side_by_side = side_by_side.into_iter().map(Room::new).collect();
        Self { group, negotiation, told, side_by_side, began: None, idle_since: None }
    }

    /// Carries out what is requested until there will be nothing more, or something fails.
    pub(super) fn serve(&mut self, pending: &Pending<B>) {
        let run = || -> Result<(), FabricError> {
            loop {
                let begin = self.began.and_then(|began| began.checked_add(self.negotiation.cycle));
                let Some(made) = pending.next_cycle(begin) else { return Ok(()) };
                self.began = Some(Instant::now());
                let lists = self.negotiate(pending, &made)?;
                self.note_progress(&made, lists.is_empty())?;
                for list in lists {
                    self.carry_out(pending, &list)?;
                }
            }
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => pending.fail(&error),
            Err(_) => pending.panicked(),
        }
    }

    /// Fails if requests have stayed unanswered for too long.
    fn note_progress(&mut self, made: &[u32], is_idle: bool) -> Result<(), FabricError> {
        let since = self.idle_since.take().filter(|_| is_idle).unwrap_or_else(Instant::now);
        self.idle_since = is_idle.then_some(since);
        let after = since.elapsed();
        if is_idle && after > self.negotiation.timeout {
            let rank = self.group.members()[self.group.position() as usize];
            return Err(FabricError::Unanswered { rank, requests: made.to_vec(), after });
        }
        Ok(())
    }

    /// A cycle: tells the first member which requests this one has made, and hears of those that all have.
    fn negotiate(
        &mut self,
        pending: &Pending<B>,
        made: &[u32],
    ) -> Result<Vec<Vec<u32>>, FabricError> {
        let mut told = self.told.take().expect("it comes back from every collective");
        lend_words(&mut told, |words| {
            words.fill(0);
            made.iter().for_each(|&request| words[request as usize] = 1);
        });
        let mut told = self.exchange(told, Kind::Reduce { root: FIRST })?;
        if self.group.position() == FIRST.0 {
            let members = self.group.members().len() as u32;
            lend_words(&mut told, |counts| {
                let lists = {
                    let is_ready = |request: u32| {
                        counts.get(request as usize).is_some_and(|&count| count == members)
                    };
                    pending.repeated(is_ready).unwrap_or_else(|| {
                        let ready = made.iter().copied().filter(|&it| is_ready(it));
                        self.fuse(ready.collect())
                    })
                };
                counts.fill(0);
                let numbers = lists.iter().flat_map(|list| {
                    let (last, before) = list.split_last().expect("lists are of something");
                    before.iter().map(|it| it + 1).chain([(last + 1) | LAST])
                });
                counts.iter_mut().zip(numbers).for_each(|(word, number)| *word = number);
            });
        }
        let mut told = self.exchange(told, Kind::Broadcast { root: FIRST })?;
        let mut lists = vec![];
        lend_words(&mut told, |words| {
            let mut list = vec![];
            for word in words.iter().take_while(|&&word| word != 0) {
                list.push((word & !LAST) - 1);
                if word & LAST != 0 {
                    lists.push(std::mem::take(&mut list));
                }
            }
        });
        self.told = Some(told);
        Ok(lists)
    }

    fn exchange(&mut self, told: B, kind: Kind) -> Result<B, FabricError> {
        let (algorithm, reduction) = (Algorithm::Direct, Reduction::Sum);
        let (told, outcome) =
            self.group.run(Collective::Equal { kind, algorithm, reduction }, told);
        outcome.map(|()| told)
    }

    /// Which requests are carried out as one, of some in order.
    fn fuse(&self, ready: Vec<u32>) -> Vec<Vec<u32>> {
        let requests = ready.iter().map(|&number| {
            let request = self.negotiation.requests[number as usize];
            (Request { elements: 0, ..request }, request.bytes())
        });
        let mut ready = ready.iter().copied();
        let runs = fused(requests, self.negotiation.fused_bytes);
        runs.into_iter().map(|length| ready.by_ref().take(length).collect()).collect()
    }

    /// Carries out a list.
    fn carry_out(&mut self, pending: &Pending<B>, list: &[u32]) -> Result<(), FabricError> {
        let mut lent = pending.take(list);
        let requests: Vec<Request> =
            list.iter().map(|&it| self.negotiation.requests[it as usize]).collect();
        let Some(room) = self.room(&requests) else {
            let mut outcome = Ok(());
            for ((number, lent), request) in lent.into_iter().zip(&requests) {
                // Behind one that failed none is carried out, but all come back.
                let completed = match &outcome {
                    Ok(()) => self.run(request, lent),
                    Err(_) => (lent, outcome.clone()),
                };
                outcome = completed.1.clone();
                pending.complete(number, completed);
            }
            return outcome;
        };
        let start = Instant::now();
        let fused = self.side_by_side[room].buffer.take();
        let mut fused = fused.expect("it comes back from every collective");
        fused.limit(requests.iter().map(|it| it.elements).sum());
        for ((_, lent), range) in lent.iter_mut().zip(ranges(&requests)) {
            copy(lent, &mut fused, range, Way::In);
        }
        let (mut fused, outcome) = self.run(&requests[0], fused);
        for ((_, lent), range) in lent.iter_mut().zip(ranges(&requests)) {
            copy(lent, &mut fused, range, Way::Out);
        }
        self.side_by_side[room].buffer = Some(fused);
        // Each was worked on for its part of the time.
        let (took, all) = (start.elapsed(), requests.iter().map(|it| it.elements).sum::<usize>());
        let at = |element: usize| start + took.mul_f64(element as f64 / all.max(1) as f64);
        for ((number, mut lent), range) in lent.into_iter().zip(ranges(&requests)) {
            lent.note_work(at(range.start), at(range.end));
            pending.complete(number, (lent, outcome.clone()));
        }
        outcome
    }

    /// Where several requests go that can be carried out as one.
    fn room(&self, requests: &[Request]) -> Option<usize> {
        let alike = |pair: &[Request]| {
            Request { elements: 0, ..pair[0] } == Request { elements: 0, ..pair[1] }
        };
        let can = requests.len() > 1 && requests.windows(2).all(alike);
        let (first, elements) = (requests[0], requests.iter().map(|it| it.elements).sum());
        let fits = |room: &Room<B>| room.format == first.format && room.elements >= elements;
        self.side_by_side.iter().position(fits).filter(|_| can)
    }

    fn run(&mut self, request: &Request, lent: B) -> Completed<B> {
        let Request { algorithm, reduction, .. } = *request;
        let kind = Kind::AllReduce;
        self.group.run(Collective::Equal { kind, algorithm, reduction }, lent)
    }
}

/// Where requests lie that lie side by side.
fn ranges(requests: &[Request]) -> impl Iterator<Item = Range<usize>> + '_ {
    requests.iter().scan(0, |end, request| {
        let start = *end;
        *end += request.elements;
        Some(start..*end)
    })
}

#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// Copies what is lent into a part of the buffer where several lie, or out of it.
fn copy<B: Lent>(lent: &mut B, all: &mut B, range: Range<usize>, way: Way) {
    fn go<T: Copy>(one: &mut [T], part: &mut [T], way: Way) {
        match way {
            Way::In => part.copy_from_slice(one),
            Way::Out => one.copy_from_slice(part),
        }
    }
    all.lend(&mut |mut all| {
        lent.lend(&mut |one| match (one, &mut all) {
            (ViewMut::F32(one), ViewMut::F32(all)) => go(one, &mut all[range.clone()], way),
            (ViewMut::F64(one), ViewMut::F64(all)) => go(one, &mut all[range.clone()], way),
            (ViewMut::Bf16(one), ViewMut::Bf16(all)) => go(one, &mut all[range.clone()], way),
            (ViewMut::F16(one), ViewMut::F16(all)) => go(one, &mut all[range.clone()], way),
            (ViewMut::U32(one), ViewMut::U32(all)) => go(one, &mut all[range.clone()], way),
            (ViewMut::U8(one), ViewMut::U8(all)) => go(one, &mut all[range.clone()], way),
            (one, all) => unreachable!("{} lies beside {}", one.format(), all.format()),
        });
    });
}

fn lend_words<B: Lent>(told: &mut B, mut work: impl FnMut(&mut [u32])) {
    told.lend(&mut |view| match view {
        ViewMut::U32(words) => work(words),
        other => unreachable!("members tell each other numbers, not {}", other.format()),
    });
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{Contents, Endpoint, Engine, InProcess, Reduce, Settings, View};

    struct Unused;

    impl Reduce for Unused {
        fn reduce(&self, _: Reduction, _: ViewMut<'_>, _: View<'_>) {}
    }

    #[test]
    fn whoever_waits_again_has_all_of_the_time_again() {
        let timeout = Duration::from_secs(30);
        let settings = Settings { timeout, arithmetic: Arc::new(Unused) };
        let mut endpoints: Vec<Box<dyn Endpoint<Contents>>> =
            InProcess.connect(3, &settings).unwrap();
        // The rank is the second of all, and the first of the group.
        let group = endpoints[1].group_apart(&[1]).unwrap();
        let (requests, cycle) = (vec![], Duration::ZERO);
        let negotiation = Negotiation { requests, cycle, fused_bytes: 0, timeout };
        let mut cycles = Cycles::new(group, negotiation, Contents::zeroed(Format::U32, 1), vec![]);

        // Nothing has been answered for longer than that.
        let long_ago = Instant::now().checked_sub(2 * timeout);
        assert!(long_ago.is_some());
        cycles.idle_since = long_ago;
        let refused = cycles.note_progress(&[4, 2], true).unwrap_err();
        assert!(
            matches!(&refused, FabricError::Unanswered { rank: 1, requests, after }
                if requests[..] == [4, 2] && *after > timeout),
            "{refused:?}"
        );

        // Then something is, and again nothing: that begins now.
        cycles.idle_since = long_ago;
        cycles.note_progress(&[4, 2], false).unwrap();
        cycles.note_progress(&[4, 2], true).unwrap();
        let since = cycles.idle_since;
        cycles.note_progress(&[4, 2], true).unwrap();
        assert_eq!(cycles.idle_since, since, "it goes on");
    }

    /// Numbers, and from when to when they were worked on.
    struct Timed(Contents, Option<(Instant, Instant)>);

    impl Lent for Timed {
        fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
            work(self.0.view_mut());
        }
    }

    impl Fusible for Timed {
        fn limit(&mut self, elements: usize) {
            self.0.limit(elements);
        }

        fn note_work(&mut self, from: Instant, to: Instant) {
            self.1 = Some((from, to));
        }
    }

    /// Of 1000, 3000 and 2000 elements, which are carried out as one.
    #[test]
    fn requests_that_are_carried_out_as_one_are_worked_on_one_after_the_other_by_their_sizes() {
        const SIZES: [usize; 3] = [1000, 3000, 2000];
        let timeout = Duration::from_secs(30);
        let settings = Settings { timeout, arithmetic: Arc::new(Unused) };
        let mut endpoints: Vec<Box<dyn Endpoint<Timed>>> = InProcess.connect(1, &settings).unwrap();
        let group = endpoints[0].group_apart(&[0]).unwrap();
        let (algorithm, reduction, format) = (Algorithm::Direct, Reduction::Sum, Format::F32);
        let request = |elements| Request { algorithm, reduction, format, elements };
        let (requests, cycle) = (SIZES.map(request).into(), Duration::ZERO);
        let negotiation = Negotiation { requests, cycle, fused_bytes: 0, timeout };
        let timed = |format, elements| Timed(Contents::zeroed(format, elements), None);
        let room = timed(format, SIZES.iter().sum());
        let told = timed(Format::U32, SIZES.len());
        let mut members = crate::Negotiated::new(group, negotiation, told, vec![room]).unwrap();
        members.repeat(Some(vec![vec![0, 1, 2]]));
        let handles = [0, 1, 2].map(|it| members.start(it, timed(format, SIZES[it])));
        let worked = handles.map(|handle| members.wait(handle).0.1.expect("it was worked on"));
        assert_eq!([worked[0].1, worked[1].1], [worked[1].0, worked[2].0]);
        // To the nanosecond, to which times are rounded.
        let all = (worked[2].1 - worked[0].0).as_nanos() as i64;
        let shares = worked.map(|(from, to)| 6 * (to - from).as_nanos() as i64);
        for (found, of) in shares.into_iter().zip([1, 3, 2]) {
            assert!((found - of * all).abs() <= 12, "{found} of {}", of * all);
        }
        assert!(all > 0);
    }

    /// In the order in which they are ready: runs of the same kind, as long as their bytes go together.
    #[test]
    fn requests_of_a_kind_that_follow_each_other_are_one_list_up_to_the_bytes_that_are_said() {
        let timeout = Duration::from_secs(30);
        let settings = Settings { timeout, arithmetic: Arc::new(Unused) };
        let mut endpoints: Vec<Box<dyn Endpoint<Contents>>> =
            InProcess.connect(1, &settings).unwrap();
        let of = |format, reduction, elements| Request {
            algorithm: Algorithm::Direct,
            reduction,
            format,
            elements,
        };
        let requests = vec![
            of(Format::F32, Reduction::Sum, 3),  // 12 bytes
            of(Format::F32, Reduction::Sum, 5),  // 20 bytes
            of(Format::F64, Reduction::Sum, 2),  // 16 bytes
            of(Format::F32, Reduction::Max, 5),  // 20 bytes
            of(Format::Bf16, Reduction::Sum, 4), // 8 bytes
            of(Format::Bf16, Reduction::Sum, 6), // 12 bytes
            of(Format::F32, Reduction::Sum, 1),  // 4 bytes
        ];
        let cycle = Duration::ZERO;
        for (fused_bytes, ready, expected) in [
            (32, vec![0, 1, 6], vec![vec![0, 1], vec![6]]),
            (36, vec![0, 1, 6], vec![vec![0, 1, 6]]),
            (31, vec![0, 1, 6], vec![vec![0], vec![1, 6]]),
            (23, vec![0, 1, 6], vec![vec![0], vec![1], vec![6]]),
            (0, vec![1, 0], vec![vec![1], vec![0]]),
            (1000, vec![0, 2, 1, 3, 6], vec![vec![0], vec![2], vec![1], vec![3], vec![6]]),
            (20, vec![5, 4, 0, 6], vec![vec![5, 4], vec![0, 6]]),
            (19, vec![4, 5, 6, 0], vec![vec![4], vec![5], vec![6, 0]]),
            (1000, vec![], vec![]),
        ] {
            let group = endpoints[0].group_apart(&[0]).unwrap();
            let requests = requests.clone();
            let negotiation = Negotiation { requests, cycle, fused_bytes, timeout };
            let told = Contents::zeroed(Format::U32, 7);
            let cycles = Cycles::new(group, negotiation, told, vec![]);
            assert_eq!(cycles.fuse(ready.clone()), expected, "{fused_bytes} bytes of {ready:?}");
        }
    }
}
