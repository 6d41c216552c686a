//! Requests of every method there is, made from how the wire contract describes itself: a method
//! that is new tomorrow has its requests here at once, nested ones too.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};

/// Keys that a request is about, in one of the forms of a range, and a lease with such keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) key: &'static str,
    pub(super) range_end: &'static str,
    pub(super) lease: i64,
}

/// Exact, also as a range of one key, prefix, from a key on, all, nothing, and without a key: of
/// ann's keys and of others.
pub(super) const SHAPES: [Shape; 12] = [
    Shape { key: "b", range_end: "", lease: 2 },
    Shape { key: "x", range_end: "", lease: 1 },
    Shape { key: "b", range_end: "c", lease: 2 },
    Shape { key: "x", range_end: "y", lease: 1 },
    Shape { key: "b", range_end: "\0", lease: 2 },
    Shape { key: "x", range_end: "\0", lease: 1 },
    Shape { key: "\0", range_end: "\0", lease: 1 },
    Shape { key: "bb", range_end: "b", lease: 2 },
    Shape { key: "y", range_end: "x", lease: 1 },
    Shape { key: "b", range_end: "b\0", lease: 2 },
    Shape { key: "", range_end: "", lease: 2 },
    Shape { key: "", range_end: "\0", lease: 1 },
];

/// How deep transactions are nested.
const DEPTH: usize = 4;

/// A method, as the contract has it.
#[derive(Debug, Clone)]
pub(super) struct Method {
    pub(super) path: &'static str,
    pub(super) input: String,
    pub(super) is_unary: bool,
    /// The client goes on to send.
    pub(super) is_open: bool,
}

/// The contract.
pub(super) struct Contract {
    pub(super) messages: BTreeMap<String, DescriptorProto>,
    pub(super) methods: Vec<Method>,
}

impl Contract {
    pub(super) fn read() -> Self {
        let files = prost_types::FileDescriptorSet::decode(revd_proto::DESCRIPTORS).unwrap().file;
        let (mut messages, mut methods) = (BTreeMap::new(), Vec::new());
        for file in &files {
            for message in &file.message_type {
                messages.insert(format!(".{}.{}", file.package(), message.name()), message.clone());
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    methods.push(Method {
                        path: path.leak(),
                        input: method.input_type().to_owned(),
                        is_unary: !method.client_streaming() && !method.server_streaming(),
                        is_open: method.client_streaming(),
                    });
                }
            }
        }
        Self { messages, methods }
    }

    /// One form of a message, with a transaction or without, about keys of ann's.
    pub(super) fn one(&self, message: &str) -> Vec<u8> {
        let maker = Maker { contract: self, shape: SHAPES[0], subject: "ann" };
        maker.messages(message, 1).swap_remove(0)
    }

    /// All requests of a method in the name of this subject: a user, or a role.
    pub(super) fn requests(&self, method: &Method, subject: &str) -> Vec<Bytes> {
        let all = SHAPES.iter().flat_map(|shape| {
            let maker = Maker { contract: self, shape: *shape, subject };
            maker.messages(&method.input, DEPTH)
        });
        // Those without keys are the same in each shape.
        let mut seen = BTreeSet::new();
        all.map(Bytes::from).filter(|request| seen.insert(request.clone())).collect()
    }
}

struct Maker<'c> {
    contract: &'c Contract,
    shape: Shape,
    subject: &'c str,
}

/// A field that asks for more than the bare request does.
fn asks_for_more(field: &FieldDescriptorProto) -> bool {
    ["prev_kv", "keys"].contains(&field.name())
}

impl Maker<'_> {
    /// Every form of a message: with and without what asks for more, each field of a choice in
    /// turn, and each list with one element. `depth`: transactions that may be inside.
    fn messages(&self, name: &str, depth: usize) -> Vec<Vec<u8>> {
        let message = &self.contract.messages[name];
        let asks: &[bool] = if message.field.iter().any(asks_for_more) { &[false, true] } else { &[false] };
        asks.iter().flat_map(|asks| self.forms(message, name, depth, *asks)).collect()
    }

    fn forms(&self, message: &DescriptorProto, name: &str, depth: usize, asks: bool) -> Vec<Vec<u8>> {
        let mut common = Vec::new();
        let mut forms = Vec::new();
        for field in &message.field {
            let is_message = field.r#type() == Type::Message;
            let is_chosen = field.oneof_index.is_some() && !field.proto3_optional();
            if is_message {
                let depth = if field.type_name() == name || field.type_name().ends_with(".TxnRequest") {
                    depth.checked_sub(1).filter(|depth| *depth > 0)
                } else {
                    Some(depth)
                };
                let inner = depth.map(|depth| self.messages(field.type_name(), depth)).unwrap_or_default();
                forms.extend(inner.into_iter().map(|inner| delimited(field.number(), &inner)));
            } else if is_chosen {
                // A value to compare with: which one makes no difference to rights.
                if forms.is_empty() {
                    forms.push(self.scalar(field, asks));
                }
            } else if field.label() != Label::Repeated {
                common.extend(self.scalar(field, asks));
            } else if name.ends_with(".MemberUpdateRequest") {
                // A URL that is none ends an etcd. None is added: a cluster would wait.
                common.extend(delimited(field.number(), b"http://127.0.0.1:1"));
            }
        }
        if forms.is_empty() {
            return vec![common];
        }
        forms.into_iter().map(|form| [&common[..], &form[..]].concat()).collect()
    }

    fn scalar(&self, field: &FieldDescriptorProto, asks: bool) -> Vec<u8> {
        let number = field.number();
        let is_puts_lease = field.name() == "lease" && number == 3;
        match (field.r#type(), field.name()) {
            (Type::Bytes, "range_end") => delimited(number, self.shape.range_end.as_bytes()),
            (Type::Bytes, "key" | "name") => delimited(number, self.shape.key.as_bytes()),
            (Type::Bytes, _) => delimited(number, b"v"),
            (Type::String, _) => delimited(number, self.subject.as_bytes()),
            (Type::Bool, _) => varint(number, u64::from(asks && asks_for_more(field))),
            (Type::Int64, "lease") if is_puts_lease && !asks => Vec::new(),
            (Type::Int64, "lease" | "ID" | "id") => varint(number, self.shape.lease.unsigned_abs()),
            _ => Vec::new(),
        }
    }
}

pub(super) fn delimited(number: i32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_key(number.unsigned_abs(), WireType::LengthDelimited, &mut out);
    encode_varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

fn varint(number: i32, value: u64) -> Vec<u8> {
    if value == 0 { Vec::new() } else { explicit_varint(number, value) }
}

/// A number, also where it is the one that a field without any has.
pub(super) fn explicit_varint(number: i32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode_key(number.unsigned_abs(), WireType::Varint, &mut out);
    encode_varint(value, &mut out);
    out
}

/// The requests are what they are meant to be: transactions of every depth with a leaf of every
/// kind in every branch.
#[test]
fn every_method_has_requests_and_transactions_are_nested() {
    let contract = Contract::read();
    for method in &contract.methods {
        assert!(!contract.requests(method, "ann").is_empty(), "{}", method.path);
    }
    let of = |path| {
        let method = contract.methods.iter().find(|method| method.path == path).unwrap();
        contract.requests(method, "ann")
    };
    let depths = of("/etcdserverpb.KV/Txn").into_iter().map(|request| {
        let txn = revd_proto::etcdserverpb::TxnRequest::decode(request).unwrap();
        assert_eq!(txn.compare.len() + txn.success.len() + txn.failure.len(), 1);
        depth(&txn)
    });
    let mut counts = [0; DEPTH + 1];
    depths.for_each(|depth| counts[depth] += 1);
    assert!(counts[0] == 0 && counts[1..].iter().all(|count| *count >= SHAPES.len() * 9), "{counts:?}");
    assert_eq!(of("/etcdserverpb.KV/Range").len(), SHAPES.len());
    assert_eq!(of("/etcdserverpb.Maintenance/Status").len(), 1);
}

fn depth(txn: &revd_proto::etcdserverpb::TxnRequest) -> usize {
    use revd_proto::etcdserverpb::request_op::Request;
    let inner = txn.success.iter().chain(&txn.failure).map(|op| match &op.request {
        Some(Request::RequestTxn(inner)) => depth(inner),
        _ => 0,
    });
    1 + inner.max().unwrap_or(0)
}
