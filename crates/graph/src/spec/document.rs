//! The TOML form of a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardloom_document::{line_at, toml_fault, toml_line_of};

use super::{ModelSpec, Network};
use crate::GraphError;
use crate::families::{
    BlockConfig, CustomConfig, DlrmConfig, GptConfig, InputConfig, LlamaConfig, LstmConfig,
    MlpConfig, UTransformerConfig,
};

/// What a description may hold: a name and one network.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    model: Header,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpt: Option<GptConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    llama: Option<LlamaConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mlp: Option<MlpConfig>,
    #[serde(default, rename = "u-transformer", skip_serializing_if = "Option::is_none")]
    u_transformer: Option<UTransformerConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lstm: Option<LstmConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dlrm: Option<DlrmConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dims: Option<BTreeMap<String, usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<Vec<InputConfig>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<Vec<BlockConfig>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    name: String,
}

impl Document {
    /// The description of a model.
    pub(super) fn of(spec: &ModelSpec) -> Document {
        let mut document = Document {
            model: Header { name: spec.name.clone() },
            gpt: None,
            llama: None,
            mlp: None,
            u_transformer: None,
            lstm: None,
            dlrm: None,
            dims: None,
            input: None,
            block: None,
        };
        match spec.network.clone() {
            Network::Gpt(gpt) => document.gpt = Some(gpt),
            Network::Llama(llama) => document.llama = Some(llama),
            Network::Mlp(mlp) => document.mlp = Some(mlp),
            Network::UTransformer(transformer) => document.u_transformer = Some(transformer),
            Network::Lstm(lstm) => document.lstm = Some(lstm),
            Network::Dlrm(dlrm) => document.dlrm = Some(dlrm),
            Network::Custom(CustomConfig { dims, input, block }) => {
                document.dims = Some(dims);
                document.input = Some(input);
                document.block = Some(block);
            }
        }
        document
    }

    /// The model described.
    pub(super) fn model(self, place: &str) -> Result<ModelSpec, GraphError> {
        let mut networks: Vec<Network> = [
            self.gpt.map(Network::Gpt),
            self.llama.map(Network::Llama),
            self.mlp.map(Network::Mlp),
            self.u_transformer.map(Network::UTransformer),
            self.lstm.map(Network::Lstm),
            self.dlrm.map(Network::Dlrm),
        ]
        .into_iter()
        .flatten()
        .collect();
        if self.dims.is_some() || self.input.is_some() || self.block.is_some() {
            networks.push(Network::Custom(CustomConfig {
                dims: self.dims.unwrap_or_default(),
                input: self.input.unwrap_or_default(),
                block: self.block.unwrap_or_default(),
            }));
        }
        match (networks.pop(), networks.is_empty()) {
            (Some(network), true) => ModelSpec::new(&self.model.name, network),
            (network, _) => Err(GraphError::Text {
                place: place.into(),
                message: format!(
                    "{} describes {} networks; it needs one of [gpt], [llama], [mlp], \
                     [u-transformer], [lstm], [dlrm], or [dims] with [[input]] and [[block]]",
                    self.model.name,
                    networks.len() + usize::from(network.is_some())
                ),
            }),
        }
    }
}

/// Reads a description.
pub(super) fn read(text: &str, place: &str) -> Result<ModelSpec, GraphError> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let fault = toml_fault(text, &error);
        GraphError::Text { place: fault.place(place), message: fault.message }
    })?;
    let located = |line: Option<usize>, error: &GraphError| GraphError::Text {
        place: line.map_or_else(|| place.to_owned(), |line| format!("{place}:{line}")),
        message: error.to_string(),
    };
    document.model(place).map_err(|error| match error {
        GraphError::Text { place: within, message } if within != place => {
            GraphError::Text { place: place.into(), message: format!("{within}: {message}") }
        }
        GraphError::Text { .. } => error,
        GraphError::Parameter { ref key, .. } => located(line_of(text, key), &error),
        GraphError::Element { ref key, .. } => located(toml_line_of(text, key), &error),
        _ => located(line_of_network(text), &error),
    })
}

/// Writes a description.
pub(super) fn write(spec: &ModelSpec) -> String {
    toml::to_string(&Document::of(spec))
        .expect("a model's numbers are below 2^48 and its keys are strings, so TOML can hold it")
}

/// The line where the network begins: that of the first table, but `[model]`.
fn line_of_network(text: &str) -> Option<usize> {
    let document = toml::de::DeTable::parse(text).ok()?;
    let tables = document.get_ref().iter().filter(|(key, _)| key.get_ref() != "model");
    let start = tables.map(|(key, _)| key.span().start).min()?;
    Some(line_at(text, start))
}

/// The line of a key of a top-level table.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = toml::de::DeTable::parse(text).ok()?;
    document.get_ref().values().find_map(|table| {
        let (key, _) = table.get_ref().as_table()?.get_key_value(key)?;
        Some(line_at(text, key.span().start))
    })
}
