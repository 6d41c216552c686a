//! Alarms, members, leases and hashes of three members beside three members of etcd: calls from a
//! seed, spread over the members, and every answer compared. (Keys and transactions:
//! `differential.rs`; watches: `watch_differential.rs`.)
//!
//! `REVD_TABLE_CALLS` makes the test longer, `REVD_TABLE_SEED` another.

use std::collections::BTreeSet;
use std::time::Duration;

use revd_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, HashKvRequest, HashRequest, MemberAddRequest, MemberListRequest,
    MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, PutRequest,
    RangeRequest, StatusRequest,
};
use tonic::Status;

use crate::harness::{Client, Cluster, PATIENT, Random, from_env, with_clusters_beside, within};

/// Far more than a compaction of few keys takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// One of the clusters, whose ids have names.
struct Side {
    clients: Vec<Client>,
    /// By member.
    ids: Vec<u64>,
    leader: usize,
}

impl Side {
    async fn of(cluster: &Cluster) -> Self {
        let clients = cluster.clients();
        let mut ids = Vec::new();
        for client in &clients {
            let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
            ids.push(status.header.unwrap().member_id);
        }
        Self { clients, ids, leader: cluster.leader().await }
    }

    /// A member's id, or one that no member has.
    fn id(&self, of: u64) -> u64 {
        usize::try_from(of).ok().and_then(|at| self.ids.get(at)).copied().unwrap_or(of)
    }

    /// Roles are the same in both clusters, numbers of leaders are not.
    fn role(&self, of: u64) -> u64 {
        if of < 3 { (of + self.leader as u64) % 3 } else { of }
    }

    /// The answer to a call, in words.
    async fn call(&self, call: Call) -> String {
        let member = usize::try_from(self.role(call.member)).unwrap();
        let (client, id) = (&self.clients[member], self.id(self.role(call.about)));
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        // It has all that was done before.
        let caught_up = client.kv.clone().range(read).await.map(|reply| reply.into_inner().kvs);
        let said = self.ask(client, call, id).await;
        let said = said.unwrap_or_else(|status| format!("{:?}: {}", status.code(), status.message()));
        format!("{said}; {:?}", caught_up.map_err(|status| status.message().to_owned()))
    }

    /// The text with names for the ids of members.
    fn named(&self, text: &str) -> String {
        (0..3).fold(text.to_owned(), |text, role| {
            text.replace(&self.id(self.role(role)).to_string(), &format!("member-{role}"))
        })
    }

    async fn ask(&self, client: &Client, call: Call, id: u64) -> Result<String, Status> {
        let (mut maintenance, mut kv) = (client.maintenance.clone(), client.kv.clone());
        match call.kind {
            0..4 => {
                // To ask; to raise and clear one of the two, or one that etcd has no name for.
                let request = AlarmRequest { action: call.action, member_id: id, alarm: call.alarm };
                let reply = maintenance.alarm(request).await?.into_inner();
                let alarms: BTreeSet<_> =
                    reply.alarms.iter().map(|alarm| self.named(&format!("{alarm:?}"))).collect();
                Ok(format!("{} {alarms:?}", reply.header.unwrap().revision))
            }
            4..7 => {
                let put =
                    PutRequest { key: "k".into(), value: "v".into(), prev_kv: true, ..PutRequest::default() };
                Ok(format!("{:?}", kv.put(put).await?.into_inner().prev_kv))
            }
            7 => {
                let request = CompactionRequest { revision: call.revision, physical: true };
                let reply = kv.compact(request).await?.into_inner();
                self.compacted(call.revision).await;
                Ok(reply.header.unwrap().revision.to_string())
            }
            8 => {
                let reply =
                    maintenance.hash_kv(HashKvRequest { revision: call.revision }).await?.into_inner();
                let revision = reply.header.unwrap().revision;
                Ok(format!("{revision} {} {} {}", reply.hash, reply.compact_revision, reply.hash_revision))
            }
            9 => maintenance
                .hash(HashRequest {})
                .await
                .map(|reply| reply.into_inner().header.unwrap().revision.to_string()),
            _ => self.ask_about_members(client, call, id).await,
        }
    }

    /// Returns when every member is done with this compaction. Its hash, which is of the records
    /// behind the compaction before, answers for the revision from then on; until then the answer
    /// is a hash of what is left.
    async fn compacted(&self, revision: i64) {
        for client in &self.clients {
            let mut maintenance = client.maintenance.clone();
            within(DEADLINE, "a member does not end the compaction", async || {
                let hash = maintenance.hash_kv(HashKvRequest { revision }).await.ok()?.into_inner();
                (hash.compact_revision < revision).then_some(())
            })
            .await;
        }
    }

    async fn ask_about_members(&self, client: &Client, call: Call, id: u64) -> Result<String, Status> {
        let (mut maintenance, mut cluster) = (client.maintenance.clone(), client.cluster.clone());
        match call.kind {
            10 => {
                let request = MemberListRequest { linearizable: call.action == 0 };
                let members = cluster.member_list(request).await?.into_inner().members;
                // Names and URLs are those of each cluster.
                let members =
                    members.iter().map(|member| (member.id, member.is_learner, member.peer_ur_ls.len()));
                Ok(format!(
                    "{:?}",
                    members.map(|member| self.named(&format!("{member:?}"))).collect::<BTreeSet<_>>()
                ))
            }
            11 => {
                let status = maintenance.status(StatusRequest {}).await?.into_inner();
                let errors: BTreeSet<_> = status
                    .errors
                    .iter()
                    .map(|error| self.named(error).split_whitespace().collect::<Vec<_>>().join(" "))
                    .collect();
                let leader = self.named(&status.leader.to_string());
                Ok(format!("{} {leader} {} {errors:?}", status.version, status.is_learner))
            }
            12 => cluster.member_remove(MemberRemoveRequest { id: call.nobody }).await.map(|_| String::new()),
            13 => cluster.member_promote(MemberPromoteRequest { id }).await.map(|_| String::new()),
            14 => {
                let request = MemberUpdateRequest {
                    id: call.nobody,
                    peer_ur_ls: vec!["http://127.0.0.1:1".to_owned()],
                };
                cluster.member_update(request).await.map(|_| String::new())
            }
            15 => {
                let peer_ur_ls = if call.action == 0 { Vec::new() } else { vec!["nowhere".to_owned()] };
                cluster
                    .member_add(MemberAddRequest { peer_ur_ls, is_learner: false })
                    .await
                    .map(|_| String::new())
            }
            // To itself, by a member that does not lead, or to one that does not exist.
            _ => {
                let target_id = if call.member == 0 && call.about != 0 { call.nobody } else { id };
                maintenance.move_leader(MoveLeaderRequest { target_id }).await.map(|_| String::new())
            }
        }
    }
}

/// A call of any kind; members are counted from the leader.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: u64,
    member: u64,
    /// A member, or the id of none.
    about: u64,
    nobody: u64,
    action: i32,
    alarm: i32,
    revision: i64,
}

impl Call {
    fn some(random: &mut Random) -> Self {
        Self {
            kind: random.below(17),
            member: random.below(3),
            about: random.pick(&[0, 0, 1, 2, 77]),
            nobody: 77 + random.below(2),
            action: random.pick(&[0, 1, 2, 2]),
            alarm: random.pick(&[0, 1, 1, 2, 5]),
            revision: i64::try_from(random.below(40)).unwrap() - 1,
        }
    }
}

#[test]
fn alarms_members_and_hashes_of_three_members_are_those_of_three_etcds() {
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let sides = [Side::of(ours).await, Side::of(theirs).await];
        let seed = from_env("REVD_TABLE_SEED", 1);
        let mut random = Random::new(seed);
        let mut seen = BTreeSet::new();
        for number in 0..from_env("REVD_TABLE_CALLS", 1_500) {
            let call = Call::some(&mut random);
            let (ours, theirs) = tokio::join!(sides[0].call(call), sides[1].call(call));
            assert_eq!(ours, theirs, "seed {seed}, call {number}: {call:?}");
            seen.insert(ours.split(';').next().unwrap().to_owned());
        }
        println!("{} different answers, all equal: {seen:#?}", seen.len());
    });
}
