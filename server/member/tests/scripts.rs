//! Runs the scripts in `tests/scripts`: commands applied to a state machine, and the replies they
//! are expected to get. `UPDATE_GOLDENFILES=1 cargo test -p revd-member --test scripts` writes what
//! they get now; read the difference.
//!
//! ```text
//! put k v [ignore_value] [ignore_lease] [prev]      del k [end] [prev]
//! get k [end] [at N]      compact N
//! let t if "k version = 0" then "put k v" "get k" else "txn other"          names a transaction
//! txn t                                                                      applies it
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use goldenscript::{Argument, Command, Context, Runner};
use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;
use revd_member::apply::command::{self, CommandId, Kind, Origin};
use revd_member::apply::outcome::{Effect, Outcome};
use revd_member::apply::{CommittedEntry, Machine, MachineConfig};
use revd_member::budget::Share;
use revd_member::read::parts::ReplyAssembly;
use revd_member::read::range::answer;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::response_op::Response;
use revd_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use revd_proto::mvccpb::KeyValue;

use golden::run_all;

const OWN: Origin = Origin { member: 1, boot: 2 };

struct MachineRunner {
    machine: Machine,
    txns: BTreeMap<String, TxnRequest>,
}

fn shown(kv: &KeyValue) -> String {
    let text = |bytes: &Bytes| bytes.escape_ascii().to_string();
    format!(
        "{} = {} (created {}, modified {}, version {})",
        text(&kv.key),
        text(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version
    )
}

fn kvs(out: &mut String, indent: usize, kvs: &[KeyValue]) {
    for kv in kvs {
        writeln!(out, "{:indent$}{}", "", shown(kv)).unwrap();
    }
}

fn show_range(out: &mut String, indent: usize, response: &RangeResponse) {
    writeln!(out, "{:indent$}range: {}{}", "", response.count, if response.more { ", more" } else { "" })
        .unwrap();
    kvs(out, indent + 2, &response.kvs);
}

fn show_put(out: &mut String, indent: usize, response: &PutResponse) {
    writeln!(out, "{:indent$}put", "").unwrap();
    kvs(out, indent + 2, response.prev_kv.as_slice());
}

fn show_delete(out: &mut String, indent: usize, response: &DeleteRangeResponse) {
    writeln!(out, "{:indent$}deleted {}", "", response.deleted).unwrap();
    kvs(out, indent + 2, &response.prev_kvs);
}

fn show_txn(out: &mut String, indent: usize, response: &TxnResponse) {
    writeln!(out, "{:indent$}{}", "", if response.succeeded { "then" } else { "else" }).unwrap();
    for op in &response.responses {
        match op.response.as_ref().unwrap() {
            Response::ResponseRange(response) => show_range(out, indent + 2, response),
            Response::ResponsePut(response) => show_put(out, indent + 2, response),
            Response::ResponseDeleteRange(response) => show_delete(out, indent + 2, response),
            Response::ResponseTxn(response) => show_txn(out, indent + 2, response),
        }
    }
}

fn put(args: &[&str]) -> PutRequest {
    PutRequest {
        key: args[0].to_owned().into(),
        value: args[1].to_owned().into(),
        ignore_value: args.contains(&"ignore_value"),
        ignore_lease: args.contains(&"ignore_lease"),
        prev_kv: args.contains(&"prev"),
        lease: if args.contains(&"lease") { 7 } else { 0 },
    }
}

fn range_end(args: &[&str]) -> Bytes {
    match args.get(1) {
        None | Some(&"at" | &"prev") => Bytes::new(),
        Some(&"end") => Bytes::from_static(b"\0"),
        Some(end) => (*end).to_owned().into(),
    }
}

fn delete(args: &[&str]) -> DeleteRangeRequest {
    let prev_kv = args.contains(&"prev");
    DeleteRangeRequest { key: args[0].to_owned().into(), range_end: range_end(args), prev_kv }
}

fn range(args: &[&str]) -> RangeRequest {
    let revision = args.iter().skip_while(|arg| **arg != "at").nth(1).map_or(0, |at| at.parse().unwrap());
    let (key, range_end) = (args[0].to_owned().into(), range_end(args));
    RangeRequest { key, range_end, revision, ..RangeRequest::default() }
}

fn compare(text: &str) -> Compare {
    let words: Vec<&str> = text.split(' ').collect();
    let [key, target, operator, operand] = words[..] else { panic!("{text:?} is no comparison") };
    let (key, range_end) = key.split_once("..").unwrap_or((key, ""));
    let number = || operand.parse().unwrap();
    let (target, operand) = match target {
        "version" => (CompareTarget::Version, TargetUnion::Version(number())),
        "created" => (CompareTarget::Create, TargetUnion::CreateRevision(number())),
        "modified" => (CompareTarget::Mod, TargetUnion::ModRevision(number())),
        "value" => (CompareTarget::Value, TargetUnion::Value(operand.to_owned().into())),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number())),
        _ => panic!("{target:?} cannot be compared"),
    };
    let result = match operator {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        "<" => CompareResult::Less,
        ">" => CompareResult::Greater,
        _ => panic!("{operator:?} is no operator"),
    };
    Compare {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        target: target as i32,
        result: result as i32,
        target_union: Some(operand),
    }
}

impl MachineRunner {
    fn new() -> Self {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        Self {
            machine: Machine::new(store, MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 })
                .unwrap(),
            txns: BTreeMap::new(),
        }
    }

    fn op(&self, text: &str) -> RequestOp {
        let words: Vec<&str> = text.split(' ').collect();
        let args = &words[1..];
        RequestOp {
            request: Some(match words[0] {
                "put" => Request::RequestPut(put(args)),
                "del" => Request::RequestDeleteRange(delete(args)),
                "get" => Request::RequestRange(range(args)),
                "txn" => Request::RequestTxn(self.txns[args[0]].clone()),
                other => panic!("{other:?} is no operation"),
            }),
        }
    }

    fn define(&mut self, args: &[&str]) {
        let mut txn = TxnRequest::default();
        let mut part = "";
        for arg in &args[1..] {
            match (*arg, part) {
                ("if" | "then" | "else", _) => part = arg,
                (text, "if") => txn.compare.push(compare(text)),
                (text, "then") => txn.success.push(self.op(text)),
                (text, _) => txn.failure.push(self.op(text)),
            }
        }
        self.txns.insert(args[0].to_owned(), txn);
    }

    fn apply(&mut self, kind: Kind, message: &impl prost::Message) -> Result<(i64, Bytes), Box<dyn Error>> {
        let id = CommandId::new(0, 0, 0);
        let command = command::Command { id, kind, payload: message.encode_to_vec().into() };
        let index = self.machine.store().applied().index + 1;
        let data = command::encode(OWN, &[command]).into();
        let mut effects = Vec::new();
        self.machine.apply(&CommittedEntry { index, term: 1, data, change: None }, 0, &mut effects)?;
        let Some(Effect::Reply(_, outcome) | Effect::ReplyWhenCompacted(_, outcome, _)) = effects.pop()
        else {
            return Err("no outcome".into());
        };
        let Outcome { revision, result, rest } = outcome;
        let mut body = vec![result?];
        let mut assembly = ReplyAssembly::new(rest.parts(), &Share::new(usize::MAX));
        body.extend(loop {
            if let Some(read) = assembly.turn()? {
                break read;
            }
        });
        Ok((revision, body.concat().into()))
    }
}

impl Runner for MachineRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let args: Vec<&str> = command
            .args
            .iter()
            .map(|argument| match argument {
                Argument::Positional(value) => value.as_str(),
                other => panic!("{other} is not a plain argument"),
            })
            .collect();
        let mut out = String::new();
        let revision = match command.name.as_str() {
            "let" => {
                self.define(&args);
                return Ok(out);
            }
            "put" => {
                let (revision, body) = self.apply(Kind::Put, &put(&args))?;
                show_put(&mut out, 0, &PutResponse::decode(body)?);
                revision
            }
            "del" => {
                let (revision, body) = self.apply(Kind::DeleteRange, &delete(&args))?;
                show_delete(&mut out, 0, &DeleteRangeResponse::decode(body)?);
                revision
            }
            "compact" => {
                self.apply(Kind::Compact, &CompactionRequest { revision: args[0].parse()?, physical: false })?
                    .0
            }
            "get" => {
                let view = self.machine.store_mut().view();
                let budget = Share::new(usize::MAX);
                let body = answer(&range(&args), view.reader(), &budget)?.concat();
                show_range(&mut out, 0, &RangeResponse::decode(body.as_slice())?);
                view.revision()
            }
            "txn" => {
                let (revision, body) = self.apply(Kind::Txn, &self.txns[args[0]].clone())?;
                show_txn(&mut out, 0, &TxnResponse::decode(body)?);
                revision
            }
            name => return Err(format!("unknown command {name}").into()),
        };
        write!(out, "revision {revision}")?;
        Ok(out)
    }
}

#[test]
fn txn() {
    run_all("txn", MachineRunner::new);
}
