//! Bytes of files and their names, and the changes of both.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::file_bytes::FileBytes;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// A folder of the data directory. Changes of the names of one are kept in their order; folders
/// know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folder {
    /// The data directory itself.
    Data,
    /// `member/`
    Member,
    /// `member/wal/`
    Log,
}

impl Folder {
    /// Its path.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Member => "data/member",
            Self::Log => "data/member/wal",
        }
    }
}

/// A file by the number that it has on its disk, whatever its names are.
pub(super) type FileNumber = usize;

/// A change that a process asks for.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { file: FileNumber, offset: usize, bytes: Bytes },
    SetLen { file: FileNumber, bytes: usize },
    Sync { file: FileNumber },
    Make { folder: Folder, name: String, file: FileNumber },
    Rename { folder: Folder, from: String, to: String },
    Remove { folder: Folder, name: String },
    SyncNames { folder: Folder },
}

/// The object of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    File(FileNumber),
    Names(Folder),
}

impl Change {
    pub(super) fn target(&self) -> Target {
        match self {
            Self::Write { file, .. } | Self::SetLen { file, .. } | Self::Sync { file } => Target::File(*file),
            Self::Make { folder, .. }
            | Self::Rename { folder, .. }
            | Self::Remove { folder, .. }
            | Self::SyncNames { folder } => Target::Names(*folder),
        }
    }

    pub(super) fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. } | Self::SyncNames { .. })
    }
}

/// All bytes and names. Clones share the bytes until one changes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    pub(super) names: BTreeMap<(Folder, String), FileNumber>,
    pub(super) files: BTreeMap<FileNumber, FileBytes>,
}

impl Image {
    pub(super) fn file(&self, folder: Folder, name: &str) -> Option<FileNumber> {
        self.names.get(&(folder, name.to_owned())).copied()
    }

    /// A map of a file.
    pub(super) fn map(&mut self, file: FileNumber) -> Arc<Vec<u8>> {
        self.files.get_mut(&file).map(FileBytes::share).unwrap_or_default()
    }

    /// A copy of a part of a file, if all of it is there.
    pub(super) fn read(&self, file: FileNumber, place: Range<usize>) -> Option<Bytes> {
        self.files.get(&file)?.read(place)
    }

    /// Whether a file has the same bytes in another image.
    pub(super) fn has_equal(&self, file: FileNumber, other: &Self) -> bool {
        match (self.files.get(&file), other.files.get(&file)) {
            (Some(own), Some(others)) => own.is_equal(others),
            (own, others) => own.or(others).is_none_or(|file| file.len() == 0),
        }
    }

    pub(super) fn len(&self, file: FileNumber) -> usize {
        self.files.get(&file).map_or(0, FileBytes::len)
    }

    /// Flips bits of a byte, if it is there.
    pub(super) fn flip(&mut self, file: FileNumber, offset: usize, bits: u8) {
        if let Some(file) = self.files.get_mut(&file)
            && let Some(byte) = file.read(offset..offset + 1)
        {
            file.write(offset, &[byte[0] ^ bits]);
        }
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { file, offset, bytes } if !bytes.is_empty() => {
                self.files.entry(*file).or_default().write(*offset, bytes);
            }
            _ => self.apply_sectors(change, &mut || true),
        }
    }

    /// Of a write, only those sectors that `keeps` says.
    pub(super) fn apply_sectors(&mut self, change: &Change, keeps: &mut dyn FnMut() -> bool) {
        match change {
            Change::Write { file, offset, bytes } => {
                let file = self.files.entry(*file).or_default();
                let mut at = *offset;
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (part, behind) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
                    if keeps() {
                        file.write(at, part);
                    }
                    (at, rest) = (at + part.len(), behind);
                }
            }
            Change::SetLen { file, bytes } => self.files.entry(*file).or_default().set_len(*bytes),
            Change::Sync { .. } | Change::SyncNames { .. } => {}
            Change::Make { folder, name, file } => {
                self.files.entry(*file).or_default();
                self.names.insert((*folder, name.clone()), *file);
            }
            Change::Rename { folder, from, to } => {
                if let Some(file) = self.names.remove(&(*folder, from.clone())) {
                    self.names.insert((*folder, to.clone()), file);
                }
            }
            Change::Remove { folder, name } => {
                self.names.remove(&(*folder, name.clone()));
            }
        }
    }
}
