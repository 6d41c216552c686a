//! The cluster as its other members know it, asked for before a member without data begins: `GET
//! /members` on their peer ports, which etcd's members answer alike.

use std::io;

use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::urls;
use revd_proto::etcdserverpb::Member;
use serde_json::{Value, json};

use crate::limits;
use crate::net::tls::TlsDomain;
use crate::observe::log;
use crate::peer::ask;
use crate::resolve;

/// The answer of the first of these URLs that gives one. A member that has no state yet names no
/// members; one that was removed names members of another time, and is not among them.
pub(super) fn ask<'u>(urls: impl Iterator<Item = &'u str>, tls: &TlsDomain) -> Option<RemoteCluster> {
    for url in urls {
        let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let answer = get(url, "/members", tls).and_then(|answer| {
            let cluster = read(&answer).ok_or_else(|| bad("not a list of members"))?;
            let is_url = |own: &String| {
                urls::are_same(std::slice::from_ref(own), &[url.to_owned()], &mut resolve::first_address)
                    .is_ok()
            };
            let names_itself = cluster.members.iter().any(|member| member.peer_ur_ls.iter().any(is_url));
            if names_itself { Ok(cluster) } else { Err(bad("no member in its list has this URL")) }
        });
        match answer {
            Ok(cluster) => return Some(cluster),
            Err(error) => {
                log::info("no answer about the cluster", json!({"url": url, "error": error.to_string()}))
            }
        }
    }
    None
}

/// The cluster versions that the members at these URLs name, as far as they can be reached and have
/// decided on one.
pub(super) fn versions<'u>(urls: impl Iterator<Item = &'u str>, tls: &TlsDomain) -> Vec<ClusterVersion> {
    let version = |url| {
        let answer = get(url, "/version", tls).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let versions: Value = serde_json::from_str(body.trim()).ok()?;
        ClusterVersion::parse(versions["etcdcluster"].as_str()?)
    };
    urls.filter_map(version).collect()
}

/// The whole answer, head and body.
fn get(url: &str, path: &str, tls: &TlsDomain) -> io::Result<String> {
    ask::get(url, path, limits::REMOTE_CLUSTER_DEADLINE, tls)
}

/// Reads an answer: the cluster's id is a header, the members are a list.
fn read(answer: &str) -> Option<RemoteCluster> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    if !lines.next()?.contains(" 200 ") {
        return None;
    }
    let id = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("x-etcd-cluster-id").then(|| value.trim())
    })?;
    let rows: Vec<Value> = serde_json::from_str(body.trim()).ok()?;
    let members: Option<Vec<Member>> = rows.iter().map(member).collect();
    Some(RemoteCluster { id: u64::from_str_radix(id, 16).ok()?, members: members?, versions: Vec::new() })
}

fn member(row: &Value) -> Option<Member> {
    let urls = |name: &str| -> Vec<String> {
        let urls = row[name].as_array().into_iter().flatten();
        urls.filter_map(|url| url.as_str().map(str::to_owned)).collect()
    };
    Some(Member {
        id: row["id"].as_u64()?,
        name: row["name"].as_str().unwrap_or_default().to_owned(),
        peer_ur_ls: urls("peerURLs"),
        client_ur_ls: urls("clientURLs"),
        is_learner: row["isLearner"].as_bool().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// A member at a port of its own that is asked once; its answer names these URLs.
    fn answering(urls: impl FnOnce(&str) -> Vec<String>) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let rows: Vec<Value> =
            (1..).zip(urls(&url)).map(|(id, url)| json!({"id": id, "peerURLs": [url]})).collect();
        let body = Value::from(rows);
        let answer = format!("HTTP/1.1 200 OK\r\nX-Etcd-Cluster-Id: 9\r\n\r\n{body}\n");
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (url, serving)
    }

    #[test]
    fn a_list_that_does_not_name_the_member_that_gives_it_is_no_answer() {
        let other = || "http://h:1".to_owned();
        let (empty, serving_empty) = answering(|_| vec![]);
        let (removed, serving_removed) = answering(|_| vec![other()]);
        let (member, serving_member) = answering(|url| vec![other(), url.to_owned()]);
        let found = {
            let tls = TlsDomain::open("peer", crate::config::TlsConfig::default()).unwrap();
            ask([&empty[..], &removed, &member].into_iter(), &tls).unwrap()
        };
        assert_eq!((found.id, found.members.len()), (9, 2));
        assert_eq!(found.members[1].peer_ur_ls, [member]);
        for serving in [serving_empty, serving_removed, serving_member] {
            serving.join().unwrap();
        }
    }

    /// An etcd 3.7.1 answers so.
    #[test]
    fn an_answer_of_etcd_is_read() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Etcd-Cluster-Id: cdf818194e3a8c32\r\n\r\n\
                      [{\"id\":10276657743932975437,\"peerURLs\":[\"http://localhost:2380\"],\"name\":\"default\",\
                      \"clientURLs\":[\"http://localhost:2379\"]},{\"id\":7,\"peerURLs\":[\"http://h:1\"],\
                      \"isLearner\":true}]\n";
        let RemoteCluster { id, members, .. } = read(answer).unwrap();
        assert_eq!((id, members.len()), (0xcdf8_1819_4e3a_8c32, 2));
        assert_eq!((members[0].id, &members[0].name[..]), (0x8e9e_05c5_2164_694d, "default"));
        assert_eq!(members[0].client_ur_ls, ["http://localhost:2379"]);
        assert!(members[1].is_learner && members[1].name.is_empty());
        for cut in 0..answer.len() - 1 {
            assert_eq!(read(&answer[..cut]).is_some(), cut == answer.len() - 1, "cut at {cut}");
        }
        assert_eq!(read(&answer.replace(" 200 ", " 404 ")), None);
    }
}
