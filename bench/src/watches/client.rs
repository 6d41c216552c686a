//! A client that opens many watchers and counts what they are told, without decoding more than it must.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use revd_bench::servers::Server;
use revd_clients::KvClient;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// What all watchers of a run share.
pub struct Tally {
    start: Instant,
    /// When each put was sent, in nanoseconds since the start; by its number, from 1.
    sent: Vec<AtomicU64>,
    pub created: AtomicU64,
    pub events: AtomicU64,
}

/// One watch call with many watchers of the same key, on some connection.
pub struct Stream {
    _requests: mpsc::UnboundedSender<Bytes>,
    reading: tokio::task::JoinHandle<()>,
    delays: Delays,
}

/// How late each event of a call came.
type Delays = Arc<Mutex<Vec<Duration>>>;

impl Tally {
    pub fn new(puts: usize) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            sent: (0..=puts).map(|_| AtomicU64::new(0)).collect(),
            created: AtomicU64::new(0),
            events: AtomicU64::new(0),
        })
    }

    /// Put number `number`, from 1, is sent now.
    pub fn sending(&self, number: usize) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.sent[number].store(now, Ordering::Relaxed);
    }

    fn delay(&self, number: usize) -> Option<Duration> {
        let sent = self.sent.get(number)?.load(Ordering::Relaxed);
        Some(self.start.elapsed().saturating_sub(Duration::from_nanos(sent)))
    }

    /// Waits a little for events; whether some of so many are still to come.
    pub async fn wait_a_little(&self, events: u64) -> anyhow::Result<bool> {
        let before = self.events.load(Ordering::Relaxed);
        let start = Instant::now();
        while self.events.load(Ordering::Relaxed) == before && before < events {
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(60),
                "only {before} of {events} events came"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(before < events)
    }

    /// Waits until so many are counted.
    pub async fn wait(&self, counter: &AtomicU64, count: u64) -> anyhow::Result<()> {
        let start = Instant::now();
        while counter.load(Ordering::Relaxed) < count {
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(120),
                "only {} of {count} came",
                counter.load(Ordering::Relaxed)
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

pub async fn channel(server: &Server) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(server.endpoint())?;
    Ok(endpoint.initial_stream_window_size(1 << 22).initial_connection_window_size(1 << 24).connect().await?)
}

pub async fn kv(server: &Server) -> anyhow::Result<KvClient<Channel>> {
    Ok(KvClient::new(channel(server).await?))
}

/// Opens a call with `watchers` watchers as `request` asks.
pub fn open(channel: &Channel, watchers: usize, request: &WatchCreateRequest, tally: &Arc<Tally>) -> Stream {
    let (requests, receiver) = mpsc::unbounded_channel();
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request.clone())) };
    let create = Bytes::from(create.encode_to_vec());
    for _ in 0..watchers {
        let _ = requests.send(create.clone());
    }
    let delays = Delays::default();
    let told = vec![0; watchers];
    let reading = read(channel.clone(), receiver, told, Arc::clone(tally), Arc::clone(&delays));
    Stream { _requests: requests, reading: tokio::spawn(reading), delays }
}

/// Reads until the task is aborted. `told` counts the events of each watcher.
async fn read(
    channel: Channel,
    requests: mpsc::UnboundedReceiver<Bytes>,
    mut told: Vec<usize>,
    tally: Arc<Tally>,
    delays: Delays,
) {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
    if grpc.ready().await.is_err() {
        return;
    }
    let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let requests = tonic::Request::new(UnboundedReceiverStream::new(requests));
    let Ok(response) = grpc.streaming(requests, path, RawCodec).await else { return };
    let mut responses = response.into_inner();
    while let Ok(Some(response)) = responses.message().await {
        let Some((watch_id, events)) = outline(&response) else { return };
        if events == 0 {
            tally.created.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if let Some(told) = told.get_mut(watch_id) {
            let mut delays = delays.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..events {
                *told += 1;
                delays.extend(tally.delay(*told));
            }
        }
        tally.events.fetch_add(events, Ordering::Relaxed);
    }
}

impl Stream {
    /// Ends it; how late its events came.
    pub async fn end(self) -> Vec<Duration> {
        self.reading.abort();
        let _ = self.reading.await;
        std::mem::take(&mut self.delays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Watch id and number of events of an encoded `WatchResponse`; none if it is malformed.
fn outline(mut response: &[u8]) -> Option<(usize, u64)> {
    let (mut watch_id, mut events) = (0, 0);
    while !response.is_empty() {
        let tag = revd_engine::varint::take(&mut response)?;
        let number = revd_engine::varint::take(&mut response)?;
        match tag & 7 {
            0 if tag >> 3 == 2 => watch_id = usize::try_from(number).unwrap_or(usize::MAX),
            0 => {}
            _ => {
                events += u64::from(tag >> 3 == 11);
                response = response.get(usize::try_from(number).ok()?..)?;
            }
        }
    }
    Some((watch_id, events))
}
