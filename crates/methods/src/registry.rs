//! All methods by name.

use shardloom_document::nearest;

use crate::{Method, MethodError, system};

/// All methods, families together, older systems first.
pub fn all() -> &'static [Method] {
    &[
        system::data_parallel::METHOD,
        system::horovod::METHOD,
        system::zero::METHOD,
        system::parameter_server::METHOD,
        system::averaging::LOCAL_SGD,
        system::averaging::SYNCHRONOUS,
        system::averaging::PAIRS,
        system::averaging::ADAPTIVE,
        system::byteps::METHOD,
        system::parallax::METHOD,
        system::herring::METHOD,
        system::autosync::METHOD,
        system::megatron_lm::METHOD,
        system::deepspeed::METHOD,
        system::gpipe::METHOD,
        system::torchgpipe::METHOD,
        system::pipedream_flush::METHOD,
        system::interleaved::METHOD,
        system::hanayo::METHOD,
        system::zero_bubble::H1,
        system::zero_bubble::H2,
        system::zero_bubble::ONE_P,
        system::zero_bubble::TWO_P,
        system::zero_bubble::V,
        system::controllable_memory::V_HALF,
        system::controllable_memory::V_MIN,
        system::chimera::METHOD,
        system::dualpipe::METHOD,
        system::dualpipe::V,
        system::pipedream::METHOD,
        system::pipedream_2bw::METHOD,
        system::pipemare::METHOD,
        system::pipelined_backpropagation::METHOD,
    ]
}

/// The method called `name`.
///
/// # Errors
/// If there is none; the error names the one that was probably meant, or all.
///
/// ```
/// let error = shardloom_methods::named("chimaera").unwrap_err().to_string();
/// assert!(error.contains("did you mean \"chimera\"?"), "{error}");
/// ```
pub fn named(name: &str) -> Result<&'static Method, MethodError> {
    let found = all().iter().find(|method| method.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| MethodError::Unknown { name: name.to_owned(), hint: hint(name) })
}

/// The closest name if it is close, else all names.
fn hint(name: &str) -> String {
    let names = || all().iter().map(|method| method.name);
    let name = name.to_ascii_lowercase();
    // By its first word as well: "megatron" is meant for "megatron-lm".
    let first = |name: &'static str| name.split_once('-').map_or(name, |(first, _)| first);
    let by_first = nearest(&name, names().map(first));
    let near = nearest(&name, names());
    match near.or(by_first.and_then(|word| names().find(|name| first(name) == word))) {
        Some(nearest) => format!("did you mean {nearest:?}?"),
        None => format!("there are {}", Vec::from_iter(names()).join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{all, named};

    #[test]
    fn every_method_is_found_by_its_name_and_no_two_share_one() {
        let names: BTreeSet<&str> = all().iter().map(|method| method.name).collect();
        assert_eq!(names.len(), all().len());
        for method in all() {
            assert_eq!(named(method.name).expect("registered").paper, method.paper);
        }
    }

    #[test]
    fn the_first_word_of_a_name_is_enough_to_be_meant() {
        let error = named("mgatron").expect_err("no such system").to_string();
        assert!(error.contains("did you mean \"megatron-lm\"?"), "{error}");
    }

    #[test]
    fn a_name_that_is_near_none_is_answered_with_all() {
        let error = named("quicksort").expect_err("no such system").to_string();
        assert!(all().iter().all(|method| error.contains(method.name)), "{error}");
    }

    #[test]
    fn a_name_is_found_in_whatever_letters_and_only_as_a_whole() {
        for method in all() {
            let name = method.name;
            let capitals = name.to_ascii_uppercase();
            let first = format!("{}{}", &capitals[..1], &name[1..]);
            for same in [capitals, first] {
                assert_eq!(named(&same).expect("registered").name, name);
            }
            for other in [format!("{name} "), format!(" {name}"), format!("{name}x")] {
                assert!(named(&other).is_err(), "{other:?}");
            }
            // Some names begin with another one.
            for part in [&name[1..], &name[..name.len() - 1]] {
                let is_one = all().iter().any(|method| method.name == part);
                assert_eq!(named(part).is_ok(), is_one, "{part:?}");
            }
        }
        assert!(named("").is_err());
    }
}
