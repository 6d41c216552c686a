//! Escapes in hosts, undone as Go undoes them, and texts quoted as Go quotes them.

/// The bytes that a host stands for; in brackets it may have a zone, which begins at `%25`.
///
/// # Errors
/// The first letter or escape that it may not have.
pub(super) fn undone(host: &str, is_in_brackets: bool) -> Result<Vec<u8>, String> {
    let zone = host.find("%25").filter(|_| is_in_brackets).unwrap_or(host.len());
    let (address, zone) = host.split_at(zone);
    let mut bytes = undone_if(address, |byte| byte == b'%' || !byte.is_ascii())?;
    bytes.extend(undone_if(zone, |byte| {
        byte.is_ascii_alphanumeric() || b"% -_.~!$&'()*+,;=:[]<>\"".contains(&byte)
    })?);
    Ok(bytes)
}

fn undone_if(text: &str, may_be_escaped: impl Fn(u8) -> bool) -> Result<Vec<u8>, String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some(&first) = rest.first() {
        let (byte, len) = match first {
            b' ' | b'\\' | b'^' | b'`' | b'{' | b'}' | b'|' => {
                return Err(format!("invalid character {} in host name", quoted(&[first])));
            }
            b'%' => (escaped(rest).filter(|byte| may_be_escaped(*byte)), 3),
            _ => (Some(first), 1),
        };
        let mistake = || format!("invalid URL escape {}", quoted(&rest[..rest.len().min(3)]));
        bytes.push(byte.ok_or_else(mistake)?);
        rest = &rest[len..];
    }
    Ok(bytes)
}

/// The byte that the escape at the front stands for.
fn escaped(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    u8::try_from(digit(1)? * 16 + digit(2)?).ok()
}

/// A text in quotes. Bytes that are no letter are escaped, and letters that cannot be printed;
/// unlike with Go, so are accents that are letters of their own.
pub(super) fn quoted(text: &[u8]) -> String {
    let mut quoted = String::from('"');
    for chunk in text.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => quoted.extend(['\\', letter]),
                '\'' => quoted.push(letter),
                _ if letter.escape_debug().len() == 1 => quoted.push(letter),
                _ if u32::from(letter) <= 0xffff => quoted += &format!("\\u{:04x}", u32::from(letter)),
                _ => quoted += &format!("\\U{:08x}", u32::from(letter)),
            }
        }
        for byte in chunk.invalid() {
            quoted += &format!("\\x{byte:02x}");
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_the_bytes_of_hosts_and_spaces() {
        let taken = |prefix: &str| -> Vec<u8> {
            let is_taken = |byte: &u8| undone(&format!("{prefix}%{byte:02X}"), true).is_ok();
            (0..=u8::MAX).filter(is_taken).collect()
        };
        let letters = taken("::1%25");
        let punctuation: Vec<u8> =
            letters.iter().copied().filter(|byte| !byte.is_ascii_alphanumeric()).collect();
        assert_eq!(String::from_utf8(punctuation).unwrap(), " !\"$%&'()*+,-.:;<=>[]_~");
        assert_eq!(letters.len(), 62 + 23);
        let others: Vec<u8> = [b'%'].into_iter().chain(128..=u8::MAX).collect();
        assert_eq!(taken("::1"), others);
        assert_eq!(undone("%25%41", false), Err("invalid URL escape \"%41\"".to_owned()));
        assert_eq!(undone("::1%25%41", true), Ok(b"::1%A".to_vec()));
    }

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        let text = ["a\"b\\\u{e9}'\u{200b}\u{e0001}".as_bytes(), b"\xc3\xff"].concat();
        assert_eq!(quoted(&text), "\"a\\\"b\\\\\u{e9}'\\u200b\\U000e0001\\xc3\\xff\"");
    }
}
