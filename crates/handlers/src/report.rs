//! The details that a handler reports about a failure in addition to its verdict: the error type, the
//! stack trace, the phase, and diagnostics.
//!
//! Over HTTP these are headers and the fields of a problem document (RFC 9457), for commands the same
//! fields as JSON. Values of the wrong type are ignored with a note: the details must never hide the
//! failure itself.

use lazaret_core::handler::{Context, Delivery, FromDelivery};
use lazaret_core::{HandlerError, Phase};
use serde::Deserialize;
use serde_json::Value;

use crate::explicit::excerpt;
use crate::sanitize::sanitize;

/// The maximum size of an error type. Longer types are truncated.
pub(crate) const ERROR_TYPE_LIMIT: usize = 512;
/// The maximum size of a diagnostic's name. Diagnostics with longer names are ignored.
const NAME_LIMIT: usize = 128;
/// The names of diagnostics that Lazaret sets itself.
const RESERVED: [&str; 4] = ["traceparent", "enqueue-policy", "adopted-from", "adopted-warnings"];

/// The report of a failure.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The title and the detail of the problem.
    text: Option<String>,
    /// The type of the problem, unless it is blank.
    kind: Option<String>,
    pub(crate) error_type: Option<String>,
    stack_trace: Option<String>,
    phase: Option<Phase>,
    diagnostics: Vec<(String, String)>,
    /// Notes about ignored values.
    pub(crate) notes: Vec<String>,
}

/// The used fields of a problem document. Other fields, and unexpected types in these, are up to the
/// handler.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    #[serde(default, rename = "type")]
    kind: Option<Value>,
    #[serde(default)]
    title: Option<Value>,
    #[serde(default)]
    detail: Option<Value>,
    #[serde(default, alias = "error-type")]
    error_type: Option<Value>,
    #[serde(default, alias = "stack-trace")]
    stack_trace: Option<Value>,
    #[serde(default)]
    phase: Option<Value>,
    #[serde(default)]
    diagnostics: Option<Value>,
}

impl Report {
    /// Reads the fields of a JSON object. Returns `None` if the text is not an object.
    pub(crate) fn from_json(json: &[u8]) -> Option<Self> {
        if !json.trim_ascii_start().starts_with(b"{") {
            // serde also accepts a list of values in field order.
            return None;
        }
        let fields: Fields = serde_json::from_slice(json).ok()?;
        let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).and_then(non_empty);
        let parts: Vec<String> = [&fields.title, &fields.detail].into_iter().filter_map(text).collect();
        let mut report = Self {
            text: (!parts.is_empty()).then(|| parts.join(": ")),
            kind: text(&fields.kind).filter(|kind| kind != "about:blank"),
            ..Self::default()
        };
        if let Some(value) = present(fields.error_type) {
            match value.as_str() {
                Some(text) => report.set_error_type(text.as_bytes()),
                None => report.ignore("errorType", &value),
            }
        }
        if let Some(value) = present(fields.stack_trace) {
            match lines(&value) {
                Some(text) => report.stack_trace = non_empty(&text),
                None => report.ignore("stackTrace", &value),
            }
        }
        if let Some(value) = present(fields.phase) {
            match value.as_str() {
                Some(text) => report.set_phase(text.as_bytes()),
                None => report.ignore("phase", &value),
            }
        }
        match present(fields.diagnostics) {
            None => {}
            Some(Value::Object(entries)) => {
                for (name, value) in entries {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    report.add_diagnostic(&name, text.as_bytes());
                }
            }
            Some(value) => report.ignore("diagnostics", &value),
        }
        Some(report)
    }

    /// Reads a line of a program's output that may be a report. Returns `None` for a line that merely
    /// happens to be JSON, such as the line of a logger.
    pub(crate) fn from_line(line: &[u8]) -> Option<Self> {
        let report = Self::from_json(line)?;
        let tells = report.text.is_some() || report.error_type.is_some() || report.stack_trace.is_some();
        tells.then_some(report)
    }

    /// Returns the title and the detail, with the type unless it is blank.
    pub(crate) fn message(&self) -> Option<String> {
        match (&self.text, &self.kind) {
            (None, _) => None,
            (Some(text), None) => Some(text.clone()),
            (Some(text), Some(kind)) => Some(format!("{text} ({kind})")),
        }
    }

    /// Returns the type of the problem. It is the only text of a problem that has neither a title nor a
    /// detail.
    pub(crate) fn kind(&self) -> Option<String> {
        self.kind.clone()
    }

    /// Sets the error type, as a single line.
    pub(crate) fn set_error_type(&mut self, value: &[u8]) {
        let text = sanitize(value);
        let line = text.lines().next().unwrap_or_default().trim_end();
        if !line.is_empty() {
            self.error_type = Some(line[..line.floor_char_boundary(ERROR_TYPE_LIMIT)].to_owned());
        }
    }

    /// Sets the phase. An unknown phase is ignored with a note.
    pub(crate) fn set_phase(&mut self, value: &[u8]) {
        let word = std::str::from_utf8(value).unwrap_or_default().trim().to_ascii_lowercase();
        match Phase::ALL.into_iter().find(|phase| phase.as_str() == word) {
            Some(phase) => self.phase = Some(phase),
            None => self.notes.push(format!("unknown phase {:?} was ignored", excerpt(value))),
        }
    }

    /// Adds a diagnostic, and replaces an earlier one with the same name.
    pub(crate) fn add_diagnostic(&mut self, name: &str, value: &[u8]) {
        let known = sanitize(name.as_bytes());
        if known.is_empty() || known.len() > NAME_LIMIT || RESERVED.contains(&known.as_str()) {
            self.notes.push(format!(
                "a diagnostic must not be named {:?}, it was ignored",
                excerpt(name.as_bytes())
            ));
            return;
        }
        self.diagnostics.push((known, sanitize(value)));
    }

    fn ignore(&mut self, name: &str, value: &Value) {
        self.notes.push(format!("invalid {name} {} was ignored", excerpt(value.to_string().as_bytes())));
    }

    /// Moves the diagnostics to the delivery, whose letter keeps them. Diagnostics beyond the limits of
    /// metadata are ignored with a note.
    pub(crate) fn keep_diagnostics(&mut self, delivery: &Delivery) {
        if self.diagnostics.is_empty() {
            return;
        }
        let Ok(context) = Context::from_delivery(delivery) else { return };
        for (name, value) in self.diagnostics.drain(..) {
            if context.put_metadata(name.as_str(), value).is_err() {
                self.notes.push(format!("the diagnostic {name:?} was ignored: there are too many"));
            }
        }
    }

    /// Adds the stack trace and the phase to the error.
    pub(crate) fn complete(self, mut error: HandlerError) -> HandlerError {
        if let Some(trace) = self.stack_trace {
            error = error.backtrace(trace);
        }
        match self.phase {
            Some(phase) => error.phase(phase),
            None => error,
        }
    }
}

/// Returns the value unless it is null.
fn present(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_null())
}

fn non_empty(text: &str) -> Option<String> {
    Some(sanitize(text.as_bytes())).filter(|text| !text.is_empty())
}

/// Returns the text of a string or of a list of lines.
fn lines(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => {
            let lines: Option<Vec<&str>> = lines.iter().map(Value::as_str).collect();
            lines.map(|lines| lines.join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_core::{Message, Position};

    fn delivery() -> Delivery {
        Delivery::new(Message::new("e", "orders", Position::new(0, 1)))
    }

    #[test]
    fn all_fields_of_a_report_are_read() {
        let json = r#"{"type":"urn:shop","title":"Charge failed","detail":"no card","errorType":"java.lang.IllegalStateException",
            "stackTrace":"java.lang.IllegalStateException: no card\r\n\tat shop.Pay.charge(Pay.java:7)","phase":"External-Call",
            "diagnostics":{"gateway":"eu","tries":3}}"#;
        let mut report = Report::from_json(json.as_bytes()).unwrap();
        assert_eq!(report.message().as_deref(), Some("Charge failed: no card (urn:shop)"));
        assert_eq!(report.error_type.as_deref(), Some("java.lang.IllegalStateException"));
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        let delivery = delivery();
        report.keep_diagnostics(&delivery);
        assert_eq!(
            (delivery.metadata()["gateway"].as_str(), delivery.metadata()["tries"].as_str()),
            ("eu", "3")
        );
        let failure = report.complete(HandlerError::msg("x")).failure();
        assert_eq!(failure.phase, Phase::ExternalCall);
        let trace = "java.lang.IllegalStateException: no card\n\tat shop.Pay.charge(Pay.java:7)";
        assert_eq!(failure.backtrace.as_deref(), Some(trace));
    }

    #[test]
    fn the_names_of_the_line_protocol_are_read_and_a_trace_may_be_a_list() {
        let json = r#"{"error-type":"KeyError","stack-trace":["a","b"]}"#;
        let report = Report::from_json(json.as_bytes()).unwrap();
        assert_eq!(
            (report.error_type.as_deref(), report.stack_trace.as_deref()),
            (Some("KeyError"), Some("a\nb"))
        );
    }

    #[test]
    fn invalid_values_are_ignored_with_a_note() {
        let json = r#"{"title":7,"errorType":["a"],"stackTrace":[1],"phase":"later","diagnostics":"many"}"#;
        let report = Report::from_json(json.as_bytes()).unwrap();
        assert!(report.message().is_none() && report.error_type.is_none() && report.phase.is_none());
        let expected = [
            "invalid errorType [\"a\"] was ignored",
            "invalid stackTrace [1] was ignored",
            "unknown phase \"later\" was ignored",
            "invalid diagnostics \"many\" was ignored",
        ];
        assert_eq!(report.notes, expected);
        let nulls = r#"{"errorType":null,"stackTrace":null,"phase":null,"diagnostics":null,"title":null}"#;
        assert!(Report::from_json(nulls.as_bytes()).unwrap().notes.is_empty());
        for json in ["", "[1]", "7", "{", r#"["a","b"]"#] {
            assert!(Report::from_json(json.as_bytes()).is_none(), "{json}");
        }
    }

    #[test]
    fn a_type_is_one_line_within_its_limit() {
        let mut report = Report::default();
        report.set_error_type(b" \n");
        assert_eq!(report.error_type, None);
        report.set_error_type(b" shop.Declined \nand more");
        assert_eq!(report.error_type.as_deref(), Some("shop.Declined"));
        report.set_error_type("é".repeat(ERROR_TYPE_LIMIT).as_bytes());
        assert_eq!(report.error_type.unwrap().len(), ERROR_TYPE_LIMIT);
    }

    #[test]
    fn diagnostics_stay_within_the_limits_of_metadata_and_never_replace_those_of_lazaret() {
        // I7
        let mut report = Report::default();
        report.add_diagnostic("adopted-from", b"x");
        report.add_diagnostic("", b"x");
        report.add_diagnostic("large", &[b'x'; 20_000]);
        report.add_diagnostic("small", b"y");
        let delivery = delivery();
        report.keep_diagnostics(&delivery);
        assert_eq!(
            delivery.metadata().into_iter().collect::<Vec<_>>(),
            [("small".to_owned(), "y".to_owned())]
        );
        assert_eq!(report.notes.len(), 3, "{:?}", report.notes);
    }

    #[test]
    fn a_line_of_a_logger_is_no_report() {
        for line in [r#"{"type":"info","message":"done"}"#, "{}", "Traceback", r#"{"level":30,"msg":"x"}"#] {
            assert!(Report::from_line(line.as_bytes()).is_none(), "{line}");
        }
        for line in [r#"{"errorType":"E"}"#, r#"{"detail":"no card"}"#, r#"{"stackTrace":"at x"}"#] {
            assert!(Report::from_line(line.as_bytes()).is_some(), "{line}");
        }
    }
}
