//! Most members are lost for good: one that is left goes on alone with their data.

use revd_proto::etcdserverpb::{Member, MemberListRequest, PutRequest, RangeRequest};

use crate::harness::{
    Client, Cluster, Product, Server, TempDir, Wiring, free_address, products_of_clusters, run,
};

async fn put(client: &Client, value: &str) {
    let request = PutRequest { key: "k".into(), value: value.to_owned().into(), ..PutRequest::default() };
    client.kv.clone().put(request).await.unwrap();
}

async fn get(client: &Client) -> Vec<u8> {
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap().into_inner().kvs.swap_remove(0).value.to_vec()
}

async fn members(client: &Client) -> Vec<Member> {
    let request = MemberListRequest { linearizable: true };
    client.cluster.clone().member_list(request).await.unwrap().into_inner().members
}

#[test]
fn one_member_of_three_goes_on_alone() {
    run(async {
        for product in products_of_clusters() {
            let dir = TempDir::new();
            let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
            // Of the last entry etcd's members do not know that it is committed, and drop it.
            for _ in 0..3 {
                put(&cluster.client(1), "written").await;
            }
            assert_eq!(get(&cluster.client(0)).await, b"written"); // it has the entry
            let own =
                members(&cluster.client(0)).await.into_iter().find(|member| member.name == "m0").unwrap();
            cluster.members.iter_mut().for_each(Server::kill);
            let flags = |more: &[&str]| -> Vec<String> {
                let peer = format!("http://{}", free_address());
                let flags = ["--name", "m0", "--listen-peer-urls", &peer];
                flags.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
            };
            let data_dir = cluster.members[0].data_dir().to_owned();
            for more in [&["--force-new-cluster"][..], &["--force-new-cluster"], &[]] {
                let mut alone = Server::spawn_member(product, free_address(), &data_dir, &flags(more));
                alone.wait_until_ready();
                let client = alone.client().await;
                assert_eq!(get(&client).await, b"written", "{product:?} {more:?}");
                put(&client, "written").await;
                let left = members(&client).await;
                let ids: Vec<_> = left.iter().map(|member| (member.id, member.is_learner)).collect();
                assert_eq!(ids, [(own.id, false)], "{product:?} {more:?}");
                alone.stop();
            }
        }
    });
}

/// Rows 58 and 59: what is left of a cluster may be a member that it had removed. Its data are the
/// last copy: it goes on with them, alone, and is a member at later starts too.
#[test]
fn a_removed_member_whose_cluster_is_lost_goes_on_alone() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &[]).await;
        put(&cluster.client(1), "written").await;
        assert_eq!(get(&cluster.client(0)).await, b"written");
        let own = members(&cluster.client(0)).await.into_iter().find(|member| member.name == "m0").unwrap();
        cluster.remove(0).await;
        cluster.members[0].spawn_again();
        cluster.wait_until_ends(0).await;
        cluster.members[1..].iter_mut().for_each(Server::kill);
        let data_dir = cluster.members[0].data_dir().to_owned();
        let peer = format!("http://{}", free_address());
        for more in ["--force-new-cluster=true", "--force-new-cluster=false"] {
            let flags = ["--name", "m0", "--listen-peer-urls", &peer, more].map(str::to_owned);
            let mut alone = Server::spawn_member(Product::Revd, free_address(), &data_dir, &flags);
            alone.wait_until_ready();
            let client = alone.client().await;
            assert_eq!(get(&client).await, b"written", "{more}");
            put(&client, "written").await;
            let left = members(&client).await;
            let ids: Vec<_> = left.iter().map(|member| (member.id, &member.name[..])).collect();
            assert_eq!(ids, [(own.id, "m0")], "{more}");
            alone.stop();
        }
    });
}
