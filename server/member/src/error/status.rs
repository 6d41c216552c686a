//! How a call ends that fails: a gRPC code and a text.

use std::borrow::Cow;

/// gRPC's status codes, by their numbers on the wire (grpc.io, "Status
/// codes and their use in gRPC").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// A code and the text that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
}

impl Status {
    /// A call ended with this code and text.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// One constructor for each code that a caller makes by hand.
macro_rules! constructors {
    ($($name:ident => $code:ident),*) => {
        impl Status {$(
            #[doc = concat!("[`Code::", stringify!($code), "`] with a text.")]
            #[must_use]
            pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
                Self::new(Code::$code, message)
            }
        )*}
    };
}

constructors!(
    unknown => Unknown, invalid_argument => InvalidArgument, deadline_exceeded => DeadlineExceeded,
    not_found => NotFound, resource_exhausted => ResourceExhausted, unimplemented => Unimplemented, internal => Internal
);
