//! Checks the histories of failed runs again: `revd-checker FILE...`, files as a run leaves them,
//! by the promises that they were judged by.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut is_right = true;
    for name in std::env::args().skip(1) {
        let history = std::fs::read_to_string(&name).map_err(|error| error.to_string());
        match history.and_then(|text| revd_checker::read(&text)) {
            Ok((history, rules)) => {
                let report = revd_checker::check(&history, &rules);
                println!(
                    "{name}: {} calls, {} watches, revision {}, {} faults",
                    history.calls.len(),
                    history.watches.len(),
                    report.truth.model.revision(),
                    report.faults.len()
                );
                report.faults.iter().for_each(|fault| println!("  {fault}"));
                is_right &= report.faults.is_empty();
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
