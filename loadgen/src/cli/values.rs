//! Values of flags.

/// Seconds as people write them: 10s, 1m30s, 0.5.
///
/// # Errors
/// When it is no duration.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    if let Ok(number) = text.parse::<f64>() {
        return if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("no duration".to_owned()) };
    }
    humantime::parse_duration(text).map(|duration| duration.as_secs_f64()).map_err(|error| error.to_string())
}

/// The words of a flag that holds several.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Members of a cluster.
pub(super) fn members(text: &str) -> anyhow::Result<usize> {
    const MOST: usize = 9;
    let members = text.parse().ok().filter(|members| (1..=MOST).contains(members));
    members.ok_or_else(|| anyhow::anyhow!("`{text}` is no number of members: 1 to {MOST}"))
}
