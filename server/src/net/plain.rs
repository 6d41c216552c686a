//! Plain HTTP requests and replies, whichever version of HTTP carries them.

use std::future::Future;
use std::pin::Pin;

use ::http::StatusCode;

/// The answer to a plain HTTP request, under way.
pub(crate) type PlainCall = Pin<Box<dyn Future<Output = PlainReply>>>;

/// A reply to a plain HTTP request.
#[derive(Debug)]
pub(crate) struct PlainReply {
    pub status: StatusCode,
    pub kind: &'static str,
    pub text: String,
    /// The text is not sent: its length is all that is asked for.
    pub is_head_alone: bool,
    /// Headers beside the usual ones.
    pub more: Vec<(&'static str, String)>,
}

impl PlainReply {
    /// An answer.
    #[must_use]
    pub(crate) fn ok(kind: &'static str, text: String) -> Self {
        Self { status: StatusCode::OK, kind, text, is_head_alone: false, more: Vec::new() }
    }

    /// A refusal, as Go's library words it.
    #[must_use]
    pub(crate) fn error(status: StatusCode, text: &str) -> Self {
        let mut more = vec![no_sniffing()];
        if status == StatusCode::METHOD_NOT_ALLOWED {
            more.push(("allow", "GET".to_owned()));
        }
        Self { status, kind: TEXT, text: format!("{text}\n"), is_head_alone: false, more }
    }

    /// A refusal without a text.
    #[must_use]
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, kind: TEXT, text: String::new(), is_head_alone: false, more: Vec::new() }
    }

    /// Tells browsers to take the type as it is said.
    #[must_use]
    pub(crate) fn plain_text(mut self) -> Self {
        self.more.push(no_sniffing());
        self
    }

    /// Its headers.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers =
            vec![("content-type", self.kind.to_owned()), ("content-length", self.text.len().to_string())];
        headers.extend(self.more.iter().cloned());
        headers
    }
}

fn no_sniffing() -> (&'static str, String) {
    ("x-content-type-options", "nosniff".to_owned())
}

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";
pub(crate) const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The parameters of a query, in their order.
pub(super) type Parameters = Vec<(Vec<u8>, Vec<u8>)>;

/// The parameters of a query, as Go reads them: a parameter that cannot be decoded is left out.
pub(super) fn parameters(query: &str) -> Parameters {
    let parts = query.split('&').filter(|part| !part.is_empty() && !part.contains(';'));
    let decoded = parts.filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Some((unescaped(name)?, unescaped(value)?))
    });
    decoded.collect()
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || u8::try_from(char::from(bytes.next()?).to_digit(16)?).ok();
                digit()? << 4 | digit()?
            }
            byte => byte,
        });
    }
    Some(out)
}
