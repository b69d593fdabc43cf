//! From a group to a finished operation, using only forms.

use lazaret_api::Scope;
use lazaret_server::Approval;
use serde_json::{Value, json};

use crate::pages::support::{Bench, bad, encoded, eventually, id, token};

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_retried_by_forms_alone() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("a", "2"), bad("b", "3")], 3).await;
    let group = letters[0]["group"].as_str().unwrap();
    // The button on the group's page sends this.
    let page = bench.get(&format!("/console/groups/{}", encoded(group))).await.expect(200);
    let query = page.between("name=\"query\" value=\"", "\"");
    let plan = bench.post("/console/plans", &[("action", "retry"), ("query", &query)]).await.location();
    let page = bench.get(&plan).await.expect(200);
    page.shows("Retry 2 letters of 2 sequences")
        .shows("1 letter, which may run")
        .shows("at least")
        .shows("lazaret retry --plan p_1 --reason TEXT");
    // Nothing starts without a reason, and the input is kept.
    let refused = bench.post(&format!("{plan}/start"), &[("rate", "7/s")]).await.expect(400);
    refused.shows("LZ0210").shows("value=\"7/s\"");
    bench
        .post(&format!("{plan}/start"), &[("reason", "x"), ("rate", "fast")])
        .await
        .expect(400)
        .shows("expected a rate");
    bench.fix_handler();
    let fields = [("reason", "fixed in 2.8.2"), ("rate", "unlimited"), ("ramp", "1"), ("stop-at", "5%")];
    let operation = bench.post(&format!("{plan}/start"), &fields).await.location();
    eventually("the operation is done", || async {
        bench.get(&operation).await.text.contains("aria-current=\"step\"><svg")
            && bench.get(&operation).await.text.contains(">done<")
    })
    .await;
    let page = bench.get(&operation).await.expect(200);
    page.shows("fixed in 2.8.2").shows("local via console");
    bench.get("/console/operations").await.shows("fixed in 2.8.2");
    bench.get(&format!("/console/letters/{}", id(&letters[0]))).await.shows("Closed: resolved");
    bench.get(&format!("/console/groups/{}", encoded(group))).await.shows(&operation);
    // A plan can be used only once.
    bench.post(&format!("{plan}/start"), &[("reason", "again")]).await.expect(409).shows("LZ0219");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_claimed_and_let_go() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2"), bad("b", "3")], 3).await;
    let page = format!("/console/groups/{}", encoded(letters[0]["group"].as_str().unwrap()));
    bench.get(&page).await.shows("Nobody.").shows("Claim for local");
    let assign =
        async |name: &str| bench.post(&format!("{page}/assignee"), &[("name", name)]).await.location();
    assert!(assign("ada").await.starts_with("/console/groups/"));
    bench.get(&page).await.shows("<strong>ada</strong> <span class=\"muted\">2 letters");
    assign("").await;
    let released = bench.get(&page).await;
    released.shows("Nobody.").lacks("<strong>ada</strong> <span class=\"muted\">2 letters");
    // Both changes stay in the activity, latest first.
    let activity = released.between("<h2>Activity</h2>", "</section>");
    let place = |text: &str| activity.find(text).unwrap_or_else(|| panic!("no {text:?}: {activity}"));
    assert!(place("assigned 2 letters to nobody") < place("assigned 2 letters to <strong>ada</strong>"));
    assert_eq!(activity.matches("<strong>local</strong>").count(), 2, "{activity}");
    // The caller's own letters are one click away.
    assign("local").await;
    let mine = bench.get("/console/letters").await.between("href=\"/console/letters?q=assignee", "\"");
    let mine = bench.get(&format!("/console/letters?q=assignee{mine}")).await.expect(200);
    mine.shows("aria-current=\"true\">Assigned to me").shows("2 letters match");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_stops_and_says_which_letters_failed_again() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2"), bad("c", "3")], 3).await;
    let ids: Vec<(&str, &str)> = letters.iter().map(|letter| ("id", id(letter))).collect();
    let fields: Vec<(&str, &str)> = [("action", "retry")].into_iter().chain(ids).collect();
    let plan = bench.post("/console/plans", &fields).await.location();
    let operation = bench.post(&format!("{plan}/start"), &[("reason", "try")]).await.location();
    eventually("it stops", || async { bench.get(&operation).await.text.contains("stopped: ") }).await;
    let failed = bench.get(&format!("{operation}?outcome=failed-again")).await.expect(200);
    assert_eq!(failed.text.matches("name=\"id\"").count(), 1, "{}", failed.text);
    // The result holds the outcome of each letter, or of letters that failed again.
    failed.shows(&format!("{operation}/result?outcome=failed-again"));
    let lines =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let all = bench.get(&format!("{operation}/result")).await.expect(200);
    let name = operation.rsplit('/').next().unwrap();
    assert_eq!(all.header("content-disposition"), format!("attachment; filename=\"{name}.jsonl\""));
    assert_eq!(all.header("content-type"), "application/x-ndjson");
    let order: Vec<Value> = lines(&all.text).iter().map(|line| line["ordinal"].clone()).collect();
    assert_eq!(order, [json!(0), json!(1), json!(2)]);
    let again = lines(&bench.get(&format!("{operation}/result?outcome=failed-again")).await.expect(200).text);
    let is_failed = |line: &Value| line["outcome"] == "failed-again";
    assert_eq!(again, lines(&all.text).into_iter().filter(is_failed).collect::<Vec<_>>());
    assert_eq!(again.len(), 1);
    bench.get(&format!("{operation}/result?outcome=nonsense")).await.expect(400);
    bench.get("/console/operations/op_99/result").await.expect(404).shows("LZ0203");
    let refused = bench.post(&format!("{operation}/cancel"), &[]).await.expect(400);
    refused.shows("LZ0210");
    assert_eq!(
        bench.post(&format!("{operation}/cancel"), &[("reason", "enough")]).await.location(),
        operation
    );
    bench.get(&operation).await.shows("Cancelled");
    bench.post(&format!("{operation}/nonsense"), &[("reason", "x")]).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_a_draft_until_it_is_started() {
    let all = [Scope::Read, Scope::Triage, Scope::Approve, Scope::Ingest];
    let bench = Bench::with(vec![token("ada", &all), token("bob", &all)], Approval::SecondPerson).await;
    let letters = bench.letters(Some("ada"), &[bad("a", "1"), bad("b", "2")], 2).await;
    let fields = [("action", "retry"), ("id", id(&letters[0])), ("id", id(&letters[1]))];
    let plan = bench.post_as(Some("ada"), "/console/plans", &fields).await.location();
    let nothing = [("action", "park"), ("query", "type:none")];
    let empty = bench.post_as(Some("ada"), "/console/plans", &nothing).await.location();
    let link = format!("href=\"{plan}\"");
    let page = bench.get_as(Some("bob"), "/console/operations").await.expect(200);
    page.shows("Drafts").shows(&link).lacks(&format!("href=\"{empty}\""));
    let row = page.between(&link, "</tr>");
    assert!(row.contains("<td class=\"num\">2</td>") && row.contains("ada"), "{row}");
    assert!(row.contains("Ask for approval"), "{row}");
    let start = [("reason", "fixed")];
    bench.post_as(Some("ada"), &format!("{plan}/start"), &start).await.expect(303);
    bench
        .get_as(Some("bob"), "/console/operations")
        .await
        .expect(200)
        .lacks("Drafts")
        .shows("needs approval");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_person_approves_and_the_first_cannot() {
    let all = [Scope::Read, Scope::Triage, Scope::Approve, Scope::Ingest];
    let bench = Bench::with(vec![token("ada", &all), token("bob", &all)], Approval::SecondPerson).await;
    let letters = bench.letters(Some("ada"), &[bad("a", "1")], 1).await;
    let fields = [("action", "retry"), ("id", id(&letters[0]))];
    let plan = bench.post_as(Some("ada"), "/console/plans", &fields).await.location();
    bench.get_as(Some("ada"), &plan).await.shows("required from a second person").shows("Ask for approval");
    bench.fix_handler();
    let operation =
        bench.post_as(Some("ada"), &format!("{plan}/start"), &[("reason", "fixed")]).await.location();
    bench.get_as(Some("ada"), &operation).await.shows("another person must decide");
    let approve = format!("{operation}/approve");
    bench.post_as(Some("ada"), &approve, &[("reason", "me")]).await.expect(403).shows("LZ0220");
    assert_eq!(
        bench.post_as(Some("bob"), &approve, &[("reason", "looked at it")]).await.location(),
        operation
    );
    eventually("it is done", || async {
        bench.get_as(Some("bob"), &operation).await.text.contains(">done<")
    })
    .await;
    bench.get_as(Some("bob"), &operation).await.shows("Approved by").shows("looked at it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_a_selection_is_refused() {
    let bench = Bench::new().await;
    bench.post("/console/plans", &[("action", "retry")]).await.expect(400).shows("nothing is marked");
    bench.post("/console/plans", &[("query", "state:dead")]).await.expect(400).shows("choose an action");
    bench
        .post("/console/plans", &[("action", "retry"), ("group", "x")])
        .await
        .expect(400)
        .shows("no such group");
    let empty = bench.post("/console/plans", &[("action", "retry"), ("query", "type:none")]).await.location();
    bench.get(&empty).await.expect(200).shows("Nothing to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_fail_after_the_plan_are_not_touched() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let group = letters[0]["group"].as_str().unwrap();
    let query = format!("group:{group}");
    let plan = bench.post("/console/plans", &[("action", "retry"), ("query", &query)]).await.location();
    let late = bench.letters(None, &[bad("c", "3")], 3).await;
    let late = late.iter().find(|letter| letter["sequence"] == "c").unwrap();
    assert_eq!(late["group"], group, "it would have been part of the query");
    bench.fix_handler();
    let fields = [("reason", "fixed"), ("ramp", "none")];
    let operation = bench.post(&format!("{plan}/start"), &fields).await.location();
    eventually("the operation is done", || async { bench.get(&operation).await.text.contains(">done<") })
        .await;
    assert_eq!(bench.api(None, "/v1/letters/count").await["letters"], 1);
    let late = bench.api(None, &format!("/v1/letters/{}", id(late))).await;
    assert_eq!((&late["state"], &late["replay-attempts"]), (&json!("dead"), &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_failed_again_are_retried_by_one_button() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let ids: Vec<(&str, &str)> = letters.iter().map(|letter| ("id", id(letter))).collect();
    let fields: Vec<(&str, &str)> = [("action", "retry")].into_iter().chain(ids).collect();
    let plan = bench.post("/console/plans", &fields).await.location();
    let fields = [("reason", "try"), ("ramp", "none"), ("stop-at", "never")];
    let operation = bench.post(&format!("{plan}/start"), &fields).await.location();
    eventually("the operation is done", || async { bench.get(&operation).await.text.contains(">done<") })
        .await;
    let page = bench.get(&operation).await.expect(200);
    page.shows("2 letters failed again. Once the cause is repaired")
        .shows("Plan retry of those that failed again");
    // The button sends these values.
    let form = page.between("failed again. Once the cause is repaired:", "</form>");
    let sent: Vec<&str> = letters.iter().map(id).filter(|id| form.contains(*id)).collect();
    assert_eq!(sent.len(), 2, "{form}");
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_edits_and_attempts_survive_retries_and_evictions() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    let letter = format!("/console/letters/{}", id(&letters[0]));
    bench.post(&format!("{letter}/comments"), &[("text", "seen by ada")]).await.location();
    let edit = [("payload", "{\"bad\":\"2\"}"), ("reason", "typo of the shop")];
    bench.post(&format!("{letter}/edit"), &edit).await.location();
    for (action, end) in [("retry", "badge bad"), ("evict", "Closed: evicted")] {
        let fields = [("action", action), ("id", id(&letters[0]))];
        let plan = bench.post("/console/plans", &fields).await.location();
        let operation = bench.post(&format!("{plan}/start"), &[("reason", "try")]).await.location();
        eventually("the operation ends", || async {
            let page = bench.get(&operation).await.text;
            page.contains(">done<") || page.contains("stopped: ")
        })
        .await;
        if action == "retry" && bench.get(&operation).await.text.contains("stopped: ") {
            bench.post(&format!("{operation}/cancel"), &[("reason", "enough")]).await.location();
        }
        let page = bench.get(&letter).await.expect(200);
        page.shows(end)
            .shows("seen by ada")
            .shows("typo of the shop")
            .shows("edit v2")
            .shows("2 attempts, 1 edit");
    }
    bench.post(&format!("{letter}/restore"), &[("reason", "after all")]).await.location();
    bench.get(&letter).await.shows("seen by ada").shows("edit v2").shows("2 attempts, 1 edit");
}
