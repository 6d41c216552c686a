//! The files of a member, which outlive its crashes, and its start from them by the shipped
//! recovery.

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{CheckpointKind, Store};
use revd_member::boot::recovery::{RecoveryEffects, Refusal};
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::membership::Member;
use revd_member::schema;
use revd_member::wal::birth::{BIRTH, empty_log, joining_log};
use revd_member::wal::reader::{LogEnd, RecoveredLog};
use revd_member::wal::{FrameContent, LogRestart};

/// All members are of this one.
pub(crate) const CLUSTER: u64 = 1;

/// Durable.
pub(crate) struct Files {
    owner: Identity,
    pub(crate) disk: SimDisk,
    /// A state that another member has sent, whole.
    pub(crate) received: Option<SimDisk>,
    /// None before the first frame.
    pub(crate) log: Option<RecoveredLog>,
}

/// The row of a member as it is begun with, or added.
pub(crate) fn row(id: u64, name: &str, is_learner: bool) -> Member {
    let peer_ur_ls = vec![format!("http://m{id}:2380")];
    Member { id, name: name.to_owned(), peer_ur_ls, is_learner, ..Member::default() }
}

impl Files {
    /// Those of a member of a new cluster, whose members are `1..=members`.
    pub(crate) fn of_new_cluster(member: u64, members: u64) -> Self {
        let mut files = Self::empty(member);
        let mut store = open(&files.disk);
        for id in 1..=members {
            schema::put_member(&mut store, &row(id, &format!("m{id}"), false));
        }
        schema::put_conf_state(&mut store, &ConfState::of_voters((1..=members).collect()));
        store.set_applied(BIRTH);
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        store.finish_checkpoint(written);
        files.log = Some(empty_log(files.owner));
        files
    }

    /// None: the member is to join.
    pub(crate) fn empty(member: u64) -> Self {
        let owner = Identity { cluster: CLUSTER, member };
        Self { owner, disk: SimDisk::new(), received: None, log: None }
    }

    /// The frame replaces entries of the log from its first one on.
    pub(crate) fn write(&mut self, frame: FrameContent) {
        let FrameContent { restart, hard_state, entries } = frame;
        let log = self.log.get_or_insert_with(|| joining_log(self.owner));
        if let Some(LogRestart { index, term }) = restart {
            log.entries.clear();
            log.base = (index, term);
        }
        if let Some(state) = hard_state {
            log.hard_state = state;
        }
        if let Some(first) = entries.first() {
            log.entries.retain(|entry| entry.index < first.index);
            let last = log.entries.back().map_or(log.base.0, |entry| entry.index);
            assert_eq!(last + 1, first.index, "a gap in the log of member {}", self.owner.member);
        }
        log.entries.extend(entries);
    }

    pub(crate) fn release(&mut self, index: u64) {
        let Some(log) = &mut self.log else { return };
        while let Some(entry) = log.entries.pop_front_if(|entry| entry.index <= index) {
            log.base = (entry.index, entry.term);
        }
    }

    /// It has begun to join, and has no state: a start waits until another member answers.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.base.0 == 0)
    }

    /// The last entry of the log.
    pub(crate) fn last(&self) -> u64 {
        let last = |log: &RecoveredLog| log.entries.back().map_or(log.base.0, |entry| entry.index);
        self.log.as_ref().map_or(0, last)
    }

    /// Whether the member has given its vote in this term to that one, or may have: it has
    /// forgotten, for a later term.
    pub(crate) fn may_have_voted(&self, term: u64, candidate: u64) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let state = log.hard_state;
            state.term > term || state.term == term && state.vote == candidate
        })
    }
}

pub(crate) fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
}

/// A start.
pub(crate) struct Starting<'f> {
    pub(crate) files: &'f mut Files,
    /// The answer of another member about the cluster.
    pub(crate) remote: Option<RemoteCluster>,
}

impl Starting<'_> {
    /// The flags that go with that answer.
    pub(crate) fn initial(&self) -> InitialCluster {
        let name = |member: u64| format!("m{member}");
        let members = self.remote.iter().flat_map(|remote| &remote.members);
        let own = self.files.owner.member;
        let place = (name(own), row(own, "", false).peer_ur_ls);
        let members = members.map(|member| (name(member.id), member.peer_ur_ls.clone()));
        let members = std::iter::once(place).chain(members).collect();
        InitialCluster { name: name(own), members, advertised: Vec::new(), ..InitialCluster::default() }
    }
}

impl RecoveryEffects for Starting<'_> {
    type Error = Refusal;

    fn lock(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        false
    }

    fn make_directories(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn open_store(&mut self) -> Result<Store, Refusal> {
        Ok(open(&self.files.disk))
    }

    fn remove_leftovers(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn read_log(&mut self, applied: u64) -> Result<Option<RecoveredLog>, Refusal> {
        let mut log = self.files.log.clone();
        log.iter_mut().for_each(|log| log.forget_applied(applied));
        Ok(log)
    }

    fn open_received(&mut self) -> Result<Option<Store>, Refusal> {
        Ok(self.files.received.as_ref().map(open))
    }

    fn install_received(&mut self) -> Result<(), Refusal> {
        self.files.disk = self.files.received.take().expect("it was opened");
        Ok(())
    }

    fn forget_received(&mut self) -> Result<(), Refusal> {
        self.files.received = None;
        Ok(())
    }

    fn ask_others(&mut self, _initial: &InitialCluster) -> Option<RemoteCluster> {
        self.remote.clone()
    }

    fn wait_for_others(&mut self) {
        unreachable!("the simulation starts it again when another one answers");
    }

    fn resolve(&mut self, _host: &str) -> Option<String> {
        None
    }

    fn sync_tree(&mut self, _store: &mut Store) -> Result<(), Refusal> {
        Ok(())
    }

    fn give_back_unused(&mut self, _end: &LogEnd) -> Result<(), Refusal> {
        Ok(())
    }

    fn fill_reserve(&mut self) {}

    fn refused(&self, refusal: Refusal) -> Refusal {
        refusal
    }
}
