//! How many calls of each method were begun, and how each of them ended.

use crate::observe::count::Count;

/// The codes of gRPC in their order, by the names that go-grpc-prometheus gives them.
pub const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const CANCELED: usize = 1;

/// Methods that there is room for.
pub const METHODS_MAX: usize = 64;

/// Edge view: one per method, in the order of their table.
#[derive(Debug)]
pub struct CallCounters([MethodCounters; METHODS_MAX]);

/// Those of a method: written by its edge alone, read by anyone.
#[derive(Debug, Default)]
pub struct MethodCounters {
    /// Calls that were begun.
    pub started: Count,
    /// Calls that have ended, by code.
    pub ended: [Count; CODES.len()],
}

/// A call that goes on. One that is dropped before it has ended was cancelled.
#[derive(Debug)]
pub struct CountedCall<'c> {
    method: &'c MethodCounters,
    code: usize,
}

impl Default for CallCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| MethodCounters::default()))
    }
}

impl CallCounters {
    /// Those of a method.
    #[must_use]
    pub fn method(&self, number: usize) -> &MethodCounters {
        &self.0[number]
    }

    /// A call of this method begins.
    pub fn begin(&self, number: usize) -> CountedCall<'_> {
        let method = &self.0[number];
        method.started.set(method.started.get() + 1);
        CountedCall { method, code: CANCELED }
    }
}

impl CountedCall<'_> {
    /// It ends with this code.
    pub fn end(mut self, code: u8) {
        self.code = usize::from(code);
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.method.ended.get(self.code) {
            ended.set(ended.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_once_with_its_code_or_is_cancelled() {
        let calls = CallCounters::default();
        let given_up = calls.begin(1);
        calls.begin(1).end(0);
        calls.begin(1).end(14);
        let ended = |code: &str| {
            let code = CODES.iter().position(|name| *name == code).unwrap();
            calls.method(1).ended[code].get()
        };
        assert_eq!((calls.method(1).started.get(), ended("OK"), ended("Unavailable")), (3, 1, 1));
        assert_eq!(ended("Canceled"), 0);
        drop(given_up);
        assert_eq!(ended("Canceled"), 1);
        assert_eq!(calls.method(0).started.get(), 0);
    }
}
