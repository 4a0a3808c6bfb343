//! A file's text and the locations in it.

use dunlin_hints::Place;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A byte range of a text.
pub(crate) type Span = Range<usize>;

/// The maximum file size in bytes.
pub(crate) const MAX_FILE: usize = 4 << 20;
/// The maximum line length in bytes.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// A file's text with the offsets of its lines.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
    lines: Vec<usize>,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Source { name: name.into(), text: text.into(), lines }
    }

    /// Returns the index of the line that contains a byte.
    fn line_of(&self, offset: usize) -> usize {
        self.lines.partition_point(|start| *start <= offset) - 1
    }

    /// Returns the byte range of a line without its line end.
    fn line_span(&self, line: usize) -> Span {
        let end = self.lines.get(line + 1).map_or(self.text.len(), |next| next - 1);
        let end = if self.text[..end].ends_with('\r') { end - 1 } else { end };
        self.lines[line]..end.max(self.lines[line])
    }

    /// Returns the nearest character boundary at or before an offset.
    fn boundary(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }

    /// Returns the location of a byte.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let offset = self.boundary(offset);
        let line = self.line_of(offset);
        let column = self.text[self.lines[line]..offset].chars().count() + 1;
        Place { file: Cow::Owned(self.name.to_string()), line: line as u32 + 1, column: column as u32 }
    }

    /// Returns the byte range of `length` bytes from a location.
    pub(crate) fn span(&self, place: &Place, length: usize) -> Span {
        let line = self.line_span((place.line as usize).clamp(1, self.lines.len()) - 1);
        let text = &self.text[line.clone()];
        let offset = text.char_indices().nth(place.column as usize - 1).map_or(text.len(), |(at, _)| at);
        line.start + offset..(line.start + offset + length).min(line.end)
    }

    /// Returns the text of the line at which a span begins, and the span's range in it.
    pub(crate) fn line(&self, span: &Span) -> (&str, Span) {
        let start = self.boundary(span.start);
        let line = self.line_span(self.line_of(start));
        let start = start.clamp(line.start, line.end);
        let end = self.boundary(span.end).clamp(start, line.end);
        (&self.text[line.clone()], start - line.start..end - line.start)
    }

    /// Returns the start of the first line over the limit.
    pub(crate) fn too_long_line(&self) -> Option<usize> {
        (0..self.lines.len()).find(|line| self.line_span(*line).len() > MAX_LINE).map(|line| self.lines[line])
    }

    pub(crate) fn slice(&self, span: &Span) -> &str {
        &self.text[span.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn places_are_lines_and_characters() {
        let source = Source::new("a.thrift", "one\r\ntwö x\n");
        for (offset, line, column) in
            [(0, 1, 1), (2, 1, 3), (5, 2, 1), (9, 2, 4), (10, 2, 5), (12, 3, 1), (99, 3, 1)]
        {
            let place = source.place(offset);
            assert_eq!((place.line, place.column), (line, column), "{offset}");
        }
        assert_eq!(source.line(&(1..99)), ("one", 1..3));
        assert_eq!(source.line(&(10..11)), ("twö x", 5..6));
        assert_eq!(source.line(&(12..12)), ("", 0..0));
    }
}
