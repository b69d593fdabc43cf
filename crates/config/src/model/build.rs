//! Builds the model from the values of a document.
//!
//! All functions are total. An invalid value has a fallback, because policies are also checked in a file
//! with errors elsewhere. A file with errors never becomes a configuration, so a running system never
//! uses a fallback.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::fingerprint::GroupPart;
use lazaret_core::policy::{
    BreakerPolicy, BudgetPolicy, CapacityPolicy, ErrorTypePattern, FusePolicy, OnDead, OnDeadOverride,
    OnDeadPolicy, PoisonPolicy, Rate, RetryOverride, RetryPolicy, Rule, Strategy, When,
};
use lazaret_core::redaction::{Redaction, TextRules};
use lazaret_core::store::Limits;
use lazaret_core::{Grouping, Phase, Reason, Verdict};

use super::adopt::{AdoptTopics, CORRELATION_HEADERS, TYPE_HEADERS, TopicFormat};
use super::config::{
    AlertThresholds, Auth, Config, Encryption, KeySource, RequestLimits, Telemetry, Tls, Token, Webhook,
};
use super::console::{Console, Oidc, Proxy, Role};
use super::consumer::{
    Advanced, Approval, Consumer, CopiesCollection, DeadLetter, Order, Replay, Reprocess, Retry, RetryTopics,
};
use super::enums::{
    BeforeChange, FullDocument, HistoryLost, LogFormat, LogLevel, OnInvalidate, OperationType, OutboxAck,
    StartPosition,
};
use super::io::{
    Checkpoint, CommandHandler, CommandMode, Handler, HttpHandler, KafkaSource, MongodbSource,
    PostgresOutboxSource, Restart, Source,
};
use super::secret::Secret;
use crate::adopt_rules::topics;
use crate::document::{ConsumerFields, Document};
use crate::formats::{Address, SequenceRule, StoreLocation, group_pattern, network, payload_path};
use crate::value::{Field, Fields, Origin, Value};

impl Config {
    /// Builds the configuration from a document without errors.
    pub(crate) fn from_document(document: Document) -> Self {
        config(Arc::new(document))
    }
}

fn config(document: Arc<Document>) -> Config {
    let top = &document.top;
    let address = match top.get("listen").map(|field| &field.value) {
        Some(Value::Address(address)) => address.clone(),
        _ => Address { host: "127.0.0.1".to_owned(), port: 7117 },
    };
    let store = match top.get("store").map(|field| &field.value) {
        Some(Value::Store(store)) => store.clone(),
        _ => StoreLocation::Memory,
    };
    let redact = redact(top.section("redact").unwrap_or(&Fields::default()));
    let webhooks = top.section("alerts").map(|alerts| alerts.list("webhooks")).unwrap_or_default();
    Config {
        listen: address,
        store,
        consumers: document.consumers.iter().map(|read| consumer(read, &redact)).collect(),
        auth: top.section("auth").map(auth),
        hosts: top.texts("hosts"),
        tls: top.section("tls").map(tls),
        socket: top.text("socket").map(PathBuf::from),
        console: console(top.section("console").unwrap_or(&Fields::default())),
        redact,
        encryption: top.section("encryption").map(encryption),
        limits: limits(top.section("limits").unwrap_or(&Fields::default())),
        webhooks: sections(webhooks).map(webhook).collect(),
        docs_url: top.section("alerts").and_then(|alerts| alerts.text("docs-url")).map(str::to_owned),
        alert_thresholds: thresholds(
            top.section("alerts")
                .and_then(|alerts| alerts.section("thresholds"))
                .unwrap_or(&Fields::default()),
        ),
        telemetry: telemetry(top.section("telemetry").unwrap_or(&Fields::default())),
        flight_recorder: top.text("flight-recorder").map(PathBuf::from),
        document: Arc::clone(&document),
    }
}

fn sections(items: &[Field]) -> impl Iterator<Item = &Fields> {
    items.iter().filter_map(|item| match &item.value {
        Value::Section(fields) => Some(fields),
        _ => None,
    })
}

fn auth(fields: &Fields) -> Auth {
    let token = |fields: &Fields| Token {
        name: string(fields, "name"),
        hash: string(fields, "hash").to_ascii_lowercase(),
        scopes: enum_values(fields, "scopes"),
        expires: match fields.get("expires").map(|field| &field.value) {
            Some(Value::Time(time)) => Some(*time),
            _ => None,
        },
        person: fields.text("person").map(str::to_owned),
        consumers: fields.texts("consumers"),
    };
    Auth {
        tokens_file: fields.text("tokens-file").map(PathBuf::from),
        tokens: sections(fields.list("tokens")).map(token).collect(),
    }
}

fn tls(fields: &Fields) -> Tls {
    Tls {
        certificate: PathBuf::from(string(fields, "certificate")),
        key: PathBuf::from(string(fields, "key")),
        hsts: duration(fields, "hsts"),
    }
}

fn console(fields: &Fields) -> Console {
    let none = Fields::default();
    let session = fields.section("session").unwrap_or(&none);
    Console {
        session_idle: duration(session, "idle"),
        session_lifetime: duration(session, "lifetime"),
        oidc: fields.section("oidc").map(oidc),
        proxy: fields.section("proxy").map(proxy),
        trace_url: fields.text("trace-url").map(str::to_owned),
    }
}

fn oidc(fields: &Fields) -> Oidc {
    Oidc {
        issuer: string(fields, "issuer"),
        client_id: string(fields, "client-id"),
        client_secret: fields.text("client-secret").map(Secret::new),
        client_secret_file: fields.text("client-secret-file").map(PathBuf::from),
        scopes: fields.texts("scopes"),
        person_claim: string(fields, "person-claim"),
        groups_claim: string(fields, "groups-claim"),
        roles: sections(fields.list("roles")).map(role).collect(),
    }
}

fn proxy(fields: &Fields) -> Proxy {
    Proxy {
        trusted: fields.texts("trusted").iter().filter_map(|text| network(text).ok()).collect(),
        user_header: fields.text("user-header").map(str::to_owned),
        groups_header: string(fields, "groups-header"),
        roles: sections(fields.list("roles")).map(role).collect(),
    }
}

fn role(fields: &Fields) -> Role {
    Role {
        group: string(fields, "group"),
        scopes: enum_values(fields, "scopes"),
        consumers: fields.texts("consumers"),
    }
}

fn redact(fields: &Fields) -> Redaction {
    let (paths, patterns) = (fields.texts("payload"), fields.texts("patterns"));
    let rules =
        Redaction::new(fields.texts("headers"), paths.iter().filter_map(|path| payload_path(path).ok()));
    let sets = enum_values(fields, "errors");
    let rules = rules.with_texts(TextRules::new(
        sets.into_iter().filter_map(|name| name.parse().ok()),
        patterns.iter().filter_map(|text| text.parse().ok()),
    ));
    if fields.flag("store") == Some(true) { rules.before_storing() } else { rules }
}

fn encryption(fields: &Fields) -> Encryption {
    let key = |fields: &Fields| match fields.text("file") {
        Some(file) => KeySource::File(PathBuf::from(file)),
        None => KeySource::Command { program: fields.texts("command"), timeout: duration(fields, "timeout") },
    };
    Encryption { keys: sections(fields.list("keys")).map(key).collect() }
}

fn limits(fields: &Fields) -> RequestLimits {
    let size = |name| fields.size(name).unwrap_or_default();
    let count = |name| fields.count(name).and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    RequestLimits {
        body: size("body"),
        batch: size("batch"),
        headers: size("headers"),
        batch_messages: count("batch-messages"),
        connections: count("connections"),
        connections_per_peer: count("connections-per-peer"),
        requests_per_token: count("requests-per-token"),
        drafts_per_person: count("drafts-per-person"),
        drafts: count("drafts"),
        draft_letters: fields.count("draft-letters").unwrap_or(u64::MAX),
    }
}

fn webhook(fields: &Fields) -> Webhook {
    Webhook {
        url: string(fields, "url"),
        secret: fields.text("secret").map(Secret::new),
        events: enum_values(fields, "events"),
        timeout: duration(fields, "timeout"),
    }
}

/// Returns the thresholds of alerts. The table has a default for each of them.
fn thresholds(fields: &Fields) -> AlertThresholds {
    AlertThresholds {
        window: duration(fields, "window"),
        retry_rate: fields.rate("retry-rate").map_or(0.0, Rate::per_second),
        storm_share: fields.number("storm-share").unwrap_or_default(),
        storm_failures: fields.count("storm-failures").unwrap_or_default(),
        retry_age: duration(fields, "retry-age"),
        attempt_age: duration(fields, "attempt-age"),
        blocked_windows: fields.count_u32("blocked-windows").unwrap_or_default(),
        paused_for: duration(fields, "paused-for"),
        expires_within: duration(fields, "expires-within"),
        quiet: duration(fields, "quiet"),
    }
}

fn telemetry(fields: &Fields) -> Telemetry {
    Telemetry {
        otlp_endpoint: fields.text("otlp-endpoint").map(str::to_owned),
        log_format: parsed(fields, "log-format", LogFormat::parse).unwrap_or(LogFormat::Text),
        log_level: parsed(fields, "log-level", LogLevel::parse).unwrap_or(LogLevel::Info),
        log_error_messages: fields.flag("log-error-messages").unwrap_or(false),
    }
}

fn consumer(read: &ConsumerFields, redact: &Redaction) -> Consumer {
    let fields = &read.fields;
    let none = Fields::default();
    let section = |name: &str| fields.section(name).unwrap_or(&none);
    let concurrency = large(fields, "concurrency");
    let source = source(section("source"), &read.name);
    Consumer {
        name: read.name.clone(),
        adopt: adopt(fields, &source, &read.name),
        source,
        handler: fields.section("handler").map_or(Handler::Declared, |fields| handler(fields, concurrency)),
        order: match fields.text("order") {
            Some("partition") => Order::Partition,
            Some("none") => Order::None,
            _ => Order::Key,
        },
        sequence: match fields.get("sequence").map(|field| &field.value) {
            Some(Value::Sequence(rule)) => rule.clone(),
            _ => SequenceRule::Key,
        },
        concurrency,
        max_payload: fields.size("max-payload").map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        retry: retry(section("retry")),
        rules: sections(fields.list("classify")).map(rule).collect(),
        grouping: fields.section("grouping").map_or_else(Grouping::default, grouping),
        redact: redact.clone(),
        breaker: fields.section("breaker").map(breaker_policy),
        fuse: fields.section("fuse").map(fuse_policy),
        poison: fields.section("poison").map_or(PoisonPolicy { same_failure: None }, poison_policy),
        dead_letter: Some(section("dead-letter"))
            .filter(|letters| letters.flag("enabled") != Some(false))
            .map(dead_letter),
        owner: section("dead-letter").text("owner").map(str::to_owned),
        alert_on_first: alerts_on_first(section("dead-letter")),
        inbox_dedupe: fields.section("inbox-dedupe").map(|dedupe| duration(dedupe, "window")),
        replay: replay(section("replay")),
        advanced: advanced(section("advanced")),
    }
}

fn source(fields: &Fields, consumer: &str) -> Source {
    match fields.chosen() {
        Some(("file", file)) => Source::File {
            path: PathBuf::from(string(file, "path")),
            follow: file.flag("follow").unwrap_or_default(),
        },
        Some(("kafka", kafka)) => Source::Kafka(KafkaSource {
            brokers: string(kafka, "brokers"),
            topics: kafka.texts("topics"),
            group: kafka.text("group").unwrap_or(consumer).to_owned(),
            member: kafka.text("member").map(str::to_owned),
            properties: secrets(kafka, "properties"),
            id_headers: kafka.texts("id-headers"),
            type_headers: kafka.texts("type-headers"),
            correlation_headers: kafka.texts("correlation-headers"),
            replaced_stores: kafka.texts("replaced-stores"),
            topic_timeout: duration(kafka, "topic-timeout"),
            may_start_fresh: kafka.text("on-lost-position") == Some("start-fresh"),
        }),
        Some(("mongodb", mongodb)) => Source::Mongodb(mongodb_source(mongodb)),
        Some(("postgres-outbox", outbox)) => Source::PostgresOutbox(postgres_outbox(outbox)),
        _ => Source::Inbox,
    }
}

/// Returns the adoptions. Keys that are not set come from the Kafka source, because a dead letter and
/// its redelivered message must have the same id.
fn adopt(fields: &Fields, source: &Source, consumer: &str) -> Vec<AdoptTopics> {
    let of_source = match source {
        Source::Kafka(kafka) => Some(kafka),
        _ => None,
    };
    let adoption = |format: TopicFormat, fields: &Fields| {
        let own_brokers = fields.text("brokers").map(str::to_owned);
        // The source's credentials are of no use with other brokers.
        let inherited = of_source.filter(|_| own_brokers.is_none());
        let mut properties = inherited.map(|kafka| kafka.properties.clone()).unwrap_or_default();
        for (name, value) in secrets(fields, "properties") {
            properties.retain(|(inherited, _)| *inherited != name);
            properties.push((name, value));
        }
        let own = |name: &str| fields.get(name).map(|_| fields.texts(name));
        let defaults = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        AdoptTopics {
            format,
            kafka: KafkaSource {
                brokers: own_brokers.or(inherited.map(|kafka| kafka.brokers.clone())).unwrap_or_default(),
                topics: fields
                    .text("topic")
                    .map(str::to_owned)
                    .into_iter()
                    .chain(fields.texts("topics"))
                    .collect(),
                group: of_source.map_or(consumer, |kafka| kafka.group.as_str()).to_owned(),
                properties,
                id_headers: own("id-headers")
                    .or(of_source.map(|kafka| kafka.id_headers.clone()))
                    .unwrap_or_default(),
                type_headers: own("type-headers")
                    .or(of_source.map(|kafka| kafka.type_headers.clone()))
                    .unwrap_or_else(|| defaults(TYPE_HEADERS)),
                correlation_headers: of_source
                    .map_or_else(|| defaults(CORRELATION_HEADERS), |kafka| kafka.correlation_headers.clone()),
                member: None,
                replaced_stores: Vec::new(),
                topic_timeout: Duration::ZERO,
                may_start_fresh: false,
            },
            continuous: fields.text("mode") != Some("once"),
            group: fields.text("group").map(str::to_owned),
            adopts_unknown: fields.text("unknown") == Some("adopt"),
            separate_sequences: fields.flag("separate-sequences").unwrap_or_default(),
        }
    };
    topics(fields)
        .filter_map(|(format, fields)| Some(adoption(TopicFormat::parse(format)?, fields)))
        .collect()
}

fn postgres_outbox(fields: &Fields) -> PostgresOutboxSource {
    PostgresOutboxSource {
        dsn: Secret::new(string(fields, "dsn")),
        table: string(fields, "table"),
        id: string(fields, "id"),
        key: string(fields, "key"),
        event_type: string(fields, "type"),
        payload: string(fields, "payload"),
        headers: string(fields, "headers"),
        created_at: string(fields, "created-at"),
        ack: parsed(fields, "ack", OutboxAck::parse).unwrap_or(OutboxAck::Delete),
        channel: string(fields, "channel"),
        poll: duration(fields, "poll"),
        session_timeout: duration(fields, "session-timeout"),
        setup: fields.flag("setup").unwrap_or_default(),
        start_over: fields.count("start-over"),
    }
}

fn mongodb_source(fields: &Fields) -> MongodbSource {
    let none = Fields::default();
    let checkpoint = fields.section("checkpoint").unwrap_or(&none);
    let restart = fields.section("restart").unwrap_or(&none);
    let json = |field: &Field| match &field.value {
        Value::Json(json) => Some(json.clone()),
        _ => None,
    };
    MongodbSource {
        uri: Secret::new(string(fields, "uri")),
        database: fields.text("database").map(str::to_owned),
        collection: fields.text("collection").map(str::to_owned),
        full_document: parsed(fields, "full-document", FullDocument::parse)
            .unwrap_or(FullDocument::UpdateLookup),
        before_change: parsed(fields, "full-document-before-change", BeforeChange::parse)
            .unwrap_or(BeforeChange::Off),
        operations: fields
            .texts("operation-types")
            .iter()
            .filter_map(|text| OperationType::parse(text))
            .collect(),
        pipeline: fields.list("pipeline").iter().filter_map(json).collect(),
        start: parsed(fields, "start", StartPosition::parse).unwrap_or(StartPosition::Resume),
        on_history_lost: parsed(fields, "on-history-lost", HistoryLost::parse).unwrap_or(HistoryLost::Fail),
        on_invalidate: parsed(fields, "on-invalidate", OnInvalidate::parse).unwrap_or(OnInvalidate::Stop),
        checkpoint: Checkpoint {
            every: checkpoint.count("every").unwrap_or(1),
            interval: unless_zero(checkpoint, "interval"),
            idle_heartbeat: unless_zero(checkpoint, "idle-heartbeat"),
        },
        restart: Restart {
            max_attempts: restart.count_u32("max-attempts"),
            initial_delay: duration(restart, "initial-delay"),
            multiplier: restart.number("multiplier").unwrap_or(2.0),
            max_delay: duration(restart, "max-delay"),
        },
        single_leader: fields.text("deployment") == Some("single-leader"),
        instance: fields.text("instance").map(str::to_owned),
    }
}

fn handler(fields: &Fields, concurrency: usize) -> Handler {
    match fields.chosen() {
        Some(("command", command)) => Handler::Command(CommandHandler {
            program: command.texts("program"),
            timeout: duration(command, "timeout"),
            mode: if command.text("mode") == Some("lines") { CommandMode::Lines } else { CommandMode::Once },
            workers: command.count("workers").and_then(|count| usize::try_from(count).ok()),
            env: secrets(command, "env"),
            inherit_env: command.texts("inherit-env"),
        }),
        chosen => {
            let none = Fields::default();
            let http = chosen.map_or(&none, |(_, http)| http);
            let limit = http.count("max-connections").and_then(|count| usize::try_from(count).ok());
            Handler::Http(HttpHandler {
                url: string(http, "url"),
                timeout: duration(http, "timeout"),
                headers: secrets(http, "headers"),
                http2: http.flag("http2").unwrap_or_default(),
                max_connections: limit.unwrap_or(concurrency),
                tls_ca: http.text("tls-ca").map(PathBuf::from),
            })
        }
    }
}

fn retry(fields: &Fields) -> Retry {
    let none = Fields::default();
    let (budget, topics) =
        (fields.section("budget").unwrap_or(&none), fields.section("topics").unwrap_or(&none));
    let policy = retry_policy(fields);
    Retry {
        overrides: sections(fields.list("overrides")).map(|over| retry_override(over, &policy)).collect(),
        policy,
        retry_on: reasons(fields, "retry-on"),
        retry_on_types: error_types(fields, "retry-on"),
        no_retry_on: reasons(fields, "no-retry-on"),
        no_retry_on_types: error_types(fields, "no-retry-on"),
        budget: BudgetPolicy {
            rate: budget.rate("rate"),
            backlog: budget.count("backlog"),
            per_key: budget.count_u32("per-key"),
            per_type: budget.count_u32("per-type"),
        },
        topics: RetryTopics {
            create: topics.flag("create").unwrap_or_default(),
            transactional: topics.flag("transactional").unwrap_or_default(),
            spring_headers: topics.flag("spring-headers").unwrap_or_default(),
        },
    }
}

/// Returns an override. Keys that are not set come from the consumer.
fn retry_override(fields: &Fields, base: &RetryPolicy) -> RetryOverride {
    let none = Fields::default();
    let when = fields.section("when").unwrap_or(&none);
    RetryOverride {
        event_type: when.get("type").and_then(|field| glob(&field.value)),
        reason: when.reason("reason").cloned(),
        policy: RetryPolicy {
            max_attempts: fields
                .count_u32("max-attempts")
                .map_or(base.max_attempts, |attempts| attempts.min(listed_attempts(&base.delays))),
            max_elapsed: match fields.get("max-elapsed") {
                Some(_) => fields.duration("max-elapsed"),
                None => base.max_elapsed,
            },
            initial_delay: fields.duration("initial-delay").unwrap_or(base.initial_delay),
            multiplier: fields.number("multiplier").unwrap_or(base.multiplier),
            max_delay: fields.duration("max-delay").unwrap_or(base.max_delay),
            jitter: fields.number("jitter").unwrap_or(base.jitter),
            ..base.clone()
        },
    }
}

/// Returns the delays of the retry topics. Returns none if `initial-delay` is set closer to the consumer
/// than the list.
pub(crate) fn listed_delays(fields: &Fields) -> Arc<[Duration]> {
    let Some(topics) = fields.section("topics") else { return Arc::default() };
    let delay = |field: &Field| match field.value {
        Value::Duration(delay) => Some(delay),
        _ => None,
    };
    match closeness(fields, "initial-delay") > closeness(topics, "delays") {
        true => Arc::default(),
        false => topics.list("delays").iter().filter_map(delay).collect(),
    }
}

/// Returns the paths of keys in a consumer's `retry` that other keys replace, each with a description of
/// its replacement.
pub(crate) fn replaced(retry: &Fields) -> Vec<(&'static [&'static str], String)> {
    if retry.text("strategy") != Some(Strategy::Topics.as_str()) {
        return Vec::new();
    }
    let listed = listed_delays(retry);
    if listed.is_empty() {
        return vec![(&["retry", "topics", "delays"], "replaced by `initial-delay`".to_owned())];
    }
    let by_list = "replaced by the `delays` of `topics`".to_owned();
    let mut replaced: Vec<(&'static [&'static str], String)> = vec![
        (&["retry", "initial-delay"], by_list.clone()),
        (&["retry", "multiplier"], by_list.clone()),
        (&["retry", "max-delay"], by_list.clone()),
        (&["retry", "jitter"], by_list),
    ];
    if closeness(retry, "max-attempts") == 0 {
        let attempts = format!("{}, by the `delays` of `topics`", listed_attempts(&listed));
        replaced.push((&["retry", "max-attempts"], attempts));
    }
    replaced
}

/// Returns how close to the consumer a value is set: 0 for built-in, 1 for `defaults`, 2 for the
/// consumer itself.
pub(crate) fn closeness(fields: &Fields, name: &str) -> u8 {
    match fields.get(name).map(|field| field.origin) {
        None | Some(Origin::BuiltIn) => 0,
        Some(Origin::Defaults) => 1,
        Some(Origin::Own | Origin::Attribute) => 2,
    }
}

/// Returns the number of attempts that a list of delays allows.
pub(crate) fn listed_attempts(delays: &[Duration]) -> u32 {
    match delays.len() {
        0 => u32::MAX,
        listed => u32::try_from(listed).map_or(u32::MAX, |listed| listed.saturating_add(1)),
    }
}

pub(crate) fn retry_policy(fields: &Fields) -> RetryPolicy {
    let default = RetryPolicy::default();
    let strategies = [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered, Strategy::Topics];
    let strategy = strategies.into_iter().find(|strategy| fields.text("strategy") == Some(strategy.as_str()));
    let strategy = strategy.unwrap_or(default.strategy);
    let delays = if strategy == Strategy::Topics { listed_delays(fields) } else { Arc::default() };
    let attempts = match fields.get("max-attempts") {
        // The list determines the number, unless the file sets a lower one.
        Some(Field { origin: Origin::BuiltIn, .. }) if !delays.is_empty() => u32::MAX,
        _ => fields.count_u32("max-attempts").unwrap_or(default.max_attempts),
    };
    RetryPolicy {
        strategy,
        max_attempts: attempts.min(listed_attempts(&delays)),
        delays,
        hold: fields.duration("hold").unwrap_or(default.hold),
        max_elapsed: fields.duration("max-elapsed"),
        initial_delay: fields.duration("initial-delay").unwrap_or(default.initial_delay),
        multiplier: fields.number("multiplier").unwrap_or(default.multiplier),
        max_delay: fields.duration("max-delay").unwrap_or(default.max_delay),
        jitter: fields.number("jitter").unwrap_or(default.jitter),
        max_retry_after: fields.duration("max-retry-after").unwrap_or(default.max_retry_after),
        max_crashes: fields.count_u32("max-crashes").unwrap_or(default.max_crashes),
    }
}

pub(crate) fn breaker_policy(fields: &Fields) -> BreakerPolicy {
    let default = BreakerPolicy::default();
    BreakerPolicy {
        failures: fields.count_u32("failures").unwrap_or(default.failures),
        window: fields.duration("window").unwrap_or(default.window),
        open_for: fields.duration("open-for").unwrap_or(default.open_for),
        probes: fields.count_u32("probes").unwrap_or(default.probes),
    }
}

pub(crate) fn fuse_policy(fields: &Fields) -> FusePolicy {
    let default = FusePolicy::default();
    FusePolicy {
        ratio: fields.number("ratio").unwrap_or(default.ratio),
        window: fields.count_u32("window").unwrap_or(default.window),
        consecutive: fields.count_u32("consecutive").unwrap_or(default.consecutive),
    }
}

pub(crate) fn poison_policy(fields: &Fields) -> PoisonPolicy {
    PoisonPolicy { same_failure: fields.count_u32("same-failure").or(PoisonPolicy::default().same_failure) }
}

pub(crate) fn grouping(fields: &Fields) -> Grouping {
    let parts: Vec<GroupPart> =
        enum_values(fields, "by").into_iter().filter_map(|name| name.parse().ok()).collect();
    let rules = if parts.is_empty() { Grouping::default() } else { Grouping::by(parts) };
    let patterns = fields.texts("replace");
    patterns.iter().filter_map(|text| group_pattern(text).ok()).fold(rules, Grouping::replace)
}

fn rule(fields: &Fields) -> Rule {
    let none = Fields::default();
    let when = fields.section("when").unwrap_or(&none);
    let value = |name: &str| when.get(name).map(|field| &field.value);
    Rule {
        when: When {
            reason: when.reason("reason").cloned(),
            status: match value("status") {
                Some(Value::Status(status)) => Some(*status),
                _ => None,
            },
            event_type: value("type").and_then(glob),
            phase: Phase::ALL.into_iter().find(|phase| when.text("phase") == Some(phase.as_str())),
            attempt: match value("attempt") {
                Some(Value::Comparison(comparison)) => Some(*comparison),
                _ => None,
            },
            error: match value("error") {
                Some(Value::Regex(regex)) => Some(regex.clone()),
                _ => None,
            },
            error_type: value("error-type").and_then(glob),
            fingerprint: match value("fingerprint") {
                Some(Value::Fingerprint(fingerprint)) => Some(*fingerprint),
                _ => None,
            },
        },
        then: fields.text("then").and_then(|word| word.parse().ok()).unwrap_or(Verdict::Stop),
        reason: fields.reason("reason").cloned(),
    }
}

fn glob(value: &Value) -> Option<lazaret_core::policy::Glob> {
    match value {
        Value::Glob(glob) => Some(glob.clone()),
        _ => None,
    }
}

fn on_dead(fields: &Fields) -> OnDead {
    let written = OnDead::ALL.into_iter().find(|value| fields.text("on-dead") == Some(value.as_str()));
    written.unwrap_or_default()
}

fn on_dead_override(fields: &Fields) -> OnDeadOverride {
    let none = Fields::default();
    let when = fields.section("when").unwrap_or(&none);
    OnDeadOverride {
        event_type: when.get("type").and_then(|field| glob(&field.value)),
        reason: when.reason("reason").cloned(),
        on_dead: on_dead(fields),
    }
}

fn alerts_on_first(letters: &Fields) -> bool {
    letters.flag("alert-on-first").unwrap_or(true)
}

fn dead_letter(fields: &Fields) -> DeadLetter {
    let none = Fields::default();
    let reprocess = fields.section("reprocess").unwrap_or(&none);
    let schedule = string(reprocess, "cron");
    DeadLetter {
        owner: fields.text("owner").map(str::to_owned),
        ttl: unless_zero(fields, "ttl"),
        keep_closed: unless_zero(fields, "keep-closed"),
        include_payload: fields.flag("include-payload").unwrap_or(true),
        include_backtrace: fields.flag("include-backtrace").unwrap_or(true),
        on_dead: OnDeadPolicy {
            on_dead: on_dead(fields),
            overrides: sections(fields.list("overrides")).map(on_dead_override).collect(),
        },
        limits: Limits {
            max_sequences: fields.count("max-sequences"),
            max_sequence_size: fields.count("max-sequence-size"),
        },
        capacity: CapacityPolicy {
            max_letters: fields.count("max-letters"),
            max_bytes: fields.size("max-bytes"),
            min_free: fields.size("min-free"),
        },
        alert_on_first: alerts_on_first(fields),
        topic: fields.text("topic").map(str::to_owned),
        collection: fields.text("collection").map(|name| CopiesCollection {
            name: name.to_owned(),
            uri: fields.text("collection-uri").map(Secret::new),
        }),
        reprocess: match reprocess.text("strategy") {
            Some("cron") => {
                Reprocess::Cron { schedule, batch_size: reprocess.count("batch-size").unwrap_or(100) }
            }
            _ => Reprocess::Manual,
        },
    }
}

fn replay(fields: &Fields) -> Replay {
    Replay {
        approval: if fields.text("approval") == Some("second-person") {
            Approval::SecondPerson
        } else {
            Approval::None
        },
        rate: fields.rate("rate"),
        max_replays: fields.count_u32("max-replays"),
    }
}

fn advanced(fields: &Fields) -> Advanced {
    Advanced {
        window: large(fields, "window"),
        shards: large(fields, "shards"),
        commit_interval: duration(fields, "commit-interval"),
        drain_deadline: duration(fields, "drain-deadline"),
        lease: duration(fields, "lease"),
        refresh: duration(fields, "refresh"),
        blocked_limit: large(fields, "blocked-limit"),
    }
}

fn string(fields: &Fields, name: &str) -> String {
    fields.text(name).unwrap_or_default().to_owned()
}

/// Parses the value of a key that the table limits to a fixed set.
fn parsed<T>(fields: &Fields, name: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
    fields.text(name).and_then(parse)
}

fn enum_values(fields: &Fields, name: &str) -> Vec<&'static str> {
    let value = |field: &Field| match field.value {
        Value::Enum(value) => Some(value),
        _ => None,
    };
    fields.list(name).iter().filter_map(value).collect()
}

fn duration(fields: &Fields, name: &str) -> Duration {
    fields.duration(name).unwrap_or_default()
}

/// Returns a duration, or `None` for 0, which means "forever" or "never" in the file.
fn unless_zero(fields: &Fields, name: &str) -> Option<Duration> {
    fields.duration(name).filter(|duration| !duration.is_zero())
}

fn large(fields: &Fields, name: &str) -> usize {
    fields.count(name).map_or(1, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

fn reasons(fields: &Fields, name: &str) -> Vec<Reason> {
    let reason = |field: &Field| match &field.value {
        Value::Reason(reason) => Some(reason.clone()),
        _ => None,
    };
    fields.list(name).iter().filter_map(reason).collect()
}

fn error_types(fields: &Fields, name: &str) -> Vec<ErrorTypePattern> {
    let error_type = |field: &Field| match &field.value {
        Value::ErrorType(pattern) => Some(pattern.clone()),
        _ => None,
    };
    fields.list(name).iter().filter_map(error_type).collect()
}

fn secrets(fields: &Fields, name: &str) -> Vec<(String, Secret)> {
    let secret = |(name, field): &(String, Field)| Some((name.clone(), Secret::new(field.value.text()?)));
    fields.map(name).iter().filter_map(secret).collect()
}
