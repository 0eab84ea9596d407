//! What a plan costs.

use serde::Serialize;
use shardloom::Plan;
use shardloom::cluster::{Cluster, DeviceId, DeviceKind};
use shardloom::program::quantity::digits;

/// Prices in US dollars of all devices that a plan uses, where the price of each is known.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Of an hour, rented on demand.
    pub per_hour: Option<f64>,
    per_step: Option<f64>,
    pub per_sample: Option<f64>,
    /// Of a token, or whatever else targets of samples are; null where a sample has one target only.
    per_token: Option<f64>,
    /// To own the devices.
    pub to_buy: Option<f64>,
}

impl Cost {
    /// The cost of steps that take `step_seconds`, whose samples have so many targets; none where neither
    /// price is known.
    pub fn of(
        plan: &Plan,
        cluster: &Cluster,
        step_seconds: f64,
        targets_per_sample: usize,
    ) -> Option<Cost> {
        let devices = plan.devices();
        let sum = |price: fn(&DeviceKind) -> Option<f64>| {
            let prices =
                devices.iter().map(|&device| price(cluster.kind_of(DeviceId(device)).ok()?));
            prices.sum::<Option<f64>>()
        };
        let per_hour = sum(|device| device.price_per_hour);
        let to_buy = sum(|device| device.price_to_buy);
        let per_step = per_hour.map(|price| price * step_seconds / 3600.0);
        let per_sample = per_step.map(|price| price / plan.global_batch as f64);
        let tokens = Some(targets_per_sample as f64).filter(|&targets| targets > 1.0);
        let per_token = per_sample.zip(tokens).map(|(price, tokens)| price / tokens);
        (per_hour.is_some() || to_buy.is_some()).then_some(Cost {
            per_hour,
            per_step,
            per_sample,
            per_token,
            to_buy,
        })
    }

    /// What is said of it, in a line.
    pub fn described(&self) -> String {
        let mut said = vec![];
        if let Some((hour, step)) = self.per_hour.zip(self.per_step) {
            said.push(format!("{} US dollars an hour", dollars(hour)));
            said.push(format!("{} for 1,000 steps", dollars(1e3 * step)));
        }
        match (self.per_token, self.per_sample) {
            (Some(token), _) => said.push(format!("{} for a million tokens", dollars(1e6 * token))),
            (None, Some(sample)) => {
                said.push(format!("{} for a million samples", dollars(1e6 * sample)));
            }
            (None, None) => {}
        }
        if let Some(price) = self.to_buy {
            let unit = if said.is_empty() { " US dollars" } else { "" };
            said.push(format!("{}{unit} to buy the devices", dollars(price)));
        }
        said.join(", ")
    }
}

/// A price with at least three significant digits.
pub fn dollars(price: f64) -> String {
    match price {
        price if price >= 1.0 || price <= 0.0 => digits(price),
        price => {
            let decimals = (2.0 - price.log10().floor()).clamp(2.0, 12.0);
            format!("{price:.*}", decimals as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_keep_three_digits() {
        let shown = [0.0, 0.000_123_4, 0.0567, 0.123, 4.5, 1234.6].map(dollars);
        assert_eq!(shown, ["0.00", "0.000123", "0.0567", "0.123", "4.50", "1,235"]);
    }
}
