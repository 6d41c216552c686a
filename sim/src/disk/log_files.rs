//! The log's files as its writer has them: calls take time, and changes of the directory are made
//! one after the other, in the order in which the server's helper threads make them.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use bytes::Bytes;
use revd_member::limits::SEGMENT_REMOVAL_INTERVAL;
use revd_member::wal::changes::Kind;
use revd_member::wal::disk::LogDisk;
use revd_member::wal::reader::segment_name;
use revd_member::wal::{WalError, segment_files};

use crate::disk::directory::Directory;
use crate::disk::faults::{Begun, Ticket};
use crate::disk::image::{Change, FileNumber, Folder};
use crate::disk::log_calls::{End, Waiting};
use crate::disk::names::FolderFiles;

/// The log's files, for a `WalWriter`.
#[derive(Clone)]
pub struct LogFiles {
    files: FolderFiles,
}

impl std::fmt::Debug for LogFiles {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("LogFiles")
    }
}

impl Directory {
    /// The log's files, for a `WalWriter` of the process that uses the directory now: its futures
    /// are ready when the world has ended what they have begun.
    #[must_use]
    pub fn log(&self) -> LogFiles {
        LogFiles { files: FolderFiles::new(self, Folder::Log) }
    }

    /// The time of a call or job is over: it has happened. The log's futures are polled next.
    pub fn end(&self, ticket: Ticket) {
        {
            let mut contents = self.contents();
            contents.end(ticket);
            if let Some((call, end)) = contents.log.under_way.remove(&ticket) {
                let result = match end {
                    End::Return(result) => result,
                    End::Read { file, offset, bytes } => {
                        let part = contents.live.read(file, offset..offset + bytes);
                        part.ok_or_else(|| failed("reading", io::ErrorKind::UnexpectedEof.into()))
                    }
                };
                contents.log.ended.insert(call, result);
            }
            contents.log.turn.take_if(|turn| *turn == ticket);
            contents.log.pause.take_if(|pause| *pause == ticket);
        }
        self.log().go_on();
    }
}

fn failed(what: &'static str, source: io::Error) -> WalError {
    WalError::Io { what, path: Folder::Log.path().into(), source }
}

impl LogFiles {
    fn is_dead(&self) -> bool {
        self.files.is_dead()
    }

    fn new_call(&self) -> u64 {
        let mut contents = self.files.directory.contents();
        contents.log.next_call += 1;
        contents.log.next_call
    }

    /// Begins the next change of the directory when the one before is made.
    fn go_on(&self) {
        loop {
            let next = {
                let log = &mut self.files.directory.contents().log;
                if log.turn.is_some() {
                    return;
                }
                log.next_change()
            };
            let Some((kind, next)) = next else { return };
            self.begin(next);
            if kind == Kind::Removal {
                self.pause();
            }
        }
    }

    fn begin(&self, next: Waiting) {
        let directory = &self.files.directory;
        let call = match next {
            Waiting::Make { call, .. } | Waiting::Settle(call) => Some(call),
            Waiting::Prepare(_) | Waiting::Remove(..) => None,
        };
        {
            let log = &mut directory.contents().log;
            if !log.progress.is_well() {
                if let (Some(call), Err(error)) = (call, log.progress.check()) {
                    log.ended.insert(call, Err(error));
                }
                return;
            }
        }
        let give_up = || directory.contents().give_up_reserve();
        let (made, begun) = directory.job(|| match next {
            Waiting::Make { segment, bytes, .. } => segment_files::make(&self.files, segment, bytes, || {
                give_up();
            }),
            Waiting::Prepare(bytes) => {
                segment_files::prepare_next(&self.files, bytes, give_up);
                Ok(())
            }
            Waiting::Remove(segment, spare) => segment_files::release(&self.files, segment, spare),
            Waiting::Settle(_) => Ok(()),
        });
        let mut contents = directory.contents();
        contents.begun.push(begun);
        let log = &mut contents.log;
        log.turn = Some(begun.ticket);
        match (call, made) {
            (Some(call), made) => {
                log.under_way.insert(begun.ticket, (call, End::Return(made.map(|()| Bytes::new()))));
            }
            (None, made) => log.progress.note(made),
        }
    }

    /// Other segments go after a while.
    fn pause(&self) {
        let mut contents = self.files.directory.contents();
        contents.begin_job();
        let Begun { ticket, .. } = contents.end_of_job_changes();
        let cost = u64::try_from(SEGMENT_REMOVAL_INTERVAL.as_micros()).expect("a short time");
        contents.begun.push(Begun { ticket, cost, usual: cost });
        contents.log.pause = Some(ticket);
    }

    fn wait(&self, kind: Kind, change: Waiting) {
        if !self.is_dead() {
            self.files.directory.contents().log.waiting.begin(kind, change);
            self.go_on();
        }
    }

    async fn end_of(&self, call: u64) -> Result<Bytes, WalError> {
        let ended = || self.files.directory.contents().log.ended.remove(&call);
        // The process may be dead; calls of the next one have the same numbers.
        poll_fn(|_| if self.is_dead() { Poll::Pending } else { ended().map_or(Poll::Pending, Poll::Ready) })
            .await
    }

    fn call_ends(&self, call: u64, begun: Begun, end: End) {
        let mut contents = self.files.directory.contents();
        contents.begun.push(begun);
        contents.log.under_way.insert(begun.ticket, (call, end));
    }
}

impl LogDisk for LogFiles {
    type File = FileNumber;

    async fn create(&self, segment: u64, bytes: u64) -> Result<FileNumber, WalError> {
        let call = self.new_call();
        self.wait(Kind::Other, Waiting::Make { segment, bytes, call });
        self.end_of(call).await?;
        let file = self.files.directory.contents().live.file(Folder::Log, &segment_name(segment));
        file.ok_or_else(|| failed("opening", io::ErrorKind::NotFound.into()))
    }

    async fn write(&self, file: &FileNumber, offset: u64, bytes: &[u8]) -> Result<(), WalError> {
        let (call, file) = (self.new_call(), *file);
        let offset = usize::try_from(offset).expect("a simulated file fits memory");
        let (written, begun) = self.files.directory.job(|| {
            self.files.change(Change::Write { file, offset, bytes: Bytes::copy_from_slice(bytes) })?;
            self.files.change(Change::Sync { file })
        });
        let written = written.map(|()| Bytes::new()).map_err(|error| failed("writing", error));
        self.call_ends(call, begun, End::Return(written));
        self.end_of(call).await.map(drop)
    }

    async fn read(&self, segment: u64, offset: u64, bytes: u64) -> Result<Bytes, WalError> {
        let call = self.new_call();
        let size = |bytes| usize::try_from(bytes).expect("a simulated file fits memory");
        let ((), begun) = self.files.directory.job(|| ());
        let file = self.files.directory.contents().live.file(Folder::Log, &segment_name(segment));
        let end = match file {
            Some(file) => End::Read { file, offset: size(offset), bytes: size(bytes) },
            None => End::Return(Err(failed("reading", io::ErrorKind::NotFound.into()))),
        };
        self.call_ends(call, begun, end);
        self.end_of(call).await
    }

    fn room(&self) -> u64 {
        self.files.directory.contents().room()
    }

    fn prepare(&self, bytes: u64) {
        self.wait(Kind::Other, Waiting::Prepare(bytes));
    }

    fn remove(&self, segment: u64, spare_bytes: Option<u64>) {
        self.wait(Kind::Removal, Waiting::Remove(segment, spare_bytes));
    }

    async fn settle(&self) -> Result<(), WalError> {
        let call = self.new_call();
        self.files.directory.contents().log.settles = true;
        self.wait(Kind::Removal, Waiting::Settle(call));
        self.end_of(call).await.map(drop)
    }
}
