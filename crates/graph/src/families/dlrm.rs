//! DLRM: dense and categorical features to a probability (Naumov et al. 2019, "Deep Learning Recommendation Model
//! for Personalization and Recommendation Systems", arXiv 1906.00091).

use serde::{Deserialize, Serialize};

use super::{require, require_sizes};
use crate::builder::pair_count;
use crate::op::Activation;
use crate::{DimId, Graph, GraphBuilder, GraphError, Init, ValueId};

/// A deep learning recommendation model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DlrmConfig {
    /// Dense features of a sample.
    pub dense: usize,
    /// Rows of the table of each categorical feature: how many categories there are.
    pub rows: Vec<usize>,
    /// Tables have rows up to a multiple of this, which tensor parallelism then divides; those behind the categories are
    /// padding, which nothing reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_multiple: Option<usize>,
    /// Width of all embeddings, and of what the bottom perceptron makes of the dense features.
    pub embed: usize,
    /// Widths of the bottom perceptron's layers before the last, which is `embed` wide.
    pub bottom: Vec<usize>,
    /// Widths of the top perceptron's layers before the last, which gives the logit.
    pub top: Vec<usize>,
    /// Whether the interaction has the products of features with themselves as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub diagonal: bool,
}

/// No model has more categorical features.
const MAX_TABLES: usize = 10_000;

impl DlrmConfig {
    /// The model as a graph: blocks are the bottom perceptron with the embeddings, the interaction, and the
    /// layers of the top perceptron. Dimensions that tensor parallelism splits are the rows of tables,
    /// `rows.0`, `rows.1`, ..., and every second width of a perceptron, `width.0`, `width.2`, ...
    ///
    /// # Errors
    /// If a size is zero or absurd, there is no table, or a perceptron has too many layers.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        self.check(name)?;
        let mut net = GraphBuilder::new(name);
        let dense = net.dim("dense", self.dense)?;
        let embed = net.dim("embed", self.embed)?;
        let mut widths = Widths::default();

        net.block("features");
        let features = net.features("features", &[dense])?;
        let mut x = Layer { value: features, dim: dense, size: self.dense };
        for (index, &size) in self.bottom.iter().enumerate() {
            let dim = widths.next(&mut net, size)?;
            x = layer(&mut net, &format!("bottom.{index}"), x, (dim, size), true)?;
        }
        let last = format!("bottom.{}", self.bottom.len());
        let bottom = layer(&mut net, &last, x, (embed, self.embed), true)?.value;
        let mut parts = vec![bottom];
        for (index, (&rows, padded)) in self.rows.iter().zip(self.padded_rows()).enumerate() {
            let dim = net.dim(&format!("rows.{index}"), padded)?;
            let indices = net.targets(&format!("category.{index}"), &[])?;
            // As wide as numbers evenly between the roots of 1 / rows (the authors' code).
            let init = Init::Normal { std: (1.0 / (3.0 * rows as f32)).sqrt() };
            let table = net.parameter(&format!("table.{index}"), &[dim, embed], 1, init)?;
            parts.push(net.embed(&format!("embedding.{index}"), indices, table)?);
        }

        net.block("interaction");
        let count = pair_count(parts.len(), self.diagonal);
        let pairs = net.dim("pairs", count)?;
        let dots = net.dot_interaction("interaction.pairs", &parts, pairs, self.diagonal)?;
        let size = self.embed + count;
        let joined = net.dim("interactions", size)?;
        let value = net.concat("interaction", &[bottom, dots], 1, joined)?;

        let mut x = Layer { value, dim: joined, size };
        widths.begin();
        for (index, &size) in self.top.iter().enumerate() {
            let block = format!("top.{index}");
            net.block(&block);
            let dim = widths.next(&mut net, size)?;
            x = layer(&mut net, &block, x, (dim, size), true)?;
        }
        net.block("head");
        let click = net.dim("click", 1)?;
        let logit = layer(&mut net, "head", x, (click, 1), false)?.value;
        let targets = net.targets("targets", &[click])?;
        let loss = net.sigmoid_cross_entropy("loss", logit, targets)?;
        net.finish(loss)
    }

    /// Rows of the tables with their padding.
    fn padded_rows(&self) -> impl Iterator<Item = usize> {
        let multiple = self.row_multiple.unwrap_or(1);
        let padded = move |&rows: &usize| rows.checked_next_multiple_of(multiple);
        self.rows.iter().map(move |rows| padded(rows).unwrap_or(usize::MAX))
    }

    fn check(&self, name: &str) -> Result<(), GraphError> {
        let tables = self.rows.len();
        let rule = format!("there are 1 to {MAX_TABLES} tables");
        require((1..=MAX_TABLES).contains(&tables), name, "rows", tables, &rule)?;
        for (key, layers) in [("bottom", &self.bottom), ("top", &self.top)] {
            let rule = "a perceptron has at most 1000 layers";
            require(layers.len() < 1000, name, key, layers.len(), rule)?;
        }
        if let Some(multiple) = self.row_multiple {
            require_sizes(name, &[("row_multiple", multiple)])?;
        }
        let list = |key, sizes: &[usize]| sizes.iter().map(|&size| (key, size)).collect::<Vec<_>>();
        let sizes = [
            vec![("dense", self.dense), ("embed", self.embed)],
            list("rows", &self.rows),
            self.padded_rows().map(|size| ("row_multiple", size)).collect(),
            list("bottom", &self.bottom),
            list("top", &self.top),
        ];
        require_sizes(name, &sizes.concat())
    }
}

/// Numbers the widths of layers, each perceptron's from an even one: such are split.
#[derive(Default)]
struct Widths {
    next: usize,
}

impl Widths {
    fn next(&mut self, net: &mut GraphBuilder, size: usize) -> Result<DimId, GraphError> {
        let dim = net.dim(&format!("width.{}", self.next), size)?;
        self.next += 1;
        Ok(dim)
    }

    fn begin(&mut self) {
        self.next = self.next.next_multiple_of(2);
    }
}

/// What a layer gives, and how wide that is.
#[derive(Clone, Copy)]
struct Layer {
    value: ValueId,
    dim: DimId,
    size: usize,
}

/// A product with a bias, and a ReLU if it `activates`. Weights begin as the authors' code has them: with
/// variance 2 / (inputs + outputs), and biases with 1 / outputs.
fn layer(
    net: &mut GraphBuilder,
    name: &str,
    x: Layer,
    (dim, size): (DimId, usize),
    activates: bool,
) -> Result<Layer, GraphError> {
    let of_weights = Init::Normal { std: (2.0 / (x.size + size) as f32).sqrt() };
    let of_bias = Init::Normal { std: (1.0 / size as f32).sqrt() };
    let w = net.parameter(&format!("{name}.weight"), &[x.dim, dim], 1, of_weights)?;
    let b = net.parameter(&format!("{name}.bias"), &[dim], 0, of_bias)?;
    let y = net.contract(&format!("{name}.product"), x.value, w, None)?;
    let mut value = net.add(&format!("{name}.sum"), y, b)?;
    if activates {
        value = net.pointwise(&format!("{name}.relu"), value, Activation::Relu)?;
    }
    Ok(Layer { value, dim, size })
}
