//! Weights under Hugging Face's names and layouts, and this program's.
//!
//! A parameter here keeps its structure, such as `[model, heads, group, head_dim]`, and its first axes
//! are the rows of the matrix that it is: inputs before outputs. GPT-2's `Conv1D` stores matrices the
//! same way round, with query, key and value side by side in the columns; Llama's `Linear` stores
//! outputs before inputs, and Phi-3 has query, key and value one below the other, and gate and up. Query head `h` of a Llama reads key head `h / group` in both, and both rotate
//! the first half of a head against the second, so nothing is permuted within a head.

mod index;
mod layout;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::{Extents, Graph, GraphError, ModelSpec};

use crate::{InteropError, ModelType};
pub use index::{files_of_index, line_in_index};
use layout::{Matrix, Place};
use names::Scheme;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The extent of every axis.
    pub shape: Vec<usize>,
    /// The elements, the last axis fastest.
    pub values: Vec<f32>,
}

/// The parameters of `spec`, by name, from the tensors of a file with Hugging Face's names (of a bare
/// model or of one with a head) or with this program's own. Of a GPT's learned positions the first
/// `seq` are taken. Rows that pad a vocabulary are zeros where the file has none. Masks and frequencies that
/// some files hold besides the weights are passed over.
///
/// # Errors
/// If a tensor is missing, has no place in the model, has another shape or as many elements as its
/// shape does not say, or if a tied head differs from the embedding; or if the model is neither GPT nor
/// Llama and the names are not its own.
pub fn import(
    spec: &ModelSpec,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Vec<f32>>, InteropError> {
    Ok(fill(spec, tensors, &Anew::default())?.parameters)
}

/// Weights of a model whose head starts anew.
#[derive(Clone, Debug, PartialEq)]
pub struct WithoutHead {
    /// What is in the file, by parameter.
    pub parameters: BTreeMap<String, Vec<f32>>,
    /// The parameters that start anew.
    pub anew: BTreeSet<String>,
}

/// [`import`], but for the head: whatever the file has for it, or has not, is passed over. An embedding that the
/// head is not tied to is taken if it is of the model's vocabulary, and starts anew too if it is not.
///
/// # Errors
/// As [`import`] of everything else.
pub fn import_without_head(
    spec: &ModelSpec,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<WithoutHead, InteropError> {
    let graph = graph_of(spec)?;
    let mut anew = Anew::default();
    for parameter in graph.class_parameters() {
        let name = graph.value(parameter).name.clone();
        match graph.is_embedding(parameter) {
            true => anew.unless_it_fits.insert(name),
            false => anew.always.insert(name),
        };
    }
    fill(spec, tensors, &anew)
}

/// Parameters for which a file need not have weights.
#[derive(Debug, Default)]
struct Anew {
    /// Those whose weights are passed over.
    always: BTreeSet<String>,
    /// Those whose weights may have another shape.
    unless_it_fits: BTreeSet<String>,
}

/// What a file has for a model, but for some of it. Rows of padding, which a file need not have, are zeros.
fn fill(
    spec: &ModelSpec,
    tensors: &BTreeMap<String, Tensor>,
    may_start: &Anew,
) -> Result<WithoutHead, InteropError> {
    let padded = padded_parameters(spec)?;
    let has_padding = |(name, matrix): (&String, &Matrix)| {
        tensors.get(name).is_some_and(|tensor| tensor.shape == matrix.shape)
    };
    if padded.is_empty() || padded.iter().any(has_padding) {
        return fill_all(spec, tensors, may_start);
    }
    let mut found = fill_all(&without_padding(spec)?, tensors, may_start)?;
    for (name, matrix) in padded {
        if let Some(values) = found.parameters.get_mut(&name) {
            values.resize(matrix.rows * matrix.columns, 0.0);
        }
    }
    Ok(found)
}

/// The parameters of a model that have rows of padding, behind the others.
fn padded_parameters(spec: &ModelSpec) -> Result<BTreeMap<String, Matrix>, InteropError> {
    let Ok(plain) = spec.with_padding(None) else { return Ok(BTreeMap::new()) };
    let (padded, plain) = (graph_of(spec)?, graph_of(&plain)?);
    let both = matrices(&padded).zip(matrices(&plain));
    let has_padding = both.filter(|((_, padded), (_, plain))| padded.rows != plain.rows);
    Ok(has_padding.map(|(padded, _)| padded).collect())
}

fn without_padding(spec: &ModelSpec) -> Result<ModelSpec, InteropError> {
    spec.with_padding(None).map_err(|error| of_model(spec, error))
}

/// [`fill`] of a file that has every row.
fn fill_all(
    spec: &ModelSpec,
    tensors: &BTreeMap<String, Tensor>,
    may_start: &Anew,
) -> Result<WithoutHead, InteropError> {
    let graph = graph_of(spec)?;
    for (name, tensor) in tensors {
        let elements = tensor.shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        if elements != Some(tensor.values.len()) {
            let rule = format!("it holds {} elements", tensor.values.len());
            return Err(wrong_shape(spec, name, &tensor.shape, rule));
        }
    }
    if graph.parameters().any(|(_, value)| tensors.contains_key(&value.name)) {
        return own_names(spec, &graph, tensors, may_start);
    }
    // Of several, the names of which the file has most.
    let possible = Scheme::all(spec).into_iter().rev().map(|it| HuggingFaceTensors::with(spec, it));
    let possible = possible.collect::<Result<Vec<_>, _>>()?;
    let known = |it: &HuggingFaceTensors<'_>| {
        tensors
            .keys()
            .filter(|name| it.tensors.contains_key(&it.scheme.full(it.scheme.bare(name))))
            .count()
    };
    let there = possible.into_iter().max_by_key(known).ok_or_else(|| no_mapping(spec, &graph))?;
    let scheme = there.scheme;

    // By bare name, with the full name for messages.
    let mut found: BTreeMap<&str, (&str, &Tensor)> = BTreeMap::new();
    let mut extra: Vec<String> = vec![];
    for (name, tensor) in tensors.iter().filter(|(name, _)| !scheme.is_buffer(name)) {
        if let Some((twin, _)) = found.insert(scheme.bare(name), (name, tensor)) {
            extra.push(format!("{name} besides {twin}"));
        }
    }
    let tied = scheme.tied_head().and_then(|head| found.remove(head));
    let (mut parameters, mut anew) = (BTreeMap::new(), BTreeSet::new());
    let mut missing: Vec<String> = vec![];
    for (name, pieces) in &there.tensors {
        let bare = scheme.bare(name);
        let tensor = found.remove(bare);
        if pieces.iter().all(|piece| may_start.always.contains(&piece.parameter)) {
            anew.extend(pieces.iter().map(|piece| piece.parameter.clone()));
            continue;
        }
        let Some((full, tensor)) = tensor else {
            missing.push(bare.to_owned());
            continue;
        };
        for Piece { parameter, matrix, part, place } in pieces {
            match part.read(matrix, *place, tensor) {
                Ok(values) => drop(parameters.insert(parameter.clone(), values)),
                Err(_) if may_start.unless_it_fits.contains(parameter) => {
                    anew.insert(parameter.clone());
                }
                Err(rule) => return Err(wrong_shape(spec, full, &tensor.shape, rule)),
            }
        }
    }
    // Of another kind of model, which may have a few names in common.
    if missing.len() > parameters.len() && !found.is_empty() {
        let others: Vec<String> = found.values().map(|&(full, _)| full.to_owned()).collect();
        return Err(InteropError::OtherNames {
            model: spec.name().into(),
            missing: missing.len(),
            names: shortened(&others),
        });
    }
    report(spec, missing, |model, count, names| InteropError::Missing { model, count, names })?;
    extra.extend(found.values().map(|&(full, _)| full.to_owned()));
    report(spec, extra, |model, count, names| InteropError::Unexpected { model, count, names })?;
    if let Some((full, head)) = tied
        && !anew.contains(names::EMBEDDING)
        && parameters.get(names::EMBEDDING) != Some(&head.values)
    {
        return Err(InteropError::NotTied { model: spec.name().into(), tensor: full.into() });
    }
    Ok(WithoutHead { parameters, anew })
}

/// The tensors that Hugging Face's model with a head reads, when it is of type `model_type`, from the parameters
/// of `spec` by name. A tied head is left out, as it is there.
///
/// # Errors
/// If a parameter is missing, unknown or of another length, or the model has no names there.
pub fn export(
    spec: &ModelSpec,
    model_type: ModelType,
    parameters: &BTreeMap<String, Vec<f32>>,
) -> Result<BTreeMap<String, Tensor>, InteropError> {
    let there = HuggingFaceTensors::of(spec, model_type)?;
    let known: BTreeSet<&str> = there.parameters().collect();
    let extra = parameters.keys().filter(|name| !known.contains(name.as_str())).cloned().collect();
    report(spec, extra, |model, count, names| InteropError::Unexpected { model, count, names })?;
    let has = |name: &&str| parameters.contains_key(*name);
    let missing = known.iter().filter(|name| !has(name)).map(|&name| name.to_owned()).collect();
    report(spec, missing, |model, count, names| InteropError::Missing { model, count, names })?;
    let tensor = |(name, _): (&str, _)| {
        let tensor = there.tensor(name, |own| Ok::<_, InteropError>(parameters[own].clone()))?;
        Ok((name.to_owned(), tensor))
    };
    there.tensors().map(tensor).collect()
}

/// The tensors of Hugging Face's model with a head, each made of one or more parameters of ours, so that
/// they can be written one after another.
#[derive(Debug)]
pub struct HuggingFaceTensors<'s> {
    spec: &'s ModelSpec,
    scheme: Scheme,
    tensors: BTreeMap<String, Vec<Piece>>,
    /// Elements of parameters with rows of padding, which are left out.
    padded: BTreeMap<String, usize>,
}

/// A parameter of ours and which part of a tensor it is.
#[derive(Debug)]
struct Piece {
    parameter: String,
    matrix: Matrix,
    part: layout::Part,
    place: Place,
}

impl<'s> HuggingFaceTensors<'s> {
    /// Those of `spec` as a model of type `model_type`. A tied head and rows of padding are left out, as there are
    /// none there.
    ///
    /// # Errors
    /// If the model has no names there.
    pub fn of(
        spec: &'s ModelSpec,
        model_type: ModelType,
    ) -> Result<HuggingFaceTensors<'s>, InteropError> {
        match Scheme::of(spec, model_type) {
            Some(scheme) => HuggingFaceTensors::with(spec, scheme),
            None => Err(no_mapping(spec, &graph_of(spec)?)),
        }
    }

    /// Those of `spec` with these names.
    fn with(spec: &'s ModelSpec, scheme: Scheme) -> Result<HuggingFaceTensors<'s>, InteropError> {
        let elements = |(name, matrix): (String, Matrix)| (name, matrix.rows * matrix.columns);
        let padded: BTreeMap<String, usize> =
            padded_parameters(spec)?.into_iter().map(elements).collect();
        let graph = match padded.is_empty() {
            true => graph_of(spec)?,
            false => graph_of(&without_padding(spec)?)?,
        };
        let mut tensors: BTreeMap<String, Vec<Piece>> = BTreeMap::new();
        for (parameter, matrix) in matrices(&graph) {
            let source = scheme.source(&parameter).ok_or_else(|| no_mapping(spec, &graph))?;
            let pieces = tensors.entry(scheme.full(&source.tensor)).or_default();
            let place = Place { before: 0, all: matrix.columns };
            pieces.push(Piece { parameter, matrix, part: source.part, place });
        }
        for pieces in tensors.values_mut() {
            pieces.sort_by_key(|piece| piece.part.number());
            let all = pieces.iter().map(|piece| piece.matrix.columns).sum();
            let mut before = 0;
            for piece in pieces {
                piece.place = Place { before, all };
                before += piece.matrix.columns;
            }
        }
        Ok(HuggingFaceTensors { spec, scheme, tensors, padded })
    }

    /// Names and shapes, in the order of names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Vec<usize>)> {
        self.tensors.iter().filter_map(|(name, pieces)| {
            pieces.first().map(|it| (name.as_str(), it.part.shape(&it.matrix, it.place)))
        })
    }

    /// The parameters that all of them are made of.
    fn parameters(&self) -> impl Iterator<Item = &str> {
        self.tensors.values().flatten().map(|piece| piece.parameter.as_str())
    }

    /// The tensor of this name, of the parameters that `read` gives.
    ///
    /// # Errors
    /// What `read` says; if a parameter has another length than it needs, or there is no such tensor.
    pub fn tensor<E: From<InteropError>>(
        &self,
        name: &str,
        mut read: impl FnMut(&str) -> Result<Vec<f32>, E>,
    ) -> Result<Tensor, E> {
        let pieces = self.tensors.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut tensor: Option<Tensor> = None;
        for Piece { parameter, matrix, part, place } in pieces {
            let mut values = read(parameter)?;
            if self.padded.get(parameter) == Some(&values.len()) {
                values.truncate(matrix.rows * matrix.columns);
            }
            if values.len() != matrix.rows * matrix.columns {
                let rule = format!("the shape {:?} is needed", matrix.shape);
                return Err(wrong_shape(self.spec, parameter, &[values.len()], rule).into());
            }
            let tensor = tensor.get_or_insert_with(|| part.empty(matrix, *place));
            part.write(matrix, *place, values, tensor);
        }
        let missing = || InteropError::Missing {
            model: self.spec.name().into(),
            count: 1,
            names: name.to_owned(),
        };
        tensor.ok_or_else(|| missing().into())
    }
}

/// Tensors that already have this program's names and shapes.
fn own_names(
    spec: &ModelSpec,
    graph: &Graph,
    tensors: &BTreeMap<String, Tensor>,
    may_start: &Anew,
) -> Result<WithoutHead, InteropError> {
    let known: BTreeMap<String, Matrix> = matrices(graph).collect();
    let extra = tensors.keys().filter(|name| !known.contains_key(*name)).cloned().collect();
    report(spec, extra, |model, count, names| InteropError::Unexpected { model, count, names })?;
    let needed = known.keys().filter(|name| !may_start.always.contains(*name));
    let missing = needed.filter(|name| !tensors.contains_key(*name)).cloned().collect();
    report(spec, missing, |model, count, names| InteropError::Missing { model, count, names })?;
    let (mut parameters, mut anew) = (BTreeMap::new(), may_start.always.clone());
    for (name, tensor) in tensors.iter().filter(|(name, _)| !may_start.always.contains(*name)) {
        match known.get(name).filter(|matrix| matrix.shape != tensor.shape) {
            None => drop(parameters.insert(name.clone(), tensor.values.clone())),
            Some(_) if may_start.unless_it_fits.contains(name) => drop(anew.insert(name.clone())),
            Some(matrix) => {
                let rule = format!("{:?} is needed", matrix.shape);
                return Err(wrong_shape(spec, name, &tensor.shape, rule));
            }
        }
    }
    Ok(WithoutHead { parameters, anew })
}

fn no_mapping(spec: &ModelSpec, graph: &Graph) -> InteropError {
    InteropError::NoMapping { model: spec.name().into(), names: listed(graph) }
}

fn graph_of(spec: &ModelSpec) -> Result<Graph, InteropError> {
    spec.graph().map_err(|error| of_model(spec, error))
}

fn of_model(spec: &ModelSpec, error: GraphError) -> InteropError {
    InteropError::Model { place: spec.name().into(), source: error.into() }
}

/// The parameters of a graph as matrices, in the order of the graph.
fn matrices(graph: &Graph) -> impl Iterator<Item = (String, Matrix)> {
    let extents = Extents::global(graph, 1);
    graph.parameters().map(move |(_, value)| {
        let rows = value.parameter().map_or(0, |parameter| parameter.row_axes);
        let (rows, columns) = value.axes.split_at(rows);
        let matrix = Matrix {
            shape: extents.shape(&value.axes),
            rows: extents.elements(rows),
            columns: extents.elements(columns),
            is_vector: rows.is_empty(),
        };
        (value.name.clone(), matrix)
    })
}

/// An error about these names, if there are any.
fn report(
    spec: &ModelSpec,
    names: Vec<String>,
    error: impl FnOnce(String, usize, String) -> InteropError,
) -> Result<(), InteropError> {
    if names.is_empty() {
        return Ok(());
    }
    Err(error(spec.name().into(), names.len(), shortened(&names)))
}

fn listed(graph: &Graph) -> String {
    shortened(&graph.parameters().map(|(_, value)| value.name.clone()).collect::<Vec<_>>())
}

fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.get(..SHOWN) {
        Some(first) if names.len() > SHOWN => {
            format!("{} and {} more", first.join(", "), names.len() - SHOWN)
        }
        _ => names.join(", "),
    }
}

fn wrong_shape(spec: &ModelSpec, tensor: &str, found: &[usize], rule: String) -> InteropError {
    InteropError::Shape {
        model: spec.name().into(),
        tensor: tensor.into(),
        found: found.to_vec(),
        rule,
    }
}
