//! LITE figure 20: the effort of applications on the memory tier, in lines. Nothing runs for it: `tests/apps/figure-20`
//! counts the lines, and holds the table to them.

/// The table, in Markdown.
const TABLE: &str = include_str!("effort.md");

/// Returns the table of LITE figure 20: titles of the columns, then a row for each application, with the paper's numbers
/// beside those of this project.
pub fn of_applications() -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    TABLE.lines().filter(|line| !line.starts_with("|-")).map(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_cell_for_each_title() {
        let rows = of_applications();
        assert_eq!(rows.len(), 6, "{rows:?}");
        assert!(rows.iter().all(|row| row.len() == 5 && row.iter().all(|cell| !cell.is_empty())), "{rows:?}");
        assert_eq!((rows[0][0], rows[5][0]), ("application", "graph on shared memory"));
    }
}
