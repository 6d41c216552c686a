//! Variable-length integers, as protobuf encodes them: seven bits a byte, low ones first, the top
//! bit says "more".

/// Bytes of the longest one.
pub const BYTES_MAX: usize = 10;

/// Encodes; the bytes and how many of them count.
#[must_use]
pub fn encode(mut value: u64) -> ([u8; BYTES_MAX], usize) {
    let mut bytes = [0; BYTES_MAX];
    let mut len = 0;
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        bytes[len] = (low & 0x7f) | if value > 0 { 0x80 } else { 0 };
        len += 1;
        if value == 0 {
            return (bytes, len);
        }
    }
}

/// Bytes it takes.
#[must_use]
pub fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends.
pub fn put(out: &mut Vec<u8>, value: u64) {
    if let Ok(byte @ 0..0x80) = u8::try_from(value) {
        out.push(byte);
        return;
    }
    let (bytes, len) = encode(value);
    out.extend_from_slice(&bytes[..len]);
}

/// Takes one from the front; none if it is cut short or too long.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let low = |byte: &u8| u64::from(byte & 0x7f);
    let (value, rest) = match *bytes {
        [first @ 0..0x80, rest @ ..] => (low(first), rest),
        [first, second @ 0..0x80, rest @ ..] => (low(first) | low(second) << 7, rest),
        [first, second, third @ 0..0x80, rest @ ..] => {
            (low(first) | low(second) << 7 | low(third) << 14, rest)
        }
        _ => return take_longer(bytes),
    };
    *bytes = rest;
    Some(value)
}

fn take_longer(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for ((at, byte), shift) in bytes.iter().enumerate().zip((0..64).step_by(7)) {
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_round_trip() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put(&mut bytes, value);
                let mut rest = &bytes[..];
                assert_eq!((take(&mut rest), rest.len()), (Some(value), 0));
                assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
            }
        }
        assert_eq!(take(&mut &[0xff; 11][..]), None);
    }
}
