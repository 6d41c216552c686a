//! Logins by the thousand, and guesses of tokens, at a server whose callers are users.
//!
//! bcrypt takes tens of milliseconds of a core on purpose: a server that checks whatever comes is
//! busy with nothing else.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::{AuthenticateRequest, RangeRequest};

use super::attack::{Attack, AttackTarget};
use super::store::RANGE;
use crate::accounts;
use crate::caller::{Caller, PATIENCE};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Logins at once, and the connections that they come on.
const LOGINS: usize = 1_000;
const CONNECTIONS: usize = 4;
/// Calls under way with a guessed token.
const GUESSES: usize = 500;
/// Bytes of a long password.
const LONG: usize = 1 << 20;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("logins: 1,000 at once, wrong passwords of one user", 0, |target| {
        logins(target, LOGINS, |_| (accounts::NAME.to_owned(), "guess".to_owned()))
    })
    .with_users()
    .told("authentication failed"),
    Attack::new("logins: 1,000 at once, in as many names", 0, |target| {
        logins(target, LOGINS, |number| (format!("user {number}"), "guess".to_owned()))
    })
    .with_users()
    .told("authentication failed"),
    Attack::new("logins: 1,000 at once, right passwords", 0, |target| {
        logins(target, LOGINS, |_| (accounts::NAME.to_owned(), accounts::NAME.to_owned()))
    })
    .with_users()
    .told("ok"),
    Attack::new("logins: 200 at once, passwords of 1 MiB", 0, |target| {
        logins(target, LOGINS / 5, |number| (format!("user {number}"), "p".repeat(LONG)))
    })
    .with_users(),
    Attack::new("tokens: guessed at full rate", 0, tokens).with_users().told("invalid auth token"),
];

/// So many logins before the first answer.
fn logins(
    target: &AttackTarget,
    count: usize,
    credentials: impl Fn(usize) -> (String, String),
) -> anyhow::Result<()> {
    let mut callers = Vec::new();
    for at in 0..CONNECTIONS {
        let mut caller = Caller::stranger(&target.endpoint)?;
        for number in (at..count).step_by(CONNECTIONS) {
            let (name, password) = credentials(number);
            let request = AuthenticateRequest { name, password }.encode_to_vec();
            caller.begin(AUTHENTICATE, &request).context("no more streams")?;
        }
        callers.push((caller, (at..count).step_by(CONNECTIONS).len()));
    }
    let mut waiting = count;
    while waiting > 0 && !target.is_over() {
        waiting = 0;
        for (caller, begun) in &mut callers {
            caller.turn(Duration::from_millis(2))?;
            waiting += begun.saturating_sub(caller.heard.ended.len());
        }
    }
    for (caller, _) in &callers {
        target.tally.ends(caller.heard.ended.values());
    }
    if waiting > 0 {
        target.tally.told_times("no answer until the end", waiting as u64);
    }
    Ok(())
}

/// Reads with a new token each, of the form that the server gives out, as fast as they are refused.
fn tokens(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = Caller::stranger(&target.endpoint)?.discarding();
    let read = RangeRequest { key: "attacker".into(), ..RangeRequest::default() }.encode_to_vec();
    let mut guessed = 0_u64;
    let (mut begun, mut over) = (0, 0);
    while !target.is_over() {
        while begun < over + GUESSES {
            guessed = guessed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Sixteen letters and the number of an entry that there is.
            let letters = (0..16_u32).map(|at| char::from(b'a' + ((guessed >> (4 * at)) & 15) as u8));
            let token = format!("{}.{}", letters.collect::<String>(), 2 + guessed % 8);
            caller.client.set_token(Some(token.into()));
            if caller.begin(RANGE, &read).is_none() {
                break;
            }
            begun += 1;
        }
        let before = caller.heard.ended.len();
        caller.until(PATIENCE, |heard| heard.ended.len() > before || target.is_over())?;
        let ended = std::mem::take(&mut caller.heard.ended);
        over += ended.len();
        target.tally.ends(ended.values());
    }
    Ok(())
}
