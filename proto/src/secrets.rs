//! Messages with passwords, their hashes or tokens in them are shown without these: what is shown
//! may end in a log, or in the words of a panic.

use std::fmt::{Debug, Formatter, Result};

use crate::authpb::User;
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
};

impl Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthenticateResponse").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut fields = f.debug_struct("AuthUserAddRequest");
        fields.field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthUserChangePasswordRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Debug for User {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut fields = f.debug_struct("User");
        fields.field("name", &self.name).field("roles", &self.roles);
        fields.field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{UnwindSafe, catch_unwind};

    use super::*;

    /// The words of a panic that shows a message.
    fn panics_with(message: impl Debug + UnwindSafe) -> String {
        let panic = catch_unwind(move || panic!("{message:?}")).unwrap_err();
        *panic.downcast::<String>().unwrap()
    }

    #[test]
    fn a_panic_has_no_secret_of_a_message() {
        let (name, secret) = ("ann".to_owned(), "planted-secret".to_owned());
        let (password, hashed_password) = (secret.clone(), secret.clone());
        for told in [
            panics_with(AuthenticateRequest { name: name.clone(), password: password.clone() }),
            panics_with(AuthUserChangePasswordRequest {
                name: name.clone(),
                password: password.clone(),
                hashed_password: hashed_password.clone(),
            }),
            panics_with(AuthUserAddRequest { name, password, hashed_password, ..Default::default() }),
            panics_with(User { name: "ann".into(), password: secret.clone().into(), ..User::default() }),
        ] {
            assert!(told.contains("ann") || told.contains("97, 110, 110"), "{told}");
            assert!(!told.contains("planted") && !told.contains("112, 108, 97"), "{told}");
        }
        let told = panics_with(AuthenticateResponse { token: secret, ..Default::default() });
        assert!(told.contains("AuthenticateResponse") && !told.contains("planted"), "{told}");
    }
}
