//! `keys`: created for their owner alone, and listed by their ids.

use crate::support::lazaret;

#[test]
fn a_key_is_created_once_and_listed_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = lazaret(arguments).current_dir(folder.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = run(&["keys", "generate", "one.key"]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    let id = err.split_whitespace().nth(1).unwrap().trim_end_matches(';').to_owned();
    assert!(id.starts_with("k_"), "{err}");
    let path = folder.path().join("one.key");
    let key = std::fs::read_to_string(&path).unwrap();
    assert_eq!(key.trim().len(), 64);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    // Nothing is replaced.
    assert_eq!(run(&["keys", "generate", "one.key"]).0, Some(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), key);

    let (code, printed, _) = run(&["keys", "generate"]);
    assert_eq!((code, printed.trim().len()), (Some(0), 64));
    let config = "encryption: { keys: [{ file: one.key }, { file: none.key }] }\nconsumers: {}\n";
    std::fs::write(folder.path().join("lazaret.yaml"), config).unwrap();
    let (code, listed, err) = run(&["keys", "ls"]);
    assert_eq!(code, Some(1), "one cannot be read: {err}");
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], format!("{id}  encrypts  file one.key"));
    assert!(lines[1].starts_with("-  decrypts  ") && lines[1].contains("none.key"), "{listed}");
    let (_, listed, _) = run(&["keys", "ls", "-o", "json"]);
    let keys: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&keys[0]["id"], &keys[0]["role"], &keys[0]["error"]),
        (&id.into(), &"encrypts".into(), &serde_json::Value::Null)
    );
}
