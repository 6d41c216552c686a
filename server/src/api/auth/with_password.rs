//! Requests with a password: whatever becomes of them, it is wiped.

use bytes::Bytes;
use prost::{DecodeError, Message};
use revd_proto::etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest};

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
/// behind it cannot be read.
pub(crate) fn decode<R: WithPassword>(message: Bytes) -> (Result<R, DecodeError>, Secret) {
    let mut request = R::default();
    // Room for any: a buffer that a second field of the kind outgrows would be freed as it is.
    request.password().reserve(message.len());
    let merged = request.merge(message);
    let password = Secret::from(std::mem::take(request.password()));
    (merged.map(|()| request), password)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "correct-horse-battery";

    fn request() -> Vec<u8> {
        let (name, password) = ("ann".to_owned(), PASSWORD.to_owned());
        AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() }.encode_to_vec()
    }

    /// Bytes behind the password that are no message, a password that is no text, and two of them.
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
        let twice = [request(), request()].concat();
        let room = twice.len();
        let mut message = AuthUserAddRequest::default();
        message.password.reserve(room);
        let at = message.password.as_ptr();
        message.merge(&twice[..]).unwrap();
        assert_eq!(message.password.as_ptr(), at, "the second one is where the first one was");
    }
}
