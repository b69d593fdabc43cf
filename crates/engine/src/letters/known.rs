//! Finds the letter that a message already has, across the incarnations of its stream.
//!
//! Ids that sources generate contain the incarnation, so they never match ids of an earlier incarnation.
//! Ids that senders assign may occur again when a stream is recreated and filled anew. A letter of an
//! earlier incarnation says nothing about such a message (I1): the message is handled, and if it fails,
//! its letter gets the message's position as id.

use std::sync::Arc;

use lazaret_core::store::{ErrorKind, HandOff, Limits, Placed, Result, Store, StoreError};
use lazaret_core::{LetterId, Message, QueueName};

/// Returns `true` if the message has a letter.
pub(crate) async fn is_known(store: &Arc<dyn Store>, queue: &QueueName, message: &Message) -> Result<bool> {
    if message.position.incarnation > 0 {
        // Boxed because it is rare and would enlarge the future of each message in flight.
        return Box::pin(is_known_in_incarnation(&**store, queue, message)).await;
    }
    let found = store.lookup(queue, std::slice::from_ref(&message.id)).await?;
    Ok(found.iter().any(Option::is_some))
}

async fn is_known_in_incarnation(store: &dyn Store, queue: &QueueName, message: &Message) -> Result<bool> {
    let ids = [message.id.clone(), message.position_id()];
    let found = store.lookup(queue, &ids).await?;
    Ok(match found[..] {
        [_, Some(_)] => true,
        [Some(_), None] => !is_earlier(store, queue, message).await?,
        _ => false,
    })
}

/// Hands off messages, each as a letter of its own incarnation.
pub(crate) async fn hand_off(
    store: &dyn Store,
    queue: &QueueName,
    limits: &Limits,
    mut items: Vec<HandOff>,
) -> Result<Vec<Result<Placed>>> {
    keep_apart(store, queue, &mut items).await?;
    let is_later = |item: &HandOff| item.letter.message.position.incarnation > 0;
    let later: Vec<(usize, HandOff)> =
        items.iter().cloned().enumerate().filter(|(_, item)| is_later(item)).collect();
    let mut placed = store.hand_off(queue, limits, items).await?;
    // An instance that had not seen the end of the earlier incarnation may have stored its letter
    // meanwhile.
    for (index, item) in later {
        if let Some(Ok(held @ Placed::Held(_))) = placed.get(index) {
            placed[index] = hand_off_again(store, queue, limits, item, *held).await;
        }
    }
    Ok(placed)
}

/// Hands off a message again if a letter of an earlier incarnation has its id.
async fn hand_off_again(
    store: &dyn Store,
    queue: &QueueName,
    limits: &Limits,
    mut item: HandOff,
    held: Placed,
) -> Result<Placed> {
    if !name_apart(store, queue, &mut item).await? {
        return Ok(held);
    }
    let placed = store.hand_off(queue, limits, vec![item]).await?.pop();
    placed.unwrap_or_else(|| {
        Err(StoreError::maybe(ErrorKind::Corrupt, "hand_off", "the store returned too few answers"))
    })
}

/// Gives each message its own id if a letter of an earlier incarnation has the same id.
async fn keep_apart(store: &dyn Store, queue: &QueueName, items: &mut [HandOff]) -> Result<()> {
    for item in items {
        name_apart(store, queue, item).await?;
    }
    Ok(())
}

/// Gives a message its own id if a letter of an earlier incarnation has the same id. Returns `true` if
/// it did.
async fn name_apart(store: &dyn Store, queue: &QueueName, item: &mut HandOff) -> Result<bool> {
    let letter = &mut item.letter;
    let message = &letter.message;
    let own = match message.position.incarnation {
        0 => return Ok(false),
        _ => message.position_id(),
    };
    if message.id == own || !is_earlier(store, queue, message).await? {
        return Ok(false);
    }
    tracing::warn!(
        queue = queue.as_str(),
        stream = message.stream.as_str(),
        position = %message.position,
        "message has the id of a letter of an earlier incarnation and was given an id of its own"
    );
    letter.id = LetterId::of(queue, &own);
    letter.message = Arc::new(Message { id: own, ..Message::clone(message) });
    Ok(true)
}

/// Returns `true` if the letter with this message's id belongs to a message of an earlier incarnation.
/// The same is assumed of a purged letter: handling a message once more does less harm than never
/// handling it.
async fn is_earlier(store: &dyn Store, queue: &QueueName, message: &Message) -> Result<bool> {
    if let Some(letter) = store.get(queue, LetterId::of(queue, &message.id)).await? {
        let other = &letter.message;
        return Ok(other.position.incarnation != message.position.incarnation);
    }
    let found = store.lookup(queue, std::slice::from_ref(&message.id)).await?;
    Ok(found.iter().any(Option::is_some))
}
