//! Constants and defaults: fields that a struct value omits, and arguments that a client omits.

use dunlin::thrift::{CallError, ClientOptions, Context, Failure, FastStr, Never, ServerOptions, serve};
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
    let fabric = dunlin::fabric().unwrap();
    let address = format!("shm:values-{}", std::process::id()).parse().unwrap();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..ServerOptions::default() };
    let server = serve(&fabric, &address, DerivedProcessor(Handler), options).unwrap();
    let tcp = server.tcp_address().unwrap().to_string();
    let clients = [
        younger::DerivedClient::connect(&fabric, &address, ClientOptions::default()).unwrap(),
        younger::DerivedClient::connect_tcp(&tcp, Default::default()).unwrap(),
    ];
    for mut client in clients {
        assert_eq!(client.say().unwrap(), DEFAULTS);
        assert_eq!(client.own().unwrap(), LIMIT);
        assert!(client.hold().unwrap());
        match client.must() {
            Err(CallError::Application(error)) => assert!(error.message().contains("number"), "{error}"),
            other => panic!("{other:?}"),
        }
    }

    let mut client = DerivedClient::connect(&fabric, &address, ClientOptions::default()).unwrap();
    let part = Part { near: 5, ..Part::default() };
    let said = client
        .say(1, "", b"", None, &[], &part, &Level::LOW, Some("no"), &Name("n".into()), 1.5, false, None)
        .unwrap();
    assert_eq!(said, r#"1   Some(4) [] false Level(1) Some("no") n 1.5 false Some(true)"#);
    assert!(!client.hold(&Either::Number(1), &Held::default()).unwrap());
    assert_eq!((client.must(2).unwrap(), client.own(5).unwrap()), (2, 5));
}
