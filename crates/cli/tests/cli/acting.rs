//! Changes: plan, retry, park, evict, restore, purge, edit, pause.

use serde_json::json;

use crate::support::{Bench, ada, message};

fn ids(bench: &Bench, query: &str) -> Vec<String> {
    let letters = bench.run(&["ls", query, "-o", "jsonl"]).ends(0).lines();
    letters.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_plan_is_frozen_shown_and_run_once() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "b", "bad")], 3);
    let plan = bench.run(&["plan", "retry", "state:dead", "-o", "json"]).ends(0).json();
    for name in ["id", "action", "letters", "sequences", "excluded", "hash", "expires-at", "needs-approval"] {
        assert!(plan.get(name).is_some(), "{name} in {plan}");
    }
    assert_eq!(
        (&plan["action"], &plan["letters"], &plan["sequences"]),
        (&"retry".into(), &2.into(), &2.into())
    );
    let shown = bench.run(&["plan", "retry", "state:waiting"]).ends(0);
    assert!(
        shown.out.contains("0 letters of 0 sequences") && shown.out.contains("1: 1 behind a letter"),
        "{}",
        shown.out
    );

    bench.repair();
    let id = plan["id"].as_str().unwrap();
    let ran =
        bench.run(&["retry", "--plan", id, "--reason", "mended", "--yes", "--wait", "-o", "json"]).ends(0);
    let outcome = ran.last();
    for name in ["id", "state", "sent", "ok", "failed-again", "skipped"] {
        assert!(outcome.get(name).is_some(), "{name} in {outcome}");
    }
    assert_eq!((&outcome["state"], &outcome["sent"], &outcome["ok"]), (&"done".into(), &2.into(), &2.into()));
    // A plan runs once.
    let stale = bench.run(&["retry", "--plan", id, "--reason", "again", "--yes"]).ends(4);
    assert!(stale.err.contains("LZ0219") && stale.err.contains("hint: create a new plan"), "{}", stale.err);
    bench.run(&["retry", "--plan", "p_999", "--reason", "x", "--yes"]).ends(4);
    // The letter behind the first is handled.
    bench.eventually_open("", 0);
    // Another action than the plan's is a usage error.
    let other = bench.run(&["plan", "park", "state:dead", "-o", "json"]).ends(0).json();
    bench.run(&["evict", "--plan", other["id"].as_str().unwrap(), "--reason", "x", "--yes"]).ends(2);
}

#[test]
fn what_fails_again_ends_with_3_and_is_named() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "hopeless")], 2);
    bench.repair();
    let arguments =
        ["retry", "--all", "--reason", "test", "--yes", "--wait", "--stop-at", "never", "--ramp", "none"];
    let ran = bench.run(&arguments).ends(3);
    assert!(ran.out.starts_with("op_1 done: 2 sent, 1 ok, 1 failed again, 0 skipped, in "), "{}", ran.out);
    assert_eq!(ran.out.lines().count(), 1);
    assert!(ran.err.ends_with("next: lazaret op show op_1 --outcome failed-again\n"), "{}", ran.err);
    let failed =
        bench.run(&["op", "show", "op_1", "--outcome", "failed-again", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["letter"].as_str().unwrap(), ids(&bench, "")[0]);
}

#[test]
fn the_stop_rule_ends_the_waiting() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "hopeless"), message("m-2", "b", "hopeless")], 2);
    let ran = bench
        .run(&["retry", "--all", "--reason", "test", "--yes", "--wait", "--ramp", "1", "-o", "json"])
        .ends(3);
    assert_eq!((&ran.last()["state"], &ran.last()["failed-again"]), (&"paused".into(), &1.into()));
    let shown = bench.run(&["op", "show", "op_1"]).ends(0);
    assert!(shown.err.contains("lazaret op resume op_1"), "{}", shown.err);
    bench.run(&["op", "cancel", "op_1", "--reason", "enough"]).ends(0);
}

#[test]
fn letters_are_selected_by_id_prefix_and_from_standard_input() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad"), message("m-3", "c", "bad")], 3);
    let all = ids(&bench, "");
    let park = |names: &[&str], input: &str| {
        let mut arguments = vec!["park", "--reason", "test", "--yes", "--wait", "-o", "json", "--ids"];
        arguments.extend(names);
        bench.run_with(&arguments, input)
    };
    assert_eq!(park(&[&all[0][..10]], "").ends(0).last()["ok"], 1);
    // The output of `ls -o jsonl` can be piped.
    let line = bench.run(&["ls", &format!("id:{}", all[1]), "-o", "jsonl"]).ends(0).out;
    assert_eq!(park(&["-"], &format!("{line}\n{}\n", all[2])).ends(0).last()["ok"], 2);
    assert_eq!(ids(&bench, "state:parked").len(), 3);
    park(&["-"], "").ends(2);
    park(&["00000000-0000-0000-0000-000000000000"], "").ends(4);
    // Already parked: nothing to do.
    let ran = bench.run(&["park", "--ids", &all[0], "--reason", "test", "--yes"]).ends(0);
    assert!(ran.err.contains("nothing to do: excluded: 1 already in that state"), "{}", ran.err);
}

#[test]
fn changes_need_confirmation_a_reason_and_a_selection() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let no_yes = bench.run(&["evict", "state:dead", "--reason", "x"]).ends(2);
    assert!(no_yes.err.contains("pass --yes"), "{}", no_yes.err);
    let nothing = bench.run(&["evict", "--reason", "x", "--yes"]).ends(2);
    assert!(nothing.err.contains("--all"), "{}", nothing.err);
    bench.run(&["evict", "state:dead", "--yes"]).ends(2);
    bench.run(&["evict", "state:dead", "--yes", "--reason", " "]).ends(2);
    bench.run(&["evict", "state:dead", "--all", "--yes", "--reason", "x"]).ends(2);
    bench.run(&["plan", "evict"]).ends(2);
    bench.run(&["purge", "--yes", "--reason", "x"]).ends(2);
    assert_eq!(ids(&bench, "state:dead").len(), 1);
    assert_eq!(bench.run(&["op", "ls"]).ends(0).err, "no operations\nnext: lazaret plan retry QUERY\n");
}

#[test]
fn evicted_letters_can_be_restored_until_they_are_purged() {
    // I11
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    bench.run(&["evict", "--all", "--reason", "out", "--yes", "--wait", "--ramp", "none"]).ends(0);
    assert_eq!(ids(&bench, "state:evicted").len(), 2);
    let restored = bench.run(&["restore", "seq:a", "--reason", "back", "--yes"]).ends(0);
    assert_eq!(restored.out, "1 letter restored, 0 failed\n");
    let open = ids(&bench, "state:dead");
    assert_eq!(open.len(), 1);
    // It is not evicted any more, and to try again does not change that.
    let refused = bench.run(&["restore", "--ids", &open[0], "--reason", "back", "--yes"]).ends(3);
    assert_eq!(refused.out, "0 letters restored, 1 failed\n");
    let why = format!("{id} LZ0218: cannot restore letter {id}: it is dead, not evicted", id = open[0]);
    assert_eq!(refused.err, format!("{why}\nnext: lazaret status\n"));
    // An open letter cannot be purged.
    let open = bench.run(&["purge", "state:dead", "--reason", "gone", "--yes", "-o", "json"]).ends(3).json();
    assert_eq!((&open["done"], &open["failed"][0]["code"]), (&0.into(), &"LZ0218".into()));
    bench.run(&["purge", "--all", "--reason", "gone", "--yes"]).ends(0);
    assert_eq!(ids(&bench, "state:evicted"), Vec::<String>::new());
    bench.run(&["purge", "--ids", "00000000-0000-0000-0000-000000000000", "--reason", "x", "--yes"]).ends(4);
}

#[test]
fn where_nothing_matches_there_is_nothing_to_do() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    for verb in ["restore", "purge"] {
        let ran = bench.run(&[verb, "--all", "--reason", "x", "--yes"]).ends(0);
        assert_eq!(ran.out, format!("0 letters {verb}d, 0 failed\n"));
        assert_eq!(ran.err, "nothing to do: no letters match\nnext: lazaret status\n");
        // They select evicted letters, not open ones.
        let help = bench.run(&[verb, "--help"]).ends(0).out;
        assert!(help.contains("Select every evicted letter") && !help.contains("every open"), "{help}");
    }
    assert!(bench.run(&["retry", "--help"]).ends(0).out.contains("Select every open letter"));
}

#[test]
fn released_letters_are_retried() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    bench.repair();
    bench.run(&["release", "--all", "--reason", "mended", "--yes", "--wait"]).ends(0);
    bench.eventually_open("", 0);
    assert_eq!(ids(&bench, "state:resolved").len(), 1);
}

#[test]
fn a_payload_is_replaced_and_the_original_is_kept() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let id = &ids(&bench, "")[0];
    let file = bench.folder().join("payload");
    std::fs::write(&file, "\"good\"").unwrap();
    // Without a terminal, --yes is required.
    let arguments = ["edit", id, "--payload", file.to_str().unwrap(), "--reason", "typo"];
    let no_yes = bench.run(&arguments).ends(2);
    assert!(no_yes.err.contains("pass --yes"), "{}", no_yes.err);
    bench.run(&["edit", id, "--tombstone", "--reason", "x"]).ends(2);
    let untouched = bench.run(&["show", id, "-o", "json"]).ends(0).json();
    assert_eq!((&untouched["content"]["payload"], &untouched["edits"]), (&"\"bad\"".into(), &json!([])));
    let ran = bench.run(&[&arguments[..], &["--yes"]].concat()).ends(0);
    assert_eq!(ran.err, format!("next: lazaret retry --ids {} --reason TEXT\n", &id[..8]));
    let detail = |id: &str| bench.run(&["show", id, "-o", "json"]).ends(0).json();
    assert_eq!(detail(id)["content"]["payload"], "\"good\"");
    assert_eq!(detail(id)["edits"][0]["original"], "\"bad\"");
    // What is JSON stays JSON, unless it is forced.
    let bytes = ["edit", id, "--payload", "-", "--reason", "bytes", "--yes"];
    let broken = bench.run_with(&bytes, "x\ty\n").ends(1);
    assert!(
        broken.err.contains("is JSON, and the new one is not") && broken.err.contains("--force"),
        "{}",
        broken.err
    );
    assert_eq!(detail(id)["content"]["payload"], "\"good\"");
    bench.run_with(&[&bytes[..], &["--force"]].concat(), "x\ty\n").ends(0);
    assert_eq!(detail(id)["content"]["payload"], "x\ty\n");
    bench.run(&["edit", id, "--tombstone", "--reason", "none", "--yes"]).ends(0);
    assert_eq!(detail(id)["content"]["payload-state"], "none");
    // The original is shown, and put back.
    assert_eq!(bench.run(&["show", id, "--original"]).ends(0).out, "\"bad\"");
    let shown = bench.run(&["show", id]).ends(0).out;
    assert!(shown.contains(&format!("lazaret show {} --original", &id[..8])), "{shown}");
    bench.run(&["edit", id, "--revert", "--reason", "enough", "--yes"]).ends(0);
    assert_eq!(detail(id)["content"]["payload"], "\"bad\"");
    assert_eq!(detail(id)["edits"].as_array().unwrap().len(), 4);
    // Without a terminal, no editor is opened.
    let ran = bench.run(&["edit", id, "--reason", "x"]).ends(2);
    assert!(ran.err.contains("--payload FILE"), "{}", ran.err);
    bench.run(&["edit", id, "--payload", "/nowhere/file", "--reason", "x", "--yes"]).ends(1);
}

#[test]
fn letters_are_resolved_and_quarantined() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "b", "bad")], 3);
    let ran = bench.run(&["quarantine", "seq:b", "-r", "leaks a card number", "--yes"]).ends(0);
    assert_eq!(ran.out, "1 letter quarantined, 0 failed\n");
    assert_eq!(ran.err, "next: lazaret ls state:quarantined\n");
    assert_eq!(ids(&bench, "state:quarantined seq:b").len(), 1);
    // The letter behind is not resolved with the failed one: it goes on.
    let ran = bench.run(&["resolve", "seq:a", "-r", "booked by hand", "--yes"]).ends(0);
    assert_eq!(ran.out, "1 letter resolved, 0 failed\n");
    bench.eventually_open("seq:a", 0);
    assert_eq!(bench.run(&["status", "-o", "json"]).ends(0).json()["consumers"][0]["quarantined"], 1);
    // I11
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).lines();
    let why: Vec<_> = audit.iter().map(|entry| (entry["action"].clone(), entry["why"].clone())).collect();
    let expected = [("quarantine", "leaks a card number"), ("resolve", "booked by hand")];
    assert_eq!(why, expected.map(|(action, why)| (json!(action), json!(why))));
    bench.run(&["resolve", "--reason", "x", "--yes"]).ends(2);
    let none =
        bench.run(&["resolve", "--ids", "00000000-0000-8000-8000-000000000000", "-r", "x", "-y"]).ends(4);
    assert!(none.err.contains("LZ0203"), "{}", none.err);
}

#[test]
fn letters_are_commented_and_assigned() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let ran = bench.run(&["comment", "message:m-1", "the card has expired"]).ends(0);
    let id = ids(&bench, "").remove(0);
    assert_eq!(ran.out, format!("{id} commented\n"));
    assert_eq!(bench.run(&["assign", &id[..8], "grace"]).ends(0).out, format!("{id} assigned to grace\n"));
    bench.run(&["assign", &id, "billing", "--team", "-r", "theirs"]).ends(0);
    let shown = bench.run(&["show", &id, "-o", "json"]).ends(0).json();
    assert_eq!((&shown["assignee"], &shown["owner"]), (&json!("grace"), &json!("billing")));
    assert_eq!(shown["comments"][0]["text"], "the card has expired");
    assert_eq!(ids(&bench, "assignee:grace owner:billing"), std::slice::from_ref(&id));
    bench.run(&["assign", &id, "--none"]).ends(0);
    assert_eq!(ids(&bench, "-assignee:*"), std::slice::from_ref(&id));
    // I11
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).lines();
    let actions: Vec<_> = audit.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["comment", "assign", "owner", "assign"]);
    bench.run(&["comment", &id, " "]).ends(2);
    bench.run(&["assign", &id]).ends(2);
    bench.run(&["comment", "message:none", "x"]).ends(4);
}

#[test]
fn a_message_is_sent_to_an_inbox() {
    let bench = Bench::new();
    let arguments =
        ["send", "orders", "-k", "order-7", "-t", "OrderPlaced", "--id", "e-1", "-H", "tenant=acme"];
    let ran = bench.run(&[&arguments[..], &[r#"{"bad": 1}"#]].concat()).ends(0);
    assert!(ran.out.starts_with("e-1 accepted at "), "{}", ran.out);
    bench.eventually_open("message:e-1 seq:order-7 type:OrderPlaced header.tenant:acme payload./bad:>0", 1);
    // The same again is known, another payload under the same id is refused.
    let again = bench.run_with(&[&arguments[..], &["-"]].concat(), r#"{"bad": 1}"#).ends(0);
    assert!(again.out.starts_with("e-1 known already, not taken again at "), "{}", again.out);
    let other = bench.run_with(&arguments, "{}").ends(1);
    assert!(other.err.contains("LZ0218"), "{}", other.err);
    // Without an id each message is a new one.
    let id = |answer: serde_json::Value| answer["id"].as_str().unwrap().to_owned();
    let one = bench.run_with(&["send", "orders", "--json"], "good").ends(0).json();
    let two = bench.run_with(&["send", "orders", "--json"], "good").ends(0).json();
    assert_eq!((&one["duplicate"], &two["duplicate"]), (&json!(false), &json!(false)));
    assert_ne!(id(one), id(two));
    let nobody = bench.run(&["send", "order", "x"]).ends(4);
    assert!(nobody.err.contains("there is no consumer order"), "{}", nobody.err);
    bench.run(&["send", "orders", "-k", "a\nb", "x"]).ends(2);
}

#[test]
fn replay_is_another_name_of_retry() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    bench.repair();
    let plan = bench.run(&["plan", "replay", "state:dead", "-o", "json"]).ends(0).json();
    assert_eq!(plan["action"], "retry");
    bench.run(&["replay", "--plan", plan["id"].as_str().unwrap(), "-r", "mended", "-y", "-w"]).ends(0);
    bench.eventually_open("", 0);
}

#[test]
fn consumers_and_parts_of_them_are_paused_and_resumed() {
    let bench = Bench::new();
    let ran = bench.run(&["pause", "orders", "--reason", "deploy"]).ends(0);
    assert!(
        ran.out.starts_with(&format!("orders paused by {}, ", ada())) && ran.out.ends_with(" ago: deploy\n"),
        "{}",
        ran.out
    );
    assert_eq!(ran.err, "next: lazaret resume orders --reason TEXT\n");
    let status = bench.run(&["status", "-o", "json"]).ends(0).json();
    assert_eq!(status["consumers"][0]["paused"]["why"], "deploy");
    assert!(bench.run(&["status"]).ends(0).err.starts_with("next: lazaret resume orders"));
    assert_eq!(
        bench.run(&["resume", "orders", "--reason", "done", "-o", "json"]).ends(0).json(),
        json!({"resumed": true})
    );
    let again = bench.run(&["resume", "orders", "--reason", "done"]).ends(0);
    assert_eq!(again.out, "orders was not paused\n");
    for part in [
        &["--stream", "s"][..],
        &["--stream", "s", "--partition", "3"],
        &["--partition", "s/3"],
        &["--sequence", "a b"],
        &["--replay"],
    ] {
        let paused = |verb: &'static str| {
            let mut arguments = vec![verb, "orders", "--reason", "test", "-o", "json"];
            arguments.extend(part);
            bench.run(&arguments).ends(0).json()
        };
        let pause = paused("pause");
        assert_ne!(pause["scope"], "consumer", "{pause}");
        // The command that status suggests ends the pause.
        let status = bench.run(&["status"]).ends(0);
        let next = status.err.strip_prefix("next: lazaret ").unwrap().replace("TEXT", "test");
        let next = next.trim_end().replace("'a b'", "a\tb");
        let words: Vec<String> = next.split(' ').map(|word| word.replace('\t', " ")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["-o", "json"]).collect();
        assert_eq!(words[..2], ["resume", "orders"], "{}", status.err);
        assert_eq!(bench.run(&words).ends(0).json(), json!({"resumed": true}), "{}", status.err);
        assert_eq!(paused("resume"), json!({"resumed": false}));
    }
    // A stream is not guessed; the hint names the streams of letters.
    let bare = ["pause", "orders", "--partition", "3", "--reason", "x"];
    assert!(!bench.run(&bare).ends(2).err.contains("hint"));
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let refused = bench.run(&bare).ends(2);
    let hint = "hint: its letters come from orders: pass --stream orders --partition 3\n";
    assert!(refused.err.ends_with(hint), "{}", refused.err);
    bench.run(&["pause", "orders", "--replay", "--sequence", "a", "--reason", "x"]).ends(2);
    bench.run(&["pause", "orders"]).ends(2);
    bench.run(&["pause", "nobody", "--reason", "x"]).ends(4);
}

#[test]
fn a_token_is_created_with_its_hash_for_the_configuration() {
    let bench = Bench::new();
    let made = bench
        .run(&["token", "new", "--name", "bob", "--scope", "read,triage", "--expires", "90d", "-o", "json"])
        .ends(0)
        .json();
    let token = made["token"].as_str().unwrap();
    assert_eq!((&made["name"], &made["scopes"]), (&"bob".into(), &json!(["read", "triage"])));
    let hash = bench.run_with(&["token", "hash"], &format!("{token}\n")).ends(0).out;
    assert_eq!(made["hash"], hash.trim());
    let shown = bench.run(&["token", "new", "--name", "bob"]).ends(0);
    assert!(shown.out.starts_with("lz_"), "{}", shown.out);
    assert!(
        shown.out.contains("auth:\n  tokens:\n    - name: \"bob\"\n      hash: \"sha256:"),
        "{}",
        shown.out
    );
    assert!(shown.out.ends_with("      scopes: [read]\n"), "{}", shown.out);
    assert!(bench.run(&["token"]).ends(0).out.contains("name: \"ada\""));
    // The printed configuration is valid.
    let made =
        bench.run(&["token", "new", "--name", "ci", "--scope", "read,admin", "--expires", "1d"]).ends(0).out;
    let (_, lines) = made.split_once('\n').unwrap();
    let checked =
        lazaret_config::check("test", format!("{lines}consumers: {{}}\n").as_bytes(), &lazaret_config::NoEnv);
    let tokens =
        checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain())).auth.unwrap().tokens;
    assert_eq!((tokens[0].name.as_str(), tokens[0].scopes.len()), ("ci", 2));
    assert!(tokens[0].expires.is_some());
    // A lifetime of zero is refused.
    for never in ["0s", "500ms"] {
        let refused = bench.run(&["token", "new", "--expires", never]).ends(2);
        assert!(refused.out.is_empty() && refused.err.contains("--expires"), "{}", refused.err);
    }
    // A weak token is hashed with a warning.
    let weak = bench.run_with(&["token", "hash"], "mytoken\n").ends(0);
    assert!(weak.out.starts_with("sha256:"), "{}", weak.out);
    assert!(weak.err.starts_with("warning: weak token: "), "{}", weak.err);
    assert!(!bench.run_with(&["token", "hash"], token).ends(0).err.contains("warning"));
    bench.run(&["token", "new", "--name", "a b"]).ends(2);
    bench.run(&["token", "new", "--scope", "everything"]).ends(2);
    bench.run(&["token", "hash"]).ends(2);
}

#[test]
fn completions_and_manual_pages_are_written() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let out = bench.run(&["completion", shell]).ends(0).out;
        assert!(out.contains("lazaret") && out.contains("purge"), "{shell}: {out}");
    }
    let folder = bench.folder().join("man");
    bench.run(&["man", folder.to_str().unwrap()]).ends(0);
    let page = std::fs::read_to_string(folder.join("lazaret-retry.1")).unwrap();
    assert!(page.contains("stop\\-at"), "{page}");
    assert!(folder.join("lazaret.1").exists() && folder.join("lazaret-op-watch.1").exists());
}
