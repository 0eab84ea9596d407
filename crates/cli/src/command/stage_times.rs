//! What passes of each stage take, given for a whole device or stage by stage.

use shardloom::plan::{PassTimes, ScheduleKind};
use shardloom::schedule::{Action, Instance, PassKind, StageMap};

use super::slots::Scale;

/// Times of forwards, input gradients, weight gradients as they are given: one for a whole device, of
/// which a stage takes its share, or one for each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenTimes {
    pub passes: [Vec<f64>; 3],
    pub message: f64,
    pub kept: f64,
}

impl GivenTimes {
    /// Whether any is given stage by stage.
    pub fn by_stage(&self) -> bool {
        self.passes.iter().any(|times| times.len() > 1)
    }

    /// All times.
    pub fn all(&self) -> Vec<f64> {
        self.passes.iter().flatten().copied().chain([self.message]).collect()
    }
}

/// What passes of each stage take, in whole units.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTimes {
    /// Of a whole device, on average over devices.
    pub device: PassTimes,
    /// Of each stage: forwards, input gradients, weight gradients.
    stages: Vec<[f64; 3]>,
}

impl StageTimes {
    /// The times on `map`; none if some are neither one nor one for each stage.
    pub fn of(given: &GivenTimes, map: &StageMap, scale: Scale) -> Option<StageTimes> {
        let pipeline = map.instances().filter(|it| it.pipeline == 0);
        let shares: Vec<f64> = pipeline.map(|instance| map.share(instance)).collect();
        let stage = |(index, share): (usize, &f64)| {
            let time = |times: &Vec<f64>| match times[..] {
                [whole] => Some(scale.apply(whole) * share),
                _ if times.len() == shares.len() => Some(scale.apply(times[index])),
                _ => None,
            };
            let [forward, input, weight] = &given.passes;
            Some([time(forward)?, time(input)?, time(weight)?])
        };
        let stages: Vec<[f64; 3]> = shares.iter().enumerate().map(stage).collect::<Option<_>>()?;
        // As much of each stage's work falls to a device as it has of all devices' shares.
        let devices: f64 = shares.iter().sum();
        let mean = |kind: usize| match given.passes[kind][..] {
            [whole] => scale.apply(whole),
            _ => stages.iter().map(|stage| stage[kind]).sum::<f64>() / devices,
        };
        let device = PassTimes {
            forward: mean(0),
            input: mean(1),
            weight: mean(2),
            message: scale.apply(given.message),
            kept: given.kept,
        };
        Some(StageTimes { device, stages })
    }

    /// How long an action takes.
    pub fn duration(&self, action: Action) -> f64 {
        let pass = |pass: shardloom::schedule::Pass| {
            let [forward, input, weight] = self.stages[usize::from(pass.instance.stage)];
            match pass.kind {
                PassKind::Forward => forward,
                PassKind::Backward => input + weight,
                PassKind::BackwardInput => input,
                PassKind::BackwardWeight => weight,
            }
        };
        action.passes().map(pass).sum()
    }

    /// A bound on the makespan of so many steps of any order of `kind`, known before one is made. A micro-batch
    /// goes through all stages and back, all of a pipeline's go one after another through its last, and a device
    /// does one thing at a time, once the first has come to it.
    pub fn least_makespan(&self, map: &StageMap, kind: ScheduleKind, steps: u32) -> f64 {
        let mut busy = vec![0.0; map.devices()];
        let mut reached = vec![f64::INFINITY; map.devices()];
        let mut least = 0.0f64;
        for (chain, pipeline) in map.chains().iter().zip(0..) {
            let first = Instance { pipeline, stage: 0 };
            let microbatches = map.microbatches_of(first).len() as f64 * f64::from(steps);
            let (mut way, mut there) = (0.0, 0.0);
            for (stage, &device) in chain.0.iter().enumerate() {
                let [forward, input, weight] = self.stages[stage];
                // Only input gradients are waited for where they come without weight gradients.
                let back = if kind.halves() { input } else { input + weight };
                let is_last = stage + 1 == chain.stages();
                way += if is_last { microbatches } else { 1.0 } * (forward + back);
                let crosses = chain.0.get(stage + 1).is_some_and(|&next| next != device);
                let message = if crosses { self.device.message } else { 0.0 };
                way += 2.0 * message;
                reached[device] = reached[device].min(there);
                there += forward + message;
                busy[device] += microbatches * (forward + input + weight);
            }
            least = least.max(way);
        }
        let of_device = busy.into_iter().zip(reached).map(|(busy, reached)| reached + busy);
        of_device.fold(least, f64::max)
    }

    /// How long the shortest action of any order of `kind` is at most.
    pub fn shortest_action(&self, kind: ScheduleKind) -> f64 {
        let of_stage = |&[forward, input, weight]: &[f64; 3]| match (kind.overlaps(), kind.halves())
        {
            // Others may run beside another pass, but the first forwards find none.
            (true, _) => forward,
            (false, true) => forward.min(input).min(weight),
            (false, false) => forward.min(input + weight),
        };
        let stages = if kind.overlaps() { &self.stages[..1] } else { &self.stages[..] };
        stages.iter().map(of_stage).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use shardloom::plan::Arrangement;
    use shardloom::schedule::{Schedule, time_with};

    use super::super::slots::Slots;
    use super::*;

    /// Two devices with two stages each.
    #[test]
    fn a_device_has_the_mean_of_devices_and_not_of_stages() {
        let map = StageMap::new(vec![vec![0, 1, 0, 1]], 4).expect("a map");
        let given = GivenTimes {
            passes: [vec![1.0, 2.0, 3.0, 4.0], vec![6.0], vec![0.0, 0.0, 1.0, 1.0]],
            message: 0.5,
            kept: 1.0,
        };
        let scale = Scale::of(&given.all(), 2);
        let times = StageTimes::of(&given, &map, scale).expect("times of four stages");
        let PassTimes { forward, input, weight, message, .. } = times.device;
        let in_given = |time: f64| time / scale.units();
        assert_eq!([forward, input, weight, message].map(in_given), [5.0, 6.0, 1.0, 0.5]);
        // What is given for a device its stages share.
        assert_eq!(times.stages.iter().map(|it| in_given(it[1])).sum::<f64>(), 12.0);
        let three = GivenTimes { passes: [vec![1.0; 3], vec![1.0], vec![1.0]], ..given };
        assert_eq!(StageTimes::of(&three, &map, scale), None);
    }

    /// Every kind that is built, with times of passes and messages.
    #[test]
    fn no_order_has_fewer_columns_than_are_known_before_it_is_made() {
        let kinds = ScheduleKind::ALL.into_iter().filter(|&kind| kind != ScheduleKind::Table);
        let given = [[1.0, 1.0, 1.0, 0.0], [1.0, 0.5, 1.5, 0.25], [3.0, 2.0, 1.0, 1.0]];
        let mut tight = 0;
        for (kind, [forward, input, weight, message]) in
            kinds.flat_map(|kind| given.map(|given| (kind, given)))
        {
            let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
            let chunks = arrangement.least_chunks();
            let map = StageMap::arranged(arrangement, 4, chunks, 8).expect("a map");
            let passes = [vec![forward], vec![input], vec![weight]];
            let given = GivenTimes { passes, message, kept: 1.0 };
            let scale = Scale::of(&given.all(), chunks);
            let times = StageTimes::of(&given, &map, scale).expect("times");
            let schedule = Schedule::build(kind, map, &times.device).expect("a schedule");
            let steps = schedule.ahead() + 1;
            let duration = |action| times.duration(action);
            let timing = time_with(&schedule, steps, times.device.message, duration);
            let timing = timing.expect("no deadlock");
            let map = &schedule.map;
            let least = times.least_makespan(map, kind, steps);
            assert!(least <= timing.makespan, "{kind:?} {given:?}: {least} {}", timing.makespan);
            tight += usize::from(least == timing.makespan);
            let slots = Slots::of(&timing, map, u64::MAX).expect("a table");
            let columns = Slots::fewest_columns(least, times.shortest_action(kind));
            assert!(columns <= slots.rows[0].len() as u64, "{kind:?} {given:?}: {columns}");
            if kind == ScheduleKind::OneForwardOneBackward && message == 0.0 {
                assert_eq!(least, timing.makespan, "micro-batches never wait in 1F1B");
            }
        }
        assert!(tight > 3, "{tight} bounds are met");
    }

    #[test]
    fn the_bound_on_large_tables_is_the_time_there_and_back_and_all_micro_batches() {
        for (kind, microbatches, least) in [
            (ScheduleKind::OneForwardOneBackward, 1000, 999 * 3 + 1000 * 3),
            (ScheduleKind::VHalf, 30, 1999 * 2 + 30 * 2),
            // All of the last device, once a micro-batch has come to it.
            (ScheduleKind::VMin, 1000, 999 + 1000 * 6),
        ] {
            let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
            let chunks = arrangement.least_chunks();
            let map = StageMap::arranged(arrangement, 1000, chunks, microbatches).expect("a map");
            let passes = [vec![1.0], vec![1.0], vec![1.0]];
            let given = GivenTimes { passes, message: 0.0, kept: 1.0 };
            let times = StageTimes::of(&given, &map, Scale::of(&given.all(), chunks));
            let times = times.expect("times");
            let found = times.least_makespan(&map, kind, 1);
            assert_eq!(Slots::fewest_columns(found, times.shortest_action(kind)), least);
        }
    }
}
