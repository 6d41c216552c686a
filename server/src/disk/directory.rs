//! A directory of the file system, for `revd_member::files`. Calls block.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use revd_member::files::Files;

use crate::limits;

/// A directory by its path.
#[derive(Debug, Clone)]
pub struct DirFiles(PathBuf);

impl DirFiles {
    /// This one.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The path of a file.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Files for DirFiles {
    fn path(&self) -> &Path {
        &self.0
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.0)?.map(|file| Ok(file?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    }

    fn len(&self, name: &str) -> Option<u64> {
        std::fs::metadata(self.file(name)).map(|data| data.len()).ok()
    }

    fn write_zeros(&self, name: &str, bytes: u64) -> io::Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        // Another process that was told this directory by mistake may have the file open that lies
        // there, and make a segment of it.
        let _ = std::fs::remove_file(self.file(name));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file(name))?;
        let zeros = vec![0; limits::PREPARED_BYTES_PER_WRITE];
        let mut left = bytes;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(zeros.len()).min(zeros.len());
            file.write_all(&zeros[..part])?;
            left -= part as u64;
        }
        file.sync_all()
    }

    /// Bytes that the process before was writing when it ended may stand in a cache only, its own
    /// or the disk's.
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        use std::io::Read as _;
        let mut file = File::open(self.file(name))?;
        file.sync_all()?;
        // Only advice: where it is not taken, the pages are read as they are.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // It is in memory twice now, and is read from here on past the cache, if ever.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(bytes)
    }

    fn cut(&self, name: &str, bytes: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.file(name))?.set_len(bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.file(from), self.file(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.file(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}
