//! Builds a graph operator by operator, checking names, roles and sizes as it goes.

mod attention;
mod interaction;
mod operators;
mod recurrence;
mod routing;
mod sampled_softmax;

pub use attention::Attention;
pub(crate) use interaction::pair_count;

use std::collections::{HashMap, HashSet};

use crate::dim::Dims;
use crate::{
    Block, BlockId, DType, Dim, DimId, Extents, Graph, GraphError, Init, Op, OpId, OpKind,
    Parameter, Role, Signature, Value, ValueId,
    gradient::{self, Operand, Rule},
};

/// No tensor of one sample, and no model, has more elements: products of a real batch, a number of
/// bytes and this still fit 64 bits.
const MAX_ELEMENTS: u64 = 1 << 48;

/// No model has more operators.
pub(crate) const MAX_OPS: usize = 1 << 18;

/// Builds a [`Graph`].
///
/// ```
/// use shardloom_graph::{GraphBuilder, Init};
/// let mut net = GraphBuilder::new("tiny");
/// let (features, classes) = (net.dim("features", 4)?, net.dim("classes", 3)?);
/// net.block("layer");
/// let x = net.features("x", &[features])?;
/// let targets = net.targets("y", &[])?;
/// let w = net.parameter("w", &[features, classes], 1, Init::Normal { std: 0.02 })?;
/// let logits = net.contract("logits", x, w, None)?;
/// let loss = net.cross_entropy("loss", logits, targets)?;
/// let graph = net.finish(loss)?;
/// assert_eq!(graph.parameter_count(), 12);
/// # Ok::<(), shardloom_graph::GraphError>(())
/// ```
pub struct GraphBuilder {
    graph: Graph,
    value_names: HashSet<String>,
    op_names: HashSet<String>,
    dim_names: HashSet<String>,
    parameter_elements: u64,
    /// By routing operator: the dimension of an expert's slots.
    slots: HashMap<OpId, DimId>,
}

impl GraphBuilder {
    /// An empty graph with a `batch` dimension.
    pub fn new(name: &str) -> GraphBuilder {
        let mut dims = Dims::default();
        let batch = dims.push(Dim { name: "batch".into(), size: 1 });
        GraphBuilder {
            graph: Graph {
                name: name.into(),
                dims,
                values: vec![],
                ops: vec![],
                blocks: vec![],
                batch,
                loss: ValueId(0),
            },
            value_names: HashSet::new(),
            op_names: HashSet::new(),
            dim_names: HashSet::from(["batch".to_owned(), MOMENTS.to_owned()]),
            parameter_elements: 0,
            slots: HashMap::new(),
        }
    }

    /// Adds a dimension.
    ///
    /// # Errors
    /// If the name is taken (`batch` and `moments`, the pair of a layer norm's statistics, are) or the
    /// size is zero or absurd.
    pub fn dim(&mut self, name: &str, size: usize) -> Result<DimId, GraphError> {
        if !self.dim_names.insert(name.to_owned()) {
            return Err(taken("dimension", name));
        }
        if size == 0 || size as u64 > MAX_ELEMENTS {
            return Err(GraphError::Parameter {
                model: self.graph.name.clone(),
                key: name.into(),
                value: size.to_string(),
                rule: format!("a dimension has 1 to {MAX_ELEMENTS} elements"),
            });
        }
        Ok(self.push_dim(name, size))
    }

    /// The dimension over samples.
    pub fn batch(&self) -> DimId {
        self.graph.batch
    }

    /// Starts a block; operators added from here on belong to it.
    pub fn block(&mut self, name: &str) -> BlockId {
        self.graph.blocks.push(Block { name: name.into(), ops: vec![] });
        BlockId(self.graph.blocks.len() as u32 - 1)
    }

    /// Adds an input of real numbers with axes `[batch, dims...]`.
    ///
    /// # Errors
    /// If the name is taken, a dimension occurs twice or the tensor is absurdly large.
    pub fn features(&mut self, name: &str, dims: &[DimId]) -> Result<ValueId, GraphError> {
        self.input(name, dims, DType::Real)
    }

    /// Adds an input of indices (tokens, classes) with axes `[batch, dims...]`.
    ///
    /// # Errors
    /// If the name is taken, a dimension occurs twice or the tensor is absurdly large.
    pub fn targets(&mut self, name: &str, dims: &[DimId]) -> Result<ValueId, GraphError> {
        self.input(name, dims, DType::Index)
    }

    fn input(&mut self, name: &str, dims: &[DimId], dtype: DType) -> Result<ValueId, GraphError> {
        let axes = [&[self.graph.batch], dims].concat();
        self.value(name, axes, dtype, Role::Input)
    }

    /// Adds a parameter whose first `row_axes` axes are the rows when it is seen as a matrix. One with
    /// both rows and columns is subject to weight decay.
    ///
    /// # Errors
    /// If the name is taken, a dimension occurs twice or is `batch`, there are fewer axes than
    /// `row_axes`, the initialisation is not finite, or the model is absurdly large.
    pub fn parameter(
        &mut self,
        name: &str,
        axes: &[DimId],
        row_axes: usize,
        init: Init,
    ) -> Result<ValueId, GraphError> {
        let error = |key, value, rule| self.parameter_error(name, key, value, rule);
        let axes_text = self.graph.axes_text(axes);
        if axes.contains(&self.graph.batch) {
            let rule = "all samples share a parameter, so batch is none of its axes".into();
            return Err(error("axes", axes_text, rule));
        }
        if row_axes > axes.len() {
            let rule = format!("there are {} axes", axes.len());
            return Err(error("row axes", row_axes.to_string(), rule));
        }
        let (number, allowed) = match init {
            Init::Normal { std } => (std, std.is_finite() && std >= 0.0),
            Init::Constant(value) => (value, value.is_finite()),
        };
        if !allowed {
            let rule = "a constant is finite, and a standard deviation not negative either".into();
            return Err(error("initialisation", number.to_string(), rule));
        }
        let decays = row_axes > 0 && row_axes < axes.len();
        let role = Role::Parameter(Parameter { init, row_axes, decays });
        let id = self.value(name, axes.to_vec(), DType::Real, role)?;
        self.parameter_elements += Extents::global(&self.graph, 1).elements(axes) as u64;
        if self.parameter_elements > MAX_ELEMENTS {
            return Err(GraphError::Parameter {
                model: self.graph.name.clone(),
                key: "parameters".into(),
                value: format!("{} up to {name}", self.parameter_elements),
                rule: format!("a model has at most {MAX_ELEMENTS}"),
            });
        }
        Ok(id)
    }

    /// The finished graph, minimising `loss`.
    ///
    /// # Errors
    /// If `loss` is not the output of a cross-entropy, an input, a parameter or a result does not
    /// contribute to it (it would have no gradient), a gradient pass would write two gradients of one
    /// value, gates of a recurrence are read by something else too, or rows whose number is known only
    /// while running are read outside of their block.
    pub fn finish(mut self, loss: ValueId) -> Result<Graph, GraphError> {
        let producer = self.graph.value(loss).producer;
        if !producer.is_some_and(|op| self.graph.op(op).kind.is_loss()) {
            return Err(self.axes_error("finish", loss, "the loss must come from a cross-entropy"));
        }
        let unused = self.graph.values().find(|&(id, value)| {
            id != loss && value.role != Role::Auxiliary && value.consumers.is_empty()
        });
        if let Some((_, value)) = unused {
            return Err(GraphError::Name {
                what: "value",
                name: value.name.clone(),
                rule: format!("no operator reads it, so {} does not depend on it", self.graph.name),
            });
        }
        for (id, op) in self.graph.ops() {
            let Rule { input, weight, .. } = gradient::rule(&self.graph, id);
            let again = weight.iter().flat_map(|it| &it.reads).find_map(|read| match *read {
                Operand::InputGradient(index) => Some(op.inputs[index]),
                _ => None,
            });
            if let Some(value) = again
                && self.graph.value(value).consumers != [id]
            {
                let rule = "its gradient is read again for that of the weights, so nothing else may \
                            read it";
                return Err(self.axes_error(&op.name, value, rule));
            }
            for gradient in [input, weight].into_iter().flatten() {
                let of: Vec<ValueId> =
                    gradient.produces.iter().map(|&index| op.inputs[index]).collect();
                let twice = of.iter().enumerate().find(|(at, value)| of[..*at].contains(value));
                if let Some((_, &value)) = twice {
                    let rule = "one gradient pass would write two gradients of it, so it may be \
                                read only once";
                    return Err(self.axes_error(&op.name, value, rule));
                }
            }
        }
        let is_routed = |&(_, value): &(ValueId, &Value)| {
            let by_route = |op| matches!(self.graph.op(op).kind, OpKind::Route { .. });
            value.counts.is_some() || value.producer.is_some_and(by_route)
        };
        for (id, value) in self.graph.values().filter(is_routed) {
            let block = |op: OpId| self.graph.op(op).block;
            let made = value.producer.map(block);
            if let Some(&reader) = value.consumers.iter().find(|&&op| Some(block(op)) != made) {
                let rule = "it says where rows go, or has as many as turn out while running, and is read \
                            in the block that makes it";
                return Err(self.axes_error(&self.graph.op(reader).name, id, rule));
            }
        }
        self.graph.loss = loss;
        Ok(self.graph)
    }

    fn op(
        &mut self,
        name: &str,
        kind: OpKind,
        inputs: &[ValueId],
        outputs: Vec<NewOutput>,
        signature: Signature,
    ) -> Result<ValueId, GraphError> {
        for (index, &input) in inputs.iter().enumerate() {
            self.check_role(name, &kind, index, input)?;
        }
        if !self.op_names.insert(name.to_owned()) {
            return Err(taken("operator", name));
        }
        if self.graph.ops.len() == MAX_OPS {
            return Err(GraphError::Parameter {
                model: self.graph.name.clone(),
                key: "operators".into(),
                value: format!("{MAX_OPS} before {name}"),
                rule: "a model has no more".into(),
            });
        }
        let id = OpId(self.graph.ops.len() as u32);
        if self.graph.blocks.is_empty() {
            self.block("model");
        }
        let block = BlockId(self.graph.blocks.len() as u32 - 1);
        let mut ids = Vec::with_capacity(outputs.len());
        for new in outputs {
            let value_name = match new.suffix {
                Some(suffix) => format!("{name}.{suffix}"),
                None => name.to_owned(),
            };
            let value = self.value(&value_name, new.axes, new.dtype, new.role)?;
            self.graph.values[value.index()].producer = Some(id);
            self.graph.values[value.index()].counts = new.counts;
            ids.push(value);
        }
        for &input in inputs {
            let consumers = &mut self.graph.values[input.index()].consumers;
            if consumers.last() != Some(&id) {
                consumers.push(id);
            }
        }
        let first = ids[0];
        let name = name.to_owned();
        self.graph.ops.push(Op {
            name,
            kind,
            inputs: inputs.to_vec(),
            outputs: ids,
            block,
            signature,
        });
        self.graph.blocks[block.index()].ops.push(id);
        Ok(first)
    }

    /// Checks that an operand is the kind of tensor that `kind` takes at this place: gradient rules
    /// rely on knowing which operands are parameters.
    fn check_role(
        &self,
        op: &str,
        kind: &OpKind,
        index: usize,
        operand: ValueId,
    ) -> Result<(), GraphError> {
        let value = self.graph.value(operand);
        let is_parameter = value.parameter().is_some();
        let is_data = value.dtype == DType::Real && value.role != Role::Auxiliary && !is_parameter;
        let takes_rows =
            matches!(kind, OpKind::Pointwise(_) | OpKind::ExpertContract | OpKind::Combine);
        if value.counts.is_some() && !takes_rows {
            let rule = "how many rows it has is known only while running; activations, products of \
                        experts and combine take such";
            return Err(self.axes_error(op, operand, rule));
        }
        let is_of_route = value
            .producer
            .is_some_and(|producer| matches!(self.graph.op(producer).kind, OpKind::Route { .. }));
        let (fits, rule) = match (kind, index) {
            (OpKind::Dispatch, 1..)
            | (OpKind::ExpertContract | OpKind::Pointwise(_), 1)
            | (OpKind::Combine, 1..) => (is_of_route, "a result of a routing is needed"),
            (OpKind::ExpertContract | OpKind::Combine, 0) => {
                (value.counts.is_some(), "rows that were dispatched to experts are needed")
            }
            (OpKind::ExpertContract, 2) => (is_parameter, "a parameter is needed"),
            (OpKind::Embed, 0)
            | (OpKind::LogitSum { .. }, 2)
            | (OpKind::CrossEntropy { .. }, 4)
            | (OpKind::SampledCrossEntropy { .. }, 1)
            | (OpKind::SigmoidCrossEntropy, 1) => {
                (value.dtype == DType::Index, "an input of indices is needed")
            }
            (OpKind::LogitSum { .. }, 1) | (OpKind::CrossEntropy { .. }, 1..=3) => {
                (value.role == Role::Auxiliary, "the result of an earlier phase is needed")
            }
            (OpKind::Embed | OpKind::BiasDropoutAdd { .. }, 1)
            | (OpKind::SampledCrossEntropy { .. }, 2..)
            | (
                OpKind::Contract { .. }
                | OpKind::LayerNorm { .. }
                | OpKind::RmsNorm { .. }
                | OpKind::Lstm { .. },
                1..,
            ) => (is_parameter, "a parameter is needed"),
            (OpKind::Add, 1) => (is_data || is_parameter, "real numbers are needed"),
            // The gradient pass writes one gradient after another, so none may be missing.
            (OpKind::Concat { .. } | OpKind::DotInteraction { .. } | OpKind::Lstm { .. }, _) => {
                (is_data && value.role == Role::Activation, "an operator's real numbers are needed")
            }
            _ => (is_data, "real numbers that are no parameter are needed"),
        };
        if fits { Ok(()) } else { Err(self.axes_error(op, operand, rule)) }
    }

    fn value(
        &mut self,
        name: &str,
        axes: Vec<DimId>,
        dtype: DType,
        role: Role,
    ) -> Result<ValueId, GraphError> {
        if name.is_empty() {
            let rule = "a name has at least one letter".into();
            return Err(GraphError::Name { what: "value", name: name.into(), rule });
        }
        if !self.value_names.insert(name.to_owned()) {
            return Err(taken("value", name));
        }
        let error = |rule: String| GraphError::Axes {
            op: self.graph.name.clone(),
            operand: name.into(),
            axes: self.graph.axes_text(&axes),
            rule,
        };
        let twice = axes.iter().enumerate().find(|&(at, dim)| axes[..at].contains(dim));
        if let Some((_, &dim)) = twice {
            let dim = &self.graph.dim(dim).name;
            return Err(error(format!("{dim} occurs twice; each axis needs its own dimension")));
        }
        let elements = axes.iter().try_fold(1_u64, |product, &dim| {
            let product = product.checked_mul(self.graph.dim(dim).size as u64)?;
            (product <= MAX_ELEMENTS).then_some(product)
        });
        if elements.is_none() {
            let sizes: Vec<String> =
                axes.iter().map(|&dim| self.graph.dim(dim).size.to_string()).collect();
            return Err(error(format!(
                "{} are more than {MAX_ELEMENTS} elements, the most that a tensor has",
                sizes.join(" x ")
            )));
        }
        let (producer, consumers) = (None, vec![]);
        let name = name.into();
        let counts = None;
        self.graph.values.push(Value { name, axes, dtype, role, producer, consumers, counts });
        Ok(ValueId(self.graph.values.len() as u32 - 1))
    }

    fn push_dim(&mut self, name: &str, size: usize) -> DimId {
        self.graph.dims.push(Dim { name: name.into(), size })
    }

    /// The dimension of a layer norm's two statistics.
    fn moments(&mut self) -> DimId {
        match self.graph.dim_named(MOMENTS) {
            Some(dim) => dim,
            None => self.push_dim(MOMENTS, 2),
        }
    }

    /// The dimensions of a value's axes.
    pub(crate) fn axes(&self, value: ValueId) -> Vec<DimId> {
        self.graph.value(value).axes.clone()
    }

    fn parameter_error(&self, op: &str, key: &str, value: String, rule: String) -> GraphError {
        let (model, key) = (self.graph.name.clone(), format!("{op} {key}"));
        GraphError::Parameter { model, key, value, rule }
    }

    fn axes_error(&self, op: &str, value: ValueId, rule: &str) -> GraphError {
        let value = self.graph.value(value);
        GraphError::Axes {
            op: op.into(),
            operand: value.name.clone(),
            axes: self.graph.axes_text(&value.axes),
            rule: rule.into(),
        }
    }
}

/// Name of the dimension of mean and reciprocal standard deviation.
const MOMENTS: &str = "moments";

/// An output that an operator is about to get.
struct NewOutput {
    suffix: Option<&'static str>,
    axes: Vec<DimId>,
    dtype: DType,
    role: Role,
    /// How many rows it has, where that is known only while running.
    counts: Option<ValueId>,
}

fn taken(what: &'static str, name: &str) -> GraphError {
    GraphError::Name { what, name: name.into(), rule: "the name is taken; names are unique".into() }
}
