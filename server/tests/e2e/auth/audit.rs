//! The log tells an operator of callers that were refused, and of changes of users and roles.

use std::time::Duration;

use prost::Message as _;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, AuthenticateRequest,
    DeleteRangeRequest, PutRequest, RangeRequest, WatchCreateRequest,
};
use serde_json::Value;

use super::bugs::{must, set_up, told, watch};
use super::{FLAGS, call};
use crate::harness::{Client, Cluster, Product, Server, TempDir, Wiring, run, wait_until};

/// A line is written soon: by a thread of its own.
const PATIENCE: Duration = Duration::from_secs(20);

/// The lines of a log with this message.
fn lines(server: &Server, message: &str) -> Vec<Value> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["msg"] == message).collect()
}

async fn refuse(client: &Client, path: &'static str, message: &impl prost::Message, token: Option<&str>) {
    assert!(told(call(client, path, message.encode_to_vec().into(), token).await).is_err(), "{path}");
}

/// A request, a watcher, a token and a login, each refused: who, from where, and why. People type
/// passwords where a name belongs, so that only names of users are in the log.
#[test]
fn refusals_are_in_the_log_with_user_and_address_and_no_secret() {
    run(async {
        let dir = TempDir::new();
        let server = Server::revd(dir.path(), &FLAGS);
        let client = server.client().await;
        let (_root, ann) = set_up(&client).await;
        let put =
            PutRequest { key: "hidden-key".into(), value: "hidden-value".into(), ..PutRequest::default() };
        refuse(&client, "/etcdserverpb.KV/Put", &put, Some(&ann)).await;
        let delete = DeleteRangeRequest { key: "hidden-key".into(), ..DeleteRangeRequest::default() };
        refuse(&client, "/etcdserverpb.KV/DeleteRange", &delete, None).await;
        let get = RangeRequest { key: "hidden-key".into(), ..RangeRequest::default() };
        refuse(&client, "/etcdserverpb.KV/Range", &get, Some("hiddentokenabcde.7")).await;
        for name in ["ann", "hidden-password"] {
            let login = AuthenticateRequest { name: name.to_owned(), password: "hidden-password".to_owned() };
            refuse(&client, "/etcdserverpb.Auth/Authenticate", &login, None).await;
        }
        let create = WatchCreateRequest { key: "hidden-key".into(), ..WatchCreateRequest::default() };
        let refused = watch(&client, create, Some(&ann)).await;
        drop(refused);
        let is_told = || lines(&server, "a watcher was refused").len() == 1;
        wait_until(PATIENCE, is_told, || server.log());

        let requests = lines(&server, "a request was refused");
        let told = |line: &Value| {
            let text = |field: &str| line[field].as_str().map(str::to_owned);
            (text("grpc-method").unwrap_or_default(), text("user-name"), text("error").unwrap())
        };
        let expected = [
            ("/etcdserverpb.KV/Put", Some("ann"), "etcdserver: permission denied"),
            ("/etcdserverpb.KV/DeleteRange", None, "etcdserver: user name is empty"),
            ("/etcdserverpb.KV/Range", None, "etcdserver: invalid auth token"),
        ];
        let expected =
            expected.map(|(path, user, error)| (path.to_owned(), user.map(str::to_owned), error.to_owned()));
        assert_eq!(requests.iter().map(told).collect::<Vec<_>>(), expected);
        let logins = lines(&server, "a login was refused");
        let names: Vec<_> = logins.iter().map(|line| line["user-name"].as_str()).collect();
        assert_eq!(names, [Some("ann"), None]);
        let watchers = lines(&server, "a watcher was refused");
        assert_eq!(watchers[0]["user-name"], "ann");
        for line in requests.iter().chain(&logins).chain(&watchers) {
            assert_eq!(
                (&line["remote-addr"], &line["level"]),
                (&"127.0.0.1".into(), &"warn".into()),
                "{line}"
            );
        }
        assert!(!server.log().contains("hidden"), "{}", server.log());
    });
}

/// Each change with its author and its address, also from before rights were needed.
#[test]
fn changes_of_users_and_roles_are_in_the_log_with_their_author() {
    run(async {
        let dir = TempDir::new();
        let server = Server::revd(dir.path(), &FLAGS);
        let client = server.client().await;
        let (root, ann) = set_up(&client).await;
        let add = |name: &str| AuthUserAddRequest {
            name: name.to_owned(),
            password: "hidden-password".to_owned(),
            ..AuthUserAddRequest::default()
        };
        must(&client, "/etcdserverpb.Auth/UserAdd", &add("eve"), Some(&root)).await;
        let grant = AuthUserGrantRoleRequest { user: "eve".to_owned(), role: "b".to_owned() };
        must(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, Some(&root)).await;
        refuse(&client, "/etcdserverpb.Auth/UserAdd", &add("mallory"), Some(&ann)).await;
        let is_told = || lines(&server, "users or roles were changed").len() >= 9;
        wait_until(PATIENCE, is_told, || server.log());

        let changes = lines(&server, "users or roles were changed");
        let kinds: Vec<_> = changes.iter().map(|line| line["change"].as_str().unwrap()).collect();
        let before =
            ["UserAdd", "UserAdd", "RoleAdd", "RoleGrantPermission", "UserGrantRole", "UserGrantRole"];
        assert_eq!(kinds, [&before[..], &["AuthEnable", "UserAdd", "UserGrantRole"]].concat());
        assert!(changes[..7].iter().all(|line| line["by"].is_null()), "{changes:?}");
        let last = &changes[8];
        assert_eq!((&last["by"], &last["remote-addr"]), (&"root".into(), &"127.0.0.1".into()));
        assert_eq!((&last["of"]["user"], &last["of"]["role"]), (&"eve".into(), &"b".into()));
        assert_eq!(changes[3]["of"]["permission"], "READWRITE");
        assert!(!server.log().contains("hidden"), "{}", server.log());
    });
}

/// A leader that hears nobody has changes that nobody decides; their callers go. A change is told
/// of when it is made all the same, and, when its member stops before that, as one that may be.
#[test]
fn a_change_whose_caller_is_gone_is_in_the_log() {
    const WHILE_IT_HEARS_NOBODY: Duration = Duration::from_secs(2);
    run(async {
        let dir = TempDir::new();
        // It goes on to lead for as long.
        let flags = [&FLAGS[..], &["--heartbeat-interval=500", "--election-timeout=10000"]].concat();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &flags).await;
        let leader = cluster.leader().await;
        let client = cluster.client(leader);
        let (root, _) = set_up(&client).await;
        let give_up = async |role: &str| {
            cluster.isolate(leader);
            let add = AuthRoleAddRequest { name: role.to_owned() }.encode_to_vec().into();
            let asked = call(&client, "/etcdserverpb.Auth/RoleAdd", add, Some(&root));
            tokio::time::timeout(WHILE_IT_HEARS_NOBODY, asked).await.expect_err("nobody decides it");
        };
        let count = |server: &Server, line: &str, role: &str| {
            lines(server, line)
                .iter()
                .filter(|line| line["of"]["name"] == role && line["by"] == "root")
                .count()
        };
        let server = &cluster.members[leader];
        let made = "users or roles were changed";
        give_up("left").await;
        assert_eq!(count(server, made, "left"), 0, "{}", server.log());
        cluster.mend();
        wait_until(PATIENCE, || count(server, made, "left") == 1, || server.log());
        give_up("undecided").await;
        assert!(cluster.members[leader].stop().code().is_none_or(|code| code == 0));
        let server = &cluster.members[leader];
        let told =
            ["undecided", "left"].map(|role| count(server, "users or roles may have been changed", role));
        assert_eq!((count(server, made, "undecided"), told), (0, [1, 0]), "{}", server.log());
    });
}

/// A client without rights asks as often as the network allows: the log has some lines a second,
/// and the number of the others.
#[test]
fn refusals_do_not_fill_the_log() {
    const ASKED: usize = 2_000;
    /// Those that a core may write.
    const LINES_PER_SECOND: u64 = 20;
    run(async {
        let dir = TempDir::new();
        let server = Server::revd(dir.path(), &FLAGS);
        let client = server.client().await;
        set_up(&client).await;
        let get = RangeRequest { key: "a".into(), ..RangeRequest::default() };
        let told =
            |line: &Value| 1 + usize::try_from(line["others-since-the-last-line"].as_u64().unwrap()).unwrap();
        let counted = || lines(&server, "a request was refused").iter().map(told).sum::<usize>();
        for _ in 0..ASKED {
            refuse(&client, "/etcdserverpb.KV/Range", &get, None).await;
        }
        // Of the next second: its line tells of those that were not written before.
        for _ in 0..100 {
            if counted() >= ASKED {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            refuse(&client, "/etcdserverpb.KV/Range", &get, None).await;
        }
        assert!(counted() >= ASKED, "{} of {ASKED} are told of", counted());
        let lines = lines(&server, "a request was refused");
        let at = |line: &Value| humantime::parse_rfc3339(line["ts"].as_str().unwrap()).unwrap();
        let took = at(lines.last().unwrap()).duration_since(at(&lines[0])).unwrap();
        // One connection is on one core. The last second may have just begun, and clocks differ by
        // some milliseconds.
        let lines_max = LINES_PER_SECOND * (took.as_secs() + 2);
        assert!(lines.len() as u64 <= lines_max, "{} lines in {took:?}", lines.len());
    });
}
