//! Room for what a request would store, looked at before anything else, as etcd does.

use std::sync::Arc;

use prost::Message as _;
use revd_member::apply::alarm::Raised;
use revd_member::apply::command::Kind;
use revd_member::apply::gates::fits;
use revd_member::error::Error;
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{AlarmRequest, AlarmType};

use crate::api::context::ServiceContext;
use crate::disk::reserve::Reserve;

impl ServiceContext {
    /// Refuses what does not fit any more, and has the whole cluster know.
    ///
    /// # Errors
    /// [`Error::NoSpace`]
    pub(super) async fn check_quota(&self, cost: i64) -> Result<(), Error> {
        if self.has_quota(cost) { Ok(()) } else { Err(self.no_space().await) }
    }

    /// Whether a write that costs so much has room.
    pub(super) fn has_quota(&self, cost: i64) -> bool {
        // No View is held: every put comes here, and the alarm may have to wait.
        let in_use = self.views.look(|view| view.sizes().in_use);
        let is_full = self.reserve.is_full() && cost > 0;
        !is_full && fits(self.quota_bytes, in_use, cost)
    }

    /// The answer to a write that has no room, when the cluster knows of it.
    pub(super) async fn no_space(&self) -> Error {
        self.raise_no_space().await;
        Error::NoSpace
    }

    /// On a full disk, has the whole cluster know, and returns what has to be filled again.
    pub async fn look_at_disk(&self) -> Option<Arc<Reserve>> {
        if !self.reserve.is_full() {
            return None;
        }
        self.raise_no_space().await;
        Some(Arc::clone(&self.reserve))
    }

    /// Raises the alarm of this member, unless it is raised already. If that fails, the next one
    /// who finds no space tries again.
    pub(super) async fn raise_no_space(&self) {
        if self.views.look(|view| Raised::of(view.tables()).no_space) {
            return;
        }
        let alarm = AlarmRequest {
            action: AlarmAction::Activate as i32,
            member_id: self.identity.member,
            alarm: AlarmType::Nospace as i32,
        };
        let _ = self.propose(Kind::Alarm, alarm.encode_to_vec().into()).await;
    }
}
