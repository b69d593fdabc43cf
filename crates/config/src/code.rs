//! Diagnostic codes of the configuration, each with a title and a page.

use std::fmt;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but deserves a review.
    Warning,
}

macro_rules! codes {
    ($($name:ident, $number:literal, $severity:ident, $title:literal, $page:literal;)+) => {
        /// A stable diagnostic code. Codes from `LZ0100` to `LZ0199` are about the configuration.
        ///
        /// ```
        /// use lazaret_config::Code;
        /// assert_eq!(Code::UnknownKey.as_str(), "LZ0120");
        /// assert!(Code::UnknownKey.page().contains("did you mean"));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $title] $name,)+
        }

        impl Code {
            /// All codes, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the code as text, such as `LZ0120`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $number),+ }
            }

            /// Returns the severity of the code.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }

            /// Returns the one-line title of the code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }

            /// Returns the explanation and the remedy, for the documentation.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$name => $page),+ }
            }
        }
    };
}

codes! {
    NotUtf8, "LZ0100", Error, "The file is not UTF-8.",
        "Configuration files are UTF-8 text. Save the file in that encoding. A leading byte order mark is allowed.";
    EmptyFile, "LZ0101", Error, "The file is empty.",
        "The file is empty or contains only comments. `lazaret init` writes a starter file.";
    TooLarge, "LZ0102", Error, "The file is too large.",
        "A configuration file may have up to 1 MiB. A larger file is most likely not a configuration file.";
    Syntax, "LZ0103", Error, "YAML syntax error.",
        "The text cannot be parsed as YAML, and nothing after this position was checked. Often a quote or bracket is missing, or a string \
         that contains `: `, `#`, `{` or `[` needs quotes.";
    Tab, "LZ0104", Error, "Tab used where YAML requires spaces.",
        "YAML is indented with spaces. Replace the tabs; most editors can convert a whole file.";
    Indentation, "LZ0105", Error, "Inconsistent indentation.",
        "The keys of one section start in the same column, and nested keys further right than their section.";
    MultipleDocuments, "LZ0106", Error, "The file contains more than one YAML document.",
        "A line `---` starts another document. A configuration is one document: merge the parts, or split them into separate files.";
    Anchor, "LZ0107", Error, "Anchors, aliases and merge keys are not supported.",
        "`&name`, `*name` and `<<` are rejected, so that each value is written where it is used and errors can point to it. \
         Put values that several consumers share into `defaults`.";
    Tag, "LZ0108", Error, "Tags are not supported.",
        "`!name` in front of a value is rejected: the key determines the type of its value.";
    InvalidKey, "LZ0109", Error, "Invalid key.",
        "A key is a non-empty string. A list or a map cannot be a key.";
    DuplicateKey, "LZ0110", Error, "Duplicate key.",
        "One of the two values would be dropped silently. Keep one.";
    TooDeep, "LZ0111", Error, "The file is nested too deeply.",
        "No configuration needs more than 64 levels.";
    UnknownKey, "LZ0120", Error, "Unknown key.",
        "The key is misspelled (the message says `did you mean` if a similar key exists) or in the wrong section. \
         All keys: `lazaret schema`, or docs/configuration.md.";
    MissingKey, "LZ0121", Error, "Missing key.",
        "The section requires this key, and there is no sensible default.";
    WrongType, "LZ0122", Error, "Wrong type.",
        "For example a list where a single value is expected, or a string where a number is. Write numbers, `true` and `false` without quotes.";
    EmptyValue, "LZ0123", Error, "Missing value.",
        "The key has no value. Set one, or remove the key to use the default.";
    OutOfRange, "LZ0124", Error, "Value out of range.",
        "The message states the limits.";
    UnknownValue, "LZ0125", Error, "Unknown value.",
        "The message lists the allowed values.";
    NotExactlyOne, "LZ0126", Error, "Exactly one choice is required.",
        "A consumer has one source and one handler. To read from two sources, configure two consumers.";
    InvalidDuration, "LZ0127", Error, "Invalid duration.",
        "A duration is a number with a unit: `500ms`, `1s`, `5m`, `1h 30m`, `30d`, `2w`. Only 0 has no unit.";
    InvalidSize, "LZ0128", Error, "Invalid size.",
        "A size is a number with a unit: `512B`, `64KiB`, `16MiB`, `1GiB`, or `64kB`, `16MB`, `1GB` in thousands.";
    InvalidRate, "LZ0129", Error, "Invalid rate.",
        "A rate is a number above 0 and a unit: `50/s`, `10/m`, `5/h`.";
    EnvMissing, "LZ0130", Error, "Environment variable not set.",
        "`${NAME}` requires the variable. Set it, or write `${NAME:-default}`.";
    EnvSyntax, "LZ0131", Error, "Invalid `${…}` expression.",
        "Write `${NAME}`, `${NAME:-default}` or `${file:PATH}`. Names consist of letters, digits and underscores. `$${` is an escaped `${`.";
    InvalidName, "LZ0132", Error, "Invalid name.",
        "Names become part of queue names, paths and metrics: 1 to 200 characters, without slashes and control characters.";
    DuplicateConsumer, "LZ0133", Error, "Duplicate consumer name.",
        "The name of a consumer is the name of its queue, and queues cannot be shared. Rename one of the two.";
    InvalidReason, "LZ0134", Error, "Invalid reason code.",
        "Reason codes have 1 to 64 upper-case letters, digits and underscores, a letter first, for example `INVALID_SCHEMA`.";
    InvalidPattern, "LZ0135", Error, "Invalid pattern.",
        "`error` is a regular expression, `type` and `error-type` are names with `*` as wildcard, `attempt` is a \
         comparison such as `>=3`.";
    InvalidSchedule, "LZ0136", Error, "Invalid schedule.",
        "A schedule has five or six fields in cron notation, in UTC: second (optional), minute, hour, day, month, weekday.";
    InvalidAddress, "LZ0137", Error, "Invalid address.",
        "`listen` is a host and a port, for example `127.0.0.1:7117` or `[::1]:7117`. A URL includes its scheme: `http://127.0.0.1:8080/events`.";
    InvalidStore, "LZ0138", Error, "Invalid store.",
        "A store is `sqlite:PATH`, `postgres://…`, `mongodb://…` or, in quotes, `\"memory:\"`: without quotes YAML reads the colon as the end of a key.";
    Contradiction, "LZ0139", Error, "Conflicting values.",
        "Each value is valid, but not in combination. The message names both.";
    OpenWithoutAuth, "LZ0140", Error, "The API is reachable from the network without authentication.",
        "An address other than loopback is reachable from the network. Configure `auth`, or listen on 127.0.0.1 behind a proxy.";
    NeedsKafka, "LZ0141", Error, "Kafka source required.",
        "Retry topics and the dead-letter topic are created in the cluster that the source reads from.";
    ReservedName, "LZ0142", Error, "Reserved property or header.",
        "Lazaret sets it. Kafka client properties are reserved because positions are committed only when messages are settled; \
         request headers are reserved because they identify and frame the message.";
    InvalidSequence, "LZ0143", Error, "Invalid sequence rule.",
        "A sequence is `key`, `header:NAME`, `json:/pointer` or `partition`.";
    InvalidToken, "LZ0144", Error, "Invalid token.",
        "A token has a unique name, its SHA-256 hash as `sha256:` and 64 hexadecimal digits, and an expiry time in RFC 3339.";
    InvalidProperty, "LZ0145", Error, "The Kafka client rejects this property.",
        "`properties` are passed to librdkafka unchanged. It has no property with this name, or rejects this value. Properties of the Java client, such as \
         `max.poll.records` or `value.deserializer`, do not exist in librdkafka.";
    InvalidPipeline, "LZ0146", Error, "Invalid pipeline.",
        "A stage of the pipeline is an object with one operator, such as `$match`. It must keep `_id` of the events as it is: `_id` is the resume \
         token, and without it the stream cannot continue after a restart.";
    FileUnreadable, "LZ0147", Error, "A file that a value names cannot be used.",
        "`${file:PATH}` is replaced by the content of the file: one line of UTF-8 text, at most 64 KiB, whose newline at the end is left out. \
         The message names the file and the cause, never the content. The daemon reads the file at the start and at each reload.";
    NotInThisBuild, "LZ0150", Error, "Not supported by this build.",
        "The configuration is valid, but this program lacks the feature. Either it was built without the feature, and another build has it; or no \
         build of this version supports it yet, and another source or store is required. The message says which.";
    ListsOverlap, "LZ0160", Warning, "Reason code in both lists.",
        "`no-retry-on` takes precedence: such a failure is not retried.";
    NeverRetries, "LZ0161", Warning, "No retry will happen.",
        "The first delay is longer than `max-elapsed`, so the first failure is final.";
    UnreachableRule, "LZ0162", Warning, "Unreachable rule.",
        "The first matching rule decides, and an earlier rule matches everything that this one matches.";
    UnlimitedRetention, "LZ0163", Warning, "Payloads are kept forever.",
        "`ttl: 0` disables expiry, and with `include-payload` the payload is kept as well. Often that is neither intended nor permitted.";
    UnreachableConcurrency, "LZ0164", Warning, "Concurrency cannot be reached.",
        "`concurrency` is larger than the number of messages in flight, or `workers` or `max-connections` is larger than `concurrency`: \
         the larger value is never reached.";
    NoConsumers, "LZ0165", Warning, "No consumers.",
        "The file is valid, but there is nothing to run.";
    NoEffect, "LZ0166", Warning, "The value has no effect.",
        "Another value disables it. Check whether the value is still intended.";
    SharedGroup, "LZ0167", Warning, "Two consumers share a Kafka group.",
        "The members of a group share its partitions, so each of the two consumers receives only part of the messages. \
         Give each consumer its own group.";
    PlaintextSecret, "LZ0168", Warning, "Plaintext secret in the file.",
        "Read it from the environment: `${NAME}`. Files are copied, backed up and committed.";
    VolatileStore, "LZ0169", Warning, "The store is in memory.",
        "Letters and positions are lost when the process exits. Use `sqlite:PATH` for durable data.";
    NoSecondApprover, "LZ0170", Warning, "No second person can approve.",
        "With `approval: second-person` a replay has to be approved by another person than its requester. Without `auth` all callers are the same \
         person, so no replay can ever start. Configure `auth` with a token for each person.";
    PoisonEndsRetries, "LZ0171", Warning, "Retries may end before `max-attempts`.",
        "A message that fails with the same failure `poison.same-failure` times in a row is poison: its retries end and it is dead-lettered. \
         Raise `same-failure` as well, or disable the rule with `poison: off`.";
    UnknownConsumer, "LZ0172", Warning, "A token or a role names an unknown consumer.",
        "`consumers` of a token or a role names a consumer that the file does not have. It can use the letters that the store still has of it, \
         and nothing else. Check the spelling.";
    NotDeclared, "LZ0173", Warning, "The program declares no such consumer.",
        "The file has values for a consumer without a handler that the program does not declare. They have no effect. Check the spelling of the name.";
    HiddenInvalidation, "LZ0174", Warning, "The pipeline drops `invalidate` events.",
        "A stage that filters stands behind one that removes `operationType`, so it also drops `invalidate` events. A drop or rename of what is \
         watched then ends the stream without a word, and `on-invalidate: start-after` has no effect. Filter first, or keep `operationType`. Other \
         filters let `invalidate` pass by themselves.";
    LeaseBelowElection, "LZ0175", Warning, "The lease is shorter than an election.",
        "A MongoDB store renews no lease while its replica set elects a primary, which takes up to 12 seconds. A lease below 20 seconds may end \
         meanwhile: a change stream changes hands, and letters whose handlers are running may be claimed and handled again. Use 20 seconds or \
         more.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_in_order_and_of_this_crate() {
        let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
        assert!(codes.iter().all(|code| code.starts_with("LZ01") && code.len() == 6));
        assert!(Code::ALL.iter().all(|code| code.title().ends_with('.') && !code.page().is_empty()));
    }
}
