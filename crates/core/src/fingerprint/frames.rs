//! The frames of a rendered backtrace that say where a failure comes from.

use super::normalise;

/// The number of frames that a fingerprint includes.
const TOP: usize = 3;

/// Frames that every Rust backtrace passes through, and that say nothing about the failure.
const MACHINERY: [&str; 16] = [
    "std::",
    "core::",
    "alloc::",
    "backtrace::",
    "anyhow::",
    "eyre::",
    "color_eyre::",
    "tokio::",
    "futures_util::",
    "lazaret::",
    "lazaret_core::",
    "lazaret_engine::",
    "rust_begin_unwind",
    "rust_panic",
    "__rust",
    "_rust",
];

/// The top frames without line numbers and addresses: the function nearest to the failure first.
///
/// Reads the backtraces of Rust, Java, JavaScript and Python. Of a text that has no such frames, such as the bare
/// location of a panic, the first line counts.
pub(super) fn top(backtrace: &str) -> Vec<String> {
    let mut frames: Vec<&str> = Vec::new();
    let mut any = false;
    let mut rust = false;
    let mut latest_last = false;
    for line in backtrace.lines().map(str::trim) {
        let frame = if let Some(symbol) = rust_symbol(line) {
            rust = true;
            Some(symbol)
        } else if let Some(called) = line.strip_prefix("at ").filter(|_| !rust) {
            // Rust puts the place of the frame above on such a line; others put the frame itself.
            Some(called.split('(').next().unwrap_or(called).trim_end())
        } else if let Some(place) = line.strip_prefix("File \"") {
            latest_last = true;
            place.rsplit_once(", in ").map(|(_, function)| function)
        } else {
            None
        };
        any |= frame.is_some();
        frames.extend(frame.filter(|frame| !is_machinery(frame)));
        if latest_last && frames.len() > TOP {
            frames.remove(0);
        } else if frames.len() == TOP && !latest_last {
            break;
        }
    }
    if latest_last {
        frames.reverse();
    }
    if !any {
        frames.extend(backtrace.lines().find(|line| !line.trim().is_empty()));
    }
    frames.into_iter().map(normalise).collect()
}

/// The function of a line like `  4: shop::charge::h0123456789abcdef`.
fn rust_symbol(line: &str) -> Option<&str> {
    let (number, symbol) = line.split_once(':')?;
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let symbol = symbol.strip_prefix(' ')?.trim_start();
    // Older backtraces write the address first.
    let symbol = symbol.strip_prefix("0x").and_then(|rest| rest.split_once(" - ")).map_or(symbol, |(_, s)| s);
    let hashed = symbol
        .rsplit_once("::h")
        .filter(|(_, hash)| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
    Some(hashed.map_or(symbol, |(name, _)| name)).filter(|symbol| !symbol.is_empty())
}

fn is_machinery(frame: &str) -> bool {
    let name = frame.trim_start_matches(['<', '&']);
    MACHINERY.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_frames_are_found_in_each_form() {
        let rust = "   0: std::backtrace::Backtrace::create\n             at /rustc/x/library/std/src/backtrace.rs:331:13\n   \
                    1: <anyhow::Error as core::convert::From<E>>::from\n   2: shop::charge::h0123456789abcdef\n             \
                    at ./src/main.rs:5:5\n   3: 0x55aa - shop::retry\n   4: shop::main\n   5: shop::never\n";
        let java = "java.lang.IllegalStateException: boom\n\tat com.shop.Payments.charge(Payments.java:42)\n\t\
                    at com.shop.Main.main(Main.java:7)\n";
        let javascript = "Error: boom\n    at charge (/app/pay.js:3:9)\n    at async main (/app/main.js:1:1)";
        let python = "Traceback (most recent call last):\n  File \"a.py\", line 9, in <module>\n    main()\n  \
                      File \"a.py\", line 7, in main\n    run()\n  File \"a.py\", line 5, in run\n    charge()\n  \
                      File \"pay.py\", line 3, in charge\n    raise ValueError(3)\nValueError: 3\n";
        let table: [(&str, &[&str]); 8] = [
            (rust, &["shop::charge", "shop::retry", "shop::main"]),
            (java, &["com.shop.Payments.charge", "com.shop.Main.main"]),
            (javascript, &["charge", "async main"]),
            (python, &["charge", "run", "main"]),
            ("src/main.rs:5:9", &["src/main.rs:#"]),
            ("   0: std::panic\n   1: core::ops\n", &[]),
            ("", &[]),
            ("\n \n", &[]),
        ];
        for (backtrace, expected) in table {
            assert_eq!(top(backtrace), expected, "{backtrace}");
        }
    }
}
