//! An onlooker beside requests that are made of revd: it sees all that root may see, and a watcher
//! of every key. A request that is refused has changed none of it, and is no event.

use std::ops::RangeInclusive;

use bytes::Bytes;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, HashKvResponse, LeaseGrantRequest, PutRequest, WatchCreateRequest,
};
use tonic::Code;

use super::bugs::{must, set_up};
use super::generator::{Compared, LEASES};
use super::watchers::{Watch, open};
use super::{Answer, FLAGS, answer, call};
use crate::harness::{Client, with_server};

/// The keys, by their hash, and the users and roles, by how often they were changed.
#[derive(Debug, Clone, PartialEq)]
struct State {
    keys: HashKvResponse,
    users: Answer,
}

/// The rest of what there is.
#[derive(Debug, PartialEq)]
struct Lists {
    leases: Answer,
    members: Answer,
    alarms: Answer,
}

/// One that looks on, with root's rights.
pub(super) struct Onlooker {
    client: Client,
    root: String,
    watch: Watch,
    state: State,
    lists: Lists,
    /// Revisions of requests that were carried out since the last look at events.
    made: Vec<RangeInclusive<i64>>,
    are_all_refused: bool,
}

async fn show(client: &Client, root: &str, path: &'static str, compared: Compared) -> Answer {
    let shown = answer(call(client, path, Bytes::new(), Some(root)).await, compared);
    assert!(matches!(shown, Answer::Reply { .. }), "{path}: {shown:?}");
    shown
}

impl State {
    async fn of(client: &Client, root: &str) -> Self {
        let (keys, users) = tokio::join!(
            client.hash_of_keys(Some(root)),
            show(client, root, "/etcdserverpb.Auth/AuthStatus", Compared::Whole),
        );
        Self { keys: HashKvResponse { header: None, ..keys }, users }
    }

    fn revision(&self) -> i64 {
        self.keys.hash_revision
    }
}

impl Lists {
    async fn of(client: &Client, root: &str) -> Self {
        let (leases, members, alarms) = tokio::join!(
            show(client, root, LEASES, Compared::Leases),
            show(client, root, "/etcdserverpb.Cluster/MemberList", Compared::Whole),
            show(client, root, "/etcdserverpb.Maintenance/Alarm", Compared::Whole),
        );
        Self { leases, members, alarms }
    }
}

impl Onlooker {
    pub(super) async fn new(client: &Client, root: &str) -> Self {
        let all = || Bytes::from_static(b"\0");
        let create = WatchCreateRequest { key: all(), range_end: all(), ..WatchCreateRequest::default() };
        let watch = open(client, &create, Some(root)).await.expect("root may watch everything");
        let (state, lists) = tokio::join!(State::of(client, root), Lists::of(client, root));
        let (client, root) = (client.clone(), root.to_owned());
        Self { client, root, watch, state, lists, made: Vec::new(), are_all_refused: true }
    }

    /// Other requests were made meanwhile: the next ones begin with what there is now.
    pub(super) async fn begin(&mut self) {
        self.state = State::of(&self.client, &self.root).await;
        self.lists = Lists::of(&self.client, &self.root).await;
        self.watch.read_to(self.state.revision()).await;
        self.watch.told.clear();
        self.made.clear();
        self.are_all_refused = true;
    }

    /// A request was answered: one that was refused has changed neither keys, nor users, nor roles.
    ///
    /// # Errors
    /// The state before and behind one that has.
    pub(super) async fn look(&mut self, said: &Answer) -> Result<(), String> {
        let now = State::of(&self.client, &self.root).await;
        let before = std::mem::replace(&mut self.state, now);
        if matches!(said, Answer::Refused(..)) {
            let is_same = before == self.state;
            return if is_same { Ok(()) } else { Err(format!("{before:?}, now {:?}", self.state)) };
        }
        self.are_all_refused = false;
        self.made.push(before.revision() + 1..=self.state.revision());
        Ok(())
    }

    /// The last of some requests was answered: each event is one of a request that was carried out,
    /// and if all were refused the leases, members and alarms are those of before. Says whether all
    /// were.
    ///
    /// # Errors
    /// An event of none, or the lists before and behind.
    pub(super) async fn end(&mut self) -> Result<bool, String> {
        self.watch.read_to(self.state.revision()).await;
        let made = std::mem::take(&mut self.made);
        for event in std::mem::take(&mut self.watch.told) {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            if !made.iter().any(|made| made.contains(&revision)) {
                return Err(format!("{event:?} is of none that was carried out, {made:?}"));
            }
        }
        let now = Lists::of(&self.client, &self.root).await;
        if self.are_all_refused && now != self.lists {
            return Err(format!("{:?}, now {now:?}", self.lists));
        }
        Ok(self.are_all_refused)
    }
}

/// Requests that are said to be refused, and were carried out.
#[test]
fn an_onlooker_notices_what_a_refused_request_has_done() {
    with_server(&FLAGS, async |_, client| {
        let (root, _) = set_up(client).await;
        let mut onlooker = Onlooker::new(client, &root).await;
        let refused = Answer::Refused(Code::PermissionDenied, String::new());
        let reply = Answer::Reply { revision: 0, body: Bytes::new() };
        onlooker.begin().await;
        assert_eq!((onlooker.look(&refused).await, onlooker.end().await), (Ok(()), Ok(true)));
        let put = PutRequest { key: "x".into(), value: "1".into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        assert!(onlooker.look(&refused).await.is_err() && onlooker.end().await.is_err(), "a key, an event");
        onlooker.begin().await;
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        assert_eq!((onlooker.look(&reply).await, onlooker.end().await), (Ok(()), Ok(false)));
        onlooker.begin().await;
        let role = AuthRoleAddRequest { name: "another".to_owned() };
        must(client, "/etcdserverpb.Auth/RoleAdd", &role, Some(&root)).await;
        assert!(onlooker.look(&refused).await.is_err(), "a role");
        onlooker.begin().await;
        let grant = LeaseGrantRequest { id: 77, ttl: 10_000 };
        must(client, "/etcdserverpb.Lease/LeaseGrant", &grant, Some(&root)).await;
        assert!(onlooker.look(&refused).await.is_ok() && onlooker.end().await.is_err(), "a lease");
    });
}
