//! TLS from outside: clients, members, certificates that change, and callers that mean no good;
//! where a client sees it, beside an etcd.

mod allowed;
pub(crate) mod certificates;
mod clients;
mod documented;
mod expiry;
mod hostile;
mod members;
mod refused;
mod revoked;
mod rolling;
mod rolling_load;
mod rotation;
mod session;
mod sockets;
mod tickets;
mod versions;

use std::process::Command;

use crate::harness::peers;
use crate::tls::certificates::Issued;

/// Runs etcdctl with a client's certificate, and this authority if there is TLS: whether it went
/// well, and what it printed.
pub(crate) fn etcdctl(
    endpoint: &str,
    authority: &str,
    client: Option<&Issued>,
    line: &str,
) -> (bool, String) {
    let mut command = Command::new(peers().expect("the test has asked for them").path("etcdctl"));
    command.args(["--endpoints", endpoint, "--command-timeout", "10s"]);
    if !authority.is_empty() {
        command.args(["--cacert", authority]);
    }
    if let Some(client) = client {
        command.args(["--cert", &client.cert, "--key", &client.key]);
    }
    let output = command.args(line.split_whitespace()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}
