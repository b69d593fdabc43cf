//! The stream of orders. Each order is a function of its number, so that every run is the same.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The number of customers.
pub(crate) const CUSTOMERS: u64 = 200;
/// The number of customers of the bank that goes down.
pub(crate) const HARBOUR_CUSTOMERS: u64 = CUSTOMERS / BANKS.len() as u64;
/// The last order before the bank goes down.
pub(crate) const LAST_HEALTHY: u32 = 120;
/// The minimum number of orders for a complete story.
pub(crate) const MIN_ORDERS: u32 = 400;

/// The banks. The first one goes down.
const BANKS: [&str; 8] = [HARBOUR, "North", "South", "East", "West", "Hill", "Valley", "Forest"];
/// The bank that goes down.
pub(crate) const HARBOUR: &str = "Harbour Bank";

const NAMES: [&str; 20] = [
    "ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo", "jo", "kim", "leo", "mia", "noa",
    "ole", "pia", "quin", "rosa", "sam", "tom",
];

const ITEMS: [&str; 5] = ["tea", "lamp", "rope", "bread", "map"];

/// An order, as the handler reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The number, from 1.
    pub(crate) number: u32,
    /// The customer. This is the key: orders of the same customer are handled in order.
    pub(crate) customer: String,
    /// The bank that pays.
    pub(crate) bank: String,
    /// The destination.
    pub(crate) country: String,
    /// The items.
    pub(crate) items: Vec<String>,
    /// The price.
    pub(crate) cents: i64,
    /// The discount, in percent.
    pub(crate) voucher: i64,
}

/// The reason why an order is poison, so that no retry can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poison {
    /// The discount exceeds the price.
    Voucher,
    /// Fields are missing.
    Schema,
    /// The order has no items, and the handler panics.
    Panic,
    /// The tax table aborts the process for the country.
    Crash,
}

impl Poison {
    /// Returns the reason code that the order's letter should have.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Voucher => "DOMAIN_INVALID",
            Self::Schema => "INVALID_SCHEMA",
            Self::Panic => "PANICKED",
            Self::Crash => "CRASHED",
        }
    }
}

/// The poison orders, with number, customer and cause. None of these customers uses the bank that goes down.
const POISON: [(u32, u64, Poison); 5] = [
    (60, 9, Poison::Voucher),
    (140, 18, Poison::Schema),
    (180, 27, Poison::Crash),
    (220, 36, Poison::Panic),
    (260, 45, Poison::Voucher),
];
/// The customer of a poison order orders again this many orders later. That order has to wait.
const NEXT_ORDER_AFTER: u32 = 30;

/// Returns why this order is poison, or `None` if it is not.
pub(crate) fn poison(number: u32) -> Option<Poison> {
    POISON.iter().find(|(at, ..)| *at == number).map(|(.., poison)| *poison)
}

/// Returns the numbers of the poison orders.
pub(crate) fn poison_orders() -> impl Iterator<Item = u32> {
    POISON.iter().map(|(number, ..)| *number)
}

/// Returns the order that crashes the process.
#[cfg(test)]
pub(crate) fn crashing_order() -> u32 {
    let crash = POISON.iter().find(|(.., poison)| *poison == Poison::Crash);
    crash.map_or(0, |(number, ..)| *number)
}

/// Returns the message id of an order.
pub(crate) fn id(number: u32) -> String {
    format!("order-{number}")
}

/// Returns the order number of a message id, or `None` for messages from elsewhere.
pub(crate) fn number_of(id: &str) -> Option<u32> {
    id.strip_prefix("order-")?.parse().ok()
}

/// Returns the customer of an order.
pub(crate) fn customer(number: u32) -> String {
    name(customer_index(number))
}

fn customer_index(number: u32) -> u64 {
    let fixed = POISON.iter().find(|(at, ..)| *at == number || *at + NEXT_ORDER_AFTER == number);
    fixed.map_or_else(|| mix(u64::from(number)) % CUSTOMERS, |(_, customer, _)| *customer)
}

fn name(index: u64) -> String {
    let names = NAMES.len() as u64;
    format!("{}-{}", NAMES[(index % names) as usize], index / names)
}

/// Returns the order with this number.
pub(crate) fn order(number: u32) -> Order {
    let customer = customer_index(number);
    let drawn = mix(u64::from(number) | 1 << 40);
    let bank = BANKS[(customer % BANKS.len() as u64) as usize];
    let wrong = poison(number);
    let item = ITEMS[(drawn % ITEMS.len() as u64) as usize];
    Order {
        number,
        customer: name(customer),
        bank: bank.to_owned(),
        country: if wrong == Some(Poison::Crash) { "Atlantis" } else { "Utopia" }.to_owned(),
        items: if wrong == Some(Poison::Panic) { Vec::new() } else { vec![item.to_owned()] },
        cents: 500 + (drawn >> 8) as i64 % 9500,
        voucher: if wrong == Some(Poison::Voucher) { 120 } else { 0 },
    }
}

/// Returns the payload of an order's message.
pub(crate) fn payload(number: u32) -> Value {
    let order = order(number);
    if poison(number) == Some(Poison::Schema) {
        return json!({"number": number, "customer": order.customer, "total": "nineteen"});
    }
    json!(order)
}

/// Returns the line of an order in the source file.
pub(crate) fn line(number: u32) -> String {
    let line = json!({
        "id": id(number),
        "key": customer(number),
        "type": "OrderPlaced",
        "payload": payload(number),
    });
    format!("{line}\n")
}

/// Returns a pseudorandom number that is the same in every run, with the finalizer of SplitMix64.
pub(crate) fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_as_many_customers_as_promised_and_each_has_one_bank() {
        let names: HashSet<String> = (0..CUSTOMERS).map(name).collect();
        assert_eq!(names.len() as u64, CUSTOMERS);
        let mut banks = std::collections::HashMap::new();
        for number in 1..=20_000 {
            let order = order(number);
            let bank = banks.entry(order.customer).or_insert_with(|| order.bank.clone());
            assert_eq!(*bank, order.bank);
        }
        assert_eq!(banks.len() as u64, CUSTOMERS);
        assert_eq!(banks.values().filter(|bank| *bank == HARBOUR).count() as u64, HARBOUR_CUSTOMERS);
    }

    #[test]
    fn each_poisonous_order_has_a_customer_of_its_own_who_orders_again_and_whose_bank_works() {
        let mut customers = HashSet::new();
        for number in poison_orders() {
            assert!(customers.insert(customer(number)));
            assert_eq!(customer(number + NEXT_ORDER_AFTER), customer(number));
            assert!(poison(number + NEXT_ORDER_AFTER).is_none() && number + NEXT_ORDER_AFTER < MIN_ORDERS);
            assert_ne!(order(number).bank, HARBOUR);
        }
        assert!(poison(crashing_order()) == Some(Poison::Crash) && crashing_order() > LAST_HEALTHY);
    }

    #[test]
    fn healthy_orders_can_be_read_and_the_one_with_the_wrong_schema_cannot() {
        for number in 1..=MIN_ORDERS {
            let read = serde_json::from_value::<Order>(payload(number));
            assert_eq!(read.is_err(), poison(number) == Some(Poison::Schema), "{number}");
        }
        assert_eq!(number_of(&id(17)), Some(17));
        assert_eq!(number_of("order-x"), None);
    }
}
