//! Renders the dashboard as lines that fit the terminal. Pure, so that every size can be tested.

use crate::dashboard::{Dashboard, Kind, LogEntry};
use crate::orders::{self, CUSTOMERS, HARBOUR, LAST_HEALTHY};
use crate::protocol::{Blocked, Group, Operation};
use crate::styled_line::{Line, Tone};

/// The number of fixed rows: title, numbers, bank, advice, three headings, keys and an empty line.
const FIXED_ROWS: usize = 9;
/// The width of the progress bar of a replay.
const BAR_WIDTH: usize = 24;

/// The parts of suggested commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    /// How the user calls this program, with the address unless it is the default.
    pub(crate) command: String,
    /// The address of the API.
    pub(crate) url: String,
}

/// Renders the lines for a terminal of this size.
pub(crate) fn view(
    dashboard: &Dashboard,
    hints: &Hints,
    (width, height): (usize, usize),
    color: bool,
) -> Vec<String> {
    let mut lines = vec![
        title(dashboard, hints, width),
        numbers(dashboard),
        bank(dashboard),
        advice(dashboard, hints),
        Line::new(),
    ];
    let commands = commands(dashboard, hints);
    let replay: Option<Line> = dashboard.state.operation.as_ref().map(operation);
    let room = height.saturating_sub(FIXED_ROWS + commands.len() + replay.iter().count());
    // Groups get rows first: they are few and most important. Then the customers, and the log gets the rest.
    let state = &dashboard.state;
    let groups = rows(state.groups.iter().map(group), state.groups.len(), (room / 3).min(6));
    let blocked = usize::try_from(state.blocked).unwrap_or(usize::MAX).max(state.customers.len());
    let customers = rows(state.customers.iter().map(customer), blocked, (room - groups.len()) / 2);
    let log_rows = room.saturating_sub(groups.len() + customers.len());
    lines.push(blocked_title(dashboard));
    lines.extend(customers);
    lines.push(heading("DEAD LETTERS BY CAUSE", ""));
    lines.extend(groups);
    lines.extend(replay);
    lines.push(heading("LOG", ""));
    let log: Vec<Line> = dashboard.log().rev().take(log_rows).map(log_line).collect();
    let missing = log_rows.saturating_sub(log.len());
    lines.extend(log.into_iter().rev());
    lines.extend(std::iter::repeat_n(Line::new(), missing));
    lines.extend(commands);
    lines.push(keys(dashboard));
    // A small terminal keeps the top and the keys.
    if lines.len() > height && height > 0 {
        let keys = lines.pop();
        lines.truncate(height - 1);
        lines.extend(keys);
    }
    lines.iter().map(|line| line.render(width, color)).collect()
}

/// Returns as many lines as fit. When some do not, the last line counts them.
fn rows(lines: impl ExactSizeIterator<Item = Line>, all: usize, room: usize) -> Vec<Line> {
    if all <= room && all <= lines.len() {
        return lines.collect();
    }
    let shown = lines.len().min(room.saturating_sub(1));
    let more = (room > 0).then(|| Line::of(format!("  … {} more", all - shown), Tone::Dim));
    lines.take(shown).chain(more).collect()
}

fn title(dashboard: &Dashboard, hints: &Hints, width: usize) -> Line {
    let seconds = dashboard.elapsed().as_secs();
    let line = Line::of("Lazaret", Tone::Strong)
        .plain(format!("  orders of {CUSTOMERS} customers  "))
        .add(format!("{:02}:{:02}", seconds / 60, seconds % 60), Tone::Dim);
    let api = Line::of("API ", Tone::Dim).add(&hints.url, Tone::Hint);
    let gap = width.saturating_sub(line.width() + api.width());
    let line = line.plain(" ".repeat(gap.clamp(2, 40)));
    line.add("API ", Tone::Dim).add(&hints.url, Tone::Hint)
}

fn numbers(dashboard: &Dashboard) -> Line {
    let process = match (dashboard.running, dashboard.deaths) {
        (false, 0) => ("starting".to_owned(), Tone::Warning),
        (false, _) => ("RESTARTING".to_owned(), Tone::Bad),
        (true, 0) => ("running".to_owned(), Tone::Good),
        (true, deaths) => (format!("up, crashed {deaths}×"), Tone::Warning),
    };
    Line::of(format!("{:.0}/s", dashboard.rate()), Tone::Strong)
        .plain(format!("  {} sent  ", dashboard.sent))
        .add(format!("{} handled", dashboard.handled()), Tone::Good)
        .plain(format!("  {} failures  {} retries  process ", dashboard.failed, dashboard.retries))
        .add(process.0, process.1)
}

fn bank(dashboard: &Dashboard) -> Line {
    let line = Line::of("payments ", Tone::Plain);
    let line = if dashboard.is_outage {
        line.add(format!("{HARBOUR} is down"), Tone::Bad).plain("; the other seven banks are up")
    } else {
        line.add("all banks are up", Tone::Good).plain("; a few calls time out")
    };
    match &dashboard.state.fuse {
        Some(why) => line.add(format!("  FUSE BLOWN: {why}"), Tone::Bad),
        None => line,
    }
}

/// Suggests what to do next, or what to watch.
fn advice(dashboard: &Dashboard, hints: &Hints) -> Line {
    let state = &dashboard.state;
    let of_bank = state.groups.iter().find(|group| group.reason == "DEPENDENCY_UNAVAILABLE");
    let dead = of_bank.map_or(0, |group| group.dead);
    let operation = state.operation.as_ref().map(|operation| operation.state.as_str());
    let next = |text: String| Line::of("next: ", Tone::Strong).plain(text);
    let watch = |text: &str| Line::of("watch: ", Tone::Strong).plain(text);
    match (dashboard.is_outage, operation) {
        (false, _) if dashboard.sent < LAST_HEALTHY => {
            watch("orders are handled, and retried when a call times out")
        }
        (true, Some("paused")) => {
            next("press r: the replay paused itself because letters failed again".to_owned())
        }
        (true, _) if dead > 0 => next("press r to repair the bank".to_owned()),
        (true, _) => watch("customers of this bank wait in order; all others are not affected"),
        (false, Some("paused")) => next("press p to resume the replay".to_owned()),
        (false, Some("running")) => watch("the replay, then the letters waiting behind, in order"),
        (false, _) if dead > 0 => next(format!("press p to replay the {dead} dead letters of the bank")),
        (false, _) if state.of("retrying") > 0 => watch("scheduled retries run without intervention"),
        (false, _) => match state.groups.first() {
            Some(group) => {
                let words = format!("{} group {}", hints.command, group.id.get(..11).unwrap_or(&group.id));
                next("only poison letters remain and need a decision: ".to_owned()).add(words, Tone::Hint)
            }
            None => watch("no open letters"),
        },
    }
}

fn heading(text: &str, rest: &str) -> Line {
    Line::of(text, Tone::Strong).add(format!("  {rest}"), Tone::Dim)
}

fn blocked_title(dashboard: &Dashboard) -> Line {
    let state = &dashboard.state;
    let flowing = CUSTOMERS.saturating_sub(state.blocked);
    let (retrying, dead, waiting) = (state.of("retrying"), state.of("dead"), state.of("waiting"));
    let rest =
        format!("{flowing} not affected; letters: {retrying} retrying, {dead} dead, {waiting} waiting");
    let customers = if state.blocked == 1 { "CUSTOMER" } else { "CUSTOMERS" };
    heading(&format!("{} {customers} BLOCKED", state.blocked), &rest)
}

fn customer(blocked: &Blocked) -> Line {
    let tone = if blocked.state == "retrying" { Tone::Warning } else { Tone::Bad };
    let when = match (blocked.state.as_str(), blocked.due_ms) {
        ("retrying", Some(0)) => format!("retry {} now", blocked.attempts + 1),
        ("retrying", Some(due)) => format!("retry {} in {:.1} s", blocked.attempts + 1, due as f64 / 1000.0),
        (state, _) => state.to_owned(),
    };
    let mut line =
        Line::of(format!("  {:<7} ", blocked.customer), Tone::Plain).add(format!("{when:<17} "), tone);
    for (index, id) in blocked.orders.iter().enumerate() {
        let number = orders::number_of(id).map_or_else(|| id.clone(), |number| number.to_string());
        line = match index {
            0 => line.add(number, tone),
            _ => line.add(" ← ", Tone::Dim).plain(number),
        };
    }
    let more = blocked.count.saturating_sub(blocked.orders.len() as u64);
    if more > 0 { line.add(format!(" … {more} more"), Tone::Dim) } else { line }
}

fn group(group: &Group) -> Line {
    let retrying = group.open.saturating_sub(group.dead);
    let tone = if group.dead > 0 { Tone::Bad } else { Tone::Warning };
    let mut line = Line::of(format!("  {:>3} dead", group.dead), tone);
    if retrying > 0 {
        line = line.add(format!(" {retrying} retrying"), Tone::Warning);
    }
    line.add(format!(" {} behind  ", group.behind), Tone::Dim)
        .add(&group.reason, Tone::Strong)
        .plain(format!("  {}", group.message))
}

fn operation(operation: &Operation) -> Line {
    let done = operation.ok + operation.failed_again + operation.skipped;
    let share = if operation.letters == 0 { 1.0 } else { done as f64 / operation.letters as f64 };
    let full = ((share * BAR_WIDTH as f64).round() as usize).min(BAR_WIDTH);
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(BAR_WIDTH - full));
    let tone = match operation.state.as_str() {
        "done" => Tone::Good,
        "paused" => Tone::Warning,
        _ => Tone::Hint,
    };
    let line = Line::of("REPLAY", Tone::Strong)
        .add(format!("  {} {} ", operation.id, operation.state), tone)
        .add(bar, tone)
        .plain(format!(
            " {done}/{}, {} ok, {} failed again",
            operation.letters, operation.ok, operation.failed_again
        ));
    match &operation.note {
        Some(note) => line.add(format!("; {note}"), Tone::Warning),
        None => line,
    }
}

fn log_line(entry: &LogEntry) -> Line {
    let tone = match entry.kind {
        Kind::Good => Tone::Good,
        Kind::Warning => Tone::Warning,
        Kind::Bad => Tone::Bad,
        Kind::Action => Tone::Hint,
    };
    Line::of(format!("  {:>6.1} s ", entry.after.as_secs_f64()), Tone::Dim).add(&entry.text, tone)
}

/// Returns commands to try in a second terminal, with values from the current state.
fn try_next(dashboard: &Dashboard, hints: &Hints) -> Vec<String> {
    let customer = dashboard.state.customers.first().map_or("ada-0", |blocked| blocked.customer.as_str());
    // Users may send orders of their own, with any customer name.
    let is_plain = customer.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let customer = if is_plain { customer } else { "ada-0" };
    let queue = crate::worker::queue();
    [
        "status".to_owned(),
        "groups".to_owned(),
        "ls state:dead".to_owned(),
        format!("seq {queue} {customer}"),
        "tail".to_owned(),
    ]
    .iter()
    .map(|words| format!("{} {words}", hints.command))
    .collect()
}

fn commands(dashboard: &Dashboard, hints: &Hints) -> Vec<Line> {
    let mut line = Line::of("in a second terminal: ", Tone::Dim);
    let commands = try_next(dashboard, hints);
    for (index, command) in commands.iter().enumerate() {
        if index > 0 {
            line = line.add(" · ", Tone::Dim);
        }
        // The program is named once; the others are subcommands.
        let words =
            if index == 0 { command } else { command.strip_prefix(&hints.command).unwrap_or(command).trim() };
        line = line.add(words, Tone::Hint);
    }
    vec![Line::new(), line]
}

fn keys(dashboard: &Dashboard) -> Line {
    let (repair, breaks) = if dashboard.is_outage { (Tone::Key, Tone::Dim) } else { (Tone::Dim, Tone::Key) };
    Line::of(" r ", repair)
        .plain(" repair the bank  ")
        .add(" b ", breaks)
        .plain(" take it down  ")
        .add(" p ", Tone::Key)
        .plain(" replay  ")
        .add(" q ", Tone::Key)
        .plain(" quit")
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::protocol::{Report, State};
    use crate::supervisor::WorkerEvent;

    fn hints() -> Hints {
        Hints { command: "lazaret".to_owned(), url: "http://127.0.0.1:7117".to_owned() }
    }

    /// Returns a dashboard in the middle of the outage.
    fn dashboard(blocked: usize) -> Dashboard {
        let mut dashboard = Dashboard::new();
        dashboard.sent = 200;
        dashboard.is_outage = true;
        let customer = |index: usize| Blocked {
            customer: orders::customer(index as u32 + 1),
            state: if index.is_multiple_of(2) { "retrying" } else { "dead" }.to_owned(),
            reason: "DEPENDENCY_UNAVAILABLE".to_owned(),
            attempts: 2,
            due_ms: index.is_multiple_of(2).then_some(800),
            orders: (1..=12).map(|number| orders::id(number * 100 + index as u32)).collect(),
            count: 20,
        };
        let group = |reason: &str, dead| Group {
            id: "g1_0123456789abcdef".to_owned(),
            reason: reason.to_owned(),
            message: "a message that is longer than the terminal is wide, so that it is cut".to_owned(),
            open: dead + 1,
            dead,
            behind: 12,
        };
        let state = State {
            letters: [("dead".to_owned(), 7), ("retrying".to_owned(), 3)].into(),
            blocked: blocked as u64,
            customers: (0..blocked.min(16)).map(customer).collect(),
            groups: vec![group("DEPENDENCY_UNAVAILABLE", 5), group("CRASHED", 1)],
            operation: Some(Operation {
                id: "op_1".to_owned(),
                state: "running".to_owned(),
                letters: 8,
                ok: 4,
                ..Default::default()
            }),
            ..State::default()
        };
        dashboard.apply(WorkerEvent::Report(Report::Ready { port: 7117 }));
        dashboard.apply(WorkerEvent::Report(Report::State(Box::new(state))));
        for number in 0..50 {
            dashboard.note(Kind::Bad, format!("event {number} of a customer with a long name"));
        }
        dashboard
    }

    #[test]
    fn every_size_of_terminal_is_filled_and_none_is_overrun() {
        for blocked in [0, 3, 30] {
            let dashboard = dashboard(blocked);
            for width in [1, 20, 40, 80, 132, 250] {
                for height in [1, 5, 12, 24, 50, 100] {
                    let lines = view(&dashboard, &hints(), (width, height), false);
                    assert!(lines.len() <= height, "{} lines of {height}", lines.len());
                    for line in &lines {
                        assert!(line.width() <= width, "{width}: {line:?}");
                    }
                    if width >= 80 {
                        assert!(lines.last().unwrap().contains(" q  quit"), "{width}x{height}: {lines:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_80_column_terminal_shows_counts_customers_groups_the_replay_and_the_log() {
        let text = view(&dashboard(30), &hints(), (80, 24), false).join("\n");
        for part in [
            "30 CUSTOMERS BLOCKED",
            "170 not affected",
            "retry 3 in 0.8 s",
            "100 ← 200 ← 300",
            "5 dead 1 retrying 12 behind  DEPENDENCY_UNAVAILABLE",
            "op_1 running [############............] 4/8",
            "event 49 of a customer",
            "Harbour Bank is down",
            "press r to repair the bank",
            "API http://127.0.0.1:7117",
            "lazaret status · groups",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        assert!(view(&dashboard(30), &hints(), (80, 24), true).join("").contains("\x1b[31m"));
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let shown = |blocked, height| view(&dashboard(blocked), &hints(), (80, height), false).join("\n");
        let customers = |text: &str| text.lines().filter(|line| line.contains(" ← ")).count();
        let few = shown(30, 24);
        assert!(few.contains(&format!("  … {} more", 30 - customers(&few))), "{few}");
        // The report lists a limited number of blocked customers.
        let many = shown(30, 100);
        assert!(customers(&many) == 16 && many.contains("  … 14 more"), "{many}");
        let all = shown(3, 50);
        assert!(customers(&all) == 3 && !all.contains("  … "), "{all}");
        let one = shown(1, 24);
        assert!(one.contains("1 CUSTOMER BLOCKED"), "{one}");
    }

    #[test]
    fn the_counts_of_a_long_demo_fit_80_columns() {
        let mut dashboard = dashboard(3);
        (dashboard.sent, dashboard.failed, dashboard.retries, dashboard.deaths) = (9999, 999, 999, 9);
        assert!(numbers(&dashboard).width() <= 80, "{}", numbers(&dashboard).render(200, false));
        dashboard.running = false;
        assert!(numbers(&dashboard).width() <= 80, "{}", numbers(&dashboard).render(200, false));
    }

    #[test]
    fn the_advice_leads_through_the_story() {
        let advised = |change: &dyn Fn(&mut Dashboard)| {
            let mut dashboard = dashboard(3);
            change(&mut dashboard);
            advice(&dashboard, &hints()).render(200, false)
        };
        let operation = |dashboard: &mut Dashboard, state: &str| {
            dashboard.state.operation = Some(Operation { state: state.to_owned(), ..Default::default() });
        };
        assert!(advised(&|dashboard| dashboard.state.operation = None).contains("press r"));
        assert!(
            advised(&|dashboard| operation(dashboard, "paused"))
                .contains("press r: the replay paused itself")
        );
        let repaired = advised(&|dashboard| {
            dashboard.is_outage = false;
            dashboard.state.operation = None;
        });
        assert!(repaired.contains("press p to replay the 5 dead letters"), "{repaired}");
        let poison = advised(&|dashboard| {
            dashboard.is_outage = false;
            operation(dashboard, "done");
            dashboard.state.groups.remove(0);
            dashboard.state.letters.clear();
        });
        assert!(
            poison.contains("only poison letters remain") && poison.contains("lazaret group g1_01234567"),
            "{poison}"
        );
    }
}
