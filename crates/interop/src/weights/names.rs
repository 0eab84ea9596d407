//! Hugging Face's names for the parameters of each family.

use shardloom_graph::{ModelSpec, Network};

use super::layout::Part;
use crate::ModelType;

/// Name of the token embedding here.
pub(super) const EMBEDDING: &str = "embedding.token";

/// Name of the head there.
const HEAD: &str = "lm_head.weight";

/// What all tensors of a head begin with.
const OF_HEAD: &str = "lm_head.";

/// Where a parameter is found.
#[derive(Debug)]
pub(super) struct Source {
    /// The bare name of the tensor.
    pub tensor: String,
    /// Which part of it.
    pub part: Part,
}

/// The names of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// What models with a head put before the names of the model within.
    prefix: &'static str,
    /// What comes before the number of a layer.
    layers: &'static str,
    /// Names outside of layers: here, there, part.
    outer: &'static [(&'static str, &'static str, Part)],
    /// Names within a layer: here, there, part.
    inner: &'static [(&'static str, &'static str, Part)],
    /// Endings of tensors that are no weights.
    buffers: &'static [&'static str],
    tied: bool,
}

const GPT: Scheme = Scheme {
    prefix: "transformer.",
    layers: "h",
    outer: &[
        (EMBEDDING, "wte.weight", Part::Whole),
        ("embedding.position", "wpe.weight", Part::FirstRows),
        ("final_norm.gain", "ln_f.weight", Part::Whole),
        ("final_norm.bias", "ln_f.bias", Part::Whole),
        ("head.weight", HEAD, Part::Whole),
    ],
    inner: &[
        ("attention_norm.gain", "ln_1.weight", Part::Whole),
        ("attention_norm.bias", "ln_1.bias", Part::Whole),
        ("attention.query.weight", "attn.c_attn.weight", Part::Beside(0)),
        ("attention.query.bias", "attn.c_attn.bias", Part::Beside(0)),
        ("attention.key.weight", "attn.c_attn.weight", Part::Beside(1)),
        ("attention.key.bias", "attn.c_attn.bias", Part::Beside(1)),
        ("attention.value.weight", "attn.c_attn.weight", Part::Beside(2)),
        ("attention.value.bias", "attn.c_attn.bias", Part::Beside(2)),
        ("attention.output.weight", "attn.c_proj.weight", Part::Whole),
        ("attention.output.bias", "attn.c_proj.bias", Part::Whole),
        ("ffn_norm.gain", "ln_2.weight", Part::Whole),
        ("ffn_norm.bias", "ln_2.bias", Part::Whole),
        ("ffn.up.weight", "mlp.c_fc.weight", Part::Whole),
        ("ffn.up.bias", "mlp.c_fc.bias", Part::Whole),
        ("ffn.down.weight", "mlp.c_proj.weight", Part::Whole),
        ("ffn.down.bias", "mlp.c_proj.bias", Part::Whole),
    ],
    buffers: &[".attn.bias", ".attn.masked_bias"],
    tied: false,
};

const PHI: Scheme = Scheme {
    prefix: "model.",
    layers: "layers",
    outer: &[
        (EMBEDDING, "embed_tokens.weight", Part::Whole),
        ("final_norm.gain", "final_layernorm.weight", Part::Whole),
        ("final_norm.bias", "final_layernorm.bias", Part::Whole),
        ("head.weight", HEAD, Part::Whole),
        ("head.bias", "lm_head.bias", Part::Whole),
    ],
    inner: &[
        ("attention_norm.gain", "input_layernorm.weight", Part::Whole),
        ("attention_norm.bias", "input_layernorm.bias", Part::Whole),
        ("attention.query.weight", "self_attn.q_proj.weight", Part::Transposed),
        ("attention.query.bias", "self_attn.q_proj.bias", Part::Whole),
        ("attention.key.weight", "self_attn.k_proj.weight", Part::Transposed),
        ("attention.key.bias", "self_attn.k_proj.bias", Part::Whole),
        ("attention.value.weight", "self_attn.v_proj.weight", Part::Transposed),
        ("attention.value.bias", "self_attn.v_proj.bias", Part::Whole),
        ("attention.output.weight", "self_attn.dense.weight", Part::Transposed),
        ("attention.output.bias", "self_attn.dense.bias", Part::Whole),
        ("ffn.up.weight", "mlp.fc1.weight", Part::Transposed),
        ("ffn.up.bias", "mlp.fc1.bias", Part::Whole),
        ("ffn.down.weight", "mlp.fc2.weight", Part::Transposed),
        ("ffn.down.bias", "mlp.fc2.bias", Part::Whole),
    ],
    buffers: &[".rotary_emb.inv_freq"],
    tied: false,
};

const LLAMA: Scheme = Scheme {
    prefix: "model.",
    layers: "layers",
    outer: &[
        (EMBEDDING, "embed_tokens.weight", Part::Whole),
        ("final_norm.gain", "norm.weight", Part::Whole),
        ("head.weight", HEAD, Part::Whole),
    ],
    inner: &[
        ("attention_norm.gain", "input_layernorm.weight", Part::Whole),
        ("attention.query.weight", "self_attn.q_proj.weight", Part::Transposed),
        ("attention.key.weight", "self_attn.k_proj.weight", Part::Transposed),
        ("attention.value.weight", "self_attn.v_proj.weight", Part::Transposed),
        ("attention.query.bias", "self_attn.q_proj.bias", Part::Whole),
        ("attention.key.bias", "self_attn.k_proj.bias", Part::Whole),
        ("attention.value.bias", "self_attn.v_proj.bias", Part::Whole),
        ("attention.query_norm.gain", "self_attn.q_norm.weight", Part::Whole),
        ("attention.key_norm.gain", "self_attn.k_norm.weight", Part::Whole),
        ("attention.output.weight", "self_attn.o_proj.weight", Part::Transposed),
        ("ffn_norm.gain", "post_attention_layernorm.weight", Part::Whole),
        ("ffn.gate.weight", "mlp.gate_proj.weight", Part::Transposed),
        ("ffn.up.weight", "mlp.up_proj.weight", Part::Transposed),
        ("ffn.down.weight", "mlp.down_proj.weight", Part::Transposed),
    ],
    buffers: &[".rotary_emb.inv_freq"],
    tied: false,
};

/// A Llama's, with norms behind attention and feed-forward too.
const POST_NORMS: Scheme = Scheme {
    inner: &[
        ("attention_norm.gain", "input_layernorm.weight", Part::Whole),
        ("attention.query.weight", "self_attn.q_proj.weight", Part::Transposed),
        ("attention.key.weight", "self_attn.k_proj.weight", Part::Transposed),
        ("attention.value.weight", "self_attn.v_proj.weight", Part::Transposed),
        ("attention.query_norm.gain", "self_attn.q_norm.weight", Part::Whole),
        ("attention.key_norm.gain", "self_attn.k_norm.weight", Part::Whole),
        ("attention.output.weight", "self_attn.o_proj.weight", Part::Transposed),
        ("attention.post_norm.gain", "post_attention_layernorm.weight", Part::Whole),
        ("ffn_norm.gain", "pre_feedforward_layernorm.weight", Part::Whole),
        ("ffn.gate.weight", "mlp.gate_proj.weight", Part::Transposed),
        ("ffn.up.weight", "mlp.up_proj.weight", Part::Transposed),
        ("ffn.down.weight", "mlp.down_proj.weight", Part::Transposed),
        ("ffn.post_norm.gain", "post_feedforward_layernorm.weight", Part::Whole),
    ],
    ..LLAMA
};

/// A Llama's, with queries, keys and values in one tensor, and gate and up in another.
const PHI_3: Scheme = Scheme {
    inner: &[
        ("attention_norm.gain", "input_layernorm.weight", Part::Whole),
        ("attention.query.weight", "self_attn.qkv_proj.weight", Part::Stacked(0)),
        ("attention.key.weight", "self_attn.qkv_proj.weight", Part::Stacked(1)),
        ("attention.value.weight", "self_attn.qkv_proj.weight", Part::Stacked(2)),
        ("attention.output.weight", "self_attn.o_proj.weight", Part::Transposed),
        ("ffn_norm.gain", "post_attention_layernorm.weight", Part::Whole),
        ("ffn.gate.weight", "mlp.gate_up_proj.weight", Part::Stacked(0)),
        ("ffn.up.weight", "mlp.gate_up_proj.weight", Part::Stacked(1)),
        ("ffn.down.weight", "mlp.down_proj.weight", Part::Transposed),
    ],
    ..LLAMA
};

impl Scheme {
    /// The names that weights of the model may have, the usual ones first; none if its family has no names.
    pub(super) fn all(spec: &ModelSpec) -> Vec<Scheme> {
        match spec.network() {
            Network::Gpt(gpt) if ModelType::Phi.computes(spec) => {
                vec![Scheme { tied: gpt.tied, ..PHI }]
            }
            // Others have no counterpart there, but those with learned positions.
            Network::Gpt(gpt) if ModelType::Gpt2.computes(spec) => {
                vec![Scheme { tied: gpt.tied, ..GPT }]
            }
            Network::Gpt(_) => vec![],
            Network::Llama(llama) if llama.post_norms => {
                vec![Scheme { tied: llama.tied, ..POST_NORMS }]
            }
            Network::Llama(llama) => {
                let fused = ModelType::Phi3.computes(spec).then_some(PHI_3);
                let all = [LLAMA].into_iter().chain(fused);
                all.map(|scheme| Scheme { tied: llama.tied, ..scheme }).collect()
            }
            Network::Mlp(_)
            | Network::UTransformer(_)
            | Network::Lstm(_)
            | Network::Dlrm(_)
            | Network::Custom(_) => vec![],
        }
    }

    /// The names of the model's weights when it is of this type, if it can be.
    pub(super) fn of(spec: &ModelSpec, model_type: ModelType) -> Option<Scheme> {
        let number = usize::from(model_type == ModelType::Phi3);
        Scheme::all(spec).get(number).copied()
    }

    /// Where the parameter of this name is found.
    pub(super) fn source(&self, parameter: &str) -> Option<Source> {
        let find = |table: &[(&str, &'static str, Part)], name: &str| {
            table.iter().find(|(ours, ..)| *ours == name).map(|&(_, theirs, part)| (theirs, part))
        };
        if let Some((tensor, part)) = find(self.outer, parameter) {
            return Some(Source { tensor: tensor.into(), part });
        }
        let (layer, name) = parameter.strip_prefix("block.")?.split_once('.')?;
        let (tensor, part) = find(self.inner, name)?;
        Some(Source { tensor: format!("{}.{layer}.{tensor}", self.layers), part })
    }

    /// The head's tensor, where the model shares the embedding instead: some files hold it all the same.
    pub(super) fn tied_head(&self) -> Option<&'static str> {
        self.tied.then_some(HEAD)
    }

    /// A tensor's name in the bare model.
    pub(super) fn bare<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(self.prefix).unwrap_or(name)
    }

    /// A tensor's name in the model with a head.
    pub(super) fn full(&self, bare: &str) -> String {
        if bare.starts_with(OF_HEAD) { bare.into() } else { format!("{}{bare}", self.prefix) }
    }

    /// Whether a tensor is a mask or a table of frequencies.
    pub(super) fn is_buffer(&self, name: &str) -> bool {
        self.buffers.iter().any(|ending| name.ends_with(ending))
    }
}
