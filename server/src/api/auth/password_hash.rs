//! Hashes of passwords: bcrypt, in the text form that etcd keeps, made in small steps so that the
//! thread that makes one can give way between them.
//!
//! ```text
//! $2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy
//!     ^  ^ salt: 22 letters     ^ digest: 31 letters
//!     cost: 2^10 rounds
//! ```
//!
//! Sources: Provos and Mazieres, "A Future-Adaptable Password Scheme" (USENIX 1999), for the
//! computation; Go's `golang.org/x/crypto/bcrypt`, which etcd uses, for the texts that count as a
//! hash.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::alphabet::BCRYPT;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use blowfish::Blowfish;
use zeroize::Zeroizing;

use crate::api::auth::password_queue::PASSWORD_BYTES_MAX;
use crate::secret::Secret;

/// Letters of the salt and of the digest in the text of a hash.
const SALT_LETTERS: usize = 22;
const DIGEST_LETTERS: usize = 31;

/// Go looks at no bits that the last letter has too many, and has no padding.
const LETTERS: GeneralPurpose = GeneralPurpose::new(
    &BCRYPT,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// The text that is encrypted 64 times with the state of a password: "OrpheanBeholderScryDoubt".
const TEXT: [[u32; 2]; 3] =
    [[0x4f72_7068, 0x6561_6e42], [0x6568_6f6c, 0x6465_7253], [0x6372_7944, 0x6f75_6274]];

/// The hash of a password.
pub(super) struct PasswordHash {
    cost: u32,
    salt: Vec<u8>,
    digest: [u8; DIGEST_LETTERS],
}

impl PasswordHash {
    /// The hash of this password. `between` is called behind each of the `2^cost` rounds, each
    /// of which takes about 50 us.
    pub(super) fn new(password: &Secret, cost: u32, salt: [u8; 16], between: impl FnMut()) -> Self {
        Self { cost, salt: salt.into(), digest: digest(password, cost, &salt, between) }
    }

    /// The hash of no password, which takes as long to compare as others of this cost.
    pub(super) fn of_nobody(cost: u32) -> Self {
        Self { cost, salt: vec![0; 16], digest: [b'-'; DIGEST_LETTERS] } // no letter of a digest
    }

    /// A hash that Go's bcrypt takes. Go looks neither at the letter of the version, which may be
    /// missing, nor at what separates the parts, at line ends in the salt, or behind the digest.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let [b'$', 0..=b'2', letter, ..] = text else { return None };
        let rest = text.get(if *letter == b'$' { 3 } else { 4 }..)?;
        let cost = std::str::from_utf8(rest.get(..2)?).ok()?.parse().ok()?;
        let (salt, digest) = rest.get(3..)?.split_at_checked(SALT_LETTERS)?;
        let salt: Vec<u8> = salt.iter().copied().filter(|letter| !b"\r\n".contains(letter)).collect();
        if !(4..=31).contains(&cost) || salt.len() % 4 != SALT_LETTERS % 4 {
            return None;
        }
        Some(Self { cost, salt: LETTERS.decode(salt).ok()?, digest: *digest.first_chunk()? })
    }

    /// Comparing takes `2^cost` rounds.
    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    /// It is the hash of this password; `between` as in [`PasswordHash::new`].
    pub(super) fn is_of(&self, password: &Secret, between: impl FnMut()) -> bool {
        verify_slices_are_equal(&digest(password, self.cost, &self.salt, between), &self.digest).is_ok()
    }
}

// Salt and digest are as good as the password to a thief who has time.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PasswordHash").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl fmt::Display for PasswordHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (salt, digest) = (LETTERS.encode(&self.salt), String::from_utf8_lossy(&self.digest));
        write!(formatter, "$2a${:02}${salt}{digest}", self.cost)
    }
}

/// The letters of the digest of a password: of its first 72 bytes, a zero behind it among them.
fn digest(password: &Secret, cost: u32, salt: &[u8], mut between: impl FnMut()) -> [u8; DIGEST_LETTERS] {
    let password = password.expose();
    let mut key = Zeroizing::new(Vec::with_capacity(PASSWORD_BYTES_MAX + 1));
    key.extend_from_slice(&password[..password.len().min(PASSWORD_BYTES_MAX)]);
    key.push(0);
    key.truncate(PASSWORD_BYTES_MAX);
    let mut state = Blowfish::bc_init_state();
    state.salted_expand_key(salt, &key);
    for _ in 0..1_u64 << cost {
        state.bc_expand_key(&key);
        state.bc_expand_key(salt);
        between();
    }
    let encrypted = TEXT.map(|block| (0..64).fold(block, |block, _| state.bc_encrypt(block)));
    let bytes: Vec<u8> = encrypted.as_flattened().iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut letters = [0; DIGEST_LETTERS];
    let written = LETTERS.encode_slice(&bytes[..23], &mut letters); // the last byte is left out
    assert_eq!(written, Ok(DIGEST_LETTERS), "23 bytes are 31 letters");
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use bcrypt::Version;

    fn secret(text: &[u8]) -> Secret {
        text.to_vec().into()
    }

    /// The crate bcrypt is another implementation.
    #[test]
    fn hashes_are_those_of_another_implementation() {
        let mut password = Vec::new();
        for length in 0..=80_u8 {
            let (salt, cost) = ([length.wrapping_mul(37); 16], 4 + u32::from(length % 3));
            let theirs = bcrypt::hash_with_salt(&password, cost, salt).unwrap();
            let mut rounds = 0;
            let ours = PasswordHash::new(&secret(&password), cost, salt, || rounds += 1);
            assert_eq!(ours.to_string(), theirs.format_for_version(Version::TwoA), "{length} bytes");
            assert_eq!(rounds, 1 << cost);
            assert!(
                PasswordHash::parse(ours.to_string().as_bytes()).unwrap().is_of(&secret(&password), || ())
            );
            password.push(length.wrapping_mul(91)); // zeros are letters like others
        }
    }

    #[test]
    fn nobody_has_a_password() {
        let nobodys = PasswordHash::of_nobody(4);
        assert!(!nobodys.is_of(&secret(b""), || ()) && !nobodys.is_of(&secret(b"nobody's"), || ()));
    }

    /// Parts of a hash that Go's bcrypt does not look at count here as little.
    #[test]
    fn hashes_that_go_takes_count() {
        let made = PasswordHash::new(&secret(b"rosebud"), 4, [0xff; 16], || ()).to_string();
        let (head, last, tail) = (&made[..28], &made[28..29], &made[29..]);
        assert!(made.len() == 60 && last == "u");
        let check = |hash: &str| {
            PasswordHash::parse(hash.as_bytes()).is_some_and(|hash| hash.is_of(&secret(b"rosebud"), || ()))
        };
        let behind = |at: usize, with: &str| format!("{}{with}{}", &made[..at], &made[at + with.len()..]);
        let loose_hash = format!("{}{}", &made[..59], char::from(made.as_bytes()[59] + 1));
        for (hash, counts) in [
            (made.clone(), true),
            (format!("{head}z{tail}"), true),
            (format!("{head}9{tail}"), true),
            (format!("{head}t{tail}"), false),
            (format!("{head}={tail}"), false),
            (format!("$2$04{}", &made[6..]), true),
            (behind(2, "q"), true),
            (behind(1, "1"), true),
            (behind(1, "3"), false),
            (behind(3, "x"), true),
            (behind(6, "x"), true),
            (behind(4, "+4"), true),
            (behind(4, "-4"), false),
            (behind(4, "03"), false),
            (behind(4, "32"), false),
            (format!("{made}behind"), true),
            (made[..59].to_owned(), false),
            (made[..3].to_owned(), false),
            (String::new(), false),
            (loose_hash, false),
        ] {
            assert_eq!(check(&hash), counts, "{hash}");
        }
        let of = |text: &[u8]| PasswordHash::parse(text).is_some();
        assert!(
            !of(b"$2a$\xff\xff$")
                && !of(&[b'$', b'2', b'$', 0xff, 0xff])
                && of(&[made.as_bytes(), b"\xff"].concat())
        );
    }

    /// Go reads 13 bytes of salt where four of its letters are line ends. With fewer, none.
    #[test]
    fn line_ends_in_a_salt_are_left_out_as_in_go() {
        let with_ends = |count: usize| {
            let (ends, letters) = ("\r\n".repeat(count).split_off(count), "a".repeat(SALT_LETTERS - count));
            format!("$2a$04${ends}{letters}{}", "a".repeat(DIGEST_LETTERS))
        };
        for count in 0..=SALT_LETTERS {
            let parsed = PasswordHash::parse(with_ends(count).as_bytes());
            let bytes = parsed.map(|hash| hash.salt.len());
            let expected = (count % 4 == 0 && count < SALT_LETTERS).then(|| (SALT_LETTERS - count) * 3 / 4);
            assert_eq!(bytes, expected, "{count} line ends");
        }
        // Made by Go's blowfish, and taken by Go's bcrypt.
        let of_go = PasswordHash::parse(b"$2a$04$\r\n\n\r/vmrODLkcWwdqqVW4uR6qWrc9tC7pfxT3IL2OhYLHzjms.PRK");
        assert!(of_go.unwrap().is_of(&secret(b"rosebud"), || ()));
    }
}
