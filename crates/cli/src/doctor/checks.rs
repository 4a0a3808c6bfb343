//! The checks of this machine. Each check tries the feature itself where possible, rather than look it up.

use super::Finding;
use dunlin::errors::WithSources;
use dunlin::fabric::ShmConfig;
use dunlin_report::Unit;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Runs all checks except those of RDMA devices.
pub(super) fn all() -> Vec<Finding> {
    vec![
        kernel(),
        cores(),
        shared_memory(),
        abstract_socket(),
        futex(),
        fabric(),
        descriptors(),
        locked_memory(),
        huge_pages(),
        node_pages(),
        page_faults(),
        memory(),
        clock(),
        containers_shm(),
    ]
}

fn bytes(count: u64) -> String {
    Unit::Bytes.format(count as f64)
}

/// Returns a value of /proc/meminfo, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let number: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    // Page counts have no unit suffix.
    Some(if line.ends_with("kB") { number * 1024 } else { number })
}

/// Linux 5.1 introduced F_SEAL_FUTURE_WRITE, which read-only grants need.
const OLDEST_KERNEL: (u32, u32) = (5, 1);

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST_KERNEL {
        let advice = "dunlin needs Linux 5.1 or later, for seals that grant memory read-only";
        return Finding::fail("kernel", format!("Linux {release}"), advice);
    }
    Finding::ok("kernel", format!("Linux {release}"))
}

fn cores() -> Finding {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let found = format!("{usable} usable by this process");
    if usable < 2 {
        return Finding::warn(
            "cores",
            found,
            "busy completion needs a core for each side; use --completion event or adaptive, or allow more (taskset, cpuset)",
        );
    }
    Finding::ok("cores", found)
}

/// Creates a sealed memfd as a grant does, and checks that its seals hold.
fn shared_memory() -> Finding {
    const NAME: &str = "shared memory";
    let advice = "allow memfd_create and fcntl seals (a seccomp or LSM policy may forbid them), with Linux 5.1 or later";
    let tried = || -> Result<(), String> {
        let said = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
        let memory = memfd_create("dunlin-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(said("memfd_create"))?;
        ftruncate(&memory, 4096).map_err(said("ftruncate"))?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals).map_err(said("sealing with F_SEAL_FUTURE_WRITE"))?;
        if fcntl_get_seals(&memory).map_err(said("reading the seals"))? != seals {
            return Err("the seals that were set are not all there".to_owned());
        }
        if rustix::io::write(&memory, b"x").is_ok() || ftruncate(&memory, 8192).is_ok() {
            return Err("the seals do not hold".to_owned());
        }
        Ok(())
    };
    match tried() {
        Ok(()) => Finding::ok(NAME, "memfd with F_SEAL_FUTURE_WRITE, SHRINK, GROW and SEAL, tried"),
        Err(error) => Finding::fail(NAME, error, advice),
    }
}

/// Listens and connects under an abstract name, and sends a byte.
fn abstract_socket() -> Finding {
    const NAME: &str = "Unix sockets";
    let tried = || -> std::io::Result<bool> {
        let address = SocketAddr::from_abstract_name(format!("dunlin-doctor-{}", std::process::id()))?;
        let listener = UnixListener::bind_addr(&address)?;
        let mut client = UnixStream::connect_addr(&address)?;
        let (mut server, _) = listener.accept()?;
        client.write_all(b"?")?;
        server.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut byte = [0];
        server.read_exact(&mut byte)?;
        Ok(&byte == b"?")
    };
    let advice = "shm:NAME is an abstract Unix socket; allow AF_UNIX sockets (seccomp, systemd's RestrictAddressFamilies)";
    match tried() {
        Ok(true) => Finding::ok(NAME, "abstract names, tried"),
        Ok(false) => Finding::fail(NAME, "a byte sent through an abstract socket came out another", advice),
        Err(error) => Finding::fail(NAME, format!("abstract names cannot be used: {error}"), advice),
    }
}

/// Exchanges a word between two threads by futex.
fn futex() -> Finding {
    const NAME: &str = "futex";
    const ROUNDS: u32 = 200;
    let word = AtomicU32::new(0);
    let flags = rustix::thread::futex::Flags::empty();
    let limit = Duration::from_secs(2);
    // Waits until the word has this parity. Returns false after the time limit.
    let await_parity = |parity: u32, begin: Instant| loop {
        let seen = word.load(Ordering::Acquire);
        if seen % 2 == parity {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        let pause = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // After a change, a wake-up, an interruption or a timeout: check again.
        let _ = rustix::thread::futex::wait(&word, flags, seen, Some(&pause));
    };
    let hand_over = || {
        word.fetch_add(1, Ordering::AcqRel);
        rustix::thread::futex::wake(&word, flags, 1).is_ok()
    };
    let begin = Instant::now();
    let fine = std::thread::scope(|scope| {
        let other = scope.spawn(|| (0..ROUNDS).all(|_| await_parity(1, begin) && hand_over()));
        let own = (0..ROUNDS).all(|_| hand_over() && await_parity(0, begin));
        own && other.join().unwrap_or(false)
    });
    let took = begin.elapsed();
    if !fine {
        let advice = "event and adaptive completion sleep on futexes; allow the futex system call (seccomp)";
        return Finding::fail(NAME, "a hand-over between two threads did not work", advice);
    }
    let each = took.as_nanos() as f64 / f64::from(ROUNDS);
    Finding::ok(NAME, format!("hand-over and back, tried: {} here and now", Unit::Nanoseconds.format(each)))
}

/// Opens the fabric.
fn fabric() -> Finding {
    match dunlin::fabric::ShmFabric::new(ShmConfig::default()) {
        Ok(_) => Finding::ok("fabric shm", "starts"),
        Err(error) => Finding::fail(
            "fabric shm",
            format!("does not start: {error}"),
            "allow epoll, eventfd and threads (ulimit -u)",
        ),
    }
}

/// Descriptors that a server needs: several for each of a thousand connections.
const WANTED_DESCRIPTORS: u64 = 16_384;

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    match limit.maximum {
        Some(hard) if hard < WANTED_DESCRIPTORS => Finding::warn(
            "descriptors",
            format!("at most {hard}"),
            format!(
                "a server with a thousand connections wants {WANTED_DESCRIPTORS}; raise it (ulimit -Hn, or LimitNOFILE= of the unit)"
            ),
        ),
        Some(hard) => {
            Finding::ok("descriptors", format!("at most {hard} (dunlin raises its own soft limit)"))
        }
        None => Finding::ok("descriptors", "no limit"),
    }
}

/// RNICs pin registered memory; shared memory pins nothing.
const WANTED_LOCKED: u64 = 1 << 30;

fn locked_memory() -> Finding {
    match getrlimit(Resource::Memlock).current {
        Some(limit) if limit < WANTED_LOCKED => Finding::warn(
            "locked memory",
            format!("at most {}", bytes(limit)),
            "enough for shared memory, which locks none; an RNIC locks what is registered: ulimit -l unlimited, `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity of a unit, --ulimit memlock=-1 of a container",
        ),
        Some(limit) => Finding::ok("locked memory", format!("at most {}", bytes(limit))),
        None => Finding::ok("locked memory", "no limit"),
    }
}

/// Returns a setting of transparent huge pages: the word in brackets.
fn transparent(file: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{file}")).ok()?;
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word.to_owned())
}

/// The pages that the memory of a node gets on shared memory, which is a file: reserved ones, else transparent ones by a
/// setting of their own.
fn node_pages() -> Finding {
    const NAME: &str = "node memory";
    let free = |kib: u64| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages"));
        text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let (large, small) = (free(1 << 20), free(2 << 10));
    if large + small > 0 {
        let large = match large {
            0 => String::new(),
            large => format!("{large} of 1 GiB (for extents of that length: --extent 1GiB) and "),
        };
        return Finding::ok(NAME, format!("huge: {large}{small} of 2 MiB are free"));
    }
    match transparent("shmem_enabled").as_deref() {
        Some(word @ ("always" | "within_size" | "advise" | "force")) => {
            Finding::ok(NAME, format!("transparent huge ones (shmem_enabled: {word}); none reserved"))
        }
        _ => Finding::warn(
            NAME,
            "of 4 KiB: no huge ones are reserved, and the kernel makes none for shared memory",
            "sysctl vm.nr_hugepages=512 reserves 1 GiB in pages of 2 MiB; hugepages=N on the kernel's command line with \
             hugepagesz=1G those of 1 GiB; or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}

fn huge_pages() -> Finding {
    const NAME: &str = "huge pages";
    let size = meminfo("Hugepagesize").unwrap_or(2 << 20);
    let free = meminfo("HugePages_Free").unwrap_or(0);
    if free > 0 {
        return Finding::ok(NAME, format!("{free} reserved and free, of {} each", bytes(size)));
    }
    match transparent("enabled").as_deref() {
        Some(word @ ("always" | "madvise")) => {
            Finding::ok(NAME, format!("transparent ({word}); none reserved, which is fine"))
        }
        Some(word) => Finding::warn(
            NAME,
            format!("none reserved, and transparent ones are set to '{word}'"),
            "the store's lookups take about twice as long: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        None => Finding::warn(
            NAME,
            "none reserved, and this kernel has no transparent ones",
            "the store's lookups take about twice as long: reserve some (sysctl vm.nr_hugepages=512)",
        ),
    }
}

/// Maps a page whose faults this process answers.
fn page_faults() -> Finding {
    const NAME: &str = "page faults";
    match dunlin_page_faults::check() {
        Ok(()) => Finding::ok(NAME, "userfaultfd of user mode with write protection, tried"),
        Err(error) => Finding::warn(
            NAME,
            WithSources(&error).to_string(),
            "shared memories cannot be mapped, and `read` and `write` work: use Linux 5.11 or later, and allow userfaultfd \
             (seccomp: a container needs a profile that permits it)",
        ),
    }
}

fn memory() -> Finding {
    match (meminfo("MemAvailable"), meminfo("MemTotal")) {
        (Some(available), Some(total)) => {
            let found = format!("{} of {} available", bytes(available), bytes(total));
            if available < 512 << 20 {
                let advice =
                    "the demo's server takes up to 128 MiB, and a client some; free memory or lower --memory";
                Finding::warn("memory", found, advice)
            } else {
                Finding::ok("memory", found)
            }
        }
        _ => Finding::warn("memory", "/proc/meminfo cannot be read", "mount /proc"),
    }
}

fn clock() -> Finding {
    const NAME: &str = "clock";
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .map_or_else(|_| "unknown source".to_owned(), |text| text.trim().to_owned());
    let begin = Instant::now();
    const READS: u32 = 20_000;
    for _ in 0..READS {
        std::hint::black_box(Instant::now());
    }
    let read = begin.elapsed().as_nanos() as f64 / f64::from(READS);
    let ticks = dunlin_floor::TickClock::new().source();
    let found = format!("{source}, {} a reading; measurements use {ticks}", Unit::Nanoseconds.format(read));
    if read > 200.0 {
        return Finding::warn(
            NAME,
            found,
            "reading the time makes a system call, which deadlines and adaptive waits pay for; choose tsc or kvm-clock as clock source if the machine offers it",
        );
    }
    Finding::ok(NAME, found)
}

/// Dunlin keeps nothing in /dev/shm, but users often suspect it first.
fn containers_shm() -> Finding {
    let leftover = fs::read_dir("/dev/shm")
        .map(|folder| {
            folder
                .filter_map(Result::ok)
                .filter(|entry| entry.file_name().to_string_lossy().contains("dunlin"))
                .count()
        })
        .unwrap_or(0);
    if leftover > 0 {
        return Finding::warn(
            "/dev/shm",
            format!("{leftover} files named after dunlin"),
            "dunlin keeps nothing there (its memory has no name); whatever they are, they may be removed",
        );
    }
    Finding::ok(
        "/dev/shm",
        "not used: memory is passed by descriptor, so a container's small /dev/shm does no harm",
    )
}
