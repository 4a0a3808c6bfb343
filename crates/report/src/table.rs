//! Formats rows as aligned text, Markdown or HTML tables.

use serde_json::Value;

use super::{Row, Unit, readable};

/// Formats rows as an aligned text table. The columns are the union of all fields, in order of first
/// appearance. Numbers are right-aligned and have readable units; absent values are blank; entirely empty
/// columns are omitted.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let Columns { cells: columns, numeric } = columns(rows);
    let widths: Vec<usize> = columns
        .iter()
        .map(|cells| cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in 0..=rows.len() {
        let mut cells = Vec::with_capacity(columns.len());
        for ((column, width), numeric) in columns.iter().zip(&widths).zip(&numeric) {
            let cell = &column[line];
            cells.push(if *numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        }
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
        if line == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            text.push_str(&rules.join("  "));
            text.push('\n');
        }
    }
    text
}

/// Formats rows as [`table`] does, in Markdown.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let Columns { cells, numeric } = columns(rows);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rules = numeric.iter().map(|numeric| if *numeric { "---:" } else { "---" });
    let mut text = String::new();
    for row in 0..=rows.len() {
        text += &line(&mut cells.iter().map(|column| column[row].as_str()));
        if row == 0 {
            text += &line(&mut rules.clone());
        }
    }
    text
}

/// Formats rows as [`table`] does, in HTML. Rows for which `is_off` holds get the class `off`, numeric
/// cells `number`.
#[must_use]
pub fn html(rows: &[Row], is_off: impl Fn(&Row) -> bool) -> String {
    let Columns { cells, numeric } = columns(rows);
    let mut text = String::from("<table>\n");
    for line in 0..=rows.len() {
        let off = line > 0 && is_off(&rows[line - 1]);
        text += if off { "<tr class=\"off\">" } else { "<tr>" };
        for (column, numeric) in cells.iter().zip(&numeric) {
            let (open, close) = match (line, numeric) {
                (0, _) => ("<th>", "</th>"),
                (_, true) => ("<td class=\"number\">", "</td>"),
                (_, false) => ("<td>", "</td>"),
            };
            text = text + open + &escaped(&column[line]) + close;
        }
        text += "</tr>\n";
    }
    text + "</table>\n"
}

/// Escapes text for HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// Header and cells of each column, and whether the column holds only numbers.
struct Columns {
    cells: Vec<Vec<String>>,
    numeric: Vec<bool>,
}

fn columns(rows: &[Row]) -> Columns {
    let mut fields: Vec<&str> = Vec::new();
    for (name, value) in rows.iter().flat_map(Row::fields) {
        if !value.is_null() && !fields.contains(&name) {
            fields.push(name);
        }
    }
    let cells = fields.iter().map(|field| column(field, rows)).collect();
    let numeric: Vec<bool> = fields
        .iter()
        .map(|field| {
            rows.iter()
                .filter_map(|row| row.get(field))
                .all(|value| matches!(value, Value::Number(_) | Value::Null))
        })
        .collect();
    Columns { cells, numeric }
}

/// Returns the header and the cells of one field.
fn column(field: &str, rows: &[Row]) -> Vec<String> {
    let head = match field.strip_suffix("_ns_per_op") {
        Some(stem) => format!("{stem} per op"),
        None => Unit::of(field).1.to_owned(),
    };
    let cells =
        rows.iter().map(|row| row.get(field).map_or_else(String::new, |value| readable(field, value)));
    std::iter::once(head.replace('_', " ")).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            Row::new().with("name", "round_trip_32").with("p50_ns", 120.0).with("placement", "near"),
            Row::new()
                .with("name", "memcpy")
                .with("bytes_per_s", 88e9)
                .with("placement", "near")
                .with("note", Value::Null),
        ];
        let expected = "\
name              p50  placement  bandwidth
-------------  ------  ---------  ---------
round_trip_32  120 ns  near
memcpy                 near         88 GB/s
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let rows = [
            Row::new().with("name", "a|b").with("p50_ns", 120.0),
            Row::new().with("name", "memcpy").with("bytes_per_s", 88e9),
        ];
        let expected = "\
| name | p50 | bandwidth |
| --- | ---: | ---: |
| a\\|b | 120 ns |  |
| memcpy |  | 88 GB/s |
";
        assert_eq!(markdown(&rows), expected);
    }

    #[test]
    fn html_has_the_same_cells_and_nothing_of_its_own_in_them() {
        let rows = [
            Row::new().with("name", "a<b & \"c\"").with("p50_ns", 120.0),
            Row::new().with("name", "memcpy").with("p50_ns", Value::Null),
        ];
        let expected = "\
<table>
<tr><th>name</th><th>p50</th></tr>
<tr class=\"off\"><td>a&lt;b &amp; &quot;c&quot;</td><td class=\"number\">120 ns</td></tr>
<tr><td>memcpy</td><td class=\"number\">-</td></tr>
</table>
";
        assert_eq!(html(&rows, |row| row.number("p50_ns").is_some()), expected);
    }

    #[test]
    fn no_rows_is_an_empty_head() {
        assert_eq!(table(&[]).trim(), "");
    }
}
