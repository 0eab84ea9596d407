//! Near names for mistyped ones.

use std::cmp::Reverse;

/// ` (did you mean "layers"?)`, or nothing if no candidate is near.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    // The distance takes quadratic time; nobody mistypes a whole paragraph.
    if word.len() > 64 {
        return String::new();
    }
    let limit = 1 + word.chars().count() / 4;
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        // Rather a letter is left out than one too many.
        .min_by_key(|&(distance, name)| (distance, Reverse(name.len()), name))
        .map_or_else(String::new, |(_, nearest)| format!(" (did you mean {nearest:?}?)"))
}
