//! The rights of users as of one state, and the one function that judges requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use revd_engine::mvcc::{Tables, TablesMark};

use crate::auth::caller::{Caller, User};
use crate::auth::rights::Rights;
use crate::auth::wants::{Attached, Judge, Wants};
use crate::error::{AuthError, Error};
use crate::schema::{self, AuthState};

/// The rights of users, remembered for one state of users and roles.
#[derive(Debug)]
pub struct Access {
    state: AuthState,
    /// Of the tables with this state.
    mark: TablesMark,
    known: BTreeMap<String, Arc<Rights>>,
    /// The same by roles: users who have the same ones share their rights.
    by_roles: BTreeMap<Vec<String>, Arc<Rights>>,
    /// Permissions that rights were made of, ever: making them is what costs.
    read: u64,
}

impl Default for Access {
    fn default() -> Self {
        let mark = TablesMark::default();
        Self { state: AuthState::NEW, mark, known: BTreeMap::new(), by_roles: BTreeMap::new(), read: 0 }
    }
}

impl Access {
    /// As of these tables.
    #[must_use]
    pub fn of(tables: &Tables) -> Self {
        Self { state: schema::auth_state(tables), ..Self::default() }
    }

    /// Goes on to the state of these tables.
    pub fn follow(&mut self, tables: &Tables) -> AuthState {
        if !tables.is_marked(&self.mark) {
            self.mark = tables.mark();
            let state = schema::auth_state(tables);
            if state != self.state {
                let mark = std::mem::take(&mut self.mark);
                *self = Self { state, mark, read: self.read, ..Self::default() };
            }
        }
        self.state
    }

    /// Requests need rights.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.state.enabled
    }

    /// Counts changes of users, roles and permissions.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.state.revision
    }

    fn rights(&mut self, tables: &Tables, name: &str) -> Option<Arc<Rights>> {
        if let Some(rights) = self.known.get(name) {
            return Some(Arc::clone(rights));
        }
        let roles = schema::user(tables, name)?.roles;
        let rights = if let Some(rights) = self.by_roles.get(&roles) {
            Arc::clone(rights)
        } else {
            let (rights, permissions) = Rights::of(tables, roles);
            self.read += permissions as u64;
            let rights = Arc::new(rights);
            self.by_roles.insert(rights.roles.clone(), Arc::clone(&rights));
            rights
        };
        self.known.insert(name.to_owned(), Arc::clone(&rights));
        Some(rights)
    }

    /// Permissions that rights were made of since the start: a measure of what that has cost.
    #[must_use]
    pub fn permissions_read(&self) -> u64 {
        self.read
    }

    /// How often the keys of a lease are looked at, at most, before a user may put a key with it:
    /// as often as it has keys if the rights of the user are not remembered.
    pub(crate) fn looks_per_lease(&self, user: Option<&str>) -> usize {
        match user.filter(|_| self.state.enabled).map(|name| self.known.get(name)) {
            None => 0,
            Some(Some(rights)) if rights.is_root => 0,
            Some(Some(rights)) => rights.write.len() + 1,
            Some(None) => usize::MAX,
        }
    }

    /// The caller may do everything, or rights are not asked for.
    pub fn is_root(&mut self, tables: &Tables, caller: &Caller) -> bool {
        match caller {
            _ if !self.state.enabled => true,
            Caller::Member => true,
            Caller::Nobody | Caller::BadToken => false,
            Caller::User(user) => self.rights(tables, &user.name).is_some_and(|rights| rights.is_root),
        }
    }

    /// Whether a caller may do what it wants; this is the only place that decides so. `tables`
    /// are those of the last [`Access::follow`]. Where leases are not known, what is attached to
    /// them does not count: the state core judges again.
    ///
    /// # Errors
    /// The error that the client gets, in etcd's order.
    pub fn check(
        &mut self,
        tables: &Tables,
        caller: &Caller,
        wants: &Wants<'_>,
        attached: Attached<'_>,
    ) -> Result<(), Error> {
        if !self.state.enabled || *caller == Caller::Member {
            return Ok(());
        }
        let user = match caller {
            Caller::Member => return Ok(()),
            Caller::BadToken => return Err(Error::Auth(AuthError::InvalidAuthToken)),
            _ if matches!(wants, Wants::Nothing) => return Ok(()),
            Caller::Nobody => return Err(Error::Auth(AuthError::EmptyUser)),
            Caller::User(user) if user.name.is_empty() && !wants.names_keys() => {
                return Err(Error::Auth(AuthError::EmptyUser));
            }
            Caller::User(user) => user,
        };
        let Some(rights) = self.rights(tables, &user.name) else {
            return Err(self.of_unknown_user(user, wants));
        };
        // As with etcd: an old token counts where no key is named, and for keys of leases it still
        // is root's.
        if wants.names_keys() || !rights.is_root && attached.has_keys_of(wants) {
            self.check_revision(user)?;
        }
        if rights.is_root {
            return Ok(());
        }
        Judge { name: &user.name, rights: &rights, attached }.judge(wants)
    }

    /// The answer to a user that is gone, or never was: its token or certificate names one.
    fn of_unknown_user(&self, user: &User, wants: &Wants<'_>) -> Error {
        match wants {
            Wants::Login | Wants::Nothing => Error::Auth(AuthError::InvalidAuthToken),
            Wants::Root | Wants::User(_) | Wants::Role(_) => Error::Auth(AuthError::UserNotFound),
            _ => self.check_revision(user).err().unwrap_or(Error::Auth(AuthError::PermissionDenied)),
        }
    }

    fn check_revision(&self, user: &User) -> Result<(), Error> {
        match user.revision {
            // As with etcd, where it is that of a caller that has no token.
            Some(0) => Err(Error::Auth(AuthError::EmptyUser)),
            Some(revision) if revision < self.state.revision => Err(Error::Auth(AuthError::OldAuthRevision)),
            _ => Ok(()),
        }
    }
}
