//! Finds the operations that hold the letters that a plan excludes.

use std::collections::HashSet;

use lazaret_api::{Exclusion, Operation, Plan};

use crate::client::{Client, LetterQuery};

/// The most letters that are inspected, of a selection and of each operation (I7).
const MAX_INSPECTED: usize = 500;

/// Returns the operations that hold letters of this plan, as far as they can be determined. `ids` are the selected letters. A plan
/// counts the held letters only, so the holders are searched among the unfinished operations.
pub(crate) async fn holders(client: &Client, plan: &Plan, ids: Option<&[String]>) -> Vec<String> {
    let is_held = plan.excluded.iter().any(|excluded| excluded.reason == Exclusion::InOperation);
    if !is_held {
        return Vec::new();
    }
    // This is a hint: without the status there is none.
    let Ok(status) = client.status().await else { return Vec::new() };
    let open: Vec<Operation> =
        status.operations.into_iter().filter(|operation| operation.plan != plan.id).collect();
    let names = |operations: &[Operation]| operations.iter().map(|operation| operation.id.clone()).collect();
    if open.len() < 2 {
        return names(&open);
    }
    let wanted = selected(client, plan, ids).await;
    let mut holding = Vec::new();
    for operation in &open {
        if holds_any(client, operation, &wanted).await {
            holding.push(operation.id.clone());
        }
    }
    // The letters are beyond the inspected pages: any of these may hold them.
    if holding.is_empty() { names(&open) } else { holding }
}

async fn selected(client: &Client, plan: &Plan, ids: Option<&[String]>) -> HashSet<String> {
    if let Some(ids) = ids {
        return ids.iter().cloned().collect();
    }
    let Some(query) = plan.query.clone() else { return HashSet::new() };
    let page = client.letters(&LetterQuery { query, after: None, limit: Some(MAX_INSPECTED) }).await;
    page.map(|page| page.letters.into_iter().map(|letter| letter.id).collect()).unwrap_or_default()
}

async fn holds_any(client: &Client, operation: &Operation, wanted: &HashSet<String>) -> bool {
    let page = client.operation_items(&operation.id, None, Some(MAX_INSPECTED)).await;
    page.is_ok_and(|page| page.items.iter().any(|item| wanted.contains(&item.letter)))
}
