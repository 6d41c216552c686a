//! Requests with a password: whatever becomes of them, it is wiped.

use std::marker::PhantomData;
use std::ops::Deref;

use bytes::{Bytes, BytesMut};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message, length_delimiter_len};
use revd_member::error::{AuthError, Error};
use revd_proto::authpb::UserAddOptions;
use revd_proto::etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest};
use zeroize::Zeroize as _;

use crate::api::auth::password_queue::PASSWORD_BYTES_MAX;
use crate::secret::Secret;

/// Of a hash by bcrypt, which has 60 letters, in base64.
const HASH_LETTERS: usize = 80;

/// Numbers of the fields that all such requests have.
const NAME: u32 = 1;
const PASSWORD: u32 = 2;

/// A request with a password in it.
pub(crate) trait WithPassword: Message + Default {
    /// The password.
    fn password(&mut self) -> &mut String;
}

impl WithPassword for AuthUserAddRequest {
    fn password(&mut self) -> &mut String {
        &mut self.password
    }
}

impl WithPassword for AuthUserChangePasswordRequest {
    fn password(&mut self) -> &mut String {
        &mut self.password
    }
}

impl WithPassword for AuthenticateRequest {
    fn password(&mut self) -> &mut String {
        &mut self.password
    }
}

/// A request that gives a user a password, of which a hash goes through the log.
pub(crate) trait SetsPassword: WithPassword {
    /// The number of the field with its options, if it has any.
    const OPTIONS: Option<u32>;

    /// Whether a hash is made of a password of so many bytes.
    fn is_hashed(password_bytes: usize, options: UserAddOptions) -> bool;

    /// Where the hash of its password goes; none where none is made.
    fn place_of_hash(&mut self, password: &Secret) -> Option<&mut String>;
}

impl SetsPassword for AuthUserAddRequest {
    const OPTIONS: Option<u32> = Some(3);

    fn is_hashed(_password_bytes: usize, options: UserAddOptions) -> bool {
        !options.no_password
    }

    fn place_of_hash(&mut self, password: &Secret) -> Option<&mut String> {
        Self::is_hashed(password.expose().len(), self.options.unwrap_or_default())
            .then_some(&mut self.hashed_password)
    }
}

/// As with etcd, a client that gives no password may give a hash of its own.
impl SetsPassword for AuthUserChangePasswordRequest {
    const OPTIONS: Option<u32> = None;

    fn is_hashed(password_bytes: usize, _options: UserAddOptions) -> bool {
        password_bytes > 0
    }

    fn place_of_hash(&mut self, password: &Secret) -> Option<&mut String> {
        Self::is_hashed(password.expose().len(), UserAddOptions::default())
            .then_some(&mut self.hashed_password)
    }
}

/// A request that gives a user a password, of which parts have been read so far: how long its
/// fields are, and none of their bytes. It waits for its turns in memory that nobody counts.
pub(crate) struct Partly<R> {
    name_bytes: usize,
    password_bytes: usize,
    options: Option<UserAddOptions>,
    request: PhantomData<R>,
}

impl<R> Default for Partly<R> {
    fn default() -> Self {
        Self { name_bytes: 0, password_bytes: 0, options: None, request: PhantomData }
    }
}

impl<R: SetsPassword> Partly<R> {
    /// Reads the next part: whole fields. As in a message that is read as a whole, the last field
    /// of a kind counts, but options are merged.
    pub(crate) fn read(&mut self, part: Bytes) -> Result<(), DecodeError> {
        decode::<R>(part.clone()).0?;
        let mut ahead = &part[..];
        while !ahead.is_empty() {
            let (field, kind) = decode_key(&mut ahead)?;
            if kind != WireType::LengthDelimited {
                skip_field(kind, field, &mut ahead, DecodeContext::default())?;
                continue;
            }
            let len = usize::try_from(decode_varint(&mut ahead)?).unwrap_or(usize::MAX);
            // It was read before, as a whole.
            let Some((bytes, behind)) = ahead.split_at_checked(len) else { return Ok(()) };
            match field {
                NAME => self.name_bytes = len,
                PASSWORD => self.password_bytes = len,
                _ if R::OPTIONS == Some(field) => self.options.get_or_insert_default().merge(bytes)?,
                _ => {}
            }
            ahead = behind;
        }
        Ok(())
    }

    /// The bytes that the proposal of the whole request would have, which has `bytes` itself. A
    /// password that is not hashed counts in full, as in etcd, whose proposal has all of it.
    ///
    /// # Errors
    /// That of the password, which any client gets.
    pub(crate) fn proposal_bytes(&self, bytes: usize) -> Result<usize, Error> {
        if !R::is_hashed(self.password_bytes, self.options.unwrap_or_default()) {
            return Ok(bytes);
        }
        check_length(self.password_bytes)?;
        let field = |len: usize| 1 + length_delimiter_len(len) + len;
        let name = if self.name_bytes > 0 { field(self.name_bytes) } else { 0 };
        let options = self.options.map_or(0, |options| field(options.encoded_len()));
        Ok(name + options + field(HASH_LETTERS))
    }
}

/// bcrypt reads no more, and etcd makes no hash of what is longer.
pub(super) fn check_length(password_bytes: usize) -> Result<(), Error> {
    let is_too_long = password_bytes > PASSWORD_BYTES_MAX;
    if is_too_long { Err(Error::Auth(AuthError::PasswordTooLong)) } else { Ok(()) }
}

/// Decodes such a request, or a part of it. The password is taken out of it, also where what comes
/// behind it cannot be read; the message is wiped, if nothing else holds it.
pub(crate) fn decode<R: WithPassword>(message: Bytes) -> (Result<R, DecodeError>, Secret) {
    let mut request = R::default();
    let merged = read_into(&mut request, &message);
    let password = Secret::from(std::mem::take(request.password()));
    drop(wipe(message));
    (merged.map(|()| request), password)
}

/// A message that may have a password in it, until its service takes it: where none does, it is
/// wiped, if nothing else holds it then.
pub(crate) struct Untaken {
    message: Bytes,
    has_password: bool,
}

impl Untaken {
    /// This message.
    pub(crate) fn new(message: Bytes, has_password: bool) -> Self {
        Self { message, has_password }
    }

    /// It is its service's.
    pub(crate) fn take(mut self) -> Bytes {
        std::mem::take(&mut self.message)
    }

    /// The zeros that are left of it, if it was wiped.
    fn wipe(&mut self) -> Option<BytesMut> {
        if self.has_password { wipe(std::mem::take(&mut self.message)) } else { None }
    }
}

impl Deref for Untaken {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.message
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        drop(self.wipe());
    }
}

/// The zeros that are left of a message, if it could be wiped.
fn wipe(message: Bytes) -> Option<BytesMut> {
    let mut own = message.try_into_mut().ok()?;
    own[..].zeroize();
    Some(own)
}

/// With room for any password of the message: a buffer that a second field of the kind outgrows
/// would be freed as it is.
fn read_into<R: WithPassword>(request: &mut R, message: &[u8]) -> Result<(), DecodeError> {
    request.password().reserve(message.len());
    request.merge(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "correct-horse-battery";

    fn request() -> Vec<u8> {
        let (name, password) = ("ann".to_owned(), PASSWORD.to_owned());
        AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() }.encode_to_vec()
    }

    /// Bytes behind the password that are no message, a longer password behind the first one.
    #[test]
    fn a_password_is_in_the_secret_whatever_becomes_of_its_request() {
        let (whole, secret) = decode::<AuthUserAddRequest>(request().into());
        let whole = whole.unwrap();
        assert_eq!((&whole.name[..], whole.password.capacity()), ("ann", 0));
        assert_eq!(secret.expose(), PASSWORD.as_bytes());
        let broken = [&request()[..], &[0x0f]].concat();
        let (refused, secret) = decode::<AuthUserAddRequest>(broken.into());
        assert!(refused.is_err());
        assert_eq!(secret.expose(), PASSWORD.as_bytes(), "it was read, and is wiped");
        let long = AuthUserAddRequest { password: "long".repeat(100), ..AuthUserAddRequest::default() };
        let (mut both, message) = (AuthUserAddRequest::default(), [request(), long.encode_to_vec()].concat());
        let room = message.len();
        read_into(&mut both, &message).unwrap();
        assert_eq!(both.password, long.password);
        assert!(both.password.capacity() >= room, "the first one was outgrown, and freed as it was");
    }

    /// Of a message that was cut out of data frames, and of the last part of one.
    #[test]
    fn a_message_that_nothing_else_holds_is_wiped() {
        let whole = Bytes::from([&[0; 5], &request()[..]].concat()).slice(5..);
        let held = whole.clone();
        assert!(wipe(whole).is_none() && held[..] == request(), "it has another holder");
        assert!(is_zero(wipe(held), request().len()));
        let mut rest = Bytes::from(request());
        let part = rest.split_to(4);
        drop(part);
        assert!(is_zero(wipe(rest), request().len() - 4));
    }

    /// Refused, or given up while its caller is judged: the guard is dropped then.
    #[test]
    fn a_message_that_its_service_does_not_take_is_wiped_if_it_may_have_a_password() {
        let message = |has_password| Untaken::new(request().into(), has_password);
        assert!(is_zero(message(true).wipe(), request().len()));
        let mut refused = message(true);
        let other = refused.clone();
        assert!(refused.wipe().is_none() && other[..] == request());
        assert!(message(false).wipe().is_none());
        assert!([true, false].iter().all(|it| message(*it).take()[..] == request()));
    }

    fn is_zero(wiped: Option<BytesMut>, len: usize) -> bool {
        wiped.is_some_and(|wiped| wiped.len() == len && wiped.iter().all(|byte| *byte == 0))
    }
}
