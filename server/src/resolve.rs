//! The addresses that a name stands for.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// The addresses of `host:port`, those of IPv4 first, as Go takes them and members listen on them.
/// Blocks while the system is asked for a name.
///
/// # Errors
/// When the text is no `host:port`, or the name is not known.
pub fn addresses(host: &str) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = host.to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    Ok(addresses)
}

/// The first address of `host:port`; none if the name is not known.
#[must_use]
pub fn first_address(host: &str) -> Option<String> {
    addresses(host).ok()?.first().map(ToString::to_string)
}

/// The names of an address; none if the system knows none. Blocks while it is asked.
#[must_use]
pub fn names(address: IpAddr) -> Vec<String> {
    // Without a name the text of the address comes back.
    let name = dns_lookup::lookup_addr(&address).ok();
    name.filter(|name| name.parse::<IpAddr>().is_err()).into_iter().collect()
}
