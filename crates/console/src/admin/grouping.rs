//! Grouping rules: the rules of each consumer, and the group of a letter by rules on trial. Nothing is
//! changed, because rules are part of the configuration, and a letter stays in its group until it fails
//! again.

use lazaret_api::{Code, ConsumerConfig, EffectiveConfig, GroupingRules, LetterDetail, Problem, Scope};
use lazaret_core::fingerprint::{GroupPart, GroupPattern, Grouping};
use lazaret_core::{Failure, Fingerprint};
use maud::{Markup, html};

use super::rules::PATH;
use crate::api::{Result, with_query};
use crate::links;
use crate::text::{block, cut, visible};
use crate::visit::Visit;

/// Renders the rules of each consumer.
pub(super) fn table(consumers: &[ConsumerConfig]) -> Markup {
    html! {
        @if !consumers.is_empty() {
            div.section-head #grouping { h2 { "Grouping rules" } p.muted { "which failures are counted as the same problem" } }
            div.panel.scroll { table {
                thead { tr { th { "Consumer" } th { "What counts" } th { "What is replaced" } th { "Trial" } } }
                tbody { @for ConsumerConfig { name, grouping, .. } in consumers { tr {
                    td { strong { (visible(name)) } }
                    td { (visible(&grouping.by.join(", "))) }
                    td.mono { @if grouping.replace.is_empty() { span.muted { "nothing" } } @else { @for pattern in &grouping.replace { div { (visible(pattern)) } } } }
                    td { a href=(trial_link(grouping)) { "Try on a letter" } }
                } } }
            } }
        }
    }
}

/// Returns the link to the page on which rules are tried, with these rules in its form.
fn trial_link(rules: &GroupingRules) -> String {
    let (by, replace) = (rules.by.join(", "), rules.replace.join("\n"));
    with_query(PATH, &[("by", Some(&by)), ("replace", Some(&replace))])
}

/// Reads the rules on trial: parts separated by commas, and one pattern per line. Returns `None` if
/// there are none.
pub(super) fn on_trial(by: &str, replace: &str) -> Result<Option<Grouping>> {
    let parts: Vec<&str> = by.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let patterns: Vec<&str> = replace.lines().filter(|line| !line.trim().is_empty()).collect();
    if parts.is_empty() && patterns.is_empty() {
        return Ok(None);
    }
    rules(&parts, &patterns).map(Some)
}

fn rules(parts: &[impl AsRef<str>], patterns: &[impl AsRef<str>]) -> Result<Grouping> {
    let mut rules = if parts.is_empty() { Grouping::default() } else { Grouping::by([]) };
    for part in parts {
        let part: &str = part.as_ref();
        rules = rules.with(part.parse::<GroupPart>().map_err(|error| refused(&error))?);
    }
    // One pattern more than allowed is rejected below. No further patterns are compiled.
    for pattern in patterns.iter().take(Grouping::MAX_PATTERNS + 1) {
        let pattern: &str = pattern.as_ref();
        let parsed = pattern.parse::<GroupPattern>();
        rules = rules.replace(parsed.map_err(|error| refused(&format!("{} {error}", cut(pattern, 100))))?);
    }
    rules.validate().map_err(|error| refused(&error))?;
    Ok(rules)
}

fn refused(why: &dyn std::fmt::Display) -> Box<Problem> {
    Box::new(Problem::new(Code::InvalidRequest).with_detail(why.to_string()))
}

/// Returns the rules of a letter's consumer, for callers who may see the configuration.
async fn configured(visit: &Visit, consumer: &str) -> Result<Option<Grouping>> {
    if !visit.may(Scope::Admin) {
        return Ok(None);
    }
    let config: EffectiveConfig = visit.api.get("/v1/config").await?;
    let found = config.consumers.iter().find(|of| of.name == consumer);
    found.map(|of| rules(&of.grouping.by, &of.grouping.replace)).transpose()
}

/// Renders the group of a letter by the rules on trial, or else by its consumer's rules.
pub(super) async fn trial(
    visit: &Visit,
    detail: &LetterDetail,
    on_trial: Option<Grouping>,
) -> Result<Markup> {
    let consumer = &detail.letter.consumer;
    let (rules, whose) = match on_trial {
        Some(rules) => (rules, "By the rules on trial.".to_owned()),
        None => match configured(visit, consumer).await? {
            Some(rules) => (rules, format!("By the rules of {consumer}.")),
            None => (Grouping::default(), "By the default rules.".to_owned()),
        },
    };
    let grouped = match &detail.cause {
        Some(cause) => {
            let failure = Failure::try_from(cause.clone()).map_err(|error| refused(&error))?;
            Some(group(rules, failure, detail.letter.message.event_type.clone()).await?)
        }
        None => None,
    };
    Ok(html! {
        section.panel {
            div.section-head { h2 { "Grouping" } @if let Some(group) = &detail.letter.group { a href=(links::group(group)) { "Its group" } } }
            div.pad.stack {
                @if let Some(grouped) = &grouped { p.muted { (visible(&whose)) } (outcome(detail, grouped)) }
                @else { p.muted { "It waits, and has not failed: it is in no group." } }
            }
        }
    })
}

/// The fingerprint of a failure, and the texts that it is derived from.
struct Grouped {
    fingerprint: Fingerprint,
    texts: Vec<(GroupPart, String)>,
}

/// Applies rules to a failure. This runs on a separate thread, because patterns on trial may be slow and
/// must not delay other requests.
async fn group(rules: Grouping, failure: Failure, event_type: Option<String>) -> Result<Grouped> {
    let applied = tokio::task::spawn_blocking(move || {
        let event_type = event_type.as_deref();
        Grouped {
            fingerprint: rules.fingerprint(&failure, event_type),
            texts: rules.texts(&failure, event_type),
        }
    });
    applied.await.map_err(|error| Box::new(Problem::new(Code::Internal).with_detail(error.to_string())))
}

fn outcome(detail: &LetterDetail, grouped: &Grouped) -> Markup {
    let (fingerprint, texts) = (grouped.fingerprint.to_string(), &grouped.texts);
    let is_same = detail.cause.as_ref().is_some_and(|cause| cause.fingerprint == fingerprint);
    html! {
        @if is_same { div.banner.good { "This letter is in this group: " code { (fingerprint) } } }
        @else { div.banner.warn { "This letter would be in group " code { (fingerprint) } ". It stays in its group until it fails again." } }
        p.muted { "What counts, without what varies:" }
        dl.facts {
            @for (part, text) in texts { dt { (part.as_str()) } dd.mono { (visible(text)) } }
            @if texts.is_empty() { dt { "nothing" } dd { "The letter has none of the parts that count." } }
        }
        @if let Some(error) = &detail.letter.error {
            p.muted { "The text of the error:" }
            pre.error-text { (block(&cut(&error.message, 4000))) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_on_trial_are_parts_and_lines() {
        assert!(on_trial(" , ", "\n \r\n").unwrap().is_none());
        let rules = on_trial("message, event-type", "a, b\r\n\r\n(c)\n").unwrap().unwrap();
        assert_eq!(rules.parts().collect::<Vec<_>>(), [GroupPart::Message, GroupPart::EventType]);
        let patterns: Vec<_> = rules.patterns().iter().map(|pattern| pattern.as_str()).collect();
        assert_eq!(patterns, ["a, b", "(c)"]);
        assert_eq!(on_trial("", "a").unwrap().unwrap().parts().count(), 4, "the default parts");
    }

    #[test]
    fn hostile_rules_are_refused_with_what_is_wrong() {
        let refused = |by: &str, replace: &str| on_trial(by, replace).unwrap_err().detail.clone().unwrap();
        assert!(refused("reason", "").contains("\"reason\" is none of"));
        assert!(refused("", "(a").ends_with("(a is not a regular expression: unclosed group"));
        assert!(refused("", "(a{1000}){1000}").ends_with("is too complex"));
        assert!(refused("", &"a".repeat(5000)).ends_with("… is longer than 512 bytes"));
        assert!(refused("", &"a\n".repeat(5000)).contains("at most 16 patterns"));
    }
}
