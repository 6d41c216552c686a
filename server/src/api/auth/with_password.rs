//! Requests with a password: whatever becomes of them, it is wiped.

use bytes::Bytes;
use prost::{DecodeError, Message};
use revd_member::error::{AuthError, Error};
use revd_proto::etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest};
use zeroize::Zeroize as _;

use crate::api::auth::password_queue::PASSWORD_BYTES_MAX;
use crate::secret::Secret;

/// Of a hash by bcrypt, which has 60 letters, in base64.
const HASH_LETTERS: usize = 80;

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
    /// Where the hash of its password goes; none where none is made.
    fn place_of_hash(&mut self, password: &Secret) -> Option<&mut String>;
}

impl SetsPassword for AuthUserAddRequest {
    fn place_of_hash(&mut self, _password: &Secret) -> Option<&mut String> {
        let has_none = self.options.is_some_and(|options| options.no_password);
        (!has_none).then_some(&mut self.hashed_password)
    }
}

/// As with etcd, a client that gives no password may give a hash of its own.
impl SetsPassword for AuthUserChangePasswordRequest {
    fn place_of_hash(&mut self, password: &Secret) -> Option<&mut String> {
        (!password.expose().is_empty()).then_some(&mut self.hashed_password)
    }
}

/// A request that gives a user a password, of which parts have been read so far. Its password is
/// wiped, whatever becomes of it.
pub(crate) struct Partly<R: SetsPassword>(R);

impl<R: SetsPassword> Partly<R> {
    /// Nothing of a message of this many bytes; it has room for any password of it, as
    /// [`read_into`] says.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        let mut request = R::default();
        request.password().reserve(bytes);
        Self(request)
    }

    /// Reads the next part: whole fields.
    pub(crate) fn read(&mut self, part: &[u8]) -> Result<(), DecodeError> {
        self.0.merge(part)
    }

    /// The bytes that the proposal of the whole request would have, which has `bytes` itself. A
    /// password that is not hashed counts in full, as in etcd, whose proposal has all of it.
    ///
    /// # Errors
    /// That of the password, which any client gets.
    pub(crate) fn proposal_bytes(mut self, bytes: usize) -> Result<usize, Error> {
        let password = self.take_password();
        let Some(hash) = self.0.place_of_hash(&password) else { return Ok(bytes) };
        check_length(&password)?;
        *hash = "=".repeat(HASH_LETTERS);
        Ok(self.0.encoded_len())
    }

    fn take_password(&mut self) -> Secret {
        std::mem::take(self.0.password()).into()
    }
}

impl<R: SetsPassword> Drop for Partly<R> {
    fn drop(&mut self) {
        drop(self.take_password());
    }
}

/// bcrypt reads no more, and etcd makes no hash of what is longer.
pub(super) fn check_length(password: &Secret) -> Result<(), Error> {
    let is_too_long = password.expose().len() > PASSWORD_BYTES_MAX;
    if is_too_long { Err(Error::Auth(AuthError::PasswordTooLong)) } else { Ok(()) }
}

/// Decodes such a request, or a part of it. The password is taken out of it, also where what comes
/// behind it cannot be read; the message is wiped, if nothing else holds it.
pub(crate) fn decode<R: WithPassword>(message: Bytes) -> (Result<R, DecodeError>, Secret) {
    let mut request = R::default();
    let merged = read_into(&mut request, &message);
    let password = Secret::from(std::mem::take(request.password()));
    wipe(message);
    (merged.map(|()| request), password)
}

/// Says whether it could.
fn wipe(message: Bytes) -> bool {
    message.try_into_mut().map(|mut own| own.zeroize()).is_ok()
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
        assert!(!wipe(whole) && held[..] == request(), "it has another holder");
        assert!(wipe(held));
        let mut rest = Bytes::from(request());
        let part = rest.split_to(4);
        drop(part);
        assert!(wipe(rest));
    }
}
