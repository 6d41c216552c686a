//! Protobuf fields written by hand, where a reply is put together from stored bytes.

pub use revd_engine::varint::put as put_varint;

/// Appends a length-delimited field.
pub fn put_field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a number field, unless it is zero.
pub fn put_number(out: &mut Vec<u8>, tag: u8, value: i64) {
    if value != 0 {
        out.push(tag);
        put_varint(out, value.cast_unsigned());
    }
}
