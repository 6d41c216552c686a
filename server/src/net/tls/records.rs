//! Where a stream of TLS records ends: how much of a record has come that is not whole. rustls
//! keeps it and does not say so.

/// Type, version and length.
const HEADER_BYTES: usize = 5;

/// One direction of a session.
#[derive(Debug, Default)]
pub(super) struct Records {
    header: [u8; HEADER_BYTES],
    /// Bytes of the record that have come, of its header and behind it.
    come: usize,
}

impl Records {
    /// The next bytes of the stream.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let missing = if self.come < HEADER_BYTES {
                let take = bytes.len().min(HEADER_BYTES - self.come);
                self.header[self.come..self.come + take].copy_from_slice(&bytes[..take]);
                take
            } else {
                bytes.len().min(HEADER_BYTES + self.len() - self.come)
            };
            bytes = &bytes[missing..];
            self.come += missing;
            if self.come >= HEADER_BYTES && self.come == HEADER_BYTES + self.len() {
                self.come = 0;
            }
        }
    }

    /// Bytes of the record that is not whole.
    pub(super) fn unfinished(&self) -> usize {
        self.come
    }

    fn len(&self) -> usize {
        let [.., high, low] = self.header;
        usize::from(u16::from_be_bytes([high, low]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_not_whole_is_known_however_the_bytes_come() {
        let record = |len: u16| {
            let [high, low] = len.to_be_bytes();
            [&[0x17, 3, 3, high, low][..], &vec![9; usize::from(len)]].concat()
        };
        let all = [record(3), record(0), record(16_640), record(1), record(700)[..300].to_vec()].concat();
        for step in [1, 2, 5, 6, 1_000, all.len()] {
            let mut records = Records::default();
            all.chunks(step).for_each(|part| records.pass(part));
            assert_eq!(records.unfinished(), 300, "in steps of {step}");
            records.pass(&[0; 405]);
            assert_eq!(records.unfinished(), 0);
        }
    }
}
