//! HashKV beside etcd: before a compaction, after it, at older ones, with nothing left, after a
//! defragmentation and a restart.

use revd_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, HashKvRequest, HashKvResponse, HashRequest,
    PutRequest,
};

use crate::harness::{Client, with_etcd_beside};

async fn hash(client: &Client, revision: i64) -> Result<HashKvResponse, String> {
    let reply = client.maintenance.clone().hash_kv(HashKvRequest { revision }).await;
    let mut response =
        reply.map_err(|status| format!("{:?} {}", status.code(), status.message()))?.into_inner();
    let header = response.header.as_mut().unwrap();
    (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
    Ok(response)
}

async fn assert_equal(clients: &[Client; 2], newest: i64, when: &str) {
    for revision in 0..=newest + 1 {
        let (ours, theirs) = (hash(&clients[0], revision).await, hash(&clients[1], revision).await);
        assert_eq!(ours, theirs, "HashKV of {revision} {when}");
    }
}

async fn put(clients: &[Client; 2], value: usize) {
    for client in clients {
        let value = value.to_string().into();
        client.kv.clone().put(PutRequest { key: "k".into(), value, ..PutRequest::default() }).await.unwrap();
    }
}

async fn delete(clients: &[Client; 2]) -> i64 {
    let mut revision = 0;
    for client in clients {
        let request = DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() };
        let response = client.kv.clone().delete_range(request).await.unwrap().into_inner();
        revision = response.header.unwrap().revision;
    }
    revision
}

async fn compact(clients: &[Client; 2], revision: i64) {
    for client in clients {
        client.kv.clone().compact(CompactionRequest { revision, physical: true }).await.unwrap();
    }
}

#[test]
fn hashes_of_compactions_are_kept_as_in_etcd() {
    with_etcd_beside(&[], async |revd, etcd| {
        let clients = [revd.client().await, etcd.client().await];
        for number in 0..3 {
            put(&clients, number).await;
        }
        let newest = delete(&clients).await;
        let before = hash(&clients[0], newest).await.unwrap();
        // At a tombstone, and nothing is left.
        compact(&clients, newest).await;
        assert_eq!(hash(&clients[0], newest).await.unwrap(), before);
        assert_equal(&clients, newest, "after a compaction at a tombstone").await;
        for client in &clients {
            client.maintenance.clone().defragment(DefragmentRequest {}).await.unwrap();
        }
        assert_equal(&clients, newest, "after a defragmentation").await;
        put(&clients, 9).await;
        put(&clients, 10).await;
        compact(&clients, newest + 1).await;
        let newest = delete(&clients).await;
        assert_equal(&clients, newest, "with nothing left, before").await;
        compact(&clients, newest).await;
        assert_equal(&clients, newest, "with nothing left, after").await;
        for number in 0..12 {
            put(&clients, number).await;
            compact(&clients, newest + 1 + i64::try_from(number).unwrap()).await;
        }
        assert_equal(&clients, newest + 12, "with ten of many kept").await;
        let kept = hash(&clients[0], newest + 12).await.unwrap();
        assert_eq!(kept.compact_revision, newest + 11);
        revd.stop();
        revd.start_again();
        let client = revd.client().await;
        let anew = hash(&client, newest + 12).await.unwrap();
        assert_eq!(anew.compact_revision, newest + 12, "the start forgets them, as in etcd");
    });
}

/// Revision 0 stands for the newest one until somebody compacts at it: then it is answered
/// with the hash of that compaction.
#[test]
fn a_compaction_of_revision_0_hides_the_newest_hash_as_in_etcd() {
    with_etcd_beside(&[], async |revd, etcd| {
        let clients = [revd.client().await, etcd.client().await];
        put(&clients, 1).await;
        assert_equal(&clients, 2, "before a compaction of revision 0").await;
        compact(&clients, 0).await;
        for newest in 2..4 {
            assert_equal(&clients, newest, "after a compaction of revision 0").await;
            put(&clients, 9).await;
        }
        // Hash is not told by a revision.
        let mut maintenance = clients[0].maintenance.clone();
        let before = maintenance.hash(HashRequest {}).await.unwrap().into_inner().hash;
        put(&clients, 10).await;
        assert_ne!(maintenance.hash(HashRequest {}).await.unwrap().into_inner().hash, before);
    });
}
