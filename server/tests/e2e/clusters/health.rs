//! Health by plain HTTP: every member of a cluster tells probes what an etcd in its place does.

use std::time::Duration;

use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{AlarmRequest, AlarmType, StatusRequest};

use crate::harness::{Cluster, with_clusters_beside, within};
use crate::probes::{REQUESTS, ask};

/// Longer than members take to miss their leader.
const MOMENTS: Duration = Duration::from_secs(30);

/// The replies of these members to all requests, which are asked at once: some wait for a leader.
fn said(cluster: &Cluster, members: &[usize]) -> Vec<String> {
    let all = members.iter().flat_map(|member| REQUESTS.iter().map(move |request| (*member, *request)));
    let asking = all.map(|(member, request)| {
        let address = cluster.members[member].address;
        std::thread::spawn(move || format!("member {member}: {request}: {}", ask(address, request)))
    });
    asking.collect::<Vec<_>>().into_iter().map(|asking| asking.join().unwrap()).collect()
}

/// Raises an alarm, or clears it; returns when all members know.
async fn alarm(cluster: &Cluster, action: AlarmAction, kind: AlarmType) {
    let client = cluster.client(0);
    let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    let member_id = status.header.unwrap().member_id;
    let request = AlarmRequest { action: action as i32, member_id, alarm: kind as i32 };
    client.maintenance.clone().alarm(request).await.unwrap();
    for member in cluster.present() {
        let address = cluster.members[member].address;
        within(MOMENTS, "an alarm is not known everywhere", async || {
            let is_raised = ask(address, "GET /health").contains(&format!("ALARM {}", kind.as_str_name()));
            (is_raised == (action == AlarmAction::Activate)).then_some(())
        })
        .await;
    }
}

#[test]
fn probes_are_told_the_same_by_every_member() {
    with_clusters_beside(&[], async |ours, theirs| {
        let all = [0, 1, 2];
        assert_eq!(said(ours, &all), said(theirs, &all));
        for kind in [AlarmType::Nospace, AlarmType::Corrupt] {
            for cluster in [&*ours, &*theirs] {
                alarm(cluster, AlarmAction::Activate, kind).await;
            }
            assert_eq!(said(ours, &all), said(theirs, &all), "{kind:?}");
            for cluster in [&*ours, &*theirs] {
                alarm(cluster, AlarmAction::Deactivate, kind).await;
            }
        }
        let mut alone = Vec::new();
        for cluster in [ours, theirs] {
            cluster.members[1].kill();
            cluster.members[2].kill();
            let address = cluster.members[0].address;
            within(MOMENTS, "the leader is not missed", async || {
                ask(address, "GET /health").contains("RAFT NO LEADER").then_some(())
            })
            .await;
            alone.push(said(cluster, &[0]));
        }
        assert_eq!(alone[0], alone[1], "without a leader");
        let failed = alone[0].iter().filter(|line| line.contains("linearizable_read failed")).count();
        assert_eq!(failed, 3, "{alone:#?}");
    });
}
