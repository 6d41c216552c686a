//! Decoding HPACK's Huffman code (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length follow each other in the order of their symbols, and
//! those of the next length go on from there, so that the lengths alone define the code.

/// Bits of each symbol's code; the last one is the end of a string, which never occurs in one.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const LONGEST: usize = 30;
/// Codes up to this length, nearly all that occur, are found by one table lookup.
const FAST_BITS: usize = 8;

struct Tables {
    /// By the next eight bits: symbol and length of a short code; length 0 for a longer one.
    fast: [(u8, u8); 1 << FAST_BITS],
    /// By length: the first code, how many there are, and where their symbols begin.
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    start: [usize; LONGEST + 1],
    /// In the order of their codes.
    symbols: [u16; 257],
}

static TABLES: Tables = tables();

#[expect(
    clippy::cast_possible_truncation,
    reason = "symbols and lengths are small; const code has no try_from"
)]
const fn tables() -> Tables {
    let mut tables = Tables {
        fast: [(0, 0); 1 << FAST_BITS],
        first: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        start: [0; LONGEST + 1],
        symbols: [0; 257],
    };
    let (mut code, mut placed, mut length) = (0_u32, 0, 1);
    while length <= LONGEST {
        code <<= 1;
        tables.first[length] = code;
        tables.start[length] = placed;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                tables.symbols[placed] = symbol as u16;
                placed += 1;
                if length <= FAST_BITS {
                    let from = (code as usize) << (FAST_BITS - length);
                    let mut at = from;
                    while at < from + (1 << (FAST_BITS - length)) {
                        tables.fast[at] = (symbol as u8, length as u8);
                        at += 1;
                    }
                }
                code += 1;
            }
            symbol += 1;
        }
        tables.count[length] = code - tables.first[length];
        length += 1;
    }
    tables
}

/// Appends what `bytes` stand for; none if they are no Huffman string.
pub(super) fn decode(mut bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    // The low `bits` bits of `window` are not decoded yet.
    let (mut window, mut bits) = (0_u64, 0_usize);
    loop {
        while bits <= 56
            && let Some((byte, rest)) = bytes.split_first()
        {
            window = window << 8 | u64::from(*byte);
            bits += 8;
            bytes = rest;
        }
        let peeked = if bits >= FAST_BITS {
            window >> (bits - FAST_BITS)
        } else {
            // Behind the end ones, as in the padding.
            window << (FAST_BITS - bits) | ((1 << (FAST_BITS - bits)) - 1)
        };
        let (symbol, length) = TABLES.fast[(peeked & 0xff) as usize];
        if length != 0 && usize::from(length) <= bits {
            out.push(symbol);
            bits -= usize::from(length);
            continue;
        }
        if length != 0 || bits < FAST_BITS {
            break;
        }
        let Some((symbol, length)) = long(window, bits) else { break };
        out.push(u8::try_from(symbol).ok()?);
        bits -= length;
    }
    // The rest must be padding: fewer than eight ones.
    let ones = (1_u64 << bits.min(63)) - 1;
    (bits < 8 && window & ones == ones).then_some(())
}

/// A code longer than eight bits at the front of the low `bits` bits: its symbol and length.
fn long(window: u64, bits: usize) -> Option<(u16, usize)> {
    (FAST_BITS + 1..=LONGEST.min(bits)).find_map(|length| {
        let code = u32::try_from(window >> (bits - length) & ((1 << length) - 1)).ok()?;
        let at = code.checked_sub(TABLES.first[length]).filter(|at| *at < TABLES.count[length])?;
        Some((TABLES.symbols[TABLES.start[length] + at as usize], length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other direction, bit by bit.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for symbol in text {
            let length = usize::from(LENGTHS[usize::from(*symbol)]);
            let at = TABLES.symbols.iter().position(|known| *known == u16::from(*symbol)).unwrap();
            let code = TABLES.first[length] + u32::try_from(at - TABLES.start[length]).unwrap();
            bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(bytes, &mut out).map(|()| out)
    }

    #[test]
    fn the_examples_of_the_standard() {
        let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&example).unwrap(), b"www.example.com");
        assert_eq!(decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(), b"no-cache");
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
    }

    #[test]
    fn every_symbol_survives_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
        for symbol in 0..=255 {
            for count in 1..10 {
                let text = vec![symbol; count];
                assert_eq!(decoded(&encode(&text)).unwrap(), text);
            }
        }
    }

    #[test]
    fn bad_padding_and_the_end_symbol_are_refused() {
        assert!(decoded(&[0xff]).is_none(), "eight bits of padding");
        assert!(decoded(&[0b0000_0000]).is_none(), "padding of zeros");
        assert!(decoded(&[0xff, 0xff, 0xff, 0xff]).is_none(), "the end of a string inside it");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }
}
