//! Edits: the payload in a form, the resulting change, and the way back.

use lazaret_core::QueueName;
use lazaret_core::store::{Act, Actor, LetterStore};
use serde_json::json;

use crate::pages::support::{Bench, bad, id};

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_edited_compared_and_reverted() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    let form = bench.get(&format!("{path}/edit")).await.expect(200);
    form.shows("{&quot;bad&quot;:&quot;1&quot;}</textarea>");
    let digest = form.between("name=\"expected-digest\" value=\"", "\"");
    let fields = |text: &'static str, digest: &'static str| {
        [("payload", text), ("reason", "typo"), ("expected-digest", digest)]
    };
    let digest: &'static str = digest.leak();
    // The difference is shown before anything is saved.
    let mut review = fields("{\"bad\":\"2\"}", digest).to_vec();
    review.push(("step", "review"));
    let page = bench.post(&format!("{path}/edit"), &review).await.expect(200);
    page.shows("class=\"removed\"").shows("class=\"added\"");
    // An edit that breaks the JSON must be confirmed.
    bench
        .post(&format!("{path}/edit"), &fields("{\"bad\":", digest))
        .await
        .expect(400)
        .shows("the new text is not");
    assert_eq!(
        bench.post(&format!("{path}/edit"), &fields("{\"bad\":\"2\"}", digest)).await.location(),
        format!("{path}#history")
    );
    let page = bench.get(&path).await.expect(200);
    page.shows("edit v2").shows("typo").shows("class=\"added\"");
    // Another person's edit in the meantime is not overwritten.
    let late = bench.post(&format!("{path}/edit"), &fields("{\"bad\":\"3\"}", digest)).await.expect(409);
    late.shows("LZ0218").shows("{&quot;bad&quot;:&quot;3&quot;}</textarea>");
    assert_eq!(
        bench.post(&format!("{path}/revert"), &[("reason", "wrong")]).await.location(),
        format!("{path}#history")
    );
    let download = bench.get(&format!("{path}/download")).await.expect(200);
    assert_eq!(download.text, "{\"bad\":\"1\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_breaks_of_a_form_do_not_change_a_payload() {
    let bench = Bench::new().await;
    let line = json!({"id": "l", "key": "l", "payload-base64": "YmFkCgpiCg=="});
    let letters = bench.letters(None, &[line], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    bench.get(&format!("{path}/edit")).await.expect(200).shows(">\nbad\n\nb\n</textarea>");
    // Browsers send CRLF.
    let fields = [("payload", "bad\r\n\r\nc\r\n"), ("reason", "x")];
    bench.post(&format!("{path}/edit"), &fields).await.location();
    assert_eq!(bench.get(&format!("{path}/download")).await.text, "bad\n\nc\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_payload_of_a_closed_letter_is_not_offered_for_edits() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    let fields = [("payload", "{\"bad\":\"2\"}"), ("reason", "typo")];
    bench.post(&format!("{path}/edit"), &fields).await.location();
    let (edit, revert) = (format!("href=\"{path}/edit\""), format!("action=\"{path}/revert\""));
    bench.get(&path).await.expect(200).shows(&edit).shows(&revert);
    let (queue, by) = (QueueName::of("orders", "orders"), Actor::new("ada", "cli", "known"));
    bench.store.act(&queue, id(&letters[0]).parse().unwrap(), Act::Evict, &by).await.unwrap();
    let page = bench.get(&path).await.expect(200);
    page.shows("title=\"the letter is closed\"").lacks(&edit).lacks(&revert);
    bench.get(&format!("{path}/edit")).await.expect(200).shows("The letter is closed").lacks("<textarea");
    bench.post(&format!("{path}/edit"), &fields).await.expect(409).shows("LZ0218");
}
