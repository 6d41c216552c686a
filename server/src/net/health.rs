//! Health by plain HTTP, as probes ask for it: `/health`, `/livez` and `/readyz`, and each check of
//! the latter two alone (`/readyz/linearizable_read`).

use ::http::StatusCode;
use revd_member::error::Error;

use crate::api::{Api, NodeReport};
use crate::net::plain::{Parameters, PlainReply, TEXT};

/// One look at the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    /// Those of `/livez`.
    const OF_LIFE: &[Self] = &[Self::SerializableRead];
    /// Those of `/readyz`.
    const OF_READINESS: &[Self] =
        &[Self::DataCorruption, Self::SerializableRead, Self::LinearizableRead, Self::NonLearner];

    fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
        }
    }

    async fn run(self, api: &Api) -> Result<(), String> {
        match self {
            Self::DataCorruption if api.report().raised.corrupt => Err("alarm activated: CORRUPT".to_owned()),
            Self::NonLearner if api.report().is_learner => Err("not supported for learner".to_owned()),
            Self::LinearizableRead => api.wait_to_read().await.map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }
}

/// The checks that a path stands for, and whether it stands for all of them.
fn checks(path: &str) -> Option<(&'static [Check], bool)> {
    for (root, checks) in [("/livez", Check::OF_LIFE), ("/readyz", Check::OF_READINESS)] {
        let Some(rest) = path.strip_prefix(root) else { continue };
        if rest.is_empty() {
            return Some((checks, true));
        }
        let at = checks.iter().position(|check| rest.strip_prefix('/') == Some(check.name()))?;
        return Some((&checks[at..=at], false));
    }
    None
}

/// Whether this path is served here.
#[must_use]
pub(super) fn is_served(path: &str) -> bool {
    path == "/health" || checks(path).is_some()
}

/// Answers a request for such a path.
pub(super) async fn answer(api: &Api, path: &str, parameters: &Parameters) -> PlainReply {
    match checks(path) {
        Some((checks, is_root)) => check(api, checks, is_root, parameters).await,
        None => health(api, parameters).await,
    }
}

/// Runs the checks, in etcd's words; those of a root path may be excluded. The reply has a line for
/// each if one fails, or if all are asked for.
async fn check(api: &Api, checks: &[Check], is_root: bool, parameters: &Parameters) -> PlainReply {
    let (mut lines, mut is_well) = (String::new(), true);
    for check in checks {
        if is_root && has(parameters, b"exclude", check.name()) {
            continue;
        }
        let name = check.name();
        match check.run(api).await {
            Ok(()) => lines += &format!("[+]{name} ok\n"),
            Err(why) => {
                is_well = false;
                lines += &format!("[-]{name} failed: {why}\n");
            }
        }
    }
    if !is_well {
        return PlainReply::error(StatusCode::SERVICE_UNAVAILABLE, &lines);
    }
    let is_verbose = parameters.iter().any(|(name, _)| name == b"verbose");
    let shown = if is_verbose { lines } else { String::new() };
    PlainReply::ok(TEXT, shown + "ok\n").plain_text()
}

/// `/health`: no alarm, a leader, and a read that sees everything that was acknowledged before.
async fn health(api: &Api, parameters: &Parameters) -> PlainReply {
    let mut why = unhealthy(&api.report(), parameters).map(str::to_owned);
    if why.is_none() && !is_serializable(parameters) {
        why = api.wait_to_read().await.err().map(|error: Error| format!("RANGE ERROR:{error}"));
    }
    match why {
        None => PlainReply::ok(TEXT, r#"{"health":"true","reason":""}"#.to_owned()),
        Some(why) => {
            let text = format!(r#"{{"health":"false","reason":"{why}"}}"#);
            PlainReply::error(StatusCode::SERVICE_UNAVAILABLE, &text)
        }
    }
}

/// Why this member is not healthy before anything is read, in etcd's order. The parameter `exclude`
/// names alarms that do not count; with `serializable=true` a leader is not needed.
fn unhealthy(report: &NodeReport, parameters: &Parameters) -> Option<&'static str> {
    if report.raised.no_space && !has(parameters, b"exclude", "NOSPACE") {
        Some("ALARM NOSPACE")
    } else if report.raised.corrupt && !has(parameters, b"exclude", "CORRUPT") {
        Some("ALARM CORRUPT")
    } else if !report.has_leader && !is_serializable(parameters) {
        Some("RAFT NO LEADER")
    } else {
        None
    }
}

/// The first one of this name counts.
fn is_serializable(parameters: &Parameters) -> bool {
    parameters.iter().find(|(name, _)| name == b"serializable").is_some_and(|(_, value)| value == b"true")
}

fn has(parameters: &Parameters, name: &[u8], value: &str) -> bool {
    parameters.iter().any(|(known, its)| known == name && its == value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::plain::parameters;
    use revd_member::apply::alarm::Raised;

    #[test]
    fn health_excludes_what_the_query_says() {
        let raised = Raised { no_space: true, ..Raised::default() };
        let report = |raised, has_leader| NodeReport { has_leader, is_learner: false, raised };
        let alarmed = |query| unhealthy(&report(raised, true), &parameters(query));
        for query in [
            "",
            "exclude=CORRUPT",
            "exclude=nospace",
            "exclude=NOSPACE,CORRUPT",
            "a;exclude=NOSPACE",
            "exclude",
        ] {
            assert_eq!(alarmed(query), Some("ALARM NOSPACE"), "{query}");
        }
        for query in ["exclude=NOSPACE", "exclude=CORRUPT&exclude=%4eOSPACE", "x;y&%zz=1&exclude=NOSPACE"] {
            assert_eq!(alarmed(query), None, "{query}");
        }
        let leaderless = |query| unhealthy(&report(Raised::default(), false), &parameters(query));
        assert_eq!(leaderless("serializable=true"), None);
        for query in ["", "serializable", "serializable=1", "serializable=x&serializable=true"] {
            assert_eq!(leaderless(query), Some("RAFT NO LEADER"), "{query}");
        }
    }

    #[test]
    fn each_check_has_a_path_of_its_own() {
        let served = [
            "/livez",
            "/livez/serializable_read",
            "/readyz",
            "/readyz/data_corruption",
            "/readyz/serializable_read",
            "/readyz/linearizable_read",
            "/readyz/non_learner",
        ];
        assert!(served.iter().all(|path| is_served(path)));
        let foreign = ["/livez/", "/livez/non_learner", "/readyz/x", "/readyzx", "/healthz", ""];
        assert!(!foreign.iter().any(|path| is_served(path)));
    }
}
