//! Commands that say in whose name they are: an envelope around the command itself. While nobody
//! needs rights, commands of clients have none and are as short as they can be; one that is in the
//! log when rights are switched on is refused then.
//!
//! ```text
//! payload of an envelope (integers little-endian)
//!   0  u8   kind of the command in it
//!   1  u8   1: in the name of a user; 2: in that of the member
//!   2  u64  auth revision of the user's token
//!  10  u16  length of the user's name
//!  12  the name, then the payload of the command in it
//! ```

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::apply::command::{Command, Kind};
use crate::auth::{Caller, User};

const HEADER: usize = 1 + 1 + 8 + 2;
const OF_USER: u8 = 1;
const OF_MEMBER: u8 = 2;

/// A command in the name of a caller. A token that names no auth revision is of `revision`.
#[must_use]
pub fn enclose(caller: &Caller, revision: u64, kind: Kind, payload: Bytes) -> (Kind, Bytes) {
    let (of, revision, name) = match caller {
        Caller::Nobody | Caller::BadToken => return (kind, payload),
        Caller::Member => (OF_MEMBER, 0, ""),
        Caller::User(user) => (OF_USER, user.revision.unwrap_or(revision), user.name.as_str()),
    };
    // A name that does not fit is that of no user.
    let Ok(len) = u16::try_from(name.len()) else { return (kind, payload) };
    let mut out = Vec::with_capacity(HEADER + name.len() + payload.len());
    out.put_u8(kind as u8);
    out.put_u8(of);
    out.put_u64_le(revision);
    out.put_u16_le(len);
    out.put_slice(name.as_bytes());
    out.put_slice(&payload);
    (Kind::Authorized, out.into())
}

/// An envelope that was opened.
pub(super) struct Envelope {
    of: u8,
    revision: u64,
    name: Bytes,
    /// The command in it.
    pub(super) bare: Command,
}

/// Opens an envelope; none if the bytes are no envelope.
pub(super) fn open(envelope: &Command) -> Option<Envelope> {
    let mut bytes = envelope.payload.clone();
    if bytes.len() < HEADER {
        return None;
    }
    let kind = Kind::from_byte(bytes.get_u8()).filter(|kind| *kind != Kind::Authorized)?;
    let (of, revision, len) = (bytes.get_u8(), bytes.get_u64_le(), usize::from(bytes.get_u16_le()));
    if bytes.len() < len {
        return None;
    }
    let name = bytes.split_to(len);
    let is_known = of == OF_MEMBER || of == OF_USER && std::str::from_utf8(&name).is_ok();
    let bare = Command { id: envelope.id, kind, payload: bytes };
    is_known.then_some(Envelope { of, revision, name, bare })
}

impl Envelope {
    /// The name of the user in whose name the command is.
    pub(super) fn user(&self) -> Option<&str> {
        if self.of == OF_USER { std::str::from_utf8(&self.name).ok() } else { None }
    }

    /// The caller. The commands of an entry mostly come from few: `last`, if it is the same, is
    /// shared.
    pub(super) fn caller(&self, last: &Caller) -> Caller {
        let Some(name) = self.user() else { return Caller::Member };
        match last {
            Caller::User(user) if user.name == name && user.revision == Some(self.revision) => last.clone(),
            _ => Caller::User(Arc::new(User { name: name.to_owned(), revision: Some(self.revision) })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::CommandId;

    fn command((kind, payload): (Kind, Bytes)) -> Command {
        Command { id: CommandId(7), kind, payload }
    }

    #[test]
    fn an_envelope_keeps_who_and_what() {
        let user = |revision| Caller::User(Arc::new(User { name: "ann".to_owned(), revision }));
        let put = Bytes::from_static(b"put");
        let other = Caller::User(Arc::new(User { name: "bob".to_owned(), revision: Some(5) }));
        for (caller, opened) in
            [(user(None), user(Some(5))), (user(Some(3)), user(Some(3))), (Caller::Member, Caller::Member)]
        {
            let enclosed = command(enclose(&caller, 5, Kind::Put, put.clone()));
            assert_eq!(enclosed.kind, Kind::Authorized);
            let envelope = open(&enclosed).unwrap();
            assert_eq!(envelope.bare, command((Kind::Put, put.clone())));
            for last in [&Caller::Nobody, &opened, &user(Some(1)), &other] {
                assert_eq!(envelope.caller(last), opened, "after {last:?}");
            }
        }
        assert_eq!(enclose(&Caller::Nobody, 5, Kind::Put, put.clone()), (Kind::Put, put));
    }

    #[test]
    fn damaged_envelopes_are_none() {
        let user = Caller::User(Arc::new(User { name: "ann".to_owned(), revision: None }));
        let whole = command(enclose(&user, 5, Kind::Put, Bytes::new()));
        for len in 0..whole.payload.len() {
            assert!(open(&command((Kind::Authorized, whole.payload.slice(..len)))).is_none());
        }
        for at in 0..whole.payload.len() {
            for bit in 0..8 {
                let mut bad = whole.payload.to_vec();
                bad[at] ^= 1 << bit;
                let _ = open(&command((Kind::Authorized, bad.into()))); // must not panic
            }
        }
        let nested = enclose(&user, 5, Kind::Authorized, whole.payload.clone());
        assert!(open(&command(nested)).is_none(), "no envelope is in another one");
    }
}
