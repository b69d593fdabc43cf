//! `retry`, `evict`, `park` and `release`: run a plan, or freeze one and run it.

use clap::Args;
use lazaret_api::{Action, BeginRequest, Excluded, Exclusion, Operation, OperationState, Plan};
use serde::Serialize;
use serde_json::json;

use super::Run;
use super::op::print_outcome;
use super::plan::{at_least, excluded, freeze, out_of_order};
use crate::blockers::{Blocker, blockers};
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::holders::holders;
use crate::operation_summary::exit_of;
use crate::output::{Line, Record, Tone, plural, print_value};
use crate::prompt;
use crate::rollout::RolloutPolicy;
use crate::selection::Letters;
use crate::unknown_names::explain_empty;
use crate::watch::{Interrupt, WaitOutcome, wait};

/// The arguments of an operation.
#[derive(Debug, Args)]
pub(super) struct Operate {
    #[command(flatten)]
    letters: Letters,

    /// Run a plan that was frozen with `lazaret plan`
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["words", "ids", "all"])]
    plan: Option<String>,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    rollout: RolloutPolicy,

    /// Wait until the operation is done; Ctrl-C stops waiting, not the operation
    #[arg(long, short = 'w')]
    wait: bool,

    /// Skip the confirmation
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
                self.operate.run(context, Action::$action).await
            }
        })+
    };
}

operations! {
    /// Run letters through their handlers again.
    Retry = Retry,
    /// Evict letters from their queue.
    Evict = Evict,
    /// Park letters.
    Park = Park,
    /// Release letters to the retry scheduler.
    Release = Release
}

impl Operate {
    async fn run(self, context: &Context, action: Action) -> Result<Exit> {
        if self.plan.is_none() {
            self.letters.check()?;
        }
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        prompt::needs_yes(self.yes)?;
        let client = context.client()?;
        let (plan, ids) = self.plan(&client, action).await?;
        if plan.letters == 0 && plan.excluded.is_empty() {
            explain_empty(context, &client, plan.query.as_deref().unwrap_or_default()).await?;
        }
        let exclusions = PlanExclusions { holders: holders(&client, &plan, ids.as_deref()).await, plan };
        if exclusions.plan.letters == 0 {
            exclusions.print_nothing(context)?;
            return Ok(if exclusions.any_held() { Exit::Partly } else { Exit::Ok });
        }
        if !self.yes {
            ask(context, &exclusions, self.rollout.rate)?;
        }
        let mut request = BeginRequest {
            plan: Some(exclusions.plan.id.clone()),
            reason: Some(self.reason.clone()),
            ..Default::default()
        };
        self.rollout.apply(&mut request);
        let mut interrupt = self.wait.then(Interrupt::listen);
        let started = client.begin(&request).await?;
        if self.yes {
            exclusions.print_excluded(context);
        }
        let Some(interrupt) = &mut interrupt else {
            let blockers = blockers(&client, &started).await;
            exclusions.conclude(context, &started, &blockers)?;
            // An operation that was only started has not failed.
            let is_final = started.state.is_over() || started.state == OperationState::AwaitingApproval;
            return Ok(if is_final { exit_of(&started) } else { Exit::Ok });
        };
        match wait(context, &client, started, interrupt, false).await? {
            WaitOutcome::Stopped(operation) => {
                exclusions.conclude(context, &operation, &[])?;
                Ok(exit_of(&operation))
            }
            WaitOutcome::Detached => Ok(Exit::Interrupted),
        }
    }

    /// Returns the plan, and the ids that were selected for it.
    async fn plan(&self, client: &Client, action: Action) -> Result<(Plan, Option<Vec<String>>)> {
        let Some(id) = &self.plan else {
            let selection = self.letters.selection(client).await?;
            let ids = selection.ids.clone();
            return Ok((freeze(client, action, selection, None).await?, ids));
        };
        let plan = client.plan(id).await?;
        if plan.action != action {
            let hint = format!("run it with `lazaret {} --plan {id} --reason TEXT`", plan.action);
            return Err(Error::usage_hint(format!("{id} is a plan to {}, not {action}", plan.action), hint));
        }
        Ok((plan, None))
    }
}

fn ask(context: &Context, exclusions: &PlanExclusions, rate: Option<f64>) -> Result<()> {
    exclusions.print_excluded(context);
    let plan = &exclusions.plan;
    if plan.needs_approval {
        context.screen.info("a second person must approve this operation");
    }
    // A rate of 0 is none.
    let takes = match rate {
        Some(rate) => (rate > 0.0).then(|| plan.seconds_at(rate)),
        None => plan.takes_seconds,
    };
    let takes = takes.filter(|seconds| *seconds > 1).map(|seconds| format!("it takes {}", at_least(seconds)));
    let behind = (plan.followers > 0)
        .then(|| format!("{} behind them may run after them", plural(plan.followers, "letter")));
    let notes: Vec<String> = out_of_order(plan).into_iter().chain(behind).chain(takes).collect();
    if !notes.is_empty() {
        context.screen.info(&notes.join("; "));
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

/// A plan, and the operations that hold letters it excludes.
struct PlanExclusions {
    plan: Plan,
    /// The ids of the operations.
    holders: Vec<String>,
}

/// An operation with the letters its plan excludes, for JSON and CSV.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct StartedOperation<'a> {
    /// Without its own list of excluded letters.
    #[serde(flatten)]
    operation: Operation,
    excluded: &'a [Excluded],
    held_by: &'a [String],
}

/// Returns the CSV columns.
fn columns() -> Vec<&'static str> {
    [Operation::CSV, &["excluded", "held-by"]].concat()
}

impl PlanExclusions {
    /// Prints which letters are excluded, if any.
    fn print_excluded(&self, context: &Context) {
        if !self.plan.excluded.is_empty() {
            context.screen.info(&format!("excluded: {}", excluded(&self.plan.excluded, &self.holders)));
        }
    }

    /// Returns whether other operations hold selected letters. If nothing else was selected, what was asked for is not done.
    fn any_held(&self) -> bool {
        self.plan.excluded.iter().any(|excluded| excluded.reason == Exclusion::InOperation)
    }

    /// Prints the state of the operation and the next commands.
    fn conclude(&self, context: &Context, operation: &Operation, blockers: &[Blocker]) -> Result<()> {
        let screen = &context.screen;
        let listed = Operation { excluded: Vec::new(), ..operation.clone() };
        let started =
            StartedOperation { operation: listed, excluded: &self.plan.excluded, held_by: &self.holders };
        let as_table = || print_outcome(context, operation, blockers);
        print_value(screen, context.format(), &columns(), &started, as_table)
    }

    /// Prints that there is nothing to do, and why. No operation is started for it; programs get the outcome that it would have.
    fn print_nothing(&self, context: &Context) -> Result<()> {
        let Self { plan, holders } = self;
        let outcome = json!({
            "id": null, "state": OperationState::Done, "sent": 0, "ok": 0, "failed-again": 0, "skipped": 0, "letters": 0,
            "plan": plan.id, "action": plan.action, "excluded": plan.excluded, "held-by": holders,
        });
        print_value(&context.screen, context.format(), &columns(), &outcome, || self.explain_nothing(context))
    }

    fn explain_nothing(&self, context: &Context) -> Result<()> {
        let screen = &context.screen;
        let why = if self.plan.excluded.is_empty() {
            "no letters match".to_owned()
        } else {
            format!("excluded: {}", excluded(&self.plan.excluded, &self.holders))
        };
        screen.stderr_line(&Line::new().add("nothing to do: ", Tone::Warning).plain(why));
        screen.line(&Line::of("not started: 0 sent, 0 ok, 0 failed again, 0 skipped"))?;
        screen.next_command(&match self.holders.first() {
            Some(holder) => format!("lazaret op show {holder}"),
            None => "lazaret status".to_owned(),
        });
        Ok(())
    }
}
