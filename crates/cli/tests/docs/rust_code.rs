//! Rust code of the documentation is compiled: by the documentation tests of a crate that includes the page (`lazaret`,
//! mostly), or because it is a literal part of a file that is compiled, which a remark above the block names.

use std::fs;

use crate::pages::{pages, root};

#[test]
fn pages_with_rust_code_are_compiled() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let libraries =
        crates.filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("src/lib.rs")).ok());
    let tests: String = libraries.collect();
    let (mut included, mut quoted) = (0, 0);
    for page in pages() {
        for block in page.blocks().iter().filter(|block| block.language() == "rust") {
            let place = format!("docs/{}:{}", page.path, block.line);
            if let Some(path) = block.remark.as_deref().and_then(|remark| remark.strip_prefix("from ")) {
                let file = fs::read_to_string(root().join(path)).unwrap();
                assert!(file.contains(&block.text), "{place} is no longer what {path} says");
                quoted += 1;
                continue;
            }
            let include = format!("include_str!(\"../../../docs/{}\")", page.path);
            assert!(tests.contains(&include), "{place} has Rust code, and nobody compiles it");
            assert!(!block.info.contains("ignore"), "{place} is not compiled");
            included += 1;
        }
    }
    assert!(
        included > 5 && quoted > 2,
        "{included} blocks are compiled with their page, {quoted} are quoted"
    );
}
