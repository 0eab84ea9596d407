//! Operands are those that an action needs, lie within their tensors, and fit each other at every position.

use shardloom_collectives::chunk;
use shardloom_plan::Compression;

use super::row::Step;
use super::violation::Violation;
use crate::{
    Action, Collective, Content, Extent, Format, Group, Keep, Mode, Program, Shape, Tensor, View,
    Window, Write,
};

/// Checks an instruction by itself. Whether what it says is well formed: the rest can be looked at only
/// then.
pub(super) fn check(program: &Program, step: &Step<'_>, found: &mut Vec<Violation>) -> bool {
    let before = found.len();
    if let Some(fault) = fault(program, step) {
        found.push(Violation::Operands { at: step.site(), fault });
        return false;
    }
    for view in step.instruction.operands() {
        if !is_within(step, view) {
            let tensor = step.tensor_name(view.tensor);
            found.push(Violation::Outside { at: step.site(), tensor });
        }
    }
    if found.len() > before {
        return false;
    }
    modes(step, found);
    match &step.instruction.action {
        Action::Copy | Action::Add | Action::Difference | Action::Publish { .. } => {
            let writes = step.instruction.writes.iter().map(|write| write.to);
            let pairs: Vec<_> = step.instruction.reads.iter().copied().zip(writes).collect();
            pairs.into_iter().for_each(|(read, write)| same(step, read, write, found));
        }
        Action::Fetch { .. } => {
            for write in &step.instruction.writes {
                // The other has published as much.
                let bucket = step.class.tensor(write.to.tensor).bucket;
                let window = bucket.and_then(|it| step.class.bucket(it).held.published);
                window.into_iter().for_each(|it| same(step, View::whole(it), write.to, found));
            }
        }
        Action::Extrapolate { .. } => {
            let (reads, write) = (&step.instruction.reads, step.instruction.writes[0].to);
            same(step, reads[0], write, found);
            sizes(step, reads[1], write, found);
        }
        Action::Average { .. } => {
            same(step, step.instruction.reads[0], step.instruction.writes[0].to, found);
        }
        Action::Cast => {
            sizes(step, step.instruction.reads[0], step.instruction.writes[0].to, found);
        }
        Action::Compress { round: 0, .. } => {
            let own = step.instruction.reads.get(1);
            own.into_iter().for_each(|&own| sizes(step, step.instruction.reads[0], own, found));
        }
        Action::Slice { axis, over } => {
            let (read, write) = (step.instruction.reads[0], step.instruction.writes[0].to);
            formats(step, read, write, found);
            split(step, read, write, (*axis, step.class.mesh.width(*over)), found);
        }
        Action::Collective { kind, group, .. } => collective(program, step, *kind, group, found),
        Action::Statistics { .. } => {
            let reads = &step.instruction.reads;
            if !is_row_by_row(step, reads[0]) {
                sizes(step, reads[0], reads[1], found);
            }
        }
        Action::Optimizer => {
            let read = step.instruction.reads[0];
            for write in &step.instruction.writes {
                let per_element = !matches!(
                    step.class.tensor(write.to.tensor).shape,
                    Shape::Flat(Extent::OfParam { .. })
                );
                if per_element && !is_row_by_row(step, read) {
                    sizes(step, read, write.to, found);
                }
            }
        }
        _ => {}
    }
    true
}

/// What is wrong with the number or the kinds of an instruction's operands, if anything is.
fn fault(program: &Program, step: &Step<'_>) -> Option<String> {
    let (class, instruction) = (step.class, step.instruction);
    let operands = instruction.operands().map(|view| view.tensor);
    let mut touched = operands.chain(instruction.frees.iter().copied());
    if touched.any(|it| it.0 as usize >= class.tensors.len()) {
        return Some("it names a tensor that the class does not hold".into());
    }
    let content = |view: View| class.tensor(view.tensor).content;
    let reads = || instruction.reads.iter().map(|&view| content(view));
    let counts = (instruction.reads.len(), instruction.writes.len());
    let fits = match &instruction.action {
        Action::Load { .. } => counts == (0, 1),
        Action::Kernel { .. } => counts.1 > 0,
        Action::Add | Action::Copy if instruction.reads_rows(class) => counts == (2, 1),
        Action::Slice { .. } | Action::Add | Action::Difference | Action::Cast => counts == (1, 1),
        // Rows are read with their counts before and after, and lie side by side on their way to experts.
        Action::Collective { kind, .. } if instruction.moves_rows(class) => {
            counts == (3, 1 + usize::from(matches!(kind, Collective::AllToAll { to: 0, .. })))
        }
        Action::Collective { .. } => {
            let negotiation = |it: &&Write| content(it.to) == Content::Negotiation;
            let further = instruction.writes.iter().filter(negotiation).count();
            further <= 2 && matches!((counts.0, counts.1 - further), (1, 1 | 2))
        }
        Action::Copy => counts.0 == counts.1,
        // What comes of rows comes for those that are read besides.
        Action::Send { route } => {
            let of = program.routes.get(route.0 as usize);
            of.is_some_and(|of| counts == (1, 0) || (of.moves_rows() && counts == (2, 0)))
        }
        Action::Receive { route } => {
            let of = program.routes.get(route.0 as usize);
            of.is_some_and(|of| counts == (0, 1) || (of.moves_rows() && counts == (1, 1)))
        }
        Action::LoadRows { .. } => counts == (0, 1),
        Action::FindRows | Action::TakeRows => counts == (2, 1),
        Action::Report => counts == (1, 0),
        Action::Extrapolate { .. } => counts == (2, 1),
        Action::Norm => {
            counts.1 == 1 && reads().all(|it| matches!(it, Content::Gradient | Content::Rows))
        }
        Action::SumRows => counts == (2, 3),
        Action::Statistics { .. } => {
            counts.0 >= 2 && counts.1 >= 1 && reads().next() == Some(Content::Gradient)
        }
        Action::Optimizer => {
            counts.0 >= 1 && counts.1 >= 1 && reads().next() == Some(Content::Gradient)
        }
        Action::Compress { how: Compression::Rounded { feedback: false, .. }, .. } => {
            counts == (1, 1)
        }
        Action::Compress { how: Compression::PowerSgd { .. }, round: 0 } => counts == (3, 3),
        Action::Compress { .. } => counts == (2, 2),
        Action::Decompress { how: Compression::PowerSgd { .. } } => counts == (3, 3),
        Action::Decompress { .. } => counts == (1, 1),
        Action::Publish { .. } => counts.0 == counts.1 && counts.0 > 0,
        Action::Fetch { .. } => counts.0 == 0 && counts.1 > 0,
        Action::Average { .. } => counts == (1, 1) && reads().all(|it| it == Content::SummedWeight),
        Action::Due { .. } => counts == (0, 1),
        Action::Test => counts == (1, 1) && reads().all(|it| it == Content::Norm),
        Action::Free => counts == (0, 0) && !instruction.frees.is_empty(),
    };
    if !fits {
        return Some(format!(
            "it reads {} and writes {} tensors, or such of another kind",
            counts.0, counts.1
        ));
    }
    if !kinds(program, step) {
        return Some("it reads or writes what is not for it".into());
    }
    if let Action::Collective { .. } = instruction.action
        && !instruction.moves_rows(class)
        && let [to, further @ ..] = &instruction.writes[..]
    {
        // Room for what is under way, and what members tell each other.
        let mut operands = instruction.reads.iter().chain([&to.to]).map(|view| view.tensor);
        if operands.any(|it| further.iter().any(|room| room.to.tensor == it)) {
            return Some("what it reduces is also its room for parts".into());
        }
    }
    if let Action::Optimizer = instruction.action {
        let bucket = |view: View| class.tensor(view.tensor).bucket;
        let own = bucket(instruction.reads[0]);
        if instruction.writes.iter().any(|write| bucket(write.to) != own) {
            return Some("it updates a bucket with gradients of another".into());
        }
    }
    None
}

/// Whether an instruction's operands hold what its action works on.
fn kinds(program: &Program, step: &Step<'_>) -> bool {
    let (class, instruction) = (step.class, step.instruction);
    let content = |view: &View| class.tensor(view.tensor).content;
    let is_value = |view: &View| content(view) == Content::Activation;
    let values = || instruction.operands().all(|view| is_value(&view));
    let mut reads = instruction.reads.iter();
    match &instruction.action {
        Action::Kernel { .. } => {
            let read = |view: &View| match view.window {
                Window::Param(_) => content(view) == Content::Weight,
                _ => matches!(
                    content(view),
                    Content::Activation | Content::ExtrapolatedWeight | Content::LookedUp
                ),
            };
            let written = |view: &View| match view.window {
                Window::Param(_) => content(view) == Content::Gradient,
                Window::Next { .. } => matches!(content(view), Content::Gradient | Content::Rows),
                _ => is_value(view),
            };
            let all_written = instruction.writes.iter().all(|write| written(&write.to));
            reads.all(read) && all_written && writes_rows_in_pairs(step)
        }
        Action::Load { .. } | Action::Slice { .. } | Action::Report => values(),
        Action::LoadRows { .. } => content(&instruction.writes[0].to) == Content::Lookups,
        Action::FindRows => {
            let [indices, rows] = [instruction.reads[0], instruction.reads[1]];
            let found = instruction.writes[0].to;
            let tensor = |view: View| class.tensor(view.tensor);
            is_value(&indices)
                && is_value(&found)
                && content(&rows) == Content::Lookups
                && (tensor(indices).format, &tensor(indices).shape)
                    == (tensor(found).format, &tensor(found).shape)
                && tensor(indices).format == Format::U32
        }
        Action::TakeRows => {
            let [weights, rows] = [instruction.reads[0], instruction.reads[1]];
            let out = instruction.writes[0].to;
            let bucket = |view: View| class.tensor(view.tensor).bucket;
            content(&weights) == Content::Weight
                && weights.window == Window::Whole
                && content(&rows) == Content::Rows
                && content(&out) == Content::LookedUp
                && class.tensor(weights.tensor).format == class.tensor(out.tensor).format
                && class.tensor(out.tensor).local_shape().first()
                    == Some(&class.view_range(rows, 0).len())
                && bucket(weights).is_some()
                && bucket(weights) == bucket(rows)
                && bucket(weights) == bucket(out)
        }
        Action::Add => {
            // Of several workers' gradients a server adds up those of a bucket.
            let gradients = instruction.operands().all(|view| content(&view) == Content::Gradient);
            let [read, write] = [instruction.reads[0], instruction.writes[0].to];
            let bucket = |view: View| class.tensor(view.tensor).bucket;
            // To its weights it adds what a worker's update has changed.
            let contents = (content(&read), content(&write));
            let is_delta = contents == (Content::WeightDelta, Content::Weight);
            values() || ((gradients || is_delta) && bucket(read) == bucket(write))
        }
        Action::Difference => is_of_delta(step),
        Action::Copy => {
            let is_backup = instruction.writes.iter().all(|it| content(&it.to) == Content::Backup);
            let is_back = instruction.reads.iter().all(|it| content(it) == Content::Backup);
            is_backup || is_back || values() || is_of_delta(step) || is_of_second_copy(step)
        }
        Action::Extrapolate { .. } => {
            content(&instruction.reads[0]) == Content::Weight
                && instruction.reads[0].window == instruction.reads[1].window
                && content(&instruction.writes[0].to) == Content::ExtrapolatedWeight
        }
        Action::SumRows => {
            let [rows, values] = [instruction.reads[0], instruction.reads[1]];
            let order = instruction.writes[2].to;
            let in_place = instruction.writes.iter().take(2).map(|it| it.to).eq([rows, values]);
            let alike = class.tensor(order.tensor).shape == class.tensor(rows.tensor).shape;
            in_place
                && is_of_rows(step, rows, values)
                && content(&order) == Content::Staging
                && class.tensor(order.tensor).format == Format::U32
                && alike
                && instruction.frees.contains(&order.tensor)
        }
        // What is found over all gradients is for all updates, and what is for the bucket for its own.
        Action::Statistics { .. } | Action::Optimizer if !has_its_rows(step) => false,
        Action::Statistics { .. } | Action::Optimizer => {
            let bucket = class.tensor(instruction.reads[0].tensor).bucket;
            let known = |wanted: Content| {
                let mut all = class.tensors.iter().filter(|it| it.content == wanted);
                all.any(|it| it.bucket.is_none() || it.bucket == bucket)
            };
            let is_first = matches!(instruction.action, Action::Statistics { round: 0 });
            let has = |wanted: Content| instruction.reads.iter().any(|it| content(it) == wanted);
            (has(Content::Norm) || !known(Content::Norm))
                && (has(Content::Statistics) || is_first || !known(Content::Statistics))
        }
        Action::Cast => {
            let [read, write] = [instruction.reads[0], instruction.writes[0].to];
            (content(&read), content(&write)) == (Content::MasterWeight, Content::Weight)
                && class.tensor(read.tensor).bucket == class.tensor(write.tensor).bucket
        }
        Action::Compress { .. } | Action::Decompress { .. } => {
            let bucket = class.tensor(instruction.reads[0].tensor).bucket;
            let is_own = |view: View| class.tensor(view.tensor).bucket == bucket;
            let first = matches!(instruction.action, Action::Compress { round: 0, .. });
            let last = matches!(instruction.action, Action::Decompress { .. });
            let is_gradient = |view: &View| content(view) == Content::Gradient;
            let passes =
                |view: View| matches!(content(&view), Content::Compressed | Content::OfRank(_));
            let [read, written] = [instruction.reads[0], instruction.writes[0].to];
            let others = instruction.reads[1..].iter().copied();
            let mut others = others.chain(instruction.writes[1..].iter().map(|it| it.to));
            instruction.operands().all(is_own)
                && if first { is_gradient(&read) } else { passes(read) }
                && if last { is_gradient(&written) } else { passes(written) }
                && others.all(passes)
        }
        Action::Norm => content(&instruction.writes[0].to) == Content::Norm,
        Action::Collective { .. } => {
            // A collective changes how something is spread, and not what it is.
            let [read, write] = [instruction.reads[0], instruction.writes[0].to];
            let sums_weights = content(&write) == Content::SummedWeight
                && matches!(content(&read), Content::Weight | Content::MasterWeight);
            let Action::Collective { kind, .. } = instruction.action else { return false };
            // Rows and their values are of each member by itself.
            let is_side_by_side =
                !is_row_by_row(step, read) || kind == Collective::AllGather { axis: 0 };
            let is_of_copy =
                (content(&read), content(&write)) == (Content::SecondWeight, Content::Weight);
            is_side_by_side
                && (content(&read) == content(&write) || sums_weights || is_of_copy)
                && class.tensor(read.tensor).bucket == class.tensor(write.tensor).bucket
        }
        Action::Send { route } | Action::Receive { route }
            if program.route(*route).moves_rows() =>
        {
            // What it is of is looked at where routes are.
            instruction.operands().all(|view| {
                let rows = [Content::Lookups, Content::LookedUp, Content::Rows, Content::Gradient];
                rows.contains(&content(&view))
            })
        }
        Action::Send { .. } | Action::Receive { .. } => {
            let is_of_bucket = |it: &View| {
                let sent = [Content::Weight, Content::WeightDelta, Content::Gradient];
                sent.contains(&content(it)) && it.window == Window::Whole
            };
            let is_norm = |it: &View| content(it) == Content::Norm;
            instruction.operands().all(|it| is_value(&it) || is_norm(&it) || is_of_bucket(&it))
        }
        Action::Publish { .. } => {
            let writes = instruction.writes.iter().map(|write| write.to);
            instruction.reads.iter().zip(writes).all(|(read, write)| {
                matches!(content(read), Content::Weight | Content::MasterWeight)
                    && content(&write) == Content::PublishedWeight
                    && class.tensor(read.tensor).bucket == class.tensor(write.tensor).bucket
            })
        }
        Action::Fetch { .. } => {
            instruction.writes.iter().all(|write| content(&write.to) == Content::SummedWeight)
        }
        Action::Average { .. } => {
            let [read, write] = [instruction.reads[0], instruction.writes[0].to];
            matches!(content(&write), Content::Weight | Content::MasterWeight)
                && class.tensor(read.tensor).bucket == class.tensor(write.tensor).bucket
        }
        Action::Test | Action::Due { .. } => content(&instruction.writes[0].to) == Content::Flag,
        Action::Free => true,
    }
}

/// Whether an instruction makes of a bucket's weights by how much an update changes them.
fn is_of_delta(step: &Step<'_>) -> bool {
    let ([read], [write]) = (&step.instruction.reads[..], &step.instruction.writes[..]) else {
        return false;
    };
    let [read, write] = [read.tensor, write.to.tensor].map(|it| step.class.tensor(it));
    (read.content, write.content) == (Content::Weight, Content::WeightDelta)
        && read.bucket == write.bucket
}

/// Whether an instruction keeps a rank's share of a second copy of gathered weights.
fn is_of_second_copy(step: &Step<'_>) -> bool {
    let ([read], [write]) = (&step.instruction.reads[..], &step.instruction.writes[..]) else {
        return false;
    };
    let [from, to] = [read.tensor, write.to.tensor].map(|it| step.class.tensor(it));
    (from.content, to.content) == (Content::Weight, Content::SecondWeight)
        && (read.window, write.to.window) == (Window::SecondShare, Window::Whole)
        && from.bucket == to.bucket
}

/// Whether a view is of rows of a table's gradient, or the values for them.
fn is_row_by_row(step: &Step<'_>, view: View) -> bool {
    let tensor = step.class.tensor(view.tensor);
    let is_gradient = tensor.content == Content::Gradient && !tensor.local_shape().is_empty();
    tensor.content == Content::Rows || is_gradient
}

/// Whether two views are whole rows of a bucket's gradient and as many values for them.
fn is_of_rows(step: &Step<'_>, rows: View, values: View) -> bool {
    let [of, at] = [rows, values].map(|view| step.class.tensor(view.tensor));
    (of.content, at.content) == (Content::Rows, Content::Gradient)
        && [rows, values].iter().all(|view| view.window == Window::Whole)
        && of.format == Format::U32
        && of.bucket == at.bucket
        && at.local_shape().len() == 2
        && of.local_shape() == &at.local_shape()[..1]
}

/// Whether gradients that are read first are read with their rows, if they are of rows.
fn has_its_rows(step: &Step<'_>) -> bool {
    let reads = &step.instruction.reads;
    let content = |view: &&View| step.class.tensor(view.tensor).content;
    let mut rows = reads.iter().filter(|view| content(view) == Content::Rows);
    match (is_row_by_row(step, reads[0]), rows.next(), rows.next()) {
        (true, Some(&rows), None) => is_of_rows(step, rows, reads[0]),
        (false, None, None) => true,
        _ => false,
    }
}

/// Whether an operator that writes rows of a table's gradient writes as many values for them.
fn writes_rows_in_pairs(step: &Step<'_>) -> bool {
    let writes = step.instruction.writes.iter().map(|write| write.to);
    let next: Vec<View> =
        writes.filter(|view| matches!(view.window, Window::Next { .. })).collect();
    next.chunks(2).all(|pair| {
        let &[rows, values] = pair else { return false };
        let [count, elements] = [rows, values].map(|view| step.class.view_range(view, 0).len());
        let whole = |view: View| View::whole(view.tensor);
        let columns = step.class.tensor(values.tensor).local_shape().get(1);
        is_of_rows(step, whole(rows), whole(values))
            && columns.is_some_and(|it| count * it == elements)
    })
}

/// Whether a view lies in its tensor, at every position.
fn is_within(step: &Step<'_>, view: View) -> bool {
    let class = step.class;
    let tensor = class.tensor(view.tensor);
    let bucket = tensor.bucket.and_then(|id| class.buckets.get(id.0 as usize));
    // The whole bucket lies in the tensor; its share may only be a part of all of it.
    let holds_all = |tensor: &Tensor| match (&tensor.shape, bucket) {
        (Shape::Flat(Extent::Exactly(elements)), Some(bucket)) => *elements == bucket.elements,
        (Shape::Flat(Extent::Share), Some(bucket)) => bucket.shards.is_empty(),
        _ => false,
    };
    match view.window {
        Window::Whole => match tensor.shape {
            Shape::Flat(Extent::Exactly(_)) | Shape::Local(_) | Shape::AtMost { .. } => true,
            Shape::Flat(_) => bucket.is_some(),
        },
        Window::Share | Window::SecondShare => holds_all(tensor),
        Window::Elements { start, end } => match tensor.shape {
            Shape::Flat(Extent::Exactly(elements)) => start < end && end <= elements,
            // Rows of one of several workers.
            Shape::Local(ref shape) if tensor.content == Content::Rows => {
                start < end && end <= shape.iter().product()
            }
            _ => false,
        },
        Window::Next { elements } => {
            matches!(&tensor.shape, Shape::Local(shape) if (1..=shape.iter().product()).contains(&elements))
        }
        Window::Param(param) => {
            let param = class.params.get(param.0 as usize);
            holds_all(tensor) && param.is_some_and(|param| Some(param.bucket) == tensor.bucket)
        }
    }
}

/// Checks that modes are those that actions have.
fn modes(step: &Step<'_>, found: &mut Vec<Violation>) {
    for write in &step.instruction.writes {
        let tensor = step.class.tensor(write.to.tensor);
        let is_gradient = tensor.content == Content::Gradient;
        let fits = match &step.instruction.action {
            // A sum of gradients begins with the first write after it was used.
            Action::Kernel { .. } if matches!(write.to.window, Window::Next { .. }) => {
                write.mode == Mode::Set
            }
            Action::Kernel { .. } if is_gradient => write.mode == Mode::AddUnlessFirst,
            Action::Kernel { .. } => {
                write.mode != Mode::AddUnlessFirst && tensor.keep == Keep::Transient
            }
            Action::Add | Action::Difference | Action::Optimizer | Action::Average { .. } => {
                write.mode == Mode::Add
            }
            Action::Receive { .. } if is_gradient || tensor.content == Content::Weight => {
                write.mode == Mode::Set
            }
            Action::Receive { .. } => write.mode != Mode::AddUnlessFirst,
            Action::Collective { kind: Collective::ReduceScatter { .. }, .. } => {
                write.mode == Mode::Set
                    || (is_gradient
                        && write.mode == Mode::AddUnlessFirst
                        && !step.instruction.is_in_place())
            }
            _ => write.mode == Mode::Set,
        };
        if !fits {
            let tensor = tensor.name.clone();
            found.push(Violation::Mode { at: step.site(), tensor });
        }
    }
}

/// Checks that two operands are equally large and stored alike.
fn same(step: &Step<'_>, read: View, write: View, found: &mut Vec<Violation>) {
    formats(step, read, write, found);
    sizes(step, read, write, found);
}

fn formats(step: &Step<'_>, read: View, write: View, found: &mut Vec<Violation>) {
    let [one, other] = [read, write].map(|view| step.class.tensor(view.tensor));
    if one.format != other.format {
        let (read, written) = (one.name.clone(), other.name.clone());
        found.push(Violation::Formats { at: step.site(), read, written });
    }
}

fn sizes(step: &Step<'_>, read: View, write: View, found: &mut Vec<Violation>) {
    let elements = |view: View, position| step.class.view_range(view, position).len();
    let differ = |position| elements(read, position) != elements(write, position);
    if (0..step.class.mesh.size()).any(differ) {
        found.push(wrong_sizes(step, read, write));
    }
}

fn wrong_sizes(step: &Step<'_>, read: View, write: View) -> Violation {
    let [read, written] = [read, write].map(|view| step.tensor_name(view.tensor));
    Violation::Sizes { at: step.site(), read, written }
}

/// Checks that one tensor is the other, cut along an axis into so many parts.
fn split(
    step: &Step<'_>,
    whole: View,
    part: View,
    (axis, parts): (usize, usize),
    found: &mut Vec<Violation>,
) {
    let [large, small] = [whole, part].map(|view| step.class.shape(view));
    let fits = large.len() == small.len()
        && axis < large.len()
        && (0..large.len()).all(|at| match at == axis {
            true => large[at] == small[at] * parts,
            false => large[at] == small[at],
        });
    if !fits {
        found.push(wrong_sizes(step, whole, part));
    }
}

/// Checks the sizes and formats of a collective's operands.
fn collective(
    program: &Program,
    step: &Step<'_>,
    kind: Collective,
    group: &Group,
    found: &mut Vec<Violation>,
) {
    let (class, instruction) = (step.class, step.instruction);
    let (read, write) = (instruction.reads[0], instruction.writes[0].to);
    let members = match group {
        Group::Mesh(axes) => class.mesh.span(axes),
        Group::Classes(classes) => {
            let known = classes.iter().all(|it| (it.0 as usize) < program.classes.len());
            let alike = || classes.iter().all(|&it| program.class(it).mesh == class.mesh);
            if !known || !classes.contains(&step.id) || !alike() {
                let fault = "the class is not in its group, or another has a different mesh".into();
                found.push(Violation::Operands { at: step.site(), fault });
                return;
            }
            classes.len()
        }
        Group::World => program.ranks(),
    };
    formats(step, read, write, found);
    let is_staging = |view: &View| class.tensor(view.tensor).content != Content::Negotiation;
    if let Some(parts) = instruction.writes.get(1).filter(|it| is_staging(&it.to)) {
        formats(step, read, parts.to, found);
        let like = match kind {
            Collective::ReduceScatter { .. } => read,
            _ => write,
        };
        sizes(step, like, parts.to, found);
    }
    let is_flat =
        [read, write].iter().all(|view| matches!(class.tensor(view.tensor).shape, Shape::Flat(_)));
    match kind {
        Collective::AllReduce(_) => sizes(step, read, write, found),
        Collective::ReduceScatter { .. } if is_flat => {
            shares(step, read, write, (group, members), found);
        }
        Collective::AllGather { .. } if is_flat => {
            shares(step, write, read, (group, members), found);
        }
        Collective::ReduceScatter { axis, .. } => split(step, read, write, (axis, members), found),
        Collective::AllGather { axis } => split(step, write, read, (axis, members), found),
        Collective::AllToAll { from, to } => {
            let [before, after] = [read, write].map(|view| class.shape(view));
            let fits = before.len() == after.len()
                && from != to
                && from.max(to) < before.len()
                && (0..before.len()).all(|at| match at {
                    _ if at == from => before[at] * members == after[at],
                    _ if at == to => before[at] == after[at] * members,
                    _ => before[at] == after[at],
                });
            if !fits {
                found.push(wrong_sizes(step, read, write));
            }
        }
    }
}

/// Checks that the shares of all members, in their order, are the parts of the whole as collectives cut it.
fn shares(
    step: &Step<'_>,
    whole: View,
    share: View,
    (group, members): (&Group, usize),
    found: &mut Vec<Violation>,
) {
    let class = step.class;
    let fits = |position: usize| {
        let Group::Mesh(axes) = group else { return false };
        let all = class.bucket_range(whole, position);
        let part = chunk(all.len(), members, class.mesh.index_along(position, axes));
        let own = class.bucket_range(share, position);
        own == (all.start + part.start..all.start + part.end)
            && class.view_range(share, position).len() == part.len()
    };
    if !(0..class.mesh.size()).all(fits) {
        let tensor = step.tensor_name(whole.tensor);
        found.push(Violation::Shares { at: step.site(), tensor });
    }
}
