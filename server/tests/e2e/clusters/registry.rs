//! Members that find each other by registering with a discovery service (`--discovery-endpoints`):
//! an etcd, or a revd. etcd's members beside them write the same rows.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use revd_member::cluster::member_id;
use revd_proto::etcdserverpb::{DeleteRangeRequest, MemberListRequest, PutRequest, RangeRequest};
use revd_proto::mvccpb::KeyValue;

use crate::harness::{MIXED, Product, Server, TempDir, connect, free_address, peers, run, within};
use crate::tls::certificates::{Authority, Wanted};

const PATIENCE: Duration = Duration::from_secs(60);

/// A row as it should be: key, value.
type Row = (String, String);

/// A cluster that begins with a service, on these addresses.
struct Registered<'d> {
    dir: &'d Path,
    service: String,
    token: &'static str,
}

impl Registered<'_> {
    fn member(&self, product: Product, name: &str, peer: &str, more: &[&str]) -> Server {
        let flags = ["--name", name, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer];
        let discovery = ["--discovery-token", self.token, "--discovery-endpoints", &self.service];
        let flags = [&flags[..], &discovery, more].concat();
        let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
        let dir = self.dir.join(format!("{}-{name}", self.token));
        Server::spawn_member(product, free_address(), &dir, &flags)
    }

    /// Three members, and the rows that they should write.
    fn three(&self, product: Product) -> (Vec<Server>, Vec<Row>) {
        let members = (0..3).map(|number| {
            let (name, peer) = (format!("m{number}"), format!("http://{}", free_address()));
            let id = member_id(std::slice::from_ref(&peer), self.token);
            let row = (format!("/_etcd/registry/{}/members/{id:x}", self.token), format!("{name}={peer}"));
            (self.member(product, &name, &peer, &[]), row)
        });
        let (mut servers, mut rows): (Vec<Server>, Vec<Row>) = members.unzip();
        servers.iter_mut().for_each(Server::wait_until_ready);
        rows.sort();
        (servers, rows)
    }
}

async fn write_size(service: &Server, token: &str, size: &str) {
    let key = format!("/_etcd/registry/{token}/_config/size");
    let put = PutRequest { key: key.into(), value: size.to_owned().into(), ..PutRequest::default() };
    service.client().await.kv.put(put).await.unwrap();
}

async fn rows(service: &Server, token: &str) -> Vec<KeyValue> {
    let prefix = format!("/_etcd/registry/{token}/members/");
    let range = range_of(&prefix, &prefix.replace("members/", "members0"));
    service.client().await.kv.range(range).await.unwrap().into_inner().kvs
}

fn texts(rows: &[KeyValue]) -> Vec<Row> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    rows.iter().map(|row| (text(&row.key), text(&row.value))).collect()
}

#[test]
fn three_members_find_each_other_by_a_service_that_is_a_revd() {
    let dir = TempDir::new();
    let service = Server::revd(&dir.path().join("service"), &[]);
    run(find_each_other(dir.path(), service));
}

#[test]
fn three_members_find_each_other_by_a_service_that_is_an_etcd() {
    let Some(peers) = peers() else { return };
    let dir = TempDir::new();
    let service = Server::etcd(&peers.path("etcd"), &dir.path().join("service"), &[]);
    run(async {
        let theirs = Registered { dir: dir.path(), service: service.endpoint(), token: "theirs" };
        write_size(&service, "theirs", "3").await;
        let (members, wanted) = theirs.three(Product::Etcd);
        // etcd has its port before its row is written.
        let written = within(PATIENCE, "not all rows", async || {
            Some(rows(&service, "theirs").await).filter(|rows| rows.len() == wanted.len())
        });
        let written = written.await;
        assert_eq!(texts(&written), wanted, "the rows of etcd's members");
        assert!(written.iter().all(|row| (row.version, row.lease) == (1, 0)));
        drop(members);
        find_each_other(dir.path(), service).await;
    });
}

async fn find_each_other(dir: &Path, service: Server) {
    let silent = format!("http://{}", free_address());
    let ours = Registered { dir, service: format!("{silent},{}", service.endpoint()), token: "ours" };
    let peer = format!("http://{}", free_address());
    let mut early = ours.member(Product::Revd, "early", &peer, &[]);
    assert!(!early.wait().success());
    assert!(early.log().contains("discovery: size key not found"), "{}", early.log());

    write_size(&service, "ours", "3").await;
    let (mut members, wanted) = ours.three(Product::Revd);
    let written = rows(&service, "ours").await;
    assert_eq!(texts(&written), wanted);
    assert!(written.iter().all(|row| (row.version, row.lease) == (1, 0)));

    let mut client = members[0].client().await;
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    client.kv.put(put).await.unwrap();
    for server in &members {
        let mut client = server.client().await;
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        assert_eq!(client.kv.range(read).await.unwrap().into_inner().kvs.len(), 1);
        let request = MemberListRequest { linearizable: true };
        let list = client.cluster.member_list(request).await.unwrap().into_inner().members;
        let mut urls: Vec<String> =
            list.iter().map(|member| format!("{}={}", member.name, member.peer_ur_ls[0])).collect();
        urls.sort();
        let mut registered: Vec<String> = wanted.iter().map(|(_, value)| value.clone()).collect();
        registered.sort();
        assert_eq!(urls, registered);
    }

    let peer = format!("http://{}", free_address());
    let mut fourth = ours.member(Product::Revd, "m3", &peer, &[]);
    assert!(!fourth.wait().success());
    let full = "failed to join discovery cluster (discovery: cluster is full)";
    assert!(fourth.log().contains(full), "{}", fourth.log());
    assert_eq!(texts(&rows(&service, "ours").await), wanted, "it has registered all the same");

    // A member needs the service only for its first start.
    drop(service);
    members[1].kill();
    members[1].start_again();
    assert!(!members[1].log().contains("discovery"), "{}", members[1].log());
}

#[test]
fn a_member_says_who_it_is_to_a_service_that_asks_and_waits_for_one_that_is_not_up() {
    let Some(peers) = peers() else { return };
    let dir = TempDir::new();
    let mut service = Server::etcd(&peers.path("etcd"), &dir.path().join("service"), &[]);
    run(async {
        write_size(&service, "t", "1").await;
        let endpoint = service.endpoint();
        for words in ["user add root:secret", "role add root", "user grant-role root root", "auth enable"] {
            let mut etcdctl = Command::new(peers.path("etcdctl"));
            let done = etcdctl.args(["--endpoints", &endpoint]).args(words.split(' ')).output().unwrap();
            assert!(done.status.success(), "{words}: {done:?}");
        }
        let registered = Registered { dir: dir.path(), service: endpoint, token: "t" };
        let member = |name: &str, password: &str| {
            let peer = format!("http://{}", free_address());
            let user = ["--discovery-user", "root", "--discovery-password", password];
            registered.member(Product::Revd, name, &peer, &user)
        };
        service.kill();
        let (mut known, refused) = (member("known", "secret"), member("refused", "wrong"));
        let retries = async || known.log().contains("retry connecting").then_some(());
        within(PATIENCE, "the service is not asked again", retries).await;
        service.start_again();
        known.wait_until_ready();
        let why = "authentication failed, invalid user ID or password";
        within(PATIENCE, "no word of the password", async || refused.log().contains(why).then_some(())).await;
    });
}

fn range_of(key: &str, end: &str) -> RangeRequest {
    let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

/// A way to ask a service with TLS: whether the endpoint has a scheme, and the flags of TLS.
struct Way {
    token: &'static str,
    scheme: &'static str,
    flags: &'static str,
    is_let_in: bool,
}

const WAYS: [Way; 6] = [
    Way { token: "all", scheme: "https://", flags: "--discovery-cacert=CA PAIR", is_let_in: true },
    Way { token: "by-flags", scheme: "", flags: "--discovery-cacert=CA PAIR", is_let_in: true },
    Way { token: "plain", scheme: "http://", flags: "--discovery-cacert=CA PAIR", is_let_in: true },
    Way {
        token: "believing",
        scheme: "",
        flags: "--discovery-insecure-skip-tls-verify PAIR",
        is_let_in: true,
    },
    Way { token: "nobody-known", scheme: "https://", flags: "PAIR", is_let_in: false },
    Way { token: "without-a-name", scheme: "https://", flags: "--discovery-cacert=CA", is_let_in: false },
];

/// A service that speaks TLS and asks for certificates is reached, or not, as by a member of etcd
/// with the same flags.
#[test]
fn a_service_is_asked_over_tls_as_by_etcd() {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let member = authority.issue(Wanted { file: "member", serial: 8, ..Wanted::default() });
    let of_service = ["--cert-file", &own.cert, "--key-file", &own.key, "--client-cert-auth"];
    let flags = [&of_service[..], &["--trusted-ca-file", &authority.file, MIXED]].concat();
    let service = Server::revd(&dir.path().join("service"), &flags);
    let products = if peers().is_some() { &[Product::Revd, Product::Etcd][..] } else { &[Product::Revd] };
    let pair = format!("--discovery-cert={} --discovery-key={}", member.cert, member.key);
    run(async {
        let mut client = connect(&format!("http://{}", service.address)).await;
        for product in products {
            for Way { token, scheme, flags, is_let_in } in WAYS {
                let key = format!("/_etcd/registry/{token}/_config/size");
                let put = PutRequest { key: key.into(), value: "1".into(), ..PutRequest::default() };
                client.kv.put(put).await.unwrap();
                let flags = flags.replace("CA", &authority.file).replace("PAIR", &pair);
                let flags: Vec<&str> = flags.split(' ').collect();
                let service = format!("{scheme}{}", service.address);
                let registered = Registered { dir: dir.path(), service, token };
                let peer = format!("http://{}", free_address());
                let name = format!("{product:?}").to_lowercase();
                let member = registered.member(*product, &name, &peer, &flags);
                if is_let_in {
                    // etcd has its port before its row is written.
                    let written = async || {
                        let members = format!("/_etcd/registry/{token}/members/");
                        let end = members.replace("members/", "members0");
                        let range = range_of(&members, &end);
                        let found = client.clone().kv.range(range).await.unwrap().into_inner().count;
                        (found == 1).then_some(())
                    };
                    within(PATIENCE, "it is not let in", written).await;
                } else {
                    let refused =
                        async || member.log().contains("retry connecting to discovery").then_some(());
                    within(PATIENCE, "it is not refused", refused).await;
                }
                let prefix = format!("/_etcd/registry/{token}/");
                let RangeRequest { key, range_end, .. } =
                    range_of(&prefix, &prefix.replace(&format!("{token}/"), &format!("{token}0")));
                let del = DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() };
                let deleted = client.kv.delete_range(del).await.unwrap().into_inner().deleted;
                assert_eq!(deleted, 1 + i64::from(is_let_in), "{product:?} {token}: {}", member.log());
            }
        }
    });
    // A file that cannot be used ends the start.
    let none = "--discovery-cacert=no.such.pem";
    let registered = Registered { dir: dir.path(), service: service.endpoint(), token: "none" };
    let mut member = registered.member(Product::Revd, "m", &format!("http://{}", free_address()), &[none]);
    assert!(!member.wait().success());
    assert!(
        member.log().contains("discovery TLS") && member.log().contains("no.such.pem"),
        "{}",
        member.log()
    );
}
