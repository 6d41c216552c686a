//! Connections of one thread, as its epoll instance knows them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::login;
use crate::wire::ClientConnection;
use crate::wire::client::addresses;

/// A connection, or none when it was lost.
pub(super) struct Link {
    pub(super) endpoint: String,
    pub(super) client: Option<ClientConnection>,
    /// Waits for the socket to take more.
    pub(super) is_blocked: bool,
    pub(super) is_dirty: bool,
    pub(super) lost_at: u64,
    pub(super) try_at: u64,
    /// Slow watchers read again then.
    pub(super) rests_until: u64,
    pub(super) is_watch: bool,
    /// Where it goes to, if each operation makes it anew.
    pub(super) anew: Option<SocketAddr>,
}

impl Link {
    /// Without a connection.
    pub(super) fn new(endpoint: &str, is_watch: bool) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            client: None,
            is_blocked: false,
            is_dirty: false,
            lost_at: 0,
            try_at: 0,
            rests_until: 0,
            is_watch,
            anew: None,
        }
    }

    /// For operations that connect themselves.
    ///
    /// # Errors
    /// When the endpoint's name is not known.
    pub(super) fn anew(endpoint: &str) -> anyhow::Result<Self> {
        let address = *addresses(endpoint)?.first().context("an endpoint without an address")?;
        Ok(Self { anew: Some(address), ..Self::new(endpoint, false) })
    }

    /// Whether a caller can call on it.
    pub(super) fn can_call(&self) -> bool {
        self.client.is_some() || self.anew.is_some()
    }

    /// Whether a part of a request is not sent yet, for its socket or the server's window is full.
    pub(super) fn has_unsent(&self) -> bool {
        self.is_blocked || self.client.as_ref().is_some_and(ClientConnection::has_backlog)
    }

    /// Takes a connection, under its number.
    pub(super) fn attach(
        &mut self,
        epoll: &OwnedFd,
        number: usize,
        client: ClientConnection,
    ) -> io::Result<()> {
        epoll::add(epoll, &client, EventData::new_u64(number as u64), EventFlags::IN)?;
        self.client = Some(client);
        (self.is_dirty, self.is_blocked) = (true, false);
        Ok(())
    }

    /// Gives its connection up.
    pub(super) fn detach(&mut self, epoll: &OwnedFd) -> Option<ClientConnection> {
        let client = self.client.take()?;
        let _ = epoll::delete(epoll, &client);
        self.is_blocked = false;
        Some(client)
    }

    /// Begins another connection, in place of the one before.
    ///
    /// # Errors
    /// When the system has no socket, or a login is refused.
    pub(super) fn connect_anew(
        &mut self,
        epoll: &OwnedFd,
        number: usize,
        address: SocketAddr,
    ) -> anyhow::Result<()> {
        self.close(epoll);
        let mut client = ClientConnection::begin(&self.endpoint, address)?;
        client.set_token(login::token(&self.endpoint)?);
        Ok(self.attach(epoll, number, client)?)
    }

    /// Closes the connection, as a client does that needs it no more.
    pub(super) fn close(&mut self, epoll: &OwnedFd) {
        if let Some(client) = self.detach(epoll) {
            client.close();
        }
    }

    /// Registers the readiness that the connection waits for.
    pub(super) fn listen(&self, epoll: &OwnedFd, number: usize) {
        let Some(client) = &self.client else { return };
        let mut flags = if self.rests_until == 0 { EventFlags::IN } else { EventFlags::empty() };
        flags.set(EventFlags::OUT, self.is_blocked);
        let _ = epoll::modify(epoll, client, EventData::new_u64(number as u64), flags);
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) fn flush(&mut self, epoll: &OwnedFd, number: usize) -> io::Result<()> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        let Some(client) = &mut self.client else { return Ok(()) };
        let is_done = client.flush()?;
        if is_done == self.is_blocked {
            self.is_blocked = !is_done;
            self.listen(epoll, number);
        }
        Ok(())
    }
}
