//! Alarms that odd requests raise, list and clear, and how Status words them: the same as with
//! etcd. One request, which ends an etcd, goes to both alone.

use revd_proto::etcdserverpb::{AlarmMember, AlarmRequest, PutRequest, StatusRequest};
use tonic::{Code, Status};

use crate::harness::{Client, Server, TempDir, peers, run, said_of_both, wait_until};

const GET: i32 = 0;
const ACTIVATE: i32 = 1;
const DEACTIVATE: i32 = 2;
const NONE: i32 = 0;
const NOSPACE: i32 = 1;
const CORRUPT: i32 = 2;
/// No alarm of etcd 3.7.1.
const UNKNOWN: i32 = 5;

async fn ask(client: &Client, action: i32, member_id: u64, alarm: i32) -> Result<Vec<AlarmMember>, Status> {
    let request = AlarmRequest { action, member_id, alarm };
    let mut alarms = client.maintenance.clone().alarm(request).await?.into_inner().alarms;
    alarms.sort_by_key(|alarm| (alarm.member_id, alarm.alarm)); // etcd's come in any order
    Ok(alarms)
}

/// Every step with its answer, and what Status says after it.
async fn scenario(server: &Server) -> Vec<String> {
    let client = server.client().await;
    let steps = [
        (GET, 0, NONE),
        (ACTIVATE, 5, NONE),
        (ACTIVATE, 0, NONE),
        (ACTIVATE, 5, NOSPACE),
        (ACTIVATE, 5, NOSPACE),
        (GET, 0, NONE),
        (GET, 7, NONE),
        (GET, 7, NOSPACE),
        (GET, 5, CORRUPT),
        (ACTIVATE, 6, UNKNOWN),
        (GET, 6, UNKNOWN),
        (GET, 5, UNKNOWN),
        (ACTIVATE, u64::MAX, CORRUPT),
        (ACTIVATE, 0, NOSPACE),
        (GET, 5, NONE),
        (DEACTIVATE, 7, NOSPACE),
        (DEACTIVATE, 5, NONE),
        (DEACTIVATE, 5, UNKNOWN),
        (DEACTIVATE, 6, UNKNOWN),
        (DEACTIVATE, 5, NOSPACE),
        (GET, 0, NONE),
        (DEACTIVATE, u64::MAX, CORRUPT),
        (DEACTIVATE, 0, NOSPACE),
        (ACTIVATE, 9, -1),
        (GET, 0, -1),
        (DEACTIVATE, 9, -1),
        (GET, 0, NONE),
    ];
    let mut said = Vec::new();
    for step in steps {
        let (action, member, alarm) = step;
        let alarms = ask(&client, action, member, alarm).await;
        let alarms = alarms.map_err(|status| (status.code(), status.message().to_owned()));
        let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        // Go's library puts one space or two between the parts, a
        // matter of how each etcd was built.
        let mut errors: Vec<String> = status
            .errors
            .iter()
            .map(|error| error.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        errors.sort();
        said.push(format!("{step:?}: {alarms:?}, {errors:?}"));
    }
    client.kv.clone().put(PutRequest { key: "k".into(), ..PutRequest::default() }).await.unwrap();
    said
}

#[test]
fn alarms_are_raised_listed_and_worded_as_by_etcd() {
    said_of_both(&[], scenario);
}

/// An action that there is not: etcd 3.7.1 takes the reply that nobody made, and its process ends.
#[test]
fn bug_123_an_alarm_request_with_an_unknown_action() {
    run(async {
        let dir = TempDir::new();
        let mut server = Server::revd(&dir.path().join("revd"), &[]);
        let client = server.client().await;
        for action in [3, 4, -1, i32::MIN, i32::MAX] {
            let refused = ask(&client, action, 5, NOSPACE).await.unwrap_err();
            let text = format!("alarm action {action} is none of GET (0), ACTIVATE (1) and DEACTIVATE (2)");
            assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, &text[..]));
        }
        assert_eq!(ask(&client, GET, 0, NONE).await.unwrap(), []);
        assert!(server.is_running());
        let Some(peers) = peers() else { return };
        let mut etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &[]);
        let client = etcd.client().await;
        ask(&client, 4, 5, NOSPACE).await.unwrap_err();
        let deadline = std::time::Duration::from_secs(60);
        wait_until(deadline, || !etcd.is_running(), || "this etcd survives: row 123 is history".to_owned());
    });
}
