//! Values of settings: text as it was given, or the default, and what it means.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::flags;
use crate::config::sources::Settings;

/// As it was given, or the default.
pub(super) fn text(settings: &Settings, flag: &'static str) -> String {
    let default =
        || flags::USED.iter().find(|(name, ..)| *name == flag).map_or("", |(_, _, default, _)| default);
    settings.get(flag).cloned().unwrap_or_else(|| default().to_owned())
}

/// The error about a value.
pub(super) fn bad(settings: &Settings, flag: &'static str, problem: String) -> ConfigError {
    ConfigError::Value { flag, value: text(settings, flag), problem }
}

/// A whole number.
pub(super) fn number<N: std::str::FromStr>(
    settings: &Settings,
    flag: &'static str,
) -> Result<N, ConfigError> {
    let value = text(settings, flag);
    value.parse().map_err(|_| bad(settings, flag, "must be a whole number in its range".to_owned()))
}

/// On or off.
pub(super) fn switch(settings: &Settings, flag: &'static str) -> Result<bool, ConfigError> {
    match text(settings, flag).as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(bad(settings, flag, "must be true or false".to_owned())),
    }
}

/// A duration.
pub(super) fn duration(settings: &Settings, flag: &'static str) -> Result<Duration, ConfigError> {
    let value = text(settings, flag);
    if value == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(&value)
        .map_err(|error| bad(settings, flag, format!("must be a duration like 10m or 500ms: {error}")))
}

/// The parts of a text with commas.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
