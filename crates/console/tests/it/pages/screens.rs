//! Every screen renders, both empty and full, with the expected content.

use std::time::Duration;

use lazaret_api::{ConsumerConfig, EffectiveConfig, GroupingRules, Scope};
use lazaret_console::Options;
use lazaret_core::fingerprint::{GroupPart, Grouping};
use lazaret_core::{Failure, Reason};
use serde_json::{Value, json};

use crate::pages::support::{Bench, bad, encoded, id, token};

/// The screens that need no id.
const SCREENS: [&str; 6] = [
    "/console/overview",
    "/console/groups",
    "/console/groups?closed=true",
    "/console/letters",
    "/console/operations",
    "/console/admin",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_root_leads_to_the_overview() {
    let bench = Bench::new().await;
    assert_eq!(bench.get("/").await.location(), "/console/");
    assert_eq!(bench.get("/console").await.location(), "/console/");
    assert_eq!(bench.get("/console/").await.location(), "/console/overview");
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_screens_teach() {
    let bench = Bench::new().await;
    for path in SCREENS {
        bench.get(path).await.expect(200).shows("<main id=\"main\"").shows("lazaret ");
    }
    bench.get("/console/groups").await.shows("No open failures");
    bench.get("/console/letters").await.shows("No open letters");
    bench.get("/console/operations").await.shows("No operation yet");
    bench.get("/console/letters?q=type:nothing").await.shows("No letter matches");
    let admin = bench.get("/console/admin").await;
    admin
        .shows("Your permissions")
        .shows("No tokens are configured")
        .shows("not started from a configuration");
    bench.get("/console/nothing").await.expect(404).shows("LZ0202");
    let nobody = "00000000-0000-8000-8000-000000000000";
    bench.get(&format!("/console/letters/{nobody}")).await.expect(404).shows("LZ0203");
    bench.get("/console/groups/g1_0000000000000000").await.expect(404).shows("LZ0203");
    bench.get("/console/operations/op_99").await.expect(404).shows("LZ0203");
    bench.get("/console/plans/p_99").await.expect(404).shows("LZ0203");
}

#[tokio::test(flavor = "multi_thread")]
async fn full_screens_show_letters_groups_and_the_lane() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("a", "2"), bad("a", "3"), bad("b", "4")], 4).await;
    for path in SCREENS {
        bench.get(path).await.expect(200);
    }
    bench.get("/console/overview").await.shows("orders").shows("data-region");
    let groups = bench.api(None, "/v1/groups").await;
    let group = groups["groups"][0]["id"].as_str().unwrap();
    bench.get("/console/groups").await.shows(&encoded_path(group)).shows("DOMAIN_INVALID");
    let page = bench.get(&format!("/console/groups/{}", encoded(group))).await.expect(200);
    page.shows("Why grouped").shows("header.tenant").shows("Plan retry").shows("acme");
    let of = |message: &str| id(letters.iter().find(|letter| letter["message"]["id"] == message).unwrap());
    let page = bench.get(&format!("/console/letters/{}", of("a-1"))).await.expect(200);
    page.shows("2 letters behind it").shows("Head").shows("+2").shows("rel=\"next\"");
    let page = bench.get(&format!("/console/letters/{}", of("a-2"))).await.expect(200);
    page.shows("waits behind the head").shows("rel=\"prev\"").shows("1 letter behind the head");
    let page = bench.get("/console/sequences?queue=orders%2Forders&sequence=a").await.expect(200);
    page.shows("3 open letters");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_show_their_owner_and_when_their_consumer_started() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    assert_eq!(bench.api(None, "/v1/groups").await["groups"][0]["owner"], "orders-team");
    let mark = "class=\"start\"";
    bench.report_start("shop").await;
    bench
        .get("/console/groups")
        .await
        .expect(200)
        .shows("owned by <span class=\"owner\">orders-team</span>")
        .lacks(mark);
    bench.report_start("orders").await;
    let group = encoded_path(letters[0]["group"].as_str().unwrap());
    for path in ["/console/groups", "/console/overview", &group] {
        let page = bench.get(path).await.expect(200);
        page.shows(mark).shows("1 instance of the consumer started in that time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_show_when_their_next_letter_expires() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "1")], 2).await;
    let group = encoded_path(letters[0]["group"].as_str().unwrap());
    let label = "<span class=\"label\">next letter expires</span>";
    let later = bench.get(&group).await.expect(200).between("id=\"group-numbers\"", label);
    assert!(later.contains("in 29d23h") && !later.contains("warn"), "the default is 30 days: {later}");
    bench.get("/console/groups").await.expect(200).lacks("next letter expires");
    bench.expire_in(&letters[1], Duration::from_secs(3 * 3600 + 1800)).await;
    let soon = bench.get(&group).await.expect(200).between("id=\"group-numbers\"", label);
    assert!(soon.contains("in 3h") && soon.contains("class=\"value warn\""), "{soon}");
    bench.get("/console/groups").await.expect(200).shows("<span class=\"warn\">next letter expires <time");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_trend_has_its_table() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "1")], 2).await;
    let group = encoded_path(letters[0]["group"].as_str().unwrap());
    let path = format!("href=\"{group}\"");
    for page in ["/console/groups", "/console/overview"] {
        let table = bench.get(page).await.expect(200).between("id=\"trends-table\"", "</details>");
        assert!(table.contains(&path) && table.contains("<td class=\"num\">2</td>"), "{table}");
    }
    let table = bench.get(&group).await.expect(200).between("id=\"trend-table\"", "</details>");
    assert!(table.contains("<td class=\"num\">2</td><td class=\"num\">0</td>"), "{table}");
}

/// Returns an id as it appears in a link.
fn encoded_path(id: &str) -> String {
    format!("/console/groups/{}", id.replace('@', "%40").replace('/', "%2F"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_query_is_marked_at_its_place() {
    let bench = Bench::new().await;
    for path in ["/console/letters", "/console/groups"] {
        let page = bench.get(&format!("{path}?q=staet%3Adead")).await.expect(400);
        page.shows("staet:dead\n^^^^^\n").shows("did you mean state?").shows("value=\"staet:dead\"");
    }
    // Groups do not have this field.
    bench.get("/console/groups?q=seq%3Aa").await.expect(400).shows("search for letters instead");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_view_is_small_and_its_files_are_kept_for_good() {
    let bench = Bench::new().await;
    bench.letters(None, &[bad("a", "1")], 1).await;
    let page = bench.get("/console/overview").await.expect(200);
    let mut bytes = page.bytes.len();
    let files: Vec<&str> = page.text.split('"').filter(|part| part.starts_with("/console/assets/")).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        let file = bench.get(file).await.expect(200);
        assert_eq!(file.header("cache-control"), "public, max-age=31536000, immutable");
        assert_eq!(file.header("x-content-type-options"), "nosniff");
        bytes += file.bytes.len();
    }
    assert!(bytes < 100_000, "{bytes} bytes");
    bench.get("/console/assets/style.0000000000000000.css").await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_a_strict_policy_and_nothing_inline() {
    let bench = Bench::new().await;
    bench.letters(None, &[bad("a", "1")], 1).await;
    for path in SCREENS {
        let page = bench.get(path).await.expect(200);
        let policy = page.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert_eq!(page.header("cache-control"), "no-store");
        page.lacks(" style=").lacks("<style").lacks("javascript:").lacks("<script>");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_announced() {
    let bench = Bench::new().await;
    let mut response = bench.client.get(format!("{}/console/events", bench.base)).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    bench.letters(None, &[bad("a", "1")], 1).await;
    let mut seen = String::new();
    while !seen.contains("letter-stored") {
        seen.push_str(&String::from_utf8_lossy(&response.chunk().await.unwrap().expect("open")));
    }
    assert!(seen.contains("event: change"), "{seen}");
    assert!(!seen.contains("\"a\""), "no content: {seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_shown_latest_first_and_verified() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    for text in ["first comment", "second comment"] {
        assert_eq!(bench.post(&format!("{path}/comments"), &[("text", text)]).await.location(), path);
    }
    bench.post(&format!("{path}/assignee"), &[("name", "maria")]).await.location();
    let page = bench.get(&path).await.expect(200);
    page.shows("first comment").shows("second comment").shows("value=\"maria\"");
    let page = bench.get("/console/admin?verify=true").await.expect(200);
    page.shows("intact").shows("console").shows(id(&letters[0]));
    let (assigned, commented) = (page.text.find(">assign<"), page.text.find(">comment<"));
    assert!(assigned.unwrap() < commented.unwrap(), "{}", page.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_paused_and_resumed_by_forms() {
    let bench = Bench::new().await;
    let back = ("back", "/console/admin#pauses");
    let pause = bench.post("/console/consumers/orders/pause", &[("reason", "deploy <1>"), back]).await;
    assert_eq!(pause.location(), "/console/admin#pauses");
    bench.get("/console/overview").await.shows("paused by").shows("deploy &lt;1&gt;");
    let away = bench
        .post("/console/consumers/orders/resume", &[("reason", "done"), ("back", "https://evil.example/")])
        .await;
    assert_eq!(away.location(), "/console/admin", "a form cannot lead to another site");
    let status: Value = bench.api(None, "/v1/status").await;
    assert_eq!(status["consumers"][0]["paused"], json!(null));
    bench.post("/console/consumers/orders/pause", &[]).await.expect(400).shows("LZ0210");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_id_leads_to_the_complete_one() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let (group, letter) = (letters[0]["group"].as_str().unwrap(), id(&letters[0]));
    let fingerprint = group.split_once('@').unwrap().0;
    let group = format!("/console/groups/{}", group.replace('@', "%40").replace('/', "%2F"));
    let letter = format!("/console/letters/{letter}");
    // The id is as the command line prints it, shorter, and without the queue.
    for short in [&fingerprint[..11], &fingerprint[..6], fingerprint] {
        assert_eq!(bench.get(&format!("/console/groups/{short}")).await.location(), group);
    }
    assert_eq!(bench.get(&letter[..letter.len() - 28]).await.location(), letter);
    bench.get(&group).await.expect(200);
    for missing in ["g1_ffffffffffff", "h", "g1_x%40orders%2Forders", "%2A"] {
        bench.get(&format!("/console/groups/{missing}")).await.expect(404);
    }
    bench.get("/console/letters/ffff").await.expect(404);
    bench.get("/console/letters/ff").await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_short_id_names_what_it_could_be() {
    let bench = Bench::new().await;
    let letters = bench
        .letters(None, &[bad("a", "1"), json!({"id": "b-2", "key": "b", "payload": {"bad": true}})], 2)
        .await;
    let groups: Vec<&str> = letters.iter().map(|letter| letter["group"].as_str().unwrap()).collect();
    assert_ne!(groups[0], groups[1]);
    let page = bench.get("/console/groups/g1_").await.expect(404);
    groups.iter().for_each(|group| _ = page.shows(group));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_tried_on_a_letter() {
    let bench = Bench::new().await;
    let line = json!({
        "id": "r", "key": "r", "headers": {"tenant": "acme"}, "payload": {"bad": "1", "card": {"number": "4111"}},
    });
    // The text of the error shows the payload, and no rule of this kind applies to it.
    let redacted = "&quot;number&quot;:&quot;[redacted]&quot;";
    let letters = bench.letters(None, &[line], 1).await;
    let short = &id(&letters[0])[..8];
    let tried = |rules: &str| format!("/console/admin/rules?letter={short}&{rules}");
    bench.get("/console/admin").await.shows("/console/admin/rules");
    bench.get("/console/admin/rules").await.expect(200).lacks("4111");
    let shown = bench.get(&tried("")).await.expect(200);
    shown.shows("4111").shows("No rule on trial").shows("without what varies");
    let hidden = bench.get(&tried("headers=Tenant&payload=/card/number")).await.expect(200);
    hidden.shows("payload./card/number").shows("header.tenant").shows(redacted).lacks("acme<");
    bench
        .get(&tried("payload=/nothing"))
        .await
        .expect(200)
        .shows("hide nothing of this letter")
        .shows("4111");
    bench.get(&tried("payload=card")).await.expect(400).shows("is not a JSON pointer");
    bench.get("/console/admin/rules?letter=ffffffff").await.expect(404).shows("LZ0203");
}

/// Returns a configuration of the consumer with these grouping rules.
fn grouped_by(rules: &Grouping) -> EffectiveConfig {
    let consumer = ConsumerConfig {
        name: "orders".to_owned(),
        text: "orders:\n".to_owned(),
        grouping: GroupingRules::from(rules),
    };
    EffectiveConfig { general: Some("listen: '127.0.0.1:7117'\n".to_owned()), consumers: vec![consumer] }
}

#[tokio::test(flavor = "multi_thread")]
async fn grouping_rules_are_shown_and_tried_on_a_letter() {
    let rules = Grouping::default().with(GroupPart::EventType).replace("tenant ([a-z]+)".parse().unwrap());
    let tokens = vec![
        token("root", &[Scope::Admin]),
        token("eve", &[Scope::Read, Scope::Payload]),
        token("reader", &[Scope::Read]),
    ];
    let bench = Bench::with_config(tokens, grouped_by(&rules)).await;
    let failure = Failure::new(Reason::DOMAIN_INVALID, "ApiError", "tenant acme has no route");
    let own = failure.fingerprint.to_string();
    let by_rules = rules.fingerprint(&failure, None).to_string();
    let id = bench.store_failed(b"{}".to_vec(), failure.clone()).await;
    let tried = |query: &str| format!("/console/admin/rules?letter={}&{query}", &id[..8]);
    let get = async |who: &str, path: &str| bench.get_as(Some(who), path).await;

    let admin = get("root", "/console/admin").await.expect(200);
    admin.shows("Grouping rules").shows("error-type, message, cause, backtrace, event-type");
    let link = admin.between("/console/admin/rules?by=", "\"");
    let form =
        get("root", &format!("/console/admin/rules?by={}", link.replace("&amp;", "&"))).await.expect(200);
    form.shows("tenant ([a-z]+)</textarea>").shows("event-type\"");

    // Without rules on trial, the consumer's rules apply. The stored letter keeps its group.
    let shown = get("root", &tried("")).await.expect(200);
    shown.shows("By the rules of orders.").shows("tenant # has no route").shows(&by_rules);
    shown.shows("would be in group").shows(&format!("{own}%40")).shows("until it fails again");
    // The configuration is for administrators. Other callers can try rules of their own.
    let shown = get("eve", &tried("")).await.expect(200);
    shown.shows("By the default rules.").shows("This letter is in this group").shows(&own);
    get("eve", "/console/admin").await.expect(200).lacks("Grouping rules");
    let shown =
        get("eve", &tried("by=error-type%2C+message&replace=acme%0D%0A%28no%29+route")).await.expect(200);
    let expected = Grouping::by([GroupPart::ErrorType, GroupPart::Message])
        .replace("acme".parse().unwrap())
        .replace("(no) route".parse().unwrap());
    shown.shows("By the rules on trial.").shows("tenant # has # route");
    shown.shows(&expected.fingerprint(&failure, None).to_string());

    for (query, why) in [
        ("by=reason", "is none of error-type"),
        ("replace=%28acme", "is not a regular expression: unclosed group"),
        ("replace=%28a%7B1000%7D%29%7B1000%7D", "is too complex"),
        ("replace=%3Cb%3E%28", "&lt;b&gt;("),
    ] {
        get("eve", &tried(query)).await.expect(400).shows(why).lacks("<b>(");
    }
    let reader = bench.get_as(Some("reader"), &tried("by=message")).await.expect(403);
    reader.lacks("has no route");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_leads_to_the_others_of_its_trace() {
    let bench = Bench::new().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let line = |key: &str, parent: &str| {
        let headers = json!({"traceparent": format!("00-{trace}-{parent}-01")});
        json!({"id": key, "key": key, "headers": headers, "payload": "bad"})
    };
    let lines = [line("a", "b7ad6b7169203331"), line("b", "00f067aa0ba902b7"), bad("c", "1")];
    let letters = bench.letters(None, &lines, 3).await;
    let of = |key: &str| id(letters.iter().find(|letter| letter["sequence"] == key).unwrap());
    let page = bench.get(&format!("/console/letters/{}", of("a"))).await.expect(200);
    let link = page.between("<dt>Trace</dt><dd class=\"mono\"><a href=\"", "\"").replace("&amp;", "&");
    let found = bench.get(&link).await.expect(200);
    found.shows(of("a")).shows(of("b")).lacks(of("c"));
    page.lacks("Trace view");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_leads_to_the_system_that_shows_its_trace() {
    let trace_url = Some("https://traces.example.com/?id={trace-id}&view=<x>".to_owned());
    let bench = Bench::with_console(Options { trace_url, ..Options::default() }).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let line = |key: &str, parent: &str| json!({"id": key, "key": key, "headers": {"traceparent": parent}, "payload": "bad"});
    let lines =
        [line("a", &format!("00-{trace}-b7ad6b7169203331-01")), line("b", "00-\"><b>-b7ad6b7169203331-01")];
    let letters = bench.letters(None, &lines, 2).await;
    let of = |key: &str| id(letters.iter().find(|letter| letter["sequence"] == key).unwrap());
    let page = bench.get(&format!("/console/letters/{}", of("a"))).await.expect(200);
    page.shows(&format!(
        "<a href=\"https://traces.example.com/?id={trace}&amp;view=&lt;x&gt;\" rel=\"noopener noreferrer\" target=\"_blank\">"
    ));
    bench.get(&format!("/console/letters/{}", of("b"))).await.expect(200).lacks("Trace view");
}
