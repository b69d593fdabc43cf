//! The keys of sources and handlers.

use super::{Form, Key, Kind, Section, Word};

const TEXT: Kind = Kind::Text(Form::Line);

pub(crate) static SOURCE: Section = Section {
    name: "source",
    doc: "Where messages come from. Exactly one.",
    keys: &[
        Key::new(
            "inbox",
            Kind::Section(&INBOX),
            "Messages that are sent to this process over HTTP, and kept in the store.",
        ),
        Key::new("file", Kind::Section(&FILE), "A file with one JSON message a line."),
        Key::new("kafka", Kind::Section(&KAFKA), "Topics of Kafka, as a member of a group."),
        Key::new("mongodb", Kind::Section(&MONGODB), "Changes of a MongoDB collection."),
    ],
};

static INBOX: Section =
    Section { name: "inbox", doc: "Messages that are sent to this process over HTTP.", keys: &[] };

static FILE: Section = Section {
    name: "file",
    doc: "A file with one JSON message a line.",
    keys: &[
        Key::new("path", Kind::Text(Form::Path), "The file.").required().example("events.jsonl"),
        Key::new("follow", Kind::Flag, "Whether to wait for more at its end.").or("false"),
    ],
};

static KAFKA: Section = Section {
    name: "kafka",
    doc: "Topics of Kafka, as a member of a group.",
    keys: &[
        Key::new("brokers", Kind::Text(Form::Brokers), "Where to find the cluster: hosts and ports, separated by commas.")
            .required()
            .example("127.0.0.1:9092"),
        Key::new("topics", Kind::List { of: &Kind::Text(Form::Topic), least: 1 }, "What to read.").required().example("events"),
        Key::new("group", TEXT, "The consumer group.").absent("the name of the consumer"),
        Key::new(
            "properties",
            Kind::Map { names: Form::Property, of: &Kind::Text(Form::Free) },
            "Properties of librdkafka: SASL, TLS, `auto.offset.reset` (`earliest` unless given) and so on.",
        )
        .or("{}")
        .secret(),
        Key::new(
            "id-headers",
            Kind::List { of: &TEXT, least: 0 },
            "The id of a message is the value of the first of these headers that it has; else topic, partition and offset.",
        )
        .or("[]")
        .example("ce_id"),
        Key::new("type-headers", Kind::List { of: &TEXT, least: 0 }, "Where the type of an event stands.").or("[ce_type]"),
        Key::new("correlation-headers", Kind::List { of: &TEXT, least: 0 }, "Where the correlation id stands.")
            .or("[correlation-id, ce_correlationid]"),
    ],
};

static MONGODB: Section = Section {
    name: "mongodb-source",
    doc: "Changes of a MongoDB collection.",
    keys: &[
        Key::new("uri", Kind::Text(Form::MongoUri), "Where to find the cluster.")
            .required()
            .example("mongodb://127.0.0.1:27017"),
        Key::new("database", TEXT, "The database.").required(),
        Key::new("collection", TEXT, "The collection.").required(),
        Key::new(
            "full-document",
            Kind::Choice(&[
                Word("default", "only what the change itself carries"),
                Word("update-lookup", "the document as it is when the change is read"),
                Word("when-available", "the document as it was after the change, where it was kept"),
                Word("required", "the same, and an error where it was not kept"),
            ]),
            "How much of a changed document a message carries.",
        )
        .or("update-lookup"),
        Key::new(
            "pipeline",
            Kind::List { of: &Kind::Any, least: 0 },
            "Stages of an aggregation that choose and shape the changes.",
        )
        .or("[]"),
        Key::new(
            "start",
            Kind::Choice(&[
                Word("resume", "where it ended, or now the first time"),
                Word("latest", "now, at each start"),
            ]),
            "Where to begin.",
        )
        .or("resume"),
        Key::new(
            "on-history-lost",
            Kind::Choice(&[
                Word("fail", "stop and wait for a person"),
                Word("resume-from-now", "go on with what comes now; what was between is lost"),
                Word("resume-from-oplog-start", "go on with the oldest change that is left"),
            ]),
            "What to do when the place to go on from is no longer in the oplog.",
        )
        .or("fail"),
        Key::new("checkpoint", Kind::Section(&CHECKPOINT), "How often the place is saved.").or("{}"),
        Key::new(
            "deployment",
            Kind::Choice(&[
                Word("single-leader", "one instance reads, others stand by"),
                Word("all-instances", "every instance reads everything"),
            ]),
            "Who reads when several instances run.",
        )
        .or("single-leader"),
    ],
};

static CHECKPOINT: Section = Section {
    name: "checkpoint",
    doc: "How often the place in the changes is saved.",
    keys: &[
        Key::new("every", Kind::Count { least: 1, most: 1_000_000 }, "After so many messages.").or("1"),
        Key::new("interval", Kind::Duration { zero: true }, "And at least so often; 0 for never.").or("5s"),
        Key::new(
            "idle-heartbeat",
            Kind::Duration { zero: true },
            "How often the place is moved on while nothing comes; 0 for never.",
        )
        .or("5m"),
    ],
};

pub(crate) static HANDLER: Section = Section {
    name: "handler",
    doc: "Who handles the messages. Exactly one.",
    keys: &[
        Key::new("http", Kind::Section(&HTTP), "A service that gets a POST for each attempt."),
        Key::new(
            "command",
            Kind::Section(&COMMAND),
            "A program that is run for each attempt, or kept running.",
        ),
    ],
};

static HTTP: Section = Section {
    name: "http",
    doc: "A service that gets a POST for each attempt.",
    keys: &[
        Key::new("url", Kind::Text(Form::Url), "Where to send it.").required().live().example("http://127.0.0.1:8080/events"),
        Key::new("timeout", Kind::Duration { zero: false }, "How long one attempt may take.").or("10s").live(),
        Key::new(
            "headers",
            Kind::Map { names: Form::HeaderName, of: &Kind::Text(Form::HeaderValue) },
            "Headers to send along, for example for authorization. Take secrets from the environment: `${NAME}`. Those that say what the message \
             is (`lazaret-…`, `ce-…`) or frame the request are Lazaret's own; a `Content-Type` is sent with messages that bring none.",
        )
        .or("{}")
        .secret()
        .live(),
        Key::new("http2", Kind::Flag, "Whether to speak HTTP/2 from the first byte on. With https both sides agree by themselves.").or("false").live(),
        Key::new("max-connections", Kind::Count { least: 1, most: 65_536 }, "How many connections are kept open at most.")
            .absent("as many as `concurrency`")
            .live(),
        Key::new("tls-ca", Kind::Text(Form::Path), "A PEM file with the authorities to trust in place of those of the system.")
            .absent("those of the system")
            .live(),
    ],
};

static COMMAND: Section = Section {
    name: "command",
    doc: "A program that is run for each attempt, or kept running.",
    keys: &[
        Key::new(
            "program",
            Kind::List { of: &TEXT, least: 1 },
            "The program and its arguments. No shell is involved.",
        )
        .required()
        .live()
        .example("python3"),
        Key::new(
            "timeout",
            Kind::Duration { zero: false },
            "How long one attempt may take. Then the program is killed.",
        )
        .or("10s")
        .live(),
        Key::new(
            "mode",
            Kind::Choice(&[
                Word("once", "a process for each attempt, with the payload on stdin"),
                Word("lines", "processes that stay: one JSON line in, one out"),
            ]),
            "How the program is called.",
        )
        .or("once"),
        Key::new("workers", Kind::Count { least: 1, most: 4096 }, "How many processes run at once.")
            .absent("as many as `concurrency`, and for `lines` one per core"),
        Key::new(
            "env",
            Kind::Map { names: Form::EnvName, of: &Kind::Text(Form::Free) },
            "Variables for the program, beside those of this process and `LAZARET_…`.",
        )
        .or("{}")
        .secret()
        .live(),
    ],
};
