//! Orders that are written down.

use shardloom_plan::{Arrangement, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap};

use super::{ALIKE, schedule, text};

fn read(places: &[usize], microbatches: usize, orders: &[&str]) -> Result<Schedule, String> {
    let map = StageMap::new(vec![places.to_vec()], microbatches).expect("a map");
    let orders: Vec<String> = orders.iter().map(|&order| order.to_owned()).collect();
    Schedule::from_table(map, &orders).map_err(|error| error.to_string())
}

#[test]
fn every_schedule_is_read_as_it_is_written() {
    for kind in ScheduleKind::ALL.into_iter().filter(|&kind| kind != ScheduleKind::Table) {
        let stages = match kind.arrangement() {
            None | Some(Arrangement::Chain | Arrangement::TakingTurns) => 1,
            Some(_) => 2,
        };
        let built = schedule(kind, 4, stages, 8, &ALIKE);
        let written: Vec<String> = (0..4).map(|device| text(&built, device)).collect();
        assert_eq!(Schedule::from_table(built.map.clone(), &written), Ok(built), "{kind:?}");
    }
}

#[test]
fn idle_slots_and_any_space_are_only_for_the_eye() {
    let plain = read(&[0, 1], 2, &["F0 F1 B0 B1", "F0 B0 F1 B1"]);
    let drawn = read(&[0, 1], 2, &["F0 F1 .  B0 .  B1", ".  F0\nB0 F1\tB1 . "]);
    assert!(plain.is_ok());
    assert_eq!(plain, drawn);
}

#[test]
fn a_table_may_need_several_messages_on_a_way() {
    assert!(read(&[0, 1], 2, &["F0 F1 B1 B0", "F1 F0 B1 B0"]).is_ok());
}

#[test]
fn what_is_wrong_is_said_with_device_and_pass() {
    let cases: [(&[&str], &str); 5] = [
        (&["F0 F1 B0 B1"], "schedule: a table has one order for each device: 2 devices, 1 orders"),
        (
            &["F0 F1 B0 B1", "F0 X0 F1 B1"],
            "schedule: device 1: \"X0\" is no pass: write a pass (F, B, I or W), a micro-batch, @chunk \
             where the device holds several stages, < for the reverse direction: F3, W0@1, B2<",
        ),
        (&["F0 F1 B0 B1", "F0 B0 F1"], "schedule: device 1 never runs B1"),
        (
            &["F0 F1 B0 B1 B1", "F0 B0 F1 B1"],
            "schedule: device 0 runs, twice or where it does not belong, B1",
        ),
        (
            &["F0 B0 F1 B1", "F1 B1 F0 B0"],
            "schedule: deadlock with 4 buffers: device 0 at B0, device 1 at F1",
        ),
    ];
    for (orders, message) in cases {
        assert_eq!(read(&[0, 1], 2, orders), Err(message.to_owned()));
    }
}

#[test]
fn a_table_that_runs_ahead_deals_micro_batches_evenly() {
    let map = StageMap::new(vec![vec![0, 1], vec![1, 0]], 3).expect("a map");
    let orders = ["F3 F0 B0 F2 B2 B1<", "F0 B0 F1< F2 B2 B1<"].map(str::to_owned);
    let refused = Schedule::from_table(map, &orders).expect_err("the first pipeline gets one more");
    let message = "schedule: 3 micro-batches cannot be dealt evenly to 2 pipelines";
    assert_eq!(refused.to_string(), message);
}

#[test]
fn a_table_runs_no_further_ahead_than_there_and_back_through_all_stages() {
    assert!(read(&[0], 1, &["F2 B0"]).is_ok());
    let rule = "more than 2, there and back through all stages, gains nothing";
    let refused = format!("schedule: a device runs 3 steps ahead; {rule}");
    assert_eq!(read(&[0], 1, &["F3 B0"]), Err(refused));
}

#[test]
fn pipelines_and_stages_are_numbered_in_16_bits() {
    let refusal = |places, shares: &[usize]| {
        StageMap::with_shares(places, shares).expect_err("too many").to_string()
    };
    let stages = refusal(vec![vec![0; 1 << 16]], &[1]);
    assert_eq!(stages, "schedule: 65536 stages with 1 micro-batches: too many");
    let pipelines = refusal(vec![vec![0]; 1 << 16], &[1; 1 << 16]);
    assert_eq!(pipelines, "schedule: 1 stages with 65536 micro-batches: too many");
}

#[test]
fn a_table_cannot_be_built_without_its_order() {
    let map = StageMap::arranged(Arrangement::Chain, 2, 1, 2).expect("a map");
    let refused = Schedule::build(ScheduleKind::Table, map, &ALIKE).expect_err("it has no order");
    assert!(refused.to_string().contains("`order`"), "{refused}");
}
