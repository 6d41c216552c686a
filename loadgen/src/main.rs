//! The `loadgen` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    revd_loadgen::cli::main()
}
