//! The macro that makes the enums of the methods, and the dispatch to the method that a lane has, from their list. The
//! ends of methods are trait objects: a large payload takes few calls, and a small one none.

/// Makes the enum of the methods with names and numbers, that of their receiving ends, and that of pending transfers.
macro_rules! large_payloads {
    ($(
        $module:ident {
            $(#[$doc:meta])*
            $method:ident;
            receiver $receiver:ty;
            $(pending $pending:ty;)?
        }
    )+) => {
        /// How payloads of more than [`Plan::rendezvous_above`](crate::Plan::rendezvous_above) bytes travel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum LargePayload {
            $($(#[$doc])* $method = <$module::$method as Method>::NUMBER,)+
        }

        numbered!(LargePayload: u8 { $($method),+ });

        impl LargePayload {
            /// Returns the name, as in the documents.
            pub const fn name(self) -> &'static str {
                match self {
                    $(LargePayload::$method => <$module::$method as Method>::NAME,)+
                }
            }

            #[inline(always)]
            pub(crate) const fn facts(self) -> Facts {
                match self {
                    $(LargePayload::$method => <$module::$method as Method>::FACTS,)+
                }
            }

            /// Returns the sending end.
            pub(crate) fn sender<F: Fabric>(self) -> &'static dyn Sender<F> {
                match self {
                    $(LargePayload::$method => &$module::$method,)+
                }
            }
        }

        /// The receiving end of a lane for large payloads.
        #[derive(Debug)]
        pub(crate) enum Inbound<F: Fabric> {
            $($method($receiver),)+
        }

        impl<F: Fabric> Inbound<F> {
            pub(crate) fn get(&self) -> &dyn Receiver<F> {
                match self {
                    $(Inbound::$method(receiver) => receiver,)+
                }
            }

            pub(crate) fn get_mut(&mut self) -> &mut dyn Receiver<F> {
                match self {
                    $(Inbound::$method(receiver) => receiver,)+
                }
            }
        }

        /// An entry of the queue of transfers.
        #[derive(Debug)]
        enum Pending<F: Fabric> {
            $($($method($pending),)?)+
        }

        impl<F: Fabric> Pending<F> {
            fn get_mut(&mut self) -> &mut dyn PendingTransfer<F> {
                match self {
                    $($(Pending::$method(pending) => {
                        let pending: &mut $pending = pending;
                        pending
                    })?)+
                }
            }
        }
    };
}
