//! Judges what a MongoDB server answered to the doctor.

use std::time::Duration;

use bson::{Bson, Document};
use jiff::{SignedDuration, Timestamp};
use lazaret_config::{BeforeChange, FullDocument, HistoryLost, MongodbSource as From};
use lazaret_source_mongodb::{ErrorClass, ProbeError, Probed};

use super::finding::Finding;

/// The tolerated difference of clocks.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// A position must stay in the oplog for at least this many heartbeats.
const HEARTBEATS_IN_WINDOW: u32 = 12;

/// Shorter than this, and an outage of an hour loses changes.
const SHORT_WINDOW: Duration = Duration::from_secs(2 * 3600);

/// What a user needs to do with the collections of the store.
const STORE_ACTIONS: [&str; 6] = ["find", "insert", "update", "remove", "createIndex", "listIndexes"];

/// What a user needs to learn how much room the store takes.
const SIZE_ACTION: &str = "collStats";

/// The times around a reading of the server's clock.
pub(super) struct Clock {
    pub(super) asked: Timestamp,
    pub(super) answered: Timestamp,
    pub(super) server: Option<Timestamp>,
}

/// The kind of a server.
#[derive(Debug, PartialEq, Eq)]
enum Kind<'a> {
    ReplicaSet(&'a str),
    Sharded,
    Unknown,
}

fn kind(hello: &Document) -> Kind<'_> {
    match (hello.get_str("setName"), hello.get_str("msg")) {
        (Ok(name), _) => Kind::ReplicaSet(name),
        (_, Ok("isdbgrid")) => Kind::Sharded,
        _ => Kind::Unknown,
    }
}

/// Returns whether a server is a router of a sharded cluster.
pub(super) fn is_router(hello: &Document) -> bool {
    kind(hello) == Kind::Sharded
}

/// Judges the kind of the server of a source.
pub(super) fn deployment(subject: &str, hello: &Document, is_open: bool) -> Finding {
    match kind(hello) {
        Kind::ReplicaSet(name) => {
            Finding::ok(subject, format!("the server is a member of the replica set {name}"))
        }
        Kind::Sharded => Finding::ok(subject, "the server is a router of a sharded cluster"),
        Kind::Unknown if is_open => Finding::warn(
            subject,
            "the change stream can be opened, but the server names no replica set",
            "no action needed if it is not a MongoDB server; otherwise check that positions survive a restart of it",
        ),
        Kind::Unknown => Finding::fail(
            subject,
            "the server is not a member of a replica set, so it has no change streams",
            "start it with `--replSet`, and run `rs.initiate()`; a single member is enough",
        ),
    }
}

/// Returns whether a server that answers with such an error has change streams, and this user may open them.
pub(super) const fn is_served(class: ErrorClass) -> bool {
    use ErrorClass::{EventTooLarge, ImageMissing, ServerBehind, StreamBroken};
    class.is_position_refused() || matches!(class, EventTooLarge | ImageMissing | ServerBehind | StreamBroken)
}

/// Judges whether the change stream can be opened and read, where the source would continue.
pub(super) fn stream(subject: &str, from: &From, opened: Result<Probed, ProbeError>) -> Finding {
    let error = match opened {
        Ok(Probed { resumes, excludes_store }) => {
            let place = if resumes { "behind its checkpoint" } else { "without a checkpoint" };
            let without = if excludes_store { "; it leaves out the collections of the store" } else { "" };
            return Finding::ok(subject, format!("the change stream can be opened {place}{without}"));
        }
        Err(error) => error,
    };
    let ProbeError { class, detail, .. } = error;
    let consequence = match from.on_history_lost {
        HistoryLost::FromNow => Some("continues from now, and what lies between is skipped"),
        HistoryLost::FromOplogStart => Some("continues at the oldest entry of the oplog"),
        _ => None,
    };
    if let Some(consequence) = consequence.filter(|_| class.is_position_refused()) {
        let detail = format!("the position of the checkpoint is refused: {detail}; the source {consequence}");
        return Finding::warn(subject, detail, class.advice());
    }
    let advice = match class {
        ErrorClass::Resumable | ErrorClass::Unknown => "check the server; the source would try again",
        ErrorClass::Fatal => "correct the keys of the source that the cause names",
        other => other.advice(),
    };
    let what = match is_served(class) {
        true => "the change stream cannot be read behind its checkpoint",
        false => "failed to open the change stream",
    };
    Finding::fail(subject, format!("{what}: {detail}"), advice)
}

/// Judges the watched collection.
pub(super) fn collection(
    subject: &str,
    from: &From,
    described: Result<Option<Document>, String>,
) -> Vec<Finding> {
    let (database, name) =
        (from.database.as_deref().unwrap_or_default(), from.collection.as_deref().unwrap_or_default());
    match described {
        Err(why) => vec![Finding::warn(
            subject,
            format!("whether {database}.{name} exists could not be checked: {why}"),
            "grant `listCollections` on the database to check it",
        )],
        Ok(None) => vec![Finding::warn(
            subject,
            format!("{database}.{name} does not exist yet"),
            "no action needed if it is created later; otherwise correct `database` and `collection`",
        )],
        Ok(Some(described)) => {
            let exists = Finding::ok(subject, format!("{database}.{name} exists"));
            [exists].into_iter().chain(images(subject, from, &described)).collect()
        }
    }
}

/// Judges whether a collection stores the images that the source asks for.
fn images(subject: &str, from: &From, described: &Document) -> Option<Finding> {
    let is_required =
        from.full_document == FullDocument::Required || from.before_change == BeforeChange::Required;
    let is_asked = is_required
        || from.full_document == FullDocument::WhenAvailable
        || from.before_change == BeforeChange::WhenAvailable;
    let options = described.get_document("options").ok();
    let images = options.and_then(|options| options.get_document("changeStreamPreAndPostImages").ok());
    let is_enabled = images.is_some_and(|images| images.get_bool("enabled").unwrap_or(false));
    let advice = format!(
        "run `db.runCommand({{ collMod: \"{}\", changeStreamPreAndPostImages: {{ enabled: true }} }})`",
        from.collection.as_deref().unwrap_or_default()
    );
    match (is_asked, is_enabled, is_required) {
        (false, _, _) => None,
        (true, true, _) => Some(Finding::ok(subject, "the collection stores images of its documents")),
        (true, false, true) => {
            let detail = "images of documents are required, and the collection stores none";
            Some(Finding::fail(subject, detail, advice))
        }
        (true, false, false) => {
            let detail = "images of documents are asked for, and the collection stores none";
            Some(Finding::warn(subject, detail, advice))
        }
    }
}

/// Judges whether a position stays in the oplog: its oldest and newest entry, in seconds.
pub(super) fn oplog(
    subject: &str,
    window: Result<Option<(u32, u32)>, String>,
    heartbeat: Option<Duration>,
) -> Finding {
    let unknown = |why: &str| {
        let detail = format!("the length of the oplog could not be checked: {why}");
        let advice =
            "no action needed; to check it, connect to a replica set and grant `find` on `local.oplog.rs`";
        Finding::warn(subject, detail, advice)
    };
    let length = match window {
        Ok(Some((oldest, newest))) => Duration::from_secs(newest.saturating_sub(oldest).into()),
        Ok(None) => return unknown("the server has no `local.oplog.rs`"),
        Err(why) => return unknown(&why),
    };
    let shown = hours(length);
    let Some(heartbeat) = heartbeat else {
        let detail = format!(
            "the oplog holds {shown}, and `idle-heartbeat` is off: the position of a stream without changes falls out of it"
        );
        return Finding::warn(subject, detail, "set `checkpoint.idle-heartbeat`, for example to 5m");
    };
    if length < heartbeat.saturating_mul(HEARTBEATS_IN_WINDOW) {
        let detail =
            format!("the oplog holds {shown}, which is short for an `idle-heartbeat` of {heartbeat:?}");
        return Finding::warn(subject, detail, "enlarge the oplog, or shorten `checkpoint.idle-heartbeat`");
    }
    if length < SHORT_WINDOW {
        let detail = format!("the oplog holds {shown}: a longer outage of this daemon loses changes");
        return Finding::warn(
            subject,
            detail,
            "enlarge the oplog; no action needed if it is new and still fills",
        );
    }
    Finding::ok(subject, format!("the oplog holds {shown}"))
}

fn hours(length: Duration) -> String {
    let minutes = length.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, _) if hours >= 48 => format!("{} days", hours / 24),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// Judges the clock of the server against that of this machine. Leases and due times go by the clock of the store.
pub(super) fn clock(subject: &str, clock: Clock) -> Option<Finding> {
    let Some(server) = clock.server else {
        let detail = "the clock of the server could not be checked: it does not tell its time";
        return Some(Finding::warn(subject, detail, "no action needed"));
    };
    let ahead = server.duration_since(clock.answered);
    let behind = clock.asked.duration_since(server);
    let (difference, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (difference > CLOCK_TOLERANCE).then(|| {
        let seconds = difference.as_secs();
        let detail = format!("the clock of the server is {seconds} s {word} the clock of this machine");
        Finding::warn(subject, detail, "synchronise the clocks, for example with NTP")
    })
}

/// Judges the kind of the server of a store.
pub(super) fn store_deployment(addresses: &str, database: &str, hello: &Document) -> Finding {
    let at = format!("the database {database} at {addresses} responds");
    match kind(hello) {
        Kind::ReplicaSet(name) => Finding::ok("store", format!("{at}, replica set {name}")),
        Kind::Sharded => Finding::ok("store", format!("{at}, sharded cluster")),
        Kind::Unknown => Finding::warn(
            "store",
            format!("{at}, but the server names no replica set"),
            "use a replica set: without one, a write that was acknowledged can be lost with its server",
        ),
    }
}

/// Judges the rights of the user of a store.
pub(super) fn store_rights(database: &str, collection: &str, status: Result<Document, String>) -> Finding {
    let unknown = |why: &str| {
        let detail = format!("the rights of the user could not be checked: {why}");
        Finding::warn("store", detail, "make sure that the user has `readWrite` on the database")
    };
    let status = match status {
        Ok(status) => status,
        Err(why) => return unknown(&why),
    };
    let Ok(info) = status.get_document("authInfo") else {
        return unknown("the server does not tell them");
    };
    if info.get_array("authenticatedUsers").is_ok_and(|users| users.is_empty()) {
        return Finding::ok(
            "store",
            "the connection is not authenticated, so the server decides what it may do",
        );
    }
    let Ok(privileges) = info.get_array("authenticatedUserPrivileges") else {
        return unknown("the server does not list them");
    };
    let missing: Vec<&str> = STORE_ACTIONS
        .into_iter()
        .filter(|action| !permits(privileges, database, collection, action))
        .collect();
    if missing.is_empty() && !permits(privileges, database, collection, SIZE_ACTION) {
        let detail =
            format!("the user lacks {SIZE_ACTION} on {database}.{collection}: `max-bytes` is not checked");
        return Finding::warn("store", detail, "grant it, or write `max-bytes: unlimited` in `dead-letter`");
    }
    if missing.is_empty() {
        return Finding::ok("store", format!("the user may read and write the database {database}"));
    }
    let detail = format!("the user lacks {} on {database}.{collection}", missing.join(", "));
    Finding::fail("store", detail, "grant `readWrite` on the database to this user")
}

/// Returns whether one of the privileges permits an action on a collection.
fn permits(privileges: &[Bson], database: &str, collection: &str, action: &str) -> bool {
    privileges.iter().filter_map(Bson::as_document).any(|privilege| {
        let covers = privilege.get_document("resource").is_ok_and(|resource| {
            // An empty name stands for all.
            let fits = |key: &str, name: &str| {
                resource.get_str(key).is_ok_and(|granted| granted.is_empty() || granted == name)
            };
            resource.get_bool("anyResource").unwrap_or(false)
                || (fits("db", database) && fits("collection", collection))
        });
        let actions = privilege.get_array("actions");
        covers && actions.is_ok_and(|actions| actions.iter().any(|granted| granted.as_str() == Some(action)))
    })
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use lazaret_config::{NoEnv, Source, check};

    use super::*;
    use crate::doctor::Health;

    fn source(keys: &str) -> From {
        let text = format!(
            "consumers:\n  x:\n    handler: {{ command: {{ program: [x] }} }}\n    source:\n      mongodb: {{ uri: 'mongodb://h', database: shop, collection: orders, {keys} }}\n"
        );
        let config = check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap();
        match &config.consumers[0].source {
            Source::Mongodb(from) => from.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_standalone_server_without_streams_fails() {
        let table = [
            (doc! { "setName": "rs0" }, false, Health::Ok),
            (doc! { "msg": "isdbgrid" }, false, Health::Ok),
            (doc! {}, true, Health::Warn),
            (doc! {}, false, Health::Fail),
        ];
        for (hello, is_open, health) in table {
            let found = deployment("s", &hello, is_open);
            assert_eq!(found.health, health, "{found}");
            assert_eq!(found.advice.is_some(), health != Health::Ok);
        }
    }

    #[test]
    fn the_advice_for_a_stream_that_cannot_be_opened_depends_on_the_cause() {
        for (class, words) in [
            (ErrorClass::Unauthorized, "changeStream"),
            (ErrorClass::NotAReplicaSet, "--replSet"),
            (ErrorClass::InvalidPipeline, "pipeline"),
            (ErrorClass::ServerTooOld, "MongoDB 6.0"),
            (ErrorClass::EventTooLarge, "$project"),
            (ErrorClass::HistoryLost, "on-history-lost"),
            (ErrorClass::Unknown, "try again"),
        ] {
            let found = stream("s", &source(""), Err(ProbeError::new(class, "why")));
            assert!(found.health == Health::Fail && found.detail.ends_with("why"), "{found}");
            assert!(found.advice.unwrap().contains(words), "{class:?}");
        }
    }

    #[test]
    fn a_lost_position_and_an_event_that_cannot_be_read_are_not_ok() {
        let judge = |keys: &str, class| stream("s", &source(keys), Err(ProbeError::new(class, "gone")));
        for class in [ErrorClass::HistoryLost, ErrorClass::TokenRefused, ErrorClass::HistoryReplaced] {
            assert!(is_served(class));
            assert_eq!(judge("on-history-lost: fail", class).health, Health::Fail);
            let decided = judge("on-history-lost: from-now", class);
            assert!(decided.health == Health::Warn && decided.detail.contains("is skipped"), "{decided}");
            let decided = judge("on-history-lost: from-oplog-start", class);
            assert!(decided.health == Health::Warn && decided.detail.contains("oldest entry"), "{decided}");
        }
        assert!(is_served(ErrorClass::EventTooLarge) && !is_served(ErrorClass::Unauthorized));
        assert_eq!(judge("on-history-lost: from-now", ErrorClass::EventTooLarge).health, Health::Fail);
    }

    #[test]
    fn a_stream_that_can_be_opened_says_where_and_what_it_leaves_out() {
        let judge =
            |resumes, excludes_store| stream("s", &source(""), Ok(Probed { resumes, excludes_store })).detail;
        assert!(judge(true, false).ends_with("behind its checkpoint"));
        assert!(judge(false, false).ends_with("without a checkpoint"));
        assert!(judge(true, true).ends_with("leaves out the collections of the store"));
    }

    #[test]
    fn a_position_must_stay_in_the_oplog() {
        let hour = 3600;
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        let table = [
            (Ok(Some((0, 24 * hour))), minutes(5), Health::Ok, "24 h 0 min"),
            (Ok(Some((0, 72 * hour))), minutes(5), Health::Ok, "3 days"),
            (Ok(Some((0, hour))), minutes(5), Health::Warn, "loses changes"),
            (Ok(Some((0, 24 * hour))), minutes(600), Health::Warn, "short for"),
            (Ok(Some((0, 24 * hour))), None, Health::Warn, "falls out"),
            (Ok(None), minutes(5), Health::Warn, "could not be checked"),
            (Err("denied".to_owned()), minutes(5), Health::Warn, "could not be checked: denied"),
        ];
        for (window, heartbeat, health, words) in table {
            let found = oplog("s", window, heartbeat);
            assert!(found.health == health && found.detail.contains(words), "{found}");
        }
    }

    #[test]
    fn a_difference_of_clocks_is_told_with_its_direction() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let judge = |server| clock("s", Clock { asked: at(100), answered: at(103), server });
        assert_eq!(judge(Some(at(101))), None);
        assert_eq!(judge(Some(at(105))), None, "within the tolerance");
        assert!(judge(Some(at(113))).unwrap().detail.contains("10 s ahead of"));
        assert!(judge(Some(at(90))).unwrap().detail.contains("10 s behind"));
        assert!(judge(None).unwrap().detail.contains("could not be checked"));
    }

    #[test]
    fn images_that_are_required_must_be_stored() {
        let with = doc! { "options": { "changeStreamPreAndPostImages": { "enabled": true } } };
        let without = doc! { "options": {} };
        let judge = |keys: &str, described: &Document| {
            let found = collection("s", &source(keys), Ok(Some(described.clone())));
            found.get(1).map(|found| found.health)
        };
        assert_eq!(judge("full-document: required", &without), Some(Health::Fail));
        assert_eq!(judge("full-document-before-change: required", &without), Some(Health::Fail));
        assert_eq!(judge("full-document-before-change: required", &with), Some(Health::Ok));
        assert_eq!(judge("full-document: when-available", &without), Some(Health::Warn));
        assert_eq!(judge("full-document: update-lookup", &without), None);
        let missing = collection("s", &source(""), Ok(None));
        assert!(missing[0].health == Health::Warn && missing[0].detail.contains("does not exist yet"));
    }

    #[test]
    fn missing_rights_are_named() {
        let user = |privileges: Vec<Document>| {
            doc! { "authInfo": { "authenticatedUsers": [{ "user": "a", "db": "admin" }], "authenticatedUserPrivileges": privileges } }
        };
        let judge = |status: Document| store_rights("lazaret", "_fw_dlq", Ok(status));
        let all = [&STORE_ACTIONS[..], &[SIZE_ACTION]].concat();
        let on = |db: &str, collection: &str, actions: &[&str]| {
            doc! { "resource": { "db": db, "collection": collection }, "actions": actions.to_vec() }
        };
        assert_eq!(judge(user(vec![on("lazaret", "", &all)])).health, Health::Ok);
        assert_eq!(judge(user(vec![on("", "", &all)])).health, Health::Ok);
        let any = doc! { "resource": { "anyResource": true }, "actions": all.clone() };
        assert_eq!(judge(user(vec![any])).health, Health::Ok);
        assert_eq!(judge(user(vec![on("other", "", &all)])).health, Health::Fail);
        let unmeasured = judge(user(vec![on("lazaret", "", &STORE_ACTIONS)]));
        assert!(
            unmeasured.health == Health::Warn && unmeasured.detail.contains("`max-bytes` is not checked")
        );
        let reader = judge(user(vec![on("lazaret", "", &["find", "listIndexes"])]));
        assert!(
            reader.health == Health::Fail && reader.detail.contains("insert, update, remove, createIndex")
        );
        assert_eq!(judge(doc! { "authInfo": { "authenticatedUsers": [] } }).health, Health::Ok);
        let unknown = store_rights("lazaret", "_fw_dlq", Err("no such command".into()));
        assert!(unknown.health == Health::Warn && unknown.detail.contains("could not be checked"));
    }
}
