//! Chimera's choice of width, depth and micro-batch (Li & Hoefler 2021, "Chimera: Efficiently Training
//! Large-Scale Neural Networks with Bidirectional Pipelines", SC, arXiv 2107.06925, section 3.4).
//!
//! The paper's text was not at hand: the form of the time model is the published one, and its counts of
//! passes, its share of hidden communication and its memory were derived anew from the slots of the
//! schedule. In a unit of `D` micro-batches with forward and backward passes of one slot, micro-batch `m`
//! of a direction runs forward through stage `s` in slot `s + 2m` and backward in `2D - 1 - s + 2m`; a
//! unit that has fewer leaves the later slots empty. The tests below time the schedule itself.

use shardloom_cluster::Link;
use shardloom_plan::even_cuts;
use shardloom_search::divisors;

use crate::MethodError;
use crate::interconnect::Interconnect;
use crate::layer_profile::LayerProfile;
use crate::partition::at_least_one;

/// What to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct ChimeraRequest {
    /// Devices.
    pub workers: u32,
    /// Samples of one step.
    pub global_batch: u32,
    /// What each device has.
    pub memory_bytes: f64,
    /// The links between devices.
    pub links: Interconnect,
    /// Bytes of gradients, optimizer state and master weights beside a byte of weights.
    pub state_bytes_per_weight_byte: f64,
}

/// A way to train, with what it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChimeraConfiguration {
    /// Replicas of the pair of pipelines, `W`.
    pub width: u32,
    /// Stages, `D`.
    pub depth: u32,
    /// Samples of one micro-batch, `B`.
    pub microbatch: u32,
    /// Micro-batches of a step in both directions together, `N`.
    pub microbatches: u32,
    /// Whether stages keep nothing but their inputs and compute the rest again.
    pub recompute: bool,
    /// A step.
    pub step_seconds: f64,
    /// On the fullest device. Forward doubling would hold twice the activations of this.
    pub peak_bytes: f64,
}

impl ChimeraConfiguration {
    /// Forward passes on the critical path, `C_f`: `N` rounded up to whole units, as the one that is not
    /// whole takes as long to fill.
    pub fn forwards(&self) -> u32 {
        self.microbatches.next_multiple_of(self.depth)
    }

    /// Backward passes on the critical path, `C_b`: `C_f - 2` and the micro-batches of the last unit, so
    /// `N + D - 2` for whole units.
    ///
    /// `F C_f + B C_b` is exact for one unit, of `D` micro-batches or fewer, whose backward passes take no
    /// less than the forward passes. With more units it is exact for equal passes, and otherwise holds
    /// where the bubbles between units are filled by forward doubling or backward halving; units that
    /// simply follow each other add `(D - 2) (B - F)` each after the first, and a last one that is not
    /// whole up to one `B - F` less.
    pub fn backwards(&self) -> u32 {
        let before = self.forwards() - self.depth;
        self.forwards() + (self.microbatches - before) - 2
    }
}

/// All configurations of two pipelines in opposite directions that fit, fastest first; of equally fast
/// ones the shallower. With and without recomputation, where the paper recomputes only where nothing else
/// fits: a plan may hold more than these formulas say.
///
/// `profile` gives the layers' profiles for a micro-batch of so many samples; it is asked once for each.
/// `D` is even and divides the number of workers, and `N = global_batch / (W B)` is even, for the two
/// pipelines share it; it may be less than `D` and need not be a multiple of it. The paper uses all
/// workers; here some may be left out, so that every even batch can be dealt and slow links avoided. With
/// the slowest stage's passes `F` and `B`, and `P` the time of a stage's output,
///
/// `T = (F + P) C_f + (B + P) C_b + max over workers of unhidden all-reduces`,
///
/// where each stage's gradients are all-reduced over its `2 W` holders in
/// `2 log2(r) latency + 2 (r-1)/r bytes / bandwidth` (Rabenseifner), within a node only if the devices
/// from its first copy's to its last copy's lie in one, as soon as its last backward pass is done: `s`
/// backward passes before the end for stage `s` (the last stage, and late ones of a unit that is not whole,
/// may be done earlier, which is not counted on). The middle workers have no bubble there and reduce after
/// their last pass.
///
/// The paper then takes, for each `W` and `D`, the largest `B` that fits; here all are ranked.
///
/// # Errors
/// If there are no workers or samples, or those of `profile`.
pub fn chimera(
    request: &ChimeraRequest,
    mut profile: impl FnMut(u32) -> Result<Vec<LayerProfile>, MethodError>,
) -> Result<Vec<ChimeraConfiguration>, MethodError> {
    at_least_one("workers", request.workers)?;
    at_least_one("global_batch", request.global_batch)?;
    let mut fitting = vec![];
    for microbatch in divisors(request.global_batch) {
        let layers = profile(microbatch)?;
        let slots = request.global_batch / microbatch;
        let even = |number: &u32| number.is_multiple_of(2);
        for depth in divisors(request.workers).filter(even) {
            if depth as usize > layers.len() {
                continue;
            }
            let widths = divisors(slots).take_while(|&width| width <= request.workers / depth);
            for width in widths.filter(|width| even(&(slots / width))) {
                for recompute in [false, true] {
                    let configuration = ChimeraConfiguration {
                        width,
                        depth,
                        microbatch,
                        microbatches: slots / width,
                        recompute,
                        step_seconds: 0.0,
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
    fitting.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds).then(a.depth.cmp(&b.depth)));
    Ok(fitting)
}

impl ChimeraConfiguration {
    /// With its time and memory filled in.
    fn costed(mut self, request: &ChimeraRequest, layers: &[LayerProfile]) -> ChimeraConfiguration {
        let cuts = even_cuts(layers.len(), self.depth as usize);
        let of_stage = |cut: &[usize]| LayerProfile::of_stage(&layers[cut[0]..cut[1]]);
        let stages: Vec<LayerProfile> = cuts.windows(2).map(of_stage).collect();
        let most =
            |part: &dyn Fn(&LayerProfile) -> f64| stages.iter().map(part).fold(0.0, f64::max);
        let again = if self.recompute { 1.0 } else { 0.0 };
        let forward = most(&|stage| stage.forward_seconds);
        let backward = most(&|stage| stage.backward_seconds + again * stage.forward_seconds);
        let link = request.links.depth(self.width, self.depth);
        let message = link.transfer_seconds(most(&|stage| stage.output_bytes));
        let reduction = |stage: usize| {
            let holders = self.holders_link(stage, request);
            all_reduce_seconds(holders, 2 * self.width, stages[stage].gradient_bytes)
        };
        let pairs = 0..self.depth as usize / 2;
        let unhidden =
            pairs.clone().map(|worker| self.unhidden_seconds(worker, backward, &reduction));
        self.step_seconds = (forward + message) * f64::from(self.forwards())
            + (backward + message) * f64::from(self.backwards())
            + unhidden.fold(0.0, f64::max);
        let held = pairs.map(|worker| self.held_bytes(worker, &stages, request));
        self.peak_bytes = held.fold(0.0, f64::max);
        self
    }

    /// What the holders of a stage talk over. They are the replicas of its copies in both directions,
    /// which lie as far from the first devices as from the last: those of the outermost stages at both
    /// ends.
    fn holders_link<'a>(&self, stage: usize, request: &'a ChimeraRequest) -> &'a Link {
        let copy = (stage as u32).min(self.depth - 1 - stage as u32);
        request.links.span(copy * self.width, (self.depth - 2 * copy) * self.width)
    }

    /// What sticks out behind the last backward pass of the step of the all-reduces of `worker`, which
    /// holds stages `worker` and `depth - 1 - worker`.
    fn unhidden_seconds(
        &self,
        worker: usize,
        backward: f64,
        reduction: &dyn Fn(usize) -> f64,
    ) -> f64 {
        let (late, early) = (worker, self.depth as usize - 1 - worker);
        let middle = early == late + 1;
        // Seconds before the end.
        let late_ready = late as f64 * backward;
        let early_ready = if middle { late_ready } else { early as f64 * backward };
        let first_done = early_ready - reduction(early);
        let done = first_done.min(late_ready) - reduction(late);
        (-done).max(0.0)
    }

    /// What `worker` and its mirror image hold: the weights of two stages, and the micro-batches that
    /// each has under way, `min(D/2, N/2, D - s)` in stage `s`.
    fn held_bytes(&self, worker: usize, stages: &[LayerProfile], request: &ChimeraRequest) -> f64 {
        let depth = self.depth as usize;
        let weights = 1.0 + request.state_bytes_per_weight_byte;
        let mut bytes = 0.0;
        let mut recomputed: f64 = 0.0;
        for stage in [worker, depth - 1 - worker] {
            let each = depth.min(self.microbatches as usize) / 2;
            let under_way = each.min(depth - stage) as f64;
            let input = if stage == 0 { 0.0 } else { stages[stage - 1].output_bytes };
            let kept = stages[stage].kept_bytes;
            bytes += weights * stages[stage].parameter_bytes;
            bytes += under_way * if self.recompute { input } else { kept };
            recomputed = recomputed.max(if self.recompute { kept } else { 0.0 });
        }
        bytes + recomputed
    }
}

/// Rabenseifner's all-reduce of `members`.
fn all_reduce_seconds(link: &Link, members: u32, bytes: f64) -> f64 {
    let members = f64::from(members);
    let rounds = 2.0 * members.log2();
    let sent = 2.0 * (members - 1.0) / members * bytes;
    rounds * link.latency_seconds + sent / link.reachable_bytes_per_second()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
    use shardloom_schedule::{PassKind, Schedule, StageMap, Timed, Timing, time};

    use super::*;

    fn configuration(depth: u32, microbatches: u32) -> ChimeraConfiguration {
        ChimeraConfiguration {
            width: 1,
            depth,
            microbatch: 1,
            microbatches,
            recompute: false,
            step_seconds: 0.0,
            peak_bytes: 0.0,
        }
    }

    /// When the schedule's passes run.
    fn timing(depth: u32, microbatches: u32, forward: f64, backward: f64) -> Timing {
        let [input, weight] = [backward / 2.0; 2];
        let times = PassTimes { forward, input, weight, ..PassTimes::default() };
        let (devices, microbatches) = (depth as usize, microbatches as usize);
        let map = StageMap::arranged(Arrangement::Bidirectional, devices, 2, microbatches);
        let built = Schedule::build(ScheduleKind::Chimera, map.expect("places"), &times);
        time(&built.expect("a schedule"), 1, &times).expect("no deadlock")
    }

    /// Depths and micro-batches of up to three units, the last one whole or not.
    fn sizes() -> impl Iterator<Item = (u32, u32)> {
        [2, 4, 6, 8, 12]
            .into_iter()
            .flat_map(|depth| (2..=3 * depth).step_by(2).map(move |it| (depth, it)))
    }

    fn counted(depth: u32, microbatches: u32, forward: f64, backward: f64) -> f64 {
        let it = configuration(depth, microbatches);
        forward * f64::from(it.forwards()) + backward * f64::from(it.backwards())
    }

    #[test]
    fn a_unit_takes_as_long_as_the_counts_of_the_critical_path_say() {
        for (depth, n) in sizes().filter(|(depth, n)| n <= depth) {
            for (forward, backward) in [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (2.0, 3.0)] {
                assert_eq!(
                    timing(depth, n, forward, backward).makespan,
                    counted(depth, n, forward, backward),
                    "D = {depth}, N = {n}, f = {forward}, b = {backward}"
                );
            }
        }
    }

    #[test]
    fn equal_passes_take_as_long_as_counted_and_in_whole_units_as_published() {
        for (depth, n) in sizes() {
            let makespan = timing(depth, n, 1.0, 1.0).makespan;
            assert_eq!(makespan, counted(depth, n, 1.0, 1.0), "D = {depth}, N = {n}");
            if n.is_multiple_of(depth) {
                assert_eq!(makespan, f64::from(2 * n + depth - 2), "D = {depth}, N = {n}");
            }
        }
    }

    #[test]
    fn units_that_follow_each_other_leave_bubbles_where_backward_passes_are_longer() {
        for (depth, n) in sizes() {
            for backward in [2.0, 3.0] {
                let makespan = timing(depth, n, 1.0, backward).makespan;
                let bubbles = makespan - counted(depth, n, 1.0, backward);
                let more = f64::from((n.div_ceil(depth) - 1) * (depth - 2)) * (backward - 1.0);
                let less = if more > 0.0 && n % depth > 0 { backward - 1.0 } else { 0.0 };
                let size = format!("D = {depth}, N = {n}, b = {backward}: {bubbles}");
                assert!((more - less..=more).contains(&bubbles), "{size}");
            }
        }
    }

    #[test]
    fn stages_are_done_their_number_of_backward_passes_before_the_end() {
        for (depth, n) in sizes() {
            for backward in [1.0, 2.0, 3.0] {
                let Timing { actions, makespan, .. } = timing(depth, n, 1.0, backward);
                let passes = || actions.iter().flatten();
                for stage in 0..depth {
                    let of_stage = |it: &&Timed| {
                        it.action.passes().any(|pass| u32::from(pass.instance.stage) == stage)
                    };
                    let end = passes().filter(of_stage).map(|it| it.end).fold(0.0, f64::max);
                    let (left, counted) = (makespan - end, f64::from(stage) * backward);
                    let size = format!("stage {stage} of {depth}, N = {n}, b = {backward}");
                    // Late stages of a unit that is not whole, and the last one, have some to spare.
                    match stage == 0 || (n.is_multiple_of(depth) && stage + 1 < depth) {
                        true => assert_eq!(left, counted, "{size}"),
                        false => assert!(left >= counted, "{size}"),
                    }
                }
            }
        }
    }

    /// The most micro-batches that `worker` has under way at once in `stage`.
    fn most_under_way(actions: &[Vec<Timed>], worker: u32, stage: u32) -> i32 {
        let (mut now, mut most) = (0, 0);
        let passes = actions[worker as usize].iter().flat_map(|it| it.action.passes());
        for pass in passes.filter(|it| u32::from(it.instance.stage) == stage) {
            now += if pass.kind == PassKind::Forward { 1 } else { -1 };
            most = most.max(now);
        }
        most
    }

    #[test]
    fn workers_that_compute_again_hold_inputs_and_what_one_of_their_stages_keeps() {
        for (depth, n) in sizes() {
            let actions = timing(depth, n, 1.0, 1.0).actions;
            let layers = (0..depth).map(|stage| LayerProfile {
                // The largest in the middle, so that it is of a worker's first or second stage.
                kept_bytes: 1e3 * f64::from((stage + 1) * (depth + 1 - stage)),
                output_bytes: f64::from(stage + 1),
                ..LayerProfile::default()
            });
            let layers: Vec<LayerProfile> = layers.collect();
            for worker in 0..depth / 2 {
                let stages = [worker, depth - 1 - worker];
                // The first stage reads samples and no activations.
                let inputs = stages.iter().filter(|&&stage| stage > 0);
                let of_stage = |&stage: &u32| {
                    let count = f64::from(most_under_way(&actions, worker, stage));
                    count * layers[stage as usize - 1].output_bytes
                };
                let inputs: f64 = inputs.map(of_stage).sum();
                let again = stages.map(|stage| layers[stage as usize].kept_bytes);
                let it = ChimeraConfiguration { recompute: true, ..configuration(depth, n) };
                assert_eq!(
                    it.held_bytes(worker as usize, &layers, &request(depth, n)),
                    inputs + again[0].max(again[1]),
                    "worker {worker} of {depth}, N = {n}"
                );
            }
        }
    }

    #[test]
    fn workers_hold_what_is_under_way_in_each_of_their_stages() {
        for (depth, n) in sizes() {
            let actions = timing(depth, n, 1.0, 1.0).actions;
            let layer = LayerProfile { kept_bytes: 1.0, ..LayerProfile::default() };
            for worker in 0..depth / 2 {
                // Stages are counted apart: what one has freed, the other could not use.
                let mut held = 0;
                for stage in [worker, depth - 1 - worker] {
                    held += most_under_way(&actions, worker, stage);
                }
                let size = format!("worker {worker} of {depth}, N = {n}");
                if n >= depth {
                    assert_eq!(held, (depth / 2 + 1 + worker) as i32, "{size}");
                }
                let (it, layers) = (configuration(depth, n), vec![layer; depth as usize]);
                let counted = it.held_bytes(worker as usize, &layers, &request(depth, n));
                assert_eq!(counted, f64::from(held), "{size}");
            }
        }
    }

    fn request(workers: u32, global_batch: u32) -> ChimeraRequest {
        let link =
            Link { latency_seconds: 0.5, bytes_per_second: 4.0, reachable: 1.0, curve: None };
        ChimeraRequest {
            workers,
            global_batch,
            memory_bytes: f64::INFINITY,
            links: Interconnect {
                per_node: workers.max(1),
                within: link.clone(),
                across: link.clone(),
                between: link,
            },
            state_bytes_per_weight_byte: 1.0,
        }
    }

    fn blocks(microbatch: u32) -> Vec<LayerProfile> {
        let samples = f64::from(microbatch);
        let block = LayerProfile {
            forward_seconds: samples,
            backward_seconds: 2.0 * samples,
            output_bytes: 2.0 * samples,
            parameter_bytes: 10.0,
            gradient_bytes: 8.0,
            kept_bytes: 10.0 * samples,
        };
        vec![block; 4]
    }

    #[test]
    fn a_step_is_passes_messages_and_what_sticks_out_of_the_all_reduces() {
        let found = chimera(&request(4, 8), |b| Ok(blocks(b))).expect("a plan");
        let it = found.iter().find(|it| it.depth == 4 && it.microbatch == 1).expect("in the space");
        assert_eq!((it.width, it.microbatches), (1, 8));
        // F = 1, B = 2, P = 1; C_f = 8, C_b = 10; an all-reduce of two holders is 2 * 0.5 + 8 / 4 = 3.
        // The first worker's last stage is ready 6 before the end, its first stage at the end: 3 stick
        // out. The middle worker begins 2 before the end: 4 stick out.
        assert_eq!(it.step_seconds, 2.0 * 8.0 + 3.0 * 10.0 + 4.0);
        // The middle worker: two stages of 10 bytes and as much state, four micro-batches of 10.
        assert_eq!(it.peak_bytes, 40.0 + 40.0);
    }

    #[test]
    fn passes_and_messages_go_at_the_pace_of_the_slowest_stage_wherever_it_is() {
        let link =
            Link { latency_seconds: 0.0, bytes_per_second: 4.0, reachable: 1.0, curve: None };
        for (depth, n) in sizes() {
            let mut request = request(depth, n);
            request.links = Interconnect {
                within: link.clone(),
                across: link.clone(),
                between: link.clone(),
                ..request.links
            };
            for (slow, large) in (0..depth).flat_map(|it| (0..depth - 1).map(move |o| (it, o))) {
                // Nothing to reduce: 1, 2 and 1 seconds, of one stage 3 and 5, of one message 2.
                let layers: Vec<LayerProfile> = (0..depth)
                    .map(|stage| LayerProfile {
                        forward_seconds: if stage == slow { 3.0 } else { 1.0 },
                        backward_seconds: if stage == slow { 5.0 } else { 2.0 },
                        output_bytes: if stage == large { 8.0 } else { 4.0 },
                        ..LayerProfile::default()
                    })
                    .collect();
                for (recompute, again) in [(false, 0.0), (true, 3.0)] {
                    let it = ChimeraConfiguration { recompute, ..configuration(depth, n) };
                    let found = it.costed(&request, &layers).step_seconds;
                    let expected = counted(depth, n, 3.0 + 2.0, 5.0 + again + 2.0);
                    assert_eq!(found, expected, "D = {depth}, N = {n}, {slow} {large} {recompute}");
                }
            }
        }
    }

    #[test]
    fn copies_of_outer_stages_talk_between_nodes_where_those_of_the_middle_share_one() {
        let across = Link {
            latency_seconds: 1.0,
            bytes_per_second: 0.5,
            ..request(12, 12).links.within.clone()
        };
        // Nodes of four devices: the middle two stages of six lie in the second of three.
        let links = Interconnect { per_node: 4, across, ..request(12, 12).links };
        let request = ChimeraRequest { links, ..request(12, 12) };
        for (width, depth) in [(1, 12), (2, 6), (3, 4), (6, 2)] {
            let it = ChimeraConfiguration { width, ..configuration(depth, depth) };
            for stage in 0..depth {
                let copies = [stage, depth - 1 - stage];
                let nodes: BTreeSet<u32> = copies
                    .iter()
                    .flat_map(|copy| copy * width..(copy + 1) * width)
                    .map(|device| device / 4)
                    .collect();
                let shared =
                    if nodes.len() == 1 { &request.links.within } else { &request.links.across };
                assert_eq!(it.holders_link(stage as usize, &request), shared, "{stage} of {depth}");
            }
        }
        // Six stages of two replicas: F = 1, B = 2, and P = 1 + 2 / 0.5 = 5 between nodes. An all-reduce
        // of four holders is 2 * 2 + 1.5 * 8 / 0.5 = 28 between nodes and 2 + 1.5 * 8 / 4 = 5 within the
        // middle one. Of the first worker 28 - 5 B and another 28 stick out, of the second 28 - 4 B and
        // 28, of the middle one 2 * 5 - 2 B.
        let six = |b| Ok(vec![blocks(b)[0]; 6]);
        let found = chimera(&request, six).expect("a plan");
        let it = found.iter().find(|it| it.depth == 6 && it.microbatch == 1).expect("in the space");
        assert_eq!((it.width, it.microbatches), (2, 6));
        assert_eq!(it.step_seconds, 6.0 * 6.0 + 7.0 * 10.0 + 48.0);
    }

    #[test]
    fn all_shapes_of_the_workers_are_looked_at_and_ranked() {
        for (workers, batch) in [(4, 16), (6, 16), (8, 6), (12, 20), (4, 7), (3, 12)] {
            let found = chimera(&request(workers, batch), |b| Ok(blocks(b))).expect("an answer");
            assert!(found.is_sorted_by(|a, b| a.step_seconds <= b.step_seconds));
            let kept = found.iter().filter(|it| !it.recompute);
            let mut shapes: Vec<[u32; 4]> =
                kept.map(|it| [it.width, it.depth, it.microbatch, it.microbatches]).collect();
            // There are four blocks.
            let mut all: Vec<[u32; 4]> = vec![];
            for [depth, width] in
                [2, 4].into_iter().flat_map(|d| (1..=workers).map(move |w| [d, w]))
            {
                let dealt = (1..=batch).flat_map(|b| (2..=batch).step_by(2).map(move |n| [b, n]));
                let dealt = dealt.filter(|[b, n]| width * b * n == batch);
                if workers.is_multiple_of(depth) && width * depth <= workers {
                    all.extend(dealt.map(|[b, n]| [width, depth, b, n]));
                }
            }
            shapes.sort_unstable();
            all.sort_unstable();
            assert_eq!(shapes, all, "{workers} workers, {batch} samples");
        }
        assert!(chimera(&request(0, 16), |b| Ok(blocks(b))).is_err());
        for (workers, batch, key) in [(0, 16, "workers"), (4, 0, "global_batch")] {
            let error = chimera(&request(workers, batch), |b| Ok(blocks(b))).expect_err(key);
            assert!(matches!(error, MethodError::Planner { key: it, .. } if it == key), "{error}");
        }
    }

    #[test]
    fn batches_with_large_divisors_are_dealt_too() {
        // Twice a prime: no number of replicas in between.
        let found = chimera(&request(1 << 10, 2 * 8_388_593), |b| Ok(blocks(b))).expect("a plan");
        assert!(found.iter().any(|it| (it.width, it.depth, it.microbatch) == (1, 4, 1)));
        assert!(found.iter().all(|it| it.width == 1));
    }

    #[test]
    fn recomputation_is_offered_as_well_and_makes_room() {
        let recomputed = |memory_bytes: f64| -> Vec<bool> {
            let request = ChimeraRequest { memory_bytes, ..request(4, 4) };
            let found = chimera(&request, |b| Ok(blocks(b))).expect("an answer");
            assert!(found.iter().all(|it| it.peak_bytes <= memory_bytes));
            let deep = found.iter().filter(|it| it.depth == 4 && it.microbatch == 1);
            deep.map(|it| it.recompute).collect()
        };
        assert_eq!(recomputed(80.0), [false, true]);
        assert_eq!(recomputed(70.0), [true]);
        assert!(recomputed(40.0).is_empty());
        let found = chimera(&request(4, 4), |b| Ok(blocks(b))).expect("a plan");
        let mut single = found.iter().filter(|it| it.recompute && it.microbatch == 1);
        let deep = single.find(|it| it.depth == 4).expect("in the space");
        // F = 1, B = 2 + 1, P = 1 with as many passes as before; all-reduces stick out by 3.
        assert_eq!(deep.step_seconds, 2.0 * 4.0 + 4.0 * 6.0 + 3.0);
    }
}
