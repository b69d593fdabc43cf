//! Every form that changes something shows the command that does the same.

use std::collections::BTreeSet;

use lazaret_core::QueueName;
use lazaret_core::store::{Act, Actor, LetterStore};

use crate::pages::support::{Bench, bad, encoded, id};

/// Returns the addresses to which the forms of a page post.
fn actions(page: &str) -> Vec<&str> {
    let starts = ["method=\"post\" action=\"", " formaction=\""];
    let after = starts.iter().flat_map(|start| page.split(start).skip(1));
    after.filter_map(|rest| rest.split('"').next()).collect()
}

/// Returns the command for the address of a form. There is none for the buttons that plan, because their
/// dialog is the page of the plan.
fn command(action: &str) -> Option<String> {
    let (of, verb) = action.rsplit_once('/').unwrap();
    let command = match (of, verb) {
        ("/console", "plans") => return None,
        _ if of.starts_with("/console/operations/") => format!("lazaret op {verb} "),
        _ if of.starts_with("/console/consumers/") => format!("lazaret {verb} "),
        (_, "start") => "lazaret retry --plan ".to_owned(),
        (_, "assignee") => "lazaret assign ".to_owned(),
        (_, "comments") => "lazaret comment ".to_owned(),
        (_, "edit") => "lazaret edit --reason ".to_owned(),
        (_, "revert") => "lazaret edit --revert ".to_owned(),
        (_, "restore") => "lazaret restore ".to_owned(),
        _ => panic!("a form posts to {action}: which command does the same?"),
    };
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_shows_its_command() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2"), bad("c", "3")], 3).await;
    let group = format!("/console/groups/{}", encoded(letters[0]["group"].as_str().unwrap()));
    let page_of = |letter: usize| format!("/console/letters/{}", id(&letters[letter]));
    let (edited, evicted, planned) = (page_of(0), page_of(1), id(&letters[2]));
    // Creates an edit that can be reverted, an eviction that can be undone, and a pause that can end.
    let edit = format!("{edited}/edit");
    let digest = bench.get(&edit).await.expect(200).between("name=\"expected-digest\" value=\"", "\"");
    let fields = [("payload", "{\"bad\":\"2\"}"), ("reason", "typo"), ("expected-digest", digest.as_str())];
    bench.post(&edit, &fields).await.expect(303);
    let (queue, by) = (QueueName::of("orders", "orders"), Actor::new("ada", "test", "known"));
    bench.store.act(&queue, id(&letters[1]).parse().unwrap(), Act::Evict, &by).await.unwrap();
    let pause = [("reason", "deploy"), ("replay", "true")];
    bench.post("/console/consumers/orders/pause", &pause).await.expect(303);
    // Creates an operation that waits for a person, and one that waits for its time.
    let plan =
        || async { bench.post("/console/plans", &[("action", "retry"), ("id", planned)]).await.location() };
    let start = async |plan: &str, field: (&str, &str)| {
        bench.post(&format!("{plan}/start"), &[("reason", "fixed"), field]).await.location()
    };
    let draft = plan().await;
    let awaiting = start(&plan().await, ("needs-approval", "true")).await;
    let mut pages = vec![bench.get(&awaiting).await.expect(200)];
    bench.post(&format!("{awaiting}/cancel"), &[("reason", "not now")]).await.expect(303);
    let scheduled = start(&plan().await, ("at", "+90m")).await;
    pages.push(bench.get(&scheduled).await.expect(200));
    bench.post(&format!("{scheduled}/pause"), &[("reason", "later")]).await.expect(303);
    let others =
        ["/console/overview", "/console/admin", &group, &edited, &edit, &evicted, &draft, &scheduled];
    for path in others {
        pages.push(bench.get(path).await.expect(200));
    }
    let mut seen = BTreeSet::new();
    for page in &pages {
        for command in actions(&page.text).into_iter().filter_map(command) {
            page.shows(&command);
            seen.insert(command);
        }
    }
    let expected = [
        "lazaret assign ",
        "lazaret comment ",
        "lazaret edit --reason ",
        "lazaret edit --revert ",
        "lazaret op approve ",
        "lazaret op cancel ",
        "lazaret op pause ",
        "lazaret op reject ",
        "lazaret op resume ",
        "lazaret pause ",
        "lazaret restore ",
        "lazaret resume ",
        "lazaret retry --plan ",
    ];
    assert_eq!(seen, BTreeSet::from(expected.map(str::to_owned)));
}
