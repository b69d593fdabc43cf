//! `retry`, `evict`, `park` and `release`: carry out a plan, or freeze one and carry it out.

use clap::Args;
use lazaret_api::{Action, BeginRequest, Excluded, Operation, OperationState, Plan};
use serde::Serialize;

use super::Run;
use super::op::{outcome_line, print_outcome};
use super::plan::{excluded, freeze};
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::holders::holders;
use crate::output::{Format, Line, Record, Tone, csv_header, csv_row, plural};
use crate::prompt;
use crate::rollout::RolloutPolicy;
use crate::selection::Letters;
use crate::standstill::{Hold, holds};
use crate::watch::{Ended, Interrupt, exit_of, wait};

/// What is to be done, and how.
#[derive(Debug, Args)]
pub(super) struct Operate {
    #[command(flatten)]
    letters: Letters,

    /// A plan that was frozen with `lazaret plan`
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["words", "ids", "all"])]
    plan: Option<String>,

    /// Why; it stands in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    rollout: RolloutPolicy,

    /// Wait until it is done. Ctrl-C stops waiting, not the operation
    #[arg(long)]
    wait: bool,

    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $action:ident),+) => {
        $($(#[$doc])*
        #[derive(Debug, Args)]
        pub struct $name {
            #[command(flatten)]
            operate: Operate,
        }

        impl Run for $name {
            async fn run(self, context: &mut Context) -> Result<Exit> {
                self.operate.carry_out(context, Action::$action).await
            }
        })+
    };
}

operations! {
    /// Run letters through their handlers again.
    Retry = Retry,
    /// Take letters out.
    Evict = Evict,
    /// Hold letters.
    Park = Park,
    /// Let the scheduler try letters again.
    Release = Release
}

impl Operate {
    async fn carry_out(self, context: &Context, action: Action) -> Result<Exit> {
        if self.plan.is_none() {
            self.letters.check()?;
        }
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        prompt::needs_yes(self.yes)?;
        let client = context.client()?;
        let (plan, ids) = self.plan(&client, action).await?;
        let left_out = LeftOut { holders: holders(&client, &plan, ids.as_deref()).await, plan };
        if !self.yes && left_out.plan.letters > 0 {
            ask(context, &left_out)?;
        }
        let mut request = BeginRequest {
            plan: Some(left_out.plan.id.clone()),
            reason: Some(self.reason.clone()),
            ..Default::default()
        };
        self.rollout.apply(&mut request);
        let mut interrupt = self.wait.then(Interrupt::listen);
        let begun = client.begin(&request).await?;
        if self.yes && left_out.plan.letters > 0 {
            left_out.tell(context);
        }
        let Some(interrupt) = &mut interrupt else {
            let holds = holds(&client, &begun).await;
            left_out.conclude(context, &begun, &holds)?;
            // What was only begun has not failed.
            let told = begun.state.is_over() || begun.state == OperationState::AwaitingApproval;
            return Ok(if told { exit_of(&begun) } else { Exit::Ok });
        };
        match wait(context, &client, begun, interrupt, false).await? {
            Ended::Still(operation) => {
                left_out.conclude(context, &operation, &[])?;
                Ok(exit_of(&operation))
            }
            Ended::Detached => Ok(Exit::Interrupted),
        }
    }

    /// The plan, and the letters that were named for it.
    async fn plan(&self, client: &Client, action: Action) -> Result<(Plan, Option<Vec<String>>)> {
        let Some(id) = &self.plan else {
            let selection = self.letters.selection(client).await?;
            let ids = selection.ids.clone();
            return Ok((freeze(client, action, selection, None).await?, ids));
        };
        let plan = client.plan(id).await?;
        if plan.action != action {
            let hint = format!("carry it out with `lazaret {} --plan {id}`", plan.action);
            return Err(Error::usage_hint(
                format!("{id} is a plan to {}, not to {action}", plan.action),
                hint,
            ));
        }
        Ok((plan, None))
    }
}

fn ask(context: &Context, left_out: &LeftOut) -> Result<()> {
    left_out.tell(context);
    let plan = &left_out.plan;
    if plan.needs_approval {
        context.screen.say("a second person has to approve it");
    }
    let letters = plural(plan.letters, "letter");
    let question =
        format!("{} {letters} of {}?", capitalised(plan.action), plural(plan.sequences, "sequence"));
    if prompt::confirm(&question)? {
        return Ok(());
    }
    Err(Error::Declined { next: format!("lazaret {} --plan {} --reason TEXT", plan.action, plan.id) })
}

fn capitalised(action: Action) -> &'static str {
    match action {
        Action::Retry => "Retry",
        Action::Evict => "Evict",
        Action::Park => "Park",
        Action::Release => "Release",
    }
}

/// A plan with what it leaves out.
struct LeftOut {
    plan: Plan,
    /// The operations that hold letters of it.
    holders: Vec<String>,
}

/// An operation with what its plan left out, for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Begun<'a> {
    #[serde(flatten)]
    operation: &'a Operation,
    excluded: &'a [Excluded],
    held_by: &'a [String],
}

impl LeftOut {
    /// Says which letters are left out, if any are.
    fn tell(&self, context: &Context) {
        if !self.plan.excluded.is_empty() {
            context.screen.say(&format!("left out: {}", excluded(&self.plan, &self.holders)));
        }
    }

    /// Says how the operation stands, and what comes next.
    fn conclude(&self, context: &Context, operation: &Operation, holds: &[Hold]) -> Result<()> {
        let screen = &context.screen;
        let begun = Begun { operation, excluded: &self.plan.excluded, held_by: &self.holders };
        match context.format() {
            Format::Json | Format::Jsonl => screen.json_line(&begun),
            Format::Csv => {
                let columns = [Operation::CSV, &["excluded", "held-by"]].concat();
                let row = csv_row(&columns, &serde_json::to_value(begun).unwrap_or_default());
                screen.raw(format!("{}\n{row}\n", csv_header(&columns)).as_bytes())
            }
            Format::Table => self.print(context, operation, holds),
        }
    }

    fn print(&self, context: &Context, operation: &Operation, holds: &[Hold]) -> Result<()> {
        let screen = &context.screen;
        if operation.letters > 0 {
            return print_outcome(context, operation, holds);
        }
        let why = if self.plan.excluded.is_empty() {
            "no letters match".to_owned()
        } else {
            format!("left out: {}", excluded(&self.plan, &self.holders))
        };
        screen.talk(&Line::new().add("nothing to do: ", Tone::Warning).plain(why));
        screen.line(&outcome_line(operation))?;
        screen.next(&match self.holders.first() {
            Some(holder) => format!("lazaret op show {holder}"),
            None => "lazaret status".to_owned(),
        });
        Ok(())
    }
}
