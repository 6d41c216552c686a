//! Honest holders of leases and of a lock: leases kept alive in time never end,
//! and nobody holds the lock twice.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use revd_clients::LockClient;
use revd_proto::etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest};
use revd_proto::v3lockpb::{LockRequest, UnlockRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::honest::{Shared, now};
use crate::harness::{Client, connect};

/// Seconds of a lease, kept alive each second.
const TTL: i64 = 6;
const INTERVAL: Duration = Duration::from_secs(1);
/// A keepalive that was sent so long before a lease could expire came in time.
const IN_TIME: Duration = Duration::from_secs(4);

/// A lease and whether it lives.
pub struct Held {
    pub id: i64,
    pub lives: Cell<bool>,
    pub is_done: Cell<bool>,
}

async fn grant(shared: &Shared, client: &Client) -> Option<i64> {
    let request = LeaseGrantRequest { ttl: TTL, id: 0 };
    shared.call("grant", client.lease.clone().lease_grant(request)).await.map(|reply| reply.id)
}

/// Keeps a lease alive, on one stream after the other.
async fn keep(shared: Rc<Shared>, client: Client, held: Rc<Held>) {
    // The lease is known to live since then.
    let mut fresh = now();
    while held.lives.get() && !held.is_done.get() {
        let kills = shared.kills.get();
        let (asks, receiver) = mpsc::unbounded_channel();
        let requests = UnboundedReceiverStream::new(receiver);
        let _ = asks.send(LeaseKeepAliveRequest { id: held.id });
        let mut asked = now();
        let mut lease = client.lease.clone();
        let Some(mut replies) = shared.call("keepalive", lease.lease_keep_alive(requests)).await else {
            continue;
        };
        while held.lives.get() && !held.is_done.get() {
            match tokio::time::timeout(INTERVAL * 20, replies.message()).await {
                Ok(Ok(Some(reply))) if reply.ttl > 0 => fresh = asked,
                Ok(Ok(Some(_))) => {
                    lost(&shared, fresh, asked);
                    held.lives.set(false);
                    break;
                }
                Ok(Ok(None)) => {
                    if !shared.was_killed_since(kills) {
                        shared.find("a keepalive stream ended without a word");
                    }
                    break;
                }
                Ok(Err(status)) => {
                    if !shared.excuses(kills, &status) {
                        shared.find(&format!("a keepalive stream ended: {status}"));
                    }
                    break;
                }
                Err(_) if shared.was_killed_since(kills) => break,
                Err(_) => shared.find(&format!("a keepalive has no answer in {:?}", INTERVAL * 20)),
            }
            tokio::time::sleep(INTERVAL).await;
            asked = now();
            let _ = asks.send(LeaseKeepAliveRequest { id: held.id });
        }
    }
}

/// A lease has ended; it had lived until `fresh` at least, or begun
/// anew when the server was started.
fn lost(shared: &Shared, fresh: Instant, asked: Instant) {
    let since = fresh.max(shared.ready_at.get());
    let gap = asked.saturating_duration_since(since);
    if gap < IN_TIME {
        shared.find(&format!("a lease of {TTL} s is gone, kept alive {gap:?} before"));
    }
}

/// Holds a lease for as long as the soak lasts; another one if that is gone.
pub async fn hold(shared: Rc<Shared>, kept: Rc<Cell<u64>>) {
    let client = connect(&shared.endpoint).await;
    while !shared.over.get() {
        let Some(id) = grant(&shared, &client).await else { continue };
        let held = Rc::new(Held { id, lives: Cell::new(true), is_done: Cell::new(false) });
        let keeping = tokio::task::spawn_local(keep(Rc::clone(&shared), client.clone(), Rc::clone(&held)));
        while held.lives.get() && !shared.over.get() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            kept.set(kept.get() + 1);
        }
        held.is_done.set(true);
        keeping.await.unwrap();
    }
}

/// Takes the lock, holds it for a moment, gives it back; again and again.
pub async fn lock(shared: Rc<Shared>, holder: Rc<Cell<Option<i64>>>, taken: Rc<Cell<u64>>) {
    let client = connect(&shared.endpoint).await;
    let mut locks = LockClient::new(client.channel.clone());
    while !shared.over.get() {
        let Some(id) = grant(&shared, &client).await else { continue };
        let held = Rc::new(Held { id, lives: Cell::new(true), is_done: Cell::new(false) });
        let keeping = tokio::task::spawn_local(keep(Rc::clone(&shared), client.clone(), Rc::clone(&held)));
        while held.lives.get() && !shared.over.get() {
            let request = LockRequest { name: "soak-lock".into(), lease: id };
            let Some(reply) = shared.call("lock", locks.lock(request)).await else { break };
            // A lease that is gone without anybody's fault gives the lock away.
            if let Some(other) = holder.get().filter(|_| held.lives.get()) {
                shared.find(&format!("lease {id} holds the lock, and lease {other} too"));
            }
            holder.set(Some(id));
            tokio::time::sleep(Duration::from_millis(20)).await;
            if holder.get() == Some(id) {
                holder.set(None);
            }
            taken.set(taken.get() + 1);
            let unlocked = shared.call("unlock", locks.unlock(UnlockRequest { key: reply.key })).await;
            if unlocked.is_none() {
                break;
            }
        }
        // A key that is left goes with the lease.
        held.is_done.set(true);
        keeping.await.unwrap();
        shared.call("revoke", client.lease.clone().lease_revoke(LeaseRevokeRequest { id })).await;
    }
}
