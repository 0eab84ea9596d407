//! Rotary frequencies.

use shardloom_graph::families::RopeScaling;

use super::keys::Config;
use crate::InteropError;

/// The rotary frequencies of a model, as [`LlamaConfig`] has them.
pub(super) struct Rotary {
    pub theta: f32,
    pub scaling: Option<RopeScaling>,
}

/// Base and scaling of the rotary frequencies: `rope_theta` and `rope_scaling`, or both in
/// `rope_parameters`, as newer files have it.
pub(super) fn rotary(config: &Config) -> Result<Rotary, InteropError> {
    let newer = config.object("rope_parameters")?;
    let older = config.object("rope_scaling")?;
    let within = match (newer, older) {
        (Some(_), Some(_)) => {
            let rule = "rope_parameters says the same already, so only one of the two is needed";
            return Err(config.error("rope_scaling", "an object", rule));
        }
        (Some(map), None) => Some(Config { prefix: "rope_parameters.", map, ..*config }),
        (None, Some(map)) => Some(Config { prefix: "rope_scaling.", map, ..*config }),
        (None, None) => None,
    };
    for part in [Some(*config), within].into_iter().flatten() {
        whole_heads(&part)?;
    }
    let outer_theta = config.real("rope_theta", Some(10_000.0))?;
    match within {
        Some(within) => frequencies(&within, outer_theta),
        None => Ok(Rotary { theta: outer_theta, scaling: None }),
    }
}

/// Refuses heads that are rotated in part.
pub(super) fn whole_heads(part: &Config) -> Result<(), InteropError> {
    let rotated = part.real("partial_rotary_factor", Some(1.0))?;
    if rotated != 1.0 {
        let rule = "all of a head is rotated here, so 1 is needed";
        return Err(part.error("partial_rotary_factor", rotated, rule));
    }
    Ok(())
}

/// The frequencies of one object of parameters, of the base `theta` if it says none.
pub(super) fn frequencies(within: &Config, theta: f32) -> Result<Rotary, InteropError> {
    let theta = within.real("rope_theta", Some(theta))?;
    let key = if within.map.contains_key("rope_type") { "rope_type" } else { "type" };
    let scaling = match within.text(key, "default")? {
        "default" => None,
        "linear" => Some(RopeScaling::Linear([within.real("factor", None)?])),
        "llama3" => {
            let original = within.size_of(&["original_max_position_embeddings"])?;
            let original = u32::try_from(original).map_err(|_| {
                within.error("original_max_position_embeddings", original, "at most 2^32 - 1")
            })?;
            let factor = within.real("factor", None)?;
            let low = within.real("low_freq_factor", None)?;
            let high = within.real("high_freq_factor", None)?;
            Some(RopeScaling::ByWavelength(factor, low, high, original))
        }
        other => return Err(within.error(key, other, "default, linear or llama3 is needed")),
    };
    Ok(Rotary { theta, scaling })
}
