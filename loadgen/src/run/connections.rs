//! All connections of one thread, and the epoll instance that knows them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event};

use crate::clock::SECOND;
use crate::login;
use crate::plan::Plan;
use crate::run::links::Link;

/// A connection that was lost is tried again this often, so long.
const RECONNECT_INTERVAL: u64 = 200_000_000;
const RECONNECT_PATIENCE: u64 = 5 * SECOND;

/// Connections, those of callers first.
pub(super) struct Connections {
    pub(super) epoll: OwnedFd,
    pub(super) links: Vec<Link>,
}

impl Connections {
    /// None yet.
    ///
    /// # Errors
    /// When the system has no epoll instance.
    pub(super) fn new() -> anyhow::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("making an epoll instance")?;
        Ok(Self { epoll, links: Vec::new() })
    }

    /// Makes the connection that has this number among those of all threads.
    ///
    /// # Errors
    /// When its endpoint cannot be reached.
    pub(super) fn add(&mut self, plan: &Plan, number: usize, is_watch: bool) -> anyhow::Result<()> {
        let endpoint = &plan.endpoints[number % plan.endpoints.len()];
        if plan.connects() {
            self.links.push(Link::anew(endpoint)?);
            return Ok(());
        }
        let mut link = Link::new(endpoint, is_watch);
        let client = login::connect(endpoint, Duration::from_secs(5))?;
        link.attach(&self.epoll, self.links.len(), client)?;
        self.links.push(link);
        Ok(())
    }

    /// Sends what waits on all of them; those that are lost, and why.
    pub(super) fn flush(&mut self) -> Vec<(usize, io::Error)> {
        let Self { epoll, links } = self;
        let flushed = links.iter_mut().enumerate().map(|(number, link)| (number, link.flush(epoll, number)));
        flushed.filter_map(|(number, result)| Some((number, result.err()?))).collect()
    }

    /// Whether a part of a request waits on any of them, behind what was sent of it.
    pub(super) fn have_unsent(&self) -> bool {
        self.links.iter().any(Link::has_unsent)
    }

    /// Waits for at most `patience` nanoseconds; how many events there are.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn wait(&self, patience: u64, events: &mut [Event]) -> anyhow::Result<usize> {
        let nanos = i64::try_from(patience % SECOND).unwrap_or(0);
        let timeout = Timespec { tv_sec: i64::try_from(patience / SECOND).unwrap_or(0), tv_nsec: nanos };
        match epoll::wait(&self.epoll, events, Some(&timeout)) {
            Ok(ready) => Ok(ready),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error).context("waiting for connections"),
        }
    }

    /// Gives a connection up that is broken; false when it was given up before.
    pub(super) fn lose(&mut self, number: usize, now: u64) -> bool {
        let link = &mut self.links[number];
        let was_there = link.detach(&self.epoll).is_some();
        if was_there {
            (link.lost_at, link.try_at) = (now, now);
        }
        was_there
    }

    /// Tries those again that were lost, and lets slow watchers read whose rest is over.
    ///
    /// # Errors
    /// When one could not be made anew for too long.
    pub(super) fn sweep(&mut self, now: u64) -> anyhow::Result<()> {
        let mut result = Ok(());
        for number in 0..self.links.len() {
            result = result.and(self.try_again(number, now));
            let link = &mut self.links[number];
            if link.rests_until != 0 && link.rests_until <= now {
                link.rests_until = 0;
                link.listen(&self.epoll, number);
            }
        }
        result
    }

    fn try_again(&mut self, number: usize, now: u64) -> anyhow::Result<()> {
        let link = &mut self.links[number];
        if link.client.is_some() || link.is_watch || link.anew.is_some() || now < link.try_at {
            return Ok(());
        }
        link.try_at = now + RECONNECT_INTERVAL;
        match login::connect(&link.endpoint, Duration::from_millis(100)) {
            Ok(client) => drop(link.attach(&self.epoll, number, client)),
            Err(error) if now > link.lost_at + RECONNECT_PATIENCE => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }
}
