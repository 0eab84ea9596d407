//! What words of a plan go together: each refusal beside the nearest plan that is none of its cases.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use shardloom_graph::{AttentionKind, Graph, ModelSpec};
use shardloom_plan::{
    Averaging, Axis, AxisSet, Communication, Compression, DeviceList, LayoutRule, LossScale, Mesh,
    Negotiation, Number, Optimizer, ParameterGroup, Plan, Precision, Push, Recompute, Rounding,
    ScheduleKind, SendOrder, Servers, Share, Staleness, Summation, Sync, Uniform,
};

use crate::scenario::{DEVICES, complaint, graph, plan, rules};

fn refusal(plan: &Plan, graph: &Graph) -> Option<String> {
    plan.validate(graph, DEVICES).err().map(|error| error.to_string())
}

/// Two workers of the whole model, with what `sync` says of servers.
fn workers(sync: Sync) -> Plan {
    let mesh = Mesh::of(2, 1, 1);
    let uniform = Uniform { mesh, global_batch: 24, microbatches: 2, sync, ..Uniform::default() };
    uniform.plan(&graph(), "model", "local")
}

fn held(servers: Servers) -> Plan {
    workers(Sync { servers: Some(servers), ..Sync::default() })
}

fn summed(summation: Summation) -> Plan {
    workers(Sync { summation: Some(summation), ..Sync::default() })
}

fn synchronous() -> Servers {
    Servers::of(1, Staleness::SYNCHRONOUS)
}

#[track_caller]
fn refuses(plan: &Plan, key: &str, rule: &str) {
    let found = refusal(plan, &graph()).expect("there is no such plan");
    assert!(found.starts_with(&format!("{key} = ")) && found.contains(rule), "{found}");
}

#[track_caller]
fn takes(plan: &Plan) {
    assert_eq!(refusal(plan, &graph()), None);
}

/// Steps that overlap have no end at which all gradients are there and all weights the same.
#[test]
fn what_needs_the_end_of_a_step_is_of_all_schedules_with_a_flush_and_of_no_others() {
    let mut flushes = BTreeSet::new();
    for schedule in ScheduleKind::ALL.into_iter().filter(|&it| it != ScheduleKind::Table) {
        let sync = Sync { zero: 3, ..Sync::default() };
        let uniform = Uniform {
            pp: 2,
            mesh: Mesh::of(4, 1, 1),
            global_batch: 32,
            microbatches: 8,
            schedule,
            ..Uniform::default()
        };
        let with =
            |sync: Sync| Uniform { sync, ..uniform.clone() }.plan(&graph(), "model", "local");
        let plain = with(Sync::default());
        if refusal(&plain, &graph()).is_some() {
            // Those with several stages on each device.
            continue;
        }
        let is_one = plain.pipeline.len() == 1;
        let named = |plan: Plan, key: &str| {
            let found = refusal(&plan, &graph());
            let expected = (!schedule.flushes()).then_some(key);
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(key)) if found.starts_with(key) => {}
                _ => panic!("{}: {found:?} for {expected:?}", schedule.name()),
            }
        };
        named(Plan { post_validation: true, ..plain.clone() }, "post_validation = true");
        let averaging = Some(Averaging::local_sgd(2));
        let averaged = with(Sync { averaging, ..Sync::default() });
        if is_one {
            named(averaged, "weights.rule = ");
            let negotiation = Some(Negotiation::default());
            let negotiated = with(Sync { negotiation, ..Sync::default() });
            let communication = Communication::Thread;
            named(Plan { communication, ..negotiated }, "weights.rule = ");
        }
        if refusal(&with(sync), &graph()).is_none() {
            let shared = |mut plan: Plan| {
                plan.axes.push(Axis::named("half").expect("a name"));
                let half = plan.axes[plan.axes.len() - 1];
                for stage in plan.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
                    stage.mesh = Mesh::of(2, 1, 1).with(half, 2).arranged(&plan.axes);
                }
                plan.layout.0.push(LayoutRule { dim: "batch".into(), axis: half });
                plan.sync.second_copy_over = AxisSet::of(&[half]);
                plan
            };
            named(shared(with(sync)), "sync.second_copy_over = ");
        }
        flushes.insert(schedule.flushes());
    }
    assert_eq!(flushes, BTreeSet::from([false, true]));
    let asynchronous = |mut plan: Plan| {
        plan.schedule = ScheduleKind::PipeDream;
        plan.weights = plan.schedule.usual_weights();
        plan
    };
    for plan in [held(synchronous()), summed(Summation::of(1))] {
        takes(&plan);
        refuses(&asynchronous(plan), "weights.rule", "a worker has one set of weights in a step");
    }
}

#[test]
fn only_models_with_attention_have_it_fused() {
    let mlp = ModelSpec::parse("mlp:inputs=8,hidden=16,layers=2,classes=4");
    let mlp = mlp.and_then(|spec| spec.graph()).expect("a model");
    for (graph, fuses) in [(&graph(), true), (&mlp, false)] {
        let plan = Uniform { global_batch: 8, ..Uniform::default() }.plan(graph, "model", "local");
        for attention in [AttentionKind::Unfused, AttentionKind::Fused] {
            let found = refusal(&Plan { attention, ..plan.clone() }, graph);
            let is_taken = fuses || attention == AttentionKind::Unfused;
            assert_eq!(found.is_none(), is_taken, "{found:?}");
            assert!(found.iter().all(|it| it.contains("no attention to fuse")), "{found:?}");
        }
    }
}

#[test]
fn weights_are_rounded_stochastically_where_some_that_are_trained_have_no_copy() {
    for compute in [Number::Fp32, Number::Bf16, Number::Fp16] {
        for bits in 0..16 {
            let [master, own, has_group, frozen] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
            let mut plan = plan();
            plan.clip_norm = None;
            plan.precision = Precision { compute, master, ..Precision::STOCHASTIC };
            if has_group {
                // What is frozen has no copy, and nobody rounds it.
                let own = (!frozen).then_some(own);
                plan.parameters = vec![ParameterGroup {
                    master: own,
                    frozen,
                    ..ParameterGroup::named("embedding.*")
                }];
            }
            let of_group = has_group && !frozen && !own;
            let expected = compute == Number::Bf16 && (!master || of_group);
            let found = plan.validate(&graph(), DEVICES).err().map(|it| it.to_string());
            let refused = found.as_ref().is_some_and(|it| it.starts_with("precision.rounding"));
            assert_eq!(refused, !expected, "{:?} {:?}: {found:?}", plan.precision, plan.parameters);
            plan.precision.rounding = Rounding::Nearest;
            let found = plan.validate(&graph(), DEVICES).err().map(|it| it.to_string());
            assert!(!found.is_some_and(|it| it.starts_with("precision.rounding")));
        }
    }
}

#[test]
fn each_of_several_pipelines_has_a_micro_batch() {
    for microbatches in 1..=4 {
        let schedule = ScheduleKind::Chimera;
        let uniform =
            Uniform { pp: 2, global_batch: 12, microbatches, schedule, ..Uniform::default() };
        let plan = uniform.plan(&graph(), "model", "local");
        assert_eq!(plan.pipeline.len(), 2);
        match microbatches {
            1 => refuses(&plan, "microbatches", "one for each of 2 pipelines"),
            _ => takes(&plan),
        }
    }
}

#[test]
fn servers_hold_weights_or_sum_gradients() {
    let mut plan = held(synchronous());
    takes(&plan);
    plan.sync.summation = Some(Summation::of(1));
    refuses(&plan, "sync.summation.servers", "and not both");
}

/// Servers that only sum leave updates, and so the norm, to the workers.
#[test]
fn servers_that_update_do_not_know_the_norm_of_all_gradients() {
    let clipped = |plan: Plan| Plan { clip_norm: Some(1.0), ..plan };
    let looked_at = |plan: Plan| Plan { skip_non_finite: true, ..plan };
    let scaled = |plan: Plan| {
        let precision = Precision { compute: Number::Fp16, ..Precision::MIXED };
        Plan { loss_scale: Some(LossScale::dynamic()), precision, ..plan }
    };
    type Asks<'a> = &'a dyn Fn(Plan) -> Plan;
    let asks: [(&str, Asks<'_>); 3] =
        [("clip_norm", &clipped), ("skip_non_finite", &looked_at), ("loss_scale", &scaled)];
    for (key, ask) in asks {
        refuses(&ask(held(synchronous())), key, "by what all gradients come to");
        takes(&ask(summed(Summation::of(1))));
    }
}

#[test]
fn momentum_of_so_many_samples_is_of_servers_that_update_once_a_step() {
    let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(24) };
    for staleness in [Staleness::SYNCHRONOUS, Staleness::Within(1), Staleness::Unbounded] {
        for push in [Push::Gradients, Push::Deltas] {
            let servers = Servers { push, ..Servers::of(1, staleness) };
            let plan = Plan { optimizer, ..held(servers) };
            match (staleness, push) {
                (Staleness::SYNCHRONOUS, Push::Gradients) => takes(&plan),
                _ => refuses(&plan, "optimizer.reference_batch", "none for so many samples"),
            }
            takes(&Plan { optimizer: Optimizer::sgd(0.9), ..plan });
        }
    }
}

#[test]
fn servers_sum_some_share_and_only_pieces_that_wait_for_their_turn_have_credits() {
    let share = |part: f64| summed(Summation { share: Share::Part(part), ..Summation::of(1) });
    for part in [f64::MIN_POSITIVE, 0.5, 1.0] {
        takes(&share(part));
    }
    for part in [0.0, -0.5, 1.0f64.next_up(), f64::NAN, f64::INFINITY] {
        refuses(&share(part), "sync.summation.share", "above 0 and up to 1");
    }
    takes(&summed(Summation { share: Share::Balanced, ..Summation::of(1) }));
    for order in [SendOrder::Backward, SendOrder::NextUse] {
        takes(&summed(Summation { order, ..Summation::of(1) }));
        let credits = NonZeroU32::new(3);
        let plan = summed(Summation { order, credits, ..Summation::of(1) });
        match order {
            SendOrder::Backward => refuses(&plan, "sync.summation.credits", "no credits"),
            SendOrder::NextUse => takes(&plan),
        }
        let most = |credits| Summation { order, credits, ..Summation::of(1) }.most_under_way();
        let expected = if order == SendOrder::NextUse { [Some(4), Some(3)] } else { [None; 2] };
        assert_eq!([None, credits].map(most), expected);
    }
}

#[test]
fn groups_of_parameters_name_servers_that_there_are() {
    let group = |servers: &[u32]| ParameterGroup {
        servers: Some(servers.to_vec()),
        ..ParameterGroup::named("head*")
    };
    for servers in [&[][..], &[0], &[1], &[0, 1], &[2]] {
        let with = |plan: Plan| Plan { parameters: vec![group(servers)], ..plan };
        refuses(&with(plan()), "parameters[0].servers", "this one has none");
        let two = with(summed(Summation::of(2)));
        match servers {
            [2] => refuses(&two, "parameters[0].servers", "there is no server 2"),
            _ => takes(&two),
        }
    }
    let plain = |plan: Plan| Plan { parameters: vec![ParameterGroup::named("head*")], ..plan };
    takes(&plain(plan()));
    refuses(&plain(held(synchronous())), "parameters[0]", "there are no groups");
}

#[test]
fn only_replicas_that_exchange_gradients_compress_them() {
    let feedback =
        [false, true].map(|feedback| Compression::Rounded { to: Number::Fp16, feedback });
    for compression in [feedback[0], feedback[1], Compression::OneBit, Compression::TopK { of: 8 }]
    {
        let with = |mut plan: Plan| {
            plan.sync.compression = compression;
            plan
        };
        takes(&with(plan()));
        refuses(&with(held(synchronous())), "sync.compression", "there are no servers");
        refuses(&with(summed(Summation::of(1))), "sync.compression", "there are no servers");
        let mut averaged = Plan { clip_norm: None, ..plan() };
        averaged.sync.averaging = Some(Averaging::local_sgd(2));
        takes(&averaged);
        refuses(&with(averaged), "sync.compression", "leave sync.averaging out");
    }
}

#[test]
fn rows_of_tables_are_exchanged_in_a_fixed_order() {
    let mesh = Mesh::of(2, 1, 1);
    let untied = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=false";
    let graph = ModelSpec::parse(untied).and_then(|spec| spec.graph()).expect("a model");
    for (sparse, negotiates) in [(false, false), (false, true), (true, false), (true, true)] {
        let negotiation = negotiates.then(Negotiation::default);
        let sync = Sync { sparse, negotiation, ..Sync::default() };
        let uniform = Uniform { mesh, global_batch: 24, sync, ..Uniform::default() };
        let found = refusal(&uniform.plan(&graph, "model", "local"), &graph);
        match sparse && negotiates {
            true => {
                let found = found.expect("no such plan");
                assert!(
                    found.starts_with("sync.sparse = true") && found.contains("fixed"),
                    "{found}"
                );
            }
            false => assert_eq!(found, None),
        }
    }
}

/// Replicas that hold different parts of a weight, or of the sequence, depend on each other in passes.
#[test]
fn replicas_are_averaged_along_axes_that_split_nothing_but_the_batch() {
    let averaged = |also: Option<&str>| {
        let mut plan = Plan { clip_norm: None, ..plan() };
        plan.sync.averaging = Some(Averaging::local_sgd(2));
        let axis = Axis::DP;
        plan.layout.0.extend(also.map(|dim| LayoutRule { dim: dim.into(), axis }));
        plan
    };
    takes(&averaged(None));
    assert_eq!(averaged(None).averaged_axes(&graph()), [Axis::DP]);
    let dims: Vec<String> = graph().dims().iter().map(|dim| dim.name.clone()).collect();
    for dim in dims.iter().filter(|dim| *dim != "batch") {
        let plan = averaged(Some(dim));
        assert_eq!(plan.averaged_axes(&graph()), [], "{dim}");
        refuses(&plan, "sync.averaging.over", "of which the layout has none");
    }
}

#[test]
fn the_last_micro_batch_is_spared_where_others_are_computed_twice() {
    let kinds = [Recompute::None, Recompute::Selective, Recompute::Block];
    let own = || kinds.into_iter().map(Some).chain([None]);
    for (of_plan, first) in kinds.into_iter().flat_map(|it| own().map(move |own| (it, own))) {
        for (second, recompute_last) in own().flat_map(|it| [(it, false), (it, true)]) {
            let mut plan = Plan { recompute: of_plan, recompute_last, ..plan() };
            let stages = &mut plan.pipeline[0].stage;
            (stages[0].recompute, stages[1].recompute) = (first, second);
            let any =
                [first, second].into_iter().any(|it| it.unwrap_or(of_plan) != Recompute::None);
            assert_eq!(plan.spares_last(), any && !recompute_last);
        }
    }
}

#[test]
fn ranges_of_devices_have_some() {
    for (first, end) in (0..6u32).flat_map(|first| (0..6).map(move |end| (first, end))) {
        let found = DeviceList::try_from(format!("{first}..{end}, 9"));
        match first < end {
            true => {
                let devices: Vec<u32> = (first..end).chain([9]).collect();
                assert_eq!(found.expect("a list").0, devices);
            }
            false => assert!(found.expect_err("none").to_string().contains("a larger end")),
        }
    }
}

/// By trying sizes one by one.
#[test]
fn a_vocabulary_that_ranks_do_not_divide_is_told_the_next_ones_that_they_do() {
    for (width, vocab) in (2..=8u32).flat_map(|width| (90..140).map(move |it| (width, it))) {
        let text = format!("gpt:layers=1,hidden=8,heads=2,seq=4,vocab={vocab}");
        let graph = ModelSpec::parse(&text).and_then(|spec| spec.graph()).expect("a model");
        let mesh = Mesh::of(1, 1, width);
        let mut plan = Uniform { mesh, ..Uniform::default() }.plan(&graph, "model", "local");
        plan.layout = rules("batch:dp, vocab:tp");
        let divides = |size: &usize| size.is_multiple_of(width as usize);
        if divides(&vocab) {
            assert_eq!(refusal(&plan, &graph), None);
            continue;
        }
        let found = refusal(&plan, &graph).expect("it does not divide");
        let multiple = (1..).find(|it| divides(it) && it.is_multiple_of(128)).expect("one");
        let next = (vocab..).find(divides).expect("one");
        let usual = (vocab..).find(|it| it.is_multiple_of(multiple)).expect("one");
        let rule = format!(
            "it must divide vocab = {vocab}; the next size that it divides is {next}, and {usual}, a multiple of \
             {multiple}, is a usual one"
        );
        assert!(found.contains(&rule), "{found}");
        assert!(found.contains(&format!("padded_vocab={usual} ")), "{found}");
        assert!(found.contains(&format!("--pad-vocabulary {multiple},")), "{found}");
    }
}

#[test]
fn words_are_read_as_they_are_named() {
    for order in [SendOrder::Backward, SendOrder::NextUse] {
        assert_eq!(order.to_string().parse(), Ok(order));
    }
    for share in [Share::Balanced, Share::Part(0.25), Share::Part(1.0)] {
        assert_eq!(share.to_string().parse(), Ok(share));
    }
    for staleness in [0, 1, 7].map(Staleness::Within).into_iter().chain([Staleness::Unbounded]) {
        assert_eq!(staleness.to_string().parse(), Ok(staleness));
        assert_eq!(staleness.bound(), staleness.to_string().parse().ok());
    }
    for push in [Push::Gradients, Push::Deltas] {
        assert_eq!(push.name().parse(), Ok(push));
    }
    for text in ["", "next", "-1", "half", "inf", "NaN", "4294967296", "Gradients"] {
        assert!(text.parse::<SendOrder>().is_err() && text.parse::<Push>().is_err(), "{text}");
        assert!(text.parse::<Staleness>().is_err(), "{text}");
        assert_eq!(text.parse::<Share>().is_ok(), ["-1", "4294967296"].contains(&text), "{text}");
    }
}

#[test]
fn settings_out_of_place_are_named_by_their_key() {
    assert_eq!(complaint(|it| it.sync.zero = 4), "sync.zero = 4: a ZeRO stage is 0 to 3");
    for zero in 0..=3 {
        let mut plan = plan();
        plan.sync.zero = zero;
        takes(&plan);
        plan.sync.splits_blocks = true;
        assert_eq!(refusal(&plan, &graph()).is_none(), zero <= 2, "splits_blocks with {zero}");
        (plan.sync.splits_blocks, plan.sync.all_reduces) = (false, true);
        assert_eq!(refusal(&plan, &graph()).is_none(), zero == 1, "all_reduces with {zero}");
    }
}

/// Groups of replicas share among themselves, unless all share and the groups only have a second copy.
#[test]
fn replicas_that_are_cut_into_groups_share_in_their_groups() {
    let mesh = Mesh::of(2, 2, 1).with(Axis::REPLICA, 2);
    let dp = AxisSet::of(&[Axis::DP]);
    for (mesh, among) in [
        (mesh, AxisSet::of(&[Axis::DP, Axis::CP])),
        (Mesh::of(4, 1, 1).with(Axis::REPLICA, 2), dp),
        (Mesh::of(1, 2, 1).with(Axis::REPLICA, 2), AxisSet::of(&[Axis::CP])),
        (Mesh::of(1, 1, 1).with(Axis::REPLICA, 2), dp),
        (Mesh::of(4, 1, 1), None),
    ] {
        for zero in 0..=3 {
            for second_copy_over in [None, dp] {
                let sync = Sync { zero, second_copy_over, ..Sync::default() };
                let plan = Uniform { mesh, sync, ..Uniform::default() };
                let plan = plan.plan(&graph(), "model", "local");
                let expected = among.filter(|_| zero > 0 && second_copy_over.is_none());
                assert_eq!(plan.sync.shard_over, expected, "{mesh} with zero = {zero}");
            }
        }
    }
}

#[test]
fn steps_are_left_out_where_that_is_asked_for_or_the_loss_is_scaled() {
    for bits in 0..8 {
        let [clips, skips, scales] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        let plan = Plan {
            clip_norm: clips.then_some(1.0),
            skip_non_finite: skips,
            loss_scale: scales.then(LossScale::dynamic),
            ..plan()
        };
        assert_eq!(plan.leaves_out_non_finite(), skips || scales);
        assert_eq!(plan.looks_at_norm(), clips || skips || scales);
    }
}
