//! From a network written as data to its graph.

use std::collections::HashMap;

use super::kind::{KINDS, Kind};
use super::{BlockConfig, CustomConfig, InitConfig, InputKind, OpConfig, ParameterConfig};
use crate::builder::{Attention, MAX_OPS};
use crate::op::{Activation, Gate, Visibility};
use crate::spec::did_you_mean;
use crate::{DimId, Graph, GraphBuilder, GraphError, Init, ValueId};

/// Blocks of a model at most: what searches and simulations take grows with their number. One may repeat 10,000 times.
const MAX_BLOCKS: usize = 1 << 14;

impl CustomConfig {
    /// The network as a graph.
    ///
    /// # Errors
    /// If a name is unknown or taken, a kind or key does not exist or is missing, or operands do not
    /// fit; the message names block, operator and key.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        let of_block = |block: &BlockConfig| block.repeat.saturating_mul(block.op.len());
        let operators = self.block.iter().map(of_block).fold(0, usize::saturating_add);
        if operators > MAX_OPS {
            return Err(GraphError::Parameter {
                model: name.into(),
                key: "operators".into(),
                value: operators.to_string(),
                rule: format!("a model has {MAX_OPS} at most, repeated blocks counted as often"),
            });
        }
        let mut build = Build {
            net: GraphBuilder::new(name),
            dims: HashMap::new(),
            names: HashMap::new(),
            loss: None,
            blocks: 0,
        };
        build.dims.insert("batch".into(), build.net.batch());
        for (name, &size) in &self.dims {
            let dim = build.net.dim(name, size)?;
            build.dims.insert(name.clone(), dim);
        }
        for (at, input) in self.input.iter().enumerate() {
            let key = format!("input[{at}]");
            let place = Place { key, block: "[[input]]", op: &input.name, index: 0 };
            let axes = build.axes(&place, "axes", &input.axes)?;
            let value = match input.kind {
                InputKind::Real => build.net.features(&input.name, &axes),
                InputKind::Index => build.net.targets(&input.name, &axes),
            };
            let value = value.map_err(|error| place.located(error))?;
            build.names.insert(input.name.clone(), value);
        }
        let mut result = None;
        for (at, block) in self.block.iter().enumerate() {
            result = Some(build.block(at, block, result)?);
        }
        let loss = build.loss.ok_or_else(|| GraphError::Text {
            place: name.into(),
            message:
                "no operator is of the kind cross-entropy or sigmoid-cross-entropy, so there is \
                      no loss"
                    .into(),
        })?;
        build.net.finish(loss)
    }
}

struct Build {
    net: GraphBuilder,
    dims: HashMap<String, DimId>,
    names: HashMap<String, ValueId>,
    loss: Option<ValueId>,
    /// How many there were so far, repeated ones counted as often.
    blocks: usize,
}

/// Where in the description something is, and the number of the repetition.
struct Place<'a> {
    /// The keys that lead there, as in `block[2].op[0]`.
    key: String,
    block: &'a str,
    op: &'a str,
    index: usize,
}

impl<'a> Place<'a> {
    /// A block, the one at this place in the description.
    fn of_block(at: usize, name: &'a str, index: usize) -> Place<'a> {
        Place { key: format!("block[{at}]"), block: name, op: "", index }
    }

    fn error(&self, key: &str, message: impl Into<String>) -> GraphError {
        let op = if self.op.is_empty() { String::new() } else { format!(", op {:?}", self.op) };
        let message = format!("block {:?}{op}, {key}: {}", self.block, message.into());
        GraphError::Element { key: format!("{}.{key}", self.key), message }
    }

    /// An error of building what stands here, unless it says where already.
    fn located(&self, error: GraphError) -> GraphError {
        match error {
            GraphError::Element { .. } => error,
            _ => GraphError::Element { key: self.key.clone(), message: error.to_string() },
        }
    }

    fn substitute(&self, name: &str) -> String {
        name.replace("{i}", &self.index.to_string())
    }
}

impl Build {
    /// Adds all repetitions of the block at this place, which comes after one with the result `before`, and gives
    /// the result of the last.
    fn block(
        &mut self,
        at: usize,
        block: &BlockConfig,
        before: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let place = Place::of_block(at, &block.name, 0);
        if block.op.is_empty() {
            return Err(place.error("op", "a block has at least one [[block.op]]"));
        }
        if !(1..=10_000).contains(&block.repeat) {
            let message = format!("{} is not possible: it is 1 to 10000", block.repeat);
            return Err(place.error("repeat", message));
        }
        self.blocks += block.repeat;
        if self.blocks > MAX_BLOCKS {
            let message = format!(
                "it makes {} blocks with those before, and a model has {MAX_BLOCKS} at most",
                self.blocks
            );
            return Err(place.error("repeat", message));
        }
        if block.repeat > 1 && !block.name.contains("{i}") {
            let message = "a repeated block's name contains {i}, which becomes 0, 1, ...";
            return Err(place.error("name", message));
        }
        let mut input = match &block.input {
            Some(name) => Some(self.find(&place, "input", &place.substitute(name), "", None)?),
            None => before,
        };
        for index in 0..block.repeat {
            let name = Place::of_block(at, &block.name, index).substitute(&block.name);
            self.net.block(&name);
            let mut last = None;
            for (number, op) in block.op.iter().enumerate() {
                let op_name = op.name.as_deref().unwrap_or_default();
                let key = format!("block[{at}].op[{number}]");
                let place = Place { key, block: &name, op: op_name, index };
                let added = self.op(&place, op, input);
                last = Some(added.map_err(|error| place.located(error))?);
            }
            input = match &block.output {
                Some(output) => {
                    let place = Place::of_block(at, &name, index);
                    Some(self.find(&place, "output", &place.substitute(output), &name, None)?)
                }
                None => last,
            };
        }
        input.ok_or_else(|| place.error("op", "a block has at least one [[block.op]]"))
    }

    fn op(
        &mut self,
        place: &Place,
        op: &OpConfig,
        block_input: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let kind = kind_of(place, op)?;
        let full = match place.op {
            "" => place.block.to_owned(),
            name => format!("{}.{}", place.block, place.substitute(name)),
        };
        let mut inputs = Vec::with_capacity(op.inputs.len());
        for input in &op.inputs {
            let name = place.substitute(input);
            inputs.push(self.find(place, "inputs", &name, place.block, block_input)?);
        }
        let mut parameter = |key: &str, config: &Option<ParameterConfig>| match config {
            Some(config) => self.parameter(place, key, &format!("{full}.{key}"), config),
            None => Err(place.error(key, format!("the kind {} needs it", kind.name))),
        };
        let probability = op.probability.unwrap_or(0.0);
        let epsilon = op.epsilon.unwrap_or(1e-5);
        let value = match (kind.name, &inputs[..]) {
            ("embed", &[tokens]) => {
                let table = parameter("table", &op.table)?;
                self.net.embed(&full, tokens, table)
            }
            ("contract", &[x]) => {
                let weight = parameter("weight", &op.weight)?;
                let bias = match op.bias {
                    Some(_) => Some(parameter("bias", &op.bias)?),
                    None => None,
                };
                self.net.contract(&full, x, weight, bias)
            }
            ("add", &[a, b]) => self.net.add(&full, a, b),
            ("concat", parts @ &[a, ..]) => {
                let (axis, joined) = self.junction(place, op, a)?;
                self.net.concat(&full, parts, axis, joined)
            }
            ("add-bias", &[x]) => {
                let bias = parameter("bias", &op.bias)?;
                self.net.add(&full, x, bias)
            }
            ("dropout", &[x]) => self.net.dropout(&full, x, probability),
            ("bias-dropout-add", &[x, residual]) => {
                let bias = parameter("bias", &op.bias)?;
                self.net.bias_dropout_add(&full, x, bias, residual, probability)
            }
            ("layer-norm", &[x]) => {
                let gain = parameter("gain", &op.gain)?;
                let bias = parameter("bias", &op.bias)?;
                self.net.layer_norm(&full, x, gain, bias, epsilon)
            }
            ("rms-norm", &[x]) => {
                let gain = parameter("gain", &op.gain)?;
                self.net.rms_norm(&full, x, gain, op.offset.unwrap_or(0.0), epsilon)
            }
            ("gelu", &[x]) => self.net.pointwise(&full, x, Activation::Gelu),
            ("relu", &[x]) => self.net.pointwise(&full, x, Activation::Relu),
            ("swiglu", &[gate, up]) => self.net.glu(&full, Gate::Silu, gate, up),
            ("geglu", &[gate, up]) => self.net.glu(&full, Gate::Gelu, gate, up),
            ("scale", &[x]) => {
                let factor = op
                    .factor
                    .ok_or_else(|| place.error("factor", "the kind scale needs it".to_owned()))?;
                self.net.scale(&full, x, factor)
            }
            ("soft-cap", &[x]) => {
                let missing = || place.error("cap", "the kind soft-cap needs it");
                self.net.soft_cap(&full, x, op.cap.ok_or_else(missing)?)
            }
            ("rotary", &[x]) => {
                let (theta, scaling) = (op.theta.unwrap_or(10_000.0), op.scaling.map(Into::into));
                self.net.rotary(&full, x, theta, scaling, op.width)
            }
            ("attention", &[q, k, v]) => {
                let missing = |key| place.error(key, "the kind attention needs it");
                let keys = op.keys.as_ref().ok_or_else(|| missing("keys"))?;
                let causal = op.causal.ok_or_else(|| missing("causal"))?;
                let keys = self.axes(place, "keys", std::slice::from_ref(keys))?[0];
                let visibility = match (causal, op.window) {
                    (false, None) => Visibility::All,
                    (false, Some(_)) => {
                        return Err(
                            place.error("window", "it is of earlier keys, so causal = true")
                        );
                    }
                    (true, None) => Visibility::Causal,
                    (true, Some(positions)) => Visibility::Window { positions },
                };
                let (scale, soft_cap) = (op.scale, op.cap);
                let dropout = probability;
                let attention = Attention { visibility, scale, soft_cap, dropout };
                self.net.attention(&full, q, k, v, keys, attention)
            }
            ("route", &[logits]) => {
                let missing = |key| place.error(key, "the kind route needs it");
                let experts = op.experts.as_ref().ok_or_else(|| missing("experts"))?;
                let slots = op.slots.as_ref().ok_or_else(|| missing("slots"))?;
                let overflow = op.overflow.ok_or_else(|| missing("overflow"))?;
                let experts = self.axes(place, "experts", std::slice::from_ref(experts))?[0];
                let slots = self.axes(place, "slots", std::slice::from_ref(slots))?[0];
                self.net.route(&full, logits, experts, slots, overflow)
            }
            ("dispatch", &[x, routed]) => self.net.dispatch(&full, x, routed),
            ("expert-contract", &[x]) => {
                let weight = parameter("weight", &op.weight)?;
                self.net.expert_contract(&full, x, weight)
            }
            ("combine", &[y, routed]) => self.net.combine(&full, y, routed),
            ("lstm", &[gates]) => {
                let weight = parameter("weight", &op.weight)?;
                let projection = match op.projection {
                    Some(_) => Some(parameter("projection", &op.projection)?),
                    None => None,
                };
                let forget_bias = op.forget_bias.unwrap_or(0.0);
                self.net.lstm(&full, gates, weight, projection, forget_bias)
            }
            ("dot-interaction", parts) => {
                let missing = || place.error("pairs", "the kind dot-interaction needs it");
                let pairs = op.pairs.as_ref().ok_or_else(missing)?;
                let pairs = self.axes(place, "pairs", std::slice::from_ref(pairs))?[0];
                self.net.dot_interaction(&full, parts, pairs, op.diagonal.unwrap_or(false))
            }
            ("sampled-cross-entropy", &[x, targets]) => {
                let weight = parameter("weight", &op.weight)?;
                let bias = parameter("bias", &op.bias)?;
                let missing = || place.error("samples", "the kind sampled-cross-entropy needs it");
                let samples = op.samples.as_ref().ok_or_else(missing)?;
                let samples = self.axes(place, "samples", std::slice::from_ref(samples))?[0];
                self.require_no_loss(place)?;
                let parameters = (weight, bias);
                let loss =
                    self.net.sampled_cross_entropy(&full, x, targets, parameters, samples)?;
                self.loss = Some(loss);
                Ok(loss)
            }
            ("cross-entropy" | "sigmoid-cross-entropy", &[logits, targets]) => {
                self.require_no_loss(place)?;
                let loss = match kind.name {
                    "cross-entropy" => self.net.cross_entropy(&full, logits, targets)?,
                    _ => self.net.sigmoid_cross_entropy(&full, logits, targets)?,
                };
                self.loss = Some(loss);
                Ok(loss)
            }
            _ => unreachable!("every kind of the table has its arm, and its inputs were counted"),
        }?;
        if self.names.insert(full.clone(), value).is_some() {
            return Err(place.error("name", format!("{full:?} is taken; names are unique")));
        }
        Ok(value)
    }

    fn require_no_loss(&self, place: &Place) -> Result<(), GraphError> {
        match self.loss {
            Some(_) => Err(place.error("kind", "a network has one cross-entropy, its loss")),
            None => Ok(()),
        }
    }

    fn parameter(
        &mut self,
        place: &Place,
        key: &str,
        full: &str,
        config: &ParameterConfig,
    ) -> Result<ValueId, GraphError> {
        if let Some(same) = &config.same {
            if config.axes.is_some() || config.init.is_some() || config.rows.is_some() {
                let message = "with `same` it is a parameter made elsewhere and takes no other key";
                return Err(place.error(key, message));
            }
            return self.find(place, key, &place.substitute(same), place.block, None);
        }
        let (Some(axes), Some(init)) = (&config.axes, config.init) else {
            return Err(place.error(key, "needs axes = [..] and init = {..}, or same = \"..\""));
        };
        let axes = self.axes(place, key, axes)?;
        let init = match init {
            InitConfig::Normal(std) => Init::Normal { std },
            InitConfig::Constant(value) => Init::Constant(value),
        };
        let rows = config.rows.unwrap_or(usize::from(axes.len() > 1));
        let value = self.net.parameter(full, &axes, rows, init)?;
        self.names.insert(full.into(), value);
        Ok(value)
    }

    /// Along which axis of `first` a concatenation joins, and the dimension that the axis becomes.
    fn junction(
        &self,
        place: &Place,
        op: &OpConfig,
        first: ValueId,
    ) -> Result<(usize, DimId), GraphError> {
        let missing = || place.error("joined", "the kind concat needs it");
        let joined = op.joined.as_ref().ok_or_else(missing)?;
        let joined = self.axes(place, "joined", std::slice::from_ref(joined))?[0];
        let axes = self.net.axes(first);
        let Some(along) = &op.axis else { return Ok((axes.len().saturating_sub(1), joined)) };
        let along = self.axes(place, "axis", std::slice::from_ref(along))?[0];
        let message = "it is no dimension of the first input";
        let axis = axes.iter().position(|&dim| dim == along);
        Ok((axis.ok_or_else(|| place.error("axis", message))?, joined))
    }

    fn axes(&self, place: &Place, key: &str, names: &[String]) -> Result<Vec<DimId>, GraphError> {
        let find = |name: &String| {
            let name = place.substitute(name);
            self.dims.get(&name).copied().ok_or_else(|| {
                let hint = did_you_mean(&name, self.dims.keys().map(String::as_str));
                place.error(key, format!("there is no dimension {name:?} in [dims]{hint}"))
            })
        };
        names.iter().map(find).collect()
    }

    /// The value of this name: `input`, one of the block, or one of the whole network.
    fn find(
        &self,
        place: &Place,
        key: &str,
        name: &str,
        block: &str,
        block_input: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        if let ("input", Some(value)) = (name, block_input) {
            return Ok(value);
        }
        let local = self.names.get(&format!("{block}.{name}"));
        local.or_else(|| self.names.get(name)).copied().ok_or_else(|| {
            let known = self.names.keys().flat_map(|known| {
                let local = known.strip_prefix(block).and_then(|rest| rest.strip_prefix('.'));
                [Some(known.as_str()), local].into_iter().flatten()
            });
            let hint = did_you_mean(name, known);
            place.error(key, format!("nothing before it is called {name:?}{hint}"))
        })
    }
}

/// The kind of an operator, after checking its keys and the number of its inputs.
fn kind_of(place: &Place, op: &OpConfig) -> Result<&'static Kind, GraphError> {
    let Some(kind) = KINDS.iter().find(|kind| kind.name == op.kind) else {
        let names = KINDS.iter().map(|kind| kind.name);
        let hint = did_you_mean(&op.kind, names.clone());
        let list = names.collect::<Vec<_>>().join(", ");
        let message = format!("there is no kind {:?}{hint}; there are {list}", op.kind);
        return Err(place.error("kind", message));
    };
    if let Some(key) = op.given().find(|key| !kind.keys.contains(key)) {
        let keys = if kind.keys.is_empty() { "no more".into() } else { kind.keys.join(", ") };
        let message =
            format!("the kind {} does not take it; besides inputs it takes {keys}", kind.name);
        return Err(place.error(key, message));
    }
    let (given, needed) = (op.inputs.len(), kind.inputs.len());
    if given < needed || (given > needed && !kind.any_more) {
        let message = format!(
            "the kind {} reads {needed}{} ({}), not {given}",
            kind.name,
            if kind.any_more { " or more" } else { "" },
            kind.inputs.join(", "),
        );
        return Err(place.error("inputs", message));
    }
    Ok(kind)
}
