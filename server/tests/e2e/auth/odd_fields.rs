//! Requests as no client of etcd's writes them, made from how the wire contract describes itself:
//! each field empty, there twice, and longer than any is.
//!
//! Row 89, etcd's #15619, #10907 and #9379: such requests ended an etcd.

use std::time::Duration;

use bytes::Bytes;
use prost_types::FieldDescriptorProto;
use prost_types::field_descriptor_proto::Type;

use super::FLAGS;
use super::bugs::set_up;
use super::matrix::{answers, asked, is_compared};
use super::requests::{Contract, Method, delimited, explicit_varint};
use super::{Answer, call};
use crate::harness::with_etcd_beside;

/// Longer than a proposal may be, and shorter than a message may be.
const LONG_BYTES: usize = 1_700_000;

/// How deep messages are in others.
const DEPTH: usize = 2;

/// A field with content that it is not meant to have.
fn odd_values(contract: &Contract, field: &FieldDescriptorProto, depth: usize) -> Vec<Vec<u8>> {
    let number = field.number();
    let of = |content: &[u8]| delimited(number, content);
    let is = |value| explicit_varint(number, value);
    match field.r#type() {
        Type::Message => {
            let name = field.type_name();
            let inner = depth.checked_sub(1).map_or_else(Vec::new, |depth| odd(contract, name, depth));
            let one = contract.one(name);
            let twice = [[of(&one), of(&one)].concat(), [of(&one), of(b"")].concat()];
            inner.iter().map(|inner| of(inner)).chain([of(b"")]).chain(twice).collect()
        }
        Type::Bytes | Type::String => {
            vec![of(b""), [of(b"b"), of(b"q")].concat(), of(&[b'l'; LONG_BYTES])]
        }
        // Ten bytes for a number are the most there may be.
        _ => {
            let long = |bytes: usize| {
                let mut long = [is(1), vec![0x80; bytes - 2], vec![0]].concat();
                let first = long.len() - bytes;
                long[first] |= 0x80;
                long
            };
            let numbers = [is(0), [is(1), is(2)].concat(), is(u64::MAX), is(i64::MAX.unsigned_abs())];
            numbers.into_iter().chain([long(3), long(10), long(11)]).collect()
        }
    }
}

/// A message with each of its fields made odd in turn: beside those that belong there, and alone.
fn odd(contract: &Contract, name: &str, depth: usize) -> Vec<Vec<u8>> {
    let mut usual = contract.one(name);
    let is_grant = name.ends_with(".LeaseGrantRequest");
    if is_grant {
        // A lease with a known id must not end before the others are through.
        usual.extend(explicit_varint(1, 10_000));
    }
    let mut out = vec![Vec::new(), usual.clone()];
    for field in &contract.messages[name].field {
        // An action that there is not ends an etcd (docs/COMPAT.md, 2).
        if name.ends_with(".AlarmRequest") && field.name() == "action" {
            continue;
        }
        for value in odd_values(contract, field, depth) {
            out.push([&usual[..], &value[..]].concat());
            if !is_grant || field.name() != "ID" {
                out.push(value);
            }
        }
    }
    out
}

/// All methods of an etcd, but one that would end the rights of those who ask, and logins, which
/// would soon have to wait (docs/COMPAT.md, 32).
fn is_asked(method: &Method) -> bool {
    let is_left_out = ["/AuthDisable", "/Authenticate"].iter().any(|end| method.path.ends_with(end));
    !method.path.starts_with("/grpc.") && !is_left_out
}

/// An answer without what two servers do not have in common: leases may have ids of their own, and
/// of which compactions there is a hash goes by how long they took (docs/COMPAT.md, 1).
fn in_common(said: Answer, method: &Method) -> Answer {
    let is_own =
        |path: &str| ["/LeaseGrant", "/LeaseLeases", "/HashKV"].iter().any(|end| path.ends_with(end));
    match said {
        Answer::Reply { revision, .. } if is_own(method.path) => {
            Answer::Reply { revision, body: Bytes::new() }
        }
        said => said,
    }
}

/// URLs that are none are refused before anything is looked for (docs/COMPAT.md, 20). A user and a
/// role are read here; with etcd their names are a proposal, which may be too large.
fn is_known(method: &Method, our: &Answer, their: &Answer) -> bool {
    let (Answer::Refused(_, our), Answer::Refused(_, their)) = (our, their) else { return false };
    match method.path.rsplit_once('/').unwrap().1 {
        "MemberUpdate" => our == "etcdserver: given member URLs are invalid",
        "UserGet" | "RoleGet" => their == "etcdserver: request is too large",
        _ => false,
    }
}

/// Whether two answers are a difference that is not known.
fn is_difference(method: &Method, our: &Answer, their: &Answer) -> bool {
    our != their && is_compared(method.path, our) && !is_known(method, our, their)
}

/// The beginning of what may be very long.
fn shown(message: &Bytes) -> String {
    format!("{:?} ({} bytes)", message.slice(..message.len().min(60)), message.len())
}

#[test]
fn bug_089_odd_fields_of_every_method_are_answered_as_by_etcd() {
    let contract = Contract::read();
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        let (ours, theirs) = (revd.client().await, etcd.client().await);
        let ((our_root, _), (their_root, _)) = (set_up(&ours).await, set_up(&theirs).await);
        let (mut replies, mut refusals, mut differ) = (0, 0, Vec::new());
        for method in contract.methods.iter().filter(|method| is_asked(method)) {
            for message in odd(&contract, &method.input, DEPTH).into_iter().map(Bytes::from) {
                let ask = async |side: usize, patience: Duration| {
                    let (client, root) = [(&ours, &our_root), (&theirs, &their_root)][side];
                    in_common(asked(client, method, message.clone(), Some(root), patience).await, method)
                };
                let is_difference = |our: &Answer, their: &Answer| is_difference(method, our, their);
                let [our, their] = answers(method, ask, is_difference).await;
                match our {
                    Answer::Reply { .. } => replies += 1,
                    Answer::Refused(..) => refusals += 1,
                }
                if is_difference(&our, &their) {
                    let message = shown(&message);
                    differ.push(format!("{} {message}:\n  revd {our:?}\n  etcd {their:?}", method.path));
                }
            }
        }
        println!("{replies} replies, {refusals} refusals");
        assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
        assert!(replies > 300 && refusals > 300, "{replies} replies, {refusals} refusals");
        for (client, root) in [(&ours, &our_root), (&theirs, &their_root)] {
            let path = "/etcdserverpb.Maintenance/Status";
            call(client, path, Bytes::new(), Some(root)).await.expect("it goes on");
        }
    });
}
