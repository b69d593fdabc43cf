//! Content in the files of a daemon, with encryption.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Folder, ask, get, wait_for};

/// It is in the payload, in a header, and in what the handler says.
const SECRET: &str = "PAN-4111-1111";

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:data/lazaret.db
flight-recorder: data/flight
encryption: { keys: [{ file: one.key }] }
consumers:
  shop:
    source: { inbox: {} }
    handler: { command: { program: [sh, fail.sh] } }
    retry: { max-attempts: 2, initial-delay: 1ms }
";

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("data")).unwrap();
    folder.write("lazaret.yaml", CONFIG);
    folder.write("fail.sh", &format!("cat >/dev/null\necho 'no account for {SECRET}' >&2\nexit 75\n"));
    for (name, digit) in [("one.key", "1"), ("two.key", "2")] {
        folder.write(name, &digit.repeat(64));
    }
    folder
}

/// The files that hold the secret.
fn leaks(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(leaks(&path));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        if bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn post(address: &str, id: &str) -> u16 {
    let headers = format!(
        "lazaret-id: {id}\r\nlazaret-key: k-{id}\r\nlazaret-header-card: {SECRET}\r\ncontent-type: application/json\r\n"
    );
    ask(address, "POST", "/v1/inbox/shop", &headers, &format!("{{\"card\": \"{SECRET}\"}}")).0
}

/// The dead letters whose error, header and payload have the secret.
fn found(address: &str) -> usize {
    let query = format!(
        "error:%22{SECRET}%22%20header.card:%22{SECRET}%22%20payload./card:%22{SECRET}%22%20state:dead"
    );
    let (status, body) = get(address, &format!("/v1/letters/count?q={query}"));
    assert_eq!(status, 200, "{body}");
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    usize::try_from(answer["letters"].as_u64().unwrap()).unwrap()
}

fn doctor(folder: &Folder) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

/// Lets a daemon encrypt the store of a folder, and examines the store before that, and then with the right key, with another one and with
/// none. The source ends.
#[cfg(any(feature = "mongodb", feature = "postgres"))]
pub(crate) fn examine_keys(folder: &Folder) {
    let config = folder.read("lazaret.yaml");
    let with = |keys: &str| folder.write("lazaret.yaml", &format!("{config}{keys}"));
    let (one, two) =
        ("encryption: { keys: [{ file: one.key }] }\n", "encryption: { keys: [{ file: two.key }] }\n");
    for (name, digit) in [("one.key", "1"), ("two.key", "2")] {
        folder.write(name, &digit.repeat(64));
    }
    with(one);
    let (text, _) = doctor(folder);
    assert!(!text.contains("data keys") && !text.contains("FAIL"), "there are none yet: {text}");
    assert_eq!(folder.run(&["run", "--until-idle"]), 0, "{}", folder.read("stderr.log"));
    let (text, code) = doctor(folder);
    assert!(text.contains("ok    encryption: the keys decrypt the 1 data keys of the store"), "{text}");
    assert!(code == Some(0) && !text.contains("FAIL"), "{text}");
    for (keys, why) in [(two, "the configured keys are k_"), ("", "no key is configured")] {
        with(keys);
        let (text, code) = doctor(folder);
        let is_told =
            |line: &str| line.starts_with("FAIL  encryption: the store holds values") && line.contains(why);
        assert!(code == Some(1) && text.lines().any(is_told), "{text}");
        assert_eq!(folder.run(&["run", "--until-idle"]), 1, "the daemon refuses to start as well");
    }
}

#[test]
fn no_file_of_a_daemon_shows_content_and_only_the_right_key_opens_it() {
    let folder = folder();
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    assert_eq!((post(&address, "e-1"), post(&address, "e-1"), post(&address, "e-2")), (202, 200, 202));
    wait_for("two dead letters", || (found(&address) == 2).then_some(()));
    let (_, groups) = get(&address, "/v1/groups");
    assert!(groups.contains(SECRET), "the group shows the message: {groups}");
    assert_eq!(leaks(&folder.path("data")), [""; 0], "while it runs");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(leaks(&folder.path("data")), [""; 0], "after its end");

    let (text, _) = doctor(&folder);
    assert!(text.contains("the keys decrypt the 1 data keys of the store"), "{text}");
    // Without a key, and with another one.
    let key = text.split("key ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(key.starts_with("k_"), "{text}");
    for other in ["", "encryption: { keys: [{ file: two.key }] }\n"] {
        folder.write("lazaret.yaml", &CONFIG.replace("encryption: { keys: [{ file: one.key }] }\n", other));
        folder.write("stderr.log", "");
        assert_eq!(folder.run(&["run"]), 1);
        let told = folder.read("stderr.log");
        assert!(told.contains(&key) && told.contains("encryption.keys"), "{told}");
        let (text, code) = doctor(&folder);
        assert!(code == Some(1) && text.contains("FAIL  encryption") && text.contains(&key), "{text}");
    }
    // The other one in front, then alone.
    for keys in ["{ file: two.key }, { file: one.key }", "{ file: two.key }"] {
        folder.write("lazaret.yaml", &CONFIG.replace("{ file: one.key }", keys));
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        assert_eq!(found(&address), 2, "with {keys}");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.wait().code(), Some(0));
    }
}

#[test]
fn without_encryption_content_is_in_the_file() {
    let folder = folder();
    folder.write("lazaret.yaml", &CONFIG.replace("encryption: { keys: [{ file: one.key }] }\n", ""));
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    assert_eq!(post(&address, "e-1"), 202);
    wait_for("a dead letter", || (found(&address) == 1).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!leaks(&folder.path("data")).is_empty(), "the test above can find it");
}

#[cfg(unix)]
#[test]
fn a_key_that_everybody_can_read_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let set = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path("one.key"), permissions).unwrap();
    };
    set(0o644);
    assert!(doctor(&folder).0.contains("warn  encryption: key k_"));
    set(0o600);
    let (text, _) = doctor(&folder);
    assert!(text.contains("ok    encryption: key k_"), "{text}");
    std::fs::remove_file(folder.path("one.key")).unwrap();
    let (text, code) = doctor(&folder);
    assert!(code == Some(1) && text.contains("FAIL  encryption: encryption key from file one.key"), "{text}");
}
