//! Appends messages in the store behind their open sequence (I2).

use lazaret_core::store::{ErrorKind, HandOff, Placement};

use super::message::LiveMessage;
use crate::component::Component;
use crate::flow::Fate;
use crate::mutation::mutated;
use crate::store_retry::{Abandoned, StoreRetry, retry_until_ok};

impl LiveMessage {
    /// Appends the message to its sequence if the sequence is open in the store. The set in memory may
    /// wrongly say "maybe", so the store decides. Returns `false` if the sequence is not open.
    pub(super) async fn join_open_sequence(&self) -> Result<bool, Abandoned> {
        let Component { index, queue, hand_offs, options, .. } = &*self.component;
        if mutated!(options, SkipBlockedCheck) || !self.open.maybe(*index, self.hash) {
            return Ok(false);
        }
        let append = || hand_offs.hand_off_one(queue, self.follower());
        let placed = retry_until_ok(&self.component, append).await?;
        Ok(self.writer().appended(placed))
    }

    fn follower(&self) -> HandOff {
        self.writer().hand_off(*self.waiting_letter(), Placement::Behind)
    }
}

/// Appends all messages of a lane to their open sequence in one call. Returns the fate of each message
/// with its tag. The fate is `None` if the sequence is not open and the message should be tried live.
/// These messages keep their order.
///
/// Messages come in the order of the lane, and the store keeps the order of a call. A message that fails
/// is therefore sent again together with all messages behind it.
pub(crate) async fn append_all<T>(messages: Vec<(T, LiveMessage)>) -> Vec<(T, LiveMessage, Option<Fate>)> {
    let mut ended = Vec::with_capacity(messages.len());
    let Some(component) = messages.first().map(|(_, live)| live.component.clone()) else {
        return ended;
    };
    let mut rest = messages;
    for (_, live) in &mut rest {
        live.restore_attempts();
    }
    let mut retry = StoreRetry::new(&component);
    loop {
        let items = rest.iter().map(|(_, live)| live.follower()).collect();
        let answers = component.hand_offs.hand_off(&component.queue, items).await;
        let mut again = Vec::new();
        let mut last_error = None;
        for ((tag, live), answer) in rest.into_iter().zip(answers) {
            match answer {
                Ok(placed) => {
                    let fate = live.writer().appended(placed).then_some(Fate::Settled);
                    ended.push((tag, live, fate));
                }
                // Another instance owns the message's partition. Messages of other partitions are not
                // affected.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    ended.push((tag, live, Some(Fate::Fenced)));
                }
                Err(error) => {
                    last_error = Some(error);
                    again.push((tag, live));
                }
            }
        }
        let Some(error) = last_error else { return ended };
        let over = retry.failed(error).await.is_err();
        let (stay, abandoned): (Vec<_>, Vec<_>) =
            again.into_iter().partition(|(_, live)| !over && !live.ownership.is_revoked());
        ended.extend(abandoned.into_iter().map(|(tag, live)| (tag, live, Some(Fate::Abandoned))));
        if stay.is_empty() {
            return ended;
        }
        rest = stay;
    }
}
