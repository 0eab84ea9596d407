//! Near names for mistyped ones.

use shardloom_document::nearest;

/// ` (did you mean "layers"?)`, or nothing if no candidate is near.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let near = nearest(word, candidates);
    near.map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"))
}
