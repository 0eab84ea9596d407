//! Weights through Hugging Face's names and layouts and back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shardloom_graph::{Extents, ModelSpec};
use shardloom_interop::weights::{self, Tensor, WithoutHead, import, import_without_head};
use shardloom_interop::{InteropError, ModelType};

const GPT: &str = "gpt:layers=2,hidden=12,heads=3,seq=5,vocab=7";
const LLAMA: &str = "llama:layers=2,hidden=12,heads=6,kv_heads=3,head_dim=4,ffn=11,seq=5,vocab=7";

type Parameters = BTreeMap<String, Vec<f32>>;

fn spec(line: &str) -> ModelSpec {
    ModelSpec::parse(line).unwrap()
}

/// What the library reads of a model of the usual type.
fn export(
    spec: &ModelSpec,
    parameters: &Parameters,
) -> Result<BTreeMap<String, Tensor>, InteropError> {
    weights::export(spec, ModelType::of(spec, None).unwrap_or(ModelType::Llama), parameters)
}

/// Parameters whose elements all differ.
fn parameters(spec: &ModelSpec, first: f32) -> Parameters {
    let graph = spec.graph().unwrap();
    let extents = Extents::global(&graph, 1);
    let mut next = first;
    let mut draw = |count: usize| {
        let values: Vec<f32> = (0..count).map(|index| next + index as f32).collect();
        next += count as f32;
        values
    };
    graph
        .parameters()
        .map(|(_, value)| (value.name.clone(), draw(extents.elements(&value.axes))))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn weights_survive_the_way_there_and_back(
        llama in any::<bool>(),
        tied in any::<bool>(),
        layers in 1..3_usize,
        kv in 1..4_usize,
        group in 1..4_usize,
        half in 1..4_usize,
        seq in 1..6_usize,
        first in -500..500_i32,
    ) {
        let (heads, width) = (kv * group, 2 * half);
        let hidden = heads * width;
        let line = match llama {
            true => format!("llama:layers={layers},hidden={hidden},heads={heads},kv_heads={kv},\
                             head_dim={},ffn=5,seq={seq},vocab=9,tied={tied}", width + 2),
            false => format!("gpt:layers={layers},hidden={hidden},heads={heads},ffn=5,seq={seq},\
                              vocab=9,tied={tied}"),
        };
        let spec = spec(&line);
        let ours = parameters(&spec, first as f32);
        let theirs = export(&spec, &ours).unwrap();
        prop_assert_eq!(&import(&spec, &theirs).unwrap(), &ours);
        // The bare model's file has no prefix.
        let bare = theirs
            .into_iter()
            .map(|(name, tensor)| {
                let bare = name.strip_prefix("transformer.").or(name.strip_prefix("model."));
                (bare.unwrap_or(&name).to_owned(), tensor)
            })
            .collect();
        prop_assert_eq!(&import(&spec, &bare).unwrap(), &ours);
        if llama {
            let fused = weights::export(&spec, ModelType::Phi3, &ours).unwrap();
            prop_assert_eq!(&import(&spec, &fused).unwrap(), &ours);
        }
    }
}

/// In `Conv1D` of GPT-2 the output is `x W + b` with `W` of `[hidden, 3 hidden]`, whose columns are
/// those of query, key and value, each head after head.
#[test]
fn the_fused_projection_of_gpt_2_holds_query_key_and_value_side_by_side() {
    let spec = spec(GPT);
    let theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
    let fused = &theirs["transformer.h.1.attn.c_attn.weight"];
    assert_eq!(fused.shape, [12, 36]);
    let ours = import(&spec, &theirs).unwrap();
    // Axes [model, heads, head_dim].
    for (third, which) in ["query", "key", "value"].into_iter().enumerate() {
        let weight = &ours[&format!("block.1.attention.{which}.weight")];
        let bias = &ours[&format!("block.1.attention.{which}.bias")];
        for head in 0..3 {
            for at in 0..4 {
                let column = third * 12 + head * 4 + at;
                let fused_bias = &theirs["transformer.h.1.attn.c_attn.bias"].values;
                assert_eq!(bias[head * 4 + at], fused_bias[column]);
                for model in 0..12 {
                    let element = weight[(model * 3 + head) * 4 + at];
                    assert_eq!(element, fused.values[model * 36 + column]);
                }
            }
        }
    }
}

/// In `Linear` of a Llama the output is `W x` with `W` of `[outputs, inputs]`; query head `h` shares the
/// key head `h / group`.
#[test]
fn the_projections_of_a_llama_are_transposed_and_its_query_heads_grouped() {
    let spec = spec(LLAMA);
    let theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
    let q = &theirs["model.layers.0.self_attn.q_proj.weight"];
    let o = &theirs["model.layers.0.self_attn.o_proj.weight"];
    assert_eq!((&q.shape[..], &o.shape[..]), (&[24, 12][..], &[12, 24][..]));
    assert_eq!(theirs["model.layers.0.mlp.down_proj.weight"].shape, [12, 11]);
    let ours = import(&spec, &theirs).unwrap();
    // Axes [model, heads, group, head_dim] and [heads, group, head_dim, model].
    let query = &ours["block.0.attention.query.weight"];
    let output = &ours["block.0.attention.output.weight"];
    for (head, at, model) in (0..6)
        .flat_map(|head| (0..4).flat_map(move |at| (0..12).map(move |model| (head, at, model))))
    {
        let (shared, member) = (head / 2, head % 2);
        let row = head * 4 + at;
        assert_eq!(query[((model * 3 + shared) * 2 + member) * 4 + at], q.values[row * 12 + model]);
        assert_eq!(
            output[((shared * 2 + member) * 4 + at) * 12 + model],
            o.values[model * 24 + row]
        );
    }
}

/// `qkv_proj` of a Phi-3 has the rows of `q_proj`, `k_proj` and `v_proj` of a Llama, and `gate_up_proj` those of
/// `gate_proj` and `up_proj`: its `forward` slices what they give in this order.
#[test]
fn the_fused_projections_of_a_phi_3_hold_those_of_a_llama_one_below_the_other() {
    let spec = spec(LLAMA);
    let ours = parameters(&spec, 0.0);
    let [apart, fused] = [ModelType::Llama, ModelType::Phi3]
        .map(|model_type| weights::export(&spec, model_type, &ours).unwrap());
    for layer in ["model.layers.0.", "model.layers.1."] {
        for (whole, parts, shape) in [
            (
                "self_attn.qkv_proj",
                &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..],
                [48, 12],
            ),
            ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"], [22, 12]),
        ] {
            let whole = &fused[&format!("{layer}{whole}.weight")];
            let of_part = |part: &&str| apart[&format!("{layer}{part}.weight")].values.clone();
            assert_eq!(whole.shape, shape);
            assert_eq!(whole.values, parts.iter().flat_map(of_part).collect::<Vec<_>>(), "{layer}");
        }
    }
    assert_eq!(fused.len(), apart.len() - 2 * 3, "nothing is there twice");
    // A file that has one of them is one of a Phi-3 that lacks the rest.
    let mut some = fused;
    some.remove("model.layers.1.mlp.gate_up_proj.weight");
    let error = import(&spec, &some).unwrap_err().to_string();
    assert_eq!(error, "llama: tensors are missing (1): layers.1.mlp.gate_up_proj.weight");
    let mut short = weights::export(&spec, ModelType::Phi3, &ours).unwrap();
    let qkv = short.get_mut("model.layers.0.self_attn.qkv_proj.weight").unwrap();
    *qkv = Tensor { shape: vec![36, 12], values: vec![0.0; 36 * 12] };
    let error = import(&spec, &short).unwrap_err().to_string();
    assert!(
        error.contains("qkv_proj.weight has shape [36, 12], but [48, 12] is needed"),
        "{error}"
    );
}

#[test]
fn a_file_with_this_programs_names_is_taken_as_it_is() {
    let spec = spec("mlp:inputs=2,hidden=3,layers=1,classes=2");
    let graph = spec.graph().unwrap();
    let extents = Extents::global(&graph, 1);
    let ours = parameters(&spec, 0.0);
    let tensors: BTreeMap<String, Tensor> = graph
        .parameters()
        .map(|(_, value)| {
            let shape = extents.shape(&value.axes);
            (value.name.clone(), Tensor { shape, values: ours[&value.name].clone() })
        })
        .collect();
    assert_eq!(import(&spec, &tensors).unwrap(), ours);

    let mut flat = tensors.clone();
    flat.get_mut("head.weight").unwrap().shape = vec![6];
    assert!(
        matches!(import(&spec, &flat), Err(InteropError::Shape { tensor, .. }) if tensor == "head.weight")
    );
    let mut fewer = tensors.clone();
    fewer.remove("head.weight");
    assert!(matches!(import(&spec, &fewer), Err(InteropError::Missing { count: 1, .. })));
    let mut more = tensors;
    more.insert("tail".into(), Tensor { shape: vec![0], values: vec![] });
    assert!(matches!(import(&spec, &more), Err(InteropError::Unexpected { count: 1, .. })));
}

#[test]
fn a_shorter_sequence_takes_the_first_positions() {
    let long = spec(GPT);
    let short = long.with_seq(3).unwrap();
    let theirs = export(&long, &parameters(&long, 0.0)).unwrap();
    let all = &import(&long, &theirs).unwrap()["embedding.position"];
    let first = &import(&short, &theirs).unwrap()["embedding.position"];
    assert_eq!(first[..], all[..3 * 12]);
    let longer = import(&long.with_seq(6).unwrap(), &theirs).unwrap_err().to_string();
    assert!(
        longer.contains("wpe.weight has shape [5, 12]") && longer.contains("[6, 12]"),
        "{longer}"
    );
}

#[test]
fn rows_of_padding_are_zeros_where_a_file_has_none_and_are_not_written() {
    for plain in [spec(GPT), spec(LLAMA)] {
        let padded = plain.with_padding(Some(10)).unwrap();
        let ours = parameters(&plain, 1.0);
        let theirs = export(&plain, &ours).unwrap();
        let read = import(&padded, &theirs).unwrap();
        for (name, values) in &read {
            let (same, behind) = values.split_at(ours[name].len());
            assert_eq!(same, ours[name], "{name}");
            let is_padded = ["embedding.token", "head.weight"].contains(&name.as_str());
            assert_eq!(!behind.is_empty(), is_padded, "{name}");
            assert!(behind.iter().all(|&it| it == 0.0), "{name}: {behind:?}");
        }
        assert_eq!(export(&padded, &parameters_like(&read, 1.0)).unwrap(), theirs);
        // Under this program's names there are files with and without it.
        let graph = padded.graph().unwrap();
        let extents = Extents::global(&graph, 1);
        let tensor = |(name, values): (&String, &Vec<f32>)| {
            let (_, value) = graph.parameters().find(|(_, it)| it.name == *name).unwrap();
            let mut shape = extents.shape(&value.axes);
            shape[0] = values.len() / shape[1..].iter().product::<usize>();
            (name.clone(), Tensor { shape, values: values.clone() })
        };
        for of in [&ours, &read] {
            let tensors = of.iter().map(tensor).collect();
            assert_eq!(import(&padded, &tensors).unwrap(), read);
        }
    }
}

/// The same with other numbers where there are zeros.
fn parameters_like(read: &Parameters, other: f32) -> Parameters {
    let changed = |it: &f32| if *it == 0.0 { other } else { *it };
    read.iter().map(|(name, values)| (name.clone(), values.iter().map(changed).collect())).collect()
}

#[test]
fn positions_of_another_width_are_refused_however_many_there_are() {
    let spec = spec(GPT);
    let mut theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
    let wider = Tensor { shape: vec![6, 13], values: vec![0.0; 6 * 13] };
    theirs.insert("transformer.wpe.weight".into(), wider);
    let message = import(&spec, &theirs).unwrap_err().to_string();
    assert!(message.contains("wpe.weight has shape [6, 13]"), "{message}");
    assert!(message.contains("[5, 12], or more rows, is needed"), "{message}");
}

#[test]
fn where_the_head_starts_anew_all_else_is_taken_and_a_file_may_have_any_head() {
    for (line, vocab, anew) in [
        (LLAMA.to_owned(), 7, &["head.weight"][..]),
        (LLAMA.to_owned(), 9, &["embedding.token", "head.weight"]),
        // The head is the embedding.
        (format!("{LLAMA},tied=true"), 7, &["embedding.token"]),
        (format!("{GPT},tied=true"), 9, &["embedding.token"]),
    ] {
        let old = spec(&line);
        let new = old.with_head(vocab).unwrap();
        let ours = parameters(&old, 0.0);
        let mut files = vec![export(&old, &ours).unwrap()];
        if line.starts_with("llama") {
            files.push(weights::export(&old, ModelType::Phi3, &ours).unwrap());
        }
        // A file without a head, and one with a head that is none of the embedding.
        let mut headless = files[0].clone();
        headless.remove("lm_head.weight");
        let mut other = files[0].clone();
        other.insert("lm_head.weight".into(), Tensor { shape: vec![2, 12], values: vec![0.5; 24] });
        files.extend([headless, other]);
        for file in &files {
            let WithoutHead { parameters, anew: found } = import_without_head(&new, file).unwrap();
            assert_eq!(found, anew.iter().map(|&name| name.to_owned()).collect(), "{line}");
            let mut rest = ours.clone();
            rest.retain(|name, _| !found.contains(name));
            assert_eq!(parameters, rest, "{line}");
        }
        let mut less = files[0].clone();
        less.retain(|name, _| !name.ends_with("norm.weight") && !name.ends_with("ln_f.weight"));
        let error = import_without_head(&new, &less).unwrap_err();
        assert!(matches!(error, InteropError::Missing { .. }), "{error}");
    }
    let wider = spec(&LLAMA.replace("hidden=12", "hidden=14"));
    let file = export(&spec(LLAMA), &parameters(&spec(LLAMA), 0.0)).unwrap();
    let error = import_without_head(&wider, &file).unwrap_err();
    assert!(matches!(error, InteropError::Shape { .. }), "{error}");
}

#[test]
fn where_the_head_starts_anew_a_file_with_this_programs_names_is_taken_but_for_it() {
    let old = spec("mlp:inputs=2,hidden=3,layers=1,classes=2");
    let ours = parameters(&old, 0.0);
    let graph = old.graph().unwrap();
    let extents = Extents::global(&graph, 1);
    let tensor = |(_, value): (_, &shardloom_graph::Value)| {
        let shape = extents.shape(&value.axes);
        (value.name.clone(), Tensor { shape, values: ours[&value.name].clone() })
    };
    let file: BTreeMap<String, Tensor> = graph.parameters().map(tensor).collect();
    for classes in [2, 5] {
        let found = import_without_head(&old.with_head(classes).unwrap(), &file).unwrap();
        assert_eq!(found.anew, ["head.weight".to_owned()].into());
        assert_eq!(found.parameters.len(), ours.len() - 1);
        assert!(found.parameters.iter().all(|(name, values)| values == &ours[name]));
    }
    let mut less = file;
    less.remove("block.0.bias");
    let error = import_without_head(&old, &less).unwrap_err();
    assert!(matches!(error, InteropError::Missing { count: 1, .. }), "{error}");
}

#[test]
fn masks_and_frequencies_are_passed_over() {
    let mask = Tensor { shape: vec![1], values: vec![1.0] };
    for (line, name) in [
        (GPT, "transformer.h.0.attn.bias"),
        (GPT, "h.0.attn.masked_bias"),
        (LLAMA, "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ] {
        let spec = spec(line);
        let ours = parameters(&spec, 0.0);
        let mut theirs = export(&spec, &ours).unwrap();
        theirs.insert(name.into(), mask.clone());
        assert_eq!(import(&spec, &theirs).unwrap(), ours);
    }
}

#[test]
fn a_tied_head_may_be_there_if_it_is_the_embedding() {
    let families = [(GPT, "transformer.wte.weight"), (LLAMA, "model.embed_tokens.weight")];
    for (family, embedding) in families {
        let spec = spec(&format!("{family},tied=true"));
        let ours = parameters(&spec, 0.0);
        let mut theirs = export(&spec, &ours).unwrap();
        assert!(!theirs.contains_key("lm_head.weight"));
        let mut head = theirs[embedding].clone();
        theirs.insert("lm_head.weight".into(), head.clone());
        assert_eq!(import(&spec, &theirs).unwrap(), ours);
        head.values[0] += 1.0;
        theirs.insert("lm_head.weight".into(), head);
        assert!(matches!(import(&spec, &theirs), Err(InteropError::NotTied { .. })));
    }
}

#[test]
fn missing_unexpected_and_misshapen_tensors_are_named() {
    let spec = spec(LLAMA);
    let whole = export(&spec, &parameters(&spec, 0.0)).unwrap();
    let message = |change: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        import(&spec, &tensors).unwrap_err().to_string()
    };
    let missing = message(&|tensors| drop(tensors.remove("model.norm.weight")));
    assert_eq!(missing, "llama: tensors are missing (1): norm.weight");
    let all = message(&|tensors| tensors.clear());
    assert!(all.contains("tensors are missing (21)") && all.contains("and 13 more"), "{all}");
    // The first eight of them are named.
    assert_eq!(all.matches(", ").count(), 7, "{all}");
    let extra = Tensor { shape: vec![], values: vec![0.0] };
    let extra = message(&|tensors| {
        tensors.insert("model.layers.2.norm".into(), extra.clone());
    });
    assert!(extra.contains("no place in the model (1): model.layers.2.norm"), "{extra}");
    let twice = message(&|tensors| {
        let norm = tensors["model.norm.weight"].clone();
        tensors.insert("norm.weight".into(), norm);
    });
    assert!(
        twice.contains("no place in the model (1): norm.weight besides model.norm.weight"),
        "{twice}"
    );
    let turned = message(&|tensors| {
        tensors.get_mut("model.layers.1.self_attn.q_proj.weight").unwrap().shape.reverse();
    });
    assert!(
        turned.contains("q_proj.weight has shape [12, 24], but [24, 12] is needed"),
        "{turned}"
    );
    let short = message(&|tensors| {
        tensors.get_mut("lm_head.weight").unwrap().values.truncate(83);
    });
    assert!(short.contains("lm_head.weight has shape [7, 12], but it holds 83"), "{short}");
}

#[test]
fn weights_of_another_kind_of_model_are_said_to_be_that() {
    let gpt = export(&spec(GPT), &parameters(&spec(GPT), 0.0)).unwrap();
    let error = import(&spec(LLAMA), &gpt).unwrap_err();
    assert!(matches!(error, InteropError::OtherNames { .. }), "{error}");
    assert!(error.to_string().contains("and there are transformer."), "{error}");
}

#[test]
fn a_single_number_is_no_table_of_positions() {
    let spec = spec(GPT);
    let mut theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
    let number = Tensor { shape: vec![], values: vec![0.0] };
    theirs.insert("transformer.wpe.weight".into(), number);
    let message = import(&spec, &theirs).unwrap_err().to_string();
    assert!(message.contains("wpe.weight has shape []"), "{message}");
    assert!(message.contains("[5, 12], or more rows, is needed"), "{message}");
}

/// As those of PyTorch have: a matrix of one row is another tensor.
#[test]
fn biases_and_gains_have_one_axis_in_a_file() {
    let shapes = |line: &str, names: [&str; 2]| {
        let spec = spec(line);
        let theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
        names.map(|name| theirs[name].shape.clone())
    };
    let gpt = shapes(GPT, ["transformer.ln_f.weight", "transformer.h.0.attn.c_attn.bias"]);
    assert_eq!(gpt, [vec![12], vec![36]]);
    let llama = shapes(LLAMA, ["model.norm.weight", "model.layers.1.input_layernorm.weight"]);
    assert_eq!(llama, [vec![12], vec![12]]);
}

#[test]
fn parameters_that_do_not_fit_are_not_exported() {
    let spec = spec(LLAMA);
    let ours = parameters(&spec, 0.0);
    let with = |change: &dyn Fn(&mut Parameters)| {
        let mut changed = ours.clone();
        change(&mut changed);
        export(&spec, &changed).unwrap_err()
    };
    let missing = with(&|ours| drop(ours.remove("final_norm.gain")));
    assert!(matches!(missing, InteropError::Missing { count: 1, .. }), "{missing}");
    let extra = with(&|ours| drop(ours.insert("tail".into(), vec![])));
    assert!(matches!(extra, InteropError::Unexpected { count: 1, .. }), "{extra}");
    let short = with(&|ours| drop(ours.insert("final_norm.gain".into(), vec![])));
    assert!(matches!(short, InteropError::Shape { .. }), "{short}");
    let mlp = ModelSpec::parse("mlp:inputs=2,hidden=3,layers=1,classes=2").unwrap();
    let unmapped = export(&mlp, &parameters(&mlp, 0.0)).unwrap_err().to_string();
    assert!(unmapped.contains("block.0.weight, block.0.bias, head.weight"), "{unmapped}");
}

/// `post_attention_layernorm` of a Gemma 2 is of what attention gives, and in a Llama before feed-forward.
#[test]
fn norms_behind_attention_have_the_name_that_a_llama_has_for_the_next_one() {
    let spec = spec(&format!("{LLAMA},qk_norm=true,post_norms=true"));
    let ours = parameters(&spec, 0.0);
    let theirs = weights::export(&spec, ModelType::Gemma3Text, &ours).unwrap();
    assert_eq!(import(&spec, &theirs).unwrap(), ours);
    for (here, there) in [
        ("attention_norm", "input_layernorm"),
        ("attention.post_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("ffn.post_norm", "post_feedforward_layernorm"),
        ("attention.query_norm", "self_attn.q_norm"),
    ] {
        let there = &theirs[&format!("model.layers.1.{there}.weight")];
        assert_eq!(there.values, ours[&format!("block.1.{here}.gain")], "{here}");
    }
}

/// Each matrix of a Phi is that of a `Linear`, and has a bias, as has its head.
#[test]
fn the_matrices_of_a_phi_are_transposed_and_its_head_has_a_bias() {
    let spec = spec(&format!("{GPT},rotary=2,parallel=true,head_bias=true"));
    let ours = parameters(&spec, 0.0);
    let theirs = export(&spec, &ours).unwrap();
    assert_eq!(import(&spec, &theirs).unwrap(), ours);
    for (here, there, shape) in [
        ("block.1.ffn.up", "model.layers.1.mlp.fc1", [48, 12]),
        ("block.0.ffn.down", "model.layers.0.mlp.fc2", [12, 48]),
        ("block.1.attention.output", "model.layers.1.self_attn.dense", [12, 12]),
        ("block.0.attention.key", "model.layers.0.self_attn.k_proj", [12, 12]),
        ("head", "lm_head", [7, 12]),
    ] {
        assert_eq!(theirs[&format!("{there}.weight")].shape, shape, "{there}");
        assert_eq!(theirs[&format!("{there}.bias")].values, ours[&format!("{here}.bias")]);
    }
    assert!(!theirs.keys().any(|name| name.contains("wpe") || name.contains("post")));
    // A new head is drawn with its bias.
    let mut without = theirs.clone();
    without.remove("lm_head.bias");
    let head = ["head.bias", "head.weight"].map(str::to_owned);
    assert_eq!(import_without_head(&spec, &without).unwrap().anew, head.into());
}

/// Of a matrix or vector of another length no tensor is made, for any part of one.
#[test]
fn a_parameter_of_one_element_more_or_less_is_not_exported() {
    for (line, model_type) in [
        (GPT, ModelType::Gpt2),
        (LLAMA, ModelType::Llama),
        (LLAMA, ModelType::Phi3),
        (&format!("{LLAMA},padded_vocab=9"), ModelType::Llama),
    ] {
        let spec = spec(line);
        let ours = parameters(&spec, 0.0);
        weights::export(&spec, model_type, &ours).unwrap();
        for (name, values) in &ours {
            let mut changed = ours.clone();
            let longer = [&values[..], &[0.5]].concat();
            for other in [&longer[..], &values[1..]] {
                changed.insert(name.clone(), other.to_vec());
                let error = weights::export(&spec, model_type, &changed).unwrap_err();
                assert!(matches!(error, InteropError::Shape { .. }), "{name}: {error}");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}

/// Whoever has written one has written all of them so.
#[test]
fn a_file_with_one_of_this_programs_names_lacks_the_others() {
    for line in [GPT, LLAMA] {
        let spec = spec(line);
        let ours = parameters(&spec, 0.0);
        let graph = spec.graph().unwrap();
        let extents = Extents::global(&graph, 1);
        for (_, value) in graph.parameters() {
            let shape = extents.shape(&value.axes);
            let tensor = Tensor { shape, values: ours[&value.name].clone() };
            let file = BTreeMap::from([(value.name.clone(), tensor)]);
            let error = import(&spec, &file).unwrap_err();
            let InteropError::Missing { count, names, .. } = error else { panic!("{error}") };
            assert_eq!(count, ours.len() - 1);
            let first = ours.keys().find(|name| **name != value.name).unwrap();
            assert!(names.split([',', ' ']).any(|name| name == first), "{names}");
        }
    }
}

#[test]
fn a_prefix_that_is_there_twice_is_part_of_the_name() {
    for (line, name, twice) in [
        (GPT, "transformer.ln_f.weight", "transformer.transformer.ln_f.weight"),
        (LLAMA, "model.norm.weight", "model.model.norm.weight"),
    ] {
        let spec = spec(line);
        let mut theirs = export(&spec, &parameters(&spec, 0.0)).unwrap();
        let norm = theirs.remove(name).unwrap();
        theirs.insert(twice.into(), norm);
        let message = import(&spec, &theirs).unwrap_err().to_string();
        let (_, bare) = name.split_once('.').unwrap();
        assert!(message.contains("missing (1)") && message.contains(bare), "{message}");
    }
}
