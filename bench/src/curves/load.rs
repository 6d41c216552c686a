//! Callers in the background, and what their calls took.

use std::time::{Duration, Instant};

use revd_bench::servers::Server;
use revd_bench::{calls, key, value};
use revd_clients::KvClient;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Each has one call under way.
const CALLERS: u64 = 20;

/// What is called.
#[derive(Clone, Copy)]
pub enum Work {
    Put,
    Get,
}

/// Callers at work.
pub struct Load {
    stop: watch::Sender<bool>,
    callers: Vec<JoinHandle<Latencies>>,
}

/// What the calls took.
#[derive(Default)]
pub struct Latencies {
    /// Of all calls, also those that failed; ascending.
    all: Vec<Duration>,
    pub failed: usize,
}

impl Latencies {
    /// So many of a thousand calls took no longer.
    pub fn permille(&self, permille: usize) -> Duration {
        let at = (self.all.len() * permille).div_ceil(1000);
        self.all.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl Load {
    /// Starts calls to random ones of the keys.
    pub async fn start(server: &Server, work: Work, keys: u64) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let channel = calls::channel(server).await?;
        let caller = |caller| {
            let client = KvClient::new(channel.clone());
            tokio::spawn(call(client, work, caller, keys, stopped.clone()))
        };
        Ok(Self { stop, callers: (0..CALLERS).map(caller).collect() })
    }

    /// Ends them after this time.
    pub async fn stop_after(self, time: Duration) -> anyhow::Result<Latencies> {
        tokio::time::sleep(time).await;
        self.stop().await
    }

    /// Ends them.
    pub async fn stop(self) -> anyhow::Result<Latencies> {
        self.stop.send_replace(true);
        let mut sum = Latencies::default();
        for caller in self.callers {
            let mut latencies = caller.await?;
            sum.all.append(&mut latencies.all);
            sum.failed += latencies.failed;
        }
        sum.all.sort_unstable();
        Ok(sum)
    }
}

async fn call(
    mut client: KvClient<tonic::transport::Channel>,
    work: Work,
    caller: u64,
    keys: u64,
    stopped: watch::Receiver<bool>,
) -> Latencies {
    let mut latencies = Latencies::default();
    let mut number = caller;
    while !*stopped.borrow() {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = key((number >> 33) % keys);
        let start = Instant::now();
        let failed = match work {
            Work::Put => client
                .put(PutRequest { key, value: value(256, number), ..PutRequest::default() })
                .await
                .is_err(),
            Work::Get => client.range(RangeRequest { key, ..RangeRequest::default() }).await.is_err(),
        };
        latencies.all.push(start.elapsed());
        latencies.failed += usize::from(failed);
    }
    latencies
}
