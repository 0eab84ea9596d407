//! What of a tokenizer's vocabulary and merges the library takes and should not.

use std::collections::HashMap;

use serde_json::Value;

/// What is wrong with the vocabulary of a tokenizer and its merges, if anything is.
pub(crate) fn fault(tokenizer: &Value) -> Option<String> {
    wrong_merge(tokenizer).or_else(|| shared_id(tokenizer))
}

/// What is wrong with a vocabulary in which two tokens have one id, which then cannot be told apart.
fn shared_id(tokenizer: &Value) -> Option<String> {
    let vocabulary = tokenizer.get("model")?.get("vocab")?.as_object()?;
    let own = vocabulary.iter().filter_map(|(token, id)| Some((id.as_u64()?, token.as_str())));
    let added = tokenizer.get("added_tokens").and_then(|it| it.as_array());
    let added = added
        .into_iter()
        .flatten()
        .filter_map(|token| Some((token.get("id")?.as_u64()?, token.get("content")?.as_str()?)));
    let mut tokens = HashMap::new();
    own.chain(added).find_map(|(id, token)| {
        let other = tokens.insert(id, token).filter(|&other| other != token)?;
        Some(format!("its tokens {other:?} and {token:?} both have the id {id}"))
    })
}

/// What is wrong with the merges of a BPE model, at which the library would panic: a second token that lacks the prefix
/// of those that continue a word, or two whose merge the vocabulary lacks.
fn wrong_merge(tokenizer: &Value) -> Option<String> {
    let model = tokenizer.get("model")?;
    let prefix = model.get("continuing_subword_prefix").and_then(|it| it.as_str()).unwrap_or("");
    let vocabulary = model.get("vocab")?.as_object()?;
    let wrong = |merge: &Value| -> Option<String> {
        let (first, second) = match merge {
            // Merges that were lines of a file have its version among them.
            Value::String(both) if both.starts_with("#version") => return None,
            Value::String(both) => both.split_once(' ')?,
            other => (other.get(0)?.as_str()?, other.get(1)?.as_str()?),
        };
        let Some(continued) = second.strip_prefix(prefix) else {
            return Some(format!(
                "its merges have {second:?}, which does not begin with {prefix:?} as what continues a word does"
            ));
        };
        let merged = format!("{first}{continued}");
        (!vocabulary.contains_key(&merged)).then(|| {
            format!("it merges {first:?} and {second:?}, and its vocabulary has no {merged:?}")
        })
    };
    model.get("merges")?.as_array()?.iter().find_map(wrong)
}
