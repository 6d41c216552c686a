//! Messages from a grammar that is the wire contract itself: the
//! descriptors that reflection serves.
//!
//! Mostly what a client may say, with numbers and names that meet in the store; now
//! and then a field a thousand times, a megabyte, a wrong wire type, a nesting
//! without end, an encoding that is cut.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::harness::Random;

/// Nested messages of a message that is meant to be valid.
const DEPTH: usize = 4;
/// How long a message gets at most, about; more is refused before it is read.
const BYTES_MAX: usize = 3 << 20;

/// A method and what it takes.
#[derive(Debug, Clone)]
pub struct Method {
    pub path: &'static str,
    pub takes: String,
    pub is_stream: bool,
}

/// Services, and the messages that they take.
#[derive(Debug)]
pub struct Grammar {
    pub methods: Vec<Method>,
    messages: BTreeMap<String, DescriptorProto>,
}

impl Grammar {
    pub fn new() -> Self {
        let files = FileDescriptorSet::decode(revd_proto::DESCRIPTORS).unwrap();
        let mut grammar = Self { methods: Vec::new(), messages: BTreeMap::new() };
        for file in &files.file {
            let package = file.package();
            for message in &file.message_type {
                grammar.learn(&format!(".{package}"), message);
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{package}.{}/{}", service.name(), method.name());
                    grammar.methods.push(Method {
                        path: path.leak(),
                        takes: method.input_type().to_owned(),
                        is_stream: method.client_streaming() || method.server_streaming(),
                    });
                }
            }
        }
        assert!(grammar.methods.len() > 40, "only {} methods", grammar.methods.len());
        grammar
    }

    fn learn(&mut self, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.learn(&name, nested));
        self.messages.insert(name, message.clone());
    }

    /// A message for a method, and whether it was spoiled.
    pub fn message(&self, random: &mut Random, method: &Method) -> Vec<u8> {
        let mut out = Vec::new();
        self.fill(random, &method.takes, DEPTH, &mut out);
        match random.below(40) {
            0 => self.deep(random, &method.takes, &mut out),
            1 => out.truncate(usize::try_from(random.below(out.len() as u64 + 1)).unwrap()),
            2 => out.extend((0..random.below(20)).map(|_| random.byte())),
            3 if !out.is_empty() => {
                let at = usize::try_from(random.below(out.len() as u64)).unwrap();
                out[at] = random.byte();
            }
            // Groups inside each other: a wire type nobody uses any more.
            4 => out.extend([0x7b; 1].repeat(usize::try_from(random.below(100_000)).unwrap())),
            // A length that is not there.
            5 => out.extend([0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            _ => {}
        }
        out
    }

    fn fill(&self, random: &mut Random, name: &str, depth: usize, out: &mut Vec<u8>) {
        let message = &self.messages[name];
        let mut chosen = BTreeMap::new();
        for field in &message.field {
            // Of a choice, one.
            if let Some(choice) = field.oneof_index {
                let others = message.field.iter().filter(|other| other.oneof_index == Some(choice)).count();
                let among = *chosen.entry(choice).or_insert_with(|| random.below(others as u64 + 1));
                let own = message.field.iter().filter(|other| other.oneof_index == Some(choice));
                let own = own.take_while(|other| other.number != field.number).count();
                if among != own as u64 {
                    continue;
                }
            } else if !field.name().starts_with("key") && !field.name().ends_with("ID") && random.one_in(2) {
                continue;
            }
            let times = if field.label() == Label::Repeated { repeats(random, depth) } else { 1 };
            for _ in 0..times {
                if out.len() > BYTES_MAX {
                    return;
                }
                self.field(random, field, depth, out);
            }
        }
    }

    fn field(&self, random: &mut Random, field: &FieldDescriptorProto, depth: usize, out: &mut Vec<u8>) {
        let number = u32::try_from(field.number()).unwrap();
        if random.one_in(300) {
            // Another wire type than the field's.
            let kind = u32::try_from(random.below(8)).unwrap();
            varint(out, u64::from(number << 3 | kind));
            return out.extend((0..random.below(10)).map(|_| random.byte()));
        }
        match field.r#type() {
            Type::Message if depth > 0 => {
                let mut inner = Vec::new();
                self.fill(random, field.type_name(), depth - 1, &mut inner);
                put_bytes(out, number, &inner);
            }
            Type::Message => {}
            Type::Bytes | Type::String => put_bytes(out, number, &text(random, field.name())),
            _ => {
                varint(out, u64::from(number << 3));
                varint(out, integer(random, field.name()).cast_unsigned());
            }
        }
    }

    /// The message inside itself, if it can be, thousands deep.
    fn deep(&self, random: &mut Random, name: &str, out: &mut Vec<u8>) {
        if !name.ends_with(".TxnRequest") {
            return;
        }
        let mut inner = out.clone();
        for _ in 0..random.pick(&[10, 127, 600, 20_000]) {
            let (mut op, mut outer) = (Vec::new(), Vec::new());
            put_bytes(&mut op, 4, &inner);
            put_bytes(&mut outer, 2, &op);
            if outer.len() > 1 << 19 {
                break;
            }
            inner = outer;
        }
        *out = inner;
    }
}

fn varint(out: &mut Vec<u8>, number: u64) {
    prost::encoding::encode_varint(number, out);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// How often a field is there that may be there any number of times: sizes are multiplied
/// where messages are in each other.
fn repeats(random: &mut Random, depth: usize) -> u64 {
    match random.below(30) {
        0 => 127 + random.below(3),
        1 if depth == DEPTH => 5_000,
        2 => 20,
        _ => random.below(4),
    }
}

fn integer(random: &mut Random, name: &str) -> i64 {
    // Leases that end on their own would change the store behind a case's back.
    if name == "TTL" {
        return random.pick(&[3_600, 9_000_000_000, 9_000_000_001, i64::MAX]);
    }
    match random.below(10) {
        0 => random.number().cast_signed(),
        1 => random.pick(&[i64::MIN, i64::MAX, -1, 1 << 31, 1 << 32]),
        2..5 => i64::try_from(random.below(2_000)).unwrap(),
        _ => i64::try_from(random.below(5)).unwrap(),
    }
}

fn text(random: &mut Random, name: &str) -> Vec<u8> {
    const KEYS: [&[u8]; 9] = [b"", b"\0", b"a", b"a\0", b"b", b"k/1", b"k/7", b"k0", b"\xff\xff"];
    if name == "range_end" {
        return random.pick(&[&b""[..], b"\0", b"k0", b"b", b"\xff"]).to_vec();
    }
    match random.below(60) {
        0 => vec![b'x'; 1 << 10],
        1 => vec![b'x'; 300 << 10],
        2 => vec![b'x'; usize::try_from(random.below(2 << 20)).unwrap()],
        _ => random.pick(&KEYS).to_vec(),
    }
}
