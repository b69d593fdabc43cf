//! What is wrong with a file: a list of diagnostics, each with its place and what to do.

use std::fmt;
use std::sync::Arc;

use miette::LabeledSpan;

use crate::code::{Code, Severity};
use crate::render;
use crate::source::{SourceText, Span};

/// How many diagnostics are kept of one file. Who made more mistakes made one of them many times.
const LIMIT: usize = 200;

/// One thing that is wrong, or suspicious.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    code: Code,
    message: String,
    span: Span,
    hint: String,
    other: Option<(Span, String)>,
    source: Arc<SourceText>,
}

impl Diagnostic {
    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Whether it is an error or a warning.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// What is wrong, in one sentence without a full stop.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The place.
    pub fn span(&self) -> Span {
        self.span
    }

    /// What to do.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Another place that has to do with it, and how.
    pub fn other(&self) -> Option<(Span, &str)> {
        self.other.as_ref().map(|(span, label)| (*span, label.as_str()))
    }

    /// The file.
    pub fn source(&self) -> &SourceText {
        &self.source
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic {}

impl miette::Diagnostic for Diagnostic {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.code.severity() {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.hint))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&*self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let primary = LabeledSpan::new_primary_with_span(None, (self.span.start, self.span.len()));
        let other = self.other.iter();
        let other = other.map(|(span, text)| LabeledSpan::new(Some(text.clone()), span.start, span.len()));
        Some(Box::new(std::iter::once(primary).chain(other)))
    }
}

/// Everything that was found in one file, in the order of its lines.
///
/// It is an error and a [`miette::Diagnostic`]: a command line renders it in colour with miette, and [`Diagnostics::plain`]
/// is for everywhere else.
///
/// ```
/// use lazaret_config::{check, NoEnv};
/// let found = check("lazaret.yaml", b"lisen: 127.0.0.1:80\nconsumers: 3\n", &NoEnv).diagnostics;
/// assert_eq!(found.errors(), 2);
/// assert!(found.plain().contains("did you mean `listen`?"));
/// ```
#[derive(Clone, Debug)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    left_off: usize,
}

impl Diagnostics {
    /// What was found.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// How many more there are than are listed.
    pub fn left_off(&self) -> usize {
        self.left_off
    }

    /// How many of those listed are errors.
    pub fn errors(&self) -> usize {
        self.count(Severity::Error)
    }

    /// How many of those listed are warnings.
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of it as text without colours.
    pub fn plain(&self) -> String {
        render::plain(self)
    }

    fn count(&self, severity: Severity) -> usize {
        self.list.iter().filter(|found| found.severity() == severity).count()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::summary(self))
    }
}

impl std::error::Error for Diagnostics {}

impl miette::Diagnostic for Diagnostics {
    fn severity(&self) -> Option<miette::Severity> {
        Some(if self.errors() > 0 { miette::Severity::Error } else { miette::Severity::Warning })
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn miette::Diagnostic> + 'a>> {
        Some(Box::new(self.list.iter().map(|found| found as &dyn miette::Diagnostic)))
    }
}

/// Something that was found, before the file that it is in is known. It always says what to do: there is no way to make one
/// that does not.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    trouble: Trouble,
    hint: String,
}

/// What is wrong, as long as it does not say what to do.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct Trouble {
    code: Code,
    message: String,
    span: Span,
    other: Option<(Span, String)>,
}

impl Trouble {
    pub(crate) fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), span, other: None }
    }

    pub(crate) fn other(mut self, span: Span, label: impl Into<String>) -> Self {
        // The same place twice says nothing.
        self.other = (span != self.span).then(|| (span, label.into()));
        self
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Finding {
        Finding { trouble: self, hint: hint.into() }
    }
}

/// Collects what is found.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// Whether there are more already than are shown, so that hints are for nobody.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() > LIMIT
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.0.iter().any(|finding| finding.trouble.code.severity() == Severity::Error)
    }

    /// Orders what was found by its place. What stands in `defaults` is found once per consumer, and told once.
    pub(crate) fn finish(mut self, source: &Arc<SourceText>) -> Diagnostics {
        self.0.sort_by_key(|Finding { trouble, .. }| (trouble.span.start, trouble.span.end, trouble.code));
        self.0.dedup_by(|Finding { trouble: a, .. }, Finding { trouble: b, .. }| {
            a.code == b.code && a.span == b.span && a.message == b.message
        });
        let left_off = self.0.len().saturating_sub(LIMIT);
        let list = self.0.into_iter().take(LIMIT).map(|Finding { trouble, hint }| Diagnostic {
            code: trouble.code,
            message: trouble.message,
            span: trouble.span,
            hint,
            other: trouble.other,
            source: Arc::clone(source),
        });
        Diagnostics { list: list.collect(), left_off }
    }
}
