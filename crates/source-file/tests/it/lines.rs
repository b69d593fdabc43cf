//! Tests of the file source with all kinds of lines, file ends, and files that change.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::{Anchor, Checkpoints};
use lazaret_core::{Message, Partition, Position, SystemClock, Timestamp};
use lazaret_memory::MemoryStore;
use lazaret_source_file::{FileSource, Options};
use tempfile::TempDir;

struct Bed {
    folder: TempDir,
    path: PathBuf,
    checkpoints: Arc<MemoryStore>,
}

impl Bed {
    fn new(content: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        fs::write(&path, content).unwrap();
        Self { folder, path, checkpoints: Arc::new(MemoryStore::new(Arc::new(SystemClock))) }
    }

    async fn try_open(&self, options: Options) -> Result<FileSource, SourceError> {
        FileSource::open(&self.path, self.checkpoints.clone(), "orders", options).await
    }

    async fn open(&self, options: Options) -> FileSource {
        let mut source = self.try_open(options).await.unwrap();
        assert!(matches!(next(&mut source).await, Ok(SourceEvent::Assigned(_))));
        source
    }

    async fn follow(&self) -> FileSource {
        self.open(Options { follow: true, poll: Duration::from_millis(2), ..Options::default() }).await
    }

    /// Reads all messages of the file in its current state.
    async fn all(&self, options: Options) -> Vec<Message> {
        let mut source = self.open(options).await;
        let mut all = Vec::new();
        loop {
            match next(&mut source).await.unwrap() {
                SourceEvent::Messages(messages) => all.extend(messages),
                SourceEvent::End => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(&self.path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    async fn refused(&self) -> SourceError {
        let error = self.try_open(Options::default()).await.unwrap_err();
        assert!(!error.is_temporary());
        error
    }
}

async fn next(source: &mut FileSource) -> Result<SourceEvent, SourceError> {
    tokio::time::timeout(Duration::from_secs(240), source.next()).await.expect("something comes")
}

async fn messages(source: &mut FileSource) -> Vec<Message> {
    match next(source).await.unwrap() {
        SourceEvent::Messages(messages) => messages,
        other => panic!("{other:?}"),
    }
}

fn payloads(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| std::str::from_utf8(message.payload.as_ref().unwrap()).unwrap()).collect()
}

fn why(message: &Message) -> &str {
    message.undecodable.as_deref().expect("it cannot be decoded")
}

async fn commit(source: &mut FileSource, message: &Message) {
    let position = Some(message.position.clone());
    let commit = Commit { partition: message.partition(), position, settled_beyond: vec![] };
    source.commit(vec![commit]).await.unwrap();
}

/// Settles the last message and leaves the earlier ones open.
async fn settle_last(bed: &Bed) {
    let mut source = bed.open(Options::default()).await;
    let last = messages(&mut source).await.pop().unwrap();
    let beyond = vec![last.position.offset..=last.position.offset];
    let commit = Commit { partition: last.partition(), position: None, settled_beyond: beyond };
    source.commit(vec![commit]).await.unwrap();
}

/// Lines that differ in one letter.
fn lines(letters: &str) -> String {
    letters.chars().map(|letter| format!("{{\"payload\":\"{letter}\"}}\n")).collect()
}

#[tokio::test]
async fn the_bytes_that_are_not_read_yet_are_known() {
    let bed = Bed::new("{\"id\": \"e-1\"}\n\n{\"id\": \"e-2\"}\r\n");
    let mut source = bed
        .open(Options { batch: 1, follow: true, poll: Duration::from_millis(2), ..Options::default() })
        .await;
    let progress = source.progress();
    assert_eq!(progress.bytes_behind(), Some(30));
    let first = messages(&mut source).await;
    // The empty line is not passed yet.
    assert_eq!(progress.bytes_behind(), Some(16));
    messages(&mut source).await;
    assert_eq!(progress.bytes_behind(), Some(0));
    // A line that is still being written counts as behind.
    bed.append("{\"id\": ");
    assert_eq!(progress.bytes_behind(), Some(7));
    commit(&mut source, &first[0]).await;
    source.rewind(&[source.partition()]);
    assert_eq!(progress.bytes_behind(), Some(37 - 13), "from the end of the first line");
    drop(source);
    assert_eq!(progress.bytes_behind(), None);
    // After a restart it continues from the committed position.
    assert_eq!(bed.follow().await.progress().bytes_behind(), Some(37 - 13));
}

#[tokio::test]
async fn what_was_settled_beyond_the_position_is_not_applied_to_a_file_that_was_replaced() {
    // I1: the lines of the other file at these offsets were never handled.
    for other in ["xyz", "abz", "xbc"] {
        let bed = Bed::new(lines("abc"));
        settle_last(&bed).await;
        fs::write(&bed.path, lines(other)).unwrap();
        assert!(bed.refused().await.to_string().contains("was replaced"), "{other}");
    }
    // This also holds beyond the first kilobyte.
    let (same, long) = ("a".repeat(500), |last: char| lines(&format!("{}{last}", "a".repeat(500))));
    let bed = Bed::new(long('b'));
    settle_last(&bed).await;
    fs::write(&bed.path, long('c')).unwrap();
    assert!(bed.refused().await.to_string().contains("was replaced"));
    fs::write(&bed.path, lines(&format!("{same}bd"))).unwrap();
    assert_eq!(bed.all(Options::default()).await.len(), 502, "lines that were appended change nothing");
}

#[tokio::test]
async fn what_was_settled_beyond_the_position_is_not_applied_to_a_file_that_was_cut() {
    // I1
    let bed = Bed::new(lines("abc"));
    settle_last(&bed).await;
    fs::write(&bed.path, lines("ab")).unwrap();
    let error = bed.refused().await.to_string();
    assert!(error.contains("was truncated"), "{error}");
}

#[tokio::test]
async fn an_explicit_id_is_never_that_of_a_line_without_one() {
    // I8: if two messages had the same letter, one would be lost.
    let first = r#"{"id":"0:42","payload":1}"#;
    let bed = Bed::new(format!("{first}\n{{\"payload\":2222}}\n"));
    let all = bed.all(Options::default()).await;
    assert_eq!(all[1].id.as_str(), "0:42", "the position is the id");
    assert_eq!(all[0].id.as_str(), "=0:42");
}

#[tokio::test]
async fn lines_come_with_what_they_say() {
    let bed = Bed::new(concat!(
        r#"{"id":"e-1","key":"order-7","type":"OrderPlaced","headers":{"a":"b"},"time":"2026-01-01T00:00:00Z","payload":{"x": 1}}"#,
        "\n",
        r#"{"payload":null}"#,
        "\n"
    ));
    let all = bed.all(Options::default()).await;
    let first = &all[0];
    assert_eq!((first.id.as_str(), first.stream.as_str()), ("e-1", "events.jsonl"));
    assert_eq!(
        (first.key.as_deref(), first.event_type.as_deref()),
        (Some(&b"order-7"[..]), Some("OrderPlaced"))
    );
    assert_eq!(first.headers.get_str("a"), Some("b"));
    assert_eq!(first.timestamp, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!(first.content_type.as_deref(), Some("application/json"));
    assert_eq!(payloads(&all), [r#"{"x": 1}"#, "null"]);
    let second = &all[1];
    assert_eq!(second.id.as_str(), second.position.to_string(), "the position is the id");
    assert_eq!(second.key, None);
}

#[tokio::test]
async fn a_bad_line_is_a_message_and_the_next_goes_on() {
    let bed = Bed::new(b"oops\n{\"payload\":1}\n\xff\xfe\n{\"payload\":\n[1]\n{\"payload\":2}\n");
    let all = bed.all(Options::default()).await;
    assert_eq!(all.len(), 6);
    let raw: Vec<&[u8]> = all.iter().map(|message| message.payload.as_deref().unwrap()).collect();
    assert_eq!(raw, [&b"oops"[..], b"1", b"\xff\xfe", b"{\"payload\":", b"[1]", b"2"]);
    let bad: Vec<bool> = all.iter().map(|message| message.undecodable.is_some()).collect();
    assert_eq!(bad, [true, false, true, true, true, false]);
    assert_eq!(why(&all[2]), "not UTF-8: the byte at 0 does not fit");
    assert_eq!(all[0].id.as_str(), "0:4");
}

#[tokio::test]
async fn line_ends_and_empty_lines_do_not_matter() {
    let plain = Bed::new("{\"payload\":1}\n{\"payload\":2}");
    let other = Bed::new("\u{feff}{\"payload\":1}\r\n\r\n  \t\n\n{\"payload\":2}\r\n\n");
    assert_eq!(payloads(&plain.all(Options::default()).await), ["1", "2"]);
    assert_eq!(payloads(&other.all(Options::default()).await), ["1", "2"]);
}

#[tokio::test]
async fn an_empty_file_ends() {
    for content in ["", "\n", "\r\n\n"] {
        assert_eq!(Bed::new(content).all(Options::default()).await, []);
    }
}

#[tokio::test]
async fn the_place_of_the_last_line_does_not_depend_on_its_end() {
    let mut places = Vec::new();
    for end in ["", "\n", "\r\n"] {
        let bed = Bed::new(format!("{{\"payload\":1}}{end}"));
        places.push(bed.all(Options::default()).await[0].position.offset);
    }
    assert_eq!(places, [13, 13, 13]);
}

#[tokio::test]
async fn a_line_that_got_its_end_later_is_not_repeated() {
    let bed = Bed::new("{\"payload\":1}");
    let mut source = bed.open(Options::default()).await;
    let got = messages(&mut source).await;
    commit(&mut source, &got[0]).await;
    drop(source);
    bed.append("\r\n{\"payload\":2}\n");
    assert_eq!(payloads(&bed.all(Options::default()).await), ["2"]);
}

#[tokio::test]
async fn lines_longer_than_any_buffer_come_whole() {
    let long = "x".repeat(3_000_000);
    let bed = Bed::new(format!("{{\"payload\":\"{long}\"}}\n{{\"payload\":1}}\n{{\"payload\":\"{long}\"}}"));
    let all = bed.all(Options::default()).await;
    let quoted = format!("\"{long}\"");
    assert_eq!(payloads(&all), [quoted.as_str(), "1", quoted.as_str()]);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_cut_and_the_next_goes_on() {
    // I7
    for (length, end) in [(101, "\n"), (102, "\r\n"), (300_000, "\n"), (300_000, "\r\n"), (9_000_000, "\n")] {
        let bed = Bed::new(format!("{{\"payload\":1}}\n{}{end}{{\"payload\":2}}\n", "x".repeat(length)));
        let all = bed.all(Options { max_line: 100, ..Options::default() }).await;
        assert_eq!(all.len(), 3, "{length}");
        assert_eq!(all[1].payload.as_deref(), Some("x".repeat(100).as_bytes()));
        assert_eq!(why(&all[1]), "the line is longer than 100 bytes and was truncated");
        assert_eq!(all[1].position.offset, 14 + length as u64, "its place is its end, without the line end");
        assert_eq!(payloads(&all[2..]), ["2"]);
    }
}

#[tokio::test]
async fn a_line_of_exactly_the_allowed_length_is_read() {
    let line = format!("{{\"payload\":\"{}\"}}", "x".repeat(300_000));
    for end in ["", "\n", "\r\n"] {
        let bed = Bed::new(format!("{line}{end}"));
        let all = bed.all(Options { max_line: line.len(), ..Options::default() }).await;
        assert_eq!((all.len(), all[0].undecodable.as_deref()), (1, None));
        let all = bed.all(Options { max_line: line.len() - 1, ..Options::default() }).await;
        assert_eq!((all.len(), all[0].undecodable.is_some()), (1, true));
    }
}

#[tokio::test]
async fn a_too_long_last_line_without_an_end_is_taken() {
    let bed = Bed::new("x".repeat(700_000));
    let all = bed.all(Options { max_line: 10, ..Options::default() }).await;
    assert_eq!(all[0].payload.as_deref(), Some(&b"xxxxxxxxxx"[..]));
    assert_eq!(all[0].position.offset, 700_000);
}

#[tokio::test]
async fn what_is_committed_is_not_repeated_wherever_it_was() {
    // I1: exactly the remaining messages, from every position.
    let content: String = (0..40).map(|n| format!("{{\"payload\":{n}}}\n")).collect();
    for number in [0, 1, 17, 38, 39] {
        let bed = Bed::new(&content);
        let mut source = bed.open(Options::default()).await;
        let got = messages(&mut source).await;
        commit(&mut source, &got[number]).await;
        drop(source);
        let rest: Vec<String> = (number + 1..40).map(|n| n.to_string()).collect();
        assert_eq!(payloads(&bed.all(Options::default()).await), rest);
    }
}

#[tokio::test]
async fn a_followed_file_waits_for_the_rest_of_a_line() {
    let bed = Bed::new("{\"payload\":1}\n{\"pay");
    let mut source = bed.follow().await;
    assert_eq!(payloads(&messages(&mut source).await), ["1"]);
    let waited = tokio::time::timeout(Duration::from_millis(50), source.next()).await;
    assert!(waited.is_err(), "half a line is nothing");
    bed.append("load\":2}");
    let waited = tokio::time::timeout(Duration::from_millis(50), source.next()).await;
    assert!(waited.is_err(), "it may still go on");
    bed.append("\n");
    assert_eq!(payloads(&messages(&mut source).await), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn a_followed_file_is_looked_at_however_often_the_wait_is_broken_off() {
    let bed = Bed::new("");
    let poll = Duration::from_secs(1);
    let mut source = bed.open(Options { follow: true, poll, ..Options::default() }).await;
    // The engine polls again after every other event, which may be more often than the file is checked.
    let often = poll / 5;
    assert!(tokio::time::timeout(often, source.next()).await.is_err(), "there is nothing");
    bed.append("{\"payload\":1}\n");
    let mut found = Vec::new();
    for _ in 0..10 {
        if let Ok(event) = tokio::time::timeout(often, source.next()).await
            && let SourceEvent::Messages(messages) = event.unwrap()
        {
            found = messages;
        }
    }
    assert_eq!(payloads(&found), ["1"]);
}

#[tokio::test]
async fn a_finite_file_ends_once_and_again_after_a_rewind() {
    let bed = Bed::new("{\"payload\":1}\n");
    let mut source = bed.open(Options::default()).await;
    assert_eq!(messages(&mut source).await.len(), 1);
    assert!(matches!(next(&mut source).await, Ok(SourceEvent::End)));
    let waited = tokio::time::timeout(Duration::from_millis(50), source.next()).await;
    assert!(waited.is_err(), "it ends once");
    source.rewind(&[source.partition()]);
    assert!(matches!(next(&mut source).await, Ok(SourceEvent::Assigned(_))));
    assert_eq!(messages(&mut source).await.len(), 1);
    assert!(matches!(next(&mut source).await, Ok(SourceEvent::End)));
}

#[tokio::test]
async fn a_paused_file_does_not_end() {
    let bed = Bed::new("{\"payload\":1}\n");
    let mut source = bed.open(Options::default()).await;
    source.pause(&[source.partition()]);
    let waited = tokio::time::timeout(Duration::from_millis(50), source.next()).await;
    assert!(waited.is_err());
    source.resume(&[Partition::new("other", 0)]);
    let waited = tokio::time::timeout(Duration::from_millis(50), source.next()).await;
    assert!(waited.is_err(), "somebody else's partition was resumed");
    source.resume(&[source.partition()]);
    assert_eq!(messages(&mut source).await.len(), 1);
    assert!(matches!(next(&mut source).await, Ok(SourceEvent::End)));
}

#[tokio::test]
async fn a_source_that_was_closed_says_so() {
    let bed = Bed::new("");
    let mut source = bed.open(Options::default()).await;
    source.close().await.unwrap();
    assert!(next(&mut source).await.unwrap_err().to_string().ends_with("the source was closed"));
}

#[tokio::test]
async fn a_followed_file_that_is_cut_stops_the_source() {
    let bed = Bed::new("{\"payload\":1}\n{\"payload\":2}\n");
    let mut source = bed.follow().await;
    assert_eq!(messages(&mut source).await.len(), 2);
    fs::write(&bed.path, "{\"payload\":1}\n").unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(error.to_string().contains("was truncated: it has 14 bytes, but was read up to 28"), "{error}");
    assert!(!error.is_temporary());
}

#[tokio::test]
async fn a_followed_file_that_is_written_anew_stops_the_source() {
    let bed = Bed::new("{\"payload\":1}\n");
    let mut source = bed.follow().await;
    assert_eq!(messages(&mut source).await.len(), 1);
    // The same file with more content: only its first bytes reveal the change.
    fs::write(&bed.path, "{\"payload\":7}\n{\"payload\":8}\n{\"payload\":9}\n").unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(error.to_string().contains("was replaced"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_followed_file_that_is_rotated_stops_the_source() {
    let bed = Bed::new("{\"payload\":1}\n");
    let mut source = bed.follow().await;
    assert_eq!(messages(&mut source).await.len(), 1);
    let old = bed.folder.path().join("events.1");
    // Just before, a line is written to the old file: it is read first.
    bed.append("{\"payload\":2}\n");
    fs::rename(&bed.path, &old).unwrap();
    assert_eq!(payloads(&messages(&mut source).await), ["2"]);
    let error = next(&mut source).await.unwrap_err();
    assert!(error.to_string().contains("was removed or renamed"), "{error}");
    fs::copy(&old, &bed.path).unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(error.to_string().contains("was replaced"), "{error}");
}

#[tokio::test]
async fn a_file_that_shrank_is_refused() {
    let bed = Bed::new("{\"payload\":1}\n{\"payload\":2}\n");
    let mut source = bed.open(Options::default()).await;
    let got = messages(&mut source).await;
    commit(&mut source, &got[1]).await;
    drop(source);
    fs::write(&bed.path, "{\"payload\":1}\n").unwrap();
    let error = bed.refused().await.to_string();
    assert!(error.contains("was truncated: it has 14 bytes, but was read up to 27"), "{error}");
}

#[tokio::test]
async fn another_file_under_the_name_is_refused() {
    let bed = Bed::new("{\"payload\":1}\n{\"payload\":2}\n");
    let mut source = bed.open(Options::default()).await;
    let got = messages(&mut source).await;
    commit(&mut source, &got[1]).await;
    drop(source);
    fs::write(&bed.path, "{\"payload\":7}\n{\"payload\":8}\n{\"payload\":9}\n").unwrap();
    let error = bed.refused().await.to_string();
    assert!(error.contains("was replaced"), "{error}");
    bed.checkpoints.delete("orders").await.unwrap();
    assert_eq!(payloads(&bed.all(Options::default()).await), ["7", "8", "9"], "as the error says");
}

#[tokio::test]
async fn a_checkpoint_of_something_else_is_refused() {
    let bed = Bed::new("");
    let anchor = Anchor { token: "8263".into(), at: Timestamp::now() };
    bed.checkpoints.save_processed("orders", anchor, None).await.unwrap();
    let error = bed.refused().await.to_string();
    assert!(error.contains("the checkpoint orders does not belong to a file source"), "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_says_why() {
    let mut bed = Bed::new("");
    bed.path = bed.folder.path().join("missing.jsonl");
    let error = bed.refused().await.to_string();
    assert!(error.contains("failed to read") && error.contains("missing.jsonl"), "{error}");
    bed.path = bed.folder.path().to_owned();
    let error = bed.refused().await.to_string();
    assert!(error.contains("is not a regular file"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_to_be_followed_may_come_later() {
    let mut bed = Bed::new("");
    bed.path = bed.folder.path().join("later.jsonl");
    let following = Options { follow: true, ..Options::default() };
    let error = bed.try_open(following.clone()).await.err().unwrap();
    assert!(error.is_temporary() && error.is_waiting(), "{error}");
    assert!(error.to_string().ends_with("does not exist yet, and `follow` is set"), "{error}");
    let error = bed.refused().await;
    assert!(!error.is_temporary(), "one that is read to its end has to be there: {error}");
    fs::write(&bed.path, "{\"payload\":1}\n").unwrap();
    bed.try_open(following).await.unwrap();
}

#[tokio::test]
async fn a_stream_may_be_named() {
    let bed = Bed::new("{\"payload\":1}\n");
    let all = bed.all(Options { stream: Some("orders".into()), ..Options::default() }).await;
    assert_eq!((all[0].stream.as_str(), &all[0].position), ("orders", &Position::new(0, 13)));
}
