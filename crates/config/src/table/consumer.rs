//! The keys of a consumer, which are those of `defaults`, too.

use lazaret_core::Verdict;

use super::io::{HANDLER, SOURCE};
use super::{Form, Key, Kind, Section, Word};

const MOST: u64 = u32::MAX as u64;
const COUNT: Kind = Kind::Count { least: 1, most: MOST };
const UNLIMITED: Kind = Kind::Or("unlimited", &COUNT);
const FOR_EVER: &str = "write a duration, as in `30d`, or `0` for ever";
const REASONS: Kind = Kind::List { of: &Kind::Text(Form::Reason), least: 0 };

pub(crate) static CONSUMER: Section = Section {
    name: "consumer",
    doc: "A named subscription: a source, a handler and policies.",
    keys: &[
        Key::new("source", Kind::OneOf(&SOURCE), "Where messages come from. Exactly one.").required().restart(),
        Key::new("handler", Kind::OneOf(&HANDLER), "Who handles them. Exactly one.").required().restart(),
        Key::new(
            "order",
            Kind::Choice(&[
                Word("key", "the messages of one sequence are handled in order"),
                Word("partition", "all messages of a partition are handled in order"),
                Word("none", "in any order"),
            ]),
            "Which order is kept.",
        )
        .or("key")
        .restart(),
        Key::new(
            "sequence",
            Kind::Text(Form::Sequence),
            "What makes messages a sequence: `key`, `header:NAME`, `json:/pointer` or `partition`.",
        )
        .or("key")
        .restart(),
        Key::new("concurrency", Kind::Count { least: 1, most: 65_536 }, "How many attempts may run at once.").or("64").restart(),
        Key::new("max-payload", Kind::Or("unlimited", &Kind::Size { least: 1 }), "The largest payload that a handler gets to see. A larger one is dead-lettered whole.")
            .or("unlimited")
            .restart(),
        Key::new("retry", Kind::Section(&RETRY), "When and how often to try again.").or("{}").live(),
        Key::new("classify", Kind::List { of: &Kind::Section(&RULE), least: 0 }, "What failures are. The first rule that fits decides; the rest is decided by the built-in taxonomy.")
            .or("[]")
            .live(),
        Key::new("breaker", Kind::Or("off", &Kind::Section(&BREAKER)), "When to stop calling a sick handler.").or("{}").live(),
        Key::new("fuse", Kind::Or("off", &Kind::Section(&FUSE)), "When to pause, rather than to dead-letter everything.").or("{}").live(),
        Key::new("poison", Kind::Or("off", &Kind::Section(&POISON)), "When retries end early because nothing changes.").or("{}").live(),
        Key::new("dead-letter", Kind::Section(&DEAD_LETTER), "What holds for messages that fail for good.").or("{}").live(),
        Key::new("inbox-dedupe", Kind::Or("off", &Kind::Section(&INBOX_DEDUPE)), "The idempotent receiver: a message that was handled is not handled again.")
            .or("off")
            .restart(),
        Key::new("replay", Kind::Section(&REPLAY), "What holds for replays.").or("{}").live(),
        Key::new("advanced", Kind::Section(&ADVANCED), "What hardly anybody needs to change.").or("{}").restart(),
    ],
};

static RETRY: Section = Section {
    name: "retry",
    doc: "When and how often to try again.",
    keys: &[
        Key::new(
            "strategy",
            Kind::Choice(&[
                Word("in-place", "the lane waits in memory, and the position is held"),
                Word("ordered", "the lane waits in memory up to `hold`, then in the store; others flow on"),
                Word("unordered", "only the failed message waits, in the store; later ones overtake it"),
                Word("topics", "the failed message waits in a retry topic; needs a Kafka source"),
            ]),
            "Where a message waits for its next attempt, and who waits with it.",
        )
        .or("ordered")
        .restart(),
        Key::new(
            "hold",
            Kind::Duration { zero: true },
            "For `ordered`: how long a lane may wait in memory before it moves to the store.",
        )
        .or("5s"),
        Key::new("max-attempts", COUNT, "The most attempts, the first one included.")
            .or("3")
            .remedy("write `1` to try once and never again, `3` for up to two retries"),
        Key::new(
            "max-elapsed",
            Kind::Or("unlimited", &Kind::Duration { zero: false }),
            "The longest time from the first failure to the last attempt.",
        )
        .or("unlimited")
        .example("1h"),
        Key::new("initial-delay", Kind::Duration { zero: true }, "The delay after the first failed attempt.")
            .or("500ms"),
        Key::new(
            "multiplier",
            Kind::Number { least: 1.0, most: 1e6, above: false },
            "By how much each delay is longer than the one before.",
        )
        .or("2.0")
        .remedy("write `1` for delays that stay the same, `2.0` for delays that double"),
        Key::new("max-delay", Kind::Duration { zero: true }, "The longest delay, before jitter.").or("30s"),
        Key::new(
            "jitter",
            Kind::Jitter,
            "How far delays are spread: 0.2 is ±20 %. `false` is none, `true` is 0.2.",
        )
        .or("0.2"),
        Key::new(
            "max-retry-after",
            Kind::Duration { zero: true },
            "The longest wait that the other side may ask for with `Retry-After`.",
        )
        .or("1h"),
        Key::new(
            "max-crashes",
            Kind::Count { least: 0, most: MOST },
            "Attempts that ended with the death of the process; 0 never gives up on those.",
        )
        .or("3"),
        Key::new("retry-on", REASONS, "Reason codes that are retried; empty for all that are retryable.")
            .or("[]")
            .example("TIMEOUT"),
        Key::new("no-retry-on", REASONS, "Reason codes that are not retried. It wins over `retry-on`.")
            .or("[]")
            .example("INVALID_SCHEMA"),
        Key::new("budget", Kind::Section(&BUDGET), "How much retrying may cost.").or("{}"),
        Key::new("topics", Kind::Section(&TOPICS), "For `topics`: the retry topics.").or("{}").restart(),
    ],
};

static BUDGET: Section = Section {
    name: "budget",
    doc: "How much retrying may cost.",
    keys: &[
        Key::new("rate", Kind::Or("unlimited", &Kind::Rate), "Retries in a time, over all messages.")
            .or("unlimited")
            .example("50/s"),
        Key::new("backlog", UNLIMITED, "Letters that may wait for a retry at once.")
            .or("unlimited")
            .example("10000"),
        Key::new("per-key", UNLIMITED, "Retries of one key in an hour.").or("unlimited").example("100"),
        Key::new("per-type", UNLIMITED, "Retries of one event type in an hour.")
            .or("unlimited")
            .example("1000"),
    ],
};

static TOPICS: Section = Section {
    name: "retry-topics",
    doc: "The retry topics.",
    keys: &[
        Key::new(
            "delays",
            Kind::List { of: &Kind::Duration { zero: false }, least: 1 },
            "One retry topic per delay, in the order in which a message goes through them, each at least as long as the one before. The last one is used again.",
        )
        .or("[1m, 10m, 1h]"),
        Key::new("create", Kind::Flag, "Whether to create topics that are missing.").or("false"),
        Key::new("transactional", Kind::Flag, "Whether a message moves to its retry topic and its position is committed in one transaction.").or("false"),
        Key::new("spring-headers", Kind::Flag, "Whether to write Spring Kafka's headers as well.").or("false"),
    ],
};

static RULE: Section = Section {
    name: "rule",
    doc: "What failures of some kind are.",
    keys: &[
        Key::new("when", Kind::Section(&WHEN), "All of these must hold; none given always holds.").required(),
        Key::new("then", Kind::Choice(VERDICTS), "What becomes of the message.").required(),
        Key::new(
            "reason",
            Kind::Text(Form::Reason),
            "The reason code to record in place of the failure's own.",
        )
        .absent("the failure's own"),
    ],
};

/// What becomes of a message, with the words of the core.
pub(crate) static VERDICTS: &[Word] = &[
    Word(Verdict::Retry.as_str(), "try again, on the retry schedule"),
    Word(Verdict::DeadLetter.as_str(), "keep it as a dead letter"),
    Word(Verdict::Park.as_str(), "keep it until a person or a deployment changes something"),
    Word(Verdict::Quarantine.as_str(), "keep it apart: its content is suspicious"),
    Word(Verdict::Skip.as_str(), "leave it out, with a trace that says so"),
    Word(Verdict::Duplicate.as_str(), "it was handled before"),
    Word(Verdict::Stop.as_str(), "stop the consumer and keep the position"),
];

static WHEN: Section = Section {
    name: "when",
    doc: "The conditions of a rule.",
    keys: &[
        Key::new("reason", Kind::Text(Form::Reason), "The reason code.").example("TIMEOUT"),
        Key::new("status", Kind::Count { least: 0, most: 65_535 }, "The HTTP status or exit code.")
            .example("418")
            .remedy("write one number, as in `418`; to catch many at once use `reason` in its place, as in `reason: HANDLER_ERROR`"),
        Key::new("type", Kind::Text(Form::Glob), "The type of the event; `*` stands for any text.").example("Case*"),
        Key::new(
            "phase",
            Kind::Choice(&[
                Word("decode", "making sense of the bytes"),
                Word("filter", "deciding whether the message is wanted"),
                Word("validate", "checking the content"),
                Word("handle", "the handler's own work"),
                Word("external-call", "a call to somebody else"),
                Word("ack", "confirming that it was handled"),
            ]),
            "How far the attempt had come.",
        ),
        Key::new("attempt", Kind::Text(Form::Comparison), "Which attempt it was.").example(">=3"),
        Key::new("error", Kind::Text(Form::Regex), "A regular expression that is found in the type or the message of an error, or of one underneath.")
            .example("(?i)deadlock"),
        Key::new("error-type", Kind::Text(Form::Glob), "The type of an error, or of one underneath; `*` stands for any text."),
        Key::new("fingerprint", Kind::Text(Form::Fingerprint), "The fingerprint of the failure."),
    ],
};

static BREAKER: Section = Section {
    name: "breaker",
    doc: "When to stop calling a sick handler.",
    keys: &[
        Key::new(
            "failures",
            Kind::Count { least: 1, most: 65_536 },
            "So many failures in a row, with no success between them or for a tenth of the window, open it.",
        )
        .or("20"),
        Key::new(
            "window",
            Kind::Duration { zero: false },
            "How far back failures count: all of them must be inside.",
        )
        .or("10s"),
        Key::new(
            "open-for",
            Kind::Duration { zero: false },
            "How long it stays open before it lets probes through.",
        )
        .or("30s"),
        Key::new("probes", COUNT, "How many probes must succeed to close it.").or("3"),
    ],
};

static FUSE: Section = Section {
    name: "fuse",
    doc: "When to pause, rather than to dead-letter everything.",
    keys: &[
        Key::new(
            "ratio",
            Kind::Number { least: 0.0, most: 1.0, above: true },
            "This share of the window, or more, failed for good.",
        )
        .or("0.5"),
        Key::new("window", Kind::Count { least: 1, most: 65_536 }, "How many messages the share is of.")
            .or("100"),
        Key::new("consecutive", COUNT, "So many messages in a row failed for good.").or("50"),
    ],
};

static POISON: Section = Section {
    name: "poison",
    doc: "When retries end early because nothing changes.",
    keys: &[Key::new(
        "same-failure",
        Kind::Count { least: 2, most: MOST },
        "So many attempts in a row failed in the same way.",
    )
    .or("10")],
};

static DEAD_LETTER: Section = Section {
    name: "dead-letter",
    doc: "What holds for messages that fail for good.",
    keys: &[
        Key::new("enabled", Kind::Flag, "Whether there are dead letters at all. Without them, the consumer stops at a message that fails for good.").or("true"),
        Key::new("owner", Kind::Text(Form::Line), "The team that owns the letters.").absent("nobody"),
        Key::new("ttl", Kind::Duration { zero: true }, "How long a letter may stay open; 0 for ever.").or("30d").remedy(FOR_EVER),
        Key::new("keep-closed", Kind::Duration { zero: true }, "How long a closed letter can be looked at; 0 for ever.").or("30d").remedy(FOR_EVER),
        Key::new("include-payload", Kind::Flag, "Whether payloads are kept. Without its payload a letter cannot be replayed.").or("true"),
        Key::new("include-backtrace", Kind::Flag, "Whether backtraces are kept.").or("true"),
        Key::new("max-sequences", UNLIMITED, "How many sequences may be open. When there are more, the source waits.").or("1024"),
        Key::new("max-sequence-size", UNLIMITED, "How many letters one sequence may hold. When there are more, the source waits.").or("1024"),
        Key::new("alert-on-first", Kind::Flag, "Whether the first letter of a group is told to the webhooks of `alerts`.").or("true"),
        Key::new("topic", Kind::Text(Form::Topic), "A Kafka topic that gets a copy of each dead letter; needs a Kafka source.")
            .absent("no copies")
            .restart(),
        Key::new("reprocess", Kind::Section(&REPROCESS), "What happens to dead letters that nobody asks for.").or("{}"),
    ],
};

static REPROCESS: Section = Section {
    name: "reprocess",
    doc: "What happens to dead letters that nobody asks for.",
    keys: &[
        Key::new(
            "strategy",
            Kind::Choice(&[
                Word("manual", "they wait for a person"),
                Word("cron", "at set times the oldest are replayed"),
            ]),
            "Who begins a replay.",
        )
        .or("manual"),
        Key::new(
            "cron",
            Kind::Text(Form::Cron),
            "The times, in cron notation and UTC; the seconds may be left out.",
        )
        .or("0 */15 * * * *"),
        Key::new("batch-size", COUNT, "How many letters at a time, at most.").or("100"),
    ],
};

static INBOX_DEDUPE: Section = Section {
    name: "inbox-dedupe",
    doc: "The idempotent receiver.",
    keys: &[Key::new("window", Kind::Duration { zero: false }, "How long handled messages are remembered.")
        .or("7d")],
};

static REPLAY: Section = Section {
    name: "replay",
    doc: "What holds for replays.",
    keys: &[
        Key::new(
            "approval",
            Kind::Choice(&[
                Word("none", "who asks for it may have it"),
                Word("second-person", "somebody else has to approve it"),
            ]),
            "Who has to agree.",
        )
        .or("none"),
        Key::new(
            "rate",
            Kind::Or("unlimited", &Kind::Rate),
            "Letters in a time, unless the operation says otherwise.",
        )
        .or("50/s"),
        Key::new("max-replays", UNLIMITED, "A letter that failed again in so many replays is parked.")
            .or("5"),
    ],
};

static ADVANCED: Section = Section {
    name: "advanced",
    doc: "What hardly anybody needs to change.",
    keys: &[
        Key::new("window", Kind::Count { least: 1, most: 10_000_000 }, "How many messages may be in flight.")
            .or("8192"),
        Key::new(
            "shards",
            Kind::Count { least: 0, most: 1024 },
            "How many tasks share the lanes; 0 is one per core.",
        )
        .or("0"),
        Key::new(
            "commit-interval",
            Kind::Duration { zero: false },
            "How often positions are committed at most.",
        )
        .or("200ms"),
        Key::new(
            "drain-deadline",
            Kind::Duration { zero: true },
            "How long a drain may take before what still runs is cancelled.",
        )
        .or("30s"),
        Key::new(
            "lease",
            Kind::Duration { zero: false },
            "How long the right to a stored sequence lasts unless it is renewed.",
        )
        .or("30s"),
        Key::new(
            "refresh",
            Kind::Duration { zero: false },
            "How often the store is asked for what others changed.",
        )
        .or("1s"),
        Key::new("blocked-limit", COUNT, "How many open sequences each shard keeps exactly in memory.")
            .or("16777216"),
    ],
};
