//! The Cluster service.

use std::rc::Rc;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::apply::local::LocalKind;
use revd_member::auth::{Caller, Wants};
use revd_member::cluster;
use revd_member::cluster::membership::MemberChange;
use revd_member::error::Error;
use revd_member::{schema, urls};
use revd_proto::etcdserverpb::{Member, MemberAddRequest, MemberListRequest, MemberListResponse};

use crate::api::call::{Credentials, Message, decoded};
use crate::api::context::ServiceContext;
use crate::api::refused;
use crate::clock;
use crate::limits;

/// Edge view.
#[derive(Debug)]
pub(super) struct Cluster {
    context: Rc<ServiceContext>,
}

impl Cluster {
    pub(super) fn new(context: &Rc<ServiceContext>) -> Self {
        Self { context: Rc::clone(context) }
    }

    /// The members. As with etcd, headers of this service carry no revision.
    pub(super) async fn member_list(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let request = decoded(MemberListRequest::decode(message))?;
        let view = match request.linearizable {
            false => self.context.view(),
            true => self.context.check_newest(credentials, &Wants::Login).await?,
        };
        let members = schema::members(view.tables()).collect();
        let response = MemberListResponse { header: None, members };
        Ok(self.context.reply(0, vec![response.encode_to_vec().into()]))
    }

    /// A new member, whose id is made of its URLs and the time: it is another one each time.
    pub(super) async fn member_add(
        &self,
        caller: &Caller,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        check_fields(&message)?;
        let request = decoded(MemberAddRequest::decode(message))?;
        let peer_ur_ls = urls::parse(&request.peer_ur_ls).map_err(|_| Error::BadMemberUrls)?;
        self.context.check_now(caller, &Wants::Root).await?; // after the URLs, as etcd
        let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = cluster::member_id(&peer_ur_ls, &now.to_string());
        let member = Member { id, peer_ur_ls, is_learner: request.is_learner, ..Member::default() };
        let learners_max = self.context.member_rules.learners_max;
        let payload = MemberChange::encode_add(&member, learners_max);
        self.change(credentials, Kind::MemberAdd, payload, &MemberChange::Add { member, learners_max }).await
    }

    pub(super) async fn member_remove(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let change = MemberChange::decode_remove(message.clone())?;
        self.change(credentials, Kind::MemberRemove, message, &change).await
    }

    /// Other peer URLs; etcd's members end when they are told of what is no URL.
    pub(super) async fn member_update(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        check_fields(&message)?;
        let change = MemberChange::decode_update(message.clone())?;
        if let MemberChange::Update { peer_urls, .. } = &change {
            urls::parse(peer_urls).map_err(|_| Error::BadMemberUrls)?;
        }
        self.change(credentials, Kind::MemberUpdate, message, &change).await
    }

    pub(super) async fn member_promote(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let change = MemberChange::decode_promote(message.clone())?;
        self.change(credentials, Kind::MemberPromote, message, &change).await
    }

    /// Proposes a change, unless the members that are started would be no quorum then.
    async fn change(
        &self,
        credentials: &Credentials,
        kind: Kind,
        payload: Bytes,
        change: &MemberChange,
    ) -> Result<Message, Error> {
        if self.context.member_rules.is_strict {
            schema::membership(self.context.views.load().tables()).keeps_quorum(change)?;
            // As with etcd, a member that is left alone says at once why it takes no other one in.
            // Elsewhere a leader can tell first whether the caller may know.
            let change = LocalKind::MayChange(Arc::new(change.clone()));
            self.context.begin_local(&Caller::Member, change, false)?.await?.result?;
        }
        // It is not judged again when it is applied: raft has counted votes by then. Nor is it
        // proposed without a leader: held for the next one, it could overtake news of rights.
        self.context.check_newest(credentials, &Wants::Root).await?;
        let outcome = self.context.begin(&Caller::Member, kind, payload, false)?.await?;
        Ok(self.context.reply(0, vec![outcome.result?]))
    }
}

/// Refuses a member with more URLs than any has, before they are decoded.
fn check_fields(message: &Bytes) -> Result<(), Error> {
    let is_too_large = refused::has_more_fields(message, limits::MEMBER_FIELDS_MAX);
    if is_too_large { Err(Error::BadMemberUrls) } else { Ok(()) }
}
