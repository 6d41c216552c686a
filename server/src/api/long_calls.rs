//! Which calls may take many turns, seen from a look at their bytes only.

use bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::api::method::{Method, Unary};

/// Whether a call may take many turns: it reads more than one key. A look at its bytes only.
#[must_use]
pub fn may_be_long(method: Method, message: &Bytes) -> bool {
    match method {
        Method::Unary(Unary::Range) => has_field(message, RANGE_END),
        Method::Unary(Unary::DeleteRange) => has_field(message, RANGE_END) && has_field(message, PREV_KV),
        Method::Unary(Unary::Txn) => is_long_txn(message),
        _ => false,
    }
}

/// `range_end` of `RangeRequest` and `DeleteRangeRequest`, and `prev_kv` of the latter.
const RANGE_END: u32 = 2;
const PREV_KV: u32 = 3;

fn is_long_txn(message: &Bytes) -> bool {
    /// `range_end` of a `Compare`.
    const COMPARED_END: u32 = 64;
    /// Fields of a `RequestOp`.
    const REQUEST_RANGE: u32 = 1;
    const REQUEST_DELETE: u32 = 3;
    const REQUEST_TXN: u32 = 4;
    any_field(message, |field, part| match field {
        1 => has_field(part, COMPARED_END),
        2 | 3 => {
            let is_delete_with = |wanted| {
                any_field(part, |field, request| field == REQUEST_DELETE && has_field(request, wanted))
            };
            // Requests of one kind are merged.
            let is_delete = is_delete_with(RANGE_END) && is_delete_with(PREV_KV);
            is_delete
                || any_field(part, |field, request| match field {
                    REQUEST_RANGE => has_field(request, RANGE_END),
                    REQUEST_TXN => true, // whatever is in it
                    _ => false,
                })
        }
        _ => false,
    })
}

fn has_field(message: &[u8], wanted: u32) -> bool {
    any_field(message, |field, _| field == wanted)
}

/// Whether any field is as wanted, given its number and, if it has a length, its content.
fn any_field(mut rest: &[u8], is_wanted: impl Fn(u32, &[u8]) -> bool) -> bool {
    while let Ok((field, wire_type)) = decode_key(&mut rest) {
        let mut content: &[u8] = &[];
        if wire_type == WireType::LengthDelimited {
            let Ok(len) = decode_varint(&mut rest) else { return false };
            let Some((inside, behind)) = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len))
            else {
                return false;
            };
            (content, rest) = (inside, behind);
        } else if skip_field(wire_type, field, &mut rest, DecodeContext::default()).is_err() {
            return false;
        }
        if is_wanted(field, content) {
            return true;
        }
    }
    false
}
