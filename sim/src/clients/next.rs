//! The next thing that a client does.

use revd_checker::Request;

use crate::time::Micros;

/// The next thing that a client does.
#[derive(Debug)]
pub(super) enum Next {
    /// It calls, and goes on when all of these are answered.
    Calls(Vec<Request>),
    /// It waits so long.
    Rest(Micros),
    /// It has nothing more to do in this run.
    Done,
}

impl From<Request> for Next {
    fn from(request: Request) -> Self {
        Self::Calls(vec![request])
    }
}
