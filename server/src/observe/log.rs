//! The log: one JSON object per line on standard error, with the field names of etcd's zap logger.
//!
//! Lines are written by a thread of their own: a core that logs never waits for a terminal or a
//! full pipe. When more lines wait than fit, new ones are dropped and their number is reported with
//! the next line that gets through.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde_json::{Map, Value};

use crate::limits;
use crate::threads;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details, to find a fault.
    Debug,
    /// Normal life.
    Info,
    /// An operator should look.
    Warn,
    /// Something failed.
    Error,
    /// The process ends.
    Fatal,
}

impl Level {
    /// The level's name in the log and in `--log-level`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }

    /// Reads a level's name; etcd's `panic` counts as fatal.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "debug" => Self::Debug,
            "info" => Self::Info,
            "warn" => Self::Warn,
            "error" => Self::Error,
            "fatal" | "panic" | "dpanic" => Self::Fatal,
            _ => return None,
        })
    }
}

enum LogJob {
    Line(String),
    Flush(SyncSender<()>),
}

/// Node view.
struct Logger {
    level: Level,
    jobs: SyncSender<LogJob>,
    dropped: AtomicU64,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts the log; before that, and for a second time, nothing happens.
pub fn start(level: Level) {
    let (jobs, queue) = sync_channel(limits::LOG_LINES_MAX);
    if LOGGER.set(Logger { level, jobs, dropped: AtomicU64::new(0) }).is_ok() {
        // Without the thread there is no log, and nothing else suffers.
        let _ = threads::begin("log", move || write_lines(&queue));
    }
}

fn write_lines(queue: &Receiver<LogJob>) {
    let mut out = std::io::stderr();
    while let Ok(job) = queue.recv() {
        match job {
            // A closed standard error cannot be reported anywhere.
            LogJob::Line(line) => drop(out.write_all(line.as_bytes())),
            LogJob::Flush(done) => drop(done.send(())),
        }
    }
}

/// Waits until everything logged so far is written. Blocks: for the end of the process.
pub fn flush() {
    if let Some(logger) = LOGGER.get() {
        let (done, written) = sync_channel(1);
        if logger.jobs.send(LogJob::Flush(done)).is_ok() {
            let _ = written.recv();
        }
    }
}

/// Logs a line with fields, given as a JSON object.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "callers make the fields in place")]
pub fn log(level: Level, message: &str, fields: Value) {
    let Some(logger) = LOGGER.get().filter(|logger| level >= logger.level) else { return };
    let caller = std::panic::Location::caller();
    let file = caller.file().rsplit_once("src/").map_or(caller.file(), |(_, file)| file);
    let dropped = logger.dropped.swap(0, Ordering::Relaxed);
    let line = line(level, &format!("{file}:{}", caller.line()), message, fields.as_object(), dropped);
    if logger.jobs.try_send(LogJob::Line(line)).is_err() {
        logger.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
    }
}

fn line(
    level: Level,
    caller: &str,
    message: &str,
    fields: Option<&Map<String, Value>>,
    dropped: u64,
) -> String {
    let time = humantime::format_rfc3339_micros(crate::clock::wall()).to_string();
    let mut line = format!(
        r#"{{"level":{},"ts":{},"caller":{},"msg":{}"#,
        Value::from(level.name()),
        Value::from(time),
        Value::from(caller),
        Value::from(message)
    );
    let dropped = (dropped > 0).then(|| ("lines-dropped-before".to_owned(), Value::from(dropped)));
    let fields = fields.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    for (name, value) in fields.chain(dropped) {
        line.push_str(&format!(",{}:{value}", Value::from(name)));
    }
    line.push_str("}\n");
    line
}

/// Logs at level info.
#[track_caller]
pub fn info(message: &str, fields: Value) {
    log(Level::Info, message, fields);
}

/// Logs at level warn.
#[track_caller]
pub fn warn(message: &str, fields: Value) {
    log(Level::Warn, message, fields);
}

/// Logs why the process cannot go on, and ends it.
#[track_caller]
pub fn fatal(message: &str, fields: Value) -> ! {
    log(Level::Fatal, message, fields);
    flush();
    std::process::exit(1)
}

/// raft-rs's messages in our log, one level lower than it thinks of them: they explain, they do not
/// alarm.
pub fn for_raft() -> slog::Logger {
    slog::Logger::root(RaftDrain, slog::o!())
}

struct RaftDrain;

impl slog::Drain for RaftDrain {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _values: &slog::OwnedKVList) -> Result<(), slog::Never> {
        let level = match record.level() {
            slog::Level::Critical | slog::Level::Error => Level::Error,
            slog::Level::Warning => Level::Warn,
            _ => Level::Debug,
        };
        log(level, &format!("raft: {}", record.msg()), Value::Null);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object_whatever_is_in_it() {
        let fields = serde_json::json!({"key": "a\n\"b\"", "n": 7});
        let line = line(Level::Warn, "here.rs:1", "two\nlines", fields.as_object(), 3);
        assert_eq!(line.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["level"], "warn");
        assert_eq!(read["msg"], "two\nlines");
        assert_eq!(read["key"], "a\n\"b\"");
        assert_eq!(read["lines-dropped-before"], 3);
    }
}
