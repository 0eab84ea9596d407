//! Gradients on their way to servers and, where these only sum, back.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Reductions, Sum, place};
use crate::verify::row::Step;
use crate::verify::violation::Violation;
use crate::{ParamId, RouteId, View, overlap};

impl Reductions<'_> {
    /// A server sends what it has added up to one that has a replica, and updates with it itself.
    pub(super) fn send_aggregated(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        found: &mut Vec<Violation>,
    ) {
        let read = step.instruction.reads[0];
        self.require_reduced(step, read, found);
        let value = |param: &ParamId| step.class.param(*param).value;
        let sum = self.sums.get(&place(read)).filter(|sum| sum.is_pending());
        let Some(sum) = sum else {
            let tensor = step.tensor_name(read.tensor);
            return found.push(Violation::ReducedTwice { at: step.site(), tensor });
        };
        let parts = sum.parts.iter().map(|(param, parts)| (value(param), parts.clone())).collect();
        self.sent.entry(route).or_default().push_back(parts);
    }

    /// A worker sends a range of its gradients to a server that sums them.
    pub(super) fn send_to_sum(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        found: &mut Vec<Violation>,
    ) {
        let read = step.instruction.reads[0];
        let sum = self.sums.entry(place(read)).or_default();
        for message in self.program.route(route).messages.iter() {
            let range = message.source.range(0);
            if !sum.is_pending() || sum.is_begun(&range) {
                let tensor = step.tensor_name(read.tensor);
                found.push(Violation::ReducedTwice { at: step.site(), tensor });
            }
            sum.sent_to_sum.push(range);
        }
    }

    /// It gets their sum.
    pub(super) fn receive_sum(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        to: View,
        found: &mut Vec<Violation>,
    ) {
        let elements = step.class.elements(to.tensor, 0);
        let sum = self.sums.entry(place(to)).or_default();
        for message in self.program.route(route).messages.iter() {
            let range = message.target.range(0);
            if !sum.is_pending() || !sum.sent_to_sum.contains(&range) || sum.summed.contains(&range)
            {
                let tensor = step.tensor_name(to.tensor);
                found.push(Violation::ReducedTwice { at: step.site(), tensor });
            }
            sum.sum(range, elements);
        }
    }

    /// A worker sends a range of its gradients to a server that updates.
    pub(super) fn send(&mut self, step: &Step<'_>, route: RouteId, found: &mut Vec<Violation>) {
        let read = step.instruction.reads[0];
        self.require_reduced(step, read, found);
        let sum = self.sums.entry(place(read)).or_default();
        let messages = self.program.route(route).messages.iter();
        let ranges: Vec<Range<usize>> = messages.map(|it| it.source.range(0)).collect();
        let is_sent = |it: &Range<usize>| sum.sent.iter().any(|sent| !overlap(sent, it).is_empty());
        if !sum.is_pending() || ranges.iter().any(is_sent) {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::ReducedTwice { at: step.site(), tensor });
        }
        let is_of = |param: &ParamId| {
            let whole = step.class.param(*param).range();
            ranges.iter().any(|it| !overlap(it, &whole).is_empty())
        };
        let value = |param: &ParamId| step.class.param(*param).value;
        let parts = sum.parts.iter().filter(|(param, _)| is_of(param));
        let parts = parts.map(|(param, parts)| (value(param), parts.clone())).collect();
        self.sent.entry(route).or_default().push_back(parts);
        sum.sent.extend(ranges);
        let whole = step.class.elements(read.tensor, 0);
        sum.is_used |= sum.sent.iter().map(Range::len).sum::<usize>() == whole;
    }

    /// A worker sends a server the gradients of different rows of a piece of a table.
    pub(super) fn send_rows(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        found: &mut Vec<Violation>,
    ) {
        let read = step.instruction.reads[0];
        self.require_reduced(step, read, found);
        let Some(bucket) = self.bucket(step, read) else { return };
        let Some(rows) = bucket.held.replicated.rows() else { return };
        if !self.belong_together(View::whole(rows.written), read) {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::RowsOfOthers { at: step.site(), tensor });
        }
        let piece = self.program.table_rows(self.program.route(route));
        let piece = piece.map_or(0, |rows| rows.piece as usize);
        let sum = self.sums.entry(place(read)).or_default();
        if sum.has_equal_rows {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::EqualRows { at: step.site(), tensor });
        }
        if !sum.is_pending() || sum.sent.contains(&(piece..piece + 1)) {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::ReducedTwice { at: step.site(), tensor });
        }
        let value = |param: &ParamId| step.class.param(*param).value;
        let parts = sum.parts.iter().map(|(param, parts)| (value(param), parts.clone())).collect();
        self.sent.entry(route).or_default().push_back(parts);
        sum.sent.push(piece..piece + 1);
        if sum.sent.len() == bucket.served.len() {
            sum.is_used = true;
            self.sums.entry((rows.written, false)).or_default().is_used = true;
        }
    }

    /// A server gets them, beside those of other workers.
    pub(super) fn receive_rows(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        to: View,
        found: &mut Vec<Violation>,
    ) {
        let sent = self.sent.get_mut(&route).and_then(VecDeque::pop_front);
        let parts = sent.unwrap_or_default();
        let Some(bucket) = self.bucket(step, to) else { return };
        let Some(rows) = bucket.held.replicated.rows() else { return };
        for tensor in [to.tensor, rows.written] {
            let sum = self.sums.entry((tensor, false)).or_default();
            if sum.is_used {
                *sum = Sum::default();
            }
            if sum.is_pending() && !sum.has_equal_rows {
                let tensor = step.tensor_name(to.tensor);
                found.push(Violation::ReducedTwice { at: step.site(), tensor });
            }
            sum.has_equal_rows = true;
            for (value, parts) in &parts {
                let is_it = |param: &&ParamId| step.class.param(**param).value == *value;
                if let Some(&param) = bucket.params.iter().find(is_it) {
                    sum.parts.entry(param).or_default().extend(parts);
                }
            }
        }
    }

    /// A server gets them, each parameter's as one of its own.
    pub(super) fn receive(
        &mut self,
        step: &Step<'_>,
        route: RouteId,
        to: View,
        found: &mut Vec<Violation>,
    ) {
        if self.sums.get(&place(to)).is_some_and(Sum::is_pending) {
            let tensor = step.tensor_name(to.tensor);
            found.push(Violation::Lost { at: step.site(), tensor });
        }
        let parts = self.sent.get_mut(&route).and_then(VecDeque::pop_front).unwrap_or_default();
        let own = |(value, parts)| {
            let bucket = self.bucket(step, to)?;
            let is_it = |param: &&ParamId| step.class.param(**param).value == value;
            Some((*bucket.params.iter().find(is_it)?, parts))
        };
        let parts = parts.into_iter().filter_map(own).collect();
        self.sums.insert(place(to), Sum { parts, ..Sum::default() });
    }

    /// A server adds a worker's gradients to those of others.
    pub(super) fn add_up(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let (read, to) = (step.instruction.reads[0], step.instruction.writes[0].to);
        self.require_reduced(step, read, found);
        let sum = self.sums.entry(place(read)).or_default();
        let added = (!sum.is_used).then(|| std::mem::take(&mut sum.parts));
        sum.is_used = true;
        let sum = self.sums.entry(place(to)).or_default();
        match added.filter(|parts| !parts.is_empty() && sum.is_pending()) {
            None => {
                let tensor = step.tensor_name(to.tensor);
                found.push(Violation::ReducedTwice { at: step.site(), tensor });
            }
            Some(added) => {
                for (param, parts) in added {
                    sum.parts.entry(param).or_default().extend(parts);
                }
            }
        }
    }
}
