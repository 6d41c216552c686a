//! Whether the bytes of a refused call are a message at all. Its client is told that first, as by
//! grpc-go, which decodes a message before anything is asked.
//!
//! The message is thrown away then. So it is decoded in parts, one at a time: some messages take
//! many times their bytes, and neither that memory nor the time is for callers who may do nothing.

use bytes::Bytes;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use revd_member::apply::txn_message;
use revd_member::error::{AuthError, Error};

use crate::api::auth::with_password::{self, Partly, SetsPassword, WithPassword};
use crate::api::call::decoded;
use crate::api::validate::{self, RequestLimits};
use crate::limits;
use crate::queues::turn::give_way;

/// Whether bytes are a message. A message is one if each of its fields is one by itself.
pub(super) async fn check<R: Message + Default>(message: &Bytes) -> Result<(), Error> {
    in_parts(message, limits::REFUSED_PART_BYTES, |part| R::decode(part).map(drop)).await
}

/// The same, where passwords may be among the fields: they are wiped.
pub(super) async fn check_with_password<R: WithPassword>(message: &Bytes) -> Result<(), Error> {
    in_parts(message, limits::REFUSED_PART_BYTES, |part| with_password::decode::<R>(part).0.map(drop)).await
}

/// The same of a request that gives a user a password, and the bytes that its proposal would have.
pub(super) async fn check_proposal<R: SetsPassword>(message: &Bytes) -> Result<usize, Error> {
    let mut request = Partly::<R>::default();
    in_parts(message, limits::REFUSED_PART_BYTES, |part| request.read(part)).await?;
    request.proposal_bytes(message.len())
}

/// The error of a refused call whose proposal would have so many bytes. As in etcd, the length of a
/// user's new password is judged with the message, and the size of a change of users or roles
/// behind the token, and before rights.
pub(super) fn why(
    refused: Error,
    bytes: Result<usize, Error>,
    changes_users: bool,
    limits: RequestLimits,
) -> Error {
    if let Err(malformed @ Error::Malformed(_)) = bytes {
        return malformed;
    }
    let judged = match &refused {
        Error::Auth(AuthError::InvalidAuthToken) if changes_users => bytes.map(drop),
        Error::Auth(_) if changes_users => bytes.and_then(|bytes| validate::proposal_size(bytes, limits)),
        _ => return refused,
    };
    judged.err().unwrap_or(refused)
}

/// The same of a transaction, of any depth.
pub(super) fn check_txn(message: &Bytes, parts_max: usize) -> Result<(), Error> {
    if txn_message::has_more_parts(message, parts_max) {
        Ok(())
    } else {
        txn_message::decode(message).map(drop)
    }
}

async fn in_parts(
    message: &Bytes,
    part_bytes: usize,
    mut check: impl FnMut(Bytes) -> Result<(), DecodeError>,
) -> Result<(), Error> {
    let (mut rest, mut checked) = (message.clone(), 0);
    while !rest.is_empty() {
        let part = take_fields(&mut rest, part_bytes);
        checked += part.len();
        decoded(check(part))?;
        if checked >= limits::REFUSED_PART_BYTES {
            checked = 0;
            give_way().await;
        }
    }
    Ok(())
}

/// Takes whole fields of so many bytes or more off the front; everything where they cannot be told
/// apart.
fn take_fields(rest: &mut Bytes, bytes_min: usize) -> Bytes {
    let mut ahead = &rest[..];
    while !ahead.is_empty() && rest.len() - ahead.len() < bytes_min {
        if skip(&mut ahead).is_err() {
            return std::mem::take(rest);
        }
    }
    let taken = rest.len() - ahead.len();
    rest.split_to(taken)
}

fn skip(ahead: &mut &[u8]) -> Result<(), DecodeError> {
    let (field, kind) = decode_key(ahead)?;
    skip_field(kind, field, ahead, DecodeContext::default())
}

/// Whether a message has more fields than these, as far as they can be told apart.
pub(super) fn has_more_fields(message: &[u8], fields_max: usize) -> bool {
    let mut ahead = message;
    (0..=fields_max).all(|_| !ahead.is_empty() && skip(&mut ahead).is_ok())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};
    use revd_proto::authpb::UserAddOptions;
    use revd_proto::etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, MemberUpdateRequest};

    use super::*;
    use crate::queues::sleep::on_a_core;

    fn update(urls: usize) -> Vec<u8> {
        let peer_ur_ls = (0..urls).map(|number| format!("http://{number}:1")).collect();
        MemberUpdateRequest { id: 7, peer_ur_ls }.encode_to_vec()
    }

    /// Cut anywhere, broken anywhere: the parts of a message are one exactly where it is.
    #[test]
    fn parts_of_a_message_are_judged_as_the_whole_is() {
        let message = update(9);
        let mut broken = 0;
        for len in 0..=message.len() {
            for (at, byte) in [(0, 0), (len / 2, 0xff), (len.saturating_sub(2), 0x0f)] {
                let mut bytes = message[..len].to_vec();
                if let Some(there) = bytes.get_mut(at) {
                    *there ^= byte;
                }
                let whole = decoded(MemberUpdateRequest::decode(&bytes[..])).map(drop);
                broken += usize::from(whole.is_err());
                for part_bytes in [1, 7, 1 << 20] {
                    let check = |part| MemberUpdateRequest::decode(part).map(drop);
                    // Less than what is checked in one turn: it waits for nothing.
                    let parts = block_on(in_parts(&bytes.clone().into(), part_bytes, check));
                    assert_eq!(parts, whole, "{bytes:?} in parts of {part_bytes}");
                }
            }
        }
        assert!(broken > 100, "{broken}");
    }

    #[test]
    fn no_more_than_a_part_is_decoded_at_a_time() {
        let mut rest = Bytes::from(update(2_000));
        let whole = rest.len();
        let (mut taken, mut parts) = (0, 0);
        while !rest.is_empty() {
            let part = take_fields(&mut rest, limits::REFUSED_PART_BYTES);
            assert!(part.len() < limits::REFUSED_PART_BYTES + 32);
            (taken, parts) = (taken + part.len(), parts + 1);
        }
        assert!(taken == whole && parts > 3, "{parts}");
    }

    #[test]
    fn fields_are_counted_as_far_as_they_can_be_told_apart() {
        let message = update(9);
        assert!(!has_more_fields(&message, 10) && has_more_fields(&message, 9));
        assert!(!has_more_fields(&message[..message.len() - 1], 9));
        assert!(!has_more_fields(&[], 0) && has_more_fields(&[8, 1], 0));
    }

    /// Fields that come again count as in the whole: the last one, also where it is empty.
    #[test]
    fn a_proposal_has_the_same_bytes_whatever_parts_its_request_is_read_in() {
        let change = |name: &str, password: &str, hash: &str| {
            let (name, password, hashed_password) = (name.to_owned(), password.to_owned(), hash.to_owned());
            AuthUserChangePasswordRequest { name, password, hashed_password }.encode_to_vec()
        };
        let hashed = change("a", "", &"=".repeat(80)).len();
        let (long, of_bob) = ("p".repeat(73), change("bob", "secret", "hash"));
        let cases = [
            ([change("ann", &long, ""), change("", "", "")].concat(), Err(AuthError::PasswordTooLong)),
            ([change("ann", &long, ""), change("a", "pass", "hash")].concat(), Ok(hashed)),
            ([of_bob.clone(), change("ann", "", "other"), vec![0x12, 0]].concat(), Ok(of_bob.len() + 14)),
            (of_bob, Ok(hashed + 2)),
        ];
        for (message, bytes) in cases {
            for part_bytes in [1, 7, 1 << 20] {
                let mut request = Partly::<AuthUserChangePasswordRequest>::default();
                block_on(in_parts(&message.clone().into(), part_bytes, |part| request.read(part))).unwrap();
                let seen = request.proposal_bytes(message.len());
                assert_eq!(seen, bytes.clone().map_err(Error::Auth), "{message:?} by {part_bytes}");
            }
        }
    }

    /// Options of a new user are merged where they come again; other fields are not.
    #[test]
    fn a_proposal_of_a_new_user_has_its_options_whatever_parts_they_come_in() {
        let add = |name: &str, password: &str, options: Option<bool>| {
            let (name, password) = (name.to_owned(), password.to_owned());
            let options = options.map(|no_password| UserAddOptions { no_password });
            let hashed_password = String::new();
            AuthUserAddRequest { name, password, options, hashed_password }.encode_to_vec()
        };
        // With a hash of 80 letters. Fields that nobody knows are skipped: here a group in a group.
        let (long, unknown) = ("n".repeat(200), [0xa3, 6, 0xa3, 6, 8, 1, 0xa4, 6, 0xa4, 6]);
        let no_password = [add("ann", "secret", Some(false)), vec![0x1a, 2, 8, 1]].concat();
        let cases = [
            (add("ann", "secret", None), Ok(5 + 82)),
            (add(&long, "secret", Some(false)), Ok(203 + 2 + 82)),
            ([add("ann", "", None), unknown.to_vec(), add("", "secret", None)].concat(), Ok(5 + 82)),
            (no_password.clone(), Ok(no_password.len())),
            ([no_password.clone(), vec![0x1a, 0]].concat(), Ok(no_password.len() + 2)),
            ([no_password, vec![0x1a, 2, 8, 0]].concat(), Ok(5 + 2 + 82)),
            (add("ann", &"p".repeat(73), None), Err(Error::Auth(AuthError::PasswordTooLong))),
        ];
        for (message, bytes) in cases {
            for part_bytes in [1, 7, 1 << 20] {
                let mut request = Partly::<AuthUserAddRequest>::default();
                block_on(in_parts(&message.clone().into(), part_bytes, |part| request.read(part))).unwrap();
                assert_eq!(request.proposal_bytes(message.len()), bytes, "{message:?} by {part_bytes}");
            }
        }
    }

    /// Two megabytes are not read in one turn, and nothing of them waits for the next one.
    #[test]
    fn a_long_request_with_passwords_leaves_others_their_turns() {
        let name = AuthUserAddRequest { name: "n".repeat(60), ..AuthUserAddRequest::default() };
        let message = Bytes::from(name.encode_to_vec().repeat(33_000));
        on_a_core(async move {
            let mut check = pin!(check_proposal::<AuthUserAddRequest>(&message));
            assert!(message.len() > 2_000_000 && !std::mem::needs_drop::<Partly<AuthUserAddRequest>>());
            assert!(poll_once(&mut check).await.is_none());
            assert_eq!(check.await, Ok(62 + 82));
        });
    }

    #[test]
    fn requests_with_passwords_are_checked_to_their_end() {
        let request = |name: &str| {
            let (name, password) = (name.to_owned(), "secret".to_owned());
            AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() }.encode_to_vec()
        };
        let good = [request("ann"), request("bob")].concat();
        assert_eq!(block_on(check_with_password::<AuthUserAddRequest>(&good.clone().into())), Ok(()));
        let bad = [&good[..], &[0x0f]].concat();
        assert!(block_on(check_with_password::<AuthUserAddRequest>(&bad.into())).is_err());
    }
}
