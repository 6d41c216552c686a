//! An edge core's loop: connections in, replies out.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use revd_member::apply::lease_reports::Heard;
use revd_member::error::Error;
use serde_json::json;

use crate::api::{Api, ApiSeed, More};
use crate::config::Retention;
use crate::cores::{Commands, News, NewsItem};
use crate::duties::auto_compact::AutoCompact;
use crate::edge::pending::Proposals;
use crate::limits;
use crate::net::ListenConfig;
use crate::net::unread::Unread;
use crate::observe::bounds::Bound;
use crate::observe::log;
use crate::xcore::latch::Latch;
use crate::xcore::mailbox::{ReceiverSeed, SenderSeed};
use crate::xcore::turn::give_way;

/// What an edge core starts with.
pub struct EdgeSeed {
    /// Its number among the edges.
    pub edge: u16,
    /// Commands of one turn.
    pub to_log: SenderSeed<Commands>,
    /// Outcomes of this edge's commands, and word of new Views.
    pub from_state: ReceiverSeed<News>,
    /// Everything the API needs but the core's own parts.
    pub api: ApiSeed,
    /// Where to listen.
    pub listen: ListenConfig,
    /// Set once this member's state is up to date and clients may come.
    pub ready: Latch,
    /// When to stop taking work.
    pub stop: Latch,
    /// How often watchers hear how far they are.
    pub progress_interval: Duration,
    /// The chores of the member, which one edge has.
    pub chores: Option<Chores>,
}

/// What one edge does for the whole member.
pub struct Chores {
    /// What compacting by itself keeps.
    pub retention: Retention,
}

/// Serves until asked to stop, then until open calls are answered or their time is over. `prepare` runs before
/// clients are let in.
///
/// # Errors
/// When an address cannot be listened on.
pub async fn run(
    seed: EdgeSeed,
    prepare: impl AsyncFnOnce(&Api),
    listening: impl FnOnce(),
) -> io::Result<()> {
    let proposals = Proposals::new(seed.edge, limits::PROPOSALS);
    let carrying = glommio::spawn_local(carry(Rc::clone(&proposals), seed.to_log));
    let api = Api::new(seed.api, Rc::clone(&proposals));
    let sweeping = glommio::spawn_local(sweep(Rc::clone(&api), Rc::clone(&proposals)));
    let unread = Rc::<Unread>::default();
    let news = hear(Rc::clone(&api), Rc::clone(&proposals), Rc::clone(&unread), seed.from_state);
    let hearing = glommio::spawn_local(news);
    prepare(&api).await;
    seed.ready.wait().await;
    let mut chores = Vec::new();
    if let Some(Chores { retention }) = seed.chores {
        chores.push(glommio::spawn_local(auto_compact(Rc::clone(&api), AutoCompact::new(retention))));
        chores.push(glommio::spawn_local(revoke_due(Rc::clone(&api))));
        chores.push(glommio::spawn_local(note_leases(Rc::clone(&api))));
        chores.push(glommio::spawn_local(look_at_disk(Rc::clone(&api))));
    }
    let stepping = glommio::spawn_local(step_watchers(Rc::clone(&api)));
    let telling = glommio::spawn_local(tell_progress(Rc::clone(&api), seed.progress_interval));
    let served = crate::net::serve(api, unread, seed.listen, seed.stop, listening).await;
    proposals.close();
    sweeping.cancel().await;
    for chore in chores {
        chore.cancel().await;
    }
    telling.cancel().await;
    stepping.cancel().await;
    carrying.await; // closes the mailbox to the log core ...
    hearing.await; // ... which closes the way back once everything is applied
    served
}

/// One message per turn: what the turn's requests have submitted.
async fn carry(proposals: Rc<Proposals>, to_log: SenderSeed<Commands>) {
    let to_log = to_log.open().await;
    while proposals.wait_for_batch().await {
        // The first request of a turn wakes this task; the others of the same turn are queued before it comes
        // round again.
        futures_lite::future::yield_now().await;
        if !to_log.send(proposals.take_batch()).await {
            break;
        }
    }
}

/// Answers callers, then tells watchers.
async fn hear(api: Rc<Api>, proposals: Rc<Proposals>, unread: Rc<Unread>, from_state: ReceiverSeed<News>) {
    let from_state = from_state.open().await;
    while let Some(news) = from_state.receive().await {
        for item in news {
            match item {
                NewsItem::Outcome(id, outcome) => proposals.resolve(id, outcome),
                NewsItem::Hear(question) => {
                    let (api, proposals) = (Rc::clone(&api), Rc::clone(&proposals));
                    let passing = pass_keepalives_on(api, proposals, Rc::clone(&unread), question);
                    glommio::spawn_local(passing).detach();
                }
                NewsItem::View => {}
            }
        }
        end_if_damaged(api.watches().step());
    }
    proposals.close();
}

/// Before a lease ends: what has come so far is read and under way to the state core when the answer follows it there.
async fn pass_keepalives_on(api: Rc<Api>, proposals: Rc<Proposals>, unread: Rc<Unread>, question: u64) {
    // The first sleep ends after sockets were asked what has come, the second after some of that was read: whoever has more
    // is known by then.
    for _ in 0..2 {
        glommio::timer::sleep(limits::HEARING_INTERVAL).await;
    }
    let mark = unread.mark();
    for wait in 0..limits::HEARING_READS_MAX {
        let is_held_back = proposals.holds_keepalives_back() && wait < limits::HEARING_WAITS_MAX;
        if !is_held_back && unread.is_read_up_to(mark) {
            break;
        }
        glommio::timer::sleep(limits::HEARING_INTERVAL).await;
    }
    if !unread.is_read_up_to(mark) {
        api.reached(Bound::Unread);
    }
    api.heard(Heard { question, is_all: !proposals.holds_keepalives_back() });
}

async fn tell_progress(api: Rc<Api>, interval: Duration) {
    let step = interval / u32::try_from(limits::PROGRESS_TICKS).expect("a small number");
    for tick in 1.. {
        glommio::timer::sleep(step).await;
        api.watches().tick(tick);
    }
}

/// Takes the steps of watchers that no news brings: what is left of a large batch, and the past for those who lag.
async fn step_watchers(api: Rc<Api>) {
    loop {
        end_if_damaged(api.watches().step_on().await);
        // Not a mere yield: sockets are looked at only when nobody is ready to run.
        give_way().await;
    }
}

/// Watchers cannot be told what cannot be read, and must not miss it.
fn end_if_damaged(result: Result<(), Error>) {
    if let Err(error) = result {
        log::fatal("the store is damaged", json!({"doing": "telling watchers", "error": error.to_string()}));
    }
}

async fn auto_compact(api: Rc<Api>, mut duty: AutoCompact) {
    let Some(interval) = duty.interval() else { return };
    loop {
        if let Some(revision) = duty.look(api.revision()) {
            let fields = |outcome: &str| json!({"revision": revision, "outcome": outcome});
            match api.compact_at(revision).await {
                // Someone else was faster: just as well.
                Ok(()) | Err(Error::Compacted) => {
                    duty.compacted(revision);
                    log::info("auto compaction", fields("compacted"));
                }
                Err(error) => log::warn("auto compaction", fields(&format!("{error}; will be tried again"))),
            }
        }
        glommio::timer::sleep(interval).await;
    }
}

/// Leases that are due are revoked, many at once; those that could not be are still due the next time.
async fn revoke_due(api: Rc<Api>) {
    loop {
        match api.revoke_due().await {
            Ok(More::Perhaps) => give_way().await,
            Ok(More::No) => glommio::timer::sleep(limits::LEASE_CHECK_INTERVAL).await,
            Err(error) => {
                log::warn("leases that are due could not be revoked", json!({"error": error.to_string()}));
                glommio::timer::sleep(limits::LEASE_CHECK_INTERVAL).await;
            }
        }
    }
}

async fn note_leases(api: Rc<Api>) {
    loop {
        glommio::timer::sleep(limits::LEASE_NOTE_INTERVAL).await;
        if let Err(error) = api.note_leases().await {
            log::warn("what leases have left could not be noted", json!({"error": error.to_string()}));
        }
    }
}

async fn look_at_disk(api: Rc<Api>) {
    loop {
        glommio::timer::sleep(limits::RESERVE_INTERVAL).await;
        if let Some(reserve) = api.look_at_disk().await {
            // No room yet: it is looked at again.
            let _ = glommio::executor().spawn_blocking(move || reserve.fill()).await;
        }
    }
}

async fn sweep(api: Rc<Api>, proposals: Rc<Proposals>) {
    loop {
        glommio::timer::sleep(limits::SWEEP_INTERVAL).await;
        proposals.sweep(limits::REQUEST_SWEEPS_MAX);
        api.look_at_budgets();
    }
}
