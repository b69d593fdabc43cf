//! Which operations hold letters that a plan had to leave out.

use std::collections::HashSet;

use lazaret_api::{Exclusion, Operation, Plan};

use crate::client::{Client, LetterQuery};

/// How many letters are looked at, of a selection and of each operation (I7).
const LOOKED_AT: usize = 500;

/// The operations that hold letters of this plan, as far as that can be found out. `ids` are the letters that were named. The plan
/// only knows how many are held: who holds them is found among the operations that are not over.
pub(crate) async fn holders(client: &Client, plan: &Plan, ids: Option<&[String]>) -> Vec<String> {
    let is_held = plan.excluded.iter().any(|excluded| excluded.reason == Exclusion::InOperation);
    if !is_held {
        return Vec::new();
    }
    // Without an answer nobody is named.
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
    // Too many letters to find them all: it is one of these.
    if holding.is_empty() { names(&open) } else { holding }
}

async fn selected(client: &Client, plan: &Plan, ids: Option<&[String]>) -> HashSet<String> {
    if let Some(ids) = ids {
        return ids.iter().cloned().collect();
    }
    let Some(query) = plan.query.clone() else { return HashSet::new() };
    let page = client.letters(&LetterQuery { query, after: None, limit: Some(LOOKED_AT) }).await;
    page.map(|page| page.letters.into_iter().map(|letter| letter.id).collect()).unwrap_or_default()
}

async fn holds_any(client: &Client, operation: &Operation, wanted: &HashSet<String>) -> bool {
    let page = client.operation_items(&operation.id, None, Some(LOOKED_AT)).await;
    page.is_ok_and(|page| page.items.iter().any(|item| wanted.contains(&item.letter)))
}
