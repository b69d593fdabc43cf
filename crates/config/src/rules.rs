//! Checks combinations of values for conflicts, and for valid values that are probably mistakes.

use std::time::Duration;

use lazaret_core::person::{is_same_person, person_name};
use lazaret_core::policy::PolicyError;

use crate::adopt_rules;
use crate::code::Code;
use crate::collection_rules;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::document::{ConsumerFields, Document};
use crate::formats::{Address, StoreLocation};
use crate::lease_rules;
use crate::model;
use crate::retry_topic_rules;
use crate::secrets::is_secret_name;
use crate::source::Span;
use crate::value::{Field, Fields, Origin, Value};

/// Checks all valid values, even if there are errors elsewhere.
pub(crate) fn check(document: &Document, findings: &mut Findings) {
    top(document, findings);
    for consumer in &document.consumers {
        let fields = &consumer.fields;
        if let Some(retry) = fields.section("retry") {
            retries(retry, consumer.name_span, findings);
            retry_topic_rules::check(fields, retry, findings);
            let hint = "add `type` or `reason`, or set the keys of `retry` itself";
            overrides(retry, "this schedule matches every failure", hint, findings);
        }
        if let Some(letters) = fields.section("dead-letter") {
            let hint = "add `type` or `reason`, or set `on-dead` of `dead-letter` itself";
            overrides(letters, "this override matches every dead letter", hint, findings);
        }
        policies(fields, consumer.name_span, findings);
        poison(fields, findings);
        rules(fields, findings);
        letters(fields, findings);
        width(fields, findings);
        order(fields, findings);
        kafka(fields, findings);
        mongodb(fields, findings);
        postgres_outbox(fields, findings);
        content_type(fields, findings);
        approval(&document.top, fields, findings);
        adopt_rules::check(fields, findings);
        collection_rules::check(document, fields, findings);
        lease_rules::check(&document.top, fields, findings);
        plain_secrets(fields, findings);
    }
    shared_groups(&document.consumers, findings);
}

fn top(document: &Document, findings: &mut Findings) {
    let top = &document.top;
    let tokens = top.section("auth");
    if let Some(auth) = tokens.filter(|auth| auth.is_complete()) {
        auth_has_tokens(top, auth, findings);
        consumers_are_known(document, auth.list("tokens"), "token", findings);
    }
    console(document, findings);
    if let Some(encryption) = top.section("encryption") {
        encryption_keys(encryption, findings);
    }
    if let Some(Field { value: Value::Address(address), span, .. }) = top.get("listen")
        && !address.is_loopback()
        && top.get("auth").is_none()
        // An invalid `auth` is reported separately.
        && !top.invalid.contains(&"auth")
    {
        let message =
            format!("`listen` is reachable from the network at {}, but `auth` is missing", address.host);
        let hint = "configure `auth`, or listen on 127.0.0.1";
        findings
            .add(FindingBuilder::new(Code::OpenWithoutAuth, span.unwrap_or_default(), message).hint(hint));
    }
    if let Some(Field { value: Value::Store(store), span: Some(span), text: written, .. }) = top.get("store")
    {
        if *store == StoreLocation::Memory {
            let finding = FindingBuilder::new(
                Code::VolatileStore,
                *span,
                "letters and positions are lost when the process exits",
            );
            findings.add(finding.hint("use `sqlite:PATH` for durable data"));
        }
        if has_password(written) {
            plain_secret(*span, "store", findings);
        }
    }
    for webhook in top.section("alerts").map(|alerts| alerts.list("webhooks")).unwrap_or_default() {
        if let Value::Section(webhook) = &webhook.value
            && let Some(secret) = webhook.get("secret").filter(|secret| !secret.text.contains("${"))
        {
            plain_secret(secret.span.unwrap_or_default(), "secret", findings);
        }
    }
}

/// Checks that each key has exactly one origin.
fn encryption_keys(encryption: &Fields, findings: &mut Findings) {
    for key in encryption.list("keys") {
        let Value::Section(fields) = &key.value else { continue };
        match (fields.span("file"), fields.span("command")) {
            (Some(file), Some(_)) => {
                let message = "a key has a `file` and a `command`";
                let finding = FindingBuilder::new(Code::Contradiction, file, message);
                findings.add(finding.hint("remove one of them, or make two keys"));
            }
            // An invalid origin is reported separately.
            (None, None) if fields.is_complete() => {
                let message = "a key has neither a `file` nor a `command`";
                let finding = FindingBuilder::new(Code::MissingKey, key.span.unwrap_or_default(), message);
                findings.add(finding.hint("add `file: PATH`, or `command: [PROGRAM, …]`"));
            }
            _ => {}
        }
    }
}

/// Checks the sign-in to the console.
fn console(document: &Document, findings: &mut Findings) {
    let top = &document.top;
    let Some(console) = top.section("console") else { return };
    let oidc = console.section("oidc");
    let proxy = console.section("proxy");
    let signs_in = oidc
        .and(console.span("oidc"))
        .map(|span| (span, "console.oidc"))
        .or_else(|| Some((proxy?.span("user-header")?, "console.proxy.user-header")));
    // An invalid `auth` is reported separately.
    if let Some((span, name)) = signs_in
        && top.get("auth").is_none()
        && !top.invalid.contains(&"auth")
    {
        let message = format!("`{name}` signs people in, but without `auth` the API is open to everybody");
        let finding = FindingBuilder::new(Code::Contradiction, span, message);
        findings.add(finding.hint("configure `auth` with at least one token; `lazaret token` creates it"));
    }
    if let Some(oidc) = oidc {
        issuer(oidc, findings);
        client_secret(oidc, findings);
        if proxy.is_some() || !listens_on_loopback(top) {
            provider_needs_a_name(top, console.span("oidc"), findings);
        }
        consumers_are_known(document, oidc.list("roles"), "role", findings);
    }
    if let Some(proxy) = proxy {
        consumers_are_known(document, proxy.list("roles"), "role", findings);
        let (header, roles) = (proxy.span("user-header"), proxy.span("roles"));
        match (header, proxy.list("roles").is_empty()) {
            (Some(span), true) => {
                let message = "`user-header` without `roles`: nobody has access";
                let finding = FindingBuilder::new(Code::MissingKey, span, message);
                findings.add(finding.hint("add `roles: [{ group: NAME, scopes: […] }]`"));
            }
            (None, false) => {
                let message = "`roles` without `user-header`: the proxy authenticates nobody";
                let finding = FindingBuilder::new(Code::NoEffect, roles.unwrap_or_default(), message);
                findings.add(finding.hint("add `user-header`, or remove `roles`"));
            }
            _ => {}
        }
    }
}

fn listens_on_loopback(top: &Fields) -> bool {
    match top.get("listen").map(|field| &field.value) {
        Some(Value::Address(address)) => address.is_loopback(),
        _ => true,
    }
}

/// Checks that no client can choose the URL to which the provider sends browsers back.
fn provider_needs_a_name(top: &Fields, oidc: Option<Span>, findings: &mut Findings) {
    // Invalid `hosts` are reported separately.
    if !top.texts("hosts").is_empty() || top.invalid.contains(&"hosts") {
        return;
    }
    let message = "`console.oidc` without `hosts`: people can sign in at `localhost` only";
    let finding = FindingBuilder::new(Code::NoEffect, oidc.unwrap_or_default(), message);
    findings
        .add(finding.hint("add the name of the console in the address bar: `hosts: [lazaret.example.com]`"));
}

/// Checks that tokens of the provider do not cross the network in plain text.
fn issuer(oidc: &Fields, findings: &mut Findings) {
    let (Some(issuer), Some(span)) = (oidc.text("issuer"), oidc.span("issuer")) else { return };
    let Some(rest) = issuer.strip_prefix("http://") else { return };
    let authority = rest.split('/').next().unwrap_or_default();
    if Address::parse(&with_port(authority)).is_ok_and(|address| address.is_loopback()) {
        return;
    }
    let message = "`issuer` must have the scheme https, except on this machine";
    findings.add(
        FindingBuilder::new(Code::InvalidAddress, span, message).hint(format!("write `https://{rest}`")),
    );
}

fn with_port(authority: &str) -> String {
    let has_port =
        authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    if has_port { authority.to_owned() } else { format!("{authority}:80") }
}

fn client_secret(oidc: &Fields, findings: &mut Findings) {
    let (secret, file) = (oidc.get("client-secret"), oidc.span("client-secret-file"));
    let span = secret.and_then(|secret| secret.span).unwrap_or_default();
    if let (Some(_), Some(file)) = (secret, file) {
        let message = "`client-secret` and `client-secret-file` are both set";
        let finding = FindingBuilder::new(Code::Contradiction, span, message);
        findings.add(finding.related(file, "the other one").hint("remove one of them"));
    }
    if secret.is_some_and(|secret| !secret.text.contains("${")) {
        plain_secret(span, "client-secret", findings);
    }
}

fn auth_has_tokens(top: &Fields, auth: &Fields, findings: &mut Findings) {
    let tokens = auth.list("tokens");
    if auth.get("tokens-file").is_none() && tokens.is_empty() {
        let finding = FindingBuilder::new(
            Code::MissingKey,
            top.span("auth").unwrap_or_default(),
            "`auth` has no tokens",
        );
        findings.add(finding.hint("add `tokens-file: PATH` or `tokens: […]`"));
    }
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for token in tokens {
        let Value::Section(token) = &token.value else { continue };
        for key in ["name", "person"] {
            let (Some(name), Some(span)) = (token.text(key), token.span(key)) else { continue };
            if let Err(why) = person_name(name) {
                let finding =
                    FindingBuilder::new(Code::InvalidToken, span, format!("`{key}` is refused: {why}"));
                findings.add(
                    finding.hint("write the name with the letters of one script: the audit log records it"),
                );
            }
        }
        let (Some(name), Some(span)) = (token.text("name"), token.span("name")) else { continue };
        if let Some((_, first)) = seen.iter().find(|(other, _)| is_same_person(other, name)) {
            let finding =
                FindingBuilder::new(Code::InvalidToken, span, format!("two tokens are named `{name}`"));
            findings.add(
                finding.related(*first, "first used here").hint("rename one: the audit log records the name"),
            );
        }
        seen.push((name, span));
    }
}

/// Reports consumers that tokens or roles name and the file does not have.
fn consumers_are_known(document: &Document, holders: &[Field], kind: &str, findings: &mut Findings) {
    let is_known = |name: &str| document.consumers.iter().any(|consumer| consumer.name == name);
    for holder in holders {
        let Value::Section(holder) = &holder.value else { continue };
        for named in holder.list("consumers") {
            let Some(name) = named.value.text().filter(|name| !is_known(name)) else { continue };
            let message = format!("there is no consumer `{name}`");
            let finding = FindingBuilder::new(Code::UnknownConsumer, named.span.unwrap_or_default(), message);
            let hint = format!("check the spelling, or remove the name from `consumers` of the {kind}");
            findings.add(finding.hint(hint));
        }
    }
}

/// Validates one policy with the rules of the core.
type Validate = fn(&Fields) -> Result<(), PolicyError>;

/// Validates the policies of a consumer with the rules of the core.
fn policies(fields: &Fields, at: Span, findings: &mut Findings) {
    let sections: [(&str, Validate); 5] = [
        ("retry", |fields| model::retry_policy(fields).validate()),
        ("breaker", |fields| model::breaker_policy(fields).validate()),
        ("fuse", |fields| model::fuse_policy(fields).validate()),
        ("poison", |fields| model::poison_policy(fields).validate()),
        ("grouping", |fields| model::grouping(fields).validate()),
    ];
    for (name, validate) in sections {
        let Some(section) = fields.section(name).filter(|section| section.invalid.is_empty()) else {
            continue;
        };
        let Err(PolicyError::Invalid { field, why }) = validate(section) else { continue };
        let span = section.span(field).or(fields.span(name)).unwrap_or(at);
        if field == "initial-delay" {
            delays(section, why, span, findings);
            continue;
        }
        let finding = FindingBuilder::new(Code::Contradiction, span, format!("`{field}` {why}"));
        findings.add(finding.hint("correct it, or remove the key to use the default"));
    }
}

/// Reports an initial delay above the maximum delay, at the key that the file sets. For a built-in
/// value, the text is the default.
fn delays(retry: &Fields, why: &str, at: Span, findings: &mut Findings) {
    let written = |name: &str| retry.get(name).map(|field| field.text.as_str()).unwrap_or_default();
    let (first, longest) = (written("initial-delay"), written("max-delay"));
    let message = format!("`initial-delay` {why}");
    let finding = match (retry.span("initial-delay"), retry.span("max-delay")) {
        (Some(own), Some(other)) => FindingBuilder::new(Code::Contradiction, own, message)
            .related(other, "`max-delay` is set here")
            .hint(format!("raise `max-delay` to `{first}` or more, or lower `initial-delay`")),
        (None, Some(other)) => {
            let message = format!("{message}; its default is {first}");
            FindingBuilder::new(Code::Contradiction, other, message)
                .hint(format!("add `initial-delay: {longest}` or less, or raise `max-delay`"))
        }
        _ => FindingBuilder::new(Code::Contradiction, at, message)
            .hint(format!("the default of `max-delay` is {longest}: add `max-delay: {first}` or more")),
    };
    findings.add(finding);
}

/// Warns if poison detection ends retries before `max-attempts`, unless both values are set explicitly.
fn poison(fields: &Fields, findings: &mut Findings) {
    let (Some(retry), Some(poison)) = (fields.section("retry"), fields.section("poison")) else { return };
    let (Some(attempts), Some(same)) = (retry.count("max-attempts"), poison.count("same-failure")) else {
        return;
    };
    let is_forgotten = attempts > same && is_built_in(poison, "same-failure");
    if let Some(span) = retry.span("max-attempts").filter(|_| is_forgotten) {
        let message =
            format!("poison detection ends retries after {same} equal failures, before attempt {attempts}");
        findings.add(FindingBuilder::new(Code::PoisonEndsRetries, span, message).hint(format!(
            "write `poison: {{ same-failure: {attempts} }}` or `poison: off` to allow {attempts} attempts"
        )));
    }
}

/// Warns about approval by a second person without tokens. Without tokens, all callers are the same person.
fn approval(top: &Fields, fields: &Fields, findings: &mut Findings) {
    let Some(replay) = fields.section("replay") else { return };
    let needs_two = replay.text("approval") == Some("second-person");
    // An invalid `auth` is reported separately.
    if needs_two && top.get("auth").is_none() && !top.invalid.contains(&"auth") {
        let span = replay.span("approval").unwrap_or_default();
        let message = "no second person can approve: without `auth` all callers are the same person";
        findings.add(
            FindingBuilder::new(Code::NoSecondApprover, span, message)
                .hint("configure `auth` with a token for each person; `lazaret token` creates them"),
        );
    }
    let reprocess = fields.section("dead-letter").and_then(|letters| letters.section("reprocess"));
    if needs_two && let Some(reprocess) = reprocess.filter(|some| some.text("strategy") == Some("cron")) {
        let approval = replay.span("approval").unwrap_or_default();
        let span = reprocess.span("strategy").unwrap_or(approval);
        let message =
            "`reprocess: cron` replays dead letters without the approval that `replay.approval` demands";
        findings.add(
            FindingBuilder::new(Code::Contradiction, span, message)
                .related(approval, "a second person is required here")
                .hint("write `strategy: manual`, or `approval: none`"),
        );
    }
}

/// Warns about a `Content-Type` that is never sent because all messages have their own.
fn content_type(fields: &Fields, findings: &mut Findings) {
    let Some(("file", _)) = fields.section("source").and_then(Fields::chosen) else { return };
    let Some(("http", http)) = fields.section("handler").and_then(Fields::chosen) else { return };
    let named = http.map("headers").iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if let Some((name, field)) = named {
        let message = format!("`{name}` is not sent: a `payload` in a file is `application/json`");
        let finding = FindingBuilder::new(Code::NoEffect, field.span.unwrap_or_default(), message);
        findings.add(finding.hint(
            "it applies to messages without a content type, such as `payload-base64`; set `content-type` in the line instead",
        ));
    }
}

fn retries(retry: &Fields, at: Span, findings: &mut Findings) {
    let denied: Vec<_> = reasons(retry, "no-retry-on");
    for (reason, span) in reasons(retry, "retry-on") {
        if let Some((_, other)) = denied.iter().find(|(denied, _)| *denied == reason) {
            if is_built_in(retry, "no-retry-on") {
                let message = format!("{reason} is in `retry-on`, and in `no-retry-on` by default");
                let finding = FindingBuilder::new(Code::ListsOverlap, span, message);
                findings.add(finding.hint("add `no-retry-on: []`; these failures are not retried"));
                continue;
            }
            let message = format!("{reason} is in `retry-on` and in `no-retry-on`");
            let finding = FindingBuilder::new(Code::ListsOverlap, span, message)
                .related(*other, "this list takes precedence");
            findings.add(finding.hint("remove it from one of the lists; these failures are not retried"));
        }
    }
    let policy = model::retry_policy(retry);
    let Some(elapsed) = policy.max_elapsed.filter(|_| retry.invalid.is_empty()) else { return };
    let span = retry.span("max-elapsed").unwrap_or(at);
    let first = policy.delays.first().unwrap_or(&policy.initial_delay);
    if policy.max_attempts > 1 && elapsed < *first {
        let finding =
            FindingBuilder::new(Code::NeverRetries, span, "`max-elapsed` ends before the first retry");
        findings.add(match retry.span("initial-delay") {
            _ if !policy.delays.is_empty() => {
                finding.hint("raise `max-elapsed`, or list shorter `delays` of the retry topics")
            }
            Some(other) => finding
                .related(other, "initial delay")
                .hint("raise `max-elapsed`, or write `max-attempts: 1` to disable retries"),
            None => finding.hint("raise `max-elapsed`: the default of `initial-delay` is 500ms"),
        });
    } else if is_own(retry, "hold") && policy.hold > elapsed {
        let finding = FindingBuilder::new(
            Code::NoEffect,
            retry.span("hold").unwrap_or(at),
            "`hold` is longer than `max-elapsed`",
        );
        findings.add(
            finding
                .related(span, "retries end here")
                .hint("lower `hold`: otherwise no message is retried from the store"),
        );
    }
}

fn reasons(fields: &Fields, name: &str) -> Vec<(String, Span)> {
    let read = |field: &Field| match &field.value {
        Value::Reason(reason) => Some((reason.to_string(), field.span.unwrap_or_default())),
        Value::ErrorType(pattern) => Some((pattern.to_string(), field.span.unwrap_or_default())),
        _ => None,
    };
    fields.list(name).iter().filter_map(read).collect()
}

/// Rejects an override without conditions, which would replace the keys of the consumer.
fn overrides(fields: &Fields, message: &str, hint: &str, findings: &mut Findings) {
    for over in fields.list("overrides") {
        let Value::Section(parts) = &over.value else { continue };
        let Some(when) = parts.section("when") else { continue };
        if when.invalid.is_empty() && when.list.is_empty() {
            let span = parts.span("when").or(over.span).unwrap_or_default();
            findings.add(FindingBuilder::new(Code::Contradiction, span, message).hint(hint));
        }
    }
}

/// Warns about rules after a rule without conditions, which matches everything.
fn rules(fields: &Fields, findings: &mut Findings) {
    let mut catches_all = None;
    for rule in fields.list("classify") {
        let Value::Section(parts) = &rule.value else { continue };
        if let Some(first) = catches_all {
            let finding =
                FindingBuilder::new(Code::UnreachableRule, rule.span.unwrap_or_default(), "unreachable rule");
            findings.add(
                finding
                    .related(first, "this rule matches everything")
                    .hint("move the rule that matches everything to the end"),
            );
            return;
        }
        let is_empty =
            parts.section("when").is_some_and(|when| when.invalid.is_empty() && when.list.is_empty());
        catches_all = is_empty.then_some(rule.span).flatten();
    }
}

fn letters(fields: &Fields, findings: &mut Findings) {
    let Some(letters) = fields.section("dead-letter") else { return };
    let keeps_payload = letters.flag("include-payload") == Some(true);
    if letters.duration("ttl") == Some(Duration::ZERO) && keeps_payload {
        let finding = FindingBuilder::new(
            Code::UnlimitedRetention,
            letters.span("ttl").unwrap_or_default(),
            "letters and their payloads are kept forever",
        );
        findings.add(finding.hint("set a `ttl`, or `include-payload: false`"));
    }
    if letters.flag("enabled") == Some(false) {
        // Some letters are kept anyway, such as letters that a handler dead-letters itself. They have an
        // owner and alerts.
        let used = ["enabled", "owner", "alert-on-first"];
        let idle =
            letters.list.iter().find(|(key, field)| !used.contains(&key.name) && field.origin == Origin::Own);
        if let Some((key, field)) = idle {
            let finding = FindingBuilder::new(
                Code::NoEffect,
                field.span.unwrap_or_default(),
                format!("`{}` has no effect", key.name),
            );
            findings.add(
                finding
                    .related(letters.span("enabled").unwrap_or_default(), "dead letters are disabled here")
                    .hint("remove it, or `enabled: false`"),
            );
        }
    }
    let Some(reprocess) = letters.section("reprocess") else { return };
    let by_clock = reprocess.text("strategy") == Some("cron");
    // An explicit `strategy: manual` next to a schedule is intended. A missing strategy is probably a
    // mistake.
    if !by_clock && is_own(reprocess, "cron") && is_built_in(reprocess, "strategy") {
        let finding = FindingBuilder::new(
            Code::NoEffect,
            reprocess.span("cron").unwrap_or_default(),
            "`cron` has no effect",
        );
        findings.add(finding.hint("add `strategy: cron`"));
    }
    if by_clock && !keeps_payload && letters.get("include-payload").is_some() {
        let finding = FindingBuilder::new(
            Code::NoEffect,
            reprocess.span("strategy").unwrap_or_default(),
            "letters without a payload cannot be replayed",
        );
        findings.add(
            finding
                .related(letters.span("include-payload").unwrap_or_default(), "payloads are dropped here")
                .hint("keep payloads, or write `strategy: manual`"),
        );
    }
}

fn width(fields: &Fields, findings: &mut Findings) {
    let Some(concurrency) = fields.count("concurrency") else { return };
    let span = fields.span("concurrency");
    let window = fields.section("advanced").and_then(|advanced| advanced.count("window"));
    if let Some(window) = window.filter(|window| *window < concurrency) {
        let advanced = fields.section("advanced").and_then(|advanced| advanced.span("window"));
        let finding = FindingBuilder::new(
            Code::UnreachableConcurrency,
            span.or(advanced).unwrap_or_default(),
            format!("`concurrency` {concurrency} is never reached: {window} messages are in flight at most"),
        );
        findings.add(finding.hint("raise `advanced.window`, or lower `concurrency`"));
    }
    let Some((_, handler)) = fields.section("handler").and_then(Fields::chosen) else { return };
    for name in ["workers", "max-connections"] {
        if let (Some(count), Some(span)) = (handler.count(name), handler.span(name))
            && count > concurrency
        {
            let message = format!("`{name}` {count} is never reached: `concurrency` is {concurrency}");
            findings.add(
                FindingBuilder::new(Code::UnreachableConcurrency, span, message).hint("raise `concurrency`"),
            );
        }
    }
}

fn order(fields: &Fields, findings: &mut Findings) {
    let order = fields.text("order").unwrap_or("key");
    if order != "key" && is_own(fields, "sequence") {
        let span = fields.span("sequence").unwrap_or_default();
        let finding = FindingBuilder::new(
            Code::NoEffect,
            span,
            format!("`sequence` has no effect with `order: {order}`"),
        );
        findings.add(finding.hint("remove it: sequences apply only to `order: key`"));
    }
    let Some(retry) = fields.section("retry") else { return };
    let strategy = retry.text("strategy").unwrap_or("ordered");
    if strategy != "ordered" && is_own(retry, "hold") {
        let span = retry.span("hold").unwrap_or_default();
        let finding = FindingBuilder::new(
            Code::NoEffect,
            span,
            format!("`hold` has no effect with `strategy: {strategy}`"),
        );
        findings.add(finding.hint("remove it: only `ordered` holds a lane in memory"));
    }
    let unordered = match (fields.text("order"), strategy) {
        (Some("none"), _) => Some("order: none".to_owned()),
        (_, "unordered" | "topics") => Some(format!("strategy: {strategy}")),
        _ => None,
    };
    let Some(letters) = fields.section("dead-letter") else { return };
    if let Some(unordered) = unordered
        && is_own(letters, "on-dead")
        && letters.text("on-dead") == Some("continue")
    {
        let span = letters.span("on-dead").unwrap_or_default();
        let finding =
            FindingBuilder::new(Code::NoEffect, span, format!("`on-dead` has no effect with `{unordered}`"));
        findings.add(finding.hint("remove it: no message waits behind another"));
    }
}

fn kafka(fields: &Fields, findings: &mut Findings) {
    let Some(("kafka", kafka)) = fields.section("source").and_then(Fields::chosen) else { return };
    let known = ["earliest", "smallest", "beginning", "latest", "largest", "end", "error"];
    for (name, field) in kafka.map("properties") {
        if name == "group.instance.id"
            && let Some(member) = kafka.span("member")
        {
            let span = field.span.unwrap_or_default();
            let finding = FindingBuilder::new(
                Code::Contradiction,
                span,
                "`group.instance.id` and `member` are both set",
            );
            findings.add(finding.related(member, "the other one").hint("remove one of them"));
        }
        let is_reset = name == "auto.offset.reset";
        if is_reset && field.value.text().is_some_and(|text| !known.contains(&text)) {
            let finding = FindingBuilder::new(
                Code::UnknownValue,
                field.span.unwrap_or_default(),
                "unknown value for `auto.offset.reset`",
            );
            findings.add(finding.hint("use `earliest`, `latest` or `error`"));
        }
    }
}

fn mongodb(fields: &Fields, findings: &mut Findings) {
    let Some(("mongodb", mongodb)) = fields.section("source").and_then(Fields::chosen) else { return };
    if let Some(span) = mongodb.span("collection")
        && mongodb.text("database").is_none()
        // A program that declares the consumer may provide both the URI and the database.
        && mongodb.get("uri").is_some()
        && !mongodb.invalid.contains(&"database")
    {
        let finding =
            FindingBuilder::new(Code::Contradiction, span, "`collection` is set, but `database` is missing");
        findings.add(finding.hint("add `database: NAME`, or remove `collection` to watch all databases"));
    }
    if let Some(restart) = mongodb.section("restart")
        && let (Some(first), Some(longest)) =
            (restart.duration("initial-delay"), restart.duration("max-delay"))
        && first > longest
    {
        let at = restart.span("initial-delay").or(mongodb.span("restart")).unwrap_or_default();
        delays(restart, "must not be longer than max-delay", at, findings);
    }
}

fn postgres_outbox(fields: &Fields, findings: &mut Findings) {
    let Some(("postgres-outbox", outbox)) = fields.section("source").and_then(Fields::chosen) else { return };
    let timeout = outbox.duration("session-timeout").zip(outbox.span("session-timeout"));
    if let Some((_, span)) = timeout.filter(|(timeout, _)| *timeout < Duration::from_secs(1)) {
        let finding = FindingBuilder::new(Code::OutOfRange, span, "`session-timeout` must be at least 1s");
        findings.add(finding.hint("write `session-timeout: 30s`"));
    }
}

/// Warns about plaintext secrets in the file.
fn plain_secrets(fields: &Fields, findings: &mut Findings) {
    let chosen = ["source", "handler"].map(|section| fields.section(section).and_then(Fields::chosen));
    let chosen = chosen.into_iter().flatten().map(|(_, chosen)| chosen);
    for chosen in chosen.chain(adopt_rules::topics(fields).map(|(_, topics)| topics)) {
        for map in ["properties", "headers", "env"] {
            let named = chosen
                .map(map)
                .iter()
                .filter(|(name, field)| is_secret_name(name) && !field.text.contains("${"));
            for (name, field) in named {
                plain_secret(field.span.unwrap_or_default(), name, findings);
            }
        }
        for name in ["uri", "url"] {
            if let Some(url) = chosen.get(name).filter(|url| has_password(&url.text)) {
                plain_secret(url.span.unwrap_or_default(), name, findings);
            }
        }
    }
    let copies = fields.section("dead-letter").and_then(|letters| letters.get("collection-uri"));
    if let Some(url) = copies.filter(|url| has_password(&url.text)) {
        plain_secret(url.span.unwrap_or_default(), "collection-uri", findings);
    }
}

fn plain_secret(span: Span, name: &str, findings: &mut Findings) {
    let finding =
        FindingBuilder::new(Code::PlaintextSecret, span, format!("`{name}` contains a plaintext secret"));
    findings.add(finding.hint("read it from the environment: `${NAME}`"));
}

/// Returns `true` if a URL contains a password that is not a variable.
fn has_password(url: &str) -> bool {
    let user_info = url.split_once("://").and_then(|(_, rest)| {
        let authority = rest.split(['/', '?']).next()?;
        authority.rsplit_once('@')
    });
    user_info
        .and_then(|(user_info, _)| user_info.split_once(':'))
        .is_some_and(|(_, password)| !password.starts_with("${"))
}

/// Warns about two consumers in one Kafka group, which would share the partitions.
fn shared_groups(consumers: &[ConsumerFields], findings: &mut Findings) {
    let mut seen: Vec<(&str, &str, Span)> = Vec::new();
    for consumer in consumers {
        let Some(("kafka", kafka)) = consumer.fields.section("source").and_then(Fields::chosen) else {
            continue;
        };
        let brokers = kafka.text("brokers").unwrap_or_default();
        let group = kafka.text("group").unwrap_or(&consumer.name);
        let span = kafka.span("group").unwrap_or(consumer.name_span);
        if let Some((_, _, first)) = seen.iter().find(|(b, g, _)| (*b, *g) == (brokers, group)) {
            let finding = FindingBuilder::new(
                Code::SharedGroup,
                span,
                format!("another consumer uses the group `{group}`"),
            );
            findings.add(
                finding
                    .related(*first, "other consumer")
                    .hint("use two groups: each consumer would receive only part of the messages"),
            );
        }
        seen.push((brokers, group, span));
    }
}

pub(crate) fn is_own(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|field| field.origin == Origin::Own)
}

fn is_built_in(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|field| field.origin == Origin::BuiltIn)
}
