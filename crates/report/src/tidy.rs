//! Shrinks the SVG output of the plotting library and makes it legible on dark pages. Attributes common to
//! all elements move to the root, invisible lines are removed, and line segments of the same style become
//! one path. A media query changes the colours of background, text, grid and axes for readers who prefer
//! dark mode.

use std::fmt::Write as _;

/// The chart colours that dark mode replaces.
const PAPER: &str = "#FFFFFF";
const INK: &str = "#000000";
const GRID: &str = "#DEDEDE";
const SMALL: &str = "#6E6E6E";

const DARK: &str = "<style>@media(prefers-color-scheme:dark){.chart .paper{fill:#0d1117}.chart text{fill:#e6edf3}\
    .chart .small{fill:#9198a1}.chart .grid{stroke:#30363d}.chart .axis{stroke:#9198a1}}</style>\n";

/// Returns the same drawing in a shorter form. Elements of unknown kinds stay unchanged.
pub(super) fn tidy(drawing: &str) -> String {
    let mut tidied = Tidied::default();
    let mut lines = drawing.lines();
    while let Some(line) = lines.next() {
        match Element::parse(line) {
            Some(element) if element.name == "svg" => {
                let _ = writeln!(
                    tidied.text,
                    "<svg class=\"chart\" font-family=\"sans-serif\"{}>",
                    element.all()
                );
                tidied.text.push_str(DARK);
            }
            Some(element) if element.name == "text" => {
                // The text content is on lines of its own.
                let said: Vec<&str> = lines.by_ref().take_while(|line| *line != "</text>").collect();
                tidied.say(&element, &said.join(" "));
            }
            // Charts only have self-closing elements here.
            Some(element) if line.ends_with("/>") => tidied.draw(&element),
            _ => {
                tidied.flush();
                tidied.text.push_str(line);
                tidied.text.push('\n');
            }
        }
    }
    tidied.flush();
    tidied.text
}

/// An element and its attributes.
struct Element<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> Element<'a> {
    /// Parses an opening tag that fills a whole line.
    fn parse(line: &'a str) -> Option<Self> {
        let inner = line.strip_prefix('<')?.strip_suffix('>')?;
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let (name, mut rest) = inner.split_once(' ').unwrap_or((inner, ""));
        if !name.chars().all(|letter| letter.is_ascii_lowercase()) {
            return None;
        }
        let mut attributes = Vec::new();
        while !rest.trim_start().is_empty() {
            let (attribute, value) = rest.trim_start().split_once("=\"")?;
            let (value, behind) = value.split_once('"')?;
            attributes.push((attribute, value));
            rest = behind;
        }
        Some(Element { name, attributes })
    }

    fn get(&self, name: &str) -> &'a str {
        self.attributes.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Returns all attributes, each with a leading space.
    fn all(&self) -> String {
        self.but(&[])
    }

    /// Returns all attributes except `names` and those with default values.
    fn but(&self, names: &[&str]) -> String {
        let mut text = String::new();
        for (name, value) in &self.attributes {
            let usual = matches!(
                (*name, *value),
                ("opacity", "1")
                    | ("stroke", "none")
                    | ("text-anchor", "start")
                    | ("font-family", "sans-serif")
            );
            // The width of a stroke that is not drawn.
            let idle = *name == "stroke-width" && matches!(self.get("stroke"), "" | "none");
            if !usual && !idle && !names.contains(name) {
                let _ = write!(text, " {name}=\"{value}\"");
            }
        }
        text
    }
}

/// The style of line segments.
#[derive(PartialEq)]
struct Stroke {
    colour: String,
    width: String,
}

#[derive(Default)]
struct Tidied {
    text: String,
    /// Segments not yet written, grouped by style. Only text is written before them; text and lines do not
    /// overlap.
    pieces: Vec<(Stroke, String)>,
}

impl Tidied {
    fn draw(&mut self, element: &Element<'_>) {
        if let Some([(x1, y1), (x2, y2)]) = piece(element) {
            let colour = element.get("stroke");
            if colour == PAPER {
                return;
            }
            let stroke = Stroke { colour: colour.to_owned(), width: element.get("stroke-width").to_owned() };
            let place = self.pieces.iter().position(|(known, _)| *known == stroke).unwrap_or_else(|| {
                self.pieces.push((stroke, String::new()));
                self.pieces.len() - 1
            });
            let path = &mut self.pieces[place].1;
            let _ = match (x1 == x2, y1 == y2) {
                (true, _) => write!(path, "M{x1} {y1}V{y2}"),
                (_, true) => write!(path, "M{x1} {y1}H{x2}"),
                _ => write!(path, "M{x1} {y1}L{x2} {y2}"),
            };
            return;
        }
        self.flush();
        let paper = element.name == "rect" && element.get("fill") == PAPER;
        let class = if paper { " class=\"paper\"" } else { "" };
        let attributes = match element.name {
            "polyline" => {
                let points = element.get("points").trim_end();
                format!("{} points=\"{points}\"", element.but(&["points"]))
            }
            _ => element.all(),
        };
        let _ = writeln!(self.text, "<{}{class}{attributes}/>", element.name);
    }

    fn say(&mut self, element: &Element<'_>, said: &str) {
        let class = if element.get("fill") == SMALL { " class=\"small\"" } else { "" };
        let fill = if element.get("fill") == INK { "fill" } else { "" };
        let size = element.get("font-size").parse::<f64>().map_or(10.0, |size| (size * 10.0).round() / 10.0);
        let attributes = element.but(&["font-size", fill]);
        let _ = writeln!(self.text, "<text{class}{attributes} font-size=\"{size}\">{said}</text>");
    }

    /// Writes the pending segments.
    fn flush(&mut self) {
        for (Stroke { colour, width }, path) in self.pieces.drain(..) {
            let class = match colour.as_str() {
                GRID => " class=\"grid\"",
                INK => " class=\"axis\"",
                _ => "",
            };
            let width = if width == "1" { String::new() } else { format!(" stroke-width=\"{width}\"") };
            let _ =
                writeln!(self.text, "<path{class} fill=\"none\" stroke=\"{colour}\"{width} d=\"{path}\"/>");
        }
    }
}

/// Returns both ends of an element that is a straight line.
fn piece<'a>(element: &Element<'a>) -> Option<[(&'a str, &'a str); 2]> {
    match element.name {
        "line" => {
            let end = |x, y| (element.get(x), element.get(y));
            Some([end("x1", "y1"), end("x2", "y2")])
        }
        "polyline" => {
            let mut points = element.get("points").split_whitespace().map(|point| point.split_once(','));
            match (points.next(), points.next(), points.next()) {
                (Some(one), Some(other), None) => Some([one?, other?]),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_with_each_element_goes() {
        let drawing = "<svg width=\"9\" height=\"9\" viewBox=\"0 0 9 9\" xmlns=\"http://www.w3.org/2000/svg\">
<rect x=\"0\" y=\"0\" width=\"9\" height=\"9\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>
<line opacity=\"1\" stroke=\"#FFFFFF\" stroke-width=\"1\" x1=\"1\" y1=\"4\" x2=\"1\" y2=\"9\"/>
<line opacity=\"1\" stroke=\"#DEDEDE\" stroke-width=\"1\" x1=\"1\" y1=\"4\" x2=\"1\" y2=\"9\"/>
<polyline fill=\"none\" opacity=\"1\" stroke=\"#000000\" stroke-width=\"1\" points=\"98,4 103,4 \"/>
<text x=\"3\" y=\"8\" dy=\"0.76em\" text-anchor=\"start\" font-family=\"sans-serif\" font-size=\"9.67741935483871\" opacity=\"1\" fill=\"#000000\">
a &lt; b
</text>
<line opacity=\"1\" stroke=\"#DEDEDE\" stroke-width=\"1\" x1=\"2\" y1=\"4\" x2=\"7\" y2=\"5\"/>
<circle cx=\"1\" cy=\"2\" r=\"4\" opacity=\"1\" fill=\"#0072B2\" stroke=\"none\" stroke-width=\"1\"/>
<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\" stroke-width=\"2\" points=\"1,2 3,4 5,6 \"/>
<text x=\"1\" y=\"1\" text-anchor=\"end\" font-family=\"sans-serif\" font-size=\"8\" opacity=\"1\" fill=\"#6E6E6E\">
foot
</text>
</svg>
";
        let expected = [
            "<svg class=\"chart\" font-family=\"sans-serif\" width=\"9\" height=\"9\" viewBox=\"0 0 9 9\" xmlns=\"http://www.w3.org/2000/svg\">",
            DARK.trim_end(),
            "<rect class=\"paper\" x=\"0\" y=\"0\" width=\"9\" height=\"9\" fill=\"#FFFFFF\"/>",
            "<text x=\"3\" y=\"8\" dy=\"0.76em\" font-size=\"9.7\">a &lt; b</text>",
            "<path class=\"grid\" fill=\"none\" stroke=\"#DEDEDE\" d=\"M1 4V9M2 4L7 5\"/>",
            "<path class=\"axis\" fill=\"none\" stroke=\"#000000\" d=\"M98 4H103\"/>",
            "<circle cx=\"1\" cy=\"2\" r=\"4\" fill=\"#0072B2\"/>",
            "<polyline fill=\"none\" stroke=\"#0072B2\" stroke-width=\"2\" points=\"1,2 3,4 5,6\"/>",
            "<text class=\"small\" x=\"1\" y=\"1\" text-anchor=\"end\" fill=\"#6E6E6E\" font-size=\"8\">foot</text>",
            "</svg>",
        ];
        assert_eq!(tidy(drawing).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_it_does_not_know_stays() {
        let other = "<g id=\"x\">\n<path d=\"M0 0\" fill=\"red\"/>\nplain > text\n<a b>\n</g>\n";
        let stays = tidy(other);
        for part in ["<path d=\"M0 0\" fill=\"red\"/>", "plain > text", "<a b>", "</g>"] {
            assert!(stays.contains(part), "{stays}");
        }
    }
}
