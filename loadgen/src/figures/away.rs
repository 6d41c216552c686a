//! A member that was away comes back: how long it takes to catch up, and what that costs others.

use std::time::Duration;

use anyhow::Context as _;

use crate::clock;
use crate::clock::SECOND;
use crate::figures::background::{Background, BackgroundWork};
use crate::figures::footprint::SETTLE;
use crate::figures::store::load_keys;
use crate::figures::table::{Compared, Labels};
use crate::probe;
use crate::servers::Servers;
use crate::units::{bytes, time};

/// Keys that the revisions belong to.
const KEYS: u64 = 100_000;
/// How long puts are watched in peace.
const WATCHED: Duration = Duration::from_secs(5);
/// After this long it will never be back.
const PATIENCE: u64 = 600 * SECOND;

/// One cluster's figures, in microseconds and bytes.
struct Return {
    took: f64,
    in_peace: f64,
    meanwhile: f64,
    memory: f64,
}

/// Both, one after the other.
pub(super) fn table(
    both: &mut [Servers; 2],
    labels: &Labels,
    revisions: u64,
    how: &str,
) -> anyhow::Result<String> {
    let [a, b] = both;
    let figures = [come_back(a, revisions)?, come_back(b, revisions)?];
    let row = |label: &str, of: fn(&Return) -> f64, show| {
        Compared::new(label, [of(&figures[0]), of(&figures[1])], show)
    };
    let rows = [
        row("from its start to having caught up", |it| it.took, time),
        row("p99 of puts of 20 callers in peace", |it| it.in_peace, time),
        row("p99 of puts of 20 callers meanwhile", |it| it.meanwhile, time),
        row("anonymous memory of all members afterwards", |it| it.memory, bytes),
    ];
    Ok(labels.table(&format!("a member back after {revisions} revisions, {how}"), &rows))
}

fn come_back(servers: &mut Servers, revisions: u64) -> anyhow::Result<Return> {
    let endpoint = servers.endpoints_from_leader()?.swap_remove(0);
    load_keys(&endpoint, 0..KEYS, KEYS)?;
    let away = (servers.leader()? + 1) % servers.endpoints.len();
    servers.stop(away)?;
    load_keys(&endpoint, 0..revisions, KEYS)?;
    eprintln!("{}: {revisions} revisions without member {away}", servers.name);
    clock::rest(SETTLE);
    let puts = || Background::start(&endpoint, BackgroundWork::Put, KEYS);
    let peace = puts()?.stop_after(WATCHED)?.good().context("puts in peace")?;
    let load = puts()?;
    let newest = probe::status(&endpoint)?.revision;
    let start = clock::nanos();
    servers.start_again(away)?;
    servers.wait_for(away)?;
    while probe::status(&servers.endpoints[away])?.revision < newest {
        anyhow::ensure!(clock::nanos() < start + PATIENCE, "{}: a member is left behind", servers.name);
        clock::rest(Duration::from_millis(5));
    }
    let took = clock::nanos() - start;
    let meanwhile = load.stop()?.good().context("puts beside a member that comes back")?;
    clock::rest(SETTLE);
    Ok(Return {
        took: took as f64 / 1e3,
        in_peace: peace.percentile(99.0),
        meanwhile: meanwhile.percentile(99.0),
        memory: servers.usage().memory as f64,
    })
}
