//! The errors of callers: one enum for each service, with the same questions on every transport, and texts
//! that do not repeat their sources.

use dunlin::errors::{
    BindError, DialError, ListenError, PlanError, ResolveError, TableError, Unavailable, WithSources,
};
use dunlin::raw::messages;
use dunlin::thrift::tcp::{TcpError, Wire};
use dunlin::thrift::{
    ApplicationException, ApplicationExceptionKind, CallError, ConnectError, NumaError, PlanOfError,
    ServeError, ThriftException,
};
use dunlin::{Address, CallError as EngineError, Cause, Certainty, Status};
use dunlin_fabric::{CreateError, GrantError, LinkError, PostError, RegisterError};
use dunlin_generated::everything::{EverywhereError, EverywhereGetException, Missing};
use dunlin_generated::shared::{BaseError, BaseFailException, Elsewhere};
use dunlin_generated::{asked, clashing};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const WHY: &str = "the reason of the system";

fn system() -> io::Error {
    io::Error::other(WHY)
}

fn address() -> Address {
    "shm:x".parse().unwrap()
}

fn unavailable() -> Unavailable {
    Unavailable { address: address(), source: Box::new(system()) }
}

fn not_decoded() -> ThriftException {
    ThriftException::Application(ApplicationException::new(ApplicationExceptionKind::PROTOCOL_ERROR, WHY))
}

fn application(kind: ApplicationExceptionKind) -> CallError {
    CallError::Application(ApplicationException::new(kind, WHY))
}

fn causes() -> Vec<Cause> {
    vec![
        Cause::Disconnected,
        Cause::ConnectionLost,
        Cause::Unanswered,
        Cause::ProtocolViolation,
        Cause::DeadlineExceeded,
        Cause::Cancelled,
        Cause::WindowFull,
        Cause::TooLarge { length: 2, limit: 1 },
        Cause::OutOfMemory,
        Cause::HandlerPanicked,
        Cause::ResultTooLarge,
        Cause::Dropped,
        Cause::Refused(Status::Overloaded),
        Cause::Draining,
        Cause::NoSuchWorker,
        Cause::Closed,
    ]
}

fn of_fabric() -> Vec<Box<dyn Error>> {
    let memory = || RegisterError::OutOfMemory { length: 1, source: system() };
    vec![
        memory().into(),
        RegisterError::Length { length: 2, limit: 1 }.into(),
        RegisterError::LockedMemory { length: 2, limit: 1 }.into(),
        CreateError::from(memory()).into(),
        CreateError::from(GrantError::from(system())).into(),
        CreateError::System { what: "a queue", source: system() }.into(),
        CreateError::Endpoint(WHY).into(),
        PostError::QueueFull.into(),
        unavailable().into(),
        ListenError::from(unavailable()).into(),
        ListenError::InUse { address: address() }.into(),
        ListenError::System { address: address(), source: system() }.into(),
        DialError::from(unavailable()).into(),
        DialError::NobodyListens { address: address() }.into(),
        DialError::Permission { address: address(), why: WHY.into() }.into(),
        DialError::NoGreeting { address: address(), source: system() }.into(),
        DialError::TimedOut { address: address(), after: Duration::from_secs(1) }.into(),
        DialError::System { address: address(), source: system() }.into(),
        LinkError::PeerGone(WHY.into()).into(),
        GrantError::from(LinkError::TimedOut).into(),
        GrantError::from(system()).into(),
        BindError::NoCores { node: 1 }.into(),
        TableError::System { path: "x".into(), source: system() }.into(),
        ResolveError::Asking(system()).into(),
    ]
}

fn of_engine() -> Vec<Box<dyn Error>> {
    let lost = EngineError::MaybeExecuted(Cause::ConnectionLost);
    let mut errors: Vec<Box<dyn Error>> = vec![
        EngineError::Application { code: 1, payload: Vec::new() }.into(),
        dunlin::errors::ConnectError::from(PlanError::LossyHybrid).into(),
        dunlin::errors::ConnectError::from(DialError::from(unavailable())).into(),
        dunlin::errors::ConnectError::from(LinkError::PeerGone(WHY.into())).into(),
        dunlin::errors::ConnectError::from(CreateError::System { what: "a queue", source: system() }).into(),
        dunlin::errors::ConnectError::from(GrantError::from(system())).into(),
        dunlin::errors::ConnectError::Handshake(WHY.into()).into(),
        dunlin::errors::ConnectError::Refused(WHY.into()).into(),
        dunlin::errors::ServeError::from(ListenError::System { address: address(), source: system() }).into(),
        dunlin::errors::ServeError::Thread(system()).into(),
        messages::BufferError::from(lost.clone()).into(),
        messages::SendError::from(lost.clone()).into(),
        messages::ReceiveError::from(lost).into(),
    ];
    for cause in causes() {
        errors.push(cause.into());
        errors.push(EngineError::NotExecuted(cause).into());
        errors.push(EngineError::MaybeExecuted(cause).into());
        errors.push(EngineError::Executed(cause).into());
    }
    errors
}

fn tcp() -> Vec<TcpError> {
    let (address, error) = (String::from("host:1"), Arc::new(system()));
    vec![
        TcpError::Connect { address: address.clone(), error: Arc::clone(&error) },
        TcpError::NotSent { address: address.clone(), error: Arc::clone(&error) },
        TcpError::Broken { address: address.clone(), error },
        TcpError::TimedOut { address: address.clone(), after: Duration::from_secs(1) },
        TcpError::WrongDoor { address: address.clone(), found: WHY.into() },
        TcpError::Answer { address, why: WHY.into(), wire: Wire::FRAMED_BINARY },
    ]
}

fn calls() -> Vec<CallError> {
    let mut errors = vec![
        application(ApplicationExceptionKind::INTERNAL_ERROR),
        application(ApplicationExceptionKind::UNKNOWN_METHOD),
        CallError::Connect(Arc::new(ConnectError::Introduction(EngineError::NotExecuted(Cause::Draining)))),
        CallError::Encode(not_decoded()),
        CallError::Decode(not_decoded()),
        CallError::NoTcp { function: "say".into() },
    ];
    errors.extend(tcp().into_iter().map(CallError::Tcp));
    errors.extend(causes().into_iter().map(|cause| EngineError::NotExecuted(cause).into()));
    errors
}

fn of_thrift() -> Vec<Box<dyn Error>> {
    let service = "Asked";
    let numa = || NumaError::Bind { function: "say".into(), error: BindError::NoCores { node: 1 } };
    let mut errors: Vec<Box<dyn Error>> = vec![
        ConnectError::from(dunlin::errors::ConnectError::from(DialError::from(unavailable()))).into(),
        ConnectError::Introduction(EngineError::NotExecuted(Cause::Draining)).into(),
        ConnectError::NotThrift(WHY).into(),
        ConnectError::Numa { service, error: numa() }.into(),
        ConnectError::Tcp { address: "host:1".into(), error: system() }.into(),
        ServeError::from(dunlin::errors::ServeError::Thread(system())).into(),
        ServeError::Numa { service, error: numa() }.into(),
        ServeError::Tcp { address: "host:1".into(), error: system() }.into(),
        PlanOfError::NotConnected.into(),
        EverywhereError::Missing(Missing::default()).into(),
        EverywhereError::Elsewhere(Elsewhere { code: Some(1), why: Some(WHY.into()) }).into(),
    ];
    errors.extend(tcp().into_iter().map(Into::into));
    for error in calls() {
        errors.push(error.clone().into());
        errors.push(EverywhereError::Call(error).into());
    }
    errors
}

/// Nothing is printed twice when an error is printed with its sources.
#[test]
fn texts_do_not_repeat_their_sources() {
    let mut with_source = 0;
    for error in [of_fabric(), of_engine(), of_thrift()].into_iter().flatten() {
        let mut error: &dyn Error = &*error;
        let all = WithSources(error).to_string();
        assert!(all.matches(WHY).count() <= 1, "{all}");
        while let Some(source) = error.source() {
            let (text, part) = (error.to_string(), source.to_string());
            assert!(!part.is_empty() && !text.contains(&part), "'{text}' contains '{part}'");
            with_source += 1;
            error = source;
        }
    }
    assert!(with_source > 30, "{with_source} errors had a source");
}

/// The three questions, of each error of a call.
#[test]
fn errors_answer_the_same_questions_on_every_transport() {
    let of = |error: &CallError| {
        let service = EverywhereError::from(error.clone());
        assert_eq!(service.certainty(), error.certainty());
        assert_eq!(service.was_executed(), error.was_executed());
        assert_eq!(
            (service.is_deadline(), service.is_unavailable()),
            (error.is_deadline(), error.is_unavailable())
        );
        assert_eq!(service.to_string(), error.to_string());
        (error.was_executed(), error.is_deadline(), error.is_unavailable())
    };
    let engine = |error: EngineError| of(&error.into());
    let tcp: Vec<_> = tcp().into_iter().map(|error| of(&error.into())).collect();
    // Connecting, sending, losing the connection, the deadline, another protocol, another answer.
    let expected = [
        (Some(false), false, true),
        (Some(false), false, true),
        (None, false, true),
        (None, true, false),
        (Some(false), false, false),
        (None, false, false),
    ];
    assert_eq!(tcp, expected);
    // The same in the engine.
    assert_eq!(engine(EngineError::NotExecuted(Cause::Disconnected)), expected[0]);
    assert_eq!(engine(EngineError::NotExecuted(Cause::ConnectionLost)), expected[1]);
    assert_eq!(engine(EngineError::MaybeExecuted(Cause::ConnectionLost)), expected[2]);
    assert_eq!(engine(EngineError::MaybeExecuted(Cause::DeadlineExceeded)), expected[3]);
    assert_eq!(engine(EngineError::NotExecuted(Cause::Refused(Status::Overloaded))), expected[0]);
    assert_eq!(
        engine(EngineError::NotExecuted(Cause::Refused(Status::Malformed))),
        (Some(false), false, false)
    );
    assert_eq!(engine(EngineError::Executed(Cause::ResultTooLarge)), (Some(true), false, false));
    assert_eq!(engine(EngineError::Application { code: 7, payload: Vec::new() }), (Some(true), false, false));
    for (kind, executed) in [
        (ApplicationExceptionKind::UNKNOWN_METHOD, Some(false)),
        (ApplicationExceptionKind::PROTOCOL_ERROR, Some(false)),
        (ApplicationExceptionKind::INVALID_PROTOCOL, None),
        (ApplicationExceptionKind::INTERNAL_ERROR, Some(true)),
        (ApplicationExceptionKind::UNKNOWN, Some(true)),
        (ApplicationExceptionKind::from(4711), Some(true)),
    ] {
        assert_eq!(of(&application(kind)), (executed, false, false), "{kind:?}");
    }
    assert_eq!(of(&CallError::Encode(not_decoded())), (Some(false), false, false));
    assert_eq!(of(&CallError::Decode(not_decoded())), (Some(true), false, false));
    let gone = DialError::NobodyListens { address: address() };
    let lazy = ConnectError::from(dunlin::errors::ConnectError::from(gone));
    assert_eq!(of(&CallError::Connect(Arc::new(lazy))), (Some(false), false, true));
}

/// A service has the exceptions of the service that it extends, of another file, as its own.
#[test]
fn a_service_has_one_error_for_all_its_exceptions() {
    let elsewhere = || Elsewhere { code: Some(3), why: Some("over there".into()) };
    let thrown: [EverywhereError; 2] = [
        EverywhereGetException::Elsewhere(elsewhere()).into(),
        BaseFailException::Elsewhere(elsewhere()).into(),
    ];
    for error in thrown {
        assert!(matches!(&error, EverywhereError::Elsewhere(found) if found.code == Some(3)));
        assert_eq!(error.to_string(), "Elsewhere: over there");
        assert_eq!((error.certainty(), error.was_executed()), (Certainty::Executed, Some(true)));
        assert!(!error.is_deadline() && !error.is_unavailable() && error.source().is_none());
    }
    let base = BaseError::from(BaseFailException::Elsewhere(Elsewhere { code: Some(3), why: None }));
    assert_eq!(base.to_string(), "Elsewhere { code: Some(3), why: None }");
    let silent = asked::AskedError::Silent(asked::Silent { why: "no words".into() });
    assert_eq!(silent.to_string(), "Silent: no words");
}

/// Names that the IDL takes get the first free number.
#[test]
fn names_that_are_taken_get_a_number() {
    use clashing::clashes::{Call, ClashesError, ClashesError2, ClashesThrowException, Elsewhere as Own};
    use clashing::shared::Elsewhere;
    let thrown = |exception: ClashesThrowException| ClashesError2::from(exception);
    let own = thrown(ClashesThrowException::Own(Own { message: "here".into(), hint: None }));
    assert!(matches!(own, ClashesError2::Elsewhere(_)));
    assert_eq!(own.to_string(), "Elsewhere: here");
    let other = thrown(ClashesThrowException::Other(Elsewhere { code: Some(1), why: None }));
    assert!(matches!(other, ClashesError2::Elsewhere2(_)));
    let call = thrown(ClashesThrowException::Call(Call { number: 4 }));
    assert!(matches!(call, ClashesError2::Call2(Call { number: 4 })));
    let same = thrown(ClashesThrowException::Same(ClashesError { text: "as the enum".into() }));
    assert_eq!(same.to_string(), "ClashesError: as the enum");
}
