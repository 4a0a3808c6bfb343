//! The list of all halves and mechanisms.

// The list names modules, so that an entry is all that a mechanism needs here.
use super::protocol::Protocol;
use super::*;
use crate::path::Cx;
use crate::path::rx::RxSource;
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use dunlin_fabric::{AddressHandleId, Data, Fabric, RegionKey};
use dunlin_numbered::numbered;

/// Makes enums, names, numbers and dispatch of the halves.
macro_rules! halves {
    ($(
        $module:ident $(as $sender:ident($state:ty))? {
            $(requests { $($(#[$request_doc:meta])* $request:ident,)+ })?
            $(responses { $($(#[$response_doc:meta])* $response:ident,)+ })?
        }
    )+) => {
        /// The mechanism that carries requests to the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum RequestHalf {
            $($($($(#[$request_doc])* $request = <$module::$request as Half>::REQUEST,)+)?)+
        }

        /// The mechanism that carries responses to the client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum ResponseHalf {
            $($($($(#[$response_doc])* $response = <$module::$response as Half>::RESPONSE,)+)?)+
        }

        numbered!(RequestHalf: u8 { $($($($request,)+)?)+ });
        numbered!(ResponseHalf: u8 { $($($($response,)+)?)+ });

        halves!(@both RequestHalf { $($($($module::$request,)+)?)+ });
        halves!(@both ResponseHalf { $($($($module::$response,)+)?)+ });

        impl ResponseHalf {
            /// Returns the half that writes all results where this one may fetch them.
            pub(crate) const fn written_back(self) -> Self {
                let written = match self {
                    $($($(ResponseHalf::$response => <$module::$response as Half>::WRITTEN_BACK,)+)?)+
                };
                match written {
                    Some(half) => half,
                    None => self,
                }
            }

            /// Makes the sending end of the path that fetched results take, if there are two.
            pub(crate) fn fetched_sender<F: Fabric>(
                self,
                ends: &mut Ends<'_, F>,
            ) -> Result<Option<TxHalf<F>>, MakeError> {
                match self {
                    $($($(ResponseHalf::$response => $module::Carrier::fetched_sender(ends),)+)?)+
                }
            }

            /// Makes the receiving end of that path.
            pub(crate) fn fetched_receiver<F: Fabric>(
                self,
                ends: &mut Ends<'_, F>,
            ) -> Result<Option<RxSource<F>>, MakeError> {
                match self {
                    $($($(ResponseHalf::$response => $module::Carrier::fetched_receiver(ends),)+)?)+
                }
            }
        }

        /// The sender's half of a lane. Large state of rarely used variants is boxed, so that it takes no space in
        /// every lane.
        #[derive(Debug)]
        pub(crate) enum TxHalf<F: Fabric> {
            $($($sender($state),)?)+
        }

        impl<F: Fabric> Sender<F> for TxHalf<F> {
            #[inline]
            fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
                match self {
                    $($(TxHalf::$sender(half) => half.put(end, cx, message),)?)+
                }
            }

            #[inline(always)]
            fn plain_ring(&self) -> Option<(RegionKey, u64)> {
                match self {
                    $($(TxHalf::$sender(half) => Sender::<F>::plain_ring(half),)?)+
                }
            }

            fn listed_inline(&self, notify: bool) -> Option<usize> {
                match self {
                    $($(TxHalf::$sender(half) => Sender::<F>::listed_inline(half, notify),)?)+
                }
            }

            #[inline]
            fn gathers(&self) -> bool {
                match self {
                    $($(TxHalf::$sender(half) => Sender::<F>::gathers(half),)?)+
                }
            }

            fn requests<'a>(
                &self,
                end: &Sending<F>,
                data: Data<'a, F::Memory>,
                at: usize,
                notify: bool,
            ) -> Requests<'a, F::Memory> {
                match self {
                    $($(TxHalf::$sender(half) => half.requests(end, data, at, notify),)?)+
                }
            }

            fn rewrite(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>) -> Result<bool, TxError> {
                match self {
                    $($(TxHalf::$sender(half) => half.rewrite(end, cx),)?)+
                }
            }

            fn address_handle(&self) -> Option<AddressHandleId> {
                match self {
                    $($(TxHalf::$sender(half) => Sender::<F>::address_handle(half),)?)+
                }
            }

            fn published_bytes(&self) -> usize {
                match self {
                    $($(TxHalf::$sender(half) => Sender::<F>::published_bytes(half),)?)+
                }
            }
        }

        /// The number of protocols.
        const ROWS: usize = 0 $(+ <$module::Carrier as Mechanism>::PROTOCOLS.len())+;

        /// The protocols of all mechanisms.
        const TABLE: [Protocol; ROWS] = {
            let mut table = [ring::Carrier::PROTOCOLS[0]; ROWS];
            let mut row = 0;
            $(
                let mut own = <$module::Carrier as Mechanism>::PROTOCOLS;
                while let [protocol, rest @ ..] = own {
                    table[row] = *protocol;
                    row += 1;
                    own = rest;
                }
            )+
            assert!(row == ROWS);
            table
        };
    };
    (@both $half:ident { $($module:ident::$name:ident,)+ }) => {
        impl $half {
            /// Returns the name, as in the documents.
            pub const fn name(self) -> &'static str {
                match self {
                    $($half::$name => <$module::$name as Half>::NAME,)+
                }
            }

            pub(crate) const fn facts(self) -> Facts {
                match self {
                    $($half::$name => <$module::$name as Half>::FACTS,)+
                }
            }

            /// Makes the sending end.
            pub(crate) fn sender<F: Fabric>(self, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
                match self {
                    $($half::$name => $module::Carrier::sender(self.facts(), ends),)+
                }
            }

            /// Makes the receiving end.
            pub(crate) fn receiver<F: Fabric>(self, ends: &mut Ends<'_, F>) -> Result<RxSource<F>, MakeError> {
                match self {
                    $($half::$name => $module::Carrier::receiver(self.facts(), ends),)+
                }
            }
        }
    };
}

halves! {
    ring as Ring(ring::Sender) {
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
    fetch as Publish(fetch::Publisher<F>) {
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
    send as Send(send::Sender) {
        requests {
            /// SEND into a RECV.
            Send,
        }
        responses {
            /// SEND into a RECV.
            Send,
        }
    }
    datagram as Datagram(datagram::Outlet) {
        requests {
            /// SEND of a datagram (UD). May be lost; the client sends it again.
            Datagram,
        }
        responses {
            /// SEND of a datagram (UD). May be lost; the server sends it again when the client repeats the request.
            Datagram,
        }
    }
    lossy_ring as Lossy(Box<lossy_ring::Sender>) {
        requests {
            /// WRITE over an unreliable connection (UC) into a ring that the server polls. May be lost; the client
            /// writes it again.
            WriteUnreliable,
        }
    }
    staged as Staged(Box<staged::Staged<F>>) {}
}

/// All protocols. A new protocol is a new row of its mechanism's file.
pub const PROTOCOLS: &[Protocol] = &TABLE;
