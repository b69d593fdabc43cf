//! Connects to a server and requests its description.

use std::time::Duration;

use bson::{Document, Timestamp as ClusterTime, doc};
use mongodb::Client;
use mongodb::error::{Error as DriverError, ErrorKind};
use mongodb::options::{ClientOptions, ServerAddress};

use crate::error::{ErrorClass, StreamError};
use crate::options::{BeforeChange, FullDocument, MongoSourceOptions, Server};

/// The maximum wait for a server, unless the URI sets `serverSelectionTimeoutMS`.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The wire version of MongoDB 6.0, which is the first one with pre- and post-images.
const WITH_IMAGES: i32 = 17;

const COMMAND_NOT_FOUND: i32 = 59;

/// A client, with the addresses that its URI names. A client of the application does not report them.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) addresses: Vec<ServerAddress>,
}

/// Creates a client, which connects when it is used.
pub(crate) async fn connect(server: &Server) -> Result<Connected, DriverError> {
    match server {
        Server::Client(client) => Ok(Connected { client: client.clone(), addresses: Vec::new() }),
        Server::Uri(uri) => {
            let mut options = ClientOptions::parse(uri).await?;
            options.app_name.get_or_insert_with(|| "lazaret".to_owned());
            options.server_selection_timeout.get_or_insert(SERVER_TIMEOUT);
            let addresses = options.hosts.clone();
            Ok(Connected { client: Client::with_options(options)?, addresses })
        }
    }
}

/// Asks a server for its kind, its version and its time. MongoDB 4.4.0 and 4.4.1 know `hello` only under
/// its former name.
///
/// # Errors
/// When the server does not answer, or refuses the command.
pub async fn hello(client: &Client) -> Result<Document, DriverError> {
    let admin = client.database("admin");
    match admin.run_command(doc! { "hello": 1 }).await {
        Err(error) if is_command_not_found(&error) => admin.run_command(doc! { "isMaster": 1 }).await,
        answer => answer,
    }
}

fn is_command_not_found(error: &DriverError) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(command) if command.code == COMMAND_NOT_FOUND)
}

/// Returns the time of the last operation, which a primary or a router reports with every answer.
/// Returns `None` for other servers, because they may lag or not report it.
pub(crate) fn last_operation(hello: &Document) -> Option<ClusterTime> {
    // Servers that know `hello` only under its former name also use the former name of this field.
    let is_primary =
        ["isWritablePrimary", "ismaster"].iter().any(|name| hello.get_bool(name).unwrap_or(false));
    hello.get_timestamp("operationTime").ok().filter(|_| is_primary)
}

/// Returns `true` if the options ask for pre- or post-images.
pub(crate) fn needs_images(options: &MongoSourceOptions) -> bool {
    matches!(options.full_document, FullDocument::WhenAvailable | FullDocument::Required)
        || options.full_document_before_change != BeforeChange::Off
}

/// Rejects a server without images. The server would refuse the stream itself, but each version with a
/// different error, some of which look temporary. A server that does not report its version decides by
/// itself.
pub(crate) fn check_images(hello: &Document) -> Result<(), StreamError> {
    match hello.get_i32("maxWireVersion") {
        Ok(version) if version < WITH_IMAGES => Err(StreamError::new(
            ErrorClass::ServerTooOld,
            format!("images of documents are asked for, and the server has wire version {version}"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_need_a_server_that_has_them() {
        let on = |version: i32| check_images(&doc! { "maxWireVersion": version });
        for version in [9, 13, 16] {
            let error = on(version).unwrap_err();
            assert_eq!(error.class, ErrorClass::ServerTooOld);
            assert!(error.to_string().contains("6.0"), "{error}");
        }
        assert!(on(17).is_ok() && on(21).is_ok() && check_images(&doc! {}).is_ok());
    }

    #[test]
    fn only_some_options_ask_for_images() {
        let plain = MongoSourceOptions::collection("mongodb://localhost", "shop", "orders");
        let with = |full_document, full_document_before_change| {
            needs_images(&MongoSourceOptions { full_document, full_document_before_change, ..plain.clone() })
        };
        assert!(!with(FullDocument::Default, BeforeChange::Off));
        assert!(!with(FullDocument::UpdateLookup, BeforeChange::Off));
        assert!(with(FullDocument::WhenAvailable, BeforeChange::Off));
        assert!(with(FullDocument::Required, BeforeChange::Off));
        assert!(with(FullDocument::Default, BeforeChange::WhenAvailable));
        assert!(with(FullDocument::Default, BeforeChange::Required));
    }

    #[test]
    fn only_a_primary_tells_the_last_operation() {
        let time = ClusterTime { time: 7, increment: 1 };
        for name in ["isWritablePrimary", "ismaster"] {
            assert_eq!(last_operation(&doc! { name: true, "operationTime": time }), Some(time));
            assert_eq!(last_operation(&doc! { name: false, "operationTime": time }), None);
        }
        assert_eq!(last_operation(&doc! { "operationTime": time }), None);
        assert_eq!(last_operation(&doc! { "ismaster": true }), None);
    }
}
