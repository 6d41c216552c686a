//! The life of a member's process, from the start of its cores to their end.
//!
//! ```text
//! Replaying --every edge listens--> Serving --signal--> Stopping --cores have ended--> Stopped
//!     '--signal--> Abandoned
//! ```
//!
//! How the cores stop one after the other is theirs to decide (`cores`): the edges drain, then the
//! log core, then the state core takes its last checkpoint.

/// Events of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    /// One more edge has applied the log and accepts clients.
    EdgeListens,
    /// Time has passed in which nothing else happened.
    Quiet,
    /// The operator asks for the end, by this signal.
    Signal(i32),
    /// Every core has ended.
    CoresEnded,
}

/// The next step of the process, after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ProcessStep {
    /// Wait for the next event.
    Wait,
    /// Say how much of the log is applied.
    TellProgress,
    /// Say that clients are served.
    Announce,
    /// Have the edges take no more work, and wait until all cores have ended.
    StopCores(i32),
    /// End at once: clients were promised nothing. The cores are not done, so that the data
    /// directory stays locked until the process has ended.
    Abandon(i32),
    /// Unlock the data directory and end: this signal was obeyed.
    End(i32),
}

/// Node view: how far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// The log is being applied; so many edges do not accept clients yet.
    Replaying {
        /// Those edges.
        edges_left: usize,
    },
    /// Clients are served.
    Serving,
    /// The cores come to their end.
    Stopping {
        /// Why.
        signal: i32,
    },
    /// Nothing is left to do.
    Over,
}

impl Lifecycle {
    /// Cores were started, with so many edges.
    #[must_use]
    pub fn new(edges: usize) -> Self {
        Self::Replaying { edges_left: edges }
    }

    /// The step that follows from an event.
    ///
    /// # Panics
    /// When an event comes that is not possible now.
    pub fn step(&mut self, event: ProcessEvent) -> ProcessStep {
        let (next, step) = match (*self, event) {
            (Self::Replaying { edges_left: 1 }, ProcessEvent::EdgeListens) => {
                (Self::Serving, ProcessStep::Announce)
            }
            (Self::Replaying { edges_left }, ProcessEvent::EdgeListens) => {
                (Self::Replaying { edges_left: edges_left - 1 }, ProcessStep::Wait)
            }
            (Self::Replaying { .. }, ProcessEvent::Quiet) => (*self, ProcessStep::TellProgress),
            (Self::Replaying { .. }, ProcessEvent::Signal(signal)) => {
                (Self::Over, ProcessStep::Abandon(signal))
            }
            (Self::Serving, ProcessEvent::Signal(signal)) => {
                (Self::Stopping { signal }, ProcessStep::StopCores(signal))
            }
            (Self::Stopping { signal }, ProcessEvent::CoresEnded) => (Self::Over, ProcessStep::End(signal)),
            (Self::Serving | Self::Stopping { .. }, ProcessEvent::Quiet | ProcessEvent::Signal(_)) => {
                (*self, ProcessStep::Wait)
            }
            (life, event) => panic!("{event:?} cannot come in {life:?}"),
        };
        *self = next;
        step
    }
}
