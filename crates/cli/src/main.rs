//! The binary `lazaret`: reads the command line and ends with the code of what came of it.

use std::io::Write;
use std::process::ExitCode;

use lazaret_cli::{Cli, Exit};

/// Messages begin in one thread and end in another. This allocator is made for that, the system's is not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::of_process();
    // Before anything can need it; only one provider is in the graph.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(cli.run()).into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: the runtime cannot be started: {error}");
            Exit::Error.into()
        }
    }
}
