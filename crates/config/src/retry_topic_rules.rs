//! Checks retry topics and the dead-letter topic.

use crate::code::Code;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::model;
use crate::rules::is_own;
use crate::source::Span;
use crate::value::{Fields, Value};

pub(crate) fn check(fields: &Fields, retry: &Fields, findings: &mut Findings) {
    let source = fields.section("source").and_then(Fields::chosen);
    let is_kafka = source.is_none_or(|(kind, _)| kind == "kafka");
    let uses_topics = retry.text("strategy") == Some("topics");
    if uses_topics && !is_kafka {
        let span = retry.span("strategy").unwrap_or_default();
        let finding = FindingBuilder::new(Code::NeedsKafka, span, "strategy `topics` needs a Kafka source");
        findings.add(finding.hint("use `ordered`, `unordered` or `in-place`"));
    }
    if !uses_topics && is_own(retry, "topics") && retry.get("strategy").is_some() {
        let finding = FindingBuilder::new(
            Code::NoEffect,
            retry.span("topics").unwrap_or_default(),
            "`topics` has no effect",
        );
        findings.add(finding.hint("add `strategy: topics`, or remove it"));
    }
    let letters = fields.section("dead-letter");
    if let Some(span) = letters.and_then(|letters| letters.span("topic")).filter(|_| !is_kafka) {
        let finding =
            FindingBuilder::new(Code::NeedsKafka, span, "a `topic` for dead letters needs a Kafka source");
        findings.add(finding.hint("remove the key: dead letters are kept in the store"));
    }
    if uses_topics {
        listed_delays(retry, findings);
    }
    let delays = retry.section("topics").map(|topics| topics.list("delays")).unwrap_or_default();
    for pair in delays.windows(2) {
        if let (Value::Duration(first), Value::Duration(second)) = (&pair[0].value, &pair[1].value)
            && second < first
        {
            let finding = FindingBuilder::new(
                Code::Contradiction,
                pair[1].span.unwrap_or_default(),
                "a delay is shorter than the one before",
            );
            findings.add(finding.hint("order the delays from shortest to longest"));
        }
    }
}

/// Checks the keys that the listed delays of retry topics replace.
fn listed_delays(retry: &Fields, findings: &mut Findings) {
    let Some(topics) = retry.section("topics") else { return };
    let (of_list, of_first) = (model::closeness(topics, "delays"), model::closeness(retry, "initial-delay"));
    let listed = model::listed_delays(retry);
    if listed.is_empty() {
        return;
    }
    let at_list = topics.span("delays");
    let exclude = |span: Span, findings: &mut Findings| {
        let message = "`initial-delay` and `delays` exclude each other";
        let finding = FindingBuilder::new(Code::Contradiction, span, message);
        let finding = match at_list {
            Some(list) => finding.related(list, "the delays are listed here"),
            None => finding,
        };
        findings.add(finding.hint("remove one of them: with `delays`, the n-th retry waits the n-th delay"));
    };
    if of_first > 0
        && of_first == of_list
        && let Some(span) = retry.span("initial-delay")
    {
        exclude(span, findings);
    }
    for over in retry.list("overrides") {
        if let Value::Section(parts) = &over.value
            && let Some(span) = parts.span("initial-delay")
        {
            exclude(span, findings);
        }
    }
    for name in ["multiplier", "max-delay", "jitter"] {
        if let Some(span) = retry.span(name).filter(|_| is_own(retry, name)) {
            let message = format!("`{name}` has no effect beside `delays`");
            let finding = FindingBuilder::new(Code::NoEffect, span, message);
            findings.add(finding.hint("remove it: the delays of the list are waited exactly"));
        }
    }
    let most = model::listed_attempts(&listed);
    let attempts = retry.count("max-attempts").filter(|_| is_own(retry, "max-attempts"));
    if let (Some(span), Some(true)) =
        (retry.span("max-attempts"), attempts.map(|attempts| attempts > u64::from(most)))
    {
        let message =
            format!("`max-attempts` has no effect above {most}: `delays` lists {} retries", most - 1);
        let hint = "add delays to the list, or remove the key";
        findings.add(FindingBuilder::new(Code::NoEffect, span, message).hint(hint));
    }
}
