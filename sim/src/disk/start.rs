//! A start: the files that recovery finds, and what it does to them.

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::Disk;
use revd_engine::mvcc::Store;
use revd_member::boot::received_files::{self, RECEIVED, RECEIVING, TREE};
use revd_member::boot::recovery::{RecoveryEffects, Refusal};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::files::Files as _;
use revd_member::wal::reader::{LogEnd, RecoveredLog};
use revd_member::wal::segment_files;

use crate::disk::contents::RESERVE_BYTES;
use crate::disk::directory::Directory;
use crate::disk::image::{Change, Folder};
use crate::disk::names::FolderFiles;

/// Pages so small that few keys make a deep tree.
pub const PAGES: DbOptions = DbOptions { page_bytes_if_new: 512 };

/// Why a member does not start.
#[derive(Debug)]
pub enum StartError {
    /// Recovery itself refuses.
    Refused(Refusal),
    /// A file is damaged, by rot or by a sync that lied, or the disk fails.
    Damaged(String),
    /// No other member has answered one that goes on with joining: it is started again later.
    NoAnswer,
}

impl std::fmt::Display for StartError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(out, "{refusal:?}"),
            Self::Damaged(what) => out.write_str(what),
            Self::NoAnswer => out.write_str("no other member has answered"),
        }
    }
}

/// Effects of a start, as the server carries them out.
pub struct Recovering<'d> {
    directory: &'d Directory,
    member: FolderFiles,
    log: FolderFiles,
    ask_others: &'d mut dyn FnMut(&InitialCluster) -> Option<RemoteCluster>,
    has_no_answer: bool,
}

impl Directory {
    /// Effects of a start; `ask_others` answers for the other members. It costs no virtual time but
    /// in a [`Directory::job`].
    pub fn recovery<'d>(
        &'d self,
        ask_others: &'d mut dyn FnMut(&InitialCluster) -> Option<RemoteCluster>,
    ) -> Recovering<'d> {
        let (member, log) = (FolderFiles::new(self, Folder::Member), FolderFiles::new(self, Folder::Log));
        Recovering { directory: self, member, log, ask_others, has_no_answer: false }
    }

    /// `receiving.tmp`, made new.
    ///
    /// # Errors
    /// When the disk has no room for so many bytes beside the reserve, or has failed.
    pub fn begin_receiving(&self, bytes: u64) -> Result<Arc<dyn Disk>, String> {
        let files = FolderFiles::new(self, Folder::Member);
        received_files::forget(&files).map_err(|error| error.to_string())?;
        if !self.has_room(bytes) {
            return Err(format!("the disk has no room for {bytes} bytes"));
        }
        files.open(RECEIVING).map_err(|error| error.to_string())
    }

    /// Whether the disk has room for so many bytes beside the reserve.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.contents().room() >= bytes.saturating_add(RESERVE_BYTES as u64)
    }

    /// `receiving.tmp` becomes `received.revd`.
    ///
    /// # Errors
    /// When the disk has failed.
    pub fn keep_received(&self) -> Result<(), String> {
        received_files::keep(&FolderFiles::new(self, Folder::Member)).map_err(|error| error.to_string())
    }

    /// `received.revd`, to open it.
    ///
    /// # Errors
    /// When it is not there, and the disk has failed.
    pub fn received(&self) -> Result<Arc<dyn Disk>, String> {
        FolderFiles::new(self, Folder::Member).open(RECEIVED).map_err(|error| error.to_string())
    }

    /// `received.revd` becomes the tree file.
    ///
    /// # Errors
    /// When the disk has failed.
    pub fn install_received(&self) -> Result<(), String> {
        received_files::install(&FolderFiles::new(self, Folder::Member)).map_err(|error| error.to_string())
    }

    /// Both files of received states are removed.
    ///
    /// # Errors
    /// When the disk has failed.
    pub fn forget_received(&self) -> Result<(), String> {
        received_files::forget(&FolderFiles::new(self, Folder::Member)).map_err(|error| error.to_string())
    }
}

impl Recovering<'_> {
    fn open(&self, name: &str) -> Result<Store, StartError> {
        let failed = |error: String| StartError::Damaged(format!("opening data/member/{name}: {error}"));
        let disk = self.member.open(name).map_err(|error| failed(error.to_string()))?;
        Store::open(disk, PAGES).map_err(|error| failed(error.to_string()))
    }
}

fn files(result: std::io::Result<()>) -> Result<(), StartError> {
    result.map_err(|error| StartError::Damaged(error.to_string()))
}

impl RecoveryEffects for Recovering<'_> {
    type Error = StartError;

    fn lock(&mut self) -> Result<(), StartError> {
        let is_locked = &mut self.directory.contents().is_locked;
        assert!(!std::mem::replace(is_locked, true), "two processes use a directory");
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        false
    }

    fn make_directories(&mut self) -> Result<(), StartError> {
        let data = FolderFiles::new(self.directory, Folder::Data);
        for name in ["member", "wal"] {
            if !data.has(name) {
                let file = self.directory.contents().new_file();
                files(data.change(Change::Make { folder: Folder::Data, name: name.to_owned(), file }))?;
            }
        }
        files(data.sync())
    }

    fn open_store(&mut self) -> Result<Store, StartError> {
        self.open(TREE)
    }

    fn remove_leftovers(&mut self) -> Result<(), StartError> {
        files(segment_files::remove_leftovers(&self.log))
    }

    fn read_log(&mut self, applied: u64) -> Result<Option<RecoveredLog>, StartError> {
        segment_files::read(&self.log, applied).map_err(|error| StartError::Damaged(error.to_string()))
    }

    fn open_received(&mut self) -> Result<Option<Store>, StartError> {
        self.member.has(RECEIVED).then(|| self.open(RECEIVED)).transpose()
    }

    fn install_received(&mut self) -> Result<(), StartError> {
        files(received_files::install(&self.member))
    }

    fn forget_received(&mut self) -> Result<(), StartError> {
        files(received_files::forget(&self.member))
    }

    fn ask_others(&mut self, initial: &InitialCluster) -> Option<RemoteCluster> {
        // It does not wait in a job: the answer of another cluster ends the start.
        let foreign = RemoteCluster { id: u64::MAX, members: Vec::new(), versions: Vec::new() };
        if self.has_no_answer { Some(foreign) } else { (self.ask_others)(initial) }
    }

    fn wait_for_others(&mut self) {
        self.has_no_answer = true;
    }

    fn resolve(&mut self, _host: &str) -> Option<String> {
        None
    }

    fn sync_tree(&mut self, store: &mut Store) -> Result<(), StartError> {
        store.make_durable().map_err(|error| StartError::Damaged(error.to_string()))?;
        files(self.member.sync())
    }

    fn give_back_unused(&mut self, end: &LogEnd) -> Result<(), StartError> {
        files(segment_files::give_back_unused(&self.log, end))
    }

    fn fill_reserve(&mut self) {
        // A member goes on without it.
        self.directory.fill_reserve();
    }

    fn refused(&self, refusal: Refusal) -> StartError {
        if self.has_no_answer { StartError::NoAnswer } else { StartError::Refused(refusal) }
    }
}
