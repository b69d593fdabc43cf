//! The commands. Each is a file of its own and one line here.

mod audit;
mod bulk;
mod check;
mod completion;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod edit;
mod explain;
mod groups;
mod health;
mod init;
mod ls;
mod man;
mod op;
mod operate;
mod pause;
mod plan;
mod run;
mod schema;
mod seq;
mod show;
#[cfg(test)]
pub(crate) mod snapshots;
mod status;
mod tail;
mod token;
mod transfer;

use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Something that can be done.
pub trait Run {
    /// Does it.
    ///
    /// # Errors
    /// When it cannot be done.
    fn run(self, context: &mut Context) -> impl Future<Output = Result<Exit>>;
}

macro_rules! commands {
    // What stands in brackets before a name is what the build must have for it.
    ($($(#[$attribute:meta])* $([$needs:meta])? $name:ident($arguments:ty)),+ $(,)?) => {
        /// What can be done.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$attribute])* $(#[cfg($needs)])? $name($arguments)),+
        }

        impl Run for Command {
            async fn run(self, context: &mut Context) -> Result<Exit> {
                match self {
                    // Boxed, because a command's future is as large as the largest of all would be.
                    $($(#[cfg($needs)])? Self::$name(arguments) => Box::pin(arguments.run(context)).await),+
                }
            }
        }
    };
}

commands! {
    /// Show the whole story: retries, blocked customers, dead letters, a crash, a replay
    [feature = "demo"] Demo(demo::Demo),
    /// Run every consumer of a configuration file, with the API beside them
    Run(run::Run),
    /// Say what is wrong with a configuration file
    Check(check::Check),
    /// Print the JSON Schema of the configuration file
    Schema(schema::Schema),
    /// Write a configuration file to begin with
    Init(init::Init),
    /// Look at all that a configuration speaks of, and say how to mend it
    Doctor(doctor::Doctor),
    /// How everything stands: consumers, letters, operations
    Status(status::Status),
    /// Whether the daemon lives; for whoever starts it
    Health(health::HealthCommand),
    /// Letters grouped by their cause, the largest groups first
    Groups(groups::Groups),
    /// One group: its cause, its letters, whom it blocks
    Group(groups::ShowGroup),
    /// Letters, open ones unless the query names a state:
    Ls(ls::Ls),
    /// One letter, whole
    Show(show::Show),
    /// A sequence: its head and who waits behind it
    Seq(seq::Seq),
    /// Freeze what would be done, and look at it first
    Plan(plan::PlanCommand),
    /// Run letters through their handlers again
    Retry(operate::Retry),
    /// Take letters out; restore brings them back
    Evict(operate::Evict),
    /// Hold letters until they are released
    Park(operate::Park),
    /// Let the scheduler try letters again, with fresh attempts
    Release(operate::Release),
    /// Bring evicted letters back
    Restore(bulk::Restore),
    /// Remove closed letters for good
    Purge(bulk::Purge),
    /// Give a letter another payload; the one before it is kept
    Edit(edit::Edit),
    /// Operations: plans that are carried out
    #[command(subcommand)]
    Op(op::Op),
    /// Pause a consumer, or a part of it
    Pause(pause::PauseCommand),
    /// End a pause
    Resume(pause::ResumeCommand),
    /// Follow what happens
    Tail(tail::Tail),
    /// Write letters, whole, one JSON value a line
    Export(transfer::Export),
    /// Take in letters that were exported
    Import(transfer::Import),
    /// Who did what, when and why
    Audit(audit::Audit),
    /// Make a token for the configuration
    Token(token::Token),
    /// Say what an error code means, and what to do
    Explain(explain::Explain),
    /// Print the completions of a shell
    Completion(completion::Completion),
    /// Write the manual pages
    Man(man::Man),
}
