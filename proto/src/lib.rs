//! The etcd v3 wire contract: messages, one module per protobuf package.
//!
//! The .proto files in `proto/proto` are our own words for etcd's services, messages, field numbers
//! and types (etcd 3.7). Every `bytes` field is a [`bytes::Bytes`]: decoding a request from `Bytes`
//! borrows keys and values from the received buffer instead of copying them.
//!
//! Messages derive prost's `Message`; [`tags`] has the tags of their fields for code that writes
//! replies without building messages. Typed clients are a crate of their own (`revd-clients`),
//! HTTP/2 another (`revd-http2`).

mod secrets;

mod generated;

pub use generated::{authpb, etcdserverpb, grpc, mvccpb, tags, v3electionpb, v3lockpb};

/// All files above as an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Tag of the `ResponseHeader` in every response.
pub const RESPONSE_HEADER_TAG: u8 = tags::put_response::HEADER;

#[cfg(test)]
mod tests {
    use super::{etcdserverpb, mvccpb, tags};

    /// The tag that prost writes for the only field that is set.
    fn tag_written(message: &impl prost::Message) -> u8 {
        message.encode_to_vec()[0]
    }

    #[test]
    fn tags_are_those_that_prost_writes() {
        let canceled = etcdserverpb::WatchResponse { canceled: true, ..Default::default() };
        assert_eq!(tag_written(&canceled), tags::watch_response::CANCELED);
        let events = vec![mvccpb::Event::default()];
        let events = etcdserverpb::WatchResponse { events, ..Default::default() };
        assert_eq!(tag_written(&events), tags::watch_response::EVENTS);
        let lease = mvccpb::KeyValue { lease: 7, ..Default::default() };
        assert_eq!(tag_written(&lease), tags::key_value::LEASE);
        let key = mvccpb::KeyValue { key: "k".into(), ..Default::default() };
        assert_eq!(tag_written(&key), tags::key_value::KEY);
        let members = etcdserverpb::Member { peer_ur_ls: vec!["u".into()], ..Default::default() };
        assert_eq!(tag_written(&members), tags::member::PEERURLS);
    }

    /// The tags that were written by hand before they were generated.
    #[test]
    fn tags_of_replies_are_etcds() {
        assert_eq!(tags::response_header::RAFT_TERM, 0x20);
        assert_eq!(tags::range_response::COUNT, 0x20);
        assert_eq!(tags::txn_response::RESPONSES, 0x1a);
        assert_eq!(tags::response_op::RESPONSE_TXN, 0x22);
        assert_eq!(tags::lease_time_to_live_response::KEYS, 0x2a);
        assert_eq!(tags::watch_response::CANCEL_REASON, 0x32);
        assert_eq!(tags::watch_response::EVENTS, 0x5a);
        assert_eq!(tags::event::PREV_KV, 0x1a);
    }
}
