//! Publishes changes to the event feed.

use lazaret_api::{Event, EventKind};
use lazaret_core::Letter;
use lazaret_core::store::Actor;

use crate::app::App;

/// Publishes a manual change of a letter.
pub(super) fn letter_changed(app: &App, letter: &Letter, action: &str, by: &Actor) {
    let event = Event::new(EventKind::LetterChanged, app.clock.now());
    app.feed.publish(Event {
        consumer: Some(letter.queue.consumer().to_owned()),
        queue: Some(letter.queue.to_string()),
        letter: Some(letter.id.to_string()),
        state: Some(letter.state.into()),
        action: Some(action.to_owned()),
        who: Some(by.who.clone()),
        ..event
    });
}
