//! Selects the letters of a command: by query or by id.

use std::io::{self, BufRead};

use clap::Args;
use lazaret_api::{Letter, Selection};

use crate::client::{Client, LetterQuery};
use crate::error::{Error, Result};
use crate::hints::{quoted, short_id};

/// The length of a complete letter id.
const ID_LENGTH: usize = 36;
/// The length of the shortest id prefix.
const MIN_PREFIX: usize = 4;

/// A query in one or more arguments.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Query {
    /// Select letters with a query, such as state:dead reason:TIMEOUT age:>1h
    #[arg(value_name = "QUERY")]
    pub words: Vec<String>,
}

impl Query {
    /// Joins the arguments into one query.
    pub(crate) fn text(&self) -> String {
        self.words.join(" ").trim().to_owned()
    }
}

/// A selection of letters.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Letters {
    #[command(flatten)]
    pub query: Query,

    /// Select letters by id or id prefix; - reads one per line from standard input
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',', conflicts_with_all = ["words", "all"])]
    pub ids: Vec<String>,

    /// Select every open letter
    #[arg(long, conflicts_with = "words")]
    pub all: bool,
}

impl Letters {
    /// Returns the selection with complete ids.
    ///
    /// # Errors
    /// When nothing is selected, or an id is not found.
    pub(crate) async fn selection(&self, client: &Client) -> Result<Selection> {
        if !self.ids.is_empty() {
            let ids = resolve_all(client, named(&self.ids)?).await?;
            return Ok(Selection { ids: Some(ids), ..Selection::default() });
        }
        let query = self.query.text();
        self.check()?;
        Ok(Selection { query: Some(query), all: self.all, ..Selection::default() })
    }

    /// Checks that something is selected, before any request is sent.
    ///
    /// # Errors
    /// When nothing is selected.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ids.is_empty() && self.query.text().is_empty() && !self.all {
            let hint = "pass a query or --ids, or --all to select every letter";
            return Err(Error::usage_hint("no letters selected", hint));
        }
        Ok(())
    }
}

/// Returns the ids, from the arguments or from standard input.
fn named(ids: &[String]) -> Result<Vec<String>> {
    if ids != ["-"] {
        return Ok(ids.to_vec());
    }
    let mut read = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::io("cannot read ids from standard input", error))?;
        read.extend(id_of_line(line.trim())?);
    }
    if read.is_empty() {
        return Err(Error::usage("no ids on standard input"));
    }
    Ok(read)
}

/// Parses the id on a line: the line itself, or the `id` of a JSON letter as `ls -o jsonl` prints it.
fn id_of_line(line: &str) -> Result<Option<String>> {
    if line.is_empty() || !line.starts_with('{') {
        return Ok(Some(line.to_owned()).filter(|line| !line.is_empty()));
    }
    let value: serde_json::Value = serde_json::from_str(line)
        .map_err(|error| Error::usage(format!("invalid JSON on standard input: {error}")))?;
    match value["id"].as_str() {
        Some(id) => Ok(Some(id.to_owned())),
        None => Err(Error::usage("missing id in a JSON line on standard input")),
    }
}

async fn resolve_all(client: &Client, ids: Vec<String>) -> Result<Vec<String>> {
    let mut resolved = Vec::with_capacity(ids.len());
    for id in ids {
        resolved.push(resolve(client, &id).await?);
    }
    Ok(resolved)
}

/// Resolves an id prefix to the complete id of a letter.
///
/// # Errors
/// When no letter matches, or more than one.
pub(crate) async fn resolve(client: &Client, id: &str) -> Result<String> {
    if id.len() >= ID_LENGTH {
        return Ok(id.to_owned());
    }
    if id.len() < MIN_PREFIX || !id.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        let hint = "ids are hexadecimal; a unique prefix of at least four digits is enough";
        return Err(Error::usage_hint(format!("invalid letter id {id:?}"), hint));
    }
    let query = format!("id:{}* state:open,closed", id.to_ascii_lowercase());
    match first_matches(client, &query).await?.as_slice() {
        [] => Err(Error::not_found(format!("letter {id} not found"))),
        [letter] => Ok(letter.id.clone()),
        [one, other, ..] => {
            let what = format!("ambiguous letter id {id}: it matches {} and {}", one.id, other.id);
            let longer = short_id(&one.id).len() + 5;
            Err(Error::usage_hint(
                what,
                format!("use a longer prefix, such as {}", one.id.get(..longer).unwrap_or(&one.id)),
            ))
        }
    }
}

/// Resolves an id, an id prefix, or a query that matches one letter.
///
/// # Errors
/// When no letter matches, or more than one.
pub(crate) async fn resolve_one(client: &Client, text: &str) -> Result<String> {
    // Ids have no colon; every query with a field has one.
    if !text.contains(':') {
        return resolve(client, text).await;
    }
    let open = first_matches(client, text).await?;
    // Without an open match, a letter that was closed in the meantime is meant.
    let names_state = lazaret_core::query::Query::parse(text).is_ok_and(|query| query.names_state());
    let (found, query) = if open.is_empty() && !names_state {
        let closed = format!("({text}) state:closed");
        (first_matches(client, &closed).await?, closed)
    } else {
        (open, text.to_owned())
    };
    match found.as_slice() {
        [] => Err(Error::not_found(format!("no letter matches {text:?}"))),
        [letter] => Ok(letter.id.clone()),
        [one, other, ..] => {
            let what = format!("several letters match {text:?}, such as {} and {}", one.id, other.id);
            Err(Error::usage_hint(what, format!("list them with `lazaret ls {}`", quoted(&query))))
        }
    }
}

/// Returns the first matches, enough to tell one from several.
async fn first_matches(client: &Client, query: &str) -> Result<Vec<Letter>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = client.letters(&LetterQuery { query: query.to_owned(), after, limit: Some(2) }).await?;
        found.extend(page.letters);
        after = page.next;
        if found.len() > 1 || after.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_lines_and_from_letters() {
        assert_eq!(id_of_line("abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(id_of_line(r#"{"id": "abc", "queue": "x"}"#).unwrap().as_deref(), Some("abc"));
        assert_eq!(id_of_line("").unwrap(), None);
        assert!(id_of_line("{}").is_err() && id_of_line("{").is_err());
    }

    #[test]
    fn an_empty_selection_needs_all() {
        let of = |words: &[&str], all| Letters {
            query: Query { words: words.iter().map(|word| (*word).to_owned()).collect() },
            all,
            ..Letters::default()
        };
        assert!(of(&[], false).check().is_err() && of(&[" "], false).check().is_err());
        assert!(of(&[], true).check().is_ok() && of(&["state:dead", "x"], false).check().is_ok());
        assert_eq!(of(&["state:dead", "x"], false).query.text(), "state:dead x");
    }
}
