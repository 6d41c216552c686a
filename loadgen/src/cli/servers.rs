//! Servers that loadgen starts itself: one, or two that are measured in turn.

use std::path::PathBuf;
use std::sync::Once;

use clap::Args;

use crate::cli::values::words;
use crate::cost::CostSource;
use crate::servers::{self, Program, Security, ServerSpec, Servers};
use crate::suite::Suite;
use crate::wire::users::without_passwords;
use crate::{clock, disk, measure};

/// A server that loadgen starts itself.
#[derive(Args, Clone, Default)]
pub(super) struct ServerArgs {
    /// Start this server on a fresh directory: revd, etcd, a path, or name=path
    #[arg(long, value_name = "PROGRAM", help_heading = "Server")]
    server: Option<String>,
    /// Flags for it, in one word
    #[arg(
        long,
        value_name = "FLAGS",
        allow_hyphen_values = true,
        default_value = "",
        help_heading = "Server"
    )]
    server_flags: String,
    /// Give it a certificate: calls go over TLS
    #[arg(long, requires = "server", help_heading = "Server")]
    tls: bool,
    /// Give it users: calls are made by one that may read and write all keys
    #[arg(long, requires = "server", help_heading = "Server")]
    auth: bool,
    /// A server that runs already: what does it cost? (may be given for each member)
    #[arg(long, value_name = "PID", help_heading = "Server")]
    server_pid: Vec<u32>,
    /// CPUs of the server, as 0-3
    #[arg(long, value_name = "LIST", help_heading = "Server")]
    server_cpus: Option<String>,
    /// CPUs of loadgen
    #[arg(long, value_name = "LIST", help_heading = "Server")]
    cpu_list: Option<String>,
    /// Where data goes: a folder on the disk to be measured
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    data_below: Option<PathBuf>,
}

impl ServerArgs {
    pub(super) fn spec(&self, program: &str) -> anyhow::Result<ServerSpec> {
        let place = ServerPlace { cpus: self.server_cpus.as_deref(), below: self.data_below.as_ref() };
        let spec = place.spec(servers::find(program)?, &self.server_flags, 1)?;
        Ok(ServerSpec { security: Security { tls: self.tls, auth: self.auth }, ..spec })
    }

    /// As a suite has it, where the command line says nothing.
    pub(super) fn secure(&mut self, suite: &Suite) {
        self.tls |= suite.tls.is_some();
        self.auth |= suite.auth.is_some();
    }

    pub(super) fn start(&self) -> anyhow::Result<Option<Servers>> {
        let Some(program) = &self.server else { return Ok(None) };
        Ok(Some(Servers::start(&self.spec(program)?)?))
    }

    /// Keeps loadgen to its CPUs, after servers were started.
    pub(super) fn pin(&self) -> anyhow::Result<()> {
        if let Some(list) = &self.cpu_list {
            servers::pin(&servers::cpus(list)?)?;
        }
        Ok(())
    }

    pub(super) fn cost_source(&self, started: Option<&Servers>) -> anyhow::Result<CostSource> {
        self.server_pid.iter().try_for_each(|pid| crate::cost::check(*pid))?;
        let running = || CostSource { pids: self.server_pid.clone(), data_folder: None };
        Ok(started.map_or_else(running, Servers::cost_source))
    }
}

/// Two servers that loadgen starts itself.
#[derive(Args, Clone)]
pub(super) struct PairArgs {
    /// The first server: revd, etcd, a path, or name=path (two builds: --a old=PATH --b new=PATH)
    #[arg(long, value_name = "PROGRAM", default_value = "revd", help_heading = "Servers")]
    a: String,
    /// The second
    #[arg(long, value_name = "PROGRAM", default_value = "etcd", help_heading = "Servers")]
    b: String,
    /// Flags of the first, in one word
    #[arg(
        long,
        value_name = "FLAGS",
        allow_hyphen_values = true,
        default_value = "",
        help_heading = "Servers"
    )]
    a_flags: String,
    /// Flags of the second
    #[arg(
        long,
        value_name = "FLAGS",
        allow_hyphen_values = true,
        default_value = "",
        help_heading = "Servers"
    )]
    b_flags: String,
    /// CPUs of the servers, as 0-3
    #[arg(long, value_name = "LIST", help_heading = "Servers")]
    server_cpus: Option<String>,
    /// CPUs of loadgen
    #[arg(long, value_name = "LIST", help_heading = "Servers")]
    cpu_list: Option<String>,
    /// Where data goes: a folder on the disk to be measured
    #[arg(long, value_name = "DIR", help_heading = "Servers")]
    data_below: Option<PathBuf>,
}

impl PairArgs {
    fn place(&self) -> ServerPlace<'_> {
        ServerPlace { cpus: self.server_cpus.as_deref(), below: self.data_below.as_ref() }
    }

    /// The first alone.
    pub(super) fn first(&self) -> anyhow::Result<ServerSpec> {
        self.place().spec(servers::find(&self.a)?, &self.a_flags, 1)
    }

    /// Both, of so many members each, with labels that tell them apart.
    pub(super) fn both(&self, members: usize) -> anyhow::Result<[ServerSpec; 2]> {
        let (mut a, mut b) = (servers::find(&self.a)?, servers::find(&self.b)?);
        servers::tell_apart(&mut a, &mut b);
        let place = self.place();
        Ok([place.spec(a, &self.a_flags, members)?, place.spec(b, &self.b_flags, members)?])
    }

    /// Keeps loadgen to its CPUs.
    pub(super) fn pin(&self) -> anyhow::Result<()> {
        if let Some(list) = &self.cpu_list {
            servers::pin(&servers::cpus(list)?)?;
        }
        Ok(())
    }
}

/// The line above kept figures: command, machine, day, versions.
pub(super) fn heading(specs: &[ServerSpec]) -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = without_passwords(&words);
    let now = humantime::format_rfc3339_seconds(clock::wall()).to_string();
    let day = now.split('T').next().unwrap_or_default();
    let named = |Program { name, version, .. }: &Program| {
        if version.starts_with(name) { version.clone() } else { format!("{name} ({version})") }
    };
    let named: Vec<_> = specs.iter().map(|spec| named(&spec.program)).collect();
    let is_memory = specs.iter().any(|spec| disk::is_memory(&spec.data_folder()).unwrap_or(false));
    let place = if is_memory { "; data in memory (tmpfs), where a sync is free" } else { "" };
    format!("`loadgen {command}` on {}, {day}: {}{place}\n", measure::machine(), named.join(", "))
}

/// Where servers run.
struct ServerPlace<'a> {
    cpus: Option<&'a str>,
    below: Option<&'a PathBuf>,
}

impl ServerPlace<'_> {
    fn spec(&self, program: Program, flags: &str, members: usize) -> anyhow::Result<ServerSpec> {
        let spec = ServerSpec {
            program,
            flags: words(flags),
            members,
            cpus: self.cpus.map(servers::cpus).transpose()?.unwrap_or_default(),
            below: self.below.cloned(),
            security: Security::default(),
            asks_callers: false,
        };
        let folder = spec.data_folder();
        if disk::is_memory(&folder).unwrap_or(false) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                eprintln!(
                    "warning: {} is a tmpfs, where a sync is free: figures of writes are not those of a disk \
                     (--data-below)",
                    folder.display()
                );
            });
        }
        Ok(spec)
    }
}
