//! Writes canonical extended JSON from raw BSON, in the order of its fields, and reads it back.
//!
//! Extended JSON cannot express a field that has the name of a type wrapper, such as `$oid`. The writer
//! reports this, and the event is passed on as BSON instead.

use std::fmt::Write as _;

use bson::raw::RawBsonRef;
use bson::spec::BinarySubtype;
use bson::{Bson, Document, RawArray, RawDocument};

/// The reason why a document cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the field `{0}` has the name of a type of extended JSON")]
    Ambiguous(String),
    #[error("invalid BSON: {0}")]
    Invalid(#[from] bson::error::Error),
}

/// Writes a document.
pub(crate) fn to_json(document: &RawDocument) -> Result<String, WriteError> {
    let mut out = String::with_capacity(document.as_bytes().len() * 2);
    write_document(&mut out, document)?;
    Ok(out)
}

/// Reads a document.
pub(crate) fn from_json(json: &[u8]) -> Result<Document, serde_json::Error> {
    use serde::de::Error;
    match serde_json::from_slice(json)? {
        Bson::Document(document) => Ok(document),
        _ => Err(serde_json::Error::custom("not a document")),
    }
}

fn write_document(out: &mut String, document: &RawDocument) -> Result<(), WriteError> {
    out.push('{');
    for (index, element) in document.iter().enumerate() {
        let (name, value) = element?;
        let name = name.as_str();
        if name.starts_with('$') && is_wrapper(name) {
            return Err(WriteError::Ambiguous(name.to_owned()));
        }
        if index > 0 {
            out.push(',');
        }
        write_string(out, name);
        out.push(':');
        write_value(out, value)?;
    }
    out.push('}');
    Ok(())
}

fn write_array(out: &mut String, array: &RawArray) -> Result<(), WriteError> {
    out.push('[');
    for (index, value) in array.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_value(out, value?)?;
    }
    out.push(']');
    Ok(())
}

/// Writes formatted text to a string, which does not fail.
macro_rules! put {
    ($out:expr, $($arguments:tt)*) => {{ let _ = write!($out, $($arguments)*); }};
}

fn write_value(out: &mut String, value: RawBsonRef<'_>) -> Result<(), WriteError> {
    match value {
        RawBsonRef::Document(document) => write_document(out, document)?,
        RawBsonRef::Array(array) => write_array(out, array)?,
        RawBsonRef::String(text) => write_string(out, text),
        RawBsonRef::Boolean(value) => out.push_str(if value { "true" } else { "false" }),
        RawBsonRef::Null => out.push_str("null"),
        RawBsonRef::Int32(number) => {
            out.push_str(r#"{"$numberInt":""#);
            write_number(out, i64::from(number));
            out.push_str(r#""}"#);
        }
        RawBsonRef::Int64(number) => write_long(out, number),
        RawBsonRef::Double(number) => put!(out, r#"{{"$numberDouble":"{}"}}"#, double(number)),
        RawBsonRef::Decimal128(number) => put!(out, r#"{{"$numberDecimal":"{number}"}}"#),
        RawBsonRef::ObjectId(id) => put!(out, r#"{{"$oid":"{id}"}}"#),
        RawBsonRef::DateTime(time) => {
            out.push_str(r#"{"$date":"#);
            write_long(out, time.timestamp_millis());
            out.push('}');
        }
        RawBsonRef::Timestamp(time) => {
            out.push_str(r#"{"$timestamp":{"t":"#);
            write_number(out, i64::from(time.time));
            out.push_str(r#","i":"#);
            write_number(out, i64::from(time.increment));
            out.push_str("}}");
        }
        RawBsonRef::Binary(binary) => write_binary(out, binary.bytes, binary.subtype),
        RawBsonRef::RegularExpression(regex) => {
            out.push_str(r#"{"$regularExpression":{"pattern":"#);
            write_string(out, regex.pattern.as_str());
            out.push_str(r#","options":"#);
            write_string(out, regex.options.as_str());
            out.push_str("}}");
        }
        RawBsonRef::JavaScriptCode(code) => {
            out.push_str(r#"{"$code":"#);
            write_string(out, code);
            out.push('}');
        }
        RawBsonRef::JavaScriptCodeWithScope(with_scope) => {
            out.push_str(r#"{"$code":"#);
            write_string(out, with_scope.code);
            out.push_str(r#","$scope":"#);
            write_document(out, with_scope.scope)?;
            out.push('}');
        }
        RawBsonRef::Symbol(symbol) => {
            out.push_str(r#"{"$symbol":"#);
            write_string(out, symbol);
            out.push('}');
        }
        RawBsonRef::DbPointer(pointer) => write_db_pointer(out, RawBsonRef::DbPointer(pointer))?,
        RawBsonRef::Undefined => out.push_str(r#"{"$undefined":true}"#),
        RawBsonRef::MinKey => out.push_str(r#"{"$minKey":1}"#),
        RawBsonRef::MaxKey => out.push_str(r#"{"$maxKey":1}"#),
    }
    Ok(())
}

fn write_long(out: &mut String, number: i64) {
    out.push_str(r#"{"$numberLong":""#);
    write_number(out, number);
    out.push_str(r#""}"#);
}

/// The number of characters in the longest number, including its sign.
const LONGEST_NUMBER: usize = 20;

/// Writes a number digit by digit, starting at the end. Formatting takes several times as long, and
/// every event has a few numbers.
pub(crate) fn write_number(out: &mut String, number: i64) {
    let mut digits = [0; LONGEST_NUMBER];
    let (mut first, mut rest) = (LONGEST_NUMBER, number.unsigned_abs());
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        first -= 1;
        digits[first] = b'-';
    }
    // Digits are ASCII.
    out.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

fn double(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        // The shortest text that reads as the same number, with a decimal point or an exponent.
        _ => format!("{number:?}"),
    }
}

fn write_binary(out: &mut String, bytes: &[u8], subtype: BinarySubtype) {
    out.push_str(r#"{"$binary":{"base64":""#);
    write_base64(out, bytes);
    put!(out, r#"","subType":"{:02x}"}}}}"#, u8::from(subtype));
}

/// Writes a DBPointer through the driver. The type has no public fields, and is deprecated since the
/// first versions of MongoDB.
fn write_db_pointer(out: &mut String, value: RawBsonRef<'_>) -> Result<(), WriteError> {
    let value = Bson::try_from(value)?;
    let json = serde_json::to_string(&value).unwrap_or_default();
    out.push_str(&json);
    Ok(())
}

/// The number of bytes in a piece of a large value. Each piece becomes base64 digits without a remainder.
const BASE64_PIECE: usize = 192;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The two digits for each value of twelve bits. This halves the lookups for a binary payload.
static DIGIT_PAIRS: [[u8; 2]; 1 << 12] = {
    let mut pairs = [[0; 2]; 1 << 12];
    let mut bits = 0;
    while bits < pairs.len() {
        pairs[bits] = [DIGITS[bits >> 6], DIGITS[bits & 63]];
        bits += 1;
    }
    pairs
};

fn write_base64(out: &mut String, bytes: &[u8]) {
    let digit = |bits: u32, place: u32| DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
    let pair = |bits: u32| DIGIT_PAIRS[(bits & 0xfff) as usize];
    let mut digits = [b'='; BASE64_PIECE / 3 * 4];
    for piece in bytes.chunks(BASE64_PIECE) {
        let groups = piece.chunks_exact(3);
        let rest = groups.remainder();
        for (group, digits) in groups.zip(digits.chunks_exact_mut(4)) {
            let bits = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
            digits[..2].copy_from_slice(&pair(bits >> 12));
            digits[2..].copy_from_slice(&pair(bits));
        }
        if let [first, ..] = *rest {
            let second = rest.get(1).copied();
            let bits = u32::from(first) << 16 | u32::from(second.unwrap_or_default()) << 8;
            let third = second.map_or(b'=', |_| digit(bits, 2));
            let at = piece.len() / 3 * 4;
            digits[at..at + 4].copy_from_slice(&[digit(bits, 0), digit(bits, 1), third, b'=']);
        }
        // Digits are ASCII.
        out.push_str(std::str::from_utf8(&digits[..piece.len().div_ceil(3) * 4]).unwrap_or_default());
    }
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut start = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..=0x1f => "",
            _ => continue,
        };
        out.push_str(&text[start..at]);
        start = at + 1;
        match escape {
            "" => put!(out, "\\u{byte:04x}"),
            escape => out.push_str(escape),
        }
    }
    out.push_str(&text[start..]);
    out.push('"');
}

/// Returns `true` if a reader of extended JSON treats the name as a type.
fn is_wrapper(name: &str) -> bool {
    matches!(
        name,
        "$oid"
            | "$symbol"
            | "$numberInt"
            | "$numberLong"
            | "$numberDouble"
            | "$numberDecimal"
            | "$numberDecimalBytes"
            | "$binary"
            | "$uuid"
            | "$code"
            | "$scope"
            | "$timestamp"
            | "$regularExpression"
            | "$dbPointer"
            | "$date"
            | "$minKey"
            | "$maxKey"
            | "$undefined"
    )
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use bson::oid::ObjectId;
    use bson::{Binary, DateTime, Decimal128, JavaScriptCodeWithScope, Regex, Timestamp, doc};

    use super::*;

    fn round_trip(document: Document) -> String {
        let raw = bson::RawDocumentBuf::try_from(&document).unwrap();
        let json = to_json(&raw).unwrap();
        let back = from_json(json.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json}"));
        assert_eq!(back, document, "{json}");
        let order: Vec<_> = back.keys().collect();
        assert_eq!(order, document.keys().collect::<Vec<_>>());
        json
    }

    #[test]
    fn bytes_of_any_length_come_back() {
        // I5: lengths around the ends of three-byte groups and of pieces.
        for length in (0..8).chain(BASE64_PIECE - 2..BASE64_PIECE + 5).chain([1024, 5000]) {
            let bytes = (0..length).map(|byte| (byte * 7 % 256) as u8).collect();
            round_trip(doc! { "b": Binary { subtype: BinarySubtype::Generic, bytes } });
        }
    }

    #[test]
    fn every_type_of_bson_comes_back() {
        // I5
        round_trip(doc! {
            "z": 1_i32, "long": i64::MAX, "small long": 7_i64, "double": 1.0, "tiny": 5e-324, "big": 1e300,
            "negative zero": -0.0, "infinity": f64::INFINITY, "-infinity": f64::NEG_INFINITY,
            "text": "line\n\"quoted\" \\ \u{1} ü \u{1F600}", "bool": true, "null": Bson::Null,
            "id": ObjectId::from_str("6afb78b2adbe48634cc20623").unwrap(),
            "date": DateTime::from_millis(-1), "time": Timestamp { time: 7, increment: u32::MAX },
            "decimal": Decimal128::from_str("1.50E+300").unwrap(),
            "binary": Binary { subtype: BinarySubtype::UserDefined(0x81), bytes: vec![0, 255, 7, 8] },
            "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] },
            "empty": Binary { subtype: BinarySubtype::Generic, bytes: vec![] },
            "regex": Regex { pattern: "^a\"".try_into().unwrap(), options: "i".try_into().unwrap() },
            "code": Bson::JavaScriptCode("f()".into()),
            "scoped": JavaScriptCodeWithScope { code: "g()".into(), scope: doc! { "x": 1_i64 } },
            "symbol": Bson::Symbol("s".into()), "undefined": Bson::Undefined,
            "min": Bson::MinKey, "max": Bson::MaxKey,
            "nested": { "b": [1_i64, { "a": 1_i32 }, []], "a": {} },
        });
    }

    #[test]
    fn not_a_number_comes_back() {
        let raw = bson::RawDocumentBuf::try_from(&doc! { "n": f64::NAN }).unwrap();
        let back = from_json(to_json(&raw).unwrap().as_bytes()).unwrap();
        assert!(back.get_f64("n").unwrap().is_nan());
    }

    #[test]
    fn the_text_is_canonical() {
        let json = round_trip(doc! { "b": 1_i32, "a": [1.5, "x"] });
        assert_eq!(json, r#"{"b":{"$numberInt":"1"},"a":[{"$numberDouble":"1.5"},"x"]}"#);
        let date = round_trip(doc! { "d": DateTime::from_millis(1) });
        assert_eq!(date, r#"{"d":{"$date":{"$numberLong":"1"}}}"#);
        let bytes =
            round_trip(doc! { "x": Binary { subtype: BinarySubtype::Generic, bytes: b"ab".to_vec() } });
        assert_eq!(bytes, r#"{"x":{"$binary":{"base64":"YWI=","subType":"00"}}}"#);
    }

    #[test]
    fn numbers_are_written_as_they_are_formatted() {
        // I5
        let edges =
            [0, 7, 10, -1, 1_000_000_009, i64::from(i32::MIN), i64::from(u32::MAX), i64::MAX, i64::MIN];
        for number in edges {
            let mut text = String::new();
            write_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
        let json =
            round_trip(doc! { "d": DateTime::from_millis(i64::MIN), "n": i32::MIN, "b": [true, false] });
        let expected = r#"{"d":{"$date":{"$numberLong":"-9223372036854775808"}},"n":{"$numberInt":"-2147483648"},"b":[true,false]}"#;
        assert_eq!(json, expected);
        let json = round_trip(doc! { "t": Timestamp { time: u32::MAX, increment: 0 } });
        assert_eq!(json, r#"{"t":{"$timestamp":{"t":4294967295,"i":0}}}"#);
    }

    #[test]
    fn a_field_with_the_name_of_a_type_is_reported() {
        // I5: the value would be read back as a different type.
        let raw = bson::RawDocumentBuf::try_from(&doc! { "a": [{ "$oid": "x" }] }).unwrap();
        assert!(matches!(to_json(&raw), Err(WriteError::Ambiguous(name)) if name == "$oid"));
        round_trip(doc! { "$set": { "a": 1_i32 } });
    }
}
