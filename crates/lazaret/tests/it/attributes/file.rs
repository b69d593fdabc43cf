//! The configuration file of a program that declares consumers.

use lazaret::declare::{Declare, NoEnv, Origin, change_stream, load};

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(max_attempts = 5)]
impl Orders {
    #[on_change]
    async fn changed(&self) {}
}

struct Refunds;

#[change_stream(collection = "refunds")]
impl Refunds {
    #[on_change]
    async fn changed(&self) {}
}

const FILE: &[u8] = b"
defaults: { retry: { max-attempts: 4, max-delay: 2m }, dead-letter: { owner: shop } }
consumers:
  orders: { retry: { max-attempts: 9, initial-delay: 2s } }
";

#[test]
fn values_of_the_file_apply_where_an_attribute_is_absent_and_the_attribute_wins() {
    let loaded = load(("lazaret.yaml", FILE), &NoEnv, [Orders.declare(), Refunds.declare()]).expect("valid");
    let [orders, refunds] = &*loaded.consumers else { panic!("two consumers") };
    assert_eq!(orders.config().retry.policy.max_attempts, 5);
    let table = [
        ("retry.max-attempts", Origin::Attribute),
        ("retry.initial-delay", Origin::Own),
        ("retry.max-delay", Origin::Defaults),
        ("retry.jitter", Origin::BuiltIn),
    ];
    for (path, origin) in table {
        assert_eq!(orders.origin(path), Some(origin), "{path}");
    }
    assert_eq!(refunds.config().retry.policy.max_attempts, 4, "the file gives it a policy");
    assert_eq!(refunds.origin("retry.max-attempts"), Some(Origin::Defaults));
}

#[test]
fn the_effective_configuration_names_the_attribute_and_the_line() {
    let loaded = load(("lazaret.yaml", FILE), &NoEnv, [Orders.declare()]).expect("valid");
    let shown = loaded.consumers[0].effective();
    let origin = |start: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(start)).expect(start);
        line.split_once(" # ").expect("an origin").1.to_owned()
    };
    assert_eq!(origin("max-attempts: 5"), "attribute #[retry_policy(max_attempts = 5)]");
    assert_eq!(origin("collection: orders"), "attribute #[change_stream(collection = \"orders\")]");
    assert_eq!(origin("initial-delay: 2s"), "own, line 4");
    assert_eq!(origin("max-delay: 2m"), "defaults, line 2");
    assert_eq!(origin("jitter: 0.2"), "built-in");
    assert!(shown.contains("dead_letter_queue.collection: _fw_dlq"), "{shown}");
}

#[test]
fn a_contradiction_between_file_and_attribute_is_an_error_that_shows_both() {
    struct Slow;

    #[change_stream(collection = "orders")]
    #[retry_policy(initial_delay = "10s")]
    impl Slow {
        #[on_change]
        async fn changed(&self) {}
    }

    let file = b"defaults: { retry: { max-delay: 5s } }\n";
    let found =
        load(("lazaret.yaml", file), &NoEnv, [Slow.declare()]).expect_err("10s is more than 5s").plain();
    assert!(found.contains("#[retry_policy(initial_delay = \"10s\")]"), "{found}");
}
