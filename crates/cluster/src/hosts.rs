//! Machines by name, and the processes on each.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Machines and how many processes each has, in the order of the processes' numbers. In text `node1:8,node2:8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(pub Vec<(String, NonZeroU32)>);

impl Hosts {
    /// Processes on all machines.
    pub fn processes(&self) -> u64 {
        self.0.iter().map(|(_, processes)| u64::from(processes.get())).sum()
    }

    /// Processes on each machine, where all have as many.
    pub fn each(&self) -> Option<NonZeroU32> {
        let &(_, first) = self.0.first()?;
        self.0.iter().all(|&(_, processes)| processes == first).then_some(first)
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, processes)) in self.0.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{name}:{processes}")?;
        }
        Ok(())
    }
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hosts, String> {
        let mut hosts: Vec<(String, NonZeroU32)> = vec![];
        for part in text.split(',') {
            let (name, processes) = part
                .rsplit_once(':')
                .ok_or_else(|| format!("`{part}` has no number of processes; write {part}:8"))?;
            let allowed = |it: char| it.is_ascii_alphanumeric() || ".-_".contains(it);
            if name.is_empty() || name.starts_with('-') || !name.chars().all(allowed) {
                return Err(format!("`{name}` is no machine's name"));
            }
            let processes = processes.parse().map_err(|_| {
                format!("`{part}` needs a whole number from 1 to {} behind the colon", u32::MAX)
            })?;
            if hosts.iter().any(|(other, _)| other == name) {
                return Err(format!(
                    "`{name}` is listed twice; give the number of all its processes"
                ));
            }
            hosts.push((name.to_owned(), processes));
        }
        Ok(Hosts(hosts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Hosts>().expect_err("it is wrong")
    }

    #[test]
    fn machines_keep_their_order_and_numbers() {
        let hosts: Hosts = "b.example:2,a:3".parse().expect("it is right");
        let named: Vec<(&str, u32)> =
            hosts.0.iter().map(|(name, processes)| (name.as_str(), processes.get())).collect();
        assert_eq!(named, [("b.example", 2), ("a", 3)]);
        assert_eq!((hosts.processes(), hosts.each()), (5, None));
        assert_eq!(hosts.to_string(), "b.example:2,a:3");
        let equal: Hosts = "a:8,b:8".parse().expect("it is right");
        assert_eq!(equal.each().map(NonZeroU32::get), Some(8));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(refused("a"), "`a` has no number of processes; write a:8");
        for part in ["a:0", "a:x", "a:-1", "a:"] {
            let expected =
                format!("`{part}` needs a whole number from 1 to 4294967295 behind the colon");
            assert_eq!(refused(part), expected);
        }
        assert_eq!(refused("a:1,a:2"), "`a` is listed twice; give the number of all its processes");
        assert_eq!(refused("a b:1"), "`a b` is no machine's name");
        assert_eq!(refused("-x:1"), "`-x` is no machine's name");
        assert_eq!(refused(":1"), "`` is no machine's name");
    }
}
