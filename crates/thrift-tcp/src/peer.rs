//! A client's connection on the server: its socket, received bytes and pending answers.

use crate::answer::Service;
use crate::incoming::{Incoming, STEP, receive};
use crate::outgoing::Outgoing;
use crate::server::ServerOptions;
use crate::session::{Broken, Session, Then};
use dunlin_thrift_core::Processor;
use pilota::Bytes;
use rustix::event::epoll::EventFlags;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// The number of bytes received per event before other connections are served.
const TURN: usize = 256 << 10;

/// The reason why a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The client has closed it, wholly or in the needed direction, or sent malformed data.
    Done,
    /// An error of the socket.
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Failed(error)
    }
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    /// The events that the event loop waits for.
    pub(crate) interest: EventFlags,
    session: Session,
    incoming: Incoming,
    /// The number of buffered bytes required before they are processed again.
    wanted: usize,
    outgoing: Outgoing<'static>,
    sent: usize,
    /// Nothing more is received: the client has closed its side, sent malformed data, or the server is
    /// stopping.
    ended: bool,
    /// The time of the last progress; `moved` counts bytes since then that are too few to count as progress.
    since: Instant,
    moved: usize,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream, address: SocketAddr, number: u64, now: Instant) -> Self {
        Peer {
            stream,
            address,
            interest: EventFlags::empty(),
            session: Session::new(number),
            incoming: Incoming::default(),
            wanted: 1,
            outgoing: Outgoing::default(),
            sent: 0,
            ended: false,
            since: now,
            moved: 0,
        }
    }

    fn pending(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Returns the events to wait for.
    pub(crate) fn wants(&self, options: &ServerOptions) -> EventFlags {
        let mut wants = EventFlags::empty();
        wants.set(EventFlags::IN, !self.ended && self.pending() < options.output_limit);
        wants.set(EventFlags::OUT, self.pending() > 0);
        wants
    }

    /// Returns whether the client has made no progress for too long.
    pub(crate) fn overdue(&self, options: &ServerOptions, now: Instant) -> bool {
        let limit = match self.incoming.is_empty() && self.pending() == 0 {
            true => options.idle_timeout,
            false => options.stall_timeout,
        };
        now.saturating_duration_since(self.since) > limit
    }

    /// Frees unused buffer memory.
    pub(crate) fn shrink(&mut self) {
        self.incoming.shrink(STEP);
        self.outgoing.shrink(STEP);
    }

    /// Handles events without blocking. All connections of a thread share `scratch`, so that idle connections
    /// have no buffer.
    pub(crate) fn turn<P: Processor>(
        &mut self,
        events: EventFlags,
        service: &Service<P>,
        options: &ServerOptions,
        scratch: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), End> {
        let hung_up = events.intersects(EventFlags::HUP | EventFlags::ERR);
        if hung_up && !self.wants(options).contains(EventFlags::IN) {
            return Err(self.stream.take_error()?.map_or(End::Done, End::Failed));
        }
        if events.contains(EventFlags::OUT) {
            self.flush(now)?;
            self.answer(service, options, now)?;
        }
        let mut turn = if hung_up || events.contains(EventFlags::IN) { 0 } else { TURN };
        while turn < TURN && self.wants(options).contains(EventFlags::IN) {
            let (received, room) = self.receive(service, options, scratch, now)?;
            turn += received;
            if room {
                break;
            }
        }
        self.check_end()
    }

    /// Handles bytes that have already arrived, up to one event's limit, and then stops receiving.
    pub(crate) fn drain<P: Processor>(
        &mut self,
        service: &Service<P>,
        options: &ServerOptions,
        scratch: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), End> {
        self.turn(EventFlags::IN, service, options, scratch, now)?;
        self.ended = true;
        self.check_end()
    }

    fn check_end(&self) -> Result<(), End> {
        if self.ended && self.pending() == 0 { Err(End::Done) } else { Ok(()) }
    }

    /// Receives once and answers. Returns the number of bytes received, and whether these were all.
    fn receive<P: Processor>(
        &mut self,
        service: &Service<P>,
        options: &ServerOptions,
        scratch: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, bool), End> {
        let fresh = self.incoming.is_empty();
        // A client that has sent a large message keeps its own buffer for a while, since it likely sends
        // another.
        let shared = fresh && !self.incoming.is_large();
        let received = if shared {
            scratch.clear();
            receive(&self.stream, scratch).map(|received| (received, scratch.len() < scratch.capacity()))
        } else {
            let missing = self.wanted.saturating_sub(self.incoming.bytes().len());
            self.incoming.receive(&self.stream, missing)
        };
        let (received, room) = match received {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((0, true)),
            Err(error) => return Err(error.into()),
        };
        if received == 0 {
            self.ended = true;
            return Ok((0, true));
        }
        self.progress(if fresh { STEP } else { received }, now);
        if shared {
            let taken = self.take(service, options, scratch, None, now);
            self.incoming.extend(&scratch[taken..]);
            self.flush(now)?;
        }
        self.answer(service, options, now)?;
        Ok((received, room))
    }

    /// Answers the received messages while the output limit allows.
    fn answer<P: Processor>(
        &mut self,
        service: &Service<P>,
        options: &ServerOptions,
        now: Instant,
    ) -> Result<(), End> {
        while self.pending() < options.output_limit && self.incoming.bytes().len() >= self.wanted {
            let mut incoming = std::mem::take(&mut self.incoming);
            if self.session.is_one_frame(incoming.bytes()) {
                incoming.take_all(|bytes, memory| self.take(service, options, bytes, memory, now));
            } else {
                let taken = self.take(service, options, incoming.bytes(), None, now);
                incoming.consume(taken);
            }
            self.incoming = incoming;
            self.flush(now)?;
        }
        Ok(())
    }

    /// Answers the messages at the front of `bytes`. Handlers may share `memory`, which contains them, if it
    /// is given. Returns the number of consumed bytes.
    fn take<P: Processor>(
        &mut self,
        service: &Service<P>,
        options: &ServerOptions,
        bytes: &[u8],
        memory: Option<&Bytes>,
        now: Instant,
    ) -> usize {
        let output_limit = self.sent + options.output_limit;
        let taken = self.session.take(service, bytes, memory, &mut self.outgoing, output_limit);
        if taken.messages > 0 {
            self.progress(STEP, now);
        }
        match taken.then {
            Then::Wanted(wanted) => self.wanted = bytes.len() - taken.bytes + wanted,
            Then::OutputFull => self.wanted = 1,
            Then::Broken(why) => {
                match why {
                    Broken::NotThrift { first: false, .. } => {
                        tracing::debug!("the connection of {} ends: {why}", self.address);
                    }
                    _ => tracing::warn!("the connection of {} ends: {why}", self.address),
                }
                self.ended = true;
                self.wanted = 1;
                return bytes.len();
            }
        }
        taken.bytes
    }

    /// Sends as much as the socket accepts.
    fn flush(&mut self, now: Instant) -> Result<(), End> {
        while self.pending() > 0 {
            match self.outgoing.send(&self.stream, self.sent) {
                Ok(sent) => {
                    self.sent += sent;
                    self.progress(sent, now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Sent bytes are discarded once they are half of the buffer, so that moving the rest
                    // costs no more than sending did.
                    if self.sent > self.outgoing.len() / 2 {
                        self.outgoing.consume(self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.truncate(0);
        self.sent = 0;
        Ok(())
    }

    /// Records progress. Only a whole message, or 64 KiB, count: a client cannot stay connected by trickling
    /// bytes.
    fn progress(&mut self, bytes: usize, now: Instant) {
        self.moved += bytes;
        if self.moved >= STEP {
            self.moved = 0;
            self.since = now;
        }
    }
}
