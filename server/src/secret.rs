//! Bytes that must not be seen: passwords and tokens.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes that no log line or error shows, and that are wiped when they are freed. How long two of
/// the same length are compared says nothing of what is in them.
#[derive(Clone, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Secret {
    /// The bytes, for what has to work with them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// No more than its first bytes, in no more memory than they take; all others are wiped now.
    #[must_use]
    pub fn cut_to(self, bytes_max: usize) -> Self {
        // A copy: what is cut off would stay allocated. So would the room of a message's field that
        // comes twice, first with much in it.
        self.0[..bytes_max.min(self.0.len())].to_vec().into()
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[hidden]")
    }
}

/// Bytes that nobody can guess.
///
/// # Panics
/// Where the kernel has no random numbers.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let read = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += read.expect("Linux has random numbers for everybody");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_whole() {
        let secret = |text: &str| Secret::from(text.to_owned());
        assert_eq!(secret("hunter2"), secret("hunter2"));
        for other in ["", "hunter", "hunter22", "hunter3", "Hunter2"] {
            assert_ne!(secret("hunter2"), secret(other));
        }
        assert_eq!(secret(""), secret(""));
    }

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Some(Secret::from("hunter2".to_owned()))), "Some([hidden])");
    }

    #[test]
    fn a_secret_that_is_cut_holds_no_more_than_its_beginning() {
        let cut = Secret::from("hunter2".repeat(100_000)).cut_to(72);
        assert_eq!((cut.expose(), cut.0.capacity()), ("hunter2".repeat(100).as_bytes()[..72].as_ref(), 72));
        for short in ["", "hunter2"] {
            let mut text = String::with_capacity(1 << 20);
            text.push_str(short);
            let cut = Secret::from(text).cut_to(7);
            assert_eq!((cut.expose(), cut.0.capacity()), (short.as_bytes(), short.len()));
        }
    }
}
