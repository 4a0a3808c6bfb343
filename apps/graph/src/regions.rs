//! All calls of the tier for memory and locks: the regions of a job, their messages and their data.

use crate::error::GraphError;
use crate::layout::{Header, Layout};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AnyGuard, AnyLmr, AnyTier, LockError, OperationError, RequestError, Rights, Spec};
use std::ops::Range;

/// The writer of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// This member.
    pub(crate) is_own: bool,
    /// Several threads.
    pub(crate) is_shared: bool,
}

/// A region of a range of vertices.
#[derive(Debug)]
pub(crate) struct Region<L> {
    pub(crate) name: String,
    pub(crate) range: Range<u32>,
    pub(crate) layout: Layout,
    pub(crate) access: Access,
    lmr: L,
}

/// The regions that this member has made; they are freed in the end.
pub(crate) struct Owned<T: AnyTier> {
    tier: T,
    pub(crate) names: Vec<String>,
}

impl<T: AnyTier> Owned<T> {
    pub(crate) fn new(tier: &T) -> Self {
        Owned { tier: tier.clone(), names: Vec::new() }
    }
}

impl<T: AnyTier> Drop for Owned<T> {
    fn drop(&mut self) {
        for name in &self.names {
            // A node that has ended has taken its regions with it.
            let _ = self.tier.map(name.as_bytes(), Rights::ALL).and_then(AnyLmr::free);
        }
    }
}

/// Makes a region on this member's node, for all.
pub(crate) fn create<T: AnyTier>(
    tier: &T,
    name: &str,
    layout: Layout,
    header: &Header,
) -> Result<String, GraphError> {
    let region = || name.to_owned();
    let spec = Spec::here().named(name).grant_anyone(Rights::READ.with(Rights::WRITE));
    let lmr = tier.malloc(layout.length(), spec).map_err(|error| match error {
        RequestError::Refused { source: Refusal::Record(RecordError::Taken), .. } => {
            GraphError::Exists { region: region() }
        }
        source => GraphError::Request { region: region(), source: source.into() },
    })?;
    for step in 0..2 {
        let written = lmr.write(Layout::header(step), &header.encode());
        if let Err(source) = written {
            let _ = lmr.free();
            return Err(GraphError::Operation { region: region(), source: source.into() });
        }
    }
    Ok(region())
}

/// Maps a region that a member has made, and checks that it is of this job.
pub(crate) fn map<T: AnyTier>(
    tier: &T,
    name: &str,
    range: Range<u32>,
    (layout, access): (Layout, Access),
    agreement: u64,
) -> Result<Region<T::Lmr>, GraphError> {
    let region = || name.to_owned();
    let rights = if access.is_own { Rights::READ.with(Rights::WRITE) } else { Rights::READ };
    let lmr = tier.map(name.as_bytes(), rights).map_err(|error| match error {
        RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. } => {
            GraphError::Missing { region: region() }
        }
        source => GraphError::Request { region: region(), source: source.into() },
    })?;
    let mapped = Region { name: region(), range, layout, access, lmr };
    if mapped.lmr.len() != layout.length() || mapped.header(0)?.agreement != agreement {
        return Err(GraphError::Disagree { region: region() });
    }
    Ok(mapped)
}

impl<L: AnyLmr> Region<L> {
    fn failed(&self) -> impl FnOnce(OperationError) -> GraphError + '_ {
        |source| GraphError::Operation { region: self.name.clone(), source: source.into() }
    }

    fn header(&self, step: u32) -> Result<Header, GraphError> {
        let mut bytes = [0; 32];
        self.lmr.read(Layout::header(step), &mut bytes).map_err(self.failed())?;
        Ok(Header::parse(&bytes))
    }

    /// Reads the header of a step, and checks it.
    pub(crate) fn announced(&self, step: u32, agreement: u64) -> Result<Header, GraphError> {
        let header = self.header(step)?;
        if header.agreement != agreement {
            return Err(GraphError::Disagree { region: self.name.clone() });
        }
        match header.fault(step, self.layout.vertices) {
            None => Ok(header),
            Some(what) => Err(GraphError::Damaged { region: self.name.clone(), what }),
        }
    }

    /// Writes messages of a step from a vertex on, which is counted from the first one.
    pub(crate) fn write_messages(&self, step: u32, at: u32, bytes: &[u8]) -> Result<(), GraphError> {
        self.lmr.write(self.layout.message(step, at), bytes).map_err(self.failed())
    }

    /// Reads messages of a step.
    pub(crate) fn read_messages(&self, step: u32, at: u32, bytes: &mut [u8]) -> Result<(), GraphError> {
        self.lmr.read(self.layout.message(step, at), bytes).map_err(self.failed())
    }

    /// Announces messages of this thread. Threads that share the region add theirs, one at a time under its lock.
    pub(crate) fn announce<T: AnyTier>(&self, tier: &T, mut header: Header) -> Result<(), GraphError> {
        let locked =
            |source: LockError| GraphError::Lock { region: self.name.clone(), source: source.into() };
        let guard = match self.access.is_shared {
            true => Some(tier.lock(self.name.as_bytes()).map_err(locked)?),
            false => None,
        };
        if guard.is_some() {
            let others = self.header(header.step)?;
            if others.step == header.step {
                header.add(&others);
            }
        }
        self.lmr.write(Layout::header(header.step), &header.encode()).map_err(self.failed())?;
        guard.map_or(Ok(()), AnyGuard::unlock).map_err(locked)
    }

    /// Writes the data of vertices.
    pub(crate) fn write_data(&self, at: u32, bytes: &[u8]) -> Result<(), GraphError> {
        self.lmr.write(self.layout.data(at), bytes).map_err(self.failed())
    }

    /// Reads the data of all vertices.
    pub(crate) fn read_data(&self) -> Result<Vec<u8>, GraphError> {
        let mut bytes = vec![0; (self.layout.length() - self.layout.data(0)) as usize];
        self.lmr.read(self.layout.data(0), &mut bytes).map_err(self.failed())?;
        Ok(bytes)
    }
}
