//! In whose name calls are made: names and passwords by server, and the tokens that they gave.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use clap::Args;

/// A user, as etcdctl names it.
#[derive(Args, Clone, Debug, Default)]
pub struct UserArgs {
    /// User to log in as: a name, or name:password (ETCDCTL_USER)
    #[arg(long, global = true, value_name = "NAME", help_heading = "User")]
    user: Option<Hidden>,
    /// Its password; everything in --user is the name then (ETCDCTL_PASSWORD)
    #[arg(long, global = true, value_name = "PASSWORD", help_heading = "User")]
    password: Option<Hidden>,
    /// The same, as the first line of a file
    #[arg(long, global = true, value_name = "FILE", help_heading = "User", conflicts_with = "password")]
    password_file: Option<PathBuf>,
}

/// Words with a password in them, as a command line has them: never shown.
#[derive(Clone, Default, PartialEq, Eq)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[hidden]")
    }
}

impl FromStr for Hidden {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
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
#[derive(Debug)]
struct Known {
    /// Or why the environment names a user with whom nobody can log in: only calls that need one
    /// fail for that.
    of_all: Result<Option<Credentials>, String>,
    /// None of those for a server whose calls are nobody's.
    of_hosts: BTreeMap<String, Option<Credentials>>,
    tokens: BTreeMap<String, Arc<str>>,
    /// Servers that have said that they ask nobody for rights.
    open: BTreeSet<String>,
    /// How often each server was asked for a token.
    logins: BTreeMap<String, u64>,
}

impl Known {
    const NOBODY: Self = Self {
        of_all: Ok(None),
        of_hosts: BTreeMap::new(),
        tokens: BTreeMap::new(),
        open: BTreeSet::new(),
        logins: BTreeMap::new(),
    };

    fn set_for(&mut self, host: &str, credentials: Option<Credentials>) {
        self.tokens.remove(host);
        self.open.remove(host);
        self.of_hosts.insert(host.to_owned(), credentials);
    }

    fn credentials(&self, host: &str) -> anyhow::Result<Option<&Credentials>> {
        match (self.of_hosts.get(host), &self.of_all) {
            (Some(own), _) => Ok(own.as_ref()),
            (None, Ok(of_all)) => Ok(of_all.as_ref()),
            (None, Err(problem)) => Err(anyhow::anyhow!("{problem}")),
        }
    }
}

static KNOWN: Mutex<Known> = Mutex::new(Known::NOBODY);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the user of all connections that follow: of the command line, or of the environment, which
/// other users of the machine cannot read. A user of the environment alone that has no password is
/// an error of the calls that need one.
///
/// # Errors
/// When flags name a user without a password, or its file cannot be read.
pub fn set(args: &UserArgs) -> anyhow::Result<()> {
    let of_all = args.of_all(|name| std::env::var(name).ok())?;
    known().of_all = of_all;
    Ok(())
}

impl UserArgs {
    fn of_all(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Result<Option<Credentials>, String>> {
        let is_given = self.user.is_some() || self.password.is_some() || self.password_file.is_some();
        match self.credentials(variable) {
            Err(error) if !is_given => Ok(Err(format!("{error:#}"))),
            credentials => credentials.map(Ok),
        }
    }

    /// The user that is meant; a flag goes before its variable, as with etcdctl.
    fn credentials(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Credentials>> {
        let given = |flag: &Option<Hidden>, name: &str| {
            let flag = flag.as_ref().map(|Hidden(text)| text.clone());
            flag.or_else(|| variable(name).filter(|text| !text.is_empty()))
        };
        let Some(user) = given(&self.user, "ETCDCTL_USER") else {
            let is_given = self.password.is_some() || self.password_file.is_some();
            anyhow::ensure!(!is_given, "a password is given, and no --user");
            return Ok(None);
        };
        let source = if self.user.is_some() { "--user" } else { "ETCDCTL_USER" };
        let password = match &self.password_file {
            Some(file) => Some(first_line(file)?),
            None => given(&self.password, "ETCDCTL_PASSWORD"),
        };
        let (name, password) = match (password, user.split_once(':')) {
            (Some(password), _) => (user, password),
            (None, Some((name, password))) => (name.to_owned(), password.to_owned()),
            (None, None) => anyhow::bail!(
                "{source} {user}: its password is missing (--password-file, ETCDCTL_PASSWORD, --password, or \
                 name:password)"
            ),
        };
        anyhow::ensure!(!name.is_empty(), "{source}: the name is empty");
        Ok(Some(Credentials { name, password }))
    }
}

/// The password that a file holds.
fn first_line(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let line = text.lines().next().unwrap_or_default();
    anyhow::ensure!(!line.is_empty(), "{}: its first line has no password", file.display());
    Ok(line.to_owned())
}

/// Connections to this host and port are this user's; tokens that it gave before are forgotten.
pub fn set_for(host: &str, credentials: Credentials) {
    known().set_for(host, Some(credentials));
}

/// Connections to this host and port are nobody's, whoever the user of all others is.
pub fn set_nobody_for(host: &str) {
    known().set_for(host, None);
}

/// The user of connections to this host and port.
///
/// # Errors
/// When the environment names one without a password.
pub fn credentials(host: &str) -> anyhow::Result<Option<Credentials>> {
    known().credentials(host).map(Option::<&_>::cloned)
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

/// How often this host and port was asked for a token.
#[must_use]
pub fn logins(host: &str) -> u64 {
    known().logins.get(host).copied().unwrap_or(0)
}

/// It is asked once more.
pub fn count_login(host: &str) {
    *known().logins.entry(host.to_owned()).or_default() += 1;
}

/// Whether this host and port asks nobody for rights, as far as it is known: nobody need log in.
#[must_use]
pub fn is_open(host: &str) -> bool {
    known().open.contains(host)
}

/// Remembers whether this host and port asks nobody for rights.
pub fn set_open(host: &str, is_open: bool) {
    let mut known = known();
    if is_open {
        known.open.insert(host.to_owned());
    } else {
        known.open.remove(host);
    }
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
            ("put --password-file at/x --user a:b", "put --password-file at/x --user a:b"),
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
        let told = |host| credentials(host).unwrap();
        assert_eq!((told("h:1"), told("h:2")), (Some(of("ann")), Some(of("bob"))));
        keep("h:1", &Arc::from("t"));
        assert_eq!((token("h:1").as_deref(), token("h:2")), (Some("t"), None));
        set_open("h:1", true);
        set_for("h:1", of("cat"));
        assert!(token("h:1").is_none() && !is_open("h:1"));
    }

    /// Servers with users of their own, or none, need none of the environment.
    #[test]
    fn a_user_of_the_environment_without_a_password_is_an_error_where_it_is_needed() {
        let only_name = |name: &str| (name == "ETCDCTL_USER").then(|| "ann".to_owned());
        let mut known = Known { of_all: UserArgs::default().of_all(only_name).unwrap(), ..Known::NOBODY };
        let told = known.credentials("h:1").unwrap_err().to_string();
        assert!(told.starts_with("ETCDCTL_USER ann: its password is missing"), "{told}");
        let bob = Credentials { name: "bob".to_owned(), password: "p".to_owned() };
        known.set_for("h:1", Some(bob.clone()));
        known.set_for("h:2", None);
        assert_eq!(known.credentials("h:1").unwrap(), Some(&bob));
        assert_eq!(known.credentials("h:2").unwrap(), None);
        assert!(known.credentials("h:3").is_err());
        let flag = UserArgs { user: Some(Hidden("ann".to_owned())), ..UserArgs::default() };
        let told = flag.of_all(|_| None).unwrap_err().to_string();
        assert!(told.starts_with("--user ann: its password is missing"), "{told}");
    }

    /// Of the flags, of a file, and of the environment where there is no flag.
    #[test]
    fn a_password_comes_from_where_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "of: the file\r\nand more\n").unwrap();
        let hidden = |text: &str| (!text.is_empty()).then(|| Hidden(text.to_owned()));
        let chosen = |[user, password]: [&str; 2], has_file: bool, variables: [&str; 2]| {
            let password_file = has_file.then(|| file.clone());
            let args = UserArgs { user: hidden(user), password: hidden(password), password_file };
            assert!(!format!("{args:?}").contains("secret"), "{args:?}");
            let chosen = args.credentials(|name| match name {
                "ETCDCTL_USER" => Some(variables[0].to_owned()),
                "ETCDCTL_PASSWORD" => Some(variables[1].to_owned()),
                _ => None,
            });
            chosen.map(|it| it.map(|Credentials { name, password }| [name, password]))
        };
        let of = |name: &str, password: &str| Some([name.to_owned(), password.to_owned()]);
        for (flags, has_file, variables, wanted) in [
            (["", ""], false, ["", ""], None),
            (["ann:secret", ""], false, ["", ""], of("ann", "secret")),
            (["ann:x", "secret"], false, ["bob", "y"], of("ann:x", "secret")),
            (["ann:x", ""], true, ["", ""], of("ann:x", "of: the file")),
            (["ann", ""], true, ["bob", "y"], of("ann", "of: the file")),
            (["", ""], true, ["bob", "y"], of("bob", "of: the file")),
            (["", ""], false, ["bob:secret", ""], of("bob", "secret")),
            (["", ""], false, ["bob:x", "secret"], of("bob:x", "secret")),
            (["ann", ""], false, ["", "secret"], of("ann", "secret")),
        ] {
            assert_eq!(chosen(flags, has_file, variables).unwrap(), wanted, "{flags:?} {variables:?}");
        }
        for (flags, has_file) in
            [(["ann", ""], false), ([":x", ""], false), (["", "secret"], false), (["", ""], true)]
        {
            assert!(chosen(flags, has_file, ["", ""]).is_err(), "{flags:?}");
        }
        std::fs::write(&file, "\nsecret\n").unwrap();
        assert!(chosen(["ann", ""], true, ["", ""]).is_err(), "an empty line is no password");
    }

    #[test]
    fn refused_tokens_are_known_by_their_words() {
        assert!(is_token_refused("UNAUTHENTICATED: etcdserver: invalid auth token", true));
        assert!(!is_token_refused("INVALID_ARGUMENT: etcdserver: user name is empty", false));
        assert!(!is_token_refused("PERMISSION_DENIED: etcdserver: permission denied", true));
    }
}
