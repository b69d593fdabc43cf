//! The keys of a consumer and of `defaults`.

use lazaret_core::Verdict;
use lazaret_core::fingerprint::GroupPart;

use super::adopt::ADOPT;
use super::io::{HANDLER, SOURCE};
use super::types::{EnumValue, Format, Key, Kind, Section};

const MAX: u64 = u32::MAX as u64;
const COUNT: Kind = Kind::Count { min: 1, max: MAX };
const UNLIMITED: Kind = Kind::Or("unlimited", &COUNT);
const FOREVER: &str = "write a duration, for example `30d`, or `0` for no limit";
const FAILURES: Kind = Kind::List { of: &Kind::Text(Format::Failure), min: 0 };

pub(crate) static CONSUMER: Section = Section {
    name: "consumer",
    doc: "A named subscription: a source, a handler and policies.",
    keys: &[
        Key::new("source", Kind::OneOf(&SOURCE), "Source of messages. Exactly one.").required().restart(),
        Key::new("handler", Kind::OneOf(&HANDLER), "Handler of messages. Exactly one.").required().restart(),
        Key::new(
            "order",
            Kind::Enum(&[
                EnumValue("key", "the messages of one sequence are handled in order"),
                EnumValue("partition", "all messages of a partition are handled in order"),
                EnumValue("none", "no order"),
            ]),
            "Ordering guarantee.",
        )
        .or("key")
        .restart(),
        Key::new(
            "sequence",
            Kind::Text(Format::Sequence),
            "Rule that assigns messages to sequences: `key`, `header:NAME`, `json:/pointer` or `partition`.",
        )
        .or("key")
        .restart(),
        Key::new("concurrency", Kind::Count { min: 1, max: 65_536 }, "Maximum number of concurrent attempts.").or("64").restart(),
        Key::new("max-payload", Kind::Or("unlimited", &Kind::Size { min: 1 }), "Maximum payload size for the handler. Larger messages are dead-lettered unchanged.")
            .or("unlimited")
            .restart(),
        Key::new("retry", Kind::Section(&RETRY), "Retry policy.").or("{}").live(),
        Key::new("classify", Kind::List { of: &Kind::Section(&RULE), min: 0 }, "Classification rules. The first matching rule decides; other failures are classified by the built-in rules.")
            .or("[]")
            .live(),
        Key::new("grouping", Kind::Section(&GROUPING), "Grouping rules: which failures are counted as the same problem. Stored letters keep their groups until they fail again.")
            .or("{}")
            .live(),
        Key::new("breaker", Kind::Or("off", &Kind::Section(&BREAKER)), "Circuit breaker of the handler.").or("{}").live(),
        Key::new("fuse", Kind::Or("off", &Kind::Section(&FUSE)), "Fuse: pauses the consumer instead of dead-lettering everything.").or("{}").live(),
        Key::new("poison", Kind::Or("off", &Kind::Section(&POISON)), "Poison detection: ends retries of messages that keep failing with the same failure.").or("{}").live(),
        Key::new("dead-letter", Kind::Section(&DEAD_LETTER), "Dead letters: messages whose failure is final.").or("{}").live(),
        Key::new("inbox-dedupe", Kind::Or("off", &Kind::Section(&INBOX_DEDUPE)), "Duplicate filter: a handled message is not handled again.")
            .or("off")
            .restart(),
        Key::new("replay", Kind::Section(&REPLAY), "Replay of letters.").or("{}").live(),
        Key::new("adopt", Kind::Section(&ADOPT), "Dead letters of other frameworks, which become letters of this consumer.").live(),
        Key::new("advanced", Kind::Section(&ADVANCED), "Tuning parameters that rarely need a change.").or("{}").restart(),
    ],
};

static RETRY: Section = Section {
    name: "retry",
    doc: "Retry policy.",
    keys: &[
        Key::new(
            "strategy",
            Kind::Enum(&[
                EnumValue("in-place", "the lane waits in memory, and the position is held"),
                EnumValue(
                    "ordered",
                    "the lane waits in memory up to `hold`, then in the store; other lanes continue",
                ),
                EnumValue("unordered", "only the failed message waits, in the store; later ones overtake it"),
                EnumValue("topics", "the failed message waits in a retry topic; needs a Kafka source"),
            ]),
            "Where a failed message waits for its next attempt, and whether later messages wait behind it.",
        )
        .or("ordered")
        .restart(),
        Key::new(
            "hold",
            Kind::Duration { zero: true },
            "For `ordered`: maximum time in memory before the lane moves to the store.",
        )
        .or("5s"),
        Key::new("max-attempts", COUNT, "Maximum number of attempts, including the first. With `topics.delays`: one more than delays, unless it is smaller.")
            .or("3")
            .hint("write `1` to disable retries, `3` for up to two retries"),
        Key::new(
            "max-elapsed",
            Kind::Or("unlimited", &Kind::Duration { zero: false }),
            "Maximum time from the first failure to the last attempt.",
        )
        .or("unlimited")
        .example("1h"),
        Key::new("initial-delay", Kind::Duration { zero: true }, "Delay after the first failed attempt.")
            .or("500ms"),
        Key::new(
            "multiplier",
            Kind::Number { min: 1.0, max: 1e6, exclusive: false },
            "Factor between consecutive delays.",
        )
        .or("2.0")
        .hint("write `1` for constant delays, `2.0` for delays that double"),
        Key::new("max-delay", Kind::Duration { zero: true }, "Maximum delay, before jitter.").or("30s"),
        Key::new(
            "jitter",
            Kind::Jitter,
            "Random spread of delays: 0.2 is ±20 %. `false` is none, `true` is 0.2.",
        )
        .or("0.2"),
        Key::new(
            "max-retry-after",
            Kind::Duration { zero: true },
            "Maximum delay that a handler may request with `Retry-After`.",
        )
        .or("1h"),
        Key::new(
            "max-crashes",
            Kind::Count { min: 0, max: MAX },
            "Maximum number of attempts that crash the process; 0 is unlimited.",
        )
        .or("3"),
        Key::new(
            "retry-on",
            FAILURES,
            "Reason codes and error types that are retried; empty for all retryable reasons.",
        )
        .or("[]")
        .example("TIMEOUT"),
        Key::new(
            "no-retry-on",
            FAILURES,
            "Reason codes and error types that are not retried. Takes precedence over `retry-on`. `[]` retries the default ones, too.",
        )
        .or("[IllegalArgumentException, NullPointerException, ClassCastException]")
        .example("INVALID_SCHEMA"),
        Key::new(
            "overrides",
            Kind::List { of: &Kind::Section(&OVERRIDE), min: 0 },
            "Schedules for some event types or reasons. The first that matches replaces the schedule of the consumer.",
        )
        .or("[]"),
        Key::new("budget", Kind::Section(&BUDGET), "Retry budget.").or("{}"),
        Key::new("topics", Kind::Section(&TOPICS), "For `topics`: retry topics.").or("{}").restart(),
    ],
};

const OF_CONSUMER: &str = "that of the consumer";

static OVERRIDE: Section = Section {
    name: "override",
    doc: "A schedule for some event types or reasons.",
    keys: &[
        Key::new("when", Kind::Section(&OVERRIDE_WHEN), "Conditions, all of which must match.").required(),
        Key::new("max-attempts", COUNT, "Maximum number of attempts, including the first.")
            .absent(OF_CONSUMER),
        Key::new(
            "max-elapsed",
            Kind::Or("unlimited", &Kind::Duration { zero: false }),
            "Maximum time from the first failure to the last attempt.",
        )
        .absent(OF_CONSUMER),
        Key::new("initial-delay", Kind::Duration { zero: true }, "Delay after the first failed attempt.")
            .absent(OF_CONSUMER),
        Key::new(
            "multiplier",
            Kind::Number { min: 1.0, max: 1e6, exclusive: false },
            "Factor between consecutive delays.",
        )
        .absent(OF_CONSUMER),
        Key::new("max-delay", Kind::Duration { zero: true }, "Maximum delay, before jitter.")
            .absent(OF_CONSUMER),
        Key::new(
            "jitter",
            Kind::Jitter,
            "Random spread of delays: 0.2 is ±20 %. `false` is none, `true` is 0.2.",
        )
        .absent(OF_CONSUMER),
    ],
};

static OVERRIDE_WHEN: Section = Section {
    name: "override-when",
    doc: "Conditions of an override.",
    keys: &[
        Key::new("type", Kind::Text(Format::Glob), "Event type, with `*` as wildcard.").example("Invoice*"),
        Key::new("reason", Kind::Text(Format::Reason), "Reason code of the last failure.")
            .example("RATE_LIMITED"),
    ],
};

static BUDGET: Section = Section {
    name: "budget",
    doc: "Retry budget.",
    keys: &[
        Key::new("rate", Kind::Or("unlimited", &Kind::Rate), "Maximum rate of retries, over all messages.")
            .or("unlimited")
            .example("50/s"),
        Key::new("backlog", UNLIMITED, "Maximum number of letters that wait for a retry.")
            .or("unlimited")
            .example("10000"),
        Key::new("per-key", UNLIMITED, "Maximum number of retries per key and hour.")
            .or("unlimited")
            .example("100"),
        Key::new("per-type", UNLIMITED, "Maximum number of retries per event type and hour.")
            .or("unlimited")
            .example("1000"),
    ],
};

static TOPICS: Section = Section {
    name: "retry-topics",
    doc: "Retry topics.",
    keys: &[
        Key::new(
            "delays",
            Kind::List { of: &Kind::Duration { zero: false }, min: 1 },
            "Delays in ascending order, one retry topic per delay: the n-th retry waits the n-th delay. Excludes `initial-delay`.",
        )
        .or("[1m, 10m, 1h]"),
        Key::new("create", Kind::Flag, "Create missing topics.").or("false"),
        Key::new(
            "transactional",
            Kind::Flag,
            "Publish to the retry topic and commit the position in one transaction.",
        )
        .or("false"),
        Key::new("spring-headers", Kind::Flag, "Write the headers of Spring Kafka as well.").or("false"),
    ],
};

static RULE: Section = Section {
    name: "rule",
    doc: "A classification rule.",
    keys: &[
        Key::new(
            "when",
            Kind::Section(&WHEN),
            "Conditions, all of which must match; no condition matches everything.",
        )
        .required(),
        Key::new("then", Kind::Enum(VERDICTS), "Verdict for the message.").required(),
        Key::new(
            "reason",
            Kind::Text(Format::Reason),
            "Reason code to record instead of that of the failure.",
        )
        .absent("reason code of the failure"),
    ],
};

/// The verdicts, by their names in the core.
pub(crate) static VERDICTS: &[EnumValue] = &[
    EnumValue(Verdict::Retry.as_str(), "retry on schedule"),
    EnumValue(Verdict::DeadLetter.as_str(), "store it as a dead letter"),
    EnumValue(Verdict::Park.as_str(), "park it until an operator or a deployment releases it"),
    EnumValue(Verdict::Quarantine.as_str(), "quarantine it: its content is suspicious"),
    EnumValue(Verdict::Skip.as_str(), "skip it, with an audit entry"),
    EnumValue(Verdict::Duplicate.as_str(), "treat it as already handled"),
    EnumValue(Verdict::Stop.as_str(), "stop the consumer and keep the position"),
];

static WHEN: Section = Section {
    name: "when",
    doc: "Conditions of a rule.",
    keys: &[
        Key::new("reason", Kind::Text(Format::Reason), "Reason code.").example("TIMEOUT"),
        Key::new(
            "status",
            Kind::Text(Format::Status),
            "HTTP status or exit code: `418`, `4xx`, or `500-504`.",
        )
        .example("4xx"),
        Key::new("type", Kind::Text(Format::Glob), "Event type, with `*` as wildcard.").example("Case*"),
        Key::new(
            "phase",
            Kind::Enum(&[
                EnumValue("decode", "decoding the payload"),
                EnumValue("filter", "filtering messages"),
                EnumValue("validate", "validating the content"),
                EnumValue("handle", "running the handler"),
                EnumValue("external-call", "calling another service"),
                EnumValue("ack", "acknowledging the message"),
            ]),
            "Phase in which the attempt failed.",
        ),
        Key::new("attempt", Kind::Text(Format::Comparison), "Number of the attempt.").example(">=3"),
        Key::new(
            "error",
            Kind::Text(Format::Regex),
            "Regular expression that matches the type or the message of the error or of one of its causes.",
        )
        .example("(?i)deadlock"),
        Key::new(
            "error-type",
            Kind::Text(Format::Glob),
            "Type of the error or of one of its causes, with `*` as wildcard.",
        ),
        Key::new("fingerprint", Kind::Text(Format::Fingerprint), "Fingerprint of the failure."),
    ],
};

static GROUPING: Section = Section {
    name: "grouping",
    doc: "Grouping rules: which failures are counted as the same problem.",
    keys: &[
        Key::new(
            "by",
            Kind::List { of: &Kind::Enum(GROUP_PARTS), min: 1 },
            "Parts of a failure that count. Failures that agree in all of them are in one group.",
        )
        .or("[error-type, message, cause, backtrace]"),
        Key::new(
            "replace",
            Kind::List { of: &Kind::Text(Format::GroupPattern), min: 0 },
            "Regular expressions for text that varies, at most 16. What they match is replaced by `#` before failures are compared; \
             in a pattern with groups in parentheses, only what the groups match.",
        )
        .or("[]")
        .example("tenant ([a-z]+)"),
    ],
};

/// The parts of a failure, by their names in the core.
static GROUP_PARTS: &[EnumValue] = &[
    EnumValue(GroupPart::ErrorType.as_str(), "the type of the error"),
    EnumValue(GroupPart::Message.as_str(), "its message, without numbers, ids and quoted text"),
    EnumValue(GroupPart::Cause.as_str(), "the message of the innermost cause"),
    EnumValue(GroupPart::Backtrace.as_str(), "the top frames of the backtrace"),
    EnumValue(GroupPart::EventType.as_str(), "the type of the event"),
];

static BREAKER: Section = Section {
    name: "breaker",
    doc: "Circuit breaker of the handler.",
    keys: &[
        Key::new(
            "failures",
            Kind::Count { min: 1, max: 65_536 },
            "Number of consecutive failures that open the breaker, with no success between them or for a tenth of the window.",
        )
        .or("20"),
        Key::new(
            "window",
            Kind::Duration { zero: false },
            "Time window that must contain all of these failures.",
        )
        .or("10s"),
        Key::new(
            "open-for",
            Kind::Duration { zero: false },
            "Time that the breaker stays open before it allows probes.",
        )
        .or("30s"),
        Key::new("probes", COUNT, "Number of successful probes that close the breaker.").or("3"),
    ],
};

static FUSE: Section = Section {
    name: "fuse",
    doc: "Fuse: pauses the consumer instead of dead-lettering everything.",
    keys: &[
        Key::new(
            "ratio",
            Kind::Number { min: 0.0, max: 1.0, exclusive: true },
            "Share of final failures in the window that blows the fuse.",
        )
        .or("0.5"),
        Key::new("window", Kind::Count { min: 1, max: 65_536 }, "Number of messages in the window.")
            .or("100"),
        Key::new("consecutive", COUNT, "Number of consecutive final failures that blows the fuse.").or("50"),
    ],
};

static POISON: Section = Section {
    name: "poison",
    doc: "Poison detection: ends retries of messages that keep failing with the same failure.",
    keys: &[Key::new(
        "same-failure",
        Kind::Count { min: 2, max: MAX },
        "Number of consecutive attempts with the same failure.",
    )
    .or("10")],
};

const ON_DEAD: Kind = Kind::Enum(&[
    EnumValue("hold", "later messages of its sequence wait behind it"),
    EnumValue("continue", "later messages of its sequence go on; a replay of the letter is out of order"),
]);

static DEAD_LETTER_OVERRIDE: Section = Section {
    name: "dead-letter-override",
    doc: "What happens to the sequences of some dead letters.",
    keys: &[
        Key::new("when", Kind::Section(&OVERRIDE_WHEN), "Conditions, all of which must match.").required(),
        Key::new("on-dead", ON_DEAD, "What happens to the sequence of a dead letter.").required(),
    ],
};

static DEAD_LETTER: Section = Section {
    name: "dead-letter",
    doc: "Dead letters: messages whose failure is final.",
    keys: &[
        Key::new(
            "enabled",
            Kind::Flag,
            "Store dead letters. If disabled, a message whose failure is final is discarded, with an audit entry.",
        )
        .or("true"),
        Key::new("owner", Kind::Text(Format::Line), "Team that owns the letters.").absent("no owner"),
        Key::new(
            "ttl",
            Kind::Duration { zero: true },
            "Time until an open letter expires; 0 disables expiry.",
        )
        .or("30d")
        .hint(FOREVER),
        Key::new(
            "keep-closed",
            Kind::Duration { zero: true },
            "Retention time of closed letters; 0 keeps them forever.",
        )
        .or("30d")
        .hint(FOREVER),
        Key::new(
            "include-payload",
            Kind::Flag,
            "Keep payloads. A letter without its payload cannot be replayed.",
        )
        .or("true"),
        Key::new("include-backtrace", Kind::Flag, "Keep backtraces.").or("true"),
        Key::new("on-dead", ON_DEAD, "What happens to the sequence of a dead letter.").or("hold"),
        Key::new(
            "overrides",
            Kind::List { of: &Kind::Section(&DEAD_LETTER_OVERRIDE), min: 0 },
            "`on-dead` for some event types or reasons. The first that matches replaces that of the consumer.",
        )
        .or("[]"),
        Key::new(
            "max-sequences",
            UNLIMITED,
            "Maximum number of open sequences. At the limit, every key waits.",
        )
        .or("unlimited")
        .example("1024"),
        Key::new(
            "max-sequence-size",
            UNLIMITED,
            "Maximum number of letters per sequence. At the limit, every key waits.",
        )
        .or("unlimited")
        .example("1024"),
        Key::new("max-letters", UNLIMITED, "Maximum number of open letters. At the limit, reading pauses.")
            .or("10000000"),
        Key::new(
            "max-bytes",
            Kind::Or("unlimited", &Kind::Size { min: 1 }),
            "Maximum size of the store. At the limit, reading pauses.",
        )
        .or("100GiB"),
        Key::new(
            "min-free",
            Kind::Or("off", &Kind::Size { min: 1 }),
            "Disk space that stays free beside an embedded store, at most a twentieth of the disk. Below it, reading pauses, and imports, adopted letters and inbox posts are refused.",
        )
        .or("1GiB"),
        Key::new("alert-on-first", Kind::Flag, "Send an alert for the first letter of a group.").or("true"),
        Key::new(
            "topic",
            Kind::Text(Format::Topic),
            "Kafka topic that receives a copy of each dead letter; requires a Kafka source.",
        )
        .absent("no copies")
        .restart(),
        Key::new(
            "collection",
            Kind::Text(Format::Collection),
            "MongoDB collection that receives a copy of each dead letter, in FlowWarden's layout.",
        )
        .absent("no copies")
        .restart(),
        Key::new(
            "collection-uri",
            Kind::Text(Format::MongoUri),
            "Connection string with the database of `collection`, which may be in another cluster than the source and the store.",
        )
        .absent("that of a store in MongoDB")
        .example("mongodb://127.0.0.1:27017/shop")
        .restart(),
        Key::new("reprocess", Kind::Section(&REPROCESS), "Automatic replay of dead letters.").or("{}"),
    ],
};

static REPROCESS: Section = Section {
    name: "reprocess",
    doc: "Automatic replay of dead letters.",
    keys: &[
        Key::new(
            "strategy",
            Kind::Enum(&[
                EnumValue("manual", "no automatic replay"),
                EnumValue("cron", "replays the oldest letters on a schedule"),
            ]),
            "How replays are started.",
        )
        .or("manual"),
        Key::new(
            "cron",
            Kind::Text(Format::Cron),
            "Schedule in cron notation, in UTC; seconds are optional.",
        )
        .or("0 */15 * * * *"),
        Key::new("batch-size", COUNT, "Maximum number of letters per run.").or("100"),
    ],
};

static INBOX_DEDUPE: Section = Section {
    name: "inbox-dedupe",
    doc: "Duplicate filter.",
    keys: &[Key::new("window", Kind::Duration { zero: false }, "How long handled messages are remembered.")
        .or("7d")],
};

static REPLAY: Section = Section {
    name: "replay",
    doc: "Replay of letters.",
    keys: &[
        Key::new(
            "approval",
            Kind::Enum(&[
                EnumValue("none", "no approval"),
                EnumValue("second-person", "another person must approve the replay"),
            ]),
            "Approval of replays.",
        )
        .or("none"),
        Key::new(
            "rate",
            Kind::Or("unlimited", &Kind::Rate),
            "Maximum rate of letters; an operation may set its own rate.",
        )
        .or("50/s"),
        Key::new("max-replays", UNLIMITED, "Number of failed replays after which a letter is parked.")
            .or("5"),
    ],
};

static ADVANCED: Section = Section {
    name: "advanced",
    doc: "Tuning parameters that rarely need a change.",
    keys: &[
        Key::new("window", Kind::Count { min: 1, max: 10_000_000 }, "Maximum number of messages in flight.")
            .or("8192"),
        Key::new(
            "shards",
            Kind::Count { min: 0, max: 1024 },
            "Number of tasks that share the lanes; 0 is one per core.",
        )
        .or("0"),
        Key::new(
            "commit-interval",
            Kind::Duration { zero: false },
            "Minimum interval between commits of positions.",
        )
        .or("200ms"),
        Key::new(
            "drain-deadline",
            Kind::Duration { zero: true },
            "Maximum duration of a drain; running attempts are cancelled then.",
        )
        .or("30s"),
        Key::new("lease", Kind::Duration { zero: false }, "Duration of a lease on a stored sequence.")
            .or("30s"),
        Key::new(
            "refresh",
            Kind::Duration { zero: false },
            "Interval of polling the store for changes by others.",
        )
        .or("1s"),
        Key::new(
            "blocked-limit",
            COUNT,
            "Number of open sequences that each shard tracks exactly in memory.",
        )
        .or("16777216"),
    ],
};
