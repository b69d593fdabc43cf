//! The binary `lazaret`: parses arguments, runs the command and exits with its code.

use std::io::Write;
use std::process::ExitCode;

use lazaret_cli::{Cli, Exit};

/// Messages are allocated in one thread and freed in another, a pattern that mimalloc handles better than the system allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::from_args();
    // Installed before any TLS connection; an error means that the provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(cli.run()).into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: cannot start the async runtime: {error}");
            Exit::Error.into()
        }
    }
}
