//! Protobuf fields, read where they lie and written one by one: a run makes and reads millions of
//! small messages. Source: protobuf.dev, "Encoding".

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'m> {
    /// A number of any width.
    Number(u64),
    /// Bytes, a string, or a message.
    Bytes(&'m [u8]),
}

impl FieldValue<'_> {
    /// As a signed number; 0 for bytes.
    #[must_use]
    pub fn signed(self) -> i64 {
        match self {
            Self::Number(number) => number.cast_signed(),
            Self::Bytes(_) => 0,
        }
    }
}

/// The fields of a message; ends where the message does, or where it is no message any more.
#[derive(Debug, Clone, Copy)]
pub struct MessageFields<'m>(pub &'m [u8]);

impl<'m> Iterator for MessageFields<'m> {
    type Item = (u64, FieldValue<'m>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = take_varint(&mut self.0)?;
        let value = match tag & 7 {
            0 => FieldValue::Number(take_varint(&mut self.0)?),
            1 => FieldValue::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let len = usize::try_from(take_varint(&mut self.0)?).ok()?;
                FieldValue::Bytes(self.take(len)?)
            }
            5 => FieldValue::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'m> MessageFields<'m> {
    fn take(&mut self, len: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

fn take_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// The last value of a field; none if it is not there.
#[must_use]
pub fn field(message: &[u8], number: u64) -> Option<FieldValue<'_>> {
    MessageFields(message).filter(|(found, _)| *found == number).last().map(|(_, value)| value)
}

/// A number field; 0 if it is not there.
#[must_use]
pub fn number(message: &[u8], field_number: u64) -> i64 {
    field(message, field_number).map_or(0, FieldValue::signed)
}

/// A field of bytes; empty if it is not there.
#[must_use]
pub fn bytes(message: &[u8], field_number: u64) -> &[u8] {
    match field(message, field_number) {
        Some(FieldValue::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

/// The revision in a reply's header: field 3 of field 1 in every reply of etcd's API.
#[must_use]
pub fn revision(reply: &[u8]) -> i64 {
    match MessageFields(reply).next() {
        Some((1, FieldValue::Bytes(header))) => number(header, 3),
        _ => 0,
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

/// Appends a number, unless it is 0.
pub fn put_number(out: &mut Vec<u8>, field: u32, number: i64) {
    if number != 0 {
        put_varint(out, u64::from(field) << 3);
        put_varint(out, number.cast_unsigned());
    }
}

/// Appends bytes, unless there are none.
pub fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_part(out, field, |part| part.extend_from_slice(bytes));
    }
}

/// Appends a message, also an empty one.
pub fn put_part(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_varint(out, u64::from(field) << 3 | 2);
    // Most parts are shorter than 128 bytes: one byte of length is there already, more are made
    // room for.
    let at = out.len();
    out.push(0);
    write(out);
    let len = (out.len() - at - 1) as u64;
    if len < 0x80 {
        out[at] = (len & 0x7f) as u8;
        return;
    }
    let mut length = Vec::with_capacity(5);
    put_varint(&mut length, len);
    out.splice(at..=at, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        put_number(&mut out, 1, -5);
        put_number(&mut out, 2, 0);
        put_bytes(&mut out, 3, &[7; 300]);
        put_part(&mut out, 20, |part| put_bytes(part, 1, b"inner"));
        let fields: Vec<_> = MessageFields(&out).collect();
        assert_eq!(fields.len(), 3);
        assert_eq!(number(&out, 1), -5);
        assert_eq!(bytes(&out, 3), [7; 300]);
        assert_eq!(bytes(bytes(&out, 20), 1), b"inner");
        assert_eq!(number(&out, 2), 0);
    }

    #[test]
    fn what_is_no_message_ends_early() {
        for broken in [&[0x0a, 5, 1][..], &[0x08], &[0xff; 20], &[0x0b, 1]] {
            assert_eq!(MessageFields(broken).count(), 0, "{broken:?}");
        }
    }
}
