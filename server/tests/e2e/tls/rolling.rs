//! Three members move from one authority to another while they serve: bundles with both, new
//! certificates, bundles with the new one alone, member by member.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use revd_proto::etcdserverpb::{PutRequest, StatusRequest};

use crate::harness::{Product, Server, TempDir, connect, free_address, run, wait_until};
use crate::tls::certificates::{Authority, Issued, Wanted};
use crate::tls::members::flags;

const SOON: Duration = Duration::from_secs(60);

struct Rolling {
    servers: Vec<Server>,
    owns: Vec<Issued>,
    bundles: Vec<String>,
    leader: usize,
}

fn start(dir: &Path, authority: &Authority) -> Rolling {
    let urls: Vec<String> = (0..3).map(|_| format!("https://{}", free_address())).collect();
    let (mut owns, mut bundles, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..3 {
        let file = format!("m{at}");
        owns.push(authority.issue(Wanted { file: &file, serial: 10 + at as u64, ..Wanted::default() }));
        let bundle = dir.join(format!("{file}-bundle.pem")).to_str().unwrap().to_owned();
        fs::copy(&authority.file, &bundle).unwrap();
        // A machine that is busy with other tests must not make an election of it.
        let patient = ["--heartbeat-interval", "500", "--election-timeout", "10000"];
        let flags = flags(at, &urls, &bundle, &owns[at], &patient);
        bundles.push(bundle);
        servers.push(Server::spawn_member(Product::Revd, free_address(), &dir.join(&file), &flags));
    }
    servers.iter_mut().for_each(Server::wait_until_ready);
    // So patient members may be ready long before they elect one of them.
    let leads = |server: &Server| {
        run(async {
            let status = connect(&server.endpoint()).await.maintenance.clone().status(StatusRequest {}).await;
            let status = status.unwrap().into_inner();
            status.leader != 0 && status.leader == status.header.unwrap().member_id
        })
    };
    let mut leader = None;
    let elected = || {
        leader = servers.iter().position(leads);
        leader.is_some()
    };
    wait_until(SOON, elected, || "no member leads".to_owned());
    let leader = leader.unwrap();
    Rolling { servers, owns, bundles, leader }
}

impl Rolling {
    /// Each member is given files, and loads them; then those that do not lead start again, so that
    /// every connection between two members is a new one.
    fn step(&mut self, give: impl Fn(&Self, usize)) {
        for at in 0..3 {
            let loaded = |server: &Server| server.log().matches("certificates were loaded anew").count();
            let before = loaded(&self.servers[at]);
            give(self, at);
            let server = &self.servers[at];
            wait_until(SOON, || loaded(server) > before, || format!("not loaded: {}", server.log()));
        }
        for at in (0..3).filter(|at| *at != self.leader) {
            assert!(self.servers[at].stop().code().is_none_or(|code| code == 0));
            self.servers[at].start_again();
        }
    }
}

#[test]
fn members_move_to_another_authority_under_load_and_no_request_is_lost() {
    let dir = TempDir::new();
    let old = Authority::new(&dir.path().join("old"), "old");
    let new = Authority::new(&dir.path().join("new"), "new");
    let mut rolling = start(dir.path(), &old);
    let endpoint = rolling.servers[rolling.leader].endpoint();
    let is_over = AtomicBool::new(false);
    let pems = [fs::read(&old.file).unwrap(), fs::read(&new.file).unwrap()];
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            run(async {
                let client = connect(&endpoint).await;
                let mut puts = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
                    client.kv.clone().put(put).await.expect("no request is lost");
                    puts += 1;
                }
                puts
            })
        });
        rolling.step(|own, at| fs::write(&own.bundles[at], pems.concat()).unwrap());
        rolling.step(|own, at| {
            let file = format!("new-m{at}");
            let issued = new.issue(Wanted { file: &file, serial: 20 + at as u64, ..Wanted::default() });
            fs::copy(&issued.cert, &own.owns[at].cert).unwrap();
            fs::copy(&issued.key, &own.owns[at].key).unwrap();
        });
        rolling.step(|own, at| fs::write(&own.bundles[at], &pems[1]).unwrap());
        is_over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 100, "there was load");
    });
    // All three have all of it.
    run(async {
        let mut revisions = Vec::new();
        for server in &rolling.servers {
            let client = connect(&server.endpoint()).await;
            let get = revd_proto::etcdserverpb::RangeRequest { key: "k".into(), ..Default::default() };
            revisions.push(client.kv.clone().range(get).await.unwrap().into_inner().header.unwrap().revision);
        }
        assert!(revisions.iter().all(|revision| *revision == revisions[0]), "{revisions:?}");
    });
}
