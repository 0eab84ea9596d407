//! What passes of each stage take, given for a whole device or stage by stage.

use shardloom::plan::PassTimes;
use shardloom::schedule::{Action, PassKind, StageMap};

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
}

#[cfg(test)]
mod tests {
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
}
