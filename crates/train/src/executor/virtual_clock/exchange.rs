//! Collectives that are carried out on the contributions of all members at once, in the order of their step lists.

use shardloom_collectives::{Counts, Member, Reduction, StepList, all_to_all_v, plan};
use shardloom_fabric::{Reduce, apply, apply_fused};
use shardloom_kernels::Arithmetic;
use shardloom_program::Exchange;
use shardloom_sim::Call;

use crate::executor::communicators::reduction;
use crate::rank::{Brought, Contribution, Rank, RowExchange};

/// Carries a collective out on all members' contributions, in the order of its step list.
pub(super) fn exchange(rank: &Rank, call: &Call<'_>, members: &mut [Contribution]) {
    let spec = rank.program().exchange(rank.class(), rank.position(), call.instruction);
    let Some(spec) = spec.filter(|spec| members.len() > 1 && spec.elements > 0) else {
        return;
    };
    if let Brought::Rows(_) = members[0].part {
        exchange_rows(rank, members);
        return;
    }
    let list = steps(&spec, members.len());
    let outcome = apply(&list, members, (&Arithmetic, reduction(call.instruction)));
    outcome.expect("contributions have the collective's size");
}

/// Carries several collectives out as one, which `all` of them together are: of each member what it brings into each.
pub(super) fn exchange_fused(all: &Exchange, first: &Call<'_>, members: &mut [Vec<Contribution>]) {
    if members.len() > 1 && all.elements > 0 {
        let list = steps(all, members.len());
        let how = (&Arithmetic as &dyn Reduce, reduction(first.instruction));
        let outcome = apply_fused(&list, members, how);
        outcome.expect("contributions have the collective's size");
    }
}

fn steps(exchange: &Exchange, members: usize) -> StepList {
    plan(exchange.kind, exchange.algorithm, members as u32, exchange.elements)
        .expect("the plan's validation and `exchange` choose algorithms that exist")
}

/// Exchanges the rows of all members.
fn exchange_rows(rank: &Rank, members: &mut [Contribution]) {
    let mut all: Vec<&mut RowExchange> = members
        .iter_mut()
        .map(|member| match &mut member.part {
            Brought::Rows(rows) => rows,
            Brought::Elements(..) | Brought::Scalar(_) => {
                unreachable!("members bring the same kind of thing")
            }
        })
        .collect();
    let sent = |from: Member, to: Member| all[from.0 as usize].sent[to.0 as usize];
    let list = all_to_all_v(&Counts::new(all.len() as u32, sent));
    let brought = |rows: &&mut RowExchange| {
        let sent = rows.sent.iter().sum();
        let mut values = rank.device().reals(rows.buffer.view().slice(0..sent));
        values.resize(list.elements, 0.0);
        values
    };
    let mut values: Vec<Vec<f32>> = all.iter().map(brought).collect();
    list.apply(&mut values, Reduction::Sum).expect("contributions have the list's size");
    for (rows, values) in all.iter_mut().zip(values) {
        let sent: usize = rows.sent.iter().sum();
        let received: usize = rows.received.iter().sum();
        let room = rows.buffer.view_mut().slice(0..received);
        rank.device().set_reals(&values[sent..sent + received], room);
    }
}
