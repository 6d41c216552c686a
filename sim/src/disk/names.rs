//! One folder of the directory by names, and a file of it as the engine has it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use revd_engine::disk::{Disk, Map};
use revd_member::files::Files;

use crate::disk::directory::Directory;
use crate::disk::image::{Change, FileNumber, Folder};

/// A folder, for the process that opened it.
#[derive(Clone)]
pub(super) struct FolderFiles {
    pub(super) directory: Directory,
    process: u64,
    folder: Folder,
}

impl FolderFiles {
    pub(super) fn new(directory: &Directory, folder: Folder) -> Self {
        let process = directory.contents().process;
        Self { directory: directory.clone(), process, folder }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.directory.contents().process != self.process
    }

    pub(super) fn change(&self, change: Change) -> io::Result<()> {
        self.directory.contents().change(self.process, change)
    }

    fn file(&self, name: &str) -> io::Result<FileNumber> {
        let file = self.directory.contents().live.file(self.folder, name);
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file(name).is_ok()
    }

    /// Opens a file, or makes an empty one.
    pub(super) fn open(&self, name: &str) -> io::Result<Arc<dyn Disk>> {
        let number = match self.file(name) {
            Ok(number) => number,
            Err(_) => self.directory.contents().make(self.process, self.folder, name)?,
        };
        let name = format!("{}/{name}", self.folder.path());
        Ok(Arc::new(File { files: self.clone(), number, name }))
    }
}

impl Files for FolderFiles {
    fn path(&self) -> &Path {
        Path::new(self.folder.path())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let contents = self.directory.contents();
        let own = contents.live.names.keys().filter(|(folder, _)| *folder == self.folder);
        Ok(own.map(|(_, name)| name.clone()).collect())
    }

    fn len(&self, name: &str) -> Option<u64> {
        let number = self.file(name).ok()?;
        Some(self.directory.contents().live.len(number) as u64)
    }

    fn write_zeros(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = self.directory.contents().make(self.process, self.folder, name)?;
        let bytes = usize::try_from(bytes).expect("a simulated file fits memory");
        self.change(Change::SetLen { file, bytes })?;
        self.change(Change::Sync { file })
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        self.change(Change::Sync { file })?;
        let mut contents = self.directory.contents();
        let bytes = contents.live.read(file, 0..contents.live.len(file)).unwrap_or_default();
        contents.land_late();
        Ok(bytes.into())
    }

    fn cut(&self, name: &str, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).expect("a simulated file fits memory");
        self.change(Change::SetLen { file: self.file(name)?, bytes })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.file(from)?;
        self.change(Change::Rename { folder: self.folder, from: from.to_owned(), to: to.to_owned() })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.file(name)?;
        self.change(Change::Remove { folder: self.folder, name: name.to_owned() })
    }

    fn sync(&self) -> io::Result<()> {
        self.change(Change::SyncNames { folder: self.folder })
    }
}

/// A file that is open, whatever its name is now.
struct File {
    files: FolderFiles,
    number: FileNumber,
    /// The name that it was opened by, for errors.
    name: String,
}

impl File {
    fn change(&self, what: &str, change: Change) -> revd_engine::Result<()> {
        self.files.change(change).map_err(|error| self.error(what, error))
    }

    fn error(&self, what: &str, error: io::Error) -> revd_engine::Error {
        let (what, source) = (format!("{what} {}", self.name), Arc::new(error));
        if revd_member::files::is_no_space(&source) {
            return revd_engine::Error::NoSpace { what, source };
        }
        revd_engine::Error::Io { what, source }
    }
}

impl Disk for File {
    fn file_len(&self) -> revd_engine::Result<u64> {
        Ok(self.files.directory.contents().live.len(self.number) as u64)
    }

    fn set_len(&self, len: u64) -> revd_engine::Result<()> {
        let bytes = usize::try_from(len).expect("a simulated file fits memory");
        self.change("resizing", Change::SetLen { file: self.number, bytes })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> revd_engine::Result<()> {
        let offset = usize::try_from(offset).expect("a simulated file fits memory");
        let bytes = Bytes::copy_from_slice(bytes);
        self.change("writing", Change::Write { file: self.number, offset, bytes })
    }

    fn sync(&self) -> revd_engine::Result<()> {
        self.change("syncing", Change::Sync { file: self.number })
    }

    fn map(&self) -> revd_engine::Result<Map> {
        Ok(Map::new(self.files.directory.contents().live.map(self.number)))
    }
}
