//! Processing of one client message, and its answer.

use crate::detect::NotThrift;
use crate::head::{CALL, EXCEPTION, Head, ONEWAY, OfMessage, REPLY, append};
use crate::outgoing::Outgoing;
use crate::session::Broken;
use dunlin_fabric::door::{self, Door, Look, Visitors};
use dunlin_thrift_core::codec::{BinaryInput, CompactInput, Encoding};
use dunlin_thrift_core::{Context, Outcome, Processor, Refusal, Responder, Wire};
use pilota::Bytes;
use pilota::thrift::{
    ApplicationException, ApplicationExceptionKind, ProtocolExceptionKind, ThriftException,
    new_protocol_exception,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A processor with an index of its functions by name.
#[derive(Debug)]
pub(crate) struct Service<P> {
    processor: Arc<P>,
    /// Sorted by name.
    functions: Box<[Function]>,
    /// The maximum size of a message in bytes.
    pub(crate) message_limit: usize,
    /// HOST:PORT of the listener.
    place: String,
    /// The kinds of visitors without Thrift that are logged already.
    visitors: Visitors,
}

#[derive(Debug)]
struct Function {
    name: &'static [u8],
    number: usize,
    oneway: bool,
}

impl<P: Processor> Service<P> {
    pub(crate) fn new(processor: Arc<P>, message_limit: usize, place: String) -> Self {
        let functions = processor.service().functions.iter().enumerate();
        let functions = functions.map(|(number, function)| Function {
            name: function.name.as_bytes(),
            number,
            oneway: function.oneway,
        });
        let mut functions: Box<[Function]> = functions.collect();
        functions.sort_by_key(|function| function.name);
        Service { processor, functions, message_limit, place, visitors: Visitors::default() }
    }

    /// Refuses a visitor whose first bytes are no Thrift that the server speaks, in the visitor's protocol
    /// where that is cheap.
    #[cold]
    pub(crate) fn turn_away(&self, bytes: &[u8], error: &NotThrift, out: &mut Outgoing<'_>) -> Broken {
        let (name, why) = (self.processor.service().name, error.to_string());
        let (look, first) = (door::recognise(bytes), self.visitors.is_first(bytes));
        match (look, error) {
            // A transport of Thrift that the server does not speak.
            (Look::Is(Door::Thrift), NotThrift::Header) => out.extend(&door::refusal(bytes, &why)),
            // A frame over the limit: its head may not be there yet, so no answer would fit the call.
            (Look::Is(Door::Thrift), _) => {}
            _ => {
                let text = format!("{}; it serves '{name}'", Door::Thrift.found_at(&self.place));
                out.extend(&door::refusal(bytes, &text));
            }
        }
        // The first four bytes decide that a protocol is not known.
        let told = if look.door().is_some() { bytes } else { &bytes[..bytes.len().min(4)] };
        Broken::NotThrift { visitor: door::described(told), why, first }
    }

    /// Executes the call in the message and appends the answer. `memory` contains the message if handlers may
    /// keep it. Oneway functions are not answered, even if the client calls them as normal functions, as old
    /// Python clients do. Returns an error if the message's head cannot be read.
    pub(crate) fn answer(
        &self,
        wire: Wire,
        session: u64,
        (message, memory): (&[u8], Option<&Bytes>),
        out: &mut Outgoing<'_>,
    ) -> Result<(), ThriftException> {
        let Some((head, length)) = Head::read(wire.encoding, message)? else {
            return Err(cut_off());
        };
        let limit = self.message_limit;
        if head.kind != CALL && head.kind != ONEWAY {
            let text = format!("a message of type {} is neither a call nor oneway", head.kind);
            except(out, wire, limit, &head, ApplicationExceptionKind::INVALID_MESSAGE_TYPE, text);
            return Ok(());
        }
        let found = self.functions.binary_search_by_key(&head.name, |function| function.name);
        let Ok(Function { number, oneway, .. }) = found.map(|place| &self.functions[place]) else {
            if head.kind == CALL {
                let (service, name) = (self.processor.service().name, String::from_utf8_lossy(head.name));
                let text =
                    format!("{service} has no function '{name}': was the client built from another IDL?");
                except(out, wire, limit, &head, ApplicationExceptionKind::UNKNOWN_METHOD, text);
            }
            return Ok(());
        };
        let silent = *oneway || head.kind == ONEWAY;
        let start = out.len();
        let arguments = &message[length..];
        let context = Context::on_tcp(session, memory.cloned());
        let responder = IntoOutput { out, wire, limit, head: &head, silent };
        let processed = catch_unwind(AssertUnwindSafe(|| match wire.encoding {
            Encoding::Binary => {
                let mut input = BinaryInput::within(arguments, memory);
                self.processor.process(*number, &mut input, &context, responder);
            }
            Encoding::Compact => {
                self.processor.process(*number, &mut CompactInput::new(arguments), &context, responder);
            }
        }));
        if processed.is_err() {
            let name = String::from_utf8_lossy(head.name);
            tracing::error!("the handler of {}.{name} panicked", self.processor.service().name);
            out.truncate(start);
            if !silent {
                let kind = ApplicationExceptionKind::INTERNAL_ERROR;
                except(out, wire, limit, &head, kind, "the handler panicked");
            }
        }
        Ok(())
    }

    /// Answers an unframed message whose head can be read but whose body cannot.
    pub(crate) fn refuse(&self, wire: Wire, message: &[u8], error: &ThriftException, out: &mut Outgoing<'_>) {
        if let Ok(Some((head, _))) = Head::read(wire.encoding, message)
            && head.kind == CALL
        {
            let (kind, text) = (ApplicationExceptionKind::PROTOCOL_ERROR, error.message().clone());
            except(out, wire, self.message_limit, &head, kind, text);
        }
    }
}

#[cold]
fn cut_off() -> ThriftException {
    new_protocol_exception(ProtocolExceptionKind::InvalidData, "a frame ends within the head of its message")
}

/// Appends an undeclared exception.
#[cold]
fn except(
    out: &mut Outgoing<'_>,
    wire: Wire,
    limit: usize,
    head: &Head<'_>,
    kind: ApplicationExceptionKind,
    text: impl Into<pilota::FastStr>,
) {
    let exception = OfMessage(ApplicationException::new(kind, text));
    let head = Head { kind: EXCEPTION, ..*head };
    if let Err(error) = append(out, wire, limit, &head, &exception) {
        tracing::error!("an exception cannot be sent: {error}");
    }
}

/// Encodes results directly into the output buffer.
struct IntoOutput<'a, 'b> {
    out: &'a mut Outgoing<'b>,
    wire: Wire,
    limit: usize,
    head: &'a Head<'a>,
    silent: bool,
}

impl Responder for IntoOutput<'_, '_> {
    type Done = ();

    fn respond<R: Outcome>(self, outcome: Result<R, Refusal>) {
        let IntoOutput { out, wire, limit, head, silent } = self;
        match outcome {
            Ok(_) if silent => {}
            Ok(result) => {
                let reply = Head { kind: REPLY, ..*head };
                if let Err(error) = append(out, wire, limit, &reply, &OfMessage(result)) {
                    let text = error.message().clone();
                    except(out, wire, limit, head, ApplicationExceptionKind::INTERNAL_ERROR, text);
                }
            }
            Err(refusal) => IntoOutput { out, wire, limit, head, silent }.refuse(refusal),
        }
    }

    fn refuse(self, refusal: Refusal) {
        let exception = refusal.into_exception();
        if self.silent {
            let name = String::from_utf8_lossy(self.head.name);
            tracing::debug!("a call of {name} that waits for no answer failed: {exception}");
            return;
        }
        let (kind, text) = (exception.kind(), exception.message().clone());
        except(self.out, self.wire, self.limit, self.head, kind, text);
    }
}
