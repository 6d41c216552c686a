//! Shared by micro-benchmarks: keys and values of a fixed shape. Whole servers are measured by
//! `loadgen`.

use bytes::Bytes;

/// Key number `number`: 64 bytes, like the ones Kubernetes makes.
#[must_use]
pub fn key(number: u64) -> Bytes {
    format!(
        "/registry/pods/namespace-{:04}/pod-{number:010}-{:019}",
        number % 1000,
        number.wrapping_mul(0x9E37_79B9) % 10_u64.pow(19)
    )
    .into()
}

/// Where all keys lie: first key, and the first behind the last.
#[must_use]
pub fn all_keys() -> (Bytes, Bytes) {
    (Bytes::from_static(b"/registry/pods/"), Bytes::from_static(b"/registry/pods0"))
}

/// A value of `len` bytes that does not compress to nothing.
#[must_use]
pub fn value(len: usize, seed: u64) -> Bytes {
    let mut state = seed | 1;
    let byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32).to_le_bytes()[0]
    };
    std::iter::repeat_with(byte).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_they_say() {
        assert_eq!(key(123).len(), 64);
        let (first, end) = all_keys();
        assert!(first < key(0) && key(u64::MAX / 2) < end && key(1) != key(2));
    }
}
