//! Shares of users: how much one may ask for each second.

use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::RangeRequest;
use tonic::Code;

use super::bugs::{must, set_up};
use super::call;
use crate::harness::with_server;

/// Ann has ten calls a second, root has no limit.
#[test]
#[expect(clippy::disallowed_methods, reason = "a busy machine takes longer, and lets as much more through")]
fn a_user_beyond_its_limit_is_refused_and_others_are_not() {
    let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--limit-user=ann=10/s,0/s", "--limit-user=bob=1,1"];
    with_server(&flags, async |_, client| {
        let (root, ann) = set_up(client).await;
        let get = Bytes::from(RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec());
        let began = Instant::now();
        let mut refused = 0_u32;
        for _ in 0..100 {
            must(
                client,
                "/etcdserverpb.KV/Range",
                &RangeRequest { key: "a".into(), ..Default::default() },
                Some(&root),
            )
            .await;
            if let Err(status) = call(client, "/etcdserverpb.KV/Range", get.clone(), Some(&ann)).await {
                let text = "etcdserver: too many requests";
                // etcd has this one without its code.
                assert_eq!((status.code(), status.message()), (Code::Unknown, text));
                refused += 1;
            }
        }
        // A second's worth at once, and then as much each second.
        let most = 11 + 10 * u32::try_from(began.elapsed().as_secs() + 1).unwrap();
        assert!(100 - refused <= most, "{refused} were refused, in {:?}", began.elapsed());
        assert!(refused < 95, "{refused}");
    });
}
