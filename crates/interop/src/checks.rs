//! Checks of Dunlin's client against a server of the service.

use crate::idl::*;
use anyhow::{Result, bail, ensure};
use dunlin::thrift::pilota::{AHashMap, AHashSet};
use dunlin::thrift::tcp::Connection;
use dunlin::thrift::{ApplicationExceptionKind, Bytes, CallError};

/// The record that the clients in other languages send too.
fn record() -> Record {
    let point = |x, y| Point { x, y };
    Record {
        truth: true,
        lie: false,
        tiny: -128,
        small: -32768,
        medium: i32::MIN,
        large: (1 << 62) + 1,
        real: -0.125,
        text: "Grüße, 世界 🐦".into(),
        bytes: Bytes::from_static(&[0, 255, 128, 1]),
        numbers: (-100..1000).map(|n| n * 1_000_003).collect(),
        names: ["one", "two", "three"].map(Into::into).into_iter().collect(),
        counts: [("a".into(), 1), ("b".into(), -2)].into_iter().collect(),
        point: point(3, -4),
        colour: Colour::BLUE,
        shape: Shape::Path(vec![point(0, 0), point(i32::MAX, i32::MIN)]),
        absent: None,
        flags: (0..20).map(|n| n % 3 == 0).collect(),
        nested: [(7, vec![point(1, 2)]), (-7, vec![])].into_iter().collect(),
        reals: vec![0.0, 1e300, -1e-300, f64::INFINITY, f64::MIN_POSITIVE],
        far: Some(200),
    }
}

/// Features that not every Thrift library has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub(crate) uuid: bool,
    pub(crate) bools_in_containers: bool,
    /// Reports a call of an unknown function as such, and not as an unspecified error.
    pub(crate) unknown_method: bool,
}

/// Calls all functions.
pub(crate) fn check(client: &mut Connection, abilities: Abilities) -> Result<usize> {
    let mut count = 0;
    macro_rules! same {
        ($name:literal, $arguments:ident, $outcome:ident, $($value:expr),* $(,)?) => {$({
            let value = $value;
            let back = client.call::<_, $outcome, EverythingError>($name, &$arguments { value })?;
            ensure!(back == value, "{} gave {back:?} for {value:?}", $name);
            count += 1;
        })*};
        (&, $name:literal, $arguments:ident, $outcome:ident, $($value:expr),* $(,)?) => {$({
            let value = $value;
            let back = client.call::<_, $outcome, EverythingError>($name, &$arguments { value: &value })?;
            ensure!(back == value, "{} gave {back:?} for {value:?}", $name);
            count += 1;
        })*};
    }
    client.call::<_, EverythingPingOutcome, EverythingError>("ping", &EverythingPingArguments {})?;
    let mut record = record();
    if !abilities.bools_in_containers {
        record.flags.fill(false);
    }
    let mut sparse = record.clone();
    (sparse.absent, sparse.far, sparse.shape) = (Some("there".into()), None, Shape::Name("n".into()));
    same!(&, "echoRecord", EverythingEchoRecordArguments, EverythingEchoRecordOutcome, record, sparse);
    same!("echoBool", EverythingEchoBoolArguments, EverythingEchoBoolOutcome, true, false);
    same!("echoByte", EverythingEchoByteArguments, EverythingEchoByteOutcome, 0, 127, -128);
    same!("echoShort", EverythingEchoShortArguments, EverythingEchoShortOutcome, 1, i16::MAX, i16::MIN);
    same!("echoInt", EverythingEchoIntArguments, EverythingEchoIntOutcome, -1, i32::MAX, i32::MIN);
    same!("echoLong", EverythingEchoLongArguments, EverythingEchoLongOutcome, 5, i64::MAX, i64::MIN);
    same!("echoDouble", EverythingEchoDoubleArguments, EverythingEchoDoubleOutcome, 0.1, -1e308);
    for text in ["", "Löffler 🥄"] {
        let back = client.call::<_, EverythingEchoStringOutcome, EverythingError>(
            "echoString",
            &EverythingEchoStringArguments { value: text },
        )?;
        ensure!(back == text, "echoString gave {back:?}");
        count += 1;
    }
    for length in [0, 1, 300, 70_000, 2_000_000] {
        let value: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let arguments = EverythingEchoBinaryArguments { value: &value };
        let back =
            client.call::<_, EverythingEchoBinaryOutcome, EverythingError>("echoBinary", &arguments)?;
        ensure!(back == value, "echoBinary gave other bytes, of {length}");
        count += 1;
    }
    for length in [0i64, 14, 15, 10_000] {
        let value: Vec<i64> = (0..length).map(|n| n << 40).collect();
        let arguments = EverythingEchoListArguments { value: &value };
        ensure!(
            client.call::<_, EverythingEchoListOutcome, EverythingError>("echoList", &arguments)? == value
        );
        count += 1;
    }
    same!(&, "echoSet", EverythingEchoSetArguments, EverythingEchoSetOutcome,
        AHashSet::default(), (-50..50).collect::<AHashSet<i32>>());
    same!(&, "echoMap", EverythingEchoMapArguments, EverythingEchoMapOutcome,
        AHashMap::default(), AHashMap::from_iter([("k".into(), "v".into()), ("".into(), "é".into())]));
    same!(&, "echoColour", EverythingEchoColourArguments, EverythingEchoColourOutcome, Colour::RED, Colour::BLUE);
    same!(&, "echoShape", EverythingEchoShapeArguments, EverythingEchoShapeOutcome,
        Shape::Point(Point { x: 1, y: 2 }), Shape::Name("circle".into()), Shape::Path(vec![]));
    if abilities.uuid {
        same!(
            "echoUuid",
            UuidsEchoUuidArguments,
            UuidsEchoUuidOutcome,
            *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"
        );
    }

    let divide = |client: &mut Connection, dividend, divisor| {
        let arguments = EverythingDivideArguments { dividend, divisor };
        client.call::<_, EverythingDivideOutcome, EverythingError>("divide", &arguments)
    };
    ensure!(divide(client, 7, 2)? == 3);
    match divide(client, 1, 0) {
        Err(EverythingError::Refused(refused)) => {
            ensure!(refused.code == 22 && refused.why == "division by zero", "{refused:?}");
        }
        other => bail!("a division by zero gave {other:?}"),
    }
    match divide(client, i32::MIN, -1) {
        Err(EverythingError::Overflow(overflow)) => {
            ensure!(overflow.calculation == "-2147483648 / -1", "{overflow:?}");
        }
        other => bail!("what has no result gave {other:?}"),
    }
    match client.call::<_, WiderMissingOutcome, WiderError>("missing", &WiderMissingArguments { value: "x" })
    {
        Err(WiderError::Call(CallError::Application(error))) => {
            let kind = match abilities.unknown_method {
                true => ApplicationExceptionKind::UNKNOWN_METHOD,
                false => ApplicationExceptionKind::UNKNOWN,
            };
            ensure!(error.kind() == kind, "{error:?}");
        }
        other => bail!("a function that there is not gave {other:?}"),
    }
    for number in [20, 22] {
        client.oneway("tell", &EverythingTellArguments { number })?;
    }
    // Servers execute the calls of one connection in order if they use one thread; other servers may take a
    // while.
    let mut sum = 0;
    for _ in 0..1000 {
        sum +=
            client.call::<_, EverythingToldOutcome, EverythingError>("told", &EverythingToldArguments {})?;
        if sum == 42 {
            break;
        }
    }
    ensure!(sum == 42, "{sum} was told instead of 42");
    // An argument with a default, given and omitted.
    let scaled = EverythingScaledArguments { value: 6, factor: 2 };
    let scaled = client.call::<_, EverythingScaledOutcome, EverythingError>("scaled", &scaled)?;
    let left_out = EverythingEchoIntArguments { value: 6 };
    let by_default = client.call::<_, EverythingScaledOutcome, EverythingError>("scaled", &left_out)?;
    ensure!((scaled, by_default) == (12, 42), "scaled to {scaled} and {by_default}");
    match client.call::<_, EverythingFailOutcome, EverythingError>(
        "fail",
        &EverythingFailArguments { why: "because" },
    ) {
        Err(EverythingError::Call(CallError::Application(error))) => {
            ensure!(error.kind() != ApplicationExceptionKind::UNKNOWN_METHOD, "{error:?}");
        }
        other => bail!("a handler that fails gave {other:?}"),
    }
    client.call::<_, EverythingPingOutcome, EverythingError>("ping", &EverythingPingArguments {})?;
    Ok(count + 11)
}
