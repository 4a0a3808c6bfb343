//! The macro that makes enums, names, numbers and dispatch of the halves from their list.

/// Makes enums, names, numbers and dispatch of the halves.
macro_rules! halves {
    ($(
        $module:ident {
            $(sender $sender:ident($sending:ty);)?
            $(receiver $receiver:ident($receiving:ty);)?
            $(requests { $($(#[$request_doc:meta])* $request:ident,)+ })?
            $(responses { $($(#[$response_doc:meta])* $response:ident,)+ })?
        }
    )+) => {
        use self::protocol::Protocol;
        use super::rx::{Scratch, Taken};
        use super::sending::Sending;
        use super::tx::TxError;
        use super::{Cx, Violation};
        use crate::mailbox::RingReader;
        use dunlin_fabric::{AddressHandleId, Buffer, Data, Fabric, RegionKey};
        use dunlin_numbered::numbered;
        use dunlin_wire::Tags;

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
            ) -> Result<Option<RxHalf<F>>, MakeError> {
                match self {
                    $($($(ResponseHalf::$response => $module::Carrier::fetched_receiver(ends),)+)?)+
                }
            }
        }

        /// The sender's half of a lane. Large state of rarely used variants is boxed, so that it takes no space in
        /// every lane.
        #[derive(Debug)]
        pub(crate) enum TxHalf<F: Fabric> {
            $($($sender($sending),)?)+
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

        /// The receiver's half of a lane, likewise.
        #[derive(Debug)]
        pub(crate) enum RxHalf<F: Fabric> {
            $($($receiver($receiving),)?)+
        }

        impl<F: Fabric> Receiver<F> for RxHalf<F> {
            #[inline(always)]
            fn is_waiting(&self, first: u64) -> bool {
                match self {
                    $($(RxHalf::$receiver(half) => Receiver::<F>::is_waiting(half, first),)?)+
                }
            }

            #[inline]
            fn take(&mut self, expected: Tags, scratch: &mut Scratch) -> Result<Taken<F>, Violation> {
                match self {
                    $($(RxHalf::$receiver(half) => half.take(expected, scratch),)?)+
                }
            }

            #[inline(always)]
            fn ring(&self) -> Option<&LocalRing<F>> {
                match self {
                    $($(RxHalf::$receiver(half) => half.ring(),)?)+
                }
            }

            #[inline(always)]
            fn ring_mut(&mut self) -> Option<&mut LocalRing<F>> {
                match self {
                    $($(RxHalf::$receiver(half) => half.ring_mut(),)?)+
                }
            }

            #[inline]
            fn reader(&self) -> Option<&RingReader> {
                match self {
                    $($(RxHalf::$receiver(half) => Receiver::<F>::reader(half),)?)+
                }
            }

            #[inline]
            fn reader_mut(&mut self) -> Option<&mut RingReader> {
                match self {
                    $($(RxHalf::$receiver(half) => Receiver::<F>::reader_mut(half),)?)+
                }
            }

            #[inline]
            fn fetcher(&self) -> Option<&Fetcher<F>> {
                match self {
                    $($(RxHalf::$receiver(half) => half.fetcher(),)?)+
                }
            }

            #[inline]
            fn fetcher_mut(&mut self) -> Option<&mut Fetcher<F>> {
                match self {
                    $($(RxHalf::$receiver(half) => half.fetcher_mut(),)?)+
                }
            }

            fn deliver(&mut self, arrived: Arrived<F>, keys: Keys) -> Result<Option<u64>, Buffer<F::Memory>> {
                match self {
                    $($(RxHalf::$receiver(half) => half.deliver(arrived, keys),)?)+
                }
            }

            fn deliver_copy(&mut self, message: &[u8], limit: usize) -> Result<(), Violation> {
                match self {
                    $($(RxHalf::$receiver(half) => Receiver::<F>::deliver_copy(half, message, limit),)?)+
                }
            }

            fn release(&mut self, limit: usize, repost: impl FnMut(Buffer<F::Memory>)) -> Result<(), Violation> {
                match self {
                    $($(RxHalf::$receiver(half) => half.release(limit, repost),)?)+
                }
            }
        }

        /// The rows of each mechanism.
        const OF_EACH: &[&[Protocol]] = &[$(<$module::Carrier as Mechanism>::PROTOCOLS),+];

        /// All protocols. A new protocol is a new row of its mechanism's file.
        pub const PROTOCOLS: &[Protocol] = &protocol::join::<{ protocol::count(OF_EACH) }>(OF_EACH);
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
            pub(crate) fn receiver<F: Fabric>(self, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
                match self {
                    $($half::$name => $module::Carrier::receiver(self.facts(), ends),)+
                }
            }
        }
    };
}
