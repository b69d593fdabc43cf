//! Makes the handler of a consumer.

use std::sync::Arc;

use lazaret_config::{
    CommandHandler as Program, CommandMode, Consumer as Wanted, Handler, HttpHandler as Service,
};
use lazaret_core::handler::BoxHandler;
use lazaret_handlers::{CommandHandler, CommandOptions, Error, HttpHandler, HttpOptions, HttpVersion, Mode};

/// Makes the handler. Nothing is called yet.
pub(crate) fn handler(wanted: &Wanted) -> Result<BoxHandler, Error> {
    match &wanted.handler {
        Handler::Http(service) => Ok(Arc::new(HttpHandler::new(http_options(wanted, service))?)),
        Handler::Command(program) => Ok(Arc::new(CommandHandler::new(command(wanted, program))?)),
        _ => Err(Error::Command("this build does not have this handler".to_owned())),
    }
}

/// How a service is called.
pub(crate) fn http_options(wanted: &Wanted, service: &Service) -> HttpOptions {
    let options = HttpOptions::new(&service.url)
        .for_consumer(wanted.name.as_str())
        .with_sequencing(wanted.sequencing())
        .with_timeout(service.timeout)
        .with_version(if service.http2 { HttpVersion::Http2 } else { HttpVersion::Auto })
        .with_max_connections(service.max_connections);
    let options = service
        .headers
        .iter()
        .fold(options, |options, (name, value)| options.with_header(name, value.reveal()));
    match &service.tls_ca {
        Some(path) => options.with_ca_file(path),
        None => options,
    }
}

fn command(wanted: &Wanted, program: &Program) -> CommandOptions {
    let options = CommandOptions::new(&program.program)
        .for_consumer(wanted.name.as_str())
        .with_sequencing(wanted.sequencing())
        .with_timeout(program.timeout)
        .with_mode(match program.mode {
            CommandMode::Once => Mode::Once,
            CommandMode::Lines => Mode::Lines,
        });
    let options =
        program.env.iter().fold(options, |options, (name, value)| options.with_env(name, value.reveal()));
    match program.workers {
        Some(workers) => options.with_workers(workers),
        None => options,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    /// What keeps a consumer from running is told by `check`, and nothing else is.
    #[test]
    fn the_headers_that_a_handler_refuses_are_those_that_a_file_may_not_have() {
        let names = [
            "Accept",
            "Authorization",
            "CE-Id",
            "ce-type",
            "ce",
            "Connection",
            "Content-Length",
            "Content-Type",
            "Cookie",
            "Expect",
            "Host",
            "Keep-Alive",
            "Lazaret-Attempt",
            "lazaret-header-x",
            "lazaret",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "traceparent",
            "tracestate",
            "Upgrade",
            "User-Agent",
            "x-team",
        ];
        for name in names {
            for value in ["plain", "ü", "a\\tb", "a\\nb", ""] {
                let text = format!(
                    "consumers: {{ a: {{ source: {{ inbox: {{}} }}, handler: {{ http: {{ url: 'http://h/', headers: {{ {name}: \"{value}\" }} }} }} }} }}"
                );
                let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv).config;
                let unescaped = value.replace("\\t", "\t").replace("\\n", "\n");
                let made = HttpHandler::new(HttpOptions::new("http://h/").with_header(name, unescaped));
                assert_eq!(checked.is_some(), made.is_ok(), "{name}: {value:?} {:?}", made.err());
                assert!(checked.is_none_or(|config| handler(&config.consumers[0]).is_ok()));
            }
        }
    }
}
