//! Which keys a watcher watches.

use revd_engine::mvcc::KeyRange;

/// A key or a range of keys, owned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchRange {
    start: Box<[u8]>,
    end: RangeEnd,
}

/// Where it ends; a later end is greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RangeEnd {
    /// With its start: it is one key.
    One,
    /// Before this key.
    Before(Box<[u8]>),
    /// Nowhere.
    Open,
}

impl WatchRange {
    /// The range that a request means; none if no key can be in it. An empty key stands for the
    /// smallest one.
    #[must_use]
    pub fn from_wire(key: &[u8], range_end: &[u8]) -> Option<Self> {
        let start = if key.is_empty() { &[0][..] } else { key };
        let end = match KeyRange::from_wire(start, range_end) {
            KeyRange::One(_) => RangeEnd::One,
            KeyRange::From(_) => RangeEnd::Open,
            range if range.is_empty() => return None,
            KeyRange::Span { end, .. } => RangeEnd::Before(end.into()),
        };
        Some(Self { start: start.into(), end })
    }

    /// The only key, if there is only one.
    #[must_use]
    pub fn only_key(&self) -> Option<&[u8]> {
        (self.end == RangeEnd::One).then_some(&self.start)
    }

    /// Where it ends, in the wire's form.
    #[must_use]
    pub fn wire_end(&self) -> &[u8] {
        match &self.end {
            RangeEnd::One => b"",
            RangeEnd::Before(end) => end,
            RangeEnd::Open => b"\0",
        }
    }

    /// Its first key.
    #[must_use]
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Whether a key is in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &*self.start && self.ends_after(key)
    }

    /// Whether a key lies before its end; the start is not looked at.
    #[must_use]
    pub fn ends_after(&self, key: &[u8]) -> bool {
        match &self.end {
            RangeEnd::One => key <= &*self.start,
            RangeEnd::Before(end) => key < &**end,
            RangeEnd::Open => true,
        }
    }

    /// Whether it ends behind another one; neither may be a single key.
    #[must_use]
    pub fn ends_behind(&self, other: &Self) -> bool {
        self.end > other.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_forms_mean_what_etcd_means() {
        let all = WatchRange::from_wire(b"", b"\0").unwrap();
        assert!(all.contains(b"\0") && all.contains(b"\xff\xff"));
        let one = WatchRange::from_wire(b"k", b"").unwrap();
        assert_eq!(one.only_key(), Some(&b"k"[..]));
        assert!(one.contains(b"k") && !one.contains(b"k\0") && !one.contains(b"j"));
        let prefix = WatchRange::from_wire(b"k", b"l").unwrap();
        assert!(prefix.contains(b"k") && prefix.contains(b"kz") && !prefix.contains(b"l"));
        assert!(WatchRange::from_wire(b"k", b"k").is_none() && WatchRange::from_wire(b"k", b"a").is_none());
        assert!(all.ends_behind(&prefix) && !prefix.ends_behind(&all));
    }
}
