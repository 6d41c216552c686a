//! Which clients are served, and what those get that speak something else.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::{MIXED, Server, TempDir, peers, said_of_both};
use crate::tls::certificates::{Authority, HERE, Issued, Wanted};
use crate::tls::etcdctl;

struct Clients {
    authority: Authority,
    server: Issued,
    good: Issued,
    others: Vec<(&'static str, Option<Issued>)>,
    list: String,
}

fn clients(dir: &TempDir) -> Clients {
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let stranger = Authority::new(&dir.path().join("s"), "stranger");
    let wanted = |file, serial| Wanted { file, serial, ..Wanted::default() };
    let others = vec![
        ("none", None),
        ("another authority", Some(stranger.issue(wanted("stranger", 4)))),
        ("expired", Some(authority.issue(Wanted { is_over: true, ..wanted("expired", 5) }))),
        ("revoked", Some(authority.issue(wanted("revoked", 600)))),
    ];
    Clients {
        server: authority.issue(wanted("server", 2)),
        good: authority.issue(Wanted { common_name: Some("somebody"), ..wanted("good", 3) }),
        list: authority.revoke("list.der", &[600, 601]),
        authority,
        others,
    }
}

/// Rows 85 and 95 of the bugs never to have: on every combination of listeners.
#[test]
fn bug_085_only_those_with_a_certificate_that_counts_are_served_as_by_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let Clients { authority, server, good, others, list } = clients(&dir);
    let own = ["--cert-file", &server.cert, "--key-file", &server.key, "--trusted-ca-file", &authority.file];
    for mixed in [false, true] {
        let mut flags = [&own[..], &["--client-cert-auth", "--client-crl-file", &list]].concat();
        flags.extend(mixed.then_some(MIXED));
        let said = said_of_both(&flags, async |server: &Server| {
            let endpoint = server.endpoint();
            let mut said = Vec::new();
            let (is_served, text) = etcdctl(&endpoint, &authority.file, Some(&good), "put k v");
            assert!(is_served, "{text}");
            said.push(etcdctl(&endpoint, &authority.file, Some(&good), "get k"));
            let line = "get k --command-timeout 2s";
            for (_, client) in &others {
                said.push((etcdctl(&endpoint, &authority.file, client.as_ref(), line).0, String::new()));
            }
            if mixed {
                let plain = endpoint.replace("https", "http");
                said.push(etcdctl(&plain, &authority.file, None, "get k"));
            }
            said
        });
        assert_eq!(said[0], (true, "k\nv\n".to_owned()));
        for ((who, _), (is_served, _)) in others.iter().zip(&said[1..]) {
            assert!(!is_served, "{who} is served");
        }
        assert!(!mixed || said.last().unwrap().0);
    }
}

/// A certificate's name is that of a user, if certificates are asked for; a token goes first. An
/// authority alone makes nobody root.
#[test]
fn names_of_certificates_are_those_of_users_as_with_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let Clients { authority, server, good, .. } = clients(&dir);
    let named = |file, name| authority.issue(Wanted { file, common_name: Some(name), ..Wanted::default() });
    let (root, ann) = (named("root", "root"), named("ann", "ann"));
    let own = ["--cert-file", &server.cert, "--key-file", &server.key, "--trusted-ca-file", &authority.file];
    for asks in [true, false] {
        let flags = [&own[..], &["--bcrypt-cost=4", "--client-cert-auth"][..1 + usize::from(asks)]].concat();
        let said = said_of_both(&flags, async |server: &Server| {
            let endpoint = server.endpoint();
            let run = |client, line| etcdctl(&endpoint, &authority.file, Some(client), line);
            for line in
                ["user add root:r", "user grant-role root root", "user add ann --no-password", "auth enable"]
            {
                assert!(run(&root, line).0, "{line}");
            }
            let as_root = "user list --user root:r --command-timeout 5s";
            let lines = [(&root, "user list"), (&ann, "get k"), (&ann, as_root), (&good, "get k")];
            lines.map(|(client, line)| run(client, line).0)
        });
        assert_eq!(said, [asks, false, true, false]);
    }
}

/// A server's certificate is for other hosts, or of an authority that the client does not know.
#[test]
fn clients_refuse_a_server_as_they_refuse_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let stranger = Authority::new(&dir.path().join("s"), "stranger");
    let line = "get k --command-timeout 2s";
    let served = |names: &[&str], known: &Authority| {
        let server = authority.issue(Wanted { names, ..Wanted::default() });
        said_of_both(&["--cert-file", &server.cert, "--key-file", &server.key], async |server: &Server| {
            etcdctl(&server.endpoint(), &known.file, None, line).0
        })
    };
    assert!(served(&[HERE], &authority));
    assert!(!served(&["127.0.0.1", "localhost"], &authority), "of another host");
    assert!(!served(&[HERE], &stranger), "of an authority that is not known");
}

/// The bytes that come back, until the server closes.
fn answer(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it closes, and not as if something had broken");
    answer
}

/// The beginning of what every TLS client says.
const CLIENT_HELLO: &[u8] = &[0x16, 3, 1, 0, 0xc8, 1, 0, 0, 0xc4, 3, 3];

#[test]
fn bytes_for_the_other_kind_of_port_are_not_answered_as_by_etcd() {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let issued = authority.issue(Wanted::default());
    let secure = ["--cert-file", &issued.cert, "--key-file", &issued.key];
    let request = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let said =
        said_of_both(&secure, async |server: &Server| [answer(server, request), answer(server, preface)]);
    assert_eq!(said, [Vec::<u8>::new(), Vec::new()]);
    let hello = [CLIENT_HELLO, &[7; 194]].concat();
    // An etcd waits for the end of a line that never comes.
    let server = Server::revd(&dir.path().join("plain"), &[]);
    assert_eq!(answer(&server, &hello), Vec::<u8>::new());
}

#[test]
fn a_member_with_a_certificate_of_its_own_is_served_by_it_and_keeps_it() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::revd(&dir.path().join("revd"), &["--auto-tls"]);
    let file = server.data_dir().join("fixtures/client/cert.pem");
    let made = std::fs::read(&file).unwrap();
    let served = |server: &Server| {
        etcdctl(&server.endpoint(), file.to_str().unwrap(), None, "put k v --insecure-skip-tls-verify")
    };
    let (is_served, text) = served(&server);
    assert!(is_served, "{text}");
    server.kill();
    server.start_again();
    assert!(served(&server).0);
    assert_eq!(std::fs::read(&file).unwrap(), made);
    let key = std::fs::metadata(server.data_dir().join("fixtures/client/key.pem")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777, 0o600);
}
