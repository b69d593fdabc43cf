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
        Handler::Http(service) => Ok(Arc::new(HttpHandler::new(http(wanted, service))?)),
        Handler::Command(program) => Ok(Arc::new(CommandHandler::new(command(wanted, program))?)),
        _ => Err(Error::Command("this build does not have this handler".to_owned())),
    }
}

fn http(wanted: &Wanted, service: &Service) -> HttpOptions {
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
