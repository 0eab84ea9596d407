//! Words for the order of passes, for where stages live, and for what passes take.

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// The order of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// All forwards, then all backwards (GPipe, Huang et al. 2019).
    Afab,
    /// One forward, one backward after a warm-up (PipeDream-Flush, Narayanan et al. 2021).
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B over several stages on each device (Megatron-LM, Narayanan et al. 2021).
    Interleaved,
    /// Pipelines in both directions at once (Li and Hoefler 2021).
    Chimera,
    /// Chimera with two micro-batches to each forward pass, or half of one to each backward pass.
    ChimeraDoubling,
    /// One pipeline to and fro in waves (Liu et al. 2023).
    Hanayo,
    /// 1F1B without flush (Narayanan et al. 2019).
    #[serde(rename = "pipedream")]
    PipeDream,
    /// A forward and a backward pass in each slot, without flush (Yang et al. 2021).
    #[serde(rename = "pipemare")]
    PipeMare,
    /// Zero bubble with the memory of 1F1B: not quite zero (Qi et al. 2024).
    #[serde(rename = "zb-h1")]
    ZeroBubbleH1,
    /// Zero bubble with almost twice the memory of 1F1B (Qi et al. 2024).
    #[serde(rename = "zb-h2")]
    ZeroBubbleH2,
    /// Zero bubble searched for the memory of 1F1B (Qi et al. 2024).
    #[serde(rename = "zb-1p")]
    ZeroBubbleOneP,
    /// Zero bubble searched for twice the memory of 1F1B (Qi et al. 2024).
    #[serde(rename = "zb-2p")]
    ZeroBubbleTwoP,
    /// Zero bubble with the memory of 1F1B, down the devices and back up (Qi et al. 2024).
    #[serde(rename = "zb-v")]
    ZeroBubbleV,
    /// Down the devices and back up with half the memory of 1F1B (Qi et al., NeurIPS 2024).
    VHalf,
    /// Down the devices and back up with a third of the memory of 1F1B (Qi et al., NeurIPS 2024).
    VMin,
    /// Two pipelines in opposite directions, forwards overlapped with backwards (DeepSeek-V3).
    #[serde(rename = "dualpipe")]
    DualPipe,
    /// One half of DualPipe's devices, with one pipeline down them and back up.
    #[serde(rename = "dualpipev")]
    DualPipeV,
    /// The order that the plan writes down.
    Table,
}

impl ScheduleKind {
    /// The kinds with a flush and one stage on each device whose backward passes are whole.
    pub const PLAIN: [ScheduleKind; 2] = [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward];
    /// The kinds whose steps are estimated without lowering them, and so searched: those with a flush, each
    /// of whose forward passes is of one micro-batch.
    pub const SEARCHED: [ScheduleKind; 14] = [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Afab,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleH2,
        ScheduleKind::ZeroBubbleOneP,
        ScheduleKind::ZeroBubbleTwoP,
        ScheduleKind::ZeroBubbleV,
        ScheduleKind::VHalf,
        ScheduleKind::VMin,
        ScheduleKind::Hanayo,
        ScheduleKind::DualPipeV,
        ScheduleKind::DualPipe,
        ScheduleKind::Chimera,
    ];
    /// All kinds.
    pub const ALL: [ScheduleKind; 18] = [
        ScheduleKind::Afab,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::Chimera,
        ScheduleKind::ChimeraDoubling,
        ScheduleKind::Hanayo,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleH2,
        ScheduleKind::ZeroBubbleOneP,
        ScheduleKind::ZeroBubbleTwoP,
        ScheduleKind::ZeroBubbleV,
        ScheduleKind::VHalf,
        ScheduleKind::VMin,
        ScheduleKind::DualPipe,
        ScheduleKind::DualPipeV,
        ScheduleKind::PipeDream,
        ScheduleKind::PipeMare,
        ScheduleKind::Table,
    ];

    /// Whether some of its backward passes are run in halves, input gradients and weight gradients, as far
    /// as the kind says: a table may.
    pub fn halves(self) -> bool {
        match self {
            ScheduleKind::ZeroBubbleH1
            | ScheduleKind::ZeroBubbleH2
            | ScheduleKind::ZeroBubbleOneP
            | ScheduleKind::ZeroBubbleTwoP
            | ScheduleKind::ZeroBubbleV
            | ScheduleKind::VHalf
            | ScheduleKind::VMin
            | ScheduleKind::DualPipe
            | ScheduleKind::DualPipeV => true,
            ScheduleKind::Afab
            | ScheduleKind::OneForwardOneBackward
            | ScheduleKind::Interleaved
            | ScheduleKind::Chimera
            | ScheduleKind::ChimeraDoubling
            | ScheduleKind::Hanayo
            | ScheduleKind::PipeDream
            | ScheduleKind::PipeMare
            | ScheduleKind::Table => false,
        }
    }

    /// Whether its orders are made for what passes take ([`PassTimes`]).
    pub fn is_timed(self) -> bool {
        self == ScheduleKind::Hanayo || (self.halves() && !self.overlaps())
    }

    /// Whether some of its passes run at the same time as another of the same device.
    pub fn overlaps(self) -> bool {
        matches!(self, ScheduleKind::DualPipe | ScheduleKind::DualPipeV)
    }

    /// Where its stages live; none if anywhere.
    pub fn arrangement(self) -> Option<Arrangement> {
        match self {
            ScheduleKind::Afab | ScheduleKind::Table => None,
            ScheduleKind::ZeroBubbleH1
            | ScheduleKind::ZeroBubbleH2
            | ScheduleKind::ZeroBubbleOneP
            | ScheduleKind::ZeroBubbleTwoP
            | ScheduleKind::PipeMare => Some(Arrangement::Chain),
            ScheduleKind::OneForwardOneBackward | ScheduleKind::PipeDream => {
                Some(Arrangement::TakingTurns)
            }
            ScheduleKind::Interleaved => Some(Arrangement::Looped),
            ScheduleKind::Chimera | ScheduleKind::ChimeraDoubling | ScheduleKind::DualPipe => {
                Some(Arrangement::Bidirectional)
            }
            ScheduleKind::Hanayo
            | ScheduleKind::ZeroBubbleV
            | ScheduleKind::VHalf
            | ScheduleKind::VMin
            | ScheduleKind::DualPipeV => Some(Arrangement::Wave),
        }
    }

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::Afab => "afab",
            ScheduleKind::OneForwardOneBackward => "1f1b",
            ScheduleKind::Interleaved => "interleaved",
            ScheduleKind::Chimera => "chimera",
            ScheduleKind::ChimeraDoubling => "chimera-doubling",
            ScheduleKind::Hanayo => "hanayo",
            ScheduleKind::PipeDream => "pipedream",
            ScheduleKind::PipeMare => "pipemare",
            ScheduleKind::ZeroBubbleH1 => "zb-h1",
            ScheduleKind::ZeroBubbleH2 => "zb-h2",
            ScheduleKind::ZeroBubbleOneP => "zb-1p",
            ScheduleKind::ZeroBubbleTwoP => "zb-2p",
            ScheduleKind::ZeroBubbleV => "zb-v",
            ScheduleKind::VHalf => "v-half",
            ScheduleKind::VMin => "v-min",
            ScheduleKind::DualPipe => "dualpipe",
            ScheduleKind::DualPipeV => "dualpipev",
            ScheduleKind::Table => "table",
        }
    }
}

/// Where the stages of pipelines live on a row of devices (or of meshes of devices).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arrangement {
    /// One pipeline, one stage per device.
    Chain,
    /// Likewise, or with several devices for a stage, which take whole micro-batches in turn
    /// (1F1B-RR, Narayanan et al. 2019, section 3.2): [`Arrangement::taking_turns`].
    TakingTurns,
    /// One pipeline that goes through the devices several times in the same direction: stage `k` on
    /// device `k mod p`.
    Looped,
    /// One pipeline that goes to and fro: down the devices, back up, and so on.
    Wave,
    /// An even number of pipelines with one stage of each on every device, half of them down the
    /// devices and half up. Pipelines of one direction begin `p / q` devices apart.
    Bidirectional,
}

impl Arrangement {
    /// The fewest stages that a device holds.
    pub fn least_chunks(self) -> usize {
        match self {
            Arrangement::Chain | Arrangement::TakingTurns => 1,
            Arrangement::Looped | Arrangement::Wave | Arrangement::Bidirectional => 2,
        }
    }

    /// For each pipeline the device of each stage, where stages have as many replicas as `replicas` says
    /// and micro-batch `k` of all goes to a stage's replica `k mod r`, forward and backward: as many
    /// pipelines as the least common multiple of all numbers of replicas, which get micro-batches in
    /// turn. Devices are numbered stage by stage.
    ///
    /// # Errors
    /// If a stage has no replica, or there are more than 1,024 pipelines.
    pub fn taking_turns(replicas: &[usize]) -> Result<Vec<Vec<usize>>, PlanError> {
        let listed = || {
            let numbers: Vec<String> = replicas.iter().map(usize::to_string).collect();
            numbers.join(",")
        };
        if replicas.is_empty() || replicas.contains(&0) {
            let rule = "at least one stage, and at least one replica of each";
            return Err(PlanError::field("replicas", listed(), rule));
        }
        let common = replicas.iter().try_fold(1, |common: u64, &replicas| {
            let replicas = replicas as u64;
            let multiple = common.checked_mul(replicas / greatest_common_divisor(common, replicas));
            multiple.filter(|&it| it <= MOST_TURNS)
        });
        let Some(pipelines) = common else {
            let rule = format!(
                "micro-batches meet the same replicas again after the least common multiple of these \
                 numbers, which is at most {MOST_TURNS}"
            );
            return Err(PlanError::field("replicas", listed(), rule));
        };
        let place = |pipeline: usize| {
            let mut first = 0;
            let stage = |&replicas: &usize| {
                let device = first + pipeline % replicas;
                first += replicas;
                device
            };
            replicas.iter().map(stage).collect()
        };
        Ok((0..pipelines as usize).map(place).collect())
    }

    /// For each pipeline the device of each stage, on `devices` devices that hold `chunks` stages each.
    ///
    /// # Errors
    /// If there is no such arrangement.
    pub fn places(self, devices: usize, chunks: usize) -> Result<Vec<Vec<usize>>, PlanError> {
        let refuse = |rule: &str| Err(PlanError::field("chunks", chunks, rule));
        if devices == 0 || chunks == 0 {
            return refuse("a pipeline needs a device, and each device a stage");
        }
        let down = 0..devices;
        Ok(match self {
            Arrangement::Chain | Arrangement::TakingTurns if chunks > 1 => {
                return refuse("this schedule has one stage on each device");
            }
            Arrangement::Chain | Arrangement::TakingTurns => vec![down.collect()],
            Arrangement::Looped if chunks < 2 => {
                return refuse(
                    "interleaved wants at least two stages on each device; with one it is 1f1b",
                );
            }
            Arrangement::Looped => vec![(0..chunks).flat_map(|_| down.clone()).collect()],
            Arrangement::Wave => {
                let way = |chunk: usize| -> Vec<usize> {
                    match chunk.is_multiple_of(2) {
                        true => down.clone().collect(),
                        false => down.clone().rev().collect(),
                    }
                };
                vec![(0..chunks).flat_map(way).collect()]
            }
            Arrangement::Bidirectional => {
                let pairs = chunks / 2;
                if !chunks.is_multiple_of(2) {
                    return refuse(
                        "pipelines in both directions come in pairs: an even number is needed",
                    );
                }
                if !devices.is_multiple_of(2) {
                    let rule = format!(
                        "pipelines in both directions need an even number of devices, such as {}",
                        devices.saturating_add(1)
                    );
                    return Err(PlanError::field("pp", devices, rule));
                }
                if !devices.is_multiple_of(2 * pairs.max(1)) {
                    let rule = format!(
                        "pipelines in both directions come in pairs, as many as divide half of the devices, {}",
                        devices / 2
                    );
                    return refuse(&rule);
                }
                let offset = devices / pairs;
                let begin = |pair: usize| pair * offset;
                let downs = (0..pairs).map(|pair| {
                    down.clone().map(|stage| (begin(pair) + stage) % devices).collect()
                });
                let ups = (0..pairs).map(|pair| {
                    down.clone().rev().map(|stage| (begin(pair) + stage) % devices).collect()
                });
                downs.chain(ups).collect()
            }
        })
    }
}

/// The most pipelines that replicas taking turns are written as.
const MOST_TURNS: u64 = 1024;

/// The greatest number that divides both; the other one where one is 0.
pub fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// What the passes of one micro-batch take on a whole device: times in any unit, and memory. Schedules
/// that fill gaps are made for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassTimes {
    /// A forward pass.
    pub forward: f64,
    /// Input gradients.
    pub input: f64,
    /// Weight gradients.
    pub weight: f64,
    /// A message between devices.
    #[serde(default)]
    pub message: f64,
    /// Of the memory that a forward pass leaves in use, the share that is still in use after input
    /// gradients, for weight gradients to free. 1 if nobody knows, which is never too little.
    #[serde(default = "all_of_it", skip_serializing_if = "is_all_of_it")]
    pub kept: f64,
}

/// What is kept if nobody knows.
fn all_of_it() -> f64 {
    1.0
}

fn is_all_of_it(kept: &f64) -> bool {
    *kept == all_of_it()
}

impl Default for PassTimes {
    /// All passes alike, messages in no time, all memory kept for weight gradients.
    fn default() -> PassTimes {
        PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0, kept: all_of_it() }
    }
}

impl PassTimes {
    /// Whether they need not be written down.
    pub(crate) fn is_default(&self) -> bool {
        *self == PassTimes::default()
    }

    /// Checks that they are times, and a share.
    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        let times = [
            ("pass_times.forward", self.forward),
            ("pass_times.input", self.input),
            ("pass_times.weight", self.weight),
            ("pass_times.message", self.message),
        ];
        if let Some((key, time)) =
            times.into_iter().find(|(_, time)| !(time.is_finite() && *time >= 0.0))
        {
            return Err(PlanError::field(key, time, "a time is finite and at least 0"));
        }
        if !(0.0..=1.0).contains(&self.kept) {
            let rule = "a share of what a forward pass leaves is from 0 to 1";
            return Err(PlanError::field("pass_times.kept", self.kept, rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Deserialize;

    use super::ScheduleKind;

    #[derive(Deserialize)]
    struct Words {
        schedule: ScheduleKind,
    }

    #[test]
    fn plans_call_schedules_by_their_names() {
        let names: BTreeSet<&str> = ScheduleKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ScheduleKind::ALL.len());
        for kind in ScheduleKind::ALL {
            let text = format!("schedule = \"{}\"", kind.name());
            let words: Words = toml::from_str(&text).expect("its name is its word");
            assert_eq!(words.schedule, kind);
        }
    }
}
