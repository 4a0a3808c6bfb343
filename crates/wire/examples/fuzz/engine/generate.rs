//! Generates inputs: valid ones, mutations of valid ones, and bytes with just enough structure to pass the
//! first check.

use super::random::Random;
use dunlin_wire::handshake::{
    Drained, Extension, Extensions, Grant, Hello, HelloReply, LaneReady, LaneRefused, MAX_EXTENSION_BYTES,
    OpenLane, Record, RecordType, RefusalCode, Refused, Secret, Token,
};
use dunlin_wire::{
    ApplicationCode, BatchState, Descriptor, EntryMeta, Flags, Header, Kind, MAX_ENTRY_TIME, SingleLayout,
    Status, TIME_OVER, Tags,
};

/// The origin of an input.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    Valid,
    Mutated,
    Random,
}

impl Origin {
    pub(super) fn name(self, part: &str) -> &'static str {
        match (part, self) {
            ("record", Origin::Valid) => "record, valid",
            ("record", Origin::Mutated) => "record, mutated from valid",
            ("record", Origin::Random) => "record, random",
            (_, Origin::Valid) => "message, valid",
            (_, Origin::Mutated) => "message, mutated from valid",
            (_, Origin::Random) => "message, random",
        }
    }

    /// Chooses an origin: mutation in five of eight cases, valid in one, random in two.
    fn choose(random: &mut Random) -> Origin {
        match random.below(8) {
            0 => Origin::Valid,
            1 | 2 => Origin::Random,
            _ => Origin::Mutated,
        }
    }
}

const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    23,
    24,
    25,
    31,
    32,
    33,
    56,
    63,
    64,
    255,
    256,
    0xffff,
    0x7fff_ffff,
    0xffff_fff8,
    0xffff_ffff,
];

/// Fills `input` with a message, or with something like one.
pub(super) fn message(random: &mut Random, input: &mut Vec<u8>) -> Origin {
    let origin = Origin::choose(random);
    match origin {
        Origin::Valid => valid_message(random, input),
        Origin::Mutated => {
            valid_message(random, input);
            let fields = message_fields(input);
            for _ in 0..=random.below(3) {
                mutate(random, input, &fields, valid_message);
            }
        }
        Origin::Random => {
            let lines = random.below(6);
            let odd = if random.one_in(4) { random.below(64) } else { 0 };
            input.clear();
            input.resize(lines * 64 + odd, 0);
            // Mostly zero bytes pass more checks than uniformly random ones.
            if random.one_in(2) {
                random.fill(input);
            }
            for byte in input.iter_mut().take(2) {
                *byte = random.below(10) as u8;
            }
            for place in [2, 4, 64, 80] {
                if let Some(bytes) = input.get_mut(place..place + 4) {
                    bytes.copy_from_slice(&(random.below(200) as u32).to_le_bytes());
                }
            }
        }
    }
    origin
}

/// Chooses a limit for the parser: usually ample, otherwise close to the length of the input.
pub(super) fn limit(random: &mut Random, length: usize, ample: bool) -> usize {
    if ample || !random.one_in(8) { 1 << 20 } else { (length + random.below(129)).saturating_sub(64) }
}

/// Fills `input` with a frame, or with something like one.
pub(super) fn record(random: &mut Random, input: &mut Vec<u8>) -> Origin {
    let origin = Origin::choose(random);
    match origin {
        Origin::Valid => valid_record(random, input),
        Origin::Mutated => {
            valid_record(random, input);
            let fields = record_fields(input);
            for _ in 0..=random.below(3) {
                mutate(random, input, &fields, valid_record);
            }
            // A mutation inside the frame is only seen if the frame's length fits.
            if random.one_in(2)
                && let Some(body) = input.len().checked_sub(12)
            {
                input[8..12].copy_from_slice(&(body as u32).to_le_bytes());
            }
        }
        Origin::Random => {
            let body = random.below(80);
            input.clear();
            input.extend_from_slice(b"DNLN\x01\x00");
            input.extend_from_slice(&(random.below(14) as u16).to_le_bytes());
            input.extend_from_slice(&(body as u32).to_le_bytes());
            input.resize(12 + body, 0);
            if random.one_in(2) {
                random.fill(&mut input[12..]);
            }
            if random.one_in(8) {
                let cut = random.below(13);
                input.truncate(cut);
            }
        }
    }
    origin
}

fn payload_length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 0,
        1..=3 => random.below(34),
        4 => random.pick(&[31, 32, 33, 55, 56, 57, 64, 119, 120, 121]),
        5 | 6 => random.below(200),
        _ => random.below(1500),
    }
}

fn flags(random: &mut Random, but: Flags) -> Flags {
    Flags::from_bits(random.below(32) as u8).unwrap_or(Flags::NONE).without(but)
}

fn code(random: &mut Random, kind: Kind) -> u16 {
    if !kind.is_response() {
        return random.next() as u16;
    }
    let application =
        ApplicationCode::new(random.below(0xff00) as u16).map_or(Status::Ok, Status::Application);
    random.pick(&[Status::Ok, Status::Overloaded, Status::Unauthorised, application]).to_wire()
}

/// Builds a message with the library's own builders; the parser must accept whatever they build.
fn valid_message(random: &mut Random, input: &mut Vec<u8>) {
    const ROOM: usize = 16 * 1024;
    let number = 1 + random.below(12) as u8;
    let kind = Kind::from_wire(number).expect("1 to 12 are kinds");
    let tags = Tags { first: random.next() | 1, trailing: random.next() & !1 | 2 };
    let mut header = Header {
        flags: flags(random, Flags::RENDEZVOUS),
        head: random.next() as u32,
        credits: random.next() as u8,
        epoch: random.next() as u8,
        ..Header::new(kind)
    };
    input.clear();
    input.resize(ROOM, 0xa5);
    let total = if kind.is_batch() {
        header.time = random.next() as u32;
        let mut state = BatchState::new();
        for _ in 0..=random.below(12) {
            let mut meta = EntryMeta {
                function_or_status: code(random, kind),
                thread: random.next() as u16,
                call: random.next() as u32,
                flags: flags(random, Flags::RENDEZVOUS),
                time: 0,
            };
            if kind == Kind::RequestBatch && random.one_in(2) {
                let time = [1 + random.below(1000) as u32, MAX_ENTRY_TIME, TIME_OVER][random.below(3)];
                meta.time = if time == header.time { 0 } else { time };
            }
            let mut length = payload_length(random);
            if random.one_in(8) {
                (length, meta.flags) = (Descriptor::BYTES, meta.flags | Flags::RENDEZVOUS);
            }
            if let Ok(place) = state.reserve(input, length) {
                random.fill(place);
                state.commit(input, &meta, length).expect("what was reserved can be committed");
            }
        }
        if random.one_in(4) {
            state.finish_compact(input, &header, tags)
        } else {
            state.finish(input, &header, tags)
        }
    } else {
        let length = match kind {
            Kind::Request | Kind::Response => {
                header.code = code(random, kind);
                header.thread = random.next() as u16;
                header.call = random.next() as u32;
                header.time = random.next() as u32;
                if random.one_in(8) {
                    header.flags = header.flags | Flags::RENDEZVOUS;
                    Descriptor::BYTES
                } else {
                    payload_length(random)
                }
            }
            Kind::Release => {
                header.code = 1 + random.below(40) as u16;
                usize::from(header.code) * 4
            }
            Kind::ClearToSend => {
                header.call = random.next() as u32;
                Descriptor::BYTES
            }
            Kind::Fragment => {
                header.call = random.next() as u32;
                payload_length(random).max(1)
            }
            Kind::Written => {
                header.call = random.next() as u32;
                0
            }
            Kind::Filled => {
                header.call = random.next() as u32;
                header.time = random.next() as u32;
                0
            }
            Kind::Credit => {
                header.code = random.below(100) as u16;
                0
            }
            _ => 0,
        };
        random.fill(&mut input[64..64 + length]);
        let layout = SingleLayout::new(length as u32, ROOM).expect("there is room");
        layout.seal(input, &header, tags)
    };
    input.truncate(total.expect("what the generator makes can be built"));
}

/// Returns the offsets of the header's fields and of the fields of every batch entry.
fn message_fields(input: &[u8]) -> Vec<usize> {
    let mut places = vec![0, 1, 2, 4, 4, 12, 14, 16, 20];
    if matches!(input[0], 3 | 4) {
        let body = u32::from_le_bytes([input[4], input[5], input[6], input[7]]) as usize;
        let mut place = 64;
        while place < 64 + body {
            places.extend([place, place, place + 4, place + 12, place + 13, place + 14]);
            let bytes = [input[place], input[place + 1], input[place + 2], input[place + 3]];
            place += 16 + (u32::from_le_bytes(bytes) as usize).next_multiple_of(8);
        }
    }
    places
}

fn text(random: &mut Random, most: usize) -> String {
    let length = if random.one_in(4) { most } else { random.below(20) };
    (0..length).map(|_| random.pick(&['a', 'k', 'v', '-', '.', '0'])).collect()
}

fn some_bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; if random.one_in(8) { most } else { random.below(24) }];
    random.fill(&mut bytes);
    bytes
}

fn keys(random: &mut Random) -> Vec<u64> {
    (0..random.below(9)).map(|_| random.next()).collect()
}

/// Draws extensions that may stand in any record, and those of a record in which only they may stand.
fn extensions(random: &mut Random, record: RecordType) -> Extensions {
    let known = match record {
        RecordType::Hello => vec![Extension::Client(random.next()), Extension::Program(text(random, 64))],
        RecordType::HelloReply => vec![
            Extension::ActiveQueuePairs(random.next() as u32),
            Extension::Occupancy { clients: random.next() as u32, cores: random.next() as u32 },
            Extension::Connections(random.next() as u32),
        ],
        RecordType::OpenLane => vec![Extension::Credits(random.next() as u8), Extension::RenewedApart],
        RecordType::LaneReady => vec![
            Extension::RequestRing { offset: random.next(), block: random.next() as u32 },
            Extension::ControlLine(random.next()),
        ],
        _ => Vec::new(),
    };
    let mut all: Vec<Extension> = known.into_iter().filter(|_| random.one_in(2)).collect();
    if random.one_in(2) {
        let first = 0x8010 + random.below(0x100) as u16;
        for number in first..first + random.below(4) as u16 {
            all.push(Extension::Skipped { number, value: some_bytes(random, MAX_EXTENSION_BYTES) });
        }
    }
    Extensions(all)
}

/// Returns the offsets of the numbers and lengths of a record's extensions, and of other small fields.
fn record_fields(input: &[u8]) -> Vec<usize> {
    let mut places = vec![4, 6, 8, 12, 14, 28];
    // The extensions of a Hello follow two fields of variable length, those of a HelloReply the fixed ones.
    let mut place = match input.get(6) {
        Some(1) => (0..2).try_fold(28, |at, _| Some(at + 2 + number(input, at)?)),
        Some(2) => Some(44),
        _ => None,
    };
    while let Some(at) = place
        && let Some(length) = number(input, at + 2)
    {
        places.extend([at, at, at + 1, at + 2, at + 2]);
        place = Some(at + 4 + length);
    }
    places
}

/// Reads a number of two bytes.
fn number(input: &[u8], at: usize) -> Option<usize> {
    let bytes = input.get(at..at + 2)?;
    Some(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
}

fn valid_record(random: &mut Random, input: &mut Vec<u8>) {
    let lane = random.next() as u16;
    let record = match random.below(11) {
        0 => {
            let min_version = random.below(4) as u16;
            Record::Hello(Hello {
                min_version,
                max_version: min_version + random.below(3) as u16,
                capabilities: random.next(),
                process_id: random.next() as u32,
                service: text(random, 255),
                token: Token(some_bytes(random, 255)),
                extensions: extensions(random, RecordType::Hello),
            })
        }
        1 => Record::HelloReply(HelloReply {
            version: random.next() as u16,
            capabilities: random.next(),
            workers: random.next() as u16,
            functions: random.next() as u32,
            max_payload: random.next(),
            session: random.next(),
            extensions: extensions(random, RecordType::HelloReply),
        }),
        2 => Record::Refused(Refused { code: RefusalCode(random.next() as u16), text: text(random, 512) }),
        3 => Record::OpenLane(OpenLane {
            lane,
            worker: random.next() as u16,
            request_half: random.next() as u8,
            response_half: random.next() as u8,
            client_completion: random.next() as u8,
            server_completion: random.next() as u8,
            window: random.next() as u16,
            ring_bytes: random.below(1 << 20) as u32 * 64,
            rendezvous_above: random.next() as u32,
            large: random.next() as u8,
            sharing: random.next() as u8,
            lease: random.next() as u8,
            endpoint: some_bytes(random, 1024),
            unreliable_endpoint: some_bytes(random, 1024),
            datagram_endpoint: some_bytes(random, 1024),
            region_keys: keys(random),
            extensions: extensions(random, RecordType::OpenLane),
        }),
        4 => {
            let mut secret = [0; 16];
            random.fill(&mut secret);
            Record::LaneReady(LaneReady {
                lane,
                worker: random.next() as u16,
                window: random.next() as u16,
                max_batch_entries: random.next() as u16,
                ring_bytes: random.below(1 << 20) as u32 * 64,
                max_message_bytes: random.next() as u32,
                secret: Secret(secret),
                endpoint: some_bytes(random, 1024),
                unreliable_endpoint: some_bytes(random, 1024),
                datagram_endpoint: some_bytes(random, 1024),
                place: random.next() as u16,
                region_keys: keys(random),
                extensions: extensions(random, RecordType::LaneReady),
            })
        }
        5 => Record::LaneRefused(LaneRefused {
            lane,
            code: RefusalCode(random.next() as u16),
            text: text(random, 512),
        }),
        6 => Record::Grant(Grant { key: random.next(), length: random.next(), purpose: random.next() as u8 }),
        7 => Record::Drain,
        8 => Record::Drained(Drained { lane, taken: random.next() }),
        9 => Record::CloseLane { lane },
        _ => Record::Goodbye,
    };
    input.clear();
    input.extend_from_slice(&record.encode().expect("what the generator makes can be encoded"));
}

/// Applies one mutation to `input`. `fields` holds the offsets of small numbers.
fn mutate(random: &mut Random, input: &mut Vec<u8>, fields: &[usize], other: fn(&mut Random, &mut Vec<u8>)) {
    let length = input.len();
    if length == 0 {
        input.push(random.next() as u8);
        return;
    }
    let anywhere = random.below(length);
    match random.below(16) {
        0 | 1 => input[anywhere] ^= 1 << random.below(8),
        2 => input[anywhere] = random.next() as u8,
        // Set a field of one, two or four bytes to a boundary value.
        3..=5 => {
            let (place, width) = (random.pick(fields), random.pick(&[1, 2, 4]));
            let number = random.pick(&NUMBERS).to_le_bytes();
            if let Some(bytes) = input.get_mut(place..place + width) {
                bytes.copy_from_slice(&number[..width]);
            }
        }
        // Change a field by a small amount, to get values that are almost valid.
        6..=9 => {
            let place = random.pick(fields);
            if let Some(byte) = input.get_mut(place) {
                *byte = byte.wrapping_add(random.pick(&[1, 255, 8, 248, 16, 64, 192]));
            }
        }
        10 => input.truncate(anywhere),
        11 => {
            let more = random.pick(&[1, 8, 64, 128]);
            input.resize(length + more, random.pick(&[0, 0xff]));
        }
        12 => input.truncate(length / 64 * 64 - if length >= 128 { 64 } else { 0 }),
        // Copy one part of the input over another.
        13 => {
            let from = random.below(length);
            let size = 1 + random.below((length - anywhere.max(from)).min(80));
            input.copy_within(from..from + size, anywhere);
        }
        // Splice the end of another valid input onto the beginning of this one.
        14 => {
            let mut tail = Vec::new();
            other(random, &mut tail);
            input.truncate(anywhere / 8 * 8);
            let from = input.len().min(tail.len());
            input.extend_from_slice(&tail[from..]);
        }
        // Aim at the usual offsets of padding.
        _ => {
            let place = if random.one_in(2) {
                24 + random.below(32)
            } else {
                length.saturating_sub(9 + random.below(16))
            };
            if let Some(byte) = input.get_mut(place) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}
