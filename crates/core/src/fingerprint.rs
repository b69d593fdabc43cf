//! Fingerprints: group the failures that have the same cause.

mod frames;
mod group_pattern;
mod grouping;
mod normalise;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::traceback::{self, Traceback};
pub use group_pattern::{GroupPattern, InvalidGroupPattern};
pub use grouping::{GroupPart, Grouping, UnknownGroupPart};
pub use normalise::normalise;

/// A short name for a problem: failures with one fingerprint are grouped and counted together.
///
/// It is made of the type of the error, its message without what varies (see [`normalise`]), the innermost message
/// of its cause chain, and the top frames of its backtrace. The reason and the phase are left out, because rules
/// may change them. The [`Grouping`] of a consumer changes what counts. Fingerprints are stored, so one version never changes
/// its result:
///
/// - Version 1 looks at the beginning of the message. It is still used where that is the whole message.
/// - Version 2 is for messages that end with their cause, as that of a command does. Of one that holds a
///   [stack trace](Traceback), the exception of the last one counts, and its innermost frames do if there is no backtrace.
///   Of another one that is long, the last line counts as well.
///
/// ```
/// use lazaret_core::{Failure, Fingerprint, Reason};
/// let one = Failure::new(Reason::TIMEOUT, "DbError", "order 17 not found");
/// let two = Failure::new(Reason::CONFLICT, "DbError", "order 18 not found");
/// assert_eq!(one.fingerprint, two.fingerprint);
/// let text = one.fingerprint.to_string();
/// assert!(text.starts_with("g1_"));
/// assert_eq!(text.parse::<Fingerprint>().unwrap(), one.fingerprint);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    version: u8,
    hash: u64,
}

impl Fingerprint {
    /// The newest way of computing that [`of`](Self::of) uses. A failure whose fingerprint would change gets a new one.
    pub const VERSION: u8 = 2;

    /// No fingerprint: that of no failure.
    pub const NONE: Self = Self { version: 0, hash: 0 };

    /// The fingerprint of a failure, by the default rules.
    pub fn of(failure: &Failure) -> Self {
        Self::grouped(failure, None, &Grouping::default())
    }

    /// The fingerprint of a failure by grouping rules.
    fn grouped(failure: &Failure, event_type: Option<&str>, rules: &Grouping) -> Self {
        let mut hasher = Sha256::new();
        // Tag and length keep the parts apart: no two different lists of parts give the same bytes.
        let version = parts(failure, event_type, rules, |tag, _, text| {
            hasher.update([tag]);
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        });
        let digest = hasher.finalize();
        let hash = digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte));
        Self { version, hash }
    }
}

/// Passes on the texts that make the fingerprint of a failure, each with its tag and the part that it comes from. Returns the
/// version of the fingerprint.
fn parts(
    failure: &Failure,
    event_type: Option<&str>,
    rules: &Grouping,
    mut part: impl FnMut(u8, GroupPart, &str),
) -> u8 {
    let normalised = |text: &str| normalise(&rules.replaced(text));
    if rules.counts(GroupPart::ErrorType) {
        part(b't', GroupPart::ErrorType, &rules.replaced(&failure.error_type));
    }
    let trace = Traceback::last(&failure.message);
    let is_long = failure.message.len() > normalise::LIMIT && failure.message.trim().contains('\n');
    let has_end = trace.is_none() && is_long;
    if rules.counts(GroupPart::Message) {
        let message = trace.map_or(&*failure.message, |trace| trace.exception);
        part(b'm', GroupPart::Message, &normalised(message));
        if has_end {
            part(b'e', GroupPart::Message, &normalised(traceback::last_line(&failure.message)));
        }
    }
    if let Some(innermost) = failure.chain.last().filter(|_| rules.counts(GroupPart::Cause)) {
        part(b'c', GroupPart::Cause, &normalised(&innermost.message));
    }
    if rules.counts(GroupPart::Backtrace)
        && let Some(frames) = failure.backtrace.as_deref().or(trace.map(|trace| trace.frames))
    {
        for frame in frames::top(frames) {
            part(b'f', GroupPart::Backtrace, &rules.replaced(&frame));
        }
    }
    if let Some(event_type) = event_type.filter(|_| rules.counts(GroupPart::EventType)) {
        part(b'y', GroupPart::EventType, &rules.replaced(event_type));
    }
    if trace.is_some() || has_end { Fingerprint::VERSION } else { 1 }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}_{:016x}", self.version, self.hash)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a fingerprint, expected g, a version, an underscore and 16 hexadecimal digits")]
pub struct InvalidFingerprint(pub String);

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        // Only the one spelling: texts are compared, in queries and in stores.
        let is_plain =
            |version: &str| !version.starts_with('+') && (version == "0" || !version.starts_with('0'));
        let is_full = |hash: &str| {
            hash.len() == 16 && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        };
        let parsed = text.strip_prefix('g').and_then(|rest| {
            let (version, hash) = rest.split_once('_')?;
            (is_plain(version) && is_full(hash)).then_some(())?;
            Some(Self { version: version.parse().ok()?, hash: u64::from_str_radix(hash, 16).ok()? })
        });
        parsed.ok_or_else(|| InvalidFingerprint(text.to_owned()))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{CauseLink, Phase, Reason};

    fn failure(message: &str) -> Failure {
        Failure::new(Reason::TIMEOUT, "DbError", message)
    }

    #[test]
    fn what_varies_does_not_matter_and_what_differs_does() {
        let base = failure("order 17 not found");
        assert_eq!(base.fingerprint, failure("order 18 not found").fingerprint);
        let relabelled = Failure::new(Reason::CONFLICT, "DbError", "order 1 not found").in_phase(Phase::Ack);
        assert_eq!(base.fingerprint, Fingerprint::of(&relabelled));
        assert_ne!(base.fingerprint, failure("order 17 not paid").fingerprint);
        assert_ne!(base.fingerprint, Failure::new(Reason::TIMEOUT, "E", "order 17 not found").fingerprint);
        let traced = base.clone().with_backtrace("   0: shop::charge\n             at ./src/main.rs:5:5\n");
        assert_ne!(base.fingerprint, traced.fingerprint);
        let moved = base.with_backtrace("   0: shop::charge\n             at ./src/main.rs:99:1\n");
        assert_eq!(traced.fingerprint, moved.fingerprint);
    }

    /// The guide to security says what can be guessed from a fingerprint.
    #[test]
    fn words_count_but_digits_and_quoted_texts_do_not() {
        let of = |message: &str| failure(message).fingerprint;
        assert_ne!(of("unknown user ada@example.org"), of("unknown user bob@example.org"));
        assert_eq!(of("unknown user 'ada@example.org'"), of("unknown user 'bob@example.org'"));
        assert_eq!(of("bad card 4111 1111 1111 1111"), of("bad card 5500 0000 0000 0004"));
        assert_eq!(of("bad card 4111111111111111"), of("bad card 5500000000000004"));
    }

    #[test]
    fn the_root_cause_tells_failures_apart() {
        let caused = |texts: &[&str]| {
            let mut caused = failure("request failed");
            caused.chain =
                texts.iter().map(|&t| CauseLink { error_type: None, message: t.to_owned() }).collect();
            Fingerprint::of(&caused)
        };
        assert_eq!(caused(&["x", "port 80 closed"]), caused(&["y", "port 81 closed"]));
        assert_ne!(caused(&["port 80 closed"]), caused(&["no route"]));
        assert_ne!(caused(&[]), caused(&[""]));
    }

    fn traced(before: &str, depth: usize, function: &str, exception: &str) -> Failure {
        let frames =
            "  File \"/srv/app/handler.py\", line 9, in step\n    return step(order)\n".repeat(depth);
        failure(&format!(
            "{before}Traceback (most recent call last):\n{frames}  File \"h.py\", line 3, in {function}\n{exception}\n"
        ))
    }

    #[test]
    fn failures_with_long_stack_traces_are_told_apart_by_their_exceptions() {
        let missing = traced("", 100, "charge", "KeyError: 'USD'");
        assert!(missing.message.len() > 4 * normalise::LIMIT);
        assert_ne!(missing.fingerprint, traced("", 100, "charge", "TimeoutError: no answer").fingerprint);
        assert_ne!(missing.fingerprint, traced("", 100, "refund", "KeyError: 'USD'").fingerprint);
        // What varies, and what was logged before, does not matter.
        assert_eq!(
            missing.fingerprint,
            traced("INFO order of ada\n", 90, "charge", "KeyError: 'GBP'").fingerprint
        );
    }

    #[test]
    fn long_messages_are_told_apart_by_their_last_lines() {
        let log = "INFO one more step is done\n".repeat(100);
        let ended = |end: &str| failure(&format!("{log}{end}\n")).fingerprint;
        assert_ne!(ended("fatal: no route"), ended("fatal: no rights"));
        assert_eq!(ended("fatal: no route to 10.0.0.1"), ended("fatal: no route to 10.0.0.2"));
    }

    #[test]
    fn a_message_that_is_looked_at_whole_keeps_its_first_version() {
        assert!(failure("one\ntwo").fingerprint.to_string().starts_with("g1_"));
        assert!(failure(&"x".repeat(5000)).fingerprint.to_string().starts_with("g1_"));
        assert!(traced("", 0, "f", "KeyError: 1").fingerprint.to_string().starts_with("g2_"));
    }

    #[test]
    fn a_stored_fingerprint_is_found_again_for_ever() {
        // Written to stores: if this fails, raise VERSION instead of changing the text.
        assert_eq!(failure("order 17 not found").fingerprint.to_string(), "g1_5ace91e5e6da629a");
        let mut whole = failure("charge of 'acme' failed")
            .with_backtrace("   0: core::panicking::panic\n   1: shop::pay\n");
        whole.chain.push(CauseLink { error_type: None, message: "timeout after 1.5s".into() });
        assert_eq!(Fingerprint::of(&whole).to_string(), "g1_1426d9db7d86ee94");
        assert_eq!(traced("INFO\n", 2, "pay", "KeyError: 7").fingerprint.to_string(), "g2_dd173f350f34f331");
        let long = failure(&format!("{}fatal: no route\n", "INFO again\n".repeat(100)));
        assert_eq!(long.fingerprint.to_string(), "g2_9c8fe96987159341");
    }

    #[test]
    fn a_fingerprint_is_written_and_read_as_text() {
        let fingerprint = failure("x").fingerprint;
        let json = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(json, format!("\"{fingerprint}\""));
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), fingerprint);
        assert_eq!(serde_json::from_slice::<Fingerprint>(json.as_bytes()).unwrap(), fingerprint);
        assert_eq!(Fingerprint::NONE.to_string().parse(), Ok(Fingerprint::NONE));
        assert_eq!("g2_00000000000000ff".parse::<Fingerprint>().unwrap().to_string(), "g2_00000000000000ff");
        for wrong in [
            "",
            "g",
            "g1",
            "g1_",
            "g1_ff",
            "1_00000000000000ff",
            "g01_00000000000000ff",
            "g+1_00000000000000ff",
            "g_00000000000000ff",
            "g1_00000000000000FF",
            "g1_+0000000000000ff",
            "g256_00000000000000ff",
            "g1_000000000000000ff",
        ] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
