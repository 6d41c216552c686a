//! Drives a server with the crate etcd-client and checks what comes back.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, WatchOptions,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let endpoints = std::env::args().nth(1).expect("usage: etcd-client-check <endpoint>[,<endpoint>...]");
    let endpoints: Vec<&str> = endpoints.split(',').collect();
    let mut client = Client::connect(&endpoints, None).await?;

    client.put("key/1", "one", None).await?;
    client.put("key/2", "two", None).await?;
    let put = client.put("key/1", "uno", Some(PutOptions::new().with_prev_key())).await?;
    assert_eq!(put.prev_key().expect("a previous value").value(), b"one");
    let at = put.header().expect("a header").revision();

    let got = client.get("key/", Some(GetOptions::new().with_prefix())).await?;
    assert_eq!(got.count(), 2);
    let sorted = GetOptions::new().with_prefix().with_sort(SortTarget::Value, SortOrder::Descend).with_limit(1);
    let got = client.get("key/", Some(sorted)).await?;
    assert_eq!((got.kvs()[0].value(), got.more()), (&b"uno"[..], true));
    let got = client.get("key/1", Some(GetOptions::new().with_revision(at - 1))).await?;
    assert_eq!(got.kvs()[0].value(), b"one");

    let txn = Txn::new()
        .when([Compare::value("key/1", CompareOp::Equal, "uno")])
        .and_then([TxnOp::put("key/3", "three", None), TxnOp::get("key/1", None)])
        .or_else([TxnOp::delete("key/1", None)]);
    let done = client.txn(txn).await?;
    assert!(done.succeeded());
    assert_eq!(done.op_responses().len(), 2);

    client.compact(at, None).await?;
    let gone = client.get("key/1", Some(GetOptions::new().with_revision(at - 1))).await.unwrap_err();
    assert!(gone.to_string().contains("required revision has been compacted"), "{gone}");

    let mut watching = client.watch("key/", Some(WatchOptions::new().with_prefix().with_prev_key())).await?;
    let lease = client.lease_grant(60, None).await?.id();
    client.put("key/4", "four", Some(PutOptions::new().with_lease(lease))).await?;
    let (mut keeper, mut kept) = client.lease_keep_alive(lease).await?;
    keeper.keep_alive().await?;
    assert_eq!(kept.message().await?.expect("an answer").ttl(), 60);
    client.lease_revoke(lease).await?;
    let mut told = Vec::new();
    while told.len() < 2 {
        let response = watching.message().await?.expect("the watch goes on");
        told.extend(response.events().iter().map(|event| (event.event_type(), event.prev_kv().is_some())));
    }
    assert_eq!(told, [(EventType::Put, false), (EventType::Delete, true)]);

    let lock = client.lock("lock", None).await?;
    assert!(lock.key().starts_with(b"lock/"));
    client.unlock(lock.key()).await?;
    let lease = client.lease_grant(60, None).await?.id();
    let elected = client.campaign("election", "me", lease).await?;
    assert_eq!(client.leader("election").await?.kv().expect("a leader").value(), b"me");
    let leader = elected.leader().expect("our key").clone();
    client.resign(Some(etcd_client::ResignOptions::new().with_leader(leader))).await?;

    let deleted = client.delete("key/", Some(DeleteOptions::new().with_prefix())).await?;
    assert_eq!(deleted.deleted(), 3);
    assert!(client.status().await?.version().starts_with("3.7."));
    assert_eq!(client.member_list().await?.members().len(), endpoints.len());
    println!("all checks passed");
    Ok(())
}
