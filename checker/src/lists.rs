//! Transactions that append to lists and read them, after Elle: the lists say in which order the
//! appends were, and no circle of "came before" may go through transactions and real time.
//!
//! A list is a key below `list/` whose value is elements with commas between; each element is
//! appended once in a history. An append is a put of the longer list in a Txn that compares the
//! key's mod revision with that of the list it read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use revd_proto::etcdserverpb::{RangeRequest, RangeResponse, RequestOp, request_op, response_op};

use crate::fault::{Check, Fault};
use crate::history::{Call, History, Outcome, Request, Response, Time};
use crate::range;

/// Keys that are lists begin so.
pub const PREFIX: &[u8] = b"list/";

/// Elements, as they stand in the history.
type List<'h> = Vec<&'h [u8]>;

/// Why one transaction came before another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    /// It appended the element before.
    Write,
    /// Its append was read.
    Read,
    /// It did not read the other one's append.
    Overtaken,
    /// It had returned.
    Time,
}

#[derive(Debug)]
struct Transaction<'h> {
    call: usize,
    began: Time,
    returned: Option<Time>,
    reads: Vec<(&'h Bytes, List<'h>)>,
    appends: Vec<(&'h Bytes, &'h [u8])>,
}

/// The elements of a list.
#[must_use]
pub fn elements(value: &Bytes) -> Vec<Bytes> {
    parts(value).map(|part| value.slice_ref(part)).collect()
}

fn parts(value: &Bytes) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').filter(|part| !part.is_empty())
}

/// Looks for circles and lists that contradict each other.
#[must_use]
pub(crate) fn check(history: &History) -> Vec<Fault> {
    let keys = keys(history);
    let mut transactions = Vec::new();
    let mut refused = BTreeSet::new();
    for (number, call) in history.calls.iter().enumerate() {
        let transaction = Transaction::of(number, call, &keys);
        if matches!(call.outcome, Outcome::Refused(_)) {
            refused.extend(transaction.appends);
        } else if !(transaction.reads.is_empty() && transaction.appends.is_empty()) {
            transactions.push(transaction);
        }
    }
    let fault = |text: String| vec![Fault::new(Check::Lists, text)];
    let orders = match orders(&transactions) {
        Ok(orders) => orders,
        Err(text) => return fault(text),
    };
    let aborted = orders.iter().flat_map(|(key, list)| list.iter().map(move |element| (key, element)));
    for (key, element) in aborted {
        if refused.contains(&(*key, *element)) {
            let element = element.escape_ascii();
            return fault(format!("G1a: {element} of {key:?} was refused, and is there"));
        }
    }
    let graph = Graph::new(&transactions, &orders);
    let circle = graph.circle().map(|(name, circle)| {
        let calls: Vec<_> = circle.iter().filter_map(|node| transactions.get(*node)).collect();
        let calls: Vec<_> = calls.iter().map(|transaction| &history.calls[transaction.call]).collect();
        Fault::new(Check::Lists, format!("{name}: {calls:?}"))
    });
    circle.into_iter().collect()
}

/// Every list that was ever written or asked for.
fn keys(history: &History) -> BTreeSet<Bytes> {
    let written = history.calls.iter().flat_map(|call| crate::replay::Written::of(&call.request).puts);
    written.map(|(key, _)| key).filter(|key| key.starts_with(PREFIX)).collect()
}

impl<'h> Transaction<'h> {
    fn of(number: usize, call: &'h Call, keys: &'h BTreeSet<Bytes>) -> Self {
        let returned = call.answer().map(|_| call.returned);
        let mut own =
            Self { call: number, began: call.began, returned, reads: Vec::new(), appends: Vec::new() };
        match (&call.request, call.answer()) {
            (Request::Range(request), Some(Response::Range(response))) => own.range(request, response, keys),
            (Request::Txn(request), Some(Response::Txn(response))) => {
                let branch = if response.succeeded { &request.success } else { &request.failure };
                own.puts(branch);
                for (op, answer) in branch.iter().zip(&response.responses) {
                    if let (
                        Some(request_op::Request::RequestRange(request)),
                        Some(response_op::Response::ResponseRange(response)),
                    ) = (&op.request, &answer.response)
                    {
                        own.range(request, response, keys);
                    }
                }
            }
            (Request::Txn(request), None) => {
                own.puts(&request.success);
                own.reads.clear(); // it may not have compared
            }
            _ => {}
        }
        own
    }

    fn puts(&mut self, branch: &'h [RequestOp]) {
        for op in branch {
            let Some(request_op::Request::RequestPut(put)) = &op.request else { continue };
            if !put.key.starts_with(PREFIX) {
                continue;
            }
            let mut list: List<'h> = parts(&put.value).collect();
            if let Some(element) = list.pop() {
                self.reads.push((&put.key, list));
                self.appends.push((&put.key, element));
            }
        }
    }

    fn range(&mut self, request: &RangeRequest, response: &'h RangeResponse, keys: &'h BTreeSet<Bytes>) {
        let is_odd = request.serializable || request.revision > 0 || request.limit > 0;
        if is_odd || request.count_only || request.keys_only || !request.key.starts_with(PREFIX) {
            return;
        }
        let found: BTreeMap<&Bytes, &'h Bytes> = response.kvs.iter().map(|kv| (&kv.key, &kv.value)).collect();
        let (start, end) = range::bounds(&request.key, &request.range_end);
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        for key in keys.range((Bound::Included(start), end)) {
            let is_own = self.appends.iter().any(|(own, _)| *own == key);
            if !is_own {
                let list = found.get(key).map_or_else(Vec::new, |value| parts(value).collect());
                self.reads.push((key, list));
            }
        }
    }

    /// The lists that it saw or made.
    fn lists(&self) -> impl Iterator<Item = (&'h Bytes, List<'h>)> {
        self.reads.iter().map(|(key, read)| {
            let own = self.appends.iter().filter(|(own, _)| own == key).map(|(_, element)| *element);
            (*key, read.iter().copied().chain(own).collect())
        })
    }
}

/// Of each list, the order of its elements.
fn orders<'h>(transactions: &[Transaction<'h>]) -> Result<BTreeMap<&'h Bytes, List<'h>>, String> {
    let mut longest: BTreeMap<&Bytes, List<'h>> = BTreeMap::new();
    for (key, list) in transactions.iter().flat_map(Transaction::lists) {
        let known = longest.entry(key).or_default();
        if known.len() < list.len() {
            *known = list;
        }
    }
    for (key, list) in transactions.iter().flat_map(Transaction::lists) {
        let known = &longest[key];
        if known[..list.len()] != list {
            let (was, is) = (words(&list), words(known));
            return Err(format!("lost update: {key:?} was {was:?} and {is:?}"));
        }
    }
    for (key, list) in &longest {
        let once: BTreeSet<&[u8]> = list.iter().copied().collect();
        if once.len() < list.len() {
            return Err(format!("appended twice: {key:?} is {:?}", words(list)));
        }
    }
    Ok(longest)
}

/// A list for a message.
fn words(list: &[&[u8]]) -> Vec<Bytes> {
    list.iter().map(|element| Bytes::copy_from_slice(element)).collect()
}

/// Transactions by number, and behind them moments of time.
struct Graph {
    edges: Vec<Vec<(usize, Why)>>,
}

impl Graph {
    fn new(transactions: &[Transaction<'_>], orders: &BTreeMap<&Bytes, List<'_>>) -> Self {
        let mut graph = Self { edges: vec![Vec::new(); transactions.len()] };
        let mut appender: BTreeMap<(&Bytes, &[u8]), usize> = BTreeMap::new();
        for (number, transaction) in transactions.iter().enumerate() {
            for (key, element) in &transaction.appends {
                appender.insert((*key, *element), number);
            }
        }
        let by = |key: &Bytes, element: Option<&&[u8]>| {
            element.and_then(|element| appender.get(&(key, *element))).copied()
        };
        for (key, order) in orders {
            for pair in order.windows(2) {
                graph.add(by(key, pair.first()), by(key, pair.last()), Why::Write);
            }
        }
        for (number, transaction) in transactions.iter().enumerate() {
            for (key, list) in &transaction.reads {
                graph.add(by(key, list.last()), Some(number), Why::Read);
                let next = orders.get(key).and_then(|order| order.get(list.len()));
                graph.add(Some(number), by(key, next), Why::Overtaken);
            }
        }
        graph.time(transactions);
        graph
    }

    fn add(&mut self, from: Option<usize>, to: Option<usize>, why: Why) {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            self.edges[from].push((to, why));
        }
    }

    /// A chain of moments: a transaction leads to the moment when it returned, and a moment to the
    /// transactions that began behind it.
    fn time(&mut self, transactions: &[Transaction<'_>]) {
        let begins = transactions.iter().enumerate().map(|(number, own)| (own.began, false, number));
        let ends = transactions.iter().enumerate();
        let ends = ends.filter_map(|(number, own)| Some((own.returned?, true, number)));
        let mut events: Vec<_> = begins.chain(ends).collect();
        events.sort_unstable();
        let mut moment = None;
        for (_, is_end, number) in events {
            if is_end {
                let next = self.edges.len();
                self.edges.push(Vec::new());
                self.add(moment, Some(next), Why::Time);
                self.add(Some(number), Some(next), Why::Time);
                moment = Some(next);
            } else {
                self.add(moment, Some(number), Why::Time);
            }
        }
    }

    /// The worst circle that there is, with its name.
    fn circle(&self) -> Option<(&'static str, Vec<usize>)> {
        use Why::{Overtaken, Read, Time, Write};
        self.find(&[Write, Read, Overtaken, Time])?;
        if let Some(circle) = self.find(&[Write]) {
            return Some(("G0", circle));
        }
        if let Some(circle) = self.find(&[Write, Read]) {
            return Some(("G1c", circle));
        }
        if let Some(circle) = self.single(&[Write, Read]) {
            return Some(("G-single", circle));
        }
        if let Some(circle) = self.find(&[Write, Read, Overtaken]) {
            return Some(("G2", circle));
        }
        if let Some(circle) = self.find(&[Write, Read, Time]) {
            return Some(("G1c against real time", circle));
        }
        if let Some(circle) = self.single(&[Write, Read, Time]) {
            return Some(("G-single against real time", circle));
        }
        self.find(&[Write, Read, Overtaken, Time]).map(|circle| ("G2 against real time", circle))
    }

    fn next<'g>(&'g self, node: usize, kinds: &'g [Why]) -> impl Iterator<Item = usize> + 'g {
        self.edges[node].iter().filter(|(_, why)| kinds.contains(why)).map(|(to, _)| *to)
    }

    /// A circle of edges of these kinds.
    fn find(&self, kinds: &[Why]) -> Option<Vec<usize>> {
        let mut before = vec![0_usize; self.edges.len()];
        for node in 0..self.edges.len() {
            self.next(node, kinds).for_each(|to| before[to] += 1);
        }
        let mut free: Vec<usize> = (0..before.len()).filter(|node| before[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for to in self.next(node, kinds) {
                before[to] -= 1;
                if before[to] == 0 {
                    free.push(to);
                }
            }
        }
        // All that is left lies on a circle or behind one: back from any of it leads into one.
        let mut node = (0..before.len()).find(|node| before[*node] > 0)?;
        let mut back: BTreeMap<usize, usize> = BTreeMap::new();
        for from in (0..before.len()).filter(|node| before[*node] > 0) {
            back.extend(self.next(from, kinds).map(|to| (to, from)));
        }
        let mut path = Vec::new();
        while !path.contains(&node) {
            path.push(node);
            node = back[&node];
        }
        let start = path.iter().position(|on| *on == node)?;
        Some(path.split_off(start).into_iter().rev().collect())
    }

    /// A circle with one edge that says "overtaken".
    fn single(&self, kinds: &[Why]) -> Option<Vec<usize>> {
        for from in 0..self.edges.len() {
            for to in self.next(from, &[Why::Overtaken]) {
                let mut back = BTreeMap::from([(to, to)]);
                let mut left = vec![to];
                while let Some(node) = left.pop() {
                    for next in self.next(node, kinds) {
                        back.entry(next).or_insert_with(|| {
                            left.push(next);
                            node
                        });
                    }
                }
                if back.contains_key(&from) {
                    let path = std::iter::successors(Some(from), |node| (*node != to).then(|| back[node]));
                    let mut circle: Vec<usize> = path.collect();
                    circle.reverse();
                    return Some(circle);
                }
            }
        }
        None
    }
}
