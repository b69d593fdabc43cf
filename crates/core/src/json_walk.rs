//! One pass over a JSON text that reads the values at wanted places, and passes over all others.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The place of a value in a JSON text.
pub(crate) trait Place<'de>: Sized {
    /// Returns the place of a member or an element of this value; `None` if nothing there is wanted. Of two members with one name
    /// both are asked for: readers differ in which one counts. An element has its index as a name, in its one spelling (RFC 6901).
    fn below(&self, name: &str) -> Option<Self>;

    /// Returns `true` if this value is wanted. The pass does not go into such a value.
    fn is_wanted(&self) -> bool;

    /// Receives a wanted value.
    ///
    /// # Errors
    /// When a pass over its [members](walk_members) fails.
    fn found(self, value: &'de RawValue) -> serde_json::Result<()>;
}

/// Reads a text that is one JSON value.
///
/// # Errors
/// When the text is not JSON. Some values may have been found by then.
pub(crate) fn walk<'de>(json: &'de [u8], place: impl Place<'de>) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Walk::new(place).deserialize(&mut reader)?;
    reader.end()
}

/// Reads what is below a value that was found.
///
/// # Errors
/// When the value is nested too deeply.
pub(crate) fn walk_members<'de>(value: &'de RawValue, place: impl Place<'de>) -> serde_json::Result<()> {
    serde_json::Deserializer::from_str(value.get()).deserialize_any(Walk::new(place))
}

struct Walk<'de, P> {
    place: P,
    text: PhantomData<&'de ()>,
}

impl<'de, P: Place<'de>> Walk<'de, P> {
    fn new(place: P) -> Self {
        Self { place, text: PhantomData }
    }

    fn below(&self, name: &str) -> Option<Self> {
        self.place.below(name).map(Self::new)
    }
}

impl<'de, P: Place<'de>> DeserializeSeed<'de> for Walk<'de, P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if !self.place.is_wanted() {
            return deserializer.deserialize_any(self);
        }
        let value: &'de RawValue = serde::Deserialize::deserialize(deserializer)?;
        self.place.found(value).map_err(D::Error::custom)
    }
}

impl<'de, P: Place<'de>> Visitor<'de> for Walk<'de, P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match self.below(&name) {
                Some(walk) => map.next_value_seed(walk)?,
                None => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let next = match self.below(&index.to_string()) {
                Some(walk) => list.next_element_seed(walk)?,
                None => list.next_element::<IgnoredAny>()?.map(drop),
            };
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
