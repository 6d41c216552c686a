//! The rights that a user has by its roles.

use revd_engine::mvcc::Tables;
use revd_proto::authpb::permission::Type;

use crate::auth::ROOT;
use crate::auth::intervals::{Intervals, of_wire};
use crate::schema;

/// The rights of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rights {
    /// Everything.
    pub is_root: bool,
    /// Keys it may read.
    pub read: Intervals,
    /// Keys it may write.
    pub write: Intervals,
    /// Its roles.
    pub roles: Vec<String>,
}

impl Rights {
    /// Those of a user with these roles, and how many permissions they are made of.
    #[must_use]
    pub fn of(tables: &Tables, own: Vec<String>) -> (Self, usize) {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        let roles = own.iter().filter_map(|role| schema::role(tables, role));
        for permission in roles.flat_map(|role| role.key_permission) {
            let interval = || of_wire(&permission.key, &permission.range_end);
            if [Type::Read as i32, Type::Readwrite as i32].contains(&permission.perm_type) {
                read.push(interval());
            }
            if [Type::Write as i32, Type::Readwrite as i32].contains(&permission.perm_type) {
                write.push(interval());
            }
        }
        let permissions = read.len() + write.len();
        let rights = Self {
            is_root: own.iter().any(|role| role == ROOT),
            read: Intervals::merged(read),
            write: Intervals::merged(write),
            roles: own,
        };
        (rights, permissions)
    }
}
