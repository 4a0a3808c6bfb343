//! A sender that is not a queue pair's other end, for tests of messages to a datagram endpoint from
//! elsewhere.

use crate::device::Device;
use crate::domain_waiter::DomainWaiter;
use crate::endpoint::{QueuePairAddress, Whereabouts};
use crate::handles::{BATCH, CompletionQueue, Entry};
use dunlin_fabric::{Endpoint, Host, RealHost};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// The maximum number of polls until a message has been sent.
const PATIENCE: u32 = 200_000;

/// Sends raw messages to the address in a queue pair's endpoint, from a new endpoint at this address of the
/// host.
pub(crate) fn send(
    device: &Arc<Device>,
    local: IpAddr,
    to: &Endpoint,
    messages: &[Vec<u8>],
) -> io::Result<()> {
    let address = QueuePairAddress::decode(to).map_err(io::Error::other)?;
    let Whereabouts::Datagrams { messages: place, .. } = address.place else {
        return Err(io::Error::other("connections know who sends"));
    };
    let attention = DomainWaiter::new()?;
    let queue = attention.queue_or(|| CompletionQueue::new(&device.domain, 64, false))?;
    let place = device.insert(&place)?;
    let open = device.open_datagrams(local, &attention)?;
    let sent = messages.iter().enumerate().try_for_each(|(number, message)| {
        let part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        let mut posted = false;
        let mut batch = [Entry { context: 0, length: 0, error: 0 }; BATCH];
        for _ in 0..PATIENCE {
            if !posted {
                // SAFETY: the message is alive until the endpoint is closed.
                match unsafe { open.endpoint.send(place.name, &[part], number as u64 + 1, false) } {
                    Ok(()) => posted = true,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if queue.read(&mut batch) > 0 {
                return Ok(());
            }
            RealHost.sleep(RealHost.now() + 10_000);
        }
        Err(io::Error::from(io::ErrorKind::TimedOut))
    });
    drop(open.endpoint);
    device.retired.closed(open.number);
    sent
}
