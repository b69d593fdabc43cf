//! Fills the screen of the demo from its state.

use std::time::Duration;

use lazaret_tui::{
    BlockedKey, Group, HeadState, KeyHint, LogEntry, Operation, Screen, Section, StyledLine, Tone,
};

use crate::dashboard::{self, Dashboard, Kind};
use crate::orders::{self, CUSTOMERS, HARBOUR, LAST_HEALTHY};
use crate::protocol;

/// Parts of suggested commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    /// How the user calls this program, including the address unless it is the default.
    pub(crate) command: String,
    /// The address of the console.
    pub(crate) console: String,
}

/// Returns the screen for the current state.
pub(crate) fn view(dashboard: &Dashboard, hints: &Hints) -> Screen {
    let state = &dashboard.state;
    let log = dashboard.log().map(log_entry).collect();
    Screen {
        title: title(dashboard),
        address: StyledLine::of("console ", Tone::Dim).add(&hints.console, Tone::Hint),
        summary: vec![numbers(dashboard), bank(dashboard), advice(dashboard, hints)],
        blocked: blocked(state),
        groups: Section::new("DEAD LETTERS BY CAUSE", state.groups.iter().map(group).collect()),
        operations: Section::new("REPLAY", state.operation.iter().map(operation).collect()),
        log: Section::new("LOG", log),
        footer: commands(dashboard, hints),
        keys: keys(dashboard),
        ..Screen::default()
    }
}

fn title(dashboard: &Dashboard) -> StyledLine {
    let seconds = dashboard.elapsed().as_secs();
    StyledLine::of("Lazaret", Tone::Strong)
        .plain(format!("  orders of {CUSTOMERS} customers  "))
        .add(format!("{:02}:{:02}", seconds / 60, seconds % 60), Tone::Dim)
}

fn numbers(dashboard: &Dashboard) -> StyledLine {
    let process = match (dashboard.running, dashboard.deaths) {
        (false, 0) => ("starting".to_owned(), Tone::Warning),
        (false, _) => ("RESTARTING".to_owned(), Tone::Bad),
        (true, 0) => ("running".to_owned(), Tone::Good),
        (true, deaths) => (format!("up, crashed {deaths}×"), Tone::Warning),
    };
    StyledLine::of(format!("{:.0}/s", dashboard.rate()), Tone::Strong)
        .plain(format!("  {} sent  ", dashboard.sent))
        .add(format!("{} handled", dashboard.handled()), Tone::Good)
        .plain(format!("  {} failures  {} retries  process ", dashboard.failed, dashboard.retries))
        .add(process.0, process.1)
}

fn bank(dashboard: &Dashboard) -> StyledLine {
    let line = StyledLine::of("payments ", Tone::Plain);
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
fn advice(dashboard: &Dashboard, hints: &Hints) -> StyledLine {
    let state = &dashboard.state;
    let of_bank = state.groups.iter().find(|group| group.reason == "DEPENDENCY_UNAVAILABLE");
    let dead = of_bank.map_or(0, |group| group.dead);
    let operation = state.operation.as_ref().map(|operation| operation.state.as_str());
    let next = |text: String| StyledLine::of("next: ", Tone::Strong).plain(text);
    let watch = |text: &str| StyledLine::of("watch: ", Tone::Strong).plain(text);
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

fn blocked(state: &protocol::State) -> Section<BlockedKey> {
    let flowing = CUSTOMERS.saturating_sub(state.blocked);
    let (retrying, dead, waiting) = (state.of("retrying"), state.of("dead"), state.of("waiting"));
    let customers = if state.blocked == 1 { "CUSTOMER" } else { "CUSTOMERS" };
    Section::new(
        format!("{} {customers} BLOCKED", state.blocked),
        state.customers.iter().map(customer).collect(),
    )
    .note(format!("{flowing} not affected; letters: {retrying} retrying, {dead} dead, {waiting} waiting"))
    .total(state.blocked)
}

fn customer(blocked: &protocol::Blocked) -> BlockedKey {
    let head = match blocked.state.as_str() {
        "retrying" => HeadState::Retrying {
            attempt: blocked.attempts + 1,
            due_in: blocked.due_ms.map(Duration::from_millis),
        },
        state => HeadState::Held(state.to_owned()),
    };
    let number = |id: &String| orders::number_of(id).map_or_else(|| id.clone(), |number| number.to_string());
    BlockedKey {
        name: blocked.customer.clone(),
        head,
        lane: blocked.orders.iter().map(number).collect(),
        letters: blocked.count,
        is_paused: false,
    }
}

fn group(group: &protocol::Group) -> Group {
    Group {
        dead: group.dead,
        retrying: group.open.saturating_sub(group.dead),
        held: 0,
        behind: group.behind,
        reason: group.reason.clone(),
        message: group.message.clone(),
    }
}

fn operation(operation: &protocol::Operation) -> Operation {
    Operation {
        id: operation.id.clone(),
        state: operation.state.clone(),
        tone: match operation.state.as_str() {
            "done" => Tone::Good,
            "paused" => Tone::Warning,
            _ => Tone::Hint,
        },
        letters: operation.letters,
        ok: operation.ok,
        failed_again: operation.failed_again,
        skipped: operation.skipped,
        note: operation.note.clone(),
    }
}

fn log_entry(entry: &dashboard::LogEntry) -> LogEntry {
    let tone = match entry.kind {
        Kind::Good => Tone::Good,
        Kind::Warning => Tone::Warning,
        Kind::Bad => Tone::Bad,
        Kind::Action => Tone::Hint,
    };
    LogEntry { at: format!("{:>6.1} s", entry.after.as_secs_f64()), text: entry.text.clone(), tone }
}

/// Returns commands to try in a second terminal, with values from the current state.
fn try_next(dashboard: &Dashboard, hints: &Hints) -> Vec<String> {
    let customer = dashboard.state.customers.first().map_or("ada-0", |blocked| blocked.customer.as_str());
    // Users may send their own orders, with any customer name.
    let is_plain = customer.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let customer = if is_plain { customer } else { "ada-0" };
    let queue = crate::worker::queue();
    [
        "top".to_owned(),
        "groups".to_owned(),
        "ls state:dead".to_owned(),
        format!("seq {queue} {customer}"),
        "tail".to_owned(),
    ]
    .iter()
    .map(|words| format!("{} {words}", hints.command))
    .collect()
}

fn commands(dashboard: &Dashboard, hints: &Hints) -> Vec<StyledLine> {
    let mut line = StyledLine::of("in a second terminal: ", Tone::Dim);
    let commands = try_next(dashboard, hints);
    for (index, command) in commands.iter().enumerate() {
        if index > 0 {
            line = line.add(" · ", Tone::Dim);
        }
        // Only the first command includes the name of the program. The others show their subcommands.
        let words =
            if index == 0 { command } else { command.strip_prefix(&hints.command).unwrap_or(command).trim() };
        line = line.add(words, Tone::Hint);
    }
    vec![StyledLine::new(), line]
}

fn keys(dashboard: &Dashboard) -> Vec<KeyHint> {
    vec![
        KeyHint::new("r", "repair the bank").active(dashboard.is_outage),
        KeyHint::new("b", "take it down").active(!dashboard.is_outage),
        KeyHint::new("p", "replay"),
        KeyHint::new("q", "quit"),
    ]
}

#[cfg(test)]
mod tests {
    use lazaret_tui::frame_text;

    use super::*;
    use crate::protocol::{Report, State};
    use crate::supervisor::WorkerEvent;

    fn hints() -> Hints {
        Hints { command: "lazaret".to_owned(), console: "http://127.0.0.1:7117/console/".to_owned() }
    }

    /// Returns a dashboard in the middle of the outage.
    fn dashboard(blocked: usize) -> Dashboard {
        let mut dashboard = Dashboard::new();
        dashboard.sent = 200;
        dashboard.is_outage = true;
        let customer = |index: usize| protocol::Blocked {
            customer: orders::customer(index as u32 + 1),
            state: if index.is_multiple_of(2) { "retrying" } else { "dead" }.to_owned(),
            reason: "DEPENDENCY_UNAVAILABLE".to_owned(),
            attempts: 2,
            due_ms: index.is_multiple_of(2).then_some(800),
            orders: (1..=12).map(|number| orders::id(number * 100 + index as u32)).collect(),
            count: 20,
        };
        let group = |reason: &str, dead| protocol::Group {
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
            operation: Some(protocol::Operation {
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

    fn text(blocked: usize) -> String {
        frame_text(&view(&dashboard(blocked), &hints()), 80)
    }

    #[test]
    fn an_80_column_terminal_shows_counts_customers_groups_the_replay_and_the_log() {
        let text = text(30);
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
            "console http://127.0.0.1:7117/console/",
            "lazaret top · groups",
            " q  quit",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn customers_that_are_not_reported_are_counted() {
        let customers = |text: &str| text.lines().filter(|line| line.contains(" ← ")).count();
        let many = text(30);
        assert!(customers(&many) == 16 && many.contains("  … 14 more"), "{many}");
        let all = text(3);
        assert!(customers(&all) == 3 && !all.contains("  … "), "{all}");
        let one = text(1);
        assert!(one.contains("1 CUSTOMER BLOCKED"), "{one}");
    }

    #[test]
    fn the_counts_of_a_long_demo_fit_80_columns() {
        let mut dashboard = dashboard(3);
        (dashboard.sent, dashboard.failed, dashboard.retries, dashboard.deaths) = (9999, 999, 999, 9);
        assert!(numbers(&dashboard).width() <= 80, "{}", numbers(&dashboard).text());
        dashboard.running = false;
        assert!(numbers(&dashboard).width() <= 80, "{}", numbers(&dashboard).text());
    }

    #[test]
    fn the_advice_leads_through_the_story() {
        let advised = |change: &dyn Fn(&mut Dashboard)| {
            let mut dashboard = dashboard(3);
            change(&mut dashboard);
            advice(&dashboard, &hints()).text()
        };
        let operation = |dashboard: &mut Dashboard, state: &str| {
            dashboard.state.operation =
                Some(protocol::Operation { state: state.to_owned(), ..Default::default() });
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
