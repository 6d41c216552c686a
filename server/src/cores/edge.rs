//! An edge core's loop: carries out what `revd_member::cores::edge` decides, on mailboxes, sockets
//! and tasks. Each task feeds its events to the core and runs what follows, so that an answer
//! passes no queue on its way to its caller.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use revd_member::apply::command::CommandId;
use revd_member::apply::local::{Heard, Submitted};
use revd_member::apply::outcome::Outcome;
use revd_member::cores::edge::{EdgeCore, EdgeEffects, EdgeEvent};
use revd_member::error::Error;
use revd_proto::etcdserverpb::Member as MemberRow;

use crate::api::{Api, ApiSeed};
use crate::config::{CorruptionChecks, Retention};
use crate::cores::Notifications;
use crate::duties;
use crate::edge::pending::Proposals;
use crate::limits;
use crate::net::sharing::SharingSeed;
use crate::net::tls::TlsDomain;
use crate::net::unread::Unread;
use crate::net::{ListenConfig, Listeners};
use crate::observe::bounds::Bound;
use crate::queues::latch::Latch;
use crate::queues::mailbox::{ReceiverSeed, SenderSeed};
use crate::queues::queue::LocalQueue;
use crate::queues::sleep::sleep;

/// The parts of an edge core, before it runs.
pub struct EdgeSeed {
    /// Its number among the edges.
    pub edge: u16,
    /// Commands of one turn.
    pub to_log: SenderSeed<Submitted>,
    /// Outcomes of this edge's commands, and word of new Views.
    pub from_state: ReceiverSeed<Notifications>,
    /// Everything the API needs but the core's own parts.
    pub api: ApiSeed,
    /// Where to listen.
    pub listen: ListenConfig,
    /// Its part in the sharing of clients' connections.
    pub sharing: SharingSeed,
    /// Told once clients can connect here.
    pub listening: Sender<()>,
    /// Set once this member's state is up to date and clients may come.
    pub ready: Latch,
    /// When to stop taking work.
    pub stop: Latch,
    /// How often watchers hear how far they are.
    pub progress_interval: Duration,
    /// Time without a leader before an election.
    pub election_timeout: Duration,
    /// Duties of the whole member, which the first edge has.
    pub member_duties: Option<MemberDuties>,
}

/// Duties that one edge has for the whole member.
#[derive(Clone)]
pub struct MemberDuties {
    /// This member's attributes, which it publishes before clients come.
    pub attributes: MemberRow,
    /// Revisions that auto compaction keeps.
    pub retention: Retention,
    /// When members are compared as etcd does.
    pub checks: CorruptionChecks,
    /// Certificates for members.
    pub tls: Arc<TlsDomain>,
    /// How often it is looked whether a downgrade is over; zero never.
    pub downgrade_interval: Duration,
}

/// Edge view: the core, and what its effects are carried out on.
struct Edge {
    core: RefCell<EdgeCore>,
    api: Rc<Api>,
    proposals: Rc<Proposals>,
    unread: Rc<Unread>,
    ready: Latch,
    stop: Latch,
    progress_interval: Duration,
    election_timeout: Duration,
    member_duties: Option<MemberDuties>,
    listeners: Rc<Listeners>,
    /// Until clients may come.
    listening: Cell<Option<Sender<()>>>,
    /// Cancelled by being dropped.
    duties: RefCell<Vec<glommio::Task<()>>>,
    /// How it ended.
    end: Rc<LocalQueue<io::Result<()>>>,
}

/// Serves until asked to stop, then until open calls are answered or their time is over, and
/// everything they proposed is applied.
///
/// # Errors
/// When an address cannot be listened on.
pub async fn run(seed: EdgeSeed) -> io::Result<()> {
    let proposals = Proposals::new(seed.edge, limits::PROPOSALS);
    let (api, unread) = (Api::new(seed.api, Rc::clone(&proposals)), Rc::<Unread>::default());
    let edge = Rc::new(Edge {
        core: RefCell::new(EdgeCore::new(seed.member_duties.is_some())),
        listeners: Rc::new(Listeners::new(Rc::clone(&api), Rc::clone(&unread), (seed.listen, seed.sharing))),
        listening: Cell::new(Some(seed.listening)),
        api,
        unread,
        proposals: Rc::clone(&proposals),
        ready: seed.ready.clone(),
        stop: seed.stop,
        progress_interval: seed.progress_interval,
        election_timeout: seed.election_timeout,
        member_duties: seed.member_duties,
        duties: RefCell::default(),
        end: LocalQueue::new(),
    });
    let carrying = glommio::spawn_local(carry(proposals, seed.to_log));
    let hearing = glommio::spawn_local(hear(Rc::clone(&edge), seed.from_state));
    edge.core.borrow_mut().start(&mut EdgeDriver(&edge));
    edge.spawn(async move || {
        seed.ready.wait().await;
        Ok(EdgeEvent::Ready)
    });
    let end = edge.end.take().await.and_then(|mut ends| ends.pop_front());
    end.expect("an edge does not close its own queue")?;
    carrying.await;
    hearing.await;
    Ok(())
}

/// One message per turn: what the turn's requests have submitted.
async fn carry(proposals: Rc<Proposals>, to_log: SenderSeed<Submitted>) {
    let to_log = to_log.open().await;
    while proposals.wait_for_batch().await {
        // The first request of a turn wakes this task; the others of the same turn are queued
        // before it comes round again.
        futures_lite::future::yield_now().await;
        if !to_log.send(proposals.take_batch()).await {
            break;
        }
    }
}

async fn hear(edge: Rc<Edge>, from_state: ReceiverSeed<Notifications>) {
    let from_state = from_state.open().await;
    while let Some(notifications) = from_state.receive().await {
        edge.feed(EdgeEvent::Notifications(notifications));
    }
    edge.feed(EdgeEvent::StateClosed);
}

impl Edge {
    fn feed(self: &Rc<Self>, event: EdgeEvent) {
        let mut core = self.core.borrow_mut();
        core.receive(event, &mut EdgeDriver(self));
        if core.is_over() {
            self.end.push(Ok(()));
        }
    }

    /// Does this in a task of its own; what comes of it is an event. The task begins in a later
    /// turn: the executor polls a new task at once, and an event of work that is done by then
    /// would reach the core in the middle of an effect.
    fn spawn(self: &Rc<Self>, work: impl AsyncFnOnce() -> io::Result<EdgeEvent> + 'static) {
        let edge = Rc::clone(self);
        let later = async move {
            futures_lite::future::yield_now().await;
            match work().await {
                Ok(event) => edge.feed(event),
                Err(error) => edge.end.push(Err(error)),
            }
        };
        glommio::spawn_local(later).detach();
    }
}

/// Carries out what the core decides.
struct EdgeDriver<'e>(&'e Rc<Edge>);

impl EdgeEffects for EdgeDriver<'_> {
    fn open_metrics(&mut self) {
        if let Err(error) = self.0.listeners.open_metrics() {
            return self.0.end.push(Err(error));
        }
        // Also those who ask for health there wait for reads, and not for ever.
        let (api, proposals) = (Rc::clone(&self.0.api), Rc::clone(&self.0.proposals));
        let sweeping = duties::sweep::run(Rc::clone(&api), proposals, self.0.election_timeout);
        let watching = duties::leader_watch::run(api, self.0.election_timeout);
        let mut begun = self.0.duties.borrow_mut();
        begun.extend([glommio::spawn_local(sweeping), glommio::spawn_local(watching)]);
    }

    fn publish(&mut self) {
        let Some(MemberDuties { attributes, .. }) = self.0.member_duties.clone() else { return };
        let api = Rc::clone(&self.0.api);
        self.0.spawn(async move || {
            duties::publication::run(api, attributes).await;
            Ok(EdgeEvent::Published)
        });
    }

    fn wait_for_cluster(&mut self) {
        self.0.spawn(async move || {
            sleep(limits::CLUSTER_READY_TIMEOUT).await;
            Ok(EdgeEvent::Overdue)
        });
    }

    fn is_sole_voter(&self) -> bool {
        self.0.api.context().is_sole_voter()
    }

    fn set_ready(&mut self) {
        self.0.ready.set();
    }

    fn begin_duties(&mut self, of_member: bool) {
        let api = || Rc::clone(&self.0.api);
        // Clients come now: a leader that is lost before the next look has been there.
        self.0.api.context().note_leader();
        let mut begun = self.0.duties.borrow_mut();
        begun.extend([
            glommio::spawn_local(duties::watch_steps::run(api())),
            glommio::spawn_local(duties::watch_progress::run(api(), self.0.progress_interval)),
        ]);
        if let Some(member) = self.0.member_duties.as_ref().filter(|_| of_member) {
            begun.extend([
                glommio::spawn_local(duties::auto_compaction::run(api(), member.retention)),
                glommio::spawn_local(duties::versions::run(api(), member.downgrade_interval)),
                glommio::spawn_local(duties::lease_expiry::run(api())),
                glommio::spawn_local(duties::lease_checkpoints::run(api())),
                glommio::spawn_local(duties::corruption_checks::run(
                    api(),
                    member.checks,
                    Arc::clone(&member.tls),
                )),
                glommio::spawn_local(duties::corruption_checks::run_of_compactions(
                    api(),
                    member.checks,
                    Arc::clone(&member.tls),
                )),
                glommio::spawn_local(duties::reserve::run(api())),
            ]);
        }
    }

    fn serve(&mut self) {
        let listening = self.0.listening.take().expect("an edge serves once");
        // The main thread may have given up when another core could not start.
        let listening = move || listening.send(()).unwrap_or_default();
        let (listeners, stop) = (Rc::clone(&self.0.listeners), self.0.stop.clone());
        self.0.spawn(async move || {
            listeners.serve(stop, listening).await?;
            Ok(EdgeEvent::Drained)
        });
    }

    fn end_duties(&mut self) {
        self.0.duties.borrow_mut().clear();
    }

    fn close_proposals(&mut self) {
        self.0.proposals.close();
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        self.0.proposals.resolve(id, outcome);
    }

    fn end_reads(&mut self, ticket: u64, result: Result<(), Error>) {
        self.0.proposals.end_reads(ticket, &result);
    }

    fn lost(&mut self, number: u64, why: Error) {
        self.0.proposals.lost(number, &why);
    }

    fn step_watches(&mut self) {
        duties::watch_steps::end_if_damaged(self.0.api.watchers().step());
    }

    fn wait(&mut self, hearing: u64, time: Duration) {
        self.0.spawn(async move || {
            sleep(time).await;
            Ok(EdgeEvent::Waited(hearing))
        });
    }

    fn mark_arrivals(&mut self) -> u64 {
        self.0.unread.mark()
    }

    fn is_read_up_to(&self, mark: u64) -> bool {
        self.0.unread.is_read_up_to(mark)
    }

    fn holds_keepalives_back(&self) -> bool {
        self.0.proposals.holds_keepalives_back()
    }

    fn gave_up_reading(&mut self) {
        self.0.api.reached(Bound::Unread);
    }

    fn heard(&mut self, heard: Heard) {
        self.0.api.lease().heard(heard);
    }
}
