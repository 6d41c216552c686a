//! Users, roles, permissions: who may do what.
//!
//! Users and roles are rows of the store, so that every View has those of its moment: a request
//! is judged by the same state that answers it. [`access`] knows what each user may do, [`wants`]
//! what a request needs, [`rules`] how users and roles change. Passwords and tokens are the
//! server's matter; what is known here of a token is who its user is.

pub mod access;
pub mod caller;
pub mod intervals;
pub mod rights;
pub mod rules;
pub mod wants;

pub use access::Access;
pub use caller::{Caller, User};
pub use wants::{Attached, Wants};

/// The user, and the role, that may do everything.
pub const ROOT: &str = "root";
