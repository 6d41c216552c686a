//! Drives a server with the crate etcd-client and checks what comes back.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let endpoint = std::env::args().nth(1).expect("usage: etcd-client-check <endpoint>");
    let mut client = Client::connect([endpoint], None).await?;

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

    let deleted = client.delete("key/", Some(DeleteOptions::new().with_prefix())).await?;
    assert_eq!(deleted.deleted(), 3);
    assert!(client.status().await?.version().starts_with("3.7."));
    assert_eq!(client.member_list().await?.members().len(), 1);
    println!("all checks passed");
    Ok(())
}
