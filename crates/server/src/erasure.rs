//! What remains of erased content in the files of the store, as text for people.

use lazaret_core::store::Scrubbed;

/// Where erased content remains, and what to do about it; `None` if it remains nowhere in the store.
pub(crate) fn remains(scrubbed: &Scrubbed) -> Option<String> {
    match scrubbed {
        Scrubbed::ByServer(how) => Some((*how).to_owned()),
        scrubbed => in_progress(scrubbed),
    }
}

/// What the store itself has still to do. Where its server removes erased content, nobody knows when that is done.
pub(crate) fn in_progress(scrubbed: &Scrubbed) -> Option<String> {
    match scrubbed {
        Scrubbed::Done | Scrubbed::ByServer(_) => None,
        Scrubbed::UnderWay => Some(
            "the store rewrites its files in the background, and until then they still hold what was erased: \
             `lazaret status` tells when it is done"
                .to_owned(),
        ),
        Scrubbed::Failed(why) => Some(format!(
            "the files of the store still hold what was erased, because they could not be rewritten; the store tries again \
             within an hour, and at its next start: {why}"
        )),
    }
}
