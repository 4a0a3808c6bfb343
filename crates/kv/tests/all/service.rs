//! The service's encodings and dispatch: round trips, and arbitrary bytes.

use dunlin_kv::dispatch::{ResponseSink, SinkFull, SliceSink, handle};
use dunlin_kv::protocol::{
    Function, MultiGetRequest, MultiGetResponse, PUT_RESPONSE_BYTES, ProtocolError, PutRequest,
    STATS_RESPONSE_BYTES, Status, encode_put_response, encode_stats, parse_key, parse_put_response,
    parse_stats,
};
use dunlin_kv::{KeyHash, MAX_VALUE_LENGTH, Partition, PartitionConfig, PutOutcome, Stats, partition_of};
use proptest::prelude::*;

fn call(partition: &mut Partition, function: Function, request: &[u8]) -> Result<Vec<u8>, Status> {
    let mut response = Vec::new();
    handle(partition, function.id(), request, &mut response).map(|()| response)
}

fn put(partition: &mut Partition, key: &[u8], value: &[u8]) -> Result<PutOutcome, Status> {
    let request = PutRequest { key, value };
    let mut buffer = vec![0; request.encoded_length()];
    request.encode(&mut buffer).unwrap();
    call(partition, Function::Put, &buffer).map(|response| parse_put_response(&response).unwrap())
}

fn multiget_request(keys: &[&[u8]]) -> Vec<u8> {
    let mut buffer = vec![0; MultiGetRequest::encoded_length(keys)];
    assert_eq!(MultiGetRequest::encode(keys, &mut buffer), Ok(buffer.len()));
    buffer
}

#[test]
fn one_conversation() {
    let mut partition = Partition::new(4 << 20).unwrap();
    assert_eq!(put(&mut partition, b"a", b"one"), Ok(PutOutcome::default()));
    assert_eq!(put(&mut partition, b"a", b"two"), Ok(PutOutcome { replaced: true, ..PutOutcome::default() }));
    assert_eq!(put(&mut partition, b"empty", b""), Ok(PutOutcome::default()));
    assert_eq!(call(&mut partition, Function::Get, b"a"), Ok(b"two".to_vec()));
    assert_eq!(call(&mut partition, Function::Get, b"empty"), Ok(Vec::new()));
    assert_eq!(call(&mut partition, Function::Get, b"b"), Err(Status::NotFound));

    let request = multiget_request(&[b"a", b"b", b"empty", b"a"]);
    let response = call(&mut partition, Function::MultiGet, &request).unwrap();
    let values: Vec<_> = MultiGetResponse::parse(&response, 4).unwrap().collect();
    assert_eq!(values, [Some(&b"two"[..]), None, Some(&b""[..]), Some(&b"two"[..])]);

    assert_eq!(call(&mut partition, Function::Delete, b"a"), Ok(Vec::new()));
    assert_eq!(call(&mut partition, Function::Delete, b"a"), Err(Status::NotFound));
    let stats = parse_stats(&call(&mut partition, Function::Stats, b"").unwrap()).unwrap();
    assert_eq!(stats, partition.stats());
    assert_eq!((stats.items, stats.hits, stats.misses, stats.puts, stats.deletes), (1, 5, 2, 3, 1));
}

#[test]
fn refusals_say_why_and_change_nothing() {
    let mut partition = Partition::new(1 << 20).unwrap();
    let before = partition.stats();
    assert_eq!(handle(&mut partition, 0, b"", &mut Vec::new()), Err(Status::UnknownFunction));
    assert_eq!(handle(&mut partition, 6, b"", &mut Vec::new()), Err(Status::UnknownFunction));
    assert_eq!(call(&mut partition, Function::Get, b""), Err(Status::KeyLength));
    assert_eq!(call(&mut partition, Function::Delete, &[0; 251]), Err(Status::KeyLength));
    assert_eq!(call(&mut partition, Function::Put, b"\x05"), Err(Status::Malformed));
    assert_eq!(call(&mut partition, Function::Put, b"\x05\x00four"), Err(Status::Malformed));
    assert_eq!(call(&mut partition, Function::Put, b"\x00\x00value"), Err(Status::KeyLength));
    assert_eq!(call(&mut partition, Function::Put, b"\xff\xffvalue"), Err(Status::KeyLength));
    assert_eq!(call(&mut partition, Function::MultiGet, b"\x02\x00\x01\x00a"), Err(Status::Malformed));
    assert_eq!(call(&mut partition, Function::MultiGet, b"\x01\x00\x01\x00ab"), Err(Status::Malformed));
    assert_eq!(call(&mut partition, Function::Stats, b"x"), Err(Status::Malformed));
    let too_large = vec![0; MAX_VALUE_LENGTH + 1];
    assert_eq!(put(&mut partition, b"key", &too_large), Err(Status::ValueTooLarge));
    assert_eq!(put(&mut partition, b"key", &too_large[1..]), Err(Status::OutOfMemory));
    assert_eq!(partition.stats(), before);
}

#[test]
fn a_key_of_another_worker_is_refused() {
    let config = PartitionConfig { index: 1, count: 3, ..PartitionConfig::new(1 << 20) };
    let mut partition = Partition::with_config(config).unwrap();
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let key = format!("key{number}").into_bytes();
        if partition_of(&key, 3) == 1 { mine.push(key) } else { others.push(key) }
    }
    for key in &mine {
        put(&mut partition, key, b"value").unwrap();
    }
    for key in &others {
        assert!(!partition.config().owns(KeyHash::of(key)));
        assert_eq!(put(&mut partition, key, b"value"), Err(Status::WrongPartition));
        assert_eq!(call(&mut partition, Function::Get, key), Err(Status::WrongPartition));
        assert_eq!(call(&mut partition, Function::Delete, key), Err(Status::WrongPartition));
    }
    assert_eq!(partition.stats().items, mine.len() as u64);
    let mixed = multiget_request(&[&mine[0], &others[0], &mine[1]]);
    assert_eq!(call(&mut partition, Function::MultiGet, &mixed), Err(Status::WrongPartition));
}

#[test]
fn a_full_response_is_refused_and_a_put_without_room_is_not_done() {
    let mut partition = Partition::new(1 << 20).unwrap();
    put(&mut partition, b"a", &[1; 100]).unwrap();
    let mut buffer = [0; 204];
    let mut sink = SliceSink::new(&mut buffer);
    assert_eq!(handle(&mut partition, Function::Get.id(), b"a", &mut sink), Ok(()));
    assert_eq!(sink.written(), [1; 100]);
    assert_eq!(sink.reserve(105).map(|_| ()), Err(SinkFull { needed: 105 }));
    assert_eq!(sink.written().len(), 100);

    let mut sink = SliceSink::new(&mut buffer);
    let request = multiget_request(&[b"a", b"a"]);
    assert_eq!(
        handle(&mut partition, Function::MultiGet.id(), &request, &mut sink),
        Err(Status::ResponseTooLarge)
    );
    let mut sink = SliceSink::new(&mut buffer[..PUT_RESPONSE_BYTES - 1]);
    assert_eq!(
        handle(&mut partition, Function::Put.id(), b"\x01\x00bvalue", &mut sink),
        Err(Status::ResponseTooLarge)
    );
    assert!(!partition.contains(b"b"));
}

#[test]
fn encoders_refuse_what_no_parser_takes() {
    let mut buffer = [0; 600];
    let key = [b'k'; 251];
    assert_eq!(
        PutRequest { key: &key, value: b"" }.encode(&mut buffer),
        Err(ProtocolError::KeyLength { length: 251 })
    );
    assert_eq!(
        MultiGetRequest::encode(&[b"a", b""], &mut buffer),
        Err(ProtocolError::KeyLength { length: 0 })
    );
    let many = vec![&b"a"[..]; 65536];
    assert_eq!(MultiGetRequest::encode(&many, &mut buffer), Err(ProtocolError::TooManyKeys { count: 65536 }));
    assert_eq!(
        PutRequest { key: b"key", value: b"value" }.encode(&mut buffer[..9]),
        Err(ProtocolError::BufferTooSmall { needed: 10, available: 9 })
    );
}

#[test]
fn ids_and_codes_are_there_and_back() {
    for id in 0..=u16::MAX {
        assert!(Function::from_id(id).is_none_or(|function| function.id() == id));
        assert!(Status::from_wire(id).is_none_or(|status| status.code() == id));
    }
    assert_eq!((1..=5).filter_map(Function::from_id).count(), 5);
    assert_eq!((0..100).filter_map(Status::from_wire).count(), 8);
    assert_eq!(Status::from_wire(0), None, "0 is success");
}

/// Generates bytes close to valid messages: small numbers as lengths, counts and flags, then anything.
fn near_messages() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => (0u16..6).prop_map(|number| number.to_le_bytes().to_vec()),
        1 => any::<u16>().prop_map(|number| number.to_le_bytes().to_vec()),
        2 => (0u8..4, 0u32..9).prop_map(|(flag, length)| [&[flag][..], &length.to_le_bytes()].concat()),
        3 => prop::collection::vec(any::<u8>(), 0..6),
        1 => prop::collection::vec(any::<u8>(), 200..300),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_message_or_a_reason(bytes in near_messages(), count in 0usize..5) {
        if let Ok(request) = PutRequest::parse(&bytes) {
            let mut again = vec![0; request.encoded_length()];
            prop_assert_eq!(request.encode(&mut again), Ok(bytes.len()));
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(request) = MultiGetRequest::parse(&bytes) {
            let announced = request.size_hint().0;
            let keys: Vec<_> = request.collect();
            prop_assert_eq!(keys.len(), announced);
            prop_assert_eq!(&multiget_request(&keys), &bytes);
        }
        if let Ok(response) = MultiGetResponse::parse(&bytes, count) {
            let values: Vec<_> = response.collect();
            prop_assert_eq!(values.len(), count);
            let length: usize = values.iter().map(|value| 5 + value.unwrap_or_default().len()).sum();
            prop_assert_eq!(length, bytes.len());
        }
        if let Ok(outcome) = parse_put_response(&bytes) {
            prop_assert_eq!(&encode_put_response(outcome)[..], &bytes[..]);
        }
        prop_assert_eq!(parse_stats(&bytes).is_ok(), bytes.len() == STATS_RESPONSE_BYTES);
        prop_assert_eq!(parse_key(&bytes).is_ok(), (1..=250).contains(&bytes.len()));
    }

    #[test]
    fn requests_come_back_as_they_went(
        key in prop::collection::vec(any::<u8>(), 1..=250),
        value in prop::collection::vec(any::<u8>(), 0..600),
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=250), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let request = PutRequest { key: &key, value: &value };
        let mut buffer = vec![0; request.encoded_length()];
        request.encode(&mut buffer).unwrap();
        prop_assert_eq!(PutRequest::parse(&buffer), Ok(request));

        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let buffer = multiget_request(&keys);
        prop_assert_eq!(&MultiGetRequest::parse(&buffer).unwrap().collect::<Vec<_>>(), &keys);
        let cut = cut.index(buffer.len());
        prop_assert!(MultiGetRequest::parse(&buffer[..cut]).is_err(), "a part of a request is not a request");
    }

    #[test]
    fn stats_and_outcomes_come_back_as_they_went(numbers in any::<[u64; 11]>(), replaced: bool, evicted_from_bucket: bool) {
        let [items, item_bytes, used_bytes, reserved_bytes, memory_limit, hits, misses, puts, deletes, a, b] = numbers;
        let stats = Stats {
            items, item_bytes, used_bytes, reserved_bytes, memory_limit, hits, misses, puts, deletes,
            evicted_from_bucket: a, evicted_for_memory: b,
        };
        prop_assert_eq!(parse_stats(&encode_stats(&stats)), Ok(stats));
        let outcome = PutOutcome { replaced, evicted_from_bucket, evicted_for_memory: items as u32 };
        prop_assert_eq!(parse_put_response(&encode_put_response(outcome)), Ok(outcome));
    }

    #[test]
    fn the_service_survives_any_requests(requests in prop::collection::vec((0u16..7, near_messages()), 1..40)) {
        let mut partition = Partition::new(64 << 10).unwrap();
        let mut buffer = [0; 400];
        for (function, request) in requests {
            let stats = partition.stats();
            let mut sink = SliceSink::new(&mut buffer);
            if handle(&mut partition, function, &request, &mut sink).is_err() {
                prop_assert_eq!(partition.stats().items, stats.items);
            }
            prop_assert!(partition.stats().used_bytes <= 64 << 10);
        }
    }
}
