//! `#[change_stream]`: the MongoDB collection or database to read, and the changes to select.

use proc_macro2::{Span, TokenStream};
use serde_json::Value;

use super::{Setting, Settings, consumer_name};
use crate::arguments::{Argument, Arguments, Errors};

pub(crate) const NAME: &str = "change_stream";

const KNOWN: [&str; 11] = [
    "name",
    "collection",
    "database",
    "watch",
    "pipeline",
    "full_document",
    "full_document_before_change",
    "deployment_mode",
    "client",
    "concurrency",
    "order",
];

/// The scope that the stream watches.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Watch {
    #[default]
    Collection,
    Database,
    Deployment,
}

/// The change stream.
#[derive(Default)]
pub(crate) struct ChangeStream {
    pub(crate) settings: Vec<Setting>,
    pub(crate) name: Option<String>,
    pub(crate) watch: Watch,
    pub(crate) client: Option<String>,
}

impl ChangeStream {
    pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Self {
        let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
        let mut settings = Settings::new(&arguments, errors);
        let name = settings.read("name", consumer_name);
        settings.set_string("database", "source.mongodb.database");
        settings.set_string("collection", "source.mongodb.collection");
        settings.set("pipeline", "source.mongodb.pipeline", pipeline);
        settings.set_choice(
            "full_document",
            "source.mongodb.full-document",
            &["default", "update-lookup", "when-available", "required"],
        );
        settings.set_choice(
            "full_document_before_change",
            "source.mongodb.full-document-before-change",
            &["off", "when-available", "required"],
        );
        settings.set_choice(
            "deployment_mode",
            "source.mongodb.deployment",
            &["single-leader", "all-instances"],
        );
        settings.set_count("concurrency", "concurrency", 1, 65_536);
        settings.set_choice("order", "order", &["key", "partition", "none"]);
        let watch = watch(&mut settings);
        let client = settings.read("client", |argument| argument.string());
        let mut list = settings.list;
        if let Some(argument) = arguments.get("watch") {
            // A stream of the whole deployment may have no other setting that identifies the kind of
            // source.
            let source =
                Setting { attribute: argument.shown(), key: "source.mongodb", value: "{}".to_owned() };
            list.insert(0, source);
        }
        Self { settings: list, name, watch, client }
    }
}

/// Checks that the watched scope is given once. Without a collection, the stream must not watch
/// everything.
fn watch(settings: &mut Settings<'_>) -> Watch {
    let watched =
        settings.read("watch", |argument| argument.choice(&["collection", "database", "deployment"]));
    let watch = match watched {
        Some("database") => Watch::Database,
        Some("deployment") => Watch::Deployment,
        _ => Watch::Collection,
    };
    let given = |name| settings.arguments.get(name);
    let error = match (watch, given("collection"), given("database")) {
        (Watch::Collection, None, _) => {
            let hint = "name a collection: `collection = \"orders\"`; `watch = \"database\"` and \
                        `watch = \"deployment\"` watch more than one";
            Some(syn::Error::new(settings.arguments.span, hint))
        }
        (Watch::Database, Some(collection), _) => {
            Some(collection.error("a stream of a whole database has no `collection`"))
        }
        (Watch::Deployment, Some(one), _) | (Watch::Deployment, None, Some(one)) => {
            Some(one.error(format!("a stream of the whole deployment has no `{}`", one.name)))
        }
        _ => None,
    };
    if let Some(error) = error {
        settings.errors.add(error);
    }
    watch
}

/// Returns the stages as JSON: a list of objects with one operator each.
fn pipeline(argument: &Argument) -> syn::Result<String> {
    let stages: Value = serde_json::from_str(&argument.string()?)
        .map_err(|error| argument.error(format!("`pipeline` is not JSON: {error}")))?;
    let is_stage = |stage: &Value| {
        stage
            .as_object()
            .is_some_and(|stage| stage.len() == 1 && stage.keys().all(|key| key.starts_with('$')))
    };
    match &stages {
        Value::Array(list) if list.iter().all(is_stage) => Ok(stages.to_string()),
        _ => Err(argument.error(
            "`pipeline` must be a list of stages with one operator each, for example `[{ \"$match\": {} }]`",
        )),
    }
}
