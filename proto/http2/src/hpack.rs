//! Header compression (RFC 7541).
//!
//! The decoder knows all of it. There is no encoder with a table: the header blocks that we send
//! are short and mostly constant, and are put together from [`literal`] and [`indexed`] fields.

use std::collections::VecDeque;

use crate::huffman;

/// Bytes of the dynamic table, unless a setting says otherwise (RFC 9113, section 6.5.2).
pub const TABLE_BYTES: usize = 4096;
/// Bytes that a table entry counts beside its name and value (RFC 7541, section 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// The static table (RFC 7541, appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
/// First index of the dynamic table.
pub const DYNAMIC: usize = STATIC.len() + 1;

/// Kinds of header fields, by the first bits of their first byte (section 6).
const INDEXED: u8 = 0x80;
const INSERTED: u8 = 0x40;
const RESIZED: u8 = 0x20;

/// A header block that cannot be decoded. The connection must end: the HPACK tables of both sides
/// differ from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

#[derive(Debug)]
struct Entry {
    name_bytes: usize,
    /// The name, followed by the value.
    text: Box<[u8]>,
}

impl Entry {
    fn split(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name_bytes)
    }

    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }
}

/// The decoding side of a connection: the dynamic table that the peer's header blocks have built.
#[derive(Debug)]
pub struct Decoder {
    /// The dynamic table, newest entry first.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
    generation: u64,
    /// Scratch space for decoded literals.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max: TABLE_BYTES,
            generation: 0,
            name: Vec::new(),
            value: Vec::new(),
        }
    }
}

/// Whether a field's name is in a table or in the block.
enum Name {
    Indexed(usize),
    Literal,
}

impl Decoder {
    /// The generation of the dynamic table, which changes whenever the table does: a block decodes
    /// to the same fields as before while the generation is unchanged.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Decodes a block, field by field.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(&mut self, mut block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), Malformed> {
        let mut is_first = true;
        while let Some(first) = block.first().copied() {
            if first & INDEXED != 0 {
                let index = take_integer(&mut block, 7)?;
                let (name, value) = self.entry(index)?;
                field(name, value);
            } else if first & INSERTED != 0 {
                let name = self.take_field(&mut block, 6)?;
                let (name, value) = self.literal(&name)?;
                field(name, value);
                let entry = Entry { name_bytes: name.len(), text: [name, value].concat().into() };
                self.insert(entry);
            } else if first & RESIZED != 0 {
                // Only at the beginning of a block (section 4.2).
                let bytes = take_integer(&mut block, 5)?;
                if !is_first || bytes > TABLE_BYTES {
                    return Err(Malformed);
                }
                self.bytes_max = bytes;
                self.evict(0);
                self.generation += 1;
                continue;
            } else {
                let name = self.take_field(&mut block, 4)?;
                let (name, value) = self.literal(&name)?;
                field(name, value);
            }
            is_first = false;
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Malformed> {
        if let Some((name, value)) = index.checked_sub(1).and_then(|at| STATIC.get(at)) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let at = index.checked_sub(DYNAMIC).ok_or(Malformed)?;
        self.entries.get(at).map(Entry::split).ok_or(Malformed)
    }

    /// Reads a field with a literal value, and perhaps a literal name, into `name` and `value`.
    fn take_field(&mut self, block: &mut &[u8], prefix_bits: u32) -> Result<Name, Malformed> {
        let index = take_integer(block, prefix_bits)?;
        let name = if index == 0 {
            take_string(block, &mut self.name)?;
            Name::Literal
        } else {
            Name::Indexed(index)
        };
        take_string(block, &mut self.value)?;
        Ok(name)
    }

    fn literal(&self, name: &Name) -> Result<(&[u8], &[u8]), Malformed> {
        let name = match name {
            Name::Literal => &self.name,
            Name::Indexed(index) => self.entry(*index)?.0,
        };
        Ok((name, &self.value))
    }

    fn insert(&mut self, entry: Entry) {
        self.generation += 1;
        self.evict(entry.size());
        if entry.size() <= self.bytes_max {
            self.bytes += entry.size();
            self.entries.push_front(entry);
        }
    }

    /// Evicts the oldest entries until `needed` bytes fit.
    fn evict(&mut self, needed: usize) {
        while self.bytes + needed > self.bytes_max {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.bytes -= oldest.size();
        }
    }
}

/// Takes an integer that begins in the low bits of the first byte (section 5.1).
fn take_integer(block: &mut &[u8], prefix_bits: u32) -> Result<usize, Malformed> {
    let (first, mut rest) = block.split_first().ok_or(Malformed)?;
    let mask = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (byte, behind) = rest.split_first().ok_or(Malformed)?;
            rest = behind;
            if shift > 21 {
                return Err(Malformed); // longer than any block we accept
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// Takes a string and decodes it (section 5.2).
fn take_string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let is_huffman = block.first().ok_or(Malformed)? & 0x80 != 0;
    let length = take_integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(Malformed)?;
    *block = rest;
    out.clear();
    if is_huffman {
        return huffman::decode(text, out).ok_or(Malformed);
    }
    out.extend_from_slice(text);
    Ok(())
}

fn put_integer(out: &mut Vec<u8>, first: u8, prefix_bits: u32, value: usize) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(first | u8::try_from(value).expect("below the mask"));
        return;
    }
    out.push(first | u8::try_from(mask).expect("at most seven bits"));
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("seven bits"));
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

/// Appends a field that is in the static table or the peer's dynamic one.
pub fn indexed(out: &mut Vec<u8>, index: usize) {
    put_integer(out, INDEXED, 7, index);
}

/// Appends a field; with `keep`, the peer adds it to its dynamic table.
pub fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8], keep: bool) {
    let known = STATIC.iter().position(|(known, _)| known.as_bytes() == name).map_or(0, |at| at + 1);
    if keep {
        put_integer(out, INSERTED, 6, known);
    } else {
        put_integer(out, 0, 4, known);
    }
    if known == 0 {
        put_string(out, name);
    }
    put_string(out, value);
}

/// Appends a dynamic table size update; it must come first in a block (section 4.2).
pub fn resized(out: &mut Vec<u8>, bytes: usize) {
    put_integer(out, RESIZED, 5, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(String, String)>;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, Malformed> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |name, value| fields.push((text(name), text(value))))?;
        Ok(fields)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digit = |byte| u8::try_from(char::from(byte).to_digit(16)?).ok();
        let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn fields(of: &[(&str, &str)]) -> Fields {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// RFC 7541, appendix C.4: requests with Huffman strings and a table that grows.
    #[test]
    fn requests_of_the_standard_are_decoded() {
        let mut decoder = Decoder::default();
        let first = decode(&mut decoder, &hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")).unwrap();
        let common =
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
        assert_eq!(first, fields(&common));
        let second = decode(&mut decoder, &hex("8286 84be 5886 a8eb 1064 9cbf")).unwrap();
        assert_eq!(second, [fields(&common), fields(&[("cache-control", "no-cache")])].concat());
        let third = decode(&mut decoder, &hex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"))
            .unwrap();
        assert_eq!(third[4], ("custom-key".to_owned(), "custom-value".to_owned()));
        assert_eq!(decoder.bytes, 164);
    }

    /// RFC 7541, appendix C.6: responses, with entries that have to go.
    #[test]
    fn table_entries_are_evicted_as_in_the_standard() {
        let mut decoder = Decoder { bytes_max: 256, ..Decoder::default() };
        let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
                     2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
        assert_eq!(decode(&mut decoder, &hex(first)).unwrap().len(), 4);
        assert_eq!(decoder.bytes, 222);
        let second = decode(&mut decoder, &hex("4883 640e ffc1 c0bf")).unwrap();
        assert_eq!(second[0].1, "307");
        assert_eq!(decoder.bytes, 222);
    }

    #[test]
    fn encoded_fields_are_decoded() {
        let mut decoder = Decoder::default();
        let mut block = Vec::new();
        resized(&mut block, 1000);
        indexed(&mut block, 8);
        literal(&mut block, b"content-type", b"application/grpc", true);
        literal(&mut block, b"x-long", &[b'v'; 300], false);
        indexed(&mut block, DYNAMIC);
        let found = decode(&mut decoder, &block).unwrap();
        assert_eq!(found[0], (":status".to_owned(), "200".to_owned()));
        assert_eq!(found[1], found[3]);
        assert_eq!(found[2].1.len(), 300);
        assert_eq!(decoder.generation(), 2);
        decode(&mut decoder, &[0x88, 0x80 | 62]).unwrap();
        assert_eq!(decoder.generation(), 2, "indexed fields do not change the table");
    }

    #[test]
    fn malformed_blocks_are_errors_and_random_ones_do_not_panic() {
        for block in
            [&[0x80][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0xbf], &[0x40, 0x05, b'a'], &[0x88, 0x20]]
        {
            assert_eq!(decode(&mut Decoder::default(), block), Err(Malformed), "{block:x?}");
        }
        let mut state = 1_u32;
        for _ in 0..200_000 {
            let mut block = [0; 24];
            for byte in &mut block {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = state.to_be_bytes()[0];
            }
            let _ = decode(&mut Decoder::default(), &block);
        }
    }
}
