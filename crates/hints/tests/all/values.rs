//! Parsing and displaying of words and values.
#![allow(missing_docs, reason = "a test")]

use dunlin_hints::{
    CompletionMode, Key, Numa, PerfGoal, Priority, ProcessTime, Sharing, Transport, Value, ValueError,
    protocol_names,
};
use proptest::prelude::*;

#[test]
fn words_are_values() {
    for (key, word, value) in [
        (Key::PerfGoal, "res_util", Value::PerfGoal(PerfGoal::ResUtil)),
        (Key::Concurrency, "64", Value::Concurrency(64)),
        (Key::Concurrency, "1000000", Value::Concurrency(1_000_000)),
        (Key::PayloadSize, "512", Value::PayloadSize(512)),
        (Key::PayloadSize, "1KB", Value::PayloadSize(1 << 10)),
        (Key::PayloadSize, "1k", Value::PayloadSize(1 << 10)),
        (Key::PayloadSize, "2MiB", Value::PayloadSize(2 << 20)),
        (Key::PayloadSize, "4GB", Value::PayloadSize(4 << 30)),
        (Key::Polling, "adaptive", Value::Polling(CompletionMode::Adaptive)),
        (Key::Numa, "on", Value::Numa(Numa::On)),
        (Key::Numa, "1", Value::Numa(Numa::Node(1))),
        (Key::Transport, "tcp", Value::Transport(Transport::Tcp)),
        (Key::Priority, "low", Value::Priority(Priority::Low)),
        (Key::ProcessTime, "long", Value::ProcessTime(ProcessTime::Long)),
        (Key::ProcessTime, "10us", Value::ProcessTime(ProcessTime::Nanos(10_000))),
        (Key::ProcessTime, "1ms", Value::ProcessTime(ProcessTime::Nanos(1_000_000))),
        (Key::Sharing, "dedicated", Value::Sharing(Sharing::Dedicated)),
        (Key::Sharing, "combined", Value::Sharing(Sharing::Combined)),
        (Key::Sharing, "grouped", Value::Sharing(Sharing::Grouped)),
        (Key::Protocol, "eager", Value::Protocol("Eager-SendRecv")),
        (Key::Protocol, "direct_write_imm", Value::Protocol("Direct-WriteIMM")),
        (Key::Protocol, "DIRECT-WRITEIMM", Value::Protocol("Direct-WriteIMM")),
        (Key::Protocol, "rfp", Value::Protocol("Remote-fetch")),
    ] {
        assert_eq!(Value::parse(key, word), Ok(value), "{key} = {word}");
        assert_eq!(value.key(), key);
    }
    assert_eq!(Key::by_name("perf_pref"), Some(Key::Polling));
    assert_eq!(Key::by_name("proto"), Some(Key::Protocol));
    for name in protocol_names() {
        assert_eq!(Value::parse(Key::Protocol, name), Ok(Value::Protocol(name)));
    }
}

#[test]
fn other_words_are_refused_with_the_nearest() {
    for (key, word, nearest) in [
        (Key::PerfGoal, "latancy", Some("latency")),
        (Key::PerfGoal, "", None),
        (Key::Polling, "bussy", Some("busy")),
        (Key::Numa, "onn", Some("on")),
        (Key::Numa, "-1", None),
        (Key::ProcessTime, "shrot", Some("short")),
        (Key::ProcessTime, "10", None),
        (Key::PayloadSize, "1XB", None),
        (Key::PayloadSize, "KB", None),
        (Key::PayloadSize, "1.5KB", None),
        (Key::Concurrency, "1KB", None),
        (Key::Sharing, "locked", None),
        (Key::Sharing, "combine", Some("combined")),
        (Key::Protocol, "Direct-WriteIM", Some("Direct-WriteIMM")),
        (Key::Protocol, "eagre", Some("Eager-SendRecv")),
    ] {
        let error = Value::parse(key, word).expect_err(word);
        assert!(matches!(error, ValueError::Unknown { .. }), "{error:?}");
        assert_eq!(error.nearest(), nearest, "{key} = {word}");
    }
    for (key, word) in [
        (Key::Concurrency, "0"),
        (Key::Concurrency, "1000001"),
        (Key::Concurrency, "99999999999999999999999"),
        (Key::PayloadSize, "0"),
        (Key::PayloadSize, "5GB"),
        (Key::PayloadSize, "18446744073709551615GB"),
        (Key::Numa, "1024"),
        (Key::ProcessTime, "0ms"),
        (Key::ProcessTime, "3601s"),
    ] {
        let error = Value::parse(key, word).expect_err(word);
        assert!(matches!(error, ValueError::OutOfBounds { .. }), "{error:?}");
    }
}

#[test]
fn misspelt_keys_have_a_nearest() {
    for (word, nearest) in [
        ("perf_gaol", Some("perf_goal")),
        ("perfgoal", Some("perf_goal")),
        ("pooling", Some("polling")),
        ("perf_perf", Some("perf_pref")),
        ("transprot", Some("transport")),
        ("sharign", Some("sharing")),
        ("deprecated", None),
    ] {
        assert_eq!(Key::nearest_name(word), nearest, "{word}");
        assert_eq!(Key::by_name(word), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Parsing a displayed value returns it.
    #[test]
    fn values_are_read_as_they_are_shown(
        clients in 1..=1_000_000u32,
        bytes in 1..=1u64 << 32,
        nanos in 1..=3_600_000_000_000u64,
        node in 0..1024u16,
    ) {
        for value in [
            Value::Concurrency(clients),
            Value::PayloadSize(bytes),
            Value::PayloadSize(bytes & !1023 | 1 << 10),
            Value::ProcessTime(ProcessTime::Nanos(nanos)),
            Value::Numa(Numa::Node(node)),
        ] {
            prop_assert_eq!(Value::parse(value.key(), &value.to_string()), Ok(value));
        }
    }

    /// Any word is parsed as a value or refused.
    #[test]
    fn no_word_is_too_strange(word in any::<String>()) {
        for key in Key::ALL {
            if let Ok(value) = Value::parse(key, &word) {
                prop_assert_eq!(value.key(), key);
                prop_assert_eq!(Value::parse(key, &value.to_string()), Ok(value));
            }
        }
        let _ = Key::nearest_name(&word);
    }
}

#[test]
fn words_of_values_are_shown_as_they_are_written() {
    for key in Key::ALL {
        for word in [
            "latency",
            "throughput",
            "res_util",
            "busy",
            "event",
            "adaptive",
            "on",
            "off",
            "rdma",
            "tcp",
            "high",
            "low",
            "short",
            "long",
            "dedicated",
            "combined",
            "grouped",
        ] {
            if let Ok(value) = Value::parse(key, word) {
                assert_eq!(value.to_string(), word);
            }
        }
    }
}
