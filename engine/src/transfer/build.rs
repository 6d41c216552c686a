//! Making a file of a stream.

use std::sync::Arc;

use crate::disk::Disk;
use crate::limits::{
    PAGE_BYTES_MAX, PAGE_BYTES_MIN, TABLES_MAX, TRANSFER_CHUNK_BYTES, USER_BYTES, VALUE_BYTES_MAX,
    key_bytes_max,
};
use crate::meta::{
    FORMAT_DIVIDED, FORMAT_FIRST, FORMAT_RANGED, FORMAT_SHARING, Meta, SLOT_OFFSETS, Table, TableRoot,
};
use crate::page::read_le;
use crate::transfer::bulk::{LaidOut, PageRow, TableLoad};
use crate::transfer::{CHECKSUM, HEAD, ROW_HEAD, VERSION, VERSION_DIVIDED, VERSION_RANGED};
use crate::{Error, Result};

/// A file being made. It is no tree file before [`FileBuilder::finish`] has returned: a crash until
/// then leaves one that opens as empty, or does not open.
pub struct FileBuilder {
    disk: Arc<dyn Disk>,
    kinds: TableKinds,
    crc: u32,
    /// Bytes of the stream that are not a whole head or row yet.
    partial: Vec<u8>,
    body: Option<Body>,
    failed: bool,
}

/// How tables of a file are written that are not as the others.
#[derive(Debug, Clone, Copy)]
pub struct TableKinds {
    /// Its rows are not read soon: they need no room in the page cache.
    pub cold: Table,
    /// Its leaves have once what all of their keys begin with.
    pub sharing: Table,
}

impl TableKinds {
    fn load(self, table: usize) -> TableLoad {
        TableLoad::new(table == self.sharing.index())
    }
}

/// The file behind the stream's head.
struct Body {
    format: u32,
    user: [u8; USER_BYTES],
    rows: [u64; TABLES_MAX],
    pages: PageRow,
    /// Tables that are written.
    roots: [TableRoot; TABLES_MAX],
    /// The one being written.
    at: usize,
    kinds: TableKinds,
    table: TableLoad,
    /// Rows of it that have come.
    come: u64,
    /// The last of them.
    last: Option<Vec<u8>>,
}

impl std::fmt::Debug for FileBuilder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FileBuilder({} bytes of a row)", self.partial.len())
    }
}

impl FileBuilder {
    /// Makes a file on an empty disk.
    ///
    /// # Errors
    /// When the disk is not empty.
    pub fn new(disk: Arc<dyn Disk>, kinds: TableKinds) -> Result<Self> {
        if disk.file_len()? > 0 {
            return Err(Error::stream("is to become a file that is not empty"));
        }
        Ok(Self { disk, kinds, crc: 0, partial: Vec::new(), body: None, failed: false })
    }

    /// The owner's bytes, once the stream's head has come.
    #[must_use]
    pub fn user(&self) -> Option<&[u8; USER_BYTES]> {
        self.body.as_ref().map(|body| &body.user)
    }

    /// Takes the next chunk. Blocks for the disk.
    ///
    /// # Errors
    /// [`Error::Stream`] when it is not the next one; when the disk refuses. The file must be
    /// thrown away then.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        self.lay_out(chunk)?;
        let result = self.take_laid_out().map_or(Ok(()), LaidOut::write);
        self.failed = result.is_err();
        result
    }

    /// Takes the next chunk, and lays out the pages that it fills. They are to be taken then.
    ///
    /// # Errors
    /// As [`FileBuilder::add`].
    pub fn lay_out(&mut self, chunk: &[u8]) -> Result<()> {
        if self.failed {
            return Err(Error::Poisoned);
        }
        let result = self.take(chunk);
        self.failed = result.is_err();
        result
    }

    /// Pages that are laid out, to be written on any thread before the file is finished; none if
    /// they are not enough for a write.
    pub fn take_laid_out(&mut self) -> Option<LaidOut> {
        let laid_out = self.body.as_mut()?.pages.take_laid_out();
        (!laid_out.is_empty()).then_some(laid_out)
    }

    fn take(&mut self, chunk: &[u8]) -> Result<()> {
        let Some((crc, bytes)) = chunk.split_first_chunk::<CHECKSUM>() else {
            return Err(Error::stream("has a chunk that is too short"));
        };
        if bytes.is_empty() || chunk.len() > TRANSFER_CHUNK_BYTES {
            return Err(Error::stream(format!("has a chunk of {} bytes", chunk.len())));
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.crc);
        hasher.update(bytes);
        self.crc = hasher.finalize();
        if self.crc != u32::from_le_bytes(*crc) {
            return Err(Error::stream("has a chunk that is damaged, or not the next one"));
        }
        let mut rest = bytes;
        while !self.partial.is_empty() && !rest.is_empty() {
            let (some, behind) = rest.split_at(self.missing().min(rest.len()));
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(some);
            let used = self.parse(&partial)?;
            partial.drain(..used);
            (self.partial, rest) = (partial, behind);
        }
        let used = self.parse(rest)?;
        self.partial.extend_from_slice(&rest[used..]);
        Ok(())
    }

    /// How many bytes are missing at least until the head or row that has come in part is whole.
    fn missing(&self) -> usize {
        let whole = match (&self.body, row_lens(&self.partial)) {
            (None, _) => HEAD,
            (Some(_), None) => ROW_HEAD,
            (Some(_), Some((key, value))) => ROW_HEAD + key + value,
        };
        whole.saturating_sub(self.partial.len()).max(1)
    }

    /// Takes what is whole of these bytes; returns how many those are.
    fn parse(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut rest = bytes;
        if self.body.is_none() {
            let Some((head, behind)) = rest.split_at_checked(HEAD) else { return Ok(0) };
            let mut body = Body::new(&self.disk, self.kinds, head)?;
            body.end_tables()?;
            (self.body, rest) = (Some(body), behind);
        }
        let body = self.body.as_mut().expect("made above");
        while let Some(behind) = body.row(rest)? {
            rest = behind;
        }
        if !rest.is_empty() && body.at == TABLES_MAX {
            return Err(Error::stream("goes on behind its last row"));
        }
        Ok(bytes.len() - rest.len())
    }

    /// A job that makes durable what has come so far, so that less is left for
    /// [`FileBuilder::finish`]. More may be added while it runs. It fails when the disk refuses,
    /// which takes nothing more then: the file must be thrown away.
    pub fn sync(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        let disk = Arc::clone(&self.disk);
        move || disk.sync()
    }

    /// All rows have come.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.at == TABLES_MAX)
    }

    /// Makes the file durable, and a tree file.
    ///
    /// # Errors
    /// [`Error::Stream`] when rows are missing; when the disk refuses.
    pub fn finish(self) -> Result<()> {
        if self.failed {
            return Err(Error::Poisoned);
        }
        let Some(mut body) = self.body.filter(|body| body.at == TABLES_MAX) else {
            return Err(Error::stream("ends before its last row"));
        };
        body.pages.finish()?;
        self.disk.sync()?;
        let of_leaves = if body.pages.has_sharing_leaf() { FORMAT_SHARING } else { FORMAT_FIRST };
        let meta = Meta {
            format: body.format.max(of_leaves),
            page_bytes: body.pages.page_bytes(),
            txn: 1,
            pages: body.pages.pages(),
            free: None,
            free_is_whole: true,
            tables: body.roots,
            user: body.user,
        };
        self.disk.write_at(SLOT_OFFSETS[1], &meta.encode())?;
        self.disk.sync()
    }
}

impl Body {
    fn new(disk: &Arc<dyn Disk>, kinds: TableKinds, head: &[u8]) -> Result<Self> {
        let cut = || Error::stream("has a head that cannot be read");
        let version = read_le!(head, 0, u32).ok_or_else(cut)?;
        let format = match version {
            VERSION => FORMAT_FIRST,
            VERSION_RANGED => FORMAT_RANGED,
            VERSION_DIVIDED => FORMAT_DIVIDED,
            _ => {
                let what = format!("has version {version}, this revd reads version {VERSION_DIVIDED}");
                return Err(Error::stream(what));
            }
        };
        let page_bytes = read_le!(head, 4, u32).ok_or_else(cut)?;
        if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
            return Err(Error::stream(format!("is for pages of {page_bytes} bytes")));
        }
        let user = head[8..8 + USER_BYTES].try_into().expect("the length is right");
        let mut rows = [0; TABLES_MAX];
        for (rows, at) in rows.iter_mut().zip((8 + USER_BYTES..).step_by(8)) {
            *rows = read_le!(head, at, u64).ok_or_else(cut)?;
        }
        let pages = PageRow::new(Arc::clone(disk), page_bytes);
        let (roots, table) = ([TableRoot::default(); TABLES_MAX], kinds.load(0));
        Ok(Self { format, user, rows, pages, roots, at: 0, kinds, table, come: 0, last: None })
    }

    /// Takes a row; what is behind it, or none if the row is not whole.
    fn row<'r>(&mut self, bytes: &'r [u8]) -> Result<Option<&'r [u8]>> {
        if self.at == TABLES_MAX {
            return Ok(None);
        }
        let Some((key_len, value_len)) = row_lens(bytes) else { return Ok(None) };
        if key_len > key_bytes_max(self.pages.page_bytes()) || value_len > VALUE_BYTES_MAX {
            return Err(Error::stream(format!(
                "has a key of {key_len} bytes with {value_len} bytes of value"
            )));
        }
        let Some((row, behind)) = bytes[ROW_HEAD..].split_at_checked(key_len + value_len) else {
            return Ok(None);
        };
        let (key, value) = row.split_at(key_len);
        if self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(Error::stream(format!("has rows of table {} out of order", self.at)));
        }
        self.table.put(key, value, &mut self.pages)?;
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.come += 1;
        self.end_tables()?;
        Ok(Some(behind))
    }

    /// Ends the table whose rows have all come, and those behind it that have none.
    fn end_tables(&mut self) -> Result<()> {
        while self.at < TABLES_MAX && self.come == self.rows[self.at] {
            let next = self.kinds.load(self.at + 1);
            self.roots[self.at] = std::mem::replace(&mut self.table, next).finish(&mut self.pages)?;
            (self.come, self.last) = (0, None);
            self.at += 1;
        }
        self.pages.set_cold(self.at == self.kinds.cold.index())
    }
}

/// Bytes of the key and the value of a row whose head has come.
fn row_lens(row: &[u8]) -> Option<(usize, usize)> {
    Some((usize::from(read_le!(row, 0, u16)?), read_le!(row, 2, u32)? as usize))
}
