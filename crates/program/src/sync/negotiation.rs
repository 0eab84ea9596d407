//! Reductions whose order replicas agree on while running (Sergeev and Del Balso 2018, arXiv 1802.05799): what
//! they need besides gradients.
//!
//! A request is the all-reduce of a bucket over its replicas. Those of a group of ranks have one tensor for what
//! its members tell each other, and for each format one in which several gradients lie side by side.

use std::collections::BTreeMap;

use shardloom_plan::{Axis, Negotiation};

use crate::sync::{SUM, add};
use crate::{
    Action, BodyId, Class, Content, Copies, Format, Group, Instruction, Keep, Program, Shape,
    Tensor, TensorId, View, Write,
};

/// A request: where it stands, its format and its elements.
type Request = (BodyId, usize, Format, usize);

impl Program {
    /// Makes requests of the reductions of gradients over replicas, if the program has any to negotiate.
    pub(crate) fn add_requests(&mut self) {
        let Some(negotiation) = self.negotiation else { return };
        for class in &mut self.classes {
            for (axes, requests) in requests(class) {
                let over: Vec<&str> = axes.iter().map(Axis::name).collect();
                let over = over.join(" and ");
                let told = tensor(format!("requests over {over}"), Format::U32, requests.len());
                let told = add(&mut class.tensors, told);
                let mut side_by_side: BTreeMap<Format, Option<TensorId>> = BTreeMap::new();
                for &(body, index, format, _) in &requests {
                    let fused = side_by_side.entry(format).or_insert_with(|| {
                        let elements = fused_elements(negotiation, format, &requests)?;
                        let name = format!("gradients side by side over {over}, {format}");
                        Some(add(&mut class.tensors, tensor(name, format, elements)))
                    });
                    let writes = [Some(told), *fused].into_iter().flatten();
                    let body = &mut class.bodies[body.0 as usize];
                    let request = &mut body.instructions[index];
                    request.writes.extend(writes.map(|it| Write::set(View::whole(it))));
                }
            }
        }
    }
}

/// The requests of a class by the axes that they are over.
fn requests(class: &Class) -> BTreeMap<Vec<Axis>, Vec<Request>> {
    let mut all: BTreeMap<Vec<Axis>, Vec<Request>> = BTreeMap::new();
    for (body, index, instruction) in class.instructions() {
        if let Some(axes) = reduced_over(class, instruction) {
            let read = instruction.reads[0];
            let elements = class.view_range(read, 0).len();
            let request = (body, index, class.tensor(read.tensor).format, elements);
            all.entry(axes.to_vec()).or_default().push(request);
        }
    }
    all
}

/// The replicas over which an instruction reduces gradients, if it does.
fn reduced_over<'a>(class: &Class, instruction: &'a Instruction) -> Option<&'a [Axis]> {
    let Action::Collective { kind: SUM, group: Group::Mesh(axes), .. } = &instruction.action else {
        return None;
    };
    let read = class.tensor(instruction.reads[0].tensor);
    let is_gradient = matches!(read.content, Content::Gradient | Content::Compressed);
    let bucket = class.bucket(read.bucket.filter(|_| is_gradient)?);
    (!axes.is_empty() && *axes == bucket.replicas).then_some(axes)
}

/// For how many elements of a format there has to be room: for as many as may be reduced as one, or all; for
/// none if no two fit.
fn fused_elements(negotiation: Negotiation, format: Format, requests: &[Request]) -> Option<usize> {
    let most = negotiation.fusion_bytes / format.bytes();
    let sizes = || requests.iter().filter(|it| it.2 == format).map(|it| it.3);
    let mut smallest: Vec<usize> = sizes().collect();
    smallest.sort_unstable();
    let any = matches!(smallest[..], [first, second, ..] if first + second <= most);
    any.then(|| most.min(sizes().sum()))
}

fn tensor(name: String, format: Format, elements: usize) -> Tensor {
    Tensor {
        name,
        shape: Shape::Local(vec![elements]),
        format,
        keep: Keep::Resident,
        copies: Copies::One,
        content: Content::Negotiation,
        bucket: None,
    }
}
