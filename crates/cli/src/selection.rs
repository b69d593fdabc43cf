//! Which letters a command is about: those that match a query, or those that are named.

use std::io::{self, BufRead};

use clap::Args;
use lazaret_api::{Letter, Selection};

use crate::client::{Client, LetterQuery};
use crate::error::{Error, Result};
use crate::hints::{quoted, short_id};

/// How long a whole letter id is.
const ID_LENGTH: usize = 36;
/// How short a beginning of an id may be.
const SHORTEST: usize = 4;

/// A query, as it stands in one or more words.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Query {
    /// Which letters, in the query language: state:dead reason:TIMEOUT age:>1h
    #[arg(value_name = "QUERY")]
    pub words: Vec<String>,
}

impl Query {
    /// The query as one text.
    pub(crate) fn text(&self) -> String {
        self.words.join(" ").trim().to_owned()
    }
}

/// Letters that are meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Letters {
    #[command(flatten)]
    pub query: Query,

    /// These letters, by their ids or the first digits of them; - reads them from standard input, one a line
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',', conflicts_with_all = ["words", "all"])]
    pub ids: Vec<String>,

    /// Yes, every open letter is meant
    #[arg(long, conflicts_with = "words")]
    pub all: bool,
}

impl Letters {
    /// What is meant, with whole ids.
    ///
    /// # Errors
    /// When nothing is meant, or an id cannot be found.
    pub(crate) async fn selection(&self, client: &Client) -> Result<Selection> {
        if !self.ids.is_empty() {
            let ids = resolve_all(client, named(&self.ids)?).await?;
            return Ok(Selection { ids: Some(ids), ..Selection::default() });
        }
        let query = self.query.text();
        self.check()?;
        Ok(Selection { query: Some(query), all: self.all, ..Selection::default() })
    }

    /// Makes sure that something is meant, before anybody is asked.
    ///
    /// # Errors
    /// When nothing is.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ids.is_empty() && self.query.text().is_empty() && !self.all {
            let hint = "give a query or --ids, or say --all if every letter is meant";
            return Err(Error::usage_hint("this would be about every letter", hint));
        }
        Ok(())
    }
}

/// The ids, from the command line or from standard input.
fn named(ids: &[String]) -> Result<Vec<String>> {
    if ids != ["-"] {
        return Ok(ids.to_vec());
    }
    let mut read = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::io("the ids cannot be read", error))?;
        read.extend(id_of_line(line.trim())?);
    }
    if read.is_empty() {
        return Err(Error::usage("there are no ids on standard input"));
    }
    Ok(read)
}

/// The id on a line: the line itself, or that of a letter as `ls -o jsonl` prints it.
fn id_of_line(line: &str) -> Result<Option<String>> {
    if line.is_empty() || !line.starts_with('{') {
        return Ok(Some(line.to_owned()).filter(|line| !line.is_empty()));
    }
    let value: serde_json::Value = serde_json::from_str(line)
        .map_err(|error| Error::usage(format!("a line on standard input is no JSON: {error}")))?;
    match value["id"].as_str() {
        Some(id) => Ok(Some(id.to_owned())),
        None => Err(Error::usage("a line on standard input has no id")),
    }
}

async fn resolve_all(client: &Client, ids: Vec<String>) -> Result<Vec<String>> {
    let mut whole = Vec::with_capacity(ids.len());
    for id in ids {
        whole.push(resolve(client, &id).await?);
    }
    Ok(whole)
}

/// The whole id of a letter, from its first digits.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) async fn resolve(client: &Client, id: &str) -> Result<String> {
    if id.len() >= ID_LENGTH {
        return Ok(id.to_owned());
    }
    if id.len() < SHORTEST || !id.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        let hint = "ids are hexadecimal digits; the first four are enough where they are unique";
        return Err(Error::usage_hint(format!("{id:?} is no id of a letter"), hint));
    }
    let query = format!("id:{}* state:open,closed", id.to_ascii_lowercase());
    match two(client, &query).await?.as_slice() {
        [] => Err(Error::not_found(format!("there is no letter {id}"))),
        [letter] => Ok(letter.id.clone()),
        [one, other, ..] => {
            let what =
                format!("{id} is the beginning of several ids, {} and {} among them", one.id, other.id);
            let longer = short_id(&one.id).len() + 5;
            Err(Error::usage_hint(
                what,
                format!("give more digits, such as {}", one.id.get(..longer).unwrap_or(&one.id)),
            ))
        }
    }
}

/// The one letter that is meant by its id, the first digits of it, or a query that finds it alone.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) async fn resolve_one(client: &Client, text: &str) -> Result<String> {
    // No id has a colon in it, and every query that names a field has one.
    if !text.contains(':') {
        return resolve(client, text).await;
    }
    let open = two(client, text).await?;
    // A letter that was handled in the meantime is still the one that is meant.
    let names_state = lazaret_core::query::Query::parse(text).is_ok_and(|query| query.names_state());
    let (found, query) = if open.is_empty() && !names_state {
        let closed = format!("({text}) state:closed");
        (two(client, &closed).await?, closed)
    } else {
        (open, text.to_owned())
    };
    match found.as_slice() {
        [] => Err(Error::not_found(format!("no letter matches {text:?}"))),
        [letter] => Ok(letter.id.clone()),
        [one, other, ..] => {
            let what = format!("several letters match {text:?}, {} and {} among them", one.id, other.id);
            Err(Error::usage_hint(what, format!("`lazaret ls {}` shows them all", quoted(&query))))
        }
    }
}

/// The letters that match, up to two of them or a few more.
async fn two(client: &Client, query: &str) -> Result<Vec<Letter>> {
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
    fn everything_has_to_be_meant() {
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
