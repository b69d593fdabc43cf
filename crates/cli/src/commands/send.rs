//! `send`: sends a message to the inbox of a consumer.

use std::io::Read;

use bytes::Bytes;
use clap::Args;
use lazaret_api::{Code, InboxAnswer};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{query_value, quoted};
use crate::output::{Line, Tone, print_value};
use crate::prompt;
use crate::unknown_names::check_consumer;

/// The CSV columns.
const COLUMNS: [&str; 3] = ["id", "position", "duplicate"];

/// Send a message to the inbox of a consumer. It is durable when the command ends.
#[derive(Debug, Args)]
pub struct Send {
    /// Send to the inbox of this consumer
    consumer: String,

    /// Send this payload, or - for standard input; default: standard input
    payload: Option<String>,

    /// Set the key; messages with the same key are handled in order
    #[arg(long, short = 'k', value_name = "KEY")]
    key: Option<String>,

    /// Set the type of the event
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    event_type: Option<String>,

    /// Set the id; a message with the same id is taken once; default: a new one
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Add a header
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,

    /// Set the media type; default: application/json if the payload is JSON, otherwise application/octet-stream
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

impl Run for Send {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let payload = self.read_payload()?;
        let headers = self.request_headers(&payload)?;
        let client = context.client()?;
        let answer = match client.post_message(&self.consumer, headers, payload).await {
            Err(error) if error.code() == Some(Code::NoInbox) => {
                check_consumer(&client, &self.consumer).await?;
                return Err(error);
            }
            answer => answer?,
        };
        print_value(&context.screen, context.format(), &COLUMNS, &answer, || {
            let done = if answer.duplicate { "known already, not taken again" } else { "accepted" };
            let line = Line::new().add(&answer.id, Tone::Strong);
            context.screen.line(&line.plain(format!(" {done} at {}", answer.position)))?;
            context.screen.next_commands(&next(&self.consumer, &answer));
            Ok(())
        })?;
        Ok(Exit::Ok)
    }
}

/// Returns the commands that show what became of the message.
fn next(consumer: &str, answer: &InboxAnswer) -> Vec<String> {
    let query = format!("queue:{} message:{}", query_value(consumer), query_value(&answer.id));
    vec!["lazaret status".to_owned(), format!("lazaret ls {}", quoted(&query))]
}

impl Send {
    fn read_payload(&self) -> Result<Bytes> {
        if let Some(payload) = self.payload.as_deref().filter(|payload| *payload != "-") {
            return Ok(Bytes::from(payload.to_owned()));
        }
        if self.payload.is_none() && prompt::can_ask() {
            let hint = "pass it as an argument, or pipe it to standard input";
            return Err(Error::usage_hint("the payload is missing", hint));
        }
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io("cannot read the payload from standard input", error))?;
        Ok(bytes.into())
    }

    fn request_headers(&self, payload: &[u8]) -> Result<HeaderMap> {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
        let default = if is_json { "application/json" } else { "application/octet-stream" };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, value("content type", self.content_type.as_deref().unwrap_or(default))?);
        for (name, text) in
            [("lazaret-id", &self.id), ("lazaret-key", &self.key), ("lazaret-type", &self.event_type)]
        {
            if let Some(text) = text {
                headers.insert(HeaderName::from_static(name), value(name, text)?);
            }
        }
        for (name, text) in &self.headers {
            let own = HeaderName::from_bytes(format!("lazaret-header-{name}").as_bytes())
                .map_err(|_| Error::usage(format!("invalid header name {name:?}")))?;
            headers.append(own, value(name, text)?);
        }
        Ok(headers)
    }
}

fn value(name: &str, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes())
        .map_err(|_| Error::usage(format!("invalid {name}: control characters cannot be sent")))
}

fn name_and_value(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once(['=', ':']) {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim_start().to_owned()))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_written_with_an_equals_sign_or_a_colon() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(name_and_value("tenant=acme"), pair("tenant", "acme"));
        assert_eq!(name_and_value("Tenant: acme=1"), pair("Tenant", "acme=1"));
        assert_eq!(name_and_value("a="), pair("a", ""));
        assert!(name_and_value("tenant").is_err() && name_and_value("=x").is_err());
    }

    #[test]
    fn the_media_type_follows_the_payload() {
        let send = |payload: &str| Send {
            consumer: "shop".into(),
            payload: Some(payload.into()),
            key: Some("ü 7".into()),
            event_type: None,
            id: None,
            headers: vec![("tenant".into(), "acme".into())],
            content_type: None,
        };
        let headers = |payload: &str| send(payload).request_headers(payload.as_bytes()).unwrap();
        assert_eq!(headers("{\"a\": 1}")[CONTENT_TYPE], "application/json");
        assert_eq!(headers("a,b")[CONTENT_TYPE], "application/octet-stream");
        assert_eq!(headers("1")["lazaret-key"].as_bytes(), "ü 7".as_bytes());
        assert_eq!(headers("1")["lazaret-header-tenant"], "acme");
        let broken = Send { key: Some("a\nb".into()), ..send("1") };
        assert_eq!(broken.request_headers(b"1").unwrap_err().exit(), Exit::Usage);
    }
}
