//! Three members move from one authority to another while they serve: bundles with both, new
//! certificates member by member, bundles with the new one alone. Members and clients have the same
//! authorities; another member leads in between.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use revd_proto::etcdserverpb::{MoveLeaderRequest, RangeRequest, StatusRequest, StatusResponse};

use crate::harness::{MIXED, Product, Server, TempDir, connect, free_address, run, wait_until};
use crate::tls::certificates::{Authority, Issued, Wanted};
use crate::tls::members::flags;
use crate::tls::rolling_load::{Having, Load, MEMBERS};

const SOON: Duration = Duration::from_secs(60);

struct Rolling {
    servers: Vec<Server>,
    owns: Vec<Issued>,
    bundles: Vec<String>,
    /// The authorities' certificates: the old one, the new one.
    pems: [Vec<u8>; 2],
}

fn start(dir: &Path, authorities: [&Authority; 2]) -> Rolling {
    let urls: Vec<String> = (0..MEMBERS).map(|_| format!("https://{}", free_address())).collect();
    let (mut owns, mut bundles, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..MEMBERS {
        let file = format!("m{at}");
        let wanted = Wanted { file: &file, serial: 10 + at as u64, ..Wanted::default() };
        let own = authorities[0].issue(wanted);
        let bundle = dir.join(format!("{file}-bundle.pem")).to_str().unwrap().to_owned();
        fs::copy(&authorities[0].file, &bundle).unwrap();
        // A machine that is busy with other tests must not make an election of it.
        let patient = ["--heartbeat-interval", "500", "--election-timeout", "10000"];
        let client = ["--client-cert-auth", "--trusted-ca-file", &bundle, MIXED];
        let files = ["--cert-file", &own.cert, "--key-file", &own.key];
        let flags = flags(at, &urls, &bundle, &own, &[&patient[..], &client, &files].concat());
        servers.push(Server::spawn_member(Product::Revd, free_address(), &dir.join(&file), &flags));
        owns.push(own);
        bundles.push(bundle);
    }
    servers.iter_mut().for_each(Server::wait_until_ready);
    Rolling { servers, owns, bundles, pems: authorities.map(|authority| fs::read(&authority.file).unwrap()) }
}

impl Rolling {
    /// Members are given files, and load them: for their clients and for other members.
    fn give(&self, members: &[usize], give: impl Fn(usize)) {
        let loaded = |at: usize| self.servers[at].log().matches("certificates were loaded anew").count();
        let before: Vec<_> = members.iter().map(|at| (*at, loaded(*at))).collect();
        members.iter().for_each(|at| give(*at));
        for (at, before) in before {
            wait_until(
                SOON,
                || loaded(at) >= before + 2,
                || format!("not loaded: {}", self.servers[at].log()),
            );
        }
    }

    /// The same of a bundle for all members. It is never seen in part: one with half of the
    /// authorities in it is a whole one, too.
    fn give_bundles(&self, bundle: &[u8]) {
        self.give(&[0, 1, 2], |at| {
            let beside = format!("{}.new", self.bundles[at]);
            fs::write(&beside, bundle).unwrap();
            fs::rename(&beside, &self.bundles[at]).unwrap();
        });
    }

    /// Starts members again, one after the other, so that all their connections are new ones.
    fn restart(&mut self, members: &[usize], load: &Load) {
        for at in members {
            self.check_log(*at);
            load.disturb(&[*at], || {
                assert!(self.servers[*at].stop().code().is_none_or(|code| code == 0));
                self.servers[*at].start_again();
            });
        }
    }

    /// No caller of a member was refused, nor did another member refuse this one.
    fn check_log(&self, at: usize) {
        let log = self.servers[at].log();
        let lower = |line: &str| line.to_lowercase();
        let is_refusal = |line: &&str| {
            line.contains("rejected connection on client endpoint")
                || line.contains("refused a connection to the peer port")
                || line.contains("cannot reach a peer")
                    && ["certificate", "alert", "issuer"].iter().any(|word| lower(line).contains(word))
        };
        let refusals: Vec<&str> = log.lines().filter(is_refusal).collect();
        assert!(refusals.is_empty(), "member {at}: {refusals:#?}");
    }

    fn status(&self, at: usize) -> StatusResponse {
        run(async {
            let client = connect(&format!("http://{}", self.servers[at].address)).await;
            client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner()
        })
    }

    /// So patient members may be ready long before they elect one of them.
    fn leader(&self) -> usize {
        let leads = |at: &usize| {
            let status = self.status(*at);
            status.leader != 0 && status.leader == status.header.unwrap().member_id
        };
        let mut leader = None;
        let elected = || {
            leader = (0..MEMBERS).find(leads);
            leader.is_some()
        };
        wait_until(SOON, elected, || "no member leads".to_owned());
        leader.unwrap()
    }

    /// Has another member lead, with everybody's knowledge.
    fn move_leader(&self, from: usize, to: usize) {
        let target_id = self.status(to).header.unwrap().member_id;
        run(async {
            let client = connect(&format!("http://{}", self.servers[from].address)).await;
            client.maintenance.clone().move_leader(MoveLeaderRequest { target_id }).await.unwrap();
        });
        let is_known = || (0..MEMBERS).all(|at| self.status(at).leader == target_id);
        wait_until(SOON, is_known, || "the leader does not move".to_owned());
    }

    /// Every member has every write that was acknowledged.
    fn check_writes(&self, acknowledged: &[String]) {
        for server in &self.servers {
            let all = RangeRequest {
                key: "\0".into(),
                range_end: "\0".into(),
                keys_only: true,
                ..RangeRequest::default()
            };
            let reply = run(async {
                connect(&format!("http://{}", server.address)).await.kv.range(all).await.unwrap().into_inner()
            });
            let keys: BTreeSet<_> = reply.kvs.iter().map(|kv| &kv.key[..]).collect();
            let lost: Vec<_> = acknowledged.iter().filter(|key| !keys.contains(key.as_bytes())).collect();
            assert!(lost.is_empty(), "{} has lost {lost:?}", server.address);
        }
    }
}

/// All steps, the old leader last where one member comes after another.
fn roll(rolling: &mut Rolling, new: &Authority, load: &Load) {
    let leader = rolling.leader();
    let others: Vec<usize> = (0..MEMBERS).filter(|at| *at != leader).collect();
    let have = |having: Having| {
        load.have(having);
        wait_until(SOON, || load.is_had(), || format!("members are not connected with: {having:?}"));
    };
    have(Having::Old);
    rolling.give_bundles(&rolling.pems.concat());
    have(Having::Both);
    let renew = |rolling: &Rolling, at: usize| {
        rolling.give(&[at], |at| {
            let file = format!("new-m{at}");
            let issued = new.issue(Wanted { file: &file, serial: 20 + at as u64, ..Wanted::default() });
            fs::copy(&issued.cert, &rolling.owns[at].cert).unwrap();
            fs::copy(&issued.key, &rolling.owns[at].key).unwrap();
        });
    };
    for at in &others {
        renew(rolling, *at);
        rolling.restart(&[*at], load);
    }
    load.disturb(&[0, 1, 2], || rolling.move_leader(leader, others[0]));
    have(Having::Both);
    renew(rolling, leader);
    rolling.restart(&[leader], load);
    have(Having::New);
    rolling.give_bundles(&rolling.pems[1]);
    rolling.restart(&[leader, others[1]], load);
    have(Having::New);
}

#[test]
fn members_move_to_another_authority_under_load_and_no_acknowledged_write_is_lost() {
    let dir = TempDir::new();
    let old = Authority::new(&dir.path().join("old"), "old");
    let new = Authority::new(&dir.path().join("new"), "new");
    let mut rolling = start(dir.path(), [&old, &new]);
    let client = |authority: &Authority| authority.issue(Wanted { file: "client", ..Wanted::default() });
    let addresses = rolling.servers.iter().map(|server| server.address).collect();
    let load = Load::new(addresses, &rolling.pems.concat(), [&client(&old), &client(&new)]);
    rolling.leader();
    let acknowledged = std::thread::scope(|scope| {
        let beside = Arc::clone(&load);
        let writing = scope.spawn(move || run(beside.run()));
        let ended = EndOnDrop(&load);
        roll(&mut rolling, &new, &load);
        drop(ended);
        writing.join().unwrap()
    });
    assert!(acknowledged.len() > 500, "there was load: {}", acknowledged.len());
    (0..MEMBERS).for_each(|at| rolling.check_log(at));
    rolling.check_writes(&acknowledged);
    let served = run(async {
        let mut served = Vec::new();
        for member in 0..MEMBERS {
            served.push([load.is_served(member, 0).await, load.is_served(member, 1).await]);
        }
        served
    });
    assert_eq!(served, [[false, true]; MEMBERS], "certificates of the old authority are none any more");
}

/// The clients end also if a step fails; else the test would wait for them.
struct EndOnDrop<'l>(&'l Load);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
