//! Builds the handler of a consumer.

use std::sync::Arc;

use lazaret_config::{
    CommandHandler as Program, CommandMode, Consumer as ConsumerConfig, Handler, HttpHandler as Service,
};
use lazaret_core::handler::BoxHandler;
use lazaret_handlers::{CommandHandler, CommandOptions, Error, HttpHandler, HttpOptions, HttpVersion, Mode};

/// Builds the handler, without calling it.
pub(crate) fn handler(config: &ConsumerConfig) -> Result<BoxHandler, Error> {
    match &config.handler {
        Handler::Http(service) => Ok(Arc::new(HttpHandler::new(http_options(config, service))?)),
        Handler::Command(program) => Ok(Arc::new(CommandHandler::new(command(config, program)?)?)),
        _ => Err(Error::Command("this build does not support this handler".to_owned())),
    }
}

/// Returns the address of the handler as it may be shown: without credentials and parameters, which may hold secrets.
pub(crate) fn handler_address(config: &ConsumerConfig) -> Option<String> {
    match &config.handler {
        Handler::Http(service) => {
            let (scheme, rest) = service.url.split_once("://")?;
            let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            Some(format!("{scheme}://{host}{path}"))
        }
        // Arguments may hold secrets.
        Handler::Command(program) => program.program.first().map(|program| format!("command {program}")),
        _ => None,
    }
}

/// Returns the options of an HTTP handler.
pub(crate) fn http_options(config: &ConsumerConfig, service: &Service) -> HttpOptions {
    let options = HttpOptions::new(&service.url)
        .for_consumer(config.name.as_str())
        .with_sequencing(config.sequencing())
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

fn command(config: &ConsumerConfig, program: &Program) -> Result<CommandOptions, Error> {
    let mode = match program.mode {
        CommandMode::Once => Mode::Once,
        CommandMode::Lines => Mode::Lines,
        _ => return Err(Error::Command("this build does not support this mode".to_owned())),
    };
    let options = CommandOptions::new(&program.program)
        .for_consumer(config.name.as_str())
        .with_sequencing(config.sequencing())
        .with_timeout(program.timeout)
        .inherit_env(&program.inherit_env)
        .with_mode(mode);
    let options =
        program.env.iter().fold(options, |options, (name, value)| options.with_env(name, value.reveal()));
    Ok(match program.workers {
        Some(workers) => options.with_workers(workers),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    /// `check` reports exactly the headers that the handler rejects.
    #[test]
    fn the_handler_and_the_configuration_reject_the_same_headers() {
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
