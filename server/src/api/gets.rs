//! Gets that wait for nothing: answered where they come in, without memory for a call under way.

use bytes::Bytes;
use prost::Message as _;
use revd_member::auth::{Caller, Wants};
use revd_member::budget::Share;
use revd_member::read::one;
use revd_proto::etcdserverpb::RangeRequest;

use crate::api::Api;
use crate::api::call::{Message, Metadata};
use crate::api::context::ServiceContext;
use crate::api::method::Unary;
use crate::api::validate;

impl Api {
    /// The reply to a get that this member may read now, if there is room for it; none for every
    /// other call, whatever becomes of that: nothing has happened then, and it is carried out as
    /// any. A call that may be long is not decoded for this.
    #[must_use]
    pub fn answer_at_once(
        &self,
        method: Unary,
        metadata: &Metadata,
        message: &Bytes,
        is_long: bool,
        replies: &Share,
    ) -> Option<Message> {
        if method != Unary::Range || is_long {
            return None;
        }
        let context = &*self.context;
        let request = RangeRequest::decode(message.clone()).ok()?;
        let waits = !request.serializable && !context.reads_alone();
        if waits || !one::is_plain(&request) || validate::range(&request).is_err() {
            return None;
        }
        context.admit(metadata, true, |reads| reads || request.serializable, false).ok()?;
        let reply = context.get(|| context.caller_of_get(metadata), &request, replies)?;
        context.count_call(method as usize).end(0);
        Some(reply)
    }
}

impl ServiceContext {
    /// The caller of a get that may have a limit of calls is not known here.
    fn caller_of_get(&self, metadata: &Metadata) -> Option<Caller> {
        if !self.auth.limits.is_empty() {
            return None;
        }
        if !self.needs_rights() {
            return Some(Caller::Nobody);
        }
        self.identify_now(&metadata.caller).ok()
    }

    /// The reply to a plain get; none if it is refused, or there is no room for it now. Its caller
    /// is found behind the View: one whose token ends in between may not read a newer one.
    pub(super) fn get(
        &self,
        caller: impl FnOnce() -> Option<Caller>,
        request: &RangeRequest,
        replies: &Share,
    ) -> Option<Message> {
        let wants = Wants::Read { key: &request.key, range_end: b"" };
        self.views.look(|view| {
            self.check_read(&caller()?, &wants, view).ok()?;
            let found = one::find(request, &view.reader()).ok()?;
            let put = |out: &mut Vec<u8>| found.put(out);
            found.fits(replies).then(|| self.short_reply(view.revision(), found.bytes(), put))
        })
    }
}
