//! Imports exported letters: each once (I8), each sequence in order (I2).

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::extract::{Request, State};
use lazaret_api::{Code, ImportAnswer, ImportFailure, LetterDetail, Problem};
use lazaret_core::source::jsonl::is_blank;
use lazaret_core::store::{AuditNote, HandOff, Limits, Placed, Placement};
use lazaret_core::{Letter, MessageId, QueueName};
use serde::Deserialize;

use super::imported::mark;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Params, read, require_type};
use crate::ndjson::NDJSON;
use crate::registry::Entry;

/// The maximum number of reported failures.
const MAX_FAILURES: usize = 100;
/// The number of letters per store call.
const CHUNK: usize = 256;

/// The target queue and the reason.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ImportParams {
    queue: Option<String>,
    reason: Option<String>,
}

pub(crate) async fn import(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ImportParams>,
    request: Request<Body>,
) -> Result<axum::Json<ImportAnswer>> {
    let by = caller.actor(Some(params.reason.as_deref().unwrap_or("import")))?;
    let (parts, body) = request.into_parts();
    require_type(&parts.headers, &[NDJSON, "application/jsonl"])?;
    let bytes = read(&app, &parts.headers, body, app.options.limits.import_bytes).await?;
    let queue = params.queue.map(QueueName::from);
    // An import has megabytes: parsed here, it would stall all other requests.
    let most = app.options.limits.import_letters;
    let texts = app.options.redaction.stored_texts();
    let (importer, now) = (by.clone(), app.clock.now());
    let parsed = tokio::task::spawn_blocking(move || {
        let mut answer = ImportAnswer::default();
        let admit = |letter: &mut Letter| mark(letter, &importer, now);
        let mut letters = letters(&bytes, queue.as_ref(), most, admit, &mut answer)?;
        for (_, letter) in letters.values_mut().flatten() {
            texts.apply_to_letter(letter);
        }
        Ok::<_, ApiError>((letters, answer))
    });
    let (letters, mut answer) = parsed.await.map_err(|_| ApiError::from(Problem::new(Code::Internal)))??;
    let queues: BTreeSet<QueueName> =
        app.store.queues().await?.into_iter().map(|summary| summary.queue).collect();
    for (queue, mut letters) in letters {
        if let Err(why) = is_known(&app, &queue, &queues) {
            letters.iter().for_each(|(line, _)| failed(&mut answer, *line, why.clone()));
            continue;
        }
        refuse_unapproved(&app, &queue, &mut letters, &mut answer);
        if letters.is_empty() {
            continue;
        }
        // I11: recorded before the first letter is imported.
        let after = match letters.len() {
            1 => "1 letter".to_owned(),
            count => format!("{count} letters"),
        };
        let note = AuditNote { action: "import".to_owned(), subject: queue.to_string(), after: Some(after) };
        app.store.note(&note, &by).await?;
        hand_off(&app, &queue, letters, &mut answer).await?;
        app.wake(&queue);
    }
    Ok(axum::Json(answer))
}

/// Parses the letters by queue, each with its line. An export starts with the latest letter; a sequence must be imported from
/// its head on, so the letters are sorted. `admit` may change a letter, or refuse it.
fn letters(
    text: &[u8],
    queue: Option<&QueueName>,
    most: usize,
    admit: impl Fn(&mut Letter) -> std::result::Result<(), String>,
    answer: &mut ImportAnswer,
) -> Result<BTreeMap<QueueName, Vec<(u64, Letter)>>> {
    let mut by_queue: BTreeMap<QueueName, Vec<(u64, Letter)>> = BTreeMap::new();
    let mut count = 0;
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        if is_blank(line) {
            continue;
        }
        count += 1;
        if count > most {
            let problem = Problem::new(Code::TooLarge).at(format!("line {number}"));
            return Err(problem.with_detail(format!("more than {most} letters in an import")).into());
        }
        let parsed = serde_json::from_slice::<LetterDetail>(line).map_err(|error| error.to_string());
        let letter = parsed.and_then(|detail| detail.into_letter(queue).map_err(|error| error.to_string()));
        match letter.and_then(|mut letter| admit(&mut letter).map(|()| letter)) {
            Ok(letter) => by_queue.entry(letter.queue.clone()).or_default().push((number, letter)),
            Err(why) => failed(answer, number, why),
        }
    }
    for letters in by_queue.values_mut() {
        letters.sort_by(|(_, a), (_, b)| (&a.sequence, a.index).cmp(&(&b.sequence, b.index)));
    }
    Ok(by_queue)
}

/// Requires a queue that exists, or is one of a consumer here: an import must not create queues for any name.
fn is_known(app: &App, queue: &QueueName, queues: &BTreeSet<QueueName>) -> std::result::Result<(), String> {
    let (consumer, component) = (queue.consumer(), queue.component());
    let is_component = |entry: Entry| {
        component == consumer || entry.handle.is_some_and(|handle| handle.replayer(component).is_some())
    };
    if queues.contains(queue) || app.registry.entry(consumer).is_some_and(is_component) {
        return Ok(());
    }
    Err(format!(
        "unknown queue {:?}: no consumer here has it, and the store holds no letters of it",
        queue.as_str()
    ))
}

/// Rejects letters that would be retried automatically where replays need a second person's approval.
fn refuse_unapproved(
    app: &App,
    queue: &QueueName,
    letters: &mut Vec<(u64, Letter)>,
    answer: &mut ImportAnswer,
) {
    if !app.registry.needs_approval(queue.consumer()) {
        return;
    }
    letters.retain(|(line, letter)| {
        let runs = letter.state.is_automatic();
        if runs {
            let why = format!(
                "{} requires a second person, and a letter in the state {} would be retried at once: import it as dead, \
                 and plan a retry",
                queue.consumer(),
                letter.state
            );
            failed(answer, *line, why);
        }
        !runs
    });
}

fn failed(answer: &mut ImportAnswer, line: u64, why: String) {
    answer.failures += 1;
    if answer.failed.len() < MAX_FAILURES {
        answer.failed.push(ImportFailure { line, why });
    }
}

/// Removes the letters whose messages have a letter in this queue. They are imported under ids of their own, so the store would
/// not recognise them.
async fn without_known(
    app: &App,
    queue: &QueueName,
    letters: Vec<(u64, Letter)>,
    answer: &mut ImportAnswer,
) -> Result<Vec<(u64, Letter)>> {
    let ids: Vec<MessageId> = letters.iter().map(|(_, letter)| letter.message.id.clone()).collect();
    let held = app.store.lookup(queue, &ids).await?;
    let (known, new): (Vec<_>, Vec<_>) = letters.into_iter().zip(held).partition(|(_, held)| held.is_some());
    answer.known += known.len() as u64;
    Ok(new.into_iter().map(|(letter, _)| letter).collect())
}

async fn hand_off(
    app: &App,
    queue: &QueueName,
    letters: Vec<(u64, Letter)>,
    answer: &mut ImportAnswer,
) -> Result<()> {
    let mut letters = letters.into_iter();
    loop {
        let chunk: Vec<(u64, Letter)> = letters.by_ref().take(CHUNK).collect();
        if chunk.is_empty() {
            return Ok(());
        }
        let chunk = without_known(app, queue, chunk, answer).await?;
        let item = |(line, letter)| (line, HandOff { letter, placement: Placement::Imported, grant: None });
        let (numbers, items): (Vec<u64>, Vec<HandOff>) = chunk.into_iter().map(item).unzip();
        let placed = app.store.hand_off(queue, &Limits::NONE, items).await?;
        for (placed, line) in placed.into_iter().zip(numbers) {
            match placed {
                Ok(Placed::Held(_)) => answer.known += 1,
                Ok(_) => answer.taken += 1,
                Err(error) => failed(answer, line, error.to_string()),
            }
        }
    }
}
