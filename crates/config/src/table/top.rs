//! The keys of the top level and of all sections outside consumers.

use lazaret_core::redaction::TextSet;

use super::console::CONSOLE;
use super::consumer::CONSUMER;
use super::types::{EnumValue, Format, Key, Kind, Section};

/// The kind for a number of windows or failures.
const COUNT: Kind = Kind::Count { min: 1, max: 1_000_000_000 };

/// The whole file.
pub(crate) static TOP: Section = Section {
    name: "lazaret",
    doc: "The configuration of Lazaret.",
    keys: &[
        Key::new(
            "listen",
            Kind::Text(Format::Address),
            "Address of the API, the metrics and the inbox. An address other than loopback requires `auth`.",
        )
        .or("127.0.0.1:7117")
        .restart(),
        Key::new("tls", Kind::Section(&TLS), "TLS of the API. Without it, use a reverse proxy outside of private networks.")
            .absent("plain HTTP")
            .restart(),
        Key::new(
            "socket",
            Kind::Text(Format::Path),
            "Unix socket that serves the API in addition to `listen`. Only the user of the daemon may connect.",
        )
        .absent("none")
        .restart()
        .example("/run/lazaret/api.sock"),
        Key::new("store", Kind::Text(Format::Store), "Store for letters and positions: `sqlite:PATH`, `postgres://…`, `mongodb://…` or, in quotes, `\"memory:\"`.")
            .or("sqlite:lazaret.db")
            .restart(),
        Key::new(
            "defaults",
            Kind::Partial(&CONSUMER),
            "Defaults for all consumers. Sections and maps are merged key by key; a list of a consumer replaces the default \
             list.",
        ),
        Key::new("consumers", Kind::Named(&CONSUMER), "Consumers by name. The name of a consumer is also the name of its queue.").required(),
        Key::new(
            "auth",
            Kind::Section(&AUTH),
            "Authentication of API clients. Without it the API is unauthenticated. Its removal requires a restart.",
        )
        .absent("the API is unauthenticated")
        .live(),
        Key::new(
            "hosts",
            Kind::List { of: &Kind::Text(Format::Host), min: 0 },
            "Allowed host names of the API. Requests with other host names are rejected, which prevents DNS rebinding. The address \
             of `listen` and the loopback names are always allowed.",
        )
        .or("[]")
        .restart()
        .example("lazaret.example.com"),
        Key::new("console", Kind::Section(&CONSOLE), "The web console: sign-in, and links to other systems.").or("{}").restart(),
        Key::new(
            "redact",
            Kind::Section(&REDACT),
            "Values of letters that the API, the console and the command line replace by `[redacted]`. The scope `reveal` shows them, \
             with a reason for the audit log.",
        )
        .or("{}")
        .restart(),
        Key::new(
            "encryption",
            Kind::Section(&ENCRYPTION),
            "Encryption of payloads, headers and the texts of failures in the store.",
        )
        .absent("stored in the clear")
        .restart(),
        Key::new("limits", Kind::Section(&LIMITS), "Limits of requests and connections.").or("{}").restart(),
        Key::new("alerts", Kind::Section(&ALERTS), "Alert notifications.").or("{}"),
        Key::new("telemetry", Kind::Section(&TELEMETRY), "Logs and traces.").or("{}").restart(),
        Key::new(
            "flight-recorder",
            Kind::Or("off", &Kind::Text(Format::Path)),
            "Directory in which running attempts are recorded, to find messages that crash the process. `off` disables it.",
        )
        .or("lazaret.flight")
        .restart(),
    ],
};

static AUTH: Section = Section {
    name: "auth",
    doc: "Authentication of API clients.",
    keys: &[
        Key::new(
            "tokens-file",
            Kind::Text(Format::Path),
            "File with the lines that `lazaret token` prints: `auth` with `tokens`. Read at the start and at each reload.",
        ),
        Key::new(
            "tokens",
            Kind::List { of: &Kind::Section(&TOKEN), min: 0 },
            "Tokens in the configuration itself.",
        )
        .or("[]"),
    ],
};

static TOKEN: Section = Section {
    name: "token",
    doc: "A token, stored as a hash.",
    keys: &[
        Key::new(
            "name",
            Kind::Text(Format::Name),
            "Name of the token. The audit log records it with the person.",
        )
        .required(),
        Key::new(
            "hash",
            Kind::Text(Format::Hash),
            "SHA-256 hash of the token: `sha256:` and 64 hexadecimal digits.",
        )
        .required()
        // The token itself may be written here by mistake and must not be shown.
        .secret(),
        Key::new("scopes", Kind::List { of: &Kind::Enum(SCOPES), min: 1 }, "Permissions of the token.")
            .required(),
        Key::new("expires", Kind::Text(Format::Time), "Expiry time in RFC 3339.")
            .absent("never")
            .example("2027-01-01T00:00:00Z"),
        Key::new(
            "person",
            Kind::Text(Format::Name),
            "Person in the audit log. Tokens of one person cannot approve each other's operations.",
        )
        .absent("the name of the token")
        .example("ada"),
        Key::new(
            "consumers",
            Kind::List { of: &Kind::Text(Format::Name), min: 1 },
            "Consumers whose letters, inboxes and operations the token may use.",
        )
        .absent("all consumers")
        .example("orders"),
    ],
};

/// The scopes of tokens, by their names in the API.
pub(crate) static SCOPES: &[EnumValue] = &[
    EnumValue("read", "see everything but payloads and headers"),
    EnumValue("payload", "see payloads and headers, and search in them"),
    EnumValue("reveal", "see redacted values, with a reason, and search in them"),
    EnumValue("triage", "retry, park, release, restore, resolve, comment, assign"),
    EnumValue("evict", "evict, purge, quarantine, set the expiry"),
    EnumValue("purge", "delete closed letters"),
    EnumValue("edit", "replace payloads"),
    EnumValue("import", "import letters"),
    EnumValue("pause", "pause and resume"),
    EnumValue("approve", "approve or reject operations of others"),
    EnumValue("ingest", "post to inboxes"),
    EnumValue("admin", "everything"),
];

static TLS: Section = Section {
    name: "tls",
    doc: "TLS of the API.",
    keys: &[
        Key::new(
            "certificate",
            Kind::Text(Format::Path),
            "PEM file with the certificate, followed by those of its issuers.",
        )
        .required()
        .example("/etc/lazaret/tls.crt"),
        Key::new("key", Kind::Text(Format::Path), "PEM file with the private key.")
            .required()
            .example("/etc/lazaret/tls.key"),
        Key::new(
            "hsts",
            Kind::Duration { zero: true },
            "Time for which browsers use nothing but TLS for the host of the API (`Strict-Transport-Security`). Not sent for `localhost` and \
             other names of this machine. `0s` disables it.",
        )
        .or("365d"),
    ],
};

static REDACT: Section = Section {
    name: "redact",
    doc: "Values of letters that are replaced by `[redacted]`.",
    keys: &[
        Key::new(
            "headers",
            Kind::List { of: &Kind::Text(Format::Line), min: 0 },
            "Names of headers whose values are redacted, in upper or lower case.",
        )
        .or("[]")
        .example("authorization"),
        Key::new(
            "payload",
            Kind::List { of: &Kind::Text(Format::PayloadPath), min: 0 },
            "Paths of redacted values in JSON payloads: JSON pointers, in which `*` matches every name and index. With a path, a \
             payload that is not JSON is redacted whole.",
        )
        .or("[]")
        .example("/card/number"),
        Key::new(
            "errors",
            Kind::List { of: &Kind::Enum(TEXT_SETS), min: 0 },
            "Secrets that are redacted in error messages, causes and traces, in diagnostics, in the texts of groups, and in comments.",
        )
        .or("[]")
        .example("card-numbers"),
        Key::new(
            "patterns",
            Kind::List { of: &Kind::Text(Format::GroupPattern), min: 0 },
            "Regular expressions for other secrets in these texts. If one has capture groups, only what they match is redacted.",
        )
        .or("[]")
        .example("customer ([A-Z0-9]+)"),
        Key::new(
            "store",
            Kind::Flag,
            "Redact these texts before they are stored or published, and not only when they are shown or logged. Nobody can reveal what is \
             redacted then. Payloads and headers are stored as they are.",
        )
        .or("false"),
    ],
};

static TEXT_SETS: &[EnumValue] = &[
    EnumValue(TextSet::CardNumbers.as_str(), "numbers of payment cards, with a valid check digit"),
    EnumValue(TextSet::Emails.as_str(), "e-mail addresses"),
    EnumValue(
        TextSet::Tokens.as_str(),
        "JSON web tokens, bearer tokens, `Basic` credentials, passwords in URLs and in pairs such as `password=…`, private keys, and \
         keys of AWS, GitHub, GitLab, Google, npm, SendGrid, Slack, Stripe and Lazaret",
    ),
    EnumValue(TextSet::Ibans.as_str(), "international bank account numbers, with valid check digits"),
];

static ENCRYPTION: Section = Section {
    name: "encryption",
    doc: "Encryption of payloads, headers and the texts of failures in the store.",
    keys: &[Key::new(
        "keys",
        Kind::List { of: &Kind::Section(&ENCRYPTION_KEY), min: 1 },
        "Keys. The first one encrypts; values that were encrypted under the others stay readable.",
    )
    .required()],
};

static ENCRYPTION_KEY: Section = Section {
    name: "encryption-key",
    doc: "A key: in a file, or printed by a command.",
    keys: &[
        Key::new(
            "file",
            Kind::Text(Format::Path),
            "File with the key: 32 bytes, as they are, as 64 hexadecimal digits or in base64. `lazaret keys generate` makes one.",
        )
        .example("/etc/lazaret/lazaret.key"),
        Key::new(
            "command",
            Kind::List { of: &Kind::Text(Format::Line), min: 1 },
            "Program that prints the key, with its arguments, such as the client of a key management service. It runs once, at the start.",
        ),
        Key::new("timeout", Kind::Duration { zero: false }, "Timeout of the command.").or("30s"),
    ],
};

static LIMITS: Section = Section {
    name: "limits",
    doc: "Limits of requests and connections.",
    keys: &[
        Key::new(
            "body",
            Kind::Size { min: 1 },
            "Maximum size of a request body, and so of the payload of an inbox message.",
        )
        .or("1MiB"),
        Key::new("batch", Kind::Size { min: 1 }, "Maximum size of an inbox batch.").or("16MiB"),
        Key::new("headers", Kind::Size { min: 1024 }, "Maximum size of all headers of a request.")
            .or("64KiB"),
        Key::new("batch-messages", Kind::Count { min: 1, max: 1_000_000 }, "Maximum number of messages in an inbox batch.")
            .or("10000"),
        Key::new(
            "connections",
            Kind::Count { min: 1, max: 1_000_000 },
            "Maximum number of open connections. Beyond it, a connection without an authenticated request in progress is closed, those \
             without any authenticated request first; when all have one, only health checks are answered.",
        )
        .or("1024"),
        Key::new(
            "connections-per-peer",
            Kind::Count { min: 1, max: 1_000_000 },
            "Maximum number of open connections from one IP address. Beyond it, one of them is closed in the same way. Behind a reverse \
             proxy, set it to `connections`.",
        )
        .or("512"),
        Key::new(
            "requests-per-token",
            Kind::Count { min: 1, max: 1_000_000 },
            "Maximum number of concurrent requests with one token.",
        )
        .or("64"),
        Key::new(
            "drafts-per-person",
            Kind::Count { min: 1, max: 1_000_000 },
            "Maximum number of plans of one person that were not started. A plan that has expired does not count.",
        )
        .or("50"),
        Key::new("drafts", Kind::Count { min: 1, max: 1_000_000 }, "Maximum number of such plans in all.").or("200"),
        Key::new(
            "draft-letters",
            Kind::Count { min: 1, max: 1_000_000_000 },
            "Number of letters in such plans from which no further plan is frozen. A letter takes about 160 bytes in the store.",
        )
        .or("2000000"),
    ],
};

static ALERTS: Section = Section {
    name: "alerts",
    doc: "Alert notifications.",
    keys: &[
        Key::new(
            "webhooks",
            Kind::List { of: &Kind::Section(&WEBHOOK), min: 0 },
            "URLs that receive a POST request for each event.",
        )
        .or("[]"),
        Key::new(
            "docs-url",
            Kind::Text(Format::Url),
            "Base URL of this documentation as you serve it, for the `runbook` of a notice.",
        )
        .absent("its path in the repository")
        .example("https://docs.example.com/lazaret"),
        Key::new("thresholds", Kind::Section(&THRESHOLDS), "Thresholds of the events that webhooks get.")
            .or("{}"),
    ],
};

static THRESHOLDS: Section = Section {
    name: "thresholds",
    doc: "Thresholds of the events that webhooks get. The Prometheus rules in `deploy/` have the same defaults.",
    keys: &[
        Key::new(
            "window",
            Kind::Duration { zero: false },
            "Time over which rates are measured, and after which `consumer-failed` tells of a consumer that is not back.",
        )
        .or("1m"),
        Key::new("retry-rate", Kind::Rate, "`retry-rate`: retries from this rate on.").or("10/s"),
        Key::new(
            "storm-share",
            Kind::Number { min: 0.0, max: 1.0, exclusive: true },
            "`retry-storm`: share of the attempts in a window that fail.",
        )
        .or("0.5"),
        Key::new("storm-failures", COUNT, "`retry-storm`: minimum number of failures in a window.").or("100"),
        Key::new(
            "retry-age",
            Kind::Duration { zero: false },
            "`retry-age`: time since the first failed attempt of a message that is still retried.",
        )
        .or("15m"),
        Key::new(
            "attempt-age",
            Kind::Duration { zero: false },
            "`blocked`: age of a running attempt, whatever else is handled.",
        )
        .or("15m"),
        Key::new(
            "blocked-windows",
            COUNT,
            "`blocked`: number of windows in a row in which messages waited and none was handled.",
        )
        .or("5"),
        Key::new("paused-for", Kind::Duration { zero: false }, "`paused-too-long`: duration of a pause.").or("15m"),
        Key::new(
            "expires-within",
            Kind::Duration { zero: false },
            "`letters-expiring`: time until the next letter of a queue expires. With a `ttl` below it, every letter is told.",
        )
        .or("1d"),
        Key::new(
            "quiet",
            Kind::Duration { zero: false },
            "Time without a new event after which an alert is resolved that has no end of its own.",
        )
        .or("10m"),
    ],
};

static WEBHOOK: Section = Section {
    name: "webhook",
    doc: "A URL that receives a POST request for each event.",
    keys: &[
        Key::new("url", Kind::Text(Format::Url), "URL of the receiver.").required().example("https://alerts.example.com/lazaret"),
        Key::new("secret", Kind::Text(Format::Line), "Secret that signs each request, so that the receiver can verify the sender. Read it from the environment: `${NAME}`.")
            .absent("requests are not signed")
            .secret()
            .example("${ALERT_SECRET}"),
        Key::new("events", Kind::List { of: &Kind::Enum(EVENTS), min: 1 }, "Events to send.")
            .or("[first-letter, poison, decode-failure, consumer-failed, fuse-blown, store-unavailable, queue-full, retry-storm, retry-age, blocked, paused-too-long, operation-stopped, letters-expiring, letters-expired]"),
        Key::new("timeout", Kind::Duration { zero: false }, "Timeout of a request.").or("10s"),
    ],
};

pub(crate) static EVENTS: &[EnumValue] = &[
    EnumValue("first-letter", "first dead letter of a queue or of a group"),
    EnumValue("poison", "a message is poison, or crashed the process too often"),
    EnumValue("decode-failure", "messages are invalid or cannot be decoded"),
    EnumValue("consumer-failed", "a consumer failed and is not running"),
    EnumValue("fuse-blown", "a fuse paused a consumer"),
    EnumValue("breaker-opened", "a circuit breaker opened"),
    EnumValue("breaker-closed", "a circuit breaker closed"),
    EnumValue("paused", "a consumer was paused"),
    EnumValue("resumed", "a consumer was resumed"),
    EnumValue(
        "paused-too-long",
        "a consumer or a part of it has been paused for 15 minutes (`thresholds`, as the next ones)",
    ),
    EnumValue("store-unavailable", "the store is unavailable, and the source is paused"),
    EnumValue("queue-full", "a queue reached its limit, and the source is paused"),
    EnumValue("retry-rate", "more than 10 messages a second were retried for a minute"),
    EnumValue("retry-age", "a message has been retried for 15 minutes, in the store or in memory"),
    EnumValue("retry-storm", "most attempts failed for a minute"),
    EnumValue(
        "blocked",
        "messages were waiting and none was handled for 5 minutes, or an attempt runs for 15 minutes",
    ),
    EnumValue("operation-stopped", "an operation stopped because too many letters failed"),
    EnumValue("approval-needed", "an operation waits for approval"),
    EnumValue("letters-expiring", "letters expire within a day (`thresholds`)"),
    EnumValue("letters-expired", "letters expired, because nobody replayed or resolved them"),
];

static TELEMETRY: Section = Section {
    name: "telemetry",
    doc: "Logs and traces.",
    keys: &[
        Key::new("otlp-endpoint", Kind::Text(Format::Url), "OTLP endpoint for traces, over HTTP.")
            .absent("no traces are sent")
            .example("http://127.0.0.1:4318"),
        Key::new(
            "log-format",
            Kind::Enum(&[EnumValue("text", "human-readable"), EnumValue("json", "one JSON object per line")]),
            "Format of log lines.",
        )
        .or("text"),
        Key::new("log-level", Kind::Enum(LEVELS), "Minimum level of log lines.").or("info"),
        Key::new(
            "log-error-messages",
            Kind::Flag,
            "Log the messages of failures. They may contain message data.",
        )
        .or("false"),
    ],
};

static LEVELS: &[EnumValue] = &[
    EnumValue("error", "errors only"),
    EnumValue("warn", "errors and warnings"),
    EnumValue("info", "also state changes"),
    EnumValue("debug", "also details"),
    EnumValue("trace", "everything"),
];
