//! Clients of others on three members: etcd's own in Go on a member that does not lead, the crate
//! etcd-client on all of them. Python, Node and Java too: `bench/peers/interop/run.sh --members 3`.

use crate::etcd_client;
use crate::go_client;
use crate::harness::{Cluster, Server, TempDir, Wiring, products_of_clusters, run};

fn with_endpoints(test: impl AsyncFn(&Cluster, &[String])) {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
            let endpoints: Vec<_> = cluster.members.iter().map(Server::endpoint).collect();
            test(&cluster, &endpoints).await;
        });
    }
}

#[test]
fn etcds_client_works_with_a_member_that_does_not_lead() {
    with_endpoints(async |cluster, endpoints| {
        go_client::works(&endpoints[(cluster.leader().await + 1) % 3], &[]);
    });
}

#[test]
fn the_crate_etcd_client_works_with_three_members() {
    with_endpoints(async |_, endpoints| etcd_client::works(&endpoints.join(",")));
}
