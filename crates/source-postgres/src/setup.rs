//! Creates the table of an outbox and the trigger that announces its rows.

use lazaret_store_postgres::driver_error;
use tokio_postgres::Client;

use crate::error::OutboxError;
use crate::options::OutboxOptions;
use crate::table::{quoted, relation};

/// The name of the trigger and of its function.
const TRIGGER: &str = "lazaret_outbox_notify";
/// The lock that makes two instances that start at once create things in sequence.
const LOCK: i64 = 0x6c61_7a6f_7574;

/// Creates what is missing. Existing objects are not touched: recreating a trigger would wait for all
/// writers, and they would wait for it.
pub(crate) async fn create_missing(client: &Client, options: &OutboxOptions) -> Result<(), OutboxError> {
    let failed = |error| OutboxError::from(driver_error(error, "set up the outbox"));
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let created = async {
        if relation(client, &options.table).await?.is_none() {
            client.batch_execute(&table_sql(options)).await.map_err(failed)?;
        }
        let Some(table) = relation(client, &options.table).await? else {
            return Err(OutboxError::refused(format!(
                "the table {} was created, but is not found: its schema is not in the search path",
                options.table
            )));
        };
        let (oid, name, schema): (u32, String, String) = (table.get(0), table.get(1), table.get(5));
        let sql = "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND tgname = $2::text)";
        let exists: bool = client.query_one(sql, &[&oid, &TRIGGER]).await.map_err(failed)?.get(0);
        if !exists {
            client.batch_execute(&trigger_sql(&name, &schema, &options.channel)).await.map_err(failed)?;
            tracing::info!(table = name, channel = options.channel, "outbox trigger created");
        }
        Ok(())
    };
    let created = created.await;
    client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await.map_err(failed)?;
    created
}

fn table_sql(options: &OutboxOptions) -> String {
    let columns = &options.columns;
    let key = columns.key.as_ref().map_or_else(String::new, |key| format!("{} text, ", quoted(key)));
    format!(
        "CREATE TABLE {} ({} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {key}{} text, {} json, {} json, \
         {} timestamptz NOT NULL DEFAULT now())",
        options.table,
        quoted(&columns.id),
        quoted(&columns.event_type),
        quoted(&columns.payload),
        quoted(&columns.headers),
        quoted(&columns.created_at),
    )
}

fn trigger_sql(table: &str, schema: &str, channel: &str) -> String {
    let channel = channel.replace('\'', "''");
    format!(
        "BEGIN; \
         CREATE OR REPLACE FUNCTION {schema}.{TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_notify(TG_ARGV[0], ''); RETURN NULL; END $$; \
         CREATE TRIGGER {TRIGGER} AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {schema}.{TRIGGER}('{channel}'); \
         COMMIT"
    )
}
