//! FLOCK figure 9: ways to share queue pairs, by the number of threads of a client.

use super::flock::{HOSTS, Threads, busiest, mops, p99, ratios, three_ways};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_rpc::Sharing;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-9", "Ways to share queue pairs, 8 calls in flight", "flock", "threads_of_a_client"],
    "As flock-6. A queue pair per thread: FLOCK's messages without sharing. Spin lock: 2 or 4 threads on a queue pair behind a lock that they spin for; each \
     call is a message. FLOCK has one handle for each of its queue pairs, and no scheduling. 'Similar' is read as within a tenth.",
    runs,
    points,
);

const IN_FLIGHT: u16 = 8;
const FLOCK: &str = "FLOCK";
const OWN: &str = "a queue pair per thread";
const TWO: &str = "2 threads, spin lock";
const FOUR: &str = "4 threads, spin lock";

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 32, 48],
        Effort::Quick => &[8, 32],
    };
    let mut runs = Vec::new();
    for threads in threads {
        let all = HOSTS * threads;
        runs.push(Run::of(FLOCK, *threads, Threads::flock(all, IN_FLIGHT).load(effort)));
        runs.push(Run::of(OWN, *threads, Threads::dedicated(all, IN_FLIGHT).load(effort)));
        for (series, share) in [(TWO, 2), (FOUR, 4)] {
            if *threads >= share
                && let Some(sharing) = Sharing::by_name("locked")
            {
                let queue_pairs = all / share;
                let crowd = Threads { number: all, queue_pairs, sharing, in_flight: IN_FLIGHT };
                runs.push(Run::of(series, *threads, crowd.load(effort)));
            }
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = three_ways(outcomes);
    let mut degree = outcomes.as_they_are("calls_a_message", |outcome| outcome.degree);
    degree.retain(|point| point.series == FLOCK);
    degree.iter_mut().for_each(|point| point.series = format!("{FLOCK}, requests a message"));
    points.extend(degree);
    let title = format!("{FLOCK} over {OWN}");
    points.extend(ratios(outcomes, &title, (FLOCK, OWN), mops, |x| match x {
        ..=8 => Some((Paper::Between(0.9, 1.1), "8.3.1: similar up to 8 threads")),
        16 => Some((Paper::Between(1.0, 1.1), "8.3.1: slightly better at 16 threads")),
        _ => None,
    }));
    for x in outcomes.xs() {
        let of = |series: &&str| outcomes.get(series, x, mops);
        let best = [OWN, TWO, FOUR].iter().filter_map(of).reduce(f64::max);
        let (Some(flock), Some(best)) = (of(&FLOCK), best) else { continue };
        let said = match x {
            32 => Some((Paper::AtLeast(1.62), "8.3.1: at least 62% more at 32 threads")),
            48 => Some((Paper::AtLeast(2.33), "8.3.1: at least 133% more at 48 threads")),
            _ => None,
        };
        let (series, predicted) = (format!("{FLOCK} over the best other"), flock / best);
        points.push(Point { series, x, unit: "ratio", predicted, said });
    }
    let title = format!("99% of calls, {FLOCK} over {OWN}");
    points.extend(ratios(outcomes, &title, (FLOCK, OWN), p99, |x| match x {
        ..=8 => Some((Paper::Between(0.9, 1.1), "8.3.1: similar up to 8 threads")),
        32 => Some((Paper::Value(0.73), "8.3.1: 27% lower at 32 threads")),
        48 => Some((Paper::Value(0.51), "8.3.1: 49% lower at 48 threads")),
        _ => None,
    }));
    let median: fn(&Outcome) -> f64 = super::flock::median;
    let title = format!("median, {FLOCK} over {OWN}");
    points.extend(ratios(outcomes, &title, (FLOCK, OWN), median, |x| {
        (x <= 8).then_some((Paper::Between(0.9, 1.1), "8.3.1: similar up to 8 threads"))
    }));
    for series in [TWO, FOUR] {
        let title = format!("{series}, over {OWN}");
        points.extend(ratios(outcomes, &title, (series, OWN), mops, |x| {
            (x >= 32).then_some((Paper::Between(0.9, 1.1), "8.3.1: a spin lock performs similarly"))
        }));
    }
    points.extend(busiest(outcomes));
    points
}
