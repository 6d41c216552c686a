//! The task that owns the log file: the shipped writer, polled when a call on its disk is over.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use revd_member::cores::log_events::LogEvent;
use revd_member::limits;
use revd_member::raft::feed::{LogFetch, Unread};
use revd_member::wal::writer::{FetchError, WalWriter};
use revd_member::wal::{FrameContent, LogEntry, WalError};

use crate::disk::LogFiles;
use crate::marks::Mark;
use crate::member::common::{Common, LogInput};
use crate::outside::{Outside, Timer};

/// For the task that owns the log file.
pub(super) enum WriterJob {
    Append(FrameContent),
    Release(u64),
    Fetch(LogFetch),
}

type Appending = Pin<Box<dyn Future<Output = (WalWriter<LogFiles>, Result<(), WalError>)>>>;
type Fetching = Pin<Box<dyn Future<Output = Result<Vec<LogEntry>, FetchError>>>>;

/// The task that owns the log file.
pub(super) struct Writer {
    /// None while a frame is appended.
    idle: Option<WalWriter<LogFiles>>,
    appending: Option<Appending>,
    /// The frame that is appended.
    frame: Option<FrameContent>,
    waits_for_room: bool,
    room: u64,
    jobs: VecDeque<WriterJob>,
    fetches: Vec<(LogFetch, Fetching)>,
    has_failed: bool,
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

impl Writer {
    pub(super) fn new(writer: WalWriter<LogFiles>) -> Self {
        Self {
            idle: Some(writer),
            appending: None,
            frame: None,
            waits_for_room: false,
            room: u64::MAX,
            jobs: VecDeque::new(),
            fetches: Vec::new(),
            has_failed: false,
        }
    }

    pub(super) fn push(&mut self, job: WriterJob) {
        self.jobs.push_back(job);
    }

    /// A frame is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.frame.is_some()
    }

    /// Jobs, for a failure's message.
    pub(super) fn inside(&self) -> String {
        let Self { waits_for_room, room, has_failed, .. } = self;
        format!(
            "{} jobs, {} fetches, waits for room {waits_for_room}, room {room}, failed {has_failed}",
            self.jobs.len(),
            self.fetches.len(),
        )
    }

    /// The frame that is being written.
    pub(super) fn take_frame(&mut self) -> Option<FrameContent> {
        self.frame.take()
    }

    /// The time of waiting for room is over.
    pub(super) fn try_again(&mut self, common: &mut Common, out: &mut Outside) {
        if !std::mem::take(&mut self.waits_for_room) {
            return;
        }
        for job in std::mem::take(&mut self.jobs) {
            match job {
                append @ WriterJob::Append(_) => self.jobs.push_back(append),
                job => self.beside_writes(job),
            }
        }
        self.room = 0;
        let mut writer = self.idle.take().expect("it waits");
        self.appending = Some(Box::pin(async move {
            let result = writer.resume().await;
            (writer, result)
        }));
        self.run(common, out);
    }

    /// Goes on as far as it gets.
    pub(super) fn run(&mut self, common: &mut Common, out: &mut Outside) {
        loop {
            if self.has_failed || self.waits_for_room {
                break;
            }
            if let Some(appending) = &mut self.appending {
                let Poll::Ready((writer, result)) = poll(appending) else { break };
                (self.appending, self.idle) = (None, Some(writer));
                self.appended(result, common, out);
                continue;
            }
            match self.jobs.pop_front() {
                Some(WriterJob::Append(frame)) => self.append(frame),
                Some(job) => self.beside_writes(job),
                None => break,
            }
        }
        let mut fetches = std::mem::take(&mut self.fetches);
        fetches.retain_mut(|(fetch, fetching)| {
            let Poll::Ready(entries) = poll(fetching) else { return true };
            if entries.is_ok() {
                out.marks.reach(Mark::Fetched);
            }
            common.log_event(LogEvent::Fetched(*fetch, entries.map_err(|error| Unread::from(&error))), out);
            false
        });
        self.fetches = fetches;
        common.plan_disk(out);
    }

    fn append(&mut self, frame: FrameContent) {
        let mut writer = self.idle.take().expect("one frame at a time");
        self.frame = Some(frame.clone());
        self.appending = Some(Box::pin(async move {
            let result = writer.append(&frame).await;
            (writer, result)
        }));
    }

    fn appended(&mut self, result: Result<(), WalError>, common: &mut Common, out: &mut Outside) {
        match result {
            Ok(()) => {
                let frame = self.frame.take().expect("a frame was appended");
                out.truth.log(common.identity.member).write(&frame);
                let room = self.idle.as_ref().expect("it is back").room();
                if std::mem::replace(&mut self.room, room) != room {
                    common.log_event(LogEvent::DiskRoom(room), out);
                }
                common.log_event(LogEvent::Written, out);
            }
            Err(WalError::NoSpace { .. }) => {
                out.marks.reach(Mark::NoRoom);
                self.waits_for_room = true;
                common.log_event(LogEvent::DiskRoom(0), out);
                common.timer(limits::NO_SPACE_INTERVAL, Timer::Room, out);
            }
            Err(error) => {
                self.has_failed = true;
                common.log_input(LogInput::WriteFailed(error.to_string()), out);
            }
        }
    }

    fn beside_writes(&mut self, job: WriterJob) {
        let writer = self.idle.as_mut().expect("no frame is appended");
        match job {
            WriterJob::Append(_) => unreachable!("writes go one by one"),
            WriterJob::Release(index) => writer.release(index),
            WriterJob::Fetch(fetch) => {
                let fetching = writer.fetch(fetch.low, fetch.high, fetch.bytes_max);
                self.fetches.push((fetch, Box::pin(fetching)));
            }
        }
    }
}
