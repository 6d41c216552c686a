//! The frames that wait to be sent to one other member.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Poll, Waker};

use revd_member::cluster::version::ClusterVersion;
use revd_member::peer::{PeerMessage, codec, frame};

use crate::limits;
use crate::queues::queue::LocalQueue;

/// Log core view: frames for one other member, bounded in bytes; open while there is a connection.
pub(super) struct Outbox {
    pub(super) peer: u64,
    /// By its row; none of a member that is not known here.
    urls: RefCell<Vec<String>>,
    /// As the member itself says, on a connection that it holds open.
    named: RefCell<Vec<String>>,
    /// More bytes find no room.
    bytes_max: Cell<usize>,
    /// As the member said at the last connection.
    version: Cell<Option<ClusterVersion>>,
    is_open: Cell<bool>,
    frames: RefCell<VecDeque<Vec<u8>>>,
    /// Bytes of frames, with those that are being sent.
    bytes: Cell<usize>,
    /// The task that sends.
    sender: Cell<Option<Waker>>,
    /// The task that waits until everything is sent.
    waiting: Cell<Option<Waker>>,
    /// Reasons to dial again at once.
    hints: std::rc::Rc<LocalQueue<()>>,
}

impl Outbox {
    pub(super) fn new(peer: u64, urls: Vec<String>) -> Self {
        Self {
            peer,
            urls: RefCell::new(urls),
            named: RefCell::default(),
            bytes_max: Cell::new(limits::PEER_OUTBOX_BYTES),
            version: Cell::new(None),
            is_open: Cell::new(false),
            frames: RefCell::default(),
            bytes: Cell::new(0),
            sender: Cell::default(),
            waiting: Cell::default(),
            hints: LocalQueue::new(),
        }
    }

    /// For a member that is not known here, which listens there by its own word.
    pub(super) fn of_guest(peer: u64, named: &[String]) -> Self {
        let outbox = Self::new(peer, Vec::new());
        outbox.set_named(named);
        outbox.bytes_max.set(limits::PEER_GUEST_OUTBOX_BYTES);
        outbox
    }

    /// Where to dial the member: first where its row says.
    pub(super) fn urls(&self) -> Vec<String> {
        let mut urls = self.urls.borrow().clone();
        let named = self.named.borrow();
        let others = named.iter().filter(|url| !urls.contains(url)).cloned().collect::<Vec<_>>();
        urls.extend(others);
        urls
    }

    /// The members agreed on this URL: not any program can say that it is the member's.
    pub(super) fn is_agreed(&self, url: &str) -> bool {
        self.urls.borrow().iter().any(|agreed| agreed == url)
    }

    /// The member says that it listens here, too; nothing if it says no more.
    pub(super) fn set_named(&self, named: &[String]) {
        if *self.named.borrow() != named {
            *self.named.borrow_mut() = named.to_vec();
            self.hint();
        }
    }

    /// Where the member, which is known, listens from now on; a connection that is there stays.
    pub(super) fn set_urls(&self, urls: Vec<String>) {
        self.bytes_max.set(limits::PEER_OUTBOX_BYTES);
        if *self.urls.borrow() != urls {
            *self.urls.borrow_mut() = urls;
            self.hint();
        }
    }

    /// The member is likely to be there: it need not be waited for.
    pub(super) fn hint(&self) {
        if self.hints.is_empty() && !self.is_open() {
            self.hints.push(());
        }
    }

    /// Waits for a hint.
    pub(super) async fn hinted(&self) {
        self.hints.take().await;
    }

    /// There is a connection.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    pub(super) fn version(&self) -> Option<ClusterVersion> {
        self.version.get()
    }

    pub(super) fn set_version(&self, version: Option<ClusterVersion>) {
        self.version.set(version);
    }

    /// A connection is there.
    pub(super) fn open(&self) {
        self.is_open.set(true);
        self.hints.take_now();
    }

    /// The connection is gone, and what waited for it is dropped; whether there was one.
    pub(super) fn close(&self) -> bool {
        self.frames.borrow_mut().clear();
        self.bytes.set(0);
        wake(&self.waiting);
        self.is_open.replace(false)
    }

    /// Adds frames with these messages; false if there is no connection, or no room.
    #[must_use]
    pub(super) fn push(&self, messages: &[PeerMessage]) -> bool {
        let len: usize = messages.iter().map(codec::encoded_len).sum();
        let is_full = self.bytes.get() > 0 && self.bytes.get() + len > self.bytes_max.get();
        if !self.is_open() || is_full {
            return false;
        }
        let mut bytes = Vec::with_capacity(frame::FRAME_HEADER + len);
        codec::encode(messages, &mut bytes);
        self.push_bytes(bytes);
        true
    }

    /// Shows the peer that this member lives, unless something is on its way.
    pub(super) fn pulse(&self) {
        if self.bytes.get() == 0 {
            let mut bytes = Vec::with_capacity(frame::FRAME_HEADER);
            let start = frame::begin(&mut bytes);
            frame::finish(&mut bytes, start);
            self.push_bytes(bytes);
        }
    }

    fn push_bytes(&self, bytes: Vec<u8>) {
        self.bytes.set(self.bytes.get() + bytes.len());
        self.frames.borrow_mut().push_back(bytes);
        wake(&self.sender);
    }

    /// Waits for the next frames to send; [`Outbox::done`] follows when they are sent.
    pub(super) async fn next(&self) -> Vec<u8> {
        std::future::poll_fn(|context| match self.frames.borrow_mut().pop_front() {
            Some(bytes) => Poll::Ready(bytes),
            None => {
                self.sender.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// So many bytes are sent.
    pub(super) fn done(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        if self.bytes.get() == 0 {
            wake(&self.waiting);
        }
    }

    /// Waits until nothing waits to be sent.
    pub(super) async fn sent(&self) {
        std::future::poll_fn(|context| {
            if self.bytes.get() == 0 {
                return Poll::Ready(());
            }
            self.waiting.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

fn wake(waker: &Cell<Option<Waker>>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_lite::future::{block_on, poll_once};
    use revd_member::apply::command::CommandId;
    use revd_member::apply::outcome::{Outcome, Rest};

    fn message(bytes: usize) -> [PeerMessage; 1] {
        let result = Ok(Bytes::from(vec![7; bytes]));
        let outcome = Outcome { revision: 1, result, rest: Rest::NONE };
        [PeerMessage::LeaseAnswer { id: CommandId(1), outcome }]
    }

    #[test]
    fn a_guest_has_little_room_until_it_is_known() {
        let outbox = Outbox::of_guest(1, &["http://named:1".to_owned()]);
        outbox.open();
        assert!(outbox.push(&message(limits::PEER_GUEST_OUTBOX_BYTES)), "one always finds room");
        assert!(!outbox.push(&message(1)), "full");
        outbox.set_urls(vec!["http://row:1".to_owned()]);
        assert!(outbox.push(&message(1)));
        assert_eq!(outbox.urls(), ["http://row:1", "http://named:1"]);
        assert!(outbox.is_agreed("http://row:1") && !outbox.is_agreed("http://named:1"));
        outbox.set_named(&["http://row:1".to_owned()]);
        assert_eq!(outbox.urls(), ["http://row:1"]);
    }

    #[test]
    fn it_takes_messages_while_open_and_up_to_its_bound() {
        let outbox = Outbox::new(1, vec![]);
        assert!(!outbox.push(&message(1)), "no connection");
        outbox.open();
        assert!(outbox.push(&message(limits::PEER_OUTBOX_BYTES)), "one always finds room");
        assert!(!outbox.push(&message(1)), "full");
        outbox.pulse();
        let bytes = block_on(outbox.next());
        assert!(!outbox.push(&message(1)), "what is being sent counts");
        assert!(block_on(poll_once(outbox.sent())).is_none());
        outbox.done(bytes.len());
        block_on(outbox.sent());
        assert!(outbox.push(&message(1)));
        assert!(outbox.close() && !outbox.close());
        block_on(outbox.sent());
        outbox.open();
        assert!(block_on(poll_once(outbox.next())).is_none(), "what waited is dropped");
    }
}
