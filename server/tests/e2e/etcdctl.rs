//! A real etcdctl against revd and against etcd: what it prints must be the same.
//!
//! `REVD_LONG=1` adds `etcdctl check perf`, which takes a minute.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Peers, Server, TempDir, from_env, peers};

/// Both servers get the same peer URL, so that their ids are the same too.
const PEER_URL: &str = "http://localhost:2380";

struct Ctl<'p> {
    peers: &'p Peers,
    endpoint: String,
}

impl Ctl<'_> {
    fn run(&self, line: &str, input: &str) -> String {
        let mut command = Command::new(self.peers.path("etcdctl"));
        command.args(["--endpoints", &self.endpoint]).args(line.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        format!("{text}[{}]", output.status.code().unwrap())
    }
}

/// Replaces what is a server's own: address, raft term, indexes, the time of a log line, durations.
fn comparable(text: &str, endpoint: &str) -> String {
    let own = [
        ("\"raft_term\":", ','),
        ("\"ts\":\"", '"'),
        ("took = ", '\n'),
        ("\"RaftTerm\" : ", '\n'),
        ("etcd-endpoints://", '/'),
        ("LocalAddr: '", '\''),
    ];
    let mut text =
        text.replace(endpoint, "ENDPOINT").replace(endpoint.trim_start_matches("http://"), "ENDPOINT");
    for (start, end) in own {
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(position) = rest.find(start) {
            let (before, after) = rest.split_at(position + start.len());
            out.push_str(before);
            let length = after.find([end, '}']).unwrap_or(after.len());
            rest = &after[length..];
        }
        out.push_str(rest);
        text = out;
    }
    text
}

fn both(test: impl FnOnce(&Ctl<'_>, &Ctl<'_>, &Path)) {
    let Some(peers) = peers() else { return };
    let dir = TempDir::new();
    let revd = Server::revd(&dir.path().join("revd"), &["--initial-advertise-peer-urls", PEER_URL]);
    let etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &[]);
    let ctl = |server: &Server| Ctl { peers, endpoint: server.endpoint() };
    test(&ctl(&revd), &ctl(&etcd), dir.path());
}

/// One command per line; what follows `<` is its input, with `;` for a line's end.
const SCRIPT: &str = r#"
put a 1
put a 2 --prev-kv
put a --ignore-value
put nothing --ignore-value
put a 3 --lease=7b
put b/1 x
put b/2 yy
put b/3 zzz
put empty ""
get a
get a -w json
get a -w fields
get a -w simple --print-value-only
get b/ --prefix
get b/ --prefix --keys-only
get b/ --prefix --count-only -w fields
get b/ --prefix --limit 2 -w json
get b/ --prefix --order DESCEND --sort-by VALUE
get b/ --prefix --order ASCEND --sort-by MODIFY
get b/ --prefix --sort-by CREATE
get b/ --prefix --sort-by VERSION --order DESCEND
get b/2 --from-key
get b/1 b/3
get a --rev 2
get a --rev 99
get a --consistency s
get b/ --prefix --min-mod-rev 5 --max-mod-rev 5
get b/ --prefix --min-create-rev 6
get "" --prefix --hex
get b/ --prefix --stream
del b/1 --prev-kv
del b/ --prefix
del nothing
del x y
txn < mod("a") > "0"; ; put t 1;get a; ; put t 2;;
txn < value("a") = "wrong"; ; put t 1; ; put t 2;get t;;
txn < version("t") = "1"; ; del t;put u 1; ; ;
txn < ; ; put dup 1;put dup 2; ; ;
compaction 3
compaction 3
compaction 99
compaction --physical 5
get a --rev 2
endpoint health
endpoint hashkv
endpoint hashkv --rev 6
endpoint hashkv -w json
version
member list --consistency s -w simple
"#;

#[test]
fn it_prints_the_same_for_both() {
    both(|revd, etcd, _| {
        let mut commands = 0;
        for line in SCRIPT.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (command, input) = line.split_once(" < ").unwrap_or((line, ""));
            let input: String = input.split(';').map(|line| format!("{}\n", line.trim())).collect();
            let (ours, theirs) = (revd.run(command, &input), etcd.run(command, &input));
            if command.starts_with("member list") {
                continue; // other peer URLs, other ids
            }
            assert_eq!(
                without_ids(&comparable(&ours, &revd.endpoint)),
                without_ids(&comparable(&theirs, &etcd.endpoint)),
                "etcdctl {line}"
            );
            commands += 1;
        }
        println!("{commands} commands printed the same");
    });
}

/// Decimal and hexadecimal ids of clusters and members have many digits; nothing else here has.
fn without_ids(text: &str) -> String {
    text.split_inclusive(|letter: char| !letter.is_ascii_digit())
        .map(|part| {
            let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            if digits.len() >= 15 { part.replace(digits, "ID") } else { part.to_owned() }
        })
        .collect()
}

/// Users, roles, and what they may do; passwords are read without asking.
const AUTH_SCRIPT: &str = r#"
auth status
auth enable
user add root:r
user add ann:a
user add bob --no-password
user add ann:a
user list
role add root
role add reader
role add reader
role grant-permission reader read b c
role grant-permission reader readwrite k --prefix
role grant-permission reader write z --from-key
role grant-permission nothing read b
role get reader
role get reader -w json
role get nothing
role list
user grant-role root root
user grant-role ann reader
user grant-role ann nothing
user get ann
user get ann --detail
user get ann -w json
user get nobody
put b 1
auth enable
auth status
auth status -w json
get b
get b --user ann:a
get b --user ann:wrong
get b --user nobody:x
get b --user bob:x
get b --user ann --password a
put b 2 --user ann:a
put k1 2 --user ann:a
del k1 --prev-kv --user ann:a
get b --prefix --user ann:a
get "" --from-key --user ann:a
compact 2 --user ann:a
user list --user ann:a
user get ann --user ann:a
role get reader --user ann:a
role get root --user ann:a
user list --user root:r
user passwd ann --interactive=false --user root:r < b
get b --user ann:a
get b --user ann:b
user delete root --user root:r
role delete root --user root:r
user revoke-role root root --user root:r
role revoke-permission reader b c --user root:r
role revoke-permission reader b c --user root:r
get b --user ann:b
user revoke-role ann reader --user root:r
user revoke-role ann reader --user root:r
role delete reader --user root:r
role list --user root:r
user delete bob --user root:r
user delete bob --user root:r
auth disable --user root:r
get b
auth status
"#;

#[test]
fn it_manages_users_alike() {
    both(|revd, etcd, _| {
        for line in AUTH_SCRIPT.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (line, input) = line.split_once(" < ").unwrap_or((line, ""));
            let [ours, theirs] =
                [revd, etcd].map(|ctl| comparable(&ctl.run(line, &format!("{input}\n")), &ctl.endpoint));
            assert_eq!(without_ids(&ours), without_ids(&theirs), "etcdctl {line}");
        }
    });
}

#[test]
fn it_shows_status_and_members() {
    both(|revd, _, _| {
        let status = revd.run("endpoint status -w json", "");
        assert!(status.contains(r#""version":"3.7.1""#) && status.contains(r#""dbSizeInUse""#), "{status}");
        let members = revd.run("member list", "");
        // The id that an etcd with this peer URL and token has.
        assert!(
            members.starts_with("8e9e05c52164694d, started, default, http://localhost:2380, "),
            "{members}"
        );
        let health = revd.run("endpoint health --cluster", "");
        assert!(health.contains("is healthy: successfully committed proposal"), "{health}");
    });
}

#[test]
fn check_perf_passes() {
    if from_env("REVD_LONG", 0) == 0 {
        eprintln!("skipped: takes a minute, REVD_LONG=1 runs it");
        return;
    }
    both(|revd, _, _| {
        let report = revd.run("check perf --load s", "");
        assert!(report.contains("PASS: Throughput") && report.contains("PASS: Slowest request"), "{report}");
        println!("{report}");
    });
}
