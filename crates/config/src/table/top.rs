//! The keys at the top of the file, and those of the sections that are not about consumers.

use super::{CONSUMER, Form, Key, Kind, Section, Word};

/// The whole file.
pub(crate) static TOP: Section = Section {
    name: "lazaret",
    doc: "The configuration of Lazaret.",
    keys: &[
        Key::new(
            "listen",
            Kind::Text(Form::Address),
            "Where the API, the metrics and the inbox are served. An address that is not loopback needs `auth`.",
        )
        .or("127.0.0.1:7117")
        .restart(),
        Key::new("store", Kind::Text(Form::Store), "Where letters and positions are kept: `sqlite:PATH` or, in quotes, `\"memory:\"`. This version does not have `postgres://…` and `mongodb://…` yet.")
            .or("sqlite:lazaret.db")
            .restart(),
        Key::new(
            "defaults",
            Kind::Partial(&CONSUMER),
            "What holds for every consumer that does not say otherwise. Sections and maps are merged key by key; a list is one value, \
             and a consumer's own replaces it.",
        ),
        Key::new("consumers", Kind::Named(&CONSUMER), "The consumers by name. The name is that of the queue, too.").required(),
        Key::new("auth", Kind::Section(&AUTH), "Who may use the API. Without it everybody may, who can reach the address.")
            .absent("nobody is asked who they are")
            .restart(),
        Key::new(
            "hosts",
            Kind::List { of: &Kind::Text(Form::Host), least: 0 },
            "Names under which the API may be called. Others are refused, which keeps web pages of others from calling it. The address \
             of `listen` and the names of this machine's loopback are always allowed.",
        )
        .or("[]")
        .restart()
        .example("lazaret.example.com"),
        Key::new("limits", Kind::Section(&LIMITS), "How large requests may be.").or("{}").restart(),
        Key::new("alerts", Kind::Section(&ALERTS), "Whom to tell when something happens.").or("{}"),
        Key::new("telemetry", Kind::Section(&TELEMETRY), "Logs and traces.").or("{}").restart(),
        Key::new(
            "flight-recorder",
            Kind::Or("off", &Kind::Text(Form::Path)),
            "The folder in which attempts are recorded while they run, so that a message that kills the process is found. `off` for none.",
        )
        .or("lazaret.flight")
        .restart(),
    ],
};

static AUTH: Section = Section {
    name: "auth",
    doc: "Who may use the API.",
    keys: &[
        Key::new(
            "tokens-file",
            Kind::Text(Form::Path),
            "A file with the lines that `lazaret token` prints: `auth`, and `tokens` below it.",
        ),
        Key::new("tokens", Kind::List { of: &Kind::Section(&TOKEN), least: 0 }, "Tokens in this file.")
            .or("[]"),
    ],
};

static TOKEN: Section = Section {
    name: "token",
    doc: "A token. Its text is not here, only what it hashes to.",
    keys: &[
        Key::new("name", Kind::Text(Form::Name), "Who this is, as it stands in the audit.").required(),
        Key::new(
            "hash",
            Kind::Text(Form::Hash),
            "The SHA-256 of the token: `sha256:` and 64 hexadecimal digits.",
        )
        .required()
        // Who puts the token itself here must not see it in a message.
        .secret(),
        Key::new("scopes", Kind::List { of: &Kind::Choice(SCOPES), least: 1 }, "What the token may do.")
            .required(),
        Key::new("expires", Kind::Text(Form::Time), "When it ends to be good, in RFC 3339.")
            .absent("never")
            .example("2027-01-01T00:00:00Z"),
    ],
};

/// What tokens may be used for, with the words of the API.
pub(crate) static SCOPES: &[Word] = &[
    Word("read", "see everything but payloads and headers"),
    Word("payload", "see payloads and headers, and search in them"),
    Word("triage", "retry, park, release, restore, resolve, comment, assign"),
    Word("evict", "evict, purge, edit, quarantine, import"),
    Word("pause", "pause and resume"),
    Word("approve", "approve or reject what somebody else began"),
    Word("ingest", "post to inboxes"),
    Word("admin", "everything"),
];

static LIMITS: Section = Section {
    name: "limits",
    doc: "How large requests may be.",
    keys: &[
        Key::new(
            "body",
            Kind::Size { least: 1 },
            "The largest body of a request, which is the largest payload of an inbox message.",
        )
        .or("1MiB"),
        Key::new("batch", Kind::Size { least: 1 }, "The largest body of a batch for an inbox.").or("16MiB"),
        Key::new("headers", Kind::Size { least: 1024 }, "The largest headers of a request, together.")
            .or("64KiB"),
    ],
};

static ALERTS: Section = Section {
    name: "alerts",
    doc: "Whom to tell when something happens.",
    keys: &[Key::new(
        "webhooks",
        Kind::List { of: &Kind::Section(&WEBHOOK), least: 0 },
        "URLs that get a POST for each event.",
    )
    .or("[]")],
};

static WEBHOOK: Section = Section {
    name: "webhook",
    doc: "A URL that gets a POST for each event.",
    keys: &[
        Key::new("url", Kind::Text(Form::Url), "Where to send it.").required().example("https://alerts.example.com/lazaret"),
        Key::new("secret", Kind::Text(Form::Line), "Signs each request, so that the receiver knows who sent it. Take it from the environment: `${NAME}`.")
            .absent("requests are not signed")
            .secret()
            .example("${ALERT_SECRET}"),
        Key::new("events", Kind::List { of: &Kind::Choice(EVENTS), least: 1 }, "Which events are sent.")
            .or("[first-letter, poison, decode-failure, fuse-blown, store-unavailable, queue-full, retry-storm, retry-age, blocked, paused-too-long, operation-stopped]"),
        Key::new("timeout", Kind::Duration { zero: false }, "How long the receiver may take.").or("10s"),
    ],
};

pub(crate) static EVENTS: &[Word] = &[
    Word("first-letter", "a queue got its first dead letter, or a group of letters its first"),
    Word("poison", "a message was found to be poison, or killed the process too often"),
    Word("decode-failure", "messages cannot be read"),
    Word("fuse-blown", "a fuse paused a consumer"),
    Word("breaker-opened", "a breaker opened"),
    Word("breaker-closed", "a breaker closed again"),
    Word("paused", "somebody paused a consumer"),
    Word("resumed", "somebody resumed a consumer"),
    Word("paused-too-long", "a consumer or a part of it has been paused for 15 minutes"),
    Word("store-unavailable", "the store does not answer, and the source waits"),
    Word("queue-full", "a queue reached its limit, and the source waits"),
    Word("retry-rate", "more than 10 messages a second were retried for a minute"),
    Word("retry-age", "a message has been waiting for its retries for 15 minutes"),
    Word("retry-storm", "most attempts failed for a minute"),
    Word("blocked", "messages waited and none was handled for 5 minutes"),
    Word("operation-stopped", "a replay stopped because too much failed"),
    Word("approval-needed", "an operation waits for a second person"),
];

static TELEMETRY: Section = Section {
    name: "telemetry",
    doc: "Logs and traces.",
    keys: &[
        Key::new("otlp-endpoint", Kind::Text(Form::Url), "Where traces are sent by OTLP over HTTP.")
            .absent("no traces are sent")
            .example("http://127.0.0.1:4318"),
        Key::new(
            "log-format",
            Kind::Choice(&[Word("text", "for people"), Word("json", "for machines")]),
            "How log lines look.",
        )
        .or("text"),
        Key::new("log-level", Kind::Choice(LEVELS), "How much is logged.").or("info"),
        Key::new(
            "log-error-messages",
            Kind::Flag,
            "Whether the words of failures are logged. They may hold what messages hold.",
        )
        .or("false"),
    ],
};

static LEVELS: &[Word] = &[
    Word("error", "errors"),
    Word("warn", "and warnings"),
    Word("info", "and what happens"),
    Word("debug", "and how"),
    Word("trace", "and everything"),
];
