//! TLS: the store verifies the certificate of the server and its name, and all of its connections are encrypted.

use std::path::Path;

use lazaret_core::store::{Certainty, ErrorKind, LetterStore, Topic};
use lazaret_postgres_testkit::Cluster;
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};

use crate::support::{connect, told};

/// A certificate for this name or address, and its key, in PEM.
fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn dsn(cluster: &Cluster, roots: &Path, more: &str) -> String {
    let (host, roots) = (cluster.host().unwrap(), roots.display());
    format!("postgres://lazaret@{host}/postgres?sslmode=verify-full&sslrootcert={roots}{more}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_encrypted_and_the_server_is_verified() {
    let (trusted, key) = certificate("127.0.0.1");
    let Some(cluster) = Cluster::for_test_with_tls(&trusted, &key) else { return };
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, &trusted).unwrap();
    let named = dsn(&cluster, &roots, "&application_name=encrypted");
    let store = PostgresStore::connect(&named, PostgresStoreOptions::default()).await.unwrap();
    // The connection for notifications, too.
    let mut changes = store.changes(vec![Topic::Operations]);
    told(&mut changes).await;
    let client = connect(&cluster.dsn()).await;
    let sql =
        "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'encrypted'";
    let rows = client.query(sql, &[]).await.unwrap();
    assert!(rows.len() >= 2 && rows.iter().all(|row| row.get(0)), "{rows:?}");
    // One that somebody else signed.
    std::fs::write(&roots, certificate("127.0.0.1").0).unwrap();
    let refused = PostgresStore::connect(&dsn(&cluster, &roots, ""), PostgresStoreOptions::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.certainty()),
        (ErrorKind::Unavailable, Certainty::NotDone),
        "{refused}"
    );
    assert!(refused.context().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (trusted, key) = certificate("db.example");
    let Some(cluster) = Cluster::for_test_with_tls(&trusted, &key) else { return };
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, &trusted).unwrap();
    let refused = PostgresStore::connect(&dsn(&cluster, &roots, ""), PostgresStoreOptions::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.context().contains("certificate"), "{refused}");
}
