//! Checks a PostgreSQL server: that the store can be opened, used and migrated. Changes nothing.

use jiff::SignedDuration;
use lazaret_core::store::ErrorKind;
use lazaret_store_postgres::{FORMAT_VERSION, Probe, describe, probe, refuses_writes};

use super::finding::{Finding, PROBE_TIMEOUT};
use crate::assemble::NO_POSTGRES_PRIMARY;

const SUBJECT: &str = "store";

/// The oldest version of a server that has all statements, as `server_version_num` has it.
const OLDEST_SERVER: i32 = 120_000;

/// The tolerated difference of clocks.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// Checks the server of the store, and the rights of its role.
pub(super) async fn check_store(dsn: &str) -> Vec<Finding> {
    match probe(dsn, PROBE_TIMEOUT.saturating_mul(3)).await {
        Ok(found) => judge(&found),
        Err(error) => {
            let place = describe(dsn).map_or_else(|_| String::new(), |place| format!(" at {place}"));
            let advice = match error.kind() {
                ErrorKind::Unavailable if refuses_writes(&error) => NO_POSTGRES_PRIMARY,
                ErrorKind::Unavailable => "start the server, or correct the address in `store`",
                ErrorKind::Denied => {
                    "correct the role and the password in `store`, or `pg_hba.conf` of the server"
                }
                _ => "correct the URL in `store`",
            };
            let detail = format!("failed to connect to PostgreSQL{place}: {}", error.context());
            vec![Finding::fail(SUBJECT, detail, advice)]
        }
    }
}

/// Judges what a server answered.
fn judge(found: &Probe) -> Vec<Finding> {
    let mut findings = vec![server(found)];
    findings.extend(writes(found));
    findings.push(tables(found));
    findings.extend(rights(found));
    findings.extend(clock(found));
    findings.extend(connections(found));
    findings
}

fn server(found: &Probe) -> Finding {
    let Probe { place, version_text, .. } = found;
    if found.version < OLDEST_SERVER {
        let detail = format!("PostgreSQL {version_text} at {place} is too old");
        return Finding::fail(SUBJECT, detail, "upgrade the server to PostgreSQL 12 or later");
    }
    Finding::ok(SUBJECT, format!("PostgreSQL {version_text} responds at {place}"))
}

/// Judges whether the server takes writes and keeps them.
fn writes(found: &Probe) -> Option<Finding> {
    if found.is_replica {
        return Some(Finding::fail(
            SUBJECT,
            "the server is a replica: it refuses writes until it is promoted",
            "name the primary in `store`, or all hosts and `target_session_attrs=read-write`",
        ));
    }
    if found.is_read_only {
        return Some(Finding::fail(
            SUBJECT,
            "the server refuses writes: `default_transaction_read_only` is on",
            format!("run `ALTER ROLE \"{}\" SET default_transaction_read_only = off`", found.role),
        ));
    }
    (!found.is_durable).then(|| {
        Finding::warn(
            SUBJECT,
            "`fsync` or `synchronous_commit` is off: a crash of the server loses letters that were acknowledged",
            "set both to `on` for this database or role",
        )
    })
}

/// Judges the version of the tables.
fn tables(found: &Probe) -> Finding {
    let Probe { schema, role, database, .. } = found;
    match (found.tables, found.may_migrate) {
        (Some((version, usable_from)), _) if usable_from > FORMAT_VERSION => Finding::fail(
            SUBJECT,
            format!(
                "schema {schema} has version {version}, which this Lazaret cannot use: it knows {FORMAT_VERSION}"
            ),
            "use the version of Lazaret that migrated it, or a later one",
        ),
        (Some((version, _)), _) if version > FORMAT_VERSION => Finding::warn(
            SUBJECT,
            format!(
                "schema {schema} has version {version}, this Lazaret knows {FORMAT_VERSION} and can use it"
            ),
            "upgrade this instance as the others",
        ),
        (Some((FORMAT_VERSION, _)), _) => Finding::ok(
            SUBJECT,
            format!("schema {schema} has version {FORMAT_VERSION}, no migration is pending"),
        ),
        (Some((version, _)), true) => Finding::warn(
            SUBJECT,
            format!("schema {schema} has version {version}; the next start migrates it to {FORMAT_VERSION}"),
            "no action needed: instances of the version before go on working",
        ),
        (Some((version, _)), false) => Finding::fail(
            SUBJECT,
            format!(
                "schema {schema} has version {version}, this Lazaret needs {FORMAT_VERSION}, and the role {role} may not migrate it"
            ),
            "start this version once as the role that owns the tables",
        ),
        (None, true) => Finding::ok(
            SUBJECT,
            format!("schema {schema} has no tables yet; the first start creates version {FORMAT_VERSION}"),
        ),
        // Tables whose version the role may not read are a matter of grants.
        (None, false) if !found.missing_grants.is_empty() => Finding::fail(
            SUBJECT,
            format!("the version of schema {schema} cannot be read"),
            "give the role the grants below",
        ),
        (None, false) if found.has_schema => Finding::fail(
            SUBJECT,
            format!("schema {schema} has no tables yet, and the role {role} may not create them"),
            format!(
                "run `GRANT CREATE, USAGE ON SCHEMA {schema} TO \"{role}\";`, or start once as its owner"
            ),
        ),
        (None, false) => Finding::fail(
            SUBJECT,
            format!("there is no schema {schema} yet, and the role {role} may not create it"),
            format!(
                "run `CREATE SCHEMA {schema} AUTHORIZATION \"{role}\";` or `GRANT CREATE ON DATABASE \"{database}\" TO \"{role}\";`"
            ),
        ),
    }
}

/// Judges the rights on the tables, if there are any.
fn rights(found: &Probe) -> Option<Finding> {
    let role = &found.role;
    if !found.missing_grants.is_empty() {
        let detail = format!("the role {role} lacks rights on {} objects", found.missing_grants.len());
        let advice =
            format!("run as the owner of the tables:\n      {}", found.missing_grants.join("\n      "));
        return Some(Finding::fail(SUBJECT, detail, advice));
    }
    found.tables.map(|_| Finding::ok(SUBJECT, format!("the role {role} has all rights that it needs")))
}

/// Judges the difference of clocks. The server's clock decides about leases and due times, so only what people read depends on it.
fn clock(found: &Probe) -> Option<Finding> {
    let [asked, server, answered] = found.clocks;
    let behind = asked.duration_since(server);
    let ahead = server.duration_since(answered);
    let (difference, side) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (difference > CLOCK_TOLERANCE).then(|| {
        Finding::warn(
            SUBJECT,
            format!("the clock of the server is {difference:#.0} {side} that of this machine"),
            "synchronize both clocks; retries run by the clock of the server, so they only look early or late here",
        )
    })
}

/// Judges whether the connections of this process fit.
fn connections(found: &Probe) -> Option<Finding> {
    let (permitted, wanted) = found.connections;
    // One more receives notifications, and one reads values while all others are in use.
    let wanted = wanted.saturating_add(2);
    (usize::try_from(permitted).is_ok_and(|permitted| wanted > permitted)).then(|| {
        Finding::warn(
            SUBJECT,
            format!("this instance may open {wanted} connections, the server permits {permitted} in all"),
            "lower `max_connections` in the URL of `store`, or raise `max_connections` of the server",
        )
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::finding::Health;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    async fn fine() -> Option<Probe> {
        let dsn = std::env::var("LAZARET_TEST_POSTGRES").ok();
        if dsn.is_none() {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(
                !must,
                "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it"
            );
            println!(
                "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
            );
        }
        let mut found = probe(&dsn?, PROBE_TIMEOUT).await.unwrap();
        (found.tables, found.missing_grants) = (Some((FORMAT_VERSION, 1)), Vec::new());
        (found.is_durable, found.role) = (true, "app".to_owned());
        Some(found)
    }

    /// The findings that are not fine, with their advice.
    fn wrong(found: &Probe) -> Vec<(Health, String)> {
        let findings = judge(found).into_iter().filter(|finding| finding.health != Health::Ok);
        findings.map(|finding| (finding.health, finding.to_string())).collect()
    }

    #[tokio::test]
    async fn each_trouble_has_its_finding_and_advice() {
        let Some(found) = fine().await else { return };
        assert_eq!(wrong(&found), []);
        let of = |change: &dyn Fn(&mut Probe)| {
            let mut changed = found.clone();
            change(&mut changed);
            let wrong = wrong(&changed);
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            wrong.into_iter().next().unwrap()
        };
        let expect = |change: &dyn Fn(&mut Probe), health: Health, words: &str| {
            let (is, said) = of(change);
            assert!(is == health && said.contains(words), "{said}");
        };
        expect(&|it| it.version = 110_005, Health::Fail, "upgrade the server");
        expect(&|it| it.is_replica = true, Health::Fail, "target_session_attrs=read-write");
        expect(&|it| it.is_read_only = true, Health::Fail, "ALTER ROLE \"app\" SET");
        expect(&|it| it.is_durable = false, Health::Warn, "synchronous_commit");
        expect(&|it| it.tables = Some((9, 9)), Health::Fail, "cannot use");
        expect(&|it| it.tables = Some((9, 1)), Health::Warn, "can use it");
        let older = |it: &mut Probe, may: bool| (it.tables, it.may_migrate) = (Some((1, 1)), may);
        expect(&|it| older(it, true), Health::Warn, "the next start migrates");
        expect(&|it| older(it, false), Health::Fail, "may not migrate it");
        let empty =
            |it: &mut Probe, schema| (it.tables, it.may_migrate, it.has_schema) = (None, false, schema);
        expect(&|it| empty(it, true), Health::Fail, "GRANT CREATE, USAGE ON SCHEMA");
        expect(&|it| empty(it, false), Health::Fail, "CREATE SCHEMA lazaret AUTHORIZATION \"app\";");
        let grant = "GRANT INSERT ON TABLE lazaret.letters TO \"app\";";
        expect(&|it| it.missing_grants = vec![grant.to_owned()], Health::Fail, grant);
        expect(&|it| it.clocks = [at(100), at(160), at(101)], Health::Warn, "59s ahead of");
        expect(&|it| it.clocks = [at(100), at(40), at(101)], Health::Warn, "1m behind");
        expect(&|it| it.connections = (10, 10), Health::Warn, "12 connections");
    }
}
