//! What other projects train under, as plans, one file for each.

mod accelerate;
mod arguments;
mod deepspeed;
mod megatron;
mod megatron_layout;
mod megatron_model;
mod nanotron;
mod python;
mod table;
mod torchtitan;
mod words;
mod yaml;

use shardloom_graph::ModelSpec;
use shardloom_plan::Plan;

use crate::{ExchangeError, Project};
use words::Words;

/// What a configuration does not say.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The model, where it is not described.
    pub model: Option<&'a ModelSpec>,
    /// The machines, as plans name them.
    pub cluster: &'a str,
    /// How many devices they have.
    pub devices: usize,
    /// Samples of a step, where the training script says that.
    pub global_batch: Option<usize>,
    /// Micro-batches of a step, where the training script says that.
    pub microbatches: Option<usize>,
    /// The table of actions that the configuration names: its file and text.
    pub table: Option<(&'a str, &'a str)>,
}

/// What a configuration is as a plan.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The plan, which fits its model and devices.
    pub plan: Plan,
    /// The model.
    pub spec: ModelSpec,
    /// What was read otherwise than it stands there, and what was not read at all.
    pub notes: Vec<String>,
}

/// Reads the configuration of a project; `place` is the file's name, for messages.
///
/// # Errors
/// If the text is no configuration of that project, asks for something that plans do not have, or does not
/// fit its model or the devices.
pub fn import(
    project: Project,
    text: &str,
    place: &str,
    given: &Given<'_>,
) -> Result<Imported, ExchangeError> {
    if let Some((table, _)) = given.table.filter(|_| project != Project::Torchtitan) {
        let message = format!("{project} reads no table of actions");
        return Err(ExchangeError::Text { place: table.into(), message });
    }
    match project {
        Project::Megatron => megatron::import(text, place, given),
        Project::DeepSpeed => {
            of_words(project, Words::of_json(text, place)?, given, deepspeed::import)
        }
        Project::Torchtitan => {
            let words = match text {
                json if looks_like_json(json) => Words::of_json(text, place),
                python if looks_like_python(python) => {
                    Words::of_python(text, place, "Trainer.Config")
                }
                _ => Words::of_toml(text, place),
            };
            of_words(project, words?, given, torchtitan::import)
        }
        Project::Nanotron => {
            of_words(project, Words::of_yaml(text, place)?, given, nanotron::import)
        }
        Project::Accelerate => {
            of_words(project, Words::of_yaml(text, place)?, given, accelerate::import)
        }
    }
}

/// What `import` makes of a document, if that says anything that it looked for.
fn of_words(
    project: Project,
    words: Words,
    given: &Given<'_>,
    import: fn(&Words, &Given<'_>) -> Result<Imported, ExchangeError>,
) -> Result<Imported, ExchangeError> {
    let imported = import(&words, given)?;
    words.require_known(project)?;
    Ok(imported)
}

/// Whose configuration a file is, by the end of its name and the words in it.
///
/// # Errors
/// If it is JSON or YAML by its name, and is none, or a script that launches torchtitan.
pub fn project_of(place: &str, text: &str) -> Result<Project, ExchangeError> {
    let ending = place.rsplit_once('.').map_or("", |(_, ending)| ending);
    Ok(match ending {
        "json" => match Words::of_json(text, place)?.has("parallelism") {
            true => Project::Torchtitan,
            false => Project::DeepSpeed,
        },
        "toml" | "py" => Project::Torchtitan,
        "yaml" | "yml" => match Words::of_yaml(text, place)?.has("parallelism") {
            true => Project::Nanotron,
            false => Project::Accelerate,
        },
        _ if launches_torchtitan(text) => {
            let message =
                "launches torchtitan: import the TOML or Python that it names, which says the rest";
            return Err(ExchangeError::Text { place: place.into(), message: message.into() });
        }
        _ => Project::Megatron,
    })
}

fn launches_torchtitan(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.any(|line| line.contains("torchtitan.train") || line.contains("torchtitan/train.py"))
}

fn looks_like_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn looks_like_python(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("def "))
}

/// The number of replicas on `devices` devices where each takes `each`.
fn replicas(
    place: &str,
    key: &str,
    each: usize,
    given: &Given<'_>,
) -> Result<usize, ExchangeError> {
    if each > 0 && given.devices.is_multiple_of(each) {
        return Ok(given.devices / each);
    }
    Err(ExchangeError::Word {
        place: place.into(),
        key: key.into(),
        value: each.to_string(),
        rule: format!(
            "it must divide the {} devices of --cluster {}, which it does not",
            given.devices, given.cluster
        ),
    })
}

/// One line about a scale of the loss that is halved otherwise than in a plan, if it is: by words, after how many
/// overflows and down to what.
fn halving_note(
    overflows_word: &str,
    overflows: usize,
    least_word: &str,
    least: f64,
) -> Option<String> {
    (overflows != 1 || least != 1.0).then(|| {
        format!(
            "the scale of the loss is halved there after {overflows} overflows ({overflows_word}) and down to \
             {least} ({least_word}), in a plan after each and down to 1"
        )
    })
}

/// What is taken where a training script says how attention is computed.
const ATTENTION_NOTE: &str = "how attention is computed is the training script's: fused is assumed, as models of transformers \
                              are unless told otherwise (attention = \"unfused\" in the plan)";

/// Why a word is refused that asks for tensors in the host's memory or on a disk.
const ON_DEVICES: &str = "plans keep all tensors on devices";

/// Whether a word that nobody read asks for tensors elsewhere than on devices, unless its value is none.
fn asks_for_offload(word: &str) -> bool {
    word.to_ascii_lowercase().contains("offload") && !word.starts_with("no-")
}

/// Whether a value leaves what it is of out.
fn is_off(value: &str) -> bool {
    ["", "0", "0.0", "false", "no", "none", "null"].contains(&value.to_ascii_lowercase().as_str())
}

/// Whether a word differs from one that is known by a letter or two. Short words are alike by chance.
fn is_misspelt(word: &str, meant: &str) -> bool {
    let letters = strsim::damerau_levenshtein(word, meant);
    (1..=2).contains(&letters) && word.len().min(meant.len()) >= 4 * letters
}

/// One line about the words that nobody read, if there are any.
fn unread_note(unread: &[String]) -> Option<String> {
    (!unread.is_empty()).then(|| format!("not part of a plan: {}", unread.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_leave_something_out_are_those_of_all_languages_and_no_others() {
        for value in ["", "0", "0.0", "false", "False", "no", "none", "None", "null", "NULL"] {
            assert!(is_off(value), "{value:?}");
        }
        for value in ["1", "0.1", "00", "true", "yes", "cpu", "nvme", "nothing", " "] {
            assert!(!is_off(value), "{value:?}");
        }
    }

    #[test]
    fn words_ask_for_offloading_by_their_names_unless_they_say_no() {
        for word in ["cpu_offload", "offload-optimizer", "fsdp_offload_params", "OptimizerOffload"]
        {
            assert!(asks_for_offload(word), "{word}");
        }
        for word in ["no-offload-optimizer", "load", "off_load", "download"] {
            assert!(!asks_for_offload(word), "{word}");
        }
    }

    /// Letters that are missing, too many, others, or in another order count one each.
    #[test]
    fn words_are_misspelt_by_one_letter_or_if_they_are_long_by_two() {
        let meant = "optimizer";
        for word in ["optimiser", "optimzer", "optimizzer", "otpimizer", "optmiser", "potimizre"] {
            assert!(is_misspelt(word, meant), "{word}");
        }
        for word in ["optimizer", "optmisr", "opt", "scheduler"] {
            assert!(!is_misspelt(word, meant), "{word}");
        }
        // A letter of four at least, and two of eight.
        for (word, meant, expected) in [
            ("lrs", "lr", false),
            ("beta", "zeta", true),
            ("bet", "beta", false),
            ("warmups", "warmup", true),
            ("abcdefgh", "abcdefxy", true),
            ("abcdefg", "abcdexy", false),
        ] {
            assert_eq!(is_misspelt(word, meant), expected, "{word} for {meant}");
        }
    }

    #[test]
    fn a_scale_that_is_halved_as_in_plans_needs_no_note() {
        for (overflows, least) in [(1, 1.0), (2, 1.0), (1, 0.5), (1, 2.0), (3, 0.5)] {
            let note = halving_note("hysteresis", overflows, "min_scale", least);
            assert_eq!(note.is_none(), (overflows, least) == (1, 1.0), "{note:?}");
            let says = |note: String| {
                note.contains(&format!("after {overflows} overflows (hysteresis)"))
                    && note.contains(&format!("down to {least} (min_scale)"))
            };
            assert!(note.is_none_or(says));
        }
    }
}
