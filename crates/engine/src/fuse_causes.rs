//! The causes of the most recent messages that failed for good. A blown fuse names the most frequent
//! cause.

use std::collections::{HashMap, VecDeque};

use lazaret_core::policy::Blown;
use lazaret_core::store::GroupId;
use lazaret_core::{Failure, QueueName, Reason};

/// The number of failures whose causes are kept (I7).
const KEPT: usize = 256;

/// The causes of the most recent messages that failed for good, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FuseCauses(VecDeque<Cause>);

#[derive(Debug)]
struct Cause {
    group: GroupId,
    reason: Reason,
    /// The HTTP status of the handler's response, if there is one.
    status: Option<u16>,
}

impl FuseCauses {
    pub(crate) fn add(&mut self, queue: &QueueName, failure: &Failure) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        let Failure { fingerprint, reason, status, .. } = failure;
        let group = GroupId { queue: queue.clone(), fingerprint: *fingerprint };
        self.0.push_back(Cause { group, reason: reason.clone(), status: *status });
    }

    pub(crate) fn reset(&mut self) {
        self.0.clear();
    }

    /// Explains a blown fuse: the number of failures and the group that most of them belong to. The
    /// group id is complete, because other queues may have a group with the same fingerprint.
    pub(crate) fn explain(&self, blown: &Blown) -> String {
        let failed = match blown {
            Blown::Share { terminal, .. } => *terminal,
            Blown::InARow { count } => *count,
            _ => u32::MAX,
        };
        let last = self.0.len().saturating_sub(usize::try_from(failed).unwrap_or(usize::MAX));
        let recent: Vec<&Cause> = self.0.iter().skip(last).collect();
        let mut groups: HashMap<&GroupId, (usize, &Reason)> = HashMap::new();
        for cause in &recent {
            groups.entry(&cause.group).or_insert((0, &cause.reason)).0 += 1;
        }
        // The id breaks ties, so that the text is the same in every run.
        let top = groups.into_iter().max_by(|(a, (n, _)), (b, (m, _))| n.cmp(m).then_with(|| b.cmp(a)));
        let Some((group, (letters, reason))) = top else { return blown.to_string() };
        let most = if letters == recent.len() { "all".to_owned() } else { letters.to_string() };
        format!("{blown}, {most} of them {reason} in group {group}{}", wrong_address(&recent))
    }
}

/// Returns a hint if the handler answered 404, 405 or 410 to each message: its URL is probably wrong.
fn wrong_address(recent: &[&Cause]) -> String {
    let status = recent.first().and_then(|cause| cause.status);
    let same = recent.iter().all(|cause| cause.status == status);
    match status.filter(|status| same && matches!(status, 404 | 405 | 410)) {
        Some(status) => format!("; the handler answered {status} to each: check the path of its URL"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop() -> QueueName {
        QueueName::of("shop", "shop")
    }

    fn failure(reason: Reason, status: Option<u16>) -> Failure {
        let message = format!("boom {reason}");
        Failure { status, ..Failure::new(reason, "E", message) }
    }

    #[test]
    fn the_most_frequent_cause_is_named() {
        let mut causes = FuseCauses::default();
        let blown = Blown::InARow { count: 3 };
        assert_eq!(causes.explain(&blown), "3 messages in a row failed for good");
        causes.add(&shop(), &failure(Reason::TOO_LARGE, None));
        let invalid = failure(Reason::INVALID_SCHEMA, Some(400));
        causes.add(&shop(), &invalid);
        causes.add(&shop(), &failure(Reason::DOMAIN_INVALID, None));
        causes.add(&shop(), &invalid);
        let group = GroupId { queue: shop(), fingerprint: invalid.fingerprint };
        let expected =
            format!("3 messages in a row failed for good, 2 of them INVALID_SCHEMA in group {group}");
        assert_eq!(causes.explain(&blown), expected, "the first is older than the last three");
        assert!(expected.ends_with("@shop/shop"), "other queues may have the same fingerprint: {expected}");
    }

    #[test]
    fn a_handler_that_does_not_exist_is_told() {
        let mut causes = FuseCauses::default();
        let missing = failure(Reason::UNSUPPORTED, Some(404));
        (0..300).for_each(|_| causes.add(&shop(), &missing));
        assert_eq!(causes.0.len(), KEPT);
        let told = causes.explain(&Blown::InARow { count: 50 });
        assert!(told.contains("all of them UNSUPPORTED in group g1_"), "{told}");
        assert!(told.ends_with("; the handler answered 404 to each: check the path of its URL"), "{told}");
        causes.add(&shop(), &failure(Reason::UNSUPPORTED, Some(501)));
        assert!(!causes.explain(&Blown::InARow { count: 50 }).contains("check the path"));
    }
}
