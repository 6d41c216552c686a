//! Servers to test, the peers to compare with, and clients.

mod clients;
mod peers;
mod process;

pub use clients::{Client, WatchStream, connect};
pub use peers::{Peers, peers};
pub use process::{Server, SmallDisk, TempDir, free_address, wait_until};
pub use revd_engine::random::Random;

/// Runs a test's future.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Runs a test beside a fresh member and a client of it.
pub async fn with_server(test: impl AsyncFnOnce(&Server, &Client)) {
    let dir = TempDir::new();
    let server = Server::revd(&dir.path().join("data"), &[]);
    let client = connect(&server.endpoint()).await;
    test(&server, &client).await;
}

/// A number from the environment, to make a test longer.
pub fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}
