//! Which keys a request means.

use crate::key_parts::KeyParts;

/// Keys, as etcd's `key` and `range_end` name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRange<'k> {
    /// One key.
    One(&'k [u8]),
    /// From `start` up to but not including `end`.
    Span {
        /// First key.
        start: &'k [u8],
        /// First key behind.
        end: &'k [u8],
    },
    /// Everything from this key on.
    From(&'k [u8]),
}

impl<'k> KeyRange<'k> {
    /// Every key.
    pub const ALL: KeyRange<'static> = KeyRange::From(&[]);

    /// No `range_end`: one key; `range_end` of one zero byte: everything from `key` on.
    #[must_use]
    pub fn from_wire(key: &'k [u8], range_end: &'k [u8]) -> Self {
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            end => Self::Span { start: key, end },
        }
    }

    /// The smallest key that may be in it.
    #[must_use]
    pub fn start(&self) -> &'k [u8] {
        match self {
            Self::One(key) | Self::Span { start: key, .. } | Self::From(key) => key,
        }
    }

    /// No key can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Span { start, end } if start >= end)
    }

    /// Whether `key` lies before the end; the start is not looked at.
    #[must_use]
    pub fn ends_after(&self, key: &[u8]) -> bool {
        self.ends_after_parts(KeyParts::from(key))
    }

    /// The same of a key in parts.
    pub(crate) fn ends_after_parts(&self, key: KeyParts<'_>) -> bool {
        match self {
            Self::One(one) => key <= **one,
            Self::Span { end, .. } => key < **end,
            Self::From(_) => true,
        }
    }

    /// Whether `key` is in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start() && self.ends_after(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_forms_mean_what_etcd_means() {
        let all = KeyRange::from_wire(b"\0", b"\0");
        assert!(all.contains(b"\0") && all.contains(b"zz"));
        let one = KeyRange::from_wire(b"a", b"");
        assert!(one.contains(b"a") && !one.contains(b"a\0") && !one.contains(b""));
        let prefix = KeyRange::from_wire(b"a", b"b");
        assert!(prefix.contains(b"a") && prefix.contains(b"azz") && !prefix.contains(b"b"));
        assert!(KeyRange::from_wire(b"b", b"a").is_empty() && KeyRange::from_wire(b"b", b"b").is_empty());
        assert!(!KeyRange::from_wire(b"b", b"a").contains(b"b"));
    }
}
