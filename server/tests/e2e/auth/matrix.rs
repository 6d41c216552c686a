//! The matrix: every method there is, in every form of its request, by every kind of caller, to
//! revd and to an etcd 3.7.1 in the same state. Nothing in it is listed by hand but callers, keys,
//! and the answers that are never the same: `requests.rs` makes the requests of the contract.
//!
//! Answers are equal, code and text and the whole reply; what is refused has changed nothing, each
//! request by itself, and is no event (`onlooker.rs`).
//! A test of every change takes a part of the nested transactions; `REVD_MATRIX=1` takes all.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserGrantRoleRequest, LeaseGrantRequest,
    PutRequest, RangeRequest,
};
use tokio::time::Instant;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use super::bugs::{PASSWORD, login, must, set_up, told};
use super::onlooker::Onlooker;
use super::requests::{Contract, Method};
use super::{Answer, FLAGS, answer};
use crate::auth::generator::Compared;
use crate::harness::{Client, MIXED, Server, TempDir, connect, from_env, request_as, with_etcd_beside};
use crate::metrics::text_of;
use crate::tls::certificates::{Authority, Issued, Wanted};

/// In whose name a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Nobody,
    Garbage,
    /// With a token that was one: its user has another password.
    Ended,
    /// With a token of root's that was used so long ago that its member has forgotten it.
    Expired,
    /// A user that may do nothing.
    Bob,
    /// A user that may read and write `[b, c)`.
    Ann,
    Root,
    AnnsCertificate,
    RootsCertificate,
    /// Root's name in a certificate of somebody else's.
    OtherAuthority,
    Revoked,
}

/// All but [`Caller::Expired`], for whose time the others are asked first.
const CALLERS: [Caller; 10] = [
    Caller::Nobody,
    Caller::Garbage,
    Caller::Ended,
    Caller::Bob,
    Caller::OtherAuthority,
    Caller::Revoked,
    Caller::Ann,
    Caller::AnnsCertificate,
    Caller::RootsCertificate,
    Caller::Root,
];

impl Caller {
    /// It may do everything.
    fn is_root(self) -> bool {
        matches!(self, Self::Root | Self::RootsCertificate)
    }

    fn is_let_in(self) -> bool {
        !matches!(self, Self::OtherAuthority | Self::Revoked)
    }
}

/// Certificates: the server's, and those of callers.
struct Certificates {
    authority: Authority,
    server: Issued,
    issued: BTreeMap<&'static str, Issued>,
    list: String,
}

impl Certificates {
    fn make(dir: &TempDir) -> Self {
        let authority = Authority::new(&dir.path().join("ca"), "authority");
        let stranger = Authority::new(&dir.path().join("other"), "stranger");
        let wanted = |file, common_name, serial| Wanted { file, common_name, serial, ..Wanted::default() };
        let issued = BTreeMap::from([
            ("plain", authority.issue(wanted("plain", None, 3))),
            ("ann", authority.issue(wanted("ann", Some("ann"), 4))),
            ("root", authority.issue(wanted("root", Some("root"), 5))),
            ("revoked", authority.issue(wanted("revoked", Some("root"), 600))),
            ("other", stranger.issue(wanted("other", Some("root"), 6))),
        ]);
        let list = authority.revoke("list.der", &[600]);
        Self { server: authority.issue(wanted("server", None, 2)), authority, issued, list }
    }

    fn client(&self, endpoint: &str, name: &str) -> Client {
        let read = |file: &str| std::fs::read(file).unwrap();
        let own = &self.issued[name];
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(&self.authority.file)))
            .identity(Identity::from_pem(read(&own.cert), read(&own.key)))
            .domain_name("localhost");
        let endpoint = Endpoint::from_shared(endpoint.to_owned()).unwrap().tls_config(tls).unwrap();
        Client::over(endpoint.connect_timeout(Duration::from_secs(10)).connect_lazy())
    }
}

/// One server, its callers' connections and tokens.
struct Side {
    clients: BTreeMap<&'static str, Client>,
    tokens: BTreeMap<&'static str, String>,
}

impl Side {
    async fn new(server: &Server, certificates: &Certificates) -> Self {
        let endpoint = server.endpoint();
        let names = certificates.issued.keys();
        let mut clients: BTreeMap<_, _> =
            names.map(|name| (*name, certificates.client(&endpoint, name))).collect();
        clients.insert("plain", connect(&endpoint.replace("https", "http")).await);
        let mut side = Self { clients, tokens: BTreeMap::new() };
        side.set_up().await;
        side
    }

    async fn set_up(&mut self) {
        let client = &self.clients["plain"];
        let (root, ann) = set_up(client).await;
        for name in ["bob", "old"] {
            let (name, password) = (name.to_owned(), PASSWORD.to_owned());
            let request = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
            must(client, "/etcdserverpb.Auth/UserAdd", &request, Some(&root)).await;
        }
        let grant = AuthUserGrantRoleRequest { user: "old".to_owned(), role: "root".to_owned() };
        must(client, "/etcdserverpb.Auth/UserGrantRole", &grant, Some(&root)).await;
        let (bob, ended) = (login(client, "bob").await, login(client, "old").await);
        let (name, password) = ("old".to_owned(), "another".to_owned());
        let change = AuthUserChangePasswordRequest { name, password, ..Default::default() };
        must(client, "/etcdserverpb.Auth/UserChangePassword", &change, Some(&root)).await;
        let expired = login(client, "root").await;
        self.tokens.extend([("root", root), ("ann", ann), ("bob", bob), ("ended", ended)]);
        self.tokens.insert("expired", expired);
    }

    /// Uses tokens now and then, as long as the test goes on: a token counts until it was not used
    /// for a time.
    fn keep(&self, names: [&'static str; 3]) {
        for name in names {
            let (client, token) = (self.clients["plain"].clone(), self.tokens[name].clone());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let path = "/etcdserverpb.Maintenance/Status";
                    drop(super::call(&client, path, Bytes::new(), Some(&token)).await);
                }
            });
        }
    }

    /// The keys and leases that requests are about, whatever was done to them.
    async fn restore(&self) {
        let (client, root) = (&self.clients["plain"], Some(self.tokens["root"].as_str()));
        for id in [1, 2] {
            let grant = LeaseGrantRequest { id, ttl: 10_000 }.encode_to_vec();
            let _ = super::call(client, "/etcdserverpb.Lease/LeaseGrant", grant.into(), root).await;
        }
        for (key, lease) in [("a", 0), ("b", 0), ("b1", 2), ("x", 1)] {
            let put = PutRequest { key: key.into(), value: "secret".into(), lease, ..PutRequest::default() };
            must(client, "/etcdserverpb.KV/Put", &put, root).await;
        }
    }

    async fn ask(&self, caller: Caller, method: &Method, message: Bytes, patience: Duration) -> Answer {
        let (client, token) = match caller {
            Caller::Nobody => ("plain", None),
            Caller::Garbage => ("plain", Some("garbage")),
            Caller::Ended => ("plain", Some(&*self.tokens["ended"])),
            Caller::Expired => ("plain", Some(&*self.tokens["expired"])),
            Caller::Bob => ("plain", Some(&*self.tokens["bob"])),
            // A token goes first.
            Caller::Ann => ("root", Some(&*self.tokens["ann"])),
            Caller::Root => ("ann", Some(&*self.tokens["root"])),
            Caller::AnnsCertificate => ("ann", None),
            Caller::RootsCertificate => ("root", None),
            Caller::OtherAuthority => ("other", None),
            Caller::Revoked => ("revoked", None),
        };
        let mut said = asked(&self.clients[client], method, message, token, patience).await;
        if caller == Caller::Expired {
            // Behind locks and elections revisions are others.
            said.forget_revision();
        }
        said
    }
}

/// So long a call may wait for others at first: locks are held, and nobody leads.
const PATIENCE: Duration = Duration::from_millis(400);
/// Longer than an answer takes that does come, on a busy machine.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// The answers of both servers. One that is waited for in vain may be late: where they differ, both
/// are asked once more, and waited for longer.
pub(super) async fn answers(
    method: &Method,
    ask: impl AsyncFn(usize, Duration) -> Answer,
    is_difference: impl Fn(&Answer, &Answer) -> bool,
) -> [Answer; 2] {
    let mut patience = PATIENCE;
    loop {
        let began = Instant::now();
        let our = ask(0, patience).await;
        let (ours, then) = (began.elapsed(), Instant::now());
        let their = ask(1, patience).await;
        let is_late = ours.max(then.elapsed()) >= patience && may_wait(method);
        if !is_late || patience == PATIENCE_MAX || !is_difference(&our, &their) {
            return [our, their];
        }
        patience = PATIENCE_MAX;
    }
}

/// Whether its answers may wait for what others do.
fn may_wait(method: &Method) -> bool {
    !method.is_unary || ["/Lock", "/Campaign"].iter().any(|end| method.path.ends_with(end))
}

/// The answer to a call of any method, the first one where there are several: the part of it that
/// two servers in the same state have in common. One that may wait is given up after a while.
pub(super) async fn asked(
    client: &Client,
    method: &Method,
    message: Bytes,
    token: Option<&str>,
    patience: Duration,
) -> Answer {
    let said = if method.is_unary {
        one(client, method, message, token, patience).await
    } else {
        first(client, method, message, token, patience).await
    };
    // These have no header in front.
    let is_bare = method.path.starts_with("/grpc.") || method.path.ends_with("/RangeStream");
    answer(if is_bare { said.map(|_| Bytes::new()) } else { said }, compared(method.path))
}

/// The reply of a call with one; the word for none if it waits for others.
async fn one(
    client: &Client,
    method: &Method,
    message: Bytes,
    token: Option<&str>,
    patience: Duration,
) -> Result<Bytes, Status> {
    let called = super::call(client, method.path, message, token);
    if !may_wait(method) {
        return called.await;
    }
    tokio::time::timeout(patience, called).await.unwrap_or(Ok(Bytes::from_static(b"nothing")))
}

/// The first reply of a call with a stream of them; an empty one if there is none for a while.
async fn first(
    client: &Client,
    method: &Method,
    message: Bytes,
    token: Option<&str>,
    patience: Duration,
) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
    let _ = sender.send(message);
    let _held = method.is_open.then_some(sender);
    let request = request_as(tokio_stream::wrappers::UnboundedReceiverStream::new(messages), token);
    let called = async {
        let path = http::uri::PathAndQuery::from_static(method.path);
        let mut replies = grpc.streaming(request, path, RawCodec).await?.into_inner();
        replies.message().await
    };
    match tokio::time::timeout(patience, called).await {
        Ok(reply) => Ok(reply?.unwrap_or_default()),
        Err(_) => Ok(Bytes::from_static(b"nothing")),
    }
}

/// The part of the reply that two servers in the same state have in common.
fn compared(path: &str) -> Compared {
    // revd puts a key once more that is found in a queue: revisions differ from there on.
    if path.starts_with("/v3") {
        return Compared::Nothing;
    }
    match path.rsplit_once('/').unwrap().1 {
        "Authenticate" | "Status" | "MemberList" | "Hash" | "Downgrade" | "Defragment" | "AuthDisable" => {
            Compared::Nothing
        }
        "LeaseTimeToLive" => Compared::Lease,
        "LeaseLeases" => Compared::Leases,
        _ => Compared::Whole,
    }
}

/// Methods of other servers than etcd, and those that revd does not have yet.
pub(super) fn is_compared(path: &str, said: &Answer) -> bool {
    let is_missing =
        matches!(said, Answer::Refused(Code::Unimplemented, text) if text.contains("not supported"));
    !path.starts_with("/grpc.") && !is_missing
}

/// A difference that docs/COMPAT.md has: 33, callers that nothing is asked of; and etcd leaves one
/// without an answer that may not see the leader.
fn is_known(path: &str, caller: Caller, [our, their]: [&Answer; 2]) -> bool {
    let is_refused_here = matches!((our, their), (Answer::Refused(..), Answer::Reply { .. }));
    let is_of_nobody = caller == Caller::Nobody && path.ends_with("Auth/UserGet");
    is_refused_here && (is_of_nobody || path.ends_with("Election/Observe"))
}

/// Whether two answers are a difference that is not known.
fn is_difference(path: &str, caller: Caller, our: &Answer, their: &Answer) -> bool {
    let is_equal = if caller.is_let_in() {
        our == their
    } else {
        matches!((our, their), (Answer::Refused(..), Answer::Refused(..)))
    };
    !is_equal && is_compared(path, our) && !is_known(path, caller, [our, their])
}

/// Bytes that are the message of no method: a field without an end, one with a number that no field
/// has, and a length beyond the end.
const NO_MESSAGES: [Bytes; 3] =
    [Bytes::from_static(b"\xff"), Bytes::from_static(b"\0\0"), Bytes::from_static(b"\x0a\x7f")];

/// The requests that are made: a part of the nested transactions, unless all are asked for; of a
/// caller whose connection is refused a few.
fn chosen(contract: &Contract, method: &Method, caller: Caller, number: u32) -> Vec<Bytes> {
    // Users and roles in whose name requests are. Root's would change ann.
    let ghost = format!("ghost{number}");
    let mut requests = contract.requests(method, &ghost);
    if !caller.is_root() {
        let of_ann = contract.requests(method, "ann");
        requests.extend(of_ann.into_iter().filter(|request| !requests.contains(request)).collect::<Vec<_>>());
    }
    let is_part = from_env("REVD_MATRIX", 0) == 0 && method.path.ends_with("KV/Txn");
    let requests = requests.into_iter().step_by(if is_part { 29 } else { 1 }).chain(NO_MESSAGES);
    if caller.is_let_in() { requests.collect() } else { requests.take(1).collect() }
}

#[derive(Default)]
struct Found {
    asked: u32,
    refused: u32,
    differ: Vec<String>,
    /// Tokens that were not kept in use have ended.
    has_waited: bool,
}

/// All requests of a method by one caller: answers are equal, and each that is refused has changed
/// nothing. Whether all were.
async fn ask_all(
    contract: &Contract,
    (method, caller): (&Method, Caller),
    sides: [&Side; 2],
    onlooker: &mut Onlooker,
    found: &mut Found,
) -> bool {
    onlooker.begin().await;
    for message in chosen(contract, method, caller, found.asked) {
        found.asked += 1;
        let ask = async |side: usize, patience: Duration| {
            sides[side].ask(caller, method, message.clone(), patience).await
        };
        let is_difference = |our: &Answer, their: &Answer| is_difference(method.path, caller, our, their);
        let [our, their] = answers(method, ask, is_difference).await;
        let looked = onlooker.look(&our).await;
        assert!(looked.is_ok(), "{} {message:?} by {caller:?} was refused: {looked:?}", method.path);
        found.refused += u32::from(matches!(our, Answer::Refused(..)));
        if is_difference(&our, &their) {
            let difference =
                format!("{} {message:?} by {caller:?}:\n  revd {our:?}\n  etcd {their:?}", method.path);
            eprintln!("{difference}");
            found.differ.push(difference);
        }
    }
    let ended = onlooker.end().await;
    ended.unwrap_or_else(|why| panic!("requests of {} by {caller:?}: {why}", method.path))
}

/// etcd counts calls of each method that it serves from its start on; locks and elections, which
/// are services beside its own, it does not count.
#[test]
fn the_contract_has_every_method_of_an_etcd() {
    with_etcd_beside(&[], async |revd, etcd| {
        let contract = Contract::read();
        let known: Vec<&str> = contract.methods.iter().map(|method| method.path).collect();
        let text = text_of(etcd);
        let counted = text.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
        let label = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let path = |line| format!("/{}/{}", label(line, "grpc_service"), label(line, "grpc_method"));
        let served: Vec<String> = counted.map(path).collect();
        assert!(served.len() >= 45, "{served:?}");
        let missing: Vec<_> = served.iter().filter(|path| !known.contains(&path.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?}");
        // Each method of the contract is known to the member, also where the message is none.
        let (ours, theirs) = (revd.client().await, etcd.client().await);
        for path in contract.methods.iter().filter(|method| method.is_unary).map(|method| method.path) {
            let message = || Bytes::from_static(b"\xff");
            let our = answer(super::call(&ours, path, message(), None).await, Compared::Nothing);
            let their = answer(super::call(&theirs, path, message(), None).await, Compared::Nothing);
            assert!(!is_compared(path, &our) || our == their, "{path}: revd {our:?}, etcd {their:?}");
        }
    });
}

/// A token counts until it was not used for so many seconds. Tokens that are kept are used far more
/// often.
const TOKEN_SECONDS: u64 = 30;

/// Waits until tokens that were not used since then count no more.
async fn wait_until_expired(sides: [&Side; 2], used: Instant) {
    // An etcd looks at its tokens once in a second.
    tokio::time::sleep_until(used + Duration::from_secs(TOKEN_SECONDS + 3)).await;
    let get = RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec();
    for side in sides {
        let (client, token) = (&side.clients["plain"], Some(&*side.tokens["expired"]));
        let said = told(super::call(client, "/etcdserverpb.KV/Range", get.clone().into(), token).await);
        let ended = (Code::Unauthenticated, "etcdserver: invalid auth token".to_owned());
        assert_eq!(said, Err(ended), "a token has outlived its time");
    }
}

#[test]
fn every_method_by_every_caller_is_answered_as_by_etcd() {
    let dir = TempDir::new();
    let certificates = Certificates::make(&dir);
    let Certificates { authority, server, list, .. } = &certificates;
    let seconds = format!("--auth-token-ttl={TOKEN_SECONDS}");
    let flags = [
        &FLAGS[..],
        &["--cert-file", &server.cert, "--key-file", &server.key, "--trusted-ca-file", &authority.file],
        &["--client-cert-auth", "--client-crl-file", list, MIXED, &seconds],
    ]
    .concat();
    let contract = Contract::read();
    with_etcd_beside(&flags, async |revd, etcd| {
        let (ours, theirs) = (Side::new(revd, &certificates).await, Side::new(etcd, &certificates).await);
        let used = Instant::now();
        [&ours, &theirs].iter().for_each(|side| side.keep(["root", "ann", "bob"]));
        let mut onlooker = Onlooker::new(&ours.clients["plain"], &ours.tokens["root"]).await;
        let mut found = Found::default();
        // It ends all that the others are asked for.
        let (last, methods): (Vec<_>, Vec<_>) =
            contract.methods.iter().partition(|method| method.path.ends_with("/AuthDisable"));
        let by_all = methods.iter().flat_map(|method| CALLERS.map(|caller| (*method, caller)));
        let expired = methods.iter().chain(&last).map(|method| (*method, Caller::Expired));
        let disable = CALLERS.iter().map(|caller| (last[0], *caller));
        for (method, caller) in by_all.chain(expired).chain(disable) {
            if caller == Caller::Expired && !found.has_waited {
                wait_until_expired([&ours, &theirs], used).await;
                found.has_waited = true;
            }
            let is_last = method.path.ends_with("/AuthDisable");
            let sides = [&ours, &theirs];
            if !ask_all(&contract, (method, caller), sides, &mut onlooker, &mut found).await && !is_last {
                ours.restore().await;
                theirs.restore().await;
            }
            if is_last && caller.is_root() {
                break;
            }
        }
        println!("{} requests, {} refused", found.asked, found.refused);
        assert!(found.differ.is_empty(), "{} differ:\n{}", found.differ.len(), found.differ.join("\n"));
        assert!(found.asked > 1_500 && found.refused > 700 && found.refused < found.asked);
    });
}
