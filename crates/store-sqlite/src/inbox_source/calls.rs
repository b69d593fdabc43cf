//! Posts as calls that the redo log can record.

use lazaret_core::ConsumerName;
use lazaret_core::source::Posted;

use super::posts::{OPERATION, Post, Posts};
use super::rows;
use crate::error::Work;
use crate::recorded::Repeatable;
use crate::redo::{Fields, Size, put};
use crate::step::Step;

impl Repeatable for Posts {
    const KIND: u8 = 3;
    const OPERATION: &'static str = OPERATION;
    /// The result of each post, and the next position.
    type Answer = (Vec<Posted>, u64);

    fn run(&mut self, step: &mut Step<'_>) -> Work<Self::Answer> {
        rows::post(step, self)
    }

    fn outcome((posted, next): &Self::Answer, into: &mut Vec<u8>) {
        into.extend(posted.iter().map(|posted| match posted {
            Posted::Taken { .. } => b't',
            // One byte for both: a log of an earlier version must replay to the same outcome.
            Posted::Known { .. } | Posted::Conflict { .. } => b'k',
            Posted::Full => b'f',
            Posted::TooLarge => b'l',
        }));
        put::number(into, *next);
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put::text(into, self.consumer.as_str());
        put::signed(into, self.max_messages);
        put::signed(into, self.max_bytes);
        put::number(into, self.posts.len() as u64);
        for post in &self.posts {
            post.encode(into);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let consumer = ConsumerName::from(fields.text()?);
        let (max_messages, max_bytes) = (fields.signed()?, fields.signed()?);
        let posts = fields.list(Post::decode)?;
        Ok(Self { consumer, max_messages, max_bytes, posts })
    }

    fn size(&self, _: &Self::Answer) -> Size {
        self.to_write()
    }
}
