//! Every configuration in the documentation is valid.

use lazaret_config::{Env, check};

use crate::pages::{Block, pages};

/// The rest of a complete configuration around a fragment.
const CONSUMER: &str =
    "consumers: { shown: { source: { inbox: {} }, handler: { command: { program: [x] } } } }\n";

/// An environment in which every variable is set.
struct AllSet;

impl Env for AllSet {
    fn lookup(&self, _name: &str) -> Option<String> {
        Some("set".to_owned())
    }
}

/// Returns whether it is a file of another program: the first line names it, as in `# prometheus.yml`.
fn is_of_others(block: &Block) -> bool {
    let name = block.text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let is_file = !name.contains(' ') && (name.ends_with(".yml") || name.ends_with(".yaml"));
    is_file && !name.starts_with("lazaret")
}

/// Returns the complete configuration of a block, which may be a fragment.
fn whole(block: &Block) -> String {
    if block.text.lines().any(|line| line.starts_with("consumers:")) {
        return block.text.clone();
    }
    format!("{}{CONSUMER}", block.text)
}

#[test]
fn configurations_can_be_used() {
    let mut tried = 0;
    for page in pages() {
        for block in page.blocks().iter().filter(|block| block.language() == "yaml") {
            // Secrets and hashes are placeholders.
            if block.text.contains('…') || is_of_others(block) {
                continue;
            }
            tried += 1;
            let name = format!("docs/{}:{}", page.path, block.line);
            let checked = check(&name, whole(block).as_bytes(), &AllSet);
            assert!(checked.config.is_some(), "{}", checked.diagnostics.plain());
        }
    }
    assert!(tried >= 5, "only {tried} configurations were found");
}

#[test]
fn json_can_be_read() {
    for page in pages() {
        for block in page.blocks().iter().filter(|block| block.language() == "json") {
            for value in serde_json::Deserializer::from_str(&block.text).into_iter::<serde_json::Value>() {
                assert!(value.is_ok(), "docs/{}:{}: {value:?}", page.path, block.line);
            }
        }
    }
}
