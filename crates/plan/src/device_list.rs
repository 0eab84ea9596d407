//! Lists of devices, written compactly.

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// Devices in the order of mesh positions, written as comma-separated numbers and half-open ranges:
/// `0..8, 16, 18`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceList(pub Vec<u32>);

impl DeviceList {
    /// More devices than any cluster has; a longer range is a slip of the pen.
    pub(crate) const MOST: usize = 1 << 20;
}

impl TryFrom<String> for DeviceList {
    type Error = PlanError;

    fn try_from(text: String) -> Result<DeviceList, PlanError> {
        let mut devices = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |rule: &str| PlanError::field("devices", format!("{part:?}"), rule);
            let number = |text: &str| {
                let rule = "devices are numbers and ranges such as \"0..8, 16\"";
                text.trim().parse::<u32>().map_err(|_| wrong(rule))
            };
            let (first, end) = match part.split_once("..") {
                Some((first, end)) => (number(first)?, number(end)?),
                None => (number(part)?, number(part)?.saturating_add(1)),
            };
            if first >= end
                || (end - first) as usize > DeviceList::MOST
                || devices.len() > DeviceList::MOST
            {
                return Err(wrong("a range needs a larger end, and at most a million devices"));
            }
            devices.extend(first..end);
        }
        Ok(DeviceList(devices))
    }
}

impl From<DeviceList> for String {
    fn from(list: DeviceList) -> String {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for device in list.0 {
            match parts.last_mut() {
                Some((_, end)) if *end == device => *end += 1,
                _ => parts.push((device, device.saturating_add(1))),
            }
        }
        let text = |&(first, end): &(u32, u32)| match end - first {
            1 => first.to_string(),
            _ => format!("{first}..{end}"),
        };
        parts.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}
