//! Receiving a state: the bytes of its connection, and the jobs on its files.
//!
//! Parts are read while pages are laid out of earlier ones, and those while pages of still earlier
//! ones are written. A job
//! on a file is never left alone: it runs to its end before the place of the state is given to
//! another one. Only waiting for the sender is broken off.

use std::io;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite, future};
use glommio::Task;
use glommio::channels::local_channel::{LocalReceiver, LocalSender};
use revd_engine::db::DbOptions;
use revd_engine::limits::TRANSFER_CHUNK_BYTES;
use revd_engine::mvcc::{Store, StoreBuilder};
use revd_member::apply::received::ReceivedState;
use revd_member::peer::frame::FrameReader;

use crate::clock::Ticker;
use crate::disk::received::ReceivedFiles;
use crate::limits;
use crate::peer::pulse::{Silence, show_life};
use crate::peer::transport;
use crate::queues::latch::Latch;
use crate::queues::turn::give_way;

/// Log core view: the frames of a connection on which a state comes.
pub(super) struct Incoming<R> {
    stream: R,
    reader: FrameReader,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// No frame is longer than a chunk.
    pub(super) fn new(stream: R) -> Self {
        let reader = FrameReader::new(TRANSFER_CHUNK_BYTES);
        Self { stream, reader, buffer: vec![0; limits::PEER_READ_BYTES] }
    }

    /// The next frames, without those that only show life.
    async fn frames(&mut self, silence: &Silence) -> io::Result<Vec<Bytes>> {
        let mut frames = Vec::new();
        while frames.is_empty() {
            let read = self.stream.read(&mut self.buffer).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            silence.broken();
            let mut bytes = &self.buffer[..read];
            while !bytes.is_empty() {
                let frame = self.reader.take(&mut bytes);
                let frame = frame.map_err(|error| invalid(error.to_string()))?;
                frames.extend(frame.filter(|payload| !payload.is_empty()));
            }
            give_way().await;
        }
        Ok(frames)
    }

    /// The term in whose leader's name the state is sent, and about how many bytes it has.
    pub(super) async fn announcement(&mut self) -> io::Result<(u64, u64)> {
        match &mut self.frames(&Silence::default()).await?[..] {
            [frame] if frame.len() == 16 => Ok((frame.get_u64_le(), frame.get_u64_le())),
            _ => Err(invalid("a state that is not announced".to_owned())),
        }
    }
}

/// The next parts of the state, unless its sender is silent, or stands still, or another attempt is
/// to have the place.
pub(super) async fn next_chunks(
    incoming: &mut Incoming<impl AsyncRead + Unpin>,
    [replaced, taken]: &[Latch; 2],
) -> io::Result<Vec<Bytes>> {
    let (silence, late) = (Silence::default(), "no part of it comes");
    let coming = transport::within(limits::STATE_PART_DEADLINE, late, incoming.frames(&silence));
    let watching = async { Err(silence.watch(|| {}).await) };
    let replaced = async {
        future::or(replaced.wait(), taken.wait()).await;
        Err(io::Error::other("another attempt takes its place"))
    };
    future::or(replaced, future::or(coming, watching)).await
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Does this to its end, and shows the sender meanwhile that this member lives.
pub(super) async fn while_living<T>(
    writing: &mut (impl AsyncWrite + Unpin),
    doing: impl Future<Output = T>,
) -> T {
    let living = async {
        show_life(writing).await;
        std::future::pending().await // the connection broke: the next look at it says so
    };
    future::or(doing, living).await
}

/// The file of a state as far as it has come.
pub(super) struct Building {
    builder: StoreBuilder,
    /// Bytes that have come since a sync of the file was begun.
    unsynced: usize,
}

impl Building {
    /// All of it has come.
    pub(super) fn is_whole(&self) -> bool {
        self.builder.is_whole()
    }

    /// A job that writes the pages that are laid out, while more are, and syncs the file now and
    /// then; none if there is nothing to do. The file takes nothing more if it fails.
    fn write(&mut self) -> Option<impl FnOnce() -> io::Result<()> + Send + 'static + use<>> {
        let laid_out = self.builder.take_laid_out()?;
        let is_due = self.unsynced >= limits::STATE_SYNC_BYTES;
        let sync = is_due.then(|| {
            self.unsynced = 0;
            self.builder.sync()
        });
        Some(move || {
            laid_out.write().map_err(io::Error::other)?;
            sync.map_or(Ok(()), |sync| sync()).map_err(io::Error::other)
        })
    }
}

/// Begins the file of a state of about so many bytes.
pub(super) fn begin(files: &ReceivedFiles, bytes: u64) -> io::Result<Building> {
    files.forget()?;
    check_room(files, bytes)?;
    let disk = files.open(&files.receiving()).map_err(io::Error::other)?;
    let builder = StoreBuilder::new(Arc::new(disk)).map_err(io::Error::other)?;
    Ok(Building { builder, unsynced: 0 })
}

/// A state must not take the room that the log needs to go on.
fn check_room(files: &ReceivedFiles, bytes: u64) -> io::Result<()> {
    if files.has_room(bytes)? {
        return Ok(());
    }
    let what = format!("the disk has no room for the {bytes} bytes that are to come, beside the reserve");
    Err(io::Error::new(io::ErrorKind::StorageFull, what))
}

/// Parts that have come, or why no more come.
pub(super) type Parts = io::Result<Vec<Bytes>>;

/// Reads parts until none come any more.
pub(super) async fn read_all<T>(
    incoming: &mut Incoming<impl AsyncRead + Unpin>,
    ends: &[Latch; 2],
    parts: &LocalSender<Parts>,
) -> T {
    loop {
        let chunks = next_chunks(incoming, ends).await;
        let is_end = chunks.is_err();
        if parts.send(chunks).await.is_err() || is_end {
            return std::future::pending().await; // the file is ended by the one that adds to it
        }
    }
}

/// Adds all parts as they come; `waits` is told when the next one is waited for, and when it is
/// not. Pages are written while more are laid out: the disk is busy all the time, and little is
/// left for the end. No job on the file goes on when this returns.
pub(super) async fn add_all(
    mut building: Building,
    parts: &LocalReceiver<Parts>,
    files: &ReceivedFiles,
    waits: impl Fn(bool),
) -> io::Result<Building> {
    let mut writing = None;
    let adding = async {
        while !building.is_whole() {
            waits(true);
            let come = parts.recv().await;
            waits(false);
            let mut chunks = come.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
            let end = drain(&mut chunks, parts).await;
            let files = files.clone();
            let adding = move || add(building, &chunks, &files);
            building = glommio::executor().spawn_blocking(adding).await?;
            // A sender is silent, or gone, behind its last part: that is no loss.
            if let Some(error) = end.filter(|_| !building.is_whole()) {
                return Err(error);
            }
            join(writing.take()).await?; // the pages of one turn wait at most
            let job = building.write();
            writing = job.map(|job| glommio::spawn_local(glommio::executor().spawn_blocking(job)));
        }
        Ok(building)
    };
    let result = adding.await;
    join(writing).await?;
    result
}

/// Adds the parts that wait to these; why no more come, if that stands behind them.
async fn drain(chunks: &mut Vec<Bytes>, parts: &LocalReceiver<Parts>) -> Option<io::Error> {
    while let Some(Some(more)) = future::poll_once(parts.recv()).await {
        match more {
            Ok(more) => chunks.extend(more),
            Err(error) => return Some(error),
        }
    }
    None
}

/// Waits for the end of a job, if there is one.
async fn join(job: Option<Task<io::Result<()>>>) -> io::Result<()> {
    match job {
        Some(job) => job.await,
        None => Ok(()),
    }
}

/// Adds parts: their pages are laid out.
fn add(mut building: Building, chunks: &[Bytes], files: &ReceivedFiles) -> io::Result<Building> {
    check_room(files, 0)?;
    for chunk in chunks {
        building.builder.lay_out(chunk).map_err(io::Error::other)?;
        building.unsynced += chunk.len();
    }
    Ok(building)
}

/// The file is whole: it gets a name that says so, and is opened. The state, and the microseconds
/// until it was durable.
pub(super) fn finish(building: Building, files: &ReceivedFiles) -> io::Result<(Box<ReceivedState>, u64)> {
    let began = Ticker::new();
    building.builder.finish().map_err(io::Error::other)?;
    files.keep()?;
    let synced_for = began.microseconds();
    let disk = files.open(&files.received()).map_err(io::Error::other)?;
    let store = Store::open(Arc::new(disk), DbOptions::default()).map_err(io::Error::other)?;
    let state = ReceivedState::load(store).map_err(io::Error::other)?;
    Ok((Box::new(state), synced_for))
}

#[cfg(test)]
mod tests {
    use glommio::channels::local_channel;
    use glommio::{LocalExecutorBuilder, Placement};
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::{Applied, CheckpointKind};

    use super::*;

    /// The chunks of a state up to entry 5.
    fn chunks() -> Vec<Bytes> {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        for number in 0..600_u32 {
            let mut txn = store.begin();
            txn.put(&number.to_le_bytes(), &[7; 1_000], 0);
            txn.commit();
        }
        store.set_applied(Applied { index: 5, term: 3 });
        let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
        let (mut stream, mut chunks, mut chunk) = (store.saved_state().unwrap().stream(), vec![], vec![]);
        while stream.next_chunk(&mut chunk).unwrap() {
            chunks.push(Bytes::copy_from_slice(&chunk));
        }
        assert!(chunks.len() > 3, "several chunks");
        chunks
    }

    /// Adds these parts, which all wait already, to a new file.
    fn added(parts: Vec<Parts>) -> io::Result<bool> {
        let dir = tempfile::tempdir().unwrap();
        let files = ReceivedFiles::new(dir.path(), None);
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
        executor.run(async {
            let (sender, waiting) = local_channel::new_bounded(limits::STATE_PARTS_WAITING_MAX);
            for part in parts {
                sender.send(part).await.ok().unwrap();
            }
            let building = add_all(begin(&files, 1)?, &waiting, &files, |_| {}).await?;
            Ok(building.is_whole())
        })
    }

    /// The disk may be slow while the sender, behind its last byte, is silent or goes.
    #[test]
    fn a_sender_that_is_gone_behind_its_last_part_has_sent_the_state() {
        let (chunks, gone) = (chunks(), || Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        let (first, rest) = chunks.split_at(1);
        assert!(added(vec![Ok(first.to_vec()), Ok(rest.to_vec()), gone()]).unwrap());
        let error = added(vec![Ok(first.to_vec()), gone()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
