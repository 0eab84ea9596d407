//! What a rank brings into a collective and what it does with the result.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use shardloom_fabric::{Fusible, Lent, ViewMut};
use shardloom_kernels::{Buffer, Combine};
use shardloom_program::{
    Action, Collective as Kind, Content, Instruction, Issued, Mode, ParamId, TensorId, View, Window,
};

use super::arena::Room;
use super::link::{Begins, Linker};
use super::redistribute::Change;
use super::rows::{RowExchange, RowMove};
use super::store::Slot;
use super::{At, Rank, Work};

/// A rank's part in a collective: before it what the rank brings, after it the result, in place. It is
/// what training lends to an engine.
pub struct Contribution {
    pub(crate) part: Part,
    /// From when to when the engine worked on it, once it has.
    pub(crate) worked: Option<(Instant, Instant)>,
}

/// What a rank brings into a collective.
pub(crate) enum Part {
    /// The elements of a buffer that take part.
    Elements(Buffer, Range<usize>),
    /// A number in double precision.
    Scalar(f64),
    /// Rows, as many as have turned out.
    Rows(RowExchange),
}

/// A collective that a rank has come to: what it needs to go on with it when it has ended.
pub(crate) struct Begun {
    at: At,
    /// Where the result goes, if not where the contribution is.
    place: Option<Buffer>,
}

impl Begun {
    /// The instruction.
    pub fn issued(&self) -> Issued {
        self.at.issued
    }
}

impl Lent for Contribution {
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
        let start = Instant::now();
        match &mut self.part {
            Part::Elements(buffer, range) => {
                let device = Arc::clone(buffer.device());
                device.lend(buffer.view_mut().slice(range.clone()), work);
            }
            Part::Scalar(number) => work(ViewMut::F64(std::slice::from_mut(number))),
            Part::Rows(rows) => {
                let device = Arc::clone(rows.buffer.device());
                let filled = rows.filled();
                device.lend(rows.buffer.view_mut().slice(filled), work);
            }
        }
        self.worked = Some((start, Instant::now()));
    }
}

impl Fusible for Contribution {
    fn limit(&mut self, elements: usize) {
        let Part::Elements(buffer, range) = &mut self.part else {
            unreachable!("only what lies in one buffer is lent in part")
        };
        assert!(elements <= buffer.len() - range.start, "{elements} in {}", buffer.len());
        range.end = range.start + elements;
    }

    fn note_work(&mut self, from: Instant, to: Instant) {
        self.worked = Some((from, to));
    }
}

/// A rank's part in a collective.
pub(crate) struct Collective {
    /// Which of the rank's collectives it is.
    pub number: usize,
    about: About,
}

/// What a collective is about.
enum About {
    /// The norm of gradients.
    Norm,
    /// Rows, as many as turn out while running.
    Rows(RowMove),
    /// What replicas hold of a bucket.
    Bucket(OfBucket),
    /// The layout of a value.
    Layout(Change),
}

/// Weights that are gathered or summed up, or gradients that are reduced.
struct OfBucket {
    unwritten: Option<Unwritten>,
    /// What is brought as it is, or a share of it.
    held: Slot,
    /// Where shares are gathered, or parts summed up, if not where they are, and where there the own one is.
    gathered: Option<(Room, Range<usize>)>,
    /// Which elements take part, if not all.
    range: Option<Range<usize>>,
    /// Where the result is.
    result: Slot,
    /// To what this rank's share of a sum goes that is not kept where it is reduced.
    shard: Option<Shard>,
}

/// What a rank's share of a sum is added to, or begins.
struct Shard {
    slot: Slot,
    begins: Begins,
    own: Range<usize>,
}

/// Gradients of parameters that another stage of the class may use alone.
pub(super) struct Unwritten {
    slot: Slot,
    params: Box<[(ParamId, Range<usize>)]>,
}

impl Unwritten {
    /// Those that a view is about, if it is about whole gradients that operators write.
    pub fn link(linker: &Linker<'_>, read: View) -> Option<Unwritten> {
        let class = linker.class;
        let bucket = class.bucket(class.tensor(read.tensor).bucket?);
        let is_of_all = matches!(read.window, Window::Whole | Window::Elements { .. });
        let written = bucket.held.replicated.gradients.map(|it| it.written);
        if written != Some(read.tensor) || !is_of_all {
            return None;
        }
        let params = bucket.params.iter().map(|&param| (param, class.param(param).range()));
        Some(Unwritten { slot: linker.slot(read), params: params.collect() })
    }
}

impl Collective {
    /// Links a rank's part in a collective.
    pub(super) fn link(linker: &mut Linker<'_>, instruction: &Instruction) -> Collective {
        let number = linker.collectives;
        linker.collectives += 1;
        let class = linker.class;
        let Action::Collective { kind, group, .. } = &instruction.action else {
            unreachable!("{:?} is no collective", instruction.action)
        };
        let about = match class.tensor(instruction.reads[0].tensor).content {
            _ if instruction.moves_rows(class) => {
                About::Rows(RowMove::link(linker, *kind, group, instruction))
            }
            Content::Norm => About::Norm,
            Content::Compressed if matches!(kind, Kind::AllReduce(_)) => {
                About::Bucket(OfBucket::link(linker, *kind, instruction))
            }
            Content::Activation | Content::Compressed | Content::Rows => {
                About::Layout(Change::link(linker, *kind, group, instruction))
            }
            // The values of rows go as these do.
            Content::Gradient if !class.shape(instruction.reads[0]).is_empty() => {
                About::Layout(Change::link(linker, *kind, group, instruction))
            }
            _ => About::Bucket(OfBucket::link(linker, *kind, instruction)),
        };
        Collective { number, about }
    }
}

impl OfBucket {
    fn link(linker: &Linker<'_>, kind: Kind, instruction: &Instruction) -> OfBucket {
        let Linker { class, position, .. } = *linker;
        let (read, write) = (instruction.reads[0], instruction.writes[0]);
        let moves = !instruction.is_in_place();
        let gathered = match kind {
            // Shares are gathered into what they are shares of; what is summed up elsewhere stays as it is.
            Kind::AllGather { .. } | Kind::AllReduce(_) if moves => {
                Some((linker.room(write.to.tensor), class.bucket_range(read, position)))
            }
            _ => None,
        };
        let shard = match kind {
            Kind::ReduceScatter { .. } if moves => Some(Shard {
                slot: linker.slot(write.to),
                begins: match write.mode {
                    Mode::Set => Begins::Always,
                    Mode::Add => Begins::Never,
                    Mode::AddUnlessFirst => Begins::WithTensor(write.to.tensor),
                },
                own: class.bucket_range(write.to, position),
            }),
            _ => None,
        };
        OfBucket {
            unwritten: Unwritten::link(linker, read),
            held: linker.slot(read),
            gathered,
            range: matches!(kind, Kind::AllReduce(_)).then(|| class.view_range(read, position)),
            result: if shard.is_some() { linker.slot(read) } else { linker.slot(write.to) },
            shard,
        }
    }
}

impl Rank {
    /// What this rank brings into a collective, which it is at. All that the collective allocates is allocated
    /// here.
    pub fn contribute(&mut self, collective: &Collective, at: At) -> (Contribution, Begun) {
        let (part, place) = match &collective.about {
            About::Norm => {
                (Part::Scalar(self.squared_norm().expect("its own share is known")), None)
            }
            About::Rows(rows) => (Part::Rows(self.bring_rows(rows, at)), self.rows_place(rows, at)),
            About::Layout(change) => {
                let (buffer, place) = (self.bring(change, at), self.result_place(change, at));
                let all = 0..buffer.len();
                (Part::Elements(buffer, all), place)
            }
            About::Bucket(of) => (self.bring_bucket(of, at), None),
        };
        (Contribution { part, worked: None }, Begun { at, place })
    }

    /// Gives a tensor away that is there all the time, for who carries collectives out.
    pub fn lend_lasting(&mut self, tensor: TensorId) -> Contribution {
        let buffer = self.store.take(self.store.slot(tensor), At::START);
        let buffer = buffer.expect("it is lent once, when the rank is built");
        let all = 0..buffer.len();
        Contribution { part: Part::Elements(buffer, all), worked: None }
    }

    fn bring_bucket(&mut self, of: &OfBucket, at: At) -> Part {
        self.clear_unwritten(of.unwritten.as_ref());
        let buffer = match &of.gathered {
            Some((room, own)) => {
                let mut whole = self.arena.take(room, at);
                let shard = self.store.get(of.held, at);
                self.device().copy(shard.view(), whole.view_mut().slice(own.clone()));
                whole
            }
            None => {
                let held = self.store.take(of.held, at);
                held.expect("what is reduced or gathered in place is held")
            }
        };
        let range = of.range.clone().unwrap_or(0..buffer.len());
        Part::Elements(buffer, range)
    }

    /// Takes the result of a collective that has ended, wherever the rank is by now.
    pub fn conclude(&mut self, begun: Begun, result: Contribution) {
        let Begun { at, place } = begun;
        let linked = Arc::clone(&self.linked);
        let instruction = linked.instruction(at.issued);
        let Work::Collective(collective) = &instruction.work else {
            unreachable!("a rank takes part in collectives")
        };
        match (result.part, &collective.about) {
            (Part::Scalar(squared), About::Norm) => self.set_squared_norm(squared),
            (Part::Rows(rows), About::Rows(of)) => self.settle_rows(of, at, (rows, place)),
            (Part::Elements(buffer, _), About::Layout(change)) => {
                self.settle(change, at, (buffer, place));
            }
            (Part::Elements(buffer, _), About::Bucket(of)) => {
                if let Some(shard) = &of.shard {
                    self.add_to_shard(shard, &buffer);
                }
                self.store.put(of.result, at, buffer);
            }
            _ => unreachable!("a collective gives back what was lent to it"),
        }
        self.free(instruction, at);
    }

    /// Adds this rank's part of a reduced sum to its shard, or begins a new sum there.
    fn add_to_shard(&mut self, shard: &Shard, reduced: &Buffer) {
        let part = reduced.view().slice(shard.own.clone());
        let Rank { shared, store, parameters, .. } = self;
        let target = store.newest_mut(shard.slot).view_mut();
        match parameters.sums.begin(shard.begins) {
            true => shared.device.copy(part, target),
            false => shared.device.combine(target, part, Combine::Sum),
        }
    }

    /// Makes gradients zero to which nothing was added: another stage of the class uses the parameter.
    pub(super) fn clear_unwritten(&mut self, unwritten: Option<&Unwritten>) {
        let Some(Unwritten { slot, params }) = unwritten else { return };
        let Rank { shared, store, parameters, .. } = self;
        for (_, range) in params.iter().filter(|(param, _)| parameters.sums.is_empty(*param)) {
            if let Some(mut gradients) = store.take(*slot, At::START) {
                shared.device.fill(gradients.view_mut().slice(range.clone()), 0.0);
                store.put(*slot, At::START, gradients);
            }
        }
    }
}
