//! An edge core's loop: connections in, replies out.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use revd_member::apply::lease_reports::Heard;

use crate::api::{Api, ApiSeed};
use crate::config::Retention;
use crate::cores::{Commands, News, NewsItem};
use crate::duties;
use crate::edge::pending::Proposals;
use crate::limits;
use crate::net::ListenConfig;
use crate::net::unread::Unread;
use crate::observe::bounds::Bound;
use crate::queues::latch::Latch;
use crate::queues::mailbox::{ReceiverSeed, SenderSeed};

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
    /// What auto compaction keeps, on the one edge that has the duties of the whole member.
    pub member_duties: Option<Retention>,
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
    let sweeping = glommio::spawn_local(duties::sweep::run(Rc::clone(&api), Rc::clone(&proposals)));
    let unread = Rc::<Unread>::default();
    let news = hear(Rc::clone(&api), Rc::clone(&proposals), Rc::clone(&unread), seed.from_state);
    let hearing = glommio::spawn_local(news);
    prepare(&api).await;
    seed.ready.wait().await;
    let mut duties = vec![
        glommio::spawn_local(duties::watch_steps::run(Rc::clone(&api))),
        glommio::spawn_local(duties::watch_progress::run(Rc::clone(&api), seed.progress_interval)),
    ];
    if let Some(retention) = seed.member_duties {
        duties.extend([
            glommio::spawn_local(duties::auto_compaction::run(Rc::clone(&api), retention)),
            glommio::spawn_local(duties::lease_expiry::run(Rc::clone(&api))),
            glommio::spawn_local(duties::lease_checkpoints::run(Rc::clone(&api))),
            glommio::spawn_local(duties::reserve::run(Rc::clone(&api))),
        ]);
    }
    let served = crate::net::serve(api, unread, seed.listen, seed.stop, listening).await;
    proposals.close();
    sweeping.cancel().await;
    for duty in duties {
        duty.cancel().await;
    }
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
        duties::watch_steps::end_if_damaged(api.watchers().step());
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
    api.lease().heard(Heard { question, is_all: !proposals.holds_keepalives_back() });
}
