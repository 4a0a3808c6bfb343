//! Constants and defaults: fields that a struct value omits, and arguments that a client omits.

use dunlin::Fabrics;
use dunlin::thrift::{
    CallError, ClientOptions, ConnectError, Context, Failure, FastStr, Never, ServerOptions, serve_with,
};
use dunlin_generated::parts::{Either, Held, Level, Part, WORDS, Whole};
use dunlin_generated::values::*;
use dunlin_generated::younger;

const TEXT_OF_PART: &str = "a \"text\"\nin two lines";

fn part(level: Level, near: i32, text: &'static str) -> Part {
    Part { level: Some(level), near, text: Some(FastStr::from_static_str(text)) }
}

#[test]
fn what_a_struct_leaves_out_is_as_by_default() {
    assert_eq!((EMPTY, EMPTY), (Part::default(), part(Level::HIGH, 4, TEXT_OF_PART)));
    assert_eq!(SAID, part(Level::HIGH, 2, TEXT_OF_PART));
    let whole = Whole {
        part: part(Level::HIGH, 1, TEXT_OF_PART),
        parts: Some(vec![part(Level::HIGH, 4, ""), SAID]),
        nothing: Some("something".into()),
    };
    assert_eq!(*WHOLE, whole);
    let parts = Some(vec![part(Level::HIGH, 4, TEXT_OF_PART), part(Level::LOW, 4, TEXT_OF_PART)]);
    assert_eq!(Whole::default(), Whole { parts, nothing: None, ..whole });
    assert_eq!(BY_NAME.len(), 2);
    assert_eq!((&BY_NAME["first"], &BY_NAME["second"]), (&part(Level::LOW, 4, TEXT_OF_PART), &SAID));
    assert!(NUMBERS.contains(&1) && NUMBERS.contains(&2));
    assert_eq!((FAR, LIMIT, HALF, GREETING, WORDS), (4, 3, 0.5, "hello", ["one", "two"]));
}

#[test]
fn unions_have_values() {
    let text = |text: &'static str| Either::Text(FastStr::from_static_str(text));
    assert_eq!((TEXT, SAME), (text("said"), text("said")));
    assert_eq!(*LEVELS, Either::Levels(vec![Level::HIGH]));
    assert_eq!(NESTED, Both::Inner(Either::Part(part(Level::HIGH, 8, TEXT_OF_PART))));
    assert_eq!(BOTH["raw"], Both::Raw("bytes".into()));
    assert_eq!(BOTH["levels"], Both::Inner(LEVELS.clone()));
    let others = Some(vec![Either::Number(1), Either::Levels(vec![Level::LOW, Level::HIGH])]);
    assert_eq!(Held::default(), Held { first: text("by default"), others: others.clone() });
    assert_eq!(*HELD, Held { first: Either::Number(3), others });
}

#[derive(Clone, Debug)]
struct Handler;

impl Derived for Handler {
    fn say(
        &self,
        _: &Context,
        number: i32,
        text: &str,
        raw: &[u8],
        far: Option<i64>,
        words: Vec<FastStr>,
        part: Part,
        level: Level,
        maybe: Option<&str>,
        name: Name,
        real: f64,
        truth: bool,
        whole: Option<Whole>,
    ) -> Result<FastStr, Failure<Never>> {
        let raw = str::from_utf8(raw).unwrap();
        let whole = whole.map(|whole| whole == *WHOLE);
        Ok(format!(
            "{number} {text} {raw} {far:?} {words:?} {} {:?} {maybe:?} {} {real} {truth} {whole:?}",
            part == self::part(Level::HIGH, 3, TEXT_OF_PART),
            level,
            name.0
        )
        .into())
    }

    fn must(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number)
    }

    fn hold(&self, _: &Context, either: Either, held: Held) -> Result<bool, Failure<Never>> {
        Ok(either == Either::Text("held".into()) && held == Held::default())
    }

    fn own(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number)
    }
}

const DEFAULTS: &str =
    r#"7 hello raw Some(4) ["one", "two"] true Level(9) Some("may be") name 0.5 true Some(true)"#;

/// For arguments missing in the client's IDL, the handler gets the defaults as in stock Thrift; an argument
/// without a default is an error.
#[test]
fn arguments_that_are_left_out_are_as_by_default() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address: dunlin::Address = format!("shm:values-{}", std::process::id()).parse().unwrap();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..ServerOptions::default() };
    let server = serve_with(&fabric, &address, DerivedProcessor(Handler), options).unwrap();
    let tcp = server.tcp_address().unwrap().to_string();
    // A missing argument without a default is refused when the client connects, unless it does not mind.
    let refused =
        younger::DerivedClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap_err();
    assert!(
        matches!(&refused, ConnectError::Signatures { functions, .. } if functions.len() == 1),
        "{refused}"
    );
    assert!(refused.to_string().contains("'must': argument 1 is required by the server"), "{refused}");
    let lenient = ClientOptions { other_signatures: true, ..ClientOptions::default() };
    let clients = [
        younger::DerivedClient::connect_with(Fabrics::global(), &address, lenient.clone()).unwrap(),
        younger::DerivedClient::connect_tcp(&tcp, Default::default()).unwrap(),
    ];
    for mut client in clients {
        assert_eq!(client.say().unwrap(), DEFAULTS);
        assert_eq!(client.own().unwrap(), LIMIT);
        assert!(client.hold().unwrap());
        match client.must() {
            Err(younger::DerivedError::Call(CallError::Application(error))) => {
                assert!(error.message().contains("number"), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }

    let mut client = DerivedClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap();
    let part = Part { near: 5, ..Part::default() };
    let said = client
        .say(1, "", b"", None, &[], &part, &Level::LOW, Some("no"), &Name("n".into()), 1.5, false, None)
        .unwrap();
    assert_eq!(said, r#"1   Some(4) [] false Level(1) Some("no") n 1.5 false Some(true)"#);
    assert!(!client.hold(&Either::Number(1), &Held::default()).unwrap());
    assert_eq!((client.must(2).unwrap(), client.own(5).unwrap()), (2, 5));
}

struct Small;

impl younger::Values for Small {
    fn say(&self, _: &Context) -> Result<FastStr, Failure<Never>> {
        Ok("small".into())
    }

    fn hold(&self, _: &Context) -> Result<bool, Failure<Never>> {
        Ok(true)
    }

    fn must(&self, _: &Context) -> Result<i32, Failure<Never>> {
        Ok(2)
    }
}

/// A client asks for its service by name. A server of a service that extends it is one of these, and a server
/// of the base has at least the base's functions.
#[test]
fn extended_services_answer_to_the_names_of_their_bases() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address = |name: &str| format!("shm:values-{name}-{}", std::process::id());
    let (derived, base) = (address("derived"), address("base"));
    let _derived =
        serve_with(&fabric, &derived, DerivedProcessor(Handler), ServerOptions::default()).unwrap();
    let mut client = ValuesClient::connect_with(&fabric, &derived, ClientOptions::default()).unwrap();
    assert_eq!(client.must(2).unwrap(), 2);
    let _base =
        serve_with(&fabric, &base, younger::ValuesProcessor(Small), ServerOptions::default()).unwrap();
    let mut client = younger::DerivedClient::connect_with(&fabric, &base, ClientOptions::default()).unwrap();
    assert_eq!(client.must().unwrap(), 2);
    assert!(
        matches!(client.own(), Err(younger::DerivedError::Call(CallError::Application(_)))),
        "the base has no such function"
    );
}
