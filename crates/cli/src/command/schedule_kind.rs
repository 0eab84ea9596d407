//! Schedules by the names that people look for.

use shardloom::methods::{self, Method};
use shardloom::plan::ScheduleKind;

/// A schedule under the name that was asked for. Of a system that has the name, or of which it is another
/// name, more is meant than the order of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// As it is listed.
    pub name: &'static str,
    /// The order of passes.
    pub kind: ScheduleKind,
    /// What the system is called among methods.
    system: Option<&'static str>,
}

impl Named {
    /// A schedule by its own name.
    pub fn own(kind: ScheduleKind) -> Named {
        Named { name: kind.name(), kind, system: None }
    }

    /// Whether it means what the schedule's own name in plans means, which is the order of passes first.
    pub fn is_order(self) -> bool {
        let system = |named: Named| named.system().map(|system| system.name);
        system(self) == system(Named::own(self.kind))
    }

    /// The published system of that name.
    pub fn system(self) -> Option<&'static Method> {
        methods::named(self.system.unwrap_or(self.name)).ok()
    }
}

/// Another name of a schedule.
const fn alias(name: &'static str, kind: ScheduleKind) -> Named {
    Named { name, kind, system: None }
}

/// Another name of a system, which has this schedule.
const fn short(name: &'static str, kind: ScheduleKind, system: &'static str) -> Named {
    Named { name, kind, system: Some(system) }
}

/// Other names of schedules: of systems that have them, and of the same thing elsewhere.
const ALIASES: [Named; 17] = [
    alias("gpipe", ScheduleKind::Afab),
    alias("fill-drain", ScheduleKind::Afab),
    alias("all-forward-all-backward", ScheduleKind::Afab),
    alias("1f1b-flush", ScheduleKind::OneForwardOneBackward),
    alias("pipedream-flush", ScheduleKind::OneForwardOneBackward),
    alias("dapple", ScheduleKind::OneForwardOneBackward),
    alias("megatron", ScheduleKind::Interleaved),
    alias("interleaved-1f1b", ScheduleKind::Interleaved),
    alias("vpp", ScheduleKind::Interleaved),
    alias("forward-doubling", ScheduleKind::ChimeraDoubling),
    alias("backward-halving", ScheduleKind::ChimeraDoubling),
    alias("wave", ScheduleKind::Hanayo),
    short("1f1b-async", ScheduleKind::PipeDream, "pipedream"),
    short("2bw", ScheduleKind::PipeDream, "pipedream-2bw"),
    alias("pipedream-2bw", ScheduleKind::PipeDream),
    short("pb", ScheduleKind::PipeMare, "pipelined-backpropagation"),
    alias("pipelined-backpropagation", ScheduleKind::PipeMare),
];

/// Parses the name of a schedule, or another name of it, in whatever letters and with or without hyphens.
///
/// # Errors
/// All names, and the one that is nearest.
pub fn schedule_kind(text: &str) -> Result<Named, String> {
    let with_chunks = text.split_once(':');
    if let Some((name, chunks)) = with_chunks.filter(|(name, _)| schedule_kind(name).is_ok()) {
        return Err(format!("write {name} --chunks {chunks} for {chunks} stages on each device"));
    }
    let asked = plain(text);
    let found = names().find(|it| plain(it.name) == asked);
    found.ok_or_else(|| {
        let all = ScheduleKind::ALL.map(ScheduleKind::name).join(", ");
        format!("there are {all}{}", nearest(&asked))
    })
}

/// All schedules with their other names, for help.
pub fn listing() -> String {
    let entry = |kind: ScheduleKind| {
        let others = ALIASES.iter().filter(|it| it.kind == kind).map(|alias| alias.name);
        let others: Vec<&str> = others.collect();
        match others[..] {
            [] => kind.name().to_owned(),
            _ => format!("{} ({})", kind.name(), others.join(", ")),
        }
    };
    ScheduleKind::ALL.map(entry).join(", ")
}

/// Every name: the kinds' own first.
pub fn names() -> impl Iterator<Item = Named> {
    ScheduleKind::ALL.into_iter().map(Named::own).chain(ALIASES)
}

/// A name without what people write in different ways.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|c| !matches!(c, '-' | '_' | ' '));
    kept.flat_map(char::to_lowercase).collect()
}

/// `; did you mean zb-h1?`, or nothing if no name is near.
fn nearest(asked: &str) -> String {
    let plain_names: Vec<(String, &str)> = names().map(|it| (plain(it.name), it.name)).collect();
    let near = shardloom::nearest(asked, plain_names.iter().map(|(plain, _)| plain.as_str()));
    let found = plain_names.iter().find(|(plain, _)| Some(plain.as_str()) == near);
    found.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_name_and_every_alias_is_only_one_kind_s() {
        for kind in ScheduleKind::ALL {
            assert_eq!(schedule_kind(kind.name()), Ok(Named::own(kind)));
        }
        for alias in ALIASES {
            assert_eq!(schedule_kind(alias.name), Ok(alias));
            assert_eq!(names().filter(|it| plain(it.name) == plain(alias.name)).count(), 1);
        }
    }

    #[test]
    fn names_of_systems_are_those_of_methods() {
        for short in ALIASES.into_iter().filter_map(|it| it.system) {
            assert!(methods::named(short).is_ok(), "{short}");
        }
        let without_flush = names().filter(|it| !it.kind.flushes());
        for name in without_flush {
            assert!(
                name.system().is_some(),
                "nothing says which weights {} trains with",
                name.name
            );
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
