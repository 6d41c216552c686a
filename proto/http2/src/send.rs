//! Sending: header blocks at once, data as flow control allows.

use bytes::Bytes;

use crate::connection::{Connection, Role, WAITING_SPARE};
use crate::error::ErrorCode;
use crate::frame::{self, flag, kind};
use crate::hpack;
use crate::out::Out;
use crate::send_queue::StreamEnd;

impl<T> Connection<T> {
    /// Sends a header block before any data of the stream; with `end`, it also ends the stream.
    pub fn send_head(&mut self, id: u32, block: &[u8], end: bool) {
        if !self.streams.contains_key(&id) {
            return; // reset in the meantime
        }
        self.put_block(id, block, end);
        if end {
            self.end_sending(id);
        }
    }

    fn put_block(&mut self, id: u32, block: &[u8], end: bool) {
        let announcement = self.table_announcement.take().map(|(lowest, now)| {
            let mut announced = Vec::new();
            hpack::resized(&mut announced, lowest);
            if now > lowest {
                hpack::resized(&mut announced, now);
            }
            announced.extend_from_slice(block);
            announced
        });
        self.has_sent = true;
        let block = announcement.as_deref().unwrap_or(block);
        let mut parts = block.chunks(self.peer.frame_bytes).peekable();
        let mut next = (kind::HEADERS, if end { flag::END_STREAM } else { 0 });
        loop {
            let part = parts.next().unwrap_or_default();
            let is_last = parts.peek().is_none();
            let flags = next.1 | if is_last { flag::END_HEADERS } else { 0 };
            self.out.put(&frame::head(part.len(), next.0, flags, id));
            self.out.put(part);
            if is_last {
                return;
            }
            next = (kind::CONTINUATION, 0);
        }
    }

    /// Sends data as far as the windows allow, and queues the rest.
    pub fn send_data(&mut self, id: u32, chunks: &[Bytes]) {
        let bytes = chunks.iter().map(Bytes::len).sum();
        if bytes == 0 {
            return;
        }
        let put = |out: &mut Out| chunks.iter().for_each(|chunk| out.put_shared(chunk));
        if self.put_at_once(id, bytes, false, put) {
            return self.drained.push(id);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let outgoing = stream.outgoing.get_or_insert_default();
        chunks.iter().for_each(|chunk| outgoing.push(chunk));
        self.held += bytes;
        self.held_apart += if stream.is_apart { bytes } else { 0 };
        self.make_sendable(id);
        self.pump();
    }

    /// Sends the last data of a stream, as a copy.
    pub fn send_last(&mut self, id: u32, data: &[&[u8]]) {
        let bytes = data.iter().map(|part| part.len()).sum();
        if !self.put_at_once(id, bytes, true, |out| data.iter().for_each(|part| out.put(part))) {
            self.send_data(id, &[data.concat().into()]);
            self.send_end(id, None);
        }
    }

    /// Sends data as one frame; false if it must be queued instead.
    fn put_at_once(&mut self, id: u32, bytes: usize, end: bool, put: impl FnOnce(&mut Out)) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return true };
        let must_wait = stream.outgoing.is_some() || !self.sendable.is_empty();
        if must_wait || !self.take_room(id, bytes) {
            return false;
        }
        self.out.put(&frame::head(bytes, kind::DATA, if end { flag::END_STREAM } else { 0 }, id));
        put(&mut self.out);
        if end {
            self.end_sending(id);
        }
        true
    }

    /// Takes one frame of data out of the windows; false if they do not allow it.
    fn take_room(&mut self, id: u32, bytes: usize) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let room = stream.send_window(&self.peer).min(self.send_window).max(0).cast_unsigned();
        if bytes > self.peer.frame_bytes || bytes as u64 > room || self.out.len() > self.config.out_bytes_max
        {
            return false;
        }
        stream.send_credit -= bytes as i64;
        self.send_window -= bytes as i64;
        self.has_sent = true;
        true
    }

    /// Ends a stream behind its queued data, with trailers if there are any.
    pub fn send_end(&mut self, id: u32, trailers: Option<&[u8]>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match trailers {
            Some(trailers) if stream.queued() == 0 => {
                self.put_block(id, trailers, true);
                return self.end_sending(id);
            }
            None if self.put_at_once(id, 0, true, |_| {}) => return,
            _ => {}
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let end = trailers.map_or(StreamEnd::Data, |block| StreamEnd::Trailers(block.to_vec()));
        stream.outgoing.get_or_insert_default().end = Some(end);
        self.make_sendable(id);
        self.pump();
    }

    /// Sends a short reply: response headers, one frame of data, trailers. False if the windows do
    /// not allow it at once, or it is longer than a frame; nothing is sent then.
    pub fn send_short(&mut self, id: u32, head: &[u8], data: &[&[u8]], trailers: &[u8]) -> bool {
        let bytes: usize = data.iter().map(|part| part.len()).sum();
        if !self.streams.contains_key(&id) {
            return true;
        }
        if !self.take_room(id, bytes) {
            return false;
        }
        self.put_block(id, head, false);
        self.out.put(&frame::head(bytes, kind::DATA, 0, id));
        data.iter().for_each(|part| self.out.put(part));
        self.put_block(id, trailers, true);
        self.end_sending(id);
        true
    }

    /// Ends our half of the stream.
    fn end_sending(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_sending = false;
        if !stream.is_receiving {
            self.forget(id);
        } else if self.role == Role::Server {
            // The response is complete before the request is (RFC 9113, section 8.1).
            self.reset(id, ErrorCode::NoError);
        }
    }

    pub(crate) fn make_sendable(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.is_queued
            && let Some(outgoing) = &stream.outgoing
        {
            if outgoing.bytes() > 0 && stream.send_window(&self.peer) <= 0 {
                return self.note_blocked(id);
            }
            stream.is_queued = true;
            self.sendable.push_back(id);
            if self.sendable.len() > WAITING_SPARE + 2 * self.streams.len() {
                self.sendable.retain(|id| self.streams.contains_key(id));
            }
        }
    }

    /// Sends queued data, a frame of each stream in turn, until the connection's window or the room
    /// in `out` is used up. To be called when `out` has become shorter.
    pub fn pump(&mut self) {
        while self.out.len() < self.config.out_bytes_max
            && let Some(id) = self.sendable.pop_front()
        {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.is_queued = false;
            if stream.queued() > 0 && self.send_window <= 0 {
                stream.is_queued = true;
                self.sendable.push_front(id);
                return;
            }
            self.send_frame(id);
            self.make_sendable(id);
        }
    }

    /// Sends one frame of queued data, or the end, of a stream.
    fn send_frame(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let room = stream.send_window(&self.peer).min(self.send_window).max(0).cast_unsigned();
        let Some(outgoing) = &mut stream.outgoing else { return };
        let frame_bytes = self.peer.frame_bytes.min(usize::try_from(room).unwrap_or(usize::MAX));
        let bytes = outgoing.bytes().min(frame_bytes);
        let is_last = bytes == outgoing.bytes();
        let ends = is_last && matches!(outgoing.end, Some(StreamEnd::Data));
        if bytes > 0 || ends {
            self.has_sent = true;
            self.out.put(&frame::head(bytes, kind::DATA, if ends { flag::END_STREAM } else { 0 }, id));
            stream.send_credit -= bytes as i64;
            self.send_window -= bytes as i64;
            let (let_go, is_apart) = (outgoing.take(bytes, &mut self.out), stream.is_apart);
            self.let_go(let_go, is_apart);
        }
        if !is_last {
            return;
        }
        let outgoing = self.streams.get_mut(&id).and_then(|stream| stream.outgoing.take());
        let end = outgoing.and_then(|outgoing| outgoing.end);
        match end {
            Some(StreamEnd::Trailers(block)) => {
                self.put_block(id, &block, true);
                self.end_sending(id);
            }
            Some(StreamEnd::Data) => self.end_sending(id),
            None => self.drained.push(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Config;

    /// A client that opens no window, and lets calls end that wait for one, without an end.
    #[test]
    fn streams_that_end_while_they_wait_to_send_are_not_kept() {
        let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
        for id in (1..20_001).step_by(2) {
            connection.insert(id, (), false);
            connection.send_data(id, &[vec![7; 40_000].into()]);
            if id > 3 {
                connection.reset(id, ErrorCode::Cancel);
            }
        }
        assert_eq!((connection.open_streams(), connection.send_window), (2, 0));
        assert!(connection.sendable.len() <= 100, "{} wait", connection.sendable.len());
    }

    /// A chunk is in memory until all of it is sent: a thousand streams whose last byte is never
    /// read hold a thousand chunks.
    #[test]
    fn a_chunk_counts_until_all_of_it_is_sent() {
        let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
        connection.insert(1, (), true);
        let sent = connection.out.len();
        connection.out.advance(sent);
        let window = usize::try_from(connection.send_window).unwrap();
        let chunk = Bytes::from(vec![7; window]);
        connection.send_data(1, &[chunk.clone(), chunk.slice(..1)]);
        while !connection.out.is_empty() {
            let waiting = connection.out.len();
            connection.out.advance(waiting);
            connection.pump();
        }
        assert_eq!((connection.queued(1), connection.backlog()), (1, 1));
        let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
        connection.insert(1, (), true);
        connection.send_data(1, &[Bytes::from(vec![7; window + 1])]);
        let waiting = connection.out.len();
        connection.out.advance(waiting);
        assert_eq!((connection.queued(1), connection.backlog()), (1, window + 1));
        connection.reset(1, ErrorCode::Cancel);
        assert_eq!(connection.backlog(), connection.out.len());
    }

    #[test]
    fn data_that_counts_apart_is_in_the_backlog_until_it_is_sent_or_its_stream_ends() {
        let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
        let window = usize::try_from(connection.send_window).unwrap();
        for id in [1, 3, 5] {
            connection.insert(id, (), true);
            connection.send_data(id, &[Bytes::from(vec![7; window + 1])]);
            assert_eq!(connection.backlog_apart(), 0);
        }
        connection.count_apart(3);
        connection.count_apart(5);
        connection.count_apart(5);
        assert_eq!(connection.backlog_apart(), 2 * (window + 1), "data that was queued before counts too");
        connection.send_data(5, &[Bytes::from_static(b"more")]);
        assert_eq!(connection.backlog_apart(), 2 * (window + 1) + 4);
        assert!(connection.backlog() > 3 * (window + 1));
        connection.reset(3, ErrorCode::Cancel);
        assert_eq!(connection.backlog_apart(), window + 1 + 4);
        connection.send_window += 10 * window as i64;
        connection.streams.get_mut(&5).unwrap().send_credit += 10 * window as i64;
        while connection.queued(5) > 0 {
            let waiting = connection.out.len();
            connection.out.advance(waiting);
            connection.make_sendable(5);
            connection.pump();
        }
        assert_eq!(connection.backlog_apart(), 0);
    }
}
