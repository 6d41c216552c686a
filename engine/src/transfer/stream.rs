//! Reading a state as a stream.

use crate::Result;
use crate::key_parts::KeyParts;
use crate::limits::{TABLES_MAX, TRANSFER_CHUNK_BYTES};
use crate::meta::{FORMAT_DIVIDED, FORMAT_RANGED, Table};
use crate::mutants::{self, Mutant};
use crate::snapshot::Snapshot;
use crate::transfer::{CHECKSUM, ROW_HEAD, VERSION, VERSION_DIVIDED, VERSION_RANGED};

/// A state being read; the state stays in the file as long as this lives. It may be read on any
/// thread, and reading may wait for the disk.
#[derive(Debug)]
pub struct StateStream {
    state: Snapshot,
    /// The table that is read.
    table: u8,
    /// The key to go on from.
    from: Vec<u8>,
    /// Rows of the table that are read.
    rows: u64,
    /// Bytes of the stream that are read and are in no chunk yet: less than one row and a head.
    left: Vec<u8>,
    /// Of these, so many are in a chunk already.
    taken: usize,
    crc: u32,
}

impl StateStream {
    /// A stream of all that `state` holds.
    #[must_use]
    pub fn new(state: Snapshot) -> Self {
        let version = match state.parts().meta.format {
            FORMAT_DIVIDED.. => VERSION_DIVIDED,
            FORMAT_RANGED => VERSION_RANGED,
            _ => VERSION,
        };
        let mut left = version.to_le_bytes().to_vec();
        left.extend_from_slice(&state.page_bytes().to_le_bytes());
        left.extend_from_slice(state.user());
        for table in tables() {
            left.extend_from_slice(&state.len(table).to_le_bytes());
        }
        assert_eq!(left.len(), super::HEAD, "the head of a stream has another length than its drawing");
        Self { state, table: 0, from: Vec::new(), rows: 0, left, taken: 0, crc: 0 }
    }

    /// Rows of all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        tables().map(|table| self.state.len(table)).sum()
    }

    /// Puts the next chunk into `chunk`, whatever that held; false when there is none.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn next_chunk(&mut self, chunk: &mut Vec<u8>) -> Result<bool> {
        chunk.clear();
        self.append_chunk(chunk)
    }

    /// Puts the next chunk behind what `out` holds; false, and nothing, when there is none.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn append_chunk(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let start = out.len();
        let end = start + TRANSFER_CHUNK_BYTES;
        out.reserve(TRANSFER_CHUNK_BYTES);
        out.extend_from_slice(&[0; CHECKSUM]);
        self.take_left(out, end);
        while out.len() < end && usize::from(self.table) < TABLES_MAX {
            self.read_rows(out, end)?;
        }
        let (checksum, bytes) = out[start..].split_at_mut(CHECKSUM);
        if bytes.is_empty() {
            out.truncate(start);
            return Ok(false);
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.crc);
        hasher.update(bytes);
        self.crc = hasher.finalize();
        checksum.copy_from_slice(&self.crc.to_le_bytes());
        Ok(true)
    }

    /// Moves what is left behind what `out` holds, until it is full at `end`.
    fn take_left(&mut self, out: &mut Vec<u8>, end: usize) {
        let some = &self.left[self.taken..];
        let some = &some[..some.len().min(end - out.len())];
        out.extend_from_slice(some);
        self.taken += some.len();
        if self.taken == self.left.len() {
            self.left = Vec::new();
            self.taken = 0;
        }
    }

    /// Reads rows of the table until `out` is full at `end`, or the table is read.
    fn read_rows(&mut self, out: &mut Vec<u8>, end: usize) -> Result<()> {
        let state = self.state.clone();
        let mut cursor = state.cursor(Table(self.table));
        cursor.seek(&self.from)?;
        let mut last = None;
        while out.len() < end {
            let Some((key, value)) = cursor.next_parts()? else {
                let (read, rows) = (self.rows, state.len(Table(self.table)));
                if read != rows {
                    let table = self.table;
                    let what = format!("table {table} has {read} rows instead of {rows}");
                    return Err(crate::Error::corrupt(what));
                }
                (self.table, self.rows) = (self.table + 1, 0);
                self.from.clear();
                return Ok(());
            };
            self.rows += 1;
            last = Some(key);
            if mutants::is(Mutant::SentStateLosesRows) && self.rows == 7 {
                continue;
            }
            let head = row_head(key, value);
            let [begin, rest] = key.parts();
            let row = [&head[..], begin, rest, value];
            if out.len() + row.iter().map(|part| part.len()).sum::<usize>() <= end {
                row.iter().for_each(|part| out.extend_from_slice(part));
            } else {
                self.left = row.concat();
                self.take_left(out, end);
            }
        }
        if let Some(last) = last {
            self.from = last.next();
        }
        Ok(())
    }
}

fn row_head(key: KeyParts<'_>, value: &[u8]) -> [u8; ROW_HEAD] {
    let key_len = u16::try_from(key.len()).expect("a key is shorter than a page");
    let value_len = u32::try_from(value.len()).expect("a value's length is checked when it is put");
    let mut head = [0; ROW_HEAD];
    head[..2].copy_from_slice(&key_len.to_le_bytes());
    head[2..].copy_from_slice(&value_len.to_le_bytes());
    head
}

fn tables() -> impl Iterator<Item = Table> {
    (0..u8::try_from(TABLES_MAX).expect("a table's number is a byte")).map(Table)
}
