//! The keys of sources and handlers.

use super::types::{EnumValue, Format, Key, Kind, Section};

const TEXT: Kind = Kind::Text(Format::Line);

pub(crate) static SOURCE: Section = Section {
    name: "source",
    doc: "Source of messages. Exactly one.",
    keys: &[
        Key::new(
            "inbox",
            Kind::Section(&INBOX),
            "Messages that are posted to this process over HTTP and kept in the store.",
        ),
        Key::new("file", Kind::Section(&FILE), "A file with one JSON message per line."),
        Key::new("kafka", Kind::Section(&KAFKA), "Kafka topics, read as a member of a consumer group."),
        Key::new("mongodb", Kind::Section(&MONGODB), "Change stream of a MongoDB collection or database."),
        Key::new(
            "postgres-outbox",
            Kind::Section(&POSTGRES_OUTBOX),
            "Transactional outbox: a table of a PostgreSQL database.",
        ),
    ],
};

static INBOX: Section =
    Section { name: "inbox", doc: "Messages that are posted to this process over HTTP.", keys: &[] };

static FILE: Section = Section {
    name: "file",
    doc: "A file with one JSON message per line.",
    keys: &[
        Key::new("path", Kind::Text(Format::Path), "Path of the file.").required().example("events.jsonl"),
        Key::new("follow", Kind::Flag, "Wait for new lines at the end of the file.").or("false"),
    ],
};

static KAFKA: Section = Section {
    name: "kafka",
    doc: "Kafka topics, read as a member of a consumer group.",
    keys: &[
        Key::new("brokers", Kind::Text(Format::Brokers), "Bootstrap brokers: a comma-separated list of hosts and ports.")
            .required()
            .example("127.0.0.1:9092"),
        Key::new("topics", Kind::List { of: &Kind::Text(Format::Topic), min: 1 }, "Topics to read.").required().example("events"),
        Key::new("group", TEXT, "The consumer group.").absent("the name of the consumer"),
        Key::new(
            "member",
            TEXT,
            "Static member id (`group.instance.id`), unique in the group: after a crash the member gets its partitions back at once. \
             `dynamic` for none.",
        )
        .absent("with an embedded store, an id of its file for the first process that opens it; otherwise `dynamic`")
        .example("shop-1"),
        Key::new(
            "properties",
            Kind::Map { names: Format::Property, of: &Kind::Text(Format::Free) },
            "Properties of librdkafka: SASL, TLS, `auto.offset.reset` (default: `earliest`) and others.",
        )
        .or("{}")
        .secret(),
        Key::new(
            "id-headers",
            Kind::List { of: &TEXT, min: 0 },
            "Headers with the message id; the first present header is used. Default: topic, partition and offset.",
        )
        .or("[]")
        .example("ce_id"),
        Key::new("type-headers", Kind::List { of: &TEXT, min: 0 }, "Headers with the event type; the first present header is used.").or("[ce_type]"),
        Key::new("correlation-headers", Kind::List { of: &TEXT, min: 0 }, "Headers with the correlation id; the first present header is used.")
            .or("[correlation-id, ce_correlationid]"),
        Key::new(
            "replaced-stores",
            Kind::List { of: &TEXT, min: 0 },
            "Ids of stores that the store of this daemon replaces. Positions that were committed with another store are refused; the error names \
             its id.",
        )
        .or("[]"),
        Key::new(
            "topic-timeout",
            Kind::Duration { zero: true },
            "Maximum wait for topics that do not exist yet, before that is an error; 0 is no wait.",
        )
        .or("30s"),
        Key::new(
            "on-lost-position",
            Kind::Enum(&[
                EnumValue("fail", "the consumer stops with an error"),
                EnumValue("start-fresh", "all that the log has is handled, as new messages"),
            ]),
            "What happens when the position of the group cannot be one of the log, and the broker gives topics no ids (before Kafka 2.8). \
             With ids, a recreated topic is recognised and read from its beginning.",
        )
        .or("fail"),
    ],
};

static POSTGRES_OUTBOX: Section = Section {
    name: "postgres-outbox",
    doc: "Transactional outbox: the rows of a PostgreSQL table, each delivered once its transaction has committed.",
    keys: &[
        Key::new("dsn", Kind::Text(Format::PostgresUrl), "Connection URL of the primary.")
            .required()
            .example("postgres://orders@127.0.0.1:5432/shop"),
        Key::new("table", TEXT, "The table, with its schema unless that is in the search path.").or("outbox"),
        Key::new("id", TEXT, "Column of the id: an integer from a sequence without cache.").or("id"),
        Key::new("key", TEXT, "Column of the key that orders messages.").or("key"),
        Key::new("type", TEXT, "Column of the event type. It may be missing under its default name.").or("type"),
        Key::new("payload", TEXT, "Column of the payload: `bytea`, or any other type as text.").or("payload"),
        Key::new("headers", TEXT, "Column of the headers, a `json` or `jsonb` object. It may be missing under its default name.")
            .or("headers"),
        Key::new("created-at", TEXT, "Column of the event time. It may be missing under its default name.").or("created_at"),
        Key::new(
            "ack",
            Kind::Enum(&[
                EnumValue("delete", "settled rows are deleted; the table has one consumer"),
                EnumValue("position", "rows stay, and the position is kept in the store"),
            ]),
            "How settled rows are acknowledged.",
        )
        .or("delete"),
        Key::new("channel", TEXT, "Channel of the notifications of writers.").or("lazaret_outbox"),
        Key::new("poll", Kind::Duration { zero: false }, "Longest wait for a notification before the table is read.").or("1s"),
        Key::new(
            "session-timeout",
            Kind::Duration { zero: false },
            "Time without a response after which the server ends the session of an instance, and another one takes over. At least 1s.",
        )
        .or("30s"),
        Key::new("setup", Kind::Flag, "Create the table and its trigger at the start if they are missing.").or("false"),
        Key::new(
            "start-over",
            Kind::Count { min: 0, max: i64::MAX.unsigned_abs() },
            "Position that is given up: if the source stops because the rows up to it may be other ones than those that were read, every row of the \
             table is delivered. The error names the position. Without effect afterwards.",
        )
        .absent("none"),
    ],
};

static MONGODB: Section = Section {
    name: "mongodb-source",
    doc: "Change stream of a MongoDB collection, a database, or a whole deployment.",
    keys: &[
        Key::new("uri", Kind::Text(Format::MongoUri), "Connection string of the cluster.")
            .required()
            .example("mongodb://127.0.0.1:27017"),
        Key::new("database", TEXT, "The database.").absent("all databases").example("shop"),
        Key::new("collection", TEXT, "The collection.").absent("all collections of the database").example("orders"),
        Key::new(
            "full-document",
            Kind::Enum(&[
                EnumValue("default", "only the change event itself"),
                EnumValue("update-lookup", "the current document, looked up when the change is read"),
                EnumValue("when-available", "the post-image, if available"),
                EnumValue("required", "the post-image, and an error if it is not available"),
            ]),
            "Full-document mode of update events.",
        )
        .or("update-lookup"),
        Key::new(
            "full-document-before-change",
            Kind::Enum(&[
                EnumValue("off", "none"),
                EnumValue("when-available", "the pre-image, if available"),
                EnumValue("required", "the pre-image, and an error if it is not available"),
            ]),
            "Document before the change.",
        )
        .or("off"),
        Key::new("operation-types", Kind::List { of: &OPERATION, min: 0 }, "Operations to read; an empty list reads all of them.")
            .or("[]"),
        Key::new(
            "pipeline",
            Kind::List { of: &Kind::Any, min: 0 },
            "Aggregation stages that filter and transform the changes on the server, in extended JSON. They must keep `_id`, the resume token.",
        )
        .or("[]"),
        Key::new(
            "start",
            Kind::Enum(&[
                EnumValue("resume", "at the saved position; at the first start, now"),
                EnumValue("latest", "now, at each start"),
                EnumValue("oplog-start", "at the saved position; at the first start, at the oldest change in the oplog"),
            ]),
            "Start position.",
        )
        .or("resume"),
        Key::new(
            "on-history-lost",
            Kind::Enum(&[
                EnumValue("fail", "stop the consumer"),
                EnumValue("from-now", "continue from now; changes in between are lost"),
                EnumValue("from-oplog-start", "continue from the oldest change in the oplog"),
            ]),
            "Action when the saved position is no longer in the oplog, or later than all that the server has.",
        )
        .or("fail"),
        Key::new(
            "on-invalidate",
            Kind::Enum(&[
                EnumValue("stop", "stop the consumer when all changes before are settled"),
                EnumValue("start-after", "continue with what is created under the same name"),
            ]),
            "Action when the stream was invalidated: its collection was dropped or renamed, or its database dropped.",
        )
        .or("stop"),
        Key::new("checkpoint", Kind::Section(&CHECKPOINT), "How often the position is saved.").or("{}"),
        Key::new("restart", Kind::Section(&RESTART), "When a failed stream is opened again.").or("{}"),
        Key::new(
            "deployment",
            Kind::Enum(&[
                EnumValue("single-leader", "one instance reads, the others stand by"),
                EnumValue("all-instances", "every instance reads all changes, with a position of its own"),
            ]),
            "Which instances read, if there are several.",
        )
        .or("single-leader"),
        Key::new("instance", TEXT, "Name of this instance. With `all-instances` the position is saved under it, so it must be the same after a restart.")
            .absent("the name of the host"),
    ],
};

static OPERATION: Kind = Kind::Enum(&[
    EnumValue("insert", "a document was inserted"),
    EnumValue("update", "fields of a document were changed"),
    EnumValue("replace", "a document was replaced"),
    EnumValue("delete", "a document was deleted"),
    EnumValue("drop", "a collection was dropped"),
    EnumValue("rename", "a collection was renamed"),
    EnumValue("drop-database", "a database was dropped"),
    EnumValue("invalidate", "the stream was invalidated"),
]);

static CHECKPOINT: Section = Section {
    name: "checkpoint",
    doc: "How often the position is saved.",
    keys: &[
        Key::new(
            "every",
            Kind::Count { min: 1, max: 1_000_000 },
            "Save the position after this number of messages.",
        )
        .or("1"),
        Key::new(
            "interval",
            Kind::Duration { zero: true },
            "Save the position at least this often; 0 disables it.",
        )
        .or("5s"),
        Key::new(
            "idle-heartbeat",
            Kind::Duration { zero: true },
            "Save the position this often while the stream is idle; 0 disables it.",
        )
        .or("5m"),
    ],
};

static RESTART: Section = Section {
    name: "restart",
    doc: "When a failed stream is opened again.",
    keys: &[
        Key::new(
            "max-attempts",
            Kind::Or("unlimited", &Kind::Count { min: 1, max: u32::MAX as u64 }),
            "Maximum number of restarts without progress. After the last one the consumer stops, and keeps its position. A change that was \
             read, or a later position of the server, is progress.",
        )
        .or("unlimited")
        .example("20"),
        Key::new("initial-delay", Kind::Duration { zero: false }, "Delay before the first restart.").or("1s"),
        Key::new(
            "multiplier",
            Kind::Number { min: 1.0, max: 1e6, exclusive: false },
            "Factor between consecutive delays.",
        )
        .or("2.0")
        .hint("write `1` for constant delays, `2.0` for delays that double"),
        Key::new("max-delay", Kind::Duration { zero: false }, "Maximum delay.").or("1m"),
    ],
};

pub(crate) static HANDLER: Section = Section {
    name: "handler",
    doc: "Handler of the messages. Exactly one.",
    keys: &[
        Key::new(
            "http",
            Kind::Section(&HTTP),
            "An HTTP service that receives a POST request for each attempt.",
        ),
        Key::new(
            "command",
            Kind::Section(&COMMAND),
            "A program that runs once per attempt, or as a long-running worker.",
        ),
    ],
};

static HTTP: Section = Section {
    name: "http",
    doc: "An HTTP service that receives a POST request for each attempt.",
    keys: &[
        Key::new("url", Kind::Text(Format::Url), "URL of the service.").required().live().example("http://127.0.0.1:8080/events"),
        Key::new("timeout", Kind::Duration { zero: false }, "Timeout of an attempt.").or("10s").live(),
        Key::new(
            "headers",
            Kind::Map { names: Format::HeaderName, of: &Kind::Text(Format::HeaderValue) },
            "Additional request headers, for example for authorization. Read secrets from the environment: `${NAME}`. Headers that describe the \
             message (`lazaret-…`, `ce-…`) or frame the request are reserved; a `Content-Type` applies to messages without one.",
        )
        .or("{}")
        .secret()
        .live(),
        Key::new("http2", Kind::Flag, "Use HTTP/2 with prior knowledge. With https the version is negotiated.").or("false").live(),
        Key::new("max-connections", Kind::Count { min: 1, max: 65_536 }, "Maximum number of connections.")
            .absent("`concurrency`")
            .live(),
        Key::new("tls-ca", Kind::Text(Format::Path), "PEM file with trusted certificate authorities, instead of those of the system.")
            .absent("certificate authorities of the system")
            .live(),
    ],
};

static COMMAND: Section = Section {
    name: "command",
    doc: "A program that runs once per attempt, or as a long-running worker.",
    keys: &[
        Key::new(
            "program",
            Kind::List { of: &TEXT, min: 1 },
            "Program and arguments, executed without a shell.",
        )
        .required()
        .live()
        .example("python3"),
        Key::new(
            "timeout",
            Kind::Duration { zero: false },
            "Timeout of an attempt; the program is killed then.",
        )
        .or("10s")
        .live(),
        Key::new(
            "mode",
            Kind::Enum(&[
                EnumValue("once", "one process per attempt, with the payload on stdin"),
                EnumValue("lines", "long-running workers: one JSON line in, one out"),
            ]),
            "How the program is executed.",
        )
        .or("once"),
        Key::new(
            "workers",
            Kind::Count { min: 1, max: 4096 },
            "Maximum number of processes; with `lines` one more for messages that crashed one.",
        )
        .absent("`concurrency`; one per core for `lines`"),
        Key::new(
            "env",
            Kind::Map { names: Format::EnvName, of: &Kind::Text(Format::Free) },
            "Environment variables of the program, in addition to those that it inherits and `LAZARET_…`.",
        )
        .or("{}")
        .secret()
        .live(),
        Key::new(
            "inherit-env",
            Kind::List { of: &Kind::Text(Format::EnvName), min: 0 },
            "Environment variables of the daemon that the program inherits, in addition to the harmless ones (`PATH`, `HOME`, `LANG`, `TZ` and the like). \
             A name that ends with `*` is a prefix.",
        )
        .or("[]")
        .live(),
    ],
};
