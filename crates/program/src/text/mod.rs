//! The text form of a program: what one rank holds and does, in words that can be followed without
//! reading code.
//!
//! One line is one tensor, one entry of the step, or one instruction. Lines depend on the program alone,
//! so texts can be compared from version to version.

mod entries;
mod line;
mod names;
mod ranks;

use std::collections::BTreeSet;
use std::fmt::Write;

use shardloom_graph::Graph;
use shardloom_plan::Axis;

use self::entries::{Entries, Entry};
use self::line::Lines;
use self::names::Names;
use self::ranks::ranks;
use crate::quantity::{bytes, counted};
use crate::{
    Bucket, Class, ClassId, Copies, Extent, Group, Initial, Keep, Program, Rank, Shape, Tensor,
    TensorId,
};

/// How the text of a program is read, in a few lines.
pub const LEGEND: &str = "\
How to read this: an instruction is a line: its number, its queue, what it does, what it writes
<- what it reads; what it frees; after what. They are issued in the order in which they stand; queues
run side by side where the machine can, each in order but for those that have none.
  queue            compute, send or receive; of collectives the mesh axes (dp, tp, ...) along which
                   the ranks lie that take part, `stages` of ranks of several stages, or `all`;
                   what others do is waited for where it is received or takes part
  dp negotiated    without order: ranks agree while running which collective along dp is next
  send by priority without order: of what is ready, what is used first goes first
  after 5          waits until instruction 5 of this entry has ended, in another queue
  after all dp     until everything that was issued to the queue dp before has ended
  after 5 of E     until instruction 5 below the entry named E has ended for the same micro-batch;
                   `of the last E`: in its last run, whatever the micro-batch
  name[2,8] f32    what this rank has of a tensor; `name #2` is another one of the same name
  name[<=2,8]      as many rows, side by side, as counts say that are read with it; memory is for all
  name/share[16]   this rank's share of it; name/weight[2,8] is one of the weights that lie in it;
                   name/8..16 are these of its elements
  name@[R,S(tp)]   by tensor axis, R: whole; S(tp): split over tp; then P(tp,Sum): to be summed over
                   tp; `axis 0` is the first tensor axis
  add to           adds to what is there; start or add to: likewise, but the first time since the
                   sum was last used replaces it
  in place         the memory of what is freed is that of what is written
  gradient norm    its square
  alike along tp   ranks along tp hold the same; each owns a part, which it saves and counts in norms
  saved            in checkpoints, `elsewhere` by another rank that holds the same; then what it is
                   where no checkpoint has it; `0..8 of 16` are this rank's elements of a bucket
                   that ranks share, `saves 0..4` those that it owns
";

impl Program {
    /// What `rank` holds and does in a step, one instruction a line; none if there is no such rank.
    /// [`LEGEND`] says how it is read.
    pub fn text(&self, graph: &Graph, rank: Rank) -> Option<String> {
        if rank.0 as usize >= self.ranks() {
            return None;
        }
        let (id, position) = self.locate(rank);
        let class = self.class(id);
        let entries = Entries::of(self, class);
        let names = Names::of(graph, class, &entries);
        let reader = Reader { program: self, graph, id, class, position, names };
        Some(reader.text(&entries))
    }
}

/// A rank whose text is written.
struct Reader<'a> {
    program: &'a Program,
    graph: &'a Graph,
    id: ClassId,
    class: &'a Class,
    position: usize,
    names: Names,
}

impl Reader<'_> {
    fn text(&self, entries: &Entries) -> String {
        let mut text = self.heading();
        self.buckets(&mut text);
        self.lasting(&mut text);
        let lines = Lines(self);
        let mut add = |title: &str, entries: &[Entry]| {
            text += title;
            for entry in entries {
                writeln!(text, "  {}", entry.title).expect("strings can be written");
                if let Some(body) = entry.body {
                    lines.body(self.class.body(body), &mut text);
                }
            }
        };
        add("a step, in order\n", &entries.step);
        if !entries.evaluation.is_empty() {
            add("the loss of validation data, which keeps nothing\n", &entries.evaluation);
        }
        text
    }

    fn rank(&self) -> Rank {
        Rank(self.class.first_rank.0 + self.position as u32)
    }

    /// Which rank it is, and who does the same.
    fn heading(&self) -> String {
        let Reader { program, class, position, .. } = *self;
        let mut place = class.place();
        if class.stages.iter().any(|stage| stage.reverse) {
            place += " (< in the pipeline that runs the other way)";
        }
        for axis in class.mesh.axes() {
            place += &format!(", {axis} {}", class.mesh.coordinate(position, axis));
        }
        let (first, count) = (class.first_rank.0, class.mesh.size());
        let alike = match count {
            1 => String::new(),
            _ => format!(
                "; {count} ranks, {first} to {}, do the same on different parts",
                first + count as u32 - 1
            ),
        };
        format!("rank {} of {}: {place}{alike}\n", self.rank().0, program.ranks())
    }

    /// What lies in each bucket.
    fn buckets(&self, text: &mut String) {
        let class = self.class;
        text.push_str("parameters, in buckets that are held and updated together\n");
        let rows = class.buckets().map(|(id, bucket)| {
            let params = bucket.params.iter().map(|&param| {
                let (name, spec) = (self.names.param(param), class.param(param));
                let part = match spec.is_whole() {
                    true => String::new(),
                    false => format!(" {}..{}", spec.part.start, spec.part.end),
                };
                format!("{name}{}{part}", shape(&spec.shape))
            });
            let params: Vec<String> = params.collect();
            let elements = counted(bucket.elements, "element");
            let name = self.names.bucket(id).to_owned();
            [name, format!("{elements}{}: {}", self.spread(bucket), params.join(", "))]
        });
        columns(rows.collect(), text);
    }

    /// Who else holds a bucket, and who holds other parts of its parameters, and whether it is frozen.
    fn spread(&self, bucket: &Bucket) -> String {
        let along = |word: &str, axes: &[Axis]| match axes {
            [] => String::new(),
            _ => format!(", {word} {}", names_of(axes)),
        };
        let mut text = along("alike along", &bucket.copies)
            + &along("of their own along", &bucket.own)
            + &along("split along", &bucket.splits);
        if bucket.is_frozen {
            text += ", frozen";
        }
        let servers = bucket.served.iter().map(|it| self.program.class(it.server).first_rank);
        let servers: BTreeSet<Rank> = servers.collect();
        if !servers.is_empty() {
            let servers: Vec<Rank> = servers.into_iter().collect();
            text += &match bucket.apart {
                None => format!(", updated and saved on {}", ranks(&servers)),
                Some(_) => format!(", updated apart, added up and saved on {}", ranks(&servers)),
            };
        }
        let summing = bucket.summed.iter().map(|it| self.program.class(it.server).first_rank);
        let summing: BTreeSet<Rank> = summing.collect();
        if !summing.is_empty() {
            let summing: Vec<Rank> = summing.into_iter().collect();
            let elements: usize = bucket.summed.iter().map(|it| it.range.len()).sum();
            let part = match elements == bucket.elements {
                true => String::new(),
                false => format!("{elements} "),
            };
            text += &format!(", {part}summed on {}", ranks(&summing));
        }
        if !bucket.classes.is_empty() {
            let group = Group::Classes(bucket.classes.clone());
            let members = self.program.members(self.id, self.position, &group);
            let others: Vec<Rank> = members.into_iter().filter(|&it| it != self.rank()).collect();
            let owner = if bucket.classes.first() == Some(&self.id) { "here" } else { "there" };
            text += &format!(", also on {} and saved {owner}", ranks(&others));
        }
        text
    }

    /// What is held for the whole run.
    fn lasting(&self, text: &mut String) {
        let Reader { program, class, position, .. } = *self;
        let memory = class.memory_use(program, position);
        let (always, peak) = (bytes(memory.persistent.total()), bytes(memory.peak_bytes));
        writeln!(
            text,
            "holds all the time {always} (with what comes and goes at most {peak} at once)"
        )
        .expect("strings can be written");
        let rows = class.lasting().map(|(id, tensor)| {
            let (copies, words) = match tensor.copies {
                Copies::Versions(count) => (u64::from(count), format!("{count} versions, ")),
                Copies::One | Copies::PerMicrobatch => (1, String::new()),
            };
            let size = bytes(copies * class.tensor_bytes(id, position));
            let owned = program.owns(self.id, id);
            let kept = words + &kept(tensor, owned) + &self.part(tensor, owned);
            let name = self.names.tensor(id).to_owned();
            [name, self.shape(id), tensor.format.to_string(), size, kept]
        });
        columns(rows.collect(), text);
    }

    /// Which elements of its bucket a tensor has, where it has only this rank's share, and which of these it
    /// owns, where others hold them too.
    fn part(&self, tensor: &Tensor, owned: bool) -> String {
        let (Shape::Flat(extent), Some(bucket)) = (&tensor.shape, tensor.bucket) else {
            return String::new();
        };
        let bucket = self.class.bucket(bucket);
        let held = match extent {
            Extent::Share => self.class.shard_range(bucket, self.position),
            Extent::SecondShare => self.class.second_shard_range(bucket, self.position),
            _ => 0..bucket.elements,
        };
        let own = self.class.owned(bucket, self.position);
        let mut text = String::new();
        if held.len() < bucket.elements {
            text += &format!("; {}..{} of {}", held.start, held.end, bucket.elements);
        }
        let is_per_element = matches!(extent, Extent::Share | Extent::Exactly(_));
        let is_saved = owned && matches!(tensor.keep, Keep::State(_));
        if is_saved && is_per_element && own != held {
            text += &format!("; saves {}..{}", own.start, own.end);
        }
        text
    }

    /// The local shape of a tensor.
    fn shape(&self, id: TensorId) -> String {
        match &self.class.tensor(id).shape {
            Shape::Local(local) => shape(local),
            Shape::AtMost { bound, .. } => format!("[<={}", &shape(bound)[1..]),
            Shape::Flat(_) => shape(&[self.class.elements(id, self.position)]),
        }
    }
}

/// What becomes of a lasting tensor between runs, which this rank saves if it owns it.
fn kept(tensor: &Tensor, owned: bool) -> String {
    let initial = match tensor.keep {
        Keep::State(Initial::Drawn) => "random at first",
        Keep::State(Initial::Weights) => "the weights at first",
        Keep::State(Initial::Zero) => "zero at first",
        Keep::Resident | Keep::Transient => return "not saved".into(),
    };
    format!("{}; {initial}", if owned { "saved" } else { "saved elsewhere" })
}

/// A shape in brackets.
fn shape(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(ToString::to_string).collect();
    format!("[{}]", extents.join(","))
}

/// The names of mesh axes.
fn names_of(axes: &[Axis]) -> String {
    axes.iter().map(|axis| axis.name()).collect::<Vec<_>>().join(",")
}

/// The widest column; what is longer moves the rest of its row.
const WIDEST: usize = 1000;

/// Rows whose cells stand below each other.
fn columns<const N: usize>(rows: Vec<[String; N]>, text: &mut String) {
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).min(WIDEST)
        })
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            write!(line, "  {cell:width$}").expect("strings can be written");
        }
        writeln!(text, "{}", line.trim_end()).expect("strings can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_any_length_are_written() {
        let mut text = String::new();
        let long = "x".repeat(70_000);
        columns(vec![[long.clone(), "a".into()], ["b".into(), "c".into()]], &mut text);
        assert_eq!(text, format!("  {long}  a\n  b{}c\n", " ".repeat(WIDEST + 1)));
    }
}
