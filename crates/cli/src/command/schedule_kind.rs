//! Schedules by the names that people look for.

use shardloom::plan::ScheduleKind;

/// Other names of schedules: of systems that have them, and of the same thing elsewhere.
const ALIASES: [(&str, ScheduleKind); 17] = [
    ("gpipe", ScheduleKind::Afab),
    ("fill-drain", ScheduleKind::Afab),
    ("all-forward-all-backward", ScheduleKind::Afab),
    ("1f1b-flush", ScheduleKind::OneForwardOneBackward),
    ("pipedream-flush", ScheduleKind::OneForwardOneBackward),
    ("dapple", ScheduleKind::OneForwardOneBackward),
    ("megatron", ScheduleKind::Interleaved),
    ("interleaved-1f1b", ScheduleKind::Interleaved),
    ("vpp", ScheduleKind::Interleaved),
    ("forward-doubling", ScheduleKind::ChimeraDoubling),
    ("backward-halving", ScheduleKind::ChimeraDoubling),
    ("wave", ScheduleKind::Hanayo),
    ("1f1b-async", ScheduleKind::PipeDream),
    ("2bw", ScheduleKind::PipeDream),
    ("pipedream-2bw", ScheduleKind::PipeDream),
    ("pb", ScheduleKind::PipeMare),
    ("pipelined-backpropagation", ScheduleKind::PipeMare),
];

/// Parses the name of a schedule, or another name of it, in whatever letters and with or without hyphens.
///
/// # Errors
/// All names, and the one that is nearest.
pub fn schedule_kind(text: &str) -> Result<ScheduleKind, String> {
    let with_chunks = text.split_once(':');
    if let Some((name, chunks)) = with_chunks.filter(|(name, _)| schedule_kind(name).is_ok()) {
        return Err(format!("write {name} --chunks {chunks} for {chunks} stages on each device"));
    }
    let asked = plain(text);
    let found = names().find(|(name, _)| plain(name) == asked);
    found.map(|(_, kind)| kind).ok_or_else(|| {
        let all = ScheduleKind::ALL.map(ScheduleKind::name).join(", ");
        format!("there are {all}{}", nearest(&asked))
    })
}

/// All schedules with their other names, for help.
pub fn listing() -> String {
    let entry = |kind: ScheduleKind| {
        let others = ALIASES.iter().filter(|(_, of)| *of == kind).map(|(alias, _)| *alias);
        let others: Vec<&str> = others.collect();
        match others[..] {
            [] => kind.name().to_owned(),
            _ => format!("{} ({})", kind.name(), others.join(", ")),
        }
    };
    ScheduleKind::ALL.map(entry).join(", ")
}

/// Every name: the kinds' own first.
fn names() -> impl Iterator<Item = (&'static str, ScheduleKind)> {
    ScheduleKind::ALL.into_iter().map(|kind| (kind.name(), kind)).chain(ALIASES)
}

/// A name without what people write in different ways.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|c| !matches!(c, '-' | '_' | ' '));
    kept.flat_map(char::to_lowercase).collect()
}

/// `; did you mean zb-h1?`, or nothing if no name is near.
fn nearest(asked: &str) -> String {
    // The distance takes quadratic time; nobody mistypes a whole paragraph.
    if asked.len() > 64 {
        return String::new();
    }
    let most = 1 + asked.chars().count() / 4;
    names()
        .map(|(name, _)| (strsim::damerau_levenshtein(asked, &plain(name)), name))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_name_and_every_alias_is_only_one_kind_s() {
        for kind in ScheduleKind::ALL {
            assert_eq!(schedule_kind(kind.name()), Ok(kind));
        }
        for (alias, kind) in ALIASES {
            assert_eq!(schedule_kind(alias), Ok(kind), "{alias}");
            assert_eq!(names().filter(|(name, _)| plain(name) == plain(alias)).count(), 1);
        }
    }

    #[test]
    fn letters_and_hyphens_do_not_matter() {
        for text in ["1F1B", "GPipe", "chimera_doubling", "ChimeraDoubling", "Pipedream-2BW"] {
            assert!(schedule_kind(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn an_unknown_name_is_told_all_and_the_nearest() {
        let error = |text: &str| schedule_kind(text).expect_err(text);
        assert!(error("chimaera").ends_with("did you mean chimera?"), "{}", error("chimaera"));
        assert!(error("gpip").ends_with("did you mean gpipe?"));
        let far = error("breadth-first");
        assert!(far.contains("afab, 1f1b") && !far.contains("did you mean"), "{far}");
    }
}
