//! The types that a handler may return.

use std::error::Error as StdError;

use crate::failure::HandlerError;

/// A type that a handler may return.
///
/// ```
/// use lazaret_core::handler::IntoOutcome;
/// assert!(().into_outcome().is_ok());
/// assert!("seven".parse::<u64>().map(|_| ()).into_outcome().is_err());
///
/// let boxed: Result<(), Box<dyn std::error::Error + Send + Sync>> = Err("disk on fire".into());
/// assert_eq!(boxed.into_outcome().unwrap_err().to_string(), "disk on fire");
/// ```
///
/// `Via` keeps the implementations apart and never needs to be written.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not an outcome",
    note = "return `()` or `Result<(), E>`, where `E` is `HandlerError`, any `std::error::Error` or `Box<dyn Error + Send + Sync>`",
    note = "`anyhow::Error` needs the feature `anyhow`; other error-collecting libraries need `.map_err(HandlerError::from_boxed)`"
)]
pub trait IntoOutcome<Via> {
    /// Converts the return value into the outcome of the attempt.
    fn into_outcome(self) -> Result<(), HandlerError>;
}

/// Marks outcomes whose error converts with [`Into`]. See [`IntoOutcome`].
pub enum ViaInto {}

/// Marks outcomes whose error is boxed. See [`IntoOutcome`].
pub enum ViaBox {}

/// Marks outcomes whose error is an `anyhow::Error`. See [`IntoOutcome`].
#[cfg(feature = "anyhow")]
pub enum ViaAnyhow {}

impl IntoOutcome<ViaInto> for () {
    fn into_outcome(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Into<HandlerError>> IntoOutcome<ViaInto> for Result<(), E> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(Into::into)
    }
}

impl IntoOutcome<ViaBox> for Result<(), Box<dyn StdError + Send + Sync + 'static>> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(HandlerError::from_boxed)
    }
}

#[cfg(feature = "anyhow")]
impl IntoOutcome<ViaAnyhow> for Result<(), anyhow::Error> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(HandlerError::from_anyhow)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Delivery, Handler, handler};
    use super::*;
    use crate::message::{Message, Position};
    use crate::policy::{Classifier, Subject};
    use crate::verdict::Verdict;
    use std::io;
    use std::num::ParseIntError;

    async fn run<A: 'static>(h: impl Handler<A>) -> HandlerError {
        let delivery = Delivery::new(Message::new("m", "s", Position::new(0, 0)));
        handler(h).handle(delivery).await.unwrap_err()
    }

    fn verdict(classifier: &Classifier, error: &HandlerError) -> Verdict {
        let message = Message::new("m", "s", Position::new(0, 0));
        let failure = error.failure();
        let (asked, suggested) = (error.asked_verdict(), error.suggested_verdict());
        let subject = Subject {
            failure: &failure,
            error: error.error(),
            message: &message,
            attempt: 1,
            asked,
            suggested,
        };
        classifier.classify(&subject).verdict
    }

    #[derive(Debug, thiserror::Error)]
    #[error("amount not read")]
    struct Amount(#[source] ParseIntError);

    fn amount() -> Result<u8, Amount> {
        "x".parse().map_err(Amount)
    }

    #[tokio::test]
    async fn a_boxed_error_keeps_its_type_its_message_and_its_chain() {
        async fn place() -> Result<(), Box<dyn StdError + Send + Sync>> {
            amount()?;
            Ok(())
        }
        let error = run(place).await;
        let failure = error.failure();
        assert_eq!(failure.message, "amount not read");
        assert_eq!(failure.chain.len(), 1);
        assert_eq!(failure.chain[0].message, "invalid digit found in string");
        let retry = Classifier::default().no_retry_on::<io::Error>();
        assert_eq!(verdict(&retry, &error), Verdict::Retry);
        assert_eq!(verdict(&Classifier::default().no_retry_on::<Amount>(), &error), Verdict::DeadLetter);
        assert_eq!(
            verdict(&Classifier::default().no_retry_on::<ParseIntError>(), &error),
            Verdict::DeadLetter
        );
    }

    #[tokio::test]
    async fn a_type_of_the_users_with_a_conversion_of_its_own_is_an_error() {
        struct Declined;
        impl From<Declined> for HandlerError {
            fn from(_: Declined) -> Self {
                Self::msg("declined").verdict(Verdict::Park)
            }
        }
        async fn place() -> Result<(), Declined> {
            Err(Declined)
        }
        assert_eq!(run(place).await.asked_verdict(), Some(Verdict::Park));
    }

    #[cfg(feature = "anyhow")]
    mod with_anyhow {
        use super::*;
        use anyhow::Context as _;

        async fn place() -> anyhow::Result<()> {
            amount().context("order not placed")?;
            Ok(())
        }

        #[tokio::test]
        async fn an_anyhow_error_keeps_its_message_and_its_chain() {
            let failure = run(place).await.failure();
            assert_eq!((&*failure.message, &*failure.error_type), ("order not placed", "anyhow::Error"));
            let chain: Vec<_> = failure.chain.iter().map(|link| &*link.message).collect();
            assert_eq!(chain, ["amount not read", "invalid digit found in string"]);
        }

        #[tokio::test]
        async fn an_anyhow_error_is_classified_by_the_types_in_its_chain() {
            async fn bare() -> anyhow::Result<()> {
                amount()?;
                Ok(())
            }
            for error in [run(place).await, run(bare).await] {
                assert_eq!(
                    verdict(&Classifier::default().no_retry_on::<Amount>(), &error),
                    Verdict::DeadLetter
                );
                let inner = Classifier::default().no_retry_on::<ParseIntError>();
                assert_eq!(verdict(&inner, &error), Verdict::DeadLetter);
                assert_eq!(
                    verdict(&Classifier::default().no_retry_on::<io::Error>(), &error),
                    Verdict::Retry
                );
            }
        }
    }
}
