//! Passwords of every length, of none too: what they are refused for, which ones count as the same,
//! and what it costs to check one.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use prost::Message;
use revd_proto::authpb::UserAddOptions;
use revd_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserGrantRoleRequest, AuthenticateRequest,
};
use tonic::Code;

use super::bugs::set_up;
use super::{FLAGS, call};
use crate::harness::{Client, Server, TempDir, run, said_of_both, with_server};

type Told = Result<(), (Code, String)>;

async fn tell(client: &Client, path: &'static str, message: &impl Message, token: Option<&str>) -> Told {
    let result = call(client, path, message.encode_to_vec().into(), token).await;
    result.map(drop).map_err(|status| (status.code(), status.message().to_owned()))
}

async fn add(client: &Client, name: &str, password: &str) -> Told {
    let (name, password) = (name.to_owned(), password.to_owned());
    let request = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
    tell(client, "/etcdserverpb.Auth/UserAdd", &request, None).await
}

async fn change(client: &Client, name: &str, password: &str) -> Told {
    let (name, password) = (name.to_owned(), password.to_owned());
    let request = AuthUserChangePasswordRequest { name, password, ..Default::default() };
    tell(client, "/etcdserverpb.Auth/UserChangePassword", &request, None).await
}

async fn login(client: &Client, name: &str, password: &str) -> Told {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    tell(client, "/etcdserverpb.Auth/Authenticate", &request, None).await
}

/// bcrypt reads 72 bytes: a longer password is refused where it is set, and cut where it is
/// checked, as etcd does.
#[test]
fn the_length_of_a_password_counts_as_with_etcd() {
    let lengths = [0, 1, 71, 72, 73, 1_000];
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let mut seen = vec![add(&client, "root", "root").await];
        for len in lengths {
            seen.push(add(&client, &format!("user {len}"), &"p".repeat(len)).await);
            seen.push(add(&client, "changed", "at first").await);
            seen.push(change(&client, "changed", &"c".repeat(len)).await);
            seen.push(change(&client, "nobody", &"c".repeat(len)).await);
        }
        seen.push(add(&client, "zero", "a\0b").await);
        seen.push(add(&client, "letters", &"\u{e4}".repeat(36)).await);
        seen.push(add(&client, "more letters", &"\u{e4}".repeat(37)).await);
        let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
        seen.push(tell(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, None).await);
        let enabled = call(&client, "/etcdserverpb.Auth/AuthEnable", Bytes::new(), None).await;
        assert!(enabled.is_ok(), "{enabled:?}");
        for len in lengths {
            for tried in [len, len + 1, 71, 72, 73, 1_000] {
                seen.push(login(&client, &format!("user {len}"), &"p".repeat(tried)).await);
            }
            seen.push(login(&client, "changed", &"c".repeat(len)).await);
        }
        for (name, password) in [("zero", "a\0b"), ("zero", "a"), ("zero", "a\0c"), ("zero", "a\0b\0")] {
            seen.push(login(&client, name, password).await);
        }
        seen.push(login(&client, "letters", &"\u{e4}".repeat(36)).await);
        seen
    });
    let too_long = Err((Code::Unknown, "bcrypt: password length exceeds 72 bytes".to_owned()));
    assert!(seen.iter().filter(|told| **told == too_long).count() >= 4, "{seen:?}");
    assert!(seen.iter().filter(|told| told.is_ok()).count() > 20, "{seen:?}");
}

/// A request to make or change a user that is too long is refused for that before its caller's
/// rights are asked for; its password is judged before the token, the whole of it behind that.
#[test]
fn what_is_too_long_in_a_request_about_a_user_is_said_to_anybody_as_with_etcd() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let (root, ann) = set_up(&client).await;
        let (long, name) = ("l".repeat(1_573_000), || "ann".to_owned());
        let no_password = Some(UserAddOptions { no_password: true });
        let add = |name: &str, password: &str, options| {
            let (name, password) = (name.to_owned(), password.to_owned());
            let hashed_password = String::new();
            AuthUserAddRequest { name, password, options, hashed_password }.encode_to_vec()
        };
        let change = |name: &str, password: &str, hash: &str| {
            let (name, password, hashed_password) = (name.to_owned(), password.to_owned(), hash.to_owned());
            AuthUserChangePasswordRequest { name, password, hashed_password }.encode_to_vec()
        };
        let (too_long, longest) = ("p".repeat(73), "p".repeat(72));
        let adds = [
            add("eve", &too_long, None),
            add("eve", &long, None),
            add(&long, &too_long, None),
            add(&long, &longest, None),
            add(&long, "", None),
            add("", &too_long, None),
            add(&name(), &too_long, None),
            add("eve", &long, no_password),
            add(&long, "", no_password),
            add("", &longest, None),
        ];
        let changes = [
            change("nobody", &too_long, ""),
            change("nobody", &long, ""),
            change("nobody", &longest, ""),
            change(&long, &too_long, ""),
            change(&long, &longest, ""),
            change(&long, "", ""),
            change("nobody", "", &long),
            change("nobody", &longest, &long),
            change("", &too_long, ""),
        ];
        let adds = adds.into_iter().map(|request| ("/etcdserverpb.Auth/UserAdd", request));
        let changes = changes.into_iter().map(|request| ("/etcdserverpb.Auth/UserChangePassword", request));
        let mut seen = Vec::new();
        for (number, (path, message)) in adds.chain(changes).enumerate() {
            let tokens = [None, Some("garbage"), Some("abcdefghijklmnop.1"), Some(&*ann), Some(&*root)];
            for (who, token) in tokens.into_iter().enumerate() {
                let told = call(&client, path, message.clone().into(), token).await;
                let told = told.map(drop).map_err(|status| (status.code(), status.message().to_owned()));
                seen.push((number, path, who, told));
            }
        }
        seen
    });
    let said = |text: &str| {
        let is_said = |told: &Told| told.as_ref().is_err_and(|(_, said)| said == text);
        seen.iter().filter(|(.., told)| is_said(told)).count()
    };
    let counts = ["bcrypt: password length exceeds 72 bytes", "etcdserver: request is too large"].map(said);
    assert!(counts.iter().all(|count| *count >= 15), "{counts:?} of {seen:#?}");
}

/// Clients may make hashes by themselves, and write them more loosely than they should be.
#[test]
fn hashes_that_clients_make_count_as_with_etcd() {
    let made = bcrypt::hash_with_salt("rosebud", 4, [0xff; 16]).unwrap();
    let made = made.format_for_version(bcrypt::Version::TwoA);
    let with = |at: usize, text: &str| format!("{}{text}{}", &made[..at], &made[at + text.len()..]);
    let loose = char::from(made.as_bytes()[59] + 1).to_string();
    let hashes = [
        made.clone(),
        // Bits of the salt, and of the hash, that there are too many of.
        with(28, "z"),
        with(28, "9"),
        with(28, "t"),
        with(28, "="),
        with(59, &loose),
        // The version, what separates the parts, the cost, the length.
        format!("$2{}", &made[3..]),
        with(2, "q"),
        with(1, "1"),
        with(1, "3"),
        with(3, "x"),
        with(6, "x"),
        with(4, "+4"),
        with(4, "-4"),
        with(4, "03"),
        format!("{made}behind"),
        made[..59].to_owned(),
        // Line ends in the salt: four of them leave a shorter one, two leave none.
        "$2a$04$\r\n\n\r/vmrODLkcWwdqqVW4uR6qWrc9tC7pfxT3IL2OhYLHzjms.PRK".to_owned(),
        with(10, "\r\n"),
    ];
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let mut seen = vec![add(&client, "root", "root").await];
        for (number, hash) in hashes.iter().enumerate() {
            let (name, hashed_password) = (format!("user {number}"), BASE64_STANDARD.encode(hash));
            seen.push(add(&client, &name, "at first").await);
            let request = AuthUserChangePasswordRequest { name, hashed_password, ..Default::default() };
            seen.push(tell(&client, "/etcdserverpb.Auth/UserChangePassword", &request, None).await);
        }
        let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
        seen.push(tell(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, None).await);
        call(&client, "/etcdserverpb.Auth/AuthEnable", Bytes::new(), None).await.unwrap();
        for number in 0..hashes.len() {
            seen.push(login(&client, &format!("user {number}"), "rosebud").await);
        }
        seen
    });
    let logins = &seen[seen.len() - hashes.len()..];
    assert_eq!(logins.iter().filter(|told| told.is_ok()).count(), 11, "{logins:?}");
}

/// CVE-2020-15115, row 94: no length is asked of a password. As with etcd, whose clients alone
/// refuse it, a user may be added with an empty one, which counts like any other. A change to an
/// empty one leaves the user without any: none lets it in, the former one neither.
#[test]
fn bug_094_an_empty_password_counts_as_with_etcd() {
    let own = bcrypt::hash_with_salt("rosebud", 4, [7; 16]).unwrap();
    let own = BASE64_STANDARD.encode(own.format_for_version(bcrypt::Version::TwoA));
    let logins = [
        ("empty", "", true),
        ("empty", "x", false),
        ("empty", "\0", true), // bcrypt ends each password with a zero, and repeats it
        ("with a hash", "", true),
        ("with a hash", "rosebud", false),
        ("changed", "", false),
        ("changed", "at first", false),
        ("certified", "", false),
        ("nobody", "", false),
    ];
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let mut seen = vec![add(&client, "root", "root").await, add(&client, "empty", "").await];
        seen.push(add(&client, "changed", "at first").await);
        seen.push(change(&client, "changed", "").await);
        let (name, options) = ("certified".to_owned(), Some(UserAddOptions { no_password: true }));
        let certified = AuthUserAddRequest { name, options, ..AuthUserAddRequest::default() };
        let (name, hashed_password) = ("with a hash".to_owned(), own.clone());
        let hashed = AuthUserAddRequest { name, hashed_password, ..AuthUserAddRequest::default() };
        for request in [certified, hashed] {
            seen.push(tell(&client, "/etcdserverpb.Auth/UserAdd", &request, None).await);
        }
        let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
        seen.push(tell(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, None).await);
        call(&client, "/etcdserverpb.Auth/AuthEnable", Bytes::new(), None).await.unwrap();
        assert!(seen.iter().all(Result::is_ok), "{seen:?}");
        for (name, password, _) in logins {
            seen.push(login(&client, name, password).await);
        }
        seen
    });
    for ((name, password, is_let_in), told) in logins.iter().zip(&seen[seen.len() - logins.len()..]) {
        assert_eq!(told.is_ok(), *is_let_in, "{name} with {password:?}: {told:?}");
    }
}

/// Nanoseconds of CPU that the threads for passwords have had.
fn spent_on_passwords(server: &Server) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let spent = threads.filter_map(|thread| {
        let thread = thread.unwrap().path();
        let name = std::fs::read_to_string(thread.join("comm")).unwrap();
        let of = |file: &str| std::fs::read_to_string(thread.join(file)).unwrap();
        let nanoseconds = || of("schedstat").split_whitespace().next().unwrap().parse::<u64>().unwrap();
        name.starts_with("passwords").then(nanoseconds)
    });
    spent.sum()
}

/// Whether there is a user is not to be told by what a wrong password costs: it is as much work
/// where there is none, and where the user has no password.
#[test]
fn a_wrong_password_is_as_much_work_without_such_a_user() {
    let flags = ["--unsafe-no-fsync", "--bcrypt-cost=8"];
    with_server(&flags, async |server, client| {
        for name in ["root", "ann"] {
            add(client, name, "right").await.unwrap();
        }
        let (name, options) = ("certified".to_owned(), Some(UserAddOptions { no_password: true }));
        let certified = AuthUserAddRequest { name, options, ..AuthUserAddRequest::default() };
        tell(client, "/etcdserverpb.Auth/UserAdd", &certified, None).await.unwrap();
        let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
        tell(client, "/etcdserverpb.Auth/UserGrantRole", &grant, None).await.unwrap();
        call(client, "/etcdserverpb.Auth/AuthEnable", Bytes::new(), None).await.unwrap();
        let names = ["ann", "nobody", "certified"];
        let mut spent = [0; 3];
        // Fewer guesses than those behind which a name has to wait.
        for _ in 0..8 {
            for (name, spent) in names.iter().zip(&mut spent) {
                let before = spent_on_passwords(server);
                login(client, name, "wrong").await.unwrap_err();
                *spent += spent_on_passwords(server) - before;
            }
        }
        println!("nanoseconds of CPU: {names:?} {spent:?}");
        let [of_user, others @ ..] = spent;
        assert!(of_user > 0, "the threads for passwords were not found");
        for (name, of_other) in names[1..].iter().zip(others) {
            let is_alike = of_other * 2 > of_user && of_other < of_user * 2;
            assert!(is_alike, "{name}: {of_other} ns, a user with a password: {of_user} ns");
        }
    });
}

/// Hundreds of logins wait for the threads of passwords, which takes longer than a stop waits for
/// calls: those behind the first ones are told at once.
#[test]
fn a_stop_answers_logins_that_wait() {
    run(async {
        let dir = TempDir::new();
        let mut server = Server::revd(&dir.path().join("data"), &["--unsafe-no-fsync", "--bcrypt-cost=11"]);
        let client = server.client().await;
        add(&client, "root", "root").await.unwrap();
        let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
        tell(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, None).await.unwrap();
        call(&client, "/etcdserverpb.Auth/AuthEnable", Bytes::new(), None).await.unwrap();
        let guess = |number: usize| {
            let client = client.clone();
            tokio::spawn(async move { login(&client, &format!("user {number}"), "guess").await })
        };
        let mut guesses: Vec<_> = (0..250).map(guess).collect();
        // Those on the same connection have arrived when the first one has been checked.
        let first = guesses.remove(0).await.unwrap();
        assert_eq!(first.unwrap_err().0, Code::InvalidArgument);
        server.signal("TERM");
        let (mut stopped, mut others) = (0, Vec::new());
        for guess in guesses {
            match guess.await.unwrap() {
                Err((Code::Unavailable, text)) if text == "etcdserver: server stopped" => stopped += 1,
                other => others.push(other),
            }
        }
        assert!(stopped > 200, "{stopped} were told; others: {others:?}");
        server.wait();
        assert!(server.log().contains("\"stopped\""), "{}", server.log());
    });
}
