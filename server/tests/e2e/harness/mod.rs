//! Servers to test, the peers to compare with, and clients.

mod clients;
mod cluster;
pub mod failure;
mod network;
mod peers;
mod process;

pub use clients::{Client, WatchStream, call, connect, login, request_as};
pub use cluster::{Cluster, PATIENT, Wiring, products_of_clusters, within};
pub use network::{Fault, Party, Way};
pub use peers::{Peers, go_program, peers};
pub use process::{MIXED, Product, Server, SmallDisk, TempDir, free_address, wait_until};
pub use revd_engine::random::Random;

/// Runs a test's future.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Runs a test beside a fresh member and a client of it.
pub fn with_server(flags: &[&str], test: impl AsyncFnOnce(&Server, &Client)) {
    with_restartable_server(flags, async |server, client| test(server, &client).await);
}

/// The same, for a test that ends the member and starts it again.
pub fn with_restartable_server(flags: &[&str], test: impl AsyncFnOnce(&mut Server, Client)) {
    run(async {
        let dir = TempDir::new();
        let mut server = Server::revd(&dir.path().join("revd"), flags);
        let client = server.client().await;
        test(&mut server, client).await;
    });
}

/// Runs a test beside a fresh revd and a fresh etcd, where that can be had.
pub fn with_etcd_beside(flags: &[&str], test: impl AsyncFnOnce(&mut Server, &Server)) {
    let Some(peers) = peers() else { return };
    run(async {
        let dir = TempDir::new();
        let mut revd = Server::revd(&dir.path().join("revd"), flags);
        let etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), flags);
        test(&mut revd, &etcd).await;
    });
}

/// Runs a test beside a fresh cluster of three and a fresh cluster of etcd, where that can be had.
pub fn with_clusters_beside(flags: &[&str], test: impl AsyncFn(&mut Cluster, &mut Cluster)) {
    for product in products_of_clusters().into_iter().filter(|_| peers().is_some()) {
        run(async {
            let dir = TempDir::new();
            let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
            let mut ours = Cluster::start(product, Wiring::Direct, &ours, 3, flags).await;
            let mut theirs = Cluster::start(Product::Etcd, Wiring::Direct, &theirs, 3, flags).await;
            test(&mut ours, &mut theirs).await;
        });
    }
}

/// Runs a scenario on a fresh revd and, where that can be had, on a fresh etcd: results are equal.
pub fn said_of_both<T>(flags: &[&str], scenario: impl AsyncFn(&Server) -> T) -> T
where
    T: PartialEq + std::fmt::Debug,
{
    run(async {
        let dir = TempDir::new();
        let ours = scenario(&Server::revd(&dir.path().join("revd"), flags)).await;
        if let Some(peers) = peers() {
            let etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), flags);
            assert_eq!(ours, scenario(&etcd).await);
        }
        ours
    })
}

/// A number from the environment, to make a test longer.
pub fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}
