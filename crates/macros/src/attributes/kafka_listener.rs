//! `#[kafka_listener]`: the Kafka topics to read, and the group.

use proc_macro2::{Span, TokenStream};

use super::{Setting, Settings, consumer_name, list};
use crate::arguments::{Arguments, Errors};

pub(crate) const NAME: &str = "kafka_listener";

const KNOWN: [&str; 6] = ["name", "topics", "group", "type_headers", "concurrency", "order"];

/// The listener.
#[derive(Default)]
pub(crate) struct KafkaListener {
    pub(crate) settings: Vec<Setting>,
    pub(crate) name: Option<String>,
}

impl KafkaListener {
    pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Self {
        let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
        let mut settings = Settings::new(&arguments, errors);
        let name = settings.read("name", consumer_name);
        settings
            .set("topics", "source.kafka.topics", |argument| argument.strings().map(|topics| list(&topics)));
        settings.set_string("group", "source.kafka.group");
        settings.set("type_headers", "source.kafka.type-headers", |argument| {
            argument.strings().map(|headers| list(&headers))
        });
        settings.set_count("concurrency", "concurrency", 1, 65_536);
        settings.set_choice("order", "order", &["key", "partition", "none"]);
        if arguments.get("topics").is_none() {
            let hint = "name the topics: `topics = \"orders\"` or `topics = [\"orders\", \"refunds\"]`";
            settings.errors.add(syn::Error::new(arguments.span, hint));
        }
        Self { settings: settings.list, name }
    }
}
