//! The guide lists each index of the tables, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{TestSchema, server};

/// Those of the schema, without the ones that keep a primary or unique key.
const INDEXES: &str = "SELECT i.indexname::text FROM pg_indexes i WHERE i.schemaname = $1 AND NOT EXISTS (
    SELECT 1 FROM pg_constraint c JOIN pg_class x ON x.oid = c.conindid JOIN pg_namespace n ON n.oid = x.relnamespace
    WHERE n.nspname = i.schemaname AND x.relname = i.indexname)";

/// The names in the first column of the table in the section "Indexes".
fn listed() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/postgres.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let (_, section) = guide.split_once("\n## Indexes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let name = |line: &str| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned());
    section.lines().filter_map(name).collect()
}

#[tokio::test]
async fn the_guide_lists_each_index_with_what_it_serves() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    drop(test.open(None).await);
    let rows = test.client().await.query(INDEXES, &[&test.name]).await.unwrap();
    let there: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let listed = listed();
    let names: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(names.len(), listed.len(), "each once: {listed:?}");
    assert_eq!(names, there);
}
