//! How a function's calls run: the answer of `plan_of`.

use super::config::{ClientConfig, impatience};
use crate::plan::{CompletionMode, Lease, Occupancy, Plan, Sharing};
use crate::tune::Tuners;
use dunlin_fabric::Scheme;
use std::fmt;

/// How the calls of a function run: the answer of `plan_of` of every client. `Display` writes it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPlan {
    /// The function's name; `function 3` if only its number is known.
    pub function: String,
    /// The transport: `shm`, `rdma`, `iwarp`, `ofi`; `tcp` for stock Thrift.
    pub transport: &'static str,
    /// The plan in use; `None` for stock Thrift over TCP, and where the client has not connected and does not
    /// know it. Its waiting modes are the planned ones.
    pub plan: Option<Plan>,
    /// How the client waits; `None` over TCP, where it sleeps in the socket.
    pub client: Option<WaitsAs>,
    /// How the server's worker waits, as far as this client decides; `None` over TCP. Lanes of other clients
    /// can make a worker more impatient. A server whose workers and clients outnumbered the cores of their host when
    /// this client connected waits adaptively under busy plans; the reasons state the numbers.
    pub server: Option<WaitsAs>,
    /// Where the function runs.
    pub runs: RunsIn,
    /// The reasons, in words.
    pub reasons: Vec<String>,
}

/// The mode in which a side waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitsAs {
    /// The mode.
    pub mode: CompletionMode,
    /// The other function whose plan asks for the mode. A thread waits in one mode for all its lanes: the
    /// most impatient one. `None` if the function's own plan has the mode.
    pub because_of: Option<String>,
}

impl fmt::Display for WaitsAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.because_of {
            Some(function) => write!(f, "{}, because of {function}", self.mode),
            None => write!(f, "{}", self.mode),
        }
    }
}

/// The place where a function runs on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunsIn {
    /// The client does not know: functions called by number say nothing about it, nor does stock Thrift.
    #[default]
    Unknown,
    /// On the worker that receives the call.
    Worker,
    /// On the threads of the pool.
    Pool {
        /// Their number.
        threads: u16,
    },
    /// In tasks of the application.
    Tasks {
        /// The most calls in progress.
        most: u32,
    },
}

impl fmt::Display for RunsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunsIn::Unknown => f.write_str("where the server declared it"),
            RunsIn::Worker => f.write_str("on a worker"),
            RunsIn::Pool { threads: 1 } => f.write_str("in the pool of 1 thread"),
            RunsIn::Pool { threads } => write!(f, "in the pool of {threads} threads"),
            RunsIn::Tasks { most } => write!(f, "in tasks, at most {most} at a time"),
        }
    }
}

impl RunningPlan {
    /// Returns the answer of a client that does not know its plan: one that has not connected yet, or whose
    /// calls go by stock Thrift.
    #[must_use]
    pub const fn unknown(function: String, transport: &'static str) -> Self {
        let runs = RunsIn::Unknown;
        RunningPlan { function, transport, plan: None, client: None, server: None, runs, reasons: Vec::new() }
    }

    /// Returns the protocol of the plan; `None` for TCP, and for halves of two protocols.
    pub fn protocol(&self) -> Option<&'static str> {
        self.plan.and_then(|plan| plan.protocol()).map(|protocol| protocol.name)
    }
}

impl fmt::Display for RunningPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.function)?;
        match (&self.plan, self.protocol()) {
            (None, _) if self.transport == Scheme::Auto.as_str() => f.write_str("not connected yet")?,
            (None, _) => f.write_str("stock Thrift")?,
            (Some(_), Some(protocol)) => f.write_str(protocol)?,
            (Some(plan), None) => write!(f, "{} and {}", plan.request.name(), plan.response.name())?,
        }
        if let Some(plan) = self.plan.filter(|plan| plan.sharing != Sharing::Dedicated) {
            write!(f, " on {} lanes", plan.sharing.name())?;
        }
        if self.plan.is_some_and(|plan| plan.lease == Lease::Slice) {
            f.write_str(" with leases of a slice")?;
        }
        write!(f, " over {}", self.transport)?;
        for (side, waits) in [("client", &self.client), ("server", &self.server)] {
            if let Some(waits) = waits {
                write!(f, "; {side} {waits}")?;
            }
        }
        write!(f, "; runs {}", self.runs)?;
        self.reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

impl ClientConfig {
    /// Returns how the calls of a function run. `name` gives functions their names; `asynchronous` says that
    /// tasks wait instead of a thread. `occupancy` is that of the server's host, if the server stated it.
    pub(crate) fn running(
        &self,
        function: u16,
        transport: &'static str,
        tuners: &Tuners,
        name: &dyn Fn(u16) -> String,
        asynchronous: bool,
        occupancy: Option<Occupancy>,
    ) -> RunningPlan {
        let of = |function: u16| *self.functions.get(&function).unwrap_or(&self.usual());
        let planned = of(function);
        let plan = planned.written_back_if(tuners.rules_out_fetching());
        let waits = |side: fn(&Plan) -> CompletionMode| {
            let own = side(&planned);
            let (mut most, mut because_of) = (own, None);
            for other in self.functions.keys() {
                let mode = side(&of(*other));
                if impatience(mode) > impatience(most) {
                    (most, because_of) = (mode, Some(name(*other)));
                }
            }
            // Functions without a plan of their own, such as the introduction of a typed service.
            let usual = side(&self.usual());
            if impatience(usual) > impatience(most) {
                (most, because_of) = (usual, Some("the plan of all other functions".to_owned()));
            }
            WaitsAs { mode: most, because_of }
        };
        let mut client = waits(|plan| plan.client);
        let mut reasons = Vec::new();
        if asynchronous && client.mode == CompletionMode::Adaptive {
            client.mode = CompletionMode::Event;
            reasons.push("one thread sleeps for all tasks".to_owned());
        }
        let mut server = waits(|plan| plan.server);
        if server.mode == CompletionMode::Busy
            && let Some(crowded) = occupancy.filter(|of| !of.fits())
        {
            server = WaitsAs { mode: CompletionMode::Adaptive, because_of: None };
            reasons.push(format!("{crowded}, although plans say busy"));
        }
        if plan != planned {
            reasons.push("results are written back: by the fabric's rates no READ is cheaper".to_owned());
        }
        RunningPlan {
            function: name(function),
            transport,
            plan: Some(plan),
            client: Some(client),
            server: Some(server),
            runs: RunsIn::Unknown,
            reasons,
        }
    }
}

/// Returns the name of a function of which only the number is known.
pub(crate) fn numbered(function: u16) -> String {
    format!("function {function}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Protocol;
    use CompletionMode::{Adaptive, Busy, Event};

    fn plan(client: CompletionMode, server: CompletionMode) -> Plan {
        Protocol::by_name("Direct-WriteIMM").unwrap().plan(Busy).completion(client, server)
    }

    const NONE: Tuners = Tuners { fetch: None, batch: None };

    #[test]
    fn the_most_impatient_plan_decides_for_all() {
        let functions = [(1, plan(Busy, Event)), (2, plan(Event, Adaptive))].into_iter().collect();
        let config = ClientConfig { functions, ..ClientConfig::with_plan(plan(Event, Event)) };
        let running = config.running(2, "shm", &NONE, &numbered, false, None);
        assert_eq!(
            running.to_string(),
            "function 2: Direct-WriteIMM over shm; client busy, because of function 1; server adaptive; \
             runs where the server declared it"
        );
        assert_eq!(running.plan, Some(plan(Event, Adaptive)));
        let shared = plan(Event, Event).shared(Sharing::Combined, Lease::Forever);
        let shared =
            ClientConfig::with_plan(shared).running(3, "shm", &NONE, &numbered, false, None).to_string();
        assert!(shared.starts_with("function 3: Direct-WriteIMM on combined lanes over shm; "), "{shared}");
        let leased = Protocol::by_name("Server-reply").unwrap().plan(Busy);
        let leased = ClientConfig::with_plan(leased.shared(Sharing::Dedicated, Lease::Slice));
        let leased = leased.running(3, "shm", &NONE, &numbered, false, None).to_string();
        assert!(leased.starts_with("function 3: Server-reply with leases of a slice over shm; "), "{leased}");
        let running = config.running(1, "shm", &NONE, &numbered, false, None);
        let waits = |waits: Option<WaitsAs>| waits.unwrap().to_string();
        assert_eq!(waits(running.client), "busy");
        assert_eq!(waits(running.server), "adaptive, because of function 2");
        // Function 3 has no plan of its own.
        assert_eq!(
            waits(config.running(3, "shm", &NONE, &numbered, false, None).client),
            "busy, because of function 1"
        );
    }

    #[test]
    fn a_crowded_server_waits_adaptively_under_busy_plans() {
        let server = |mode, occupancy| {
            let config = ClientConfig::with_plan(plan(Busy, mode));
            config.running(1, "shm", &NONE, &numbered, false, occupancy)
        };
        let crowded = Occupancy { workers: 4, clients: 1, cores: 2 };
        let running = server(Busy, Some(crowded));
        assert_eq!(running.plan, Some(plan(Busy, Busy)), "the plan stays as it is");
        let line = running.to_string();
        let told =
            "4 workers and 1 client on 2 cores: more threads than cores, so the workers wait adaptively";
        assert!(line.contains("; client busy; server adaptive; ") && line.contains(told), "{line}");
        let fits = Occupancy { workers: 1, ..crowded };
        for (mode, occupancy) in [(Busy, None), (Busy, Some(fits)), (Event, Some(crowded))] {
            let running = server(mode, occupancy);
            assert_eq!(running.server, Some(WaitsAs { mode, because_of: None }));
            assert_eq!(running.reasons, [""; 0]);
        }
    }

    #[test]
    fn tasks_spin_or_sleep() {
        let config = ClientConfig::with_plan(plan(Adaptive, Adaptive));
        let client = |asynchronous| {
            config.running(1, "shm", &NONE, &numbered, asynchronous, None).client.unwrap().mode
        };
        assert_eq!((client(false), client(true)), (Adaptive, Event));
        assert_eq!(RunsIn::Pool { threads: 2 }.to_string(), "in the pool of 2 threads");
    }
}
