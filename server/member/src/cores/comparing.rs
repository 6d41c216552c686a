//! The log core has the members' state hashes compared while it leads, and proposes what is found.

use bytes::Bytes;

use crate::apply::Work;
use crate::apply::alarm;
use crate::apply::command::{Command, CommandId, Kind};
use crate::apply::state_hashes::{HashAsk, HashPoint};
use crate::cores::corruption::Finding;
use crate::cores::log::LogCore;
use crate::cores::log_events::LogEffects;
use crate::peer::PeerMessage;

impl LogCore {
    /// A step of the clock: now and then a leader of others begins a comparison.
    pub(super) fn compare_states(&mut self, effects: &mut impl LogEffects) {
        let status = self.node.status();
        if !status.is_leader {
            self.comparison.clear();
            self.unattended.clear();
            return;
        }
        if self.comparison.tick(self.now) && !self.is_stopping() && self.node.members().len() > 1 {
            effects.work(Work::Hash(HashAsk { to: self.origin.member, index: 0 }));
        }
        self.take_findings(effects);
        // A member that answers nobody does not lead for long.
        if self.comparison.is_raised(self.origin.member)
            && self.now.is_multiple_of(self.node.election_ticks())
            && let Some(successor) = self.node.successor_if(|member| !self.comparison.is_raised(member))
        {
            self.node.transfer(successor);
        }
    }

    /// A hash of this member, for another one or for itself.
    pub(super) fn hashed(
        &mut self,
        to: u64,
        point: HashPoint,
        corrupt: Vec<u64>,
        effects: &mut impl LogEffects,
    ) {
        if to != self.origin.member {
            effects.send(to, PeerMessage::Hash(point));
            return;
        }
        if self.node.status().is_leader {
            let connected = self.connected_members();
            for member in self.comparison.begin(point, corrupt, connected, self.now) {
                effects.send(member, PeerMessage::HashAsk(point.index));
            }
        }
    }

    fn connected_members(&self) -> Vec<u64> {
        self.node.members().into_iter().filter(|member| self.changes.is_connected(*member)).collect()
    }

    /// Findings become commands, and what is not known is asked for.
    pub(super) fn take_findings(&mut self, effects: &mut impl LogEffects) {
        let (members, connected) = (self.node.members(), self.connected_members());
        for (member, index) in self.comparison.inquire(&members, &connected, self.now) {
            effects.send(member, PeerMessage::HashAsk(index));
        }
        let found = self.comparison.findings(&members, self.now);
        self.unattended.extend(found.into_iter().map(|finding| {
            let (kind, payload) = match finding {
                Finding::Corrupt(member) => (Kind::Corrupt, alarm::raise_corrupt(member)),
                Finding::BeginAnew => (Kind::BeginHash, Bytes::new()),
            };
            Command { id: CommandId(0), kind, payload }
        }));
    }
}
