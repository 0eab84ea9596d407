//! Some mesh axes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Axis, Mesh};

/// Different mesh axes, at most as many as a mesh has, in the order in which they are written: a list of
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Axis>", into = "Vec<Axis>")]
pub struct AxisSet {
    /// Those that there are come first.
    axes: [Option<Axis>; Mesh::MOST],
}

impl AxisSet {
    /// These axes; none if one is named twice or they are more than [`Mesh::MOST`].
    pub fn of(axes: &[Axis]) -> Option<AxisSet> {
        let mut set = AxisSet { axes: [None; Mesh::MOST] };
        for (index, &axis) in axes.iter().enumerate() {
            if set.contains(axis) {
                return None;
            }
            *set.axes.get_mut(index)? = Some(axis);
        }
        Some(set)
    }

    /// The axes.
    pub fn iter(&self) -> impl Iterator<Item = Axis> + use<> {
        self.axes.into_iter().flatten()
    }

    /// Whether `axis` is one of them.
    pub fn contains(&self, axis: Axis) -> bool {
        self.axes.contains(&Some(axis))
    }
}

impl TryFrom<Vec<Axis>> for AxisSet {
    type Error = String;

    fn try_from(axes: Vec<Axis>) -> Result<AxisSet, String> {
        AxisSet::of(&axes)
            .ok_or_else(|| format!("different mesh axes are listed, at most {}", Mesh::MOST))
    }
}

impl From<AxisSet> for Vec<Axis> {
    fn from(set: AxisSet) -> Vec<Axis> {
        set.iter().collect()
    }
}

impl fmt::Display for AxisSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<Axis> = self.iter().collect();
        write!(out, "{names:?}")
    }
}

impl fmt::Debug for AxisSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_different_and_few() {
        let set = AxisSet::of(&[Axis::CP, Axis::DP]).expect("two axes");
        assert_eq!(set.iter().collect::<Vec<_>>(), [Axis::CP, Axis::DP]);
        assert!(set.contains(Axis::DP) && !set.contains(Axis::TP));
        assert_eq!(AxisSet::of(&[Axis::DP, Axis::DP]), None);
        let names = ["a", "b", "c", "d", "e", "f", "g"].map(|name| Axis::named(name).unwrap());
        assert!(AxisSet::of(&names[..6]).is_some());
        assert_eq!(AxisSet::of(&names), None);
    }
}
