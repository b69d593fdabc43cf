//! `explain`: prints the page of an error code or a reason code.

use clap::Args;
use lazaret_core::policy::taxonomy;
use lazaret_core::{Phase, Reason, Verdict};
use serde::Serialize;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::error_codes::{Origin, find, sentence};
use crate::exit::Exit;
use crate::output::{Line, Tone, print_value};

/// The CSV columns.
const COLUMNS: [&str; 5] = ["code", "title", "kind", "status", "page"];

/// Explain an error code or a reason code.
#[derive(Debug, Args)]
pub struct Explain {
    /// Explain this code, such as LZ0120 or TIMEOUT
    code: String,
}

/// The page of a reason code.
#[derive(Debug, Serialize)]
struct ReasonPage {
    code: String,
    /// Its meaning.
    title: String,
    kind: &'static str,
    /// The default verdict.
    verdict: &'static str,
    /// Explains the verdict and how to change it.
    page: String,
}

impl Run for Explain {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let (screen, format) = (&context.screen, context.format());
        if let Some(code) = find(&self.code) {
            print_value(screen, format, &COLUMNS, &code, || {
                print(context, code.code, &sentence(code.title), code.page)?;
                screen.next_command(match code.origin {
                    Origin::Configuration => "lazaret check -c lazaret.yaml",
                    Origin::Api => "lazaret status",
                });
                Ok(())
            })?;
            return Ok(Exit::Ok);
        }
        let page = reason_page(&self.code).ok_or_else(|| {
            let hint = "error codes look like LZ0120, reason codes like TIMEOUT";
            Error::not_found_hint(format!("code {:?} not found", self.code), hint)
        })?;
        print_value(screen, format, &COLUMNS, &page, || {
            print(context, &page.code, &page.title, &page.page)?;
            screen.next_command(&format!("lazaret ls reason:{}", page.code));
            Ok(())
        })?;
        Ok(Exit::Ok)
    }
}

fn print(context: &Context, code: &str, title: &str, page: &str) -> Result<()> {
    let line = Line::new().add(code, Tone::Strong);
    context.screen.line(&line.plain(format!(": {title}")))?;
    page.lines().try_for_each(|line| context.screen.line(&Line::of(line)))
}

/// Returns the page of a reason code. Every other code of a valid form is one that handlers or rules give.
fn reason_page(code: &str) -> Option<ReasonPage> {
    let is_lz = code.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("LZ"))
        && code[2..].bytes().all(|b| b.is_ascii_digit());
    let reason = Reason::new(code.to_ascii_uppercase()).ok().filter(|_| !is_lz)?;
    let (verdict, kind) = taxonomy(&reason, Phase::Handle, false);
    let title = match reason.meaning() {
        Some(meaning) => meaning.to_owned(),
        None => "A code that is none of Lazaret's: a handler or a rule gave it.".to_owned(),
    };
    let default = match verdict {
        Verdict::Retry => "Retried with delays, up to `max-attempts` and `max-elapsed`; then dead-lettered.",
        Verdict::DeadLetter => "Dead-lettered at once: another attempt would fail the same way.",
        Verdict::Park => "Parked until a person or a deployment changes something; then `lazaret release`.",
        Verdict::Duplicate => "Settled as handled: it was handled before.",
        Verdict::Quarantine => "Isolated until a person decides.",
        Verdict::Skip => "Skipped, with an audit entry.",
        Verdict::Stop => "The consumer stops.",
    };
    let page = format!(
        "Default verdict: {verdict} ({kind}). {default}\n\
         Change it with `classify` (`- {{ when: {{ reason: {reason} }}, then: … }}`), `retry-on` or `no-retry-on` of the consumer."
    );
    let page = match reason.meaning() {
        Some(_) => page,
        None => {
            let page = format!(
                "{page}\nA handler that gave it with a status or an exit code has chosen the verdict by that: 422 is dead-lettered whatever its code."
            );
            let known: Vec<&str> = Reason::KNOWN.iter().map(Reason::as_str).collect();
            format!("{page}\nLazaret's own codes: {}.", known.join(", "))
        }
    };
    Some(ReasonPage { code: reason.to_string(), title, kind: "reason", verdict: verdict.as_str(), page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_page() {
        for reason in Reason::KNOWN {
            let page = reason_page(reason.as_str()).unwrap();
            assert!(!page.title.contains("none of Lazaret's"), "{reason}");
            assert!(page.page.contains(page.verdict), "{}", page.page);
        }
        assert_eq!(reason_page("timeout").unwrap().verdict, "retry");
        assert!(reason_page("CARD_DECLINED").unwrap().title.contains("none of Lazaret's"));
        assert!(reason_page("LZ9999").is_none() && reason_page("a b").is_none());
    }
}
