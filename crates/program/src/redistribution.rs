//! The cheapest sequence of local slices and collectives from one layout to another.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use shardloom_plan::{Axis, Mesh};

use crate::{Collective, Layout};

/// A change of layout along one mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Keep one's own part along a tensor axis; local.
    Slice { axis: usize },
    /// Together with the others along the mesh axis.
    Together(Collective),
}

/// One step of a redistribution and the layout after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What is done.
    pub change: Change,
    /// The mesh axis it is done over.
    pub axis: Axis,
    /// The layout that results.
    pub layout: Layout,
}

/// The sequence from `from` to `to` of a tensor of shape `global` that moves the fewest bytes per
/// device, with the fewest steps among equals; none if there is none.
///
/// A uniform-cost search over layouts: a handful of states for any real tensor. Mesh axes that split the
/// same in both layouts are left alone: to undo such a split and to do it again costs something, and
/// makes every step between move more.
pub(crate) fn cheapest(
    from: &Layout,
    to: &Layout,
    global: &[usize],
    mesh: &Mesh,
) -> Option<Vec<Step>> {
    search(from, to, global, mesh, &staying(from, to))
}

/// Mesh axes that split the same tensor axis in both layouts, inside of none that does not.
fn staying(from: &Layout, to: &Layout) -> Vec<Axis> {
    let common = |(a, b): (&Vec<Axis>, &Vec<Axis>)| -> Vec<Axis> {
        a.iter().zip(b).take_while(|(a, b)| a == b).map(|(&axis, _)| axis).collect()
    };
    from.splits.iter().zip(&to.splits).flat_map(common).collect()
}

/// The cheapest sequence of steps over mesh axes that are not in `still`.
fn search(
    from: &Layout,
    to: &Layout,
    global: &[usize],
    mesh: &Mesh,
    still: &[Axis],
) -> Option<Vec<Step>> {
    let mut queue = BinaryHeap::from([Candidate { moved: 0, steps: 0, layout: from.clone() }]);
    let start = Reached { moved: 0, steps: 0, by: None };
    let mut best: BTreeMap<Layout, Reached> = BTreeMap::from([(from.clone(), start)]);
    while let Some(Candidate { moved, steps, layout }) = queue.pop() {
        if layout == *to {
            return Some(retrace(&best, layout));
        }
        if best[&layout].moved < moved {
            continue;
        }
        for (step, sent) in moves(&layout, global, mesh, still) {
            let (moved, steps) = (moved + sent, steps + 1);
            let next = step.layout.clone();
            let known = best.get(&next).map(|known| (known.moved, known.steps));
            if known.is_none_or(|known| (moved, steps) < known) {
                let by = Some((layout.clone(), step));
                best.insert(next.clone(), Reached { moved, steps, by });
                queue.push(Candidate { moved, steps, layout: next });
            }
        }
    }
    None
}

/// The best way known to a layout.
struct Reached {
    moved: u64,
    steps: u32,
    /// The layout before and the step from it; none for the start.
    by: Option<(Layout, Step)>,
}

fn retrace(best: &BTreeMap<Layout, Reached>, mut layout: Layout) -> Vec<Step> {
    let mut steps = vec![];
    while let Some((before, step)) = best.get(&layout).and_then(|reached| reached.by.as_ref()) {
        steps.push(step.clone());
        layout = before.clone();
    }
    steps.reverse();
    steps
}

/// All single steps from `layout` over mesh axes that are not in `still`, with the elements each device
/// sends, in units of 1/N that are made whole by rounding up.
fn moves(layout: &Layout, global: &[usize], mesh: &Mesh, still: &[Axis]) -> Vec<(Step, u64)> {
    let local: usize = layout.local_shape(global, mesh).iter().product();
    let mut steps = vec![];
    for axis in mesh.axes().filter(|axis| !still.contains(axis)) {
        let width = mesh.width(axis);
        let share = |elements: usize| (elements * (width - 1)).div_ceil(width) as u64;
        let fits = |tensor_axis: usize| {
            global[tensor_axis].is_multiple_of(mesh.span(&layout.splits[tensor_axis]) * width)
        };
        let mut push = |change: Change, layout: Layout, sent: u64| {
            steps.push((Step { change, axis, layout }, sent));
        };
        if let Some(at) = layout.partial.iter().position(|&(each, _)| each == axis) {
            let reduction = layout.partial[at].1;
            let mut reduced = layout.clone();
            reduced.partial.remove(at);
            push(
                Change::Together(Collective::AllReduce(reduction)),
                reduced.clone(),
                2 * share(local),
            );
            for tensor_axis in (0..global.len()).filter(|&tensor_axis| fits(tensor_axis)) {
                let mut scattered = reduced.clone();
                scattered.splits[tensor_axis].push(axis);
                let change = Collective::ReduceScatter { axis: tensor_axis, reduction };
                let change = Change::Together(change);
                push(change, scattered, share(local));
            }
            continue;
        }
        match layout.splits.iter().position(|axes| axes.contains(&axis)) {
            // Only the innermost split of a tensor axis can be undone without moving the others.
            Some(from) if layout.splits[from].last() == Some(&axis) => {
                let mut gathered = layout.clone();
                gathered.splits[from].pop();
                push(
                    Change::Together(Collective::AllGather { axis: from }),
                    gathered.clone(),
                    (local * (width - 1)) as u64,
                );
                for to in (0..global.len()).filter(|&to| to != from && fits(to)) {
                    let mut moved = gathered.clone();
                    moved.splits[to].push(axis);
                    push(Change::Together(Collective::AllToAll { from, to }), moved, share(local));
                }
            }
            Some(_) => {}
            None => {
                for tensor_axis in (0..global.len()).filter(|&tensor_axis| fits(tensor_axis)) {
                    let mut sliced = layout.clone();
                    sliced.splits[tensor_axis].push(axis);
                    push(Change::Slice { axis: tensor_axis }, sliced, 0);
                }
            }
        }
    }
    steps
}

#[derive(PartialEq, Eq)]
struct Candidate {
    moved: u64,
    steps: u32,
    layout: Layout,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        // Reversed: the heap gives its greatest first.
        (other.moved, other.steps, &other.layout).cmp(&(self.moved, self.steps, &self.layout))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shardloom_graph::Reduction;

    fn mesh() -> Mesh {
        Mesh::of(2, 1, 4)
    }

    fn layout(splits: &[&[Axis]], partial: &[Axis]) -> Layout {
        Layout {
            splits: splits.iter().map(|axes| axes.to_vec()).collect(),
            partial: partial.iter().map(|&axis| (axis, Reduction::Sum)).collect(),
        }
    }

    fn changes(from: &Layout, to: &Layout) -> Vec<Change> {
        let steps = cheapest(from, to, &[8, 16, 32], &mesh()).expect("a path exists");
        steps.into_iter().map(|step| step.change).collect()
    }

    #[test]
    fn megatron_reduces_and_sequence_parallelism_scatters() {
        let batch = &[Axis::DP][..];
        let partial = layout(&[batch, &[], &[]], &[Axis::TP]);
        let whole = layout(&[batch, &[], &[]], &[]);
        let sequence = layout(&[batch, &[Axis::TP], &[]], &[]);
        assert_eq!(
            changes(&partial, &whole),
            [Change::Together(Collective::AllReduce(Reduction::Sum))]
        );
        let scatter = Collective::ReduceScatter { axis: 1, reduction: Reduction::Sum };
        let scatter = Change::Together(scatter);
        assert_eq!(changes(&partial, &sequence), [scatter]);
        assert_eq!(
            changes(&sequence, &whole),
            [Change::Together(Collective::AllGather { axis: 1 })]
        );
        assert_eq!(changes(&whole, &sequence), [Change::Slice { axis: 1 }]);
        assert_eq!(changes(&whole, &whole), []);
    }

    #[test]
    fn a_moved_axis_is_an_all_to_all_and_not_a_gather() {
        let from = layout(&[&[], &[Axis::TP], &[]], &[]);
        let to = layout(&[&[], &[], &[Axis::TP]], &[]);
        assert_eq!(
            changes(&from, &to),
            [Change::Together(Collective::AllToAll { from: 1, to: 2 })]
        );
    }

    #[test]
    fn slices_come_before_gathers() {
        let from = layout(&[&[Axis::TP], &[], &[]], &[]);
        let to = layout(&[&[], &[Axis::DP], &[]], &[]);
        assert_eq!(
            changes(&from, &to),
            [Change::Slice { axis: 1 }, Change::Together(Collective::AllGather { axis: 0 })]
        );
    }

    #[test]
    fn nothing_makes_a_whole_tensor_partial() {
        let whole = layout(&[&[], &[], &[]], &[]);
        let partial = layout(&[&[], &[], &[]], &[Axis::TP]);
        assert_eq!(cheapest(&whole, &partial, &[8, 16, 32], &mesh()), None);
    }

    /// Where each mesh axis is: splitting the n-th tensor axis, nowhere, or holding parts of a sum.
    fn placed(places: [usize; 3], order: bool) -> Layout {
        let mut made = Layout::replicated(3);
        let mut axes: Vec<(Axis, usize)> =
            [Axis::DP, Axis::CP, Axis::TP].into_iter().zip(places).collect();
        if order {
            axes.reverse();
        }
        for (axis, place) in axes {
            match place {
                0..3 => made.splits[place].push(axis),
                3 => {}
                _ => made.partial.push((axis, Reduction::Sum)),
            }
        }
        made.partial.sort();
        made
    }

    /// What the devices send along `steps`.
    fn sent(from: &Layout, steps: &[Step], global: &[usize], mesh: &Mesh) -> u64 {
        let mut layout = from.clone();
        let mut sent = 0;
        for step in steps {
            let all = moves(&layout, global, mesh, &[]);
            let found = all.into_iter().find(|(known, _)| known == step).expect("a possible step");
            sent += found.1;
            layout = step.layout.clone();
        }
        sent
    }

    proptest! {
        #[test]
        fn moving_axes_that_may_stay_is_never_cheaper(
            from in prop::array::uniform3(0usize..5),
            to in prop::array::uniform3(0usize..4),
            orders: (bool, bool),
        ) {
            let mesh = Mesh::of(2, 4, 8);
            let global = [64, 128, 192];
            let (from, to) = (placed(from, orders.0), placed(to, orders.1));
            let found = cheapest(&from, &to, &global, &mesh).expect("whole layouts can be reached");
            let best = search(&from, &to, &global, &mesh, &[]).expect("likewise");
            let cost = |steps: &[Step]| (sent(&from, steps, &global, &mesh), steps.len());
            prop_assert_eq!(cost(&found), cost(&best));
        }
    }
}
