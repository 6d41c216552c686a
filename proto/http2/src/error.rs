//! Why a stream or a connection ends.

/// Error codes (RFC 9113, section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: a graceful end.
    NoError = 0,
    /// The peer broke the protocol.
    Protocol = 1,
    /// This side has failed.
    Internal = 2,
    /// The peer sent more than the window allows.
    FlowControl = 3,
    /// A frame on a stream that has ended.
    StreamClosed = 5,
    /// A frame of a wrong size.
    FrameSize = 6,
    /// The stream was not taken up: the request was not processed.
    RefusedStream = 7,
    /// The stream is no longer needed.
    Cancel = 8,
    /// A header block that cannot be decoded.
    Compression = 9,
    /// The peer exceeds one of our limits.
    EnhanceYourCalm = 11,
}

/// Why a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason} ({code:?})")]
pub struct Fault {
    /// The code in our GOAWAY.
    pub code: ErrorCode,
    /// The text in our GOAWAY, for the peer's log.
    pub reason: &'static str,
    /// The bound of [`crate::Config`] that was reached, if one was.
    pub limit: Option<Limit>,
}

/// A bound on what the peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `Config::resets_max`, `Config::resets_first`
    Resets,
    /// `Config::idle_frames_max`
    IdleFrames,
    /// `Config::settings_max`
    Settings,
    /// `Config::header_block_bytes_max`
    HeaderBlock,
}

impl Fault {
    /// A fault that no bound of ours has caused.
    #[must_use]
    pub const fn new(code: ErrorCode, reason: &'static str) -> Self {
        Self { code, reason, limit: None }
    }

    pub(crate) const fn too_much(limit: Limit) -> Self {
        let reason = match limit {
            Limit::Resets => "too many streams are reset",
            Limit::IdleFrames => "too many frames without content",
            Limit::Settings => "too many settings",
            Limit::HeaderBlock => "a header block is too long",
        };
        Self { code: ErrorCode::EnhanceYourCalm, reason, limit: Some(limit) }
    }

    pub(crate) const fn protocol(reason: &'static str) -> Self {
        Self::new(ErrorCode::Protocol, reason)
    }
}
