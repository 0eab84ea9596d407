//! How passes of a device are written and read.

use super::{Action, Instance, Pass, PassKind, StageMap};
use crate::ScheduleError;

/// The notation of one device's passes.
pub struct Notation<'m> {
    map: &'m StageMap,
    device: usize,
    /// The device's [chunks](StageMap::chunks) forward, and those of the reverse direction.
    chunks: [Vec<Vec<Instance>>; 2],
}

impl<'m> Notation<'m> {
    pub(super) fn new(map: &'m StageMap, device: usize) -> Notation<'m> {
        let chunks = [false, true].map(|reverse| map.chunks(device, reverse));
        Notation { map, device, chunks }
    }

    /// A pass: kind, micro-batch, `@chunk` where the device holds several that run the same way, `<` for the
    /// reverse direction.
    pub fn pass(&self, pass: Pass) -> String {
        let reverse = self.map.chain(pass.instance).is_reverse();
        let chunks = &self.chunks[usize::from(reverse)];
        let mut text = format!("{}{}", pass.kind.letter(), pass.microbatch);
        if chunks.len() > 1 {
            let chunk = chunks.iter().position(|it| it.contains(&pass.instance));
            text += &chunk.map_or_else(|| "@?".into(), |chunk| format!("@{chunk}"));
        }
        if reverse {
            text.push('<');
        }
        text
    }

    /// An action: `F3`, or `F3+B1<` where two overlap.
    pub fn text(&self, action: Action) -> String {
        let passes: Vec<String> = action.passes().map(|pass| self.pass(pass)).collect();
        passes.join("+")
    }

    /// Reads what [`Notation::text`] writes.
    ///
    /// # Errors
    /// If it is no action, or not one of this device.
    pub fn parse(&self, text: &str) -> Result<Action, ScheduleError> {
        let device = self.device;
        let mut passes = vec![];
        for part in text.split('+') {
            passes.push(self.parse_pass(part.trim())?);
        }
        match passes[..] {
            [pass] => Ok(Action::Alone(pass)),
            [first, second] => Ok(Action::Overlapped(first, second)),
            _ => {
                let message = format!("device {device}: {text:?} has more than two passes at once");
                Err(ScheduleError::Rule(message))
            }
        }
    }

    fn parse_pass(&self, text: &str) -> Result<Pass, ScheduleError> {
        let device = self.device;
        let refuse = |rule: &str| {
            ScheduleError::Rule(format!("device {device}: {text:?} is no pass: {rule}"))
        };
        let form = "write a pass (F, B, I or W), a micro-batch, @chunk where the device holds several \
                    stages, < for the reverse direction: F3, W0@1, B2<";
        let reverse = text.ends_with('<');
        let rest = text.strip_suffix('<').unwrap_or(text);
        let kind = match rest.chars().next() {
            Some('F') => PassKind::Forward,
            Some('B') => PassKind::Backward,
            Some('I') => PassKind::BackwardInput,
            Some('W') => PassKind::BackwardWeight,
            _ => return Err(refuse(form)),
        };
        let (microbatch, chunk) = match rest[1..].split_once('@') {
            Some((microbatch, chunk)) => (microbatch, chunk.parse().map_err(|_| refuse(form))?),
            None => (&rest[1..], 0usize),
        };
        let microbatch: u32 = microbatch.parse().map_err(|_| refuse(form))?;
        let chunks = &self.chunks[usize::from(reverse)];
        let chunk = chunks.get(chunk).ok_or_else(|| match chunks.len() {
            0 => refuse("the device holds no stage of that direction"),
            _ => refuse("the device holds fewer chunks of that direction"),
        })?;
        let fed = chunk.iter().copied().find(|&it| self.map.feeds(it, microbatch));
        let instance =
            fed.ok_or_else(|| refuse("that micro-batch does not go through that stage"))?;
        Ok(Pass { kind, instance, microbatch })
    }
}
