//! A starter file is always valid.

use lazaret_config::{
    Capabilities, InitHandler, InitOptions, InitOrder, InitSource, InitStore, NoEnv, check, init,
};
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use proptest::sample::select;

fn options() -> impl Strategy<Value = InitOptions> {
    let names = prop_oneof![
        "[^/\\p{C}]{1,40}",
        "[a-z-]{1,20}",
        Just("true".to_owned()),
        Just("~".to_owned()),
        Just("5".to_owned()),
        Just("<<x".to_owned())
    ];
    let choices = (
        select(&InitSource::ALL[..]),
        select(&InitHandler::ALL[..]),
        select(&InitStore::ALL[..]),
        select(&InitOrder::ALL[..]),
    );
    (names, choices).prop_map(|(name, (source, handler, store, order))| InitOptions {
        name,
        source,
        handler,
        store,
        order,
    })
}

#[test]
fn every_answer_gives_a_file_that_passes() {
    for source in InitSource::ALL {
        for handler in InitHandler::ALL {
            for store in InitStore::ALL {
                for order in InitOrder::ALL {
                    let options = InitOptions { source, handler, store, order, ..InitOptions::default() };
                    let checked = check("lazaret.yaml", init(&options).as_bytes(), &NoEnv);
                    let config = checked
                        .config
                        .unwrap_or_else(|| panic!("{options:?}\n{}", checked.diagnostics.plain()));
                    assert!(config.missing(&Capabilities::all()).is_empty());
                    // A store in memory was asked for, but deserves a warning.
                    let expected = usize::from(store == InitStore::Memory);
                    assert_eq!(checked.diagnostics.warnings(), expected, "{}", checked.diagnostics.plain());
                }
            }
        }
    }
}

#[test]
fn an_inbox_says_how_a_message_is_posted() {
    let text = init(&InitOptions { name: "orders".to_owned(), ..InitOptions::default() });
    assert!(
        text.contains(
            "curl localhost:7117/v1/inbox/orders -H 'content-type: application/json' -H 'lazaret-id: e-1' -H 'lazaret-key: "
        ),
        "{text}"
    );
    let text = init(&InitOptions { name: "or ders".to_owned(), ..InitOptions::default() });
    assert!(text.contains("/v1/inbox/CONSUMER "), "{text}");
}

#[test]
fn the_remarks_can_be_taken_in() {
    let text = init(&InitOptions { source: InitSource::Kafka, ..InitOptions::default() });
    let whole: String = text
        .lines()
        .map(|line| {
            let remark = line.trim_start().strip_prefix("# ");
            let is_key = remark.is_some_and(|remark| {
                remark.starts_with("no-retry-on:")
                    || remark.starts_with("owner:")
                    || remark.starts_with("classify:")
                    || remark.starts_with("  - {")
            });
            format!("{}\n", if is_key { line.replacen("# ", "", 1) } else { line.to_owned() })
        })
        .collect();
    let checked = check("lazaret.yaml", whole.as_bytes(), &NoEnv);
    let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
    assert_eq!((config.consumers[0].rules.len(), config.consumers[0].retry.no_retry_on.len()), (1, 1));
}

proptest! {
    #[test]
    fn every_name_gives_a_file_that_passes(options in options()) {
        let text = init(&options);
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        prop_assert!(checked.config.is_some(), "{}\n{}", text, checked.diagnostics.plain());
        prop_assert!(checked.config.unwrap().consumer(&options.name).is_some());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = check("lazaret.yaml", &bytes, &NoEnv).diagnostics.plain();
    }

    #[test]
    fn no_change_of_a_file_makes_it_panic(
        options in options(), at in any::<proptest::sample::Index>(), length in 0..30_usize, by in "[\\PC\t\n:{}\\[\\]\"'*&$-]{0,8}",
    ) {
        let text = init(&options);
        let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let (start, end) = (floor(at.index(text.len())), floor(at.index(text.len()) + length));
        let changed = format!("{}{by}{}", &text[..start], &text[end.max(start)..]);
        let checked = check("lazaret.yaml", changed.as_bytes(), &NoEnv);
        prop_assert!(checked.config.is_some() == (checked.diagnostics.errors() == 0));
        for found in checked.diagnostics.list() {
            prop_assert!(found.span().start <= found.span().end && found.span().end <= changed.len());
            let (line, column) = found.source().position(found.span().start);
            prop_assert!(line >= 1 && column >= 1);
        }
        let _ = checked.diagnostics.plain();
    }
}
