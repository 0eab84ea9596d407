//! A schedule that is written down: each device's order as a line of actions.
//!
//! In a plan, for two stages and two micro-batches:
//!
//! ```toml
//! schedule = "table"
//! order = ["F0 F1 B0 B1", "F0 B0 F1 B1"]
//! ```

use super::{Chain, Schedule, StageMap, check};
use crate::ScheduleError;

impl Schedule {
    /// Reads each device's order: its actions in the form of [`StageMap::text`], with spaces between them.
    /// A `.` is an idle slot, as tables are drawn; it says nothing, since only the order counts.
    ///
    /// # Errors
    /// If there are not as many orders as devices, if something is no action, or if the orders break a
    /// promise of schedules: [`check()`] with as many messages on a way as there can be.
    pub fn from_table(map: StageMap, orders: &[String]) -> Result<Schedule, ScheduleError> {
        if orders.len() != map.devices() {
            let message = format!(
                "a table has one order for each device: {} devices, {} orders",
                map.devices(),
                orders.len()
            );
            return Err(ScheduleError::Rule(message));
        }
        let order = |(device, order): (usize, &String)| {
            let actions = order.split_whitespace().filter(|&action| action != ".");
            let notation = map.notation(device);
            actions.map(|action| notation.parse(action)).collect()
        };
        let orders = orders.iter().enumerate().map(order).collect::<Result<_, _>>()?;
        let schedule = Schedule { map, orders };
        if schedule.ahead() > 0 {
            // Pipelines that are in different steps at a time keep turns over all of them.
            schedule.map.require_even_shares()?;
        }
        // There and back is as far ahead as anything is gained.
        let longest = schedule.map.chains().iter().map(Chain::stages).max().unwrap_or(0);
        if schedule.ahead() as usize > 2 * longest {
            let message = format!(
                "a device runs {} steps ahead; more than {}, there and back through all stages, gains \
                 nothing",
                schedule.ahead(),
                2 * longest
            );
            return Err(ScheduleError::Rule(message));
        }
        let most = (schedule.ahead() as usize + 2) * schedule.map.microbatches() as usize;
        check(&schedule, most)?;
        Ok(schedule)
    }
}
