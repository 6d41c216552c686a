//! Memory and disk of loaded keys, and how long a restart with them takes.

use std::time::Duration;

use crate::caller::PATIENCE;
use crate::clock;
use crate::figures::ranges::get_one;
use crate::figures::store::load_keys;
use crate::figures::table::{Compared, Labels};
use crate::servers::Servers;
use crate::units::{bytes, time};

/// How long both are left alone before memory is looked at.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// How long they are behind a load, one of which was earlier: what they do when they are left alone
/// is done by both then.
const REST: Duration = Duration::from_secs(45);

/// One server's figures, in bytes and microseconds.
struct Footprint {
    loaded: f64,
    disk: f64,
    restart: f64,
    restarted: f64,
}

/// From SIGTERM to the first linearizable read after the start.
pub(super) fn restart(server: &mut Servers) -> anyhow::Result<Duration> {
    let start = clock::nanos();
    server.restart()?;
    let until = clock::nanos() + clock::in_nanos(PATIENCE);
    while let Err(error) = get_one(server.endpoint()) {
        if clock::nanos() > until {
            return Err(error.context(format!("the first read after the start of {}", server.name)));
        }
        clock::rest(Duration::from_millis(2));
    }
    Ok(Duration::from_nanos(clock::nanos() - start))
}

fn measure(server: &mut Servers, other: &Servers) -> anyhow::Result<Footprint> {
    let (loaded, disk) = (server.usage().memory, server.disk_bytes());
    let paused = other.paused()?;
    let restart = restart(server)?;
    drop(paused);
    clock::rest(SETTLE);
    Ok(Footprint {
        loaded: loaded as f64,
        disk: disk as f64,
        restart: restart.as_secs_f64() * 1e6,
        restarted: server.usage().memory as f64,
    })
}

/// Loads and measures both.
pub(super) fn table(both: &mut [Servers; 2], labels: &Labels, keys: u64) -> anyhow::Result<String> {
    for server in both.iter() {
        load_keys(server.endpoint(), 0..keys, keys)?;
    }
    clock::rest(REST);
    let [a, b] = both;
    let figures = [measure(a, b)?, measure(b, a)?];
    let row = |label: &str, of: fn(&Footprint) -> f64, show| {
        Compared::new(label, [of(&figures[0]), of(&figures[1])], show)
    };
    let rows = [
        row("anonymous memory after loading", |it| it.loaded, bytes),
        row("anonymous memory after a restart", |it| it.restarted, bytes),
        row("data directory", |it| it.disk, bytes),
        row("SIGTERM, start, first read", |it| it.restart, time),
    ];
    Ok(labels.table(&format!("{keys} keys of 64 B with values of 256 B"), &rows))
}
