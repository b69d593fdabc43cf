//! What the viewer sees: the board as lines that fit the terminal. Pure, so that every size can be tried.

use crate::board::{Board, Kind};
use crate::orders::{self, CUSTOMERS, HARBOUR, LAST_HEALTHY};
use crate::paint::{Line, Tone};
use crate::report::{Blocked, Group, Operation};

/// How many rows the parts take that are always there: title, numbers, bank, advice, three headings, keys,
/// and an empty line.
const FIXED: usize = 9;
/// How wide the bar of a replay is.
const BAR: usize = 24;

/// How the viewer can go on by himself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    /// How this program is called, with the address where it is not the usual one.
    pub(crate) command: String,
    /// The address of the API.
    pub(crate) url: String,
}

/// The lines for a terminal of this size.
pub(crate) fn view(
    board: &Board,
    hints: &Hints,
    (width, height): (usize, usize),
    color: bool,
) -> Vec<String> {
    let mut lines =
        vec![title(board, hints, width), numbers(board), bank(board), advice(board, hints), Line::new()];
    let commands = commands(board, hints);
    let replay: Option<Line> = board.state.operation.as_ref().map(operation);
    let room = height.saturating_sub(FIXED + commands.len() + replay.iter().count());
    // Groups first: they are few and say most. Then the customers, and what happened with the rest.
    let state = &board.state;
    let groups = rows(state.groups.iter().map(group), state.groups.len(), (room / 3).min(6));
    let blocked = usize::try_from(state.blocked).unwrap_or(usize::MAX).max(state.customers.len());
    let customers = rows(state.customers.iter().map(customer), blocked, (room - groups.len()) / 2);
    let events = room.saturating_sub(groups.len() + customers.len());
    lines.push(blocked_title(board));
    lines.extend(customers);
    lines.push(heading("DEAD LETTERS BY CAUSE", ""));
    lines.extend(groups);
    lines.extend(replay);
    lines.push(heading("WHAT HAPPENED", ""));
    let happened: Vec<Line> = board.happened().rev().take(events).map(event).collect();
    let missing = events.saturating_sub(happened.len());
    lines.extend(happened.into_iter().rev());
    lines.extend(std::iter::repeat_n(Line::new(), missing));
    lines.extend(commands);
    lines.push(keys(board));
    // A terminal that is too small keeps the top, and the keys.
    if lines.len() > height && height > 0 {
        let keys = lines.pop();
        lines.truncate(height - 1);
        lines.extend(keys);
    }
    lines.iter().map(|line| line.render(width, color)).collect()
}

/// As many of these lines as there is room for. Where that is not all, the last one says how many there are besides.
fn rows(lines: impl ExactSizeIterator<Item = Line>, all: usize, room: usize) -> Vec<Line> {
    if all <= room && all <= lines.len() {
        return lines.collect();
    }
    let shown = lines.len().min(room.saturating_sub(1));
    let more = (room > 0).then(|| Line::of(format!("  … {} more", all - shown), Tone::Dim));
    lines.take(shown).chain(more).collect()
}

fn title(board: &Board, hints: &Hints, width: usize) -> Line {
    let seconds = board.elapsed().as_secs();
    let line = Line::of("Lazaret", Tone::Strong)
        .plain(format!("  orders of {CUSTOMERS} customers  "))
        .add(format!("{:02}:{:02}", seconds / 60, seconds % 60), Tone::Dim);
    let api = Line::of("API ", Tone::Dim).add(&hints.url, Tone::Hint);
    let gap = width.saturating_sub(line.width() + api.width());
    let line = line.plain(" ".repeat(gap.clamp(2, 40)));
    line.add("API ", Tone::Dim).add(&hints.url, Tone::Hint)
}

fn numbers(board: &Board) -> Line {
    let process = match (board.running, board.deaths) {
        (false, 0) => ("starts".to_owned(), Tone::Warning),
        (false, _) => ("DIED, restarts".to_owned(), Tone::Bad),
        (true, 0) => ("runs".to_owned(), Tone::Good),
        (true, deaths) => (format!("runs, died {deaths}×"), Tone::Warning),
    };
    Line::of(format!("{:.0}/s", board.rate()), Tone::Strong)
        .plain(format!("  {} sent  ", board.sent))
        .add(format!("{} handled", board.handled()), Tone::Good)
        .plain(format!("  {} failures  {} retries  process ", board.failed, board.retries))
        .add(process.0, process.1)
}

fn bank(board: &Board) -> Line {
    let line = Line::of("payments ", Tone::Plain);
    let line = if board.is_outage {
        line.add(format!("{HARBOUR} does not answer"), Tone::Bad).plain("; the other seven banks do")
    } else {
        line.add("all banks answer", Tone::Good).plain(", a few calls take too long")
    };
    match &board.state.fuse {
        Some(why) => line.add(format!("  FUSE BLOWN: {why}"), Tone::Bad),
        None => line,
    }
}

/// What to do next, or to look at.
fn advice(board: &Board, hints: &Hints) -> Line {
    let state = &board.state;
    let of_bank = state.groups.iter().find(|group| group.reason == "DEPENDENCY_UNAVAILABLE");
    let dead = of_bank.map_or(0, |group| group.dead);
    let operation = state.operation.as_ref().map(|operation| operation.state.as_str());
    let next = |text: String| Line::of("next: ", Tone::Strong).plain(text);
    let watch = |text: &str| Line::of("watch: ", Tone::Strong).plain(text);
    match (board.is_outage, operation) {
        (false, _) if board.sent < LAST_HEALTHY => {
            watch("orders are handled, and retried when a call takes too long")
        }
        (true, Some("paused")) => {
            next("press r: the replay has stopped by itself, because letters failed again".to_owned())
        }
        (true, _) if dead > 0 => next("press r to repair the bank".to_owned()),
        (true, _) => watch("the customers of this bank wait, in order; everybody else flows on"),
        (false, Some("paused")) => next("press p, and the replay goes on".to_owned()),
        (false, Some("running")) => watch("the replay, and those who waited behind, in order"),
        (false, _) if dead > 0 => next(format!("press p to replay the {dead} dead letters of the bank")),
        (false, _) if state.of("retrying") > 0 => watch("retries that are due go on by themselves"),
        (false, _) => match state.groups.first() {
            Some(group) => {
                let words = format!("{} group {}", hints.command, group.id.get(..11).unwrap_or(&group.id));
                next("what is left is poison, and a person has to decide: ".to_owned()).add(words, Tone::Hint)
            }
            None => watch("all is well"),
        },
    }
}

fn heading(text: &str, rest: &str) -> Line {
    Line::of(text, Tone::Strong).add(format!("  {rest}"), Tone::Dim)
}

fn blocked_title(board: &Board) -> Line {
    let state = &board.state;
    let flowing = CUSTOMERS.saturating_sub(state.blocked);
    let (retrying, dead, waiting) = (state.of("retrying"), state.of("dead"), state.of("waiting"));
    let rest = format!("{flowing} flow on; letters: {retrying} retrying, {dead} dead, {waiting} behind them");
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
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full));
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

fn event(happened: &crate::board::Happened) -> Line {
    let tone = match happened.kind {
        Kind::Good => Tone::Good,
        Kind::Warning => Tone::Warning,
        Kind::Bad => Tone::Bad,
        Kind::Done => Tone::Hint,
    };
    Line::of(format!("  {:>6.1} s ", happened.after.as_secs_f64()), Tone::Dim).add(&happened.text, tone)
}

/// What to try in a second terminal: with what is there to be seen now.
fn try_next(board: &Board, hints: &Hints) -> Vec<String> {
    let customer = board.state.customers.first().map_or("ada-0", |blocked| blocked.customer.as_str());
    // A viewer may send orders of his own, of whatever name.
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

fn commands(board: &Board, hints: &Hints) -> Vec<Line> {
    let mut line = Line::of("in a second terminal: ", Tone::Dim);
    let commands = try_next(board, hints);
    for (index, command) in commands.iter().enumerate() {
        if index > 0 {
            line = line.add(" · ", Tone::Dim);
        }
        // The program is named once; what follows are its words.
        let words =
            if index == 0 { command } else { command.strip_prefix(&hints.command).unwrap_or(command).trim() };
        line = line.add(words, Tone::Hint);
    }
    vec![Line::new(), line]
}

fn keys(board: &Board) -> Line {
    let (repair, breaks) = if board.is_outage { (Tone::Key, Tone::Dim) } else { (Tone::Dim, Tone::Key) };
    Line::of(" r ", repair)
        .plain(" repair the bank  ")
        .add(" b ", breaks)
        .plain(" break it  ")
        .add(" p ", Tone::Key)
        .plain(" replay  ")
        .add(" q ", Tone::Key)
        .plain(" quit")
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::report::{Report, State};
    use crate::supervisor::News;

    fn hints() -> Hints {
        Hints { command: "lazaret".to_owned(), url: "http://127.0.0.1:7117".to_owned() }
    }

    /// A board in the middle of the outage.
    fn board(blocked: usize) -> Board {
        let mut board = Board::new();
        board.sent = 200;
        board.is_outage = true;
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
            message: "something that takes quite a few words to be told in full".to_owned(),
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
        board.hear(News::Report(Report::Ready { port: 7117 }));
        board.hear(News::Report(Report::State(Box::new(state))));
        for number in 0..50 {
            board.note(Kind::Bad, format!("thing {number} happened to somebody with a long name"));
        }
        board
    }

    #[test]
    fn every_size_of_terminal_is_filled_and_none_is_overrun() {
        for blocked in [0, 3, 30] {
            let board = board(blocked);
            for width in [1, 20, 40, 80, 132, 250] {
                for height in [1, 5, 12, 24, 50, 100] {
                    let lines = view(&board, &hints(), (width, height), false);
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
    fn a_usual_terminal_shows_numbers_customers_groups_the_replay_and_what_happened() {
        let text = view(&board(30), &hints(), (80, 24), false).join("\n");
        for part in [
            "30 CUSTOMERS BLOCKED",
            "170 flow on",
            "retry 3 in 0.8 s",
            "100 ← 200 ← 300",
            "5 dead 1 retrying 12 behind  DEPENDENCY_UNAVAILABLE",
            "op_1 running [############............] 4/8",
            "thing 49 happened",
            "Harbour Bank does not answer",
            "press r to repair the bank",
            "API http://127.0.0.1:7117",
            "lazaret status · groups",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        assert!(view(&board(30), &hints(), (80, 24), true).join("").contains("\x1b[31m"));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let shown = |blocked, height| view(&board(blocked), &hints(), (80, height), false).join("\n");
        let customers = |text: &str| text.lines().filter(|line| line.contains(" ← ")).count();
        let few = shown(30, 24);
        assert!(few.contains(&format!("  … {} more", 30 - customers(&few))), "{few}");
        // Not all of those that are blocked are told of, however much room there is.
        let many = shown(30, 100);
        assert!(customers(&many) == 16 && many.contains("  … 14 more"), "{many}");
        let all = shown(3, 50);
        assert!(customers(&all) == 3 && !all.contains("  … "), "{all}");
        let one = shown(1, 24);
        assert!(one.contains("1 CUSTOMER BLOCKED"), "{one}");
    }

    #[test]
    fn the_numbers_of_a_long_demo_fit_a_usual_terminal() {
        let mut board = board(3);
        (board.sent, board.failed, board.retries, board.deaths) = (9999, 999, 999, 9);
        assert!(numbers(&board).width() <= 80, "{}", numbers(&board).render(200, false));
        board.running = false;
        assert!(numbers(&board).width() <= 80, "{}", numbers(&board).render(200, false));
    }

    #[test]
    fn the_advice_leads_through_the_story() {
        let told = |change: &dyn Fn(&mut Board)| {
            let mut board = board(3);
            change(&mut board);
            advice(&board, &hints()).render(200, false)
        };
        let operation = |board: &mut Board, state: &str| {
            board.state.operation = Some(Operation { state: state.to_owned(), ..Default::default() });
        };
        assert!(told(&|board| board.state.operation = None).contains("press r"));
        assert!(told(&|board| operation(board, "paused")).contains("press r: the replay has stopped"));
        let repaired = told(&|board| {
            board.is_outage = false;
            board.state.operation = None;
        });
        assert!(repaired.contains("press p to replay the 5 dead letters"), "{repaired}");
        let poison = told(&|board| {
            board.is_outage = false;
            operation(board, "done");
            board.state.groups.remove(0);
            board.state.letters.clear();
        });
        assert!(
            poison.contains("what is left is poison") && poison.contains("lazaret group g1_01234567"),
            "{poison}"
        );
    }
}
