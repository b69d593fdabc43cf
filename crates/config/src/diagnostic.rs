//! Diagnostics of a file, each with its location and a hint.

use std::fmt;
use std::sync::Arc;

use miette::LabeledSpan;

use crate::code::{Code, Severity};
use crate::source::{SourceText, Span};

/// The maximum number of diagnostics kept per file. Further diagnostics usually repeat one mistake.
const LIMIT: usize = 200;

/// One error or warning.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    code: Code,
    message: String,
    span: Span,
    hint: String,
    related: Option<(Span, String)>,
    source: Arc<SourceText>,
}

impl Diagnostic {
    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the severity.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// Returns the message, which is one sentence without a full stop.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the location in the file.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns the hint, which says what to change.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Returns a related location and its label.
    pub fn related(&self) -> Option<(Span, &str)> {
        self.related.as_ref().map(|(span, label)| (*span, label.as_str()))
    }

    /// Returns the file.
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
        let related = self.related.iter();
        let related =
            related.map(|(span, text)| LabeledSpan::new(Some(text.clone()), span.start, span.len()));
        Some(Box::new(std::iter::once(primary).chain(related)))
    }
}

/// All diagnostics of a file, ordered by location.
///
/// Implements [`miette::Diagnostic`] for coloured output in a terminal; [`Diagnostics::plain`] renders
/// plain text.
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
    omitted: usize,
}

impl Diagnostics {
    /// Returns the diagnostics.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Returns the number of diagnostics beyond the limit, which are not listed.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// Returns the number of listed errors.
    pub fn errors(&self) -> usize {
        self.count(Severity::Error)
    }

    /// Returns the number of listed warnings.
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// Returns `true` if there are no diagnostics.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn count(&self, severity: Severity) -> usize {
        self.list.iter().filter(|found| found.severity() == severity).count()
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

/// A diagnostic that is not attached to a file yet. It always has a hint, because
/// [`FindingBuilder::hint`] is the only constructor.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    builder: FindingBuilder,
    hint: String,
}

/// A finding without its hint.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct FindingBuilder {
    code: Code,
    message: String,
    span: Span,
    related: Option<(Span, String)>,
}

impl FindingBuilder {
    pub(crate) fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), span, related: None }
    }

    pub(crate) fn related(mut self, span: Span, label: impl Into<String>) -> Self {
        // A second label at the same location adds nothing.
        self.related = (span != self.span).then(|| (span, label.into()));
        self
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Finding {
        Finding { builder: self, hint: hint.into() }
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// Returns `true` if the limit is exceeded, so that further findings would not be shown.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() > LIMIT
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.0.iter().any(|finding| finding.builder.code.severity() == Severity::Error)
    }

    /// Orders the findings by location. A finding in `defaults` is found again for each consumer, but
    /// reported only once.
    pub(crate) fn finish(mut self, source: &Arc<SourceText>) -> Diagnostics {
        self.0.sort_by_key(|Finding { builder, .. }| (builder.span.start, builder.span.end, builder.code));
        self.0.dedup_by(|Finding { builder: a, .. }, Finding { builder: b, .. }| {
            a.code == b.code && a.span == b.span && a.message == b.message
        });
        let omitted = self.0.len().saturating_sub(LIMIT);
        let list = self.0.into_iter().take(LIMIT).map(|Finding { builder, hint }| Diagnostic {
            code: builder.code,
            message: builder.message,
            span: source.shown(builder.span),
            hint,
            related: builder.related.map(|(span, label)| (source.shown(span), label)),
            source: Arc::clone(source),
        });
        Diagnostics { list: list.collect(), omitted }
    }
}
