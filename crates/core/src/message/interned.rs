//! Texts that live as long as the process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A text that lives as long as the process. It is one word, and a copy of it touches no memory that other threads write.
pub(super) type Interned = &'static InternedText;

/// The text behind an [`Interned`].
#[derive(Debug)]
pub(super) struct InternedText(Box<str>);

impl InternedText {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the one copy of a text, which stays until the process ends. Only for names that a process sees few of (I7).
pub(super) fn intern(text: &str) -> Interned {
    static TEXTS: LazyLock<Mutex<HashMap<Box<str>, Interned>>> = LazyLock::new(Mutex::default);
    // A panic between two steps leaves at most an entry that nobody knows.
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.get(text).copied().unwrap_or_else(|| {
        let interned: Interned = Box::leak(Box::new(InternedText(text.into())));
        texts.insert(text.into(), interned);
        interned
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_is_kept_once() {
        let elsewhere = String::from("orders");
        assert!(std::ptr::eq(intern("orders"), intern(&elsewhere)));
        assert_ne!(intern("orders").as_str(), intern("payments").as_str());
    }
}
