//! Requests that wait for the next one of a sending end, and leave with it under one doorbell.

use super::{Tx, TxError, TxHalf};
use crate::path::Cx;
use crate::path::listed;
use crate::path::route;
use dunlin_fabric::{Fabric, Host, PostError, ThreadDomain, Work, WorkRequest};

impl<F: Fabric> Tx<F> {
    /// Puts a message at its place with the requests that wait for it, under one doorbell unless the plan gives its
    /// messages two or none. It waits with them while messages are held.
    #[inline(never)]
    pub(super) fn put_behind_listed(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        total: usize,
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        if self.holds {
            return self.list_message(cx, parts, total, at, notify);
        }
        let (operation, announcement) = match &self.half {
            TxHalf::Write { .. } | TxHalf::Send if !notify || self.has_one_doorbell() => {
                let data = self.data(cx.fabric, parts, total)?;
                self.message(data, at, notify)
            }
            _ => {
                self.post_listed(cx.domain)?;
                return self.put(cx, parts, total, at, notify);
            }
        };
        let requests = 1 + u32::from(announcement.is_some());
        cx.fabric.host().charge(Work::PostWork, requests);
        let signaled = self.unsignaled + requests >= self.signal_every;
        let id = route::outgoing(self.lane);
        let last = match announcement {
            None => [Some(WorkRequest { id, operation, signaled }), None],
            Some(send) => [
                Some(WorkRequest { id, operation, signaled: false }),
                Some(WorkRequest { id, operation: send, signaled }),
            ],
        };
        let posted = self.post_list(cx.domain, last);
        if posted == Err(PostError::QueueFull) {
            // The requests that wait have room without the message, and only their completions make more.
            self.post_listed(cx.domain)?;
        }
        self.posted(posted, signaled)?;
        // `posted` counted one request.
        self.unsignaled += if signaled { 0 } else { requests - 1 };
        Ok(())
    }

    /// Keeps a signaled request until the next one of this end is posted, or [`post_listed`](Tx::post_listed) is
    /// called. The caller counts its completion. Inline data is copied, at most [`listed::MAX_KEPT`] bytes.
    pub(crate) fn list(
        &mut self,
        domain: &mut F::Domain,
        request: WorkRequest<'_, F::Memory>,
    ) -> Result<(), TxError> {
        if self.listed as usize >= listed::MOST {
            self.post_listed(domain)?;
        }
        if domain.send_room(self.queue_pair) <= self.listed.into() {
            return Err(TxError::Full);
        }
        let list = &mut self.rare().list;
        list.push(request);
        self.listed = list.count() as u16;
        Ok(())
    }

    /// Returns whether requests wait.
    #[inline]
    pub(crate) fn has_listed(&self) -> bool {
        self.listed > 0
    }

    /// Posts the requests that wait, if there are any. Without room for all of them they go on waiting.
    #[inline]
    pub(crate) fn post_listed(&mut self, domain: &mut F::Domain) -> Result<(), TxError> {
        if self.listed == 0 {
            return Ok(());
        }
        self.post_list(domain, [None, None]).map_err(|error| match error {
            PostError::QueueFull => TxError::Full,
            _ => TxError::Broken,
        })
    }

    fn post_list(
        &mut self,
        domain: &mut F::Domain,
        last: [Option<WorkRequest<'_, F::Memory>>; 2],
    ) -> Result<(), PostError> {
        let queue_pair = self.queue_pair;
        let list = &mut self.rare().list;
        let posted = list.post(domain, queue_pair, last);
        self.listed = list.count() as u16;
        posted
    }
}
