//! Every error code with its page, from the tables of those who give them out, so that no page is out of date.

use std::fmt::Write;

use lazaret_config::Severity;
use serde::Serialize;

/// What is known of a code.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ErrorCode {
    /// The code, such as `LZ0203`.
    pub(crate) code: &'static str,
    /// What it is, in a few words.
    pub(crate) title: &'static str,
    /// What it means and what to do.
    pub(crate) page: &'static str,
    /// How bad it is.
    kind: Kind,
    /// The status of answers that have it.
    status: Option<u16>,
    /// Where it comes from.
    #[serde(skip)]
    pub(crate) origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Error,
    Warning,
}

/// Who gives a code out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Configuration,
    Api,
}

/// The codes about configuration files.
fn of_configuration() -> impl Iterator<Item = ErrorCode> {
    lazaret_config::Code::ALL.iter().map(|code| ErrorCode {
        code: code.as_str(),
        title: code.title(),
        page: code.page(),
        kind: match code.severity() {
            Severity::Error => Kind::Error,
            Severity::Warning => Kind::Warning,
        },
        status: None,
        origin: Origin::Configuration,
    })
}

/// The codes of the API.
fn of_api() -> impl Iterator<Item = ErrorCode> {
    lazaret_api::Code::ALL.iter().map(|code| ErrorCode {
        code: code.as_str(),
        title: code.title(),
        page: code.page(),
        kind: Kind::Error,
        status: Some(code.status()).filter(|status| *status > 0),
        origin: Origin::Api,
    })
}

/// The code of this name, in upper or lower case.
pub(crate) fn find(name: &str) -> Option<ErrorCode> {
    of_configuration().chain(of_api()).find(|code| code.code.eq_ignore_ascii_case(name))
}

/// The pages of all codes, in Markdown. Each code is a heading, so that `errors.md#lz0203` leads to its page.
pub fn error_codes() -> String {
    let mut text = String::from(
        "# Error codes\n\n<!-- Made by the tests of lazaret-cli from the tables of codes. Do not edit. -->\n\n\
        Every error that has a code keeps it: a code never changes its meaning. `lazaret explain CODE` prints its page. In \
        answers\nof the [API](api.md#problems) the `type` of a problem, `urn:lazaret:error:CODE`, names it, too.\n",
    );
    text.push_str(
        "\n## In the configuration file\n\nThey are told with the place in [the file](configuration.md).\n",
    );
    of_configuration().for_each(|code| page(&mut text, &code));
    text.push_str(
        "\n## In answers of the API, and at its start\n\nThe command line shows them as errors, too.\n",
    );
    of_api().for_each(|code| page(&mut text, &code));
    text
}

fn page(text: &mut String, code: &ErrorCode) {
    let kind = match (code.kind, code.status) {
        (Kind::Warning, _) => " A warning.".to_owned(),
        (Kind::Error, Some(status)) => format!(" Status {status}."),
        (Kind::Error, None) => String::new(),
    };
    // Writing to a string cannot fail.
    let _ = write!(text, "\n### {}\n\n**{}**{kind}\n\n{}\n", code.code, sentence(code.title), code.page);
}

/// A title as a sentence: some are written as fragments.
pub(crate) fn sentence(title: &str) -> String {
    let mut letters = title.trim_end_matches('.').chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_and_no_two_are_the_same() {
        let codes: Vec<&str> = of_configuration().chain(of_api()).map(|code| code.code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
        let text = error_codes();
        assert!(codes.iter().all(|code| text.contains(&format!("\n### {code}\n"))));
    }

    #[test]
    fn titles_become_sentences() {
        assert_eq!(sentence("not found"), "Not found.");
        assert_eq!(sentence("The file is not UTF-8."), "The file is not UTF-8.");
    }
}
