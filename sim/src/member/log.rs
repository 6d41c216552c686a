//! The log core's turns: what `server/src/cores/log.rs` carries out in production.

use std::collections::BTreeMap;

use revd_member::apply::received::ReceivedState;
use revd_member::apply::{CommittedEntry, Work, command};
use revd_member::cluster::membership::MemberChange;
use revd_member::cores::effects::StateEvent;
use revd_member::cores::log::LogCore;
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::raft::status::MemberStatus;
use revd_member::wal::FrameContent;

use crate::marks::Mark;
use crate::member::common::{Common, End, LogInput, StateInput};
use crate::member::peers::Peers;
use crate::member::states::States;
use crate::member::writer::{Writer, WriterJob};
use crate::outside::Outside;

/// The log core, and the tasks on its thread.
pub(super) struct LogPart {
    pub(super) core: LogCore,
    pub(super) writer: Writer,
    pub(super) peers: Peers,
    pub(super) states: States,
    pub(super) is_over: bool,
}

struct LogDriver<'p> {
    common: &'p mut Common,
    writer: &'p mut Writer,
    peers: &'p mut Peers,
    states: &'p mut States,
    work: Vec<Work>,
    messages: BTreeMap<u64, Vec<PeerMessage>>,
    out: &'p mut Outside,
}

impl LogEffects for LogDriver<'_> {
    fn append(&mut self, frame: FrameContent) {
        self.writer.push(WriterJob::Append(frame));
    }

    fn release(&mut self, index: u64) {
        self.writer.push(WriterJob::Release(index));
    }

    fn work(&mut self, work: Work) {
        match &work {
            Work::Entry(entry) if self.out.truth.committed(entry) => {
                self.out.marks.reach(Mark::Committed);
                mark_change(entry, self.out);
            }
            Work::Lost(_) => self.out.marks.reach(Mark::Lost),
            _ => {}
        }
        self.work.push(work);
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.entry(to).or_default().push(message);
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.writer.push(WriterJob::Fetch(fetch));
    }

    fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers.set_peers(peers, self.common, self.out);
    }

    fn discard(&mut self, state: Box<ReceivedState>) {
        drop(state);
        self.states.discard(self.common, self.out);
    }

    fn installed(&mut self) {
        self.states.installed();
    }
}

impl LogPart {
    fn driver<'p>(
        &'p mut self,
        common: &'p mut Common,
        out: &'p mut Outside,
    ) -> (&'p mut LogCore, LogDriver<'p>) {
        let Self { core, writer, peers, states, .. } = self;
        let (work, messages) = (Vec::new(), BTreeMap::new());
        (core, LogDriver { common, writer, peers, states, work, messages, out })
    }
}

impl LogDriver<'_> {
    /// At the end of a turn.
    fn finish(self, core: &LogCore) {
        let Self { common, writer, peers, work, messages, out, .. } = self;
        for (to, messages) in messages {
            peers.send(to, &messages, common, out);
        }
        publish(core, &common.status);
        if !work.is_empty() {
            common.state_input(StateInput::Core(StateEvent::Work(work)), out);
        }
        writer.run(common, out);
    }
}

/// Members have changed.
fn mark_change(entry: &CommittedEntry, out: &mut Outside) {
    if entry.change.as_ref().is_none_or(|change| change.verdict.is_err()) {
        return;
    }
    let change = command::decode_member_change(&entry.data).and_then(|(_, it)| it.member_change());
    match change {
        Some(Ok(MemberChange::Add { .. })) => out.marks.reach(Mark::MemberAdded),
        Some(Ok(MemberChange::Promote { .. })) => out.marks.reach(Mark::Promoted),
        Some(Ok(MemberChange::Remove { id })) => {
            out.marks.reach(Mark::MemberRemoved);
            if out.truth.leader_of(entry.term) == Some(id) {
                out.marks.reach(Mark::LeaderRemoved);
            }
        }
        _ => {}
    }
}

fn publish(core: &LogCore, status: &MemberStatus) {
    let now = core.status();
    status.term.store(now.term);
    status.leader.store(now.leader);
    status.last_index.store(now.last_index);
    status.committed.store(now.committed);
    status.is_sole_voter.store(now.is_sole_voter);
    status.reads_alone.store(now.reads_alone);
    status.is_learner.store(now.is_learner);
}

impl LogPart {
    pub(super) fn start(&mut self, common: &mut Common, out: &mut Outside) -> Result<(), End> {
        let (core, mut driver) = self.driver(common, out);
        core.start(&mut driver).map_err(|error| End::Failed(error.to_string()))?;
        driver.finish(core);
        Ok(())
    }

    /// A turn: all that has come, then raft.
    pub(super) fn turn(&mut self, common: &mut Common, out: &mut Outside) -> Result<(), End> {
        let inputs = std::mem::take(&mut common.to_log);
        if self.is_over {
            return Ok(());
        }
        let ticks = inputs.iter().filter(|input| matches!(input, LogInput::Core(LogEvent::Tick))).count();
        assert!(ticks <= 1, "{ticks} steps of raft's clock in one turn");
        let applied = common.status.applied.load();
        let now = common.clock.at(out.now());
        let (core, mut driver) = self.driver(common, out);
        core.receive(LogEvent::Turn(now), &mut driver);
        for input in inputs {
            match input {
                LogInput::Core(event) => core.receive(event, &mut driver),
                LogInput::Send(to, term, state) => {
                    if let Some(urls) = driver.peers.urls(to) {
                        driver.states.send((to, term), &urls, state, driver.common, driver.out);
                    } else {
                        core.receive(LogEvent::StateSent { to, is_there: false }, &mut driver);
                    }
                }
                LogInput::WriteFailed(why) => return Err(End::DiskFailed(why)),
            }
        }
        core.receive(LogEvent::Applied(applied), &mut driver);
        core.advance(&mut driver).map_err(|error| End::Failed(error.to_string()))?;
        driver.finish(core);
        let core = &self.core;
        let status = core.status();
        if status.is_leader && out.truth.leads(common.identity.member, status.term) {
            out.marks.reach(Mark::Elected);
            if out.truth.is_changing() {
                out.marks.reach(Mark::ElectedDuringChange);
            }
        }
        if core.has_left() {
            return Err(End::Removed);
        }
        if core.is_over() {
            self.is_over = true;
            self.peers.stop(common, out);
            common.state_input(StateInput::Core(StateEvent::LogClosed), out);
        }
        Ok(())
    }
}
