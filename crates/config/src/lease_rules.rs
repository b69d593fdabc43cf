//! Checks the durations of leases.

use std::time::Duration;

use crate::code::Code;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::formats::StoreLocation;
use crate::value::{Fields, Value};

/// The minimum duration of a lease.
const MIN: Duration = Duration::from_millis(100);
/// The duration at which a lease in a MongoDB store outlives an election. A failed primary is detected
/// after 10 seconds and replaced within two more. The margin covers the time since the last renewal, and
/// the time before the end at which the holder gives the lease up.
const OUTLIVES_ELECTION: Duration = Duration::from_secs(20);

pub(crate) fn check(top: &Fields, fields: &Fields, findings: &mut Findings) {
    let Some(advanced) = fields.section("advanced") else { return };
    let (Some(lease), Some(span)) = (advanced.duration("lease"), advanced.span("lease")) else { return };
    let in_mongodb =
        matches!(top.get("store").map(|field| &field.value), Some(Value::Store(StoreLocation::Mongodb(_))));
    if lease < MIN {
        let finding = FindingBuilder::new(Code::OutOfRange, span, "`lease` must be at least 100ms");
        findings.add(finding.hint("write `30s`, or remove the key to use the default of 30s"));
    } else if in_mongodb && lease < OUTLIVES_ELECTION {
        let message = "`lease` may end while the store elects a primary, which takes up to 12 s";
        let finding = FindingBuilder::new(Code::LeaseBelowElection, span, message);
        findings.add(finding.hint("write `20s` or more, or remove the key to use the default of 30s"));
    }
}
