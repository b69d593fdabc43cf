//! Marks imported letters: what they say about people is what another system says.

use jiff::Timestamp;
use lazaret_core::Letter;
use lazaret_core::letter::{IMPORTED_AT, IMPORTED_BY};
use lazaret_core::person::{IMPORTED, MAX_NAME_BYTES};
use lazaret_core::store::{Actor, COMMENT_CHARS, COMMENTS_LIMIT, EDITS_BYTES, EDITS_LIMIT};

/// Checks the limits of what people wrote about a letter, and marks the letter and their names. Nobody here wrote any of it.
///
/// # Errors
/// When there is more than a letter can have (I7).
pub(super) fn mark(letter: &mut Letter, by: &Actor, now: Timestamp) -> Result<(), String> {
    let exceeds = |what: &str, has: usize, limit: usize| match has > limit {
        true => Err(format!("{has} {what}, the limit is {limit}")),
        false => Ok(()),
    };
    exceeds("comments", letter.comments.len(), COMMENTS_LIMIT)?;
    for comment in &mut letter.comments {
        exceeds("characters in a comment", comment.text.chars().count(), COMMENT_CHARS)?;
        comment.by = foreign(&comment.by);
    }
    exceeds("edits", letter.edits.len(), EDITS_LIMIT)?;
    let originals = letter.edits.iter().filter_map(|edit| edit.original.as_ref());
    exceeds("bytes in the originals of edits", originals.map(bytes::Bytes::len).sum(), EDITS_BYTES)?;
    for edit in &mut letter.edits {
        exceeds("characters in the reason of an edit", edit.why.chars().count(), COMMENT_CHARS)?;
        edit.by = foreign(&edit.by);
    }
    if let Some(erased) = &mut letter.erased {
        exceeds("characters in the reason of an erasure", erased.why.chars().count(), COMMENT_CHARS)?;
        erased.by = foreign(&erased.by);
    }
    letter.assignee = letter.assignee.take().map(|name| foreign(&name).into());
    // What a file says under these names is replaced.
    letter.context.insert(IMPORTED_BY.to_owned(), by.who.clone());
    letter.context.insert(IMPORTED_AT.to_owned(), now.to_string());
    Ok(())
}

/// The name of somebody elsewhere. Nobody here has such a name.
fn foreign(name: &str) -> String {
    let name = name.strip_suffix(IMPORTED).unwrap_or(name);
    let mut shown = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if shown.len() + c.len_utf8() > MAX_NAME_BYTES {
            break;
        }
        shown.push(c);
    }
    format!("{shown}{IMPORTED}")
}

#[cfg(test)]
mod tests {
    use lazaret_core::letter::{Edit, Erasure};
    use lazaret_core::person::person_name;
    use lazaret_core::store::Comment;
    use lazaret_core::{Message, Position, QueueName};

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn letter(comments: usize) -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).into();
        let mut letter = Letter::new(QueueName::of("a", "a"), "k".into(), message, NOW);
        let comment = Comment { by: "ada".into(), at: NOW, text: "approved".into() };
        letter.comments = vec![comment; comments];
        letter.context.insert(IMPORTED_BY.into(), "somebody".into());
        letter
    }

    fn olga() -> Actor {
        Actor::new("olga", "cli", "moved")
    }

    #[test]
    fn authors_of_another_system_are_marked_once() {
        let mut moved = letter(1);
        moved.edits.push(Edit { by: "ada\n".into(), at: NOW, why: "typo".into(), original: None });
        for _ in 0..2 {
            mark(&mut moved, &olga(), NOW).unwrap();
            assert_eq!(
                (moved.comments[0].by.as_str(), moved.edits[0].by.as_str()),
                ("ada (imported)", "ada (imported)")
            );
        }
        assert_eq!(moved.context[IMPORTED_BY], "olga");
        assert_eq!(moved.context[IMPORTED_AT], "1970-01-01T00:00:00Z");
        assert!(person_name(&moved.comments[0].by).is_err(), "nobody here has that name");
        moved.comments[0].by = "é".repeat(1000);
        mark(&mut moved, &olga(), NOW).unwrap();
        assert!(moved.comments[0].by.len() <= MAX_NAME_BYTES + IMPORTED.len());
    }

    #[test]
    fn people_of_another_system_neither_erased_a_letter_here_nor_have_it_assigned() {
        let mut moved = letter(0);
        let erasure = Erasure { by: "olga".into(), at: NOW, why: "request".into() };
        moved.erased = Some(Box::new(erasure.clone()));
        moved.assignee = Some("olga".into());
        for _ in 0..2 {
            mark(&mut moved, &olga(), NOW).unwrap();
            assert_eq!(moved.erased.as_ref().unwrap().by, "olga (imported)");
            assert_eq!(moved.assignee.as_deref(), Some("olga (imported)"));
        }
        // I7
        moved.assignee = Some("é".repeat(1000).into());
        mark(&mut moved, &olga(), NOW).unwrap();
        assert!(moved.assignee.as_ref().unwrap().len() <= MAX_NAME_BYTES + IMPORTED.len());
        moved.erased = Some(Box::new(Erasure { why: "x".repeat(COMMENT_CHARS + 1), ..erasure }));
        let refused = mark(&mut moved, &olga(), NOW).unwrap_err();
        assert!(refused.contains("characters in the reason of an erasure"), "{refused}");
    }

    #[test]
    fn what_people_wrote_about_a_letter_is_bounded() {
        // I7
        let refused = |mut letter: Letter| mark(&mut letter, &olga(), NOW).unwrap_err();
        assert!(mark(&mut letter(COMMENTS_LIMIT), &olga(), NOW).is_ok());
        assert_eq!(refused(letter(50_000)), "50000 comments, the limit is 100");
        let mut long = letter(1);
        long.comments[0].text = "x".repeat(COMMENT_CHARS + 1);
        assert!(refused(long).contains("characters in a comment"));
        let mut edited = letter(0);
        let edit = Edit { by: "ada".into(), at: NOW, why: "typo".into(), original: None };
        edited.edits = vec![edit.clone(); EDITS_LIMIT + 1];
        assert!(refused(edited.clone()).contains("edits"));
        let large = bytes::Bytes::from(vec![0; EDITS_BYTES / 2 + 1]);
        edited.edits = vec![Edit { original: Some(large), ..edit }; 2];
        assert!(refused(edited).contains("originals"));
    }
}
