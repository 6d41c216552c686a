//! A state that another member has sent, on its way into the machine's place.
//!
//! ```text
//! Idle --the log begins again--> Waiting --no checkpoint is written, no entry half applied-->
//!   Naming --its file is the tree file--> Named --the machine goes on from it--> Idle
//! ```

use crate::apply::received::ReceivedState;

/// State core view.
#[derive(Debug, Default)]
pub(super) struct Installing {
    state: Option<Box<ReceivedState>>,
    phase: InstallPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum InstallPhase {
    #[default]
    Idle,
    Waiting,
    Naming,
    Named,
}

/// The next step of an installation.
pub(super) enum InstallStep {
    /// Nothing can be done now.
    Wait,
    /// Its file is to become the tree file.
    Name,
    /// The machine is to go on from it.
    Replace(Box<ReceivedState>),
}

impl Installing {
    /// Entries wait until the state is in its place.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase != InstallPhase::Idle
    }

    /// The log begins again behind this state.
    ///
    /// # Panics
    /// If one is under way already: their files have one name.
    pub(super) fn begin(&mut self, state: Box<ReceivedState>) {
        assert!(self.phase == InstallPhase::Idle, "one state is installed at a time");
        (self.state, self.phase) = (Some(state), InstallPhase::Waiting);
    }

    /// Its file is the tree file.
    ///
    /// # Panics
    /// If that was not asked for.
    pub(super) fn named(&mut self) {
        assert!(self.phase == InstallPhase::Naming, "no file is being named");
        self.phase = InstallPhase::Named;
    }

    /// The next step; `is_at_rest`: no checkpoint is being written, and no entry is half applied.
    pub(super) fn next(&mut self, is_at_rest: bool) -> InstallStep {
        match self.phase {
            InstallPhase::Waiting if is_at_rest => {
                self.phase = InstallPhase::Naming;
                InstallStep::Name
            }
            InstallPhase::Named => {
                self.phase = InstallPhase::Idle;
                InstallStep::Replace(self.state.take().expect("a state that is named is here"))
            }
            InstallPhase::Idle | InstallPhase::Waiting | InstallPhase::Naming => InstallStep::Wait,
        }
    }
}
