//! Spans as a collector receives them over real requests, with parents and links.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_core::LetterId;
use lazaret_core::handler::{Handler, handler};
use lazaret_telemetry::traces::{FIRST_ATTEMPT, TraceExporter};
use lazaret_telemetry::{AttemptLayer, Metrics};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::support::{Bench, Got, NAME, Receiver, Running, eventually, queue, scripted};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans(got: &[Got]) -> Vec<Span> {
    let mut spans = Vec::new();
    for request in got {
        assert_eq!(request.path, "/v1/traces");
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        let decoded = ExportTraceServiceRequest::decode(request.body.clone()).unwrap();
        for resource in decoded.resource_spans {
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = span.attributes.iter();
    pairs.map(|pair| (pair.key.clone(), text(pair.value.as_ref().unwrap().value.as_ref().unwrap()))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_links_to_the_first_attempt_and_a_replay_to_the_trace_of_its_letter() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let collector = Receiver::start(&[]).await;
    let traces = TraceExporter::otlp(&collector.url(""), "test-1").unwrap();
    let fixed = Arc::new(AtomicBool::new(false));
    let layer = AttemptLayer::new(&metrics, NAME, &queue()).with_tracer(traces.tracer());
    let watched = handler(scripted(fixed.clone()).layer(layer));
    let header = format!("00-{TRACE}-{PARENT}-01");
    bench.log.push_with(0, |message| {
        message.with_key("key-of-a").with_payload("payload-of-a-hopeless").with_header("traceparent", header)
    });
    bench.log.push_with(0, |message| message.with_key("key-of-b").with_payload("payload-of-b-flaky"));
    let running = Running::start(bench.builder(watched));
    eventually("one is dead, one handled", || {
        let stats = running.handle.stats();
        stats.handed_off == 1 && stats.handled == 1
    })
    .await;
    let letter = bench.store.heads(&queue(), None, 1).await.unwrap().heads.pop().unwrap();
    assert!(letter.diagnostics.contains_key(FIRST_ATTEMPT), "the letter keeps the span of its first attempt");
    fixed.store(true, Ordering::SeqCst);
    let replayer = running.handle.replayer(NAME).unwrap();
    assert_eq!(replayer.process_sequence(&"key-of-a".into(), "op_7").await.unwrap(), Some(true));
    running.stop().await;
    traces.shutdown().await;

    let spans = spans(&collector.all());
    assert_eq!(spans.len(), 7, "three attempts each, and a replay: {spans:#?}");
    let of = |message: &str| {
        let mut own: Vec<&Span> =
            spans.iter().filter(|span| attributes(span)["lazaret.message.id"] == message).collect();
        own.sort_by_key(|span| span.start_time_unix_nano);
        own
    };
    let a = of("events/0/0");
    assert_eq!(a.len(), 4);
    for (span, attempt) in a.iter().zip(1_u32..) {
        let facts = attributes(span);
        assert_eq!(span.name, NAME);
        assert_eq!(
            (facts["lazaret.stream"].as_str(), facts["lazaret.attempt"].clone()),
            ("events", attempt.to_string())
        );
    }
    // Live attempts belong to the trace of the message; retries link to the first attempt.
    for span in &a[..3] {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!(attributes(span)["lazaret.reason"], "TIMEOUT");
    }
    assert!(a[0].links.is_empty());
    for retry in &a[1..3] {
        assert_eq!(retry.links.len(), 1);
        assert_eq!((&retry.links[0].trace_id, &retry.links[0].span_id), (&a[0].trace_id, &a[0].span_id));
    }
    // The replay is a trace of its own that links to the letter's.
    let replay = a[3];
    assert_ne!(hex(&replay.trace_id), TRACE);
    assert!(replay.parent_span_id.is_empty());
    assert_eq!((&replay.links[0].trace_id, &replay.links[0].span_id), (&a[0].trace_id, &a[0].span_id));
    let facts = attributes(replay);
    assert_eq!((facts["lazaret.operation"].as_str(), facts["lazaret.outcome"].as_str()), ("op_7", "handled"));
    assert_eq!(facts["lazaret.letter"], LetterId::of(&queue(), &"events/0/0".into()).to_string());
    // Without a trace context the first attempt starts a trace, and retries link to it.
    let b = of("events/0/1");
    assert!(b.len() == 3 && b[0].parent_span_id.is_empty() && b[0].links.is_empty());
    assert!(b[1..].iter().all(|retry| retry.links[0].span_id == b[0].span_id));
    for span in &spans {
        let text = format!("{span:?}");
        for word in ["payload-of", "key-of", "words-of"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_collector_delays_nothing() {
    // I10
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let traces = TraceExporter::otlp("http://127.0.0.1:1", "test-1").unwrap();
    let layer = AttemptLayer::new(&metrics, NAME, &queue()).with_tracer(traces.tracer());
    let watched = handler(scripted(Arc::default()).layer(layer));
    bench.push(&["a-fine", "b-fine"]);
    let running = Running::start(bench.builder(watched));
    eventually("both are handled", || running.handle.stats().handled == 2).await;
    running.stop().await;
    tokio::time::timeout(std::time::Duration::from_secs(30), traces.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_trace_is_not_sampled_is_not_traced() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let collector = Receiver::start(&[]).await;
    let traces = TraceExporter::otlp(&collector.url("/"), "test-1").unwrap();
    let layer = AttemptLayer::new(&metrics, NAME, &queue()).with_tracer(traces.tracer());
    let watched = handler(scripted(Arc::default()).layer(layer));
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    bench.log.push_with(0, |message| message.with_payload("a-fine").with_header("traceparent", unsampled));
    bench.log.push_with(0, |message| message.with_payload("b-fine"));
    let running = Running::start(bench.builder(watched));
    eventually("both are handled", || running.handle.stats().handled == 2).await;
    running.stop().await;
    traces.shutdown().await;
    let spans = spans(&collector.all());
    assert_eq!(spans.len(), 1);
    assert_eq!(attributes(&spans[0])["lazaret.message.id"], "events/0/1");
}
