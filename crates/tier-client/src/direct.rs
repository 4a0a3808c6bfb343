//! Direct mapping: loads and stores of a region's bytes by this process, without a request.

use crate::attachment::Attachment;
use crate::lmr::{Lmr, UNMAP_TIME};
use crate::within::nothing;
use dunlin_fabric::{Address, Fabric as _, Host as _, Link as _, Nanos, RegionKey};
use dunlin_fabric_shm::{ShmFabric, ShmLink, ShmView};
use dunlin_tier::process::{DIRECT, Directed, LET_GO, NoDirect, ProcessRequest, direct_name};
use dunlin_tier_node::{Bytes, DirectMemory, RequestError};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The control connection over which this process gets memory. It ends, and the memory is unmapped, with the last
/// mapping.
#[derive(Debug)]
pub(crate) struct Line {
    /// The connection, and the time from which another one is tried if it has ended.
    link: Mutex<(ShmLink, Nanos)>,
    /// The mappings that are wanted back.
    wanted: Mutex<BTreeSet<u64>>,
}

/// The connection, if there is one.
pub(crate) type Lines = Mutex<Weak<Line>>;

/// The time between two attempts to reach the next life of the node, and the time of one, in nanoseconds.
const AGAIN: Nanos = 100_000_000;
const ATTEMPT: Nanos = 20_000_000;

impl Line {
    /// Connects for this process. Blocks until `until` at most.
    fn dial(attachment: &Attachment<ShmFabric>, until: Nanos) -> Result<ShmLink, RequestError> {
        let none = || RequestError::NoDirect(NoDirect::Line);
        let node = &attachment.config.address;
        let address = Address::new(node.scheme(), &direct_name(node.name())).map_err(|_| none())?;
        let link = attachment.fabric.dial(&address, until).map_err(|_| none())?;
        link.send(&attachment.attached.secret).map_err(|_| none())?;
        match link.receive(until) {
            Ok(answer) if answer.is_empty() => Ok(link),
            _ => Err(none()),
        }
    }

    fn open(attachment: &Attachment<ShmFabric>) -> Result<Line, RequestError> {
        let link = Line::dial(attachment, attachment.until(attachment.config.timeout))?;
        Ok(Line { link: Mutex::new((link, 0)), wanted: Mutex::default() })
    }

    /// Returns whether the connection is alive, after another attempt if the memory is kept.
    fn is_reached(&self, attachment: &Attachment<ShmFabric>) -> bool {
        self.is_wanted(attachment, 0);
        self.link().is_alive()
    }

    /// Returns the connection.
    fn link(&self) -> ShmLink {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Returns whether a mapping is wanted back, or its node has ended for good. Looks for the next life of a node whose
    /// memory is kept.
    fn is_wanted(&self, attachment: &Attachment<ShmFabric>, number: u64) -> bool {
        let mut current = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let (link, again) = &mut *current;
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hear = |link: &ShmLink| {
            while let Ok(Some(message)) = link.try_receive() {
                if let Ok(number) = message.try_into() {
                    wanted.insert(u64::from_le_bytes(number));
                }
            }
        };
        hear(link);
        let now = attachment.fabric.host().now();
        if !link.is_alive() && attachment.attached.is_kept && now >= *again {
            *again = now.saturating_add(AGAIN);
            if let Ok(next) = Line::dial(attachment, now.saturating_add(ATTEMPT)) {
                hear(&next);
                *link = next;
            }
        }
        wanted.contains(&number) || !(link.is_alive() || attachment.attached.is_kept)
    }
}

/// Memory that the node has granted.
#[derive(Debug)]
pub struct Granted(ShmView);

impl DirectMemory for Granted {
    #[inline]
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }
    #[inline]
    fn copy_in(&self, offset: usize, from: &[u8]) {
        self.0.copy_in(offset, from);
    }
    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.0.load(offset)
    }
    #[inline]
    fn store(&self, offset: usize, value: u64) {
        self.0.store(offset, value);
    }
}

/// A region on the node of this host, mapped into this process: loads, stores and copies without a request. Other
/// processes and nodes may use the region at the same time. Made by [`Lmr::direct`]; its methods are those of [`Bytes`].
///
/// As long as this value lives, the region cannot be moved or freed: drop it when
/// [`is_wanted_back`](Direct::is_wanted_back) says so.
#[derive(Debug)]
pub struct Direct {
    bytes: Bytes<Granted>,
    number: u64,
    line: Arc<Line>,
    attachment: Arc<Attachment<ShmFabric>>,
}

impl Deref for Direct {
    type Target = Bytes<Granted>;
    fn deref(&self) -> &Bytes<Granted> {
        &self.bytes
    }
}

impl Direct {
    /// Returns whether somebody frees or moves the region and waits for the end of this value, or the node has ended and no
    /// keeper has its memory. Takes a lock that is held for an instant. While a node whose memory is kept is away, this
    /// method looks for it, which takes 20 ms at most every 100 ms; otherwise it does not wait.
    pub fn is_wanted_back(&self) -> bool {
        self.line.is_wanted(&self.attachment, self.number)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.line.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        let request = ProcessRequest::LetGo { number: self.number };
        let until = self.attachment.until(UNMAP_TIME);
        if let Err(failed) = self.attachment.call_until(LET_GO, &request, until, nothing) {
            let error = RequestError::from(failed);
            // The node ends it with this process.
            tracing::debug!(target: "dunlin::tier", %error, "the end of a direct mapping could not be told");
        }
    }
}

impl Lmr<ShmFabric> {
    /// Maps the region into this process: its bytes are loaded and stored in place. This handle needs READ; with WRITE,
    /// bytes can be stored. The region must have been made with [`Spec::direct`](crate::Spec::direct) by a process of the
    /// same principal, at this node. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// Processes of one principal that map regions directly can touch all regions of that principal at the node that were
    /// made so, whatever their rights: rights bind the library, not a hostile program. Those of other principals they
    /// cannot touch.
    ///
    /// # Errors
    /// [`RequestError::NoDirect`] says why the region is not mapped; [`read`](Lmr::read) and [`write`](Lmr::write) work.
    pub fn direct(&self) -> Result<Direct, RequestError> {
        let line = {
            let mut lines = self.attachment.line.lock().unwrap_or_else(PoisonError::into_inner);
            match lines.upgrade().filter(|line| line.is_reached(&self.attachment)) {
                Some(line) => line,
                None => {
                    let line = Arc::new(Line::open(&self.attachment)?);
                    *lines = Arc::downgrade(&line);
                    line
                }
            }
        };
        let request = ProcessRequest::Direct { handle: self.opened.handle };
        let Directed { number, rights, parts } =
            self.attachment.call(DIRECT, &request, Directed::parse).map_err(RequestError::from)?;
        // From here on, dropping the value ends the mapping at the node, too.
        let attachment = Arc::clone(&self.attachment);
        let mut direct = Direct { bytes: Bytes::new([], rights), number, line, attachment };
        let link = direct.line.link();
        let misfit = || RequestError::Answer { node: "the node of this host".to_owned() };
        let view = |part: &dunlin_tier::process::DirectPart| {
            let view = link.view(RegionKey(part.key)).ok_or_else(misfit)?;
            let fits = view.length().checked_sub(part.offset).is_some_and(|left| part.length <= left);
            let may = !rights.contains(dunlin_tier::Rights::WRITE) || view.is_writable();
            if fits && may { Ok((Granted(view), part.offset, part.length)) } else { Err(misfit()) }
        };
        let parts = parts.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        direct.bytes = Bytes::new(parts, rights);
        if direct.len() != self.len() {
            return Err(misfit());
        }
        Ok(direct)
    }
}
