//! Searches letters as a caller sees them.
//!
//! A store compares exact texts. Where secrets in texts of errors are redacted, a search by a caller who may not reveal them would
//! find them out, letter by letter. For such a caller, the store is not asked about those texts: the server compares them, as they
//! are shown.

use jiff::Timestamp;
use lazaret_api::{Code, Problem, Scope};
use lazaret_core::query::{Query, Term};
use lazaret_core::redaction::TextRules;
use lazaret_core::store::{self, Action, LettersPage, Matches};
use lazaret_core::{Letter, LetterState};

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;

/// The most letters that a page examines, beyond those that the store examines for it.
const SCAN_LIMIT: usize = 1000;
/// The most letters that a count or the selection of a plan examines.
const COUNT_LIMIT: usize = 50_000;
/// The letters that they read at a time, with payloads (I7).
const STEP: usize = 100;

/// A query of a caller.
#[derive(Clone)]
pub(crate) struct Search {
    /// The query as it was asked.
    query: Query,
    /// What the store is asked, if the server compares the rest.
    widened: Option<Query>,
}

impl Search {
    pub(crate) fn new(app: &App, caller: &Caller, query: Query) -> Self {
        let rules = &app.options.redaction;
        let compares_text = |term: &Term| rules.covers_text_term(term);
        let hidden = !caller.identity.may(Scope::Reveal) && query.expr().any_term(&compares_text);
        let widened = hidden.then(|| query.widened(&compares_text));
        Self { query, widened }
    }

    /// The query as it was asked.
    pub(crate) const fn query(&self) -> &Query {
        &self.query
    }

    /// The rules for the texts that the server compares; `None` if it compares none.
    pub(crate) fn hidden_texts<'a>(&self, app: &'a App) -> Option<&'a TextRules> {
        self.widened.as_ref().map(|_| app.options.redaction.texts())
    }

    /// The next letters that match, as [`Triage::find`](store::Triage::find) returns them.
    pub(crate) async fn find(
        &self,
        app: &App,
        after: Option<&str>,
        limit: usize,
    ) -> store::Result<LettersPage> {
        let Some(widened) = &self.widened else { return app.store.find(&self.query, after, limit).await };
        let (mut letters, mut next, mut examined) = (Vec::new(), after.map(str::to_owned), 0);
        loop {
            // Never more than fit: the cursor must point behind the last letter returned.
            let wanted = limit - letters.len();
            let page = app.store.find(widened, next.as_deref(), wanted).await?;
            let read = page.letters.len();
            examined += read;
            let now = app.clock.now();
            letters.extend(page.letters.into_iter().filter(|letter| self.shows(app, letter, now)));
            next = page.next;
            if next.is_none() || letters.len() >= limit || read < wanted || examined >= SCAN_LIMIT {
                return Ok(LettersPage { letters, next });
            }
        }
    }

    /// Counts the letters that match.
    pub(crate) async fn count(&self, app: &App) -> Result<Matches> {
        if self.widened.is_none() {
            return Ok(app.store.count(&self.query).await?);
        }
        let (mut letters, mut examined, mut after) = (0, 0, None);
        loop {
            let page = self.examine(app, after.as_deref()).await?;
            letters += page.matching.len() as u64;
            examined += page.examined;
            after = page.next;
            if after.is_none() || examined >= COUNT_LIMIT {
                return Ok(Matches { letters, exact: after.is_none() });
            }
        }
    }

    /// What a plan of this action selects. A store that may not compare all of the query gets the letters by name, of which there is a
    /// limit.
    pub(crate) async fn selection(&self, app: &App, action: Action) -> Result<store::Selection> {
        if self.widened.is_none() {
            return Ok(store::Selection::Query(self.query.clone()));
        }
        let (mut named, mut examined, mut after) = (Vec::new(), 0, None);
        let most = app.options.limits.named_letters;
        // Letters in quarantine are replayed only when they are asked for, as in the selection of a store.
        let with_quarantined = action != Action::Retry || self.query.names_state();
        loop {
            let page = self.examine(app, after.as_deref()).await?;
            examined += page.examined;
            let mut matching = page.matching;
            matching.retain(|letter| with_quarantined || letter.state != LetterState::Quarantined);
            named.extend(matching.into_iter().map(|letter| (letter.queue, letter.id)));
            after = page.next;
            if named.len() > most || (after.is_some() && examined >= COUNT_LIMIT) {
                let detail = format!(
                    "a selection by redacted texts exceeds the limit of {most} letters, or of {COUNT_LIMIT} examined ones"
                );
                let hint = "select by group, reason or queue, or use a token with the scope reveal";
                let problem = Problem::new(Code::InvalidRequest).at("/query").with_detail(detail);
                return Err(ApiError::from(problem.with_hint(hint)));
            }
            if after.is_none() {
                return Ok(store::Selection::Letters(named));
            }
        }
    }

    /// Examines the next letters.
    async fn examine(&self, app: &App, after: Option<&str>) -> Result<Examined> {
        let page = app.store.find(self.widened.as_ref().unwrap_or(&self.query), after, STEP).await?;
        let (examined, now) = (page.letters.len(), app.clock.now());
        let mut matching = page.letters;
        matching.retain(|letter| self.shows(app, letter, now));
        Ok(Examined { matching, examined, next: page.next })
    }

    /// Returns `true` if a letter matches with its texts as they are shown.
    fn shows(&self, app: &App, letter: &Letter, now: Timestamp) -> bool {
        let rules = &app.options.redaction;
        let (queue, sequence) = (letter.queue.clone(), letter.sequence.clone());
        let mut seen = Letter::new(queue, sequence, letter.message.clone(), now);
        (seen.id, seen.cause) = (letter.id, letter.cause.clone());
        if let Some(cause) = &mut seen.cause {
            rules.texts().apply_to_failure(cause);
        }
        self.query.expr().evaluate(&|term| match rules.covers_text_term(term) {
            true => term.matches(&seen, now),
            false => term.matches(letter, now),
        })
    }
}

/// A page of letters that were examined.
struct Examined {
    matching: Vec<Letter>,
    examined: usize,
    next: Option<String>,
}
