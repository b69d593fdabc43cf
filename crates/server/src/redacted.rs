//! What callers see of what is derived from redacted values: digests, sizes, verdicts and the texts of queries.
//!
//! A derived value that can be compared with a guess is as good as the value itself. So it is shown to callers with the scope `reveal`
//! only, where redaction covers what it is derived from, and digests are sealed by the key of the store for everybody.

use lazaret_api::{AuditEntry, Item, Plan, Scope};
use lazaret_core::failure::MESSAGE_LIMIT;
use lazaret_core::query::Query;
use lazaret_core::redaction::{REDACTED, Redaction};
use lazaret_core::store::{self, DigestKey};

use crate::app::App;
use crate::auth::Caller;

impl App {
    /// Returns `true` if a caller may learn something about exact payloads: sealed digests, sizes, and whether two are equal.
    pub(crate) fn shows_derived(&self, caller: &Caller) -> bool {
        !self.options.redaction.covers_payloads() || caller.identity.may(Scope::Reveal)
    }
}

/// An entry of the audit, as a caller sees it.
pub(crate) fn audit_entry(app: &App, caller: &Caller, entry: &store::AuditEntry) -> AuditEntry {
    let mut shown = AuditEntry::from(entry);
    // The size and the digest of the payloads before and after the edit.
    if entry.action == "edit" && !app.shows_derived(caller) {
        let sides = [&mut shown.before, &mut shown.after];
        sides.into_iter().flatten().for_each(|side| *side = REDACTED.to_owned());
    }
    // Earlier versions wrote the failure of a skipped letter there.
    app.options.redaction.texts().apply_to_cut(&mut shown.why, MESSAGE_LIMIT);
    // The query of an export.
    if entry.action == "reveal" && !caller.identity.may(Scope::Reveal) {
        shown.subject = query_text(&app.options.redaction, shown.subject);
    }
    shown
}

/// A letter of a plan, as a caller sees it.
pub(crate) fn item(app: &App, caller: &Caller, key: &DigestKey, item: &store::Item) -> Item {
    let mut shown = Item::from(item);
    shown.digest = item.digest.filter(|_| app.shows_derived(caller)).map(|digest| key.seal(digest));
    shown
}

/// A plan, as a caller sees it. Its hash covers the digests of its payloads.
pub(crate) fn plan(app: &App, caller: &Caller, key: &DigestKey, mut plan: Plan) -> Plan {
    plan.hash = key.seal_plan_hash(&plan.hash);
    if !caller.identity.may(Scope::Reveal) {
        plan.query = plan.query.map(|text| query_text(&app.options.redaction, text));
    }
    plan
}

/// The text of a query of somebody else, who may have searched for a redacted value, or for a secret in a text.
fn query_text(rules: &Redaction, text: String) -> String {
    match Query::parse(&text) {
        Ok(query) if query.expr().any_term(&|term| rules.covers_term(term)) => REDACTED.to_owned(),
        _ => rules.texts().redact(&text).into_owned(),
    }
}
