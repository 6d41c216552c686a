//! When certificates of this member end, for those who look at its metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::observe::exposition::{Exposition, Kind};

/// Node view: the ends of the certificates of one kind of port, as they were loaded last.
#[derive(Debug)]
pub struct CertificateEnds {
    /// `client` or `peer`.
    whom: &'static str,
    /// Files, and seconds since 1970.
    ends: Mutex<Vec<(String, i64)>>,
}

impl CertificateEnds {
    /// None are loaded.
    #[must_use]
    pub fn new(whom: &'static str) -> Self {
        Self { whom, ends: Mutex::default() }
    }

    fn ends(&self) -> MutexGuard<'_, Vec<(String, i64)>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These certificates are in use from now on.
    pub fn set(&self, mut ends: Vec<(String, i64)>) {
        // One file may serve both sides of connections.
        ends.sort();
        ends.dedup();
        *self.ends() = ends;
    }
}

/// Adds the metric, if there are any certificates.
pub(super) fn write(of: &[std::sync::Arc<CertificateEnds>], to: &mut Exposition) {
    if of.iter().all(|of| of.ends().is_empty()) {
        return;
    }
    let help = "When a certificate of this member ends, in seconds since 1970.";
    let mut family = to.family("revd_certificate_end_seconds", Kind::Gauge, help);
    for of in of {
        for (file, end) in &*of.ends() {
            family.sample("", &[("tls_of", of.whom), ("file", file)], *end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Prometheus takes nothing of a text that has a sample twice.
    #[test]
    fn a_file_for_both_sides_of_connections_is_shown_once() {
        let of = ["client", "peer"].map(|whom| Arc::new(CertificateEnds::new(whom)));
        let shown = || {
            let mut text = Exposition::default();
            write(&of, &mut text);
            let text = text.into_text();
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let set = |ends: &[(&str, i64)]| {
            of[1].set(ends.iter().map(|(file, end)| ((*file).to_owned(), *end)).collect());
        };
        let sample = |file: &str, end: i64| {
            format!("revd_certificate_end_seconds{{tls_of=\"peer\",file=\"{file}\"}} {end}")
        };
        assert!(shown().is_empty(), "there are no certificates");
        set(&[("b", 7), ("a", 9), ("b", 7)]);
        assert_eq!(shown(), [sample("a", 9), sample("b", 7)]);
        set(&[("b", 8)]);
        assert_eq!(shown(), [sample("b", 8)]);
    }
}
