//! The code of each thing that can be wrong with a configuration, and what its page says.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, but somebody should look.
    Warning,
}

macro_rules! codes {
    ($($name:ident, $number:literal, $severity:ident, $title:literal, $page:literal;)+) => {
        /// What is wrong, as a stable code: `LZ0100` to `LZ0199` are about configuration.
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
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The code as it is shown and linked to.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $number),+ }
            }

            /// Whether it is an error or a warning.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }

            /// What it is, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }

            /// What it means and what to do, for the documentation.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$name => $page),+ }
            }
        }
    };
}

codes! {
    NotText, "LZ0100", Error, "The file is not UTF-8.",
        "Configuration is text in UTF-8. Save the file in that encoding. A byte order mark at its beginning is fine.";
    Empty, "LZ0101", Error, "The file holds nothing.",
        "The file is empty, or holds comments alone. `lazaret init` writes one to begin with.";
    TooLarge, "LZ0102", Error, "The file is too large.",
        "A configuration file may have 1 MiB. One that is larger is most likely not a configuration file.";
    Syntax, "LZ0103", Error, "The file is not YAML.",
        "The text cannot be read as YAML, and nothing behind this place was looked at. Often a quote or bracket is missing, or a text \
         with `: `, `#`, `{` or `[` in it needs quotes.";
    Tab, "LZ0104", Error, "A tab stands where YAML wants spaces.",
        "YAML is indented with spaces. Replace the tabs; most editors can do that for a whole file.";
    Indentation, "LZ0105", Error, "The indentation does not fit.",
        "Keys of one section begin in the same column, and those inside a section further right than the section.";
    SeveralDocuments, "LZ0106", Error, "The file holds more than one document.",
        "A line `---` begins another document. A configuration is one document: put the parts into one, or into files of their own.";
    Anchor, "LZ0107", Error, "Anchors, aliases and merge keys are not read.",
        "`&name`, `*name` and `<<` are refused, so that each value stands where it is used and errors can show the place. \
         What several consumers share belongs into `defaults`.";
    Tag, "LZ0108", Error, "Tags are not read.",
        "`!name` in front of a value is refused: the type of each value is known from its key.";
    BadKey, "LZ0109", Error, "A key is not a plain word.",
        "Keys are words. A list or a map cannot be a key, and an empty one has no meaning.";
    DuplicateKey, "LZ0110", Error, "A key is given twice.",
        "One of the two would win without a word. Keep one.";
    TooDeep, "LZ0111", Error, "The file is nested too deeply.",
        "No configuration needs more than 64 levels.";
    UnknownKey, "LZ0120", Error, "There is no such key here.",
        "The key is misspelled (the message says `did you mean` if one is near), or stands in the wrong section. \
         All keys: `lazaret schema`, or docs/configuration.md.";
    MissingKey, "LZ0121", Error, "A key is missing.",
        "The section cannot do without this key, and no value would fit everybody.";
    WrongType, "LZ0122", Error, "The value is of another type.",
        "For example a list where one value is expected, or a text where a number is. Numbers and `true` or `false` stand without quotes.";
    EmptyValue, "LZ0123", Error, "The value is missing.",
        "The key stands there without a value. Give it one, or remove the key to have the default.";
    OutOfRange, "LZ0124", Error, "The value is too small or too large.",
        "The message names the limits.";
    UnknownWord, "LZ0125", Error, "The word is none of those that are possible.",
        "The message lists the words that are.";
    NotExactlyOne, "LZ0126", Error, "Exactly one is needed here.",
        "A consumer has one source and one handler. To read from two sources, write two consumers.";
    BadDuration, "LZ0127", Error, "The value is not a duration.",
        "A duration is a number with a unit: `500ms`, `1s`, `5m`, `1h 30m`, `30d`, `2w`. Only 0 has no unit.";
    BadSize, "LZ0128", Error, "The value is not a size.",
        "A size is a number with a unit: `512B`, `64KiB`, `16MiB`, `1GiB`, or `64kB`, `16MB`, `1GB` in thousands.";
    BadRate, "LZ0129", Error, "The value is not a rate.",
        "A rate is a number above 0 and a unit: `50/s`, `10/m`, `5/h`.";
    EnvMissing, "LZ0130", Error, "An environment variable is not set.",
        "`${NAME}` needs the variable to be there. Set it, or write `${NAME:-default}`.";
    EnvSyntax, "LZ0131", Error, "The `${…}` cannot be read.",
        "Write `${NAME}` or `${NAME:-default}`. Names have letters, digits and underscores. `$${` stands for the two characters themselves.";
    BadName, "LZ0132", Error, "The name cannot be used.",
        "Names become parts of queue names, paths and metrics: 1 to 200 characters, none of them a slash or a control character.";
    DuplicateConsumer, "LZ0133", Error, "Two consumers have one name.",
        "The name of a consumer is the name of its queue, and each needs a queue of its own. Rename one.";
    BadReason, "LZ0134", Error, "The text is not a reason code.",
        "Reason codes have 1 to 64 upper-case letters, digits and underscores, as in `INVALID_SCHEMA`.";
    BadPattern, "LZ0135", Error, "The pattern cannot be read.",
        "`error` is a regular expression, `type` and `error-type` are names in which `*` stands for any text, `attempt` is a \
         comparison such as `>=3`.";
    BadSchedule, "LZ0136", Error, "The schedule cannot be read.",
        "A schedule has five or six fields in cron notation, in UTC: second (may be left out), minute, hour, day, month, weekday.";
    BadAddress, "LZ0137", Error, "The address cannot be read.",
        "`listen` is a host and a port, as in `127.0.0.1:7117` or `[::1]:7117`. A URL has its scheme: `http://127.0.0.1:8080/events`.";
    BadStore, "LZ0138", Error, "There is no such store.",
        "A store is `sqlite:PATH` or, in quotes, `\"memory:\"`: without them YAML takes the colon for that of a key. `postgres://…` and `mongodb://…` can be read, but this version does not have these stores yet.";
    Contradiction, "LZ0139", Error, "Two values contradict each other.",
        "Each of them is possible, both together are not. The message names both.";
    OpenWithoutAuth, "LZ0140", Error, "Others can reach the API, and nobody asks who they are.",
        "An address that is not loopback is open to the network. Configure `auth`, or listen on 127.0.0.1 and put a proxy in front.";
    NeedsKafka, "LZ0141", Error, "This needs a Kafka source.",
        "Retry topics and a topic for dead letters live in the broker that the source reads from.";
    OwnProperty, "LZ0142", Error, "This property is not for the user to set.",
        "Lazaret sets it itself. Properties of the Kafka client, because positions are committed when messages are settled and not before; \
         headers for a handler, because they say what the message is and where it ends.";
    BadSequence, "LZ0143", Error, "The sequence rule cannot be read.",
        "A sequence is `key`, `header:NAME`, `json:/pointer` or `partition`.";
    BadToken, "LZ0144", Error, "The token cannot be used.",
        "A token has a name of its own, the SHA-256 of its text as `sha256:` and 64 hexadecimal digits, and an expiry in RFC 3339.";
    BadProperty, "LZ0145", Error, "The Kafka client does not take this property.",
        "`properties` go to librdkafka as they are. It has no property by this name, or not with this value. Names of the Java client, such as \
         `max.poll.records` or `value.deserializer`, mean nothing to it.";
    NotInThisBuild, "LZ0150", Error, "This build does not have it.",
        "The configuration is right, but the program does not have this part. Either it was built without it, and another build has it; or no \
         build of this version has it yet, and another source or store is needed. The message says which.";
    ListsOverlap, "LZ0160", Warning, "A reason is in both lists.",
        "`no-retry-on` wins: such a failure is not retried.";
    NeverRetries, "LZ0161", Warning, "There will be no retry.",
        "The first delay ends after `max-elapsed`, so that the first failure is the last.";
    UnreachableRule, "LZ0162", Warning, "A rule can never decide.",
        "The first rule that fits decides, and an earlier one fits whatever this one does.";
    KeptForEver, "LZ0163", Warning, "Payloads are kept for ever.",
        "`ttl: 0` never lets a letter expire, and with `include-payload` its content stays as well. Often that is neither wanted nor allowed.";
    TooWide, "LZ0164", Warning, "More attempts than messages.",
        "`concurrency` is larger than the window of messages in flight, so that it can never be reached.";
    NothingToRun, "LZ0165", Warning, "There are no consumers.",
        "The file is fine, but there is nothing to run.";
    NoEffect, "LZ0166", Warning, "The value has no effect.",
        "Another value makes it idle. It was written for a reason; look whether that still holds.";
    SharedGroup, "LZ0167", Warning, "Two consumers share a Kafka group.",
        "The members of a group divide the partitions among them, so that each of the two sees only a part of the messages. \
         Give each consumer a group of its own.";
    PlainSecret, "LZ0168", Warning, "A secret stands in the file.",
        "Take it from the environment: `${NAME}`. A file is copied, backed up and committed.";
    ForgetsAll, "LZ0169", Warning, "The store is in memory.",
        "Letters and positions are gone when the process ends. Use `sqlite:PATH` for anything that matters.";
    NobodyElse, "LZ0170", Warning, "There is no second person.",
        "With `approval: second-person` somebody else than who asked has to approve a replay. Without `auth` nobody is asked who they are, so \
         that everybody is the same person and no replay can ever begin. Configure `auth` with a token for each person.";
    EndsEarlier, "LZ0171", Warning, "Retries may end before `max-attempts`.",
        "A message that fails in the same way `poison.same-failure` times in a row is poison: its retries end there, and it becomes a dead \
         letter. Raise `same-failure` as well, or switch the rule off with `poison: off`.";
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
