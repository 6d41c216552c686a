//! The two meta slots: where a file's current state begins.
//!
//! ```text
//! slot 0 at offset 0, slot 1 at offset 4096; transaction n writes slot n mod 2; 512 bytes each, so
//! that one sector holds a slot:
//!   0  8    "revdtree"
//!   8  u32  format version: 1, or 2 once the free list may be a chain of changes, or 3 once ranges
//!           of the index may be saved up to different revisions, or 4 once older changes of keys
//!           or long keys may have rows of their own, or 5 once leaves may share beginnings of keys
//!  12  u32  bytes of a page
//!  16  u64  transaction number
//!  24  u64  pages of the file that were ever used, the slots' included
//!  32  u64  first page of the free list's extent, 0: none
//!  40  u32  its checksum
//!  44  u32  1 if that extent holds changes of another one, else 0
//!  48  8 tables of 24 bytes: u64 root page (0: empty) | u32 its checksum | u32 depth | u64 keys
//! 240  128  the owner's own
//! 368       zeros
//! 508  u32  CRC-32 of the 508 bytes before
//! ```

use crate::limits::{DEPTH_MAX, PAGE_BYTES_MAX, PAGE_BYTES_MIN, TABLES_MAX, USER_BYTES};
use crate::page::{PageId, PageRef, read_le};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 512;
/// Where the slots are.
pub const SLOT_OFFSETS: [u64; 2] = [0, 4096];
/// Bytes before the first page that can be used.
const RESERVED: u64 = 8192;

const MAGIC: &[u8; 8] = b"revdtree";
/// The free list is one extent.
pub const FORMAT_FIRST: u32 = 1;
/// The free list may be a chain of extents: a revd that knows the first format only must not open
/// the file, not even by its older slot.
pub const FORMAT_CHAINED: u32 = 2;
/// Ranges of the saved index may be complete up to different revisions, and records that a start
/// would read may be gone: an earlier revd would take what it cannot find for damage.
pub const FORMAT_RANGED: u32 = 3;
/// Older changes of a key may lie in rows of their own, and each long key has its row: an earlier
/// revd would take the one for damage, and write the other a second time.
pub const FORMAT_DIVIDED: u32 = 4;
/// Leaves may have once what all of their keys begin with: an earlier revd does not know such a
/// page.
pub const FORMAT_SHARING: u32 = 5;
/// The newest one.
pub const FORMAT_NEWEST: u32 = FORMAT_SHARING;
const TABLES_AT: usize = 48;
const TABLE_BYTES: usize = 24;
const USER_AT: usize = TABLES_AT + TABLES_MAX * TABLE_BYTES;
const CRC_AT: usize = SLOT_BYTES - 4;

const _: () = {
    assert!(USER_AT + USER_BYTES <= CRC_AT);
    // A slot is one sector of a disk: it is written whole or not at all.
    assert!(SLOT_BYTES <= 512);
    // The slots do not overlap, and no page lies in them.
    assert!(SLOT_OFFSETS[0] + SLOT_BYTES as u64 <= SLOT_OFFSETS[1]);
    assert!(SLOT_OFFSETS[1] + SLOT_BYTES as u64 <= RESERVED);
};

/// A table of the file, by number below `limits::TABLES_MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table(pub u8);

impl Table {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where a table begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableRoot {
    /// Its root page, if it has any keys.
    pub root: Option<PageRef>,
    /// Levels of pages.
    pub depth: u32,
    /// Keys.
    pub len: u64,
}

impl TableRoot {
    /// A root has levels below it, a table without one has neither levels nor keys.
    fn is_sound(&self) -> bool {
        let (depth, has_root) = (self.depth as usize, self.root.is_some());
        depth <= DEPTH_MAX && (depth > 0) == has_root && (has_root || self.len == 0)
    }
}

/// The state of a file after one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The format; never becomes lower.
    pub format: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of the transaction.
    pub txn: u64,
    /// Pages ever used.
    pub pages: u64,
    /// The list of free pages.
    pub free: Option<PageRef>,
    /// It is a full list, else changes of one.
    pub free_is_whole: bool,
    /// The tables.
    pub tables: [TableRoot; TABLES_MAX],
    /// The owner's bytes.
    pub user: [u8; USER_BYTES],
}

impl Meta {
    /// The state of a new file.
    #[must_use]
    pub fn empty(page_bytes: u32) -> Self {
        Self {
            format: FORMAT_FIRST,
            page_bytes,
            txn: 0,
            pages: first_page(page_bytes),
            free: None,
            free_is_whole: true,
            tables: [TableRoot::default(); TABLES_MAX],
            user: [0; USER_BYTES],
        }
    }

    /// Lays out the slot.
    ///
    /// # Panics
    /// If it could not be read back: a slot that is written so would hide the whole state.
    #[must_use]
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &self.format.to_le_bytes());
        put(12, &self.page_bytes.to_le_bytes());
        put(16, &self.txn.to_le_bytes());
        put(24, &self.pages.to_le_bytes());
        let free = self.free.unwrap_or_default();
        put(32, &free.id.0.to_le_bytes());
        put(40, &free.crc.to_le_bytes());
        put(44, &u32::from(!self.free_is_whole).to_le_bytes());
        for (table, at) in self.tables.iter().zip((TABLES_AT..).step_by(TABLE_BYTES)) {
            let root = table.root.unwrap_or_default();
            put(at, &root.id.0.to_le_bytes());
            put(at + 8, &root.crc.to_le_bytes());
            put(at + 12, &table.depth.to_le_bytes());
            put(at + 16, &table.len.to_le_bytes());
        }
        put(USER_AT, &self.user);
        let crc = crc32fast::hash(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Self::decode(&out).as_ref(),
            Some(self),
            "the slot of transaction {} reads otherwise",
            self.txn
        );
        out
    }

    /// Reads a slot; none if it was never written or not wholly.
    #[must_use]
    pub fn decode(slot: &[u8]) -> Option<Self> {
        let slot = slot.get(..SLOT_BYTES)?;
        let word = |at: usize| read_le!(slot, at, u32);
        let long = |at: usize| read_le!(slot, at, u64);
        let format = Self::format_of(slot).filter(|format| *format <= FORMAT_NEWEST)?;
        let free_is_whole = match (format, word(44)?) {
            (_, 0) => true,
            (FORMAT_CHAINED.., 1) => false,
            _ => return None,
        };
        let reference = |at: usize| {
            let (id, crc) = (long(at)?, word(at + 8)?);
            Some((id != 0).then_some(PageRef { id: PageId(id), crc }))
        };
        let mut tables = [TableRoot::default(); TABLES_MAX];
        for (table, at) in tables.iter_mut().zip((TABLES_AT..).step_by(TABLE_BYTES)) {
            *table = TableRoot { root: reference(at)?, depth: word(at + 12)?, len: long(at + 16)? };
        }
        let meta = Self {
            format,
            page_bytes: word(12)?,
            txn: long(16)?,
            pages: long(24)?,
            free: reference(32)?,
            free_is_whole,
            tables,
            user: slot[USER_AT..USER_AT + USER_BYTES].try_into().ok()?,
        };
        let page_ok = meta.page_bytes.is_power_of_two()
            && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&meta.page_bytes)
            && meta.pages >= first_page(meta.page_bytes);
        let tables_ok = meta.tables.iter().all(TableRoot::is_sound);
        let list_ok = meta.free.is_some() || meta.free_is_whole;
        (page_ok && tables_ok && list_ok).then_some(meta)
    }

    /// The format of a slot that is whole, also of one that this version cannot read.
    #[must_use]
    pub fn format_of(slot: &[u8]) -> Option<u32> {
        let slot = slot.get(..SLOT_BYTES).filter(|slot| &slot[..8] == MAGIC)?;
        let is_whole = read_le!(slot, CRC_AT, u32)? == crc32fast::hash(&slot[..CRC_AT]);
        read_le!(slot, 8, u32).filter(|format| is_whole && *format >= FORMAT_FIRST)
    }
}

/// The first page behind the slots.
#[must_use]
pub fn first_page(page_bytes: u32) -> u64 {
    RESERVED.div_ceil(u64::from(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_survives_the_round_trip_and_no_flipped_bit() {
        let mut meta = Meta::empty(4096);
        meta.txn = 77;
        meta.free = Some(PageRef { id: PageId(9), crc: 10 });
        meta.tables[3] = TableRoot { root: Some(PageRef { id: PageId(5), crc: 6 }), depth: 2, len: 8 };
        meta.user[127] = 1;
        let slot = meta.encode();
        assert_eq!(Meta::decode(&slot), Some(meta));
        for bit in 0..SLOT_BYTES * 8 {
            let mut bad = slot;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Meta::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Meta::decode(&slot[..SLOT_BYTES - 1]), None);
    }
}
