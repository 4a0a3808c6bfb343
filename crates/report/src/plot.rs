//! Draws charts as SVG. The `chart` module decides what to draw of a document's rows.
//!
//! Text stays text in the SVG, in the viewer's sans-serif font, so no font is needed here. Text widths are
//! estimated generously instead of measured.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Unit, WriteError};

/// Width of a drawing, pixels.
const WIDTH: u32 = 960;
/// Height of one bar, and of the gap between two groups, pixels.
const BAR: u32 = 15;
const GAP: u32 = 14;
/// Height of a line chart's plot area, without title and legend, pixels.
const LINES_HEIGHT: u32 = 380;
/// Colours that colour-blind readers can distinguish: six by Okabe and Ito (2008), four darker ones by Tol
/// (2021).
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(51, 34, 136),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(17, 119, 51),
];
const GREY: RGBColor = RGBColor(120, 120, 120);

/// A panel of a drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title above the panel.
    pub title: String,
    /// Axis of the measured values.
    pub values: Axis,
    /// The data.
    pub content: Content,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Name of the axis. The unit is shown at the ticks.
    pub label: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether the axis is logarithmic. It then cannot show values that are not positive.
    pub logarithmic: bool,
}

/// The data of a chart, by chart type.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Groups of horizontal bars.
    Bars(Bars),
    /// Lines over a second axis.
    Lines(Lines),
}

/// Groups of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Names of the groups, from the top.
    pub categories: Vec<String>,
    /// Name of each series, and its value in each category.
    pub series: Vec<(String, Vec<Option<f64>>)>,
}

/// Lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The horizontal axis.
    pub along: Axis,
    /// Name of each series, and its points from left to right.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// The error that prevented a plot from being drawn or written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// No row has a value to draw.
    #[error("there is nothing to plot: no row has a latency, a throughput or a bandwidth")]
    Nothing,
    /// The drawing library failed.
    #[error("the plot could not be drawn: {0}")]
    Drawing(String),
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn drawing(error: impl Display) -> PlotError {
    PlotError::Drawing(error.to_string())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws `charts` below each other, with one line of small print (machine, commit) at the bottom.
///
/// # Errors
/// [`PlotError::Nothing`] if `charts` is empty.
pub fn draw(charts: &[Chart], foot: &str) -> Result<String, PlotError> {
    if charts.is_empty() {
        return Err(PlotError::Nothing);
    }
    let mut text = String::new();
    {
        let heights: Vec<u32> = charts.iter().map(height).collect();
        let total = heights.iter().sum::<u32>() + 28;
        let mut rest = SVGBackend::with_string(&mut text, (WIDTH, total)).into_drawing_area();
        rest.fill(&WHITE).map_err(drawing)?;
        for (chart, height) in charts.iter().zip(heights) {
            let (panel, below) = rest.split_vertically(height);
            draw_panel(&panel, chart)?;
            rest = below;
        }
        let small = style(11, &RGBColor(110, 110, 110), HPos::Left, VPos::Top);
        rest.draw(&Text::new(foot.to_owned(), (16, 6), small)).map_err(drawing)?;
        rest.present().map_err(drawing)?;
    }
    Ok(super::tidy::tidy(&text))
}

/// Returns the legend entries. A single series of bars needs no legend.
fn names(chart: &Chart) -> Vec<&str> {
    match &chart.content {
        Content::Bars(bars) if bars.series.len() == 1 => Vec::new(),
        Content::Bars(bars) => bars.series.iter().map(|(name, _)| name.as_str()).collect(),
        Content::Lines(lines) => lines.series.iter().map(|(name, _)| name.as_str()).collect(),
    }
}

/// Lays out the legend: returns the x offset and the row of each entry.
fn legend(names: &[&str]) -> Vec<(i32, i32)> {
    let (mut left, mut row) = (0, 0);
    names
        .iter()
        .map(|name| {
            let width = 34 + estimated_width(name, 13);
            if left > 0 && left + width > WIDTH as i32 - 32 {
                (left, row) = (0, row + 1);
            }
            let place = (left, row);
            left += width;
            place
        })
        .collect()
}

/// Returns the height of title and legend.
fn head_height(chart: &Chart) -> u32 {
    let rows = legend(&names(chart)).last().map_or(0, |(_, row)| row + 1);
    46 + 20 * rows as u32
}

fn height(chart: &Chart) -> u32 {
    head_height(chart)
        + match &chart.content {
            // 66 pixels below the bars hold ticks and the axis label.
            Content::Bars(bars) => bars.categories.len() as u32 * (bars.series.len() as u32 * BAR + GAP) + 66,
            Content::Lines(_) => LINES_HEIGHT,
        }
}

fn estimated_width(text: &str, size: i32) -> i32 {
    text.chars().count() as i32 * size * 6 / 10
}

fn style(size: i32, colour: &RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(colour).pos(Pos::new(horizontal, vertical))
}

/// The visual style of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    colour: RGBColor,
    mark: Mark,
}

/// The mark of a series' points and line. When all colours are used, they repeat with another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A dot and a solid line.
    Dot,
    /// A triangle and a dashed line.
    Triangle,
    /// A ring and a dotted line. Also marks a paper's figures for the series of the same colour.
    Ring,
}

/// Suffix in the name of a series that holds a paper's figures.
const OF_THE_PAPER: &str = ", paper";

/// Returns the name of the measured series to which this series gives a paper's figures.
fn paper_of<'a>(name: &'a str, names: &[&str]) -> Option<&'a str> {
    name.strip_suffix(OF_THE_PAPER).filter(|series| names.contains(series))
}

/// Returns the styles of all series. The floor is always grey.
fn looks(names: &[&str]) -> Vec<Look> {
    let measured: Vec<&str> = names.iter().filter(|name| paper_of(name, names).is_none()).copied().collect();
    let look = |name: &&str| {
        let of_the_paper = paper_of(name, names);
        let place = measured.iter().position(|one| *one == of_the_paper.unwrap_or(name)).unwrap_or(0);
        let mark = match place / COLOURS.len() {
            _ if of_the_paper.is_some() => Mark::Ring,
            0 => Mark::Dot,
            1 => Mark::Triangle,
            _ => Mark::Ring,
        };
        let colour = if name.contains("floor") { GREY } else { COLOURS[place % COLOURS.len()] };
        Look { colour, mark }
    };
    names.iter().map(look).collect()
}

/// Returns the font size of a title. Long titles get a smaller size, to fit the width.
fn title_size(title: &str) -> i32 {
    (10..=18).rev().find(|size| 32 + estimated_width(title, *size) <= WIDTH as i32).unwrap_or(10)
}

fn draw_panel(panel: &Area<'_>, chart: &Chart) -> Result<(), PlotError> {
    let title = style(title_size(&chart.title), &BLACK, HPos::Left, VPos::Top);
    panel.draw(&Text::new(chart.title.clone(), (16, 14), title)).map_err(drawing)?;
    let names = names(chart);
    for ((name, look), (left, row)) in names.iter().zip(looks(&names)).zip(legend(&names)) {
        let (left, top) = (16 + left, 44 + 20 * row);
        let (middle, colour) = ((left + 6, top + 6), look.colour);
        match look.mark {
            Mark::Dot => panel.draw(&Rectangle::new([(left, top), (left + 12, top + 12)], colour.filled())),
            Mark::Triangle => panel.draw(&TriangleMarker::new(middle, 7, colour.filled())),
            Mark::Ring => panel.draw(&Circle::new(middle, 5, colour.stroke_width(2))),
        }
        .map_err(drawing)?;
        let entry = style(13, &BLACK, HPos::Left, VPos::Center);
        panel.draw(&Text::new((*name).to_owned(), (left + 18, top + 6), entry)).map_err(drawing)?;
    }
    let (_, body) = panel.split_vertically(head_height(chart));
    match &chart.content {
        Content::Bars(bars) => {
            let values: Vec<f64> =
                bars.series.iter().flat_map(|(_, values)| values.iter().flatten().copied()).collect();
            let (low, high) = range(&chart.values, &values, true)?;
            let up = tick_base(&chart.values, low, high);
            if chart.values.logarithmic {
                draw_bars(&body, chart, bars, (low..high).log_scale().base(up), low)
            } else {
                draw_bars(&body, chart, bars, low..high, low)
            }
        }
        Content::Lines(lines) => {
            let points = || lines.series.iter().flat_map(|(_, points)| points);
            let (left, right) =
                range(&lines.along, &points().map(|point| point.0).collect::<Vec<_>>(), false)?;
            let (low, high) = range(&chart.values, &points().map(|point| point.1).collect::<Vec<_>>(), true)?;
            let (along, up) = (tick_base(&lines.along, left, right), tick_base(&chart.values, low, high));
            match (lines.along.logarithmic, chart.values.logarithmic) {
                (false, false) => draw_lines(&body, chart, lines, left..right, low..high),
                (false, true) => {
                    draw_lines(&body, chart, lines, left..right, (low..high).log_scale().base(up))
                }
                (true, false) => {
                    draw_lines(&body, chart, lines, (left..right).log_scale().base(along), low..high)
                }
                (true, true) => draw_lines(
                    &body,
                    chart,
                    lines,
                    (left..right).log_scale().base(along),
                    (low..high).log_scale().base(up),
                ),
            }
        }
    }
}

/// Returns the ends of an axis. A linear axis of measured values starts at 0, a logarithmic one below the
/// smallest value.
fn range(axis: &Axis, values: &[f64], measured: bool) -> Result<(f64, f64), PlotError> {
    let shown =
        || values.iter().copied().filter(|value| value.is_finite() && (*value > 0.0 || !axis.logarithmic));
    let (low, high) = shown()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return Err(PlotError::Nothing);
    }
    Ok(match (axis.logarithmic, measured) {
        // Leave space at the end for the numbers next to the bars.
        (true, true) => (low / 2.0, high * (high / low).max(10.0).powf(0.12)),
        (true, false) => (low / 1.2, high * 1.2),
        (false, true) => (low.min(0.0), if high > 0.0 { high * 1.12 } else { 1.0 }),
        (false, false) => {
            let margin = if high > low { (high - low) * 0.03 } else { 1.0 };
            (low - margin, high + margin)
        }
    })
}

/// Returns the base of the ticks: 10 where several powers of ten fit, and 2 for short ranges, sizes and
/// counts.
fn tick_base(axis: &Axis, low: f64, high: f64) -> f64 {
    let tens = high / low >= 100.0 && !matches!(axis.unit, Unit::Bytes | Unit::None);
    if tens { 10.0 } else { 2.0 }
}

fn axis_label(axis: &Axis) -> String {
    if axis.logarithmic { format!("{} (logarithmic)", axis.label) } else { axis.label.clone() }
}

fn draw_bars<X>(
    body: &Area<'_>,
    chart: &Chart,
    bars: &Bars,
    across: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    base: f64,
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let names_width =
        bars.categories.iter().map(|name| estimated_width(name, 13)).max().unwrap_or(0).min(WIDTH as i32 / 2);
    let group = f64::from(bars.series.len() as u32 * BAR + GAP);
    let height = group * bars.categories.len() as f64;
    let mut context = ChartBuilder::on(body)
        .margin_left(24 + names_width)
        .margin_right(24)
        .margin_top(4)
        .x_label_area_size(48)
        .build_cartesian_2d(across, height..0.0)
        .map_err(drawing)?;
    context
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_labels(8)
        .x_label_formatter(&|value| chart.values.unit.format(*value))
        .x_desc(axis_label(&chart.values))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(222, 222, 222))
        .label_style(style(12, &BLACK, HPos::Center, VPos::Top))
        .axis_desc_style(style(13, &BLACK, HPos::Center, VPos::Top))
        .draw()
        .map_err(drawing)?;
    let names: Vec<&str> = bars.series.iter().map(|(name, _)| name.as_str()).collect();
    let looks = looks(&names);
    for (row, category) in bars.categories.iter().enumerate() {
        let top = group * row as f64 + f64::from(GAP) / 2.0;
        let middle = top + f64::from(bars.series.len() as u32 * BAR) / 2.0;
        let (left, centre) = context.backend_coord(&(base, middle));
        let (body_left, body_top) = body.get_base_pixel();
        let name = style(13, &BLACK, HPos::Right, VPos::Center);
        body.draw(&Text::new(category.clone(), (left - body_left - 8, centre - body_top), name))
            .map_err(drawing)?;
        for (index, ((_, values), look)) in bars.series.iter().zip(&looks).enumerate() {
            let Some(value) = values.get(row).copied().flatten().filter(|value| *value > base) else {
                continue;
            };
            let top = top + f64::from(index as u32 * BAR);
            let bottom = top + f64::from(BAR) - 2.0;
            let bar = Rectangle::new([(base, top), (value, bottom)], look.colour.filled());
            let number = style(11, &BLACK, HPos::Left, VPos::Center);
            let text = EmptyElement::at((value, (top + bottom) / 2.0))
                + Text::new(chart.values.unit.format(value), (4, 0), number);
            context.draw_series(std::iter::once(bar)).map_err(drawing)?;
            context.draw_series(std::iter::once(text)).map_err(drawing)?;
        }
    }
    Ok(())
}

/// Returns the maximum number of ticks of the horizontal axis. Whole-number parameters get no ticks between
/// whole numbers.
fn ticks_along(lines: &Lines) -> usize {
    const MOST: usize = 10;
    let xs = || lines.series.iter().flat_map(|(_, points)| points.iter().map(|point| point.0));
    if lines.along.logarithmic || !xs().all(|x| x.fract() == 0.0) {
        return MOST;
    }
    let (low, high) =
        xs().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    ((high - low) as usize + 1).clamp(2, MOST)
}

fn draw_lines<X, Y>(
    body: &Area<'_>,
    chart: &Chart,
    lines: &Lines,
    along: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    up: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut context = ChartBuilder::on(body)
        .margin_left(16)
        .margin_right(32)
        .margin_top(8)
        .x_label_area_size(48)
        .y_label_area_size(88)
        .build_cartesian_2d(along, up)
        .map_err(drawing)?;
    context
        .configure_mesh()
        .x_labels(ticks_along(lines))
        .y_labels(8)
        .x_label_formatter(&|value| lines.along.unit.format(*value))
        .y_label_formatter(&|value| chart.values.unit.format(*value))
        .x_desc(axis_label(&lines.along))
        .y_desc(axis_label(&chart.values))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(222, 222, 222))
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()
        .map_err(drawing)?;
    for (look, (_, points)) in looks(&names(chart)).into_iter().zip(&lines.series) {
        let drawable: Vec<(f64, f64)> = points
            .iter()
            .copied()
            .filter(|(x, y)| {
                (*x > 0.0 || !lines.along.logarithmic) && (*y > 0.0 || !chart.values.logarithmic)
            })
            .collect();
        let (line, fill) = (look.colour.stroke_width(2), look.colour.filled());
        let points = drawable.clone().into_iter();
        match look.mark {
            Mark::Dot => {
                context.draw_series(LineSeries::new(drawable, line)).map_err(drawing)?;
                context.draw_series(points.map(|point| Circle::new(point, 4, fill))).map(drop)
            }
            Mark::Triangle => {
                let dashes = DashedLineSeries::new(drawable, 8, 5, line);
                context.draw_series(dashes).map_err(drawing)?;
                context.draw_series(points.map(|point| TriangleMarker::new(point, 5, fill))).map(drop)
            }
            Mark::Ring => {
                let dots = DashedLineSeries::new(drawable, 2, 4, line);
                context.draw_series(dots).map_err(drawing)?;
                context.draw_series(points.map(|point| Circle::new(point, 4, line))).map(drop)
            }
        }
        .map_err(drawing)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency() -> Axis {
        Axis { label: "latency".to_owned(), unit: Unit::Nanoseconds, logarithmic: true }
    }

    fn bars() -> Chart {
        Chart {
            title: "bench latency".to_owned(),
            values: latency(),
            content: Content::Bars(Bars {
                categories: vec!["Direct-WriteIMM".to_owned(), "HERD <&>".to_owned()],
                series: vec![
                    ("p50".to_owned(), vec![Some(200.0), Some(300.0)]),
                    ("p99".to_owned(), vec![Some(20_000.0), None]),
                ],
            }),
        }
    }

    #[test]
    fn text_is_text_and_escaped() {
        let drawn = draw(&[bars()], "some CPU").expect("drawn");
        for text in [
            "bench latency",
            "Direct-WriteIMM",
            "HERD &lt;&amp;&gt;",
            "p99",
            "200 ns",
            "20 us",
            "latency (logarithmic)",
            "some CPU",
        ] {
            assert!(drawn.contains(text), "{text}");
        }
        assert_eq!(drawn.matches("<svg").count(), 1);
        assert!(drawn.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn lines_have_a_point_for_each_value() {
        let chart = Chart {
            title: "throughput".to_owned(),
            values: Axis {
                label: "operations per second".to_owned(),
                unit: Unit::OperationsPerSecond,
                logarithmic: false,
            },
            content: Content::Lines(Lines {
                along: Axis { label: "clients".to_owned(), unit: Unit::None, logarithmic: true },
                series: vec![("write".to_owned(), vec![(1.0, 1e6), (16.0, 2e6), (256.0, 1.5e6)])],
            }),
        };
        let drawn = draw(&[chart], "").expect("drawn");
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert!(drawn.contains("clients (logarithmic)"));
    }

    #[test]
    fn long_titles_end_within_the_drawing() {
        let long = "READs and latency of calls whose first READ is sent at once, or when the result is expected, and of replies";
        assert_eq!(title_size("throughput"), 18);
        assert!(title_size(long) < 18 && 32 + estimated_width(long, title_size(long)) <= WIDTH as i32);
    }

    #[test]
    fn what_is_counted_has_ticks_at_whole_numbers_only() {
        let along = Axis { label: "operation".to_owned(), unit: Unit::None, logarithmic: false };
        let at = |xs: &[f64]| {
            let points = xs.iter().map(|x| (*x, 1.0)).collect();
            Lines { along: along.clone(), series: vec![("kops".to_owned(), points)] }
        };
        assert_eq!(ticks_along(&at(&[1.0, 2.0, 3.0, 4.0])), 4);
        assert_eq!(ticks_along(&at(&[0.0, 30.0])), 10);
        assert_eq!(ticks_along(&at(&[0.5, 2.0])), 10);
        let chart =
            Chart { title: String::new(), values: latency(), content: Content::Lines(at(&[1.0, 2.0, 4.0])) };
        let drawn = draw(&[chart], "").expect("drawn");
        assert!(!drawn.contains("1.5") && !drawn.contains("2.5"), "{drawn}");
    }

    #[test]
    fn every_series_looks_different_and_a_paper_as_its_series() {
        let names: Vec<String> = (0..20).map(|index| format!("series {index}")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.insert(3, "series 2, paper");
        names.push("the floor");
        let looks = looks(&names);
        let same = |one: &Look| looks.iter().filter(|other| *other == one).count();
        assert!(looks.iter().all(|look| same(look) == 1), "{looks:?}");
        assert_eq!(looks[3], Look { mark: Mark::Ring, ..looks[2] });
        assert_eq!((looks[21].colour, looks[1].colour), (GREY, COLOURS[1]));
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(matches!(draw(&[], ""), Err(PlotError::Nothing)));
        let mut empty = bars();
        empty.content = Content::Bars(Bars {
            categories: vec!["a".to_owned()],
            series: vec![("p50".to_owned(), vec![Some(0.0)]), ("p99".to_owned(), vec![Some(f64::NAN)])],
        });
        assert!(matches!(draw(&[empty], ""), Err(PlotError::Nothing)));
    }

    #[test]
    fn long_legends_wrap() {
        let names: Vec<String> = (0..20).map(|index| format!("a rather long series name {index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let places = legend(&names);
        assert!(places.last().is_some_and(|(_, row)| *row >= 4));
        for (place, name) in places.iter().zip(&names) {
            assert!(place.0 + estimated_width(name, 13) < WIDTH as i32);
        }
    }
}
