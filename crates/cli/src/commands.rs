//! The commands: one file each, and one line in the list below.

mod adopt;
mod annotate;
mod audit;
mod backup;
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
mod keys;
mod ls;
mod man;
mod op;
mod operate;
mod pause;
mod plan;
mod run;
mod schema;
mod send;
mod seq;
mod serve;
mod show;
#[cfg(test)]
mod snapshots;
mod status;
mod tail;
mod token;
mod top;
mod transfer;

use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// A command that can be run.
pub trait Run {
    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// When the command fails.
    fn run(self, context: &mut Context) -> impl Future<Output = Result<Exit>>;
}

macro_rules! commands {
    // Brackets before a name hold the `cfg` condition of the command.
    ($($(#[$attribute:meta])* $([$needs:meta])? $name:ident($arguments:ty)),+ $(,)?) => {
        /// The commands.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$attribute])* $(#[cfg($needs)])? $name($arguments)),+
        }

        impl Run for Command {
            async fn run(self, context: &mut Context) -> Result<Exit> {
                match self {
                    // Boxed, because otherwise every command's future has the size of the largest.
                    $($(#[cfg($needs)])? Self::$name(arguments) => Box::pin(arguments.run(context)).await),+
                }
            }
        }
    };
}

commands! {
    /// Run a guided demo with retries, blocked keys, dead letters, a crash and a replay
    [feature = "demo"] Demo(demo::Demo),
    /// Run every consumer of a configuration file and serve the API
    Run(run::Run),
    /// Serve the API of a store without running consumers
    Serve(serve::Serve),
    /// Validate a configuration file
    Check(check::Check),
    /// Print the JSON Schema of the configuration file
    Schema(schema::Schema),
    /// Create a starter configuration file
    Init(init::Init),
    /// Run preflight checks on a configuration
    Doctor(doctor::Doctor),
    /// Adopt dead letters of another tool into a consumer
    #[command(subcommand)]
    Adopt(adopt::Adopt),
    /// Back up the embedded store to a file, while the daemon runs
    Backup(backup::Backup),
    /// Show consumers, open letters and operations
    Status(status::Status),
    /// Watch a daemon on the terminal, with keys to look, pause and replay
    Top(top::Top),
    /// Check liveness or readiness of the daemon, for supervisors
    Health(health::HealthCommand),
    /// List letters grouped by cause, largest group first
    Groups(groups::Groups),
    /// Show one group: its cause, its letters and the sequences it blocks
    Group(groups::ShowGroup),
    /// List letters that match a query; default: open letters
    Ls(ls::Ls),
    /// Show one letter with its cause, history and payload
    Show(show::Show),
    /// Show a sequence: its head and the letters waiting behind it
    Seq(seq::Seq),
    /// Freeze a plan and preview what it would change
    Plan(plan::PlanCommand),
    /// Run letters through their handlers again
    #[command(visible_alias = "replay")]
    Retry(operate::Retry),
    /// Evict letters from their queue; `restore` brings them back
    Evict(operate::Evict),
    /// Park letters until they are released
    Park(operate::Park),
    /// Release letters to the retry scheduler, with a fresh attempt budget
    Release(operate::Release),
    /// Mark letters as handled by other means
    Resolve(bulk::Resolve),
    /// Isolate letters: no retry and no replay takes them
    Quarantine(bulk::Quarantine),
    /// Restore evicted letters, or the embedded store from a backup file
    Restore(bulk::Restore),
    /// Delete closed letters permanently
    Purge(bulk::Purge),
    /// Erase the content of letters, such as those of one person
    Erase(bulk::Erase),
    /// Replace the payload of a letter, or revert that; the original is kept
    Edit(edit::Edit),
    /// Comment on a letter
    Comment(annotate::Comment),
    /// Assign a letter to a person or a team
    Assign(annotate::Assign),
    /// List, watch and control operations
    #[command(subcommand)]
    Op(op::Op),
    /// Pause a consumer or a part of it
    Pause(pause::PauseCommand),
    /// Resume a paused consumer or a part of it
    Resume(pause::ResumeCommand),
    /// Stream events as they happen
    Tail(tail::Tail),
    /// Send a message to the inbox of a consumer
    Send(send::Send),
    /// Export letters with their content, one JSON value per line
    Export(transfer::Export),
    /// Import exported letters
    Import(transfer::Import),
    /// Show the audit log: who did what, when and why
    Audit(audit::Audit),
    /// Create an API token for the configuration
    Token(token::Token),
    /// Create and list encryption keys
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Explain an error code or a reason code
    Explain(explain::Explain),
    /// Print a shell completion script
    Completion(completion::Completion),
    /// Write the man pages to a directory
    Man(man::Man),
}
