//! How services hand commands to the log and local requests to the state
//! core, and what they answer then.

use bytes::Bytes;
use revd_member::apply::authorized;
use revd_member::apply::command::Kind;
use revd_member::apply::local::{DeadlineRequest, LeaseRequest, LocalKind};
use revd_member::auth::Caller;
use revd_member::budget::{Patience, Share};
use revd_member::cluster::version::{self, ClusterVersion, Versions};
use revd_member::error::Error;
use revd_member::read::parts::{ReplyPart, beside, bytes_of_parts};
use revd_member::schema;

use crate::api::call::Message;
use crate::api::context::ServiceContext;
use crate::api::{txn, validate};
use crate::edge::change_line::ChangeLine;
use crate::edge::pending::Proposal;
use crate::edge::pending::user_shares::UserNumber;
use crate::edge::slots::SlotClass;
use crate::limits;
use crate::observe::bounds::Bound;

impl ServiceContext {
    /// Proposes a command of the member's own, and waits until it is durable and applied.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn propose(&self, kind: Kind, message: Bytes) -> Result<Message, Error> {
        self.submit(&Caller::Member, kind, message, false).await
    }

    /// The same, however long that takes: for what the member itself cannot go on without.
    ///
    /// # Errors
    /// When the member stops.
    pub async fn propose_patiently(&self, kind: Kind, message: Bytes) -> Result<Message, Error> {
        self.submit(&Caller::Member, kind, message, true).await
    }

    /// As in etcd, a token is judged before the size of a proposal, and that before rights.
    pub(super) fn check_size(&self, caller: &Caller, message: &Bytes) -> Result<(), Error> {
        self.check_len(caller, message.len())
    }

    /// The same of a proposal that will have so many bytes, or more.
    pub(super) fn check_len(&self, caller: &Caller, len: usize) -> Result<(), Error> {
        if *caller == Caller::BadToken {
            return Ok(()); // refused as such
        }
        validate::proposal_size(len, self.limits)
    }

    /// Proposes a command in the name of a caller, and waits until it is durable and applied.
    pub(super) async fn submit(
        &self,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        patient: bool,
    ) -> Result<Message, Error> {
        validate::proposal_size(message.len(), self.limits)?;
        self.end(self.begin(caller, kind, message, patient)?).await
    }

    /// The same of a change of users or roles, of which a line tells however long its caller waits.
    pub(super) async fn submit_told(
        &self,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        line: ChangeLine,
    ) -> Result<Message, Error> {
        validate::proposal_size(message.len(), self.limits)?;
        let told = |of, kind, message| self.proposals.submit_told(of, kind, message, line);
        self.end(self.begin_by(UserNumber::of_caller(caller), caller, kind, message, told)?).await
    }

    async fn end(&self, proposal: Proposal) -> Result<Message, Error> {
        let outcome = proposal.await?;
        let result = outcome.result.map_err(|error| self.counted(error))?;
        Ok(self.reply(outcome.revision, vec![result]))
    }

    /// Proposes a command, and reads what is to be answered beside its result.
    pub(super) async fn propose_and_read(
        &self,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        validate::proposal_size(message.len(), self.limits)?;
        self.answer(self.begin(caller, kind, message, false)?, replies).await
    }

    /// Proposes what may make the store larger. If it went beyond the
    /// quota, the cluster has to know.
    pub(super) async fn propose_growth(
        &self,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        let result = self.propose_and_read(caller, kind, message, replies).await;
        if result == Err(Error::NoSpace) {
            self.raise_no_space().await;
        }
        result
    }

    /// The reply to a command: its result, and what is read beside it.
    pub(super) async fn answer(&self, proposal: Proposal, replies: &Share) -> Result<Message, Error> {
        let outcome = proposal.await?;
        let mut body = vec![outcome.result.map_err(|error| self.counted(error))?];
        let parts = outcome.rest.parts();
        if !parts.is_empty() {
            let rest = Box::pin(self.read_parts(parts, replies)).await;
            body.extend(rest.map_err(|error| Error::Unanswered(Box::new(error)))?);
        }
        Ok(self.reply(outcome.revision, body))
    }

    /// Reads the parts of a reply beside its result.
    async fn read_parts(&self, parts: &[ReplyPart], replies: &Share) -> Result<Vec<Bytes>, Error> {
        let mut held = replies.hold();
        held.add(bytes_of_parts(parts).min(replies.bytes_max() / 4));
        let read = async || txn::assemble(parts, replies).await.map_err(|error| beside(error, held.bytes()));
        // The parts hold the state that they are read from.
        self.with_room(replies, Patience::Holding, read).await
    }

    /// Hands a command on, if there is room.
    pub(super) fn begin(
        &self,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        patient: bool,
    ) -> Result<Proposal, Error> {
        self.begin_in(UserNumber::of_caller(caller), caller, kind, message, patient)
    }

    /// The same in the part of this user, if in any.
    pub(super) fn begin_in(
        &self,
        part: Option<UserNumber>,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        patient: bool,
    ) -> Result<Proposal, Error> {
        self.begin_by(part, caller, kind, message, |of, kind, message| {
            self.proposals.submit_as(of, kind, message, patient)
        })
    }

    /// The same in this way.
    fn begin_by(
        &self,
        part: Option<UserNumber>,
        caller: &Caller,
        kind: Kind,
        message: Bytes,
        submit: impl FnOnce((SlotClass, Option<UserNumber>), Kind, Bytes) -> Result<Proposal, Error>,
    ) -> Result<Proposal, Error> {
        self.check_unapplied(kind)?;
        let of = (SlotClass::of(kind), part);
        let (kind, message) = self.enclosed(caller, kind, message);
        let submitted = submit(of, kind, message);
        if submitted.as_ref().is_err_and(|error| *error == Error::TooManyRequests) {
            self.reached(if kind == Kind::LeaseCheckpoint { Bound::Keepalives } else { Bound::Proposals });
        }
        submitted
    }

    /// The command as it goes through the log: a user's with its name, the member's own as such
    /// where it is not by its kind.
    fn enclosed(&self, caller: &Caller, kind: Kind, message: Bytes) -> (Kind, Bytes) {
        match caller {
            Caller::Member if kind.is_of_members_alone() => (kind, message),
            Caller::Nobody | Caller::BadToken => (kind, message),
            Caller::Member => authorized::enclose(caller, 0, kind, message),
            Caller::User(_) => authorized::enclose(caller, self.auth_revision(), kind, message),
        }
    }

    /// Refuses what clients write while this member is far behind what is committed.
    fn check_unapplied(&self, kind: Kind) -> Result<(), Error> {
        // The applied index first: it never overtakes the committed one.
        let applied = self.status.applied.load();
        if self.status.committed.load().saturating_sub(applied) > unapplied_max(kind) {
            self.reached(Bound::Unapplied);
            return Err(Error::TooManyRequests);
        }
        Ok(())
    }

    /// The versions of all members, as this one knows them, whose own is this.
    ///
    /// # Errors
    /// When the member stops, or has too much to do.
    pub async fn versions_of_members(&self, own: ClusterVersion) -> Result<Versions, Error> {
        let outcome = self.begin_local(&Caller::Member, LocalKind::PeerVersions, true)?.await?;
        let mut known = version::decode(outcome.result?);
        known.insert(self.identity.member, own);
        let view = self.views.load();
        let members = schema::members(view.tables()).map(|member| known.get(&member.id).copied()).collect();
        Ok(Versions { agreed: schema::versions(view.tables()), members })
    }

    /// Asks this member alone, in the part of a caller, and waits for the reply.
    pub(super) async fn ask(
        &self,
        caller: &Caller,
        kind: LocalKind,
        patient: bool,
    ) -> Result<Message, Error> {
        let outcome = self.begin_local(caller, kind, patient)?.await?;
        Ok(self.reply(outcome.revision, vec![outcome.result?]))
    }

    /// Asks this member alone, if there is room, also in the part of the caller.
    pub(super) fn begin_local(
        &self,
        caller: &Caller,
        kind: LocalKind,
        patient: bool,
    ) -> Result<Proposal, Error> {
        let bound = match &kind {
            LocalKind::Lease(LeaseRequest::Deadline(DeadlineRequest::KeepAlive { .. }))
            | LocalKind::MayCaller(_) => Bound::Keepalives,
            _ => Bound::Proposals,
        };
        let submitted = self.proposals.submit_local(UserNumber::of_caller(caller), kind, patient);
        if submitted.as_ref().is_err_and(|error| *error == Error::TooManyRequests) {
            self.reached(bound);
        }
        submitted
    }
}

/// Committed entries that may wait to be applied when a command of this kind is proposed.
fn unapplied_max(kind: Kind) -> u64 {
    match kind {
        Kind::Put | Kind::DeleteRange | Kind::Txn | Kind::Compact | Kind::LeaseGrant => {
            limits::UNAPPLIED_ENTRIES_MAX
        }
        Kind::LeaseRevoke => limits::UNAPPLIED_ENTRIES_REVOKE_MAX,
        // Of the member itself, or few.
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_far_behind_takes_what_makes_room_longer_than_what_needs_it() {
        assert_eq!(unapplied_max(Kind::Put), 5_000);
        assert_eq!(unapplied_max(Kind::LeaseRevoke), 10_000);
        assert_eq!(unapplied_max(Kind::Alarm), u64::MAX);
    }
}
