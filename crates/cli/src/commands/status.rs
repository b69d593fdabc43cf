//! `status`: shows consumers, open letters and operations.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use lazaret_api::values::duration;
use lazaret_api::{
    Breaker, Consumer, ConsumerState, Fuse, Instance, OnDead, Operation, OperationState, Pause, PauseScope,
};

use super::Run;
use super::plan::excluded;
use crate::client::Client;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::hints::{query_value, quoted, resume_command};
use crate::output::{
    Cell, Column, Format, Line, Record, Screen, Tone, age, count, error_summary, plural, print_page, span,
};
use crate::watch::{Interrupt, is_transient};

/// The interval of `--watch` unless another is given.
const DEFAULT_INTERVAL: SignedDuration = SignedDuration::from_secs(2);

/// The age from which a running attempt is noted, in seconds.
const LONG_ATTEMPT_SECONDS: f64 = 60.0;

/// Show consumers, open letters and operations.
#[derive(Debug, Args)]
pub struct Status {
    /// Print the status again whenever it changes, until Ctrl-C; as JSON, one document per line
    #[arg(long, short = 'w')]
    watch: bool,

    /// Look for changes at this interval; default: 2s
    #[arg(long, value_name = "DURATION", value_parser = poll_interval, requires = "watch")]
    interval: Option<SignedDuration>,

    /// Stop after the status was printed N times
    #[arg(long, short = 'n', value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl Run for Status {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let status = client.status().await?;
        if self.watch {
            let mut interrupt = Interrupt::listen();
            return tokio::select! {
                watched = self.watch(context, &client, status) => watched.map(|()| Exit::Ok),
                () = interrupt.received() => Ok(Exit::Interrupted),
            };
        }
        let (screen, now) = (&context.screen, context.now());
        if context.format() != Format::Table {
            print_page(screen, context.format(), &status, &status.consumers, now)?;
            return Ok(Exit::Ok);
        }
        if status.consumers.is_empty() {
            screen.info("no consumers");
            print_erasure(screen, &status)?;
            screen.next_command("lazaret run -c lazaret.yaml");
            return Ok(Exit::Ok);
        }
        print_tables(screen, &status, now)?;
        screen.next_commands(&next(&status));
        Ok(Exit::Ok)
    }
}

impl Status {
    /// Prints the status whenever it changes. A daemon that cannot be reached is waited for.
    async fn watch(&self, context: &Context, client: &Client, first: lazaret_api::Status) -> Result<()> {
        let interval = self.interval.unwrap_or(DEFAULT_INTERVAL).unsigned_abs();
        let (mut printed, mut before, mut is_lost) = (0, None, false);
        let mut current = Ok(first);
        loop {
            match current {
                Ok(status) => {
                    is_lost = false;
                    let timeless = without_times(&status);
                    if before.as_ref() != Some(&timeless) {
                        print_change(context, &status, printed == 0)?;
                        before = Some(timeless);
                        printed += 1;
                    }
                    if self.limit.is_some_and(|limit| printed >= limit) {
                        return Ok(());
                    }
                }
                Err(error) if is_transient(&error) => {
                    // Told once per outage.
                    if !std::mem::replace(&mut is_lost, true) {
                        context.screen.warn(&format!("{error}; retrying until the daemon is back"));
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(interval).await;
            current = client.status().await;
        }
    }
}

/// Parses the interval of `--watch` and `top`. A shorter one would only cost.
pub(super) fn poll_interval(text: &str) -> std::result::Result<SignedDuration, String> {
    let interval = duration(text).map_err(|error| error.to_string())?;
    if interval < SignedDuration::from_millis(100) || interval > SignedDuration::from_hours(1) {
        return Err("expected a duration from 100ms to 1h".to_owned());
    }
    Ok(interval)
}

/// Returns the status without what changes as time passes.
fn without_times(status: &lazaret_api::Status) -> lazaret_api::Status {
    let mut status = status.clone();
    for consumer in &mut status.consumers {
        consumer.oldest_age_seconds = None;
        // It is noted from a minute on.
        consumer.attempt_age_seconds =
            consumer.attempt_age_seconds.filter(|age| *age >= LONG_ATTEMPT_SECONDS);
        consumer.attempt_age_seconds = consumer.attempt_age_seconds.map(|_| LONG_ATTEMPT_SECONDS);
    }
    for instance in &mut status.instances {
        instance.last_seen = instance.started_at;
    }
    status
}

/// Prints a status of `--watch`: below its time as a table, on one line as JSON, or a row per consumer as CSV.
fn print_change(context: &Context, status: &lazaret_api::Status, is_first: bool) -> Result<()> {
    let (screen, now) = (&context.screen, context.now());
    match context.format() {
        Format::Table => {
            if !is_first {
                screen.line(&Line::new())?;
            }
            let time = Timestamp::from_second(now.as_second()).unwrap_or(now);
            screen.line(&Line::new().add(time.to_string(), Tone::Dim))?;
            print_tables(screen, status, now)
        }
        Format::Json | Format::Jsonl => screen.json_line(status),
        Format::Csv => status.consumers.iter().enumerate().try_for_each(|(index, consumer)| {
            consumer.print_line(screen, Format::Csv, is_first && index == 0)
        }),
    }
}

fn print_tables(screen: &Screen, status: &lazaret_api::Status, now: Timestamp) -> Result<()> {
    screen.table(&Consumer::table(&status.consumers, now))?;
    if !status.store.durable {
        let line = Line::new().add("store", Tone::Strong).add(" not durable", Tone::Warning);
        screen.line(&line.plain(": letters and positions are lost when the process exits"))?;
    }
    print_erasure(screen, status)?;
    for line in status.consumers.iter().flat_map(|consumer| notes(consumer, now)) {
        screen.line(&line)?;
    }
    if !status.operations.is_empty() {
        screen.line(&Line::new())?;
        screen.table(&Record::table(&status.operations, now))?;
        for line in status.operations.iter().filter_map(exclusions) {
            screen.line(&line)?;
        }
    }
    // A process alone is not a fleet.
    if status.instances.len() > 1 {
        screen.line(&Line::new())?;
        screen.table(&Record::table(&status.instances, now))?;
    }
    Ok(())
}

/// Tells what the store has still to do after an erasure, if anything.
fn print_erasure(screen: &Screen, status: &lazaret_api::Status) -> Result<()> {
    match &status.erasure {
        Some(erasure) => screen.line(&Line::new().add("erasure", Tone::Strong).plain(format!(": {erasure}"))),
        None => Ok(()),
    }
}

/// Tells which letters the plan of an operation excludes, if any.
fn exclusions(operation: &Operation) -> Option<Line> {
    let letters = operation.excluded.iter().map(|of| of.letters).sum::<u64>();
    let line = Line::new().add(&operation.id, Tone::Strong);
    let why = excluded(&operation.excluded, &[]);
    (letters > 0).then(|| line.plain(format!(" excludes {}: {why}", plural(letters, "letter"))))
}

/// Tells why a consumer is failed, blocked or paused.
pub(super) fn notes(consumer: &Consumer, now: Timestamp) -> Vec<Line> {
    let name = || Line::new().add(&consumer.name, Tone::Strong);
    let mut lines = Vec::new();
    if let Some(error) = &consumer.error {
        let name = match consumer.state {
            ConsumerState::Failed => name().add(" failed: ", Tone::Bad),
            _ => name().add(" waits: ", Tone::Warning),
        };
        lines.push(name.plain(error));
    }
    match &consumer.held_by {
        // Of what has no name, the error tells more.
        Some(limit) if limit == "disk" => {
            lines.push(name().add(" is held: the store's disk is full", Tone::Bad));
        }
        Some(limit) => lines.push(name().add(format!(" is held by its limit: {limit}"), Tone::Bad)),
        None if consumer.store_trouble => {
            lines.push(name().add(" is blocked: the store does not accept letters", Tone::Bad));
        }
        None => {}
    }
    if let Some(age) = consumer.attempt_age_seconds.filter(|age| *age >= LONG_ATTEMPT_SECONDS) {
        lines.push(name().add(format!(": an attempt has been running for {}", span(age)), Tone::Warning));
    }
    if matches!(consumer.breaker, Breaker::Open | Breaker::HalfOpen) {
        let name = name().add(format!(" circuit breaker {}: ", consumer.breaker.as_str()), Tone::Bad);
        lines.push(name.plain(breaker_note(consumer, now)));
    }
    if let Some(counts) = consumer.in_broker.filter(|counts| counts.retrying + counts.dead > 0) {
        let text = format!(
            " has {} in dead-letter topics and {} in retry topics, counted in the broker",
            count(counts.dead),
            count(counts.retrying)
        );
        lines.push(name().plain(text));
    }
    lines.extend(consumer.pauses.iter().map(|pause| pause_line(&consumer.name, pause, now)));
    if let Some(at) = consumer.expires_soon(now) {
        let left = span(at.duration_since(now).as_secs_f64().max(0.0));
        let line = name().add(" letters expire", Tone::Warning);
        lines.push(line.plain(format!(": the next one in {left}, unless it is replayed or resolved")));
    }
    for recreated in consumer.incarnations.iter().filter(|life| life.is_recent(now)) {
        let age = span(now.duration_since(recreated.since).as_secs_f64().max(0.0));
        let text =
            format!(": {} was recreated, seen {age} ago, and is read from its beginning", recreated.name());
        lines.push(name().plain(text));
    }
    let leave = match consumer.on_dead.filter(|_| consumer.dead > 0) {
        Some(OnDead::Continue) => Some("dead letters have left their sequences"),
        Some(OnDead::Mixed) => Some("some dead letters have left their sequences"),
        Some(OnDead::Hold) | None => None,
    };
    if let Some(leave) = leave {
        lines.push(name().plain(format!(": {leave} (on-dead: continue), and their replay is out of order")));
    }
    lines
}

/// Formats why the circuit breaker is not closed, which handler is concerned, and what happens next.
fn breaker_note(consumer: &Consumer, now: Timestamp) -> String {
    let Some(cause) = &consumer.breaker_cause else { return "handler calls are limited".to_owned() };
    let error = error_summary(&cause.error.error_type, &cause.error.message);
    let handler = consumer.handler.as_deref().map_or_else(String::new, |at| format!(", handler {at}"));
    let next = match cause.next_probe_at {
        Some(at) if at > now => format!("next probe in {}", span(at.duration_since(now).as_secs_f64())),
        _ => "probing now".to_owned(),
    };
    let since = age(cause.opened_at, now);
    format!("{} {error}{handler}; opened {since} ago, {next}", cause.reason)
}

/// Formats a pause: who paused what, when and why.
pub(super) fn pause_line(consumer: &str, pause: &Pause, now: Timestamp) -> Line {
    let what = match pause.scope {
        PauseScope::Consumer => String::new(),
        PauseScope::Stream => format!(" stream {}", pause.stream.as_deref().unwrap_or("?")),
        PauseScope::Partition => {
            let number = pause.partition.map_or_else(|| "?".to_owned(), |number| number.to_string());
            format!(" partition {}/{number}", pause.stream.as_deref().unwrap_or("?"))
        }
        PauseScope::Sequence => format!(" sequence {}", pause.sequence.as_deref().unwrap_or("?")),
        PauseScope::Replay => " replays".to_owned(),
    };
    let line = Line::new().add(consumer, Tone::Strong).plain(what).add(" paused", Tone::Warning);
    line.plain(format!(" by {}, {} ago: {}", pause.who, age(pause.since, now), pause.why))
}

/// Returns the next commands. Before a consumer whose fuse has blown is resumed, its failures are looked at.
fn next(status: &lazaret_api::Status) -> Vec<String> {
    let resume = next_command(status);
    let blown = status.consumers.iter().find(|consumer| consumer.fuse == Fuse::Blown);
    let groups = blown.map(|consumer| {
        let query = format!("queue:{}", query_value(&consumer.name));
        format!("lazaret groups {}", quoted(&query))
    });
    groups.into_iter().chain([resume]).collect()
}

fn next_command(status: &lazaret_api::Status) -> String {
    let pauses = status.consumers.iter().flat_map(|consumer| {
        consumer.pauses.iter().filter_map(move |pause| Some((pause, resume_command(&consumer.name, pause)?)))
    });
    // Suggest the widest pause first.
    if let Some((_, resume)) = pauses.min_by_key(|(pause, _)| scope_rank(pause.scope)) {
        return resume;
    }
    if let Some(operation) = status.operations.first() {
        let id = &operation.id;
        return match operation.state {
            // A second person runs this.
            OperationState::AwaitingApproval => format!("lazaret op approve {id} --reason TEXT"),
            // A paused operation makes no progress to watch.
            OperationState::Paused => format!("lazaret op show {id}"),
            _ => format!("lazaret op watch {id}"),
        };
    }
    let has_letters =
        |consumer: &Consumer| consumer.dead + consumer.parked + consumer.quarantined + consumer.retrying > 0;
    if status.consumers.iter().any(has_letters) {
        return "lazaret groups".to_owned();
    }
    // Records of dead-letter topics are no letters: only adopted ones are in groups and can be replayed.
    let in_topics = |consumer: &&Consumer| consumer.in_broker.is_some_and(|counts| counts.dead > 0);
    match status.consumers.iter().find(in_topics) {
        Some(consumer) => {
            let name = quoted(&consumer.name);
            format!("lazaret adopt x-original --consumer {name} --topic TOPIC --dry-run")
        }
        None => "lazaret tail".to_owned(),
    }
}

/// Ranks pauses by scope, the widest first.
fn scope_rank(scope: PauseScope) -> u8 {
    match scope {
        PauseScope::Consumer => 0,
        PauseScope::Stream => 1,
        PauseScope::Partition => 2,
        PauseScope::Replay => 3,
        PauseScope::Sequence => 4,
    }
}

/// Returns the tone of a consumer in this state.
pub(super) fn state_tone(state: ConsumerState) -> Tone {
    match state {
        ConsumerState::Running => Tone::Good,
        ConsumerState::Failed => Tone::Bad,
        ConsumerState::Paused | ConsumerState::Waiting => Tone::Warning,
        ConsumerState::Starting | ConsumerState::Stopped | ConsumerState::Elsewhere => Tone::Dim,
    }
}

fn number(value: Option<u64>) -> Cell {
    Cell::or_dash(value.map(count))
}

/// Formats a count that should be 0.
fn problem_count(value: u64, tone: Tone) -> Cell {
    let cell = Cell::new(count(value));
    if value == 0 { cell.tone(Tone::Dim) } else { cell.tone(tone) }
}

impl Record for Instance {
    const COLUMNS: &'static [Column] = &[
        Column::new("INSTANCE").min_width(8),
        Column::new("VERSION").drop_priority(2),
        Column::new("CONSUMERS").drop_priority(1),
        Column::new("PARTITIONS"),
        Column::new("SEEN").right(),
    ];
    const CSV: &'static [&'static str] = &["instance", "version", "started-at", "last-seen"];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let partitions = self.partitions.iter().map(|of| format!("{}/{}", of.stream, of.partition));
        let partitions: Vec<String> = partitions.collect();
        let or_dash = |words: &[String]| Cell::or_dash((!words.is_empty()).then(|| words.join(" ")));
        vec![
            Cell::new(&self.instance).tone(Tone::Strong),
            Cell::new(&self.version),
            or_dash(&self.consumers),
            or_dash(&partitions),
            Cell::new(format!("{} ago", age(self.last_seen, now))),
        ]
    }
}

impl Record for Consumer {
    const COLUMNS: &'static [Column] = &[
        Column::new("CONSUMER").min_width(8),
        Column::new("STATE"),
        Column::new("LAG").right().drop_priority(2),
        Column::new("IN-FLIGHT").right().drop_priority(5),
        Column::new("HANDLED").right().drop_priority(4),
        Column::new("FAILED").right().drop_priority(3),
        Column::new("RETRYING").right(),
        Column::new("DEAD").right(),
        Column::new("PARKED").right().drop_priority(6),
        Column::new("QUARANTINED").right().drop_priority(7),
        Column::new("WAITING").right().drop_priority(1),
        Column::new("OLDEST").right(),
        Column::new("FUSE").drop_priority(9),
        Column::new("BREAKER").drop_priority(8),
    ];
    const CSV: &'static [&'static str] = &[
        "name",
        "state",
        "lag",
        "in-flight",
        "handled",
        "failed",
        "retrying",
        "dead",
        "parked",
        "quarantined",
        "waiting",
        "oldest-age-seconds",
        "fuse",
        "breaker",
        "attempt-age-seconds",
        "held-by",
        "in-broker.retrying",
        "in-broker.dead",
        "in-broker.oldest-dead-at",
    ];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let fuse = if self.fuse == Fuse::Blown { Tone::Bad } else { Tone::Dim };
        let breaker =
            if matches!(self.breaker, Breaker::Open | Breaker::HalfOpen) { Tone::Bad } else { Tone::Dim };
        vec![
            Cell::new(&self.name).tone(Tone::Strong),
            Cell::new(self.state.as_str()).tone(state_tone(self.state)),
            number(self.lag),
            number(self.in_flight),
            number(self.handled),
            number(self.failed),
            problem_count(self.retrying, Tone::Warning),
            problem_count(self.dead_with_topics(), Tone::Bad),
            problem_count(self.parked, Tone::Warning),
            problem_count(self.quarantined, Tone::Bad),
            problem_count(self.waiting, Tone::Warning),
            Cell::or_dash(self.oldest_with_topics(now).map(span)),
            Cell::new(self.fuse.as_str()).tone(fuse),
            Cell::new(self.breaker.as_str()).tone(breaker),
        ]
    }
}

#[cfg(test)]
mod tests {
    use lazaret_api::{
        BreakerCause, BrokerCounts, Excluded, Exclusion, LetterError, QueueStatus, StateCounts,
        StreamIncarnation,
    };

    use super::*;
    use crate::fixtures::{NOW, at, consumer, operation};

    /// A consumer of which nothing needs to be told.
    fn quiet(dead: u64) -> Consumer {
        Consumer { breaker: Breaker::Closed, ..consumer("shop", ConsumerState::Running, dead) }
    }

    fn told(consumer: &Consumer) -> Vec<String> {
        notes(consumer, at(NOW)).iter().map(|line| line.render(false)).collect()
    }

    #[test]
    fn time_that_passes_is_no_change() {
        let status = |age, dead| lazaret_api::Status {
            consumers: vec![Consumer {
                oldest_age_seconds: Some(age),
                ..consumer("shop", ConsumerState::Running, dead)
            }],
            operations: vec![],
            store: lazaret_api::StoreCapabilities::default(),
            instances: vec![Instance {
                instance: "host-1".into(),
                version: "0.1.0".into(),
                consumers: vec![],
                partitions: vec![],
                started_at: at(0),
                last_seen: at(age as i64),
            }],
            erasure: None,
        };
        assert_eq!(without_times(&status(1.0, 7)), without_times(&status(2.0, 7)));
        assert_ne!(without_times(&status(1.0, 7)), without_times(&status(1.0, 8)));
    }

    #[test]
    fn what_holds_a_consumer_and_an_attempt_that_does_not_end_are_told() {
        let held = Consumer {
            held_by: Some("max-sequence-size".into()),
            store_trouble: true,
            attempt_age_seconds: Some(1080.0),
            ..quiet(0)
        };
        assert_eq!(
            told(&held),
            ["shop is held by its limit: max-sequence-size", "shop: an attempt has been running for 18m00s"]
        );
        let full = Consumer { held_by: Some("disk".into()), ..quiet(0) };
        assert_eq!(told(&full), ["shop is held: the store's disk is full"]);
        let short = Consumer { attempt_age_seconds: Some(59.0), ..quiet(0) };
        assert_eq!(told(&short), Vec::<String>::new());
    }

    /// The cell of this column in the consumer's row.
    fn shown(consumer: &Consumer, name: &str) -> String {
        let table = Consumer::table(std::slice::from_ref(consumer), at(NOW)).render(200, false);
        let (columns, row) = table.split_once('\n').unwrap();
        let end = columns.find(name).unwrap() + name.len();
        row[..end].split(' ').next_back().unwrap().to_owned()
    }

    #[test]
    fn an_attempt_that_hangs_is_the_oldest_if_nothing_older_waits() {
        let hangs = |oldest_age_seconds, age| Consumer {
            oldest_age_seconds,
            attempt_age_seconds: Some(age),
            ..quiet(0)
        };
        assert_eq!(shown(&hangs(None, 125.0), "OLDEST"), "2m05s");
        assert_eq!(shown(&hangs(Some(60.0), 125.0), "OLDEST"), "2m05s");
        assert_eq!(shown(&hangs(Some(180_000.0), 125.0), "OLDEST"), "2d02h");
        assert_eq!(shown(&hangs(None, 0.9), "OLDEST"), "-", "there is always one that runs");
    }

    #[test]
    fn what_dead_letter_topics_hold_counts_as_dead_and_old() {
        let counts = BrokerCounts { retrying: 2, dead: 3, oldest_dead_at: Some(at(NOW - 90_000)) };
        let shop = Consumer { in_broker: Some(counts), oldest_age_seconds: Some(60.0), ..quiet(4) };
        assert_eq!((shown(&shop, "DEAD"), shown(&shop, "OLDEST")), ("7".into(), "1d01h".into()));
        assert_eq!(shown(&shop, "RETRYING"), "17", "those of the store");
        assert_eq!(
            told(&shop),
            ["shop has 3 in dead-letter topics and 2 in retry topics, counted in the broker"]
        );
        // The oldest letter of the store is older.
        let store = Consumer { oldest_age_seconds: Some(180_000.0), ..shop };
        assert_eq!(shown(&store, "OLDEST"), "2d02h");
        let empty = Consumer { in_broker: Some(BrokerCounts::default()), ..quiet(4) };
        assert_eq!((shown(&empty, "DEAD"), told(&empty)), ("4".into(), Vec::new()));
    }

    #[test]
    fn letters_that_expire_within_a_day_are_told() {
        let expiring = |in_seconds: i64| {
            let queue = QueueStatus {
                queue: "shop/shop".into(),
                sequences: 1,
                states: StateCounts::default(),
                oldest_at: None,
                next_expiry_at: Some(at(NOW + in_seconds)),
            };
            Consumer { queues: vec![queue], ..quiet(1) }
        };
        assert_eq!(
            told(&expiring(5400)),
            ["shop letters expire: the next one in 1h30m, unless it is replayed or resolved"]
        );
        assert_eq!(told(&expiring(90_000)), Vec::<String>::new());
    }

    #[test]
    fn a_recreated_stream_is_told_for_a_day() {
        let recreated = |partition, seconds_ago: i64| {
            let life = StreamIncarnation {
                stream: "orders".into(),
                partition,
                incarnation: 1,
                id: None,
                since: at(NOW - seconds_ago),
            };
            told(&Consumer { incarnations: vec![life], ..quiet(0) })
        };
        assert_eq!(
            recreated(None, 64),
            ["shop: orders was recreated, seen 1m04s ago, and is read from its beginning"]
        );
        assert_eq!(
            recreated(Some(3), 64),
            ["shop: partition 3 of orders was recreated, seen 1m04s ago, and is read from its beginning"]
        );
        assert_eq!(recreated(None, 86_400), Vec::<String>::new());
    }

    #[test]
    fn an_operation_tells_which_letters_its_plan_excludes() {
        let of = |reason, letters| Excluded { reason, letters };
        let running = operation(OperationState::Running, 0);
        assert!(exclusions(&running).is_none());
        let excluded = vec![of(Exclusion::Behind, 2), of(Exclusion::Closed, 1)];
        assert_eq!(
            exclusions(&Operation { excluded, ..running }).unwrap().render(false),
            "op_31 excludes 3 letters: 2 behind a letter that is not in the plan, 1 closed"
        );
    }

    #[test]
    fn an_interval_is_neither_too_short_nor_too_long() {
        assert_eq!(poll_interval("500ms"), Ok(SignedDuration::from_millis(500)));
        for wrong in ["0s", "50ms", "2h", "-1s", "soon"] {
            assert!(poll_interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_open_breaker_tells_the_error_the_handler_and_the_next_probe() {
        let error = LetterError { error_type: "HttpError".into(), message: "connection refused".into() };
        let cause = |next_probe_at| BreakerCause {
            reason: "HANDLER_UNREACHABLE".into(),
            error: error.clone(),
            opened_at: at(100),
            next_probe_at,
        };
        let open = |next_probe_at| Consumer {
            breaker: Breaker::Open,
            breaker_cause: Some(cause(next_probe_at)),
            handler: Some("http://127.0.0.1:8080/events".into()),
            ..consumer("shop", ConsumerState::Running, 0)
        };
        let note = breaker_note(&open(Some(at(130))), at(110));
        assert!(note.starts_with("HANDLER_UNREACHABLE ") && note.contains("connection refused"), "{note}");
        assert!(
            note.ends_with(", handler http://127.0.0.1:8080/events; opened 10s ago, next probe in 20s"),
            "{note}"
        );
        assert!(breaker_note(&open(None), at(110)).ends_with("probing now"));
    }

    #[test]
    fn dead_letters_in_the_broker_alone_are_to_be_adopted() {
        let hint = |dead, in_broker| {
            let in_broker = BrokerCounts { retrying: 1, dead: in_broker, oldest_dead_at: None };
            let shop = Consumer { in_broker: Some(in_broker), ..quiet(dead) };
            let shop = Consumer { retrying: 0, parked: 0, quarantined: 0, ..shop };
            let consumers = vec![Consumer { retrying: 0, parked: 0, quarantined: 0, ..quiet(0) }, shop];
            let store = lazaret_api::StoreCapabilities::default();
            next(&lazaret_api::Status {
                consumers,
                operations: vec![],
                store,
                instances: vec![],
                erasure: None,
            })
        };
        assert_eq!(hint(0, 3), ["lazaret adopt x-original --consumer shop --topic TOPIC --dry-run"]);
        assert_eq!(hint(2, 3), ["lazaret groups"], "letters of the store come first");
        assert_eq!(hint(0, 0), ["lazaret tail"]);
    }

    #[test]
    fn the_failures_of_a_blown_fuse_are_looked_at_before_it_is_resumed() {
        let pause = Pause {
            scope: PauseScope::Consumer,
            stream: None,
            partition: None,
            sequence: None,
            who: "lazaret".into(),
            via: "engine".into(),
            why: "fuse: 50 messages in a row failed for good".into(),
            since: at(0),
        };
        let blown = Consumer {
            fuse: Fuse::Blown,
            paused: Some(pause.clone()),
            pauses: vec![pause],
            ..consumer("shop", ConsumerState::Paused, 50)
        };
        let status = lazaret_api::Status {
            consumers: vec![blown],
            operations: vec![],
            store: lazaret_api::StoreCapabilities::default(),
            instances: vec![],
            erasure: None,
        };
        assert_eq!(next(&status), ["lazaret groups queue:shop", "lazaret resume shop --reason TEXT"]);
    }
}
