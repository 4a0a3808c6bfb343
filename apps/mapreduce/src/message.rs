//! Messages between workers and the master.

use std::fmt;

/// A region with sorted runs that a worker made: the number of the worker, and a number of its own, as in `3-0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Piece(u64);

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.worker(), self.number())
    }
}

impl Piece {
    pub(crate) fn new(worker: u32, number: u32) -> Piece {
        Piece(u64::from(worker) << 32 | u64::from(number))
    }

    pub(crate) fn worker(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn number(self) -> u32 {
        self.0 as u32
    }
}

/// A worker's word about its last task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Nothing,
    /// A split is mapped; its results are in the worker's memory, which may be full.
    Mapped {
        split: u32,
        is_full: bool,
    },
    /// The results of all splits since the last one are in this piece.
    Flushed {
        piece: Piece,
    },
    /// An output is in this piece.
    Made {
        output: u32,
        piece: Piece,
    },
    /// The task was not done, because a piece of another worker cannot be read.
    Lost {
        piece: Piece,
    },
    /// The task failed for good.
    Failed {
        text: String,
    },
}

/// The master's word about the next task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// Map a split.
    Map { split: u32 },
    /// Make a piece of the results in memory.
    Flush,
    /// Reduce the partition of this number.
    Reduce { output: u32, pieces: Vec<Piece> },
    /// Merge two outputs.
    Merge { output: u32, pieces: Vec<Piece> },
    /// Ask again later.
    Wait,
    /// The job is done.
    End,
    /// The job has failed.
    Failed(String),
    /// The master has given this worker up: it was silent for too long.
    Gone,
}

/// A request to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A worker wants to join a job. Both have the same program, input and settings if these agree.
    Join { agreement: u64 },
    /// A worker reports, and asks for its next task.
    Ask { worker: u32, number: u64, report: Report },
    /// Workers live.
    Alive { workers: Vec<u32> },
    /// The master's own thread: look at the clock.
    Tick,
    /// A worker ends before the job.
    Leave { worker: u32 },
}

/// The master's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Joined {
        worker: u32,
    },
    /// The worker has another program, input or settings.
    Disagree,
    /// There are too many workers.
    Full,
    Next(Assignment),
    Heard,
}

/// The longest text of a failure, in bytes.
const MAX_TEXT: usize = 4096;
/// The most pieces of one task: with 8 bytes each they fit in a call of the tier.
const MAX_PIECES: usize = 262_144;

/// The bytes that are left of a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn piece(&mut self) -> Option<Piece> {
        self.long().map(Piece)
    }

    fn kind(&mut self) -> Option<u8> {
        self.take().map(|[kind]: [u8; 1]| kind)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.kind()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn pieces(&mut self) -> Option<Vec<Piece>> {
        let count = self.number()? as usize;
        if count > MAX_PIECES || self.0.len() != 8 * count {
            return None;
        }
        (0..count).map(|_| self.piece()).collect()
    }

    fn text(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.0);
        (bytes.len() <= MAX_TEXT).then(|| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Passes a message on if nothing of it is left.
    fn whole<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn put_pieces(out: &mut Vec<u8>, pieces: &[Piece]) {
    out.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
    pieces.iter().for_each(|piece| out.extend_from_slice(&piece.0.to_le_bytes()));
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Request::Join { agreement } => {
                out.push(0);
                out.extend_from_slice(&agreement.to_le_bytes());
            }
            Request::Ask { worker, number, report } => {
                out.push(1);
                out.extend_from_slice(&worker.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
                put_report(&mut out, report);
            }
            Request::Alive { workers } => {
                out.push(2);
                workers.iter().for_each(|worker| out.extend_from_slice(&worker.to_le_bytes()));
            }
            Request::Tick => out.push(3),
            Request::Leave { worker } => {
                out.push(4);
                out.extend_from_slice(&worker.to_le_bytes());
            }
        }
        out
    }

    /// Reads a request; nothing for any other bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        let request = match reader.kind()? {
            0 => Request::Join { agreement: reader.long()? },
            1 => {
                let (worker, number) = (reader.number()?, reader.long()?);
                Request::Ask { worker, number, report: report(&mut reader)? }
            }
            2 => {
                let (numbers, rest) = std::mem::take(&mut reader.0).as_chunks();
                if !rest.is_empty() {
                    return None;
                }
                Request::Alive { workers: numbers.iter().map(|one| u32::from_le_bytes(*one)).collect() }
            }
            3 => Request::Tick,
            4 => Request::Leave { worker: u32::from_le_bytes(reader.take()?) },
            _ => return None,
        };
        reader.whole(request)
    }
}

fn put_report(out: &mut Vec<u8>, report: &Report) {
    match report {
        Report::Nothing => out.push(0),
        Report::Mapped { split, is_full } => {
            out.extend_from_slice(&[1, u8::from(*is_full)]);
            out.extend_from_slice(&split.to_le_bytes());
        }
        Report::Flushed { piece } => {
            out.push(2);
            out.extend_from_slice(&piece.0.to_le_bytes());
        }
        Report::Made { output, piece } => {
            out.push(3);
            out.extend_from_slice(&output.to_le_bytes());
            out.extend_from_slice(&piece.0.to_le_bytes());
        }
        Report::Lost { piece } => {
            out.push(4);
            out.extend_from_slice(&piece.0.to_le_bytes());
        }
        Report::Failed { text } => {
            out.push(5);
            put_text(out, text);
        }
    }
}

fn report(reader: &mut Reader<'_>) -> Option<Report> {
    Some(match reader.kind()? {
        0 => Report::Nothing,
        1 => {
            let is_full = reader.flag()?;
            Report::Mapped { split: reader.number()?, is_full }
        }
        2 => Report::Flushed { piece: reader.piece()? },
        3 => Report::Made { output: reader.number()?, piece: reader.piece()? },
        4 => Report::Lost { piece: reader.piece()? },
        5 => Report::Failed { text: reader.text()? },
        _ => return None,
    })
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Answer::Joined { worker } => {
                out.push(0);
                out.extend_from_slice(&worker.to_le_bytes());
            }
            Answer::Disagree => out.push(1),
            Answer::Full => out.push(2),
            Answer::Heard => out.push(3),
            Answer::Next(assignment) => {
                out.push(4);
                put_assignment(&mut out, assignment);
            }
        }
        out
    }

    /// Reads an answer; nothing for any other bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader(bytes);
        let answer = match reader.kind()? {
            0 => Answer::Joined { worker: reader.number()? },
            1 => Answer::Disagree,
            2 => Answer::Full,
            3 => Answer::Heard,
            4 => Answer::Next(assignment(&mut reader)?),
            _ => return None,
        };
        reader.whole(answer)
    }
}

fn put_assignment(out: &mut Vec<u8>, assignment: &Assignment) {
    match assignment {
        Assignment::Map { split } => {
            out.push(0);
            out.extend_from_slice(&split.to_le_bytes());
        }
        Assignment::Flush => out.push(1),
        Assignment::Reduce { output, pieces } => {
            out.push(2);
            out.extend_from_slice(&output.to_le_bytes());
            put_pieces(out, pieces);
        }
        Assignment::Merge { output, pieces } => {
            out.push(3);
            out.extend_from_slice(&output.to_le_bytes());
            put_pieces(out, pieces);
        }
        Assignment::Wait => out.push(4),
        Assignment::End => out.push(5),
        Assignment::Failed(text) => {
            out.push(6);
            put_text(out, text);
        }
        Assignment::Gone => out.push(7),
    }
}

fn assignment(reader: &mut Reader<'_>) -> Option<Assignment> {
    Some(match reader.kind()? {
        0 => Assignment::Map { split: reader.number()? },
        1 => Assignment::Flush,
        2 => Assignment::Reduce { output: reader.number()?, pieces: reader.pieces()? },
        3 => Assignment::Merge { output: reader.number()?, pieces: reader.pieces()? },
        4 => Assignment::Wait,
        5 => Assignment::End,
        6 => Assignment::Failed(reader.text()?),
        7 => Assignment::Gone,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece> {
        any::<u64>().prop_map(Piece)
    }

    fn reports() -> impl Strategy<Value = Report> {
        prop_oneof![
            Just(Report::Nothing),
            (any::<u32>(), any::<bool>()).prop_map(|(split, is_full)| Report::Mapped { split, is_full }),
            piece().prop_map(|piece| Report::Flushed { piece }),
            (any::<u32>(), piece()).prop_map(|(output, piece)| Report::Made { output, piece }),
            piece().prop_map(|piece| Report::Lost { piece }),
            "[a-zä]{0,40}".prop_map(|text| Report::Failed { text }),
        ]
    }

    fn assignments() -> impl Strategy<Value = Assignment> {
        let pieces = || proptest::collection::vec(piece(), 0..9);
        prop_oneof![
            any::<u32>().prop_map(|split| Assignment::Map { split }),
            Just(Assignment::Flush),
            (any::<u32>(), pieces()).prop_map(|(output, pieces)| Assignment::Reduce { output, pieces }),
            (any::<u32>(), pieces()).prop_map(|(output, pieces)| Assignment::Merge { output, pieces }),
            Just(Assignment::Wait),
            Just(Assignment::End),
            "[a-zä]{0,40}".prop_map(Assignment::Failed),
            Just(Assignment::Gone),
        ]
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(
            report in reports(), next in assignments(), worker: u32, number: u64, workers: Vec<u32>,
        ) {
            let requests = [
                Request::Join { agreement: number },
                Request::Ask { worker, number, report },
                Request::Alive { workers },
                Request::Tick,
                Request::Leave { worker },
            ];
            for request in requests {
                prop_assert_eq!(Request::parse(&request.encode()), Some(request));
            }
            let answers =
                [Answer::Joined { worker }, Answer::Disagree, Answer::Full, Answer::Heard, Answer::Next(next)];
            for answer in answers {
                prop_assert_eq!(Answer::parse(&answer.encode()), Some(answer));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(&request.encode()), Some(request));
            }
            if let Some(answer) = Answer::parse(&bytes) {
                prop_assert_eq!(Answer::parse(&answer.encode()), Some(answer));
            }
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let report = Report::Failed { text: "ä".repeat(4096) };
        let request = Request::Ask { worker: 1, number: 2, report };
        let Some(Request::Ask { report: Report::Failed { text }, .. }) = Request::parse(&request.encode())
        else {
            panic!("not read");
        };
        assert_eq!(text, "ä".repeat(2048));
    }
}
