//! The messages for invalid declarations. Each points at the wrong token and says what to write instead.
//!
//! `TRYBUILD=overwrite cargo test -p lazaret-macros --test messages` rewrites the expected messages.

use std::process::Command;

/// The messages of the macros are compared with every compiler. The compiler's own messages about types
/// differ between versions, so they are compared only with the oldest supported version.
#[test]
fn wrong_declarations_do_not_compile_and_say_why() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    if is_oldest_compiler() {
        cases.compile_fail("tests/ui/types/*.rs");
    } else {
        println!(
            "not run: tests/ui/types, because the messages are those of Rust {}",
            env!("CARGO_PKG_RUST_VERSION")
        );
    }
}

fn is_oldest_compiler() -> bool {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().expect("a compiler built this test");
    String::from_utf8_lossy(&version.stdout)
        .starts_with(&format!("rustc {}.", env!("CARGO_PKG_RUST_VERSION")))
}
