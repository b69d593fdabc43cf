//! `retry`, `evict`, `park` and `release`: carry out a plan, or freeze one and carry it out.

use clap::Args;
use lazaret_api::{Action, BeginRequest, Operation, OperationState, Plan};

use super::Run;
use super::op::print_outcome;
use super::plan::{excluded, freeze};
use crate::client::Client;
use crate::conduct::Conduct;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, plural};
use crate::prompt;
use crate::selection::Letters;
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
    conduct: Conduct,

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
        let plan = self.plan(&client, action).await?;
        if !self.yes && plan.letters > 0 {
            ask(context, &plan)?;
        }
        let mut request = BeginRequest {
            plan: Some(plan.id.clone()),
            reason: Some(self.reason.clone()),
            ..Default::default()
        };
        self.conduct.apply(&mut request);
        let mut interrupt = self.wait.then(Interrupt::listen);
        let begun = client.begin(&request).await?;
        let Some(interrupt) = &mut interrupt else {
            conclude(context, &begun, &plan)?;
            // What was only begun has not failed.
            let told = begun.state.is_over() || begun.state == OperationState::AwaitingApproval;
            return Ok(if told { exit_of(&begun) } else { Exit::Ok });
        };
        match wait(context, &client, begun, interrupt, false).await? {
            Ended::Still(operation) => {
                conclude(context, &operation, &plan)?;
                Ok(exit_of(&operation))
            }
            Ended::Detached => Ok(Exit::Interrupted),
        }
    }

    async fn plan(&self, client: &Client, action: Action) -> Result<Plan> {
        let Some(id) = &self.plan else {
            return freeze(client, action, self.letters.selection(client).await?, None).await;
        };
        let plan = client.plan(id).await?;
        if plan.action != action {
            let hint = format!("carry it out with `lazaret {} --plan {id}`", plan.action);
            return Err(Error::usage_hint(
                format!("{id} is a plan to {}, not to {action}", plan.action),
                hint,
            ));
        }
        Ok(plan)
    }
}

fn ask(context: &Context, plan: &Plan) -> Result<()> {
    if !plan.excluded.is_empty() {
        context.screen.say(&format!("left out: {}", excluded(plan)));
    }
    if plan.needs_approval {
        context.screen.say("a second person has to approve it");
    }
    let letters = plural(plan.letters, "letter");
    let question =
        format!("{} {letters} of {}?", capitalised(plan.action), plural(plan.sequences, "sequence"));
    if prompt::confirm(&question)? {
        return Ok(());
    }
    context.screen.next(&format!("lazaret {} --plan {} --reason TEXT", plan.action, plan.id));
    Err(Error::Declined)
}

fn capitalised(action: Action) -> &'static str {
    match action {
        Action::Retry => "Retry",
        Action::Evict => "Evict",
        Action::Park => "Park",
        Action::Release => "Release",
    }
}

/// Says how the operation stands, and what comes next.
fn conclude(context: &Context, operation: &Operation, plan: &Plan) -> Result<()> {
    if context.format() == Format::Table && operation.letters == 0 {
        let why = if plan.excluded.is_empty() {
            "no letters match".to_owned()
        } else {
            format!("left out: {}", excluded(plan))
        };
        context.screen.talk(&Line::new().add("nothing to do: ", Tone::Warning).plain(why));
    }
    print_outcome(context, operation)
}
