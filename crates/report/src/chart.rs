//! Derives charts from a document's rows: one chart for each kind of measure that the rows contain.
//!
//! A measure becomes a line chart over a numeric parameter (`clients`, `size_bytes`, `window`, ...) if some
//! series has at least three values of it. Otherwise it becomes a bar chart.

use std::collections::BTreeSet;

use serde_json::Value;

use super::plot::{Axis, Bars, Chart, Content, Lines};
use super::{Row, Unit, readable};
use crate::statistics::median;

/// A kind of measure: title, axis, and the fields to draw with their legend names. Line charts show the
/// first field.
struct Measure {
    title: &'static str,
    label: &'static str,
    /// The field with the physical floor, for measures that have one.
    floor: Option<&'static str>,
    fields: &'static [(&'static str, &'static str)],
}

/// The title of the chart of tails.
const TAIL: &str = "tail latency";

const MEASURES: [Measure; 5] = [
    Measure {
        title: "latency",
        label: "latency",
        floor: Some("floor_p50_ns"),
        fields: &[("p50_ns", "p50"), ("p99_ns", "p99"), ("p999_ns", "p99.9"), ("floor_p50_ns", "floor, p50")],
    },
    Measure {
        title: "throughput",
        label: "operations per second",
        floor: Some("floor_throughput_ops"),
        fields: &[("throughput_ops", "measured"), ("floor_throughput_ops", "floor")],
    },
    // Of rows without a `p50_ns`: their tails are to be compared.
    Measure { title: TAIL, label: "p99 of the latency", floor: None, fields: &[("p99_ns", "p99")] },
    Measure {
        title: "bandwidth",
        label: "bytes per second",
        floor: None,
        fields: &[("bytes_per_s", "measured")],
    },
    Measure {
        title: "server CPU time",
        label: "CPU time per operation",
        floor: None,
        fields: &[("server_cpu_ns_per_op", "measured")],
    },
];

/// Numeric fields that describe the measurement procedure, not its subject.
const BOOKKEEPING: [&str; 6] = ["samples", "slices", "alternations", "seconds", "operations", "errors"];

/// Returns the charts of a measurement. Empty when no row has a value to draw.
#[must_use]
pub fn charts_of(name: &str, rows: &[Row]) -> Vec<Chart> {
    let has_median = rows.iter().any(|row| row.get("p50_ns").is_some());
    let drawn = MEASURES.iter().filter(|measure| !(has_median && measure.title == TAIL));
    drawn.filter_map(|measure| chart_of(name, measure, rows)).collect()
}

fn chart_of(name: &str, measure: &Measure, rows: &[Row]) -> Option<Chart> {
    let (first, _) = measure.fields[0];
    let rows: Vec<&Row> =
        rows.iter().filter(|row| row.number(first).is_some_and(|value| value > 0.0)).collect();
    if rows.is_empty() {
        return None;
    }
    let content = lines(measure, &rows).map_or_else(|| bars(measure, &rows), Content::Lines);
    let label = match &content {
        // The legend of a bar chart names the percentiles. A line chart shows only the median.
        Content::Lines(_) if first == "p50_ns" => format!("median {}", measure.label),
        _ => measure.label.to_owned(),
    };
    let logarithmic = spread(&content)
        >= match &content {
            // Bars need an axis from 0, since their length carries the value. Only latencies use a
            // logarithmic axis, for their tails.
            Content::Bars(_) if first == "p50_ns" => 8.0,
            Content::Bars(_) => f64::INFINITY,
            Content::Lines(_) => 30.0,
        };
    Some(Chart {
        title: format!("{name}: {}", measure.title),
        values: Axis { label, unit: Unit::of(first).0, logarithmic },
        content,
    })
}

/// Returns the ratio of the largest to the smallest positive value.
fn spread(content: &Content) -> f64 {
    let values: Vec<f64> = match content {
        Content::Bars(bars) => {
            bars.series.iter().flat_map(|(_, values)| values.iter().flatten().copied()).collect()
        }
        Content::Lines(lines) => {
            lines.series.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)).collect()
        }
    };
    let positive = || values.iter().copied().filter(|value| *value > 0.0);
    positive().fold(0.0, f64::max) / positive().fold(f64::INFINITY, f64::min)
}

/// Returns whether a field is a parameter that distinguishes rows, rather than a measured value.
fn is_parameter(field: &str, value: &Value) -> bool {
    match value {
        Value::String(_) | Value::Bool(_) => true,
        Value::Number(_) => {
            matches!(Unit::of(field).0, Unit::None | Unit::Bytes) && !BOOKKEEPING.contains(&field)
        }
        _ => false,
    }
}

/// Returns the parameters that differ between rows: texts before numbers, each in order of appearance.
fn varying<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut fields: Vec<&str> = Vec::new();
    for (field, value) in rows.iter().flat_map(|row| row.fields()) {
        if is_parameter(field, value) && !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields.retain(|field| rows.iter().any(|row| row.get(field) != rows[0].get(field)));
    fields.sort_by_key(|field| rows.iter().any(|row| row.number(field).is_some()));
    fields
}

/// Returns the name of a row, built from the values of `fields`.
fn label(row: &Row, fields: &[&str]) -> String {
    let parts = fields.iter().filter_map(|field| match row.get(field)? {
        Value::String(text) => Some(text.clone()),
        Value::Bool(true) => Some(field.replace('_', " ")),
        Value::Bool(false) => Some(format!("not {}", field.replace('_', " "))),
        value @ Value::Number(_) => Some(match Unit::of(field) {
            (Unit::None, stem) => format!("{} {}", stem.replace('_', " "), readable(field, value)),
            _ => readable(field, value),
        }),
        _ => None,
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns a name for each row, built from as few of `fields` as distinguish all rows.
fn labels(rows: &[&Row], fields: &[&str]) -> Vec<String> {
    if let [row] = rows {
        let text = row.fields().find_map(|(_, value)| value.as_str());
        return vec![text.unwrap_or_default().to_owned()];
    }
    let mut used: Vec<&str> = Vec::new();
    let mut current: Vec<String> = vec![String::new(); rows.len()];
    let different = |labels: &[String]| labels.iter().collect::<BTreeSet<_>>().len();
    for field in fields {
        if different(&current) == rows.len() {
            break;
        }
        used.push(field);
        let longer: Vec<String> = rows.iter().map(|row| label(row, &used)).collect();
        if different(&longer) > different(&current) {
            current = longer;
        } else {
            used.pop();
        }
    }
    current
}

fn bars(measure: &Measure, rows: &[&Row]) -> Content {
    let series = measure
        .fields
        .iter()
        .map(|(field, name)| {
            ((*name).to_owned(), rows.iter().map(|row| row.number(field)).collect::<Vec<_>>())
        })
        .filter(|(_, values)| values.iter().any(Option::is_some))
        .collect();
    Content::Bars(Bars { categories: labels(rows, &varying(rows)), series })
}

fn lines(measure: &Measure, rows: &[&Row]) -> Option<Lines> {
    let (field, _) = measure.fields[0];
    let fields = varying(rows);
    // The swept parameter is the number with the most distinct values.
    let (along, _) = fields
        .iter()
        .filter(|along| rows.iter().all(|row| row.number(along).is_some()))
        .map(|along| {
            (
                *along,
                rows.iter()
                    .filter_map(|row| row.get(along))
                    .map(Value::to_string)
                    .collect::<BTreeSet<_>>()
                    .len(),
            )
        })
        .filter(|(_, values)| *values >= 3)
        .max_by_key(|(_, values)| *values)?;
    let others: Vec<&str> = fields.iter().copied().filter(|other| *other != along).collect();
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let (Some(x), Some(y)) = (row.number(along), row.number(field)) else { continue };
        let name = label(row, &others);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((x, y)),
            None => series.push((name, vec![(x, y)])),
        }
    }
    series.iter_mut().for_each(|(_, points)| points.sort_by(|one, two| one.0.total_cmp(&two.0)));
    // Rows that form no series, for example a list of different floors, must not be joined by lines.
    if !series.iter().any(|(_, points)| points.len() >= 3) {
        return None;
    }
    series.extend(measure.floor.and_then(|floor| floor_line(floor, along, rows)));
    let values = || series.iter().flat_map(|(_, points)| points.iter().map(|point| point.0));
    let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    let (unit, stem) = Unit::of(along);
    let axis = Axis { label: stem.replace('_', " "), unit, logarithmic: low > 0.0 && high / low >= 16.0 };
    if let [(name, _)] = &mut series[..]
        && name.is_empty()
    {
        *name = "measured".to_owned();
    }
    Some(Lines { along: axis, series })
}

/// Returns the floor line of a sweep: at each point, the median of the floors of all series.
fn floor_line(floor: &str, along: &str, rows: &[&Row]) -> Option<(String, Vec<(f64, f64)>)> {
    let mut places: Vec<f64> = rows.iter().filter_map(|row| row.number(along)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let points: Vec<(f64, f64)> = places
        .into_iter()
        .filter_map(|place| {
            let here = rows.iter().filter(|row| row.number(along) == Some(place));
            Some((place, median(here.filter_map(|row| row.number(floor)))?))
        })
        .collect();
    (!points.is_empty()).then(|| ("physical floor".to_owned(), points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_become_bars_by_measure() {
        let rows = [
            Row::new()
                .with("name", "round_trip_32")
                .with("placement", "near")
                .with("size_bytes", 32)
                .with("p50_ns", 120.0)
                .with("p99_ns", 150.0),
            Row::new()
                .with("name", "round_trip_4096")
                .with("placement", "near")
                .with("size_bytes", 4096)
                .with("p50_ns", 850.0),
            Row::new()
                .with("name", "futex")
                .with("placement", "near")
                .with("cores", "one core")
                .with("size_bytes", 4)
                .with("p50_ns", 5000.0),
            Row::new()
                .with("name", "futex")
                .with("placement", "near")
                .with("cores", "two cores")
                .with("size_bytes", 4)
                .with("p50_ns", 50_000.0),
            Row::new().with("name", "ring_32").with("placement", "near").with("throughput_ops", 65e6),
        ];
        let charts = charts_of("bench limit", &rows);
        assert_eq!(charts.len(), 2);
        let Content::Bars(bars) = &charts[0].content else { panic!("{:?}", charts[0]) };
        assert_eq!(
            bars.categories,
            ["round_trip_32", "round_trip_4096", "futex, one core", "futex, two cores"]
        );
        assert_eq!(bars.series.len(), 2);
        assert_eq!(bars.series[1].1, [Some(150.0), None, None, None]);
        assert!(charts[0].values.logarithmic);
        assert_eq!(charts[1].title, "bench limit: throughput");
        assert!(matches!(&charts[1].content, Content::Bars(bars) if bars.categories == ["ring_32"]));
    }

    #[test]
    fn sweeps_become_lines() {
        let rows: Vec<Row> = ["send", "write"]
            .into_iter()
            .flat_map(|protocol| {
                [64u64, 1, 8].map(|clients| {
                    Row::new()
                        .with("protocol", protocol)
                        .with("clients", clients)
                        .with("throughput_ops", 1e6 * clients as f64)
                        .with("floor_throughput_ops", 9e6)
                        .with("samples", clients * 7)
                })
            })
            .collect();
        let charts = charts_of("bench throughput", &rows);
        assert_eq!(charts.len(), 1);
        let Content::Lines(lines) = &charts[0].content else { panic!("{:?}", charts[0]) };
        assert_eq!(lines.along, Axis { label: "clients".to_owned(), unit: Unit::None, logarithmic: true });
        assert_eq!(lines.series[0], ("send".to_owned(), vec![(1.0, 1e6), (8.0, 8e6), (64.0, 64e6)]));
        assert_eq!(lines.series.len(), 3);
        assert_eq!(lines.series[2], ("physical floor".to_owned(), vec![(1.0, 9e6), (8.0, 9e6), (64.0, 9e6)]));
    }

    #[test]
    fn rows_without_measures_have_no_chart() {
        // Tails are lines where the rows have no median to draw.
        let row =
            |clients: u64| Row::new().with("sharing", "grouped").with("clients", clients).with("p99_ns", 7.0);
        let rows = [1, 40, 2000].map(row);
        let charts = charts_of("bench clients", &rows);
        assert!(matches!(charts.as_slice(), [one] if matches!(one.content, Content::Lines(_))), "{charts:?}");
        assert!(
            charts_of("bench x", &rows.map(|row| row.with("p50_ns", 3.0)))[0].title.ends_with(": latency")
        );
        assert!(charts_of("doctor", &[Row::new().with("name", "x").with("p50_ns", Value::Null)]).is_empty());
    }

    #[test]
    fn one_row_still_has_a_chart() {
        let charts = charts_of("kv bench", &[Row::new().with("clients", 1).with("throughput_ops", 5e6)]);
        assert!(matches!(&charts[0].content, Content::Bars(bars) if bars.categories.len() == 1));
    }
}
