//! `dunlin node run` at an `auto:` address: the fabric of all nodes.

use dunlin::fabric::{AgreedFabric, Scheme, beside, is_on_this_host};
use dunlin::{Address, Fabrics};
use dunlin_command::output::Failure;
use dunlin_tier_node::Peer;
use std::fmt;
use std::net::IpAddr;

/// The address at which a node listens, the address of the same node in the list, and how it knows of the others.
pub(crate) struct Ground<'a> {
    pub(crate) listen: Option<&'a Address>,
    pub(crate) directory: Option<&'a Address>,
    pub(crate) is_etcd: bool,
}

/// The fabric that a node at an `auto:` address has taken. The others hear of it as long as this value lives.
pub(crate) enum Taken {
    /// That of all nodes of the list.
    Agreed(AgreedFabric),
    /// That of the directory; with the address of the node.
    Directory(Address),
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Taken::Agreed(agreed) => agreed.fmt(f),
            Taken::Directory(address) => write!(f, "{address}: the directory is on it"),
        }
    }
}

/// Returns whether an address names all addresses of a host.
fn is_any(address: &Address) -> bool {
    let host = address.host_and_port().and_then(|(host, _)| host.parse::<IpAddr>().ok());
    host.is_some_and(|host| host.is_unspecified())
}

fn port_of(address: &Address) -> Option<u16> {
    address.host_and_port().map(|(_, port)| port)
}

/// Returns the place in the list of the node that listens at an address: the one with that address. If it names all
/// addresses of the host, the only one on this host with its port.
pub(crate) fn place_of(peers: &[Peer], listen: &Address) -> Option<usize> {
    let exact = peers.iter().position(|peer| peer.calls == *listen);
    if exact.is_some() || !is_any(listen) {
        return exact;
    }
    let is_same = |peer: &Peer| {
        let kind = (peer.calls.scheme(), port_of(&peer.calls)) == (listen.scheme(), port_of(listen));
        kind && is_on_this_host(&peer.calls)
    };
    let mut same = peers.iter().enumerate().filter(|(_, peer)| is_same(peer));
    match (same.next(), same.next()) {
        (Some((at, _)), None) => Some(at),
        _ => None,
    }
}

/// Replaces the `auto:` addresses of a list by those of the fabric of all nodes; `None` if the list names it. `me` is the
/// place of this node.
pub(crate) fn agree(
    fabrics: &Fabrics,
    ground: &Ground<'_>,
    peers: &mut [Peer],
    me: usize,
) -> Result<Option<Taken>, Failure> {
    if peers[me].calls.scheme() != Scheme::Auto {
        return Ok(None);
    }
    if ground.is_etcd {
        return Err(Failure::new("with --etcd, no node knows the fabric of the others before it joins")
            .help("give --listen the same fabric at all nodes: rdma:HOST:PORT or ofi:tcp:HOST:PORT"));
    }
    let listen = ground.listen.unwrap_or(&peers[me].calls);
    let at = |name: &str, address: &Address| Peer::at(name, address.clone()).map_err(Failure::new);
    if let Some(directory) = ground.directory {
        let own = beside(directory, listen).map_err(Failure::new)?;
        peers[me] = at(&peers[me].name, &own)?;
        return Ok(Some(Taken::Directory(own)));
    }
    if port_of(listen) != port_of(&peers[me].calls) {
        return Err(Failure::new(format!("{listen} has another port than {} of the list", peers[me].calls))
            .help(
                "the others ask this node for its fabric at the port of the list; give --listen the same",
            ));
    }
    let members: Vec<Address> = peers.iter().map(|peer| peer.calls.clone()).collect();
    let agreed = fabrics.agree(listen, &members, me).map_err(Failure::new)?;
    for (peer, address) in peers.iter_mut().zip(&agreed.addresses) {
        *peer = at(&peer.name, address)?;
    }
    peers[me] = at(&peers[me].name, &agreed.listen)?;
    Ok(Some(Taken::Agreed(agreed)))
}
