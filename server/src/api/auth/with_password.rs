//! Requests with a password: whatever becomes of them, it is wiped.

use bytes::Bytes;
use prost::{DecodeError, Message};
use revd_proto::etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest};
use zeroize::Zeroize as _;

use crate::secret::Secret;

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
