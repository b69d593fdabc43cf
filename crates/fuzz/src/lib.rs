//! Seeded fuzzing of parsers, on stable Rust.
//!
//! A fuzz target is a test in the crate that owns the parser, so that it reaches private code. It names a corpus of valid inputs and
//! a check. The check fails by an error or a panic. The harness mutates the corpus by the structure of its format, and aborts the
//! process when an input takes too long or too much memory.
//!
//! Every input is a pure function of its seed. A failure prints the seed and a shrunk input.
//!
//! ```
//! use lazaret_fuzz::{Fuzz, Shape};
//!
//! Fuzz::target("numbers").corpus(["1", "42"]).words(["-", "e9"]).shape(Shape::Text).run(|input| {
//!     let Ok(text) = std::str::from_utf8(input) else { return Ok(()) };
//!     let Ok(number) = text.parse::<i64>() else { return Ok(()) };
//!     match number.to_string().parse::<i64>() {
//!         Ok(again) if number == again => Ok(()),
//!         other => Err(format!("{number} became {other:?}")),
//!     }
//! });
//! ```
//!
//! `cargo test` runs every target with the same few seeds. `cargo xtask fuzz` runs them longer, from another seed each time. It sets:
//!
//! | variable | meaning |
//! |---|---|
//! | `LAZARET_FUZZ_SECONDS` | run each target for this long |
//! | `LAZARET_FUZZ_SEED` | start with this seed |
//! | `LAZARET_FUZZ_COUNT` | run this many inputs |
//! | `LAZARET_FUZZ_PROGRESS` | write the current seed to this file, to find an input that kills the process |

mod json;
mod mutate;
mod random;
mod shrink;
mod target;
mod watch;

pub use mutate::{INPUT_LIMIT, Shape};
pub use random::Random;
pub use target::Fuzz;
