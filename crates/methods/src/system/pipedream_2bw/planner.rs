//! PipeDream-2BW's planner: equal stages, equally replicated (Narayanan et al. 2021, "Memory-Efficient
//! Pipeline-Parallel DNN Training", ICML, arXiv 2006.09503, section 4 and appendix A).

use shardloom_plan::even_cuts;
use shardloom_search::divisors;

use crate::MethodError;
use crate::interconnect::Interconnect;
use crate::layer_profile::LayerProfile;
use crate::partition::at_least_one;

/// When weights are updated, which decides how many versions of them there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// 2BW: a step late, so that the pipeline never drains; two versions.
    DoubleBuffered,
    /// PipeDream-Flush: at once, when the pipeline has drained; one version.
    Flush,
}

impl Updates {
    /// Versions of the weights that a device holds.
    pub fn versions(self) -> u32 {
        match self {
            Updates::DoubleBuffered => 2,
            Updates::Flush => 1,
        }
    }
}

/// What to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoBwRequest {
    /// Devices.
    pub workers: u32,
    /// Samples of one step over all pipelines.
    pub global_batch: u32,
    /// What each device has.
    pub memory_bytes: f64,
    /// The links between devices.
    pub links: Interconnect,
    /// When weights are updated.
    pub updates: Updates,
    /// Bytes of gradients, optimizer state and master weights beside a byte of weights. The paper's
    /// formulas have none.
    pub state_bytes_per_weight_byte: f64,
}

/// A way to train, with what it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoBwConfiguration {
    /// Pipelines, `w`.
    pub width: u32,
    /// Stages of each, `d`.
    pub depth: u32,
    /// Samples of one micro-batch in one pipeline, `b`.
    pub microbatch: u32,
    /// Micro-batches of a step in one pipeline, `m`.
    pub microbatches: u32,
    /// Whether stages keep nothing but their inputs and compute the rest again.
    pub recompute: bool,
    /// From one micro-batch to the next in one pipeline, `t`; a flush, and what is exchanged after it, is
    /// spread over the micro-batches.
    pub slot_seconds: f64,
    /// On the fullest device.
    pub peak_bytes: f64,
}

impl TwoBwConfiguration {
    /// Samples per second of all pipelines.
    pub fn samples_per_second(&self) -> f64 {
        f64::from(self.width) * f64::from(self.microbatch) / self.slot_seconds
    }
}

/// All configurations that fit, fastest first; of equally fast ones that on fewer devices.
///
/// `profile` gives the layers' profiles for a micro-batch of so many samples; it is asked once for each.
/// Stages have equal numbers of layers, give or take one. A micro-batch size is tried if it divides the
/// step and, for 2BW, leaves at least as many micro-batches as stages, as the paper has it for two versions
/// of the weights; with a flush any number will do. As in the paper's algorithm 1, devices may be left out.
/// Over the stages `i` of depth `d`,
///
/// - `t = max_i max(c T_i + 2 (input_i + output_i) / B_depth, allreduce_i / m)`, where `T_i` is forward and
///   backward time, `allreduce_i = 2 (w-1)/w gradient_i / B_width` over links within a node where the stage
///   lies in one (the paper has one `B_width`), and `c T_i` is `T_i` with the forward pass once more where it
///   is recomputed (the paper takes `c = 4/3`, for a backward pass of twice the forward pass);
/// - with a flush (not in the paper, which plans for 2BW) the next step's passes hide no all-reduce, so that
///   `m t = (m + d - 1) max_i(c T_i + 2 (input_i + output_i) / B_depth) + max_i(allreduce_i - left_i)`, or
///   without the last term where it is negative: `left_i` are the backward passes of the stages before `i`,
///   which the last micro-batch still has to go through;
/// - memory `versions |W_i| + k |A_i| + n |input_i|` with `n = min(d, m)` micro-batches under way, of which
///   only the first stage has so many but each is charged for them, and `k = n`, or 1 where activations are
///   recomputed.
///
/// # Errors
/// If there are no workers or samples, or those of `profile`.
pub fn two_bw(
    request: &TwoBwRequest,
    mut profile: impl FnMut(u32) -> Result<Vec<LayerProfile>, MethodError>,
) -> Result<Vec<TwoBwConfiguration>, MethodError> {
    at_least_one("workers", request.workers)?;
    at_least_one("global_batch", request.global_batch)?;
    let mut fitting = vec![];
    for microbatch in divisors(request.global_batch) {
        let layers = profile(microbatch)?;
        let slots = request.global_batch / microbatch;
        for width in divisors(slots).take_while(|&width| width <= request.workers) {
            let microbatches = slots / width;
            let deepest = (request.workers / width).min(layers.len() as u32);
            let deepest = match request.updates {
                Updates::DoubleBuffered => deepest.min(microbatches),
                Updates::Flush => deepest,
            };
            for depth in 1..=deepest {
                for recompute in [false, true] {
                    let configuration = TwoBwConfiguration {
                        width,
                        depth,
                        microbatch,
                        microbatches,
                        recompute,
                        slot_seconds: 0.0,
                        peak_bytes: 0.0,
                    };
                    let costed = configuration.costed(request, &layers);
                    if costed.peak_bytes <= request.memory_bytes {
                        fitting.push(costed);
                    }
                }
            }
        }
    }
    let devices = |it: &TwoBwConfiguration| it.width * it.depth;
    fitting.sort_by(|a, b| {
        let faster = b.samples_per_second().total_cmp(&a.samples_per_second());
        faster.then(devices(a).cmp(&devices(b)))
    });
    Ok(fitting)
}

impl TwoBwConfiguration {
    /// With its time and memory filled in.
    fn costed(mut self, request: &TwoBwRequest, layers: &[LayerProfile]) -> TwoBwConfiguration {
        let [width, depth, microbatches] =
            [self.width, self.depth, self.microbatches].map(f64::from);
        let flush = request.updates == Updates::Flush;
        let between_stages = request.links.depth(self.width, self.depth);
        let weights = f64::from(request.updates.versions()) + request.state_bytes_per_weight_byte;
        let under_way = depth.min(microbatches);
        let mut input_bytes = 0.0;
        // Of the stages so far, which the last micro-batch still goes through behind this one.
        let mut backward_seconds = 0.0;
        let mut unhidden_seconds: f64 = 0.0;
        for (index, cut) in (0..).zip(even_cuts(layers.len(), self.depth as usize).windows(2)) {
            let stage = LayerProfile::of_stage(&layers[cut[0]..cut[1]]);
            let again = if self.recompute { stage.forward_seconds } else { 0.0 };
            let sent = 2.0 * (input_bytes + stage.output_bytes);
            let slot = stage.seconds() + again + between_stages.transfer_seconds(sent);
            let exchanged = 2.0 * (width - 1.0) / width * stage.gradient_bytes;
            let exchange = request.links.width(self.width, index).transfer_seconds(exchanged);
            let hidden = if flush { 0.0 } else { exchange / microbatches };
            self.slot_seconds = self.slot_seconds.max(slot.max(hidden));
            unhidden_seconds = unhidden_seconds.max(exchange - backward_seconds);
            backward_seconds += stage.backward_seconds + again;
            let kept = if self.recompute { 1.0 } else { under_way };
            let held =
                weights * stage.parameter_bytes + kept * stage.kept_bytes + under_way * input_bytes;
            self.peak_bytes = self.peak_bytes.max(held);
            input_bytes = stage.output_bytes;
        }
        if flush {
            let step = (microbatches + depth - 1.0) * self.slot_seconds + unhidden_seconds;
            self.slot_seconds = step / microbatches;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::Link;
    use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
    use shardloom_schedule::{Schedule, StageMap, time};

    use super::*;

    /// Links of 8 bytes a second within nodes of two devices, and of 1 between them.
    fn links() -> Interconnect {
        let link = |bytes_per_second| Link {
            latency_seconds: 0.0,
            bytes_per_second,
            reachable: 1.0,
            curve: None,
        };
        Interconnect { per_node: 2, within: link(8.0), across: link(1.0), between: link(1.0) }
    }

    fn request(workers: u32, global_batch: u32) -> TwoBwRequest {
        TwoBwRequest {
            workers,
            global_batch,
            memory_bytes: f64::INFINITY,
            links: links(),
            updates: Updates::DoubleBuffered,
            state_bytes_per_weight_byte: 0.0,
        }
    }

    /// Four equal blocks, backward twice as long as forward, all in proportion to the micro-batch.
    fn blocks(microbatch: u32) -> Vec<LayerProfile> {
        let samples = f64::from(microbatch);
        let block = LayerProfile {
            forward_seconds: samples,
            backward_seconds: 2.0 * samples,
            output_bytes: 2.0 * samples,
            parameter_bytes: 40.0,
            gradient_bytes: 80.0,
            kept_bytes: 10.0 * samples,
        };
        vec![block; 4]
    }

    fn find(
        found: &[TwoBwConfiguration],
        [width, depth, microbatch]: [u32; 3],
        recompute: bool,
    ) -> TwoBwConfiguration {
        let is = |it: &&TwoBwConfiguration| {
            [it.width, it.depth, it.microbatch] == [width, depth, microbatch]
                && it.recompute == recompute
        };
        *found.iter().find(is).expect("in the space")
    }

    #[test]
    fn time_and_memory_are_the_papers_formulas() {
        let found = two_bw(&request(4, 16), |b| Ok(blocks(b))).expect("a plan");
        // Two stages of two blocks, b = 2: T = 12; 2 (4 + 4) bytes of input and output each way, over
        // links between nodes, for the stage that has a neighbour on one side and the loss's on the other.
        let plain = find(&found, [2, 2, 2], false);
        assert_eq!(plain.microbatches, 4);
        assert_eq!(plain.slot_seconds, 12.0 + 16.0);
        // 2 |W|/d + d |A|/d + d |input| = 160 + 80 + 8.
        assert_eq!(plain.peak_bytes, 160.0 + 80.0 + 8.0);
        let again = find(&found, [2, 2, 2], true);
        assert_eq!(again.slot_seconds, 4.0 / 3.0 * 12.0 + 16.0);
        assert_eq!(again.peak_bytes, 160.0 + 40.0 + 8.0);
        // One stage on four workers: 2 * 3/4 * 320 bytes between nodes, once for 16 samples.
        let data = find(&found, [4, 1, 1], false);
        assert_eq!(data.slot_seconds, f64::max(12.0 + 4.0, 480.0 / 4.0));
        assert_eq!(data.samples_per_second(), 4.0 / 120.0);
    }

    #[test]
    fn a_stage_that_lies_on_two_nodes_exchanges_between_them() {
        // Of three devices in a node, the second of two pairs of replicas has one.
        let links = Interconnect { per_node: 3, ..links() };
        let found = two_bw(&TwoBwRequest { links, ..request(4, 4) }, |b| Ok(blocks(b)));
        let pairs = find(&found.expect("a plan"), [2, 2, 1], false);
        // Twice half of 160 bytes of gradients, once for two micro-batches.
        assert_eq!(pairs.slot_seconds, 160.0 / 2.0);
    }

    #[test]
    fn of_equally_fast_configurations_those_on_fewer_devices_come_first() {
        // All work is in the first block, so that further stages help nobody.
        let first = |microbatch: u32| {
            let idle = LayerProfile::default();
            let busy = LayerProfile { forward_seconds: f64::from(microbatch), ..idle };
            Ok(vec![busy, idle, idle, idle])
        };
        let found = two_bw(&request(4, 4), first).expect("a plan");
        let speed = TwoBwConfiguration::samples_per_second;
        let devices = |it: &TwoBwConfiguration| it.width * it.depth;
        for pair in found.windows(2) {
            assert!(speed(&pair[0]) >= speed(&pair[1]));
            let equal = speed(&pair[0]) == speed(&pair[1]);
            assert!(!equal || devices(&pair[0]) <= devices(&pair[1]), "{pair:?}");
        }
        let of = |devices_used| found.iter().filter(move |it| devices(it) == devices_used);
        let deeper = |one: &TwoBwConfiguration| of(4).any(|four| speed(one) == speed(four));
        assert!(of(2).any(deeper), "more devices are never as fast");
    }

    #[test]
    fn without_a_flush_every_configuration_has_a_micro_batch_for_each_stage() {
        for updates in [Updates::DoubleBuffered, Updates::Flush] {
            let late = updates == Updates::DoubleBuffered;
            let request = TwoBwRequest { updates, ..request(8, 24) };
            let found = two_bw(&request, |b| Ok(blocks(b))).expect("a plan");
            let mut seen: Vec<[u32; 3]> = vec![];
            for it in &found {
                assert_eq!(it.width * it.microbatch * it.microbatches, 24);
                assert!(it.width * it.depth <= 8 && it.depth <= 4);
                assert!(!late || it.microbatches >= it.depth);
                seen.extend((!it.recompute).then_some([it.width, it.depth, it.microbatch]));
            }
            let mut all = vec![];
            for [w, d, b] in (1..=8)
                .flat_map(|w| (1..=4).map(move |d| [w, d]))
                .flat_map(|[w, d]| (1..=24).map(move |b| [w, d, b]))
            {
                if w * d <= 8 && 24 % (w * b) == 0 && (!late || 24 / (w * b) >= d) {
                    all.push([w, d, b]);
                }
            }
            seen.sort_unstable();
            all.sort_unstable();
            assert_eq!(seen, all);
            let rates: Vec<f64> = found.iter().map(|it| it.samples_per_second()).collect();
            assert!(rates.is_sorted_by(|a, b| a >= b));
        }
    }

    /// The schedule itself, each stage's all-reduce after its last pass, as the oracle.
    #[test]
    fn a_flush_takes_as_long_as_its_schedule_and_what_is_then_exchanged() {
        let sizes = (2..=8).flat_map(|depth| (1..=10).map(move |n| (depth, n)));
        for ((depth, n), recompute) in sizes.flat_map(|it| [false, true].map(|again| (it, again))) {
            // What is computed again is a forward pass more in each backward pass.
            let half = if recompute { 1.5 } else { 1.0 };
            let times = PassTimes { input: half, weight: half, ..PassTimes::default() };
            let map = StageMap::arranged(Arrangement::Chain, depth, 1, n).expect("places");
            let kind = ScheduleKind::OneForwardOneBackward;
            let schedule = Schedule::build(kind, map, &times).expect("a schedule");
            let timing = time(&schedule, 1, &times).expect("no deadlock");
            // Bytes of gradients of each stage, of which both of two replicas send as many.
            for gradients in [[0.0; 8], [5.0; 8], [1.0, 0.0, 9.0, 2.0, 0.0, 30.0, 1.0, 16.0]] {
                let ends = timing.actions.iter().map(|actions| actions.last().expect("a pass").end);
                let step = ends.zip(gradients).map(|(end, bytes)| end + bytes).fold(0.0, f64::max);
                let layer = LayerProfile {
                    forward_seconds: 1.0,
                    backward_seconds: 2.0,
                    ..LayerProfile::default()
                };
                let of = |&gradient_bytes| LayerProfile { gradient_bytes, ..layer };
                let layers: Vec<LayerProfile> = gradients[..depth].iter().map(of).collect();
                let request = TwoBwRequest {
                    updates: Updates::Flush,
                    links: Interconnect { per_node: 1, ..links() },
                    ..request(2 * depth as u32, 2 * n as u32)
                };
                let found = two_bw(&request, |_| Ok(layers.clone())).expect("a plan");
                let it = find(&found, [2, depth as u32, 1], recompute);
                let planned = it.slot_seconds * n as f64;
                assert!((planned - step).abs() < 1e-9, "{depth} stages, {n}: {planned}, {step}");
            }
        }
    }

    #[test]
    fn no_more_is_under_way_than_there_are_micro_batches() {
        let request = TwoBwRequest { updates: Updates::Flush, ..request(4, 2) };
        let found = two_bw(&request, |b| Ok(blocks(b))).expect("a plan");
        // |W| / d + min(d, m) (|A| / d + |input|), or |A| / d once where it is recomputed.
        assert_eq!(find(&found, [1, 4, 1], false).peak_bytes, 40.0 + 2.0 * (10.0 + 2.0));
        assert_eq!(find(&found, [1, 4, 1], true).peak_bytes, 40.0 + 10.0 + 2.0 * 2.0);
        assert_eq!(find(&found, [1, 4, 2], false).peak_bytes, 40.0 + 20.0 + 4.0);
    }

    #[test]
    fn a_flush_saves_a_version_and_costs_the_bubble() {
        let late = two_bw(&request(4, 16), |b| Ok(blocks(b))).expect("a plan");
        let flush = TwoBwRequest { updates: Updates::Flush, ..request(4, 16) };
        let flush = two_bw(&flush, |b| Ok(blocks(b))).expect("a plan");
        let of = |found: &[TwoBwConfiguration]| find(found, [1, 4, 2], false);
        // |W| / d less; 8 micro-batches through 4 stages.
        assert_eq!(of(&late).peak_bytes - of(&flush).peak_bytes, 40.0);
        assert_eq!(of(&flush).slot_seconds, of(&late).slot_seconds * 11.0 / 8.0);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_recomputation_makes_room() {
        let tight = TwoBwRequest { memory_bytes: 210.0, ..request(2, 16) };
        let found = two_bw(&tight, |b| Ok(blocks(b))).expect("an answer");
        assert!(found.iter().all(|it| it.peak_bytes <= 210.0 && it.depth == 2));
        assert!(found.iter().any(|it| it.recompute && it.microbatch == 2));
        assert!(!found.iter().any(|it| !it.recompute && it.microbatch == 2));
        let none = TwoBwRequest { memory_bytes: 1.0, ..request(2, 16) };
        assert!(two_bw(&none, |b| Ok(blocks(b))).expect("an answer").is_empty());
        assert!(two_bw(&request(0, 16), |b| Ok(blocks(b))).is_err());
        for (workers, batch, key) in [(0, 16, "workers"), (4, 0, "global_batch")] {
            let error = two_bw(&request(workers, batch), |b| Ok(blocks(b))).expect_err(key);
            assert!(matches!(error, MethodError::Planner { key: it, .. } if it == key), "{error}");
        }
    }
}
