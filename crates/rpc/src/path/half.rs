//! The list of the halves of calls: how messages travel in one direction of a lane. A half is a type with its number
//! and name on the wire, its [`Facts`], and a mechanism, which makes the two ends. A mechanism is a file of
//! `path/half/`, its `mod` line, and its entry of the list: the types of its own ends, the names and public comments of
//! its halves. Enums, numbers, names, dispatch and the table of protocols follow from the list (`dispatch.rs`).
//!
//! A lane whose lease ends carries `write` and `write_imm` requests in two ways, with a zone and without one:
//! `staged.rs`. A lossy half only says so: `path/retransmit.rs` retransmits requests and answers.
//!
//! Each file ends its first comment with the golden counts of its protocols, which the test `golden_counts` compares.

#[macro_use]
mod dispatch;
mod ends;
mod facts;
mod mechanism;
pub(crate) mod protocol;

pub(crate) mod datagram;
pub(crate) mod fetch;
pub(crate) mod hybrid;
pub(crate) mod lossy_ring;
pub(crate) mod ring;
pub(crate) mod send;
pub(crate) mod staged;

pub(crate) use self::ends::{BesideEnd, Ends, Made, MakeError};
pub(crate) use self::facts::{Facts, Notice, Place, Supply};
pub(crate) use self::fetch::Fetcher;
pub(crate) use self::mechanism::{Arrived, Half, Keys, Mechanism, Message, Receiver, Requests, Sender};

use super::local_ring::LocalRing;

halves! {
    ring {
        sender Ring(ring::Sender);
        receiver Ring(LocalRing<F>);
        requests {
            /// WRITE into a ring that the server polls.
            Write,
            /// WRITE_WITH_IMM into a ring; a completion notifies the server.
            WriteImm,
            /// WRITE into a ring, then an empty SEND that notifies the server: two posts, two doorbells (HatRPC figure
            /// 3b).
            WriteSend,
            /// The same two work requests as a linked list, posted with one doorbell (HatRPC figure 3c).
            WriteSendChained,
        }
        responses {
            /// WRITE into a ring that the client polls.
            Write,
            /// WRITE_WITH_IMM into a ring; a completion notifies the client.
            WriteImm,
            /// As [`RequestHalf::WriteSend`].
            WriteSend,
            /// As [`RequestHalf::WriteSendChained`].
            WriteSendChained,
        }
    }
    fetch {
        sender Publish(fetch::Publisher<F>);
        receiver Fetch(Box<fetch::Fetcher<F>>);
        responses {
            /// The server leaves the response in its own memory, and the client READs until it is there (RF-RPC
            /// section 3).
            Fetch,
            /// As [`Fetch`](ResponseHalf::Fetch), after one READ of metadata that holds the result's location (FaRM as
            /// HatRPC emulates it, figure 3h).
            FetchIndexed,
            /// As [`Fetch`](ResponseHalf::Fetch), after two READs of metadata, the first of which locates the second
            /// (Pilaf, figure 3g).
            FetchIndexedTwice,
        }
    }
    hybrid {
        responses {
            /// [`Fetch`](ResponseHalf::Fetch) or [`Write`](ResponseHalf::Write), whichever the client finds to be
            /// cheaper, chosen for each function (RF-RPC section 3.2).
            FetchOrWrite,
            /// [`Fetch`](ResponseHalf::Fetch) or [`WriteImm`](ResponseHalf::WriteImm), chosen likewise. The client may
            /// sleep while results are written back.
            FetchOrWriteImm,
        }
    }
    send {
        sender Send(send::Sender);
        receiver Messages(send::Messages<F>);
        requests {
            /// SEND into a RECV.
            Send,
        }
        responses {
            /// SEND into a RECV.
            Send,
        }
    }
    datagram {
        sender Datagram(datagram::Outlet);
        receiver Datagrams(Box<datagram::Datagrams<F>>);
        requests {
            /// SEND of a datagram (UD). May be lost; the client sends it again.
            Datagram,
        }
        responses {
            /// SEND of a datagram (UD). May be lost; the server sends it again when the client repeats the request.
            Datagram,
        }
    }
    lossy_ring {
        sender Lossy(Box<lossy_ring::Sender>);
        requests {
            /// WRITE over an unreliable connection (UC) into a ring that the server polls. May be lost; the client
            /// writes it again.
            WriteUnreliable,
        }
    }
    staged {
        sender Staged(Box<staged::Staged<F>>);
    }
}
