//! The line of the log that tells who has changed users or roles.
//!
//! It waits with the change, not with the caller: a caller that changes rights and goes away
//! before the answer is told of all the same. The line is kept as long as the change waits, and is
//! bounded, whatever the request has in it.

use revd_member::apply::command::Kind;
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;
use revd_member::limits::AUTH_NAME_BYTES_MAX;
use serde_json::{Map, Value, json};

use crate::limits;
use crate::observe::log;

/// A change that is under way: the fields of its line, but for its end. They are no table of JSON
/// yet: an edge may lose very many changes in one turn, and frees them all in it.
#[derive(Debug)]
pub struct ChangeLine {
    kind: Kind,
    of: Box<[NamedField]>,
    by: Option<Box<str>>,
    address: Box<str>,
}

/// A field of what a change is about, with its name.
pub type NamedField = (&'static str, Option<Box<str>>);

impl ChangeLine {
    /// As many as one counts while it waits: three names, the address, and what is around them.
    pub(crate) const BYTES: usize = 3 * AUTH_NAME_BYTES_MAX + 512;

    /// That of a change of this kind: what it is about, who makes it, and from where.
    #[must_use]
    pub fn new(kind: Kind, of: Vec<NamedField>, by: Option<&str>, address: &str) -> Self {
        Self { kind, of: of.into(), by: by.map(|by| shown(by).into()), address: address.into() }
    }

    fn fields(self) -> Value {
        let Self { kind, of, by, address } = self;
        let of: Map<_, _> = of.into_iter().map(|(name, field)| (name.to_owned(), json!(field))).collect();
        json!({ "change": format!("{kind:?}"), "of": of, "by": by, "remote-addr": address })
    }

    /// Tells how the change ended: it was made, or nobody will know. Nothing is said of one that
    /// was refused.
    pub(crate) fn end(self, result: &Result<Outcome, Error>) {
        match result {
            Ok(outcome) if outcome.result.is_ok() => log::info("users or roles were changed", self.fields()),
            Ok(_) => {}
            Err(why) => {
                let mut fields = self.fields();
                fields["error"] = why.to_string().into();
                log::warn("users or roles may have been changed", fields);
            }
        }
    }
}

/// Tells of changes that are lost together, for this reason. They are as many as the edge may have
/// under way, and the log drops lines that it cannot take: not all have a line of their own.
pub(crate) fn lost(lines: impl Iterator<Item = Box<ChangeLine>>, why: &Error) {
    let (own, more) = divide(lines);
    own.into_iter().for_each(|line| line.end(&Err(why.clone())));
    if more > 0 {
        let fields = json!({ "changes": more, "error": why.to_string() });
        log::warn("more users or roles may have been changed", fields);
    }
}

/// Those that have lines of their own, and how many others there are.
fn divide<L>(mut lines: impl Iterator<Item = L>) -> (Vec<L>, usize) {
    let own = lines.by_ref().take(limits::LOST_CHANGE_LINES_MAX).collect();
    (own, lines.count())
}

/// As much of a name as a line shows: all of one that a user or a role can have.
#[must_use]
pub fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(AUTH_NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_changes_that_are_lost_together_some_are_told_one_by_one() {
        let divided = |changes: usize| {
            let (own, more) = divide(0..changes);
            (own.len(), more)
        };
        let most = limits::LOST_CHANGE_LINES_MAX;
        assert_eq!([0, most, 20_000].map(divided), [(0, 0), (most, 0), (most, 20_000 - most)]);
    }

    #[test]
    fn a_line_has_the_fields_of_its_change() {
        let of = vec![("name", Some("viewer".into())), ("permission", None)];
        let line = ChangeLine::new(Kind::RoleGrantPermission, of, Some("root"), "10.0.0.7");
        let of = json!({ "name": "viewer", "permission": null });
        let fields = json!({
            "change": "RoleGrantPermission", "of": of, "by": "root", "remote-addr": "10.0.0.7",
        });
        assert_eq!(line.fields(), fields);
        let switch = ChangeLine::new(Kind::AuthEnable, Vec::new(), None, "").fields();
        assert!(switch["of"] == json!({}) && switch["by"].is_null());
    }

    #[test]
    fn names_of_users_are_shown_in_full_and_longer_ones_are_cut() {
        let longest = "n".repeat(AUTH_NAME_BYTES_MAX);
        assert_eq!((shown("ann"), shown(&longest)), ("ann", &longest[..]));
        let long = "\u{20ac}".repeat(500_000);
        assert!(long.starts_with(shown(&long)) && shown(&long).len() == AUTH_NAME_BYTES_MAX / 3 * 3);
    }
}
