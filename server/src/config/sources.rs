//! Where settings come from: the command line, the environment, a file. Their meaning is decided
//! in `config`.

use std::collections::BTreeMap;

use crate::config::error::ConfigError;
use crate::config::flags::{self, Flag, FlagKind, FlagSupport};

/// Settings as text, by flag name.
pub type Settings = BTreeMap<&'static str, String>;

/// Settings, and warnings about them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The settings.
    pub settings: Settings,
    /// Lines for the log.
    pub warnings: Vec<String>,
}

impl Gathered {
    fn set(&mut self, flag: Flag, value: String) {
        if flag.support == FlagSupport::Ignored {
            self.warnings.push(format!("the setting {} has no effect in this version", flag.name));
        }
        match self.settings.get_mut(flag.name) {
            // Of several it is the last one that counts, as in Go, but for a flag that is a list.
            Some(before) if flag.name == "limit-user" => *before = format!("{before};{value}"),
            _ => drop(self.settings.insert(flag.name, value)),
        }
    }
}

/// Reads a command line, spelled as Go programs take it.
///
/// # Errors
/// Unknown flags, missing values, stray arguments.
pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<Gathered, ConfigError> {
    let mut gathered = Gathered::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let named = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|name| !name.is_empty());
        let Some(named) = named else { return Err(ConfigError::StrayArgument(arg)) };
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (named, None),
        };
        let flag = flags::find(name).ok_or_else(|| ConfigError::UnknownFlag {
            name: name.to_owned(),
            nearest: flags::nearest(name),
        })?;
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, FlagKind::Switch) => "true".to_owned(),
            (None, FlagKind::Text) => args.next().ok_or(ConfigError::MissingValue(flag.name))?,
        };
        gathered.set(flag, value);
    }
    Ok(gathered)
}

/// Adds settings from the environment: `ETCD_DATA_DIR` is `--data-dir`.
///
/// # Errors
/// When something is set both here and on the command line: etcd does not start then either.
pub fn add_env(
    gathered: &mut Gathered,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<(), ConfigError> {
    for (variable, value) in variables {
        let Some(name) = variable.strip_prefix("ETCD_") else { continue };
        if matches!(name, "UNSUPPORTED_ARCH" | "VERIFY") {
            continue; // not settings, but etcd knows them
        }
        match flags::find(&name.to_ascii_lowercase().replace('_', "-")) {
            Some(flag) if gathered.settings.contains_key(flag.name) => {
                return Err(ConfigError::Shadowed { variable, flag: flag.name });
            }
            Some(flag) => gathered.set(flag, value),
            // Not its value: images of etcd put passwords into variables like these.
            None => gathered.warnings.push(format!("unrecognized environment variable {variable}")),
        }
    }
    Ok(())
}

/// The blocks of a file about TLS: the flag that each of their keys stands for.
const SECURITY_BLOCKS: [(&str, &[(&str, &str)]); 2] = [
    (
        "client-transport-security",
        &[
            ("cert-file", "cert-file"),
            ("key-file", "key-file"),
            ("client-cert-file", "client-cert-file"),
            ("client-key-file", "client-key-file"),
            ("client-cert-auth", "client-cert-auth"),
            ("trusted-ca-file", "trusted-ca-file"),
            ("auto-tls", "auto-tls"),
            ("allowed-hostname", "client-cert-allowed-hostname"),
        ],
    ),
    (
        "peer-transport-security",
        &[
            ("cert-file", "peer-cert-file"),
            ("key-file", "peer-key-file"),
            ("client-cert-file", "peer-client-cert-file"),
            ("client-key-file", "peer-client-key-file"),
            ("client-cert-auth", "peer-client-cert-auth"),
            ("trusted-ca-file", "peer-trusted-ca-file"),
            ("auto-tls", "peer-auto-tls"),
            ("allowed-cn", "peer-cert-allowed-cn"),
            ("allowed-hostname", "peer-cert-allowed-hostname"),
            ("skip-client-san-verification", "peer-skip-client-san-verification"),
        ],
    ),
];

/// Reads a configuration file. Keys that are no settings are passed over, as etcd does.
///
/// # Errors
/// When the text is not a YAML mapping.
pub fn from_yaml(text: &str) -> Result<Gathered, String> {
    let document: BTreeMap<String, serde_norway::Value> =
        serde_norway::from_str(text).map_err(|error| error.to_string())?;
    let mut gathered = Gathered::default();
    let mut settings = Vec::new();
    for (key, value) in document {
        let block = SECURITY_BLOCKS.iter().find(|(block, _)| *block == key);
        match (block, value) {
            (Some((_, names)), serde_norway::Value::Mapping(block)) => {
                let name = |key: &str| names.iter().find(|(inner, _)| *inner == key).map(|(_, flag)| *flag);
                let known =
                    |(key, value): (serde_norway::Value, _)| Some((name(key.as_str()?)?.to_owned(), value));
                settings.extend(block.into_iter().filter_map(known));
            }
            (_, value) => settings.push((key, value)),
        }
    }
    for (key, value) in settings {
        let Some(flag) = flags::find(&key) else { continue };
        let value = match value {
            serde_norway::Value::String(text) => text,
            serde_norway::Value::Bool(on) => on.to_string(),
            serde_norway::Value::Number(number) => number.to_string(),
            serde_norway::Value::Null => continue,
            serde_norway::Value::Sequence(texts) if texts.iter().all(serde_norway::Value::is_string) => {
                let texts: Vec<_> = texts.iter().filter_map(serde_norway::Value::as_str).collect();
                texts.join(",")
            }
            other => {
                return Err(format!("{key} must be a single value, not {other:?}"));
            }
        };
        gathered.set(flag, value);
    }
    Ok(gathered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<Gathered, ConfigError> {
        from_args(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn all_go_spellings_mean_the_same() {
        for line in
            ["--name a --unsafe-no-fsync", "-name a -unsafe-no-fsync=true", "--name=a --unsafe-no-fsync=true"]
        {
            let settings = args(line).unwrap().settings;
            assert_eq!(settings["name"], "a", "{line}");
            assert_eq!(settings["unsafe-no-fsync"], "true", "{line}");
        }
    }

    #[test]
    fn what_etcd_knows_and_we_do_not_is_accepted_with_a_warning() {
        let gathered = args("--max-snapshots 3 --experimental-memory-mlock").unwrap();
        assert_eq!(gathered.warnings.len(), 2);
    }

    #[test]
    fn slips_are_named() {
        let unknown = args("--data-dri x").unwrap_err().to_string();
        assert!(unknown.contains("data-dri") && unknown.contains("--data-dir"), "{unknown}");
        assert!(matches!(args("--name"), Err(ConfigError::MissingValue("name"))));
        assert!(matches!(args("serve"), Err(ConfigError::StrayArgument(_))));
    }

    #[test]
    fn a_setting_given_twice_is_refused_and_unknown_variables_are_reported() {
        let variables = |name: &str| [(name.to_owned(), "x".to_owned())];
        let mut gathered = args("--data-dir y").unwrap();
        let shadowed = add_env(&mut gathered, variables("ETCD_DATA_DIR")).unwrap_err();
        assert!(shadowed.to_string().contains("shadowed by corresponding command-line flag"));
        add_env(&mut gathered, variables("ETCD_NAME")).unwrap();
        assert_eq!(gathered.settings["name"], "x");
        add_env(&mut gathered, variables("ETCD_NONSENSE")).unwrap();
        assert_eq!(gathered.warnings.len(), 1);
        add_env(&mut gathered, variables("ETCDCTL_API")).unwrap();
        assert_eq!(gathered.warnings.len(), 1);
    }

    #[test]
    fn a_file_sets_what_flags_set() {
        let gathered =
            from_yaml("name: a\nmax-txn-ops: 7\nunsafe-no-fsync: true\nunheard-of: {x: 1}\n").unwrap();
        assert_eq!(gathered.settings["max-txn-ops"], "7");
        assert_eq!(gathered.settings["unsafe-no-fsync"], "true");
        assert!(gathered.warnings.is_empty());
        assert!(from_yaml("- a\n- b\n").is_err());
        let text = "client-transport-security:\n  cert-file: c\n  client-cert-auth: true\n  x: y\n\
                    peer-transport-security: {auto-tls: true, allowed-cn: [a, b]}\n";
        let settings = from_yaml(text).unwrap().settings;
        assert_eq!((&settings["cert-file"][..], &settings["client-cert-auth"][..]), ("c", "true"));
        assert_eq!((&settings["peer-auto-tls"][..], &settings["peer-cert-allowed-cn"][..]), ("true", "a,b"));
        assert_eq!(settings.len(), 4);
    }
}
