//! A panic restores the terminal before its message is printed. On the alternate screen, the message
//! would be lost.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::io::Read;

use lazaret_tui::Terminal;
use portable_pty::{CommandBuilder, MasterPty, PtySize, native_pty_system};

/// The environment variable that is set for the panicking process.
const CHILD: &str = "LAZARET_TUI_TEST_CHILD";

fn modes(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

#[test]
fn a_panic_restores_the_terminal_and_its_message_is_seen() {
    if std::env::var_os(CHILD).is_some() {
        let (_terminal, _events) = Terminal::open(false).unwrap();
        panic!("out of order");
    }
    // Runs this test a second time, on a pseudoterminal.
    let pair = native_pty_system().openpty(PtySize::default()).unwrap();
    let before = modes(&*pair.master);
    let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_panic_restores_the_terminal_and_its_message_is_seen", "--nocapture"]);
    command.env(CHILD, "1");
    command.env("TERM", "xterm-256color");
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let mut shown = Vec::new();
    // Reading from a closed pseudoterminal ends with an error.
    let _ = pair.master.try_clone_reader().unwrap().read_to_end(&mut shown);
    assert!(!child.wait().unwrap().success());
    let shown = String::from_utf8_lossy(&shown);
    let (during, after) = shown.rsplit_once("\u{1b}[?25h\u{1b}[?1049l").expect("the screen is restored");
    assert!(during.contains("\u{1b}[?1049h") && after.contains("out of order"), "{shown:?}");
    assert_eq!(modes(&*pair.master), before);
}
