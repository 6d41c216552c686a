//! The load generator. Not written yet: it is an issue of its own. `revd-bench` compares servers meanwhile.

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!(
        "revd-loadgen is not written yet; to compare revd with etcd run: cargo run --release -p revd-bench"
    );
    ExitCode::FAILURE
}
