//! Clients of three members that move to another authority: over TLS, with certificates of one
//! authority or of both in turns, and without TLS. Each knows which of its writes were
//! acknowledged, and when its member is disturbed: at no other time a request may fail, and never
//! for a certificate.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use revd_proto::etcdserverpb::PutRequest;
use tokio::task::JoinSet;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::harness::Client;
use crate::tls::certificates::Issued;

pub(super) const MEMBERS: usize = 3;

/// Of each member; the last one speaks without TLS.
const WRITERS: usize = 3;

/// Then the next one is made.
const PUTS_OF_A_CONNECTION: usize = 30;

/// Whose certificates clients have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Having {
    Old,
    /// In turns.
    Both,
    New,
}

/// All clients, and what the test tells them.
pub(super) struct Load {
    addresses: Vec<SocketAddr>,
    /// Both authorities, all the time: clients are no part of what moves.
    trusted: Certificate,
    /// Of the old authority and of the new one.
    identities: [Identity; 2],
    /// That, and how often it was said.
    having: Mutex<(Having, u64)>,
    /// Connections of each member that clients have made with each certificate since that was said.
    made: [[AtomicU64; 2]; MEMBERS],
    /// Clients over TLS that may be about to make one with a certificate of another time.
    behind: AtomicUsize,
    /// Counted up when a member begins to be disturbed, and when that is over: odd between.
    disturbances: [AtomicU64; MEMBERS],
    is_over: AtomicBool,
    acknowledged: Mutex<Vec<String>>,
}

impl Load {
    pub(super) fn new(addresses: Vec<SocketAddr>, trusted: &[u8], clients: [&Issued; 2]) -> Arc<Self> {
        let identity = |issued: &Issued| {
            let read = |file: &str| std::fs::read(file).unwrap();
            Identity::from_pem(read(&issued.cert), read(&issued.key))
        };
        Arc::new(Self {
            addresses,
            trusted: Certificate::from_pem(trusted),
            identities: clients.map(identity),
            having: Mutex::new((Having::Old, 0)),
            made: Default::default(),
            behind: AtomicUsize::new(0),
            disturbances: Default::default(),
            is_over: AtomicBool::new(false),
            acknowledged: Mutex::default(),
        })
    }

    /// Writes until it is over; the keys whose writes were acknowledged.
    pub(super) async fn run(self: &Arc<Self>) -> Vec<String> {
        let mut writers = JoinSet::new();
        for writer in 0..MEMBERS * WRITERS {
            let own = Arc::clone(self);
            writers.spawn(async move { own.write(writer).await });
        }
        while let Some(ended) = writers.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// From now on clients have these certificates.
    pub(super) fn have(&self, having: Having) {
        let mut now = self.having.lock().unwrap();
        *now = (having, now.1 + 1);
        self.made.iter().flatten().for_each(|count| count.store(0, Ordering::SeqCst));
    }

    /// Whether every member was connected with by each certificate that clients have, and none is
    /// about to connect with another.
    pub(super) fn is_had(&self) -> bool {
        let wanted: &[usize] = match self.having.lock().unwrap().0 {
            Having::Old => &[0],
            Having::Both => &[0, 1],
            Having::New => &[1],
        };
        let made = |of: &[AtomicU64; 2]| wanted.iter().all(|at| of[*at].load(Ordering::SeqCst) > 0);
        self.behind.load(Ordering::SeqCst) == 0 && self.made.iter().all(made)
    }

    /// Requests of these members may fail while something is done.
    pub(super) fn disturb<T>(&self, members: &[usize], act: impl FnOnce() -> T) -> T {
        let count = || {
            for at in members {
                self.disturbances[*at].fetch_add(1, Ordering::SeqCst);
            }
        };
        count();
        let done = act();
        count();
        done
    }

    async fn write(&self, writer: usize) {
        let (member, mut number) = (writer % MEMBERS, 0);
        let is_secure = writer / MEMBERS + 1 < WRITERS;
        for turn in writer.. {
            if self.is_over() {
                return;
            }
            let connected =
                if is_secure { self.connect_in_turn(member, turn).await } else { self.plain(member).await };
            let Some(client) = connected else { continue };
            for _ in 0..PUTS_OF_A_CONNECTION {
                number += 1;
                let key = format!("{writer}/{number}");
                let put = PutRequest { key: key.clone().into(), value: "v".into(), ..PutRequest::default() };
                let before = self.disturbances(member);
                match client.kv.clone().put(put).await {
                    Ok(_) => self.acknowledged.lock().unwrap().push(key),
                    Err(status) => {
                        self.judge(member, before, &status).await;
                        break;
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// A new connection with the certificate whose turn it is.
    async fn connect_in_turn(&self, member: usize, turn: usize) -> Option<Client> {
        let (said, at) = {
            let having = self.having.lock().unwrap();
            // Before the lock is free again: whoever changes it sees that this one is on its way.
            self.behind.fetch_add(1, Ordering::SeqCst);
            let at = match having.0 {
                Having::Old => 0,
                Having::Both => turn % 2,
                Having::New => 1,
            };
            (having.1, at)
        };
        let connected = self.connect(member, Some(at)).await;
        if connected.is_some() {
            // Held while it is counted: a change between the look and that would begin with one.
            let having = self.having.lock().unwrap();
            if having.1 == said {
                self.made[member][at].fetch_add(1, Ordering::SeqCst);
            }
        }
        self.behind.fetch_sub(1, Ordering::SeqCst);
        connected
    }

    pub(super) async fn plain(&self, member: usize) -> Option<Client> {
        self.connect(member, None).await
    }

    async fn connect(&self, member: usize, identity: Option<usize>) -> Option<Client> {
        let before = self.disturbances(member);
        match self.endpoint(member, identity).connect().await {
            Ok(channel) => Some(Client::over(channel)),
            Err(error) => {
                self.judge(member, before, &error).await;
                None
            }
        }
    }

    /// Whether a member serves a new connection with this certificate.
    pub(super) async fn is_served(&self, member: usize, identity: usize) -> bool {
        let Ok(channel) = self.endpoint(member, Some(identity)).connect().await else { return false };
        let put = PutRequest { key: "last".into(), ..PutRequest::default() };
        Client::over(channel).kv.put(put).await.is_ok()
    }

    fn endpoint(&self, member: usize, identity: Option<usize>) -> Endpoint {
        let address = self.addresses[member];
        let endpoint = match identity {
            Some(at) => {
                let tls = ClientTlsConfig::new().ca_certificate(self.trusted.clone());
                let tls = tls.identity(self.identities[at].clone()).domain_name("localhost");
                Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap()
            }
            None => Endpoint::from_shared(format!("http://{address}")).unwrap(),
        };
        endpoint.connect_timeout(Duration::from_secs(10)).timeout(Duration::from_secs(20))
    }

    fn disturbances(&self, member: usize) -> u64 {
        self.disturbances[member].load(Ordering::SeqCst)
    }

    /// A failure is one of a member that is disturbed, and of no certificate.
    async fn judge(&self, member: usize, before: u64, error: &impl Debug) {
        let text = format!("{error:?}");
        let lower = text.to_lowercase();
        let is_of_certificates = ["certificate", "alert", "issuer"].iter().any(|word| lower.contains(word));
        assert!(!is_of_certificates, "member {member} refuses a certificate, or has a bad one: {text}");
        let is_disturbed = before % 2 == 1 || self.disturbances(member) != before;
        assert!(is_disturbed, "member {member} refuses what it should do: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
