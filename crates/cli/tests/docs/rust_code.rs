//! Rust code of the documentation is compiled, by the documentation tests of a crate that has the page: `lazaret`, mostly.

use std::fs;

use crate::pages::{pages, root};

#[test]
fn pages_with_rust_code_are_compiled() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let libraries =
        crates.filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("src/lib.rs")).ok());
    let tests: String = libraries.collect();
    let mut seen = 0;
    for page in pages() {
        let blocks = page.blocks();
        let rust: Vec<_> = blocks.iter().filter(|block| block.language() == "rust").collect();
        if rust.is_empty() {
            continue;
        }
        seen += 1;
        let included = format!("include_str!(\"../../../docs/{}\")", page.path);
        assert!(tests.contains(&included), "docs/{} has Rust code, and nobody compiles it", page.path);
        for block in rust {
            assert!(!block.info.contains("ignore"), "docs/{}:{} is not compiled", page.path, block.line);
        }
    }
    assert!(seen > 2, "only {seen} pages with Rust code were found");
}
