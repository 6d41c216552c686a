//! Where TLS records end in a stream: how much of a record has come that is not whole, which rustls
//! keeps and does not say, and how many records some bytes end.

/// Type, version and length.
const HEADER_BYTES: usize = 5;

/// One direction of a session.
#[derive(Debug, Default, Clone)]
pub(super) struct Records {
    header: [u8; HEADER_BYTES],
    /// Bytes of the record that have come, of its header and behind it.
    come: usize,
}

impl Records {
    /// The next bytes of the stream, as long as records are `left`, which counts those that end.
    /// How many bytes were passed.
    pub(super) fn pass(&mut self, mut bytes: &[u8], left: &mut usize) -> usize {
        let all = bytes.len();
        while !bytes.is_empty() && *left > 0 {
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
                *left -= 1;
            }
        }
        all - bytes.len()
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
            for part in all.chunks(step) {
                assert_eq!(records.pass(part, &mut { usize::MAX }), part.len());
            }
            assert_eq!(records.unfinished(), 300, "in steps of {step}");
            assert_eq!(records.pass(&[0; 405], &mut 1), 405);
            assert_eq!(records.unfinished(), 0);
        }
    }

    #[test]
    fn so_many_records_are_passed_and_no_more() {
        let all = [0x17, 3, 3, 0, 2, 9, 9].repeat(5);
        let mut records = Records::default();
        let mut left = 2;
        assert_eq!((records.pass(&all, &mut left), left), (14, 0));
        assert_eq!(records.pass(&all[14..], &mut left), 0);
        left = 2;
        assert_eq!((records.pass(&all[14..17], &mut left), left), (3, 2), "a part of one");
        assert_eq!((records.pass(&all[17..], &mut left), left), (11, 0));
    }
}
