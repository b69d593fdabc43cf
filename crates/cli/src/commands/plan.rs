//! `plan`: freezes a set of letters and previews the action.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jiff::{SignedDuration, Timestamp};
use lazaret_api::values::duration;
use lazaret_api::{Action, Excluded, Exclusion, Plan, PlanRequest, Selection};

use super::Run;
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::holders::holders;
use crate::output::{
    Cell, Column, Fields, Format, Record, Tone, count, plural, print_page, span, time_with_age,
};
use crate::selection::Letters;
use crate::unknown_names::explain_empty;

/// Freeze a plan and preview what it would change.
#[derive(Debug, Args)]
pub struct PlanCommand {
    /// Plan this action
    #[arg(value_parser = action())]
    action: Action,

    #[command(flatten)]
    letters: Letters,

    /// Keep the plan valid for this long; default: 15m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    valid_for: Option<SignedDuration>,
}

fn action() -> impl TypedValueParser<Value = Action> {
    let value = |action: &Action| {
        let value = PossibleValue::new(action.as_str());
        // The command of this action has the same second name.
        if *action == Action::Retry { value.alias("replay") } else { value }
    };
    PossibleValuesParser::new(Action::ALL.iter().map(value))
        .try_map(|word| if word == "replay" { Ok(Action::Retry) } else { word.parse::<Action>() })
}

impl Run for PlanCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        self.letters.check()?;
        let selection = self.letters.selection(&client).await?;
        let valid_for = self.valid_for.map(|valid_for| valid_for.as_secs().unsigned_abs());
        let (ids, query) = (selection.ids.clone(), selection.query.clone().unwrap_or_default());
        let plan = freeze(&client, self.action, selection, valid_for).await?;
        if plan.letters == 0 && plan.excluded.is_empty() {
            explain_empty(context, &client, &query).await?;
        }
        let (screen, now) = (&context.screen, context.now());
        if context.format() != Format::Table {
            print_page(screen, context.format(), &plan, std::slice::from_ref(&plan), now)?;
            return Ok(Exit::Ok);
        }
        let holders = holders(&client, &plan, ids.as_deref()).await;
        for line in describe(&plan, &holders, now).lines() {
            screen.line(&line)?;
        }
        match (plan.letters, holders.first()) {
            (1.., _) => {
                screen.next_command(&format!("lazaret {} --plan {} --reason TEXT", plan.action, plan.id));
            }
            (0, Some(holder)) => screen.next_command(&format!("lazaret op show {holder}")),
            (0, None) => screen.next_command("lazaret ls"),
        }
        Ok(Exit::Ok)
    }
}

/// Freezes a plan. It is an error when none of the selected ids exists.
///
/// # Errors
/// When it cannot be frozen.
pub(super) async fn freeze(
    client: &Client,
    action: Action,
    selection: Selection,
    valid_for_seconds: Option<u64>,
) -> Result<Plan> {
    let named = selection.ids.is_some();
    let plan = client.freeze(&PlanRequest { action, selection, valid_for_seconds, reason: None }).await?;
    let is_missing = |excluded: &Excluded| excluded.reason == Exclusion::NotFound;
    if named && plan.letters == 0 && plan.excluded.iter().all(is_missing) {
        return Err(Error::not_found("letters not found"));
    }
    Ok(plan)
}

/// Describes a plan.
pub(super) fn describe(plan: &Plan, holders: &[String], now: Timestamp) -> Fields {
    let mut fields = Fields::new();
    fields.toned("plan", &plan.id, Tone::Strong);
    fields.add("action", plan.action.as_str());
    fields.maybe(
        "query",
        plan.query.as_deref().map(|query| if query.is_empty() { "every open letter" } else { query }),
    );
    let letters = format!("{} of {}", plural(plan.letters, "letter"), plural(plan.sequences, "sequence"));
    fields.toned("includes", letters, Tone::Strong);
    if plan.followers > 0 {
        fields.add("behind them", format!("{}, which may run after them", plural(plan.followers, "letter")));
    }
    if let Some(note) = out_of_order(plan) {
        fields.toned("order", note, Tone::Warning);
    }
    fields.maybe("takes", plan.takes_seconds.map(at_least));
    if !plan.excluded.is_empty() {
        let all: u64 = plan.excluded.iter().map(|excluded| excluded.letters).sum();
        fields.toned(
            "excludes",
            format!("{}: {}", count(all), excluded(&plan.excluded, holders)),
            Tone::Warning,
        );
    }
    let approval = if plan.needs_approval {
        ("required from a second person", Tone::Warning)
    } else {
        ("not required", Tone::Plain)
    };
    fields.toned("approval", approval.0, approval.1);
    fields.add("frozen", time_with_age(plan.frozen_at, now));
    fields.add("valid until", time_with_age(plan.expires_at, now));
    fields.add("hash", &plan.hash);
    fields
}

/// Says which letters would run out of order, if any.
pub(super) fn out_of_order(plan: &Plan) -> Option<String> {
    let why = match plan.out_of_order {
        0 => return None,
        1 => "it left its sequence when it died",
        _ => "they left their sequences when they died",
    };
    let letters = plural(plan.letters, "letter");
    Some(format!("{} of {letters} out of order: {why} (on-dead: continue)", count(plan.out_of_order)))
}

/// Formats how long a plan takes: its rate is an upper limit.
pub(super) fn at_least(seconds: u64) -> String {
    format!("{} at least", span(seconds as f64))
}

/// Formats the excluded letters by reason, and the operations that hold them.
pub(super) fn excluded(letters: &[Excluded], holders: &[String]) -> String {
    let held = match holders {
        [] => "held by another operation".to_owned(),
        [holder] => format!("held by operation {holder}"),
        several => format!("held by operations {}", several.join(", ")),
    };
    let why = |reason| match reason {
        Exclusion::NotFound => "not found",
        Exclusion::Closed => "closed",
        Exclusion::Already => "already in that state",
        Exclusion::InOperation => held.as_str(),
        Exclusion::Quarantined => "quarantined and not selected by state",
        Exclusion::NoPayload => "without a payload",
        Exclusion::Behind => "behind a letter that is not in the plan",
    };
    let parts = letters.iter().map(|of| format!("{} {}", count(of.letters), why(of.reason)));
    parts.collect::<Vec<_>>().join(", ")
}

impl Record for Plan {
    const COLUMNS: &'static [Column] = &[
        Column::new("PLAN"),
        Column::new("ACTION"),
        Column::new("LETTERS").right(),
        Column::new("SEQUENCES").right(),
        Column::new("BEHIND").right(),
    ];
    const CSV: &'static [&'static str] = &[
        "id",
        "action",
        "letters",
        "sequences",
        "followers",
        "excluded",
        "hash",
        "expires-at",
        "needs-approval",
        "query",
    ];

    fn cells(&self, _now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(&self.id),
            Cell::new(self.action.as_str()),
            Cell::new(count(self.letters)),
            Cell::new(count(self.sequences)),
            Cell::new(count(self.followers)),
        ]
    }
}
