//! Windows of attention.

use serde_json::Value;
use shardloom_graph::families::LlamaConfig;

use super::keys::Config;
use crate::InteropError;

/// The windows of layers, of so many positions where `layer_types` or, without it, `usual` says that a layer has
/// one.
pub(super) fn in_layers(
    config: &Config,
    layers: usize,
    window: Option<usize>,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<usize>, InteropError> {
    let has_window: Vec<bool> = match config.get("layer_types") {
        None => (0..layers).map(usual).collect(),
        Some(Value::Array(types)) if types.len() == layers => {
            let mut all = Vec::with_capacity(layers);
            for each in types {
                all.push(match each.as_str() {
                    Some("sliding_attention") => true,
                    Some("full_attention") => false,
                    _ => {
                        let rule = "sliding_attention or full_attention is needed";
                        return Err(config.error("layer_types", each, rule));
                    }
                });
            }
            all
        }
        Some(other) => {
            let rule = format!("a list of a string for each of {layers} layers is needed");
            return Err(config.error("layer_types", other, rule));
        }
    };
    let window = match window {
        Some(window) => window,
        None if has_window.contains(&true) => {
            let rule = "some layers have a window, so its number of positions is needed";
            return Err(config.error("sliding_window", "none", rule));
        }
        None => 0,
    };
    Ok(has_window.into_iter().map(|it| if it { window } else { 0 }).collect())
}

/// Without windows if none hides anything: such a model is one of a kind that has none.
pub(super) fn unless_all_hide_nothing(network: LlamaConfig) -> LlamaConfig {
    let hides = |&window: &usize| window > 0 && window < network.seq;
    match network.windows.iter().any(hides) {
        true => network,
        false => LlamaConfig { windows: vec![], ..network },
    }
}
