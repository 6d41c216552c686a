//! In whose name calls are made: names and passwords by server, and the tokens that they gave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::Args;

/// A user, as etcdctl names it.
#[derive(Args, Clone, Debug, Default)]
pub struct UserArgs {
    /// User to log in as: a name, or name:password
    #[arg(long, global = true, value_name = "NAME", help_heading = "User")]
    user: Option<String>,
    /// Its password; everything in --user is the name then
    #[arg(long, global = true, value_name = "PASSWORD", requires = "user", help_heading = "User")]
    password: Option<String>,
}

/// A name and its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

/// A password is in no log and no report.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// Everybody's credentials, and those of single servers.
#[derive(Debug, Default)]
struct Known {
    of_all: Option<Credentials>,
    of_hosts: BTreeMap<String, Credentials>,
    tokens: BTreeMap<String, Arc<str>>,
}

static KNOWN: Mutex<Known> =
    Mutex::new(Known { of_all: None, of_hosts: BTreeMap::new(), tokens: BTreeMap::new() });

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the user of all connections that follow.
///
/// # Errors
/// When there is no password.
pub fn set(args: &UserArgs) -> anyhow::Result<()> {
    let Some(user) = &args.user else { return Ok(()) };
    let (name, password) = match (&args.password, user.split_once(':')) {
        (Some(password), _) => (user.as_str(), password.as_str()),
        (None, Some(both)) => both,
        (None, None) => {
            anyhow::bail!("--user {user}: its password is missing (--password, or name:password)")
        }
    };
    anyhow::ensure!(!name.is_empty(), "--user: the name is empty");
    known().of_all = Some(Credentials { name: name.to_owned(), password: password.to_owned() });
    Ok(())
}

/// Connections to this host and port are this user's; tokens that it gave before are forgotten.
pub fn set_for(host: &str, credentials: Credentials) {
    let mut known = known();
    known.tokens.remove(host);
    known.of_hosts.insert(host.to_owned(), credentials);
}

/// The user of connections to this host and port.
#[must_use]
pub fn credentials(host: &str) -> Option<Credentials> {
    let known = known();
    known.of_hosts.get(host).or(known.of_all.as_ref()).cloned()
}

/// The token that calls to this host and port have.
#[must_use]
pub fn token(host: &str) -> Option<Arc<str>> {
    known().tokens.get(host).cloned()
}

/// Keeps a token for all connections to this host and port.
pub fn keep(host: &str, token: &Arc<str>) {
    known().tokens.insert(host.to_owned(), Arc::clone(token));
}

/// Whether a call failed because its token does not count any more, or because it had none though
/// the server has a user; it has done nothing.
#[must_use]
pub fn is_token_refused(what: &str, has_user: bool) -> bool {
    let words = ["invalid auth token", "revision of auth store is old", "user name is empty"];
    has_user && what.split_once(": etcdserver: ").is_some_and(|(_, what)| words.contains(&what))
}

/// Words of a command line, without the password in them.
#[must_use]
pub fn without_passwords(words: &[String]) -> String {
    let mut shown: Vec<String> = Vec::new();
    let has_password = words.iter().any(|word| word.starts_with("--password"));
    for word in words {
        let hidden = |word: &str| match word.split_once(':') {
            Some((name, _)) if !has_password => format!("{name}:***"),
            _ => word.to_owned(),
        };
        shown.push(match (shown.last().map(String::as_str), word.split_once('=')) {
            (Some("--password"), _) => "***".to_owned(),
            (Some("--user"), _) => hidden(word),
            (_, Some(("--password", _))) => "--password=***".to_owned(),
            (_, Some(("--user", user))) => format!("--user={}", hidden(user)),
            _ => word.clone(),
        });
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (said, shown) in [
            ("put --user ann:secret --rate 5", "put --user ann:*** --rate 5"),
            ("put --user=ann:secret", "put --user=ann:***"),
            ("put --user a:b --password secret", "put --user a:b --password ***"),
            ("put --password=secret --user ann", "put --password=*** --user ann"),
            ("put --rate 5", "put --rate 5"),
        ] {
            let words: Vec<_> = said.split(' ').map(str::to_owned).collect();
            assert_eq!(without_passwords(&words), shown);
        }
        let credentials = Credentials { name: "ann".to_owned(), password: "secret".to_owned() };
        assert_eq!(format!("{credentials:?}"), "ann");
    }

    #[test]
    fn hosts_have_users_and_tokens_of_their_own() {
        let of = |name: &str| Credentials { name: name.to_owned(), password: "p".to_owned() };
        set_for("h:1", of("ann"));
        set_for("h:2", of("bob"));
        assert_eq!((credentials("h:1"), credentials("h:2")), (Some(of("ann")), Some(of("bob"))));
        keep("h:1", &Arc::from("t"));
        assert_eq!((token("h:1").as_deref(), token("h:2")), (Some("t"), None));
        set_for("h:1", of("cat"));
        assert_eq!(token("h:1"), None);
        let args = |user: &str, password: Option<&str>| UserArgs {
            user: Some(user.to_owned()),
            password: password.map(str::to_owned),
        };
        assert!(set(&args("ann", None)).is_err() && set(&args(":x", None)).is_err());
    }

    #[test]
    fn refused_tokens_are_known_by_their_words() {
        assert!(is_token_refused("UNAUTHENTICATED: etcdserver: invalid auth token", true));
        assert!(!is_token_refused("INVALID_ARGUMENT: etcdserver: user name is empty", false));
        assert!(!is_token_refused("PERMISSION_DENIED: etcdserver: permission denied", true));
    }
}
