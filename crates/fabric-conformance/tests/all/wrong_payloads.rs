//! Proof that the cases of payload buffers can fail: a reference fabric whose buffers are wrong in one respect.

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::*;
use dunlin_fabric_conformance::reference::{Reference, ReferenceDomain, ReferenceLink, ReferenceListener};
use dunlin_fabric_conformance::{Case, MILLISECOND, Options, Pair, run_in_process};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    ShortensCopies,
    GivesLongerBuffers,
    ZeroesLate,
    KeepsBuffersAtTheLimit,
}

#[derive(Clone, Debug)]
struct WrongFabric(Reference, Wrong);

impl Fabric for WrongFabric {
    type Host = RealHost;
    type Memory = HeapMemory;
    type Link = ReferenceLink;
    type Listener = ReferenceListener;
    type Domain = ReferenceDomain;
    type Payloads = WrongPayloads;

    fn host(&self) -> &RealHost {
        self.0.host()
    }

    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn payloads(&self) -> WrongPayloads {
        WrongPayloads { wrong: self.1, kept: None }
    }

    fn register(&self, length: u64, access: Access) -> Result<HeapMemory, RegisterError> {
        self.0.register(length, access)
    }

    fn domain(&self) -> Result<ReferenceDomain, CreateError> {
        self.0.domain()
    }

    fn listen(&self, address: &Address) -> Result<ReferenceListener, ListenError> {
        self.0.listen(address)
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<ReferenceLink, DialError> {
        self.0.dial(address, until)
    }
}

#[derive(Debug)]
struct WrongPayloads {
    wrong: Wrong,
    kept: Option<Buffer<HeapMemory>>,
}

#[derive(Debug)]
struct WrongFilling(Wrong);

impl PayloadBuffers<HeapMemory> for WrongPayloads {
    type Filling = WrongFilling;

    fn reserve(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<HeapMemory>,
    ) -> Option<Buffer<HeapMemory>> {
        from.reserve(length + usize::from(self.wrong == Wrong::GivesLongerBuffers), 0)
    }

    fn reserve_in_pieces(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<HeapMemory>,
    ) -> Option<(Buffer<HeapMemory>, WrongFilling)> {
        from.reserve(length, 0).map(|buffer| (buffer, WrongFilling(self.wrong)))
    }

    fn filled(&mut self, _: WrongFilling) {}

    fn sent(&mut self, length: usize, from: &mut impl BufferSource<HeapMemory>) {
        if self.wrong == Wrong::KeepsBuffersAtTheLimit {
            self.kept = from.mapped(length);
        }
    }

    fn release(&mut self, _: Pressure) -> bool {
        false
    }
}

impl PayloadFilling for WrongFilling {
    fn began(&mut self, _: usize) {}

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        copy_plainly(to, from);
        match self.0 {
            Wrong::ShortensCopies => to[to.len() - 1] ^= 1,
            Wrong::ZeroesLate if to.len() > 4096 => to[..4096].fill(0),
            _ => {}
        }
    }
}

#[test]
fn wrong_payload_buffers_are_found() {
    const CASES: [&str; 2] = ["payloads_arrive_whole", "payload_buffers_come_back"];
    for (wrong, expected) in [
        (Wrong::Nothing, &[][..]),
        (Wrong::ShortensCopies, &CASES[..]),
        (Wrong::GivesLongerBuffers, &CASES[..]),
        (Wrong::ZeroesLate, &CASES[..]),
        (Wrong::KeepsBuffersAtTheLimit, &CASES[1..]),
    ] {
        let options = Options {
            limit: 10_000 * MILLISECOND,
            only: CASES.map(str::to_owned).into(),
            ..Options::default()
        };
        let make = |case: &Case<WrongFabric>| {
            let fabric = WrongFabric(Reference::new(), wrong);
            let address = Address::new(Scheme::Sim, case.name).unwrap();
            Pair { first: fabric.clone(), second: fabric, address }
        };
        let report = run_in_process(&options, make, |_| ());
        assert_eq!(report.failed(), expected, "{wrong:?}: {:#?}", report.rows);
        assert_eq!(report.passed().len() + expected.len(), CASES.len(), "{wrong:?}");
    }
}
