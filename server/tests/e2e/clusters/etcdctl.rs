//! A real etcdctl on three members: what it prints is what it prints for three members of etcd.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Cluster, PATIENT, free_address, peers, with_clusters_beside, within};

/// A cluster as etcdctl sees it.
struct Ctl<'c> {
    cluster: &'c mut Cluster,
    /// Words of this cluster and what stands for them in every cluster: ids, addresses.
    names: Vec<(String, String)>,
}

impl<'c> Ctl<'c> {
    fn of(cluster: &'c mut Cluster) -> Self {
        let mut ctl = Self { cluster, names: Vec::new() };
        let all: Vec<usize> = (0..3).collect();
        for line in ctl.run(&all, "member list").lines() {
            // 1609b5a3a078c227, started, m0, http://127.0.0.1:2380, http://127.0.0.1:2379, false
            if let [id, _, name, peer, client, _] = line.split(", ").collect::<Vec<_>>()[..] {
                ctl.name(id, &format!("ID-{name}"));
                let decimal = u64::from_str_radix(id, 16).unwrap().to_string();
                ctl.name(&decimal, &format!("ID-{name}"));
                ctl.name(peer, &format!("PEER-{name}"));
                ctl.name(client, &format!("CLIENT-{name}"));
                ctl.name(client.trim_start_matches("http://"), &format!("CLIENT-{name}"));
            }
        }
        assert_eq!(ctl.names.len(), 15, "three members");
        ctl
    }

    fn name(&mut self, word: &str, name: &str) {
        self.names.push((word.to_owned(), name.to_owned()));
    }

    /// The id of a member, in hexadecimal digits.
    fn id(&self, member: usize) -> &str {
        let name = format!("ID-m{member}");
        &self.names.iter().find(|(_, known)| *known == name).unwrap().0
    }

    /// Output of both kinds and the exit status.
    fn run(&self, members: &[usize], line: &str) -> String {
        let endpoints: Vec<_> = members.iter().map(|at| self.cluster.members[*at].endpoint()).collect();
        let mut command = Command::new(peers().expect("tests of etcd have it").path("etcdctl"));
        command.args(["--endpoints", &endpoints.join(",")]).args(line.split_whitespace());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        format!("{text}[{}]", output.status.code().unwrap())
    }

    /// The output with names for ids and addresses, in an order that ids do not change, and without
    /// the client's own log.
    fn comparable(&self, text: &str) -> String {
        let named = self.names.iter().fold(text.to_owned(), |text, (word, name)| text.replace(word, name));
        let named = named.replace(",{", "\n{").replace("[{", "[\n{").replace("}]", "}\n]");
        let lines = named.lines().filter(|line| !line.starts_with(r#"{"level":"#));
        let mut lines: Vec<String> = lines.map(without_figures).collect();
        lines.sort();
        lines.join("\n")
    }
}

/// Digits that an id has at least, but for one in a million: hexadecimal ones up to 16, or decimal
/// ones up to 20. A hash has at most ten, and counts.
const ID_DIGITS_MIN: usize = 12;

/// A line without durations, sizes, terms and indexes; ids that have no name, as the cluster's, are
/// alike.
fn without_figures(line: &str) -> String {
    let mut out = String::new();
    let line = ["\"raft_term\":", "\"RaftTerm\" : "].iter().fold(line.to_owned(), |line, field| {
        let Some((before, after)) = line.split_once(field) else { return line };
        format!("{before}{field}{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()))
    });
    // The unit of microseconds has a letter that is not of ASCII.
    for word in line.split_inclusive(|letter: char| !letter.is_alphanumeric() && letter != '.') {
        let bare = word.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let is_id = bare.len() >= ID_DIGITS_MIN && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
        let name = if is_id {
            "ID"
        } else if out.ends_with("took = ") && is_duration(bare) {
            "TIME"
        } else {
            bare
        };
        out += name;
        out += &word[bare.len()..];
    }
    // Ids are padded to 16 digits.
    while out.contains("  ") {
        out = out.replace("  ", " ");
    }
    out
}

/// As Go prints durations: `950.1us` (with a micro sign), `1.2ms`, `1.05s`, `1m2s`.
fn is_duration(word: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_digit() || ".hmn\u{b5}s".contains(letter);
    word.starts_with(|first: char| first.is_ascii_digit()) && word.ends_with('s') && word.chars().all(is_part)
}

#[test]
fn durations_of_any_unit_are_no_difference() {
    for took in ["812ns", "944.44\u{b5}s", "1.2ms", "10.005ms", "1.05s", "1m2.5s"] {
        assert_eq!(without_figures(&format!("proposal: took = {took}")), "proposal: took = TIME", "{took}");
    }
    assert_eq!(without_figures("granted with TTL(100000s)"), "granted with TTL(100000s)");
    for word in ["s", "ms", "m0", "m0s", "3rds", "puts", "7", "1.5"] {
        assert!(!is_duration(word), "{word}");
    }
}

#[test]
fn ids_are_no_difference_and_hashes_are_one() {
    for id in ["6c21ba63f3ba3b1f", "c21ba63f3ba3b1f", "ba63f3ba3b1f", "7791731853205437215"] {
        assert_eq!(without_figures(&format!("added to cluster {id}")), "added to cluster ID");
        assert_eq!(without_figures(&format!("{{\"cluster_id\":{id}}}")), "{\"cluster_id\":ID}");
    }
    for line in ["CLIENT-m0, 4294967295", "\"hash\":1084519789,\"compact_revision\":-1", "CLIENT-m0, 7"] {
        assert_eq!(without_figures(line), line);
    }
}

fn assert_same(ours: (&Ctl<'_>, &str), theirs: (&Ctl<'_>, &str), what: &str) {
    assert_eq!(ours.0.comparable(ours.1), theirs.0.comparable(theirs.1), "etcdctl {what}");
}

/// One command per line, sent to the members before the colon.
const SCRIPT: &str = "
0: put a 1
1: put b 2 --prev-kv
2: get a
2: get a -w json
0,1,2: get b --consistency s
1: member list
1: member list -w json
1: member list -w fields
1: member list --consistency s
0,1,2: endpoint health
1: endpoint health --cluster
0,1,2: endpoint hashkv
2: endpoint hashkv --cluster
0: compaction 2
1: get a --rev 1
1: lease grant 100000
0,1,2: version
0,1,2: alarm list
";

#[test]
fn it_prints_the_same_for_three_members_of_both() {
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let (ours, theirs) = (Ctl::of(ours), Ctl::of(theirs));
        for line in SCRIPT.lines().filter(|line| !line.is_empty()) {
            let (members, command) = line.split_once(": ").unwrap();
            let members: Vec<usize> = members.split(',').map(|member| member.parse().unwrap()).collect();
            let said = [&ours, &theirs].map(|ctl| ctl.run(&members, command));
            assert_same((&ours, &said[0]), (&theirs, &said[1]), line);
        }
    });
}

/// A line with numbers, sizes and percentages masked, however wide their columns are.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut digits = false;
    for letter in line.chars().filter(|letter| letter.is_ascii_graphic()) {
        let is_digit = letter.is_ascii_digit() || (digits && letter == '.');
        if !is_digit {
            out.push(letter);
        } else if !digits {
            out.push('#');
        }
        digits = is_digit;
    }
    ["#kB", "#MB", "#GB", "#B"].iter().fold(out, |out, size| out.replace(size, "SIZE"))
}

/// Versions are no figures: they are the same, before and while the cluster goes down.
#[test]
fn the_status_of_members_is_printed_in_the_same_form() {
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let mut said = Vec::new();
        for cluster in [ours, theirs] {
            let ctl = Ctl::of(cluster);
            let mut lines = Vec::new();
            for step in ["downgrade validate 3.6", "downgrade enable 3.6", "downgrade cancel"] {
                let version = if step.contains("cancel") { "3.6.0" } else { "3.7.0" };
                within(Duration::from_secs(30), "a version is never there", async || {
                    let status = ctl.run(&[0, 1, 2], "endpoint status -w simple");
                    (status.matches(&format!("3.7.1, {version}")).count() == 3).then_some(())
                })
                .await;
                for form in ["simple", "table", "json", "fields"] {
                    let status = ctl.run(&[1], &format!("endpoint status --cluster -w {form}"));
                    let names = |text: &str| text.replace("3.7.", "x.y.").replace("3.6.", "x.z.");
                    let named = ctl.comparable(&names(&status));
                    // One of three leads, whichever.
                    let mut status: Vec<_> = named.lines().map(without_numbers).collect();
                    status.iter_mut().for_each(|line| {
                        *line = line.replace("ID-m#", "ID").replace("CLIENT-m#", "CLIENT");
                    });
                    status.sort();
                    lines.push(format!("{form}\n{}", status.join("\n")));
                }
                lines.push(ctl.comparable(&ctl.run(&[2], step)));
            }
            said.push(lines);
        }
        for (ours, theirs) in said[0].iter().zip(&said[1]) {
            assert_eq!(ours, theirs);
        }
    });
}

/// The replies of one cluster to commands about its members, with names for all of them.
struct Reconfiguration<'r, 'c> {
    ctl: &'r Ctl<'c>,
    /// Numbers of the leader and of two others.
    roles: [usize; 3],
    transcript: Vec<String>,
}

impl<'r, 'c> Reconfiguration<'r, 'c> {
    async fn of(ctl: &'r Ctl<'c>) -> Self {
        let leader = ctl.cluster.leader().await;
        let roles = [leader, (leader + 1) % 3, (leader + 2) % 3];
        Self { ctl, roles, transcript: Vec::new() }
    }

    /// Runs a command on these members, again while the cluster is not healthy long enough to be
    /// changed: each member has to be connected for five seconds.
    async fn say(&mut self, members: &[usize], line: &str) -> String {
        let said = within(Duration::from_secs(60), "the cluster is never healthy", async || {
            let said = self.ctl.run(members, line);
            (!said.contains("unhealthy cluster")).then_some(said)
        })
        .await;
        let text = self.ctl.comparable(&format!("{line}\n{said}"));
        let named = self.roles.iter().zip(["first", "second", "third"]);
        let text = named.fold(text, |text, (at, name)| {
            let text = text.replace(&format!("-m{at}"), &format!("-{name}"));
            let text = text.replace(&format!("\"m{at}="), &format!("\"{name}="));
            let text = text.replace(&format!(",m{at}="), &format!(",{name}="));
            text.replace(&format!(", m{at},"), &format!(", {name},"))
        });
        let mut lines: Vec<String> = text.lines().map(with_sorted_members).collect();
        lines.sort();
        self.transcript.push(lines.join("\n"));
        said
    }
}

/// The members of the line that etcdctl prints for a new member come in the order of their ids.
fn with_sorted_members(line: &str) -> String {
    let field = "ETCD_INITIAL_CLUSTER=";
    let Some(members) = line.strip_prefix(field) else { return line.to_owned() };
    let mut members: Vec<_> = members.trim_matches('"').split(',').collect();
    members.sort_unstable();
    format!("{field}{}", members.join(","))
}

/// A learner that never starts, a voter that is removed, and the refusals on the way: the number of
/// the removed one, and the transcript.
async fn reconfigure(ctl: &mut Ctl<'_>) -> (usize, Vec<String>) {
    let addresses = [free_address(), free_address(), free_address()].map(|free| format!("http://{free}"));
    for (address, name) in addresses.iter().zip(["NEW", "MOVED", "MORE"]) {
        ctl.name(address, name);
    }
    let [new, moved, more] = &addresses;
    let mut steps = Reconfiguration::of(ctl).await;
    let [leader, other, third] = steps.roles;
    let all = [0, 1, 2];
    steps.say(&[other], &format!("move-leader {}", ctl.id(other))).await;
    steps.say(&all, &format!("move-leader {}", ctl.id(other))).await;
    ctl.cluster.wait_until_all_answer().await;
    assert_eq!(ctl.cluster.leader().await, other);
    steps.say(&all, "move-leader 1").await;
    steps.say(&[third], &format!("member promote {}", ctl.id(third))).await;
    steps.say(&[third], "member promote 123").await;
    steps.say(&[third], "member remove 123").await;
    steps.say(&[third], &format!("member update 123 --peer-urls={new}")).await;
    steps.say(&[third], "member add x --peer-urls=nowhere").await;
    let added = steps.say(&[third], &format!("member add new --learner --peer-urls={new}")).await;
    // Member 1609b5a3a078c227 added to cluster 6c21ba63f3ba3b1f
    let learner = added.split_whitespace().nth(1).unwrap();
    steps.say(&[leader], "member list").await;
    // A member's id is made of its URLs and the second: in the same one it would be known already.
    tokio::time::sleep(Duration::from_secs(1)).await;
    steps.say(&[third], &format!("member add again --peer-urls={new}")).await;
    steps.say(&[third], &format!("member add more --learner --peer-urls={more}")).await;
    steps.say(&[third], &format!("member promote {learner}")).await;
    steps.say(&[leader], &format!("member update {learner} --peer-urls={moved}")).await;
    steps.say(&[leader], "member list").await;
    steps.say(&[third], &format!("move-leader {learner}")).await;
    steps.say(&[third], &format!("member remove {learner}")).await;
    steps.say(&[third], &format!("member remove {learner}")).await;
    steps.say(&[third], &format!("member remove {}", ctl.id(leader))).await;
    steps.say(&[third], "member list").await;
    (leader, steps.transcript)
}

#[test]
fn the_leader_is_moved_and_members_come_and_go() {
    // The leader is moved by etcdctl alone, and not by a busy machine.
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let (mut ours, mut theirs) = (Ctl::of(ours), Ctl::of(theirs));
        let all = [reconfigure(&mut ours).await, reconfigure(&mut theirs).await];
        if std::env::var_os("REVD_SAY").is_some() {
            println!("{}", all[1].1.join("\n\n"));
        }
        for (ours, theirs) in all[0].1.iter().zip(&all[1].1) {
            assert_eq!(ours, theirs);
        }
        for (ctl, (removed, _)) in [ours, theirs].into_iter().zip(all) {
            ctl.cluster.wait_until_ends(removed).await;
        }
    });
}
