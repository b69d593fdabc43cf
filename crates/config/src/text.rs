//! Parses the text of a scalar by its format.

use lazaret_core::Fingerprint;
use lazaret_core::policy::{Comparison, Glob};

use crate::code::Code;
use crate::formats::{
    Address, FormatError, SequenceRule, StoreLocation, bad, brokers, collection, cron, error_type,
    group_pattern, hash, header_value, host, name, network, payload_path, reason, regex, reserved_header,
    reserved_property, token, url,
};
use crate::table::Format;
use crate::value::Value;

/// Parses a text of the given format. Error messages omit the text, which may be a secret.
pub(crate) fn parse(format: Format, text: &str) -> Result<Value, FormatError> {
    if text.is_empty() && !matches!(format, Format::Free | Format::HeaderValue) {
        return Err(bad(Code::EmptyValue, "must not be empty", ""));
    }
    let plain = || Value::Text(text.to_owned());
    match format {
        Format::Free | Format::Line => Ok(plain()),
        Format::Path if text.contains('\0') => Err(bad(Code::OutOfRange, "is not a valid path", "")),
        Format::Path => Ok(plain()),
        Format::Name => name(text).map(|()| plain()),
        Format::Url => url(text, &["http", "https"]).map(|()| plain()),
        Format::MongoUri => url(text, &["mongodb", "mongodb+srv"]).map(|()| plain()),
        Format::PostgresUrl => url(text, &["postgres", "postgresql"]).map(|()| plain()),
        Format::Address => Address::parse(text).map(Value::Address),
        Format::Brokers => brokers(text).map(|()| plain()),
        Format::Host => host(text).map(|()| plain()),
        Format::Network => network(text).map(|_| plain()),
        Format::Store => StoreLocation::parse(text).map(Value::Store),
        Format::Reason => reason(text).map(Value::Reason),
        Format::Collection => collection(text).map(|()| plain()),
        Format::Failure => match error_type(text) {
            Some(pattern) => Ok(Value::ErrorType(pattern)),
            None => reason(text).map(Value::Reason),
        },
        Format::Glob => {
            text.parse::<Glob>().map(Value::Glob).map_err(|e| bad(Code::InvalidPattern, e.to_string(), ""))
        }
        Format::Regex => regex(text).map(Value::Regex),
        Format::Comparison => {
            let parsed = text.parse::<Comparison>().map(Value::Comparison);
            parsed.map_err(|_| {
                bad(
                    Code::InvalidPattern,
                    "is not a comparison",
                    "write `>=3`, `>3`, `<2`, `<=2`, `=1` or `3`",
                )
            })
        }
        Format::Status => text.parse().map(Value::Status).map_err(|_| {
            let hint = "write one code, a class or a range: `418`, `4xx` or `500-504`";
            bad(Code::InvalidPattern, "is not a status", hint)
        }),
        Format::Cron => cron(text).map(|()| plain()),
        Format::Sequence => SequenceRule::parse(text).map(Value::Sequence),
        Format::PayloadPath => payload_path(text).map(|_| plain()),
        Format::Fingerprint => {
            let parsed = text.parse::<Fingerprint>().map(Value::Fingerprint);
            parsed.map_err(|_| {
                bad(
                    Code::InvalidPattern,
                    "is not a fingerprint",
                    "copy the fingerprint from a letter or a group",
                )
            })
        }
        Format::GroupPattern => group_pattern(text).map(|_| plain()),
        Format::HeaderName => {
            token(text, "!#$%&'*+-.^_`|~", "is not a valid header name")?;
            reserved_header(text).map(|()| plain())
        }
        Format::HeaderValue => header_value(text).map(|()| plain()),
        Format::EnvName if text.contains(['=', '\0']) => {
            Err(bad(Code::InvalidName, "is not a valid variable name", ""))
        }
        Format::EnvName => Ok(plain()),
        Format::Topic if text.len() > 249 || matches!(text, "." | "..") => {
            Err(bad(Code::InvalidName, "is not a valid topic name", "use 1 to 249 characters, not only dots"))
        }
        Format::Topic => token(text, "._-", "is not a valid topic name").map(|()| plain()),
        Format::Property => {
            reserved_property(text)?;
            token(text, "._-", "is not a valid property name").map(|()| plain())
        }
        Format::Hash => hash(text).map(|()| plain()),
        Format::Time => text.parse().map(Value::Time).map_err(|_| {
            bad(
                Code::InvalidToken,
                "is not a time",
                "write a time in RFC 3339, for example `2027-01-01T00:00:00Z`",
            )
        }),
    }
}
