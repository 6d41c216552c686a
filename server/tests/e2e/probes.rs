//! Plain requests as probes make them, and the replies in a form to compare.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than a member takes to answer.
const MOMENTS: Duration = Duration::from_secs(30);

/// The reply to a plain request: its status and type, the header against sniffing, and the body.
pub(crate) fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(MOMENTS)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().to_owned();
    let mut headers: Vec<String> = lines.map(str::to_lowercase).collect();
    headers.retain(|line| ["content-type", "x-content", "allow:"].iter().any(|name| line.starts_with(name)));
    headers.sort();
    // etcd runs its checks in any order.
    let mut lines: Vec<&str> = body.lines().collect();
    lines.sort_unstable();
    format!("{status}; {}; {} bytes: {}", headers.join("; "), body.len(), lines.join(" | "))
}

/// Requests that probes may make.
pub(crate) const REQUESTS: &[&str] = &[
    "GET /health",
    "GET /health?serializable=true",
    "GET /health?serializable=True",
    "GET /health?exclude=NOSPACE",
    "GET /health?exclude=NOSPACE&exclude=CORRUPT",
    "POST /health",
    "GET /livez",
    "GET /livez?verbose",
    "GET /livez?verbose=false&exclude=serializable_read",
    "GET /livez/serializable_read",
    "GET /livez/serializable_read?verbose&exclude=serializable_read",
    "GET /livez/linearizable_read",
    "GET /livez/",
    "PUT /livez",
    "GET /readyz",
    "GET /readyz?verbose",
    "GET /readyz?exclude=linearizable_read&verbose",
    "GET /readyz?exclude=linearizable_read&exclude=data_corruption&exclude=nothing",
    "GET /readyz/data_corruption",
    "GET /readyz/serializable_read?verbose",
    "GET /readyz/linearizable_read",
    "GET /readyz/non_learner?verbose",
    "GET /readyz/nothing",
    "DELETE /readyz/non_learner",
    "GET /nothing",
];
