//! Hosts in brackets: addresses of IPv6, and the words in which Go refuses all others.

use super::escapes::quoted;

/// Bytes of an address of IPv6, and of one of IPv4 at its end.
const BYTES: usize = 16;
const BYTES_OF_V4: usize = 4;

/// The mistake in an address, and where it begins.
type Mistake<'t> = (&'static str, &'t [u8]);

/// The mistake in a host in brackets, its escapes undone; its zone is behind the first `%`.
pub(super) fn mistake(text: &[u8]) -> Option<String> {
    let (what, at) = match text.iter().find(|byte| b".:%".contains(byte)) {
        None => ("unable to parse IP", &[][..]),
        Some(b'%') => ("missing IPv6 address", &[][..]),
        Some(b':') => of_v6(text).err()?,
        // Of IPv4, which does not belong into brackets, or of neither.
        Some(_) => match of_v4(text) {
            Ok(()) => return Some("invalid IP-literal".to_owned()),
            Err(mistake) => mistake,
        },
    };
    let at = if at.is_empty() { String::new() } else { format!(" (at {})", quoted(at)) };
    Some(format!("invalid host: ParseAddr({}): {what}{at}", quoted(text)))
}

fn of_v4(text: &[u8]) -> Result<(), Mistake<'_>> {
    let (mut fields, mut digits, mut value) = (0, 0, 0);
    for (at, byte) in text.iter().copied().enumerate() {
        match byte {
            b'0'..=b'9' if digits == 1 && value == 0 => {
                return Err(("IPv4 field has octet with leading zero", &[]));
            }
            b'0'..=b'9' => {
                (digits, value) = (digits + 1, value * 10 + u32::from(byte - b'0'));
                if value > 255 {
                    return Err(("IPv4 field has value >255", &[]));
                }
            }
            b'.' if digits == 0 || at + 1 == text.len() => {
                return Err(("IPv4 field must have at least one digit", &text[at..]));
            }
            b'.' if fields + 1 == BYTES_OF_V4 => return Err(("IPv4 address too long", &[])),
            b'.' => (fields, digits, value) = (fields + 1, 0, 0),
            _ => return Err(("unexpected character", &text[at..])),
        }
    }
    if fields + 1 < BYTES_OF_V4 { Err(("IPv4 address too short", &[])) } else { Ok(()) }
}

fn of_v6(text: &[u8]) -> Result<(), Mistake<'_>> {
    let zone = text.iter().position(|byte| *byte == b'%');
    let mut rest = &text[..zone.unwrap_or(text.len())];
    if zone == Some(text.len() - 1) {
        return Err(("zone must be a non-empty string", &[]));
    }
    let (mut bytes, mut has_gap) = (0, false);
    if let Some(behind) = rest.strip_prefix(b"::") {
        (rest, has_gap) = (behind, true);
    }
    while bytes < BYTES && !(has_gap && rest.is_empty()) {
        let digits = rest.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(rest.len());
        match digits {
            0 => return Err(("each colon-separated field must have at least one digit", rest)),
            1..=4 => {}
            _ => return Err(("each group must have 4 or less digits", rest)),
        }
        if rest[digits..].starts_with(b".") {
            v4_at_the_end(rest, bytes, has_gap)?;
            (rest, bytes) = (&[], bytes + BYTES_OF_V4);
            break;
        }
        (rest, bytes) = (&rest[digits..], bytes + 2);
        let Some(behind) = rest.strip_prefix(b":") else {
            if rest.is_empty() {
                break;
            }
            return Err(("unexpected character, want colon", rest));
        };
        if behind.is_empty() {
            return Err(("colon must be followed by more characters", rest));
        }
        rest = behind;
        if let Some(behind) = rest.strip_prefix(b":") {
            if has_gap {
                return Err(("multiple :: in address", rest));
            }
            (rest, has_gap) = (behind, true);
        }
    }
    match (rest.is_empty(), bytes < BYTES, has_gap) {
        (false, ..) => Err(("trailing garbage after address", rest)),
        (true, true, false) => Err(("address string too short", &[])),
        (true, false, true) => Err(("the :: must expand to at least one field of zeros", &[])),
        _ => Ok(()),
    }
}

fn v4_at_the_end(rest: &[u8], bytes: usize, has_gap: bool) -> Result<(), Mistake<'_>> {
    if !has_gap && bytes != BYTES - BYTES_OF_V4 {
        return Err(("embedded IPv4 address must replace the final 2 fields of the address", rest));
    }
    if bytes + BYTES_OF_V4 > BYTES {
        return Err(("too many hex fields to fit an embedded IPv4 at the end of the address", rest));
    }
    of_v4(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those of an etcd 3.7.1 that is started with such hosts.
    #[test]
    fn hosts_that_are_no_addresses_are_refused_in_the_words_of_go() {
        for (host, problem) in [
            ("foo", "unable to parse IP"),
            ("", "unable to parse IP"),
            ("x%25y", "missing IPv6 address"),
            ("%25", "missing IPv6 address"),
            ("::1%25", "zone must be a non-empty string"),
            ("v1.x", "unexpected character (at \"v1.x\")"),
            ("1.2.3", "IPv4 address too short"),
            ("1.2.3.256", "IPv4 field has value >255"),
            ("01.2.3.4", "IPv4 field has octet with leading zero"),
            ("1..3.4", "IPv4 field must have at least one digit (at \".3.4\")"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3.4.", "IPv4 field must have at least one digit (at \".\")"),
            ("1.2.3.4:5", "unexpected character (at \":5\")"),
            ("1.2.3.4%25y", "unexpected character (at \"%y\")"),
            ("::1.2.3.400", "IPv4 field has value >255"),
            ("::1.2.3.4x", "unexpected character (at \"x\")"),
            ("::1.2.3", "IPv4 address too short"),
            (
                "1:2:1.2.3.4",
                "embedded IPv4 address must replace the final 2 fields of the address (at \"1.2.3.4\")",
            ),
            (
                "::1:2:3:4:5:6:7:1.2.3.4",
                "too many hex fields to fit an embedded IPv4 at the end of the address (at \"1.2.3.4\")",
            ),
            ("1:2", "address string too short"),
            ("1::2::3", "multiple :: in address (at \":3\")"),
            ("1:2:3:4::5:6:7:8", "the :: must expand to at least one field of zeros"),
            ("1:", "colon must be followed by more characters (at \":\")"),
            ("1:2:", "colon must be followed by more characters (at \":\")"),
            ("1g::", "unexpected character, want colon (at \"g::\")"),
            ("::g", "each colon-separated field must have at least one digit (at \"g\")"),
            (":::", "each colon-separated field must have at least one digit (at \":\")"),
            ("1:::2", "each colon-separated field must have at least one digit (at \":2\")"),
            (":", "each colon-separated field must have at least one digit (at \":\")"),
            ("\u{e9}::", "each colon-separated field must have at least one digit (at \"\u{e9}::\")"),
            ("::12345", "each group must have 4 or less digits (at \"12345\")"),
            ("00001::", "each group must have 4 or less digits (at \"00001::\")"),
            ("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")"),
            ("::1]", "unexpected character, want colon (at \"]\")"),
        ] {
            let text = host.replace("%25", "%");
            assert_eq!(
                mistake(text.as_bytes()),
                Some(format!("invalid host: ParseAddr({text:?}): {problem}")),
                "{host}"
            );
        }
        assert_eq!(mistake(b"1.2.3.4"), Some("invalid IP-literal".to_owned()));
    }

    /// All that the standard library takes for an address, and nothing else, but for zones.
    #[test]
    fn what_is_no_mistake_is_an_address() {
        const LETTERS: [&str; 7] = ["1", "0", "ff", ":", "::", ".", "1:1:1"];
        let mut right = 0;
        for number in 0..7_u32.pow(6) {
            let text: String = (0..6).map(|at| LETTERS[(number / 7_u32.pow(at) % 7) as usize]).collect();
            let is_address = text.parse::<std::net::Ipv6Addr>().is_ok();
            assert_eq!(mistake(text.as_bytes()).is_none(), is_address, "{text}");
            right += u32::from(is_address);
        }
        assert!(right > 1_000, "{right}");
        assert_eq!(mistake(b"fe80::1%en0"), None);
    }
}
