//! Drawings of figures whose points along x do not show them.

use super::{Outcome, Outcomes, Run};

/// One drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Title.
    pub title: String,
    /// Quantity and unit of the values.
    pub values: &'static str,
    /// The data.
    pub shape: Shape,
}

/// The form of a drawing.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Lines.
    Lines {
        /// Quantity along the horizontal axis.
        along: &'static str,
        /// Name and points of each line.
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// Groups of bars.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
        /// Name of each series, and its value in each group.
        series: Vec<(String, Vec<Option<f64>>)>,
    },
}

/// Creates a drawing of lines.
pub(super) fn lines(
    title: impl Into<String>,
    values: &'static str,
    along: &'static str,
    series: Vec<(String, Vec<(f64, f64)>)>,
) -> Drawing {
    Drawing { title: title.into(), values, shape: Shape::Lines { along, series } }
}

impl Outcomes {
    /// Returns a series as a line, in the order of its runs.
    pub(super) fn line(
        &self,
        series: &str,
        along: fn(&Run, &Outcome) -> f64,
        value: fn(&Outcome) -> f64,
    ) -> Vec<(f64, f64)> {
        let mine = self.0.iter().filter(|(run, _)| run.series == series);
        mine.map(|(run, outcome)| (along(run, outcome), value(outcome))).collect()
    }

    /// Returns all series as bars, with one group per value of x.
    pub(super) fn bars(
        &self,
        title: impl Into<String>,
        values: &'static str,
        group: fn(u32) -> String,
        value: fn(&Outcome) -> f64,
    ) -> Drawing {
        let xs = self.xs();
        let mut series: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for (run, _) in &self.0 {
            if series.iter().all(|(name, _)| *name != run.series) {
                let of = xs.iter().map(|x| self.get(&run.series, *x, value)).collect();
                series.push((run.series.clone(), of));
            }
        }
        let groups = xs.iter().map(|x| group(*x)).collect();
        Drawing { title: title.into(), values, shape: Shape::Bars { groups, series } }
    }
}
