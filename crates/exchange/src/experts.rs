//! The network with experts that other projects have, too.
//!
//! This program's networks with experts are written as data, so one is known by its operators: by those of
//! `examples/models/transformer-with-experts.toml`, which is compared with sizes, numbers of layers, and what weights
//! begin with left out.

use shardloom_graph::families::{BlockConfig, CustomConfig, InitConfig, ParameterConfig};
use shardloom_graph::{ModelSpec, Network};

use crate::transformer::{Kind, Transformer};

/// The network whose operators are those of others.
const NETWORK: &str = include_str!("../../../examples/models/transformer-with-experts.toml");

/// The sizes of a network that has the operators of [`NETWORK`].
pub(crate) fn transformer_of(network: &CustomConfig) -> Option<Transformer> {
    let known = ModelSpec::from_toml(NETWORK, "transformer-with-experts.toml").ok()?;
    let Network::Custom(known) = known.network() else { return None };
    if shape(network)? != shape(known)? {
        return None;
    }
    let layer = network.block.get(1)?;
    let (epsilon, theta) = settings(layer)?;
    let size = |name: &str| network.dims.get(name).copied();
    let [seq, keys, slot] = ["seq", "keys", "slot"].map(size);
    // All rows of a sample find a slot, so that none is left out.
    if keys != seq || slot < seq || size("choices") != size("expert") {
        return None;
    }
    let (groups, group) = (size("heads")?, size("group")?);
    let embedding = network.block.first()?.op.first()?.table.as_ref()?;
    let init_std = match embedding.init {
        Some(InitConfig::Normal(std)) => std,
        Some(InitConfig::Constant(_)) | None => return None,
    };
    Some(Transformer {
        kind: Kind::Experts { theta: theta.unwrap_or(10_000.0), experts: size("expert")? },
        changes: vec![],
        layers: layer.repeat,
        hidden: size("model")?,
        heads: groups * group,
        kv_heads: groups,
        head_dim: size("head_dim")?,
        ffn: size("ffn")?,
        seq: seq?,
        vocab: size("vocab")?,
        padding: 0,
        tied: false,
        norm_epsilon: epsilon.unwrap_or(1e-5),
        init_std,
    })
}

/// What norms and rotary embeddings of a layer have.
fn settings(layer: &BlockConfig) -> Option<(Option<f32>, Option<f32>)> {
    let of = |kind: &str| layer.op.iter().find(|op| op.kind == kind);
    Some((of("rms-norm")?.epsilon, of("rotary")?.theta))
}

/// A network without its sizes, and without what its weights begin with. Of norms and rotary embeddings all have the
/// settings of the first, or theirs are still there.
fn shape(network: &CustomConfig) -> Option<CustomConfig> {
    let mut shape = network.clone();
    let (epsilon, theta) = settings(network.block.get(1)?)?;
    shape.dims.values_mut().for_each(|size| *size = 0);
    shape.block.get_mut(1)?.repeat = 1;
    for op in shape.block.iter_mut().flat_map(|block| &mut block.op) {
        op.epsilon = op.epsilon.filter(|_| op.epsilon != epsilon);
        op.theta = op.theta.filter(|_| op.theta != theta);
        let parameters = [&mut op.table, &mut op.weight, &mut op.gain, &mut op.bias];
        for ParameterConfig { init, .. } in parameters.into_iter().flatten() {
            *init = None;
        }
    }
    Some(shape)
}
