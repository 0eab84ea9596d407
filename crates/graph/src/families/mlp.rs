//! Multi-layer perceptron: a classifier of feature vectors.

use serde::{Deserialize, Serialize};

use super::{require_layers, require_sizes};
use crate::op::Activation;
use crate::{Graph, GraphBuilder, GraphError, Init};

/// A multi-layer perceptron.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlpConfig {
    /// Features of a sample.
    pub inputs: usize,
    /// Width of the hidden layers.
    pub hidden: usize,
    /// Hidden layers.
    pub layers: usize,
    /// Classes.
    pub classes: usize,
}

impl MlpConfig {
    /// The model as a graph. Hidden layers are in turn as wide as the dimensions `width.0` and `width.1`, of which a
    /// tensor-parallel axis may split one: every second layer reads it and the others make it.
    ///
    /// # Errors
    /// If a size is zero or absurd.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        require_layers(name, self.layers)?;
        require_sizes(
            name,
            &[("inputs", self.inputs), ("hidden", self.hidden), ("classes", self.classes)],
        )?;
        let mut net = GraphBuilder::new(name);
        let inputs = net.dim("inputs", self.inputs)?;
        let classes = net.dim("vocab", self.classes)?;
        let zeros = Init::Constant(0.0);
        let he = |fan_in: usize| Init::Normal { std: (2.0 / fan_in as f32).sqrt() };
        let (mut width, mut fan_in) = (inputs, self.inputs);
        let mut widths = vec![];
        let mut x = None;
        let mut targets = None;
        for layer in 0..self.layers {
            let block = format!("block.{layer}");
            net.block(&block);
            let input = match x {
                Some(x) => x,
                None => {
                    targets = Some(net.targets("targets", &[])?);
                    net.features("features", &[inputs])?
                }
            };
            if layer < 2 {
                widths.push(net.dim(&format!("width.{layer}"), self.hidden)?);
            }
            let next = widths[layer % 2];
            let w = net.parameter(&format!("{block}.weight"), &[width, next], 1, he(fan_in))?;
            let b = net.parameter(&format!("{block}.bias"), &[next], 0, zeros)?;
            let y = net.contract(&format!("{block}.product"), input, w, None)?;
            let y = net.add(&format!("{block}.sum"), y, b)?;
            x = Some(net.pointwise(&format!("{block}.relu"), y, Activation::Relu)?);
            (width, fan_in) = (next, self.hidden);
        }
        net.block("head");
        let w = net.parameter("head.weight", &[classes, width], 1, he(fan_in))?;
        let (Some(x), Some(targets)) = (x, targets) else {
            unreachable!("at least one layer was checked above")
        };
        let logits = net.contract("head", x, w, None)?;
        let loss = net.cross_entropy("loss", logits, targets)?;
        net.finish(loss)
    }
}
