//! Checks the adoptions of a consumer.

use crate::code::Code;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::value::{Fields, Value};

/// Returns the dead-letter topics of a consumer by format.
pub(crate) fn topics(fields: &Fields) -> impl Iterator<Item = (&'static str, &Fields)> {
    let formats = fields.section("adopt").map(|adopt| adopt.list.as_slice()).unwrap_or_default();
    formats.iter().filter_map(|(key, field)| match &field.value {
        Value::Section(topics) => Some((key.name, topics)),
        _ => None,
    })
}

pub(crate) fn check(fields: &Fields, findings: &mut Findings) {
    let Some(adopt) = fields.section("adopt") else { return };
    // An unknown source may be Kafka. Its error is reported separately.
    let source = fields.section("source").and_then(Fields::chosen);
    let is_kafka = source.is_none_or(|(kind, _)| kind == "kafka");
    for (format, topics) in topics(fields) {
        let span = adopt.span(format).unwrap_or_default();
        let is_invalid = |name: &str| topics.invalid.contains(&name);
        let named = topics.text("topic").is_some() || !topics.list("topics").is_empty();
        if !named && !is_invalid("topic") && !is_invalid("topics") {
            let message = format!("`{format}` requires the key `topic`");
            let finding = FindingBuilder::new(Code::MissingKey, span, message);
            findings.add(finding.hint("add `topic: orders-dlt`, or `topics: […]` for several"));
        }
        if !is_kafka && topics.text("brokers").is_none() && !is_invalid("brokers") {
            let message = format!("`{format}` requires the key `brokers`: the source is not Kafka");
            let finding = FindingBuilder::new(Code::MissingKey, span, message);
            findings.add(finding.hint("add `brokers: 127.0.0.1:9092`"));
        }
        own_topics(source, topics, findings);
    }
}

/// Rejects adopting from a topic that the consumer itself reads, because its messages are not dead letters.
fn own_topics(source: Option<(&str, &Fields)>, topics: &Fields, findings: &mut Findings) {
    let Some(("kafka", kafka)) = source else { return };
    let is_other_cluster =
        topics.text("brokers").is_some_and(|brokers| kafka.text("brokers") != Some(brokers));
    if is_other_cluster {
        return;
    }
    let named = topics.get("topic").into_iter().chain(topics.list("topics"));
    for field in named {
        let Some(name) = field.value.text() else { continue };
        let own = kafka.list("topics").iter().find(|own| own.value.text() == Some(name));
        if let Some(own) = own {
            let message = format!("the consumer reads `{name}` itself");
            let finding = FindingBuilder::new(Code::Contradiction, field.span.unwrap_or_default(), message);
            findings.add(
                finding
                    .related(own.span.unwrap_or_default(), "the topic of the source")
                    .hint("name the dead-letter topic, for example `orders-dlt`"),
            );
        }
    }
}
