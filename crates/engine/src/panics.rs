//! Catches panics of user code, with their location (I10).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use lazaret_core::HandlerError;

/// Calls user code. A panic is returned as an error with its location (I10).
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, HandlerError> {
    watch_panics();
    WATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    WATCHING.set(false);
    result.map_err(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text".to_owned());
        HandlerError::panic(text, PLACE.take())
    })
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Installs a panic hook that records the location of a panic in user code. The hook still calls the
/// previous one.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHING.get() {
                PLACE.set(info.location().map(|place| format!("at {place}")));
            }
            previous(info);
        }));
    });
}
