//! Classifies the completion of a RECV: a message of the other end, a message from elsewhere, or the failure
//! of the queue pair.

use crate::handles::Entry;
use crate::header::{HEADER, Header};
use crate::queue_pair::QueuePair;
use crate::receives::Received;
use crate::sys;
use dunlin_fabric::CompletionStatus;

/// The classification of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// From this queue pair's other end.
    Ours,
    /// From elsewhere: any process that finds a datagram endpoint can send to it. The RECV is to be posted
    /// again.
    Stray,
    /// Breaks the queue pair.
    Broken,
}

/// Maps the error of a completion to a status.
pub(crate) fn status(error: i32, receives: bool) -> CompletionStatus {
    match error {
        0 => CompletionStatus::Success,
        libc::ECANCELED => CompletionStatus::Flushed,
        sys::ERROR_TRUNCATED if receives => CompletionStatus::LocalLength,
        _ if receives => CompletionStatus::Flushed,
        _ => CompletionStatus::TransportRetry,
    }
}

/// Checks a message that has arrived; returns its header and the result of the RECV, or the reason why it is
/// invalid.
pub(crate) fn received(
    header: &[u8; HEADER],
    length: usize,
    is_ours: impl FnOnce(&Header) -> bool,
) -> Result<(Header, Received), &'static str> {
    let bytes = length.checked_sub(HEADER).ok_or("it sent a message without a header")?;
    let header = Header::decode(header).ok_or("it sent a header that is none")?;
    if !is_ours(&header) {
        return Err("it sent a message for another queue pair");
    }
    if header.written.is_some() && bytes > 0 {
        return Err("it sent a message with the news of a WRITE");
    }
    let how = Received {
        status: CompletionStatus::Success,
        bytes: header.written.unwrap_or(bytes as u32),
        immediate: header.immediate,
        with_write: header.written.is_some(),
    };
    Ok((header, how))
}

impl QueuePair {
    /// Processes the completion of the RECV at a place.
    #[inline]
    pub(crate) fn receive(&mut self, entry: &Entry, place: u32) -> Verdict {
        // SAFETY: the RECV has completed.
        let header = unsafe { self.receives.header(place) };
        let ours = (self.number, self.secret);
        let is_ours = |header: &Header| (header.number, header.secret) == ours;
        if entry.error != 0 {
            let status = status(entry.error, true);
            // Without a header, it may be the end of the connection, or a message that was longer than the
            // RECV.
            let stray = Header::decode(&header).is_some_and(|header| !is_ours(&header));
            if self.datagram.is_some() && stray && header != [0; HEADER] {
                self.receives.post_again(place);
                return Verdict::Stray;
            }
            self.end(place, Received::failed(status));
            return Verdict::Broken;
        }
        let (header, how) = match received(&header, entry.length, is_ours) {
            Ok(received) => received,
            Err(why) if self.datagram.is_some() => {
                tracing::debug!(why, "a message came from elsewhere");
                self.receives.post_again(place);
                return Verdict::Stray;
            }
            Err(why) => {
                tracing::warn!(why, "a peer is not spoken to any longer");
                self.end(place, Received::FLUSHED);
                return Verdict::Broken;
            }
        };
        if self.datagram.as_mut().is_some_and(|datagram| !datagram.arrives()) {
            tracing::warn!("a peer has sent more than it was told that there is room for");
            self.end(place, Received::FLUSHED);
            return Verdict::Broken;
        }
        // SAFETY: the RECV has completed.
        let Some(receive) = (unsafe { self.receives.take(place, how.carried()) }) else {
            return Verdict::Broken;
        };
        if !self.arrivals.arrive(header.sequence, self.config.max_receive, (receive, how)) {
            tracing::warn!("a peer has sent a message with a number that it cannot have");
            return Verdict::Broken;
        }
        Verdict::Ours
    }

    /// Records a RECV that ended without a message.
    fn end(&mut self, place: u32, how: Received) {
        // SAFETY: the RECV has completed.
        if let Some(receive) = unsafe { self.receives.take(place, 0) } {
            self.ended.push_back((receive, how));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { number: 7, secret: 9, immediate: None, written: None, sequence: 3 }
    }

    #[test]
    fn messages_of_others_are_told_from_ours() {
        let ours = |header: &Header| (header.number, header.secret) == (7, 9);
        let (read, how) = received(&header().encode(), HEADER + 5, ours).unwrap();
        assert_eq!((read, how.bytes, how.with_write), (header(), 5, false));
        for header in [Header { number: 8, ..header() }, Header { secret: 8, ..header() }] {
            assert!(received(&header.encode(), HEADER, ours).is_err());
        }
        for length in 0..HEADER {
            assert!(received(&header().encode(), length, ours).is_err(), "cut to {length}");
        }
        assert!(received(&[0; HEADER], HEADER, ours).is_err());
    }

    #[test]
    fn news_of_a_write_has_no_message() {
        let news = Header { immediate: Some(1), written: Some(100), ..header() }.encode();
        let (_, how) = received(&news, HEADER, |_| true).unwrap();
        assert_eq!((how.bytes, how.immediate, how.with_write), (100, Some(1), true));
        assert!(received(&news, HEADER + 1, |_| true).is_err());
    }

    #[test]
    fn errors_are_classed() {
        assert_eq!(status(libc::ECANCELED, false), CompletionStatus::Flushed);
        assert_eq!(status(sys::ERROR_TRUNCATED, true), CompletionStatus::LocalLength);
        assert_eq!(status(libc::EIO, true), CompletionStatus::Flushed);
        assert_eq!(status(libc::EIO, false), CompletionStatus::TransportRetry);
    }
}
