//! Units of fields, derived from the suffix of the field name.

use serde_json::Value;

/// The unit of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds: `..._ns`, and `..._ns_per_op`.
    Nanoseconds,
    /// Operations per second: `..._ops`.
    OperationsPerSecond,
    /// Bytes per second: `bytes_per_s`.
    BytesPerSecond,
    /// Bytes: `..._bytes`.
    Bytes,
    /// A ratio: `ratio`, `..._ratio`.
    Ratio,
    /// Anything else.
    None,
}

impl Unit {
    /// Returns the unit of a field, and the field's name without the unit.
    #[must_use]
    pub fn of(field: &str) -> (Self, &str) {
        for (ending, unit) in [
            ("bytes_per_s", Self::BytesPerSecond),
            ("_ns", Self::Nanoseconds),
            ("_ops", Self::OperationsPerSecond),
            ("_bytes", Self::Bytes),
        ] {
            if let Some(stem) = field.strip_suffix(ending) {
                let stem = stem.trim_end_matches('_');
                return (unit, if stem.is_empty() { "bandwidth" } else { stem });
            }
        }
        if field.ends_with("_ns_per_op") {
            return (Self::Nanoseconds, field);
        }
        if field == "ratio" || field.ends_with("_ratio") {
            return (Self::Ratio, field);
        }
        (Self::None, field)
    }

    /// Formats the value for people: three significant digits and a suitable prefix.
    #[must_use]
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => scaled(value, 1e3, &["ns", "us", "ms", "s"]),
            Self::OperationsPerSecond => scaled(value, 1e3, &["/s", "k/s", "M/s", "G/s"]),
            Self::BytesPerSecond => scaled(value, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
            Self::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
            Self::Ratio => format!("{value:.2}"),
            Self::None if value.fract() == 0.0 && value.abs() < 1e15 => grouped(value),
            Self::None => digits(value),
        }
    }
}

/// Formats the value of a field for people.
#[must_use]
pub fn readable(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |value| Unit::of(field).0.format(value))
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

fn scaled(value: f64, step: f64, names: &[&str]) -> String {
    let mut value = value;
    let mut index = 0;
    // 999.5 would round to 1000, so switch to the next prefix.
    while value.abs() >= step - 0.5 && index + 1 < names.len() {
        value /= step;
        index += 1;
    }
    let name = names[index];
    // "/s" and "M/s" read as one word with their number.
    let space = if name.ends_with("/s") && !name.contains('B') && index == 0 { "" } else { " " };
    format!("{}{space}{name}", digits(value))
}

/// Formats with three significant digits, without trailing zeros in the fraction.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a whole number with a space between groups of three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push(' ');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_give_units() {
        assert_eq!(Unit::of("p50_ns"), (Unit::Nanoseconds, "p50"));
        assert_eq!(Unit::of("floor_p50_ns"), (Unit::Nanoseconds, "floor_p50"));
        assert_eq!(Unit::of("throughput_ops"), (Unit::OperationsPerSecond, "throughput"));
        assert_eq!(Unit::of("bytes_per_s"), (Unit::BytesPerSecond, "bandwidth"));
        assert_eq!(Unit::of("size_bytes"), (Unit::Bytes, "size"));
        assert_eq!(Unit::of("server_cpu_ns_per_op").0, Unit::Nanoseconds);
        assert_eq!(Unit::of("clients"), (Unit::None, "clients"));
        assert_eq!(Unit::of("ratio").0, Unit::Ratio);
    }

    #[test]
    fn values_read_well() {
        let cases = [
            (Unit::Nanoseconds, 120.0, "120 ns"),
            (Unit::Nanoseconds, 20_600.0, "20.6 us"),
            (Unit::Nanoseconds, 999.7, "1 us"),
            (Unit::OperationsPerSecond, 65_000_000.0, "65 M/s"),
            (Unit::OperationsPerSecond, 12.0, "12/s"),
            (Unit::BytesPerSecond, 88.04e9, "88 GB/s"),
            (Unit::Bytes, 65_536.0, "64 KiB"),
            (Unit::Bytes, 32.0, "32 B"),
            (Unit::Ratio, 1.256, "1.26"),
            (Unit::None, 1_234_567.0, "1 234 567"),
            (Unit::None, 1024.0, "1024"),
            (Unit::None, 0.5, "0.5"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(unit.format(value), text);
        }
        assert_eq!(readable("p50_ns", &Value::Null), "-");
    }
}
