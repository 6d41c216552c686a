//! The checks that look at values alone, on small histories: each anomaly by its name.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use revd_checker::{Call, Check, History, Outcome, Request, Response, Rules, Time, check};
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::response_op::Response as Answer;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse,
};
use revd_proto::mvccpb::KeyValue;

fn call(began: Time, returned: Time, request: Request, outcome: Outcome) -> Call {
    Call { client: 0, member: 0, life: 0, began, returned, request, outcome }
}

fn kv(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned().into(), value: value.to_owned().into(), ..KeyValue::default() }
}

fn found(key: &str, value: &str) -> RangeResponse {
    let kvs = if value.is_empty() { Vec::new() } else { vec![kv(key, value)] };
    RangeResponse { kvs, ..RangeResponse::default() }
}

/// A transaction: lists that it reads, and those that it leaves behind.
fn txn(time: (Time, Time), reads: &[(&str, &str)], writes: &[(&str, &str)]) -> Call {
    let (mut request, mut response) =
        (TxnRequest::default(), TxnResponse { succeeded: true, ..TxnResponse::default() });
    let mut add = |op: Op, answer: Answer| {
        request.success.push(RequestOp { request: Some(op) });
        response.responses.push(ResponseOp { response: Some(answer) });
    };
    for (key, list) in reads {
        let range = RangeRequest { key: format!("list/{key}").into(), ..RangeRequest::default() };
        add(Op::RequestRange(range), Answer::ResponseRange(found(&format!("list/{key}"), list)));
    }
    for (key, list) in writes {
        let key = format!("list/{key}").into();
        let put = PutRequest { key, value: (*list).to_owned().into(), ..PutRequest::default() };
        add(Op::RequestPut(put), Answer::ResponsePut(PutResponse::default()));
    }
    call(time.0, time.1, Request::Txn(request), Outcome::Answered(Response::Txn(response)))
}

/// The findings of a check of values, by the first words of each.
fn anomalies(calls: Vec<Call>, check_of: Check) -> Vec<String> {
    let history = History { calls, ..History::default() };
    let faults = check(&history, &Rules::default()).faults;
    let own = faults.into_iter().filter(|fault| fault.check == check_of);
    own.map(|fault| fault.text.split(':').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn anomalies_of_lists_have_their_names() {
    let at = (0, 100); // all overlap
    let mut refused = txn(at, &[], &[("x", "1,")]);
    refused.outcome = Outcome::Refused(String::new());
    let mut unknown = txn(at, &[], &[("x", "1,")]);
    unknown.outcome = Outcome::Unknown(String::new());
    let cases: Vec<(&str, Vec<Call>)> = vec![
        ("", vec![txn(at, &[], &[("x", "1,")]), txn(at, &[("x", "1,")], &[("x", "1,2,")])]),
        ("", vec![unknown, txn(at, &[("x", "1,")], &[])]),
        ("G1a", vec![refused, txn(at, &[("x", "1,")], &[])]),
        ("lost update", vec![txn(at, &[], &[("x", "1,")]), txn(at, &[], &[("x", "2,")])]),
        ("appended twice", vec![txn(at, &[], &[("x", "1,")]), txn(at, &[("x", "1,1,")], &[])]),
        (
            "G0",
            vec![txn(at, &[], &[("x", "1,"), ("y", "4,3,")]), txn(at, &[], &[("x", "1,2,"), ("y", "4,")])],
        ),
        ("G1c", vec![txn(at, &[("y", "2,")], &[("x", "1,")]), txn(at, &[("x", "1,")], &[("y", "2,")])]),
        (
            "G-single",
            vec![txn(at, &[], &[("x", "1,"), ("y", "2,")]), txn(at, &[("x", ""), ("y", "2,")], &[])],
        ),
        ("G2", vec![txn(at, &[("y", "")], &[("x", "1,")]), txn(at, &[("x", "")], &[("y", "2,")])]),
        (
            "G-single against real time",
            vec![txn((0, 10), &[], &[("x", "1,")]), txn((20, 30), &[("x", "")], &[])],
        ),
        ("", vec![txn((0, 10), &[], &[("x", "1,")]), txn((10, 30), &[("x", "")], &[])]),
        (
            "G2",
            vec![
                txn((0, 100), &[], &[("x", "1,")]),
                txn((0, 100), &[], &[("y", "2,")]),
                txn((0, 30), &[("x", "1,"), ("y", "")], &[]),
                txn((40, 50), &[("x", ""), ("y", "2,")], &[]),
            ],
        ),
    ];
    for (name, calls) in cases {
        let found = anomalies(calls.clone(), Check::Lists);
        let expected: Vec<&str> = Some(name).filter(|name| !name.is_empty()).into_iter().collect();
        assert_eq!(found, expected, "{calls:#?}");
    }
}

fn put(time: (Time, Time), value: &str) -> Call {
    let put = PutRequest { key: "k".into(), value: value.to_owned().into(), ..PutRequest::default() };
    let answer = Outcome::Answered(Response::Put(PutResponse::default()));
    call(time.0, time.1, Request::Put(put), answer)
}

fn lost(time: (Time, Time), value: &str) -> Call {
    Call { outcome: Outcome::Unknown(String::new()), ..put(time, value) }
}

fn get(time: (Time, Time), value: &str) -> Call {
    let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    call(time.0, time.1, Request::Range(range), Outcome::Answered(Response::Range(found("k", value))))
}

fn delete(time: (Time, Time), deleted: i64) -> Call {
    let delete = DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() };
    let answer = DeleteRangeResponse { deleted, ..DeleteRangeResponse::default() };
    call(time.0, time.1, Request::DeleteRange(delete), Outcome::Answered(Response::DeleteRange(answer)))
}

/// A key is put, read and deleted; the time that a call takes says what it may overlap.
#[test]
fn a_register_is_linearizable_or_not() {
    let cases: Vec<(&str, bool, Vec<Call>)> = vec![
        ("in order", true, vec![put((0, 1), "a"), get((2, 3), "a"), put((4, 5), "b"), get((6, 7), "b")]),
        ("a stale read", false, vec![put((0, 1), "a"), put((2, 3), "b"), get((4, 5), "a")]),
        ("overlapping writes", true, vec![put((0, 9), "a"), put((0, 9), "b"), get((10, 11), "a")]),
        (
            "reads that see overlapping writes in two orders",
            false,
            vec![put((0, 20), "a"), put((0, 20), "b"), get((21, 22), "a"), get((23, 24), "b")],
        ),
        (
            "a read that sees a write before it ends",
            true,
            vec![put((0, 20), "a"), get((5, 6), "a"), get((7, 8), "a")],
        ),
        ("back to before a write", false, vec![put((0, 20), "a"), get((5, 6), "a"), get((7, 8), "")]),
        ("a write without an answer, late", true, vec![lost((0, 1), "a"), get((2, 3), ""), get((4, 5), "a")]),
        ("and gone again", false, vec![lost((0, 1), "a"), get((2, 3), "a"), get((4, 5), "")]),
        ("read before it began", false, vec![get((0, 1), "a"), lost((2, 3), "a")]),
        ("deleted", true, vec![put((0, 1), "a"), delete((2, 3), 1), get((4, 5), ""), delete((6, 7), 0)]),
        ("deleted and still there", false, vec![put((0, 1), "a"), delete((2, 3), 1), get((4, 5), "a")]),
        ("deleted twice", false, vec![put((0, 1), "a"), delete((2, 3), 1), delete((4, 5), 1)]),
        ("deleted by two, once", true, vec![put((0, 1), "a"), delete((2, 9), 1), delete((2, 9), 0)]),
        (
            "ended before it began",
            false,
            vec![
                put((0, 1), "a"),
                put((2, 40), "b"),
                get((3, 4), "b"),
                get((20, 6), "b"),
                put((8, 9), "c"),
                get((50, 51), "b"),
            ],
        ),
    ];
    for (name, is_right, calls) in cases {
        let found = anomalies(calls, Check::Registers);
        assert_eq!(found.is_empty(), is_right, "{name}: {found:?}");
    }
}

/// More calls than a word has bits, one behind the other by what each found: one order explains
/// them.
#[test]
fn very_many_calls_to_a_register_may_overlap() {
    let chained = |number: usize| {
        let key = "k".into();
        let put =
            PutRequest { key, value: number.to_string().into(), prev_kv: true, ..PutRequest::default() };
        let prev_kv = number.checked_sub(1).map(|before| kv("k", &before.to_string()));
        let answer = PutResponse { prev_kv, ..PutResponse::default() };
        call(0, 100, Request::Put(put), Outcome::Answered(Response::Put(answer)))
    };
    for (last, is_right) in [("69", true), ("3", false), ("68", false)] {
        let calls = (0..70).map(chained).chain([get((101, 102), last)]).collect();
        let found = anomalies(calls, Check::Registers);
        assert_eq!(found.is_empty(), is_right, "{last}: {found:?}");
    }
}
