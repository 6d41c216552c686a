//! The daemon: read the configuration, run a member, report how it ended.

use std::process::ExitCode;

use revd::boot::recover::Removed;
use revd::config::{self, Invocation};
use revd::observe::log;
use revd::{boot, cli, memory, version};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    memory::without_huge_pages(); // first: what is touched before lies in huge ones for good
    memory::with_rare_collections();
    match cli::parse(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(Some(subcommand)) => return offline(&subcommand),
        Ok(None) => {}
        Err(error) => {
            eprintln!("revd: {error}");
            return ExitCode::from(2);
        }
    }
    memory::with_late_purges(); // from here on there is a thread for it
    let config = match config::from_process() {
        Ok(Invocation::Serve(config)) => config,
        Ok(Invocation::Version) => {
            println!("etcd Version: {}", version::ETCD);
            println!("revd Version: {}", version::REVD);
            println!("API Version: {}", version::API);
            println!("OS/Arch: {}/{}", std::env::consts::OS, std::env::consts::ARCH);
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Help) => {
            print!("{}\n{}", config::flags::help(), cli::HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("revd: {error}");
            return ExitCode::from(2);
        }
    };
    boot::runtime::prepare(config.cores);
    log::start(config.log_level);
    std::panic::set_hook(Box::new(end_on_panic));
    match boot::run(&config) {
        Ok(signal) => {
            log::flush();
            // As etcd: the sender of the signal sees that it worked; pid 1 has no such parent.
            if std::process::id() != 1 {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<Removed>() => {
            log::warn("server error", json!({"error": error.to_string()}));
            log::flush();
            ExitCode::SUCCESS
        }
        Err(error) => log::fatal("the member cannot run", json!({"error": format!("{error:#}")})),
    }
}

fn offline(subcommand: &cli::Subcommand) -> ExitCode {
    match cli::run(subcommand) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("revd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A core that panics would leave the others waiting for it: the process ends, and what was
/// acknowledged is on disk.
fn end_on_panic(info: &std::panic::PanicHookInfo<'_>) {
    let backtrace = std::backtrace::Backtrace::force_capture().to_string();
    log::log(
        log::Level::Fatal,
        "a bug in revd: please report this line",
        json!({"panic": info.to_string(), "backtrace": backtrace}),
    );
    log::flush();
    std::process::abort();
}
