//! The mesh of devices within a stage.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::DeviceList;

/// An axis of the mesh within a stage, by its name. What it splits is said by the plan's layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Axis([u8; Axis::LONGEST]);

impl Axis {
    /// The bytes of the longest name.
    pub const LONGEST: usize = 12;

    /// Data parallelism whose replicas do not share what those along [`Axis::DP`] share among each other.
    pub const REPLICA: Axis = Axis::constant("replica");
    /// Data parallelism: the batch is split.
    pub const DP: Axis = Axis::constant("dp");
    /// Expert parallelism: experts are split, and the batch.
    pub const EP: Axis = Axis::constant("ep");
    /// Context parallelism: the sequence is split.
    pub const CP: Axis = Axis::constant("cp");
    /// Tensor parallelism: operators are split.
    pub const TP: Axis = Axis::constant("tp");

    /// The axes of a plan that names none, slowest in rank order first: tensor-parallel neighbours are
    /// adjacent ranks (Narayanan et al. 2021, arXiv 2104.04473, section 3).
    pub const USUAL: [Axis; 5] = [Axis::REPLICA, Axis::DP, Axis::EP, Axis::CP, Axis::TP];

    const fn constant(name: &str) -> Axis {
        let mut bytes = [0; Axis::LONGEST];
        let (from, _) = bytes.split_at_mut(name.len());
        from.copy_from_slice(name.as_bytes());
        Axis(bytes)
    }

    /// The axis of this name: a lower-case letter, then such letters, digits, `-` and `_`, at most
    /// [`Axis::LONGEST`]. None for other names.
    pub fn named(name: &str) -> Option<Axis> {
        let rest = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
        };
        let is_name = name.len() <= Axis::LONGEST
            && name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.bytes().all(rest);
        is_name.then(|| Axis::constant(name))
    }

    /// The name in plans.
    pub fn name(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(Axis::LONGEST);
        std::str::from_utf8(&self.0[..end]).expect("a name is ASCII")
    }
}

impl TryFrom<String> for Axis {
    type Error = String;

    fn try_from(name: String) -> Result<Axis, String> {
        Axis::named(&name).ok_or_else(|| {
            format!(
                "{name:?} names no mesh axis: a name is a lower-case letter, then such letters, digits, - and \
                 _, {} at most",
                Axis::LONGEST
            )
        })
    }
}

impl From<Axis> for String {
    fn from(axis: Axis) -> String {
        axis.name().to_owned()
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Debug for Axis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// How many devices each axis has, slowest axis first. A position in the mesh is a number below
/// [`Mesh::size`], with the last axis varying fastest. Axes of width one are not in it, so equal meshes are
/// equal values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// The first `count` count, all others are as in [`Mesh::SINGLE`].
    axes: [(Axis, u32); Mesh::MOST],
    count: u8,
}

impl Mesh {
    /// The most axes that are wider than one.
    pub const MOST: usize = 6;

    /// A single device.
    pub const SINGLE: Mesh = Mesh { axes: [(Axis::DP, 1); Mesh::MOST], count: 0 };

    /// A mesh of usual axes: data-, context- and tensor-parallel width.
    #[must_use]
    pub const fn of(dp: u32, cp: u32, tp: u32) -> Mesh {
        Mesh::SINGLE.and(Axis::DP, dp).and(Axis::CP, cp).and(Axis::TP, tp)
    }

    /// This mesh and an axis more, the fastest.
    const fn and(mut self, axis: Axis, width: u32) -> Mesh {
        if width != 1 {
            self.axes[self.count as usize] = (axis, width);
            self.count += 1;
        }
        self
    }

    /// This mesh with so many devices along `axis`. Usual axes are in their usual order, others come after
    /// them; [`Mesh::arranged`] makes another.
    ///
    /// # Panics
    /// If that makes more than [`Mesh::MOST`] axes.
    #[must_use]
    pub fn with(self, axis: Axis, width: u32) -> Mesh {
        let known = self.entries().any(|(each, _)| each == axis);
        let entries =
            self.entries().map(|(each, old)| (each, if each == axis { width } else { old }));
        let entries = entries.chain((!known).then_some((axis, width)));
        Mesh::collect(entries).expect("few axes").arranged(&Axis::USUAL)
    }

    /// The mesh of these axes, each named once; none if too many are wider than one.
    fn collect(entries: impl Iterator<Item = (Axis, u32)>) -> Option<Mesh> {
        let mut mesh = Mesh::SINGLE;
        for entry in entries.filter(|&(_, width)| width != 1) {
            *mesh.axes.get_mut(usize::from(mesh.count))? = entry;
            mesh.count += 1;
        }
        Some(mesh)
    }

    fn entries(&self) -> impl Iterator<Item = (Axis, u32)> + use<> {
        self.axes.into_iter().take(usize::from(self.count))
    }

    /// Its axes that are wider than one, slowest first.
    pub fn axes(&self) -> impl Iterator<Item = Axis> + use<> {
        self.entries().map(|(axis, _)| axis)
    }

    /// The same mesh with its axes in the order of `order`; those that are not in it come last.
    #[must_use]
    pub fn arranged(&self, order: &[Axis]) -> Mesh {
        let mut entries: Vec<(Axis, u32)> = self.entries().collect();
        let place = |axis| order.iter().position(|&each| each == axis).unwrap_or(order.len());
        entries.sort_by_key(|&(axis, _)| place(axis));
        Mesh::collect(entries.into_iter()).expect("no more axes than before")
    }

    /// Puts axes of this mesh in its order.
    pub fn sort(&self, axes: &mut [Axis]) {
        axes.sort_by_key(|&axis| self.axes().position(|each| each == axis));
    }

    /// The width of one axis: 1 if the mesh does not have it.
    pub fn width(&self, axis: Axis) -> usize {
        self.entries().find(|&(each, _)| each == axis).map_or(1, |(_, width)| width as usize)
    }

    /// Whether it is a single device.
    pub fn is_single(&self) -> bool {
        self.count == 0
    }

    /// Data-parallel width, of replicas that share what ZeRO shards and of those that do not together.
    pub fn dp(&self) -> u32 {
        self.span(&[Axis::REPLICA, Axis::DP]) as u32
    }

    /// This mesh with its data-parallel axis cut in two, of which the fast one has `width` replicas; none if
    /// that does not divide them.
    #[must_use]
    pub fn sharing_within(self, width: u32) -> Option<Mesh> {
        let dp = self.dp();
        if width == 0 || !dp.is_multiple_of(width) {
            return None;
        }
        Some(self.with(Axis::DP, width).with(Axis::REPLICA, dp / width))
    }

    /// Tensor-parallel width.
    pub fn tp(&self) -> u32 {
        self.width(Axis::TP) as u32
    }

    /// The number of devices.
    pub fn size(&self) -> usize {
        self.entries().map(|(_, width)| width as usize).product()
    }

    /// How far apart neighbours along `axis` are in position.
    pub fn stride(&self, axis: Axis) -> usize {
        let after = self.entries().skip_while(|&(each, _)| each != axis).skip(1);
        after.map(|(_, width)| width as usize).product()
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

impl fmt::Display for Mesh {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> =
            self.entries().map(|(axis, width)| format!("{axis} {width}")).collect();
        out.write_str(if named.is_empty() { "1 device" } else { "" })?;
        out.write_str(&named.join(" x "))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Mesh({self})")
    }
}

impl Default for Mesh {
    fn default() -> Mesh {
        Mesh::SINGLE
    }
}

/// A table of widths by axis, in their order.
impl Serialize for Mesh {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(Some(usize::from(self.count)))?;
        for (axis, width) in self.entries() {
            table.serialize_entry(&axis, &width)?;
        }
        table.end()
    }
}

impl<'de> Deserialize<'de> for Mesh {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mesh, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Mesh;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("the width of each mesh axis, such as { dp = 2, tp = 4 }")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Mesh, A::Error> {
                let mut entries: Vec<(Axis, u32)> = vec![];
                while let Some((axis, width)) = table.next_entry()? {
                    if entries.iter().any(|&(each, _)| each == axis) {
                        return Err(A::Error::custom(format!("mesh axis {axis} is named twice")));
                    }
                    entries.push((axis, width));
                }
                let rule = || A::Error::custom(format!("at most {} mesh axes", Mesh::MOST));
                let mesh = Mesh::collect(entries.into_iter()).ok_or_else(rule)?;
                let devices = (mesh.entries())
                    .try_fold(1_u32, |devices, (_, width)| devices.checked_mul(width.max(1)));
                match devices {
                    Some(devices) if devices as usize <= DeviceList::MOST => Ok(mesh),
                    _ => {
                        let message = format!("a mesh of {mesh}; at most a million devices");
                        Err(A::Error::custom(message))
                    }
                }
            }
        }

        deserializer.deserialize_map(Table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_along_an_axis_differ_only_in_its_coordinate() {
        let mesh = Mesh::of(2, 3, 4);
        for position in 0..mesh.size() {
            for axes in [&[Axis::TP][..], &[Axis::DP], &[Axis::DP, Axis::TP], &Axis::USUAL, &[]] {
                let members = mesh.members_along(position, axes);
                assert_eq!(members.len(), mesh.span(axes));
                assert_eq!(members[mesh.index_along(position, axes)], position);
                for (index, &member) in members.iter().enumerate() {
                    assert_eq!(mesh.index_along(member, axes), index);
                    for axis in Axis::USUAL.iter().filter(|axis| !axes.contains(axis)) {
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
        let mesh = Mesh::of(2, 1, 4);
        assert_eq!(mesh.members_along(5, &[Axis::TP]), vec![4, 5, 6, 7]);
        assert_eq!(mesh.members_along(5, &[Axis::DP]), vec![1, 5]);
    }

    #[test]
    fn axes_have_an_order_that_decides_who_is_adjacent() {
        let (row, column) = (Axis::named("row").unwrap(), Axis::named("column-2").unwrap());
        let mesh = Mesh::SINGLE.with(row, 2).with(column, 3);
        assert_eq!(mesh.members_along(4, &[column]), vec![3, 4, 5]);
        let turned = mesh.arranged(&[column, row]);
        assert_eq!(turned.to_string(), "column-2 3 x row 2");
        assert_eq!(turned.members_along(4, &[column]), vec![0, 2, 4]);
        assert_ne!(mesh, turned);
    }

    #[test]
    fn axes_are_sorted_as_the_mesh_has_them() {
        let [row, column] = ["row", "column"].map(|name| Axis::named(name).unwrap());
        let order = [row, Axis::TP, column, Axis::DP];
        let mesh = order.iter().fold(Mesh::SINGLE, |mesh, &axis| mesh.with(axis, 2));
        let mut axes = [Axis::DP, column, row, Axis::TP];
        mesh.arranged(&order).sort(&mut axes);
        assert_eq!(axes, order);
    }

    #[test]
    fn axes_of_width_one_make_no_other_mesh() {
        assert_eq!(Mesh::of(2, 1, 4), Mesh::SINGLE.with(Axis::TP, 4).with(Axis::DP, 2));
        assert_eq!(Mesh::of(2, 1, 4).with(Axis::TP, 1), Mesh::of(2, 1, 1));
        assert_eq!(Mesh::of(1, 1, 1), Mesh::SINGLE);
        assert_eq!(Mesh::of(2, 3, 4).with(Axis::CP, 5), Mesh::of(2, 5, 4));
    }

    #[test]
    fn meshes_of_more_devices_than_can_be_listed_are_refused() {
        for table in ["dp = 65536\ncp = 65536\nep = 65536\ntp = 65536", "dp = 1048577"] {
            let error = toml::from_str::<Mesh>(table).expect_err(table).to_string();
            assert!(error.contains("dp ") && error.contains("at most a million"), "{error}");
        }
        assert!(toml::from_str::<Mesh>("dp = 1024\ntp = 1024").is_ok());
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in ["e", "ep", "replica-2_x", "abcdefghijkl"] {
            assert_eq!(Axis::named(name).map(String::from).as_deref(), Some(name));
        }
        for name in ["", "2d", "-a", "Tp", "a b", "é", "abcdefghijklm", "a:b"] {
            assert_eq!(Axis::named(name), None, "{name}");
        }
    }
}
