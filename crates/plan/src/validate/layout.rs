//! Whether meshes have axes of the plan, and layouts split over them what they divide.

use shardloom_graph::{Extents, Graph};

use crate::{Axis, LayoutRules, Mesh, Plan, PlanError, Stage};

impl Plan {
    /// Checks that axes are named once.
    pub(super) fn validate_axes(&self) -> Result<(), PlanError> {
        let mut known: Vec<Axis> = vec![];
        for &axis in &self.axes {
            if known.contains(&axis) {
                return Err(PlanError::field("axes", axis, "each axis is named once"));
            }
            known.push(axis);
        }
        Ok(())
    }

    /// Checks that a layout splits dimensions of the model over axes of the plan; `key` says where it stands.
    pub(super) fn validate_layout(
        &self,
        graph: &Graph,
        layout: &LayoutRules,
        key: &str,
    ) -> Result<(), PlanError> {
        for rule in &layout.0 {
            if graph.dim_named(&rule.dim).is_none() {
                let names: Vec<_> = graph.dims().iter().map(|dim| dim.name.as_str()).collect();
                let rule_text = format!("the model's dimensions are {}", names.join(", "));
                return Err(PlanError::field(key, &rule.dim, rule_text));
            }
            if !self.axes.contains(&rule.axis) {
                let text = format!("{}:{}", rule.dim, rule.axis);
                return Err(PlanError::field(key, text, self.axes_rule()));
            }
        }
        Ok(())
    }

    /// Checks that a mesh has axes of the plan, in their order, and none of width 0.
    pub(super) fn validate_mesh(
        &self,
        mesh: &Mesh,
        key: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        for axis in mesh.axes() {
            let refuse = |rule: String| {
                Err(PlanError::field(key(&format!("mesh.{axis}")), mesh.width(axis), rule))
            };
            if !self.axes.contains(&axis) {
                return refuse(self.axes_rule());
            }
            if mesh.width(axis) == 0 {
                return refuse("at least 1".into());
            }
        }
        if mesh.arranged(&self.axes) != *mesh {
            let rule = "its axes are in the order of the plan's `axes`";
            return Err(PlanError::field(key("mesh"), mesh, rule));
        }
        Ok(())
    }

    /// Checks that each axis of a stage's mesh splits something, and divides it.
    pub(super) fn validate_split(
        &self,
        graph: &Graph,
        stage: &Stage,
        key: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        let (mesh, layout) = (stage.mesh, self.layout_of(stage));
        let samples = self.microbatch_samples();
        let extents = Extents::global(graph, samples);
        let axes_of = layout.axes_by_dim();
        for axis in mesh.axes() {
            let width = mesh.width(axis);
            let mut split = false;
            for rule in layout.0.iter().filter(|rule| rule.axis == axis) {
                let Some(dim) = graph.dim_named(&rule.dim) else { continue };
                let others: usize = mesh
                    .axes()
                    .filter(|other| *other != axis && axes_of[&*rule.dim].contains(other))
                    .map(|other| mesh.width(other))
                    .product();
                let extent = extents.get(dim);
                if !extent.is_multiple_of(width * others) {
                    let what = if dim == graph.batch() {
                        format!(
                            "a micro-batch of {} (global batch {} in {})",
                            counted(samples, "sample"),
                            self.global_batch,
                            counted(self.microbatches, "micro-batch")
                        )
                    } else {
                        graph.dim_in_words(dim)
                    };
                    let together = match others {
                        1 => String::new(),
                        _ => format!(
                            "with the axes that split {} too, {} parts, ",
                            rule.dim,
                            width * others
                        ),
                    };
                    let larger = match rule.dim.as_str() {
                        "vocab" => larger_vocabulary(graph, extent, width * others),
                        _ => String::new(),
                    };
                    let rule = format!("{together}it must divide {what}{larger}");
                    return Err(PlanError::field(key(&format!("mesh.{axis}")), width, rule));
                }
                split = true;
            }
            if !split {
                let rule = format!(
                    "the layout \"{}\" splits nothing over {axis}",
                    String::from(layout.clone())
                );
                return Err(PlanError::field(key(&format!("mesh.{axis}")), width, rule));
            }
        }
        Ok(())
    }

    /// What to say of an axis that the plan does not have.
    fn axes_rule(&self) -> String {
        let names: Vec<&str> = self.axes.iter().map(Axis::name).collect();
        format!("the plan's mesh axes are {}; others are named in `axes`", names.join(", "))
    }
}

/// What `parts` divide in place of a vocabulary of `size` tokens, or of so many classes.
fn larger_vocabulary(graph: &Graph, size: usize, parts: usize) -> String {
    // Vocabularies are usually padded to multiples of 128, at which matrix products are fast.
    let padded = (128 >> parts.trailing_zeros().min(7)) as usize;
    let multiple = parts.saturating_mul(padded);
    let (Some(next), Some(usual)) =
        (size.checked_next_multiple_of(parts), size.checked_next_multiple_of(multiple))
    else {
        return String::new();
    };
    if parts > size {
        return String::new();
    }
    // A classifier's dimension has the same name.
    if graph.dim_named("seq").is_none() {
        return format!("; the next size that it divides is {next}");
    }
    format!(
        "; the next size that it divides is {next}, and {usual}, a multiple of {multiple}, is a usual one: \
         padded_vocab={usual} in the words of the model, or --pad-vocabulary {multiple}, which changes no loss"
    )
}

/// `1 sample`, `2 samples`, `2 micro-batches`.
fn counted(count: usize, thing: &str) -> String {
    match (count, thing.ends_with("ch")) {
        (1, _) => format!("1 {thing}"),
        (_, true) => format!("{count} {thing}es"),
        (_, false) => format!("{count} {thing}s"),
    }
}
