//! The names of a method, for tools and figures.

/// A method as tools name it.
#[derive(Debug)]
pub(crate) struct NamedMethod {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    /// Which sides of it are streams.
    pub(super) kind: &'static str,
}

impl NamedMethod {
    /// Of a path `/service/name`.
    pub(super) const fn new(path: &'static str, kind: &'static str) -> Self {
        let (_, path) = path.split_at(1);
        let mut at = 0;
        while path.as_bytes()[at] != b'/' {
            at += 1;
        }
        let (service, name) = path.split_at(at);
        let (_, name) = name.split_at(1);
        Self { service, name, kind }
    }
}
