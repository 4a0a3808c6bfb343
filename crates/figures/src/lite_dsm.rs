//! LITE section 8.4: reads, acquisitions and releases of pages that nodes share.

use super::lite::PROFILE;
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_app_memory::{Push, Told};
use dunlin_scenario::shared_memory::{Act, Form, MemoryLoad};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-dsm", "Times of a shared memory by the number of members", PROFILE, "members"],
    "One member reads pages of 4 KB of which it has no copy, a quarter of them at home at itself if there are four, or acquires and releases ten pages, all bytes of \
     which it has written. With faults: the profile's price of a page fault for each page that is read, and the paper's time for mapping and checks (the memory is \
     in the kernel there) for each step: one of a read or an acquisition, three of a release. The paper's fault has a price of its own, which its text does not \
     state; in sequence is read as page after page without prefetching. Marked: readers set their bit in a word of the page before they read it again; the releaser \
     tells those only. The copies of readers are made outside of the measured times.",
    runs,
    points,
);

const CHANCE: &str = "read of a page by chance";
const SEQUENCE: &str = "read of a page in sequence";
const PREFETCH: &str = "read of a page, prefetched";
const ACQUIRE: &str = "acquire 10 pages";
const RELEASE: &str = "release 10 pages";
const FAULTS: &str = "with faults";

/// A series of releases: the members that have copies, those that are told, and what is pushed.
const RELEASES: [(&str, usize, Told, Push, usize); 6] = [
    ("release 10 pages, one reader", 1, Told::All, Push::Whole, 4096),
    ("release 10 pages, marked, no reader", 0, Told::Marked, Push::Whole, 4096),
    ("release 10 pages, marked, one reader", 1, Told::Marked, Push::Whole, 4096),
    ("release 10 pages, marked, all read", usize::MAX, Told::Marked, Push::Whole, 4096),
    ("release 10 pages, 64 bytes of each changed, whole", 0, Told::All, Push::Whole, 64),
    ("release 10 pages, 64 bytes of each changed, changes", 0, Told::All, Push::Changed, 64),
];

fn runs(effort: Effort) -> Vec<Run> {
    let (members, measured): (&[u16], u64) = match effort {
        Effort::Full => (&[2, 4, 8], 1_000),
        Effort::Quick => (&[4], 100),
    };
    let mut runs = Vec::new();
    for &members in members {
        let base = MemoryLoad { members, measured, warm_up: measured / 10, ..MemoryLoad::of(PROFILE) };
        let mut run = |series: &str, load| runs.push(Run::memory(series, members.into(), load));
        let acts = [
            (CHANCE, Act::ReadByChance),
            (SEQUENCE, Act::ReadInSequence),
            (PREFETCH, Act::Prefetch),
            (ACQUIRE, Act::Acquire),
            (RELEASE, Act::Release),
        ];
        for (series, act) in acts {
            run(series, MemoryLoad { act, ..base.clone() });
            run(&format!("{series}, {FAULTS}"), MemoryLoad { act, form: Form::Faults, ..base.clone() });
        }
        run(&format!("{CHANCE}, marked"), MemoryLoad { told: Told::Marked, ..base.clone() });
        for (series, readers, told, push, written) in RELEASES {
            run(series, MemoryLoad { act: Act::Release, readers, told, push, written, ..base.clone() });
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    let said = [
        (CHANCE, 12.6, "8.4: 12.6 us for random 4 KB read"),
        (SEQUENCE, 17.2, "8.4: 17.2 us for sequential 4 KB read"),
        (ACQUIRE, 9.2, "8.4: 9.2 us to begin with 10 dirty 4 KB pages"),
        (RELEASE, 74.3, "8.4: 74.3 us to commit 10 dirty 4 KB pages"),
    ];
    for point in points.iter_mut().filter(|point| point.x == 4) {
        let of = said.iter().find(|(series, ..)| point.series == format!("{series}, {FAULTS}"));
        point.said = of.map(|(_, value, place)| (Paper::Value(*value), *place));
    }
    points
}
