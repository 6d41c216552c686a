//! The Maintenance service.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{HashKv, Hashed, View};
use revd_member::apply::alarm::{corrupt_members, raise_corrupt};
use revd_member::apply::command::Kind;
use revd_member::apply::local::LocalKind;
use revd_member::auth::{Caller, Wants};
use revd_member::cluster::version::{ClusterVersion, downgrade_target};
use revd_member::error::Error;
use revd_member::schema;
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::downgrade_request::DowngradeAction;
use revd_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DowngradeInfo, DowngradeRequest,
    DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    StatusRequest, StatusResponse,
};
use serde_json::json;

use crate::api::call::{Credentials, Message, decoded};
use crate::api::context::ServiceContext;
use crate::limits;
use crate::observe::log;
use crate::queues::turn::give_way;
use crate::version;

/// Edge view.
#[derive(Debug)]
pub(super) struct Maintenance {
    context: Rc<ServiceContext>,
}

impl Maintenance {
    pub(super) fn new(context: &Rc<ServiceContext>) -> Self {
        Self { context: Rc::clone(context) }
    }

    /// The status of this member; works without a leader.
    pub(super) fn status(&self, message: Bytes) -> Result<Message, Error> {
        decoded(StatusRequest::decode(message))?;
        let view = self.context.views.load();
        let (sizes, versions) = (view.sizes(), schema::versions(view.tables()));
        let leader = self.context.status.leader.load();
        let no_leader = (leader == 0).then(|| Error::NoLeader.to_string()).into_iter();
        let response = StatusResponse {
            header: None,
            version: version::ETCD.to_owned(),
            db_size: sizes.file.cast_signed(),
            leader,
            raft_index: self.context.status.committed.load(),
            raft_term: self.context.status.term.load(),
            raft_applied_index: view.applied().index,
            errors: no_leader.chain(schema::alarms(view.tables()).map(|alarm| shown(&alarm))).collect(),
            db_size_in_use: sizes.in_use.cast_signed(),
            is_learner: self.context.status.is_learner.load(),
            storage_version: versions.cluster.map_or_else(String::new, |it| it.of_storage().with_patch()),
            db_size_quota: self.context.quota_bytes,
            downgrade_info: Some(DowngradeInfo {
                enabled: versions.downgrade.is_some(),
                target_version: versions.downgrade.map_or_else(String::new, ClusterVersion::with_patch),
            }),
        };
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }

    /// Gives space back to the file system, while serving; answers when that is done. As with
    /// etcd, the reply has no header.
    pub(super) async fn defragment(
        &self,
        caller: &Caller,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        decoded(DefragmentRequest::decode(message))?;
        self.check_newest_known(credentials).await?;
        self.context.ask(caller, LocalKind::Defragment, true).await?;
        Ok(Message::new())
    }

    /// Whether a caller is root, by what is newest; by what this member knows where there is no
    /// leader who could tell: it may be looked after then, too.
    async fn check_newest_known(&self, credentials: &Credentials) -> Result<(), Error> {
        if self.context.leader() != 0 && self.context.wait_to_read(false).await.is_err() {
            log::warn("whether rights are needed is judged by what this member knows", json!({}));
        }
        let view = self.context.views.load();
        self.context.check(&self.context.caller_after_wait(credentials), &Wants::Root, &view)
    }

    /// Another voter leads from now on. As with etcd, the reply has no header.
    pub(super) async fn move_leader(
        &self,
        caller: &Caller,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let to = decoded(MoveLeaderRequest::decode(message))?.target_id;
        if self.context.leads() {
            self.context.check_newest(credentials, &Wants::Root).await?;
        }
        self.context.ask(caller, LocalKind::MoveLeader { to }, true).await?;
        Ok(Message::new())
    }

    /// Asks whether the cluster may go down to an older version, has it do so, or has it stay.
    pub(super) async fn downgrade(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let request = decoded(DowngradeRequest::decode(message))?;
        let action = DowngradeAction::try_from(request.action).map_err(|_| Error::UnknownDowngradeAction)?;
        if action == DowngradeAction::Cancel {
            // An answer says that it is done: somebody has to be able to say whether it may be.
            let view = self.context.check_newest(credentials, &Wants::Root).await?;
            if let Err(error) = self.cancel_downgrade(&view).await {
                // As etcd, which only logs why it could not.
                log::warn("failed to cancel downgrade", json!({"error": error.to_string()}));
            }
        } else {
            let target = downgrade_target(&request.version)?;
            let view = self.context.check_newest(credentials, &Wants::Root).await?;
            schema::versions(view.tables()).may_go_down(target)?;
            if action == DowngradeAction::Enable {
                self.context.propose(Kind::Downgrade, target.with_patch().into()).await?;
            }
        }
        let view = self.context.views.load();
        let version = schema::versions(view.tables()).cluster;
        let version = version.map_or_else(String::new, |version| version.to_string());
        let response = DowngradeResponse { header: None, version };
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }

    async fn cancel_downgrade(&self, view: &View) -> Result<(), Error> {
        schema::versions(view.tables()).downgrade.ok_or(Error::NoDowngrade)?;
        self.context.propose(Kind::Downgrade, Bytes::new()).await?;
        Ok(())
    }

    /// One number for everything that members have in common: keys and tables. For tests, as etcd
    /// says of it; the number is not etcd's, since etcd hashes its own file's layout.
    pub(super) async fn hash(&self, message: Bytes) -> Result<Message, Error> {
        decoded(HashRequest::decode(message))?;
        let view = self.context.views.load();
        let mut crc = crc32fast::Hasher::new();
        crc.update(&hashed(&view, view.revision()).await?.hash.to_le_bytes());
        schema::members(view.tables()).for_each(|member| crc.update(&member.encode_to_vec()));
        schema::alarms(view.tables()).for_each(|alarm| crc.update(&alarm.encode_to_vec()));
        let response = HashResponse { header: None, hash: crc.finalize() };
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }

    /// One number for the whole key space up to a revision.
    pub(super) async fn hash_kv(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(HashKvRequest::decode(message))?;
        let view = self.context.views.load();
        let hashed = hashed(&view, request.revision).await?;
        let response = HashKvResponse {
            header: None,
            hash: hashed.hash,
            compact_revision: hashed.compact_revision,
            hash_revision: hashed.revision,
        };
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }

    /// Lists, raises or clears alarms.
    pub(super) async fn alarm(
        &self,
        caller: &Caller,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let request = decoded(AlarmRequest::decode(message.clone()))?;
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.context.check_now(caller, &Wants::Login).await?,
            Ok(AlarmAction::Activate | AlarmAction::Deactivate) => {
                self.context.check_now(caller, &Wants::Root).await?;
                return self.context.submit(caller, Kind::Alarm, message, false).await;
            }
            Err(_) => return Err(Error::UnknownAlarmAction(request.action)),
        }
        let view = self.context.check_newest(credentials, &Wants::Login).await?;
        // As in etcd, of any member.
        let is_wanted = |alarm: &AlarmMember| request.alarm == 0 || alarm.alarm == request.alarm;
        let alarms = schema::alarms(view.tables()).filter(is_wanted).collect();
        let response = AlarmResponse { header: None, alarms };
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }
}

impl ServiceContext {
    /// Has the whole cluster know that this member is corrupt.
    ///
    /// # Errors
    /// When that is not known to be applied.
    pub async fn raise_corrupt(&self, member: u64) -> Result<(), Error> {
        if corrupt_members(self.views.load().tables()).contains(&member) {
            return Ok(());
        }
        self.propose(Kind::Corrupt, raise_corrupt(member)).await.map(drop)
    }
}

/// HashKV in turns, letting others of this core go on in between.
///
/// # Errors
/// [`Error::Compacted`] and [`Error::FutureRevision`]; when the tree file is damaged.
pub async fn hashed(view: &View, revision: i64) -> Result<Hashed, Error> {
    let mut run = HashKv::new(view.clone(), revision)?;
    loop {
        if let Some(hashed) = run.step(limits::HASH_RECORDS_PER_TURN)? {
            return Ok(hashed);
        }
        give_way().await;
    }
}

/// An alarm as etcd words it: by its name, if it has one. Between the two parts Go's library puts
/// one space or two, as each build of etcd has it.
fn shown(alarm: &AlarmMember) -> String {
    let kind = match AlarmType::try_from(alarm.alarm) {
        Ok(kind) => format!("alarm:{}", kind.as_str_name()),
        Err(_) => format!("alarm:{}", alarm.alarm),
    };
    if alarm.member_id == 0 { kind } else { format!("memberID:{} {kind}", alarm.member_id) }
}
