//! The commands of `docs/SECURITY.md`, as they stand there: certificates by openssl, three members
//! that are started with them, users and roles by etcdctl. Only addresses and what `...` stands for
//! are the test's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::tls::certificates::Issued;
use crate::tls::etcdctl;

const MEMBERS: usize = 3;
/// Longer than a line takes to the log.
const SOON: Duration = Duration::from_secs(30);

/// The commands of a section, block by block.
fn blocks(document: &str, section: &str) -> Vec<String> {
    let (_, text) = document.split_once(&format!("\n## {section}\n")).expect("the document has the section");
    let text = text.split("\n## ").next().unwrap();
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

fn document() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/SECURITY.md")).unwrap()
}

/// Whether the machine has what the commands use.
fn has_tools() -> bool {
    let missing = [("openssl", "version"), ("bash", "--version")]
        .into_iter()
        .find(|(tool, argument)| Command::new(tool).arg(argument).output().is_err());
    if let Some((tool, _)) = missing {
        eprintln!("skipped: the documented commands use {tool}, which this machine does not have");
    }
    missing.is_none()
}

/// Runs commands where they make their files; the first one that fails ends them.
fn shell(dir: &Path, commands: &str, variables: &[(&str, String)]) -> Output {
    let mut command = Command::new("bash");
    command.args(["-eu", "-o", "pipefail", "-c", commands]).current_dir(dir);
    command.env("ETCDCTL_COMMAND_TIMEOUT", "30s");
    command.envs(variables.iter().map(|(name, value)| (*name, value))).output().unwrap()
}

fn must(dir: &Path, commands: &str, variables: &[(&str, String)]) -> String {
    let Output { status, stdout, stderr } = shell(dir, commands, variables);
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(status.success(), "{commands}\n{text}");
    text
}

/// The commands that make certificates, with the lines of a member repeated for each, as the
/// document says.
fn of_all_members(commands: &str, ip: &str) -> String {
    let of_members = ["names=", "new m1;", "new m1-peer;", "chmod "];
    let is_of_member = |line: &&str| of_members.iter().any(|start| line.starts_with(start));
    let own: Vec<&str> = commands.lines().filter(is_of_member).collect();
    assert_eq!(own.len(), of_members.len(), "the lines of a member: {own:?}");
    let more = (2..=MEMBERS).map(|at| own.join("\n").replace("m1", &format!("m{at}")));
    let all: Vec<String> = std::iter::once(commands.to_owned()).chain(more).collect();
    // Where members listen here, and where they dial from.
    all.join("\n").replace("IP:10.0.0.1", &format!("IP:{ip},IP:127.0.0.1"))
}

/// The flags of the documented command of the first member, for another one.
fn flags(command: &str, dir: &Path, at: usize, urls: &[String]) -> Vec<String> {
    let (command, _) = command.split_once("...").expect("the document leaves flags to its reader");
    let words = command.replace("\\\n", " ").replace("m1", &format!("m{}", at + 1));
    let mut words = words.split_whitespace();
    assert_eq!(words.next(), Some("revd"));
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        match word {
            // Of the harness, which gives both the same address.
            "--listen-client-urls" | "--advertise-client-urls" => {
                assert!(words.next().unwrap().starts_with("https://"));
            }
            "--listen-peer-urls" | "--initial-advertise-peer-urls" => {
                assert!(words.next().unwrap().starts_with("https://"));
                flags.extend([word.to_owned(), urls[at].clone()]);
            }
            file if file.ends_with(".pem") || file.ends_with(".key") => {
                flags.push(dir.join(file).to_str().unwrap().to_owned());
            }
            word => flags.push(word.to_owned()),
        }
    }
    let initial = urls.iter().enumerate().map(|(at, url)| format!("m{}={url}", at + 1));
    flags.extend(["--initial-cluster".to_owned(), initial.collect::<Vec<_>>().join(",")]);
    flags.push("--bcrypt-cost=4".to_owned()); // a machine may be busy with other tests
    flags
}

#[test]
fn the_documented_commands_make_a_cluster_with_certificates_and_users() {
    let Some(peers) = peers() else { return };
    if !has_tools() {
        return;
    }
    let (dir, document) = (TempDir::new(), document());
    let [certificates, start] = &blocks(&document, "Certificates in ten commands")[..] else {
        panic!("one block makes certificates, one uses them")
    };
    let made = dir.path().join("made");
    fs::create_dir(&made).unwrap();
    must(&made, &of_all_members(certificates, &free_address().ip().to_string()), &[]);
    let keys = fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().path());
    let keys: Vec<_> = keys.filter(|path| path.extension().is_some_and(|end| end == "key")).collect();
    assert_eq!(keys.len(), 3 + 2 * MEMBERS, "{keys:?}");
    assert!(keys.iter().all(|key| fs::metadata(key).unwrap().permissions().mode() & 0o777 == 0o600));

    let urls: Vec<String> = (0..MEMBERS).map(|_| format!("https://{}", free_address())).collect();
    let spawn = |at: usize| {
        let data = dir.path().join(format!("m{at}"));
        Server::spawn_member(Product::Revd, free_address(), &data, &flags(start, &made, at, &urls))
    };
    let mut servers: Vec<Server> = (0..MEMBERS).map(spawn).collect();
    servers.iter_mut().for_each(Server::wait_until_ready);

    // As where etcdctl is installed.
    let path =
        format!("{}:{}", peers.path("etcdctl").parent().unwrap().display(), std::env::var("PATH").unwrap());
    let (_, ask) = start.split_once("etcdctl ").expect("the document asks the member");
    let endpoints = servers.iter().map(Server::endpoint);
    for endpoint in endpoints.clone() {
        let ask = format!("etcdctl {ask}").replace("https://m1.example.com:2379", &endpoint);
        must(&made, &ask, &[("PATH", path.clone())]);
    }
    // Neither a member's certificate nor none is one of a client's.
    let issued = |name: &str| {
        let file = |end: &str| made.join(format!("{name}.{end}")).to_str().unwrap().to_owned();
        Issued { cert: file("pem"), key: file("key") }
    };
    let authority = made.join("client-ca.pem").to_str().unwrap().to_owned();
    let get =
        |own: Option<&Issued>| etcdctl(&servers[0].endpoint(), &authority, own, "get k --command-timeout 2s");
    assert!(get(Some(&issued("root"))).0);
    let of_member = issued("m1-peer");
    for (refused, why) in
        [(None, "peer sent no certificates"), (Some(&of_member), "invalid peer certificate: UnknownIssuer")]
    {
        let (is_served, told) = get(refused);
        assert!(!is_served, "{refused:?}: {told}");
        // A client may see no more than the end of its connection.
        let is_it =
            |line: &str| line.contains("rejected connection on client endpoint") && line.contains(why);
        let is_told = || servers[0].log().lines().any(is_it);
        wait_until(SOON, is_told, || format!("{refused:?}: {told}{}", servers[0].log()));
    }

    let [users, _tokens] = &blocks(&document, "Users and roles")[..] else {
        panic!("one block makes users, one tokens")
    };
    let variable = |name, value: &str| (name, value.to_owned());
    let own = issued("root");
    let variables = [
        ("PATH", path),
        ("ETCDCTL_ENDPOINTS", endpoints.collect::<Vec<_>>().join(",")),
        variable("ETCDCTL_CACERT", &authority),
        variable("ETCDCTL_CERT", &own.cert),
        variable("ETCDCTL_KEY", &own.key),
    ];
    let told = must(&made, users, &variables);
    assert!(told.contains("User: ann") && told.contains("Roles: apps"), "{told}");
    let denied = shell(&made, "etcdctl --user ann:another get /other/a", &variables);
    let told = String::from_utf8([denied.stdout, denied.stderr].concat()).unwrap();
    let is_denied = !denied.status.success() && told.contains("permission denied");
    assert!(is_denied, "ann may read what is under /apps/ alone: {told}");
}
