//! The keys of `adopt`: dead letters of other frameworks.

use super::types::{EnumValue, Format, Key, Kind, Section};

const TEXT: Kind = Kind::Text(Format::Line);

pub(crate) static ADOPT: Section = Section {
    name: "adopt",
    doc: "Dead letters of other frameworks, which become letters of this consumer. Their topics are read, never changed.",
    keys: &[
        Key::new("spring-dlt", Kind::Section(&TOPIC), "Dead-letter topics of Spring Kafka: `kafka_dlt-*`."),
        Key::new(
            "connect",
            Kind::Section(&TOPIC),
            "Dead-letter queues of Kafka Connect: `__connect.errors.*`.",
        ),
        Key::new(
            "streams",
            Kind::Section(&TOPIC),
            "Dead-letter queues of Kafka Streams: `__streams.errors.*`.",
        ),
        Key::new(
            "x-original",
            Kind::Section(&TOPIC),
            "Dead-letter topics with headers `x-original-*`, as Spring Cloud Stream writes them.",
        ),
    ],
};

static TOPIC: Section = Section {
    name: "dead-letter-topic",
    doc: "Dead-letter topics of another framework. `topic` or `topics` is required.",
    keys: &[
        Key::new("topic", Kind::Text(Format::Topic), "The dead-letter topic.").absent("the `topics`").example("orders-dlt"),
        Key::new("topics", Kind::List { of: &Kind::Text(Format::Topic), min: 0 }, "Dead-letter topics, if there are several.")
            .or("[]")
            .example("orders-dlt"),
        Key::new(
            "mode",
            Kind::Enum(&[
                EnumValue("continuous", "existing and new dead letters, while the daemon runs"),
                EnumValue("once", "dead letters up to the end of the topic at each start"),
            ]),
            "What is adopted.",
        )
        .or("continuous"),
        Key::new(
            "brokers",
            Kind::Text(Format::Brokers),
            "Bootstrap brokers: a comma-separated list of hosts and ports. Required unless the source is Kafka.",
        )
        .absent("brokers and properties of a Kafka source")
        .example("127.0.0.1:9092"),
        Key::new(
            "properties",
            Kind::Map { names: Format::Property, of: &Kind::Text(Format::Free) },
            "Properties of librdkafka: SASL, TLS and others. Those of a Kafka source apply as well, unless `brokers` is set.",
        )
        .or("{}")
        .secret(),
        Key::new("group", TEXT, "Adopt only dead letters of this consumer group, and those that name none.").absent("every group"),
        Key::new(
            "unknown",
            Kind::Enum(&[
                EnumValue("skip", "counts them, and leaves them in the topic"),
                EnumValue("adopt", "adopts them as messages of the dead-letter topic"),
            ]),
            "Records without known failure headers.",
        )
        .or("skip"),
        Key::new(
            "separate-sequences",
            Kind::Flag,
            "Put the letters into sequences of their own, so that live messages do not wait behind them.",
        )
        .or("false"),
        Key::new(
            "id-headers",
            Kind::List { of: &TEXT, min: 0 },
            "Headers with the message id; the first present header is used. Without one: topic, partition and offset.",
        )
        .absent("those of a Kafka source, else none")
        .example("ce_id"),
        Key::new(
            "type-headers",
            Kind::List { of: &TEXT, min: 0 },
            "Headers with the event type; the first present header is used.",
        )
        .absent("those of a Kafka source, else `ce_type`")
        .example("__TypeId__"),
    ],
};
