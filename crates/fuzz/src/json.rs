//! Mutates JSON values.

use serde_json::{Map, Number, Value};

use crate::random::Random;

/// Changes one node of a JSON value. Returns `None` if the input is not JSON.
pub(crate) fn mutate(random: &mut Random, input: &[u8], words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(input).ok()?;
    let nodes = count(&value);
    let mut place = random.below(nodes);
    change(&mut value, &mut place, random, words);
    let mut text = serde_json::to_string(&value).ok()?;
    if random.one_in(10) {
        repeat_member(&mut text, random);
    }
    Some(text.into_bytes())
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the node at this place, counted in order.
fn change(value: &mut Value, place: &mut usize, random: &mut Random, words: &[Vec<u8>]) -> bool {
    if *place == 0 {
        *value = changed(std::mem::take(value), random, words);
        return true;
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, place, random, words)),
        Value::Object(members) => members.values_mut().any(|item| change(item, place, random, words)),
        _ => false,
    }
}

fn changed(value: Value, random: &mut Random, words: &[Vec<u8>]) -> Value {
    match (random.below(4), value) {
        (0, Value::Object(mut members)) => {
            let names: Vec<String> = members.keys().cloned().collect();
            if let Some(name) = random.pick(&names) {
                members.remove(name);
            }
            Value::Object(members)
        }
        (1, Value::Object(mut members)) => {
            members.insert(text(random, words), scalar(random, words));
            Value::Object(members)
        }
        (0, Value::Array(mut items)) if !items.is_empty() => {
            items.remove(random.below(items.len()));
            Value::Array(items)
        }
        (1, Value::Array(mut items)) => {
            items.insert(random.below(items.len() + 1), scalar(random, words));
            Value::Array(items)
        }
        (0, Value::String(own)) => Value::String(own + &text(random, words)),
        (1, Value::Number(number)) => {
            let near = number.as_i64().unwrap_or_default().wrapping_add(random.below(3) as i64 - 1);
            Value::Number(near.into())
        }
        (2, value) if random.one_in(6) => nested(value, random),
        (_, _) => scalar(random, words),
    }
}

/// Nests a value up to the depth at which serde gives up, and beyond.
fn nested(mut value: Value, random: &mut Random) -> Value {
    for _ in 0..random.below(140) {
        value = match random.one_in(2) {
            true => Value::Array(vec![value]),
            false => Value::Object(Map::from_iter([("a".to_owned(), value)])),
        };
    }
    value
}

fn scalar(random: &mut Random, words: &[Vec<u8>]) -> Value {
    match random.below(7) {
        0 => Value::Null,
        1 => Value::Bool(random.one_in(2)),
        2 => {
            let edges = [0, 1, -1, i64::MIN, i64::MAX, 1 << 31, 1 << 32, -(1 << 31), 1_000_000_000_000];
            Value::Number(random.pick(&edges).copied().unwrap_or_default().into())
        }
        3 => {
            let edges = [0.5, -0.0, 1e-300, 1e300, f64::MAX, 18_446_744_073_709_551_615.0];
            let number = random.pick(&edges).copied().and_then(Number::from_f64);
            number.map_or(Value::Null, Value::Number)
        }
        4 => Value::Array(Vec::new()),
        5 => Value::Object(Map::new()),
        _ => Value::String(text(random, words)),
    }
}

fn text(random: &mut Random, words: &[Vec<u8>]) -> String {
    let odd = [
        "",
        " ",
        "\0",
        "\n",
        "\u{2028}",
        "\u{1f980}",
        "\u{202e}",
        "-1",
        "0:0",
        "18446744073709551615:0",
        "a/b/c",
    ];
    match random.pick(words) {
        Some(word) if random.one_in(2) => String::from_utf8_lossy(word).into_owned(),
        _ if random.one_in(12) => "x".repeat(random.below(20_000)),
        _ => random.pick(&odd).map(|text| (*text).to_owned()).unwrap_or_default(),
    }
}

/// Repeats the first member of an object, which a map cannot hold twice.
fn repeat_member(text: &mut String, random: &mut Random) {
    let names = ["id", "payload", "key", "type", "headers", "state", "message"];
    if let Some(name) = random.pick(&names)
        && text.starts_with("{\"")
    {
        text.insert_str(1, &format!("\"{name}\":1,"));
    }
}
