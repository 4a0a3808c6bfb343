//! Post-time checks of work requests.

use crate::memory::SimMemory;
use crate::state::State;
use dunlin_fabric::{Data, Operation, PostError, QueuePairId, Transport};

impl State {
    /// Checks a request as verbs does at post time; returns the number of the target queue pair.
    pub(crate) fn admit(
        &self,
        domain: u32,
        queue_pair: QueuePairId,
        transport: Transport,
        remote: Option<u32>,
        operation: &Operation<'_, SimMemory>,
    ) -> Result<u32, PostError> {
        let capabilities = &self.settings.capabilities;
        let datagram = transport == Transport::UnreliableDatagram;
        let (data, immediate) = match operation {
            Operation::Send { data, immediate, .. } => (Some(data), immediate),
            Operation::Write { data, immediate, .. } => {
                if datagram {
                    return Err(PostError::Transport("datagram queue pairs only SEND"));
                }
                (Some(data), immediate)
            }
            Operation::Read { .. } | Operation::ReadInto { .. }
                if transport != Transport::ReliableConnection =>
            {
                return Err(PostError::Transport("READ needs RC"));
            }
            Operation::Read { from, .. } | Operation::ReadInto { from, .. } => {
                if from.length > capabilities.max_message {
                    return Err(PostError::Length {
                        length: from.length.into(),
                        limit: capabilities.max_message,
                    });
                }
                (None, &None)
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                if transport != Transport::ReliableConnection || !capabilities.atomics.exist() {
                    return Err(PostError::Transport("atomics need RC, on a fabric that has them"));
                }
                (None, &None)
            }
        };
        if immediate.is_some() && !capabilities.immediate {
            return Err(PostError::Transport("this fabric has no immediate data"));
        }
        if let Some(data) = data {
            let (length, limit) =
                (data.length(), if datagram { capabilities.max_datagram } else { capabilities.max_message });
            if matches!(data, Data::Inline(_)) && length > u64::from(capabilities.max_inline) {
                return Err(PostError::Inline { length: length as usize, limit: capabilities.max_inline });
            }
            if length > u64::from(limit) {
                return Err(PostError::Length { length, limit });
            }
        }
        match operation {
            Operation::Send { to: Some(handle), .. } if datagram => {
                let handles = self.network.domains.get(domain).map(|domain| &domain.address_handles);
                let found = handles.and_then(|handles| handles.get(queue_pair, *handle));
                found.copied().ok_or(PostError::NoSuch("address handle"))
            }
            Operation::Send { to: None, .. } if datagram => {
                Err(PostError::Transport("a datagram needs an address handle"))
            }
            Operation::Send { to: Some(_), .. } => {
                Err(PostError::Transport("an address handle is for datagram queue pairs only"))
            }
            _ => remote.ok_or(PostError::NotConnected),
        }
    }
}
