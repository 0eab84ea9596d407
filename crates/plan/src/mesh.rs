//! The mesh of devices within a stage.

use serde::{Deserialize, Serialize};

/// An axis of the mesh within a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Data parallelism: the batch is split.
    Dp,
    /// Context parallelism: the sequence is split.
    Cp,
    /// Tensor parallelism: operators are split.
    Tp,
}

impl Axis {
    /// All axes, slowest in rank order first: tensor-parallel neighbours are adjacent ranks.
    pub const ALL: [Axis; 3] = [Axis::Dp, Axis::Cp, Axis::Tp];

    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Dp => "dp",
            Axis::Cp => "cp",
            Axis::Tp => "tp",
        }
    }
}

impl std::fmt::Display for Axis {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

/// How many devices each axis has. A position in the mesh is a number below [`Mesh::size`], with the
/// last axis of [`Axis::ALL`] varying fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Data-parallel width.
    #[serde(default = "one")]
    pub dp: u32,
    /// Context-parallel width.
    #[serde(default = "one")]
    pub cp: u32,
    /// Tensor-parallel width.
    #[serde(default = "one")]
    pub tp: u32,
}

fn one() -> u32 {
    1
}

impl Mesh {
    /// A single device.
    pub const SINGLE: Mesh = Mesh { dp: 1, cp: 1, tp: 1 };

    /// The width of one axis.
    pub fn width(&self, axis: Axis) -> usize {
        let width = match axis {
            Axis::Dp => self.dp,
            Axis::Cp => self.cp,
            Axis::Tp => self.tp,
        };
        width as usize
    }

    /// The number of devices.
    pub fn size(&self) -> usize {
        Axis::ALL.iter().map(|&axis| self.width(axis)).product()
    }

    /// How far apart neighbours along `axis` are in position.
    pub fn stride(&self, axis: Axis) -> usize {
        Axis::ALL.iter().rev().take_while(|&&other| other != axis).map(|&a| self.width(a)).product()
    }

    /// The coordinate of `position` along `axis`.
    pub fn coordinate(&self, position: usize, axis: Axis) -> usize {
        position / self.stride(axis) % self.width(axis)
    }

    /// The product of the widths of `axes`.
    pub fn span(&self, axes: &[Axis]) -> usize {
        axes.iter().map(|&axis| self.width(axis)).product()
    }

    /// Which of [`Mesh::span`] members `position` is along `axes` together, the first axis slowest.
    pub fn index_along(&self, position: usize, axes: &[Axis]) -> usize {
        axes.iter()
            .fold(0, |index, &axis| index * self.width(axis) + self.coordinate(position, axis))
    }

    /// The positions that differ from `position` only along `axes`, in the order of
    /// [`Mesh::index_along`]; `position` is one of them.
    pub fn members_along(&self, position: usize, axes: &[Axis]) -> Vec<usize> {
        let origin = axes
            .iter()
            .fold(position, |at, &axis| at - self.coordinate(at, axis) * self.stride(axis));
        (0..self.span(axes))
            .map(|mut index| {
                axes.iter().rev().fold(origin, |at, &axis| {
                    let coordinate = index % self.width(axis);
                    index /= self.width(axis);
                    at + coordinate * self.stride(axis)
                })
            })
            .collect()
    }
}

impl std::fmt::Display for Mesh {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<String> = Axis::ALL
            .iter()
            .filter(|&&axis| self.width(axis) > 1)
            .map(|&axis| format!("{axis} {}", self.width(axis)))
            .collect();
        out.write_str(if named.is_empty() { "1 device" } else { "" })?;
        out.write_str(&named.join(" x "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_along_an_axis_differ_only_in_its_coordinate() {
        let mesh = Mesh { dp: 2, cp: 3, tp: 4 };
        for position in 0..mesh.size() {
            for axes in [&[Axis::Tp][..], &[Axis::Dp], &[Axis::Dp, Axis::Tp], &Axis::ALL, &[]] {
                let members = mesh.members_along(position, axes);
                assert_eq!(members.len(), mesh.span(axes));
                assert_eq!(members[mesh.index_along(position, axes)], position);
                for (index, &member) in members.iter().enumerate() {
                    assert_eq!(mesh.index_along(member, axes), index);
                    for axis in Axis::ALL.iter().filter(|axis| !axes.contains(axis)) {
                        assert_eq!(
                            mesh.coordinate(member, *axis),
                            mesh.coordinate(position, *axis)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn tensor_parallel_neighbours_are_adjacent() {
        let mesh = Mesh { dp: 2, cp: 1, tp: 4 };
        assert_eq!(mesh.members_along(5, &[Axis::Tp]), vec![4, 5, 6, 7]);
        assert_eq!(mesh.members_along(5, &[Axis::Dp]), vec![1, 5]);
    }
}
