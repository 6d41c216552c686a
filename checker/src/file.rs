//! A history as a file: a line with the promises that it is judged by, and one for each call,
//! response of a watcher, hold and state. Messages are in protobuf as hexadecimal digits, so that
//! they are read back exactly; what stands behind ` # ` is the same for people.

use std::fmt::Write as _;

use bytes::Bytes;
use prost::Message;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::KeyValue;

use crate::history::{Call, History, Hold, Outcome, Request, Response, StateAt, Time, Watch};
use crate::rules::{Jump, Rules};
use crate::watch::Transcript;

/// The first line.
const TITLE: &str = "revd history 3";
/// Nothing stands at a place.
const NONE: &str = "-";

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return NONE.to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(word: &str) -> Option<Bytes> {
    if word == NONE {
        return Some(Bytes::new());
    }
    let digits = (0..word.len()).step_by(2).map(|at| word.get(at..at + 2));
    let bytes: Option<Vec<u8>> = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    bytes.map(Bytes::from)
}

fn pair(word: &str) -> Option<(Time, Time)> {
    let (one, other) = word.split_once('+')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

fn of(message: &impl Message) -> String {
    hex(&message.encode_to_vec())
}

/// Kinds of calls: one name for request and response.
macro_rules! kinds {
    ($($kind:ident = $name:literal),+) => {
        fn request_text(request: &Request) -> (&'static str, String) {
            match request { $(Request::$kind(message) => ($name, of(message)),)+ }
        }

        fn response_text(response: &Response) -> String {
            match response { $(Response::$kind(message) => of(message),)+ }
        }

        fn request(name: &str, bytes: Bytes) -> Option<Request> {
            match name { $($name => Some(Request::$kind(Message::decode(bytes).ok()?)),)+ _ => None }
        }

        fn response(name: &str, bytes: Bytes) -> Option<Response> {
            match name { $($name => Some(Response::$kind(Message::decode(bytes).ok()?)),)+ _ => None }
        }
    };
}

kinds! {
    Range = "range", Put = "put", DeleteRange = "delete", Txn = "txn", Compact = "compact",
    HashKv = "hash-kv", LeaseGrant = "grant", LeaseRevoke = "revoke", LeaseKeepAlive = "keep-alive",
    LeaseTimeToLive = "time-to-live"
}

fn maybe<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), text)
}

/// Words that are read back even if there are none of them: each has a comma before it, behind a
/// colon for the list.
fn list(items: Option<impl IntoIterator<Item = String>>) -> String {
    maybe(items, |items| items.into_iter().fold(":".to_owned(), |text, item| text + "," + &item))
}

/// The promises as a line.
fn rules_line(rules: &Rules) -> String {
    let Rules { goes_on, watches_show, others, others_compact, others_unseen, .. } = rules;
    let Rules { errors, drift, jumps, calm_since, calm, lease_slack, .. } = rules;
    let others = list(others.as_ref().map(|others| [hex(others)]));
    let errors = list(errors.as_ref().map(|errors| errors.iter().map(|error| hex(error.as_bytes()))));
    let jumps = list(Some(jumps.iter().map(|Jump { at, by }| format!("{at}+{by}"))));
    let calm = list(Some(calm.iter().map(|(from, to)| format!("{from}+{to}"))));
    let calm_since = maybe(*calm_since, |time| time.to_string());
    format!(
        "rules {goes_on} {watches_show} {others} {others_compact} {others_unseen} {errors} {drift} \
         {jumps} {calm_since} {calm} {lease_slack}"
    )
}

/// A history as text, with the promises that it is judged by.
#[must_use]
pub fn write(history: &History, rules: &Rules) -> String {
    let mut text = format!("{TITLE}\n{}\nfirst {}\n", rules_line(rules), history.first);
    let mut line = |line: String, remark: String| {
        let remark = remark.replace('\n', " ");
        let _ = if remark.is_empty() {
            writeln!(text, "{line}")
        } else {
            writeln!(text, "{line} # {remark:.1000}")
        };
    };
    for kv in &history.found {
        line(format!("found {}", of(kv)), format!("{kv:?}"));
    }
    for call in &history.calls {
        let Call { client, member, life, began, returned, request, outcome } = call;
        let (name, bytes) = request_text(request);
        let (kind, result) = match outcome {
            Outcome::Answered(response) => ("answered", response_text(response)),
            Outcome::Refused(error) => ("refused", hex(error.as_bytes())),
            Outcome::Unknown(error) => ("unknown", hex(error.as_bytes())),
        };
        line(
            format!("call {client} {member} {life} {began} {returned} {name} {bytes} {kind} {result}"),
            format!("{request:?} {outcome:?}"),
        );
    }
    for Watch { client, member, life, transcript, times } in &history.watches {
        let Transcript { request, responses, complete_to } = transcript;
        let complete_to = maybe(*complete_to, |to| to.to_string());
        line(format!("watch {client} {member} {life} {complete_to} {}", of(request)), format!("{request:?}"));
        for (number, response) in responses.iter().enumerate() {
            let at = times.get(number).copied().unwrap_or(0);
            line(format!("told {at} {}", of(response)), format!("{response:?}"));
        }
    }
    for Hold { client, name, lease, from, until } in &history.holds {
        let until = maybe(*until, |until| until.to_string());
        line(format!("hold {client} {} {lease} {from} {until}", hex(name)), String::new());
    }
    for StateAt { member, index, digest } in &history.states {
        line(format!("state {member} {index} {}", hex(digest)), String::new());
    }
    text
}

/// The words of a line.
struct Words<'t>(std::str::SplitAsciiWhitespace<'t>);

impl Words<'_> {
    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn maybe<T: std::str::FromStr>(&mut self) -> Option<Option<T>> {
        match self.0.next()? {
            NONE => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn bytes(&mut self) -> Option<Bytes> {
        unhex(self.0.next()?)
    }

    /// As [`list`] wrote it.
    fn list<T>(&mut self, item: impl Fn(&str) -> Option<T>) -> Option<Option<Vec<T>>> {
        match self.0.next()? {
            NONE => Some(None),
            word => word.strip_prefix(':')?.split(',').skip(1).map(item).collect::<Option<_>>().map(Some),
        }
    }

    fn message<M: Message + Default>(&mut self) -> Option<M> {
        M::decode(self.bytes()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

/// A history from its text, and the promises that it is judged by.
///
/// # Errors
/// The line that cannot be read.
pub fn read(text: &str) -> Result<(History, Rules), String> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(format!("the first line is not {TITLE:?}"));
    }
    let (mut history, mut rules) = (History::default(), Rules::default());
    for line in lines {
        let words = line.split(" # ").next().unwrap_or(line);
        let mut words = Words(words.split_ascii_whitespace());
        take(&mut words, &mut history, &mut rules).ok_or_else(|| format!("cannot be read: {line:.200}"))?;
    }
    Ok((history, rules))
}

fn take(words: &mut Words, history: &mut History, rules: &mut Rules) -> Option<()> {
    match words.0.next()? {
        "rules" => {
            *rules = Rules {
                goes_on: words.number()?,
                watches_show: words.number()?,
                others: words.list(unhex)?.and_then(|mut others| others.pop()),
                others_compact: words.number()?,
                others_unseen: words.number()?,
                errors: words.list(|word| String::from_utf8(unhex(word)?.to_vec()).ok())?,
                drift: words.number()?,
                jumps: words.list(|word| pair(word).map(|(at, by)| Jump { at, by }))??,
                calm_since: words.maybe()?,
                calm: words.list(pair)??,
                lease_slack: words.number()?,
            };
        }
        "first" => history.first = words.number()?,
        "found" => history.found.push(words.message::<KeyValue>()?),
        "call" => history.calls.push(call(words)?),
        "watch" => {
            let (client, member, life) = (words.number()?, words.number()?, words.number()?);
            let (complete_to, request) = (words.maybe()?, words.message::<WatchCreateRequest>()?);
            let transcript = Transcript { request, responses: Vec::new(), complete_to };
            history.watches.push(Watch { client, member, life, transcript, times: Vec::new() });
        }
        "told" => {
            let watch = history.watches.last_mut()?;
            watch.times.push(words.number()?);
            watch.transcript.responses.push(words.message::<WatchResponse>()?);
        }
        "hold" => history.holds.push(Hold {
            client: words.number()?,
            name: words.bytes()?,
            lease: words.number()?,
            from: words.number()?,
            until: words.maybe()?,
        }),
        "state" => history.states.push(StateAt {
            member: words.number()?,
            index: words.number()?,
            digest: words.bytes()?,
        }),
        _ => return None,
    }
    Some(())
}

fn call(words: &mut Words) -> Option<Call> {
    let (client, member, life) = (words.number()?, words.number()?, words.number()?);
    let (began, returned) = (words.number()?, words.number()?);
    let name = words.0.next()?;
    let request = request(name, words.bytes()?)?;
    let outcome = match words.0.next()? {
        "answered" => Outcome::Answered(response(name, words.bytes()?)?),
        "refused" => Outcome::Refused(words.text()?),
        "unknown" => Outcome::Unknown(words.text()?),
        _ => return None,
    };
    Some(Call { client, member, life, began, returned, request, outcome })
}
