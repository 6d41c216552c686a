//! Small calls of one key, and transactions, sent by h2load.

use std::time::Duration;

use crate::clock;
use crate::figures::h2load::{self, CallMessage, CallMessages, H2Load};
use crate::figures::sizes::FigureSizes;
use crate::figures::table::{Compared, Labels, RatioTable};
use crate::servers::Servers;
use crate::units::bytes;

/// Puts and gets of one key: 1, 100 and 1,000 callers.
pub(super) fn single_keys(
    sizes: &FigureSizes,
    both: &[Servers; 2],
    rows: &mut RatioTable,
) -> anyhow::Result<()> {
    let messages = CallMessages::write()?;
    for (work, message) in [
        ("put 256 B", CallMessage::Put),
        ("get, linearizable", CallMessage::Get),
        ("get, serializable", CallMessage::SerializableGet),
    ] {
        for (callers, connections, streams, share) in [(1, 1, 1, 10), (100, 10, 10, 1), (1000, 50, 20, 1)] {
            let load = H2Load { connections, streams, calls: (sizes.calls / share).max(1) };
            let is_cluster = both[0].endpoints.len() > 1;
            if callers == 1 && is_cluster {
                let labels = ["leader", "follower"].map(|at| format!("{work}, 1 caller of the {at}"));
                rows.measure(&labels.each_ref().map(String::as_str), sizes.rounds, both, |server| {
                    let follower = [server.follower_endpoint()?.to_owned()];
                    let at_leader = h2load::run(server, &messages, message, load)?;
                    Ok(vec![at_leader, h2load::run_at(server, &follower, &messages, message, load)?])
                })?;
                continue;
            }
            let label = format!("{work}, {callers} caller{}", if callers == 1 { "" } else { "s" });
            rows.measure(&[&label], sizes.rounds, both, |server| {
                Ok(vec![h2load::run(server, &messages, message, load)?])
            })?;
        }
    }
    Ok(())
}

/// Compare and swap, and transactions of 100 puts.
pub(super) fn transactions(
    sizes: &FigureSizes,
    both: &[Servers; 2],
    rows: &mut RatioTable,
) -> anyhow::Result<()> {
    let messages = CallMessages::write()?;
    for (label, message, streams, calls) in [
        ("compare and swap, 100 callers", CallMessage::Swap, 10, sizes.calls),
        ("transaction of 100 puts, 10 callers", CallMessage::Bulk, 1, sizes.calls / 20),
    ] {
        let load = H2Load { connections: 10, streams, calls: calls.max(10) };
        rows.measure(&[label], sizes.rounds, both, |server| {
            Ok(vec![h2load::run(server, &messages, message, load)?])
        })?;
    }
    Ok(())
}

/// Bytes that durable puts of 1,000 callers have written, log and store together.
pub(super) fn written(sizes: &FigureSizes, both: &[Servers; 2], labels: &Labels) -> anyhow::Result<String> {
    /// Until checkpoints that follow the replies are written.
    const BEHIND: Duration = Duration::from_secs(2);
    let calls = sizes.calls * 10;
    let load = H2Load { connections: 50, streams: 20, calls };
    let messages = CallMessages::write()?;
    let mut figures = [0.0; 2];
    for (server, figure) in both.iter().zip(&mut figures) {
        // Once before: files that grow at first are used again later.
        h2load::run(server, &messages, CallMessage::Put, load)?;
        let before = server.usage().written;
        h2load::run(server, &messages, CallMessage::Put, load)?;
        clock::rest(BEHIND);
        *figure = (server.usage().written - before) as f64 / calls as f64;
    }
    let what = format!("{calls} puts of 256 B, 1,000 callers");
    Ok(labels.table(&what, &[Compared::new("written for each put", figures, bytes)]))
}
